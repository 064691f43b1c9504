//! Memory that a datapath process can map: the calls of `viaduct.h`, beside those of the guide.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use vipl::SharedMemory;

use crate::guard::guarded_or;

/// Allocates zeroed whole pages of shared memory; NULL on failure, with the reason in `errno`.
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

/// Frees what [`viaduct_alloc`] gave; any other pointer but NULL is told and left alone. Keeps
/// `errno`.
///
/// The memory is not registered any more, as the C caller vouches: it is not there any more.
#[unsafe(no_mangle)]
pub extern "C" fn viaduct_free(memory: *mut c_void) {
    let kept = errno();
    guarded_or("viaduct_free", (), || {
        let Some(address) = NonNull::new(memory.cast::<u8>()) else {
            return;
        };
        // SAFETY: the address is used no more, as the C caller vouches.
        match unsafe { SharedMemory::from_raw(address) } {
            Some(memory) => drop(memory),
            None => {
                vipl::logger::install("vipl");
                log::error!("viaduct_free: {memory:p} is not of viaduct_alloc, or was freed");
            }
        }
    });
    set_errno(kept);
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
