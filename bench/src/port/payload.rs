//! Payload of filled frames, copied from and to memory, and its CRC.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 23 | header |
//! | any | payload |
//! | 4 | CRC of an FC frame, computed from the frame kind on, little-endian |

use fcvi_frame::crc::fc_crc;

use crate::raw_control::HEADER_BYTES;

/// Size of addresses and EtherType in bytes; the CRC does not cover them, as in FCoE.
const ETHERNET_HEADER_BYTES: usize = 14;

const CRC_BYTES: usize = 4;

/// Minimum size of a filled frame in bytes.
pub(super) const MIN_FILLED_FRAME_BYTES: usize = HEADER_BYTES + CRC_BYTES;

/// Size of the memory in bytes: as much as the messages of a program with some dozens in flight, and more than the L1
/// cache.
const MEMORY_BYTES: usize = 256 << 10;

/// Memory from which frames are filled, or to which payloads are copied.
pub(super) struct Payload {
    memory: Box<[u8]>,
    at: usize,
    damaged: u64,
}

impl Payload {
    /// Allocates memory and fills it with a pattern.
    pub(super) fn new() -> Self {
        Self {
            memory: (0..MEMORY_BYTES).map(|at| at as u8).collect(),
            at: 0,
            damaged: 0,
        }
    }

    /// Returns the next `bytes` bytes of the memory, which is longer than any frame.
    #[inline]
    fn piece(&mut self, bytes: usize) -> &mut [u8] {
        if self.at + bytes > self.memory.len() {
            self.at = 0;
        }
        let at = self.at;
        self.at += bytes;
        &mut self.memory[at..at + bytes]
    }

    /// Writes payload and CRC of a frame whose header is written; it has at least [`MIN_FILLED_FRAME_BYTES`].
    #[inline]
    pub(super) fn fill(&mut self, frame: &mut [u8]) {
        let Some(end) = frame.len().checked_sub(CRC_BYTES) else {
            return;
        };
        let payload = &mut frame[HEADER_BYTES..end];
        payload.copy_from_slice(self.piece(payload.len()));
        let crc = fc_crc(&frame[ETHERNET_HEADER_BYTES..end]);
        frame[end..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks the CRC of a filled frame, and copies its payload to memory.
    #[inline]
    pub(super) fn check_and_copy(&mut self, frame: &[u8]) {
        let parts = frame.split_last_chunk::<CRC_BYTES>();
        let valid = parts.filter(|(covered, crc)| {
            covered.len() >= HEADER_BYTES
                && fc_crc(&covered[ETHERNET_HEADER_BYTES..]) == u32::from_le_bytes(**crc)
        });
        match valid {
            Some((covered, _)) => {
                let payload = &covered[HEADER_BYTES..];
                self.piece(payload.len()).copy_from_slice(payload);
            }
            None => self.damaged += 1,
        }
    }

    /// Returns the number of frames with a wrong CRC.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_round_trips_and_damage_is_counted() {
        let (mut sender, mut receiver) = (Payload::new(), Payload::new());
        receiver.memory.fill(0);
        for bytes in [
            MIN_FILLED_FRAME_BYTES,
            MIN_FILLED_FRAME_BYTES + 1,
            200,
            1500,
            65_535,
        ] {
            for _ in 0..9 {
                let mut frame = vec![0xEE; bytes];
                sender.fill(&mut frame);
                receiver.check_and_copy(&frame);
                for at in [ETHERNET_HEADER_BYTES, HEADER_BYTES, bytes - 1] {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1;
                    let before = receiver.damaged();
                    receiver.check_and_copy(&damaged);
                    assert_eq!(receiver.damaged(), before + 1, "byte {at} of {bytes}");
                }
                assert_eq!(sender.at, receiver.at);
                let taken = bytes - MIN_FILLED_FRAME_BYTES;
                assert_eq!(
                    receiver.memory[receiver.at - taken..receiver.at],
                    sender.memory[sender.at - taken..sender.at]
                );
            }
        }
        let before = receiver.damaged();
        receiver.check_and_copy(&[0; CRC_BYTES - 1]);
        receiver.check_and_copy(&[0; MIN_FILLED_FRAME_BYTES - 1]);
        assert_eq!(receiver.damaged(), before + 2, "too short");
    }
}
