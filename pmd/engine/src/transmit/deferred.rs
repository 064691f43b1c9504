//! Descriptors that are not simply sent: reads, long sends that the peer copies from memory, those deferred until something
//! in flight completes, and those that fail locally.

use fcvi_frame::flags::message_request;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{Operation, ReliabilityLevel, SendWork, Status};

use super::in_flight::RENDEZVOUS_MIN_BYTES_OF_MANY;
use super::{Step, TxMessage, TxStream, per_frame};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DataFrame, EngineIo, Transmit};

impl TxStream {
    /// Defers a descriptor that has to wait for what is in flight, or completes one that must not
    /// be sent. Returns `None` if it may be sent.
    #[inline]
    pub(super) fn defer<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        work: &SendWork,
    ) -> Option<Step> {
        if self.in_flight.defers(work) {
            self.in_flight.deferred = true;
            return Some(Step::Nothing);
        }
        if let Some(status) = self.in_flight.fault.take() {
            cx.io.complete_send(cx.vi, status, 0);
            return Some(Step::Break(MessageReason::ProtocolError));
        }
        if work.fault.is_ok() {
            return self.window_is_full().then(|| {
                self.in_flight.deferred = true;
                Step::Nothing
            });
        }
        cx.io.complete_send(cx.vi, work.fault, 0);
        Some(self.after_local_failure())
    }

    /// Returns what follows a descriptor that failed locally: a reliable VI breaks.
    pub(crate) fn after_local_failure(&self) -> Step {
        if self.level == ReliabilityLevel::UnreliableDelivery {
            Step::Next
        } else {
            Step::Break(MessageReason::ProtocolError)
        }
    }

    /// Defers the message that is being sent if the window is full. Its next acknowledgement must
    /// arrive within FCVI_ULP_TIMEOUT, as for messages in flight.
    pub(super) fn defers_for_window<I>(&mut self, cx: &mut Context<'_, I>) -> bool {
        if !self.window_is_full() {
            return false;
        }
        let waited = core::mem::replace(&mut self.in_flight.deferred, true);
        if !waited && self.in_flight.unanswered() == 0 {
            self.start_response_timer(cx);
        }
        self.expect_answer(cx);
        true
    }

    /// Sends an RDMA read request (VIPL 5.2).
    pub(super) fn send_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        mut work: SendWork,
        remote: (u64, u32),
    ) -> Step {
        if self.level == ReliabilityLevel::UnreliableDelivery && work.fault.is_ok() {
            work.fault = Status::FORMAT;
        }
        if let Some(step) = self.defer(cx, &work) {
            return step;
        }
        work.immediate = None;
        let message = match self.send_request(cx, &work, remote) {
            Ok(message) => message,
            Err(step) => return step,
        };
        self.next_msg_id = self.next_msg_id.wrapping_add(1);
        cx.count(Counter::TxMessages);
        self.keep_in_flight(cx, &message, false);
        Step::Next
    }

    /// Requests that the peer copies the next descriptor from memory (docs/adr/0069); `None` if it is to be sent in frames.
    /// Nothing else is sent before the response, so that a message that the peer declines can be sent in frames in its place.
    // A separate function, so that other messages do not pay for it.
    #[inline(never)]
    pub(super) fn request_rendezvous<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        work: &SendWork,
    ) -> Option<Step> {
        let is_possible = work.operation == Operation::Send
            && self.level.is_reliable()
            && self.recovery.is_none()
            && work.fault.is_ok()
            && self.in_flight.fault.is_none();
        if !is_possible {
            return None;
        }
        if let Some(left) = self.rendezvous.pause.checked_sub(1) {
            self.rendezvous.pause = left;
            return None;
        }
        if work.length_bytes < RENDEZVOUS_MIN_BYTES_OF_MANY && cx.io.has_later_send(cx.vi) {
            return None;
        }
        let source = cx.io.rendezvous_source(cx.vi)?;
        if !self.in_flight.is_empty() {
            self.in_flight.deferred = true;
            return Some(Step::Nothing);
        }
        match self.send_request(cx, work, source) {
            Ok(message) => self.message = Some(message),
            Err(step) => return Some(step),
        }
        self.rendezvous.waits = true;
        if self.level == ReliabilityLevel::ReliableReception {
            self.in_flight.deferred = true;
            self.start_response_timer(cx);
        }
        Some(Step::Next)
    }

    /// Sends the request of a read, or that the peer copies a send from memory, with this address and handle. Returns
    /// what follows if it was not sent.
    fn send_request<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        work: &SendWork,
        memory: (u64, u32),
    ) -> Result<TxMessage, Step> {
        let Some(exchange) = cx.port.exchanges.open(cx.now_ns) else {
            return Err(Step::Blocked);
        };
        let mut message = TxMessage::new(work, exchange, self.next_msg_id);
        let mut per_frame = per_frame(&message, self.framing, 0, true);
        per_frame.f_ctl = profile::F_CTL_REQUEST;
        per_frame.flags |= message_request::RESPONSE_REQUESTED;
        (per_frame.rmt_va, per_frame.rmt_va_handle) = memory;
        let frame = DataFrame {
            template: match work.operation {
                Operation::Send => &self.rendezvous_request,
                Operation::Write { .. } | Operation::Read { .. } => &self.read,
            },
            per_frame: &per_frame,
            last: true,
        };
        let failed = match cx.io.transmit_data(cx.vi, frame, 0) {
            Transmit::Sent => {
                message.next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
                cx.count(Counter::TxFrames);
                return Ok(message);
            }
            Transmit::NoRoom => false,
            Transmit::Fault => true,
        };
        cx.port.exchanges.take_back(exchange);
        Err(if failed {
            self.sending_fault(cx)
        } else {
            Step::Blocked
        })
    }

    /// Handles a message whose descriptor's memory became invalid while it was sent.
    #[cold]
    pub(super) fn sending_fault<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> Step {
        let mut status = Status::PROTECTION;
        if let Some(message) = self.message.take() {
            if message.sent_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
            message.give_up_exchange(cx.now_ns, &mut cx.port.exchanges);
        }
        if !self.in_flight.is_empty() {
            self.in_flight.fault = Some(status);
            self.in_flight.deferred = true;
            return Step::Nothing;
        }
        cx.io.complete_send(cx.vi, status, 0);
        self.after_local_failure()
    }
}
