//! What a hub is made of, and what can be wrong with it.

use core::fmt;
use std::io;

use crate::port::MacBytes;

/// Stations of one hub, at most.
pub const STATIONS_MAX: usize = 64;

/// Frames from each station to each other one that may be on their way, at most.
pub(super) const FRAMES_PER_RING_MAX: u32 = 1 << 16;

/// The shortest frame with all its addresses and its EtherType.
pub(super) const HEADER_BYTES: usize = 14;

/// What a hub is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// The name of the hub, for people.
    pub device: String,
    /// The MAC address of each station: 2 to [`STATIONS_MAX`] different ones.
    pub macs: Vec<MacBytes>,
    /// Frames from one station to another that may be on their way or in use, 1 to 65536.
    pub frames_per_ring: u32,
    /// The longest frame in bytes, without FCS, 60 to 65535.
    pub max_frame_bytes: u32,
    /// Ask for huge pages; ordinary ones are taken when there are none.
    pub huge_pages: bool,
}

impl LoopbackConfig {
    /// A hub of `count` stations with the MAC addresses 0E-FD-00-00-00-01 and following.
    pub fn stations(count: u8) -> Self {
        Self {
            device: "hub".to_owned(),
            macs: (1..=count)
                .map(|station| [0x0E, 0xFD, 0x00, 0x00, 0x00, station])
                .collect(),
            frames_per_ring: 256,
            max_frame_bytes: 2172,
            huge_pages: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), LoopbackError> {
        if !(2..=STATIONS_MAX).contains(&self.macs.len()) {
            return Err(LoopbackError::Stations {
                count: self.macs.len(),
            });
        }
        if !(1..=FRAMES_PER_RING_MAX).contains(&self.frames_per_ring) {
            return Err(LoopbackError::FramesPerRing {
                frames: self.frames_per_ring,
            });
        }
        if !(60..=65_535).contains(&self.max_frame_bytes) {
            return Err(LoopbackError::MaxFrame {
                frame_bytes: self.max_frame_bytes,
            });
        }
        for (at, &mac) in self.macs.iter().enumerate() {
            if is_group(mac) || self.macs[..at].contains(&mac) {
                return Err(LoopbackError::Mac { mac });
            }
        }
        Ok(())
    }
}

impl Default for LoopbackConfig {
    /// Two stations.
    fn default() -> Self {
        Self::stations(2)
    }
}

/// True for an address of many stations.
pub(super) fn is_group(mac: MacBytes) -> bool {
    mac[0] & 1 != 0
}

/// Why a hub was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopbackError {
    /// Too few or too many stations, or a pair of other than two.
    Stations {
        /// How many were asked for.
        count: usize,
    },
    /// No ring is that long.
    FramesPerRing {
        /// What was asked for.
        frames: u32,
    },
    /// No frame is that long.
    MaxFrame {
        /// What was asked for.
        frame_bytes: u32,
    },
    /// A group address, or one that two stations have.
    Mac {
        /// The address.
        mac: MacBytes,
    },
    /// The memory of the buffers could not be mapped.
    Memory(io::Error),
}

impl fmt::Display for LoopbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stations { count } => {
                write!(
                    f,
                    "a hub has 2 to {STATIONS_MAX} stations and a pair has 2, not {count}"
                )
            }
            Self::FramesPerRing { frames } => {
                write!(
                    f,
                    "a ring has 1 to {FRAMES_PER_RING_MAX} frames, not {frames}"
                )
            }
            Self::MaxFrame { frame_bytes } => {
                write!(
                    f,
                    "the longest frame has 60 to 65535 bytes, not {frame_bytes}"
                )
            }
            Self::Mac { mac } => {
                write!(f, "{mac:02X?} is a group address, or two stations have it")
            }
            Self::Memory(error) => write!(f, "no memory for the buffers of a hub: {error}"),
        }
    }
}

impl std::error::Error for LoopbackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            Self::Stations { .. }
            | Self::FramesPerRing { .. }
            | Self::MaxFrame { .. }
            | Self::Mac { .. } => None,
        }
    }
}
