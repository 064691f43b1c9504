//! Attributes of VIs and registered memory, changed after they were made.

use pmd::ViSettings;
use pmd::nic::{self, MemSettings};

use super::{raw_tag, vi_failed};
use crate::types::{MemAttributes, MemoryHandle, NicHandle, Result, ViAttributes, ViHandle};

/// Attributes of a VI as the poll loop's side takes them.
pub(super) fn vi_settings(attributes: &ViAttributes) -> ViSettings {
    ViSettings {
        reliability: attributes.reliability,
        max_transfer_bytes: attributes.max_transfer_bytes,
        qos: attributes.qos,
        ptag: raw_tag(attributes.ptag),
        rdma_write: attributes.rdma_write,
        rdma_read: attributes.rdma_read,
    }
}

/// Attributes of a region as the poll loop's side takes them.
pub(super) fn mem_settings(attributes: &MemAttributes) -> MemSettings {
    MemSettings {
        ptag: raw_tag(attributes.ptag),
        rdma_write: attributes.rdma_write,
        rdma_read: attributes.rdma_read,
    }
}

/// Changes the attributes of an Idle VI, all of them or none (VIPL 3.7.2). Receives that are
/// posted already are checked against the new protection tag when a message claims them.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, `InvalidState` unless the VI is Idle, and
/// `InvalidReliabilityLevel`, `InvalidMtu`, `InvalidQos`, `InvalidPtag`, `InvalidRdmaRead` for
/// what [`create_vi`](super::create_vi) would refuse too. Nothing changes then.
pub fn set_vi_attributes(vi: ViHandle, attributes: &ViAttributes) -> Result<()> {
    let vi = vi.into_raw();
    let changed = nic::set_vi(vi, &vi_settings(attributes));
    changed.map_err(|error| vi_failed("VipSetViAttributes", vi, attributes, error))
}

/// Changes the attributes of a registration, all of them or none (VIPL 3.7.4). `address` is the
/// one that was registered. What the new tag and rights do not allow is refused from the moment
/// this returns, also the rest of a message that has begun to arrive.
///
/// # Errors
/// `InvalidParameter` for a NIC, address or handle that names no registration, `InvalidPtag` and
/// `InvalidRdmaRead` for what [`register_mem`](super::register_mem) would refuse too. Nothing
/// changes then.
///
/// # Safety
/// The owner of the registered memory allows whatever `attributes` allow peers, as for
/// [`register_mem`](super::register_mem). What [`Nic::create_region`](crate::Nic::create_region),
/// [`create_buffers`](crate::Nic::create_buffers) and
/// [`create_descriptors`](crate::Nic::create_descriptors) made is lent as slices: it must not be
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
    let settings = mem_settings(attributes);
    // SAFETY: passed on from our caller.
    let changed = unsafe { nic::set_region(nic_handle.into_raw(), address, handle.0, &settings) };
    Ok(changed?)
}
