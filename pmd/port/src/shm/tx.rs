//! The sending side of a port: maps MAC addresses to rings, and provides buffers for
//! frames without a ring.

use std::io;

use super::buffer_origin;
use super::counters::Counters;
use super::layout::{MAX_FRAME_BYTES, StationState};
use super::membership::Membership;
use super::slots::Slots;
use super::tx_ring::{Returned, TxRing};
use crate::mbuf::Mbuf;
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::MacBytes;
use crate::sync::mapped::{Ordering, compiler_fence, fence};

/// Maximum number of rings mapped at once: one per station, and those of stations that
/// left while buffers of their rings were lent.
const RINGS_MAX: usize = 256;

/// Number of scratch buffers of each kind.
const SCRATCH_BUFFERS: u32 = 64;

/// Why a frame has no ring slot; also the number of its scratch pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scratch {
    /// No station has that address.
    Unknown = 0,
    /// A group address: the frame is copied to every station.
    Group = 1,
    /// The station exists, but its ring cannot be mapped.
    NoRing = 2,
}

/// State of the ring to a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerRing {
    /// No frame was sent there yet.
    Untried,
    /// The number of the ring.
    Mapped(u16),
    /// It could not be mapped; upkeep retries.
    Failed,
}

/// Another station (or this one) as a destination.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// The address as a number; zero if there is no station.
    mac: u64,
    state: StationState,
    ring: PeerRing,
}

/// The sending side.
#[derive(Debug)]
pub(super) struct TxSide {
    peers: Vec<Peer>,
    rings: Vec<Option<TxRing>>,
    /// Rings with frames published since the last flush.
    unflushed: Vec<u16>,
    scratch: [Mempool; 3],
    /// Processes that are registered for `barrier_on_all` need no fence of their own.
    needs_fence: bool,
    /// The error of the last ring that could not be mapped, until it is reported.
    failed: Option<io::Error>,
    /// Stations to which frames were dropped since the last report, without duplicates.
    unreachable: Vec<MacBytes>,
}

fn mac_number(mac: MacBytes) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns the station slot of an address of this segment.
fn slot_of(mac: MacBytes) -> usize {
    usize::from(mac[5]).wrapping_sub(1)
}

impl TxSide {
    pub(super) fn new(max_stations: usize, needs_fence: bool) -> io::Result<Self> {
        let pool = |kind: Scratch| {
            Mempool::new(MempoolConfig {
                buffers: SCRATCH_BUFFERS,
                buffer_bytes: MAX_FRAME_BYTES as u32,
                huge_pages: false,
                tag: buffer_origin::scratch_tag(kind as usize),
            })
        };
        let absent = Peer {
            mac: 0,
            state: StationState::from_word(0),
            ring: PeerRing::Untried,
        };
        Ok(Self {
            peers: vec![absent; max_stations],
            rings: Vec::with_capacity(max_stations),
            unflushed: Vec::with_capacity(RINGS_MAX),
            scratch: [
                pool(Scratch::Unknown)?,
                pool(Scratch::Group)?,
                pool(Scratch::NoRing)?,
            ],
            needs_fence,
            failed: None,
            unreachable: Vec::new(),
        })
    }

