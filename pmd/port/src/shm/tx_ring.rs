//! The producer of a ring: slots are lent in place and published in order.

use super::buffer_origin;
use super::layout::{flag_word, is_published};
use super::slots::Slots;
use crate::mbuf::Mbuf;
use crate::sync::mapped::Ordering;

/// Maximum number of slots that are lent and not yet published; one bit each in `done`.
const WINDOW: u64 = 64;

/// Distance from the next slot to the one whose cache lines are prefetched. Not the next
/// one: the consumer polls it.
const PREFETCH_DISTANCE: u64 = 4;

/// Result of returning a lent slot unsent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// It is free again as if it had never been lent.
    Unlent,
    /// It is or will be published as void.
    Voided,
    /// It is not lent by this ring.
    Foreign,
}

/// The producer of one ring.
///
/// `head <= published <= lent <= head + slots`, and `lent <= published + WINDOW`.
/// Lent slots are returned in any order, yet are published in the order of lending: a
/// slot that is returned before an earlier one is recorded in `done` and `lengths`.
#[derive(Debug)]
pub(super) struct TxRing {
    slots: Slots,
    station: usize,
    published: u64,
    lent: u64,
    head: u64,
    done: u64,
    lengths: [u16; WINDOW as usize],
    retired: bool,
    damaged: bool,
    unflushed: bool,
}

impl TxRing {
    /// Takes over the producer's end where the last producer of the ring stopped.
    ///
    /// It published everything up to the first slot that is not marked for its
    /// position; slots that it had lent beyond were never published and are reused.
    pub(super) fn take_over(slots: Slots, station: usize) -> Self {
        // Acquire, partner: the consumer's Release store in `RxRing::publish_head`.
        let head = slots.head().load(Ordering::Acquire);
        let mut tail = head;
        // Acquire, partner: the Release store in `publish` of the last producer.
        while tail.wrapping_sub(head) < slots.count()
            && is_published(slots.flag(tail).load(Ordering::Acquire), tail)
        {
            tail = tail.wrapping_add(1);
        }
        Self {
            slots,
            station,
            published: tail,
            lent: tail,
            head,
            done: 0,
            lengths: [0; WINDOW as usize],
            retired: false,
            damaged: false,
            unflushed: false,
        }
    }

    /// Returns the slot of the receiving station.
    pub(super) fn station(&self) -> usize {
        self.station
    }

    /// Returns whether the station left; frames to it are dropped.
    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Marks the station as left.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Returns whether the consumer's head was invalid, or the file was truncated.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged || self.slots.is_lost()
    }

    /// Returns whether slots are lent, whose memory must stay mapped.
    pub(super) fn has_loans(&self) -> bool {
        self.lent != self.published
    }

    /// Returns whether the buffer is at the position in its cookie. One of another port may have the same cookie.
    #[inline]
    pub(super) fn owns(&self, mbuf: &Mbuf) -> bool {
        let position = buffer_origin::position_bits(mbuf.cookie());
        self.slots.is_at(u64::from(position), mbuf)
    }

    /// Records that slots were published; returns true for the first time since [`Self::mark_flushed`].
    #[inline]
    pub(super) fn mark_unflushed(&mut self) -> bool {
        !std::mem::replace(&mut self.unflushed, true)
    }

    /// Records that the station was woken for what was published.
    #[inline]
    pub(super) fn mark_flushed(&mut self) {
        self.unflushed = false;
    }

    /// Lends the next slot; `None` if the ring or the window is full.
    #[inline]
    pub(super) fn lend(&mut self, cookie_base: u32) -> Option<Mbuf> {
        if self.lent - self.head >= self.slots.count() && !self.reload_head() {
            return None;
        }
        if self.lent - self.published >= WINDOW {
            return None;
        }
        let position = self.lent;
        self.lent += 1;
        // The consumer may be polling this slot: prefetch its lines while the
        // caller still builds the frame.
        self.slots.prefetch_for_write(position);
        // SAFETY: the position is below head + slots, so the consumer has released
        // the slot, and it was not lent since: `lent` only decreases for a handle
        // that was returned. A ring with lent slots is never unmapped before the port.
        Some(unsafe {
            self.slots
                .mbuf(position, 0, cookie_base | buffer_origin::truncate(position))
        })
    }

    /// Reads the consumer's head; returns whether a slot is free now.
    #[cold]
    fn reload_head(&mut self) -> bool {
        // Acquire, partner: the consumer's Release store in `RxRing::publish_head`:
        // its reads of the slots precede the writes here.
        let head = self.slots.head().load(Ordering::Acquire);
        // A head out of range is invalid and frees no slots.
        if (self.head..=self.published).contains(&head) {
            self.head = head;
        } else {
            self.damaged = true;
        }
        self.lent - self.head < self.slots.count()
    }

    /// Returns the position after the last frame that was sent; `None` while a slot is lent.
    #[inline]
    pub(super) fn sent(&self) -> Option<u64> {
        (self.lent == self.published).then_some(self.published)
    }

    /// Returns whether the consumer has freed all frames before this position.
    #[inline]
    pub(super) fn has_freed(&self, position: u64) -> bool {
        // Acquire, partner: the consumer's Release store in `RxRing::publish_head`: what it did with
        // the frames precedes what the caller does next.
        let head = self.slots.head().load(Ordering::Acquire);
        (position..=self.published).contains(&head)
    }

    /// Returns a lent slot as a frame to send; returns false if it is not lent by this ring.
    #[inline]
    pub(super) fn send(&mut self, position: u32, len_bytes: u32) -> bool {
        let position = buffer_origin::expand(position, self.published as u32);
        if position == self.published as u32 && self.done == 0 && self.lent != self.published {
            self.publish(len_bytes);
            return true;
        }
        self.finish(position, len_bytes)
    }

    /// Returns a lent slot unsent.
    pub(super) fn unlend(&mut self, position: u32) -> Returned {
        let position = buffer_origin::expand(position, self.published as u32);
        let ahead = u64::from(position.wrapping_sub(self.published as u32));
        if ahead < self.lent - self.published
            && ahead + 1 == self.lent - self.published
            && self.done >> ahead & 1 == 0
        {
            self.lent -= 1;
            return Returned::Unlent;
        }
        if self.finish(position, 0) {
            Returned::Voided
        } else {
            Returned::Foreign
        }
    }

    /// Records a returned slot, and publishes all slots that are next in order.
    fn finish(&mut self, position: u32, len_bytes: u32) -> bool {
        let ahead = u64::from(position.wrapping_sub(self.published as u32));
        if ahead >= self.lent - self.published || self.done >> ahead & 1 == 1 {
            return false;
        }
        self.done |= 1 << ahead;
        // At most MAX_FRAME_BYTES, an Mbuf's capacity.
        self.lengths[(u64::from(position) % WINDOW) as usize] = len_bytes as u16;
        while self.done & 1 == 1 {
            self.done >>= 1;
            let len_bytes = self.lengths[(self.published % WINDOW) as usize];
            self.publish(u32::from(len_bytes));
        }
        true
    }

    /// Publishes the first lent slot; length zero is a void slot.
    #[inline]
    fn publish(&mut self, len_bytes: u32) {
        let flag = self.slots.flag(self.published);
        // Release, partner: the Acquire load in `RxRing::poll`: a consumer that sees the
        // flag sees the frame.
        flag.store(flag_word(self.published, len_bytes), Ordering::Release);
        self.published += 1;
        // After the frame is published, so that it does not delay the frame.
        self.slots
            .prefetch_for_write(self.published + PREFETCH_DISTANCE);
    }
}
