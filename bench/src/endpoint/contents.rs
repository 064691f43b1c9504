//! The bytes of messages: marks, whole buffers, and the credit that the peer writes.

use super::Endpoint;
use super::types::is_whole_words;
use crate::sync::Ordering;

impl Endpoint {
    /// Writes a mark at the end of a send buffer: the last word if `bytes` is a multiple of 8, else the last byte.
    #[inline]
    pub fn stamp(&mut self, index: u32, bytes: u32, mark: u64) {
        self.put_mark(self.send_buffer(index), bytes, mark);
    }

    /// Writes `value` to the first `bytes` bytes of the buffer of send descriptor `index`.
    #[inline]
    pub fn write_all(&mut self, index: u32, bytes: u32, value: u8) {
        let bytes = bytes as usize;
        let at = self.pointer(self.send_buffer(index), bytes);
        // SAFETY: `pointer` checked the range. The stack only reads it, for messages that are in flight from the same
        // buffer, and their content does not matter.
        unsafe { at.as_ptr().write_bytes(value, bytes) };
    }

    /// Reads the first `bytes` bytes of receive buffer `index`, which holds a message that has arrived; returns their sum
    /// modulo 256.
    #[inline]
    pub fn read_all(&self, index: u32, bytes: u32) -> u8 {
        let bytes = bytes as usize;
        let at = self.pointer(self.recv_buffer(index), bytes);
        // SAFETY: `pointer` checked the range. The stack does not write it before the descriptor is posted again, or the
        // peer has credit or an answer.
        let message = unsafe { core::slice::from_raw_parts(at.as_ptr(), bytes) };
        (message.iter()).fold(0u8, |sum, byte| sum.wrapping_add(*byte))
    }

    /// Clears the mark at the end of a receive buffer.
    #[inline]
    pub fn wipe(&mut self, index: u32, bytes: u32) {
        self.put_mark(self.recv_buffer(index), bytes, 0);
    }

    #[inline]
    fn put_mark(&mut self, buffer: usize, bytes: u32, mark: u64) {
        if bytes == 0 {
            return;
        }
        let end = buffer + bytes as usize;
        // Relaxed: the stack reads or writes the bytes after the post, which this thread makes.
        if is_whole_words(bytes) {
            self.word(end - 8).store(mark, Ordering::Relaxed);
        } else {
            self.byte(end - 1).store(mark as u8, Ordering::Relaxed);
        }
    }

    /// Reads the mark at the end of a receive buffer.
    #[inline]
    pub fn mark(&self, index: u32, bytes: u32) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let end = self.recv_buffer(index) + bytes as usize;
        // Acquire: pairs with the store by which the stack makes the last bytes of a message visible; the bytes before
        // them are then visible too.
        if is_whole_words(bytes) {
            self.word(end - 8).load(Ordering::Acquire)
        } else {
            u64::from(self.byte(end - 1).load(Ordering::Acquire))
        }
    }

    /// Returns the number of messages that the peer has consumed since the connection was established.
    #[inline]
    pub fn credit(&self) -> u64 {
        // Acquire: pairs with the store by which the stack places the peer's write; the peer has reposted the receives
        // that it counts.
        self.word(0).load(Ordering::Acquire)
    }

    /// Copies `bytes` to the beginning of a send buffer.
    pub fn fill_send(&mut self, index: u32, bytes: &[u8]) {
        let at = self.pointer(self.send_buffer(index), bytes.len());
        assert!(bytes.len() <= self.layout.send_bytes as usize);
        // SAFETY: `pointer` checked the range; the stack does not access the buffer while its descriptor is not posted,
        // and `bytes` does not overlap it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) }
    }

    /// Returns a copy of a received message.
    pub fn copy_recv(&self, index: u32, length_bytes: u32) -> Vec<u8> {
        let mut bytes = vec![0; (length_bytes as usize).min(self.layout.recv_bytes as usize)];
        self.peek_recv(index, &mut bytes);
        bytes
    }

    /// Copies the beginning of a received message to `out`.
    ///
    /// # Panics
    /// If `out` is longer than a receive buffer.
    pub fn peek_recv(&self, index: u32, out: &mut [u8]) {
        assert!(out.len() <= self.layout.recv_bytes as usize);
        let at = self.pointer(self.recv_buffer(index), out.len());
        // SAFETY: `pointer` checked the range; `out` does not overlap it; the receive descriptor was reaped, so the
        // stack does not write there any more.
        unsafe { core::ptr::copy_nonoverlapping(at.as_ptr(), out.as_mut_ptr(), out.len()) }
    }
}
