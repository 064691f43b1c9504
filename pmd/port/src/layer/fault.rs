//! A port that loses, duplicates, reorders, corrupts and delays frames at configured rates.
//!
//! All decisions come from seeded generators, and time is measured in calls of
//! `tx_burst` and `rx_burst`, never by a clock: the same calls meet the same faults. It is a layer for tests:
//! it copies each sent frame once.

mod config;
mod decision;
mod held_frames;
#[cfg(test)]
mod tests;

use core::fmt;
use std::collections::VecDeque;
use std::io;

use crate::mbuf::{Mbuf, MbufBatch};
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::{Capabilities, Counter, MacBytes, Port, PortEvent, PortStats, WakeSource};
pub use config::{FaultConfig, FaultRates};
use decision::{Counts, FaultDecider, Wait};
use held_frames::{HeldFrame, HeldFrames};

/// Faults, buffers and held frames of one direction.
#[derive(Debug)]
struct Direction {
    decider: FaultDecider,
    counts: Counts,
    pool: Mempool,
    held: HeldFrames,
    /// Frames forwarded so far, for frames that are held until others overtook them.
    passed_frames: u64,
}

impl Direction {
    fn new(
        decider: FaultDecider,
        config: &FaultConfig,
        max_frame_bytes: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            decider,
            counts: Counts::default(),
            pool: Mempool::new(MempoolConfig {
                buffers: config.pool_frames,
                buffer_bytes: max_frame_bytes as u32,
                huge_pages: false,
                tag: 0,
            })?,
            held: HeldFrames::new(config.pool_frames as usize),
            passed_frames: 0,
        })
    }

    /// Copies a frame into the own pool; `None` if no buffer is free.
    fn copy_of(&mut self, mbuf: &Mbuf) -> Option<Mbuf> {
        if mbuf.len() <= self.pool.config().buffer_bytes as usize
            && let Some(mut copy) = self.pool.alloc()
        {
            copy_frame(mbuf, &mut copy);
            return Some(copy);
        }
        None
    }

    fn hold(&mut self, mbuf: Mbuf, dst: MacBytes, wait: Wait, call: u64) {
        let held = match wait {
            Wait::None => HeldFrame::until_room(mbuf, dst),
            Wait::Calls(calls) => HeldFrame::until(mbuf, dst, call + calls, u64::MAX),
            Wait::Frames { frames, calls } => {
                HeldFrame::until(mbuf, dst, call + calls, self.passed_frames + frames)
            }
        };
        self.held.push(held);
    }

    /// Frees the held frames; leaks the pool's memory if the caller holds buffers of it.
    fn close(&mut self) {
        while let Some(held) = self.held.take_oldest() {
            self.pool.free(held.mbuf);
        }
        self.pool.leak_if_in_use();
    }

    /// Returns the next held frame that is due.
    fn due(&mut self, call: u64) -> Option<HeldFrame> {
        self.held.take_due(call, self.passed_frames)
    }
}

fn copy_frame(from: &Mbuf, to: &mut Mbuf) {
    to.buffer_mut()[..from.len()].copy_from_slice(from.bytes());
    to.set_len(from.len());
}

