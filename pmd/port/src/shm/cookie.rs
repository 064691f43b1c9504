//! The marks by which the driver finds the owner of a buffer.
//!
//! The upper 16 bits say where the buffer is from, the lower 32 are the low half of
//! its position in a ring; for scratch buffers the lower 48 belong to the mempool.

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

const TX: u16 = 0x1000;
const RX: u16 = 0x2000;
const SCRATCH: u16 = 0x3000;
const KIND_MASK: u16 = 0xf000;

/// The cookie of position zero of a transmit ring, whose number is below 4096.
pub(super) fn tx_base(ring: usize) -> u64 {
    u64::from(TX | ring as u16 & !KIND_MASK) << 48
}

/// The cookie of position zero of the receive ring of a sending slot.
pub(super) fn rx_base(sender: usize) -> u64 {
    u64::from(RX | sender as u16 & !KIND_MASK) << 48
}

/// The tag of a scratch pool.
pub(super) fn scratch_tag(pool: usize) -> u16 {
    SCRATCH | pool as u16 & !KIND_MASK
}

/// Where the buffer with this cookie is from.
#[inline]
pub(super) fn origin(cookie: u64) -> Origin {
    let mark = (cookie >> 48) as u16;
    let number = usize::from(mark & !KIND_MASK);
    match mark & KIND_MASK {
        TX => Origin::Tx(number),
        RX => Origin::Rx(number),
        SCRATCH => Origin::Scratch(number),
        _ => Origin::Foreign,
    }
}

/// The low half of the position.
#[inline]
pub(super) fn position(cookie: u64) -> u32 {
    cookie as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_read_as_it_was_made() {
        for number in [0, 1, 254, 4095] {
            assert_eq!(origin(tx_base(number) | 0xffff_ffff), Origin::Tx(number));
            assert_eq!(origin(rx_base(number) | 7), Origin::Rx(number));
            let scratch = u64::from(scratch_tag(number)) << 48;
            assert_eq!(origin(scratch | 0xffff_ffff_ffff), Origin::Scratch(number));
        }
        assert_eq!(origin(0), Origin::Foreign);
        assert_eq!(position(tx_base(3) | 0xdead_beef), 0xdead_beef);
    }
}
