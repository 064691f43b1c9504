//! Responses to messages in flight: those of Reliable Reception, and the data of our reads.
//!
//! A response must name an outstanding message by its ID and its exchange [FCVI P-10, rule 7]. On a
//! network that delivers in order the responses to sends and writes arrive in the order of their
//! messages; the data of a read arrives without gaps and after all responses to earlier messages,
//! but it may arrive after responses to later ones.

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::message_response;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::{OperationKind, ReliabilityLevel, Status};

use super::RxStream;
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::endpoint::Endpoint;
use crate::engine_io::EngineIo;
use crate::reassembly::{Accepted, order};
use crate::transmit::{SendFailure, TxStream};

impl Endpoint {
    /// Handles a response: FCVI_SEND_RESP, FCVI_WRITE_RESP or FCVI_READ_RESP.
    pub(super) fn receive_response<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if !self.params.level.is_reliable() {
            cx.count(Counter::DropWrongLevel);
            return Ok(());
        }
        let f_ctl = frame.fc.f_ctl;
        if !f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
            || !f_ctl.contains(FCtl::LAST_SEQUENCE)
            || f_ctl.contains(FCtl::FIRST_SEQUENCE)
        {
            cx.count(Counter::DropBadIu);
            return Ok(());
        }
        cx.port.note_received(self.peer_index, cx.now_ns);
        let Some(tx) = self.tx.as_deref_mut() else {
            return Ok(());
        };
        if iu.header.opcode == Opcode::ReadResponse {
            receive_read_response(tx, &self.rx, cx, frame, iu)
        } else if tx.recovery.is_some() && iu.header.flags & message_response::CUMULATIVE != 0 {
            tx.take_acknowledgement(&self.rx, cx, frame, iu);
            Ok(())
        } else {
            receive_message_response(tx, cx, frame, iu)
        }
    }
}

/// Handles FCVI_SEND_RESP and FCVI_WRITE_RESP.
fn receive_message_response<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    if !is_whole(frame, iu) {
        cx.count(Counter::DropBadIu);
        return Ok(());
    }
    let refused = iu.header.flags & message_response::ERROR != 0;
    if !refused && tx.waits_for_rendezvous(iu.header.msg_id, frame.fc.ox_id) {
        let declined = iu.header.flags & message_response::DECLINED != 0;
        tx.finish_rendezvous(cx, declined);
        return Ok(());
    }
    let is_write = iu.header.opcode == Opcode::WriteResponse;
    let fits = |kind| match kind {
        OperationKind::Send => !is_write,
        OperationKind::Write { .. } => is_write,
        OperationKind::Read => false,
    };
    let outstanding = outstanding(tx, frame, iu, fits);
    // With recovery only acknowledgements complete a message.
    let Some((at, kind)) = outstanding.filter(|_| refused || tx.recovery.is_none()) else {
        cx.count(Counter::DropStrayResponse);
        return Ok(());
    };
    earlier_response_lost(tx, cx, at, |kind| kind != OperationKind::Read)?;
    if refused {
        return Err(message_refused(tx, cx, kind, iu));
    }
    match tx.in_flight.get(at).copied() {
        Some(entry) => tx.handle_answer(cx, at, entry.next_seq_cnt.wrapping_add(1)),
        // Its last frame has not been sent.
        None => cx.count(Counter::DropStrayResponse),
    }
    Ok(())
}

/// Handles FCVI_READ_RESP.
fn receive_read_response<I: EngineIo>(
    tx: &mut TxStream,
    rx: &RxStream,
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let error = iu.header.flags & message_response::ERROR != 0;
    let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
    let well_formed = if error {
        is_whole(frame, iu)
    } else {
        frame.fc.f_ctl.contains(FCtl::RELATIVE_OFFSET)
            && last == (iu.header.flags & message_response::LAST != 0)
            && (frame.sof == Sof::I3) == (frame.fc.parameter == 0)
            && (last || !iu.payload.is_empty())
    };
    if !well_formed {
        cx.count(Counter::DropBadIu);
        return Ok(());
    }
    let Some((at, kind)) = outstanding(tx, frame, iu, |kind| kind == OperationKind::Read) else {
        cx.count(Counter::DropStrayResponse);
        return Ok(());
    };
    if tx.recovery.is_some() && !error {
        return take_recovered_read_data(tx, rx, cx, frame, iu);
    }
    // A read is refused when its request arrives, while others may still be queued.
    earlier_response_lost(tx, cx, at, |kind| !error || kind != OperationKind::Read)?;
    if error {
        Err(message_refused(tx, cx, kind, iu))
    } else {
        take_read_data(tx, cx, at, frame, iu)
    }
}

/// Returns the unanswered message that a response is about: its position, which is one after those
/// in flight if it is still being sent, and its kind.
fn outstanding(
    tx: &TxStream,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
    fits: impl Fn(OperationKind) -> bool,
) -> Option<(usize, OperationKind)> {
    let (msg_id, ox_id) = (iu.header.msg_id, frame.fc.ox_id);
    let found = match tx.in_flight.find(msg_id) {
        Some(at) => {
            let entry = tx.in_flight.get(at)?;
            let ours = !entry.answered && entry.ox_id == ox_id;
            ours.then_some((at, entry.kind))
        }
        None => {
            let message = tx.message.as_ref()?;
            let ours = tx.level == ReliabilityLevel::ReliableReception
                && message.msg_id == msg_id
                && message.exchange.ox_id == ox_id;
            ours.then(|| (tx.in_flight.len(), OperationKind::of(&message.work)))
        }
    };
    found.filter(|(_, kind)| fits(*kind))
}

