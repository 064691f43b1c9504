//! The port: bursts, buffers and housekeeping.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::counts::{Counts, KernelCounts, TransferMode};
use super::queue::{Receiver, Sender};
use super::send::Standstill;
use super::socket::SocketEpoll;
use super::steering::Steering;
use super::umem::{Returned, Umem};
use crate::af_packet::addresses::Addresses;
use crate::af_packet::link::LinkMonitor;
use crate::af_packet::socket::Socket;
use crate::af_packet::{ETHERNET_HEADER_BYTES, ETHERTYPE_VLAN};
use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{Capabilities, MacBytes, Port, PortEvent, PortStats, WakeSource};

/// An 802.1Q tag in a frame: its EtherType and the tag control information.
const TAG_BYTES: usize = 4;
/// The VLAN identifier in the tag control information.
const VLAN_ID_MASK: u16 = 0x0fff;

/// A port on a network interface.
///
/// Dropping it detaches the program from the interface and closes the sockets. If
/// the caller still holds buffers then, the memory of all of them stays mapped
/// until the process exits.
#[derive(Debug)]
pub struct AfXdpPort {
    pub(super) capabilities: Capabilities,
    pub(super) steering: Steering,
    /// Receivers of the queues, in order; the first queue also sends.
    pub(super) receivers: Box<[Receiver]>,
    /// Chunks of each of them.
    pub(super) rx_chunks: u32,
    /// Source polled first next time: a receiver, or, after the last one, the own frames.
    pub(super) next_source: usize,
    pub(super) sender: Sender,
    /// The send ring had frames that the kernel had not taken as of the last check.
    pub(super) pending: bool,
    /// Nothing is sent, since the interface is down or without carrier, or the port has failed.
    pub(super) blocked: bool,
    /// The interface sends no more frames although it is up.
    pub(super) failed: bool,
    pub(super) standstill: Standstill,
    pub(super) to_self: VecDeque<Mbuf>,
    /// Wake source of several queues.
    pub(super) epoll: Option<SocketEpoll>,
    /// Holds the interface's memberships, and reads its state.
    pub(super) control: Socket,
    pub(super) addresses: Addresses,
    pub(super) link: LinkMonitor,
    pub(super) transfer_mode: TransferMode,
    pub(super) counts: Counts,
    /// Last, so that it outlives the sockets.
    pub(super) umem: Umem,
}

/// Result of receiving one frame.
enum Received {
    Frame(Mbuf),
    Dropped,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
}

impl AfXdpPort {
    /// Returns whether the interface was up with carrier as of the last
    /// [`Port::upkeep`].
    pub fn link_up(&self) -> bool {
        self.link.state().running
    }

    /// Returns whether the interface's driver itself runs the program, before the
    /// kernel has processed the frames.
    pub fn is_native(&self) -> bool {
        self.transfer_mode.native
    }

    /// Returns whether the interface reads and writes the port's buffers itself.
    pub fn is_zero_copy(&self) -> bool {
        self.transfer_mode.zero_copy
    }

    /// Takes a buffer back from the caller; one of a received frame is passed to the kernel again.
    #[inline]
    pub(super) fn give_back(&mut self, mbuf: Mbuf) {
        match self.umem.take_back(&mbuf) {
            Returned::Send => {}
            Returned::Receive(address) => {
                let owner = self.umem.index_of(address) / u64::from(self.rx_chunks);
                let fill = &mut self.receivers[owner as usize].fill;
                fill.push(address);
                fill.publish();
            }
            Returned::Foreign => self.counts.foreign_mbufs += 1,
        }
    }

    /// Takes the oldest frame of a queue; `None` if there is none.
    #[inline]
    fn take(&mut self, receiver: usize) -> Option<Received> {
        let entry = self.receivers[receiver].rx.pop()?;
        let Some(mbuf) = self.umem.lend_received(entry.addr, entry.len) else {
            self.counts.drop_rx_misplaced += 1;
            return Some(Received::Dropped);
        };
        if word(mbuf.bytes(), 12) == Some(ETHERTYPE_VLAN) {
            return Some(self.untag(mbuf));
        }
        Some(self.check_length(mbuf))
    }

    /// Removes a priority tag from a frame by moving both addresses over it.
    fn untag(&mut self, mut mbuf: Mbuf) -> Received {
        let in_vlan = word(mbuf.bytes(), 14).is_none_or(|control| control & VLAN_ID_MASK != 0);
        if in_vlan || mbuf.len() < ETHERNET_HEADER_BYTES as usize + TAG_BYTES {
            // The program redirects none of these.
            self.counts.drop_rx_vlan += 1;
            self.give_back(mbuf);
            return Received::Dropped;
        }
        mbuf.buffer_mut().copy_within(..12, TAG_BYTES);
        self.counts.rx_priority_tagged += 1;
        let mbuf = self.umem.without_front(mbuf, TAG_BYTES as u32);
        self.check_length(mbuf)
    }

