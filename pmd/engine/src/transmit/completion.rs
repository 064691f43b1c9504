//! Completion of descriptors in flight: answered, refused, or given up.
//!
//! Every failure breaks the connection, and the queue completes in order: what was answered before
//! the failed one completes without error; what was not, which can only be reads whose data the
//! remote side still sends, is flushed; then the failed one completes with its bits, and everything
//! after it is flushed. A descriptor that failed locally while it was sent waits for those before
//! it; if the connection breaks meanwhile and none of them caused it, it is the failed one.

use fcvi_frame::reason::MessageReason;
use vi_types::{OperationKind, ReliabilityLevel, Status};

use super::in_flight::SENDS_AFTER_DECLINE;
use super::{InFlightSend, SendFailure, TxMessage, TxStream};
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::exchange::ExchangePool;
use crate::timer::TimerKey;

impl TxStream {
    /// Tracks a send or write that is not complete when the port has accepted its last frame.
    #[inline(always)]
    pub(super) fn sent_tracked<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        message: &TxMessage,
    ) {
        let answered = self.recovery.is_none() && self.level != ReliabilityLevel::ReliableReception;
        if answered {
            let ox_id = message.exchange.ox_id;
            cx.port.exchanges.close(ox_id, message.next_seq_cnt);
        }
        self.keep_in_flight(cx, message, answered);
    }

    /// Puts the descriptor that was just sent in flight, to wait for its response or, if it is
    /// `answered`, for those before it. Inlined: what was just assembled stays in registers.
    #[inline(always)]
    pub(super) fn keep_in_flight<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        message: &TxMessage,
        answered: bool,
    ) {
        let kind = OperationKind::of(&message.work);
        self.tracked = true;
        self.in_flight.push(InFlightSend {
            kind,
            answered,
            msg_id: message.msg_id,
            ox_id: message.exchange.ox_id,
            seq_id: message.exchange.seq_id,
            first_seq_cnt: message.exchange.seq_cnt,
            next_seq_cnt: message.next_seq_cnt,
            length_bytes: message.work.length_bytes,
            placed_bytes: 0,
        });
        if !answered && self.in_flight.unanswered() == 1 {
            self.start_response_timer(cx);
        }
        if self.recovery.is_some() {
            self.sent_recoverable(cx, kind, message.work.length_bytes);
        }
        cx.io.keep_in_flight(cx.vi);
    }

    /// Handles the response to the message at this position; `next_seq_cnt` follows it on its
    /// exchange.
    pub(crate) fn handle_answer<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        at: usize,
        next_seq_cnt: u16,
    ) {
        cx.count(Counter::RxResponses);
        self.restart_response_timeout(cx);
        if let Some(entry) = self.in_flight.mark_answered(at) {
            cx.port.exchanges.close(entry.ox_id, next_seq_cnt);
            self.complete_answered(cx);
            self.resume_deferred(cx);
        }
    }

    /// Returns whether a response is that to the request to copy the message that is being sent.
    pub(crate) fn waits_for_rendezvous(&self, msg_id: u32, ox_id: u16) -> bool {
        let is_it =
            |message: &TxMessage| message.msg_id == msg_id && message.exchange.ox_id == ox_id;
        self.rendezvous.waits && self.message.as_ref().is_some_and(is_it)
    }

    /// Handles that response: completes the send, or has it sent in frames if the peer `declined`.
    pub(crate) fn finish_rendezvous<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        declined: bool,
    ) {
        let Some(message) = self.message.take() else {
            return;
        };
        self.rendezvous.waits = false;
        self.in_flight.deferred = false;
        cx.count(Counter::RxResponses);
        let next_seq_cnt = message.next_seq_cnt.wrapping_add(1);
        let ox_id = message.exchange.ox_id;
        cx.port.exchanges.close(ox_id, next_seq_cnt);
        if declined {
            cx.count(Counter::RendezvousDeclined);
            self.rendezvous.pause = SENDS_AFTER_DECLINE;
        } else {
            self.next_msg_id = self.next_msg_id.wrapping_add(1);
            cx.count(Counter::TxMessages);
            cx.count(Counter::RendezvousMessages);
            let bytes = message.work.length_bytes;
            cx.io.complete_send(cx.vi, Status::OK, bytes);
            cx.io.peer_has_handled(cx.vi, self.next_msg_id);
        }
        cx.io.resume(cx.vi);
    }

    /// Resumes the send queue if a descriptor was deferred.
    pub(crate) fn resume_deferred<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        if core::mem::take(&mut self.in_flight.deferred) {
            cx.io.resume(cx.vi);
        }
    }

    /// Starts the response timer, which expires after FCVI_ULP_TIMEOUT.
    pub(super) fn start_response_timer<I>(&mut self, cx: &mut Context<'_, I>) {
        self.restart_response_timeout(cx);
        if !core::mem::replace(&mut self.in_flight.timer_set, true) {
            let late_at_ns = self.in_flight.deadline_ns;
            cx.port.timers.set(late_at_ns, TimerKey::Response(cx.vi.0));
        }
    }

    /// Restarts the response timeout, because the peer makes progress.
    pub(crate) fn restart_response_timeout<I>(&mut self, cx: &Context<'_, I>) {
        self.in_flight.deadline_ns = cx.now_ns + cx.port.config.ulp_timeout_ns;
    }

    /// Completes the oldest descriptors that are answered.
    pub(crate) fn complete_answered<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        let mut last = None;
        while let Some(entry) = self.in_flight.pop_answered() {
            cx.io.complete_send(cx.vi, Status::OK, entry.length_bytes);
            if cx.io.is_failing(cx.vi) {
                return;
            }
            last = Some(entry.kind);
        }
        // At Reliable Delivery the peer answers reads only.
        let is_answered =
            |kind| self.level == ReliabilityLevel::ReliableReception || kind == OperationKind::Read;
        if self.in_flight.is_empty() && self.message.is_none() && last.is_some_and(is_answered) {
            cx.io.peer_has_handled(cx.vi, self.next_msg_id);
        }
        self.tracked =
            self.tracks_all() || !self.in_flight.is_empty() || self.in_flight.fault.is_some();
    }

    /// Completes the message at position `at` in error, and those before it; one position after
    /// those in flight is the message that is being sent, or that failed while it was. The caller
    /// breaks the connection.
    pub(crate) fn fail_in_flight<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        at: usize,
        mut status: Status,
    ) {
        if self.rendezvous.waits {
            // Before the program gets the buffer back.
            cx.io.end_access(cx.vi);
        }
        for _ in 0..at {
            let Some(entry) = self.in_flight.pop() else {
                break;
            };
            if entry.answered {
                cx.io.complete_send(cx.vi, Status::OK, entry.length_bytes);
            } else {
                entry.abandon(cx.now_ns, &mut cx.port.exchanges);
                cx.io.complete_send(cx.vi, Status::FLUSHED, 0);
            }
            if cx.io.is_failing(cx.vi) {
                // The caller's break flushes the others.
                return;
            }
        }
        // It comes after the given one, or is that one.
        self.in_flight.fault = None;
        if let Some(entry) = self.in_flight.pop() {
            entry.abandon(cx.now_ns, &mut cx.port.exchanges);
            if entry.placed_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
        }
        cx.io.complete_send(cx.vi, status, 0);
    }

    /// Completes a descriptor that failed locally and was deferred, before the connection breaks
    /// for a reason that does not concern anything in flight.
    pub(crate) fn fail_deferred<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        if let Some(status) = self.in_flight.fault {
            self.fail_in_flight(cx, self.in_flight.len(), status);
        }
    }

    /// Reports whether the peer received a part of a message, and will not receive the remainder.
    fn is_partially_sent(&self) -> bool {
        let fault = self.in_flight.fault;
        fault.is_some_and(|status| status.has(Status::PARTIAL))
    }

    pub(super) fn abandon_in_flight<I>(&mut self, cx: &mut Context<'_, I>) {
        while let Some(entry) = self.in_flight.pop() {
            entry.abandon(cx.now_ns, &mut cx.port.exchanges);
        }
        cx.port.timers.clear(TimerKey::Response(cx.vi.0));
        cx.port.timers.clear(TimerKey::Acknowledge(cx.vi.0));
        cx.port.timers.clear(TimerKey::Recover(cx.vi.0));
    }

    /// Returns the position of the oldest message of these kinds that waits for a response and can
    /// complete with an error of the remote side: at Reliable Delivery only reads can (VIPL 5.2).
    pub(crate) fn first_unanswered(&self, fits: impl Fn(OperationKind) -> bool) -> Option<usize> {
        let reception = self.level == ReliabilityLevel::ReliableReception;
        let fits = |kind| (reception || kind == OperationKind::Read) && fits(kind);
        let being_sent = || {
            let message = self.message.as_ref()?;
            fits(OperationKind::of(&message.work)).then_some(self.in_flight.len())
        };
        self.in_flight.first_unanswered(fits).or_else(being_sent)
    }

    /// Fails the message that caused the peer to end the connection for this reason, if its own
    /// response was lost. A read is refused before those before it are answered: of several reads
    /// it cannot be known which one was refused, and the oldest fails with a transport error. A
    /// partially sent message is the one that was incomplete at the peer, so no other message fails
    /// for it.
    pub(crate) fn handle_peer_failure<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        reason: MessageReason,
    ) {
        let Some(failure) = SendFailure::of(reason) else {
            return;
        };
        let known = failure == SendFailure::Transport && reason != MessageReason::MessageLost;
        if known && self.is_partially_sent() {
            return;
        }
        let status = if failure == SendFailure::Read && self.in_flight.unanswered_reads() > 1 {
            Status::TRANSPORT
        } else {
            failure.status()
        };
        if let Some(at) = self.first_unanswered(|kind| failure.applies_to(kind)) {
            self.fail_in_flight(cx, at, status);
        }
    }

    /// Handles the response timer.
    pub(crate) fn response_timeout<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
    ) -> Result<(), Break> {
        self.in_flight.timer_set = false;
        // A message longer than the window may be deferred after those in flight.
        let longer = self.message.is_some() && self.in_flight.deferred;
        if self.in_flight.unanswered() == 0 && !longer {
            return Ok(());
        }
        let deadline_ns = self.in_flight.deadline_ns;
        if deadline_ns > cx.now_ns {
            self.in_flight.timer_set = true;
            cx.port.timers.set(deadline_ns, TimerKey::Response(cx.vi.0));
            return Ok(());
        }
        cx.count(Counter::ResponseTimeouts);
        if self.is_partially_sent() {
            // The peer has already broken the connection, because the remainder did not arrive.
            return Err(Break(MessageReason::UlpTimeout));
        }
        Err(self.transport_failed(cx, |_| true, MessageReason::UlpTimeout))
    }

    /// Fails the oldest unanswered message of these kinds with a transport error.
    pub(crate) fn transport_failed<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        fits: impl Fn(OperationKind) -> bool,
        reason: MessageReason,
    ) -> Break {
        if let Some(at) = self.first_unanswered(fits) {
            self.fail_in_flight(cx, at, Status::TRANSPORT);
        }
        Break(reason)
    }
}

impl InFlightSend {
    /// Abandons its exchange, unless it is answered.
    fn abandon(&self, now_ns: u64, exchanges: &mut ExchangePool) {
        if !self.answered {
            exchanges.abandon(now_ns, self.ox_id, self.next_seq_cnt);
        }
    }
}
