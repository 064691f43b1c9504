//! Descriptors that were sent and are not complete.
//!
//! A send queue completes in posting order (VIPL 6.1), so what is in flight is a
//! queue too: a message of Reliable Reception without its response, a read
//! without all its data, and whatever was sent behind such a one. Message IDs in
//! it are consecutive, which makes a response's message one subtraction away.

use std::collections::VecDeque;

use crate::config::EngineConfig;
use crate::endpoint::Level;
use crate::host::{Operation, SendWork, Status};

/// What a descriptor in flight is, as far as its answer is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write { immediate: bool },
    Read,
}

impl Kind {
    pub(crate) fn of(work: &SendWork) -> Self {
        match work.operation {
            Operation::Send => Self::Send,
            Operation::Write { .. } => Self::Write {
                immediate: work.immediate.is_some(),
            },
            Operation::Read { .. } => Self::Read,
        }
    }
}

/// A descriptor in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// It waits for no answer of its own, only for those before it.
    pub(crate) answered: bool,
    pub(crate) msg_id: u32,
    /// Its open exchange, unless it is answered.
    pub(crate) ox_id: u16,
    /// Its sequence, and the SEQ_CNT of its first frame.
    pub(crate) seq_id: u8,
    pub(crate) first_seq_cnt: u16,
    /// The SEQ_CNT that comes next on that exchange.
    pub(crate) next_seq_cnt: u16,
    pub(crate) length_bytes: u32,
    /// Bytes of a read that are placed.
    pub(crate) placed_bytes: u32,
}

/// What a VI has in flight, oldest first. Allocates nothing after it was made.
#[derive(Debug)]
pub(crate) struct InFlight {
    entries: VecDeque<Entry>,
    limit: usize,
    /// Reads without all their data.
    reads: u32,
    /// How many of those the peer takes.
    read_limit: u32,
    unanswered: u32,
    /// When the oldest answer is late.
    pub(crate) deadline_ns: u64,
    pub(crate) timer_set: bool,
    /// The send queue stands still until something here is answered.
    pub(crate) holding: bool,
    /// The descriptor behind what is in flight failed while it was sent: with these bits.
    pub(crate) fault: Option<Status>,
}

impl InFlight {
    /// `peer_reads`: how many reads the peer says that it takes at a time.
    pub(crate) fn new(level: Level, config: &EngineConfig, peer_reads: u16) -> Self {
        let limit = match level {
            // Every message is complete as soon as it is sent.
            Level::UnreliableDelivery => 0,
            Level::ReliableDelivery | Level::ReliableReception => config.unanswered(),
        };
        Self {
            entries: VecDeque::with_capacity(limit),
            limit,
            reads: 0,
            read_limit: u32::from(peer_reads).max(1),
            unanswered: 0,
            deadline_ns: 0,
            timer_set: false,
            holding: false,
            fault: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many wait for an answer of their own.
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// How many of those are reads.
    pub(crate) fn unanswered_reads(&self) -> u32 {
        self.reads
    }

    /// Must this descriptor wait for what is in flight: for room, for its fence, for the
    /// peer's reads, or because it, or the one before it, fails when its turn comes?
    pub(crate) fn holds(&self, work: &SendWork) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let is_read = matches!(work.operation, Operation::Read { .. });
        self.fault.is_some()
            || !work.fault.is_ok()
            || self.entries.len() >= self.limit
            || (work.fence && self.reads > 0)
            || (is_read && self.reads >= self.read_limit)
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        debug_assert!(self.entries.len() < self.limit);
        self.reads += u32::from(!entry.answered && entry.kind == Kind::Read);
        self.unanswered += u32::from(!entry.answered);
        self.entries.push_back(entry);
    }

    /// Where the message with this ID stands.
    pub(crate) fn find(&self, msg_id: u32) -> Option<usize> {
        let first = self.entries.front()?.msg_id;
        let at = msg_id.wrapping_sub(first) as usize;
        (at < self.entries.len()).then_some(at)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Entry> {
        self.entries.get_mut(at)
    }

    /// The oldest one that waits for an answer and is such a one.
    pub(crate) fn first_unanswered(&self, fits: impl Fn(Kind) -> bool) -> Option<usize> {
        let wanted = |entry: &Entry| !entry.answered && fits(entry.kind);
        self.entries.iter().position(wanted)
    }

    /// The answer is here; returns what was waiting for it.
    pub(crate) fn answer(&mut self, at: usize) -> Option<Entry> {
        let entry = self.entries.get_mut(at).filter(|entry| !entry.answered)?;
        entry.answered = true;
        self.reads -= u32::from(entry.kind == Kind::Read);
        self.unanswered -= 1;
        Some(*entry)
    }

    /// Takes the oldest one off, answered or not.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        if !entry.answered {
            self.reads -= u32::from(entry.kind == Kind::Read);
            self.unanswered -= 1;
        }
        Some(entry)
    }

