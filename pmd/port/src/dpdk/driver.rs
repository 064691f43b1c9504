//! The port itself: bursts, buffers and upkeep.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::slice;
use std::collections::VecDeque;
use std::io;

use dpdk_sys::{
    DPDK_SYS_BURST_MAX, dpdk_sys_alloc_bulk, dpdk_sys_caller, dpdk_sys_frame, dpdk_sys_free_bulk,
    dpdk_sys_return_lcore, dpdk_sys_rx_burst, dpdk_sys_tx_burst, rte_mbuf,
};

use super::addresses::{Filter, Reception, Verdict};
use super::counts::{Counts, DeviceCounts, State};
use super::device::Device;
use super::eal::Eal;
use super::pool::{Buffers, Holder};
use crate::af_packet::{ETHERNET_HEADER_BYTES, is_station};
use crate::af_xdp::bpf::Link;
use crate::mbuf::{BURST, Mbuf, MbufBatch};
use crate::port::{Capabilities, MacBytes, Port, PortEvent, PortStats, WakeSource};

/// An 802.1Q tag in a frame: its EtherType and the tag control information.
const TAG_BYTES: usize = 4;
/// Buffers that go from and to the pool at a time.
pub(super) const BULK: usize = 32;
const _: () = assert!(BULK <= DPDK_SYS_BURST_MAX as usize && BURST <= DPDK_SYS_BURST_MAX as usize);

/// Who bursts, to DPDK: as an lcore of its own, if there was one left.
#[derive(Debug)]
pub(super) struct Lcore(pub(super) dpdk_sys_caller);

impl Drop for Lcore {
    fn drop(&mut self) {
        if self.0.lcore != dpdk_sys::DPDK_SYS_NO_LCORE {
            // SAFETY: leased for this value, whose port runs no burst any more.
            unsafe { dpdk_sys_return_lcore(self.0.lcore) };
        }
    }
}

/// A port of DPDK's.
///
/// Dropping it stops the device. If the caller still holds buffers then, the memory of the whole pool stays for the
/// rest of the process. In a child by fork it does nothing.
#[derive(Debug)]
pub struct DpdkPort {
    pub(super) capabilities: Capabilities,
    pub(super) eal: &'static Eal,
    pub(super) device: ManuallyDrop<Device>,
    /// The XDP program of net_af_xdp on its interface.
    pub(super) program: Option<Link>,
    pub(super) caller: ManuallyDrop<Lcore>,
    pub(super) buffers: ManuallyDrop<Buffers>,
    pub(super) reception: Reception,
    pub(super) filter: Filter,
    /// Buffers that nobody has, to be lent for sending next.
    pub(super) stock: Vec<u32>,
    /// Buffers on their way to the pool.
    pub(super) returning: Vec<dpdk_sys_frame>,
    /// Buffers that the caller may have for sending, besides those that he has.
    pub(super) to_send_left: u32,
    /// The longest frame that can be sent now.
    pub(super) tx_limit_bytes: usize,
    pub(super) queues: u16,
    /// Which of them is looked at first next time.
    pub(super) next_queue: u16,
    /// For the frames of a burst.
    pub(super) room: Box<[dpdk_sys_frame; BURST]>,
    pub(super) to_self: VecDeque<Mbuf>,
    /// Received frames that the last batch had no room for; devices are asked for whole bursts.
    pub(super) ahead: VecDeque<Mbuf>,
    /// Frames to ourselves come before those of the device next time, and so in turn.
    pub(super) own_first: bool,
    pub(super) link_up: bool,
    pub(super) link_changes: u64,
    /// The other end's memory goes: no burst runs, and the link is down.
    pub(super) held: bool,
    /// The device holds no buffer between two bursts, so that lost ones can be told.
    pub(super) accountable: bool,
    /// Bursts that were given up and whose buffers were looked for.
    pub(super) accounted: u64,
    pub(super) counts: Counts,
    pub(super) device_counts: DeviceCounts,
}

// SAFETY: what points into DPDK's memory is used by whoever has the port, one thread at a time; the lcore goes with it.
unsafe impl Send for DpdkPort {}

/// What becomes of a frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Device,
    Ourselves,
    Runt,
    TooLong,
    NotLent,
    LinkDown,
}

