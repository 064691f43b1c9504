//! One station: the port itself.

use std::sync::Arc;

use super::config::{HEADER_BYTES, LoopbackConfig, LoopbackError, is_group};
use super::hub::{Hub, Link, hub, links, pool};
use crate::mbuf::{Mbuf, MbufBatch};
use crate::mempool::Mempool;
use crate::port::{
    AsFutexWord, Capabilities, Counter, FutexWord, MacBytes, Port, PortEvent, PortStats, WakeSource,
};

/// Events counted by a station.
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
/// A buffer lent for a destination goes there whatever address is then written
/// into it. A group address reaches every other station that has room. Frames
/// to the port's own address come back to it.
///
/// Counters: `drop_unknown_destination` (nobody has the address, or its
/// station left), `drop_bad_length` (shorter than its addresses and
/// EtherType), `drop_group_no_room` (one receiver of a group address had no
/// room), `drop_foreign_buffer` (a buffer of another hub was given to this
/// port), `tx_no_room` (`alloc` found no room), `wakes` (sleepers woken).
#[derive(Debug)]
pub struct LoopbackPort {
    capabilities: Capabilities,
    pub(super) hub: Arc<Hub>,
    own: usize,
    pool: Mempool,
    links: Vec<Link>,
    present: Vec<bool>,
    /// Who was last reported as present.
    reported: Vec<bool>,
    epoch_seen: u64,
    news: bool,
    /// Which share of the pool each buffer is lent from: a station, or one of the two below.
    share_of: Vec<u8>,
    /// Buffers of each share that are not back yet.
    outstanding: Vec<u32>,
    frames_per_share: u32,
    /// Buffers of the hub that went to our caller, less those that came back from it; negative
    /// where the caller of another port had them.
    lent: i64,
    /// Stations that got frames in this burst and may sleep.
    to_wake: u64,
    /// Where the next receive burst starts.
    next_link: usize,
    /// The last address looked up, with its share.
    last_lookup: (MacBytes, usize),
    counts: Counts,
}

impl LoopbackPort {
    /// Makes a hub of two stations.
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

    /// Makes a hub with one station per MAC address.
    ///
    /// # Errors
    /// A configuration outside its bounds; no memory.
    pub fn hub(config: &LoopbackConfig) -> Result<Vec<Self>, LoopbackError> {
        config.check()?;
        let count = config.macs.len();
        let pools: Result<Vec<_>, _> = (0..count).map(|station| pool(config, station)).collect();
        let pools = pools?;
        let hub = Arc::new(hub(config, &pools));
        let links = links(count, config.frames_per_ring);
        let ports = pools.into_iter().zip(links).enumerate();
        let ports = ports.map(|(own, (pool, links))| Self {
            capabilities: Capabilities {
                driver: "loopback",
                device: config.device.clone(),
                mac: config.macs[own],
                interface_mac: None,
                max_frame_bytes: config.max_frame_bytes as usize,
                lossless: true,
                send_alone: true,
            },
            hub: Arc::clone(&hub),
            own,
            links,
            present: vec![true; count],
            reported: (0..count).map(|station| station == own).collect(),
            epoch_seen: 0,
            news: true,
            share_of: vec![0; pool.config().buffers as usize],
            pool,
            outstanding: vec![0; count + 2],
            frames_per_share: config.frames_per_ring,
            lent: 0,
            to_wake: 0,
            next_link: 0,
            last_lookup: (config.macs[own], own),
            counts: Counts::default(),
        });
        Ok(ports.collect())
    }

    /// The share of the pool for addresses that nobody has.
    fn nobody(&self) -> usize {
        self.links.len()
    }

    /// The share of the pool for group addresses.
    fn group(&self) -> usize {
        self.links.len() + 1
    }

    /// Learns who has left, if anyone has.
    #[inline]
    fn refresh(&mut self) {
        let epoch = self.hub.epoch();
        if epoch == self.epoch_seen {
            return;
        }
        self.epoch_seen = epoch;
        self.news = true;
        for (station, present) in self.present.iter_mut().enumerate() {
            *present = self.hub.is_present(station);
        }
        self.last_lookup = (self.capabilities.mac, self.own);
    }

