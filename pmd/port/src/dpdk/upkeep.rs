//! Periodic maintenance of a port: link state, restart of a memif client, recovery of lost buffers.

use dpdk_sys::{
    dpdk_sys_alloc_bulk, dpdk_sys_frame, dpdk_sys_free_bulk, dpdk_sys_recover, dpdk_sys_rx_burst,
};
use std::collections::HashSet;

use super::addresses::ReceiveAddresses;
use super::driver::{BULK, DpdkPort};
use crate::af_packet::frame_bytes;
use crate::mbuf::BURST;

impl DpdkPort {
    /// Drops frames in a ring that were sent to the previous port at this endpoint.
    pub(super) fn drain_ring(&mut self) {
        if !self.device.is_ring_pair() {
            return;
        }
        loop {
            let (port, burst) = (self.device.port, self.burst.as_mut_ptr());
            // SAFETY: the device is started; this thread alone has its queues and runs as the lcore.
            let got =
                unsafe { dpdk_sys_rx_burst(&mut self.caller.0, port, 0, burst, BURST as u16) };
            if got == 0 {
                break;
            }
            for at in 0..usize::from(got) {
                self.queue_return(self.burst[at].mbuf);
            }
        }
    }

    pub(super) fn set_link(&mut self, up: bool) {
        self.link_changes += u64::from(up != self.link_up);
        self.link_up = up;
    }

    /// Updates the link state, and the longest frame that can be sent.
    pub(super) fn update_link(&mut self) {
        let up = match &mut self.receive_addresses {
            ReceiveAddresses::Interface { control, link, .. } => {
                link.refresh(control);
                let limit = frame_bytes(link.state().mtu_bytes) as usize;
                self.tx_limit_bytes = limit.min(self.capabilities.max_frame_bytes);
                link.state().running
            }
            ReceiveAddresses::Device(_) => {
                !self.bursts_paused && self.device.is_started() && self.device.link_is_up()
            }
        };
        self.set_link(up);
    }

    /// Serves memif's control channel: pauses bursts while the peer's memory is unmapped, and restarts a client once
    /// its server was found.
    pub(super) fn apply_control_request(&mut self) {
        let request = self.device.control_request();
        self.bursts_paused = request.pause_bursts;
        if request.restart_client {
            self.counts.restarts += u64::from(self.device.restart());
        }
    }

    /// Returns buffers to the pool that aborted bursts lost: those that are neither in the pool nor held by the caller
    /// or the port.
    pub(super) fn recover_buffers(&mut self) {
        let given_up = self.caller.0.given_up;
        if given_up == self.recovered_bursts || !self.can_recover {
            return;
        }
        self.recovered_bursts = given_up;
        self.flush_returns();
        let pool = self.buffers.pool.as_ptr();
        let mut pooled: Vec<dpdk_sys_frame> = Vec::with_capacity(self.buffers.count() as usize);
        loop {
            let mut frame = dpdk_sys_frame::default();
            // SAFETY: the pool lives, the pointer is valid for a record, and this thread alone runs as the lcore.
            if unsafe { dpdk_sys_alloc_bulk(&self.caller.0, pool, &mut frame, 1) } == 0 {
                break;
            }
            pooled.push(frame);
        }
        let number_of = |frame: &dpdk_sys_frame| self.buffers.number_of(frame.mbuf);
        let in_pool: HashSet<u32> = pooled.iter().filter_map(number_of).collect();
        let lost = |number: &u32| !in_pool.contains(number);
        let lost: Vec<u32> = self.buffers.elsewhere().filter(lost).collect();
        for frames in pooled.chunks(BULK) {
            // SAFETY: the buffers were just allocated from the pool, and this thread alone runs as the lcore.
            unsafe { dpdk_sys_free_bulk(&self.caller.0, frames.as_ptr(), frames.len() as u16) };
        }
        for number in lost {
            let frame = dpdk_sys_frame {
                mbuf: self.buffers.mbuf(number),
                ..dpdk_sys_frame::default()
            };
            // SAFETY: a buffer of the pool that is neither in it nor held by the caller or the port; the device holds
            // none between two bursts. This thread alone runs as the lcore.
            unsafe { dpdk_sys_recover(&self.caller.0, &frame, 1) };
            self.counts.buffers_recovered += 1;
        }
    }
}
