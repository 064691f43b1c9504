//! Emits a whole frame in one pass: header, payload, fill and trailer. No byte of the frame is read
//! back, so it can be written straight into memory that another processor polls.

use core::marker::PhantomData;

use super::{DEVICE, FC, FrameHeader, HeaderTemplate, PerFrame};
use crate::crc::{CopyWithCrc, Level, PayloadCopy};
use crate::error::EmitError;
use crate::fcoe::{Eof, FCOE_TRAILER_BYTES, FcoeTrailer, MAX_DATA_FIELD_BYTES, MAX_FRAME_BYTES};

/// Payload of a frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    bytes: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// No payload.
    pub const EMPTY: Self = Self::from_slice(&[]);

    /// The bytes of a slice.
    #[inline]
    #[must_use]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            bytes: bytes.len(),
            memory: PhantomData,
        }
    }

    /// Bytes of memory that other threads or processes may change at any time. A frame has some
    /// value of each byte, and the CRC of these values.
    ///
    /// # Safety
    /// The bytes are readable during `'a`.
    #[inline]
    #[must_use]
    pub const unsafe fn from_raw(start: *const u8, bytes: usize) -> Self {
        Self {
            start,
            bytes,
            memory: PhantomData,
        }
    }

    /// Returns the address of the first byte.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// A frame with its payload, before it is written.
#[derive(Clone, Copy, Debug)]
pub struct FrameToEmit<'a> {
    /// Constant fields of its header.
    pub template: &'a HeaderTemplate,
    /// The other fields of its header.
    pub per_frame: &'a PerFrame,
    /// Its payload, which is followed by fill up to a multiple of 4 bytes.
    pub payload: Payload<'a>,
    /// End of frame.
    pub eof: Eof,
    /// Distance in bytes from the frame to memory in which another frame will be written soon, and
    /// which is prefetched; 0: none.
    pub prefetch_bytes: usize,
}

impl FrameToEmit<'_> {
    /// Returns the length of the frame in bytes.
    ///
    /// # Errors
    /// [`EmitError::FrameLength`] if the data field would have more than 2112 bytes.
    #[inline]
    pub fn frame_bytes(&self) -> Result<usize, EmitError> {
        let header_bytes = self.template.bytes();
        let frame_bytes = self.payload.bytes.checked_next_multiple_of(4);
        let frame_bytes = frame_bytes
            .and_then(|padded| padded.checked_add(header_bytes.wrapping_add(FCOE_TRAILER_BYTES)))
            .unwrap_or(usize::MAX);
        if frame_bytes > MAX_FRAME_BYTES {
            return Err(EmitError::FrameLength { frame_bytes });
        }
        Ok(frame_bytes)
    }

    /// Writes the frame to the front of `out` and returns its length in bytes. `out` is not read,
    /// and its first bytes are written last.
    ///
    /// # Errors
    /// As for [`FrameToEmit::frame_bytes`]; [`EmitError::BufferTooShort`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        self.emit_with(Level::of_processor(), out)
    }

    /// As [`FrameToEmit::emit`], with the instructions of an available level.
    #[inline]
    pub(crate) fn emit_with(&self, level: Level, out: &mut [u8]) -> Result<usize, EmitError> {
        let frame_bytes = self.frame_bytes()?;
        let out = out
            .get_mut(..frame_bytes)
            .ok_or(EmitError::BufferTooShort {
                needed_bytes: frame_bytes,
            })?;
        // SAFETY: `out` has the length of the frame, and the level is available.
        unsafe { level.emit_frame(self, out.as_mut_ptr()) };
        Ok(frame_bytes)
    }
}

const _: () = assert!(DEVICE + MAX_DATA_FIELD_BYTES + FCOE_TRAILER_BYTES == MAX_FRAME_BYTES);

impl FrameHeader {
    /// Writes a frame with this header and payload to the front of `out`, and returns its length in
    /// bytes.
    ///
    /// # Errors
    /// As for [`FrameToEmit::emit`].
    pub fn emit_frame(&self, payload: &[u8], eof: Eof, out: &mut [u8]) -> Result<usize, EmitError> {
        FrameToEmit {
            template: &HeaderTemplate::new(self),
            per_frame: &PerFrame::of(self),
            payload: Payload::from_slice(payload),
            eof,
            prefetch_bytes: 0,
        }
        .emit(out)
    }
}

/// Writes a frame at `out`: the payload first, the header last.
///
/// # Safety
/// `out` is writable for the length of the frame, which [`FrameToEmit::frame_bytes`] has returned.
/// The processor has the instructions of `C`.
#[inline(always)]
pub(crate) unsafe fn emit_frame_at<C: CopyWithCrc>(frame: &FrameToEmit<'_>, out: *mut u8) {
    let header = frame.template.covered(frame.per_frame);
    let payload_at = out.wrapping_add(frame.template.bytes());
    let copy = PayloadCopy {
        from: frame.payload.start,
        to: payload_at,
        bytes: frame.payload.bytes,
        prefetch_bytes: frame.prefetch_bytes,
    };
    // SAFETY: the payload is readable by the contract of `Payload`, and payload and fill are within
    // the frame, whose length was checked.
    let crc = unsafe { C::copy_with_crc(header, copy) };
    let mut trailer = [0; FCOE_TRAILER_BYTES];
    FcoeTrailer {
        crc,
        eof: frame.eof,
    }
    .emit(&mut trailer);
    let trailer_at = payload_at.wrapping_add(frame.payload.bytes.next_multiple_of(4));
    let words_at = out.wrapping_add(FC).cast::<[u8; 8]>();
    // SAFETY: the trailer is within the frame, and byte arrays need no alignment.
    unsafe { trailer_at.cast::<[u8; FCOE_TRAILER_BYTES]>().write(trailer) };
    for (i, word) in header.words.iter().enumerate().take(header.count).rev() {
        // SAFETY: likewise, each word of the header.
        unsafe { words_at.wrapping_add(i).write(word.to_be_bytes()) };
    }
    let start = frame.template.start(frame.per_frame);
    // SAFETY: likewise, the headers before the FC header.
    unsafe { out.cast::<[u8; FC]>().write(start) };
}
