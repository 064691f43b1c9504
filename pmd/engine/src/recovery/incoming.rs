//! Frames of sends and writes, in order and ahead of it.
//!
//! In order they go the way of every other connection; ahead of it they are placed if nothing
//! about them can fail, and dropped otherwise. Messages ahead are known as far as a frame of
//! each came, for only then it is known which receive descriptor is whose. The last frame of
//! an RDMA write waits for everything before it: who polls memory sees the last bytes last. At
//! Reliable Reception all of it waits for the messages before it, because nothing is processed
//! after one that fails (VIPL 2.4); a receive descriptor that is filled ahead is flushed then.

use std::collections::VecDeque;

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;

use super::RecoveryConfig;
use super::acknowledge::Telling;
use super::islands::{Islands, Position, Run};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Endpoint, Level, Phase, RxKind, RxMessage, RxStream, ViParams};
use crate::engine::{Engine, ViIndex};
use crate::host::{Claim, Host};
use crate::synonym::{Check, skips};
use crate::transmit::payload_room;

/// The receiving side of a connection with recovery. Allocates nothing after it was made.
#[derive(Debug)]
pub(crate) struct RxRecovery {
    /// Bytes of a frame of a send or write, unless it is the last one.
    send_room: u32,
    write_room: u32,
    pub(super) islands: Islands,
    /// Messages behind the open one, each of which has a frame here: without a gap between
    /// their numbers.
    pub(super) ahead: VecDeque<RxMessage>,
    ahead_limit: usize,
    pub(super) telling: Telling,
    /// An RDMA write ahead of order was refused: no other one is looked up ahead of order.
    missed_ahead: bool,
}

impl RxRecovery {
    /// `data_field_bytes`: what both ends agreed on; `max_ahead`: messages that the peer may
    /// have in flight.
    pub(crate) fn new(config: &RecoveryConfig, data_field_bytes: u16, max_ahead: usize) -> Self {
        Self {
            send_room: payload_room(data_field_bytes, Opcode::SendRequest),
            write_room: payload_room(data_field_bytes, Opcode::WriteRequest),
            islands: Islands::new(config.max_islands),
            ahead: VecDeque::with_capacity(max_ahead),
            ahead_limit: max_ahead,
            telling: Telling::new(config),
            missed_ahead: false,
        }
    }

    /// Runs and messages that are kept ahead of order.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.islands.len(), self.ahead.len())
    }

    /// The open message is whole.
    pub(crate) fn finished(&mut self, msg_id: u32) {
        self.islands.forget(msg_id);
        self.telling.messages += 1;
    }

    fn room(&self, opcode: Opcode) -> u32 {
        match opcode {
            Opcode::WriteRequest => self.write_room,
            _ => self.send_room,
        }
    }

    /// The place of a frame in its message; `None` if its sender cannot have cut it so.
    fn run_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<Run> {
        let room = self.room(iu.header.opcode);
        let begin = frame.fc.parameter;
        let bytes = iu.payload.len() as u32;
        let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
        let whole = bytes == room || (last && bytes < room && (bytes > 0 || begin == 0));
        let well_cut =
            whole && begin.is_multiple_of(room) && (frame.sof == Sof::I3) == (begin == 0);
        Some(Run {
            msg_id: iu.header.msg_id,
            begin,
            end: begin.checked_add(bytes).filter(|_| well_cut)?,
            last,
        })
    }

    /// Is this a frame of this message, so far as both tell?
    fn is_of(&self, message: &RxMessage, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
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

    /// Receive descriptors that messages in front of this one have claimed.
    fn claimed_before(&self, open: Option<&RxMessage>, msg_id: u32) -> u32 {
        let before = open.into_iter().chain(&self.ahead);
        let before = before.take_while(|message| message.msg_id != msg_id);
        before.map(|message| u32::from(claims(&message.kind))).sum()
    }
}

