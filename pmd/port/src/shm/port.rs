//! The port of a shared-memory segment.

use std::io;
use std::sync::Arc;

use super::buffer_origin::{self, Origin};
use super::config::ShmConfig;
use super::counters::Counters;
use super::error::ShmError;
use super::layout::{MAX_FRAME_BYTES, SLOT_STRIDE_BYTES};
use super::membership::Membership;
use super::rx::RxSide;
use super::segment::StationWord;
use super::segment_station::SegmentStation;
use super::station_events::{StationChange, StationEvents};
use super::sys;
use super::tx::TxSide;
use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{
    Capabilities, FutexWord, MacBytes, Neighbour, Port, PortEvent, PortFailure, PortStats,
    RingFailure, WakeSource,
};
use crate::sync::mapped::Ordering;

/// A station of an Ethernet segment in shared memory.
///
/// See the [module](super) for guarantees and counters. Dropping the port closes it: the other
/// stations are notified at once. The memory of buffers that the caller still holds then stays
/// mapped until the process ends. If they were lent for sending, no other station gets this
/// station's slot for that time, since it would write into the same ring slots.
#[derive(Debug)]
pub struct ShmPort {
    capabilities: Capabilities,
    tx: TxSide,
    rx: RxSide,
    station_events: StationEvents,
    counters: Counters,
    seen_epoch: u64,
    armed: bool,
    failure: Option<PortFailure>,
    /// The failure, until it is reported.
    unreported_failure: Option<PortFailure>,
    /// By slot, the generation of a station that is treated as departed because of damage; 0 for none.
    cut_off: Vec<u64>,
    wake_word: FutexWord,
    /// Size of the segment's file system in bytes; 0 if unknown.
    file_system_bytes: u64,
    membership: Membership,
}

impl ShmPort {
    /// Joins the segment of a configuration as a new station, creating the
    /// segment if there is none, and removes what dead processes left in it.
    ///
    /// # Errors
    /// See [`ShmError`]; partial results are removed.
    pub fn open(config: ShmConfig) -> Result<Self, ShmError> {
        let can_register = sys::register_for_barriers();
        let membership = Membership::join(&config)?;
        let max_stations = config.max_stations as usize;
        let tx = TxSide::new(max_stations, !can_register).map_err(|source| ShmError::Io {
            action: "map scratch buffers for",
            path: config.segment_directory(),
            source,
        })?;
        let wake_word = FutexWord::new(Arc::new(StationWord {
            segment: Arc::clone(membership.segment()),
            slot: membership.slot(),
        }));
        let file_system_bytes = sys::file_system_bytes(membership.rings()).unwrap_or(0);
        let epoch = &membership.segment().header().epoch;
        // Relaxed: only the initial value of the counter; `refresh` below reads the states.
        let seen_epoch = epoch.count.load(Ordering::Relaxed);
        let mut port = Self {
            capabilities: Capabilities {
                driver: "shm",
                device: config.segment,
                mac: membership.mac(),
                interface_mac: None,
                max_frame_bytes: MAX_FRAME_BYTES,
                lossless: true,
                send_alone: true,
                next_buffer_bytes: SLOT_STRIDE_BYTES,
            },
            tx,
            rx: RxSide::new(max_stations),
            station_events: StationEvents::new(max_stations),
            counters: Counters::default(),
            seen_epoch,
            armed: false,
            failure: None,
            unreported_failure: None,
            cut_off: vec![0; max_stations],
            wake_word,
            file_system_bytes,
            membership,
        };
        port.refresh();
        Ok(port)
    }

    /// Returns whether stations joined or left since the last refresh.
    #[inline]
    fn is_stale(&self) -> bool {
        let epoch = &self.membership.segment().header().epoch;
        // Relaxed: a hint; `refresh` loads it again.
        epoch.count.load(Ordering::Relaxed) != self.seen_epoch
    }

