//! [`DpdkPort`]: bursts, buffers and upkeep.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::slice;
use std::collections::VecDeque;
use std::io;

use dpdk_sys::{
    DPDK_SYS_BURST_MAX, dpdk_sys_alloc_bulk, dpdk_sys_caller, dpdk_sys_frame, dpdk_sys_free_bulk,
    dpdk_sys_return_lcore, dpdk_sys_rx_burst, dpdk_sys_tx_burst, rte_mbuf,
};

use super::addresses::{Filter, ReceiveAddresses, Verdict};
use super::counts::{Counts, DeviceCounts, State};
use super::device::Device;
use super::eal::Eal;
use super::pool::{Buffers, Holder};
use crate::af_packet::{ETHERNET_HEADER_BYTES, is_station};
use crate::af_xdp::bpf::XdpLink;
use crate::mbuf::{BURST, Mbuf, MbufBatch};
use crate::port::{Capabilities, MacBytes, Port, PortEvent, PortStats, WakeSource};

/// Bytes of an 802.1Q tag: its EtherType and the tag control information.
const TAG_BYTES: usize = 4;
/// Buffers that are allocated from or returned to the pool in one call.
pub(super) const BULK: usize = 32;
const _: () = assert!(BULK <= DPDK_SYS_BURST_MAX as usize && BURST <= DPDK_SYS_BURST_MAX as usize);

/// The identity under which a port calls DPDK: a leased lcore, if one was free.
#[derive(Debug)]
pub(super) struct Lcore(pub(super) dpdk_sys_caller);

impl Drop for Lcore {
    fn drop(&mut self) {
        if self.0.lcore != dpdk_sys::DPDK_SYS_NO_LCORE {
            // SAFETY: leased for this value, whose port has ended its bursts.
            unsafe { dpdk_sys_return_lcore(self.0.lcore) };
        }
    }
}

/// A port on a DPDK device.
///
/// Dropping it stops the device. If the caller still holds buffers then, the memory of the whole pool is leaked. In a
/// forked child, dropping it does nothing.
#[derive(Debug)]
pub struct DpdkPort {
    pub(super) capabilities: Capabilities,
    pub(super) eal: &'static Eal,
    pub(super) device: ManuallyDrop<Device>,
    /// The BPF link that keeps net_af_xdp's XDP program attached.
    pub(super) program: Option<XdpLink>,
    pub(super) caller: ManuallyDrop<Lcore>,
    pub(super) buffers: ManuallyDrop<Buffers>,
    pub(super) receive_addresses: ReceiveAddresses,
    pub(super) filter: Filter,
    /// Buffers taken from the pool, to be returned by `alloc` next.
    pub(super) tx_cache: Vec<u32>,
    /// Buffers to return to the pool in the next bulk call.
    pub(super) pending_returns: Vec<dpdk_sys_frame>,
    /// Buffers that `alloc` may still lend: the limit less those that the caller or `to_self` holds.
    pub(super) tx_buffers_left: u32,
    /// Bytes of the longest frame that can be sent now.
    pub(super) tx_limit_bytes: usize,
    pub(super) queues: u16,
    /// The receive queue that is polled first next time.
    pub(super) next_queue: u16,
    /// Records of the frames of one burst, reused.
    pub(super) burst: Box<[dpdk_sys_frame; BURST]>,
    /// Frames to our own address, sent and not yet received.
    pub(super) to_self: VecDeque<Mbuf>,
    /// Received frames that did not fit into the last batch: devices are polled for whole bursts.
    pub(super) rx_backlog: VecDeque<Mbuf>,
    /// Frames to our own address are received before those of the device next time; alternates.
    pub(super) self_first: bool,
    pub(super) link_up: bool,
    pub(super) link_changes: u64,
    /// The peer's memory is being unmapped: no burst runs, and the link is down.
    pub(super) bursts_paused: bool,
    /// The device holds no buffer between two bursts, so that lost buffers can be identified.
    pub(super) can_recover: bool,
    /// Aborted bursts whose buffers were recovered.
    pub(super) recovered_bursts: u64,
    pub(super) counts: Counts,
    pub(super) device_counts: DeviceCounts,
}

// SAFETY: the pointers into DPDK's memory are used only through the port, by one thread at a time; the lcore moves with
// it.
unsafe impl Send for DpdkPort {}

/// Result of checking a frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxVerdict {
    Device,
    ToSelf,
    Runt,
    TooLong,
    NotLent,
    LinkDown,
}

impl DpdkPort {
    /// True if the device's link was up as of the last [`Port::upkeep`].
    pub fn link_up(&self) -> bool {
        self.link_up
    }

