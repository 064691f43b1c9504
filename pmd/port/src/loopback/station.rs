//! The port of one station.

use std::sync::Arc;

use super::config::{HEADER_BYTES, LoopbackConfig, LoopbackError, is_group};
use super::hub::{Hub, PeerRings, hub, peer_rings, pool};
use crate::mbuf::{Mbuf, MbufBatch};
use crate::mempool::Mempool;
use crate::port::{
    AsFutexWord, Capabilities, Counter, FutexWord, MacBytes, Port, PortEvent, PortStats, WakeSource,
};

/// Counters of a station.
#[derive(Debug, Default)]
struct Counts {
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    drop_unknown_destination: u64,
    drop_bad_length: u64,
    drop_group_no_room: u64,
    drop_foreign_buffer: u64,
    tx_no_room: u64,
    wakes: u64,
}

/// A port of an in-memory hub.
///
/// A buffer allocated for a destination is delivered there, whatever address is then
/// written into it. A group address reaches every other station that has free buffers.
/// Frames to the port's own address are delivered to the port itself.
///
/// Counters: `drop_unknown_destination` (no station has the address, or it left),
/// `drop_bad_length` (shorter than an Ethernet header), `drop_group_no_room` (a
/// receiver of a group address had no free buffer), `drop_foreign_buffer` (a buffer
/// of another hub was given to this port), `tx_no_room` (`alloc` found no free
/// buffer), `wakes` (sleepers woken).
#[derive(Debug)]
pub struct LoopbackPort {
    capabilities: Capabilities,
    pub(super) hub: Arc<Hub>,
    own: usize,
    pool: Mempool,
    peer_rings: Vec<PeerRings>,
    present: Vec<bool>,
    /// Stations last reported as present.
    reported: Vec<bool>,
    epoch_seen: u64,
    has_pending_events: bool,
    /// The share of the pool that each buffer is lent from: a station, or one of the two below.
    share_of: Vec<u8>,
    /// Lent buffers of each share.
    outstanding: Vec<u32>,
    frames_per_share: u32,
    /// Buffers of the hub given to this port's caller minus those returned by it; negative
    /// if they were given to the caller of another port.
    lent: i64,
    /// Bit set of stations that got frames in this burst and may sleep.
    to_wake: u64,
    /// Peer at which the next receive burst starts.
    next_peer: usize,
    /// Last address looked up, and its share.
    last_lookup: (MacBytes, usize),
    counts: Counts,
}

impl LoopbackPort {
    /// Creates a hub of two stations.
    ///
    /// # Errors
    /// A configuration of other than two stations, or one that [`LoopbackPort::hub`] refuses.
    pub fn pair(config: &LoopbackConfig) -> Result<(Self, Self), LoopbackError> {
        let stations: [Self; 2] =
            Self::hub(config)?
                .try_into()
                .map_err(|stations: Vec<_>| LoopbackError::Stations {
                    count: stations.len(),
                })?;
        Ok(stations.into())
    }

    /// Creates a hub with one station per MAC address.
    ///
    /// # Errors
    /// A configuration out of bounds; no memory.
    pub fn hub(config: &LoopbackConfig) -> Result<Vec<Self>, LoopbackError> {
        config.check()?;
        let count = config.macs.len();
        let pools: Result<Vec<_>, _> = (0..count).map(|station| pool(config, station)).collect();
        let pools = pools?;
        let hub = Arc::new(hub(config, &pools));
        let peer_rings = peer_rings(count, config.frames_per_ring);
        let ports = pools.into_iter().zip(peer_rings).enumerate();
        let ports = ports.map(|(own, (pool, peer_rings))| Self {
            capabilities: Capabilities {
                driver: "loopback",
                device: config.device.clone(),
                mac: config.macs[own],
                interface_mac: None,
                max_frame_bytes: config.max_frame_bytes as usize,
                lossless: true,
                send_alone: true,
                next_buffer_bytes: 0,
            },
            hub: Arc::clone(&hub),
            own,
            peer_rings,
            present: vec![true; count],
            reported: (0..count).map(|station| station == own).collect(),
            epoch_seen: 0,
            has_pending_events: true,
            share_of: vec![0; pool.config().buffers as usize],
            pool,
            outstanding: vec![0; count + 2],
            frames_per_share: config.frames_per_ring,
            lent: 0,
            to_wake: 0,
            next_peer: 0,
            last_lookup: (config.macs[own], own),
            counts: Counts::default(),
        });
        Ok(ports.collect())
    }

