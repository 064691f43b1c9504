//! The segment's file: header, station table, and waking of stations.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::directory::{Directory, DirectoryLock, SEGMENT_FILE};
use super::error::ShmError;
use super::layout::{
    ContactLine, Geometry, LAYOUT_VERSION, MAGIC, SegmentHeader, StationEntry, StationState,
};
use super::sys;
use crate::file_size::set_file_length;
use crate::mapping::Mapping;
use crate::port::AsFutexWord;
use crate::sync::mapped::{AtomicU32, Ordering, fence};
use crate::wake::{futex_wake_all, monotonic_ns};

/// The mapped file of a segment.
#[derive(Debug)]
pub(super) struct Segment {
    map: Mapping,
    geometry: Geometry,
}

impl Segment {
    /// Opens the segment's file, or creates it if it does not exist, is incomplete after
    /// a crash of its creator, or has other parameters and no running station.
    pub(super) fn open(
        directory: &Directory,
        geometry: Geometry,
        lock: &DirectoryLock,
    ) -> Result<(Self, File), ShmError> {
        let failed = |action, source| directory.failed(action, SEGMENT_FILE, source);
        let file = match directory.open_file(SEGMENT_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::create(directory, geometry, lock);
            }
            Err(error) => return Err(failed("open", error)),
        };
        match compare(&file, &geometry).map_err(|error| failed("read", error))? {
            Ok(()) => {
                let segment = Self::map(&file, geometry).map_err(|error| failed("map", error))?;
                Ok((segment, file))
            }
            Err(difference) => {
                let in_use = sys::is_locked_by_another(&file, 0, 0)
                    .map_err(|error| failed("test locks of", error))?;
                if in_use {
                    return Err(ShmError::Mismatch {
                        path: directory.path_of(SEGMENT_FILE),
                        parameter: difference.parameter,
                        found: difference.found,
                        expected: difference.expected,
                    });
                }
                directory
                    .remove_file(SEGMENT_FILE)
                    .map_err(|error| failed("remove", error))?;
                Self::create(directory, geometry, lock)
            }
        }
    }

    /// Creates the file; the magic is written last.
    fn create(
        directory: &Directory,
        geometry: Geometry,
        lock: &DirectoryLock,
    ) -> Result<(Self, File), ShmError> {
        let failed = |action, source| directory.failed(action, SEGMENT_FILE, source);
        directory
            .sweep(|_| false, lock)
            .map_err(|error| failed("remove stale stations of", error))?;
        let file = directory
            .create_file(SEGMENT_FILE)
            .map_err(|error| failed("create", error))?;
        let bytes = geometry.segment_bytes() as u64;
        set_file_length(&file, bytes).map_err(|error| failed("set the length of", error))?;
        sys::allocate(&file, 0, bytes).map_err(|error| failed("reserve memory for", error))?;
        let segment = Self::map(&file, geometry).map_err(|error| failed("map", error))?;
        let header = segment.header();
        let [a, b, c] = geometry.mac_prefix;
        // All under the directory's lock, which orders them for the next process that opens the file.
        header
            .layout_version
            .store(LAYOUT_VERSION, Ordering::Relaxed);
        header
            .slots_per_ring
            .store(geometry.slots_per_ring, Ordering::Relaxed);
        header
            .max_stations
            .store(geometry.max_stations, Ordering::Relaxed);
        header
            .mac_prefix
            .store(u32::from_be_bytes([0, a, b, c]), Ordering::Relaxed);
        header
            .ring_stride_bytes
            .store(geometry.ring_stride_bytes, Ordering::Relaxed);
        // Release, without a partner, for the order in case of a crash: a creator
        // killed before this line leaves a file without magic.
        header.magic.store(MAGIC, Ordering::Release);
        Ok((segment, file))
    }

    fn map(file: &File, geometry: Geometry) -> io::Result<Self> {
        let map = Mapping::shared(file.as_fd(), 0, geometry.segment_bytes())?;
        Ok(Self { map, geometry })
    }

    /// Returns the segment's parameters.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns whether the file was found shorter than its table.
    pub(super) fn is_lost(&self) -> bool {
        self.map.is_lost()
    }

    /// Returns whether the header is as its creator wrote it.
    pub(super) fn is_intact(&self) -> bool {
        let (header, geometry) = (self.header(), &self.geometry);
        let [a, b, c] = geometry.mac_prefix;
        // All Relaxed: none of them changes in the lifetime of a segment.
        header.magic.load(Ordering::Relaxed) == MAGIC
            && header.layout_version.load(Ordering::Relaxed) == LAYOUT_VERSION
            && header.slots_per_ring.load(Ordering::Relaxed) == geometry.slots_per_ring
            && header.max_stations.load(Ordering::Relaxed) == geometry.max_stations
            && header.mac_prefix.load(Ordering::Relaxed) == u32::from_be_bytes([0, a, b, c])
            && header.ring_stride_bytes.load(Ordering::Relaxed) == geometry.ring_stride_bytes
    }

    /// Returns the header.
    pub(super) fn header(&self) -> &SegmentHeader {
        let header = self.map.as_ptr().cast::<SegmentHeader>();
        // SAFETY: the mapping is page-aligned, at least `segment_bytes` long and
        // exists as long as `self`; the header is atomics only, so that sharing it
        // with other processes is no data race.
        unsafe { header.as_ref() }
    }

    /// Returns the entry of a station slot, which is below `max_stations`.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> &StationEntry {
        assert!(slot < self.geometry.max_stations as usize);
        let offset = size_of::<SegmentHeader>() + slot * size_of::<StationEntry>();
        // SAFETY: `segment_bytes` counts `max_stations` entries after the header,
        // and the assertion keeps `slot` among them.
        let entry: NonNull<StationEntry> = unsafe { self.map.as_ptr().add(offset) }.cast();
        // SAFETY: inside the mapping, aligned (both sizes are multiples of 128), and
        // made of atomics only, as for `header`.
        unsafe { entry.as_ref() }
    }

    /// Returns the state of a station slot.
    #[inline]
    pub(super) fn state(&self, slot: usize) -> StationState {
        // Acquire, partner: the Release in `set_state`: a reader that sees a station live
        // sees its entry initialised.
        StationState::from_word(self.entry(slot).state.load(Ordering::Acquire))
    }

    /// Changes the state of a slot if it still is `from`, and then wakes all stations; returns whether it did.
    pub(super) fn set_state(&self, slot: usize, from: StationState, to: StationState) -> bool {
        let word = &self.entry(slot).state;
        // Release, partner: the Acquire in `state`. Nothing is read on failure.
        let changed = word
            .compare_exchange(from.word(), to.word(), Ordering::Release, Ordering::Relaxed)
            .is_ok();
        if changed {
            // Release, partner: the Acquire load of the epoch in `ShmPort::refresh`,
            // which then sees the new state.
            self.header().epoch.count.fetch_add(1, Ordering::Release);
            // SeqCst, partner: the barrier that a station executes on every process
            // between arming and polling: either it sees the new epoch or this station sees
            // that it is armed.
            fence(Ordering::SeqCst);
            for other in 0..self.geometry.max_stations as usize {
                self.wake_if_armed(other);
            }
        }
        changed
    }

    /// Wakes a station if it is armed; returns whether it was. The caller ensures
    /// that this load is ordered after the stores that the station must see.
    #[inline]
    pub(super) fn wake_if_armed(&self, slot: usize) -> bool {
        // Relaxed: only a hint whether the exchange below is worth its cost.
        if self.entry(slot).wake.armed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.wake(slot)
    }

    #[cold]
    fn wake(&self, slot: usize) -> bool {
        let line = &self.entry(slot).wake;
        // Relaxed: it only picks one of several wakers.
        if line.armed.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        // Relaxed: for a measurement only.
        line.woken_at_ns.store(monotonic_ns(), Ordering::Relaxed);
        // Release, partner: the Acquire load of the word in `ShmPort::arm`.
        line.wakes.fetch_add(1, Ordering::Release);
        futex_wake_all(&line.wakes);
        true
    }

    /// Returns the contact bits of a station: which sending slots have mapped a ring to it.
    pub(super) fn contacts(&self, slot: usize) -> &ContactLine {
        &self.entry(slot).contacts
    }
}

