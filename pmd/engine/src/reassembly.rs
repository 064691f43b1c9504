//! Reassembly of one connection's received messages, in order and, with recovery, ahead of it.
//!
//! Without recovery only the next frame is accepted [FCVI P-10, rule 5]: what is before a later one
//! is lost. With recovery a message ahead is known once a frame of it and of each message before it
//! has arrived, because only then its receive descriptor is known.

use std::collections::VecDeque;
use vi_types::MessageDestination;

use fcvi_frame::fc::{FCtl, FcHeader};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;

use crate::counters::Counter;

mod received_ranges;

use received_ranges::ReceivedRanges;
pub(crate) use received_ranges::{Position, ReceivedRange};

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxMessage {
    pub(crate) msg_id: u32,
    pub(crate) ox_id: u16,
    pub(crate) seq_id: u8,
    pub(crate) next_seq_cnt: u16,
    pub(crate) placed_bytes: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) kind: MessageDestination,
    /// FCVI_SEND_RQST, FCVI_WRITE_RQST or, without further frames, FCVI_RENDEZVOUS_RQST.
    pub(crate) opcode: Opcode,
}

impl RxMessage {
    /// Returns the message that a frame belongs to, whose first frame has this SEQ_CNT.
    #[inline(always)]
    pub(crate) fn of(
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        first_seq_cnt: u16,
        kind: MessageDestination,
    ) -> Self {
        Self {
            msg_id: iu.header.msg_id,
            ox_id: frame.fc.ox_id,
            seq_id: frame.fc.seq_id,
            next_seq_cnt: first_seq_cnt,
            placed_bytes: 0,
            immediate: immediate(iu),
            kind,
            opcode: iu.header.opcode,
        }
    }
}

/// Returns the immediate data of a request.
#[inline]
pub(crate) fn immediate(iu: &IuView<'_>) -> Option<u32> {
    (iu.header.flags & message_request::IMMEDIATE != 0).then_some(iu.header.parameter)
}

/// The bytes of a message in one frame, and the identifiers of that frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) range: ReceivedRange,
    /// The frame is the first one of its sequence.
    pub(crate) first: bool,
    ox_id: u16,
    seq_id: u8,
    seq_cnt: u16,
}

impl Run {
    /// Returns the run of a frame. One that ends beyond 2^32 bytes is too long for any message.
    #[inline(always)]
    pub(crate) fn of(frame: &FrameView<'_>, iu: &IuView<'_>) -> Self {
        let fc = &frame.fc;
        Self {
            range: ReceivedRange {
                msg_id: iu.header.msg_id,
                begin: fc.parameter,
                end: fc.parameter.saturating_add(iu.payload.len() as u32),
                last: fc.f_ctl.contains(FCtl::END_SEQUENCE),
            },
            first: frame.sof == Sof::I3,
            ox_id: fc.ox_id,
            seq_id: fc.seq_id,
            seq_cnt: fc.seq_cnt,
        }
    }
}

/// Place of a run in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is the next one, of the open message or of the next one.
    InOrder,
    /// With recovery: something before it is missing. `new_gap`: which was not known.
    Ahead { new_gap: bool },
    /// It was received before.
    Duplicate(Counter),
    /// Without recovery: something before it is missing, and will not arrive.
    Gap,
    /// It is of no message that is expected.
    Unexpected(Counter),
}

/// Compares the SEQ_CNT and relative offset of a frame with the expected ones of its message.
#[inline]
pub(crate) fn order(
    (seq_cnt, offset_bytes): (u16, u32),
    next_seq_cnt: u16,
    placed_bytes: u32,
) -> Accepted {
    let ahead = seq_cnt.wrapping_sub(next_seq_cnt);
    let repeats_count = ahead > i16::MAX as u16;
    if repeats_count || offset_bytes < placed_bytes {
        return Accepted::Duplicate(Counter::DropDuplicate);
    }
    if ahead == 0 && offset_bytes == placed_bytes {
        Accepted::InOrder
    } else {
        Accepted::Gap
    }
}

