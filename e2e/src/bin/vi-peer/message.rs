//! Messages whose content is determined by their serial number.

/// Lengths by serial number: one frame, the limit of a frame, two frames, many.
const LENGTHS: [usize; 6] = [8, 64, 700, 2096, 4096, 20_000];

/// The length of the longest message.
pub(crate) const LONGEST_BYTES: usize = 20_000;

/// Returns the length of a message.
pub(crate) fn length(serial: u64) -> usize {
    LENGTHS[serial as usize % LENGTHS.len()]
}

fn byte(serial: u64, offset: usize) -> u8 {
    (serial as u8).wrapping_mul(31) ^ (offset as u8).wrapping_mul(7) ^ ((offset >> 8) as u8)
}

/// Writes a message; returns its length.
pub(crate) fn write(serial: u64, out: &mut [u8]) -> usize {
    let length = length(serial);
    let (head, body) = out[..length].split_at_mut(8);
    head.copy_from_slice(&serial.to_le_bytes());
    for (offset, out) in body.iter_mut().enumerate() {
        *out = byte(serial, offset);
    }
    length
}

/// Returns the serial number of a message; `None` if any byte is wrong.
pub(crate) fn read(bytes: &[u8]) -> Option<u64> {
    let (head, body) = bytes.split_first_chunk::<8>()?;
    let serial = u64::from_le_bytes(*head);
    let is_intact = bytes.len() == length(serial)
        && body
            .iter()
            .enumerate()
            .all(|(offset, found)| *found == byte(serial, offset));
    is_intact.then_some(serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_detects_any_changed_byte() {
        let mut bytes = [0; LONGEST_BYTES];
        for serial in 0..12 {
            let length = write(serial, &mut bytes);
            assert_eq!(read(&bytes[..length]), Some(serial));
            assert_eq!(read(&bytes[..length - 1]), None);
            for at in (0..length).step_by(97) {
                bytes[at] ^= 0x10;
                assert_ne!(
                    read(&bytes[..length]),
                    Some(serial),
                    "byte {at} of {serial}"
                );
                bytes[at] ^= 0x10;
            }
        }
    }
}
