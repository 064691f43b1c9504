//! Bytes in and out of application memory.
//!
//! Addresses come from the region table: they lie inside a registration whose
//! owner promised that the memory stays mapped until it is deregistered. The
//! application may change the bytes at any time; nothing here depends on them.

use crate::sync::{AtomicU64, Ordering, compiler_fence};

/// Copies bytes; eight, the size of most flags and pointers, without a call.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == 8 {
        // SAFETY: eight bytes, as the caller promises.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: likewise.
        unsafe { to.cast::<u64>().write_unaligned(word) };
        return;
    }
    // SAFETY: passed on from our caller.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Copies application memory into `to`.
///
/// # Safety
/// `from .. from + to.len()` lies inside a registered region.
#[inline]
pub(crate) unsafe fn read(from: u64, to: &mut [u8]) {
    // SAFETY: the caller promises a mapped source; `to` is a live slice of the
    // provider's own memory, which never overlaps a registered buffer.
    unsafe { copy(from as *const u8, to.as_mut_ptr(), to.len()) };
}

/// Copies `from` into application memory.
///
/// # Safety
/// `to .. to + from.len()` lies inside a registered, writable region.
#[inline]
pub(crate) unsafe fn write(to: u64, from: &[u8]) {
    // SAFETY: as in `read`, the other way round.
    unsafe { copy(from.as_ptr(), to as *mut u8, from.len()) };
}

/// Copies application memory to application memory. The two may overlap: both belong to programs,
/// which may send from the buffer into which they receive.
///
/// # Safety
/// `from .. from + bytes` lies inside a registered region, and `to .. to + bytes` inside a
/// registered, writable one.
#[inline]
pub(crate) unsafe fn between(from: u64, to: u64, bytes: usize) {
    // SAFETY: the caller promises a mapped source and a mapped, writable target.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// What is written after this is seen after what was written before: the compiler must not change
/// that, and on this architecture stores stay in order.
#[inline]
pub(crate) fn in_order() {
    compiler_fence(Ordering::Release);
}

/// Copies `from` into application memory so that whoever polls the last bytes
/// sees them last, and 8-byte aligned words whole (vipl-semantics 7, rule 6).
///
/// # Safety
/// As for [`write`].
#[inline]
pub(crate) unsafe fn write_in_order(to: u64, from: &[u8]) {
    let head = ((8 - (to & 7)) & 7) as usize;
    if from.len() <= head {
        // SAFETY: the whole of `from`, as promised by the caller.
        unsafe { write(to, from) };
        return;
    }
    let (head, rest) = from.split_at(head);
    let (words, tail) = rest.split_at(rest.len() & !7);
    // SAFETY: a prefix of the range promised by the caller.
    unsafe { write(to, head) };
    let aligned = to + head.len() as u64;
    if let Some((body, last)) = words.split_last_chunk::<8>() {
        // SAFETY: the aligned middle of the range, without its last word.
        unsafe { write(aligned, body) };
        let at = (aligned + body.len() as u64) as *mut u64;
        // SAFETY: 8 bytes of the range promised by the caller, aligned to 8.
        let word = unsafe { AtomicU64::from_ptr(at) };
        // Release: its partner is the application's load of the word it polls.
        word.store(u64::from_ne_bytes(*last), Ordering::Release);
    }
    if !tail.is_empty() {
        // The tail goes after the words.
        in_order();
        // SAFETY: the last bytes of the range promised by the caller.
        unsafe { write(aligned + words.len() as u64, tail) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ordered_writes_copy_every_byte_and_no_other(
            offset in 0usize..24,
            data in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut memory = [0xEEu8; 256];
            // SAFETY: inside `memory`.
            unsafe { write_in_order(memory.as_mut_ptr() as u64 + offset as u64, &data) };
            let end = offset + data.len();
            prop_assert_eq!(&memory[offset..end], &data[..]);
            prop_assert!(memory[..offset].iter().all(|b| *b == 0xEE), "before");
            prop_assert!(memory[end..].iter().all(|b| *b == 0xEE), "after");
        }
    }
}
