//! Threads started where memory may be short.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

/// More than a thread takes until it runs.
const THREAD_BYTES: usize = 8 << 20;
const THREAD_MAPPINGS: usize = 16;

/// Can the process have so many bytes of memory more, in so many mappings?
#[must_use]
pub fn has_memory(bytes: usize, mappings: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    debug_assert!(bytes >= mappings * PAGE_BYTES);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the kernel likes.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return false;
    }
    // Each second page with other rights is a mapping of its own, and parts those beside it.
    let has_room = (1..mappings).step_by(2).all(|page| {
        let page = memory.wrapping_byte_add(page * PAGE_BYTES);
        // SAFETY: a page of the mapping made just now.
        unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_NONE) == 0 }
    });
    // SAFETY: mapped just now, and of nobody else.
    unsafe { libc::munmap(memory, bytes) };
    has_room
}

/// Starts a thread, and waits until it runs. What the system and the C library make for a thread in its beginning ends the
/// program if there is no memory for it: so that is looked for before.
///
/// # Errors
/// ENOMEM: there is no memory for a thread. EAGAIN: a limit on threads is reached.
pub fn start(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    start_from(Builder::new().name(name), run)
}

/// As [`start`], with a stack of `stack_bytes`.
///
/// # Errors
/// As of [`start`].
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
    let begun = Arc::new(Barrier::new(2));
    let thread = {
        let begun = Arc::clone(&begun);
        builder.spawn(move || {
            begun.wait();
            run();
        })?
    };
    begun.wait();
    Ok(thread)
}
