//! Changes of the attributes of VIs and registered memory.

use pmd::nic;

use super::vi_failed;
use crate::types::{MemAttributes, MemoryHandle, NicHandle, Result, ViAttributes, ViHandle};

/// Changes the attributes of an Idle VI, all of them or none (VIPL 3.7.2). Receives that are
/// posted already are checked against the new protection tag when a message uses them.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, `InvalidState` unless the VI is Idle, and
/// `InvalidReliabilityLevel`, `InvalidMtu`, `InvalidQos`, `InvalidPtag`, `InvalidRdmaRead` for
/// attributes that [`create_vi`](super::create_vi) refuses too. Nothing is changed then.
pub fn set_vi_attributes(vi: ViHandle, attributes: &ViAttributes) -> Result<()> {
    let vi = vi.into_raw();
    let changed = nic::set_vi(vi, attributes);
    changed.map_err(|error| vi_failed("VipSetViAttributes", vi, attributes, error))
}

/// Changes the attributes of a registration, all of them or none (VIPL 3.7.4). `address` is the
/// registered address. Access that the new tag and rights do not allow is refused as soon as this
/// returns, also for the remaining frames of a message that has been received in part.
///
/// # Errors
/// `InvalidParameter` for a NIC, address or handle that names no registration, `InvalidPtag` and
/// `InvalidRdmaRead` for attributes that [`register_mem`](super::register_mem) refuses too. Nothing
/// is changed then.
///
/// # Safety
/// The owner of the registered memory permits the peers' access that `attributes` allow, as for
/// [`register_mem`](super::register_mem). Memory of [`Nic::create_region`](crate::Nic::create_region),
/// [`create_buffers`](crate::Nic::create_buffers) and
/// [`create_descriptors`](crate::Nic::create_descriptors) is borrowed as slices: it must not be
/// given RDMA rights.
///
/// ```compile_fail,E0133
/// # let nic = vipl::NicHandle::from_raw(1);
/// let attributes = vipl::MemAttributes { ptag: None, rdma_write: true, rdma_read: false };
/// vipl::provider::set_mem_attributes(nic, 0x1000, vipl::MemoryHandle(1), &attributes)?;
/// # Ok::<(), vipl::VipError>(())
/// ```
pub unsafe fn set_mem_attributes(
    nic_handle: NicHandle,
    address: u64,
    handle: MemoryHandle,
    attributes: &MemAttributes,
) -> Result<()> {
    // SAFETY: the caller's obligation.
    let changed = unsafe { nic::set_region(nic_handle.into_raw(), address, handle.0, attributes) };
    Ok(changed?)
}