    /// Allocates buffers from the pool into the cache; `false` if the pool has none.
    #[cold]
    fn refill_tx_cache(&mut self) -> bool {
        self.flush_returns();
        let pool = self.buffers.pool.as_ptr();
        let frames = self.burst.as_mut_ptr();
        // SAFETY: the pool lives, the pointer is valid for `BULK` records, and this thread alone runs as the lcore.
        let got = unsafe { dpdk_sys_alloc_bulk(&self.caller.0, pool, frames, BULK as u16) };
        for frame in self.burst.iter().take(got.into()) {
            if let Some(number) = self.buffers.number_of(frame.mbuf) {
                self.buffers.set_holder(number, Holder::Port);
                self.tx_cache.push(number);
            }
        }
        got > 0
    }

    /// Returns the pending buffers to the pool.
    pub(super) fn flush_returns(&mut self) {
        for frames in self.pending_returns.chunks(BULK) {
            // SAFETY: the port alone has these buffers, and this thread alone runs as the lcore.
            unsafe { dpdk_sys_free_bulk(&self.caller.0, frames.as_ptr(), frames.len() as u16) };
        }
        self.pending_returns.clear();
    }

    #[inline]
    pub(super) fn queue_return(&mut self, mbuf: *mut rte_mbuf) {
        self.pending_returns.push(dpdk_sys_frame {
            mbuf,
            ..dpdk_sys_frame::default()
        });
        if self.pending_returns.len() >= BULK {
            self.flush_returns();
        }
    }

    #[inline]
    fn tx_verdict(&self, mbuf: &Mbuf) -> TxVerdict {
        if mbuf.len() < ETHERNET_HEADER_BYTES as usize {
            TxVerdict::Runt
        } else if mbuf.len() > self.tx_limit_bytes {
            TxVerdict::TooLong
        } else if !matches!(self.buffers.returned(mbuf), Some((_, Holder::ToSend))) {
            TxVerdict::NotLent
        } else if mbuf.bytes().starts_with(&self.capabilities.mac) {
            TxVerdict::ToSelf
        } else if !self.link_up {
            TxVerdict::LinkDown
        } else {
            TxVerdict::Device
        }
    }

    /// Removes the frames at the front of the batch that are not for the device; returns their number.
    #[inline]
    fn divert_front(&mut self, batch: &mut MbufBatch) -> usize {
        let mut diverted = 0;
        while let Some(verdict) = batch.front().map(|mbuf| self.tx_verdict(mbuf))
            && verdict != TxVerdict::Device
            && let Some(mbuf) = batch.pop()
        {
            self.divert(mbuf, verdict);
            diverted += 1;
        }
        diverted
    }

    /// Delivers a frame to ourselves, or drops and counts it.
    #[cold]
    fn divert(&mut self, mbuf: Mbuf, verdict: TxVerdict) {
        let counts = &mut self.counts;
        counts.tx_frames += 1;
        counts.tx_bytes += mbuf.len() as u64;
        match verdict {
            TxVerdict::ToSelf => {
                counts.tx_self += 1;
                // Never reallocates: the capacity is the number of buffers that can be sent.
                return self.to_self.push_back(mbuf);
            }
            TxVerdict::Runt => counts.drop_tx_runt += 1,
            TxVerdict::TooLong => counts.drop_tx_too_long += 1,
            TxVerdict::NotLent => counts.drop_tx_not_lent += 1,
            TxVerdict::Device | TxVerdict::LinkDown => counts.drop_tx_link_down += 1,
        }
        self.free(mbuf);
    }

    /// Sends frames from the front of the batch, up to the first that is not for the device; returns how many were
    /// offered and how many the device accepted.
    #[inline]
    fn submit(&mut self, batch: &mut MbufBatch) -> (usize, usize) {
        let mut offered = 0;
        for mbuf in batch.iter() {
            if self.tx_verdict(mbuf) != TxVerdict::Device {
                break;
            }
            let frame = &mut self.burst[offered];
            frame.mbuf = self.buffers.mbuf(mbuf.cookie());
            frame.data = mbuf.bytes().as_ptr().cast_mut();
            frame.len_bytes = mbuf.len() as u32;
            offered += 1;
        }
        if offered == 0 {
            return (0, 0);
        }
        let (port, frames) = (self.device.port, self.burst.as_ptr());
        // SAFETY: the device is started, since its link is up; this thread alone has its queues and runs as the lcore;
        // the caller owns the frames.
        let accepted =
            unsafe { dpdk_sys_tx_burst(&mut self.caller.0, port, 0, frames, offered as u16) };
        for _ in 0..accepted {
            let Some(mbuf) = batch.pop() else { break };
            self.counts.tx_frames += 1;
            self.counts.tx_bytes += mbuf.len() as u64;
            self.tx_buffers_left += 1;
            self.buffers.set_holder(mbuf.cookie(), Holder::Elsewhere);
        }
        (offered, accepted.into())
    }

