//! Registers and deregisters memory (VIPL 3.4).

use vi_core::memory::backing::Owner;
use vi_core::memory::table::Removed;
use vi_core::sys;
use vi_types::{CallError, MemAttributes, Outcome, ResourceError};

use super::{LocalCalls, attributes};
use crate::control_calls::MemoryCalls;
use crate::device::Device;

impl MemoryCalls for LocalCalls {
    unsafe fn register(
        &self,
        device: &'static Device,
        nic: u64,
        (address, length_bytes): (u64, u64),
        settings: &MemAttributes,
    ) -> Outcome<u32> {
        attributes::check_region(device, settings)?;
        let mut random = [0u8; 2];
        sys::random_bytes(&mut random);
        let random = u16::from_ne_bytes(random);
        // Repeated atomically with the registration, since the NIC handle may be closed or the tag destroyed meanwhile.
        let admit = || match device.nic_handles.is_open(nic) {
            true => attributes::check_region(device, settings),
            false => Err(CallError::InvalidParameter),
        };
        let regions = &device.shared.regions;
        regions.register(nic, address, length_bytes, random, admit)
    }

    fn deregister(&self, device: &'static Device, _nic: u64, region: (u64, u32)) -> Outcome<()> {
        deregister(device, region)
    }

    fn set_region(
        &self,
        device: &'static Device,
        _nic: u64,
        region: (u64, u32),
        settings: &MemAttributes,
    ) -> Outcome<()> {
        attributes::set_region(device, Owner::PROGRAM, region, settings)
    }
}

/// Waits until a removed region, or right to a region, is not used by another station any more.
pub(super) fn finish(removed: Removed) -> Outcome<()> {
    let in_progress = |_| CallError::Resource(ResourceError::AccessInProgress);
    removed.finish().map_err(in_progress)
}

/// Removes the region of this address and memory handle from the table of this program.
pub(crate) fn deregister(device: &Device, (address, region): (u64, u32)) -> Outcome<()> {
    let removed = {
        let _backend_lock = device.lock();
        let regions = &device.shared.regions;
        regions.deregister(Owner::PROGRAM, address, region)
    };
    finish(removed.ok_or(CallError::InvalidParameter)?)
}
