//! Changes of the attributes of VIs and registered memory [VIPL 3.7.2, 3.7.4].

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
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetViAttributes(
    vi_handle: RawHandle,
    vi_attribs: *const VipViAttributes,
) -> VipReturn {
    guarded("VipSetViAttributes", || {
        // SAFETY: NULL or readable, as the C caller guarantees.
        let attributes = unsafe { read_in(vi_attribs) }?.into();
        provider::set_vi_attributes(vi_from_c(vi_handle), &attributes)
    })
}

/// Changes the attributes of a registered region, all of them or none [VIPL 3.7.4].
///
/// # Safety
/// The pointers are as the crate's documentation requires; `address` is not dereferenced. The program
/// permits the peers' access to its memory that the attributes allow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetMemAttributes(
    nic_handle: RawHandle,
    address: *mut c_void,
    mem_handle: u32,
    mem_attribs: *const VipMemAttributes,
) -> VipReturn {
    guarded("VipSetMemAttributes", || {
        // SAFETY: NULL or readable, as the C caller guarantees.
        let attributes = unsafe { read_in(mem_attribs) }?.into();
        let (nic, handle) = (nic_from_c(nic_handle), MemoryHandle(mem_handle));
        // SAFETY: the region is memory of the C caller, which permits the peers' access.
        unsafe { provider::set_mem_attributes(nic, address.addr() as u64, handle, &attributes) }
    })
}
