//! Copies into and out of application memory.
//!
//! Addresses come from the region table: they lie inside a registration whose
//! owner keeps the memory mapped until it is deregistered. The application may
//! change the bytes at any time; nothing here depends on their values.

use crate::sync::Ordering;
use crate::sync::application::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, copy_nonoverlapping};

/// Bytes of an aligned word, which is written atomically.
pub const WORD_BYTES: usize = 8;
/// Maximum bytes of the last aligned word and the partial word after it.
pub const LAST_BYTES: usize = 2 * WORD_BYTES - 1;

/// Copies bytes; eight bytes, the size of most flags and pointers, are copied inline.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == WORD_BYTES {
        // SAFETY: guaranteed by the caller; a constant length makes it one load and one store.
        unsafe { copy_nonoverlapping(from, to, WORD_BYTES) };
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { copy_nonoverlapping(from, to, bytes) };
}

/// Copies application memory into `to`.
///
/// # Safety
/// `from .. from + to.len()` lies inside a registered region.
#[inline]
pub unsafe fn read(from: u64, to: &mut [u8]) {
    // SAFETY: the caller promises a mapped source; `to` is a live slice of the
    // provider's own memory, which never overlaps a registered buffer.
    unsafe { copy(from as *const u8, to.as_mut_ptr(), to.len()) };
}

/// Copies `from` into application memory.
///
/// # Safety
/// `to .. to + from.len()` lies inside a registered, writable region.
#[inline]
pub unsafe fn write(to: u64, from: &[u8]) {
    // SAFETY: as in `read`, with source and target exchanged.
    unsafe { copy(from.as_ptr(), to as *mut u8, from.len()) };
}

/// Copies application memory to application memory. The two ranges may overlap: programs
/// may send from a buffer into which they receive.
///
/// # Safety
/// `from .. from + bytes` lies inside a registered region, and `to .. to + bytes` inside a
/// registered, writable one.
#[inline]
pub unsafe fn between(from: u64, to: u64, bytes: usize) {
    // SAFETY: the caller promises a mapped source and a mapped, writable target.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// Copies `from` into application memory so that a program that polls the last bytes sees them
/// last, and 8-byte aligned words untorn (docs/spec/vipl-rules.md, rule 6). Earlier writes of this
/// thread are visible with the last bytes, on every processor: by release stores.
///
/// # Safety
/// As for [`write()`].
#[inline]
pub unsafe fn write_in_order(to: u64, from: &[u8]) {
    let head = (to.wrapping_neg() & 7) as usize;
    if from.len() <= head {
        // SAFETY: the whole of `from`, as promised by the caller, inside one word.
        unsafe { store_part(to, from) };
        return;
    }
    let (head, rest) = from.split_at(head);
    let (words, tail) = rest.split_at(rest.len() & !7);
    // SAFETY: a prefix of the range promised by the caller.
    unsafe { write(to, head) };
    let aligned = to + head.len() as u64;
    if let Some((body, last)) = words.split_last_chunk::<WORD_BYTES>() {
        // SAFETY: the aligned middle of the range, without its last word.
        unsafe { write(aligned, body) };
        let at = (aligned + body.len() as u64) as *mut u64;
        // SAFETY: 8 bytes of the range promised by the caller, aligned to 8.
        let word = unsafe { AtomicU64::from_ptr(at) };
        // Release: its partner is the application's load of the word it polls.
        word.store(u64::from_ne_bytes(*last), Ordering::Release);
    }
    if !tail.is_empty() {
        // SAFETY: the last bytes of the range promised by the caller, after an aligned word.
        unsafe { store_start(aligned + words.len() as u64, tail) };
    }
}

/// Stores the first bytes of `from` as an integer, if there are enough; returns the remaining range.
macro_rules! store_first {
    ($to:expr, $from:expr, $atomic:ident, $integer:ty) => {
        match $from.split_first_chunk::<{ size_of::<$integer>() }>() {
            Some((first, rest)) => {
                // SAFETY: inside the range promised by the caller, and aligned as the caller checked.
                let part = unsafe { $atomic::from_ptr($to as *mut $integer) };
                // Release: its partner is the application's load of the bytes it polls.
                part.store(<$integer>::from_ne_bytes(*first), Ordering::Release);
                ($to + size_of::<$integer>() as u64, rest)
            }
            None => ($to, $from),
        }
    };
}

/// Stores a part of one aligned word as aligned integers, the last bytes last.
///
/// # Safety
/// As for [`write()`].
#[inline]
unsafe fn store_part(mut to: u64, mut from: &[u8]) {
    if to & 1 != 0 {
        (to, from) = store_first!(to, from, AtomicU8, u8);
    }
    if to & 2 != 0 {
        (to, from) = store_first!(to, from, AtomicU16, u16);
    }
    // SAFETY: guaranteed by the caller; aligned to 4, or less than 2 bytes are left.
    unsafe { store_start(to, from) };
}

/// Stores fewer than 8 bytes at an address that is aligned to 4, or a single byte.
///
/// # Safety
/// As for [`write()`].
#[inline(always)]
unsafe fn store_start(to: u64, from: &[u8]) {
    let (to, from) = store_first!(to, from, AtomicU32, u32);
    let (to, from) = store_first!(to, from, AtomicU16, u16);
    let (_end, _nothing) = store_first!(to, from, AtomicU8, u8);
}

/// Returns the number of bytes before the last aligned word of a range; all of them if the range contains no aligned
/// word.
pub(crate) fn before_last_word(at: u64, bytes: usize) -> usize {
    let words_end = (at + bytes as u64) & !(WORD_BYTES as u64 - 1);
    match words_end.checked_sub(WORD_BYTES as u64) {
        Some(word) if word >= at => (word - at) as usize,
        _ => bytes,
    }
}

/// Returns the number of bytes of a range that may be written in any order before the remaining ones, at most
/// [`LAST_BYTES`], are written by [`write_in_order`].
#[inline]
pub fn before_ordered(at: u64, bytes: usize) -> usize {
    match before_last_word(at, bytes) {
        // A short range without an aligned word.
        all if all == bytes => 0,
        body => body,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn write_in_order_copies_exactly_the_range(
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