    /// Returns the share of the pool for unknown addresses.
    fn unknown_share(&self) -> usize {
        self.peer_rings.len()
    }

    /// Returns the share of the pool for group addresses.
    fn group_share(&self) -> usize {
        self.peer_rings.len() + 1
    }

    /// Updates which stations are present, if any has left.
    #[inline]
    fn refresh(&mut self) {
        let epoch = self.hub.epoch();
        if epoch == self.epoch_seen {
            return;
        }
        self.epoch_seen = epoch;
        self.has_pending_events = true;
        for (station, present) in self.present.iter_mut().enumerate() {
            *present = self.hub.is_present(station);
        }
        self.last_lookup = (self.capabilities.mac, self.own);
    }

    /// Returns the share that a buffer for this address is lent from.
    #[inline]
    fn share(&mut self, dst: MacBytes) -> usize {
        if self.last_lookup.0 == dst {
            return self.last_lookup.1;
        }
        let share = if is_group(dst) {
            self.group_share()
        } else {
            let stations = self.hub.stations.iter().zip(&self.present);
            let mut known = stations.map(|(station, &present)| present && station.mac == dst);
            known
                .position(|found| found)
                .unwrap_or(self.unknown_share())
        };
        self.last_lookup = (dst, share);
        share
    }

    /// Frees the buffers that a station returned.
    fn reclaim(&mut self, station: usize) {
        while let Some(mbuf) = self.peer_rings[station].returned.pop() {
            self.take_back(mbuf);
        }
    }

    /// Frees one of our buffers into the pool.
    fn take_back(&mut self, mbuf: Mbuf) {
        let share = self.share_of[Mempool::index_of(&mbuf) as usize];
        self.outstanding[usize::from(share)] -= 1;
        self.pool.free(mbuf);
    }

    #[inline]
    fn lend(&mut self, share: usize) -> Option<Mbuf> {
        if self.outstanding[share] == self.frames_per_share && share < self.peer_rings.len() {
            self.reclaim(share);
        }
        if self.outstanding[share] == self.frames_per_share {
            return None;
        }
        let mbuf = self.pool.alloc()?;
        self.share_of[Mempool::index_of(&mbuf) as usize] = share as u8;
        self.outstanding[share] += 1;
        Some(mbuf)
    }

    #[inline]
    fn transmit(&mut self, mbuf: Mbuf) {
        if !self.pool.owns(&mbuf) {
            // A received buffer belongs to its sender's pool and cannot be sent.
            self.counts.drop_foreign_buffer += 1;
            return self.free(mbuf);
        }
        self.lent -= 1;
        self.counts.tx_frames += 1;
        self.counts.tx_bytes += mbuf.len() as u64;
        let share = usize::from(self.share_of[Mempool::index_of(&mbuf) as usize]);
        if mbuf.len() < HEADER_BYTES {
            self.counts.drop_bad_length += 1;
            self.take_back(mbuf);
        } else if share == self.group_share() {
            self.transmit_to_group(mbuf);
        } else if share < self.peer_rings.len() && self.present[share] {
            self.deliver(share, mbuf);
        } else {
            self.counts.drop_unknown_destination += 1;
            self.take_back(mbuf);
        }
    }

    /// Delivers a buffer to a station. The ring is as long as the share, so it has a free slot.
    #[inline]
    fn deliver(&mut self, station: usize, mbuf: Mbuf) {
        match self.peer_rings[station].sent.push(mbuf) {
            Ok(()) => self.to_wake |= 1 << station,
            Err(mbuf) => {
                self.counts.drop_foreign_buffer += 1;
                self.take_back(mbuf);
            }
        }
    }

    fn transmit_to_group(&mut self, mbuf: Mbuf) {
        for station in 0..self.peer_rings.len() {
            if station == self.own || !self.present[station] {
                continue;
            }
            match self.lend(station) {
                Some(mut copy) => {
                    copy.buffer_mut()[..mbuf.len()].copy_from_slice(mbuf.bytes());
                    copy.set_len(mbuf.len());
                    self.deliver(station, copy);
                }
                None => self.counts.drop_group_no_room += 1,
            }
        }
        self.take_back(mbuf);
    }