    /// Takes the error of a ring that could not be mapped.
    pub(super) fn take_failed(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Takes the stations to which frames were dropped for lack of a ring since the last call.
    pub(super) fn take_unreachable(&mut self) -> impl Iterator<Item = MacBytes> {
        self.unreachable.drain(..)
    }

    /// Updates the state of a station slot.
    pub(super) fn update(&mut self, slot: usize, state: StationState, mac: MacBytes) {
        let peer = &mut self.peers[slot];
        if peer.state == state {
            return;
        }
        let old_ring = peer.ring;
        *peer = Peer {
            mac: if state.live { mac_number(mac) } else { 0 },
            state,
            ring: PeerRing::Untried,
        };
        if let PeerRing::Mapped(number) = old_ring
            && let Some(ring) = &mut self.rings[usize::from(number)]
        {
            ring.retire();
            self.unmap_if_unused(usize::from(number));
        }
    }

    /// Unmaps the ring of a station that left once no buffer of it is lent.
    fn unmap_if_unused(&mut self, number: usize) {
        let entry = &mut self.rings[number];
        if let Some(ring) = entry
            && ring.is_retired()
            && !ring.has_loans()
        {
            *entry = None;
        }
    }

    /// Leaks the memory of buffers that the caller still holds when the port is closed; returns whether
    /// slots of other stations' rings are among them.
    pub(super) fn leak_lent_buffers(&mut self) -> bool {
        self.scratch.iter().for_each(Mempool::leak_if_in_use);
        let mut any = false;
        for ring in self.rings.drain(..).flatten() {
            if ring.has_loans() {
                core::mem::forget(ring);
                any = true;
            }
        }
        any
    }

    /// Returns whether the ring to the station of a slot is damaged.
    pub(super) fn is_damaged(&self, slot: usize) -> bool {
        match self.peers[slot].ring {
            PeerRing::Mapped(number) => self
                .rings
                .get(usize::from(number))
                .and_then(Option::as_ref)
                .is_some_and(TxRing::is_damaged),
            PeerRing::Untried | PeerRing::Failed => false,
        }
    }

    /// Allows another attempt to map rings that could not be mapped.
    pub(super) fn retry_failed(&mut self) {
        for peer in &mut self.peers {
            if peer.ring == PeerRing::Failed {
                peer.ring = PeerRing::Untried;
            }
        }
    }

    /// Returns the state of a station slot as of the last update.
    pub(super) fn state(&self, slot: usize) -> StationState {
        self.peers[slot].state
    }

    /// Returns the number of the ring to an address, if one is mapped.
    #[inline]
    pub(super) fn ring_of(&self, dst: MacBytes) -> Option<usize> {
        let peer = self.peers.get(slot_of(dst))?;
        match peer.ring {
            PeerRing::Mapped(number) if peer.mac == mac_number(dst) => Some(usize::from(number)),
            _ => None,
        }
    }

    /// Returns the position after the last frame that was sent to an address, if none is lent and unsent.
    #[inline]
    pub(super) fn sent_to(&self, dst: MacBytes) -> Option<u64> {
        self.rings.get(self.ring_of(dst)?)?.as_ref()?.sent()
    }

    /// Returns whether the receiver has freed all frames before this position.
    #[inline]
    pub(super) fn has_freed(&self, dst: MacBytes, position: u64) -> bool {
        let ring = self.ring_of(dst).and_then(|number| self.rings.get(number));
        ring.and_then(Option::as_ref)
            .is_some_and(|ring| ring.has_freed(position))
    }

    /// Lends the next slot of a ring; `None` if it is full.
    #[inline]
    pub(super) fn lend(&mut self, number: usize, counters: &mut Counters) -> Option<Mbuf> {
        let mbuf = match self.rings.get_mut(number) {
            Some(Some(ring)) => ring.lend(buffer_origin::tx_base(number)),
            _ => None,
        };
        counters.ring_full += u64::from(mbuf.is_none());
        mbuf
    }

    /// Lends a slot for the first frame to a station, or a scratch buffer if the
    /// frame cannot be written into one station's ring.
    pub(super) fn lend_first(
        &mut self,
        dst: MacBytes,
        membership: &Membership,
        counters: &mut Counters,
    ) -> Option<Mbuf> {
        let slot = slot_of(dst);
        let is_station = |peer: &Peer| peer.mac == mac_number(dst);
        let kind = if dst[0] & 1 == 1 {
            Scratch::Group
        } else if !self.peers.get(slot).is_some_and(is_station) {
            Scratch::Unknown
        } else if let Some(number) = self.ring_to(slot, membership, counters) {
            return self.lend(number, counters);
        } else {
            Scratch::NoRing
        };
        self.scratch[kind as usize].alloc()
    }

    /// Returns the number of the ring to a live station, mapping it at first contact.
    fn ring_to(
        &mut self,
        slot: usize,
        membership: &Membership,
        counters: &mut Counters,
    ) -> Option<usize> {
        let peer = self.peers[slot];
        match peer.ring {
            PeerRing::Mapped(number) => return Some(usize::from(number)),
            PeerRing::Failed => return None,
            PeerRing::Untried => {}
        }
        let number = self.rings.iter().position(Option::is_none);
        let number = number.unwrap_or(self.rings.len());
        let ring = if number < RINGS_MAX {
            connect(slot, peer.state.generation, membership)
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOBUFS))
        };
        let ring = match ring {
            Ok(ring) => ring,
            Err(error) => {
                counters.ring_failures += 1;
                self.failed = Some(error);
                self.peers[slot].ring = PeerRing::Failed;
                return None;
            }
        };
        counters.rings_mapped += 1;
        if number == self.rings.len() {
            self.rings.push(None);
        }
        self.rings[number] = Some(ring);
        self.peers[slot].ring = PeerRing::Mapped(number as u16);
        Some(number)
    }

    /// Takes a buffer of a transmit ring as a frame to send.
    #[inline]
    pub(super) fn send(&mut self, number: usize, mbuf: &Mbuf, counters: &mut Counters) {
        let position = buffer_origin::position_bits(mbuf.cookie());
        let len_bytes = mbuf.len() as u32;
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            counters.foreign_buffers += 1;
            return;
        };
        if !ring.owns(mbuf) || !ring.send(position, len_bytes) {
            counters.foreign_buffers += 1;
            return;
        }
        counters.drop_empty_frame += u64::from(len_bytes == 0);
        if ring.is_retired() {
            counters.drop_station_left += 1;
            self.unmap_if_unused(number);
        } else if ring.mark_unflushed() {
            self.unflushed.push(number as u16);
        }
    }

    /// Takes back a buffer of a transmit ring unsent.
    pub(super) fn unlend(&mut self, number: usize, mbuf: &Mbuf, counters: &mut Counters) {
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            counters.foreign_buffers += 1;
            return;
        };
        if !ring.owns(mbuf) {
            counters.foreign_buffers += 1;
            return;
        }
        match ring.unlend(buffer_origin::position_bits(mbuf.cookie())) {
            Returned::Unlent => {}
            Returned::Voided => {
                counters.void_slots_sent += 1;
                // Frames lent after this one may have been published.
                if ring.mark_unflushed() {
                    self.unflushed.push(number as u16);
                }
            }
            Returned::Foreign => counters.foreign_buffers += 1,
        }
        self.unmap_if_unused(number);
    }

    /// Takes a scratch buffer as a frame to send.
    #[cold]
    pub(super) fn send_scratch(
        &mut self,
        pool: usize,
        mbuf: Mbuf,
        membership: &Membership,
        counters: &mut Counters,
    ) {
        if pool == Scratch::Group as usize {
            self.send_to_all(mbuf.bytes(), membership, counters);
        } else if pool == Scratch::NoRing as usize {
            counters.drop_no_ring += 1;
            self.note_unreachable(mbuf.bytes());
        } else {
            counters.drop_unknown_destination += 1;
        }
        self.free_scratch(pool, mbuf, counters);
    }

    fn note_unreachable(&mut self, frame: &[u8]) {
        if let Some(dst) = frame.first_chunk::<6>()
            && !self.unreachable.contains(dst)
        {
            self.unreachable.push(*dst);
        }
    }

    /// Takes back a scratch buffer unsent.
    pub(super) fn free_scratch(&mut self, pool: usize, mbuf: Mbuf, counters: &mut Counters) {
        let pool = self.scratch.get_mut(pool);
        let taken = pool.is_some_and(|pool| pool.free(mbuf));
        counters.foreign_buffers += u64::from(!taken);
    }

    /// Copies a frame to every live station except this one.
    fn send_to_all(&mut self, frame: &[u8], membership: &Membership, counters: &mut Counters) {
        if frame.is_empty() {
            counters.drop_empty_frame += 1;
            return;
        }
        for slot in 0..self.peers.len() {
            if slot == membership.slot() || !self.peers[slot].state.live {
                continue;
            }
            let Some(number) = self.ring_to(slot, membership, counters) else {
                counters.drop_no_ring += 1;
                continue;
            };
            let Some(mut copy) = self.lend(number, counters) else {
                counters.drop_group_ring_full += 1;
                continue;
            };
            copy.buffer_mut()[..frame.len()].copy_from_slice(frame);
            copy.set_len(frame.len());
            self.send(number, &copy, counters);
        }
    }

    /// Wakes the sleeping stations to which frames were published since the last flush.
    #[inline]
    pub(super) fn flush(&mut self, membership: &Membership, counters: &mut Counters) {
        if self.unflushed.is_empty() {
            return;
        }
        // Between publishing and reading `armed` there must be a full barrier, so
        // that either this side sees the receiver armed or the receiver sees the frame
        // (Dekker). The receiver executes that barrier for both, on every running thread
        // of every registered process, in `ShmPort::arm`; then the compiler alone
        // must keep the order here. SeqCst, partner: that barrier.
        if self.needs_fence {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        while let Some(number) = self.unflushed.pop() {
            if let Some(ring) = &mut self.rings[usize::from(number)] {
                ring.mark_flushed();
                let woken = membership.segment().wake_if_armed(ring.station());
                counters.wakes_sent += u64::from(woken);
            }
        }
    }
}

/// Maps the ring to a station and sets its contact bit there.
fn connect(slot: usize, generation: u64, membership: &Membership) -> io::Result<TxRing> {
    let file = membership.open_rings(slot, generation)?;
    let own_slot = membership.slot();
    let slots = Slots::map(&file, membership.segment().geometry(), own_slot)?;
    let ring = TxRing::take_over(slots, slot);
    let words = &membership.segment().contacts(slot).words;
    // Release, partner: the Acquire load in `RxSide::poll_contacts`: a receiver that
    // sees the bit finds the ring's memory reserved.
    words[own_slot / 64].fetch_or(1 << (own_slot % 64), Ordering::Release);
    Ok(ring)
}
