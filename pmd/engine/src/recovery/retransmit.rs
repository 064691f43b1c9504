//! Retransmission of frames: identical to the original but for the retransmission bit, a carried
//! acknowledgement, and the byte from which a read continues.

use fcvi_frame::fc::FCtl;
use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{OperationKind, SendWork, Status};

use super::retransmit_queue::RetransmitRange;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DataFrame, EngineIo, Transmit};
use crate::exchange::Exchange;
use crate::receive::{RxStream, copy_next_part};
use crate::transmit::{Step, TxMessage, TxStream, per_frame};

/// A frame to retransmit.
struct RetransmitFrame {
    /// Position of its descriptor after the oldest in flight.
    ahead: usize,
    kind: OperationKind,
    exchange: Exchange,
    length_bytes: u32,
    /// Byte from which a read continues.
    placed_bytes: u32,
}

impl TxStream {
    /// Sends one frame of a pending response, or of recovery, or copies a part of a message of the peer.
    pub(crate) fn send_response_frame<I: EngineIo>(
        &mut self,
        rx: &mut RxStream,
        cx: &mut Context<'_, I>,
    ) -> Step {
        if self.responses.copying {
            return copy_next_part(rx, self, cx);
        }
        match self.responses.send_frame(cx) {
            Some(step) => step,
            None => self.send_recovery(rx, cx),
        }
    }

    /// Makes pending acknowledgements and retransmissions the next frames, if there are any.
    pub(crate) fn queue_recovery<I: EngineIo>(&mut self, rx: &RxStream, cx: &mut Context<'_, I>) {
        let next = self.recovery.as_ref().and_then(|r| r.retransmits.next());
        if next.is_some() || rx.ack.as_ref().is_some_and(|ack| ack.unsent) {
            self.responses.start_recovering(cx);
        }
    }

    /// Sends one frame of recovery: an acknowledgement, or a retransmission.
    fn send_recovery<I: EngineIo>(&mut self, rx: &mut RxStream, cx: &mut Context<'_, I>) -> Step {
        if rx.ack.as_ref().is_some_and(|ack| ack.unsent) {
            let sent = rx.send_acknowledgement(self, cx);
            return if sent { Step::Next } else { Step::Blocked };
        }
        match self.recovery.as_ref().and_then(|r| r.retransmits.next()) {
            Some(range) => self.send_retransmit(cx, range),
            None => {
                self.responses.recovered();
                Step::Next
            }
        }
    }

    fn send_retransmit<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        range: RetransmitRange,
    ) -> Step {
        let frame = self.retransmit_frame(&range);
        let work = frame
            .as_ref()
            .and_then(|frame| cx.io.in_flight_work(cx.vi, frame.ahead as u32));
        let (Some(frame), Some(work)) = (frame, work) else {
            if let Some(recovery) = self.recovery.as_mut() {
                recovery.retransmits.retain(|other| *other != range);
            }
            return Step::Next;
        };
        match self.retransmit(cx, &range, &frame, work) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => {
                self.fail_in_flight(cx, frame.ahead, Status::PROTECTION);
                return Step::Break(MessageReason::ProtocolError);
            }
        }
        cx.count(Counter::FramesResent);
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.retransmits.frame_sent(cx.now_ns);
            // It cannot be known which of the two is acknowledged.
            recovery.sample = None;
        }
        Step::Next
    }

    fn retransmit_frame(&self, range: &RetransmitRange) -> Option<RetransmitFrame> {
        if let Some(at) = self.in_flight.find(range.msg_id) {
            let entry = self.in_flight.get(at).filter(|entry| !entry.answered)?;
            return Some(RetransmitFrame {
                ahead: at,
                kind: entry.kind,
                exchange: Exchange {
                    ox_id: entry.ox_id,
                    seq_id: entry.seq_id,
                    seq_cnt: entry.first_seq_cnt,
                },
                length_bytes: entry.length_bytes,
                placed_bytes: entry.placed_bytes,
            });
        }
        let message = self.message.filter(|m| m.msg_id == range.msg_id)?;
        Some(RetransmitFrame {
            ahead: self.in_flight.len(),
            kind: OperationKind::of(&message.work),
            exchange: message.exchange,
            length_bytes: message.work.length_bytes,
            placed_bytes: 0,
        })
    }

    fn retransmit<I: EngineIo>(
        &self,
        cx: &mut Context<'_, I>,
        range: &RetransmitRange,
        frame: &RetransmitFrame,
        work: SendWork,
    ) -> Transmit {
        let room = self.room(frame.kind);
        let offset = range.next.saturating_mul(room);
        let (template, payload_bytes, last) = match frame.kind {
            OperationKind::Read => (&self.read, 0, true),
            OperationKind::Send | OperationKind::Write { .. } => {
                let left = frame.length_bytes.saturating_sub(offset);
                let template = match frame.kind {
                    OperationKind::Write { .. } => &self.write,
                    OperationKind::Send | OperationKind::Read => &self.send,
                };
                (template, left.min(room), left <= room)
            }
        };
        let message = TxMessage {
            work: SendWork {
                length_bytes: frame.length_bytes,
                ..work
            },
            exchange: frame.exchange,
            msg_id: range.msg_id,
            sent_bytes: offset,
            next_seq_cnt: frame.exchange.seq_cnt.wrapping_add(range.next as u16),
        };
        let mut per_frame = per_frame(&message, self.framing, payload_bytes, last);
        if frame.kind == OperationKind::Read {
            per_frame.f_ctl = profile::F_CTL_REQUEST;
            per_frame.flags |= message_request::RESPONSE_REQUESTED;
            per_frame.flags &= !message_request::IMMEDIATE;
            per_frame.fcvi_parameter = frame.placed_bytes;
        }
        per_frame.f_ctl = per_frame.f_ctl.union(FCtl::RETRANSMITTED);
        let ahead = frame.ahead as u32;
        let frame = DataFrame {
            template,
            per_frame: &per_frame,
            last,
        };
        cx.io.retransmit_data(cx.vi, ahead, frame, payload_bytes)
    }
}
