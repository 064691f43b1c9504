//! One station's place in a segment: joining, noticing the dead, leaving.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::config::ShmConfig;
use super::directory::{Directory, DirectoryLock, SEGMENT_FILE, station_file};
use super::error::ShmError;
use super::layout::{Geometry, StationState};
use super::segment::Segment;
use super::sys;
use crate::file_size::set_file_length;
use crate::port::{MacBytes, PortFailure};
use crate::sync::mapped::Ordering;

/// A taken station slot; leaving is dropping it.
///
/// The proof of life is a write lock on byte `slot` of the segment's file, held
/// through a file description of this station's own: the kernel gives it back
/// however the process ends. A child that was forked without exec shares the
/// description and keeps its parent's stations alive.
#[derive(Debug)]
pub(super) struct Membership {
    directory: Directory,
    place: Place,
    /// The slot stays taken when the station leaves.
    keeps_slot: bool,
}

/// The slot of a station and what it holds open there.
#[derive(Debug)]
struct Place {
    segment: Arc<Segment>,
    life: Arc<File>,
    rings: File,
    slot: usize,
    generation: u64,
}

impl Place {
    /// Takes a free slot, after marking the dead and removing what they left.
    fn take(
        directory: &Directory,
        geometry: Geometry,
        lock: &DirectoryLock,
    ) -> Result<Self, ShmError> {
        let (segment, life) = Segment::open(directory, geometry, lock)?;
        let failed = |action, source| directory.failed(action, SEGMENT_FILE, source);
        for slot in 0..geometry.max_stations as usize {
            reap(&segment, &life, directory, slot)
                .map_err(|error| failed("look for dead stations in", error))?;
        }
        sweep(&segment, directory, lock).map_err(|error| failed("sweep stations of", error))?;
        let slot = take_slot(&segment, &life)
            .map_err(|error| failed("lock a station of", error))?
            .ok_or(ShmError::Full {
                max_stations: geometry.max_stations,
            })?;
        let before = segment.state(slot);
        let generation = before.generation + 1;
        let name = station_file(slot, generation);
        let rings = make_station_file(directory, &name, geometry.station_bytes())?;
        let entry = segment.entry(slot);
        // All Relaxed: `set_state` below publishes them with its Release.
        entry.pid.store(std::process::id(), Ordering::Relaxed);
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
            life: Arc::new(life),
            rings,
            slot,
            generation,
        })
    }
}

impl Membership {
    /// Joins the segment of a configuration, making it if nobody is in it.
    pub(super) fn join(config: &ShmConfig) -> Result<Self, ShmError> {
        let geometry = config.geometry()?;
        let (directory, lock) = Directory::open_locked(&config.segment_directory())?;
        match Place::take(&directory, geometry, &lock) {
            Ok(place) => Ok(Self {
                directory,
                place,
                keeps_slot: false,
            }),
            Err(error) => {
                // The error of joining says more than one of cleaning up.
                let _ = remove_if_unused(&directory, lock);
                Err(error)
            }
        }
    }

    /// Marks stations whose process is gone; gives how many.
    pub(super) fn reap_dead(&self) -> io::Result<u64> {
        let mut dead = 0;
        for slot in 0..self.place.segment.geometry().max_stations as usize {
            if slot != self.place.slot {
                dead += u64::from(reap(
                    &self.place.segment,
                    &self.place.life,
                    &self.directory,
                    slot,
                )?);
            }
        }
        Ok(dead)
    }

    /// Why this station is none any more, if so.
    pub(super) fn failure(&self) -> Option<PortFailure> {
        let Place {
            segment,
            life,
            rings,
            slot,
            ..
        } = &self.place;
        let geometry = segment.geometry();
        // Only an open file that is no file any more cannot be examined.
        let is_whole = |file: &File, bytes: u64| {
            file.metadata()
                .is_ok_and(|found| found.len() >= bytes && found.nlink() > 0)
        };
        if segment.is_lost()
            || !is_whole(life, geometry.segment_bytes() as u64)
            || !is_whole(rings, geometry.station_bytes())
        {
            return Some(PortFailure::SegmentRemoved);
        }
        let intact = segment.is_intact() && segment.state(*slot) == self.live();
        (!intact).then_some(PortFailure::SegmentDamaged)
    }

