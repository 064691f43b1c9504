//! The CRC of an FC frame.
//!
//! The same CRC-32 as Ethernet's (polynomial 0x04C11DB7, reflected, all ones
//! first, complemented last), from R_CTL to the last byte of the data field, fill
//! included, SOF and EOF not.

/// Computes the CRC of `bytes`, which is stored little-endian behind them.
#[inline]
#[must_use]
pub fn fc_crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::fc_crc;
    use proptest::prelude::*;

    /// The CRC of any data followed by its CRC.
    const RESIDUE: u32 = 0x2144_DF1C;

    /// Computes the CRC bit by bit, by its definition.
    fn bitwise(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
            }
        }
        !crc
    }

    #[test]
    fn crc_of_the_catalogue_check_string() {
        assert_eq!(fc_crc(b"123456789"), 0xCBF4_3926);
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn crc_equals_the_bitwise_definition(
            bytes in proptest::collection::vec(any::<u8>(), 0..2200),
        ) {
            let crc = fc_crc(&bytes);
            prop_assert_eq!(crc, bitwise(&bytes));
            let mut whole = bytes;
            whole.extend_from_slice(&crc.to_le_bytes());
            prop_assert_eq!(fc_crc(&whole), RESIDUE);
        }
    }
}
