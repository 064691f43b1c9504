//! What is in a filled frame: a piece of memory behind the header, and the CRC of both.
//!
//! | bytes | what |
//! | --- | --- |
//! | 23 | the header |
//! | any | a piece of memory |
//! | 4 | the CRC that a frame of FC ends with, from the kind on, little-endian |

use fcvi_frame::crc::fc_crc;

use crate::control::HEADER_BYTES;

/// Addresses and EtherType, which a CRC of FC does not cover either.
const ETHERNET_HEADER_BYTES: usize = 14;

const CRC_BYTES: usize = 4;

/// The shortest filled frame.
pub(super) const SHORTEST_BYTES: usize = HEADER_BYTES + CRC_BYTES;

/// As much memory as the messages of a program that has some dozens under way: more than the
/// nearest cache holds.
const MEMORY_BYTES: usize = 256 << 10;

/// Memory that frames are filled from, or into which what is in them goes.
pub(super) struct Contents {
    memory: Box<[u8]>,
    at: usize,
    damaged: u64,
}

impl Contents {
    /// Memory with something in it.
    pub(super) fn new() -> Self {
        Self {
            memory: (0..MEMORY_BYTES).map(|at| at as u8).collect(),
            at: 0,
            damaged: 0,
        }
    }

    /// The next piece of memory; never longer than a frame, so always shorter than all of it.
    #[inline]
    fn piece(&mut self, bytes: usize) -> &mut [u8] {
        if self.at + bytes > self.memory.len() {
            self.at = 0;
        }
        let at = self.at;
        self.at += bytes;
        &mut self.memory[at..at + bytes]
    }

    /// Fills and seals a frame whose header is there; it has [`SHORTEST_BYTES`] or more.
    #[inline]
    pub(super) fn fill(&mut self, frame: &mut [u8]) {
        let Some(end) = frame.len().checked_sub(CRC_BYTES) else {
            return;
        };
        let room = &mut frame[HEADER_BYTES..end];
        room.copy_from_slice(self.piece(room.len()));
        let crc = fc_crc(&frame[ETHERNET_HEADER_BYTES..end]);
        frame[end..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks a frame of a peer that fills its frames, and copies what is in it to memory.
    #[inline]
    pub(super) fn take(&mut self, frame: &[u8]) {
        let sealed = frame.split_last_chunk::<CRC_BYTES>();
        let whole = sealed.filter(|(covered, crc)| {
            covered.len() >= HEADER_BYTES
                && fc_crc(&covered[ETHERNET_HEADER_BYTES..]) == u32::from_le_bytes(**crc)
        });
        match whole {
            Some((covered, _)) => {
                let room = &covered[HEADER_BYTES..];
                self.piece(room.len()).copy_from_slice(room);
            }
            None => self.damaged += 1,
        }
    }

    /// Frames whose CRC was wrong.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_comes_out_and_damage_is_seen() {
        let (mut near, mut far) = (Contents::new(), Contents::new());
        far.memory.fill(0);
        for bytes in [SHORTEST_BYTES, SHORTEST_BYTES + 1, 200, 1500, 65_535] {
            for _ in 0..9 {
                let mut frame = vec![0xEE; bytes];
                near.fill(&mut frame);
                far.take(&frame);
                for at in [ETHERNET_HEADER_BYTES, HEADER_BYTES, bytes - 1] {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1;
                    let before = far.damaged();
                    far.take(&damaged);
                    assert_eq!(far.damaged(), before + 1, "byte {at} of {bytes}");
                }
                assert_eq!(near.at, far.at);
                let taken = bytes - SHORTEST_BYTES;
                assert_eq!(
                    far.memory[far.at - taken..far.at],
                    near.memory[near.at - taken..near.at]
                );
            }
        }
        let before = far.damaged();
        far.take(&[0; CRC_BYTES - 1]);
        far.take(&[0; SHORTEST_BYTES - 1]);
        assert_eq!(far.damaged(), before + 2, "too short");
    }
}
