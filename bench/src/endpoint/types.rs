//! Parameters and results of an endpoint.

use serde::{Deserialize, Serialize};
use vi_types::{ReliabilityLevel, status};

/// Numbers and sizes of the descriptors and buffers of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLayout {
    /// Reliability level of the VI.
    pub level: ReliabilityLevel,
    /// Number of send descriptors.
    pub send_descriptors: u32,
    /// Number of send buffers, used in turn.
    pub send_buffers: u32,
    /// Size of a send buffer in bytes.
    pub send_bytes: u32,
    /// Number of receive descriptors.
    pub recv_descriptors: u32,
    /// Number of receive buffers, used in turn.
    pub recv_buffers: u32,
    /// Size of a receive buffer in bytes.
    pub recv_bytes: u32,
}

/// Memory handle and addresses of an endpoint, sent to the peer for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// The memory handle.
    pub handle: u32,
    /// Address of the credit word.
    pub credit_address: u64,
    /// Address of the first receive buffer.
    pub recv_address: u64,
    /// Distance between receive buffers.
    pub recv_stride_bytes: u64,
    /// Address of the first send buffer.
    pub send_address: u64,
    /// Distance between send buffers.
    pub send_stride_bytes: u64,
}

impl RemoteMemory {
    /// Returns the address of a receive buffer.
    #[inline]
    pub fn buffer(&self, index: u32) -> u64 {
        self.recv_address + u64::from(index) * self.recv_stride_bytes
    }

    /// Returns the address of a send buffer.
    #[inline]
    pub fn source(&self, index: u32) -> u64 {
        self.send_address + u64::from(index) * self.send_stride_bytes
    }
}

/// Remote address of an RDMA write or read.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress {
    /// The peer's memory handle.
    pub handle: u32,
    /// The address in the peer's memory.
    pub address: u64,
}

/// Result of one poll of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// No descriptor has completed.
    Nothing,
    /// A descriptor has completed successfully.
    Done {
        /// Number of the descriptor in its queue.
        index: u32,
        /// Bytes transferred.
        length_bytes: u32,
    },
    /// A descriptor has completed with an error.
    Failed {
        /// Number of the descriptor in its queue.
        index: u32,
        /// The status word.
        status: u32,
    },
}

/// Describes the error bits of a status word.
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
    let names: Vec<&str> = NAMES
        .iter()
        .filter(|(bit, _)| word & bit != 0)
        .map(|&(_, name)| name)
        .collect();
    if names.is_empty() {
        format!("status {word:#010x}")
    } else {
        names.join(", ")
    }
}

/// Returns whether a status word reports a flush: the VI is not connected any more.
pub fn is_flushed(word: u32) -> bool {
    word & status::DESC_FLUSHED_ERROR != 0
}

#[inline]
pub(super) fn is_whole_words(bytes: u32) -> bool {
    bytes.is_multiple_of(8)
}

/// Returns the mark of message `sequence`, which `Endpoint::mark` reads once the message has arrived: never 0, and
/// different from the mark of the previous message in the same buffer.
#[inline]
pub fn mark_of(sequence: u64, buffers: u32, bytes: u32) -> u64 {
    let lap = sequence / u64::from(buffers);
    if is_whole_words(bytes) {
        lap + 1
    } else {
        lap % 255 + 1
    }
}

/// Returns the sum of the bytes, modulo 256, of a message that was filled with the low byte of its mark.
#[inline]
pub(crate) fn sum_of(mark: u64, bytes: u32) -> u8 {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let marked = mark.to_ne_bytes();
    let marked = if is_whole_words(bytes) {
        &marked[..]
    } else {
        &[mark as u8]
    };
    let filled = bytes.saturating_sub(marked.len() as u32) as u8;
    filled.wrapping_mul(mark as u8).wrapping_add(sum(marked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_differs_from_previous_message_in_buffer() {
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
    fn status_text_names_error_bits() {
        assert_eq!(status_text(0x21), "flushed");
        assert_eq!(status_text(0x51), "partial message, transport error");
        assert_eq!(status_text(1), "status 0x00000001");
        assert!(is_flushed(0x0001_0021) && !is_flushed(0x0001_0041));
    }

    #[test]
    fn remote_buffer_addresses_follow_stride() {
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
