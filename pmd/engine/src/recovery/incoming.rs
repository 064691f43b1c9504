//! Received frames of sends and writes, in order and ahead of it.
//!
//! In order they are handled as on every other connection; ahead of it they are placed if nothing
//! about them can fail, and dropped otherwise. A message ahead is known once a frame of it and of
//! each message before it has arrived, because only then its receive descriptor is known. The last
//! frame of an RDMA write waits for everything before it, so that an application that polls memory
//! sees the last bytes last. At Reliable Reception the whole write waits for the messages before
//! it, because nothing is processed after a failed one (VIPL 2.4); a receive descriptor that is
//! filled ahead is flushed then.

use std::collections::VecDeque;

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use vi_types::ReliabilityLevel;

use super::RecoveryConfig;
use super::acknowledge::AckState;
use super::received_ranges::{Position, ReceivedRange, ReceivedRanges};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Endpoint, Phase, RxKind, RxMessage, RxStream, ViParams};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{Claim, EngineIo};
use crate::synonym::{Check, skips};
use crate::transmit::payload_room;

/// The receive stream of a connection with recovery. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct RxRecovery {
    /// Payload bytes of a frame of a send, unless it is the last one.
    send_room: u32,
    write_room: u32,
    pub(super) received_ranges: ReceivedRanges,
    /// Messages after the open one, each with at least one received frame: their IDs are
    /// consecutive.
    pub(super) ahead: VecDeque<RxMessage>,
    ahead_limit: usize,
    pub(super) ack: AckState,
    /// An RDMA write ahead of order was refused: no further one is looked up ahead of order.
    refused_ahead: bool,
}

impl RxRecovery {
    /// Creates the stream. `data_field_bytes`: the negotiated size; `max_ahead`: messages that the
    /// peer can have in flight.
    pub(crate) fn new(config: &RecoveryConfig, data_field_bytes: u16, max_ahead: usize) -> Self {
        Self {
            send_room: payload_room(data_field_bytes, Opcode::SendRequest),
            write_room: payload_room(data_field_bytes, Opcode::WriteRequest),
            received_ranges: ReceivedRanges::new(config.max_received_ranges),
            ahead: VecDeque::with_capacity(max_ahead),
            ahead_limit: max_ahead,
            ack: AckState::new(config),
            refused_ahead: false,
        }
    }

    /// Returns the numbers of ranges and messages kept ahead of order.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.received_ranges.len(), self.ahead.len())
    }

    /// Notes that the open message is complete.
    pub(crate) fn finished(&mut self, msg_id: u32) {
        self.received_ranges.forget(msg_id);
        self.ack.messages += 1;
    }

    fn room(&self, opcode: Opcode) -> u32 {
        match opcode {
            Opcode::WriteRequest => self.write_room,
            _ => self.send_room,
        }
    }

    /// Returns the range of a frame in its message; `None` if its sender cannot have segmented it
    /// so.
    fn range_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ReceivedRange> {
        let room = self.room(iu.header.opcode);
        let begin = frame.fc.parameter;
        let bytes = iu.payload.len() as u32;
        let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
        let whole = bytes == room || (last && bytes < room && (bytes > 0 || begin == 0));
        let well_cut =
            whole && begin.is_multiple_of(room) && (frame.sof == Sof::I3) == (begin == 0);
        Some(ReceivedRange {
            msg_id: iu.header.msg_id,
            begin,
            end: begin.checked_add(bytes).filter(|_| well_cut)?,
            last,
        })
    }

    /// Reports whether this frame belongs to this message, as far as their fields show.
    fn is_frame_of(&self, message: &RxMessage, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
        let (fc, header) = (&frame.fc, &iu.header);
        let room = self.room(header.opcode);
        let number = (fc.parameter / room).wrapping_sub(message.placed_bytes / room);
        let same_target = match message.kind {
            RxKind::Write {
                target,
                total_bytes,
                ..
            } => target == (header.rmt_va, header.rmt_va_handle) && total_bytes == header.tot_len,
            RxKind::Receive { .. } | RxKind::Discard => true,
        };
        same_target
            && message.opcode == header.opcode
            && message.immediate == immediate(iu)
            && ((message.ox_id, message.seq_id) == (fc.ox_id, fc.seq_id)
                || skips(Check::OpenExchange))
            && (fc.seq_cnt.wrapping_sub(message.next_seq_cnt) == number as u16
                || skips(Check::SequenceCount))
    }

    /// Returns the number of receive descriptors that messages before this one have claimed.
    fn claimed_before(&self, open: Option<&RxMessage>, msg_id: u32) -> u32 {
        let before = open.into_iter().chain(&self.ahead);
        let before = before.take_while(|message| message.msg_id != msg_id);
        before.map(|message| u32::from(claims(&message.kind))).sum()
    }
}

