//! What becomes of descriptors in flight: answered, refused, or given up.
//!
//! Whatever fails breaks the connection, and the queue completes in order: what
//! was answered before the one that failed is complete without error; what was
//! not, which only reads can be whose data waits at the other end, is flushed;
//! then comes the failed one with its bits, and everything behind it is flushed.
//! A descriptor that failed here, while it was sent, waits for those in front of it;
//! if the connection breaks meanwhile and none of them is to blame, it is the failed one.

use fcvi_frame::reason::MessageReason;

use super::{Entry, Kind};
use crate::counters::Counter;
use crate::endpoint::{Level, Phase, TxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Status};
use crate::timer::TimerKey;

impl Engine {
    /// The last frame of a send or write is with the port, and it is not complete at once.
    #[inline(always)]
    pub(super) fn sent_tracked<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &TxMessage,
        host: &mut H,
    ) {
        let recovers = self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some());
        let answered = !recovers && self.level_of(vi) != Some(Level::ReliableReception);
        if answered {
            let ox_id = message.exchange.ox_id;
            self.exchanges.close(ox_id, message.next_seq_cnt);
        }
        self.keep_in_flight(now_ns, vi, message, answered, host);
    }

    /// The descriptor that was just sent waits for its answer, or, if it is `answered`, for
    /// those before it. Inlined: what was just put together stays in registers.
    #[inline(always)]
    pub(super) fn keep_in_flight<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &TxMessage,
        answered: bool,
        host: &mut H,
    ) {
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        tx.tracked = true;
        tx.in_flight.push(Entry {
            kind: Kind::of(&message.work),
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
            self.watch_answer(now_ns, vi);
        }
        if self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some()) {
            let kind = Kind::of(&message.work);
            self.sent_recoverable(now_ns, vi, kind, message.work.length_bytes);
        }
        host.keep_in_flight(vi);
    }

    /// The answer to the message that stands there is here; `next_seq_cnt` is what comes
    /// after it on its exchange.
    pub(crate) fn answered<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        next_seq_cnt: u16,
        host: &mut H,
    ) {
        self.counters.count(Counter::RxResponses);
        self.answer_goes_on(now_ns, vi);
        let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.answer(at)) else {
            return;
        };
        self.exchanges.close(entry.ox_id, next_seq_cnt);
        self.complete_answered(vi, host);
        self.release_held(vi, host);
    }

    /// The send queue goes on if it waited for an answer.
    pub(crate) fn release_held<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let holding = |tx: &mut TxStream| core::mem::take(&mut tx.in_flight.holding);
        if self.tx_mut(vi).is_some_and(holding) {
            host.resume(vi);
        }
    }

    /// From now on an answer is waited for: it has FCVI_ULP_TIMEOUT.
    pub(super) fn watch_answer(&mut self, now_ns: u64, vi: ViIndex) {
        self.answer_goes_on(now_ns, vi);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if !core::mem::replace(&mut tx.in_flight.timer_set, true) {
            let late_at_ns = tx.in_flight.deadline_ns;
            self.timers.set(late_at_ns, TimerKey::Answer(vi.0));
        }
    }

    /// The other end is at it: the oldest answer has its time from now on.
    pub(crate) fn answer_goes_on(&mut self, now_ns: u64, vi: ViIndex) {
        let late_at_ns = now_ns + self.config.ulp_timeout_ns;
        if let Some(tx) = self.tx_mut(vi) {
            tx.in_flight.deadline_ns = late_at_ns;
        }
    }

    /// Completes what waits for nothing any more.
    pub(crate) fn complete_answered<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let reception = self.level_of(vi) == Some(Level::ReliableReception);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        while let Some(entry) = tx.in_flight.pop_answered() {
            host.complete_send(vi, Status::OK, entry.length_bytes);
            if host.is_failing(vi) {
                return;
            }
        }
        tx.tracked = reception
            || tx.recovery.is_some()
            || !tx.in_flight.is_empty()
            || tx.in_flight.fault.is_some();
    }

    /// Completes the message that stands at `at` in error, and those before it; one place
    /// behind what is in flight stands the message that is being sent, or that failed while it
    /// was. The caller breaks the connection.
    pub(crate) fn fail_in_flight<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        mut status: Status,
        host: &mut H,
    ) {
        for _ in 0..at {
            let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.pop()) else {
                break;
            };
            if entry.answered {
                host.complete_send(vi, Status::OK, entry.length_bytes);
            } else {
                self.abandon_entry(now_ns, &entry);
                host.complete_send(vi, Status::FLUSHED, 0);
            }
            if host.is_failing(vi) {
                // The caller's break flushes the rest.
                return;
            }
        }
        let failed = self.tx_mut(vi).and_then(|tx| {
            // It is behind the one that is named, or is that one.
            tx.in_flight.fault = None;
            tx.in_flight.pop()
        });
        if let Some(entry) = failed {
            self.abandon_entry(now_ns, &entry);
            if entry.placed_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
        }
        host.complete_send(vi, status, 0);
    }

    /// The connection breaks, and nothing in flight is to blame: a descriptor that failed while
    /// it was sent, and waits behind what is in flight, did fail.
    pub(crate) fn fail_held<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let held = self.tx_mut(vi).and_then(|tx| {
            let status = tx.in_flight.fault?;
            Some((tx.in_flight.len(), status))
        });
        if let Some((at, status)) = held {
            self.fail_in_flight(now_ns, vi, at, status, host);
        }
    }

    /// Did the other end get a part of a message, and will not get the rest?
    fn half_sent(&mut self, vi: ViIndex) -> bool {
        self.tx_mut(vi).is_some_and(|tx| {
            let fault = tx.in_flight.fault;
            fault.is_some_and(|status| status.has(Status::PARTIAL))
        })
    }

    pub(super) fn abandon_in_flight(&mut self, now_ns: u64, vi: ViIndex) {
        while let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.pop()) {
            self.abandon_entry(now_ns, &entry);
        }
        self.timers.clear(TimerKey::Answer(vi.0));
        self.timers.clear(TimerKey::Acknowledge(vi.0));
        self.timers.clear(TimerKey::Recover(vi.0));
    }

    fn abandon_entry(&mut self, now_ns: u64, entry: &Entry) {
        if !entry.answered {
            let next_seq_cnt = entry.next_seq_cnt;
            self.exchanges.abandon(now_ns, entry.ox_id, next_seq_cnt);
        }
    }

    /// Where the oldest message stands that waits for an answer, is such a one, and can be told
    /// of an error at the other end: at Reliable Delivery only a read can (VIPL 5.2).
    pub(crate) fn first_unanswered(
        &self,
        vi: ViIndex,
        fits: impl Fn(Kind) -> bool,
    ) -> Option<usize> {
        let ep = self.endpoint(vi)?;
        let tx = ep.tx.as_ref()?;
        let reception = ep.params.level == Level::ReliableReception;
        let fits = |kind| (reception || kind == Kind::Read) && fits(kind);
        let being_sent = || {
            let message = tx.message.as_ref()?;
            fits(Kind::of(&message.work)).then_some(tx.in_flight.len())
        };
        tx.in_flight.first_unanswered(fits).or_else(being_sent)
    }

    /// The other end ended the connection and said why: the message that this is about
    /// fails for that reason, if its own response was lost. A read is refused before those in
    /// front of it are answered: of several it cannot be known which one it was, and the
    /// oldest fails as one whose answer is lost. A message that was sent in part is the one that
    /// did not come whole, and the others are not blamed for it.
    pub(crate) fn told_failure<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        host: &mut H,
    ) {
        let connected = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::Connected));
        let Some(failure) = Failure::of(reason).filter(|_| connected) else {
            return;
        };
        let known = failure == Failure::Transport && reason != MessageReason::MessageLost;
        if known && self.half_sent(vi) {
            return;
        }
        let several_reads = |tx: &mut TxStream| tx.in_flight.unanswered_reads() > 1;
        let status = if failure == Failure::Read && self.tx_mut(vi).is_some_and(several_reads) {
            Status::TRANSPORT
        } else {
            failure.status()
        };
        if let Some(at) = self.first_unanswered(vi, |kind| failure.can_concern(kind)) {
            self.fail_in_flight(now_ns, vi, at, status, host);
        }
    }

    /// An answer is late.
    pub(crate) fn answer_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        tx.in_flight.timer_set = false;
        // Behind what is in flight a message may wait that is longer than the window.
        let longer = tx.message.is_some() && tx.in_flight.holding;
        if tx.in_flight.unanswered() == 0 && !longer {
            return;
        }
        let deadline_ns = tx.in_flight.deadline_ns;
        if deadline_ns > now_ns {
            tx.in_flight.timer_set = true;
            self.timers.set(deadline_ns, TimerKey::Answer(vi.0));
            return;
        }
        self.counters.count(Counter::ResponseTimeouts);
        if self.half_sent(vi) {
            // The other end has broken long since, for the rest that did not come.
            self.break_local(now_ns, vi, MessageReason::UlpTimeout, host);
            return;
        }
        self.transport_failed(now_ns, vi, |_| true, MessageReason::UlpTimeout, host);
    }

    /// The oldest unanswered message of this kind failed on its way there or back: the
    /// connection breaks.
    pub(crate) fn transport_failed<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        fits: impl Fn(Kind) -> bool,
        reason: MessageReason,
        host: &mut H,
    ) {
        if let Some(at) = self.first_unanswered(vi, fits) {
            self.fail_in_flight(now_ns, vi, at, Status::TRANSPORT, host);
        }
        self.break_local(now_ns, vi, reason, host);
    }
}

/// What a reason says of the message that it is about [FCVI P-8].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The other end's receive descriptor.
    Descriptor,
    /// The target of a write.
    Write,
    /// The source of a read.
    Read,
    /// The way there or back.
    Transport,
}

impl Failure {
    /// `None` if the reason is about no message.
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

    /// Which messages it can be about: those on which the guide allows the status (VIPL 5.2).
    pub(crate) fn can_concern(self, kind: Kind) -> bool {
        match self {
            Self::Descriptor => matches!(kind, Kind::Send | Kind::Write { immediate: true }),
            Self::Write => matches!(kind, Kind::Write { .. }),
            Self::Read => kind == Kind::Read,
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

    /// The status of a message of this kind that was refused for this reason.
    pub(crate) fn status_of(reason: MessageReason, kind: Kind) -> Status {
        Self::of(reason)
            .filter(|failure| failure.can_concern(kind))
            .unwrap_or(Self::Transport)
            .status()
    }
}