    /// Polls one receive queue for a burst and adds up to `limit` frames to the batch; the others go to the backlog.
    /// Returns how many were added.
    #[inline]
    fn poll_queue(&mut self, queue: u16, batch: &mut MbufBatch, limit: usize) -> usize {
        let (port, burst) = (self.device.port, self.burst.as_mut_ptr());
        // SAFETY: the device is started; this thread alone has its queues and runs as the lcore; the pointer is valid
        // for a whole burst.
        let got =
            unsafe { dpdk_sys_rx_burst(&mut self.caller.0, port, queue, burst, BURST as u16) };
        if got > 0 && !self.link_up {
            // The link delivers frames, whatever state it reported last.
            self.set_link(true);
        }
        let mut added = 0;
        for at in 0..usize::from(got) {
            let Some(mbuf) = self.filter_frame(self.burst[at]) else {
                continue;
            };
            if added < limit {
                added += self.deliver(mbuf, batch);
            } else {
                self.rx_backlog.push_back(mbuf);
            }
        }
        added
    }

    /// Adds received frames to the batch: first the backlog, then those of the device's queues in rotation.
    fn receive_from_device(&mut self, batch: &mut MbufBatch, limit: usize) -> usize {
        let mut added = 0;
        while added < limit
            && let Some(mbuf) = self.rx_backlog.pop_front()
        {
            added += self.deliver(mbuf, batch);
        }
        if self.bursts_paused || !self.device.is_started() {
            return added;
        }
        for _ in 0..self.queues {
            if added == limit {
                break;
            }
            added += self.poll_queue(self.next_queue, batch, limit - added);
            self.next_queue = (self.next_queue + 1) % self.queues;
        }
        added
    }

    /// Adds frames to our own address to the batch.
    fn receive_from_self(&mut self, batch: &mut MbufBatch, limit: usize) -> usize {
        let mut added = 0;
        while added < limit
            && let Some(mbuf) = self.to_self.pop_front()
        {
            added += self.deliver(mbuf, batch);
        }
        added
    }

    /// Filters a received frame; `None` if it was dropped.
    #[inline]
    fn filter_frame(&mut self, frame: dpdk_sys_frame) -> Option<Mbuf> {
        let Some(number) = self.buffers.received(frame.mbuf, frame.data) else {
            self.counts.drop_rx_foreign_buffer += 1;
            self.queue_return(frame.mbuf);
            return None;
        };
        // SAFETY: the shim reports the range of the frame's bytes, and the buffer is ours until it is returned.
        let bytes = unsafe { slice::from_raw_parts_mut(frame.data, frame.len_bytes as usize) };
        let counts = &mut self.counts;
        let counter = match self.filter.classify(bytes) {
            Verdict::Ours | Verdict::PriorityTagged
                if bytes.len() > self.capabilities.max_frame_bytes + TAG_BYTES =>
            {
                &mut counts.drop_rx_too_long
            }
            Verdict::Ours if bytes.len() > self.capabilities.max_frame_bytes => {
                &mut counts.drop_rx_too_long
            }
            Verdict::Ours => {
                self.buffers.set_holder(number, Holder::Received);
                return self.mbuf(frame, 0, number);
            }
            Verdict::PriorityTagged => {
                counts.rx_priority_tagged += 1;
                bytes.copy_within(..12, TAG_BYTES);
                self.buffers.set_holder(number, Holder::Received);
                return self.mbuf(frame, TAG_BYTES as u32, number);
            }
            Verdict::Runt => &mut counts.drop_rx_runt,
            Verdict::OtherAddress => &mut counts.drop_rx_other_address,
            Verdict::OtherEthertype => &mut counts.drop_rx_other_ethertype,
            Verdict::Vlan => &mut counts.drop_rx_vlan,
        };
        *counter += 1;
        self.queue_return(frame.mbuf);
        None
    }

    /// Creates the handle of a received frame without its first `skipped_bytes` bytes, which are fewer than it has. The
    /// buffer belongs to the caller now, and had no handle before.
    #[inline]
    fn mbuf(&self, frame: dpdk_sys_frame, skipped_bytes: u32, number: u32) -> Option<Mbuf> {
        let data = NonNull::new(frame.data.wrapping_add(skipped_bytes as usize))?;
        let len_bytes = frame.len_bytes - skipped_bytes;
        let room_bytes = frame.room_bytes - skipped_bytes;
        // SAFETY: the range lies in the buffer, behind the bytes that are skipped, and the buffer stays mapped until
        // it is returned to the port (see `drop`). DPDK zeroed its memory, so every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, len_bytes, room_bytes, number) })
    }

