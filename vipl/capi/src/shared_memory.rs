//! Memory that a datapath process can map: calls of `viaduct.h`, an extension of the guide.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use vipl::SharedMemory;

use crate::guard::guarded_or;

/// Allocates zeroed whole pages of shared memory; returns NULL and sets `errno` on failure.
#[unsafe(no_mangle)]
pub extern "C" fn viaduct_alloc(bytes: usize) -> *mut c_void {
    let allocated = guarded_or("viaduct_alloc", Err(libc::ENOMEM), || {
        SharedMemory::allocate(bytes)
            .map(SharedMemory::into_raw)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))
    });
    match allocated {
        Ok(address) => address.as_ptr().cast(),
        Err(reason) => {
            set_errno(reason);
            core::ptr::null_mut()
        }
    }
}

/// Frees memory of [`viaduct_alloc`]. NULL is ignored; any other pointer is logged and ignored.
/// Preserves `errno`.
///
/// The C caller guarantees that the memory is no longer registered or used.
#[unsafe(no_mangle)]
pub extern "C" fn viaduct_free(memory: *mut c_void) {
    let saved = errno();
    guarded_or("viaduct_free", (), || {
        let Some(address) = NonNull::new(memory.cast::<u8>()) else {
            return;
        };
        // SAFETY: the memory is no longer used, as the C caller guarantees.
        match unsafe { SharedMemory::from_raw(address) } {
            Some(memory) => drop(memory),
            None => {
                vipl::logger::install("vipl");
                log::error!(
                    "viaduct_free: {memory:p}: not allocated by viaduct_alloc, or freed already"
                );
            }
        }
    });
    set_errno(saved);
}

fn errno() -> c_int {
    // SAFETY: always valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno }
}

fn set_errno(value: c_int) {
    // SAFETY: always valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno = value };
}
