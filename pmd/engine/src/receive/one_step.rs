//! Messages of one frame that are next in order, as most are: placed and completed in one step (docs/adr/0065).
//!
//! What is not received so, whatever the reason, has changed nothing and is received as the first
//! frame of a message is.

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::IuView;
use fcvi_frame::iu::Opcode;

use super::stream::RxStream;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::reassembly::immediate;

/// Receives the next message, which is whole in one frame. Returns false if the message needs more
/// than its bytes in their place: a response, an error, or an RDMA write that completes a descriptor.
#[inline(always)]
pub(super) fn receive_in_one_step<I: EngineIo>(
    rx: &mut RxStream,
    cx: &mut Context<'_, I>,
    iu: &IuView<'_>,
) -> bool {
    let is_too_long = iu.payload.len() > rx.params.max_transfer_bytes as usize;
    if rx.responds || is_too_long {
        return false;
    }
    let received = if iu.header.opcode == Opcode::WriteRequest {
        write_in_one_step(rx, cx, iu)
    } else {
        cx.io.receive_whole(cx.vi, iu.payload, immediate(iu))
    };
    if received {
        rx.reassembly.expected = iu.header.msg_id.wrapping_add(1);
        cx.count(Counter::RxFrames);
        cx.count(Counter::RxMessages);
    }
    received
}

fn write_in_one_step<I: EngineIo>(rx: &RxStream, cx: &mut Context<'_, I>, iu: &IuView<'_>) -> bool {
    let header = &iu.header;
    header.flags & message_request::IMMEDIATE == 0
        && header.tot_len as usize == iu.payload.len()
        && rx.params.rdma_write
        && !rx.misses.is_watched()
        && (cx.io).write_whole(cx.vi, (header.rmt_va, header.rmt_va_handle), iu.payload)
}
