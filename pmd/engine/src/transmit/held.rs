//! Descriptors that are not simply sent: reads, those that wait for what is in
//! flight, and those that fail here.

use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use super::{Step, per_frame, tx_of};
use crate::counters::Counter;
use crate::endpoint::{Level, TxMessage};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, SendWork, Status, Transmit};

impl Engine {
    /// A descriptor that has to wait for what is in flight, or must not be sent at all.
    /// `None`: it may be sent.
    #[inline]
    pub(super) fn hold_back<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        host: &mut H,
    ) -> Option<Step> {
        let tx = self.tx_mut(vi)?;
        if tx.in_flight.holds(work) {
            tx.in_flight.holding = true;
            return Some(Step::Nothing);
        }
        if let Some(status) = tx.in_flight.fault.take() {
            host.complete_send(vi, status, 0);
            self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
            return Some(Step::Broken);
        }
        if work.fault.is_ok() {
            return tx.window_is_full().then(|| {
                tx.in_flight.holding = true;
                Step::Nothing
            });
        }
        Some(if self.refuse_local(now_ns, vi, *work, host) {
            Step::Next
        } else {
            Step::Broken
        })
    }

    /// The message that is being sent has to wait for an acknowledgement. It has FCVI_ULP_TIMEOUT
    /// for the next one, as what is in flight has.
    pub(super) fn waits_for_window(&mut self, now_ns: u64, vi: ViIndex) -> bool {
        let Some(tx) = self.tx_mut(vi) else {
            return false;
        };
        if !tx.window_is_full() {
            return false;
        }
        let waited = core::mem::replace(&mut tx.in_flight.holding, true);
        if !waited && tx.in_flight.unanswered() == 0 {
            self.watch_answer(now_ns, vi);
        }
        self.expect_answer(now_ns, vi);
        true
    }

    /// Asks for an RDMA read (VIPL 5.2).
    pub(super) fn send_read<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut work: SendWork,
        remote: (u64, u32),
        host: &mut H,
    ) -> Step {
        let unreliable = self.level_of(vi) == Some(Level::UnreliableDelivery);
        if unreliable && work.fault.is_ok() {
            work.fault = Status::FORMAT;
        }
        if let Some(step) = self.hold_back(now_ns, vi, &work, host) {
            return step;
        }
        let Some(exchange) = self.exchanges.open(now_ns) else {
            return Step::Blocked;
        };
        let Some(tx) = self.endpoints.get_mut(vi.slot()).and_then(tx_of) else {
            return Step::Broken;
        };
        let mut message = TxMessage {
            work,
            exchange,
            msg_id: tx.next_msg_id,
            sent_bytes: 0,
            next_seq_cnt: exchange.seq_cnt,
        };
        let mut per_frame = per_frame(&message, tx.framing, 0, true);
        per_frame.f_ctl = profile::F_CTL_REQUEST;
        per_frame.flags |= message_request::RESPONSE_REQUESTED;
        per_frame.flags &= !message_request::IMMEDIATE;
        per_frame.fcvi_parameter = 0;
        (per_frame.rmt_va, per_frame.rmt_va_handle) = remote;
        match host.transmit_data(vi, &tx.read, &per_frame, 0, true) {
            Transmit::Sent => {}
            Transmit::NoRoom => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return Step::Blocked;
            }
            Transmit::Fault => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return self.sending_fault(now_ns, vi, host);
            }
        }
        tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
        message.next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        self.counters.count(Counter::TxMessages);
        self.keep_in_flight(now_ns, vi, &message, false, host);
        Step::Next
    }

    /// A descriptor that must not be sent: completed with its fault; a reliable
    /// VI breaks. True if the VI goes on.
    #[cold]
    pub(crate) fn refuse_local<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: SendWork,
        host: &mut H,
    ) -> bool {
        host.complete_send(vi, work.fault, 0);
        if self.level_of(vi) == Some(Level::UnreliableDelivery) {
            return true;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
        false
    }

    /// The descriptor's memory went away under a message that was partly sent.
    #[cold]
    pub(super) fn sending_fault<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        host: &mut H,
    ) -> Step {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let mut status = Status::PROTECTION;
        if let Some(message) = ep.tx.as_mut().and_then(|tx| tx.message.take()) {
            if message.sent_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
            self.give_up_exchange(now_ns, &message);
        }
        if let Some(tx) = self.tx_mut(vi).filter(|tx| !tx.in_flight.is_empty()) {
            tx.in_flight.fault = Some(status);
            tx.in_flight.holding = true;
            return Step::Nothing;
        }
        host.complete_send(vi, status, 0);
        if self.level_of(vi) == Some(Level::UnreliableDelivery) {
            return Step::Next;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
        Step::Broken
    }
}