/// The received messages of a connection. Allocates at construction only.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// Mexp: the message ID of the next new message.
    pub(crate) expected: u32,
    pub(crate) message: Option<RxMessage>,
    /// Maximum distance of a message ID ahead of the expected one, without recovery.
    window: u32,
    /// A lost message breaks the connection, without recovery.
    reliable: bool,
    /// Present if message recovery is used.
    pub(crate) ahead: Option<Box<Ahead>>,
}

impl Reassembly {
    pub(crate) fn new(expected: u32, window: u32, reliable: bool, ahead: Option<Ahead>) -> Self {
        Self {
            expected,
            message: None,
            window,
            reliable,
            ahead: ahead.map(Box::new),
        }
    }

    /// Returns the place of a run.
    #[inline(always)]
    pub(crate) fn accept(&mut self, run: &Run) -> Accepted {
        if self.ahead.is_some() {
            self.accept_recovered(&run.range)
        } else if run.first {
            self.accept_first(&run.range)
        } else {
            self.accept_next(run)
        }
    }

    /// Returns the place of the first run of a message.
    #[inline(always)]
    fn accept_first(&self, range: &ReceivedRange) -> Accepted {
        if range.begin != 0 {
            return Accepted::Unexpected(Counter::DropBadIu);
        }
        let ahead = self.lost_before(range.msg_id);
        if ahead > i32::MAX as u32 {
            return Accepted::Duplicate(Counter::DropStaleMessage);
        }
        if ahead > self.window {
            return Accepted::Unexpected(Counter::DropOutOfWindow);
        }
        if ahead > 0 || self.message.is_some() {
            Accepted::Gap
        } else {
            Accepted::InOrder
        }
    }

    /// Returns the place of a further run of a message [FCVI P-10, rule 5].
    fn accept_next(&self, run: &Run) -> Accepted {
        let Some(message) = &self.message else {
            let is_loss = self.reliable && self.lost_before(run.range.msg_id) <= self.window;
            return if is_loss {
                Accepted::Gap
            } else {
                Accepted::Unexpected(Counter::DropNoContext)
            };
        };
        if message.msg_id != run.range.msg_id {
            return Accepted::Unexpected(Counter::DropOtherMessage);
        }
        if (message.ox_id, message.seq_id) != (run.ox_id, run.seq_id) {
            return Accepted::Unexpected(Counter::DropSynonym);
        }
        if message.opcode == Opcode::RendezvousRequest {
            return Accepted::Gap;
        }
        if message.kind == MessageDestination::Discard {
            return Accepted::InOrder;
        }
        let frame = (run.seq_cnt, run.range.begin);
        order(frame, message.next_seq_cnt, message.placed_bytes)
    }

    /// Returns the place of a run with recovery.
    fn accept_recovered(&mut self, range: &ReceivedRange) -> Accepted {
        let at = self.position();
        let distance = at.distance_to(range.msg_id);
        if distance > i32::MAX as u32 {
            return Accepted::Duplicate(Counter::DropStaleMessage);
        }
        let is_open = distance == 0;
        if is_open && range.begin < at.placed_bytes {
            return Accepted::Duplicate(Counter::DropDuplicate);
        }
        if !at.is_plausible(range.msg_id) {
            return Accepted::Unexpected(Counter::DropOutOfWindow);
        }
        let ahead = self.ahead.as_mut();
        let new_gap = ahead.is_some_and(|ahead| ahead.received_ranges.record(at, *range));
        if is_open && range.begin == at.placed_bytes {
            Accepted::InOrder
        } else {
            Accepted::Ahead { new_gap }
        }
    }

    /// Returns the number of messages between the last one and this one; more than `i32::MAX` for
    /// an earlier one.
    pub(crate) fn lost_before(&self, msg_id: u32) -> u32 {
        msg_id.wrapping_sub(self.expected)
    }

    /// Returns the position up to which everything is placed.
    pub(crate) fn position(&self) -> Position {
        let open = self.message.as_ref();
        Position {
            msg_id: open.map_or(self.expected, |message| message.msg_id),
            placed_bytes: open.map_or(0, |message| message.placed_bytes),
        }
    }

    /// Opens the next message.
    #[inline(always)]
    pub(crate) fn open(&mut self, message: RxMessage) {
        self.expected = message.msg_id.wrapping_add(1);
        self.message = Some(message);
    }

