//! Calls on NICs and protection tags.

use vi_types::{CallError, HostAddress, Outcome};

use super::{LocalCalls, destroy_ptag};
use crate::control_calls::NicCalls;
use crate::device::Device;

impl NicCalls for LocalCalls {
    /// The memory is not accessed any more when its regions are removed, as the handle is closed.
    fn end_access(&self, _device: &'static Device, _nic: u64) -> Outcome<()> {
        Ok(())
    }

    fn native_mtu_bytes(&self, device: &'static Device) -> Outcome<u32> {
        let held = device.lock();
        let local = held.as_ref().and_then(|backend| backend.local());
        let (transport, _) = local.ok_or(CallError::InvalidParameter)?;
        Ok(transport.native_mtu_bytes())
    }

    fn quota(&self, device: &'static Device) -> (u32, u32) {
        (
            device.config.limits.max_vi,
            device.config.limits.max_regions,
        )
    }

    fn counters(&self, device: &'static Device, _nic: u64) -> Outcome<Vec<(String, u64)>> {
        Ok(device.counters())
    }

    fn discovered_hosts(&self, device: &'static Device, _nic: u64) -> Outcome<Vec<HostAddress>> {
        let mut held = device.lock();
        let backend = held.as_mut().ok_or(CallError::InvalidParameter)?;
        device.poll_thread.wake_if_armed(backend);
        // Includes the latest changes.
        backend.poll_thoroughly(&device.shared.doorbells);
        device.wake_waiters(backend);
        let (transport, _) = backend.local().ok_or(CallError::InvalidParameter)?;
        Ok(transport.discovered_hosts())
    }

    fn create_ptag(&self, device: &'static Device, nic: u64) -> Outcome<u64> {
        device
            .nic_handles
            .create_tag(device.shared.number, nic, device.config.limits.max_ptags)
    }

    fn destroy_ptag(&self, device: &'static Device, _nic: u64, ptag: u64) -> Outcome<()> {
        destroy_ptag(device, ptag)
    }
}
