//! Bytes in and out of application memory.
//!
//! Addresses come from the region table: they lie inside a registration whose
//! owner promised that the memory stays mapped until it is deregistered. The
//! application may change the bytes at any time; nothing here depends on them.

use crate::sync::Ordering;
use crate::sync::application::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, copy_nonoverlapping};

/// Bytes of an aligned word, which is written whole.
pub(crate) const WORD_BYTES: usize = 8;
/// Bytes of an aligned word and of what may stand behind it, at most.
pub(crate) const LAST_BYTES: usize = 2 * WORD_BYTES - 1;

/// Copies bytes; eight, the size of most flags and pointers, without a call.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == WORD_BYTES {
        // SAFETY: passed on from our caller; a constant length makes it one load and one store.
        unsafe { copy_nonoverlapping(from, to, WORD_BYTES) };
        return;
    }
    // SAFETY: passed on from our caller.
    unsafe { copy_nonoverlapping(from, to, bytes) };
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

/// Copies `from` into application memory so that a program that polls the last bytes sees them
/// last, and 8-byte aligned words whole (docs/spec/vipl-rules.md, rule 6). Everything that this
/// thread wrote before is visible with the last bytes, too: on every processor, by release stores.
///
/// # Safety
/// As for [`write`].
#[inline]
pub(crate) unsafe fn write_in_order(to: u64, from: &[u8]) {
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
        // SAFETY: the last bytes of the range promised by the caller, behind an aligned word.
        unsafe { store_start(aligned + words.len() as u64, tail) };
    }
}

/// Stores the first `bytes` of `from` as an integer; what is left of the range, the whole of it if
/// it is shorter.
macro_rules! store_first {
    ($to:expr, $from:expr, $atomic:ident, $integer:ty) => {
        match $from.split_first_chunk::<{ size_of::<$integer>() }>() {
            Some((first, rest)) => {
                // SAFETY: inside the range promised by the caller, and aligned as the caller found.
                let part = unsafe { $atomic::from_ptr($to as *mut $integer) };
                // Release: its partner is the application's load of the bytes it polls.
                part.store(<$integer>::from_ne_bytes(*first), Ordering::Release);
                ($to + size_of::<$integer>() as u64, rest)
            }
            None => ($to, $from),
        }
    };
}

/// Stores a part of one aligned word by aligned integers, the last bytes last.
///
/// # Safety
/// As for [`write`].
#[inline]
unsafe fn store_part(mut to: u64, mut from: &[u8]) {
    if to & 1 != 0 {
        (to, from) = store_first!(to, from, AtomicU8, u8);
    }
    if to & 2 != 0 {
        (to, from) = store_first!(to, from, AtomicU16, u16);
    }
    // SAFETY: passed on from our caller; aligned to 4, or less than 2 bytes are left.
    unsafe { store_start(to, from) };
}

/// Stores fewer than 8 bytes, of which the first is aligned to 4 or the only one.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn store_start(to: u64, from: &[u8]) {
    let (to, from) = store_first!(to, from, AtomicU32, u32);
    let (to, from) = store_first!(to, from, AtomicU16, u16);
    let (_end, _nothing) = store_first!(to, from, AtomicU8, u8);
}

/// Returns how many of so many bytes stand before the last aligned word among them; all, if there
/// is none.
pub(crate) fn before_last_word(at: u64, bytes: usize) -> usize {
    let words_end = (at + bytes as u64) & !(WORD_BYTES as u64 - 1);
    match words_end.checked_sub(WORD_BYTES as u64) {
        Some(word) if word >= at => (word - at) as usize,
        _ => bytes,
    }
}

/// Returns how many of so many bytes may be written in any order before the rest, at most
/// [`LAST_BYTES`], goes through [`write_in_order`].
pub(crate) fn before_ordered(at: u64, bytes: usize) -> usize {
    match before_last_word(at, bytes) {
        // There is no aligned word: it is short.
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