    /// Sets the destination of the open message.
    pub(crate) fn set_kind(&mut self, kind: MessageDestination) {
        if let Some(message) = self.message.as_mut() {
            message.kind = kind;
        }
    }

    /// Closes the open message, which is complete.
    #[inline(always)]
    pub(crate) fn finish(&mut self, msg_id: u32) {
        self.message = None;
        if let Some(ahead) = &mut self.ahead {
            ahead.received_ranges.forget(msg_id);
        }
    }

    /// Drops everything incomplete: the connection ended.
    pub(crate) fn clear(&mut self) {
        self.message = None;
        self.ahead = None;
    }

    /// Reports whether this is the next message, whole in one frame. Only on a connection without
    /// recovery.
    #[inline(always)]
    pub(crate) fn is_next_in_one_frame(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
        self.message.is_none()
            && self.expected == iu.header.msg_id
            && frame.sof == Sof::I3
            && frame.fc.parameter == 0
            && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
    }

    /// Reports whether this is the next message, whole in one frame, without gaps or an open
    /// message. Most messages are.
    #[inline]
    pub(crate) fn is_next_whole(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
        let at = self.position();
        let next = self.message.is_none() && self.expected == iu.header.msg_id;
        let Some(ahead) = self.ahead.as_mut().filter(|_| next) else {
            return false;
        };
        let whole = frame.sof == Sof::I3
            && frame.fc.parameter == 0
            && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
            && iu.payload.len() as u64 <= u64::from(ahead.room(iu.header.opcode));
        let is_next =
            whole && ahead.messages.is_empty() && !ahead.received_ranges.has_seen_beyond(at);
        if is_next {
            ahead.received_ranges.clear_seen();
        }
        is_next
    }

    /// Reports whether a frame after a gap was received.
    #[inline]
    pub(crate) fn has_gap(&self) -> bool {
        let at = self.position();
        let ahead = self.ahead.as_ref();
        ahead.is_some_and(|ahead| ahead.received_ranges.has_seen_beyond(at))
    }

    /// Opens the next message that was received ahead of order, unless one is open, and adds the
    /// bytes that are in order now. Returns it, and whether it is complete.
    pub(crate) fn advance(&mut self) -> Option<Advance> {
        let ahead = self.ahead.as_mut()?;
        if self.message.is_none() {
            let next = ahead.messages.pop_front()?;
            self.expected = next.msg_id.wrapping_add(1);
            self.message = Some(next);
        }
        let message = self.message.as_mut()?;
        let at = Position {
            msg_id: message.msg_id,
            placed_bytes: message.placed_bytes,
        };
        let Some(range) = ahead.received_ranges.take(at) else {
            return Some(Advance::Incomplete);
        };
        let room = ahead.room(message.opcode);
        let frames = range.end.div_ceil(room).max(1) - range.begin / room;
        message.next_seq_cnt = message.next_seq_cnt.wrapping_add(frames as u16);
        message.placed_bytes = range.end;
        Some(if range.last {
            Advance::Complete(*message)
        } else {
            Advance::Further
        })
    }
}

/// Progress of the open message by what was received ahead of order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Advance {
    /// More of it is in order.
    Further,
    /// All of it is.
    Complete(RxMessage),
    /// Its next bytes are missing.
    Incomplete,
}

/// What was received ahead of order, on a connection with recovery. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Payload bytes of a frame of a send, unless it is the last one.
    send_room: u32,
    write_room: u32,
    pub(crate) received_ranges: ReceivedRanges,
    /// Messages after the open one, each with at least one received frame: their IDs are
    /// consecutive.
    messages: VecDeque<RxMessage>,
    limit: usize,
    /// An RDMA write ahead of order was refused: no further one is looked up ahead of order.
    pub(crate) refused: bool,
}

impl Ahead {
    /// `send_room`, `write_room`: payload bytes of a frame; `limit`: messages that the peer can
    /// have in flight.
    pub(crate) fn new((send_room, write_room): (u32, u32), max_ranges: u32, limit: usize) -> Self {
        Self {
            send_room,
            write_room,
            received_ranges: ReceivedRanges::new(max_ranges),
            messages: VecDeque::with_capacity(limit),
            limit,
            refused: false,
        }
    }

