//! The sending end of a ring: slots are lent in place and published in order.

use super::cookie;
use super::layout::{flag_word, is_published};
use super::slots::Slots;
use crate::mbuf::Mbuf;
use crate::sync::mapped::Ordering;

/// Slots that may be lent and not yet published, at most; one bit each in `done`.
const WINDOW: u64 = 64;

/// How far ahead of the next slot the one lies whose lines are fetched. Not the next
/// one: the consumer polls it.
const PREFETCH_DISTANCE: u64 = 4;

/// What became of a lent slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// It was taken back as if it had never been lent.
    Unlent,
    /// It is or will be published as void.
    Voided,
    /// It is no loan of this ring.
    Foreign,
}

/// The producer of one ring.
///
/// `head <= published <= lent <= head + slots`, and `lent <= published + WINDOW`.
/// Loans come back in any order, yet are published in the order of lending: one
/// that comes back before an earlier one waits in `done` and `lengths`.
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
    /// position; whatever it had lent beyond was never seen and is written anew.
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

    /// The station slot that this ring leads to.
    pub(super) fn station(&self) -> usize {
        self.station
    }

    /// True if the station left; frames to it are dropped.
    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Marks the ring as one of a station that left.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// True once the consumer's end was nonsense, or the file was cut short.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged || self.slots.is_lost()
    }

    /// True if loans are out, whose memory must stay mapped.
    pub(super) fn has_loans(&self) -> bool {
        self.lent != self.published
    }

    /// True if the buffer lies where its cookie says. One of another port may have the same cookie.
    #[inline]
    pub(super) fn owns(&self, mbuf: &Mbuf) -> bool {
        let position = cookie::position(mbuf.cookie());
        self.slots.is_at(u64::from(position), mbuf)
    }

    /// Notes that something was published; true for the first time since [`Self::flushed`].
    #[inline]
    pub(super) fn note_unflushed(&mut self) -> bool {
        !std::mem::replace(&mut self.unflushed, true)
    }

    /// Notes that the station was told what was published.
    #[inline]
    pub(super) fn flushed(&mut self) {
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
        // The consumer may be polling this slot: have its lines come over while the
        // caller still puts the frame together.
        self.slots.prefetch_for_write(position);
        // SAFETY: the position is below head + slots, so the consumer has given
        // the slot back, and it was not lent since: `lent` only goes back for
        // a handle that came back. A ring with loans is never unmapped before the port.
        Some(unsafe {
            self.slots
                .mbuf(position, 0, cookie_base | cookie::low(position))
        })
    }

    /// Looks how far the consumer is; true if there is room now.
    #[cold]
    fn reload_head(&mut self) -> bool {
        // Acquire, partner: the consumer's Release store in `RxRing::publish_head`:
        // its reads of the slots come before our writes.
        let head = self.slots.head().load(Ordering::Acquire);
        // A head outside what can be is nonsense and gives no room.
        if (self.head..=self.published).contains(&head) {
            self.head = head;
        } else {
            self.damaged = true;
        }
        self.lent - self.head < self.slots.count()
    }

    /// Takes a loan back as a frame to send; false if it is no loan of this ring.
    #[inline]
    pub(super) fn send(&mut self, position: u32, len_bytes: u32) -> bool {
        let position = cookie::widen(position, self.published as u32);
        if position == self.published as u32 && self.done == 0 && self.lent != self.published {
            self.publish(len_bytes);
            return true;
        }
        self.finish_later(position, len_bytes)
    }

    /// Takes a loan back that is not to be sent.
    pub(super) fn unlend(&mut self, position: u32) -> Returned {
        let position = cookie::widen(position, self.published as u32);
        let ahead = u64::from(position.wrapping_sub(self.published as u32));
        if ahead < self.lent - self.published
            && ahead + 1 == self.lent - self.published
            && self.done >> ahead & 1 == 0
        {
            self.lent -= 1;
            return Returned::Unlent;
        }
        if self.finish_later(position, 0) {
            Returned::Voided
        } else {
            Returned::Foreign
        }
    }

    /// Notes a loan that came back, and publishes all that now can be.
    fn finish_later(&mut self, position: u32, len_bytes: u32) -> bool {
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

    /// Publishes the first loan; length zero is a void slot.
    #[inline]
    fn publish(&mut self, len_bytes: u32) {
        let flag = self.slots.flag(self.published);
        // Release, partner: the Acquire load in `RxRing::poll`: who sees the flag
        // sees the frame.
        flag.store(flag_word(self.published, len_bytes), Ordering::Release);
        self.published += 1;
        // Now, when the frame is on its way, and not before it.
        self.slots
            .prefetch_for_write(self.published + PREFETCH_DISTANCE);
    }
}
