//! Long sends that are copied from the memory of the peer, instead of received in frames (docs/adr/0069).
//!
//! What cannot be received so, whatever the reason, is declined and has changed nothing: the peer sends it in frames,
//! which have all errors.

use fcvi_frame::frame::{FrameView, IuView};
use vi_types::{Claim, DIRECT_PART_BYTES, MessageDestination};

use super::ReceiveFailure;
use super::stream::{PeerSource, RxStream, deliver};
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{CopyResult, EngineIo};
use crate::reassembly::RxMessage;
use crate::transmit::{Step, TxStream};

/// Handles FCVI_RENDEZVOUS_RQST: copies the first part of the message, or declines it.
pub(super) fn start_rendezvous<I: EngineIo>(
    (rx, tx): (&mut RxStream, &mut TxStream),
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let from = PeerSource {
        source: (iu.header.rmt_va, iu.header.rmt_va_handle),
        length_bytes: iu.header.tot_len,
    };
    let seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
    let mut message = RxMessage::of(frame, iu, seq_cnt, MessageDestination::Discard);
    let Some(destination) = claim_receive(rx, cx, message.msg_id, &from) else {
        return tx.responses.decline(cx, &message);
    };
    message.kind = destination;
    rx.reassembly.open(message);
    rx.peer_source = Some(from);
    cx.count(Counter::RxFrames);
    if copy_part(rx, tx, cx)? {
        tx.responses.start_copying(cx);
    }
    Ok(())
}

/// Claims the receive descriptor of the next message, if it can be copied; otherwise changes nothing.
fn claim_receive<I: EngineIo>(
    rx: &RxStream,
    cx: &mut Context<'_, I>,
    msg_id: u32,
    from: &PeerSource,
) -> Option<MessageDestination> {
    let is_possible = rx.ack.is_none()
        && rx.reassembly.message.is_none()
        && rx.reassembly.lost_before(msg_id) == 0
        && from.length_bytes > 0
        && from.length_bytes <= rx.params.max_transfer_bytes
        && (cx.io).can_copy_from_peer(cx.vi, from.source, from.length_bytes);
    if !is_possible {
        return None;
    }
    match cx.io.claim_receive(cx.vi) {
        Claim::Ready { capacity_bytes } => Some(MessageDestination::Receive { capacity_bytes }),
        Claim::Empty | Claim::Fault(_) => None,
    }
}

/// Copies the next part of the open message and completes it with the last one; returns whether parts are left.
fn copy_part<I: EngineIo>(
    rx: &mut RxStream,
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
) -> Result<bool, Break> {
    let open = rx.reassembly.message.as_mut();
    let Some((message, from)) = open.zip(rx.peer_source) else {
        return Ok(false);
    };
    let offset_bytes = message.placed_bytes;
    let bytes = (from.length_bytes - offset_bytes).min(DIRECT_PART_BYTES);
    let part = (offset_bytes, bytes);
    let failure = match (cx.io).copy_from_peer(cx.vi, from.source, from.length_bytes, part) {
        CopyResult::Copied => None,
        CopyResult::LocalInvalid => Some(ReceiveFailure::Protection),
        CopyResult::RemoteInvalid => Some(ReceiveFailure::Incomplete),
        CopyResult::ConnectionEnded => {
            // The disconnect that follows flushes the descriptor.
            rx.peer_source = None;
            rx.start_receive_timer(cx);
            return Ok(false);
        }
    };
    if let Some(failure) = failure {
        rx.peer_source = None;
        rx.fail_message(tx, cx, failure)?;
        return Ok(false);
    }
    message.placed_bytes += bytes;
    if message.placed_bytes < from.length_bytes {
        return Ok(true);
    }
    let done = *message;
    rx.peer_source = None;
    rx.reassembly.finish(done.msg_id);
    deliver(cx, &done);
    tx.responses.respond_placed(cx, &done)?;
    Ok(false)
}

/// Copies the next part of the open message, as a step of the VI's turn.
pub(crate) fn copy_next_part<I: EngineIo>(
    rx: &mut RxStream,
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
) -> Step {
    match copy_part(rx, tx, cx) {
        Ok(true) => Step::Copied,
        Ok(false) => {
            tx.responses.stop_copying();
            Step::Next
        }
        Err(Break(reason)) => Step::Break(reason),
    }
}