    #[inline]
    fn check_length(&mut self, mbuf: Mbuf) -> Received {
        if mbuf.len() > self.capabilities.max_frame_bytes {
            self.counts.drop_rx_too_long += 1;
            self.give_back(mbuf);
            return Received::Dropped;
        }
        Received::Frame(mbuf)
    }

    /// Adds frames of one queue to the batch, examining at most `max`; returns how many were
    /// examined and how many were added.
    #[inline]
    fn receive(&mut self, receiver: usize, batch: &mut MbufBatch, max: usize) -> (usize, usize) {
        let (mut seen, mut added) = (0, 0);
        while seen < max
            && let Some(received) = self.take(receiver)
        {
            seen += 1;
            if let Received::Frame(mbuf) = received {
                added += self.deliver(mbuf, batch);
            }
        }
        if seen > 0 {
            self.receivers[receiver].rx.release();
        }
        (seen, added)
    }

    /// Adds frames to the own address to the batch, at most `max`; as [`AfXdpPort::receive`].
    #[inline]
    fn receive_own(&mut self, batch: &mut MbufBatch, max: usize) -> (usize, usize) {
        let (mut seen, mut added) = (0, 0);
        while seen < max
            && let Some(mbuf) = self.to_self.pop_front()
        {
            seen += 1;
            added += self.deliver(mbuf, batch);
        }
        (seen, added)
    }

    /// Adds a frame to the batch, which has a free slot; returns how many were added.
    #[inline]
    fn deliver(&mut self, mbuf: Mbuf, batch: &mut MbufBatch) -> usize {
        self.counts.rx_frames += 1;
        self.counts.rx_bytes += mbuf.len() as u64;
        match batch.push(mbuf) {
            Ok(()) => 1,
            Err(mbuf) => {
                self.give_back(mbuf);
                0
            }
        }
    }
}

impl Port for AfXdpPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn alloc(&mut self, _: MacBytes) -> Option<Mbuf> {
        if let Some(mbuf) = self.umem.lend_empty() {
            return Some(mbuf);
        }
        if self.pending && !self.blocked {
            self.kick();
        }
        self.reclaim();
        self.umem.lend_empty()
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut taken = 0;
        while let Some(mbuf) = batch.pop() {
            self.submit(mbuf);
            taken += 1;
        }
        if self.pending && !self.blocked {
            self.sender.tx.publish();
            self.kick();
        }
        self.reclaim();
        taken
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        // Frames that the kernel did not take at once must not wait until
        // another frame is sent.
        if self.pending && !self.blocked {
            self.kick();
        }
        let mut room = max.min(batch.room());
        let mut added = 0;
        let sources = self.receivers.len() + 1;
        for offset in 0..sources {
            let source = (self.next_source + offset) % sources;
            let (seen, taken) = if source < self.receivers.len() {
                self.receive(source, batch, room)
            } else {
                self.receive_own(batch, room)
            };
            room -= seen;
            added += taken;
        }
        self.next_source = (self.next_source + 1) % sources;
        for receiver in &self.receivers {
            self.counts.rx_kicks += u64::from(receiver.wake_if_starved());
        }
        added
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        self.give_back(mbuf);
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.link.report(out)
    }

    fn arm(&mut self) -> WakeSource {
        if self.pending && !self.blocked {
            self.kick_before_sleep();
        }
        if self.pending && !self.blocked {
            // No event reports when the kernel can take them.
            return WakeSource::Poll;
        }
        let fd = match &self.epoll {
            Some(epoll) => {
                // poll(2) on one socket makes its driver check for chunks, epoll on several does not.
                for receiver in &self.receivers {
                    self.counts.rx_kicks += u64::from(receiver.wake_before_sleep());
                }
                epoll.as_fd()
            }
            None => self.receivers[0].socket.as_fd(),
        };
        WakeSource::Fd(fd.as_raw_fd())
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        self.counts
            .stats(&self.link, self.transfer_mode, self.umem.under_way())
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let from = self.capabilities.mac;
        if mac != from {
            self.addresses
                .change(&self.control, from, mac, |ethertypes, addresses| {
                    self.steering.change(ethertypes, addresses)
                })?;
            self.capabilities.mac = mac;
        }
        Ok(())
    }

    fn upkeep(&mut self) {
        let mut counted = KernelCounts::default();
        for receiver in &self.receivers {
            // Does not fail for an open socket; the counts are those since it was opened.
            if let Ok(statistics) = receiver.socket.statistics() {
                counted.add(&statistics);
            }
        }
        self.counts.kernel = counted;
        if let Ok(frames) = self.steering.other_queues() {
            self.counts.rx_other_queue = frames;
        }
        self.refresh_link();
        self.check_send_ring();
    }
}

impl Drop for AfXdpPort {
    fn drop(&mut self) {
        // Otherwise these buffers would count as lent and keep all memory mapped.
        while let Some(mbuf) = self.to_self.pop_front() {
            self.umem.take_back(&mbuf);
        }
    }
}
