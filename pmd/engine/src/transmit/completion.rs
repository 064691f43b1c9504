//! Completion of descriptors in flight: answered, refused, or given up.
//!
//! Every failure breaks the connection, and the queue completes in order: what was answered before
//! the failed one completes without error; what was not, which can only be reads whose data the
//! remote side still sends, is flushed; then the failed one completes with its bits, and everything
//! after it is flushed. A descriptor that failed locally while it was sent waits for those before
//! it; if the connection breaks meanwhile and none of them caused it, it is the failed one.

use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use super::{InFlightSend, OperationKind};
use crate::counters::Counter;
use crate::endpoint::{Phase, TxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, Status};
use crate::timer::TimerKey;

impl Engine {
    /// Tracks a send or write that is not complete when the port has accepted its last frame.
    #[inline(always)]
    pub(super) fn sent_tracked<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &TxMessage,
        io: &mut I,
    ) {
        let recovers = self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some());
        let answered = !recovers && self.level_of(vi) != Some(ReliabilityLevel::ReliableReception);
        if answered {
            let ox_id = message.exchange.ox_id;
            self.exchanges.close(ox_id, message.next_seq_cnt);
        }
        self.keep_in_flight(now_ns, vi, message, answered, io);
    }

    /// Puts the descriptor that was just sent in flight, to wait for its response or, if it is
    /// `answered`, for those before it. Inlined: what was just assembled stays in registers.
    #[inline(always)]
    pub(super) fn keep_in_flight<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &TxMessage,
        answered: bool,
        io: &mut I,
    ) {
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        tx.tracked = true;
        tx.in_flight.push(InFlightSend {
            kind: OperationKind::of(&message.work),
            answered,
            msg_id: message.msg_id,
            ox_id: message.exchange.ox_id,
            seq_id: message.exchange.seq_id,
            first_seq_cnt: message.exchange.seq_cnt,
            next_seq_cnt: message.next_seq_cnt,
            length_bytes: message.work.length_bytes,
            placed_bytes: 0,
        });
        if !answered && tx.in_flight.unanswered() == 1 {
            self.start_response_timer(now_ns, vi);
        }
        if self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some()) {
            let kind = OperationKind::of(&message.work);
            self.sent_recoverable(now_ns, vi, kind, message.work.length_bytes);
        }
        io.keep_in_flight(vi);
    }

    /// Handles the response to the message at this position; `next_seq_cnt` follows it on its
    /// exchange.
    pub(crate) fn handle_answer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        next_seq_cnt: u16,
        io: &mut I,
    ) {
        self.counters.count(Counter::RxResponses);
        self.restart_response_timeout(now_ns, vi);
        let Some(entry) = self
            .tx_mut(vi)
            .and_then(|tx| tx.in_flight.mark_answered(at))
        else {
            return;
        };
        self.exchanges.close(entry.ox_id, next_seq_cnt);
        self.complete_answered(vi, io);
        self.resume_deferred(vi, io);
    }

    /// Resumes the send queue if a descriptor was deferred.
    pub(crate) fn resume_deferred<I: EngineIo>(&mut self, vi: ViIndex, io: &mut I) {
        let was_deferred = |tx: &mut TxStream| core::mem::take(&mut tx.in_flight.deferred);
        if self.tx_mut(vi).is_some_and(was_deferred) {
            io.resume(vi);
        }
    }

    /// Starts the response timer, which expires after FCVI_ULP_TIMEOUT.
    pub(super) fn start_response_timer(&mut self, now_ns: u64, vi: ViIndex) {
        self.restart_response_timeout(now_ns, vi);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if !core::mem::replace(&mut tx.in_flight.timer_set, true) {
            let late_at_ns = tx.in_flight.deadline_ns;
            self.timers.set(late_at_ns, TimerKey::Response(vi.0));
        }
    }

    /// Restarts the response timeout, because the peer makes progress.
    pub(crate) fn restart_response_timeout(&mut self, now_ns: u64, vi: ViIndex) {
        let late_at_ns = now_ns + self.config.ulp_timeout_ns;
        if let Some(tx) = self.tx_mut(vi) {
            tx.in_flight.deadline_ns = late_at_ns;
        }
    }

    /// Completes the oldest descriptors that are answered.
    pub(crate) fn complete_answered<I: EngineIo>(&mut self, vi: ViIndex, io: &mut I) {
        let reception = self.level_of(vi) == Some(ReliabilityLevel::ReliableReception);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        while let Some(entry) = tx.in_flight.pop_answered() {
            io.complete_send(vi, Status::OK, entry.length_bytes);
            if io.is_failing(vi) {
                return;
            }
        }
        tx.tracked = reception
            || tx.recovery.is_some()
            || !tx.in_flight.is_empty()
            || tx.in_flight.fault.is_some();
    }

    /// Completes the message at position `at` in error, and those before it; one position after
    /// those in flight is the message that is being sent, or that failed while it was. The caller
    /// breaks the connection.
    pub(crate) fn fail_in_flight<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        mut status: Status,
        io: &mut I,
    ) {
        for _ in 0..at {
            let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.pop()) else {
                break;
            };
            if entry.answered {
                io.complete_send(vi, Status::OK, entry.length_bytes);
            } else {
                self.abandon_send(now_ns, &entry);
                io.complete_send(vi, Status::FLUSHED, 0);
            }
            if io.is_failing(vi) {
                // The caller's break flushes the others.
                return;
            }
        }
        let failed = self.tx_mut(vi).and_then(|tx| {
            // It comes after the given one, or is that one.
            tx.in_flight.fault = None;
            tx.in_flight.pop()
        });
        if let Some(entry) = failed {
            self.abandon_send(now_ns, &entry);
            if entry.placed_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
        }
        io.complete_send(vi, status, 0);
    }

    /// Completes a descriptor that failed locally and was deferred, before the connection breaks
    /// for a reason that does not concern anything in flight.
    pub(crate) fn fail_deferred<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let deferred = self.tx_mut(vi).and_then(|tx| {
            let status = tx.in_flight.fault?;
            Some((tx.in_flight.len(), status))
        });
        if let Some((at, status)) = deferred {
            self.fail_in_flight(now_ns, vi, at, status, io);
        }
    }

    /// Reports whether the peer received a part of a message, and will not receive the remainder.
    fn is_partially_sent(&mut self, vi: ViIndex) -> bool {
        self.tx_mut(vi).is_some_and(|tx| {
            let fault = tx.in_flight.fault;
            fault.is_some_and(|status| status.has(Status::PARTIAL))
        })
    }

    pub(super) fn abandon_in_flight(&mut self, now_ns: u64, vi: ViIndex) {
        while let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.pop()) {
            self.abandon_send(now_ns, &entry);
        }
        self.timers.clear(TimerKey::Response(vi.0));
        self.timers.clear(TimerKey::Acknowledge(vi.0));
        self.timers.clear(TimerKey::Recover(vi.0));
    }

    fn abandon_send(&mut self, now_ns: u64, entry: &InFlightSend) {
        if !entry.answered {
            let next_seq_cnt = entry.next_seq_cnt;
            self.exchanges.abandon(now_ns, entry.ox_id, next_seq_cnt);
        }
    }

    /// Returns the position of the oldest message of these kinds that waits for a response and can
    /// complete with an error of the remote side: at Reliable Delivery only reads can (VIPL 5.2).
    pub(crate) fn first_unanswered(
        &self,
        vi: ViIndex,
        fits: impl Fn(OperationKind) -> bool,
    ) -> Option<usize> {
        let ep = self.endpoint(vi)?;
        let tx = ep.tx.as_ref()?;
        let reception = ep.params.level == ReliabilityLevel::ReliableReception;
        let fits = |kind| (reception || kind == OperationKind::Read) && fits(kind);
        let being_sent = || {
            let message = tx.message.as_ref()?;
            fits(OperationKind::of(&message.work)).then_some(tx.in_flight.len())
        };
        tx.in_flight.first_unanswered(fits).or_else(being_sent)
    }

    /// Fails the message that caused the peer to end the connection for this reason, if its own
    /// response was lost. A read is refused before those before it are answered: of several reads
    /// it cannot be known which one was refused, and the oldest fails with a transport error. A
    /// partially sent message is the one that was incomplete at the peer, so no other message fails
    /// for it.
    pub(crate) fn handle_peer_failure<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        io: &mut I,
    ) {
        let connected = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::Connected));
        let Some(failure) = SendFailure::of(reason).filter(|_| connected) else {
            return;
        };
        let known = failure == SendFailure::Transport && reason != MessageReason::MessageLost;
        if known && self.is_partially_sent(vi) {
            return;
        }
        let several_reads = |tx: &mut TxStream| tx.in_flight.unanswered_reads() > 1;
        let status = if failure == SendFailure::Read && self.tx_mut(vi).is_some_and(several_reads) {
            Status::TRANSPORT
        } else {
            failure.status()
        };
        if let Some(at) = self.first_unanswered(vi, |kind| failure.applies_to(kind)) {
            self.fail_in_flight(now_ns, vi, at, status, io);
        }
    }

    /// Handles the response timer.
    pub(crate) fn response_timeout<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        tx.in_flight.timer_set = false;
        // A message longer than the window may be deferred after those in flight.
        let longer = tx.message.is_some() && tx.in_flight.deferred;
        if tx.in_flight.unanswered() == 0 && !longer {
            return;
        }
        let deadline_ns = tx.in_flight.deadline_ns;
        if deadline_ns > now_ns {
            tx.in_flight.timer_set = true;
            self.timers.set(deadline_ns, TimerKey::Response(vi.0));
            return;
        }
        self.counters.count(Counter::ResponseTimeouts);
        if self.is_partially_sent(vi) {
            // The peer has already broken the connection, because the remainder did not arrive.
            self.break_local(now_ns, vi, MessageReason::UlpTimeout, io);
            return;
        }
        self.transport_failed(now_ns, vi, |_| true, MessageReason::UlpTimeout, io);
    }

    /// Fails the oldest unanswered message of these kinds with a transport error, and breaks the
    /// connection.
    pub(crate) fn transport_failed<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        fits: impl Fn(OperationKind) -> bool,
        reason: MessageReason,
        io: &mut I,
    ) {
        if let Some(at) = self.first_unanswered(vi, fits) {
            self.fail_in_flight(now_ns, vi, at, Status::TRANSPORT, io);
        }
        self.break_local(now_ns, vi, reason, io);
    }
}

