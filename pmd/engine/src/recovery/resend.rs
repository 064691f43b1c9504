//! Frames sent again: byte for byte what they were, but for the bit that says so, the
//! acknowledgement that one carried, and the place from which on a read is to go on.

use fcvi_frame::fc::FCtl;
use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use super::repairs::Repair;
use crate::counters::Counter;
use crate::endpoint::{TxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::exchange::Exchange;
use crate::host::{Host, SendWork, Status, Transmit};
use crate::transmit::{Kind, Step, per_frame, tx_of};

/// A frame to be sent again.
struct Again {
    /// Where its descriptor stands, from the oldest in flight on.
    ahead: usize,
    kind: Kind,
    exchange: Exchange,
    length_bytes: u32,
    /// Where a read goes on.
    placed_bytes: u32,
}

impl Engine {
    /// There is an acknowledgement without room, or something to be sent again: [`Engine::pump`]
    /// sends it first of all.
    pub(super) fn recover_soon<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let unsent = ep.rx.recovery.as_ref().is_some_and(|r| r.telling.unsent);
        let Some(tx) = ep.tx.as_mut() else {
            return;
        };
        let repairs = tx.recovery.as_ref().and_then(|r| r.repairs.next());
        if unsent || repairs.is_some() {
            tx.answers.recovering = true;
            tx.answering = true;
            host.resume(vi);
        }
    }

    /// Sends one frame that recovery wants sent.
    pub(crate) fn send_recovery<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        host: &mut H,
    ) -> Step {
        let Some(ep) = self.endpoint(vi) else {
            return Step::Broken;
        };
        if ep.rx.recovery.as_ref().is_some_and(|r| r.telling.unsent) {
            let sent = self.send_acknowledgement(now_ns, vi, host);
            return if sent { Step::Next } else { Step::Blocked };
        }
        let Some(tx) = self.tx_mut(vi) else {
            return Step::Broken;
        };
        match tx.recovery.as_ref().and_then(|r| r.repairs.next()) {
            Some(repair) => self.send_repair(now_ns, vi, repair, host),
            None => {
                tx.answers.recovering = false;
                tx.answering = !tx.answers.is_empty();
                Step::Next
            }
        }
    }

    fn send_repair<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        repair: Repair,
        host: &mut H,
    ) -> Step {
        let Some(tx) = self.endpoints.get_mut(vi.slot()).and_then(tx_of) else {
            return Step::Broken;
        };
        let again = tx.again(&repair);
        let work = again
            .as_ref()
            .and_then(|again| host.sent_work(vi, again.ahead as u32));
        let (Some(again), Some(work)) = (again, work) else {
            if let Some(recovery) = tx.recovery.as_mut() {
                recovery.repairs.forget(|other| *other != repair);
            }
            return Step::Next;
        };
        match tx.transmit_again(vi, &repair, &again, work, host) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => {
                self.fail_in_flight(now_ns, vi, again.ahead, Status::PROTECTION, host);
                self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
                return Step::Broken;
            }
        }
        self.counters.count(Counter::FramesResent);
        if let Some(recovery) = tx.recovery.as_mut() {
            recovery.repairs.sent(now_ns);
            // It cannot be known which of the two is acknowledged.
            recovery.sample = None;
        }
        Step::Next
    }
}

impl TxStream {
    fn again(&self, repair: &Repair) -> Option<Again> {
        if let Some(at) = self.in_flight.find(repair.msg_id) {
            let entry = self.in_flight.get(at).filter(|entry| !entry.answered)?;
            return Some(Again {
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
        let message = self.message.filter(|m| m.msg_id == repair.msg_id)?;
        Some(Again {
            ahead: self.in_flight.len(),
            kind: Kind::of(&message.work),
            exchange: message.exchange,
            length_bytes: message.work.length_bytes,
            placed_bytes: 0,
        })
    }

    fn transmit_again<H: Host>(
        &self,
        vi: ViIndex,
        repair: &Repair,
        again: &Again,
        work: SendWork,
        host: &mut H,
    ) -> Transmit {
        let room = self.room(again.kind);
        let offset = repair.next.saturating_mul(room);
        let (template, payload_bytes, last) = match again.kind {
            Kind::Read => (&self.read, 0, true),
            Kind::Send | Kind::Write { .. } => {
                let left = again.length_bytes.saturating_sub(offset);
                let template = match again.kind {
                    Kind::Write { .. } => &self.write,
                    Kind::Send | Kind::Read => &self.send,
                };
                (template, left.min(room), left <= room)
            }
        };
        let message = TxMessage {
            work: SendWork {
                length_bytes: again.length_bytes,
                ..work
            },
            exchange: again.exchange,
            msg_id: repair.msg_id,
            sent_bytes: offset,
            next_seq_cnt: again.exchange.seq_cnt.wrapping_add(repair.next as u16),
        };
        let mut per_frame = per_frame(&message, self.framing, payload_bytes, last);
        if again.kind == Kind::Read {
            per_frame.f_ctl = profile::F_CTL_REQUEST;
            per_frame.flags |= message_request::RESPONSE_REQUESTED;
            per_frame.flags &= !message_request::IMMEDIATE;
            per_frame.fcvi_parameter = again.placed_bytes;
        }
        per_frame.f_ctl = per_frame.f_ctl.union(FCtl::RETRANSMITTED);
        let ahead = again.ahead as u32;
        host.transmit_again(vi, ahead, template, &per_frame, payload_bytes, last)
    }
}
