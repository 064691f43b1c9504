//! A station's membership in a segment: joining, detecting dead stations, leaving.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::config::ShmConfig;
use super::directory::{Directory, DirectoryLock, SEGMENT_FILE, station_file};
use super::error::ShmError;
use super::layout::{Geometry, StationState};
use super::segment::Segment;
use super::segment_station::SegmentStation;
use super::sys;
use crate::file_size::set_file_length;
use crate::port::{MacBytes, PortFailure};
use crate::sync::mapped::Ordering;

/// A station's membership in a segment; dropping it leaves the segment.
///
/// Liveness is shown by a write lock on byte `slot` of the segment's file, held
/// through an open file description of this station's own: the kernel releases it
/// however the process ends. A child that was forked without exec shares the
/// description and keeps its parent's stations alive.
#[derive(Debug)]
pub(super) struct Membership {
    directory: Directory,
    station: StationSlot,
    /// The slot stays locked when the station leaves.
    keeps_slot: bool,
}

/// The slot of a station and its open files.
#[derive(Debug)]
struct StationSlot {
    segment: Arc<Segment>,
    /// The segment's file, whose lock shows that the station is live.
    liveness: Arc<File>,
    /// The file with the station's receive rings.
    rings: File,
    slot: usize,
    generation: u64,
}

impl StationSlot {
    /// Takes a free slot, after reaping dead stations and removing their files.
    fn take(
        directory: &Directory,
        geometry: Geometry,
        lock: &DirectoryLock,
    ) -> Result<Self, ShmError> {
        let (segment, liveness) = Segment::open(directory, geometry, lock)?;
        let failed = |action, source| directory.failed(action, SEGMENT_FILE, source);
        for slot in 0..geometry.max_stations as usize {
            reap(&segment, &liveness, directory, slot)
                .map_err(|error| failed("check for dead stations in", error))?;
        }
        sweep(&segment, directory, lock)
            .map_err(|error| failed("remove stale stations of", error))?;
        let slot = take_slot(&segment, &liveness)
            .map_err(|error| failed("lock a station of", error))?
            .ok_or(ShmError::Full {
                max_stations: geometry.max_stations,
            })?;
        let before = segment.state(slot);
        let generation = before.generation + 1;
        let name = station_file(slot, generation);
        let rings = create_station_file(directory, &name, geometry.station_bytes())?;
        let entry = segment.entry(slot);
        // All Relaxed: `set_state` below publishes them with its Release.
        entry.pid.store(std::process::id(), Ordering::Relaxed);
        entry.memory_key.store(0, Ordering::Relaxed);
        entry.wake.armed.store(0, Ordering::Relaxed);
        for word in &entry.contacts.words {
            word.store(0, Ordering::Relaxed);
        }
        let live = StationState {
            generation,
            live: true,
        };
        let joined = segment.set_state(slot, before, live);
        debug_assert!(joined, "a slot changes only under the directory's lock");
        Ok(Self {
            segment: Arc::new(segment),
            liveness: Arc::new(liveness),
            rings,
            slot,
            generation,
        })
    }
}

impl Membership {
    /// Joins the segment of a configuration, creating it if it has no stations.
    pub(super) fn join(config: &ShmConfig) -> Result<Self, ShmError> {
        let geometry = config.geometry()?;
        let (directory, lock) = Directory::open_locked(&config.segment_directory())?;
        match StationSlot::take(&directory, geometry, &lock) {
            Ok(station) => Ok(Self {
                directory,
                station,
                keeps_slot: false,
            }),
            Err(error) => {
                // The error of joining is more useful than one of the cleanup.
                let _ = remove_if_unused(&directory, lock);
                Err(error)
            }
        }
    }

    /// Marks stations whose process has ended as left; returns how many.
    pub(super) fn reap_dead(&self) -> io::Result<u64> {
        let mut dead = 0;
        for slot in 0..self.station.segment.geometry().max_stations as usize {
            if slot != self.station.slot {
                dead += u64::from(reap(
                    &self.station.segment,
                    &self.station.liveness,
                    &self.directory,
                    slot,
                )?);
            }
        }
        Ok(dead)
    }

    /// Returns why this station is no longer a valid member, if so.
    pub(super) fn failure(&self) -> Option<PortFailure> {
        let StationSlot {
            segment,
            liveness,
            rings,
            slot,
            ..
        } = &self.station;
        let geometry = segment.geometry();
        // fstat(2) of an open file does not fail.
        let is_whole = |file: &File, bytes: u64| {
            file.metadata()
                .is_ok_and(|found| found.len() >= bytes && found.nlink() > 0)
        };
        if segment.is_lost()
            || !is_whole(liveness, geometry.segment_bytes() as u64)
            || !is_whole(rings, geometry.station_bytes())
        {
            return Some(PortFailure::SegmentRemoved);
        }
        let intact = segment.is_intact() && segment.state(*slot) == self.live();
        (!intact).then_some(PortFailure::SegmentDamaged)
    }

