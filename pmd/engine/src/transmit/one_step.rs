//! Sends and RDMA writes of one frame, and RDMA operations without frames, that find nothing ahead of them, as most do:
//! sent and completed in one step, without the send queue (docs/adr/0066).
//!
//! What is not sent so, whatever the reason, has changed nothing and is posted.

use fcvi_frame::frame::Payload;
use vi_types::{DIRECT_PART_BYTES, OneStepLimits, Operation, SendWork};

use super::direct::access_whole_directly;
use super::{TxMessage, TxStream, per_frame};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DataFrame, EngineIo, Transmit};

/// Returns the limits of what can be sent in one step on this stream.
#[inline]
pub(crate) fn one_step_limits(tx: &TxStream) -> OneStepLimits {
    OneStepLimits {
        sends_below_bytes: if tx.tracks_all() {
            0
        } else {
            tx.send_payload_bytes + 1
        },
        rdma_below_bytes: if tx.recovery.is_some() {
            0
        } else {
            DIRECT_PART_BYTES + 1
        },
    }
}

/// As [`Engine::send_in_one_step`](crate::Engine::send_in_one_step), of a connection without a shortcut.
#[inline(always)]
pub(crate) fn send_in_one_step<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    work: &SendWork,
    payload: Payload<'_>,
) -> bool {
    let (template, room) = tx.template_and_room(work.operation);
    if access_whole_directly(tx, cx, work, payload) {
        return true;
    }
    if tx.tracked
        || tx.message.is_some()
        || tx.responses.pending
        || matches!(work.operation, Operation::Read { .. })
        || work.length_bytes > room
    {
        return false;
    }
    let Some(exchange) = cx.port.exchanges.open(cx.now_ns) else {
        return false;
    };
    let message = TxMessage::new(work, exchange, tx.next_msg_id);
    let per_frame = per_frame(&message, tx.framing, work.length_bytes, true);
    let frame = DataFrame {
        template,
        per_frame: &per_frame,
        last: true,
    };
    if cx.io.transmit_payload(frame, payload) != Transmit::Sent {
        cx.port.exchanges.take_back(exchange);
        return false;
    }
    tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
    cx.count(Counter::TxFrames);
    cx.count(Counter::TxMessages);
    let next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
    cx.port.exchanges.close(exchange.ox_id, next_seq_cnt);
    true
}
