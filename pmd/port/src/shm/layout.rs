//! Layout of the shared files.

use super::config::ShmConfig;
use crate::port::MacBytes;
use crate::sync::mapped::{AtomicU32, AtomicU64};

/// Two adjacent cache lines, which the hardware fetches together.
pub(super) const BLOCK_BYTES: usize = 128;

/// Maximum frame length: 2172 bytes of FCoE and one VLAN tag.
pub(super) const MAX_FRAME_BYTES: usize = 2176;

/// The flag word and four unused bytes before the frame in a slot: the data field of an untagged frame
/// starts at a cache line.
pub(super) const SLOT_HEADER_BYTES: usize = 12;

/// Distance from slot to slot.
pub(super) const SLOT_STRIDE_BYTES: usize =
    (SLOT_HEADER_BYTES + MAX_FRAME_BYTES).next_multiple_of(BLOCK_BYTES);

/// The consumer's cache line before the first slot of a ring.
pub(super) const RING_HEADER_BYTES: usize = BLOCK_BYTES;

/// Ring sizes are multiples of this if huge pages are requested.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Maximum number of station slots.
pub(super) const STATIONS_MAX: usize = 255;

/// `VIADUCT\0`, written last by the creator of a segment.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"VIADUCT\0");

/// Incremented with every change of this file's structures or their meaning.
pub(super) const LAYOUT_VERSION: u32 = 3;

/// Parameters that must be equal for all stations of a segment, as stored in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) slots_per_ring: u32,
    pub(super) max_stations: u32,
    pub(super) mac_prefix: [u8; 3],
    pub(super) ring_stride_bytes: u64,
}

impl Geometry {
    /// Computes the geometry of a configuration.
    pub(super) fn of(config: &ShmConfig) -> Self {
        let page_bytes = if config.hugepages {
            HUGE_PAGE_BYTES as usize
        } else {
            4096
        };
        let ring_bytes = RING_HEADER_BYTES + config.slots_per_ring as usize * SLOT_STRIDE_BYTES;
        Self {
            slots_per_ring: config.slots_per_ring,
            max_stations: config.max_stations,
            mac_prefix: config.mac_prefix,
            ring_stride_bytes: ring_bytes.next_multiple_of(page_bytes) as u64,
        }
    }

    /// Returns whether rings are laid out in whole huge pages.
    pub(super) fn has_huge_rings(&self) -> bool {
        self.ring_stride_bytes.is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Returns the length of the segment's file.
    pub(super) fn segment_bytes(&self) -> usize {
        size_of::<SegmentHeader>() + self.max_stations as usize * size_of::<StationEntry>()
    }

    /// Returns the length of a station's file.
    pub(super) fn station_bytes(&self) -> u64 {
        self.ring_stride_bytes * u64::from(self.max_stations)
    }

    /// Returns the MAC address of the station that took `slot` as its `generation`-th.
    ///
    /// The lowest bytes are never all zeros or all ones, and differ between a
    /// station and the next 254 that take its slot after it.
    pub(super) fn mac(&self, slot: usize, generation: u64) -> MacBytes {
        let low = 1 + slot as u64 + 256 * (generation % 255);
        let [a, b, c] = self.mac_prefix;
        [a, b, c, 0, (low >> 8) as u8, low as u8]
    }
}

/// The header of the segment's file.
#[repr(C, align(128))]
pub(super) struct SegmentHeader {
    pub(super) magic: AtomicU64,
    pub(super) layout_version: AtomicU32,
    pub(super) slots_per_ring: AtomicU32,
    pub(super) max_stations: AtomicU32,
    pub(super) mac_prefix: AtomicU32,
    pub(super) ring_stride_bytes: AtomicU64,
    pub(super) epoch: EpochLine,
}

/// Number of membership changes. Read by every station in every receive burst, written when membership changes.
#[repr(C, align(128))]
pub(super) struct EpochLine {
    pub(super) count: AtomicU64,
}

/// One station in the segment's file.
#[repr(C, align(128))]
pub(super) struct StationEntry {
    /// Generation times two, plus one while the station is live.
    pub(super) state: AtomicU64,
    /// The ID of the station's process in its own PID namespace.
    pub(super) pid: AtomicU32,
    /// The number of a file descriptor of that process, valid if the key is not zero.
    pub(super) memory_fd: AtomicU32,
    /// The key in that file; zero if the station's memory cannot be mapped.
    pub(super) memory_key: AtomicU64,
    pub(super) wake: WakeLine,
    pub(super) contacts: ContactLine,
}

/// Read by senders after every burst, written when the station prepares to sleep or is woken.
#[repr(C, align(128))]
pub(super) struct WakeLine {
    /// One while the station requests a wakeup.
    pub(super) armed: AtomicU32,
    /// The futex word: counts the wakeups.
    pub(super) wakes: AtomicU32,
    /// The time of the last one.
    pub(super) woken_at_ns: AtomicU64,
}

/// Bit set of the sending slots that have mapped their ring to this station. Bits are only
/// set until the next station takes the slot, so that none is missed; a bit that a
/// sender sets too late, for a station that left, costs its successor an idle ring.
#[repr(C, align(128))]
pub(super) struct ContactLine {
    pub(super) words: [AtomicU64; 4],
}

/// The header of a ring, written by its consumer.
#[repr(C, align(128))]
pub(super) struct RingHeader {
    /// Slots before this position may be overwritten.
    pub(super) head: AtomicU64,
}

const _: () = {
    assert!(size_of::<SegmentHeader>() == 2 * BLOCK_BYTES);
    assert!(size_of::<StationEntry>() == 3 * BLOCK_BYTES);
    assert!(size_of::<RingHeader>() == RING_HEADER_BYTES);
    assert!(SLOT_STRIDE_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(SLOT_HEADER_BYTES >= size_of::<AtomicU64>());
    assert!(
        (SLOT_HEADER_BYTES + 52).is_multiple_of(64),
        "headers before the data field"
    );
    assert!(
        SLOT_HEADER_BYTES + 84 <= BLOCK_BYTES,
        "the smallest message in one block"
    );
};

/// The decoded state word of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StationState {
    pub(super) generation: u64,
    pub(super) live: bool,
}

impl StationState {
    pub(super) fn from_word(word: u64) -> Self {
        Self {
            generation: word >> 1,
            live: word & 1 == 1,
        }
    }

