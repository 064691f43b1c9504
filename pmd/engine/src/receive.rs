//! Received frames: checked, matched to endpoints, and reassembled.
//!
//! The order of the checks is that of the wire profile 7.8: CRC, SOF/EOF and addresses; header size
//! against opcode; handle and peer; then the identifiers of the message. A frame that fails one is
//! dropped and counted and changes nothing. Only a frame that passes all of them can break a
//! connection.

mod failure;
mod misses;
mod one_step;
mod rendezvous;
mod response;
mod stream;

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::{message_request, reliability_flags};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use vi_types::ReliabilityLevel;

pub(crate) use self::failure::ReceiveFailure;
use self::one_step::receive_in_one_step;
pub(crate) use self::rendezvous::copy_next_part;
use self::rendezvous::start_rendezvous;
pub(crate) use self::stream::{RxStream, deliver};
use crate::connection::Break;
use crate::connection_iu::Sequence;
use crate::context::Context;
use crate::counters::Counter;
use crate::endpoint::Endpoint;
use crate::engine_io::EngineIo;
use crate::reassembly::{Accepted, Run};
use crate::responses::ReadJob;
use crate::transmit::request_flags;

impl Endpoint {
    /// Handles a message IU of the peer.
    #[inline(always)]
    pub(crate) fn on_message<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) {
        let result = match iu.header.opcode {
            Opcode::SendRequest | Opcode::WriteRequest => self.receive_message(cx, frame, iu),
            Opcode::ReadRequest => self.receive_read_request(cx, frame, iu),
            Opcode::RendezvousRequest => self.receive_rendezvous(cx, frame, iu),
            _ => self.receive_response(cx, frame, iu),
        };
        if let Err(broken) = result {
            self.break_local(cx, broken);
        }
    }

    /// Handles a frame of a send or write.
    #[inline(always)]
    fn receive_message<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if !fits_level(iu.header.flags, self.params.level) {
            cx.count(Counter::DropWrongLevel);
            return Ok(());
        }
        let f_ctl = frame.fc.f_ctl;
        if !f_ctl.contains(FCtl::RELATIVE_OFFSET)
            || f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
            || !f_ctl.contains(FCtl::FIRST_SEQUENCE)
        {
            cx.count(Counter::DropBadIu);
            return Ok(());
        }
        cx.port.note_received(self.peer_index, cx.now_ns);
        if self.rx.ack.is_some() {
            return self.receive_recovered(cx, frame, iu);
        }
        if self.rx.reassembly.is_next_in_one_frame(frame, iu)
            && let Some(streams) = self.connected_streams(cx)
            && let Some(received) = receive_in_one_step(streams, cx, frame, iu)
        {
            return received;
        }
        match self.rx.reassembly.accept(&Run::of(frame, iu)) {
            Accepted::Duplicate(counter) | Accepted::Unexpected(counter) => {
                cx.count(counter);
                Ok(())
            }
            accepted => {
                let Some((rx, tx)) = self.connected_streams(cx) else {
                    return Ok(());
                };
                rx.place(tx, cx, accepted, frame, iu)
            }
        }
    }

    /// Handles a frame of a send or write on a connection with recovery.
    fn receive_recovered<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        let (rx, Some(tx)) = (&mut self.rx, self.tx.as_deref_mut()) else {
            return Ok(());
        };
        if rx.reassembly.is_next_whole(frame, iu) {
            if let Some(ack) = &mut rx.ack {
                ack.at = Sequence::reply_to(&frame.fc);
            }
            tx.take_carried_acknowledgement(cx, iu);
            let Some((rx, tx)) = self.connected_streams(cx) else {
                return Ok(());
            };
            return rx.place_next_whole(tx, cx, frame, iu);
        }
        let run = Run::of(frame, iu);
        let Some(accepted) = rx.accept_recovered(tx, cx, &run, frame, iu) else {
            return Ok(());
        };
        let Some((rx, tx)) = self.connected_streams(cx) else {
            return Ok(());
        };
        rx.place_recovered(tx, cx, accepted, &run, frame, iu)
    }

    /// Reports whether this is a request without data that the peer may send.
    fn accepts_request<I: EngineIo>(
        &self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> bool {
        let level = self.params.level;
        let expected = reliability_flags(level) | message_request::RESPONSE_REQUESTED;
        let flags = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
        let drop_reason = if !level.is_reliable() || iu.header.flags & flags != expected {
            Counter::DropWrongLevel
        } else if !is_whole_request(frame, iu) {
            Counter::DropBadIu
        } else {
            cx.port.note_received(self.peer_index, cx.now_ns);
            return true;
        };
        cx.count(drop_reason);
        false
    }

    /// Handles FCVI_RENDEZVOUS_RQST.
    // A separate function, so that other messages do not pay for it.
    #[inline(never)]
    fn receive_rendezvous<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if !self.accepts_request(cx, frame, iu) {
            return Ok(());
        }
        match self.connected_streams(cx) {
            Some(streams) => start_rendezvous(streams, cx, frame, iu),
            None => Ok(()),
        }
    }

    /// Handles FCVI_READ_RQST, which has its place in the order of messages. Its data is sent by
    /// [`Engine::pump`](crate::Engine::pump).
    fn receive_read_request<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if !self.accepts_request(cx, frame, iu) {
            return Ok(());
        }
        let (rx, Some(tx)) = (&mut self.rx, self.tx.as_deref_mut()) else {
            return Ok(());
        };
        let mut run = Run::of(frame, iu);
        let at = Sequence::reply_to(&frame.fc);
        let recovers = rx.ack.is_some();
        let again = recovers && frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        if again {
            tx.responses.repeat_read(cx, &iu.header, at);
        }
        // A request has no bytes.
        (run.range.begin, run.range.end) = (0, 0);
        let Some(accepted) = rx.note_order(tx, cx, &run, frame) else {
            return Ok(());
        };
        let Some((rx, tx)) = self.connected_streams(cx) else {
            return Ok(());
        };
        let is_next = accepted == Accepted::InOrder && rx.reassembly.message.is_none();
        if recovers && !is_next {
            cx.count(Counter::DropAheadRead);
            let at_once = again || accepted == Accepted::Ahead { new_gap: true };
            rx.schedule_acknowledgement(tx, cx, 0, at_once);
            return Ok(());
        }
        if accepted == Accepted::Gap {
            rx.skip_gap(tx, cx, true, iu)?;
        }
        rx.reassembly.expected = iu.header.msg_id.wrapping_add(1);
        if let Some(reason) = rx.refuses_read(cx, &iu.header) {
            return Err(tx.responses.refuse_read(cx, at, iu.header.msg_id, reason));
        }
        cx.count(Counter::RxFrames);
        cx.count(Counter::RxMessages);
        let job = ReadJob::new(at, &iu.header);
        tx.responses.accept_read(cx, job, tx.recovery.is_some())?;
        if let Some(ack) = &mut rx.ack {
            ack.messages += 1;
            rx.schedule_acknowledgement(tx, cx, 0, false);
        }
        Ok(())
    }
}

/// Reports whether this is a whole request in one frame that transfers the sequence initiative.
fn is_whole_request(frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
    let f_ctl = frame.fc.f_ctl;
    frame.sof == Sof::I3
        && frame.eof == Eof::T
        && f_ctl.contains(FCtl::FIRST_SEQUENCE)
        && f_ctl.contains(FCtl::END_SEQUENCE)
        && f_ctl.contains(FCtl::SEQUENCE_INITIATIVE)
        && !f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
        && iu.payload.is_empty()
}

/// Reports whether the flags of a request match the level of the connection [FCVI P-6].
#[inline]
fn fits_level(flags: u8, level: ReliabilityLevel) -> bool {
    const LEVEL: u8 = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
    flags & LEVEL == request_flags(level)
}
