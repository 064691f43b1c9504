//! Configuration of a hub, and its errors.

use core::fmt;
use std::io;

use crate::port::MacBytes;

/// Maximum number of stations of one hub.
pub const STATIONS_MAX: usize = 64;

/// Maximum number of frames in flight from one station to another.
pub(super) const FRAMES_PER_RING_MAX: u32 = 1 << 16;

/// Bytes of an Ethernet header: the addresses and the EtherType.
pub(super) const HEADER_BYTES: usize = 14;

/// Configuration of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// The name of the hub, for log and error messages.
    pub device: String,
    /// The MAC address of each station: 2 to [`STATIONS_MAX`] different ones.
    pub macs: Vec<MacBytes>,
    /// Frames in flight or in use from one station to another, 1 to 65536.
    pub frames_per_ring: u32,
    /// Maximum frame length in bytes, without FCS, 60 to 65535.
    pub max_frame_bytes: u32,
    /// Requests huge pages; falls back to ordinary pages if none are free.
    pub huge_pages: bool,
}

impl LoopbackConfig {
    /// Configures a hub of `count` stations with the MAC addresses 0E-FD-00-00-00-01 and following.
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

/// Returns whether the address is a group address.
pub(super) fn is_group(mac: MacBytes) -> bool {
    mac[0] & 1 != 0
}

/// Why a hub could not be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopbackError {
    /// Too few or too many stations, or a pair of other than two.
    Stations {
        /// The requested number.
        count: usize,
    },
    /// The ring length is out of range.
    FramesPerRing {
        /// The requested length.
        frames: u32,
    },
    /// The frame length is out of range.
    MaxFrame {
        /// The requested length.
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
                    "a hub needs 2 to {STATIONS_MAX} stations and a pair exactly 2, not {count}"
                )
            }
            Self::FramesPerRing { frames } => {
                write!(
                    f,
                    "frames_per_ring is {frames}, allowed is 1 to {FRAMES_PER_RING_MAX}"
                )
            }
            Self::MaxFrame { frame_bytes } => {
                write!(
                    f,
                    "max_frame_bytes is {frame_bytes}, allowed is 60 to 65535"
                )
            }
            Self::Mac { mac } => {
                write!(f, "{mac:02X?} is a group address, or used by two stations")
            }
            Self::Memory(error) => write!(f, "mapping the buffers of a hub failed: {error}"),
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
