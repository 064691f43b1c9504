//! The sockets of a VI/TCP NIC in the place of a port: no frames go through it, and a thread that
//! sleeps is woken by what comes.

use std::os::fd::RawFd;

use pmd_port::{Capabilities, Mbuf, MbufBatch, Port, PortEvent, PortStats, WakeSource};

/// What stands for a port.
pub(crate) struct StreamPort {
    capabilities: Capabilities,
    watch: RawFd,
}

impl StreamPort {
    /// `watch` is open for as long as the port is used.
    pub(super) fn new(device: String, watch: RawFd) -> Self {
        Self {
            capabilities: Capabilities {
                driver: "tcp",
                device,
                mac: [0; 6],
                interface_mac: None,
                max_frame_bytes: 0,
                lossless: true,
                send_alone: false,
            },
            watch,
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
        WakeSource::Fd(self.watch)
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}