/// Cause of a failure that the peer reports, by the message that it is about [FCVI P-8].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// The remote receive descriptor.
    Descriptor,
    /// The target of a write.
    Write,
    /// The source of a read.
    Read,
    /// The network.
    Transport,
}

impl SendFailure {
    /// Returns the failure for a reason; `None` if the reason is about no message.
    pub(crate) fn of(reason: MessageReason) -> Option<Self> {
        match reason {
            MessageReason::NoDescriptor
            | MessageReason::DescriptorFormat
            | MessageReason::DescriptorProtection
            | MessageReason::DescriptorTooShort => Some(Self::Descriptor),
            MessageReason::WriteProtection | MessageReason::WriteNotEnabled => Some(Self::Write),
            MessageReason::ReadProtection | MessageReason::ReadNotEnabled => Some(Self::Read),
            MessageReason::MessageLost
            | MessageReason::MessageIncomplete
            | MessageReason::NoResources
            | MessageReason::UlpTimeout => Some(Self::Transport),
            MessageReason::None
            | MessageReason::UnknownHandle
            | MessageReason::ProtocolError
            | MessageReason::Disconnected
            | MessageReason::NicClosing
            | MessageReason::Gaps
            | MessageReason::Unknown(_) => None,
        }
    }

    /// Reports whether it can be about such a message: one on which the guide allows the status
    /// (VIPL 5.2).
    pub(crate) fn applies_to(self, kind: OperationKind) -> bool {
        match self {
            Self::Descriptor => matches!(
                kind,
                OperationKind::Send | OperationKind::Write { immediate: true }
            ),
            Self::Write => matches!(kind, OperationKind::Write { .. }),
            Self::Read => kind == OperationKind::Read,
            Self::Transport => true,
        }
    }

    pub(crate) fn status(self) -> Status {
        match self {
            Self::Descriptor => Status::REMOTE_DESCRIPTOR,
            Self::Write | Self::Read => Status::RDMA_PROTECTION,
            Self::Transport => Status::TRANSPORT,
        }
    }

    /// Returns the status of a message of this kind that was refused for this reason.
    pub(crate) fn status_of(reason: MessageReason, kind: OperationKind) -> Status {
        Self::of(reason)
            .filter(|failure| failure.applies_to(kind))
            .unwrap_or(Self::Transport)
            .status()
    }
}
