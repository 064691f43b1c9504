//! Configuration of a station.

use std::path::PathBuf;

use super::directory::runtime_directory;
use super::error::ShmError;
use super::layout::{Geometry, STATIONS_MAX};
use super::sys;

/// Configuration of a station of a shared-memory segment.
///
/// Stations find each other by `directory` and `segment` alone; the other
/// values must be the same for all stations that exist at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Name of the segment: 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
    pub segment: String,
    /// Where the segment's own directory is created; should be on a tmpfs.
    pub directory: PathBuf,
    /// Slots of the ring from one station to another; a power of two from 8 to 65536.
    pub slots_per_ring: u32,
    /// Stations in the segment, 1 to 255.
    pub max_stations: u32,
    /// First three bytes of every station's MAC address; the group bit is clear.
    pub mac_prefix: [u8; 3],
    /// Aligns rings for huge pages and requests them; the kernel may not provide any.
    pub hugepages: bool,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self::new("default")
    }
}

impl ShmConfig {
    /// Creates the default configuration of a segment: 256 slots, 64 stations, prefix 0E-FD-00,
    /// in `$XDG_RUNTIME_DIR` if that is a tmpfs, else in `/dev/shm`.
    pub fn new(segment: impl Into<String>) -> Self {
        Self {
            segment: segment.into(),
            directory: runtime_directory(),
            slots_per_ring: 256,
            max_stations: 64,
            mac_prefix: [0x0e, 0xfd, 0x00],
            hugepages: false,
        }
    }

    /// Returns the directory that holds the segment's files.
    pub fn segment_directory(&self) -> PathBuf {
        self.directory
            .join(format!("viaduct-{}-{}", sys::user(), self.segment))
    }

    /// Validates the configuration and returns the resulting geometry.
    pub(super) fn geometry(&self) -> Result<Geometry, ShmError> {
        let allowed_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let characters = self.segment.chars().count();
        if !(1..=64).contains(&characters) || !self.segment.chars().all(allowed_character) {
            return Err(ShmError::BadName {
                segment: self.segment.clone(),
            });
        }
        let slots = self.slots_per_ring;
        if !slots.is_power_of_two() || !(8..=65536).contains(&slots) {
            return Err(ShmError::BadParameter {
                parameter: "slots_per_ring",
                allowed: "a power of two from 8 to 65536",
                given: u64::from(slots),
            });
        }
        if !(1..=STATIONS_MAX as u32).contains(&self.max_stations) {
            return Err(ShmError::BadParameter {
                parameter: "max_stations",
                allowed: "1 to 255",
                given: u64::from(self.max_stations),
            });
        }
        if self.mac_prefix[0] & 1 != 0 {
            return Err(ShmError::BadParameter {
                parameter: "mac_prefix",
                allowed: "a prefix without the group bit",
                given: u64::from(self.mac_prefix[0]),
            });
        }
        Ok(Geometry::of(self))
    }
}
