//! Starts threads when memory may be short.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

/// More memory and mappings than a thread needs until it runs.
const THREAD_BYTES: usize = 8 << 20;
const THREAD_MAPPINGS: usize = 16;

/// Returns whether the process can map `bytes` more bytes of memory, in `mappings` mappings.
#[must_use]
pub fn has_memory(bytes: usize, mappings: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    debug_assert!(bytes >= mappings * PAGE_BYTES);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return false;
    }
    // Other rights on every second page split the range into that many mappings.
    let has_room = (1..mappings).step_by(2).all(|page| {
        let page = memory.wrapping_byte_add(page * PAGE_BYTES);
        // SAFETY: a page of the mapping made just now.
        unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_NONE) == 0 }
    });
    // SAFETY: mapped just now, and used by no other code.
    unsafe { libc::munmap(memory, bytes) };
    has_room
}

/// Starts a thread, and waits until it runs. The C library aborts the program if it has no memory for what it allocates
/// when a thread starts, so the available memory is checked before.
///
/// # Errors
/// ENOMEM if there is no memory for a thread; EAGAIN if a limit on threads is reached.
pub fn start(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    start_from(Builder::new().name(name), run)
}

/// As [`start`], with a stack of `stack_bytes`.
///
/// # Errors
/// As [`start`].
pub fn start_with_stack(
    name: String,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    start_from(Builder::new().name(name).stack_size(stack_bytes), run)
}

fn start_from(builder: Builder, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if !has_memory(THREAD_BYTES, THREAD_MAPPINGS) {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let started = Arc::new(Barrier::new(2));
    let thread = {
        let started = Arc::clone(&started);
        builder.spawn(move || {
            started.wait();
            run();
        })?
    };
    started.wait();
    Ok(thread)
}
