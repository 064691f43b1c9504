//! The name service [VIPL 3.9].

use core::ffi::{c_char, c_void};
use core::ptr::NonNull;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vipl::{Result, VipError, provider};

use crate::address::{AddressOut, read_host_address};
use crate::guard::{guarded, guarded_new};
use crate::nic::nic_from_c;
use crate::pointer::{Out, read_in, read_string};
use crate::types::{RawHandle, VipNetAddress, VipReturn, VipUlong};

/// Maximum length of a file name in bytes, without the terminating NUL.
const PATH_MAX_BYTES: usize = libc::PATH_MAX as usize - 1;
/// Maximum length of a host name in bytes, as in resolvers.
const HOST_NAME_MAX_BYTES: usize = 1024;

/// Starts the name service of a NIC; `ns_init_info` is NULL or names a hosts file [VIPL 3.9.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSInit(nic_handle: RawHandle, ns_init_info: *mut c_void) -> VipReturn {
    guarded_new("VipNSInit", || {
        let file = if ns_init_info.is_null() {
            None
        } else {
            // SAFETY: a string, as the C caller guarantees.
            let name = unsafe { read_string(ns_init_info.cast(), PATH_MAX_BYTES) }?;
            Some(Path::new(OsStr::from_bytes(name.to_bytes())))
        };
        provider::ns_init(nic_from_c(nic_handle), file)
    })
}

/// Returns the address of a host with number `name_index`, from 0 [VIPL 3.9.2].
///
/// Only the host part of `address` is written. HostAddressLen on entry is its capacity; 0 stands for
/// the length of a NIC address.
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByName(
    nic_handle: RawHandle,
    name: *const c_char,
    address: *mut VipNetAddress,
    name_index: VipUlong,
) -> VipReturn {
    guarded("VipNSGetHostByName", || {
        // SAFETY: NULL or a string, as the C caller guarantees.
        let name = unsafe { read_string(name, HOST_NAME_MAX_BYTES) }?;
        // SAFETY: NULL or with the capacity of its HostAddressLen, as the C caller guarantees.
        let out = unsafe { AddressOut::host_only(address) }?;
        let name = name.to_str().map_err(|_| VipError::InvalidParameter)?;
        out.set_host(&provider::ns_get_host_by_name(
            nic_from_c(nic_handle),
            name,
            name_index,
        )?);
        Ok(())
    })
}

/// Returns the name of a host address [VIPL 3.9.3].
///
/// `name_len` is the capacity of `name` in bytes on entry, and the length of the name on return, or,
/// with `VIP_INVALID_PARAMETER`, the capacity needed.
///
/// # Safety
/// The pointers are as the crate's documentation requires; `name` has `*name_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByAddr(
    nic_handle: RawHandle,
    address: *const VipNetAddress,
    name: *mut c_char,
    name_len: *mut VipUlong,
) -> VipReturn {
    guarded("VipNSGetHostByAddr", || {
        // SAFETY: NULL or as long as its lengths state, as the C caller guarantees.
        let host = unsafe { read_host_address(address) }?;
        // SAFETY: NULL or readable, as the C caller guarantees.
        let capacity_bytes = unsafe { read_in(name_len) }?;
        // SAFETY: NULL or writable, as the C caller guarantees.
        let len_out = unsafe { Out::new(name_len) }?;
        let name = NonNull::new(name).ok_or(VipError::InvalidParameter)?;
        let found = provider::ns_get_host_by_addr(nic_from_c(nic_handle), &host)?;
        // SAFETY: `name` has as many bytes as `name_len` states, as the C caller guarantees.
        unsafe { write_name(name, capacity_bytes, found.as_bytes(), &len_out) }
    })
}

/// Writes `found` and a NUL to `name`, or sets the capacity needed and fails.
///
/// # Safety
/// `name` has `capacity_bytes` writable bytes.
unsafe fn write_name(
    name: NonNull<c_char>,
    capacity_bytes: VipUlong,
    found: &[u8],
    len_out: &Out<VipUlong>,
) -> Result<()> {
    let found_bytes = found.len() as VipUlong;
    if capacity_bytes <= found_bytes {
        len_out.set(found_bytes + 1);
        return Err(VipError::InvalidParameter);
    }
    let target = name.as_ptr().cast::<u8>();
    // SAFETY: the capacity is greater than the length of the name; a string of this crate cannot
    // overlap it.
    unsafe { target.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
    // SAFETY: the capacity includes the terminating NUL.
    unsafe { target.wrapping_add(found.len()).write(0) };
    len_out.set(found_bytes);
    Ok(())
}

/// Stops the name service of a NIC [VIPL 3.9.4].
#[unsafe(no_mangle)]
pub extern "C" fn VipNSShutdown(nic_handle: RawHandle) -> VipReturn {
    guarded("VipNSShutdown", || {
        provider::ns_shutdown(nic_from_c(nic_handle))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes "host" with this capacity; returns the result, the length and the bytes.
    fn written(capacity_bytes: VipUlong) -> (Result<()>, VipUlong, [u8; 8]) {
        let (mut buffer, mut len) = ([0xEE_u8; 8], capacity_bytes);
        // SAFETY: a local variable.
        let len_out = unsafe { Out::new(&raw mut len) }.expect("not NULL");
        let name = NonNull::new(buffer.as_mut_ptr().cast()).expect("not NULL");
        // SAFETY: the tests use a capacity of at most eight bytes.
        let outcome = unsafe { write_name(name, capacity_bytes, b"host", &len_out) };
        (outcome, len, buffer)
    }

    #[test]
    fn write_name_terminates_the_name_and_returns_its_length() {
        assert_eq!(written(5), (Ok(()), 4, *b"host\0\xEE\xEE\xEE"));
    }

    #[test]
    fn write_name_returns_the_capacity_needed_if_the_name_does_not_fit() {
        for capacity_bytes in [0, 4] {
            assert_eq!(
                written(capacity_bytes),
                (Err(VipError::InvalidParameter), 5, [0xEE; 8])
            );
        }
    }
}
