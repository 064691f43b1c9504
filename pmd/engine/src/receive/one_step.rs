//! Messages of one frame that are next in order, as most are: placed and completed in one step (docs/adr/0065).
//!
//! What is not received so, whatever the reason, has changed nothing and is received as the first
//! frame of a message is.

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use vi_types::MessageDestination;

use super::stream::RxStream;
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::reassembly::{RxMessage, immediate};
use crate::transmit::TxStream;

/// Receives the next message, which is whole in one frame, and responds if its level asks for it. Returns `None` if the
/// message needs more than its bytes in their place: an error, or an RDMA write that completes a descriptor.
#[inline(always)]
pub(super) fn receive_in_one_step<I: EngineIo>(
    (rx, tx): (&mut RxStream, &mut TxStream),
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Option<Result<(), Break>> {
    if iu.payload.len() > rx.params.max_transfer_bytes as usize {
        return None;
    }
    let received = if iu.header.opcode == Opcode::WriteRequest {
        write_in_one_step(rx, cx, iu)
    } else {
        cx.io.receive_whole(cx.vi, iu.payload, immediate(iu))
    };
    if !received {
        return None;
    }
    rx.reassembly.expected = iu.header.msg_id.wrapping_add(1);
    cx.count(Counter::RxFrames);
    cx.count(Counter::RxMessages);
    Some(if rx.responds {
        respond(tx, cx, frame, iu)
    } else {
        Ok(())
    })
}

/// Responds to a message that is whole in this frame.
// A separate function, so that messages without a response do not pay for it.
#[inline(never)]
fn respond<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
    let message = RxMessage::of(frame, iu, seq_cnt, MessageDestination::Discard);
    tx.responses.respond_placed(cx, &message)
}

fn write_in_one_step<I: EngineIo>(rx: &RxStream, cx: &mut Context<'_, I>, iu: &IuView<'_>) -> bool {
    let header = &iu.header;
    header.flags & message_request::IMMEDIATE == 0
        && header.tot_len as usize == iu.payload.len()
        && rx.params.rdma_write
        && !rx.misses.is_watched()
        && (cx.io).write_whole(cx.vi, (header.rmt_va, header.rmt_va_handle), iu.payload)
}