    /// Returns the numbers of ranges and messages kept ahead of order.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.received_ranges.len(), self.messages.len())
    }

    fn room(&self, opcode: Opcode) -> u32 {
        match opcode {
            Opcode::WriteRequest => self.write_room,
            _ => self.send_room,
        }
    }

    /// Reports whether the sender of this frame can have segmented its message so.
    pub(crate) fn is_well_cut(&self, run: &Run, iu: &IuView<'_>) -> bool {
        let room = self.room(iu.header.opcode);
        let (range, bytes) = (&run.range, iu.payload.len() as u32);
        let whole = bytes == room || (range.last && bytes < room && (bytes > 0 || run.first));
        whole
            && range.begin.is_multiple_of(room)
            && run.first == (range.begin == 0)
            && range.begin.checked_add(bytes).is_some()
    }

    /// Reports whether this frame belongs to this message, as far as their fields show.
    pub(crate) fn is_frame_of(&self, message: &RxMessage, fc: &FcHeader, iu: &IuView<'_>) -> bool {
        let header = &iu.header;
        let room = self.room(header.opcode);
        let number = (fc.parameter / room).wrapping_sub(message.placed_bytes / room);
        let same_target = match message.kind {
            MessageDestination::Write {
                target,
                total_bytes,
                ..
            } => target == (header.rmt_va, header.rmt_va_handle) && total_bytes == header.tot_len,
            MessageDestination::Receive { .. } | MessageDestination::Discard => true,
        };
        same_target
            && message.opcode == header.opcode
            && message.immediate == immediate(iu)
            && (message.ox_id, message.seq_id) == (fc.ox_id, fc.seq_id)
            && fc.seq_cnt.wrapping_sub(message.next_seq_cnt) == number as u16
    }
}

/// The message of a frame ahead of order.
pub(crate) enum AheadMessage {
    Known(RxMessage),
    /// The first frame of the next message. Its first SEQ_CNT.
    New(u16),
}

impl Reassembly {
    /// Returns the message of a frame ahead of order, or the counter of the reason why it cannot be
    /// placed.
    pub(crate) fn message_ahead(
        &self,
        run: &Run,
        fc: &FcHeader,
        iu: &IuView<'_>,
    ) -> Result<AheadMessage, Counter> {
        let ahead = self.ahead.as_ref().ok_or(Counter::DropUnknownHandle)?;
        if ahead.received_ranges.overlaps(&run.range) {
            return Err(Counter::DropDuplicate);
        }
        if !ahead
            .received_ranges
            .has_room_for(self.position(), &run.range)
        {
            return Err(Counter::DropAheadRanges);
        }
        let msg_id = run.range.msg_id;
        let index = self.lost_before(msg_id) as usize;
        let open = self.message.as_ref().filter(|open| open.msg_id == msg_id);
        match open.or_else(|| ahead.messages.get(index)) {
            Some(message) if ahead.is_frame_of(message, fc, iu) => {
                Ok(AheadMessage::Known(*message))
            }
            Some(_) => Err(Counter::DropSynonym),
            None if index != ahead.messages.len() => Err(Counter::DropAheadUnknown),
            None if index >= ahead.limit => Err(Counter::DropAheadMessages),
            None => {
                let number = run.range.begin / ahead.room(iu.header.opcode);
                Ok(AheadMessage::New(fc.seq_cnt.wrapping_sub(number as u16)))
            }
        }
    }

    /// Adds a message ahead of order.
    pub(crate) fn add_ahead(&mut self, message: RxMessage) {
        if let Some(ahead) = &mut self.ahead {
            ahead.messages.push_back(message);
        }
    }

    /// Adds bytes that were placed ahead of order.
    pub(crate) fn placed_ahead(&mut self, range: ReceivedRange) {
        let at = self.position();
        if let Some(ahead) = &mut self.ahead {
            ahead.received_ranges.add(at, range);
        }
    }

    /// Returns the number of receive descriptors that messages before this one have claimed.
    pub(crate) fn claimed_before(&self, msg_id: u32) -> u32 {
        let ahead = self.ahead.iter().flat_map(|ahead| &ahead.messages);
        let before = self.message.iter().chain(ahead);
        let before = before.take_while(|message| message.msg_id != msg_id);
        before.map(|message| u32::from(message.kind.claims())).sum()
    }
}