impl DpdkPort {
    /// True if the device's link was up when [`Port::upkeep`] looked last.
    pub fn link_up(&self) -> bool {
        self.link_up
    }

    /// Takes buffers out of the pool; false if it has none.
    #[cold]
    fn restock(&mut self) -> bool {
        self.return_buffers();
        let pool = self.buffers.pool.as_ptr();
        let room = self.room.as_mut_ptr();
        // SAFETY: the pool lives, there is room for the records, and this thread alone runs as the lcore.
        let got = unsafe { dpdk_sys_alloc_bulk(&self.caller.0, pool, room, BULK as u16) };
        for frame in self.room.iter().take(got.into()) {
            if let Some(number) = self.buffers.number_of(frame.mbuf) {
                self.buffers.give(number, Holder::Port);
                self.stock.push(number);
            }
        }
        got > 0
    }

    /// Gives buffers back to the pool.
    pub(super) fn return_buffers(&mut self) {
        for frames in self.returning.chunks(BULK) {
            // SAFETY: the buffers are nobody else's, and this thread alone runs as the lcore.
            unsafe { dpdk_sys_free_bulk(&self.caller.0, frames.as_ptr(), frames.len() as u16) };
        }
        self.returning.clear();
    }

    #[inline]
    pub(super) fn give_back(&mut self, mbuf: *mut rte_mbuf) {
        self.returning.push(dpdk_sys_frame {
            mbuf,
            ..dpdk_sys_frame::default()
        });
        if self.returning.len() >= BULK {
            self.return_buffers();
        }
    }

    #[inline]
    fn fate(&self, mbuf: &Mbuf) -> Fate {
        if mbuf.len() < ETHERNET_HEADER_BYTES as usize {
            Fate::Runt
        } else if mbuf.len() > self.tx_limit_bytes {
            Fate::TooLong
        } else if !matches!(self.buffers.returned(mbuf), Some((_, Holder::ToSend))) {
            Fate::NotLent
        } else if mbuf.bytes().starts_with(&self.capabilities.mac) {
            Fate::Ourselves
        } else if !self.link_up {
            Fate::LinkDown
        } else {
            Fate::Device
        }
    }

    /// Takes frames from the front that the device is not to have; returns how many.
    #[inline]
    fn keep_back(&mut self, batch: &mut MbufBatch) -> usize {
        let mut kept = 0;
        while let Some(fate) = batch.front().map(|mbuf| self.fate(mbuf))
            && fate != Fate::Device
            && let Some(mbuf) = batch.pop()
        {
            self.keep(mbuf, fate);
            kept += 1;
        }
        kept
    }

    #[cold]
    fn keep(&mut self, mbuf: Mbuf, fate: Fate) {
        let counts = &mut self.counts;
        counts.tx_frames += 1;
        counts.tx_bytes += mbuf.len() as u64;
        match fate {
            Fate::Ourselves => {
                counts.tx_self += 1;
                // Never grows: no more buffers than its capacity can be sent.
                return self.to_self.push_back(mbuf);
            }
            Fate::Runt => counts.drop_tx_runt += 1,
            Fate::TooLong => counts.drop_tx_too_long += 1,
            Fate::NotLent => counts.drop_tx_not_lent += 1,
            Fate::Device | Fate::LinkDown => counts.drop_tx_link_down += 1,
        }
        self.free(mbuf);
    }

    /// Gives frames from the front to the device, up to the first that it is not to have; returns how many there were
    /// and how many it took.
    #[inline]
    fn submit(&mut self, batch: &mut MbufBatch) -> (usize, usize) {
        let mut offered = 0;
        for mbuf in batch.iter() {
            if self.fate(mbuf) != Fate::Device {
                break;
            }
            let frame = &mut self.room[offered];
            frame.mbuf = self.buffers.mbuf(mbuf.cookie());
            frame.data = mbuf.bytes().as_ptr().cast_mut();
            frame.len_bytes = mbuf.len() as u32;
            offered += 1;
        }
        if offered == 0 {
            return (0, 0);
        }
        let (port, frames) = (self.device.port, self.room.as_ptr());
        // SAFETY: the device is started, since its link is up; this thread alone has its queues and runs as the lcore;
        // the frames are the caller's to send.
        let taken =
            unsafe { dpdk_sys_tx_burst(&mut self.caller.0, port, 0, frames, offered as u16) };
        for _ in 0..taken {
            let Some(mbuf) = batch.pop() else { break };
            self.counts.tx_frames += 1;
            self.counts.tx_bytes += mbuf.len() as u64;
            self.to_send_left += 1;
            self.buffers.give(mbuf.cookie(), Holder::Elsewhere);
        }
        (offered, taken.into())
    }