/// Fails the oldest earlier message of this kind without a response, which will not arrive any
/// more.
fn earlier_response_lost<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    at: usize,
    fits: impl Fn(OperationKind) -> bool,
) -> Result<(), Break> {
    let first = tx.first_unanswered(&fits);
    if tx.recovery.is_some() || first.is_none_or(|first| first >= at) {
        return Ok(());
    }
    cx.count(Counter::LostResponses);
    Err(tx.transport_failed(cx, fits, MessageReason::MessageLost))
}

/// Fails the message that the peer refused; the peer has left the connection.
#[cold]
fn message_refused<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    kind: OperationKind,
    iu: &IuView<'_>,
) -> Break {
    cx.count(Counter::RxResponses);
    let msg_id = iu.header.msg_id;
    tx.acknowledged_before(cx, msg_id);
    // One position after those in flight if it is being sent.
    let at = tx.in_flight.find(msg_id).unwrap_or(tx.in_flight.len());
    let reason = MessageReason::from_parameter(iu.header.parameter);
    tx.fail_in_flight(cx, at, SendFailure::status_of(reason, kind));
    Break(MessageReason::ProtocolError)
}

/// Places a frame of a read's data and completes the read with the last one.
fn take_read_data<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    at: usize,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let Some(entry) = tx.in_flight.get(at) else {
        return Ok(());
    };
    let fc = &frame.fc;
    match order(
        (fc.seq_cnt, fc.parameter),
        entry.next_seq_cnt,
        entry.placed_bytes,
    ) {
        Accepted::InOrder => place_read_data(tx, cx, at, frame, iu),
        Accepted::Duplicate(counter) => {
            cx.count(counter);
            Ok(())
        }
        _ => Err(read_incomplete(tx, cx, at)),
    }
}

/// Handles data of a read with recovery.
fn take_recovered_read_data<I: EngineIo>(
    tx: &mut TxStream,
    rx: &RxStream,
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let msg_id = iu.header.msg_id;
    // The target has everything up to the read.
    tx.acknowledged_before(cx, msg_id.wrapping_add(1));
    let room = tx.send_payload_bytes.max(1);
    let found = tx.in_flight.find(msg_id);
    let Some((at, entry)) = found.and_then(|at| Some((at, *tx.in_flight.get(at)?))) else {
        return Ok(());
    };
    let fc = &frame.fc;
    let number = (fc.parameter / room) as u16;
    let seq_cnt = entry.first_seq_cnt.wrapping_add(1).wrapping_add(number);
    if !fc.parameter.is_multiple_of(room) || fc.seq_cnt != seq_cnt {
        cx.count(Counter::DropSynonym);
    } else if fc.parameter < entry.placed_bytes {
        cx.count(Counter::DropDuplicate);
    } else if fc.parameter > entry.placed_bytes {
        if let Some(recovery) = tx.recovery.as_mut() {
            recovery.request_read_again(cx.now_ns, msg_id);
        }
        cx.count(Counter::DropAheadRead);
        tx.queue_recovery(rx, cx);
    } else {
        place_read_data(tx, cx, at, frame, iu)?;
        tx.restart_recovery_timer(cx, true);
    }
    Ok(())
}

/// Places the next data of a read and completes the read with the last frame.
fn place_read_data<I: EngineIo>(
    tx: &mut TxStream,
    cx: &mut Context<'_, I>,
    at: usize,
    frame: &FrameView<'_>,
    iu: &IuView<'_>,
) -> Result<(), Break> {
    let Some(entry) = tx.in_flight.get_mut(at) else {
        return Ok(());
    };
    let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
    // Both below 2^32: the sum is checked, never wrapped.
    let end = u64::from(entry.placed_bytes) + iu.payload.len() as u64;
    let whole = end == u64::from(entry.length_bytes);
    if end > u64::from(entry.length_bytes) || last != whole {
        return Err(read_incomplete(tx, cx, at));
    }
    if !cx
        .io
        .place_read(cx.vi, at as u32, entry.placed_bytes, iu.payload)
    {
        tx.fail_in_flight(cx, at, Status::PROTECTION);
        return Err(Break(MessageReason::ProtocolError));
    }
    entry.placed_bytes = end as u32;
    entry.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
    let next_seq_cnt = entry.next_seq_cnt;
    cx.count(Counter::RxFrames);
    if last {
        tx.handle_answer(cx, at, next_seq_cnt);
    } else {
        tx.restart_response_timeout(cx);
    }
    Ok(())
}

/// Fails a read whose data has a gap, or another length than it.
fn read_incomplete<I: EngineIo>(tx: &mut TxStream, cx: &mut Context<'_, I>, at: usize) -> Break {
    cx.count(Counter::IncompleteMessages);
    tx.fail_in_flight(cx, at, Status::TRANSPORT);
    Break(MessageReason::MessageIncomplete)
}

/// Reports whether this is a whole response without data in one frame.
fn is_whole(frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
    frame.sof == Sof::I3
        && frame.eof == Eof::T
        && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
        && iu.payload.is_empty()
}
