//! Descriptors in flight: sent and not complete.
//!
//! A send queue completes in posting order (VIPL 6.1), so the descriptors in flight are a queue, too: a
//! message of Reliable Reception that is not acknowledged, a read whose response is incomplete, and all
//! that was sent after such a one.

use alloc::collections::VecDeque;
use vi_types::{OperationKind, Status};

use crate::sequence::is_after;

/// A descriptor in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentDescriptor {
    pub(crate) kind: OperationKind,
    /// Acknowledged, or its response is complete; it waits only for the descriptors before it.
    pub(crate) answered: bool,
    /// Message number.
    pub(crate) number: u32,
    /// Of a read: remote address and handle.
    pub(crate) source: (u64, u32),
    pub(crate) length_bytes: u32,
    /// Of a read: bytes placed.
    pub(crate) placed_bytes: u32,
}

/// The descriptors in flight of a VI, oldest first.
#[derive(Debug)]
pub(crate) struct InFlight {
    entries: VecDeque<SentDescriptor>,
    limit: usize,
    unanswered: usize,
    reads: usize,
    /// The peer's limit of outstanding reads.
    read_limit: usize,
    /// Error status of the descriptor after those in flight, which failed during its send.
    pub(crate) fault: Option<Status>,
    /// The response timer is set.
    pub(crate) timer_set: bool,
    /// A response, or a part of one, was received since the timer was set.
    pub(crate) progressed: bool,
}

impl InFlight {
    /// Creates a queue for `limit` descriptors and the peer's limit of outstanding reads, at least 1.
    pub(crate) fn new(limit: usize, peer_reads: u16) -> Self {
        Self {
            entries: VecDeque::with_capacity(limit),
            limit,
            unanswered: 0,
            reads: 0,
            read_limit: usize::from(peer_reads).max(1),
            fault: None,
            timer_set: false,
            progressed: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Checks whether there is space for one more after `planned` others.
    pub(crate) fn has_space(&self, planned: usize) -> bool {
        self.entries.len() + planned < self.limit
    }

    /// Checks whether the peer takes one more read after `planned` others.
    pub(crate) fn takes_read(&self, planned: usize) -> bool {
        self.reads + planned < self.read_limit
    }

    pub(crate) fn reads(&self) -> usize {
        self.reads
    }

    pub(crate) fn push(&mut self, entry: SentDescriptor) {
        self.unanswered += usize::from(!entry.answered);
        self.reads += usize::from(!entry.answered && entry.kind == OperationKind::Read);
        self.entries.push_back(entry);
    }

    pub(crate) fn get(&self, at: usize) -> Option<&SentDescriptor> {
        self.entries.get(at)
    }

    /// Counts placed bytes of the read at index `at`; `None` if there is none.
    pub(crate) fn note_placed(&mut self, at: usize, bytes: u32) -> Option<()> {
        let entry = self.entries.get_mut(at)?;
        entry.placed_bytes += bytes;
        self.progressed = true;
        Some(())
    }

    /// Returns the index of the message with this number.
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.number == number)
    }

    pub(crate) fn mark_answered(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at)
            && !core::mem::replace(&mut entry.answered, true)
        {
            self.progressed = true;
            self.unanswered -= 1;
            self.reads -= usize::from(entry.kind == OperationKind::Read);
        }
    }

    /// Marks sends and writes up to this message number as acknowledged.
    pub(crate) fn acknowledge(&mut self, number: u32) {
        for at in 0..self.entries.len() {
            match self.entries.get(at) {
                Some(entry) if is_after(entry.number, number) => break,
                Some(entry) if entry.kind != OperationKind::Read => self.mark_answered(at),
                Some(_) | None => {}
            }
        }
    }

    /// Removes and returns the oldest descriptor if it is answered.
    pub(crate) fn pop_answered(&mut self) -> Option<SentDescriptor> {
        let answered = self.entries.front().is_some_and(|entry| entry.answered);
        if answered {
            self.entries.pop_front()
        } else {
            None
        }
    }

    /// Removes and returns the oldest descriptor.
    pub(crate) fn pop(&mut self) -> Option<SentDescriptor> {
        let entry = self.entries.pop_front()?;
        self.unanswered -= usize::from(!entry.answered);
        self.reads -= usize::from(!entry.answered && entry.kind == OperationKind::Read);
        Some(entry)
    }

    /// Returns the index of the oldest descriptor that is not answered.
    pub(crate) fn first_unanswered(&self) -> Option<usize> {
        self.entries.iter().position(|entry| !entry.answered)
    }
}