impl RxStream {
    /// Reports whether this is the next message, whole in one frame, without gaps or an open
    /// message. Most messages are.
    #[inline]
    fn is_next_whole(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
        let at = self.position();
        let next = self.message.is_none() && self.expected == iu.header.msg_id;
        let Some(recovery) = self.recovery.as_mut().filter(|_| next) else {
            return false;
        };
        let whole = frame.sof == Sof::I3
            && frame.fc.parameter == 0
            && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
            && iu.payload.len() as u64 <= u64::from(recovery.room(iu.header.opcode));
        let is_next =
            whole && recovery.ahead.is_empty() && !recovery.received_ranges.has_seen_beyond(at);
        if is_next {
            recovery.received_ranges.clear_seen();
            recovery.ack.at = Sequence::reply_to(&frame.fc);
        }
        is_next
    }

    /// Returns the position up to which everything is placed.
    pub(crate) fn position(&self) -> Position {
        let open = self.message.as_ref();
        Position {
            msg_id: open.map_or(self.expected, |message| message.msg_id),
            placed_bytes: open.map_or(0, |message| message.placed_bytes),
        }
    }
}

fn immediate(iu: &IuView<'_>) -> Option<u32> {
    (iu.header.flags & message_request::IMMEDIATE != 0).then_some(iu.header.parameter)
}

/// Reports whether such a message takes a receive descriptor.
fn claims(kind: &RxKind) -> bool {
    match kind {
        RxKind::Receive { .. } => true,
        RxKind::Write { claimed, .. } => *claimed,
        RxKind::Discard => false,
    }
}

