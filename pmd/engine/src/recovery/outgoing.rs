//! Acknowledgements of our messages, and what is done when none arrives.
//!
//! ```text
//!      oldest in flight     una                       next
//!        |  acknowledged,    |  not acknowledged       |
//!        |  behind a read    |  within the window      |
//! ```
//! After a timeout the newest frame is sent as a probe, to which the peer responds with its gaps. So
//! frames are retransmitted only when they were reported missing.

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::gaps::{MissingRange, MissingRanges};
use fcvi_frame::reason::MessageReason;
use vi_types::OperationKind;

use super::retransmit_queue::RetransmitQueue;
use super::window::{RoundTrip, Window};
use super::{RecoveryConfig, frames_of};
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::receive::RxStream;
use crate::timer::TimerKey;
use crate::transmit::TxStream;

/// The send stream of a connection with recovery. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct TxRecovery {
    /// The oldest message that is not completely acknowledged.
    una: u32,
    /// Acknowledged frames of it.
    una_frames: u32,
    /// Frames of complete messages that were sent, and of those that are acknowledged, modulo 2^32.
    sent_frames: u32,
    acked_frames: u32,
    window: Window,
    round_trip: RoundTrip,
    pub(super) retransmits: RetransmitQueue,
    /// When the silent peer is probed; `None` if nothing is expected of it.
    deadline_ns: Option<u64>,
    /// When the timer fires; not later than that.
    timer_ns: Option<u64>,
    /// Probes in a row without a response.
    tries: u32,
    max_tries: u32,
    /// A message whose acknowledgement measures the round trip, and when it was sent.
    pub(super) sample: Option<(u32, u64)>,
}

impl TxRecovery {
    pub(crate) fn new(config: &RecoveryConfig, ulp_timeout_ns: u64, first_msg_id: u32) -> Self {
        Self {
            una: first_msg_id,
            una_frames: 0,
            sent_frames: 0,
            acked_frames: 0,
            window: Window::new(config),
            round_trip: RoundTrip::new(config, ulp_timeout_ns),
            retransmits: RetransmitQueue::new(),
            deadline_ns: None,
            timer_ns: None,
            tries: 0,
            max_tries: config.tries,
            sample: None,
        }
    }

    /// Requests a read of ours again, whose data has a gap or does not arrive.
    pub(crate) fn request_read_again(&mut self, now_ns: u64, msg_id: u32) {
        let repeat_ns = self.round_trip.repeat_ns();
        self.retransmits.add(now_ns, msg_id, 0..1, repeat_ns);
    }

    /// Returns the oldest message that is not completely acknowledged, and its acknowledged frames.
    #[cfg(test)]
    pub(crate) fn acknowledged_to(&self) -> (u32, u32) {
        (self.una, self.una_frames)
    }

    #[cfg(test)]
    pub(crate) fn retransmit_count(&self) -> usize {
        self.retransmits.len()
    }
}

/// Result of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    /// More is placed than was known.
    Further,
    /// As much is placed as was known.
    Known,
    /// It is older than an earlier one.
    Stale,
    /// It acknowledges what was never sent.
    Impossible,
}

impl TxStream {
    /// Returns the payload bytes of a frame of such a message, unless it is the last one.
    pub(super) fn room(&self, kind: OperationKind) -> u32 {
        match kind {
            OperationKind::Send | OperationKind::Read => self.send_payload_bytes,
            OperationKind::Write { .. } => self.write_payload_bytes,
        }
    }

    /// Returns the number of frames of a message's request.
    pub(super) fn request_frames(&self, kind: OperationKind, length_bytes: u32) -> u32 {
        match kind {
            OperationKind::Read => 1,
            OperationKind::Send | OperationKind::Write { .. } => {
                frames_of(length_bytes, self.room(kind))
            }
        }
    }

    /// Returns the number of frames sent of the message that is being sent.
    pub(super) fn sent_frames_of_open(&self) -> u32 {
        self.message.as_ref().map_or(0, |message| {
            message.sent_bytes / self.room(OperationKind::of(&message.work)).max(1)
        })
    }

