//! The plain values that an endpoint is made of and speaks in.

use pmd::descriptor::status;
use serde::{Deserialize, Serialize};

use crate::plan::Level;

/// How many descriptors and buffers an endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Reliability level of the VI.
    pub level: Level,
    /// Descriptors for the send queue.
    pub send_descriptors: u32,
    /// Buffers that they use in turn.
    pub send_buffers: u32,
    /// Bytes of each.
    pub send_bytes: u32,
    /// Descriptors for the receive queue.
    pub recv_descriptors: u32,
    /// Buffers that they use in turn.
    pub recv_buffers: u32,
    /// Bytes of each.
    pub recv_bytes: u32,
}

/// What the peer must know to reach an endpoint's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// The memory handle.
    pub handle: u32,
    /// Address of the credit word.
    pub credit_address: u64,
    /// Address of the first receive buffer.
    pub recv_address: u64,
    /// Distance of the receive buffers.
    pub recv_stride_bytes: u64,
    /// Address of the first send buffer.
    pub send_address: u64,
    /// Distance of the send buffers.
    pub send_stride_bytes: u64,
}

impl RemoteMemory {
    /// Address of a receive buffer.
    #[inline]
    pub fn buffer(&self, index: u32) -> u64 {
        self.recv_address + u64::from(index) * self.recv_stride_bytes
    }

    /// Address of a send buffer.
    #[inline]
    pub fn source(&self, index: u32) -> u64 {
        self.send_address + u64::from(index) * self.send_stride_bytes
    }
}

/// Where an RDMA write goes, or a read comes from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The peer's memory handle.
    pub handle: u32,
    /// The address there.
    pub address: u64,
}

/// What a look at a queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// Nothing is done.
    Nothing,
    /// The descriptor with this number is done.
    Done {
        /// Its number in its queue.
        index: u32,
        /// Bytes that it moved.
        length_bytes: u32,
    },
    /// The descriptor with this number ended in error.
    Failed {
        /// Its number in its queue.
        index: u32,
        /// The status word.
        status: u32,
    },
}

/// Bits of a status word that tell of an error.
pub fn status_text(word: u32) -> String {
    const NAMES: [(u32, &str); 8] = [
        (status::FORMAT_ERROR, "format error"),
        (status::PROTECTION_ERROR, "protection error"),
        (status::LENGTH_ERROR, "length error"),
        (status::PARTIAL_ERROR, "partial message"),
        (status::DESC_FLUSHED_ERROR, "flushed"),
        (status::TRANSPORT_ERROR, "transport error"),
        (status::RDMA_PROT_ERROR, "RDMA protection error"),
        (status::REMOTE_DESC_ERROR, "remote descriptor error"),
    ];
    let said: Vec<&str> = NAMES
        .iter()
        .filter(|(bit, _)| word & bit != 0)
        .map(|&(_, name)| name)
        .collect();
    if said.is_empty() {
        format!("status {word:#010x}")
    } else {
        said.join(", ")
    }
}

/// Whether a status word says that the connection is gone.
pub fn is_flushed(word: u32) -> bool {
    word & status::DESC_FLUSHED_ERROR != 0
}

#[inline]
pub(super) fn is_whole_words(bytes: u32) -> bool {
    bytes.is_multiple_of(8)
}

/// The mark of message `sequence` that `Endpoint::mark` shows once the message
/// is there: never 0, and never that of the message before it in the same buffer.
#[inline]
pub fn mark_of(sequence: u64, buffers: u32, bytes: u32) -> u64 {
    let lap = sequence / u64::from(buffers);
    if is_whole_words(bytes) {
        lap + 1
    } else {
        lap % 255 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_never_shows_the_mark_of_the_message_before() {
        for bytes in [1, 8, 13, 64] {
            for buffers in [1_u32, 8, 64] {
                let mut shown = vec![0; buffers as usize];
                for sequence in 0..u64::from(buffers) * 600 {
                    let buffer = (sequence % u64::from(buffers)) as usize;
                    let mark = mark_of(sequence, buffers, bytes);
                    assert_ne!(mark, shown[buffer], "{bytes} bytes, message {sequence}");
                    assert!(bytes % 8 == 0 || mark <= 255);
                    shown[buffer] = mark;
                }
            }
        }
    }

    #[test]
    fn status_words_are_told_in_words() {
        assert_eq!(status_text(0x21), "flushed");
        assert_eq!(status_text(0x51), "partial message, transport error");
        assert_eq!(status_text(1), "status 0x00000001");
        assert!(is_flushed(0x0001_0021) && !is_flushed(0x0001_0041));
    }

    #[test]
    fn remote_buffers_stand_at_their_stride() {
        let memory = RemoteMemory {
            handle: 1,
            credit_address: 4096,
            recv_address: 8192,
            recv_stride_bytes: 128,
            send_address: 16384,
            send_stride_bytes: 64,
        };
        assert_eq!(memory.buffer(0), 8192);
        assert_eq!(memory.buffer(3), 8576);
        assert_eq!(memory.source(0), 16384);
        assert_eq!(memory.source(3), 16576);
    }
}
