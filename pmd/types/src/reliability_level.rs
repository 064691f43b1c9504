//! Reliability levels (VIPL 4.6).

use core::fmt;
use core::str::FromStr;

/// Reliability level of a VI (VIPL 4.6). The values are the bits of the guide; `ud`, `rd` and `rr` are
/// the short names in options and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u16)]
pub enum ReliabilityLevel {
    /// Unreliable Delivery: losses are not detected, and errors do not break the connection.
    #[cfg_attr(feature = "serde", serde(rename = "ud"))]
    UnreliableDelivery = 1,
    /// Reliable Delivery: in order, at most once; an error breaks the connection. A send completes when it has been
    /// sent.
    #[cfg_attr(feature = "serde", serde(rename = "rd"))]
    ReliableDelivery = 2,
    /// Reliable Reception: as Reliable Delivery, but a send or write completes when the peer has placed its data, or
    /// with the error that the peer reports.
    #[cfg_attr(feature = "serde", serde(rename = "rr"))]
    ReliableReception = 4,
}

impl ReliabilityLevel {
    /// All levels.
    pub const ALL: [Self; 3] = [
        Self::UnreliableDelivery,
        Self::ReliableDelivery,
        Self::ReliableReception,
    ];

    /// The bits of all levels.
    pub const ALL_BITS: u16 = 1 | 2 | 4;

    /// The bits of the levels with RDMA reads: at Unreliable Delivery a lost read would never complete.
    pub const RDMA_READ_BITS: u16 = 2 | 4;

    /// Returns the bit of the level in the attributes of VIs and NICs.
    #[must_use]
    pub const fn bit(self) -> u16 {
        self as u16
    }

    /// Returns the level with this bit; `None` for zero, several or undefined bits.
    #[must_use]
    pub const fn from_bit(bit: u16) -> Option<Self> {
        match bit {
            1 => Some(Self::UnreliableDelivery),
            2 => Some(Self::ReliableDelivery),
            4 => Some(Self::ReliableReception),
            _ => None,
        }
    }

    /// Returns the short name: `ud`, `rd` or `rr`.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::UnreliableDelivery => "ud",
            Self::ReliableDelivery => "rd",
            Self::ReliableReception => "rr",
        }
    }

    /// Returns whether a lost message breaks the connection.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::UnreliableDelivery)
    }
}

impl fmt::Display for ReliabilityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.short_name())
    }
}

/// A name that is not the short name of a reliability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownLevel;

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a reliability level: use `ud`, `rd` or `rr`")
    }
}

impl core::error::Error for UnknownLevel {}

impl FromStr for ReliabilityLevel {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Self, UnknownLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.short_name() == name)
            .ok_or(UnknownLevel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_round_trips_through_bit_and_short_name() {
        for level in ReliabilityLevel::ALL {
            assert_eq!(ReliabilityLevel::from_bit(level.bit()), Some(level));
            assert_eq!(level.short_name().parse(), Ok(level));
        }
        for bits in [0, 3, 6, 7, 8] {
            assert_eq!(ReliabilityLevel::from_bit(bits), None);
        }
        assert_eq!("RD".parse::<ReliabilityLevel>(), Err(UnknownLevel));
    }
}