    /// Returns the number of frames that were sent and are not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u32 {
        self.recovery.as_ref().map_or(0, |recovery| {
            let whole = recovery.sent_frames.wrapping_sub(recovery.acked_frames);
            let sent = whole.wrapping_add(self.sent_frames_of_open());
            // A message that failed while it was sent may be partially placed.
            sent.saturating_sub(recovery.una_frames)
        })
    }

    /// Reports whether the next frame must wait for an acknowledgement.
    pub(crate) fn window_is_full(&self) -> bool {
        let window = self
            .recovery
            .as_ref()
            .map(|recovery| recovery.window.frames());
        window.is_some_and(|frames| self.unacknowledged() >= frames)
    }

    fn expects_response(&self) -> bool {
        self.unacknowledged() > 0 || self.in_flight.unanswered_reads() > 0
    }

    /// Starts waiting for the acknowledgement of a completely sent descriptor.
    pub(crate) fn sent_recoverable<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        kind: OperationKind,
        bytes: u32,
    ) {
        let frames = self.request_frames(kind, bytes);
        let msg_id = self.next_msg_id.wrapping_sub(1);
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.sent_frames = recovery.sent_frames.wrapping_add(frames);
            recovery.sample.get_or_insert((msg_id, cx.now_ns));
        }
        self.expect_answer(cx);
    }

    /// Starts the recovery timer, if it is not running, after sending a frame that the peer
    /// answers.
    pub(crate) fn expect_answer<I>(&mut self, cx: &mut Context<'_, I>) {
        let Some(recovery) = self.recovery.as_mut() else {
            return;
        };
        let at_ns = cx.now_ns + recovery.round_trip.timeout_ns();
        let at_ns = *recovery.deadline_ns.get_or_insert(at_ns);
        if recovery.timer_ns.is_none_or(|timer_ns| timer_ns > at_ns) {
            recovery.timer_ns = Some(at_ns);
            cx.port.timers.set(at_ns, TimerKey::Recover(cx.vi.0));
        }
    }

    /// Handles a cumulative FCVI_SEND_RESP.
    pub(crate) fn take_acknowledgement<I: EngineIo>(
        &mut self,
        rx: &RxStream,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) {
        let f_ctl = frame.fc.f_ctl;
        let whole = frame.sof == Sof::I3
            && frame.eof == Eof::T
            && f_ctl.contains(FCtl::END_SEQUENCE)
            && f_ctl.contains(FCtl::RELATIVE_OFFSET);
        let ranges = match MessageReason::from_parameter(iu.header.parameter) {
            MessageReason::None if iu.payload.is_empty() => Ok(None),
            MessageReason::Gaps => MissingRanges::parse(iu.payload).map(Some).map_err(drop),
            _ => Err(()),
        };
        let (true, Ok(ranges)) = (whole, ranges) else {
            cx.count(Counter::DropBadIu);
            return;
        };
        let next = iu.header.msg_id.wrapping_add(1);
        let acknowledged = self.acknowledged(cx, next, frame.fc.parameter);
        match acknowledged {
            Acknowledged::Further | Acknowledged::Known => {}
            Acknowledged::Stale => {
                cx.count(Counter::StaleAcknowledgements);
                return;
            }
            Acknowledged::Impossible => {
                cx.count(Counter::DropStrayResponse);
                return;
            }
        }
        cx.count(Counter::RxAcknowledgements);
        // The response to what is retransmitted for it is as fast as any other.
        self.restart_recovery_timer(cx, acknowledged == Acknowledged::Further);
        if let Some(ranges) = ranges {
            cx.count(Counter::RxGapReports);
            for range in ranges.iter() {
                self.retransmit_range(cx.now_ns, range);
            }
            self.queue_recovery(rx, cx);
        }
    }

    /// Handles the acknowledgement in a send or write, if it carries one: the message up to which
    /// everything is placed.
    pub(crate) fn take_carried_acknowledgement<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        iu: &IuView<'_>,
    ) {
        let flags = iu.header.flags & (message_request::ACKNOWLEDGES | message_request::IMMEDIATE);
        if flags != message_request::ACKNOWLEDGES {
            return;
        }
        let next = iu.header.parameter.wrapping_add(1);
        let acknowledged = self.acknowledged(cx, next, 0);
        let counter = match acknowledged {
            Acknowledged::Further | Acknowledged::Known => {
                self.restart_recovery_timer(cx, acknowledged == Acknowledged::Further);
                Counter::RxAcknowledgementsCarried
            }
            Acknowledged::Stale => Counter::StaleAcknowledgements,
            Acknowledged::Impossible => Counter::DropStrayResponse,
        };
        cx.count(counter);
    }

    /// Acknowledges everything before this message, which the peer refuses or answers.
    pub(crate) fn acknowledged_before<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        msg_id: u32,
    ) {
        // If it is older than another one it has no effect; the message is known.
        let _ = self.acknowledged(cx, msg_id, 0);
    }

    /// Acknowledges everything before message `next`, and `placed_bytes` of it.
    fn acknowledged<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        next: u32,
        placed_bytes: u32,
    ) -> Acknowledged {
        let Some(placed_frames) = self.placed_frames(next, placed_bytes) else {
            return Acknowledged::Impossible;
        };
        let Some(mut recovery) = self.recovery.take() else {
            return Acknowledged::Impossible;
        };
        let ahead = next.wrapping_sub(recovery.una);
        if ahead > i32::MAX as u32 || (ahead == 0 && placed_frames < recovery.una_frames) {
            self.recovery = Some(recovery);
            return Acknowledged::Stale;
        }
        let before = recovery.acked_frames.wrapping_add(recovery.una_frames);
        while recovery.una != next {
            let at = self.in_flight.find(recovery.una);
            if let Some((at, entry)) = at.and_then(|at| Some((at, *self.in_flight.get(at)?))) {
                let frames = self.request_frames(entry.kind, entry.length_bytes);
                recovery.acked_frames = recovery.acked_frames.wrapping_add(frames);
                // A read is answered by its data.
                if entry.kind != OperationKind::Read && self.in_flight.mark_answered(at).is_some() {
                    cx.port
                        .exchanges
                        .close(entry.ox_id, entry.next_seq_cnt.wrapping_add(1));
                }
            }
            recovery.una = recovery.una.wrapping_add(1);
        }
        recovery.una_frames = placed_frames;
        let after = recovery.acked_frames.wrapping_add(recovery.una_frames);
        let frames = after.wrapping_sub(before);
        recovery.window.acked(frames);
        let is_acked = |msg_id: u32| next.wrapping_sub(msg_id).wrapping_sub(1) <= i32::MAX as u32;
        if let Some((_, sent_ns)) = recovery.sample.take_if(|(msg_id, _)| is_acked(*msg_id)) {
            recovery
                .round_trip
                .measured(cx.now_ns.saturating_sub(sent_ns));
        }
        self.recovery = Some(recovery);
        self.prune_retransmits();
        if frames == 0 {
            return Acknowledged::Known;
        }
        self.restart_response_timeout(cx);
        self.complete_answered(cx);
        self.resume_deferred(cx);
        Acknowledged::Further
    }

    /// Restarts the recovery timer after a frame of the peer. The retry interval is reset only if
    /// the peer made progress (`further`), or has everything: a peer that responds without
    /// progress, as the data of a read, has FCVI_ULP_TIMEOUT.
    pub(crate) fn restart_recovery_timer<I>(&mut self, cx: &mut Context<'_, I>, further: bool) {
        let expects = self.expects_response();
        let answered = further || self.unacknowledged() == 0;
        if let Some(recovery) = self.recovery.as_mut() {
            if answered {
                recovery.round_trip.answered();
            }
            recovery.tries = 0;
            recovery.deadline_ns = None;
        }
        if expects {
            self.expect_answer(cx);
        }
    }

    /// Retransmits these bytes, which are missing at the peer.
    fn retransmit_range(&mut self, now_ns: u64, range: MissingRange) {
        let Some((room, sent_frames)) = self.sent_of(range.msg_id) else {
            // Acknowledged since, or never sent.
            return;
        };
        let begin = range.offset_bytes / room;
        let end = match range.length_bytes {
            0 => sent_frames,
            bytes => begin.saturating_add(bytes.div_ceil(room)).min(sent_frames),
        };
        if let Some(recovery) = self.recovery.as_mut().filter(|_| begin < end) {
            let repeat_ns = recovery.round_trip.repeat_ns();
            let frames = recovery
                .retransmits
                .add(now_ns, range.msg_id, begin..end, repeat_ns);
            recovery.window.lost(frames);
        }
    }

    /// Handles the recovery timer: probes the silent peer, or gives up.
    pub(crate) fn recover_timeout<I: EngineIo>(
        &mut self,
        rx: &RxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<(), Break> {
        let expects = self.expects_response();
        let newest = self.newest_frame();
        let Some(recovery) = self.recovery.as_mut() else {
            return Ok(());
        };
        recovery.timer_ns = None;
        let Some(deadline_ns) = recovery.deadline_ns.filter(|_| expects) else {
            return Ok(());
        };
        if deadline_ns > cx.now_ns {
            self.expect_answer(cx);
            return Ok(());
        }
        recovery.deadline_ns = None;
        // A probe that still waits for room in the port was not sent yet.
        if recovery.retransmits.next().is_none() {
            if recovery.tries >= recovery.max_tries {
                cx.count(Counter::GiveUps);
                return Err(self.transport_failed(cx, |_| true, MessageReason::UlpTimeout));
            }
            recovery.tries += 1;
            recovery.round_trip.timed_out();
            recovery.window.timed_out();
            recovery.sample = None;
            if let Some((msg_id, frame)) = newest {
                recovery
                    .retransmits
                    .add(cx.now_ns, msg_id, frame..frame + 1, 0);
            }
            cx.count(Counter::RecoveryTimeouts);
        }
        self.expect_answer(cx);
        self.queue_recovery(rx, cx);
        Ok(())
    }

    /// Returns the payload bytes per frame, and the number of sent frames, of a message that can be
    /// retransmitted.
    pub(super) fn sent_of(&self, msg_id: u32) -> Option<(u32, u32)> {
        if let Some(at) = self.in_flight.find(msg_id) {
            let entry = self.in_flight.get(at).filter(|entry| !entry.answered)?;
            let frames = self.request_frames(entry.kind, entry.length_bytes);
            return Some((self.room(entry.kind).max(1), frames));
        }
        let message = self.message.as_ref().filter(|m| m.msg_id == msg_id)?;
        Some((
            self.room(OperationKind::of(&message.work)).max(1),
            self.sent_frames_of_open(),
        ))
    }

    /// Returns the first message that was not completely sent.
    fn first_unsent(&self) -> u32 {
        let being_sent = u32::from(self.message.is_some());
        self.next_msg_id.wrapping_sub(being_sent)
    }

    /// Returns the number of frames of message `next` in `placed_bytes`; `None` if that was not
    /// sent.
    fn placed_frames(&self, next: u32, placed_bytes: u32) -> Option<u32> {
        let una = self.recovery.as_ref()?.una;
        let sent = self.first_unsent().wrapping_sub(una);
        let ahead = next.wrapping_sub(una);
        if ahead > i32::MAX as u32 || placed_bytes == 0 {
            return (ahead > i32::MAX as u32 || ahead <= sent).then_some(0);
        }
        let (room, frames) = self.sent_of(next)?;
        let placed = placed_bytes / room;
        (placed_bytes.is_multiple_of(room) && placed <= frames).then_some(placed)
    }

    /// Returns the newest unacknowledged frame, or the request of the oldest read without its data.
    fn newest_frame(&self) -> Option<(u32, u32)> {
        let newest = self.next_msg_id.wrapping_sub(1);
        if self.unacknowledged() > 0 {
            let begun = self.sent_frames_of_open();
            if begun > 0 {
                return Some((newest, begun - 1));
            }
            // A message may follow that is just being started, or that failed locally.
            let whole = self.in_flight.newest_unanswered()?;
            let (_, frames) = self.sent_of(whole)?;
            return Some((whole, frames - 1));
        }
        let at = self
            .in_flight
            .first_unanswered(|kind| kind == OperationKind::Read)?;
        Some((self.in_flight.get(at)?.msg_id, 0))
    }

    /// Removes what need not be retransmitted any more.
    fn prune_retransmits(&mut self) {
        if (self.recovery.as_ref()).is_none_or(|recovery| recovery.retransmits.is_empty()) {
            return;
        }
        let Some(mut recovery) = self.recovery.take() else {
            return;
        };
        let (una, una_frames) = (recovery.una, recovery.una_frames);
        recovery.retransmits.retain(|range| {
            let acked = range.msg_id == una && range.end <= una_frames;
            self.sent_of(range.msg_id).is_some() && !acked
        });
        self.recovery = Some(recovery);
    }
}
