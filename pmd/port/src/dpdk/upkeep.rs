//! What a port does beside its bursts: it looks at the link, starts a device again, and finds lost buffers.

use dpdk_sys::{
    dpdk_sys_alloc_bulk, dpdk_sys_frame, dpdk_sys_free_bulk, dpdk_sys_recover, dpdk_sys_rx_burst,
};
use std::collections::HashSet;

use super::addresses::Reception;
use super::driver::{BULK, DpdkPort};
use crate::af_packet::frame_bytes;
use crate::mbuf::BURST;

impl DpdkPort {
    /// Drops what stands in a ring for a port that was at our end before us.
    pub(super) fn empty_rings(&mut self) {
        if !self.device.is_rings() {
            return;
        }
        loop {
            let (port, room) = (self.device.port, self.room.as_mut_ptr());
            // SAFETY: the device is started; this thread alone has its queues and runs as the lcore.
            let got = unsafe { dpdk_sys_rx_burst(&mut self.caller.0, port, 0, room, BURST as u16) };
            if got == 0 {
                break;
            }
            for at in 0..usize::from(got) {
                self.give_back(self.room[at].mbuf);
            }
        }
    }

    pub(super) fn set_link(&mut self, up: bool) {
        self.link_changes += u64::from(up != self.link_up);
        self.link_up = up;
    }

    pub(super) fn look_at_link(&mut self) {
        let up = match &mut self.reception {
            Reception::Interface { control, link, .. } => {
                link.look(control);
                let limit = frame_bytes(link.now().mtu_bytes) as usize;
                self.tx_limit_bytes = limit.min(self.capabilities.max_frame_bytes);
                link.now().running
            }
            Reception::Device(_) => {
                !self.held && self.device.is_started() && self.device.link_is_up()
            }
        };
        self.set_link(up);
    }

    /// Does what memif's control channel wants: holds still while the other end's memory goes, and starts a client for
    /// which there is a server.
    pub(super) fn heed(&mut self) {
        let wish = self.device.wish();
        self.held = wish.hold;
        if wish.start {
            self.counts.restarts += u64::from(self.device.restart());
        }
    }

    /// Gives buffers back to the pool that bursts lost which were given up: they are neither in it nor ours.
    pub(super) fn recover(&mut self) {
        let given_up = self.caller.0.given_up;
        if given_up == self.accounted || !self.accountable {
            return;
        }
        self.accounted = given_up;
        self.return_buffers();
        let pool = self.buffers.pool.as_ptr();
        let mut pooled: Vec<dpdk_sys_frame> = Vec::with_capacity(self.buffers.count() as usize);
        loop {
            let mut one = dpdk_sys_frame::default();
            // SAFETY: the pool lives, there is room for a record, and this thread alone runs as the lcore.
            if unsafe { dpdk_sys_alloc_bulk(&self.caller.0, pool, &mut one, 1) } == 0 {
                break;
            }
            pooled.push(one);
        }
        let number_of = |frame: &dpdk_sys_frame| self.buffers.number_of(frame.mbuf);
        let in_pool: HashSet<u32> = pooled.iter().filter_map(number_of).collect();
        let lost = |number: &u32| !in_pool.contains(number);
        let lost: Vec<u32> = self.buffers.elsewhere().filter(lost).collect();
        for frames in pooled.chunks(BULK) {
            // SAFETY: the buffers were just taken from the pool, and this thread alone runs as the lcore.
            unsafe { dpdk_sys_free_bulk(&self.caller.0, frames.as_ptr(), frames.len() as u16) };
        }
        for number in lost {
            let frame = dpdk_sys_frame {
                mbuf: self.buffers.mbuf(number),
                ..dpdk_sys_frame::default()
            };
            // SAFETY: a buffer of the pool that is not in it, nor the caller's, nor the port's; the device holds none
            // between two bursts. This thread alone runs as the lcore.
            unsafe { dpdk_sys_recover(&self.caller.0, &frame, 1) };
            self.counts.buffers_recovered += 1;
        }
    }
}
