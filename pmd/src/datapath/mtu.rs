//! Reports of an interface MTU that is lowered while a NIC is open, and of connections lost by it.

use pmd_port::MtuChange;
use vi_core::nic_shared::NicShared;

use super::Datapath;

impl Datapath {
    /// Logs that the MTU was lowered below the port's frames, or is sufficient again.
    #[cold]
    pub(crate) fn note_mtu(&mut self, change: MtuChange) {
        let interface = &self.port.capabilities().device;
        let MtuChange {
            opened_bytes,
            now_bytes,
            is_too_low,
        } = change;
        if !is_too_low {
            log::info!("{interface}: the MTU is {now_bytes} bytes, which is enough again");
            self.lowered_mtu = None;
            return;
        }
        log::warn!(
            "{interface}: the MTU was lowered from {opened_bytes} to {now_bytes} bytes: longer frames are dropped, sent \
             or received: `ip link set {interface} mtu {opened_bytes}`"
        );
        self.lowered_mtu = Some(change);
    }

    /// Counts and logs a connection that was lost while the MTU is too low.
    #[cold]
    pub(super) fn note_break_by_mtu(&mut self, nic: &NicShared, vi: u64) {
        self.counters.breaks_by_mtu += 1;
        let interface = &self.port.capabilities().device;
        let line =
            format_args!("VI {vi:#x}: connection lost while the MTU of {interface} is too low");
        nic.log_limited(log::Level::Warn, line);
    }
}