    /// Updates the states of all stations after some joined or left.
    #[cold]
    fn refresh(&mut self) {
        let segment = Arc::clone(self.membership.segment());
        // Acquire, partner: the Release in `Segment::set_state`. Changes after
        // this load change the epoch again.
        let epoch = segment.header().epoch.count.load(Ordering::Acquire);
        let changes = epoch.wrapping_sub(self.seen_epoch);
        self.counters.membership_changes = self.counters.membership_changes.wrapping_add(changes);
        self.seen_epoch = epoch;
        let stations = segment.geometry().max_stations as usize;
        // States before contacts and rings: if a station is seen as left, all its
        // frames are seen too.
        for slot in 0..stations {
            let mut state = segment.state(slot);
            if state.generation == self.cut_off[slot] {
                state.live = false;
            }
            let mac = segment.geometry().mac(slot, state.generation);
            self.tx.update(slot, state, mac);
        }
        self.rx.poll_contacts(&self.membership, &mut self.counters);
        let own_slot = self.membership.slot();
        for slot in (0..stations).filter(|slot| *slot != own_slot) {
            let rx = &self.rx;
            self.station_events
                .update(slot, self.tx.state(slot), || rx.end_of(slot));
        }
        self.choose_active();
    }

    /// Checks the segment and the rings for damage; fails the port, or cuts off the stations of
    /// damaged rings.
    fn check_damage(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.failure = if self.rx.is_lost() {
            Some(PortFailure::SegmentRemoved)
        } else {
            self.membership.failure()
        };
        if self.failure.is_some() {
            self.unreported_failure = self.failure;
            self.membership.mark_left();
            return;
        }
        let mut any = false;
        for slot in 0..self.cut_off.len() {
            let state = self.tx.state(slot);
            if state.live && (self.tx.is_damaged(slot) || self.rx.is_damaged(slot)) {
                self.cut_off[slot] = state.generation;
                self.rx.discard(slot);
                self.counters.stations_cut_off += 1;
                any = true;
            }
        }
        if any {
            self.refresh();
        }
    }

    /// Lends a buffer to a destination without a ring, or with one that may be outdated.
    #[cold]
    fn alloc_first(&mut self, dst: MacBytes) -> Option<Mbuf> {
        if self.is_stale() {
            self.refresh();
        }
        self.tx
            .lend_first(dst, &self.membership, &mut self.counters)
    }

    /// Publishes a frame. Its receiver is woken by `flush`.
    #[inline]
    fn publish(&mut self, mbuf: Mbuf) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += mbuf.len() as u64;
        match buffer_origin::decode(mbuf.cookie()) {
            Origin::Tx(ring) => self.tx.send(ring, &mbuf, &mut self.counters),
            Origin::Scratch(pool) => {
                self.tx
                    .send_scratch(pool, mbuf, &self.membership, &mut self.counters);
            }
            Origin::Rx(sender) => {
                self.counters.foreign_buffers += 1;
                self.rx.give_back(sender, &mbuf, &mut self.counters);
            }
            Origin::Foreign => self.counters.foreign_buffers += 1,
        }
    }

    #[cold]
    fn ring_failure(&self, error: &io::Error) -> RingFailure {
        RingFailure {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            ring_bytes: self.membership.segment().geometry().ring_stride_bytes,
            file_system_bytes: self.file_system_bytes,
        }
    }

    fn choose_active(&mut self) {
        let tx = &self.tx;
        self.rx.choose_active(|slot| tx.state(slot).live);
    }

    fn neighbour(&self, slot: usize, generation: u64) -> Neighbour {
        Neighbour {
            mac: self.membership.segment().geometry().mac(slot, generation),
            generation,
        }
    }
}

