//! The marks by which the driver finds the owner of a buffer.
//!
//! `kind 2 | number 8 | position 22`: where the buffer is from, and the low bits of its
//! position in a ring; for scratch buffers the lower 24 belong to the mempool.

/// Where a buffer is from.
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
/// Far more positions than a ring has slots, so that those in use differ.
const POSITION_MASK: u32 = (1 << NUMBER_SHIFT) - 1;
/// A mempool's tag is the upper byte of its cookies.
const TAG_SHIFT: u32 = 24;

const _: () = assert!(POSITION_MASK > 2 * 65536);

/// The cookie of position zero of a transmit ring, whose number is below 256.
pub(super) fn tx_base(ring: usize) -> u32 {
    TX << KIND_SHIFT | (ring as u32 & NUMBER_MASK) << NUMBER_SHIFT
}

/// The cookie of position zero of the receive ring of a sending slot.
pub(super) fn rx_base(sender: usize) -> u32 {
    RX << KIND_SHIFT | (sender as u32 & NUMBER_MASK) << NUMBER_SHIFT
}

/// The tag of a scratch pool, whose number is below 64.
pub(super) fn scratch_tag(pool: usize) -> u8 {
    (SCRATCH << (KIND_SHIFT - TAG_SHIFT)) as u8 | pool as u8 & 0x3f
}

/// Where the buffer with this cookie is from.
#[inline]
pub(super) fn origin(cookie: u32) -> Origin {
    let number = (cookie >> NUMBER_SHIFT & NUMBER_MASK) as usize;
    match cookie >> KIND_SHIFT {
        TX => Origin::Tx(number),
        RX => Origin::Rx(number),
        SCRATCH => Origin::Scratch((cookie >> TAG_SHIFT & 0x3f) as usize),
        _ => Origin::Foreign,
    }
}

/// The part of a position that goes into a cookie.
#[inline]
pub(super) fn low(position: u64) -> u32 {
    position as u32 & POSITION_MASK
}

/// The part of the position in a cookie.
#[inline]
pub(super) fn position(cookie: u32) -> u32 {
    cookie & POSITION_MASK
}

/// The low half of a position from its part in a cookie: the first such at or after `from`.
#[inline]
pub(super) fn widen(part: u32, from: u32) -> u32 {
    from.wrapping_add(part.wrapping_sub(from) & POSITION_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_read_as_it_was_made() {
        for number in [0, 1, 63, 254, 255] {
            assert_eq!(origin(tx_base(number) | low(u64::MAX)), Origin::Tx(number));
            assert_eq!(origin(rx_base(number) | 7), Origin::Rx(number));
        }
        for pool in [0, 1, 63] {
            let scratch = u32::from(scratch_tag(pool)) << TAG_SHIFT;
            assert_eq!(origin(scratch | 0x00ff_ffff), Origin::Scratch(pool));
        }
        assert_eq!(origin(0), Origin::Foreign);
        assert_eq!(
            position(tx_base(3) | low(0xdead_beef)),
            0xdead_beef & POSITION_MASK
        );
    }

    #[test]
    fn a_position_is_found_again_from_its_low_bits() {
        for from in [0u32, 5, POSITION_MASK, 0x0fff_fff0, u32::MAX - 3] {
            for ahead in [0u32, 1, 64, 65536] {
                let whole = from.wrapping_add(ahead);
                assert_eq!(widen(low(u64::from(whole)), from), whole);
            }
        }
    }
}