    /// Adds a frame to the batch, which is not full; returns the number added.
    #[inline]
    fn deliver(&mut self, mbuf: Mbuf, batch: &mut MbufBatch) -> usize {
        self.counts.rx_frames += 1;
        self.counts.rx_bytes += mbuf.len() as u64;
        match batch.push(mbuf) {
            Ok(()) => 1,
            Err(mbuf) => {
                self.free(mbuf);
                0
            }
        }
    }
}

impl Port for DpdkPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn alloc(&mut self, _: MacBytes) -> Option<Mbuf> {
        if self.tx_buffers_left == 0 || (self.tx_cache.is_empty() && !self.refill_tx_cache()) {
            return None;
        }
        let number = self.tx_cache.pop()?;
        self.tx_buffers_left -= 1;
        self.buffers.set_holder(number, Holder::ToSend);
        let data = NonNull::new(self.buffers.data(number))?;
        let capacity = self.capabilities.max_frame_bytes as u32;
        // SAFETY: the range lies in the buffer, which holds the longest frame and stays mapped until it is returned to
        // the port (see `drop`); it belongs to the caller now, and had no handle before. DPDK zeroed its memory, so
        // every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, 0, capacity, number) })
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut accepted = 0;
        loop {
            accepted += self.divert_front(batch);
            let (offered, sent) = self.submit(batch);
            accepted += sent;
            if sent < offered {
                self.counts.tx_busy += 1;
                if self.device.ring_peer_closed() {
                    self.update_link();
                }
                break;
            }
            if batch.is_empty() {
                break;
            }
        }
        accepted
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        let limit = max.min(batch.room());
        if self.to_self.is_empty() {
            return self.receive_from_device(batch, limit);
        }
        // Alternate, so that neither source starves the other.
        self.self_first = !self.self_first;
        if self.self_first {
            let added = self.receive_from_self(batch, limit);
            return added + self.receive_from_device(batch, limit - added);
        }
        let added = self.receive_from_device(batch, limit);
        added + self.receive_from_self(batch, limit - added)
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        match self.buffers.returned(&mbuf) {
            Some((number, Holder::ToSend)) => {
                self.buffers.set_holder(number, Holder::Port);
                self.tx_buffers_left += 1;
                self.tx_cache.push(number);
            }
            Some((number, _)) => {
                self.buffers.set_holder(number, Holder::Elsewhere);
                self.queue_return(self.buffers.mbuf(number));
            }
            None => self.counts.foreign_mbufs += 1,
        }
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        match &mut self.receive_addresses {
            ReceiveAddresses::Interface { link, .. } => link.report(out),
            ReceiveAddresses::Device(_) => false,
        }
    }

    fn arm(&mut self) -> WakeSource {
        WakeSource::Poll
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        let promiscuous = match &self.receive_addresses {
            ReceiveAddresses::Interface { .. } => false,
            ReceiveAddresses::Device(device) => device.is_promiscuous(),
        };
        let state = State {
            drop_rx_in_pieces: self.caller.0.multi_segment_drops,
            bursts_given_up: self.caller.0.given_up,
            link_changes: self.link_changes,
            link_up: self.link_up,
            promiscuous,
        };
        self.counts.stats(state, &self.device_counts)
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let from = self.capabilities.mac;
        if !is_station(mac) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if mac != from {
            self.receive_addresses.change(from, mac)?;
            self.filter = self.receive_addresses.filter(mac);
            self.capabilities.mac = mac;
        }
        Ok(())
    }

    fn upkeep(&mut self) {
        self.apply_control_request();
        self.update_link();
        self.recover_buffers();
        self.flush_returns();
        self.device_counts.refresh();
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        if self.eal.is_forked() {
            return;
        }
        while let Some(mbuf) = self
            .to_self
            .pop_front()
            .or_else(|| self.rx_backlog.pop_front())
        {
            self.free(mbuf);
        }
        while let Some(number) = self.tx_cache.pop() {
            self.buffers.set_holder(number, Holder::Elsewhere);
            self.queue_return(self.buffers.mbuf(number));
        }
        self.flush_returns();
        // Detach the program first: then the device does not try to.
        self.program = None;
        // SAFETY: dropped once, here, and not used after. Its queues return their buffers to the pool.
        unsafe { ManuallyDrop::drop(&mut self.device) };
        // SAFETY: as above; no further burst runs.
        unsafe { ManuallyDrop::drop(&mut self.caller) };
        // Buffers that the caller still holds must stay mapped.
        if self.buffers.lent() == 0 {
            // SAFETY: as above; all buffers are back, and the device is closed.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}