impl Port for ShmPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        if let Some(ring) = self.tx.ring_of(dst) {
            let mbuf = self.tx.lend(ring, &mut self.counters);
            // The ring may be full because its station left.
            if mbuf.is_some() || !self.is_stale() {
                return mbuf;
            }
        }
        self.alloc_first(dst)
    }

    #[inline]
    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut taken = 0;
        while let Some(mbuf) = batch.pop() {
            taken += 1;
            self.publish(mbuf);
        }
        self.tx.flush(&self.membership, &mut self.counters);
        taken
    }

    #[inline]
    fn tx_one(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        self.publish(mbuf);
        self.tx.flush(&self.membership, &mut self.counters);
        Ok(())
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        if self.is_stale() {
            self.refresh();
        } else if self.rx.poll_contacts(&self.membership, &mut self.counters) {
            self.choose_active();
        }
        self.rx.burst(batch, max, &mut self.counters)
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        match buffer_origin::decode(mbuf.cookie()) {
            Origin::Rx(sender) => self.rx.give_back(sender, &mbuf, &mut self.counters),
            Origin::Tx(ring) => {
                self.tx.unlend(ring, &mbuf, &mut self.counters);
                self.tx.flush(&self.membership, &mut self.counters);
            }
            Origin::Scratch(pool) => self.tx.free_scratch(pool, mbuf, &mut self.counters),
            Origin::Foreign => self.counters.foreign_buffers += 1,
        }
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        if self.is_stale() {
            self.refresh();
        }
        if self.membership.segment().is_lost() {
            self.check_damage();
        }
        let before = out.len();
        out.extend(self.unreported_failure.take().map(PortEvent::Failed));
        let failed = self.tx.take_failed().or_else(|| self.rx.take_failed());
        if let Some(error) = failed {
            out.push(PortEvent::RingFailed(self.ring_failure(&error)));
        }
        out.extend(self.tx.take_unreachable().map(PortEvent::Unreachable));
        if !self.station_events.has_pending() {
            return out.len() > before;
        }
        let mut changes = Vec::new();
        let rx = &self.rx;
        self.station_events.report_due(
            |slot, position| rx.has_reached(slot, position),
            |change| changes.push(change),
        );
        out.extend(changes.into_iter().map(|change| match change {
            StationChange::Joined { slot, generation } => {
                PortEvent::Joined(self.neighbour(slot, generation))
            }
            StationChange::Left { slot, generation } => {
                PortEvent::Left(self.neighbour(slot, generation))
            }
        }));
        out.len() > before
    }

    fn arm(&mut self) -> WakeSource {
        let line = &self.membership.segment().entry(self.membership.slot()).wake;
        // Before `armed` is set: a sender that sees it set changes the word after this
        // load. Acquire, partner: the Release in `Segment::wake`.
        let expected = line.wakes.load(Ordering::Acquire);
        // Relaxed: ordered by the barrier.
        line.armed.store(1, Ordering::Relaxed);
        self.armed = true;
        self.counters.arms += 1;
        // The receiver's half of the pairing in `TxSide::flush` and the sender's too:
        // a full barrier here and on every thread that may be sending. After it, the
        // frame of a sender that read `armed` as zero is visible to the poll that
        // the caller does next.
        if sys::barrier_on_all() {
            WakeSource::Futex {
                word: self.wake_word.clone(),
                expected,
            }
        } else {
            self.disarm();
            WakeSource::Poll
        }
    }

    #[inline]
    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            let slot = self.membership.slot();
            let line = &self.membership.segment().entry(slot).wake;
            // Relaxed: a sender that still sees it set makes a spurious wake call, which is harmless.
            line.armed.store(0, Ordering::Relaxed);
        }
    }

    fn stats(&self) -> PortStats {
        self.counters.stats()
    }

    fn segment_station(&self) -> Option<SegmentStation> {
        Some(self.membership.station())
    }

    #[inline]
    fn sent_to(&self, dst: MacBytes) -> Option<u64> {
        self.tx.sent_to(dst)
    }

    #[inline]
    fn has_freed(&self, dst: MacBytes, position: u64) -> bool {
        self.tx.has_freed(dst, position)
    }

    fn upkeep(&mut self) {
        self.check_damage();
        if self.failure.is_some() {
            return;
        }
        match self.membership.reap_dead() {
            Ok(dead) => self.counters.stations_reaped += dead,
            Err(_) => self.counters.upkeep_failures += 1,
        }
        self.tx.retry_failed();
        self.rx.map_contacts(&self.membership, &mut self.counters);
        self.choose_active();
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        self.rx.leak_lent_rings();
        if self.tx.leak_lent_buffers() {
            self.membership.keep_slot();
        }
    }
}
