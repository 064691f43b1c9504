//! Descriptors that were sent and are not complete.
//!
//! A send queue completes in posting order (VIPL 6.1), so what is in flight is a queue too:
//! messages of Reliable Reception without a response, reads without all their data, and everything
//! sent after them. Its message IDs are consecutive, so a response's message is found by one
//! subtraction.

use std::collections::VecDeque;

use vi_types::{Operation, OperationKind, ReliabilityLevel, SendWork, Status};

use crate::config::EngineConfig;

/// A descriptor in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlightSend {
    pub(crate) kind: OperationKind,
    /// It waits for no response of its own, only for those before it.
    pub(crate) answered: bool,
    pub(crate) msg_id: u32,
    /// Its open exchange, unless it is answered.
    pub(crate) ox_id: u16,
    /// Its sequence, and the SEQ_CNT of its first frame.
    pub(crate) seq_id: u8,
    pub(crate) first_seq_cnt: u16,
    /// The next SEQ_CNT on that exchange.
    pub(crate) next_seq_cnt: u16,
    pub(crate) length_bytes: u32,
    /// Placed bytes of a read.
    pub(crate) placed_bytes: u32,
}

/// Sends of at least this length are copied by the peer, which receives them sooner than in frames.
pub(super) const RENDEZVOUS_MIN_BYTES: u32 = 4 * 1024;
/// The same, if others are queued behind it. Frames of several messages are written and read at the same time, so that
/// more short messages fit into a second.
pub(super) const RENDEZVOUS_MIN_BYTES_OF_MANY: u32 = 32 * 1024;
/// How many long sends go in frames from a declined one on: the peer may never be able to map the memory.
pub(super) const SENDS_AFTER_DECLINE: u32 = 1000;

/// State of the sends of a connection that the peer copies from memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rendezvous {
    /// The message that is being sent waits for the response to its request, and nothing else is in flight.
    pub(super) waits: bool,
    /// How many long sends go in frames before the next request.
    pub(super) pause: u32,
}

/// The descriptors of a VI that are in flight, oldest first. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct InFlight {
    entries: VecDeque<InFlightSend>,
    limit: usize,
    /// Reads without all their data.
    reads: u32,
    /// Maximum reads that the peer accepts at a time.
    read_limit: u32,
    unanswered: u32,
    /// Those that are sends.
    sends: u32,
    /// When the oldest response times out.
    pub(crate) deadline_ns: u64,
    pub(crate) timer_set: bool,
    /// The next descriptor is deferred until something in flight is answered.
    pub(crate) deferred: bool,
    /// Error bits of the descriptor after those in flight, which failed while it was sent.
    pub(crate) fault: Option<Status>,
}

