//! The port: bursts, buffers and housekeeping.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::addresses::Addresses;
use super::counts::Counts;
use super::filter;
use super::link::LinkMonitor;
use super::rx::{ETHERNET_HEADER_BYTES, Received, RxDrop, RxRing};
use super::socket::Socket;
use super::tx::{Taken, TxRing};
use crate::mapping::Mapping;
use crate::mbuf::{Mbuf, MbufBatch};
use crate::mempool::Mempool;
use crate::port::{Capabilities, MacBytes, Port, PortEvent, PortStats, WakeSource};

/// Maximum length of an FCoE frame, untagged and without FCS.
const MAX_FRAME_BYTES: u32 = 2172;

/// A port on a network interface.
///
/// Dropping it closes the socket. If the caller still holds buffers then, their
/// memory stays mapped until the process exits.
#[derive(Debug)]
pub struct AfPacketPort {
    pub(super) capabilities: Capabilities,
    pub(super) rx: RxRing,
    pub(super) tx: TxRing,
    pub(super) self_pool: Mempool,
    pub(super) self_queue: VecDeque<Mbuf>,
    pub(super) socket: Socket,
    /// Both rings, receive first.
    pub(super) memory: ManuallyDrop<Mapping>,
    pub(super) addresses: Addresses,
    pub(super) link: LinkMonitor,
    pub(super) counts: Counts,
}

/// Returns the maximum frame length for an MTU.
pub(crate) fn frame_bytes(mtu_bytes: u32) -> u32 {
    mtu_bytes
        .saturating_add(ETHERNET_HEADER_BYTES)
        .min(MAX_FRAME_BYTES)
}

impl AfPacketPort {
    /// Returns whether the interface was up with carrier as of the last
    /// [`Port::upkeep`].
    pub fn link_up(&self) -> bool {
        self.link.state().running
    }

    /// Submits one buffer, or drops and counts it.
    #[inline]
    fn submit(&mut self, mbuf: Mbuf) {
        let bytes = mbuf.bytes();
        let len_bytes = bytes.len() as u32;
        let to_self = bytes.starts_with(&self.capabilities.mac);
        self.counts.tx_frames += 1;
        self.counts.tx_bytes += u64::from(len_bytes);
        let reason = if len_bytes < ETHERNET_HEADER_BYTES {
            &mut self.counts.drop_tx_runt
        } else if len_bytes > frame_bytes(self.link.state().mtu_bytes) {
            &mut self.counts.drop_tx_too_long
        } else if let Some(index) = self.tx.lent_index(&mbuf) {
            if !to_self {
                return self.tx.submit(index, len_bytes);
            }
            &mut self.counts.drop_tx_misaddressed
        } else if self.self_pool.owns(&mbuf) {
            if to_self {
                self.counts.tx_self += 1;
                // Never grows: the pool has only as many buffers as the queue's capacity.
                return self.self_queue.push_back(mbuf);
            }
            &mut self.counts.drop_tx_misaddressed
        } else {
            &mut self.counts.drop_tx_not_lent
        };
        *reason += 1;
        self.free(mbuf);
    }

