//! What the sides tell each other: in the immediate data of a message, and in its first bytes when it is long enough.

use vipl::RemoteBuffer;

use crate::pattern::key;
use crate::plan::{Side, Stream};

/// What a message is, by its immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Sent as planned.
    Data,
    /// A planned RDMA write.
    Write,
    /// Only a header: credits, and where the window is.
    Tell,
}

/// The bits of the message's number, and of the number of writes.
const COUNT_BITS: u32 = 15;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Immediate data: a mark, and the last bits of two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Immediate {
    pub(crate) mark: Mark,
    /// RDMA writes posted so far, this one included.
    pub(crate) writes: u32,
    /// The message's number.
    pub(crate) number: u32,
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        let mark = match self.mark {
            Mark::Data => 1,
            Mark::Write => 2,
            Mark::Tell => 3,
        };
        mark << (2 * COUNT_BITS)
            | (self.writes & COUNT_MASK) << COUNT_BITS
            | self.number & COUNT_MASK
    }

    /// The counts are those that are nearest to, and not below, the expected ones.
    pub(crate) fn decode(word: u32, number: u32, writes: u32) -> Option<Self> {
        let full = |bits: u32, expected: u32| {
            expected.wrapping_add(bits.wrapping_sub(expected) & COUNT_MASK)
        };
        Some(Self {
            mark: match word >> (2 * COUNT_BITS) {
                1 => Mark::Data,
                2 => Mark::Write,
                3 => Mark::Tell,
                _ => return None,
            },
            writes: full(word >> COUNT_BITS, writes),
            number: full(word, number),
        })
    }
}

/// The first bytes of a message that is long enough, and all bytes of one that only tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) stream: Stream,
    /// The message's number.
    pub(crate) number: u32,
    /// The message's length.
    pub(crate) length_bytes: u32,
    /// Messages that the other side may have sent, in total.
    pub(crate) granted: u32,
    /// Writes of the other side that are checked, and their cells free again.
    pub(crate) consumed: u32,
    /// Writes posted so far.
    pub(crate) writes: u32,
    /// Where the other side may write.
    pub(crate) window: RemoteBuffer,
}

const MAGIC: u32 = 0x5354_5253;

impl Header {
    pub(crate) const BYTES: usize = 64;

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
        put(&self.window.to_bytes());
        let check = checksum(&bytes);
        bytes[Self::BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header, if every byte of it is right.
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
        let window = RemoteBuffer::from_bytes(rest.first_chunk()?);
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
            window,
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
    fn counts_grow_past_their_bits() {
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
    fn a_header_comes_back_and_any_changed_byte_is_noticed() {
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
            window: RemoteBuffer {
                address: 7,
                handle: MemoryHandle(8),
            },
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for place in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[place] ^= 0x40;
            assert_eq!(Header::decode(&damaged), None, "byte {place}");
        }
    }
}