impl Engine {
    /// Handles a frame of a send or write on a connection with recovery.
    pub(crate) fn take_recovered<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if ep.rx.is_next_whole(frame, iu) {
            self.take_carried_acknowledgement(now_ns, vi, iu, io);
            self.take_next_frame(now_ns, vi, true, frame, iu, io);
            let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
            self.schedule_acknowledgement(now_ns, vi, iu.payload.len() as u32, again, io);
            return;
        }
        let at = ep.rx.position();
        let Some(range) = ep.rx.recovery.as_ref().and_then(|r| r.range_of(frame, iu)) else {
            self.counters.count(Counter::DropBadIu);
            return;
        };
        if at.is_plausible(range.msg_id) {
            self.take_carried_acknowledgement(now_ns, vi, iu, io);
        }
        let Some(gap) = self.order(now_ns, vi, range, frame, io) else {
            return;
        };
        if at.distance_to(range.msg_id) == 0 && range.begin == at.placed_bytes {
            self.take_in_order(now_ns, vi, frame, iu, io);
        } else {
            match self.place_ahead(vi, at, range, frame, iu, io) {
                Ok(()) => {
                    self.counters.count(Counter::RxFrames);
                    self.counters.count(Counter::AheadPlaced);
                }
                Err(reason) => {
                    self.counters.count(reason);
                    if reason == Counter::DropAheadRefused {
                        self.miss(now_ns, vi, iu.header.rmt_va_handle, io);
                    }
                }
            }
        }
        self.deliver_contiguous(now_ns, vi, io);
        let at_once = gap || frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        self.schedule_acknowledgement(now_ns, vi, iu.payload.len() as u32, at_once, io);
    }

    /// Checks the position of a frame. Returns `None` if it is dropped, else whether there is a new
    /// gap before it.
    pub(super) fn order<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        range: ReceivedRange,
        frame: &FrameView<'_>,
        io: &mut I,
    ) -> Option<bool> {
        let ep = self.endpoint_mut(vi)?;
        let at = ep.rx.position();
        let distance = at.distance_to(range.msg_id);
        let stale = distance > i32::MAX as u32;
        let placed = distance == 0 && range.begin < at.placed_bytes;
        if stale || (placed && !skips(Check::RelativeOffset)) {
            self.counters.count(if stale {
                Counter::DropStaleMessage
            } else {
                Counter::DropDuplicate
            });
            // A sender of such a frame does not know what was received.
            self.schedule_acknowledgement(now_ns, vi, 0, true, io);
            return None;
        }
        if !at.is_plausible(range.msg_id) {
            self.counters.count(Counter::DropOutOfWindow);
            return None;
        }
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(vi, io);
        }
        let recovery = self.endpoint_mut(vi)?.rx.recovery.as_mut()?;
        recovery.ack.at = Sequence::reply_to(&frame.fc);
        Some(recovery.received_ranges.record(at, range))
    }

    fn take_in_order<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(RxStream {
            message,
            recovery: Some(recovery),
            ..
        }) = self.endpoint(vi).map(|ep| &ep.rx)
        else {
            return;
        };
        let opens = match message {
            Some(open) if !recovery.is_frame_of(open, frame, iu) => {
                self.counters.count(Counter::DropSynonym);
                return;
            }
            open => open.is_none(),
        };
        self.take_next_frame(now_ns, vi, opens, frame, iu, io);
    }

    /// Handles the next frame in order. A separate function, because the path without recovery
    /// inlines the same steps.
    #[inline(never)]
    fn take_next_frame<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        opens: bool,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        if !opens || self.start_message(now_ns, vi, frame, iu, io) {
            self.take_fragment(now_ns, vi, frame, iu, io);
        }
    }

    /// Delivers what was received ahead of order and is in order now.
    pub(super) fn deliver_contiguous<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        loop {
            if io.is_failing(vi) {
                return;
            }
            let Some(ep) = self.endpoint_mut(vi) else {
                return;
            };
            let Some(recovery) = ep.rx.recovery.as_mut() else {
                return;
            };
            if ep.rx.message.is_none() {
                let Some(next) = recovery.ahead.pop_front() else {
                    return;
                };
                ep.rx.expected = next.msg_id.wrapping_add(1);
                ep.rx.message = Some(next);
            }
            let Some(message) = ep.rx.message.as_mut() else {
                return;
            };
            let at = Position {
                msg_id: message.msg_id,
                placed_bytes: message.placed_bytes,
            };
            let Some(range) = recovery.received_ranges.take(at) else {
                break;
            };
            let room = recovery.room(message.opcode);
            let frames = range.end.div_ceil(room).max(1) - range.begin / room;
            message.next_seq_cnt = message.next_seq_cnt.wrapping_add(frames as u16);
            message.placed_bytes = range.end;
            if range.last {
                let done = *message;
                self.finish_message(now_ns, vi, &done, io);
            }
        }
        self.start_receive_timer(now_ns, vi);
    }

    /// Places a frame ahead of order, or returns the counter of the reason why it is dropped.
    fn place_ahead<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        at: Position,
        range: ReceivedRange,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> Result<(), Counter> {
        const GONE: Counter = Counter::DropUnknownHandle;
        let Endpoint { params, rx, .. } = self.endpoint_mut(vi).ok_or(GONE)?;
        let recovery = rx.recovery.as_mut().ok_or(GONE)?;
        if recovery.received_ranges.overlaps(&range) && !skips(Check::PlacedAhead) {
            return Err(Counter::DropDuplicate);
        }
        if !recovery.received_ranges.has_room_for(at, &range) {
            return Err(Counter::DropAheadIslands);
        }
        let open = rx.message.as_ref();
        let index = range.msg_id.wrapping_sub(rx.expected) as usize;
        let known = match open.filter(|open| open.msg_id == range.msg_id) {
            Some(open) => Some(open),
            None => recovery.ahead.get(index),
        };
        let message = match known {
            Some(message) if recovery.is_frame_of(message, frame, iu) => *message,
            Some(_) => return Err(Counter::DropSynonym),
            None if index != recovery.ahead.len() => return Err(Counter::DropAheadUnknown),
            None if index >= recovery.ahead_limit => return Err(Counter::DropAheadMessages),
            None => {
                let may_look_up = !(rx.misses.is_watched() || recovery.refused_ahead);
                let kind = claim_ahead(vi, params, iu, may_look_up, io);
                recovery.refused_ahead |= kind == Err(Counter::DropAheadRefused);
                let kind = kind?;
                let number = range.begin / recovery.room(iu.header.opcode);
                let message = RxMessage {
                    msg_id: range.msg_id,
                    ox_id: frame.fc.ox_id,
                    seq_id: frame.fc.seq_id,
                    next_seq_cnt: frame.fc.seq_cnt.wrapping_sub(number as u16),
                    placed_bytes: 0,
                    immediate: immediate(iu),
                    kind,
                    opcode: iu.header.opcode,
                };
                recovery.ahead.push_back(message);
                message
            }
        };
        let placed = match message.kind {
            RxKind::Receive { capacity_bytes } => {
                let before = recovery.claimed_before(rx.message.as_ref(), range.msg_id);
                range.end <= capacity_bytes.min(params.max_transfer_bytes)
                    && io.place_receive(vi, before, range.begin, iu.payload)
            }
            // At Reliable Reception nothing is written after a message that can still fail (VIPL
            // 2.4).
            RxKind::Write { .. }
                if params.level == ReliabilityLevel::ReliableReception
                    && at.distance_to(range.msg_id) > 0 =>
            {
                return Err(Counter::DropAheadWrite);
            }
            RxKind::Write { .. } if range.last => return Err(Counter::DropAheadLastOfWrite),
            RxKind::Write {
                target,
                total_bytes,
                ..
            } => {
                range.end < total_bytes && io.place_rdma_write(vi, target, range.begin, iu.payload)
            }
            RxKind::Discard => false,
        };
        if !placed {
            return Err(Counter::DropAheadUnfit);
        }
        recovery.received_ranges.add(at, range);
        Ok(())
    }
}

/// Returns the destination of a message ahead of order, if nothing about it can fail, and claims
/// its receive descriptor.
fn claim_ahead<I: EngineIo>(
    vi: ViIndex,
    params: &ViParams,
    iu: &IuView<'_>,
    may_look_up: bool,
    io: &mut I,
) -> Result<RxKind, Counter> {
    let header = &iu.header;
    let write = header.opcode == Opcode::WriteRequest;
    if write {
        let fits = header.tot_len <= params.max_transfer_bytes;
        if !(params.rdma_write && fits && may_look_up) {
            return Err(Counter::DropAheadUnfit);
        }
        if !io.check_rdma_write(vi, header) {
            return Err(Counter::DropAheadRefused);
        }
    }
    let claimed = !write || immediate(iu).is_some();
    let mut capacity = 0;
    if claimed {
        let Claim::Ready { capacity_bytes } = io.claim_receive(vi) else {
            return Err(Counter::DropAheadNoDescriptor);
        };
        capacity = capacity_bytes;
    }
    Ok(if write {
        RxKind::Write {
            target: (header.rmt_va, header.rmt_va_handle),
            total_bytes: header.tot_len,
            claimed,
        }
    } else {
        RxKind::Receive {
            capacity_bytes: capacity,
        }
    })
}
