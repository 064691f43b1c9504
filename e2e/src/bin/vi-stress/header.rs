//! Control data between the sides: in the immediate data of a message, and in its first bytes if it is long enough.

use vipl::RemoteBuffer;

use crate::pattern::key;
use crate::plan::{Side, Stream};

/// The type of a message, in its immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A planned send.
    Data,
    /// A planned RDMA write.
    Write,
    /// A header only: credits and the address of the window.
    Control,
}

/// Bits of the message number, and of the number of writes.
const COUNT_BITS: u32 = 15;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Immediate data: a mark, and the low bits of two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Immediate {
    pub(crate) mark: Mark,
    /// RDMA writes posted so far, including this one.
    pub(crate) writes: u32,
    /// The number of the message.
    pub(crate) number: u32,
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        let mark = match self.mark {
            Mark::Data => 1,
            Mark::Write => 2,
            Mark::Control => 3,
        };
        mark << (2 * COUNT_BITS)
            | (self.writes & COUNT_MASK) << COUNT_BITS
            | self.number & COUNT_MASK
    }

    /// Extends the counts to the lowest values that are not below `number` and `writes`.
    pub(crate) fn decode(word: u32, number: u32, writes: u32) -> Option<Self> {
        let full = |bits: u32, expected: u32| {
            expected.wrapping_add(bits.wrapping_sub(expected) & COUNT_MASK)
        };
        Some(Self {
            mark: match word >> (2 * COUNT_BITS) {
                1 => Mark::Data,
                2 => Mark::Write,
                3 => Mark::Control,
                _ => return None,
            },
            writes: full(word >> COUNT_BITS, writes),
            number: full(word, number),
        })
    }
}

/// Memory of one side for RDMA of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerMemory {
    /// The memory for writes.
    pub(crate) window: RemoteBuffer,
    /// The memory for reads.
    pub(crate) source: RemoteBuffer,
}

/// The first bytes of a message that is long enough, and the whole of a [`Mark::Control`] message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) stream: Stream,
    /// The number of the message.
    pub(crate) number: u32,
    /// The length of the message.
    pub(crate) length_bytes: u32,
    /// Total number of messages that the receiver of this header may send.
    pub(crate) granted: u32,
    /// Writes of the receiver of this header that are checked, and whose cells are free.
    pub(crate) consumed: u32,
    /// Writes posted so far by the sender.
    pub(crate) writes: u32,
    /// Memory of the sender for RDMA.
    pub(crate) memory: PeerMemory,
}

const MAGIC: u32 = 0x5354_5253;

impl Header {
    pub(crate) const BYTES: usize = 80;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.stream.slot.to_le_bytes());
        put(&(self.stream.from as u16).to_le_bytes());
        put(&self.stream.seed.to_le_bytes());
        put(&self.stream.connection.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.length_bytes.to_le_bytes());
        put(&self.granted.to_le_bytes());
        put(&self.consumed.to_le_bytes());
        put(&self.writes.to_le_bytes());
        put(&self.memory.window.to_bytes());
        put(&self.memory.source.to_bytes());
        let check = checksum(&bytes);
        bytes[Self::BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Parses a header; `None` if any byte is wrong.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let mut take = |count: usize| {
            let (head, tail) = rest.split_at(count);
            rest = tail;
            head.iter()
                .rev()
                .fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        if take(4) != u64::from(MAGIC) {
            return None;
        }
        let slot = take(2) as u16;
        let from = match take(2) {
            0 => Side::Left,
            1 => Side::Right,
            _ => return None,
        };
        let seed = take(8);
        let connection = take(4) as u32;
        let [number, length_bytes, granted, consumed, writes] = [(); 5].map(|()| take(4) as u32);
        let (window, rest) = rest.split_first_chunk()?;
        let memory = PeerMemory {
            window: RemoteBuffer::from_bytes(window),
            source: RemoteBuffer::from_bytes(rest.first_chunk()?),
        };
        let header = Self {
            stream: Stream {
                seed,
                slot,
                connection,
                from,
            },
            number,
            length_bytes,
            granted,
            consumed,
            writes,
            memory,
        };
        (header.encode() == *bytes).then_some(header)
    }
}

fn checksum(bytes: &[u8; Header::BYTES]) -> u64 {
    bytes
        .chunks_exact(8)
        .take(Header::BYTES / 8 - 1)
        .fold(0, |sum, chunk| {
            key(&[
                sum,
                chunk
                    .iter()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte)),
            ])
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipl::MemoryHandle;

    #[test]
    fn counts_are_extended_beyond_their_bits() {
        for number in [0, 1, 32_767, 32_768, 100_000] {
            let sent = Immediate {
                mark: Mark::Write,
                writes: number / 2,
                number,
            };
            let read = Immediate::decode(sent.encode(), number, number / 2);
            assert_eq!(read, Some(sent));
            let after_a_loss =
                Immediate::decode(sent.encode(), number.saturating_sub(9), number / 2);
            assert_eq!(after_a_loss, Some(sent));
        }
        assert_eq!(Immediate::decode(5, 0, 0), None);
    }

    #[test]
    fn header_is_parsed_and_any_changed_byte_is_detected() {
        let header = Header {
            stream: Stream {
                seed: 3,
                slot: 63,
                connection: 9,
                from: Side::Right,
            },
            number: 1,
            length_bytes: 2,
            granted: 4,
            consumed: 5,
            writes: 6,
            memory: PeerMemory {
                window: RemoteBuffer {
                    address: 7,
                    handle: MemoryHandle(8),
                },
                source: RemoteBuffer {
                    address: 9,
                    handle: MemoryHandle(10),
                },
            },
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x40;
            assert_eq!(Header::decode(&damaged), None, "byte {at}");
        }
    }
}
