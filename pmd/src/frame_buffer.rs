//! The buffer in which a frame is built before it is copied into the port's buffer.
//!
//! A slot of a shared ring was last in the receiver's cache: its lines are transferred while it is
//! written, and reading them back for the CRC would stall on that. The frame buffer stays in the
//! cache of the sending core (docs/adr/0003).

use fcvi_frame::fcoe::{Eof, FCOE_TRAILER_BYTES};
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame, seal};

/// Size of the buffer: the longest frame with a VLAN tag, and padding, in whole cache lines.
const BUFFER_BYTES: usize = 2240;
/// Short frames are copied in steps of this size.
const STEP_BYTES: usize = 16;
/// The longest frame that is copied in steps; a longer one is worth a call of memcpy.
const SHORT_BYTES: usize = 192;

/// A buffer for one frame.
#[repr(C, align(64))]
pub(crate) struct FrameBuffer {
    bytes: [u8; BUFFER_BYTES],
}

impl FrameBuffer {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            bytes: [0; BUFFER_BYTES],
        })
    }

    /// Builds one data frame, whose payload `gather` fills; returns its length in bytes. `None`:
    /// `gather` failed, or the frame is too long.
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

    /// Builds a single control frame with this payload; returns its length in bytes. `None`: the frame
    /// is too long.
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
        // The bytes that `copy_to` copies beyond the frame must not be of an earlier frame.
        frame.get_mut(bytes..bytes + STEP_BYTES)?.fill(0);
        Some(bytes)
    }

    /// Copies the frame of `bytes` bytes into a buffer of at least that length. A short frame is
    /// copied in a few fixed steps, the last line first: the first line has the slot's flag, which
    /// the receiver polls. Up to 15 zeros may follow the frame.
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
    fn copied_frame_is_complete_and_followed_only_by_zeros() {
        let mut buffer = FrameBuffer::new();
        for bytes in [60usize, 84, 92, 191, 192, 193, 2172] {
            for (i, byte) in buffer.bytes.iter_mut().enumerate() {
                *byte = if i < bytes { i as u8 | 1 } else { 0 };
            }
            for room in [bytes, bytes + 1, 2176] {
                let mut to = vec![0xEE; room];
                buffer.copy_to(&mut to, bytes);
                assert_eq!(to[..bytes], buffer.bytes[..bytes], "{bytes} into {room}");
                let after = &to[bytes..];
                assert!(after.iter().all(|b| *b == 0 || *b == 0xEE));
                assert!(after.iter().skip(STEP_BYTES).all(|b| *b == 0xEE));
            }
        }
    }
}
