//! Calling Attributes, 16 bits of the CE header [VI/TCP 3.2].
//!
//! | Bit | Attribute |
//! | --- | --- |
//! | 0 | Reliable |
//! | 1 | RDMA Write Enable |
//! | 2 | RDMA Read Enable |
//! | 3 | Descriptor Flow Control Enabled |
//! | 4 | Peer-to-peer Connection Establishment |
//! | 6, 5 | exact reliability level; ours |
//! | 15 to 8 | sent as 0 and ignored |

use crate::profile::{
    ATTRIBUTE_FLOW_CONTROL, ATTRIBUTE_LEVEL_SHIFT, ATTRIBUTE_PEER_TO_PEER, ATTRIBUTE_RDMA_READ,
    ATTRIBUTE_RDMA_WRITE, ATTRIBUTE_RELIABLE, LEVEL_DELIVERY, LEVEL_RECEPTION, LEVEL_UNSPECIFIED,
};

const LEVEL_MASK: u16 = 3;

/// The exact reliable level: the draft merges the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExactLevel {
    /// Not specified: the connection is unreliable, or the sender implements only the draft.
    #[default]
    Unspecified,
    /// Reliable Delivery.
    Delivery,
    /// Reliable Reception.
    Reception,
    /// The undefined value 3.
    Unknown,
}

impl ExactLevel {
    const fn from_bits(bits: u16) -> Self {
        match (bits >> ATTRIBUTE_LEVEL_SHIFT) & LEVEL_MASK {
            LEVEL_UNSPECIFIED => Self::Unspecified,
            LEVEL_DELIVERY => Self::Delivery,
            LEVEL_RECEPTION => Self::Reception,
            _ => Self::Unknown,
        }
    }

    const fn to_bits(self) -> u16 {
        let level = match self {
            Self::Unspecified => LEVEL_UNSPECIFIED,
            Self::Delivery => LEVEL_DELIVERY,
            Self::Reception => LEVEL_RECEPTION,
            Self::Unknown => LEVEL_MASK,
        };
        level << ATTRIBUTE_LEVEL_SHIFT
    }
}

/// Attributes of a VI as its side of a connection advertises them; not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Reliable Delivery or Reliable Reception.
    pub reliable: bool,
    /// RDMA writes are accepted.
    pub rdma_write: bool,
    /// RDMA reads are accepted.
    pub rdma_read: bool,
    /// Descriptor flow control: messages wait for posted descriptors.
    pub flow_control: bool,
    /// The request is a peer's.
    pub peer_to_peer: bool,
    /// The exact reliable level.
    pub level: ExactLevel,
}

impl Attributes {
    /// Decodes the 16 bits; ignores unknown ones.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self {
            reliable: bits & ATTRIBUTE_RELIABLE != 0,
            rdma_write: bits & ATTRIBUTE_RDMA_WRITE != 0,
            rdma_read: bits & ATTRIBUTE_RDMA_READ != 0,
            flow_control: bits & ATTRIBUTE_FLOW_CONTROL != 0,
            peer_to_peer: bits & ATTRIBUTE_PEER_TO_PEER != 0,
            level: ExactLevel::from_bits(bits),
        }
    }

    /// Returns the 16 bits; unknown ones are 0.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        let mut bits = self.level.to_bits();
        if self.reliable {
            bits |= ATTRIBUTE_RELIABLE;
        }
        if self.rdma_write {
            bits |= ATTRIBUTE_RDMA_WRITE;
        }
        if self.rdma_read {
            bits |= ATTRIBUTE_RDMA_READ;
        }
        if self.flow_control {
            bits |= ATTRIBUTE_FLOW_CONTROL;
        }
        if self.peer_to_peer {
            bits |= ATTRIBUTE_PEER_TO_PEER;
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::{Attributes, ExactLevel};

    #[test]
    fn known_bits_round_trip_and_others_are_dropped() {
        for bits in 0..=u16::MAX {
            assert_eq!(Attributes::from_bits(bits).to_bits(), bits & 0x7F);
        }
    }

    #[test]
    fn each_bit_sets_its_attribute() {
        let none = Attributes::default();
        let expected = [
            Attributes {
                reliable: true,
                ..none
            },
            Attributes {
                rdma_write: true,
                ..none
            },
            Attributes {
                rdma_read: true,
                ..none
            },
            Attributes {
                flow_control: true,
                ..none
            },
            Attributes {
                peer_to_peer: true,
                ..none
            },
            Attributes {
                level: ExactLevel::Delivery,
                ..none
            },
            Attributes {
                level: ExactLevel::Reception,
                ..none
            },
        ];
        for (bit, attributes) in (0..).zip(expected) {
            assert_eq!(Attributes::from_bits(1 << bit), attributes);
        }
        assert_eq!(Attributes::from_bits(3 << 5).level, ExactLevel::Unknown);
        assert_eq!(Attributes::from_bits(0xFF80), none);
    }
}