    /// Wakes the sleeping stations that got frames, except this one.
    fn wake(&mut self) {
        let mut to_wake = core::mem::take(&mut self.to_wake) & !(1 << self.own);
        while to_wake != 0 {
            let station = to_wake.trailing_zeros() as usize;
            to_wake &= to_wake - 1;
            self.counts.wakes += u64::from(self.hub.stations[station].wake.notify());
        }
    }
}

impl Port for LoopbackPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        self.refresh();
        let share = self.share(dst);
        let mbuf = self.lend(share);
        self.lent += i64::from(mbuf.is_some());
        self.counts.tx_no_room += u64::from(mbuf.is_none());
        mbuf
    }

    #[inline]
    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        self.refresh();
        let taken = batch.len();
        while let Some(mbuf) = batch.pop() {
            self.transmit(mbuf);
        }
        self.wake();
        taken
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        let max = max.min(batch.room());
        let count = self.peer_rings.len();
        let mut added = 0;
        for offset in 0..count {
            if added == max {
                break;
            }
            let rings = &mut self.peer_rings[(self.next_peer + offset) % count];
            while added < max
                && let Some(mbuf) = rings.received.pop()
            {
                self.counts.rx_frames += 1;
                self.counts.rx_bytes += mbuf.len() as u64;
                let pushed = batch.push(mbuf);
                debug_assert!(pushed.is_ok(), "room was checked");
                added += 1;
            }
        }
        self.next_peer = (self.next_peer + 1) % count;
        self.lent += added as i64;
        added
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        let station = usize::from(Mempool::tag_of(&mbuf));
        if self.pool.owns(&mbuf) {
            self.lent -= 1;
            return self.take_back(mbuf);
        }
        let returned = match self.hub.stations.get(station) {
            Some(sender) if sender.buffers.contains(mbuf.bytes().as_ptr()) => {
                self.peer_rings[station].give_back.push(mbuf).is_ok()
            }
            _ => false,
        };
        self.lent -= i64::from(returned);
        self.counts.drop_foreign_buffer += u64::from(!returned);
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.refresh();
        if !core::mem::take(&mut self.has_pending_events) {
            return false;
        }
        let before = out.len();
        for station in 0..self.peer_rings.len() {
            if self.present[station] == self.reported[station] {
                continue;
            }
            self.reported[station] = self.present[station];
            let neighbour = self.hub.neighbour(station);
            out.push(if self.present[station] {
                PortEvent::Joined(neighbour)
            } else {
                PortEvent::Left(neighbour)
            });
        }
        out.len() > before
    }

    fn arm(&mut self) -> WakeSource {
        let wake = Arc::clone(&self.hub.stations[self.own].wake);
        WakeSource::Futex {
            expected: wake.arm(),
            word: FutexWord::new(wake as Arc<dyn AsFutexWord + Send + Sync>),
        }
    }

    #[inline]
    fn disarm(&mut self) {
        self.hub.stations[self.own].wake.disarm();
    }

    fn stats(&self) -> PortStats {
        let counts = &self.counts;
        let counters = [
            ("drop_unknown_destination", counts.drop_unknown_destination),
            ("drop_bad_length", counts.drop_bad_length),
            ("drop_group_no_room", counts.drop_group_no_room),
            ("drop_foreign_buffer", counts.drop_foreign_buffer),
            ("tx_no_room", counts.tx_no_room),
            ("wakes", counts.wakes),
        ];
        PortStats {
            rx_frames: counts.rx_frames,
            rx_bytes: counts.rx_bytes,
            tx_frames: counts.tx_frames,
            tx_bytes: counts.tx_bytes,
            counters: counters.map(|(name, value)| Counter { name, value }).into(),
        }
    }
}

impl Drop for LoopbackPort {
    fn drop(&mut self) {
        // Callers hold buffers of the hub exactly if the sum over all stations is positive, and then
        // at least one addend is. The memory of all stations stays mapped.
        if self.lent > 0 {
            core::mem::forget(Arc::clone(&self.hub));
        }
        self.hub.leave(self.own);
    }
}