    /// Which share a buffer for this address is lent from.
    #[inline]
    fn share(&mut self, dst: MacBytes) -> usize {
        if self.last_lookup.0 == dst {
            return self.last_lookup.1;
        }
        let share = if is_group(dst) {
            self.group()
        } else {
            let stations = self.hub.stations.iter().zip(&self.present);
            let mut known = stations.map(|(station, &present)| present && station.mac == dst);
            known.position(|found| found).unwrap_or(self.nobody())
        };
        self.last_lookup = (dst, share);
        share
    }

    /// Takes back what a station returned.
    fn reclaim(&mut self, station: usize) {
        while let Some(mbuf) = self.links[station].returned.pop() {
            self.take_back(mbuf);
        }
    }

    /// Puts one of our buffers back into the pool.
    fn take_back(&mut self, mbuf: Mbuf) {
        let share = self.share_of[Mempool::index_of(&mbuf) as usize];
        self.outstanding[usize::from(share)] -= 1;
        self.pool.free(mbuf);
    }

    #[inline]
    fn lend(&mut self, share: usize) -> Option<Mbuf> {
        if self.outstanding[share] == self.frames_per_share && share < self.links.len() {
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
            // A received buffer is nobody's to send.
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
        } else if share == self.group() {
            self.transmit_to_group(mbuf);
        } else if share < self.links.len() && self.present[share] {
            self.deliver(share, mbuf);
        } else {
            self.counts.drop_unknown_destination += 1;
            self.take_back(mbuf);
        }
    }

    /// Hands a buffer to a station. The ring is as long as the share, so there is room.
    #[inline]
    fn deliver(&mut self, station: usize, mbuf: Mbuf) {
        match self.links[station].sent.push(mbuf) {
            Ok(()) => self.to_wake |= 1 << station,
            Err(mbuf) => {
                self.counts.drop_foreign_buffer += 1;
                self.take_back(mbuf);
            }
        }
    }

    fn transmit_to_group(&mut self, mbuf: Mbuf) {
        for station in 0..self.links.len() {
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

    /// Wakes the stations that got something and sleep; ourselves we need not wake.
    fn wake(&mut self) {
        let mut to_wake = core::mem::take(&mut self.to_wake) & !(1 << self.own);
        while to_wake != 0 {
            let station = to_wake.trailing_zeros() as usize;
            to_wake &= to_wake - 1;
            self.counts.wakes += u64::from(self.hub.stations[station].bell.ring());
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
        let count = self.links.len();
        let mut added = 0;
        for turn in 0..count {
            if added == max {
                break;
            }
            let link = &mut self.links[(self.next_link + turn) % count];
            while added < max
                && let Some(mbuf) = link.received.pop()
            {
                self.counts.rx_frames += 1;
                self.counts.rx_bytes += mbuf.len() as u64;
                let pushed = batch.push(mbuf);
                debug_assert!(pushed.is_ok(), "room was checked");
                added += 1;
            }
        }
        self.next_link = (self.next_link + 1) % count;
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
                self.links[station].give_back.push(mbuf).is_ok()
            }
            _ => false,
        };
        self.lent -= i64::from(returned);
        self.counts.drop_foreign_buffer += u64::from(!returned);
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.refresh();
        if !core::mem::take(&mut self.news) {
            return false;
        }
        let before = out.len();
        for station in 0..self.links.len() {
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
        let bell = Arc::clone(&self.hub.stations[self.own].bell);
        WakeSource::Futex {
            expected: bell.arm(),
            word: FutexWord::new(bell as Arc<dyn AsFutexWord + Send + Sync>),
        }
    }

    #[inline]
    fn disarm(&mut self) {
        self.hub.stations[self.own].bell.disarm();
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
        // Callers have buffers of the hub exactly if the sum of all stations is positive, and then
        // at least one of them is. The memory of all stations stays mapped.
        if self.lent > 0 {
            core::mem::forget(Arc::clone(&self.hub));
        }
        self.hub.leave(self.own);
    }
}
