//! Attributes of VIs and registered memory, changed after they were made [VIPL 3.7.2, 3.7.4].

use core::ffi::c_void;

use vipl::{MemoryHandle, provider};

use crate::guard::guarded;
use crate::nic::nic_from_c;
use crate::pointer::read_in;
use crate::types::{RawHandle, VipMemAttributes, VipReturn, VipViAttributes};
use crate::vi::vi_from_c;

/// Changes the attributes of an Idle VI, all of them or none [VIPL 3.7.2].
///
/// # Safety
/// The pointers are as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetViAttributes(
    vi_handle: RawHandle,
    vi_attribs: *const VipViAttributes,
) -> VipReturn {
    guarded("VipSetViAttributes", || {
        // SAFETY: NULL or readable, as the C caller vouches.
        let attributes = unsafe { read_in(vi_attribs) }?.into();
        provider::set_vi_attributes(vi_from_c(vi_handle), &attributes)
    })
}

/// Changes the attributes of a registered region, all of them or none [VIPL 3.7.4].
///
/// # Safety
/// The pointers are as the crate's documentation says; `address` is not followed. The program bears
/// what the attributes allow peers to do with its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetMemAttributes(
    nic_handle: RawHandle,
    address: *mut c_void,
    mem_handle: u32,
    mem_attribs: *const VipMemAttributes,
) -> VipReturn {
    guarded("VipSetMemAttributes", || {
        // SAFETY: NULL or readable, as the C caller vouches.
        let attributes = unsafe { read_in(mem_attribs) }?.into();
        let (nic, handle) = (nic_from_c(nic_handle), MemoryHandle(mem_handle));
        // SAFETY: the region is the C caller's own memory, who vouches for what peers may do with it.
        unsafe { provider::set_mem_attributes(nic, address.addr() as u64, handle, &attributes) }
    })
}
