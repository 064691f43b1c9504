//! Retransmission of frames: identical to the original but for the retransmission bit, a carried
//! acknowledgement, and the byte from which a read continues.

use fcvi_frame::fc::FCtl;
use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use super::retransmit_queue::RetransmitRange;
use crate::counters::Counter;
use crate::endpoint::{TxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, SendWork, Status, Transmit};
use crate::exchange::Exchange;
use crate::transmit::{OperationKind, Step, per_frame, tx_of};

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

impl Engine {
    /// Makes [`Engine::pump`] send pending acknowledgements and retransmissions first, if there are
    /// any.
    pub(super) fn queue_recovery<I: EngineIo>(&mut self, vi: ViIndex, io: &mut I) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let unsent = ep.rx.recovery.as_ref().is_some_and(|r| r.ack.unsent);
        let Some(tx) = ep.tx.as_mut() else {
            return;
        };
        let next = tx.recovery.as_ref().and_then(|r| r.retransmits.next());
        if unsent || next.is_some() {
            tx.responses.recovering = true;
            tx.responding = true;
            io.resume(vi);
        }
    }

    /// Sends one frame of recovery: an acknowledgement, or a retransmission.
    pub(crate) fn send_recovery<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> Step {
        let Some(ep) = self.endpoint(vi) else {
            return Step::Broken;
        };
        if ep.rx.recovery.as_ref().is_some_and(|r| r.ack.unsent) {
            let sent = self.send_acknowledgement(now_ns, vi, io);
            return if sent { Step::Next } else { Step::Blocked };
        }
        let Some(tx) = self.tx_mut(vi) else {
            return Step::Broken;
        };
        match tx.recovery.as_ref().and_then(|r| r.retransmits.next()) {
            Some(range) => self.send_retransmit(now_ns, vi, range, io),
            None => {
                tx.responses.recovering = false;
                tx.responding = !tx.responses.is_empty();
                Step::Next
            }
        }
    }

    fn send_retransmit<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        range: RetransmitRange,
        io: &mut I,
    ) -> Step {
        let Some(tx) = self.endpoints.get_mut(vi.slot()).and_then(tx_of) else {
            return Step::Broken;
        };
        let frame = tx.retransmit_frame(&range);
        let work = frame
            .as_ref()
            .and_then(|frame| io.in_flight_work(vi, frame.ahead as u32));
        let (Some(frame), Some(work)) = (frame, work) else {
            if let Some(recovery) = tx.recovery.as_mut() {
                recovery.retransmits.retain(|other| *other != range);
            }
            return Step::Next;
        };
        match tx.retransmit(vi, &range, &frame, work, io) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => {
                self.fail_in_flight(now_ns, vi, frame.ahead, Status::PROTECTION, io);
                self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
                return Step::Broken;
            }
        }
        self.counters.count(Counter::FramesResent);
        if let Some(recovery) = tx.recovery.as_mut() {
            recovery.retransmits.frame_sent(now_ns);
            // It cannot be known which of the two is acknowledged.
            recovery.sample = None;
        }
        Step::Next
    }
}

impl TxStream {
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
        vi: ViIndex,
        range: &RetransmitRange,
        frame: &RetransmitFrame,
        work: SendWork,
        io: &mut I,
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
        io.retransmit_data(vi, ahead, template, &per_frame, payload_bytes, last)
    }
}
