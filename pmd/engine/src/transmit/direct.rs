//! RDMA writes and reads that are carried out without frames, by copying from and to the memory of the peer
//! (docs/adr/0068).

use fcvi_frame::frame::Payload;
use vi_types::{DIRECT_PART_BYTES, Operation, ReliabilityLevel, SendWork, Status};

use super::{Step, TxStream};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{Direct, EngineIo};

/// A descriptor of at least this length counts as much as a burst.
const ENOUGH_BYTES: u32 = 8 * 1024;
/// A descriptor of at least this length waits for what was sent before it. In frames it takes longer, and the next ones
/// have to wait for these frames.
const WORTH_WAITING_BYTES: u32 = 4 * 1024;
/// How often it waits: the peer may not poll.
const MAX_WAITS: u32 = 1000;

/// State of the descriptor that is carried out without frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectProgress {
    /// Its bytes that were copied.
    copied_bytes: u32,
    /// How often it may still wait for the peer.
    waits_left: u32,
}

impl Default for DirectProgress {
    fn default() -> Self {
        Self {
            copied_bytes: 0,
            waits_left: MAX_WAITS,
        }
    }
}

/// Returns whether a descriptor is an RDMA operation that the protocol allows to carry out without frames.
#[inline(always)]
fn may_be_direct(tx: &TxStream, work: &SendWork) -> bool {
    let fits = match work.operation {
        Operation::Send => false,
        Operation::Write { .. } => work.immediate.is_none(),
        Operation::Read { .. } => tx.level != ReliabilityLevel::UnreliableDelivery,
    };
    fits && work.length_bytes > 0 && work.fault.is_ok() && tx.recovery.is_none()
}

/// As [`access_directly`], for a descriptor that is on no queue; returns whether it was carried out.
#[inline(always)]
pub(super) fn access_whole_directly<I: EngineIo>(
    tx: &TxStream,
    cx: &mut Context<'_, I>,
    work: &SendWork,
    memory: Payload<'_>,
) -> bool {
    let is_direct = !matches!(work.operation, Operation::Send)
        && tx.in_flight.is_empty()
        && tx.in_flight.fault.is_none()
        && tx.message.is_none()
        && work.length_bytes <= DIRECT_PART_BYTES
        && may_be_direct(tx, work)
        && (cx.io).access_whole_directly(cx.vi, work, tx.next_msg_id, memory);
    if is_direct {
        count(cx, work);
    }
    is_direct
}

/// Copies the next part of a descriptor and completes it with the last one; `None` if it is to be sent in frames.
/// Everything before it has been completed here and handled at the peer, so that it completes in its turn.
#[inline]
pub(super) fn access_directly<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    work: &SendWork,
) -> Option<Step> {
    if !may_be_direct(tx, work) {
        // Also if the memory of a descriptor became invalid after a part of it was copied.
        tx.direct.copied_bytes = 0;
        return None;
    }
    let is_worth_waiting = work.length_bytes >= WORTH_WAITING_BYTES;
    if !tx.in_flight.is_empty() || tx.in_flight.fault.is_some() {
        let waits = (is_worth_waiting || tx.in_flight.are_all_rdma())
            && tx.in_flight.fault.is_none()
            && cx.io.can_access_directly(cx.vi, work);
        tx.in_flight.deferred |= waits;
        return waits.then_some(Step::Nothing);
    }
    let direct = &mut tx.direct;
    let bytes = (work.length_bytes - direct.copied_bytes).min(DIRECT_PART_BYTES);
    let part = (direct.copied_bytes, bytes);
    match (cx.io).access_directly(cx.vi, work, tx.next_msg_id, part) {
        Direct::Copied => {}
        Direct::NotYet if is_worth_waiting && direct.waits_left > 0 => {
            direct.waits_left -= 1;
            return Some(Step::Enough);
        }
        Direct::NotYet | Direct::Impossible => {
            *direct = DirectProgress::default();
            return None;
        }
    }
    direct.waits_left = MAX_WAITS;
    direct.copied_bytes += bytes;
    if direct.copied_bytes < work.length_bytes {
        return Some(Step::Enough);
    }
    direct.copied_bytes = 0;
    count(cx, work);
    cx.io.complete_send(cx.vi, Status::OK, work.length_bytes);
    Some(if bytes < ENOUGH_BYTES {
        Step::Next
    } else {
        Step::Enough
    })
}

/// Counts a message that was carried out without frames.
#[inline]
fn count<I>(cx: &mut Context<'_, I>, work: &SendWork) {
    cx.count(Counter::TxMessages);
    cx.count(Counter::DirectMessages);
    let counters = &mut cx.port.counters;
    counters.add(Counter::DirectBytes, u64::from(work.length_bytes));
}