    /// Takes a burst from one queue and adds as much of it to the batch as it may; the rest comes first next time.
    /// Returns how many were added.
    #[inline]
    fn receive(&mut self, queue: u16, batch: &mut MbufBatch, most: usize) -> usize {
        let (port, room) = (self.device.port, self.room.as_mut_ptr());
        // SAFETY: the device is started; this thread alone has its queues and runs as the lcore; there is room for a
        // whole burst.
        let got = unsafe { dpdk_sys_rx_burst(&mut self.caller.0, port, queue, room, BURST as u16) };
        if got > 0 && !self.link_up {
            // Whatever was said of the link last, it carries frames.
            self.set_link(true);
        }
        let mut added = 0;
        for at in 0..usize::from(got) {
            let Some(mbuf) = self.take(self.room[at]) else {
                continue;
            };
            if added < most {
                added += self.hand_out(mbuf, batch);
            } else {
                self.ahead.push_back(mbuf);
            }
        }
        added
    }

    /// Adds received frames to the batch: those that were ahead, then those of the device's queues in turn.
    fn receive_some(&mut self, batch: &mut MbufBatch, most: usize) -> usize {
        let mut added = 0;
        while added < most
            && let Some(mbuf) = self.ahead.pop_front()
        {
            added += self.hand_out(mbuf, batch);
        }
        if self.held || !self.device.is_started() {
            return added;
        }
        for _ in 0..self.queues {
            if added == most {
                break;
            }
            added += self.receive(self.next_queue, batch, most - added);
            self.next_queue = (self.next_queue + 1) % self.queues;
        }
        added
    }

    /// Adds frames to ourselves to the batch.
    fn receive_own(&mut self, batch: &mut MbufBatch, most: usize) -> usize {
        let mut added = 0;
        while added < most
            && let Some(mbuf) = self.to_self.pop_front()
        {
            added += self.hand_out(mbuf, batch);
        }
        added
    }

    /// Judges a received frame; `None` if it was dropped.
    #[inline]
    fn take(&mut self, frame: dpdk_sys_frame) -> Option<Mbuf> {
        let Some(number) = self.buffers.received(frame.mbuf, frame.data) else {
            self.counts.drop_rx_foreign_buffer += 1;
            self.give_back(frame.mbuf);
            return None;
        };
        // SAFETY: the shim says where the frame's bytes are, and the buffer is lent to us.
        let bytes = unsafe { slice::from_raw_parts_mut(frame.data, frame.len_bytes as usize) };
        let counts = &mut self.counts;
        let counter = match self.filter.judge(bytes) {
            Verdict::Ours | Verdict::PriorityTagged
                if bytes.len() > self.capabilities.max_frame_bytes + TAG_BYTES =>
            {
                &mut counts.drop_rx_too_long
            }
            Verdict::Ours if bytes.len() > self.capabilities.max_frame_bytes => {
                &mut counts.drop_rx_too_long
            }
            Verdict::Ours => {
                self.buffers.give(number, Holder::Received);
                return self.mbuf(frame, 0, number);
            }
            Verdict::PriorityTagged => {
                counts.rx_priority_tagged += 1;
                bytes.copy_within(..12, TAG_BYTES);
                self.buffers.give(number, Holder::Received);
                return self.mbuf(frame, TAG_BYTES as u32, number);
            }
            Verdict::Runt => &mut counts.drop_rx_runt,
            Verdict::OtherAddress => &mut counts.drop_rx_other_address,
            Verdict::OtherEthertype => &mut counts.drop_rx_other_ethertype,
            Verdict::Vlan => &mut counts.drop_rx_vlan,
        };
        *counter += 1;
        self.give_back(frame.mbuf);
        None
    }