impl RxStream {
    /// Is this the next message, in one frame, while nothing is missing and nothing open? Most
    /// are.
    #[inline]
    fn takes_whole(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
        let at = self.position();
        let next = self.message.is_none() && self.expected == iu.header.msg_id;
        let Some(recovery) = self.recovery.as_mut().filter(|_| next) else {
            return false;
        };
        let whole = frame.sof == Sof::I3
            && frame.fc.parameter == 0
            && frame.fc.f_ctl.contains(FCtl::END_SEQUENCE)
            && iu.payload.len() as u64 <= u64::from(recovery.room(iu.header.opcode));
        let takes = whole && recovery.ahead.is_empty() && !recovery.islands.saw_beyond(at);
        if takes {
            recovery.islands.goes_on_whole();
            recovery.telling.at = Sequence::answering(&frame.fc);
        }
        takes
    }

    /// How far messages are whole.
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

/// Does such a message take a receive descriptor?
fn claims(kind: &RxKind) -> bool {
    match kind {
        RxKind::Receive { .. } => true,
        RxKind::Write { claimed, .. } => *claimed,
        RxKind::Discard => false,
    }
}

impl Engine {
    /// A frame of a send or write on a connection with recovery.
    pub(crate) fn take_recovered<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if ep.rx.takes_whole(frame, iu) {
            self.take_carried_acknowledgement(now_ns, vi, iu, host);
            self.take_next(now_ns, vi, true, frame, iu, host);
            let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
            self.owe_acknowledgement(now_ns, vi, iu.payload.len() as u32, again, host);
            return;
        }
        let at = ep.rx.position();
        let Some(run) = ep.rx.recovery.as_ref().and_then(|r| r.run_of(frame, iu)) else {
            self.counters.count(Counter::DropBadIu);
            return;
        };
        if at.may_come(run.msg_id) {
            self.take_carried_acknowledgement(now_ns, vi, iu, host);
        }
        let Some(gap) = self.order(now_ns, vi, run, frame, host) else {
            return;
        };
        if at.distance_to(run.msg_id) == 0 && run.begin == at.placed_bytes {
            self.take_in_order(now_ns, vi, frame, iu, host);
        } else {
            match self.place_ahead(vi, at, run, frame, iu, host) {
                Ok(()) => {
                    self.counters.count(Counter::RxFrames);
                    self.counters.count(Counter::AheadPlaced);
                }
                Err(reason) => {
                    self.counters.count(reason);
                    if reason == Counter::DropAheadRefused {
                        self.miss(now_ns, vi, iu.header.rmt_va_handle, host);
                    }
                }
            }
        }
        self.go_on(now_ns, vi, host);
        let at_once = gap || frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        self.owe_acknowledgement(now_ns, vi, iu.payload.len() as u32, at_once, host);
    }