fn flip_bit(mbuf: &mut Mbuf, random: u64) {
    let bits = mbuf.len() as u64 * 8;
    if bits > 0 {
        let bit = random % bits;
        mbuf.buffer_mut()[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// A port that injects faults in front of another port.
///
/// `alloc` allocates a buffer of the inner port as well, so that back-pressure
/// is the inner port's. A frame that is held or duplicated needs a buffer of the
/// injector's own pools; without one it is dropped, or not duplicated, and
/// counted. Corruption flips one bit of the frame, addresses included; a sent
/// frame is still delivered to the destination of its allocation.
///
/// Counters, with `tx` or `rx` for the direction: `drop_fault_tx_loss`,
/// `drop_fault_tx_partition`, `drop_fault_tx_pool_dry`,
/// `drop_fault_tx_foreign_buffer`, `fault_tx_duplicated`,
/// `fault_tx_duplicate_pool_dry`, `fault_tx_reordered`, `fault_tx_corrupted`,
/// `fault_tx_delayed`; then those of the inner port.
pub struct FaultInjector<P: Port> {
    inner: P,
    config: FaultConfig,
    capabilities: Capabilities,
    tx: Direction,
    rx: Direction,
    /// Destination of each buffer of the transmit pool.
    lent_for: Vec<MacBytes>,
    /// Buffers of the inner port, one for each lent buffer, in the order in which
    /// they were allocated. Each frame is copied into the oldest one for its
    /// destination, since ports require them in that order.
    reserved: VecDeque<(MacBytes, Mbuf)>,
    /// Frames to be sent by the inner port.
    outbound: MbufBatch,
    partitioned: bool,
    /// Number of the current call of `tx_burst` or `rx_burst`.
    call: u64,
    stats: PortStats,
}

impl<P: Port> FaultInjector<P> {
    /// Wraps a port.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration out of bounds; no memory.
    pub fn new(inner: P, config: FaultConfig) -> io::Result<Self> {
        config.check()?;
        let mut capabilities = inner.capabilities().clone();
        capabilities.lossless &= !config.tx.any() && !config.rx.any();
        let max_frame_bytes = capabilities.max_frame_bytes;
        let (tx_decider, rx_decider) = FaultDecider::pair(&config);
        Ok(Self {
            tx: Direction::new(tx_decider, &config, max_frame_bytes)?,
            rx: Direction::new(rx_decider, &config, max_frame_bytes)?,
            lent_for: vec![[0; 6]; config.pool_frames as usize],
            reserved: VecDeque::with_capacity(config.pool_frames as usize + 1),
            outbound: MbufBatch::new(),
            partitioned: false,
            call: 0,
            stats: PortStats::default(),
            inner,
            config,
            capabilities,
        })
    }

    /// Disconnects the port from all others, in both directions, or reconnects it. Frames
    /// that are due while it is disconnected are dropped and counted.
    pub fn set_partitioned(&mut self, partitioned: bool) {
        self.partitioned = partitioned;
    }

    /// Returns whether the port is disconnected.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned
    }

    /// Returns the wrapped port.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Removes the oldest reserved buffer of the inner port for this destination.
    fn unreserve(&mut self, dst: MacBytes) -> Option<Mbuf> {
        let at = self.reserved.iter().position(|(mac, _)| *mac == dst)?;
        self.reserved.remove(at).map(|(_, mbuf)| mbuf)
    }

    /// Frees one reserved buffer for this destination unsent.
    fn release(&mut self, dst: MacBytes) {
        if let Some(mbuf) = self.unreserve(dst) {
            self.inner.free(mbuf);
        }
    }

    /// Reserves a buffer of the inner port for a frame that has none.
    fn reserve(&mut self, dst: MacBytes) -> bool {
        match self.inner.alloc(dst) {
            Some(mbuf) => {
                self.reserved.push_back((dst, mbuf));
                true
            }
            None => false,
        }
    }

    /// Copies a frame into the oldest reserved buffer for its destination and queues that.
    fn forward(&mut self, mbuf: &Mbuf, dst: MacBytes) {
        if let Some(mut borrowed) = self.unreserve(dst) {
            copy_frame(mbuf, &mut borrowed);
            let pushed = self.outbound.push(borrowed);
            debug_assert!(pushed.is_ok(), "every caller checks for a free slot");
            self.tx.passed_frames += 1;
        }
    }

    fn flush(&mut self) {
        if !self.outbound.is_empty() {
            self.inner.tx_burst(&mut self.outbound);
        }
    }

    fn has_outbound_room(&mut self) -> bool {
        if self.outbound.room() == 0 {
            self.flush();
        }
        self.outbound.room() > 0
    }

    /// Sends the held frames that are due; those without a buffer of the inner port stay held.
    fn send_due(&mut self) {
        for _ in 0..self.tx.held.len() {
            if !self.has_outbound_room() {
                return;
            }
            let Some(held) = self.tx.due(self.call) else {
                return;
            };
            if self.partitioned {
                self.tx.counts.drop_partition += 1;
                self.tx.pool.free(held.mbuf);
            } else if self.reserve(held.dst) {
                self.forward(&held.mbuf, held.dst);
                self.tx.pool.free(held.mbuf);
            } else {
                self.tx.hold(held.mbuf, held.dst, Wait::None, self.call);
            }
        }
    }

    fn transmit(&mut self, mut mbuf: Mbuf) {
        if !self.tx.pool.owns(&mbuf) {
            self.tx.counts.drop_foreign_buffer += 1;
            return self.free(mbuf);
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += mbuf.len() as u64;
        if self.partitioned {
            self.tx.counts.drop_partition += 1;
            return self.free(mbuf);
        }
        let decision = self.tx.decider.decide(&mut self.tx.counts);
        if decision.lost {
            return self.free(mbuf);
        }
        let dst = self.lent_for[Mempool::index_of(&mbuf) as usize];
        if let Some(random) = decision.corrupt {
            flip_bit(&mut mbuf, random);
        }
        if decision.duplicate {
            match self.tx.copy_of(&mbuf) {
                Some(copy) => self.tx.hold(copy, dst, Wait::None, self.call),
                None => self.tx.counts.duplicate_pool_dry += 1,
            }
        }
        if decision.wait == Wait::None {
            self.forward(&mbuf, dst);
            self.tx.pool.free(mbuf);
        } else {
            self.release(dst);
            self.tx.hold(mbuf, dst, decision.wait, self.call);
        }
    }

    /// Applies faults to one frame of the inner port; the resulting frames are in the batch or held.
    fn receive(&mut self, mut mbuf: Mbuf, batch: &mut MbufBatch) {
        if self.partitioned {
            self.rx.counts.drop_partition += 1;
            return self.inner.free(mbuf);
        }
        let decision = self.rx.decider.decide(&mut self.rx.counts);
        if decision.lost {
            return self.inner.free(mbuf);
        }
        if let Some(random) = decision.corrupt {
            flip_bit(&mut mbuf, random);
        }
        if decision.duplicate {
            match self.rx.copy_of(&mbuf) {
                Some(copy) => self.rx.hold(copy, [0; 6], Wait::None, self.call),
                None => self.rx.counts.duplicate_pool_dry += 1,
            }
        }
        if decision.wait == Wait::None {
            return self.deliver(mbuf, batch);
        }
        match self.rx.copy_of(&mbuf) {
            Some(copy) => self.rx.hold(copy, [0; 6], decision.wait, self.call),
            None => self.rx.counts.drop_pool_dry += 1,
        }
        self.inner.free(mbuf);
    }

    /// Adds a frame to the caller's batch, which has a free slot.
    fn deliver(&mut self, mbuf: Mbuf, batch: &mut MbufBatch) {
        self.stats.rx_frames += 1;
        self.stats.rx_bytes += mbuf.len() as u64;
        self.rx.passed_frames += 1;
        let pushed = batch.push(mbuf);
        debug_assert!(pushed.is_ok(), "every caller checks for a free slot");
    }

    /// Delivers held frames that are due until the batch holds `end` frames.
    fn receive_due(&mut self, batch: &mut MbufBatch, end: usize) {
        while batch.len() < end
            && let Some(held) = self.rx.due(self.call)
        {
            if self.partitioned {
                self.rx.counts.drop_partition += 1;
                self.rx.pool.free(held.mbuf);
            } else {
                self.deliver(held.mbuf, batch);
            }
        }
    }
}

impl<P: Port> Port for FaultInjector<P> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        if self.tx.pool.available() == 0 || !self.reserve(dst) {
            return None;
        }
        let mbuf = self.tx.pool.alloc()?;
        self.lent_for[Mempool::index_of(&mbuf) as usize] = dst;
        Some(mbuf)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        self.call += 1;
        self.send_due();
        let before = batch.len();
        while self.has_outbound_room()
            && let Some(mbuf) = batch.pop()
        {
            self.transmit(mbuf);
            self.send_due();
        }
        self.flush();
        before - batch.len()
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        self.call += 1;
        self.send_due();
        self.flush();
        let before = batch.len();
        let end = before + max.min(batch.room());
        self.receive_due(batch, end);
        let mut inbound = MbufBatch::new();
        self.inner.rx_burst(&mut inbound, end - batch.len());
        while let Some(mbuf) = inbound.pop() {
            self.receive(mbuf, batch);
            // The frames still in `inbound` have priority for the free slots.
            self.receive_due(batch, end - inbound.len());
        }
        batch.len() - before
    }

    fn free(&mut self, mbuf: Mbuf) {
        if self.tx.pool.owns(&mbuf) {
            self.release(self.lent_for[Mempool::index_of(&mbuf) as usize]);
            self.tx.pool.free(mbuf);
        } else if self.rx.pool.owns(&mbuf) {
            self.rx.pool.free(mbuf);
        } else {
            self.inner.free(mbuf);
        }
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.inner.events(out)
    }

    /// While frames are held, the source is `Poll`: only further calls make them due.
    fn arm(&mut self) -> WakeSource {
        if self.tx.held.len() + self.rx.held.len() + self.outbound.len() > 0 {
            return WakeSource::Poll;
        }
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn stats(&self) -> PortStats {
        let mut stats = self.stats.clone();
        let own = self.tx.counts.tx_named().into_iter();
        let own = own.chain(self.rx.counts.rx_named());
        stats.counters = own.map(|(name, value)| Counter { name, value }).collect();
        stats.counters.extend(self.inner.stats().counters);
        stats
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        self.inner.change_address(mac)?;
        self.capabilities.mac = mac;
        Ok(())
    }

    fn upkeep(&mut self) {
        self.inner.upkeep();
    }
}

impl<P: Port> Drop for FaultInjector<P> {
    fn drop(&mut self) {
        while let Some((_, mbuf)) = self.reserved.pop_front() {
            self.inner.free(mbuf);
        }
        while let Some(mbuf) = self.outbound.pop() {
            self.inner.free(mbuf);
        }
        self.tx.close();
        self.rx.close();
    }
}

impl<P: Port> fmt::Debug for FaultInjector<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultInjector")
            .field("capabilities", &self.capabilities)
            .field("config", &self.config)
            .field("partitioned", &self.partitioned)
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}
