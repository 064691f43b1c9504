//! The control calls of an attached NIC that are about memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use super::{ask, remote_nic, remote_tag, tell, tell_if_there};
use crate::attach::message::{Reply, Request};
use crate::attach::offers;
use crate::control::{ControlError, Outcome, attributes};
use crate::device::Device;
use crate::memory::pages::page_range;
use crate::memory::place::{Owner, Place};
use crate::memory::{SharedMemory, shared_memory_of};
use crate::nic::MemSettings;
use crate::resource_error::ResourceError;

fn remote_settings(device: &Device, settings: &MemSettings) -> Outcome<MemSettings> {
    Ok(MemSettings {
        ptag: remote_tag(device, settings.ptag)?,
        ..*settings
    })
}

/// Registers memory in the library, so that descriptors in it can be read, and in the process.
///
/// # Safety
/// As for [`crate::nic::register`].
pub(crate) unsafe fn register(
    device: &'static Device,
    nic: u64,
    (address, length_bytes): (u64, u64),
    settings: &MemSettings,
) -> Outcome<u32> {
    attributes::check_region(device, settings)?;
    let remote = remote_nic(device, nic)?;
    let writable = device.regions.look(address, length_bytes)?;
    // Of whole pages, as it is registered.
    let (fd, shared_at) = offer(device, address, length_bytes)?;
    let settings_there = remote_settings(device, settings)?;
    let request = |shared_at, is_bounce_buffer| Request::Register {
        nic: remote,
        address,
        length_bytes,
        settings: settings_there,
        writable,
        shared_at,
        is_bounce_buffer,
    };
    let (answer, bounce_buffer) = match ask(device, &request(shared_at, false), fd)? {
        Reply::MemoryUnreachable(why) => {
            let buffer = bounce_buffer(device, (address, length_bytes), settings, &why)?;
            let (at, bytes) = (buffer.address().as_ptr(), buffer.len_bytes() as u64);
            let (fd, shared_at) = offer(device, at.expose_provenance() as u64, bytes)?;
            let answer = ask(device, &request(shared_at, true), fd)?;
            (answer, Some(Arc::new(Place::BounceBuffer(buffer))))
        }
        answer => (answer, None),
    };
    let Reply::Region(region) = answer else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    // Checked again under the lock: the opening may be closed or the tag destroyed meanwhile.
    let admit = || {
        remote_nic(device, nic)?;
        attributes::check_region(device, settings)
    };
    let range = (address, length_bytes);
    // Freed outside of the lock: freeing shared memory notifies the process.
    let kept = bounce_buffer.clone();
    let adopted = device
        .regions
        .adopt(nic, region, range, bounce_buffer, admit);
    drop(kept);
    match adopted {
        Ok(()) => Ok(region),
        Err(error) => {
            let undo = Request::Deregister {
                nic: remote,
                address,
                region,
            };
            tell(device, &undo)?;
            Err(error)
        }
    }
}

/// A file descriptor of the shared memory that contains a range, and the offset of the range; none for private memory.
fn offer(
    device: &'static Device,
    address: u64,
    length_bytes: u64,
) -> Outcome<(Option<OwnedFd>, Option<u64>)> {
    let offered = shared_memory_of(address, length_bytes);
    let Some(offered) = offered.map_err(|error| ResourceError::offer(&error))? else {
        return Ok((None, None));
    };
    if offered.is_own {
        offers::free_unmapped();
    }
    offered.allocate_pages(device.config.max_registered_bytes);
    if let Some(link) = device.link() {
        offers::add(offered.memory.as_fd(), link.path(), &device.config.name);
    }
    Ok((Some(offered.memory), Some(offered.offset_bytes)))
}

/// Allocates the bounce buffer of a range that the process cannot reach. The reason is logged once.
fn bounce_buffer(
    device: &'static Device,
    (address, length_bytes): (u64, u64),
    settings: &MemSettings,
    reason: &str,
) -> Outcome<SharedMemory> {
    if settings.rdma_write || settings.rdma_read {
        return Err(refuse_rdma(reason));
    }
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| {
        log::warn!(
            "NIC {}: bounce buffers are used, with one more copy for each message: {reason}; \
             memory of viaduct_alloc needs none",
            device.config.name
        );
    });
    let (base, end) = page_range(address, length_bytes).ok_or(ControlError::InvalidParameter)?;
    let buffer = SharedMemory::allocate((end - base) as usize);
    buffer.map_err(|error| ResourceError::offer(&error).into())
}

/// RDMA of peers would access the bounce buffer, which the library cannot detect.
#[cold]
fn refuse_rdma(reason: &str) -> ControlError {
    log::error!("memory with EnableRdmaWrite or EnableRdmaRead must be of viaduct_alloc: {reason}");
    ResourceError::ProcessRefused.into()
}

pub(crate) fn deregister(
    device: &'static Device,
    nic: u64,
    address: u64,
    region: u32,
) -> Outcome<()> {
    // In the process first: while it is registered there, the handle is not assigned again.
    let request = Request::Deregister {
        nic: remote_nic(device, nic)?,
        address,
        region,
    };
    if device
        .regions
        .query(Owner::PROGRAM, address, region)
        .is_none()
    {
        return Err(ControlError::InvalidParameter);
    }
    tell_if_there(device, &request)?;
    let removed = {
        let _no_turn_runs = device.hold();
        let regions = &device.regions;
        regions.deregister(Owner::PROGRAM, address, region)
    };
    removed.map(drop).ok_or(ControlError::InvalidParameter)
}

pub(crate) fn set_region(
    device: &'static Device,
    nic: u64,
    (address, region): (u64, u32),
    settings: &MemSettings,
) -> Outcome<()> {
    if device
        .regions
        .query(Owner::PROGRAM, address, region)
        .is_none()
    {
        return Err(ControlError::InvalidParameter);
    }
    attributes::check_region(device, settings)?;
    if (settings.rdma_write || settings.rdma_read) && device.regions.has_bounce_buffer(region) {
        return Err(refuse_rdma("the datapath process cannot reach this region"));
    }
    let request = Request::SetRegion {
        nic: remote_nic(device, nic)?,
        address,
        region,
        settings: remote_settings(device, settings)?,
    };
    tell(device, &request)?;
    attributes::set_region(device, Owner::PROGRAM, (address, region), settings)
}
