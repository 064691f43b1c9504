//! Protection tags and registered memory [VIPL 3.4, 3.7.5].

use core::ffi::c_void;

use vipl::{MemAttributes, MemoryHandle, PtagHandle, VipError, provider};

use crate::guard::{guarded, guarded_new};
use crate::nic::nic_from_c;
use crate::pointer::{Out, read_in};
use crate::types::{RawHandle, VipMemAttributes, VipReturn, VipUlong, handle_from_c, handle_to_c};

/// Creates a protection tag [VIPL 3.4.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreatePtag(nic_handle: RawHandle, ptag: *mut RawHandle) -> VipReturn {
    guarded_new("VipCreatePtag", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(ptag) }?;
        out.set(handle_to_c(
            provider::create_ptag(nic_from_c(nic_handle))?.into_raw(),
        ));
        Ok(())
    })
}

/// Destroys a protection tag that no VI and no region uses [VIPL 3.4.2].
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyPtag(nic_handle: RawHandle, ptag: RawHandle) -> VipReturn {
    guarded("VipDestroyPtag", || {
        provider::destroy_ptag(
            nic_from_c(nic_handle),
            PtagHandle::from_raw(handle_from_c(ptag)),
        )
    })
}

/// Registers memory for descriptors and buffers [VIPL 3.4.3].
///
/// `memory_handle` is written whenever it is not NULL: 0 on failure. On a NIC with lenient
/// protection NULL for `mem_attribs` means no tag and no RDMA.
///
/// # Safety
/// The pointers are as the crate's documentation requires; the region stays mapped until it is
/// deregistered, and may be changed by peers according to its attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRegisterMem(
    nic_handle: RawHandle,
    virtual_address: *mut c_void,
    length_bytes: VipUlong,
    mem_attribs: *const VipMemAttributes,
    memory_handle: *mut u32,
) -> VipReturn {
    guarded_new("VipRegisterMem", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(memory_handle) }?;
        out.set(0);
        let nic = nic_from_c(nic_handle);
        let attributes = if mem_attribs.is_null() && provider::is_lenient(nic)? {
            MemAttributes::default()
        } else {
            // SAFETY: NULL or readable, as the C caller guarantees.
            unsafe { read_in(mem_attribs) }?.into()
        };
        if virtual_address.is_null() {
            return Err(VipError::InvalidParameter);
        }
        let address = virtual_address.expose_provenance() as u64;
        // SAFETY: the region is memory of the C caller and stays mapped while it is registered,
        // as the caller guarantees.
        let handle = unsafe { provider::register_mem(nic, address, length_bytes, &attributes) }?;
        out.set(handle.0);
        Ok(())
    })
}

/// Deregisters memory [VIPL 3.4.4].
#[unsafe(no_mangle)]
pub extern "C" fn VipDeregisterMem(
    nic_handle: RawHandle,
    virtual_address: *mut c_void,
    memory_handle: u32,
) -> VipReturn {
    guarded("VipDeregisterMem", || {
        let address = virtual_address.addr() as u64;
        provider::deregister_mem(nic_from_c(nic_handle), address, MemoryHandle(memory_handle))
    })
}

/// Returns the attributes of a registered region [VIPL 3.7.5].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryMem(
    nic_handle: RawHandle,
    address: *mut c_void,
    mem_handle: u32,
    mem_attribs: *mut VipMemAttributes,
) -> VipReturn {
    guarded("VipQueryMem", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(mem_attribs) }?;
        let (nic, handle) = (nic_from_c(nic_handle), MemoryHandle(mem_handle));
        out.set((&provider::query_mem(nic, address.addr() as u64, handle)?).into());
        Ok(())
    })
}