    /// The handle of a received frame without its first bytes, which are fewer than it has. Its buffer is the caller's
    /// now, and had no handle before.
    #[inline]
    fn mbuf(&self, frame: dpdk_sys_frame, skipped_bytes: u32, number: u32) -> Option<Mbuf> {
        let data = NonNull::new(frame.data.wrapping_add(skipped_bytes as usize))?;
        let len_bytes = frame.len_bytes - skipped_bytes;
        let room_bytes = frame.room_bytes - skipped_bytes;
        // SAFETY: the range lies in the buffer, behind the bytes that are skipped, and the buffer stays mapped until
        // the port has it back (drop sees to that). DPDK zeroed its memory, so every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, len_bytes, room_bytes, number) })
    }

    /// Adds a frame to the batch, which has room for it.
    #[inline]
    fn hand_out(&mut self, mbuf: Mbuf, batch: &mut MbufBatch) -> usize {
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
        if self.to_send_left == 0 || (self.stock.is_empty() && !self.restock()) {
            return None;
        }
        let number = self.stock.pop()?;
        self.to_send_left -= 1;
        self.buffers.give(number, Holder::ToSend);
        let data = NonNull::new(self.buffers.data(number))?;
        let capacity = self.capabilities.max_frame_bytes as u32;
        // SAFETY: the range lies in the buffer, which has room for the longest frame and stays mapped until the port
        // has it back (drop sees to that); it is the caller's now, and had no handle before. DPDK zeroed its memory, so
        // every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, 0, capacity, number) })
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut taken = 0;
        loop {
            taken += self.keep_back(batch);
            let (offered, sent) = self.submit(batch);
            taken += sent;
            if sent < offered {
                self.counts.tx_busy += 1;
                if self.device.lost_its_peer() {
                    self.look_at_link();
                }
                break;
            }
            if batch.is_empty() {
                break;
            }
        }
        taken
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        let most = max.min(batch.room());
        if self.to_self.is_empty() {
            return self.receive_some(batch, most);
        }
        // Neither may starve the other.
        self.own_first = !self.own_first;
        if self.own_first {
            let added = self.receive_own(batch, most);
            return added + self.receive_some(batch, most - added);
        }
        let added = self.receive_some(batch, most);
        added + self.receive_own(batch, most - added)
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        match self.buffers.returned(&mbuf) {
            Some((number, Holder::ToSend)) => {
                self.buffers.give(number, Holder::Port);
                self.to_send_left += 1;
                self.stock.push(number);
            }
            Some((number, _)) => {
                self.buffers.give(number, Holder::Elsewhere);
                self.give_back(self.buffers.mbuf(number));
            }
            None => self.counts.foreign_mbufs += 1,
        }
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        match &mut self.reception {
            Reception::Interface { link, .. } => link.tell(out),
            Reception::Device(_) => false,
        }
    }

    fn arm(&mut self) -> WakeSource {
        WakeSource::Poll
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        let for_all = match &self.reception {
            Reception::Interface { .. } => false,
            Reception::Device(own) => own.is_for_all(),
        };
        let state = State {
            drop_rx_in_pieces: self.caller.0.refused,
            bursts_given_up: self.caller.0.given_up,
            link_changes: self.link_changes,
            link_up: self.link_up,
            for_all,
        };
        self.counts.stats(state, &self.device_counts)
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let from = self.capabilities.mac;
        if !is_station(mac) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if mac != from {
            self.reception.change(from, mac)?;
            self.filter = self.reception.filter(mac);
            self.capabilities.mac = mac;
        }
        Ok(())
    }

    fn upkeep(&mut self) {
        self.heed();
        self.look_at_link();
        self.recover();
        self.return_buffers();
        self.device_counts.refresh();
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        if self.eal.is_forked() {
            return;
        }
        while let Some(mbuf) = self.to_self.pop_front().or_else(|| self.ahead.pop_front()) {
            self.free(mbuf);
        }
        while let Some(number) = self.stock.pop() {
            self.buffers.give(number, Holder::Elsewhere);
            self.give_back(self.buffers.mbuf(number));
        }
        self.return_buffers();
        // What is not there any more the device need not take off.
        self.program = None;
        // SAFETY: dropped once, here, and not used after. Its queues give their buffers back.
        unsafe { ManuallyDrop::drop(&mut self.device) };
        // SAFETY: as above; no burst comes any more.
        unsafe { ManuallyDrop::drop(&mut self.caller) };
        // Buffers in the caller's hands keep their memory.
        if self.buffers.lent() == 0 {
            // SAFETY: as above; all buffers are back, and the device is closed.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}
