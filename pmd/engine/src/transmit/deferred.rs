//! Descriptors that are not simply sent: reads, those deferred until something in flight completes,
//! and those that fail locally.

use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use super::{Step, per_frame, tx_of};
use crate::counters::Counter;
use crate::endpoint::TxMessage;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, SendWork, Status, Transmit};

impl Engine {
    /// Defers a descriptor that has to wait for what is in flight, or completes one that must not
    /// be sent. Returns `None` if it may be sent.
    #[inline]
    pub(super) fn defer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        io: &mut I,
    ) -> Option<Step> {
        let tx = self.tx_mut(vi)?;
        if tx.in_flight.defers(work) {
            tx.in_flight.deferred = true;
            return Some(Step::Nothing);
        }
        if let Some(status) = tx.in_flight.fault.take() {
            io.complete_send(vi, status, 0);
            self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
            return Some(Step::Broken);
        }
        if work.fault.is_ok() {
            return tx.window_is_full().then(|| {
                tx.in_flight.deferred = true;
                Step::Nothing
            });
        }
        Some(if self.refuse_local(now_ns, vi, *work, io) {
            Step::Next
        } else {
            Step::Broken
        })
    }

    /// Defers the message that is being sent if the window is full. Its next acknowledgement must
    /// arrive within FCVI_ULP_TIMEOUT, as for messages in flight.
    pub(super) fn defers_for_window(&mut self, now_ns: u64, vi: ViIndex) -> bool {
        let Some(tx) = self.tx_mut(vi) else {
            return false;
        };
        if !tx.window_is_full() {
            return false;
        }
        let waited = core::mem::replace(&mut tx.in_flight.deferred, true);
        if !waited && tx.in_flight.unanswered() == 0 {
            self.start_response_timer(now_ns, vi);
        }
        self.expect_answer(now_ns, vi);
        true
    }

    /// Sends an RDMA read request (VIPL 5.2).
    pub(super) fn send_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut work: SendWork,
        remote: (u64, u32),
        io: &mut I,
    ) -> Step {
        let unreliable = self.level_of(vi) == Some(ReliabilityLevel::UnreliableDelivery);
        if unreliable && work.fault.is_ok() {
            work.fault = Status::FORMAT;
        }
        if let Some(step) = self.defer(now_ns, vi, &work, io) {
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
        match io.transmit_data(vi, &tx.read, &per_frame, 0, true) {
            Transmit::Sent => {}
            Transmit::NoRoom => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return Step::Blocked;
            }
            Transmit::Fault => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return self.sending_fault(now_ns, vi, io);
            }
        }
        tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
        message.next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        self.counters.count(Counter::TxMessages);
        self.keep_in_flight(now_ns, vi, &message, false, io);
        Step::Next
    }

    /// Completes a descriptor that must not be sent with its fault; a reliable VI breaks. Returns
    /// true if the VI stays connected.
    #[cold]
    pub(crate) fn refuse_local<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: SendWork,
        io: &mut I,
    ) -> bool {
        io.complete_send(vi, work.fault, 0);
        if self.level_of(vi) == Some(ReliabilityLevel::UnreliableDelivery) {
            return true;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
        false
    }

    /// Handles a message whose descriptor's memory became invalid while it was sent.
    #[cold]
    pub(super) fn sending_fault<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
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
            tx.in_flight.deferred = true;
            return Step::Nothing;
        }
        io.complete_send(vi, status, 0);
        if self.level_of(vi) == Some(ReliabilityLevel::UnreliableDelivery) {
            return Step::Next;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
        Step::Broken
    }
}
