//! The sockets of a VI/TCP NIC as a [`Port`]: it carries no frames; its epoll descriptor wakes a
//! sleeping thread.

use std::os::fd::RawFd;

use pmd_port::{Capabilities, Mbuf, MbufBatch, Port, PortEvent, PortStats, WakeSource};

/// A port without frames, for the sockets of a NIC.
pub struct StreamPort {
    capabilities: Capabilities,
    epoll_fd: RawFd,
}

impl StreamPort {
    /// Creates the port. The caller keeps `epoll_fd` open as long as the port is used.
    pub(super) fn new(device: String, epoll_fd: RawFd) -> Self {
        Self {
            capabilities: Capabilities {
                driver: "tcp",
                device,
                mac: [0; 6],
                interface_mac: None,
                max_frame_bytes: 0,
                lossless: true,
                send_alone: false,
                next_buffer_bytes: 0,
            },
            epoll_fd,
        }
    }
}

impl Port for StreamPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn alloc(&mut self, _dst: [u8; 6]) -> Option<Mbuf> {
        None
    }

    fn tx_burst(&mut self, _batch: &mut MbufBatch) -> usize {
        0
    }

    fn rx_burst(&mut self, _batch: &mut MbufBatch, _max: usize) -> usize {
        0
    }

    fn free(&mut self, _mbuf: Mbuf) {}

    fn events(&mut self, _out: &mut Vec<PortEvent>) -> bool {
        false
    }

    fn arm(&mut self) -> WakeSource {
        WakeSource::Fd(self.epoll_fd)
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}