    /// Takes the oldest one off if nothing is wanted of it any more.
    pub(crate) fn pop_answered(&mut self) -> Option<Entry> {
        if self.entries.front()?.answered {
            self.pop()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::net::config;

    fn entry(msg_id: u32, kind: Kind, answered: bool) -> Entry {
        Entry {
            kind,
            answered,
            msg_id,
            ox_id: 0,
            seq_id: 0,
            first_seq_cnt: 0,
            next_seq_cnt: 0,
            length_bytes: 0,
            placed_bytes: 0,
        }
    }

    fn work(operation: Operation, fence: bool, fault: Status) -> SendWork {
        SendWork {
            length_bytes: 0,
            immediate: None,
            operation,
            fence,
            fault,
        }
    }

    fn in_flight(limit: u32, peer_reads: u16) -> InFlight {
        let mut config = config(0);
        config.max_unanswered = limit;
        InFlight::new(Level::ReliableReception, &config, peer_reads)
    }

    #[test]
    fn a_message_is_found_by_its_id_around_the_end_of_the_numbers() {
        let mut queue = in_flight(8, 1);
        let msg_id = |n: u32| (u32::MAX - 2).wrapping_add(n);
        for n in 0..6 {
            queue.push(entry(msg_id(n), Kind::Send, false));
        }
        for n in 0..6 {
            assert_eq!(queue.find(msg_id(n)), Some(n as usize));
        }
        for msg_id in [3, u32::MAX - 3, 1 << 31] {
            assert_eq!(queue.find(msg_id), None);
        }
        queue.pop();
        assert_eq!(queue.find(u32::MAX - 2), None);
        assert_eq!(in_flight(8, 1).find(0), None);
    }

    #[test]
    fn what_is_answered_leaves_in_order() {
        let mut queue = in_flight(4, 4);
        queue.push(entry(0, Kind::Read, false));
        queue.push(entry(1, Kind::Send, true));
        queue.push(entry(2, Kind::Write { immediate: false }, false));
        assert_eq!((queue.reads, queue.unanswered()), (1, 2));
        assert_eq!(queue.pop_answered(), None);
        assert!(queue.answer(1).is_none(), "there is nothing to answer");
        assert!(queue.answer(9).is_none());
        assert_eq!(queue.first_unanswered(|kind| kind != Kind::Read), Some(2));
        assert!(queue.answer(0).is_some());
        assert_eq!((queue.reads, queue.unanswered()), (0, 1));
        assert_eq!(queue.pop_answered().map(|e| e.msg_id), Some(0));
        assert_eq!(queue.pop_answered().map(|e| e.msg_id), Some(1));
        assert_eq!(queue.pop_answered(), None);
        assert_eq!(queue.pop().map(|e| e.msg_id), Some(2));
        assert_eq!((queue.len(), queue.unanswered()), (0, 0));
    }

    #[test]
    fn a_descriptor_waits_for_room_its_fence_the_peers_reads_and_its_own_fault() {
        let read = Operation::Read { remote: (0, 0) };
        let send = |fence, fault| work(Operation::Send, fence, fault);
        let mut queue = in_flight(3, 0);
        for anything in [
            send(true, Status::FORMAT),
            work(read, true, Status::PROTECTION),
        ] {
            assert!(!queue.holds(&anything), "nothing is in flight");
        }
        queue.push(entry(0, Kind::Send, false));
        assert!(!queue.holds(&send(true, Status::OK)), "no read to wait for");
        assert!(!queue.holds(&work(read, false, Status::OK)));
        assert!(queue.holds(&send(false, Status::FORMAT)));
        queue.push(entry(1, Kind::Read, false));
        assert!(!queue.holds(&send(false, Status::OK)));
        assert!(queue.holds(&send(true, Status::OK)));
        assert!(queue.holds(&work(read, false, Status::OK)), "one at least");
        queue.answer(1);
        assert!(!queue.holds(&send(true, Status::OK)));
        queue.push(entry(2, Kind::Send, true));
        assert!(queue.holds(&send(false, Status::OK)), "full");
    }
}
