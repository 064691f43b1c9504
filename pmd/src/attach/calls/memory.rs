//! The control calls of an attached NIC for registered memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use vi_core::memory::backing::{Backing, Owner};
use vi_core::memory::pages::page_range;
use vi_core::memory::{SharedMemory, find_memfd};
use vi_types::{CallError, MemAttributes, Outcome, ResourceError};

use super::{AttachedCalls, call, call_done, call_done_unless_lost, remote_nic, remote_tag};
use crate::attach::message::{Reply, Request};
use crate::attach::shared_files;
use crate::control::{self, attributes};
use crate::control_calls::MemoryCalls;
use crate::device::Device;

fn remote_settings(device: &Device, settings: &MemAttributes) -> Outcome<MemAttributes> {
    Ok(MemAttributes {
        ptag: remote_tag(device, settings.ptag)?,
        ..*settings
    })
}

impl MemoryCalls for AttachedCalls {
    /// Registers the memory in the process, and in this library, which reads the descriptors in it.
    unsafe fn register(
        &self,
        device: &'static Device,
        nic: u64,
        (address, length_bytes): (u64, u64),
        settings: &MemAttributes,
    ) -> Outcome<u32> {
        attributes::check_region(device, settings)?;
        let remote = remote_nic(device, nic)?;
        let writable = device.shared.regions.probe_pages(address, length_bytes)?;
        let (fd, shared_at) = share(device, address, length_bytes)?;
        let remote_settings = remote_settings(device, settings)?;
        let request = |shared_at, is_bounce_buffer| Request::Register {
            nic: remote,
            address,
            length_bytes,
            settings: remote_settings,
            writable,
            shared_at,
            is_bounce_buffer,
        };
        let is_private = shared_at.is_none();
        let (reply, backing) = match call(device, &request(shared_at, false), fd)? {
            Reply::MemoryUnreachable(why) => {
                let buffer = bounce_buffer(device, (address, length_bytes), settings, &why)?;
                let (at, bytes) = (buffer.address().as_ptr(), buffer.len_bytes() as u64);
                let (fd, shared_at) = share(device, at.expose_provenance() as u64, bytes)?;
                let reply = call(device, &request(shared_at, true), fd)?;
                (reply, Some(Arc::new(Backing::BounceBuffer(buffer))))
            }
            reply => (reply, is_private.then(|| Arc::new(Backing::Private))),
        };
        let Reply::Region(region) = reply else {
            return Err(ResourceError::ProcessAnswer.into());
        };
        // Checked again under the lock: the NIC handle may be closed or the tag destroyed meanwhile.
        let check = || {
            remote_nic(device, nic)?;
            attributes::check_region(device, settings)
        };
        let range = (address, length_bytes);
        // Freed outside of the lock: freeing shared memory notifies the process.
        let kept = backing.clone();
        let adopted = device
            .shared
            .regions
            .adopt(nic, region, range, backing, check);
        drop(kept);
        match adopted {
            Ok(()) => Ok(region),
            Err(error) => {
                let undo = Request::Deregister {
                    nic: remote,
                    address,
                    region,
                };
                call_done(device, &undo)?;
                Err(error)
            }
        }
    }

    fn deregister(
        &self,
        device: &'static Device,
        nic: u64,
        (address, region): (u64, u32),
    ) -> Outcome<()> {
        // In the process first: while it is registered there, the handle is not assigned again.
        let request = Request::Deregister {
            nic: remote_nic(device, nic)?,
            address,
            region,
        };
        if device
            .shared
            .regions
            .query(Owner::PROGRAM, address, region)
            .is_none()
        {
            return Err(CallError::InvalidParameter);
        }
        call_done_unless_lost(device, &request)?;
        control::deregister(device, (address, region))
    }

    fn set_region(
        &self,
        device: &'static Device,
        nic: u64,
        (address, region): (u64, u32),
        settings: &MemAttributes,
    ) -> Outcome<()> {
        if device
            .shared
            .regions
            .query(Owner::PROGRAM, address, region)
            .is_none()
        {
            return Err(CallError::InvalidParameter);
        }
        attributes::check_region(device, settings)?;
        if (settings.rdma_write || settings.rdma_read)
            && device.shared.regions.has_bounce_buffer(region)
        {
            return Err(refuse_rdma(
                "the datapath process cannot access this region",
            ));
        }
        let request = Request::SetRegion {
            nic: remote_nic(device, nic)?,
            address,
            region,
            settings: remote_settings(device, settings)?,
        };
        call_done(device, &request)?;
        attributes::set_region(device, Owner::PROGRAM, (address, region), settings)
    }
}

/// Returns a file descriptor of the shared memory that contains a range, to be passed to the process, and the offset of
/// the range; none for private memory.
fn share(
    device: &'static Device,
    address: u64,
    length_bytes: u64,
) -> Outcome<(Option<OwnedFd>, Option<u64>)> {
    let shared = find_memfd(address, length_bytes);
    let Some(shared) = shared.map_err(|error| ResourceError::offer(&error))? else {
        return Ok((None, None));
    };
    if shared.is_application_mapped {
        shared_files::free_unmapped();
    }
    shared.allocate_pages(device.config.limits.max_registered_bytes);
    if let Some(control) = device.control() {
        shared_files::add(shared.memory.as_fd(), control.path(), &device.config.name);
    }
    Ok((Some(shared.memory), Some(shared.offset_bytes)))
}

/// Allocates the bounce buffer of a range that the process cannot access. The reason is logged once.
fn bounce_buffer(
    device: &'static Device,
    (address, length_bytes): (u64, u64),
    settings: &MemAttributes,
    reason: &str,
) -> Outcome<SharedMemory> {
    if settings.rdma_write || settings.rdma_read {
        return Err(refuse_rdma(reason));
    }
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| {
        log::warn!(
            "NIC {}: bounce buffers are used, with an additional copy of each message: {reason}; \
             memory of viaduct_alloc needs none",
            device.config.name
        );
    });
    let (base, end) = page_range(address, length_bytes).ok_or(CallError::InvalidParameter)?;
    let buffer = SharedMemory::allocate((end - base) as usize);
    buffer.map_err(|error| ResourceError::offer(&error).into())
}

/// Refuses RDMA rights: RDMA of peers would access the bounce buffer, which the library cannot detect.
#[cold]
fn refuse_rdma(reason: &str) -> CallError {
    log::error!("memory with EnableRdmaWrite or EnableRdmaRead must be of viaduct_alloc: {reason}");
    ResourceError::ProcessRefused.into()
}