    /// Marks this station as left in the segment, if that is still mapped.
    pub(super) fn mark_left(&self) {
        let live = self.live();
        let left = StationState {
            live: false,
            ..live
        };
        self.station
            .segment
            .set_state(self.station.slot, live, left);
    }

    /// Keeps the slot locked until the process ends: its next station would write into the same ring slots
    /// as buffers that are still lent.
    pub(super) fn keep_slot(&mut self) {
        self.keeps_slot = true;
    }

    /// Returns the own state as it was published.
    fn live(&self) -> StationState {
        StationState {
            generation: self.station.generation,
            live: true,
        }
    }

    /// Returns this station, for the memory that it shares with others.
    pub(super) fn station(&self) -> SegmentStation {
        let StationSlot {
            segment,
            liveness,
            slot,
            generation,
            ..
        } = &self.station;
        SegmentStation::new(
            Arc::clone(segment),
            Arc::clone(liveness),
            *slot,
            *generation,
        )
    }

    /// Returns the segment.
    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.station.segment
    }

    /// Returns the own slot.
    pub(super) fn slot(&self) -> usize {
        self.station.slot
    }

    /// Returns the own MAC address.
    pub(super) fn mac(&self) -> MacBytes {
        self.station
            .segment
            .geometry()
            .mac(self.station.slot, self.station.generation)
    }

    /// Returns the file with the own receive rings.
    pub(super) fn rings(&self) -> &File {
        &self.station.rings
    }

    /// Opens the file with the receive rings of another station.
    pub(super) fn open_rings(&self, slot: usize, generation: u64) -> io::Result<File> {
        self.directory.open_file(&station_file(slot, generation))
    }

    fn leave(&self) -> Result<(), ShmError> {
        self.mark_left();
        let name = station_file(self.station.slot, self.station.generation);
        self.directory
            .remove_file(&name)
            .map_err(|error| self.directory.failed("remove", &name, error))?;
        if self.keeps_slot {
            // Never closed, the description keeps the lock.
            core::mem::forget(Arc::clone(&self.station.liveness));
            return Ok(());
        }
        let failed = |action, source| self.directory.failed(action, SEGMENT_FILE, source);
        sys::unlock_byte(&self.station.liveness, self.station.slot as u64)
            .map_err(|error| failed("unlock a station of", error))?;
        let Some(lock) = self.directory.lock_again()? else {
            return Ok(());
        };
        remove_if_unused(&self.directory, lock).map_err(|error| failed("clean up after", error))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // Files that cannot be removed now are removed by the next station that joins.
        let _ = self.leave();
    }
}

/// Removes a segment without stations.
fn remove_if_unused(directory: &Directory, lock: DirectoryLock) -> io::Result<()> {
    let in_use = match directory.open_file(SEGMENT_FILE) {
        // A new description, for which every held lock belongs to another one.
        Ok(file) => sys::is_locked_by_another(&file, 0, 0)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if in_use {
        return Ok(());
    }
    directory.remove(lock)
}

/// Marks a station as left if its lock is not held; returns whether this call did it.
fn reap(
    segment: &Segment,
    liveness: &File,
    directory: &Directory,
    slot: usize,
) -> io::Result<bool> {
    let state = segment.state(slot);
    if !state.live || sys::is_locked_by_another(liveness, slot as u64, 1)? {
        return Ok(false);
    }
    // If another station took the slot meanwhile, its generation differs, and
    // the exchange fails.
    let left = StationState {
        live: false,
        ..state
    };
    let marked = segment.set_state(slot, state, left);
    if marked {
        directory.remove_file(&station_file(slot, state.generation))?;
    }
    Ok(marked)
}

/// Removes files of stations that are not live: their processes ended while joining or leaving.
fn sweep(segment: &Segment, directory: &Directory, lock: &DirectoryLock) -> io::Result<()> {
    let living: Vec<String> = (0..segment.geometry().max_stations as usize)
        .filter_map(|slot| {
            let state = segment.state(slot);
            state.live.then(|| station_file(slot, state.generation))
        })
        .collect();
    directory.sweep(|name| living.iter().any(|kept| kept == name), lock)
}

/// Locks the first slot without a station. A slot can be locked although its station
/// left, while the process is in the last steps of leaving.
fn take_slot(segment: &Segment, liveness: &File) -> io::Result<Option<usize>> {
    for slot in 0..segment.geometry().max_stations as usize {
        if !segment.state(slot).live && sys::try_lock_byte(liveness, slot as u64)? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Creates the file of a station with the length of all its rings, but without allocating memory.
fn create_station_file(directory: &Directory, name: &str, bytes: u64) -> Result<File, ShmError> {
    let file = directory
        .create_file(name)
        .map_err(|error| directory.failed("create", name, error))?;
    set_file_length(&file, bytes)
        .map_err(|error| directory.failed("set the length of", name, error))?;
    Ok(file)
}
