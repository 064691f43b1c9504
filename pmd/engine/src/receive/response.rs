//! Responses to messages in flight: those of Reliable Reception, and the data of our reads.
//!
//! A response must name an outstanding message by its ID and its exchange [FCVI P-10, rule 7]. On a
//! network that delivers in order the responses to sends and writes arrive in the order of their
//! messages; the data of a read arrives without gaps and after all responses to earlier messages,
//! but it may arrive after responses to later ones.

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::message_response;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use super::frame_order::{FrameOrder, frame_order};
use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, Status};
use crate::synonym::{Check, skips};
use crate::transmit::{OperationKind, SendFailure};

impl Engine {
    /// Handles FCVI_SEND_RESP and FCVI_WRITE_RESP.
    pub(super) fn handle_response<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(vi) = self.answered_endpoint(now_ns, frame, iu, io) else {
            return;
        };
        let recovers = self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some());
        if recovers && iu.header.flags & message_response::CUMULATIVE != 0 {
            self.take_acknowledgement(now_ns, vi, frame, iu, io);
            return;
        }
        if !is_whole(frame, iu) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let refused = iu.header.flags & message_response::ERROR != 0;
        let is_write = iu.header.opcode == Opcode::WriteResponse;
        let fits = |kind| match kind {
            OperationKind::Send => !is_write,
            OperationKind::Write { .. } => is_write,
            OperationKind::Read => false,
        };
        let outstanding = self.outstanding(vi, frame, iu, fits);
        // With recovery only acknowledgements complete a message.
        let Some((at, kind)) = outstanding.filter(|_| refused || !recovers) else {
            self.counters.count(Counter::DropStrayResponse);
            return;
        };
        if self.earlier_response_lost(now_ns, vi, at, |kind| kind != OperationKind::Read, io) {
            return;
        }
        if refused {
            self.message_refused(now_ns, vi, kind, iu, io);
            return;
        }
        let entry = self.tx_mut(vi).and_then(|tx| tx.in_flight.get(at).copied());
        let Some(entry) = entry else {
            // Its last frame has not been sent.
            self.counters.count(Counter::DropStrayResponse);
            return;
        };
        self.handle_answer(now_ns, vi, at, entry.next_seq_cnt.wrapping_add(1), io);
    }

    /// Handles FCVI_READ_RESP.
    pub(super) fn handle_read_response<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(vi) = self.answered_endpoint(now_ns, frame, iu, io) else {
            return;
        };
        let error = iu.header.flags & message_response::ERROR != 0;
        let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
        let well_formed = if error {
            is_whole(frame, iu)
        } else {
            frame.fc.f_ctl.contains(FCtl::RELATIVE_OFFSET)
                && last == (iu.header.flags & message_response::LAST != 0)
                && (frame.sof == Sof::I3) == (frame.fc.parameter == 0)
                && (last || !iu.payload.is_empty())
        };
        if !well_formed {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let Some((at, kind)) = self.outstanding(vi, frame, iu, |kind| kind == OperationKind::Read)
        else {
            self.counters.count(Counter::DropStrayResponse);
            return;
        };
        let recovers = self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some());
        if recovers && !error {
            self.take_recovered_read_data(now_ns, vi, frame, iu, io);
            return;
        }
        // A read is refused when its request arrives, while others may still be queued.
        if self.earlier_response_lost(
            now_ns,
            vi,
            at,
            |kind| !error || kind != OperationKind::Read,
            io,
        ) {
            return;
        }
        if error {
            self.message_refused(now_ns, vi, kind, iu, io);
        } else {
            self.take_read_data(now_ns, vi, at, frame, iu, io);
        }
    }

    /// Returns the endpoint that a response names, if it comes from the responder of an exchange.
    fn answered_endpoint<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> Option<ViIndex> {
        let Some(vi) = self.message_endpoint(frame, iu) else {
            self.repeat_disconnect(now_ns, frame, iu, io);
            return None;
        };
        let ep = self.endpoint(vi)?;
        if !ep.params.level.is_reliable() {
            self.counters.count(Counter::DropWrongLevel);
            return None;
        }
        let f_ctl = frame.fc.f_ctl;
        if !f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
            || !f_ctl.contains(FCtl::LAST_SEQUENCE)
            || f_ctl.contains(FCtl::FIRST_SEQUENCE)
        {
            self.counters.count(Counter::DropBadIu);
            return None;
        }
        let peer_index = ep.peer_index;
        self.note_received(peer_index, now_ns);
        Some(vi)
    }

    /// Returns the unanswered message that a response is about: its position, which is one after
    /// those in flight if it is still being sent, and its kind.
    fn outstanding(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        fits: impl Fn(OperationKind) -> bool,
    ) -> Option<(usize, OperationKind)> {
        let (msg_id, ox_id) = (iu.header.msg_id, frame.fc.ox_id);
        let level = self.level_of(vi)?;
        let tx = self.tx_mut(vi)?;
        let any = || (skips(Check::AnsweredMessage) && !tx.in_flight.is_empty()).then_some(0);
        let found = match tx.in_flight.find(msg_id).or_else(any) {
            Some(at) => {
                let entry = tx.in_flight.get(at)?;
                let on_its_exchange = entry.ox_id == ox_id || skips(Check::AnsweredExchange);
                let ours = !entry.answered && on_its_exchange;
                ours.then_some((at, entry.kind))
            }
            None => {
                let message = tx.message.as_ref()?;
                let ours = level == ReliabilityLevel::ReliableReception
                    && message.msg_id == msg_id
                    && message.exchange.ox_id == ox_id;
                ours.then(|| (tx.in_flight.len(), OperationKind::of(&message.work)))
            }
        };
        found.filter(|(_, kind)| fits(*kind))
    }

    /// Fails the oldest earlier message of this kind without a response, which will not arrive any
    /// more. Returns true if the VI broke.
    fn earlier_response_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        fits: impl Fn(OperationKind) -> bool,
        io: &mut I,
    ) -> bool {
        let recovers = self.tx_mut(vi).is_some_and(|tx| tx.recovery.is_some());
        let lost = !recovers
            && self
                .first_unanswered(vi, &fits)
                .is_some_and(|first| first < at);
        if lost {
            self.counters.count(Counter::LostResponses);
            self.transport_failed(now_ns, vi, fits, MessageReason::MessageLost, io);
        }
        lost
    }

    /// Fails the message that the peer refused; the peer has left the connection.
    #[cold]
    fn message_refused<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        kind: OperationKind,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        self.counters.count(Counter::RxResponses);
        let msg_id = iu.header.msg_id;
        self.acknowledged_before(now_ns, vi, msg_id, io);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        // One position after those in flight if it is being sent.
        let at = tx.in_flight.find(msg_id).unwrap_or(tx.in_flight.len());
        let reason = MessageReason::from_parameter(iu.header.parameter);
        let status = SendFailure::status_of(reason, kind);
        self.fail_in_flight(now_ns, vi, at, status, io);
        self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
    }

    /// Places a frame of a read's data and completes the read with the last one.
    fn take_read_data<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.get_mut(at)) else {
            return;
        };
        let fc = &frame.fc;
        let placed_bytes = entry.placed_bytes;
        let order = frame_order(fc, entry.next_seq_cnt, placed_bytes);
        if order == FrameOrder::Duplicate {
            self.counters.count(Counter::DropDuplicate);
            return;
        }
        let last = fc.f_ctl.contains(FCtl::END_SEQUENCE);
        // Both below 2^32: the sum is checked, never wrapped.
        let end = u64::from(placed_bytes) + iu.payload.len() as u64;
        let whole = end == u64::from(entry.length_bytes);
        let fits = end <= u64::from(entry.length_bytes) && last == whole;
        if order == FrameOrder::Gap || !fits {
            self.counters.count(Counter::IncompleteMessages);
            self.fail_in_flight(now_ns, vi, at, Status::TRANSPORT, io);
            self.break_local(now_ns, vi, MessageReason::MessageIncomplete, io);
            return;
        }
        self.place_read_data(now_ns, vi, at, (fc.seq_cnt, end as u32, last), iu, io);
    }

    /// Places the next data of a read. The tuple is the frame's SEQ_CNT, its end in the read, and
    /// whether it is the last one.
    pub(crate) fn place_read_data<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: usize,
        (seq_cnt, end, last): (u16, u32, bool),
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(entry) = self.tx_mut(vi).and_then(|tx| tx.in_flight.get_mut(at)) else {
            return;
        };
        if !io.place_read(vi, at as u32, entry.placed_bytes, iu.payload) {
            self.fail_in_flight(now_ns, vi, at, Status::PROTECTION, io);
            self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
            return;
        }
        entry.placed_bytes = end;
        entry.next_seq_cnt = seq_cnt.wrapping_add(1);
        let next_seq_cnt = entry.next_seq_cnt;
        self.counters.count(Counter::RxFrames);
        if last {
            self.handle_answer(now_ns, vi, at, next_seq_cnt, io);
        } else {
            self.restart_response_timeout(now_ns, vi);
        }
    }
}

/// Reports whether this is a whole response without data in one frame.
fn is_whole(frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
    frame.sof == Sof::I3
        && frame.eof == Eof::T
        && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
        && iu.payload.is_empty()
}
