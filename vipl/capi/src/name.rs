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

/// Longest file name, the closing NUL not counted.
const PATH_MAX_BYTES: usize = libc::PATH_MAX as usize - 1;
/// Longest host name, as resolvers count.
const HOST_NAME_MAX_BYTES: usize = 1024;

/// Starts the name service of a NIC; `ns_init_info` is NULL or names a hosts file [VIPL 3.9.1].
///
/// # Safety
/// The pointers are as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSInit(nic_handle: RawHandle, ns_init_info: *mut c_void) -> VipReturn {
    guarded_new("VipNSInit", || {
        let file = if ns_init_info.is_null() {
            None
        } else {
            // SAFETY: a string, as the C caller vouches.
            let name = unsafe { read_string(ns_init_info.cast(), PATH_MAX_BYTES) }?;
            Some(Path::new(OsStr::from_bytes(name.to_bytes())))
        };
        provider::ns_init(nic_from_c(nic_handle), file)
    })
}

/// Finds the `name_index`-th address of a host [VIPL 3.9.2].
///
/// Only the host part of `address` is written. A HostAddressLen of 0 on entry stands for room for
/// a NIC address.
///
/// # Safety
/// The pointers are as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByName(
    nic_handle: RawHandle,
    name: *const c_char,
    address: *mut VipNetAddress,
    name_index: VipUlong,
) -> VipReturn {
    guarded("VipNSGetHostByName", || {
        // SAFETY: NULL or a string, as the C caller vouches.
        let name = unsafe { read_string(name, HOST_NAME_MAX_BYTES) }?;
        // SAFETY: NULL or as roomy as its HostAddressLen says, as the C caller vouches.
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

/// Finds the name of a host address [VIPL 3.9.3].
///
/// `name_len` comes in as the bytes of room at `name` and goes out as the length of the name, or,
/// with `VIP_INVALID_PARAMETER`, as the room that would have been needed.
///
/// # Safety
/// The pointers are as the crate's documentation says, `name` having `*name_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByAddr(
    nic_handle: RawHandle,
    address: *const VipNetAddress,
    name: *mut c_char,
    name_len: *mut VipUlong,
) -> VipReturn {
    guarded("VipNSGetHostByAddr", || {
        // SAFETY: NULL or as long as its lengths say, as the C caller vouches.
        let host = unsafe { read_host_address(address) }?;
        // SAFETY: NULL or readable, as the C caller vouches.
        let room_bytes = unsafe { read_in(name_len) }?;
        // SAFETY: NULL or writable, as the C caller vouches.
        let len_out = unsafe { Out::new(name_len) }?;
        let name = NonNull::new(name).ok_or(VipError::InvalidParameter)?;
        let found = provider::ns_get_host_by_addr(nic_from_c(nic_handle), &host)?;
        // SAFETY: `name` has as many bytes as `name_len` says, as the C caller vouches.
        unsafe { write_name(name, room_bytes, found.as_bytes(), &len_out) }
    })
}

/// Stores `found` and a NUL at `name`, or says how much room that would take.
///
/// # Safety
/// `name` has `room_bytes` writable bytes.
unsafe fn write_name(
    name: NonNull<c_char>,
    room_bytes: VipUlong,
    found: &[u8],
    len_out: &Out<VipUlong>,
) -> Result<()> {
    let found_bytes = found.len() as VipUlong;
    if room_bytes <= found_bytes {
        len_out.set(found_bytes + 1);
        return Err(VipError::InvalidParameter);
    }
    let target = name.as_ptr().cast::<u8>();
    // SAFETY: the room is greater than the name; Rust's own string cannot overlap it.
    unsafe { target.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
    // SAFETY: and there is room for one more byte.
    unsafe { target.wrapping_add(found.len()).write(0) };
    len_out.set(found_bytes);
    Ok(())
}

/// Ends the name service of a NIC [VIPL 3.9.4].
#[unsafe(no_mangle)]
pub extern "C" fn VipNSShutdown(nic_handle: RawHandle) -> VipReturn {
    guarded("VipNSShutdown", || {
        provider::ns_shutdown(nic_from_c(nic_handle))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes "host" into `room` bytes; gives the outcome, the length told and the bytes.
    fn written(room_bytes: VipUlong) -> (Result<()>, VipUlong, [u8; 8]) {
        let (mut buffer, mut len) = ([0xEE_u8; 8], room_bytes);
        // SAFETY: a local variable.
        let len_out = unsafe { Out::new(&raw mut len) }.expect("not NULL");
        let name = NonNull::new(buffer.as_mut_ptr().cast()).expect("not NULL");
        // SAFETY: the tests say eight bytes of room at most.
        let outcome = unsafe { write_name(name, room_bytes, b"host", &len_out) };
        (outcome, len, buffer)
    }

    #[test]
    fn a_name_that_fits_is_closed_and_measured() {
        assert_eq!(written(5), (Ok(()), 4, *b"host\0\xEE\xEE\xEE"));
    }

    #[test]
    fn a_name_that_does_not_fit_says_what_it_needs() {
        for room_bytes in [0, 4] {
            assert_eq!(
                written(room_bytes),
                (Err(VipError::InvalidParameter), 5, [0xEE; 8])
            );
        }
    }
}