    /// Tells the others that this station is gone, where they can still read it.
    pub(super) fn renounce(&self) {
        let live = self.live();
        let left = StationState {
            live: false,
            ..live
        };
        self.place.segment.set_state(self.place.slot, live, left);
    }

    /// Has the slot stay taken until the process ends: its next station would write where this one
    /// was about to.
    pub(super) fn keep_slot(&mut self) {
        self.keeps_slot = true;
    }

    /// The own state as it was published.
    fn live(&self) -> StationState {
        StationState {
            generation: self.place.generation,
            live: true,
        }
    }

    /// The segment.
    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.place.segment
    }

    /// The own slot.
    pub(super) fn slot(&self) -> usize {
        self.place.slot
    }

    /// The own MAC address.
    pub(super) fn mac(&self) -> MacBytes {
        self.place
            .segment
            .geometry()
            .mac(self.place.slot, self.place.generation)
    }

    /// The file with the own receive rings.
    pub(super) fn rings(&self) -> &File {
        &self.place.rings
    }

    /// Opens the file with the receive rings of another station.
    pub(super) fn open_rings(&self, slot: usize, generation: u64) -> io::Result<File> {
        self.directory.open_file(&station_file(slot, generation))
    }

    fn leave(&self) -> Result<(), ShmError> {
        self.renounce();
        let name = station_file(self.place.slot, self.place.generation);
        self.directory
            .remove_file(&name)
            .map_err(|error| self.directory.failed("remove", &name, error))?;
        if self.keeps_slot {
            // Never closed, it keeps the lock.
            core::mem::forget(Arc::clone(&self.place.life));
            return Ok(());
        }
        let failed = |action, source| self.directory.failed(action, SEGMENT_FILE, source);
        sys::unlock_byte(&self.place.life, self.place.slot as u64)
            .map_err(|error| failed("unlock a station of", error))?;
        let Some(lock) = self.directory.lock_again()? else {
            return Ok(());
        };
        remove_if_unused(&self.directory, lock).map_err(|error| failed("clean up after", error))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // What could not be removed now is found and removed by the next who joins.
        let _ = self.leave();
    }
}

/// Removes a segment that no station is in.
fn remove_if_unused(directory: &Directory, lock: DirectoryLock) -> io::Result<()> {
    let in_use = match directory.open_file(SEGMENT_FILE) {
        // A description of its own, to which every held lock is another's.
        Ok(file) => sys::is_locked_by_another(&file, 0, 0)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if in_use {
        return Ok(());
    }
    directory.remove(lock)
}

/// Marks a station as gone if nobody holds its lock; true if this call did it.
fn reap(segment: &Segment, life: &File, directory: &Directory, slot: usize) -> io::Result<bool> {
    let state = segment.state(slot);
    if !state.live || sys::is_locked_by_another(life, slot as u64, 1)? {
        return Ok(false);
    }
    // If another station took the slot since, its generation is another one, and
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

/// Removes files that no living station has: their makers died while joining or leaving.
fn sweep(segment: &Segment, directory: &Directory, lock: &DirectoryLock) -> io::Result<()> {
    let living: Vec<String> = (0..segment.geometry().max_stations as usize)
        .filter_map(|slot| {
            let state = segment.state(slot);
            state.live.then(|| station_file(slot, state.generation))
        })
        .collect();
    directory.sweep(|name| living.iter().any(|kept| kept == name), lock)
}

/// Locks the first slot without a station. A slot can be locked though its station
/// left: its process is on the last lines of leaving.
fn take_slot(segment: &Segment, life: &File) -> io::Result<Option<usize>> {
    for slot in 0..segment.geometry().max_stations as usize {
        if !segment.state(slot).live && sys::try_lock_byte(life, slot as u64)? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Makes the file of a station, as long as all its rings but without memory for any.
fn make_station_file(directory: &Directory, name: &str, bytes: u64) -> Result<File, ShmError> {
    let file = directory
        .create_file(name)
        .map_err(|error| directory.failed("make", name, error))?;
    set_file_length(&file, bytes)
        .map_err(|error| directory.failed("set the length of", name, error))?;
    Ok(file)
}