    /// Where a frame stands: `None` if it is dropped, else whether there is a new gap in front
    /// of it.
    pub(super) fn order<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        run: Run,
        frame: &FrameView<'_>,
        host: &mut H,
    ) -> Option<bool> {
        let ep = self.endpoint_mut(vi)?;
        let at = ep.rx.position();
        let distance = at.distance_to(run.msg_id);
        let stale = distance > i32::MAX as u32;
        let placed = distance == 0 && run.begin < at.placed_bytes;
        if stale || (placed && !skips(Check::RelativeOffset)) {
            self.counters.count(if stale {
                Counter::DropStaleMessage
            } else {
                Counter::DropDuplicate
            });
            // Whoever sends that does not know how far we are.
            self.owe_acknowledgement(now_ns, vi, 0, true, host);
            return None;
        }
        if !at.may_come(run.msg_id) {
            self.counters.count(Counter::DropOutOfWindow);
            return None;
        }
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(vi, host);
        }
        let recovery = self.endpoint_mut(vi)?.rx.recovery.as_mut()?;
        recovery.telling.at = Sequence::answering(&frame.fc);
        Some(recovery.islands.saw(at, run))
    }

    fn take_in_order<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
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
            Some(open) if !recovery.is_of(open, frame, iu) => {
                self.counters.count(Counter::DropSynonym);
                return;
            }
            open => open.is_none(),
        };
        self.take_next(now_ns, vi, opens, frame, iu, host);
    }

    /// The frame that is next in order. Apart from the path without recovery, into which the
    /// same steps are built whole.
    #[inline(never)]
    fn take_next<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        opens: bool,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        if !opens || self.start_message(now_ns, vi, frame, iu, host) {
            self.take_fragment(now_ns, vi, frame, iu, host);
        }
    }

    /// What came ahead of order and is in order now.
    pub(super) fn go_on<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        loop {
            if host.is_failing(vi) {
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
            let Some(run) = recovery.islands.take(at) else {
                break;
            };
            let room = recovery.room(message.opcode);
            let frames = run.end.div_ceil(room).max(1) - run.begin / room;
            message.next_seq_cnt = message.next_seq_cnt.wrapping_add(frames as u16);
            message.placed_bytes = run.end;
            if run.last {
                let done = *message;
                self.finish_message(now_ns, vi, &done, host);
            }
        }
        self.watch_message(now_ns, vi);
    }

    /// Places a frame ahead of order; the counter says why it is not.
    fn place_ahead<H: Host>(
        &mut self,
        vi: ViIndex,
        at: Position,
        run: Run,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) -> Result<(), Counter> {
        const GONE: Counter = Counter::DropUnknownHandle;
        let Endpoint { params, rx, .. } = self.endpoint_mut(vi).ok_or(GONE)?;
        let recovery = rx.recovery.as_mut().ok_or(GONE)?;
        if recovery.islands.has(&run) && !skips(Check::PlacedAhead) {
            return Err(Counter::DropDuplicate);
        }
        if !recovery.islands.has_room_for(at, &run) {
            return Err(Counter::DropAheadIslands);
        }
        let open = rx.message.as_ref();
        let place = run.msg_id.wrapping_sub(rx.expected) as usize;
        let known = match open.filter(|open| open.msg_id == run.msg_id) {
            Some(open) => Some(open),
            None => recovery.ahead.get(place),
        };
        let message = match known {
            Some(message) if recovery.is_of(message, frame, iu) => *message,
            Some(_) => return Err(Counter::DropSynonym),
            None if place != recovery.ahead.len() => return Err(Counter::DropAheadUnknown),
            None if place >= recovery.ahead_limit => return Err(Counter::DropAheadMessages),
            None => {
                let may_look_up = !(rx.misses.is_watched() || recovery.missed_ahead);
                let kind = claim_ahead(vi, params, iu, may_look_up, host);
                recovery.missed_ahead |= kind == Err(Counter::DropAheadRefused);
                let kind = kind?;
                let number = run.begin / recovery.room(iu.header.opcode);
                let message = RxMessage {
                    msg_id: run.msg_id,
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
                let before = recovery.claimed_before(rx.message.as_ref(), run.msg_id);
                run.end <= capacity_bytes.min(params.max_transfer_bytes)
                    && host.place_receive(vi, before, run.begin, iu.payload)
            }
            // At Reliable Reception nothing is written behind what may fail yet (VIPL 2.4).
            RxKind::Write { .. }
                if params.level == Level::ReliableReception && at.distance_to(run.msg_id) > 0 =>
            {
                return Err(Counter::DropAheadWrite);
            }
            RxKind::Write { .. } if run.last => return Err(Counter::DropAheadLastOfWrite),
            RxKind::Write {
                target,
                total_bytes,
                ..
            } => run.end < total_bytes && host.place_rdma_write(vi, target, run.begin, iu.payload),
            RxKind::Discard => false,
        };
        if !placed {
            return Err(Counter::DropAheadUnfit);
        }
        recovery.islands.add(at, run);
        Ok(())
    }
}

/// What a message ahead of order is for, if nothing about it can fail: its receive descriptor
/// is claimed then.
fn claim_ahead<H: Host>(
    vi: ViIndex,
    params: &ViParams,
    iu: &IuView<'_>,
    may_look_up: bool,
    host: &mut H,
) -> Result<RxKind, Counter> {
    let header = &iu.header;
    let write = header.opcode == Opcode::WriteRequest;
    if write {
        let fits = header.tot_len <= params.max_transfer_bytes;
        if !(params.rdma_write && fits && may_look_up) {
            return Err(Counter::DropAheadUnfit);
        }
        if !host.check_rdma_write(vi, header) {
            return Err(Counter::DropAheadRefused);
        }
    }
    let claimed = !write || immediate(iu).is_some();
    let mut capacity = 0;
    if claimed {
        let Claim::Ready { capacity_bytes } = host.claim_receive(vi) else {
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