    pub(super) fn word(self) -> u64 {
        self.generation << 1 | u64::from(self.live)
    }
}

/// Encodes the flag word of a slot: the low half of the position plus one, then the
/// frame's length. A stale slot holds the number of an earlier lap, fresh memory zero
/// with length zero, and both differ from what the consumer expects.
pub(super) fn flag_word(position: u64, len_bytes: u32) -> u64 {
    u64::from((position as u32).wrapping_add(1)) << 32 | u64::from(len_bytes)
}

/// Returns whether the flag word marks the slot as published for `position`.
pub(super) fn is_published(word: u64, position: u64) -> bool {
    (word >> 32) as u32 == (position as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_differ_within_255_generations_and_are_not_reserved() {
        let geometry = Geometry::of(&ShmConfig::default());
        let mut seen = BTreeSet::new();
        for slot in 0..STATIONS_MAX {
            for generation in 1000..1255 {
                let mac = geometry.mac(slot, generation);
                assert_eq!(mac[..4], [0x0e, 0xfd, 0, 0]);
                assert_eq!(usize::from(mac[5]), slot + 1);
                assert!(!matches!(mac[4..], [0, 0] | [0xff, 0xff]));
                assert!(seen.insert(mac), "{mac:02x?} twice");
            }
        }
    }

    #[test]
    fn flag_word_matches_one_position_only() {
        for position in [
            0,
            1,
            255,
            0xffff_fffe,
            0xffff_ffff,
            0x1_0000_0000,
            u64::MAX >> 8,
        ] {
            let word = flag_word(position, 60);
            assert!(is_published(word, position));
            assert_eq!(word as u32, 60);
            for lap in [8, 256, 65536] {
                assert!(!is_published(word, position + lap));
                assert!(!is_published(word, position.wrapping_sub(lap)));
            }
        }
        assert!(!is_published(0, 0), "fresh memory");
    }

    #[test]
    fn state_word_round_trips() {
        for generation in [0, 1, 77, u64::MAX >> 1] {
            for live in [false, true] {
                let state = StationState { generation, live };
                assert_eq!(StationState::from_word(state.word()), state);
            }
        }
    }

    #[test]
    fn rings_for_huge_pages_are_whole_huge_pages() {
        let mut config = ShmConfig::default();
        assert!(!Geometry::of(&config).has_huge_rings());
        config.hugepages = true;
        let geometry = Geometry::of(&config);
        assert!(geometry.has_huge_rings());
        assert_eq!(geometry.ring_stride_bytes, 2 << 20);
    }
}
