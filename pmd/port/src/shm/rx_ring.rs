//! The consumer of a ring: frames are lent in place and returned in any order.

use super::buffer_origin;
use super::layout::{MAX_FRAME_BYTES, is_published};
use super::slots::Slots;
use crate::mbuf::Mbuf;
use crate::sync::mapped::Ordering;

/// Result of polling the next slot of a ring.
#[derive(Debug)]
pub(super) enum Polled {
    /// Not published yet.
    Empty,
    /// A frame, lent to the caller.
    Frame(Mbuf),
    /// A slot without a frame, already released.
    Void,
    /// A slot with an invalid length, already released.
    BadLength,
}

/// The consumer of one ring.
///
/// `shared_head <= freed <= next <= freed + slots`. Slots that were returned before
/// an earlier one are marked in `early`.
#[derive(Debug)]
pub(super) struct RxRing {
    slots: Slots,
    next: u64,
    freed: u64,
    shared_head: u64,
    quarter: u64,
    early_count: u32,
    early: Box<[bool]>,
}

impl RxRing {
    /// Creates the consumer's end of a ring in a file that this station created.
    pub(super) fn new(slots: Slots) -> Self {
        let count = slots.count();
        Self {
            slots,
            next: 0,
            freed: 0,
            shared_head: 0,
            quarter: count / 4,
            early_count: 0,
            early: vec![false; count as usize].into_boxed_slice(),
        }
    }

    /// Takes the next slot, if it is published.
    #[inline]
    pub(super) fn poll(&mut self, cookie_base: u32) -> Polled {
        let position = self.next;
        // Acquire, partner: the Release store in `TxRing::publish`. The length comes
        // with the flag, so that it is read once.
        self.slots.prefetch_second_line(position);
        let word = self.slots.flag(position).load(Ordering::Acquire);
        // A correct producer never laps the consumer; if one does, a slot must not be
        // lent twice.
        if !is_published(word, position) || position - self.freed == self.slots.count() {
            return Polled::Empty;
        }
        self.next += 1;
        let len_bytes = word as u32;
        if len_bytes.wrapping_sub(1) >= MAX_FRAME_BYTES as u32 {
            self.give_back(position as u32);
            return if len_bytes == 0 {
                Polled::Void
            } else {
                Polled::BadLength
            };
        }
        // SAFETY: the producer published this slot and does not write it until the
        // head passes it; `next` has moved on, so it is lent once; the length is in
        // bounds; receive rings are unmapped only with the port.
        Polled::Frame(unsafe {
            self.slots.mbuf(
                position,
                len_bytes,
                cookie_base | buffer_origin::truncate(position),
            )
        })
    }

    /// Returns whether the next slot is published.
    pub(super) fn has_next(&self) -> bool {
        // Acquire, partner: the Release store in `TxRing::publish`.
        is_published(
            self.slots.flag(self.next).load(Ordering::Acquire),
            self.next,
        )
    }

    /// Returns the position after the last frame that is published now.
    pub(super) fn end(&self) -> u64 {
        let mut end = self.next;
        // Acquire, partner: the Release store in `TxRing::publish`.
        while end - self.next < self.slots.count()
            && is_published(self.slots.flag(end).load(Ordering::Acquire), end)
        {
            end += 1;
        }
        end
    }

    /// Returns whether all frames before the position were received.
    pub(super) fn has_reached(&self, position: u64) -> bool {
        self.next >= position
    }

    /// Returns whether the file was found shorter than the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.slots.is_lost()
    }

    /// Returns whether a slot is published while the one before it is not, which no producer does: the
    /// consumer would never reach it.
    pub(super) fn is_damaged(&self) -> bool {
        if self.next + 1 - self.freed >= self.slots.count() {
            return false;
        }
        // Acquire, partner: the Release store in `TxRing::publish`: if the later slot is seen
        // published, the earlier one is too.
        let is_published = |position| {
            let word = self.slots.flag(position).load(Ordering::Acquire);
            is_published(word, position)
        };
        is_published(self.next + 1) && !is_published(self.next)
    }

    /// Discards the slots that were published and not taken; the next producer resumes there.
    pub(super) fn discard(&mut self) {
        for position in self.next..self.freed + self.slots.count() {
            // Relaxed: the next producer reads it after the station's state.
            self.slots.flag(position).store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether frames are lent, whose memory must stay mapped.
    pub(super) fn has_loans(&self) -> bool {
        self.freed != self.next
    }

    /// Returns whether the buffer is at the position in its cookie. One of another port may have the same cookie.
    #[inline]
    pub(super) fn owns(&self, mbuf: &Mbuf) -> bool {
        let position = buffer_origin::position_bits(mbuf.cookie());
        self.slots.is_at(u64::from(position), mbuf)
    }

    /// Takes a lent slot back; returns false if it is not lent.
    #[inline]
    pub(super) fn give_back(&mut self, position: u32) -> bool {
        let position = buffer_origin::expand(position, self.freed as u32);
        if position == self.freed as u32 && self.early_count == 0 && self.freed != self.next {
            self.freed += 1;
        } else if !self.give_back_early(position) {
            return false;
        }
        if self.freed - self.shared_head >= self.quarter {
            self.publish_head();
        }
        true
    }

    /// Marks a slot as returned, then releases all marked slots that are next in order.
    fn give_back_early(&mut self, position: u32) -> bool {
        let ahead = u64::from(position.wrapping_sub(self.freed as u32));
        let index = self.slots.index(u64::from(position));
        if ahead >= self.next - self.freed || self.early[index] {
            return false;
        }
        self.early[index] = true;
        self.early_count += 1;
        while self.early_count > 0 {
            let index = self.slots.index(self.freed);
            if !self.early[index] {
                break;
            }
            self.early[index] = false;
            self.early_count -= 1;
            self.freed += 1;
        }
        true
    }

    /// Publishes the head with all released slots; called when the ring was found empty.
    #[inline]
    pub(super) fn flush_head(&mut self) {
        if self.shared_head != self.freed {
            self.publish_head();
        }
    }

    #[inline]
    fn publish_head(&mut self) {
        self.shared_head = self.freed;
        // Release, partner: the producer's Acquire load in `TxRing::reload_head`:
        // the reads of the slots here precede its writes.
        self.slots.head().store(self.freed, Ordering::Release);
    }
}
