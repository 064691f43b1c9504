//! Where a frame is put together before it goes into the port's buffer.
//!
//! A slot of a shared ring was last in the receiver's cache: its lines come over
//! while we write, and reading them back for the CRC would wait for that. The
//! workbench never leaves our cache (docs/adr/0003).

use fcvi_frame::fcoe::{Eof, FCOE_TRAILER_BYTES};
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame, seal};

/// The longest frame, tag included, and some zeros, in whole cache lines.
const WORKBENCH_BYTES: usize = 2240;
/// Short frames are copied in steps of so many bytes.
const STEP_BYTES: usize = 16;
/// A longer frame is worth the call of a copying function.
const SHORT_BYTES: usize = 192;

/// Room for one frame.
#[repr(C, align(64))]
pub(crate) struct Workbench {
    bytes: [u8; WORKBENCH_BYTES],
}

impl Workbench {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            bytes: [0; WORKBENCH_BYTES],
        })
    }

    /// Puts one data frame together, whose payload `gather` fills; returns its length. `None`:
    /// there is no such payload, or the frame is longer than any.
    #[inline]
    pub(crate) fn build(
        &mut self,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        payload_bytes: usize,
        eof: Eof,
        gather: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<usize> {
        let frame = &mut self.bytes[..];
        let at = template.emit(per_frame, frame).ok()?;
        let padded = (payload_bytes + 3) & !3;
        let bytes = at + padded + FCOE_TRAILER_BYTES;
        let payload = frame.get_mut(at..at + padded)?;
        let (data, fill) = payload.split_at_mut(payload_bytes);
        fill.fill(0);
        if !gather(data) {
            return None;
        }
        self.finish(bytes, eof)
    }

    /// Puts a single frame together whose payload is at hand; returns its length. `None`: the
    /// frame is longer than any.
    pub(crate) fn build_control(&mut self, header: &FrameHeader, payload: &[u8]) -> Option<usize> {
        let frame = &mut self.bytes[..];
        let at = header.emit(frame).ok()?;
        let end = at + payload.len();
        frame.get_mut(at..end)?.copy_from_slice(payload);
        self.finish(end + FCOE_TRAILER_BYTES, Eof::T)
    }

    #[inline(always)]
    fn finish(&mut self, bytes: usize, eof: Eof) -> Option<usize> {
        let frame = &mut self.bytes[..];
        seal(frame, bytes, eof).ok()?;
        // What `copy_to` takes along beyond the frame must not be of an earlier one.
        frame.get_mut(bytes..bytes + STEP_BYTES)?.fill(0);
        Some(bytes)
    }

    /// Copies the frame of `bytes` into a buffer of at least that length. A short one goes
    /// in a few fixed steps, its last line first: the first line has the slot's flag and
    /// is the one that the receiver looks at. Up to 15 zeros may follow the frame.
    #[inline]
    pub(crate) fn copy_to(&self, to: &mut [u8], bytes: usize) {
        let steps = bytes.next_multiple_of(STEP_BYTES);
        if bytes > SHORT_BYTES || to.len() < steps {
            to[..bytes].copy_from_slice(&self.bytes[..bytes]);
            return;
        }
        let from = self.bytes[..steps].as_chunks::<STEP_BYTES>().0;
        let to = to[..steps].as_chunks_mut::<STEP_BYTES>().0;
        for (to, from) in to.iter_mut().zip(from).rev() {
            *to = *from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_frame_is_whole_and_nothing_but_zeros_follows_it() {
        let mut bench = Workbench::new();
        for bytes in [60usize, 84, 92, 191, 192, 193, 2172] {
            for (i, byte) in bench.bytes.iter_mut().enumerate() {
                *byte = if i < bytes { i as u8 | 1 } else { 0 };
            }
            for room in [bytes, bytes + 1, 2176] {
                let mut to = vec![0xEE; room];
                bench.copy_to(&mut to, bytes);
                assert_eq!(to[..bytes], bench.bytes[..bytes], "{bytes} into {room}");
                let after = &to[bytes..];
                assert!(after.iter().all(|b| *b == 0 || *b == 0xEE));
                assert!(after.iter().skip(STEP_BYTES).all(|b| *b == 0xEE));
            }
        }
    }
}
