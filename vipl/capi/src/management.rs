//! System management: autodiscovery [VIPL 3.7.6].

use core::ffi::c_void;
use core::mem::offset_of;

use vipl::{NicHandle, Result, VipError, provider};

use crate::address::AddressOut;
use crate::guard::guarded;
use crate::nic::nic_from_c;
use crate::pointer::{Out, read_in};
use crate::types::{RawHandle, VipAutodiscoveryList, VipReturn, VipUlong};

/// `VIP_SMI_AUTODISCOVERY`.
const AUTODISCOVERY: VipUlong = 1;

/// Tells what `info_type` asks for; `sys_man_info` points to its structure, for
/// `VIP_SMI_AUTODISCOVERY` to a `VIP_AUTODISCOVERY_LIST` [VIPL 3.7.6].
///
/// # Safety
/// The pointers are as the crate's documentation says; so are those in the list's array, which has
/// as many as its count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQuerySystemManagementInfo(
    nic_handle: RawHandle,
    info_type: VipUlong,
    sys_man_info: *mut c_void,
) -> VipReturn {
    guarded("VipQuerySystemManagementInfo", || {
        if info_type != AUTODISCOVERY {
            return Err(VipError::InvalidParameter);
        }
        // SAFETY: passed on from our caller.
        unsafe { autodiscovery(nic_from_c(nic_handle), sys_man_info.cast()) }
    })
}

/// Fills the list. With too few entries none is written, and the count becomes what is needed; with
/// enough it becomes how many were written.
///
/// # Safety
/// As for [`VipQuerySystemManagementInfo`].
unsafe fn autodiscovery(nic: NicHandle, list: *mut VipAutodiscoveryList) -> Result<()> {
    // SAFETY: NULL or readable, as the C caller vouches.
    let asked = unsafe { read_in(list) }?;
    let count = list
        .wrapping_byte_add(offset_of!(VipAutodiscoveryList, num_ad_addrs))
        .cast::<VipUlong>();
    // SAFETY: a field of the caller's structure, which is not NULL.
    let count = unsafe { Out::new(count) }?;
    let found = provider::autodiscovery(nic, asked.number_of_hops)?;
    let needed = found.len() as VipUlong;
    if asked.num_ad_addrs < needed {
        count.set(needed);
        return Err(VipError::ErrorResource);
    }
    // SAFETY: the array has at least so many entries, as just checked.
    let entries = unsafe { entries(&asked, found.len()) }?;
    for (entry, host) in entries.iter().zip(&found) {
        entry.set_host(host);
    }
    count.set(needed);
    Ok(())
}

/// The first `wanted` entries of the array, each with room for a host address.
///
/// # Safety
/// The array is NULL or has so many entries; each is NULL or has as much room as it says.
unsafe fn entries(list: &VipAutodiscoveryList, wanted: usize) -> Result<Vec<AddressOut>> {
    if wanted > 0 && list.ad_addr_array.is_null() {
        return Err(VipError::InvalidParameter);
    }
    (0..wanted)
        .map(|at| {
            // SAFETY: inside the array, as the caller of this function vouches.
            let entry = unsafe { read_in(list.ad_addr_array.wrapping_add(at)) }?;
            // SAFETY: NULL or writable, as the C caller vouches.
            unsafe { AddressOut::host_with_room(entry) }
        })
        .collect()
}
