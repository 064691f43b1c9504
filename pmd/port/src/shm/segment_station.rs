//! A station of a segment, for direct access to memory: identity and liveness of the other stations, and the location of
//! their memory.

use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::layout::StationState;
use super::segment::Segment;
use super::sys;
use crate::port::MacBytes;
use crate::sync::mapped::Ordering;

/// A station of a segment.
#[derive(Clone, Debug)]
pub struct SegmentStation {
    segment: Arc<Segment>,
    liveness: Arc<File>,
    slot: usize,
    generation: u64,
}

/// Location of a station's memory: a file descriptor of a process, of a file that contains the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationMemory {
    /// The ID of the process in its own PID namespace.
    pub pid: u32,
    /// The number of its file descriptor.
    pub fd: u32,
    /// The key, which is random.
    pub key: u64,
}

impl SegmentStation {
    pub(super) fn new(
        segment: Arc<Segment>,
        liveness: Arc<File>,
        slot: usize,
        generation: u64,
    ) -> Self {
        Self {
            segment,
            liveness,
            slot,
            generation,
        }
    }

    /// Returns the slot of this station, below [`Self::slots`].
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the number of this station among those that had its slot.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of slots of the segment, at most 255.
    pub fn slots(&self) -> usize {
        self.segment.geometry().max_stations as usize
    }

    /// Publishes the location of this station's memory in its entry of the segment.
    pub fn publish_memory(&self, fd: RawFd, key: u64) {
        let entry = self.segment.entry(self.slot);
        entry.memory_fd.store(fd as u32, Ordering::Relaxed);
        // Release, partner: the Acquire load in `memory_of`.
        entry.memory_key.store(key, Ordering::Release);
    }

    /// Returns slot and generation of the live station that has this address, if it is another one.
    pub fn find(&self, mac: MacBytes) -> Option<(usize, u64)> {
        let slot = usize::from(mac[5]).checked_sub(1)?;
        let geometry = self.segment.geometry();
        if slot >= self.slots() || slot == self.slot {
            return None;
        }
        let state = self.segment.state(slot);
        let is_it = state.live && geometry.mac(slot, state.generation) == mac;
        is_it.then_some((slot, state.generation))
    }

    /// Returns the location of a live station's memory, if it shares any. Another process may have written it.
    pub fn memory_of(&self, slot: usize, generation: u64) -> Option<StationMemory> {
        let entry = self.segment.entry(slot);
        // Acquire, partner: the Release store in `publish_memory`.
        let key = entry.memory_key.load(Ordering::Acquire);
        let memory = StationMemory {
            pid: entry.pid.load(Ordering::Relaxed),
            fd: entry.memory_fd.load(Ordering::Relaxed),
            key,
        };
        (key != 0 && self.is_marked_live(slot, generation)).then_some(memory)
    }

    /// Returns whether a station is marked as live. It may have died since; its death is marked when another station
    /// finds out.
    #[inline]
    pub fn is_marked_live(&self, slot: usize, generation: u64) -> bool {
        let live = StationState {
            generation,
            live: true,
        };
        slot < self.slots() && self.segment.state(slot) == live
    }

    /// Returns whether the process of another station runs, or a child that it forked, by a system call; also if the
    /// station has left the segment since. A check that fails counts as yes.
    pub fn is_running(&self, slot: usize, generation: u64) -> bool {
        // A later station has the slot only if the process of this one has ended or closed it.
        let is_taken_again = self.segment.state(slot).generation > generation;
        !is_taken_again && sys::is_locked_by_another(&self.liveness, slot as u64, 1).unwrap_or(true)
    }
}
