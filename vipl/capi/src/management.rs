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

/// Returns the information of type `info_type` in the structure at `sys_man_info`; for
/// `VIP_SMI_AUTODISCOVERY` a `VIP_AUTODISCOVERY_LIST` [VIPL 3.7.6].
///
/// # Safety
/// The pointers are as the crate's documentation requires; so are those in the list's array, which
/// has as many as its count states.
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
        // SAFETY: the caller's obligation.
        unsafe { autodiscovery(nic_from_c(nic_handle), sys_man_info.cast()) }
    })
}

/// Fills the list. With too few entries none is written, and the count is set to the number needed;
/// otherwise to the number written.
///
/// # Safety
/// As for [`VipQuerySystemManagementInfo`].
unsafe fn autodiscovery(nic: NicHandle, list: *mut VipAutodiscoveryList) -> Result<()> {
    // SAFETY: NULL or readable, as the C caller guarantees.
    let input = unsafe { read_in(list) }?;
    let count = list
        .wrapping_byte_add(offset_of!(VipAutodiscoveryList, num_ad_addrs))
        .cast::<VipUlong>();
    // SAFETY: a field of the caller's structure, which is not NULL.
    let count = unsafe { Out::new(count) }?;
    let found = provider::autodiscovery(nic, input.number_of_hops)?;
    let needed = found.len() as VipUlong;
    if input.num_ad_addrs < needed {
        count.set(needed);
        return Err(VipError::ErrorResource);
    }
    // SAFETY: the array has at least `found.len()` entries, as just checked.
    let entries = unsafe { entries(&input, found.len()) }?;
    for (entry, host) in entries.iter().zip(&found) {
        entry.set_host(host);
    }
    count.set(needed);
    Ok(())
}

/// Returns outputs of the first `wanted` entries of the array.
///
/// # Safety
/// The array is NULL or has `wanted` entries; each is NULL or has its stated capacity.
unsafe fn entries(list: &VipAutodiscoveryList, wanted: usize) -> Result<Vec<AddressOut>> {
    if wanted > 0 && list.ad_addr_array.is_null() {
        return Err(VipError::InvalidParameter);
    }
    (0..wanted)
        .map(|at| {
            // SAFETY: inside the array, as the caller of this function guarantees.
            let entry = unsafe { read_in(list.ad_addr_array.wrapping_add(at)) }?;
            // SAFETY: NULL or writable, as the C caller guarantees.
            unsafe { AddressOut::host_with_capacity(entry) }
        })
        .collect()
}
