//! The receiving side of a port: the rings of the stations that have sent frames.

use std::io;

use super::buffer_origin;
use super::counters::Counters;
use super::layout::STATIONS_MAX;
use super::membership::Membership;
use super::rx_ring::{Polled, RxRing};
use super::slots::Slots;
use crate::mbuf::{Mbuf, MbufBatch};
use crate::sync::mapped::Ordering;

/// Maximum number of void and bad slots that are skipped in one visit of a ring.
const SKIPS_MAX: usize = 64;

/// The receiving side.
#[derive(Debug)]
pub(super) struct RxSide {
    /// By sending slot; mapped at first contact and kept until the port is closed.
    rings: Vec<Option<RxRing>>,
    /// The sending slots that are polled.
    active: Vec<u8>,
    /// Index in `active` at which the next burst starts.
    cursor: usize,
    /// The contact bits that were processed.
    contacts: [u64; STATIONS_MAX.div_ceil(64)],
    contact_words: usize,
    /// The error of the last ring that could not be mapped, until it is reported.
    failed: Option<io::Error>,
}

/// Result of a visit of a ring.
struct Visit {
    taken: usize,
    found_empty: bool,
}

impl RxSide {
    pub(super) fn new(max_stations: usize) -> Self {
        Self {
            rings: (0..max_stations).map(|_| None).collect(),
            active: Vec::with_capacity(max_stations),
            cursor: 0,
            contacts: [0; STATIONS_MAX.div_ceil(64)],
            contact_words: max_stations.div_ceil(64),
            failed: None,
        }
    }

    /// Takes the error of a ring that could not be mapped.
    pub(super) fn take_failed(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Polls the contact bits and maps the rings of new senders; returns whether there are any.
    #[inline]
    pub(super) fn poll_contacts(
        &mut self,
        membership: &Membership,
        counters: &mut Counters,
    ) -> bool {
        let words = &membership.segment().contacts(membership.slot()).words;
        let mut changed = false;
        for (seen, word) in self.contacts[..self.contact_words].iter_mut().zip(words) {
            // Acquire, partner: the Release in `tx::connect`.
            let now = word.load(Ordering::Acquire);
            changed |= *seen != now;
            *seen = now;
        }
        if changed {
            self.map_contacts(membership, counters);
        }
        changed
    }

    /// Maps the rings of all contacts that have none yet, also after a failure.
    #[cold]
    pub(super) fn map_contacts(&mut self, membership: &Membership, counters: &mut Counters) {
        for sender in 0..self.rings.len() {
            let contacted = self.contacts[sender / 64] >> (sender % 64) & 1 == 1;
            if !contacted || self.rings[sender].is_some() {
                continue;
            }
            let geometry = membership.segment().geometry();
            match Slots::map(membership.rings(), geometry, sender) {
                Ok(slots) => {
                    counters.rings_mapped += 1;
                    self.rings[sender] = Some(RxRing::new(slots));
                }
                Err(error) => {
                    counters.ring_failures += 1;
                    self.failed = Some(error);
                }
            }
        }
    }

    /// Selects the rings to poll: those of live stations, and those in which
    /// a departed station has left frames.
    pub(super) fn choose_active(&mut self, is_live: impl Fn(usize) -> bool) {
        self.active.clear();
        for (sender, ring) in self.rings.iter().enumerate() {
            if let Some(ring) = ring
                && (is_live(sender) || ring.has_next())
            {
                self.active.push(sender as u8);
            }
        }
        self.cursor = 0;
    }

    /// Returns whether the file of the rings was found truncated.
    pub(super) fn is_lost(&self) -> bool {
        self.rings.iter().flatten().any(RxRing::is_lost)
    }

    /// Returns whether the ring of a sending slot is damaged.
    pub(super) fn is_damaged(&self, sender: usize) -> bool {
        self.rings[sender].as_ref().is_some_and(RxRing::is_damaged)
    }

    /// Discards the frames of a sender in a damaged ring.
    pub(super) fn discard(&mut self, sender: usize) {
        if let Some(ring) = &mut self.rings[sender] {
            ring.discard();
        }
    }

    /// Returns the position after the last frame that a sending slot has published so far.
    pub(super) fn end_of(&self, sender: usize) -> u64 {
        self.rings[sender].as_ref().map_or(0, RxRing::end)
    }

    /// Returns whether all frames before the position were received.
    pub(super) fn has_reached(&self, sender: usize, position: u64) -> bool {
        self.rings[sender]
            .as_ref()
            .is_none_or(|ring| ring.has_reached(position))
    }

    /// Adds at most `max` frames to the batch, round-robin from all senders.
    #[inline]
    pub(super) fn burst(
        &mut self,
        batch: &mut MbufBatch,
        max: usize,
        counters: &mut Counters,
    ) -> usize {
        let senders = self.active.len();
        let wanted = max.min(batch.room());
        if senders == 0 || wanted == 0 {
            return 0;
        }
        // Usually there is one sender, and a division is slow.
        let share = if senders == 1 {
            wanted
        } else {
            wanted.div_ceil(senders)
        };
        let mut taken = 0;
        let mut empty_in_a_row = 0;
        // Every visit takes a frame, finds a ring empty, or skips SKIPS_MAX slots; the
        // last counts as empty here, so that the loop ends.
        while taken < wanted && empty_in_a_row < senders {
            let sender = usize::from(self.active[self.cursor]);
            self.cursor += 1;
            if self.cursor == senders {
                self.cursor = 0;
            }
            let visit = self.visit(sender, batch, share.min(wanted - taken), counters);
            taken += visit.taken;
            if visit.found_empty || visit.taken == 0 {
                empty_in_a_row += 1;
            } else {
                empty_in_a_row = 0;
            }
        }
        taken
    }

    #[inline]
    fn visit(
        &mut self,
        sender: usize,
        batch: &mut MbufBatch,
        share: usize,
        counters: &mut Counters,
    ) -> Visit {
        let mut visit = Visit {
            taken: 0,
            found_empty: true,
        };
        let Some(ring) = &mut self.rings[sender] else {
            return visit;
        };
        let mut skipped = 0;
        while visit.taken < share && skipped < SKIPS_MAX {
            match ring.poll(buffer_origin::rx_base(sender)) {
                Polled::Frame(mbuf) => {
                    counters.rx_frames += 1;
                    counters.rx_bytes += mbuf.len() as u64;
                    let pushed = batch.push(mbuf);
                    debug_assert!(pushed.is_ok(), "the share is within the batch's room");
                    visit.taken += 1;
                }
                Polled::Empty => {
                    ring.flush_head();
                    return visit;
                }
                Polled::Void => {
                    counters.void_slots_received += 1;
                    skipped += 1;
                }
                Polled::BadLength => {
                    counters.drop_bad_length += 1;
                    skipped += 1;
                }
            }
        }
        visit.found_empty = false;
        visit
    }

    /// Leaks the rings of which the caller still holds buffers, when the port is closed.
    pub(super) fn leak_lent_rings(&mut self) {
        for ring in self.rings.drain(..).flatten() {
            if ring.has_loans() {
                core::mem::forget(ring);
            }
        }
    }

    /// Takes a received buffer back.
    #[inline]
    pub(super) fn give_back(&mut self, sender: usize, mbuf: &Mbuf, counters: &mut Counters) {
        let position = buffer_origin::position_bits(mbuf.cookie());
        let taken = match self.rings.get_mut(sender) {
            Some(Some(ring)) => ring.owns(mbuf) && ring.give_back(position),
            _ => false,
        };
        counters.foreign_buffers += u64::from(!taken);
    }
}
