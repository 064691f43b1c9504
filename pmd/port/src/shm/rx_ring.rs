//! The receiving end of a ring: frames are lent in place and given back in any order.

use super::cookie;
use super::layout::{MAX_FRAME_BYTES, is_published};
use super::slots::Slots;
use crate::mbuf::Mbuf;
use crate::sync::mapped::Ordering;

/// What the next slot of a ring holds.
#[derive(Debug)]
pub(super) enum Polled {
    /// Nothing yet.
    Empty,
    /// A frame, lent to the caller.
    Frame(Mbuf),
    /// A slot without a frame, already given back.
    Void,
    /// A length that no frame can have, already given back.
    BadLength,
}

/// The consumer of one ring.
///
/// `shared_head <= freed <= next <= freed + slots`. Slots that came back before
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
    /// The consumer's end of a ring in a file that this station made.
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

    /// Takes the next slot, if it was published.
    #[inline]
    pub(super) fn poll(&mut self, cookie_base: u32) -> Polled {
        let position = self.next;
        // Acquire, partner: the Release store in `TxRing::publish`. The length comes
        // with the flag, so that it is read once.
        self.slots.prefetch_second_line(position);
        let word = self.slots.flag(position).load(Ordering::Acquire);
        // A correct producer never laps us; one that does must not get a slot
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
        // SAFETY: the producer published this slot and leaves it alone until the
        // head passes it; `next` has moved on, so it is lent once; the length is in
        // bounds; receive rings are unmapped only with the port.
        Polled::Frame(unsafe {
            self.slots
                .mbuf(position, len_bytes, cookie_base | cookie::low(position))
        })
    }

    /// True if the next slot is published.
    pub(super) fn has_next(&self) -> bool {
        // Acquire, partner: the Release store in `TxRing::publish`.
        is_published(
            self.slots.flag(self.next).load(Ordering::Acquire),
            self.next,
        )
    }

    /// The position after the last frame that is published now.
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

    /// True if everything before the position was handed out.
    pub(super) fn has_reached(&self, position: u64) -> bool {
        self.next >= position
    }

    /// True once the file was found shorter than the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.slots.is_lost()
    }

    /// True if a slot is published while the one before it is not, which no producer does: what
    /// follows would never be found.
    pub(super) fn is_damaged(&self) -> bool {
        if self.next + 1 - self.freed >= self.slots.count() {
            return false;
        }
        // Acquire, partner: the Release store in `TxRing::publish`: who sees the later slot
        // published sees the earlier one too.
        let is_published = |position| {
            let word = self.slots.flag(position).load(Ordering::Acquire);
            is_published(word, position)
        };
        is_published(self.next + 1) && !is_published(self.next)
    }

    /// Forgets what its producer published and was not taken; the next one goes on there.
    pub(super) fn wipe(&mut self) {
        for position in self.next..self.freed + self.slots.count() {
            // Relaxed: whoever takes over reads it after the station's state.
            self.slots.flag(position).store(0, Ordering::Relaxed);
        }
    }

    /// True if frames are lent, whose memory must stay mapped.
    pub(super) fn has_loans(&self) -> bool {
        self.freed != self.next
    }

    /// True if the buffer lies where its cookie says. One of another port may have the same cookie.
    #[inline]
    pub(super) fn owns(&self, mbuf: &Mbuf) -> bool {
        let position = cookie::position(mbuf.cookie());
        self.slots.is_at(u64::from(position), mbuf)
    }

    /// Takes a slot back; false if it is not lent.
    #[inline]
    pub(super) fn give_back(&mut self, position: u32) -> bool {
        let position = cookie::widen(position, self.freed as u32);
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

    /// Marks a slot, then moves over all slots that are marked.
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

    /// Tells the producer of every free slot; called when the ring was found empty.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.shared_head != self.freed {
            self.publish_head();
        }
    }

    #[inline]
    fn publish_head(&mut self) {
        self.shared_head = self.freed;
        // Release, partner: the producer's Acquire load in `TxRing::reload_head`:
        // our reads of the slots come before its writes.
        self.slots.head().store(self.freed, Ordering::Release);
    }
}
