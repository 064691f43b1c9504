//! Encodes in a buffer's cookie which ring or pool the buffer belongs to.
//!
//! Cookie: `kind 2 | number 8 | position 22`: the ring or pool, and the low bits of the
//! position in the ring; for scratch buffers the lower 24 bits belong to the mempool.

/// The ring or pool that a buffer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Lent for sending by the transmit ring with this number.
    Tx(usize),
    /// Received from the sender in this station slot.
    Rx(usize),
    /// A scratch buffer of the pool with this number.
    Scratch(usize),
    /// Not a buffer of this driver.
    Foreign,
}

const KIND_SHIFT: u32 = 30;
const TX: u32 = 1;
const RX: u32 = 2;
const SCRATCH: u32 = 3;
const NUMBER_SHIFT: u32 = 22;
const NUMBER_MASK: u32 = 0xff;
/// The positions in use at a time must differ: far more than a ring has slots.
const POSITION_MASK: u32 = (1 << NUMBER_SHIFT) - 1;
/// Position of a mempool's tag, the upper byte of its cookies.
const TAG_SHIFT: u32 = 24;

const _: () = assert!(POSITION_MASK > 2 * 65536);

/// Returns the cookie of position zero of a transmit ring, whose number is below 256.
pub(super) fn tx_base(ring: usize) -> u32 {
    TX << KIND_SHIFT | (ring as u32 & NUMBER_MASK) << NUMBER_SHIFT
}

/// Returns the cookie of position zero of the receive ring of a sending slot.
pub(super) fn rx_base(sender: usize) -> u32 {
    RX << KIND_SHIFT | (sender as u32 & NUMBER_MASK) << NUMBER_SHIFT
}

/// Returns the mempool tag of a scratch pool, whose number is below 64.
pub(super) fn scratch_tag(pool: usize) -> u8 {
    (SCRATCH << (KIND_SHIFT - TAG_SHIFT)) as u8 | pool as u8 & 0x3f
}

/// Decodes the origin of a buffer from its cookie.
#[inline]
pub(super) fn decode(cookie: u32) -> Origin {
    let number = (cookie >> NUMBER_SHIFT & NUMBER_MASK) as usize;
    match cookie >> KIND_SHIFT {
        TX => Origin::Tx(number),
        RX => Origin::Rx(number),
        SCRATCH => Origin::Scratch((cookie >> TAG_SHIFT & 0x3f) as usize),
        _ => Origin::Foreign,
    }
}

/// Truncates a position to the bits that a cookie holds.
#[inline]
pub(super) fn truncate(position: u64) -> u32 {
    position as u32 & POSITION_MASK
}

/// Returns the truncated position from a cookie.
#[inline]
pub(super) fn position_bits(cookie: u32) -> u32 {
    cookie & POSITION_MASK
}

/// Expands a truncated position to 32 bits: the first match at or after `from`.
#[inline]
pub(super) fn expand(bits: u32, from: u32) -> u32 {
    from.wrapping_add(bits.wrapping_sub(from) & POSITION_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_decode_to_their_origin() {
        for number in [0, 1, 63, 254, 255] {
            let cookie = tx_base(number) | truncate(u64::MAX);
            assert_eq!(decode(cookie), Origin::Tx(number));
            assert_eq!(decode(rx_base(number) | 7), Origin::Rx(number));
        }
        for pool in [0, 1, 63] {
            let scratch = u32::from(scratch_tag(pool)) << TAG_SHIFT;
            assert_eq!(decode(scratch | 0x00ff_ffff), Origin::Scratch(pool));
        }
        assert_eq!(decode(0), Origin::Foreign);
        assert_eq!(
            position_bits(tx_base(3) | truncate(0xdead_beef)),
            0xdead_beef & POSITION_MASK
        );
    }

    #[test]
    fn truncated_positions_expand_to_the_original() {
        for from in [0u32, 5, POSITION_MASK, 0x0fff_fff0, u32::MAX - 3] {
            for ahead in [0u32, 1, 64, 65536] {
                let whole = from.wrapping_add(ahead);
                assert_eq!(expand(truncate(u64::from(whole)), from), whole);
            }
        }
    }
}
