//! Descriptors that were sent and are not complete.
//!
//! A send queue completes in posting order (VIPL 6.1), so what is in flight is a queue too: a
//! message of Reliable Reception that is not acknowledged, a read without all its data, and
//! whatever was sent behind such a one.

use std::collections::VecDeque;

use vi_engine::{Operation, SendWork, Status};
use vitcp_lite::sequence::is_after;

/// What a descriptor in flight is, as far as its answer is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write { immediate: bool },
    Read,
}

impl Kind {
    pub(super) fn of(work: &SendWork) -> Self {
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
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// It waits for no answer of its own, only for those before it.
    pub(super) answered: bool,
    /// Of its message.
    pub(super) number: u32,
    /// What a read asks for: address and handle.
    pub(super) source: (u64, u32),
    pub(super) length_bytes: u32,
    /// Bytes of a read that are placed.
    pub(super) placed_bytes: u32,
}

/// What a VI has in flight, oldest first.
#[derive(Debug)]
pub(super) struct InFlight {
    entries: VecDeque<Entry>,
    limit: usize,
    unanswered: usize,
    reads: usize,
    /// Reads that the peer takes at a time.
    read_limit: usize,
    /// The descriptor behind what is in flight failed while it was sent: with these bits.
    pub(super) fault: Option<Status>,
    /// It is watched whether an answer is late.
    pub(super) timer_set: bool,
    /// An answer came, or a part of one, since the timer was set.
    pub(super) moved: bool,
}

impl InFlight {
    /// Room for so many, among them so many reads that the peer takes.
    pub(super) fn new(limit: usize, peer_reads: u16) -> Self {
        Self {
            entries: VecDeque::with_capacity(limit),
            limit,
            unanswered: 0,
            reads: 0,
            read_limit: usize::from(peer_reads).max(1),
            fault: None,
            timer_set: false,
            moved: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Is there room for one more behind `planned` others?
    pub(super) fn has_room(&self, planned: usize) -> bool {
        self.entries.len() + planned < self.limit
    }

    /// May another read be asked for behind `planned` others?
    pub(super) fn takes_read(&self, planned: usize) -> bool {
        self.reads + planned < self.read_limit
    }

    pub(super) fn reads(&self) -> usize {
        self.reads
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.unanswered += usize::from(!entry.answered);
        self.reads += usize::from(!entry.answered && entry.kind == Kind::Read);
        self.entries.push_back(entry);
    }

    pub(super) fn get(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)
    }

    /// So many bytes of a read are placed. `None` if there is none.
    pub(super) fn place(&mut self, at: usize, bytes: u32) -> Option<()> {
        let entry = self.entries.get_mut(at)?;
        entry.placed_bytes += bytes;
        self.moved = true;
        Some(())
    }

    /// Where the message with this number stands.
    pub(super) fn find(&self, number: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.number == number)
    }

    pub(super) fn answer(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at)
            && !core::mem::replace(&mut entry.answered, true)
        {
            self.moved = true;
            self.unanswered -= 1;
            self.reads -= usize::from(entry.kind == Kind::Read);
        }
    }

    /// Sends and writes up to this message are placed.
    pub(super) fn acknowledge(&mut self, number: u32) {
        for at in 0..self.entries.len() {
            match self.entries.get(at) {
                Some(entry) if is_after(entry.number, number) => break,
                Some(entry) if entry.kind != Kind::Read => self.answer(at),
                Some(_) | None => {}
            }
        }
    }

    /// Takes the oldest one if it waits for nothing any more.
    pub(super) fn pop_answered(&mut self) -> Option<Entry> {
        let answered = self.entries.front().is_some_and(|entry| entry.answered);
        if answered {
            self.entries.pop_front()
        } else {
            None
        }
    }

    /// Takes the oldest one.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.unanswered -= usize::from(!entry.answered);
        self.reads -= usize::from(!entry.answered && entry.kind == Kind::Read);
        Some(entry)
    }

    /// Where the oldest one stands that waits for an answer of its own.
    pub(super) fn first_unanswered(&self) -> Option<usize> {
        self.entries.iter().position(|entry| !entry.answered)
    }
}