    /// Makes the kernel send the ready frames of the send ring.
    fn kick(&mut self) {
        let result = self.socket.kick();
        let taken = self.tx.note_taken();
        self.counts.tx_kicks += 1;
        match result {
            Ok(sent_bytes) if sent_bytes == taken.bytes => {}
            // The kernel skipped frames.
            Ok(_) => self.count_skipped(&taken),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENETDOWN | libc::ENXIO) => self.count_skipped(&taken),
                // No send buffer space now, and no count of the bytes taken before.
                _ if taken.bytes > 0 => self.count_skipped(&taken),
                _ => {}
            },
        }
        if self.tx.ready() {
            self.counts.tx_busy += 1;
            if !self.link.state().running {
                self.counts.drop_tx_link_down += self.tx.abandon();
            }
        }
    }

    /// Refreshes the link state, and counts frames that the kernel took and did not
    /// send, which happens only if they exceed an MTU that was lowered.
    #[cold]
    fn count_skipped(&mut self, taken: &Taken) {
        self.link.refresh(&self.socket);
        let limit_bytes = frame_bytes(self.link.state().mtu_bytes);
        self.counts.drop_tx_too_long += self.tx.taken_above(taken, limit_bytes);
    }

    /// Counts a result of the receive ring; returns the frame, or `None` if it is dropped.
    #[inline]
    fn received(&mut self, received: Received) -> Option<Mbuf> {
        let reason = match received {
            Received::Frame {
                mbuf,
                priority_tagged,
            } => {
                self.counts.rx_priority_tagged += u64::from(priority_tagged);
                return Some(mbuf);
            }
            Received::Dropped(reason) => reason,
        };
        *match reason {
            RxDrop::TooLong => &mut self.counts.drop_rx_too_long,
            RxDrop::Runt => &mut self.counts.drop_rx_runt,
            RxDrop::Vlan => &mut self.counts.drop_rx_vlan,
        } += 1;
        None
    }
}

impl Port for AfPacketPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        if dst == self.capabilities.mac {
            return self.self_pool.alloc();
        }
        if let Some(mbuf) = self.tx.alloc() {
            return Some(mbuf);
        }
        if self.tx.ready() {
            self.kick();
        }
        self.tx.alloc()
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut taken = 0;
        while let Some(mbuf) = batch.pop() {
            self.submit(mbuf);
            taken += 1;
        }
        if self.tx.ready() {
            self.kick();
        }
        taken
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        // Frames that the kernel did not take at once must not wait until
        // another frame is sent.
        if self.tx.ready() {
            self.kick();
        }
        let mut added = 0;
        for _ in 0..max.min(batch.room()) {
            let mbuf = match self.self_queue.pop_front() {
                Some(mbuf) => mbuf,
                None => match self.rx.take() {
                    Some(received) => match self.received(received) {
                        Some(mbuf) => mbuf,
                        None => continue,
                    },
                    None => break,
                },
            };
            self.counts.rx_frames += 1;
            self.counts.rx_bytes += mbuf.len() as u64;
            match batch.push(mbuf) {
                Ok(()) => added += 1,
                Err(mbuf) => {
                    self.free(mbuf);
                    break;
                }
            }
        }
        added
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        let Err(mbuf) = self.rx.free(mbuf) else {
            return;
        };
        if let Some(index) = self.tx.lent_index(&mbuf) {
            self.tx.withdraw(index);
            // Frames that waited for this buffer can be sent now.
            if self.tx.ready() {
                self.kick();
            }
        } else if self.self_pool.owns(&mbuf) {
            self.self_pool.free(mbuf);
        } else {
            self.counts.foreign_mbufs += 1;
        }
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.link.report(out)
    }

    fn arm(&mut self) -> WakeSource {
        if self.tx.ready() {
            self.kick();
        }
        self.socket.take_error();
        WakeSource::Fd(self.socket.as_fd().as_raw_fd())
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        self.counts.stats(&self.link)
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let from = self.capabilities.mac;
        if mac != from {
            self.addresses
                .change(&self.socket, from, mac, |ethertypes, destinations| {
                    let mut program = filter::program(ethertypes, destinations);
                    self.socket.attach_filter(&mut program)
                })?;
            self.capabilities.mac = mac;
        }
        Ok(())
    }

    fn upkeep(&mut self) {
        // Does not fail for an open packet socket; a late count is not lost.
        if let Ok(frames) = self.socket.take_ring_full() {
            self.counts.drop_rx_ring_full += frames;
        }
        self.link.refresh(&self.socket);
        if self.tx.ready() {
            self.kick();
        }
    }
}

impl Drop for AfPacketPort {
    fn drop(&mut self) {
        while let Some(mbuf) = self.self_queue.pop_front() {
            self.self_pool.free(mbuf);
        }
        self.self_pool.leak_if_in_use();
        if self.rx.lent_count() == 0 && self.tx.lent_count() == 0 {
            // SAFETY: dropped once, here; no lent buffer points into the
            // mapping, and the rings are not used any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