impl InFlight {
    /// `peer_reads`: number of reads at a time that the peer advertises.
    pub(crate) fn new(level: ReliabilityLevel, config: &EngineConfig, peer_reads: u16) -> Self {
        let limit = match level {
            // Every message is complete as soon as it is sent.
            ReliabilityLevel::UnreliableDelivery => 0,
            ReliabilityLevel::ReliableDelivery | ReliabilityLevel::ReliableReception => {
                config.unanswered()
            }
        };
        Self {
            entries: VecDeque::with_capacity(limit),
            limit,
            reads: 0,
            read_limit: u32::from(peer_reads).max(1),
            unanswered: 0,
            sends: 0,
            deadline_ns: 0,
            timer_set: false,
            deferred: false,
            fault: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how many wait for a response of their own.
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Returns whether all of them are RDMA operations.
    pub(crate) fn are_all_rdma(&self) -> bool {
        self.sends == 0
    }

    /// Returns how many of those are reads.
    pub(crate) fn unanswered_reads(&self) -> u32 {
        self.reads
    }

    /// Reports whether this descriptor must wait for what is in flight: for room, for its fence,
    /// for the peer's limit of reads, or because it, or the one before it, fails in its turn.
    pub(crate) fn defers(&self, work: &SendWork) -> bool {
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

    pub(crate) fn push(&mut self, entry: InFlightSend) {
        debug_assert!(self.entries.len() < self.limit);
        self.reads += u32::from(!entry.answered && entry.kind == OperationKind::Read);
        self.unanswered += u32::from(!entry.answered);
        self.sends += u32::from(entry.kind == OperationKind::Send);
        self.entries.push_back(entry);
    }

    /// Returns the position of the message with this ID.
    pub(crate) fn find(&self, msg_id: u32) -> Option<usize> {
        let first = self.entries.front()?.msg_id;
        let at = msg_id.wrapping_sub(first) as usize;
        (at < self.entries.len()).then_some(at)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&InFlightSend> {
        self.entries.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut InFlightSend> {
        self.entries.get_mut(at)
    }

    /// Returns the oldest one of these kinds that waits for a response.
    pub(crate) fn first_unanswered(&self, fits: impl Fn(OperationKind) -> bool) -> Option<usize> {
        let wanted = |entry: &InFlightSend| !entry.answered && fits(entry.kind);
        self.entries.iter().position(wanted)
    }

    /// Returns the message ID of the newest one that waits for a response.
    pub(crate) fn newest_unanswered(&self) -> Option<u32> {
        let mut newest_first = self.entries.iter().rev();
        newest_first
            .find(|entry| !entry.answered)
            .map(|entry| entry.msg_id)
    }

    /// Marks a message as answered, and returns it if it was waiting for its response.
    pub(crate) fn mark_answered(&mut self, at: usize) -> Option<InFlightSend> {
        let entry = self.entries.get_mut(at).filter(|entry| !entry.answered)?;
        entry.answered = true;
        self.reads -= u32::from(entry.kind == OperationKind::Read);
        self.unanswered -= 1;
        Some(*entry)
    }

    /// Removes the oldest one, answered or not.
    pub(crate) fn pop(&mut self) -> Option<InFlightSend> {
        let entry = self.entries.pop_front()?;
        self.sends -= u32::from(entry.kind == OperationKind::Send);
        if !entry.answered {
            self.reads -= u32::from(entry.kind == OperationKind::Read);
            self.unanswered -= 1;
        }
        Some(entry)
    }

    /// Removes the oldest one if it is answered.
    pub(crate) fn pop_answered(&mut self) -> Option<InFlightSend> {
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

    fn entry(msg_id: u32, kind: OperationKind, answered: bool) -> InFlightSend {
        InFlightSend {
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
        InFlight::new(ReliabilityLevel::ReliableReception, &config, peer_reads)
    }

    #[test]
    fn message_is_found_by_its_id_across_wrap_around() {
        let mut queue = in_flight(8, 1);
        let msg_id = |n: u32| (u32::MAX - 2).wrapping_add(n);
        for n in 0..6 {
            queue.push(entry(msg_id(n), OperationKind::Send, false));
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
    fn answered_messages_are_removed_in_order() {
        let mut queue = in_flight(4, 4);
        queue.push(entry(0, OperationKind::Read, false));
        queue.push(entry(1, OperationKind::Send, true));
        queue.push(entry(2, OperationKind::Write { immediate: false }, false));
        assert_eq!((queue.reads, queue.unanswered()), (1, 2));
        assert_eq!(queue.pop_answered(), None);
        assert!(
            queue.mark_answered(1).is_none(),
            "there is nothing to answer"
        );
        assert!(queue.mark_answered(9).is_none());
        assert_eq!(
            queue.first_unanswered(|kind| kind != OperationKind::Read),
            Some(2)
        );
        assert!(queue.mark_answered(0).is_some());
        assert_eq!((queue.reads, queue.unanswered()), (0, 1));
        assert_eq!(queue.pop_answered().map(|e| e.msg_id), Some(0));
        assert_eq!(queue.pop_answered().map(|e| e.msg_id), Some(1));
        assert_eq!(queue.pop_answered(), None);
        assert_eq!(queue.pop().map(|e| e.msg_id), Some(2));
        assert_eq!((queue.len(), queue.unanswered()), (0, 0));
    }

    #[test]
    fn descriptor_is_deferred_for_room_fence_read_limit_and_its_own_fault() {
        let read = Operation::Read { remote: (0, 0) };
        let send = |fence, fault| work(Operation::Send, fence, fault);
        let mut queue = in_flight(3, 0);
        for anything in [
            send(true, Status::FORMAT),
            work(read, true, Status::PROTECTION),
        ] {
            assert!(!queue.defers(&anything), "nothing is in flight");
        }
        queue.push(entry(0, OperationKind::Send, false));
        assert!(
            !queue.defers(&send(true, Status::OK)),
            "no read to wait for"
        );
        assert!(!queue.defers(&work(read, false, Status::OK)));
        assert!(queue.defers(&send(false, Status::FORMAT)));
        queue.push(entry(1, OperationKind::Read, false));
        assert!(!queue.defers(&send(false, Status::OK)));
        assert!(queue.defers(&send(true, Status::OK)));
        assert!(queue.defers(&work(read, false, Status::OK)), "one at least");
        queue.mark_answered(1);
        assert!(!queue.defers(&send(true, Status::OK)));
        queue.push(entry(2, OperationKind::Send, true));
        assert!(queue.defers(&send(false, Status::OK)), "full");
    }
}
