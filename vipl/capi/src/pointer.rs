//! Access to the targets of C pointers, with a check for NULL.
//!
//! Accesses are unaligned, so that a misaligned buffer of an old program does not trap.

use core::ffi::{CStr, c_char};
use core::ptr::NonNull;

use vipl::{Result, VipError};

/// Reads an IN structure; NULL is an invalid parameter.
///
/// # Safety
/// `pointer` is NULL or valid for reading a `T`.
#[inline]
pub(crate) unsafe fn read_in<T: Copy>(pointer: *const T) -> Result<T> {
    if pointer.is_null() {
        return Err(VipError::InvalidParameter);
    }
    // SAFETY: not NULL, hence readable as the caller guarantees; every `T` in this crate is plain C data.
    Ok(unsafe { pointer.read_unaligned() })
}

/// An OUT parameter, checked before the call has any effect.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Checks `pointer`; NULL is an invalid parameter.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for writing a `T` while the result exists.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T) -> Result<Self> {
        NonNull::new(pointer)
            .map(Self)
            .ok_or(VipError::InvalidParameter)
    }

    /// Writes the value.
    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: writable as the caller of `new` guaranteed.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Reads a C string of at most `max_bytes`; NULL and longer ones are invalid parameters.
///
/// # Safety
/// `pointer` is NULL, or NUL-terminated and unchanged for `'a`.
pub(crate) unsafe fn read_string<'a>(pointer: *const c_char, max_bytes: usize) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(VipError::InvalidParameter);
    }
    // SAFETY: NUL-terminated as the caller guarantees; nothing is read after the NUL.
    let string_bytes = unsafe { libc::strnlen(pointer, max_bytes + 1) };
    if string_bytes > max_bytes {
        return Err(VipError::InvalidParameter);
    }
    // SAFETY: strnlen has found the NUL in the caller's string, which is unchanged for 'a.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::{null, null_mut};

    #[test]
    fn null_pointers_are_invalid_parameters() {
        // SAFETY: NULL is allowed.
        let object = unsafe { read_in::<u32>(null()) };
        assert_eq!(object, Err(VipError::InvalidParameter));
        // SAFETY: NULL is allowed.
        let out = unsafe { Out::<u32>::new(null_mut()) };
        assert!(out.is_err());
        // SAFETY: NULL is allowed.
        let string = unsafe { read_string(null(), 8) };
        assert_eq!(string, Err(VipError::InvalidParameter));
    }

    #[test]
    fn unaligned_objects_are_read_and_written() {
        let mut bytes = [0_u8; 9];
        let odd = bytes.as_mut_ptr().wrapping_add(1).cast::<u64>();
        // SAFETY: the array has eight bytes at `odd`.
        let out = unsafe { Out::new(odd) }.expect("not NULL");
        out.set(0x0102_0304_0506_0708);
        // SAFETY: as above.
        assert_eq!(unsafe { read_in(odd) }, Ok(0x0102_0304_0506_0708));
    }

    #[test]
    fn read_string_rejects_longer_strings() {
        // SAFETY: a literal.
        let fitting = unsafe { read_string(c"abc".as_ptr(), 3) };
        assert_eq!(fitting, Ok(c"abc"));
        // SAFETY: a literal.
        let too_long = unsafe { read_string(c"abcd".as_ptr(), 3) };
        assert_eq!(too_long, Err(VipError::InvalidParameter));
    }
}