/// The first parameter in which a segment's file differs from what is expected.
struct Difference {
    parameter: &'static str,
    found: u64,
    expected: u64,
}

/// Compares a file's header and length with what is expected. It is read, not mapped:
/// a truncated file would raise SIGBUS.
fn compare(file: &File, geometry: &Geometry) -> io::Result<Result<(), Difference>> {
    const HEADER_BYTES: usize = 32;
    let length_bytes = file.metadata()?.len();
    let mut header = [0u8; HEADER_BYTES];
    if length_bytes >= HEADER_BYTES as u64 {
        file.read_exact_at(&mut header, 0)?;
    }
    let word = |at: usize| {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u64::from(u32::from_ne_bytes(bytes))
    };
    let double_word = |at: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let [a, b, c] = geometry.mac_prefix;
    let mac_prefix = u32::from_be_bytes([0, a, b, c]);
    let table = [
        ("magic", double_word(0), MAGIC),
        ("layout version", word(8), u64::from(LAYOUT_VERSION)),
        (
            "slots_per_ring",
            word(12),
            u64::from(geometry.slots_per_ring),
        ),
        ("max_stations", word(16), u64::from(geometry.max_stations)),
        ("mac_prefix", word(20), u64::from(mac_prefix)),
        ("ring stride", double_word(24), geometry.ring_stride_bytes),
        ("file length", length_bytes, geometry.segment_bytes() as u64),
    ];
    for (parameter, found, expected) in table {
        if found != expected {
            return Ok(Err(Difference {
                parameter,
                found,
                expected,
            }));
        }
    }
    Ok(Ok(()))
}

/// The futex word of one station; keeps the segment mapped.
pub(super) struct StationWord {
    pub(super) segment: Arc<Segment>,
    pub(super) slot: usize,
}

impl AsFutexWord for StationWord {
    fn futex_word(&self) -> &AtomicU32 {
        &self.segment.entry(self.slot).wake.wakes
    }

    fn woken_at_ns(&self) -> Option<u64> {
        let line = &self.segment.entry(self.slot).wake;
        Some(line.woken_at_ns.load(Ordering::Relaxed))
    }
}
