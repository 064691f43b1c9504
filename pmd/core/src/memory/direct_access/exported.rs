//! The table of a station's own regions and VIs, which the other stations of its segment read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use nix::fcntl::{FallocateFlags, fallocate};
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::mapping::Mapping;
use pmd_port::shm::SegmentStation;

use super::gate::Observed;
use super::peer::device_of;
use super::{AccessInProgress, MAGIC, RIGHTS, SharedRegion, Table, WORD_BITS};
use crate::memory::TagCheck;
use crate::memory::client_mapping::memfd_info;
use crate::memory::find_memfd;
use crate::memory::pages::PAGE_BYTES;
use crate::memory::shared_allocator::{self, SharedPages};
use crate::memory::table::{RDMA_READ, RDMA_WRITE};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence, spin_loop, yield_now};
use crate::sys::random_bytes;

/// Turns of waiting for an access without giving up the processor: it takes some microseconds.
const SPINS: u32 = 1 << 10;
/// Turns of waiting between two system calls that look whether the other process runs.
const YIELDS_BETWEEN_CHECKS: u32 = 1 << 10;

/// Bit of an entry of `/proc/PID/pagemap`: a page of a file, or of shared memory.
const PAGE_OF_FILE: u64 = 1 << 61;

/// Pages of a region that other processes can map.
#[derive(Debug)]
pub(in crate::memory) struct SharablePages {
    pages: SharedPages,
    /// Keeps the file open, if it is not that of an allocation.
    _file: Option<OwnedFd>,
}

/// A connected VI, as the station of its peer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisibleVi {
    /// The VI's handle in frames.
    pub handle: u32,
    /// Slot and generation of the peer's station, which alone may use the VI.
    pub peer: (usize, u64),
    /// Tag of the VI.
    pub tag: TagCheck,
    /// The peer may write.
    pub rdma_write: bool,
    /// The peer may read.
    pub rdma_read: bool,
    /// Longest message.
    pub max_transfer_bytes: u32,
}

/// Returns the word of a connection in a table: what both sides know of it. Never 0.
pub(super) fn connection(handle: u32, (slot, generation): (usize, u64)) -> u64 {
    1 << 63 | (generation & 0x7F_FFFF) << 40 | (slot as u64 & 0xFF) << 32 | u64::from(handle)
}

/// The regions and VIs of a NIC that the other stations of its segment can access directly.
#[derive(Debug)]
pub struct ExportedMemory {
    table: Table,
    fd: OwnedFd,
    station: SegmentStation,
    /// `/proc/self/pagemap`, if it can be opened.
    pagemap: Option<File>,
    /// Whether the memory of each page of the table is reserved.
    reserved: Box<[AtomicBool]>,
    /// Slot and changes of the gate of the last access through a closed VI that did not end in time: the next VI does not
    /// wait for it again.
    unfinished: AtomicU64,
}

impl ExportedMemory {
    /// Creates an empty table of the station, and lets the other stations of its segment map it.
    ///
    /// # Errors
    /// No memory or file descriptor.
    pub fn create(vis: u32, regions: u32, station: SegmentStation) -> io::Result<Self> {
        // Whole pages, of which each can be reserved.
        let bytes = Table::len_bytes(vis, regions).next_multiple_of(PAGE_BYTES as usize);
        let fd = shared_allocator::create_sealed(bytes)?;
        let table = Table::new(Mapping::shared(fd.as_fd(), 0, bytes)?, vis, regions);
        let pages = bytes / PAGE_BYTES as usize;
        let exported = Self {
            reserved: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            pagemap: open_pagemap().ok(),
            table,
            fd,
            station,
            unfinished: AtomicU64::new(0),
        };
        // All but the regions.
        for at in (0..Table::regions_at(vis)).step_by(PAGE_BYTES as usize) {
            exported.reserve(at)?;
        }
        let mut key = [0; 8];
        random_bytes(&mut key);
        let key = u64::from_ne_bytes(key) | 1;
        let header = exported.table.header();
        // Relaxed: published with the station's entry in the segment.
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.key.store(key, Ordering::Relaxed);
        header.pid.store(std::process::id(), Ordering::Relaxed);
        header.vis.store(vis, Ordering::Relaxed);
        header.regions.store(regions, Ordering::Relaxed);
        let number = exported.fd.as_raw_fd();
        exported.station.publish_memory(number, key);
        Ok(exported)
    }

    /// Reserves the memory of the page of the table at this offset, so that no access to it can fail.
    fn reserve(&self, offset_bytes: usize) -> io::Result<()> {
        let Some(reserved) = self.reserved.get(offset_bytes / PAGE_BYTES as usize) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // Relaxed: reserving it twice has no effect.
        if !reserved.load(Ordering::Relaxed) {
            let page = offset_bytes as u64 & !(PAGE_BYTES - 1);
            let (at, bytes) = (page as libc::off_t, PAGE_BYTES as libc::off_t);
            fallocate(&self.fd, FallocateFlags::FALLOC_FL_KEEP_SIZE, at, bytes)?;
            reserved.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the table, which a test damages.
    #[cfg(test)]
    pub(super) fn table_for_tests(&self) -> &Table {
        &self.table
    }

    /// Returns the device of memory files.
    ///
    /// # Errors
    /// That of statx(2).
    pub(super) fn device(&self) -> io::Result<u64> {
        device_of(&self.fd)
    }

    /// Returns the station to which the memory belongs.
    pub fn station(&self) -> &SegmentStation {
        &self.station
    }

    /// Lets the peer of a VI access memory through it. The caller holds the NIC's backend lock.
    pub fn open_vi(&self, index: u32, vi: &VisibleVi) {
        let Some(shared) = self.table.vi(index) else {
            return;
        };
        let mut rights = 0;
        for (on, right) in [(vi.rdma_write, RDMA_WRITE), (vi.rdma_read, RDMA_READ)] {
            rights |= if on { u64::from(right) } else { 0 };
        }
        // Release fence: partner of the Acquire fence in `SharedVi::tag_for`: a station that sees one of the new values
        // sees that the previous connection has ended.
        fence(Ordering::Release);
        shared.grant.store(vi.tag.0 | rights, Ordering::Relaxed);
        let max_bytes = &shared.max_transfer_bytes;
        max_bytes.store(vi.max_transfer_bytes, Ordering::Relaxed);
        shared.connection.open(connection(vi.handle, vi.peer));
    }

    /// Ends the access of the peer of a VI to memory through it. Waits some microseconds for an access that has begun;
    /// one of a descheduled process may still end later. The caller holds the NIC's backend lock.
    pub fn close_vi(&self, index: u32) {
        let Some(shared) = self.table.vi(index) else {
            return;
        };
        let word = shared.connection.close();
        if word == 0 {
            return;
        }
        let slot = (word >> 32) & 0xFF;
        let gate = self.table.gate(slot as usize);
        let Some(access) = gate.observe() else {
            return;
        };
        let name = access.changes << 8 | slot;
        // Relaxed: changed under the backend lock only.
        if self.unfinished.load(Ordering::Relaxed) == name {
            return;
        }
        for _ in 0..SPINS {
            if gate.has_ended(access) {
                return;
            }
            spin_loop();
        }
        self.unfinished.store(name, Ordering::Relaxed);
    }

    /// Finds the file of these pages, if other processes can map it: memory of the allocator, or of a sealed memfd that
    /// the program has mapped itself and still has open. For private memory, which most is, this takes one system call.
    pub(in crate::memory) fn find_pages(&self, base: u64, end: u64) -> Option<SharablePages> {
        if let Some(pages) = shared_allocator::find_pages(base, end) {
            return Some(SharablePages { pages, _file: None });
        }
        if !self.is_page_of_file(base)? {
            return None;
        }
        let range = find_memfd(base, end - base).ok()??;
        let info = memfd_info(range.memory.as_fd()).ok()?;
        Some(SharablePages {
            pages: SharedPages {
                fd: range.memory.as_raw_fd() as u32,
                inode: info.inode,
                offset_bytes: range.offset_bytes,
            },
            _file: Some(range.memory),
        })
    }

    /// Returns whether the page at an address is that of a file; `None` if the system does not tell.
    fn is_page_of_file(&self, address: u64) -> Option<bool> {
        let mut entry = [0; 8];
        let at = address / PAGE_BYTES * entry.len() as u64;
        self.pagemap.as_ref()?.read_exact_at(&mut entry, at).ok()?;
        Some(u64::from_ne_bytes(entry) & PAGE_OF_FILE != 0)
    }

    /// Returns whether a region is in the table: other stations may be able to map it.
    #[inline]
    pub fn lists(&self, handle: u32) -> bool {
        self.region(handle)
            .is_some_and(|region| region.entry.still_has(handle))
    }

    /// Returns the entry of a region; `None` also if none was ever added in its page of the table, whose memory is then
    /// not reserved.
    #[inline]
    fn region(&self, handle: u32) -> Option<&SharedRegion> {
        let page = self.table.region_at(handle) / PAGE_BYTES as usize;
        let is_reserved = self.reserved.get(page)?.load(Ordering::Relaxed);
        self.table.region(handle).filter(|_| is_reserved)
    }

    /// Adds a region. Other stations access it by its rights, or copy from it what this station sends them.
    pub(in crate::memory) fn publish(
        &self,
        handle: u32,
        grant: u64,
        range: (u64, u64),
        pages: &SharablePages,
    ) {
        let Some(region) = self.table.region(handle) else {
            return;
        };
        // Without memory for its entry it is accessed in frames.
        if self.reserve(self.table.region_at(handle)).is_err() {
            return;
        }
        let pages = &pages.pages;
        region.fd.store(pages.fd, Ordering::Relaxed);
        region.inode.store(pages.inode, Ordering::Relaxed);
        let offset = &region.offset_bytes;
        offset.store(pages.offset_bytes, Ordering::Relaxed);
        region.entry.publish(handle, grant, range);
    }

    /// Removes a region; returns what to wait for, if it was added.
    pub(in crate::memory) fn revoke(self: &Arc<Self>, handle: u32) -> Option<Revoked> {
        let (region, _) = self.published(handle)?;
        region.entry.clear();
        let removals = &self.table.header().removals;
        removals.fetch_add(1, Ordering::Relaxed);
        Some(self.revoked(handle))
    }

    /// Replaces tag and rights of a region; returns what to wait for, if any were removed.
    pub(in crate::memory) fn set_grant(
        self: &Arc<Self>,
        handle: u32,
        grant: u64,
        range: (u64, u64),
        pages: &SharablePages,
    ) -> Option<Revoked> {
        let Some((region, previous)) = self.published(handle) else {
            self.publish(handle, grant, range, pages);
            return None;
        };
        region.entry.set_grant(grant);
        let is_reduced = (previous ^ grant) & !RIGHTS != 0 || previous & !grant & RIGHTS != 0;
        is_reduced.then(|| self.revoked(handle))
    }

    /// Returns a region that was added, and its tag and rights.
    fn published(&self, handle: u32) -> Option<(&SharedRegion, u64)> {
        let region = self.region(handle)?;
        let view = region.entry.view(handle)?;
        Some((region, view.grant()))
    }

    fn revoked(self: &Arc<Self>, region: u32) -> Revoked {
        Revoked {
            memory: Arc::clone(self),
            region,
        }
    }

    /// Waits until every access to a region that other stations have begun has ended.
    pub(super) fn wait_until(
        &self,
        region: u32,
        deadline: Instant,
    ) -> Result<(), AccessInProgress> {
        // SeqCst, partner: the fence in `Gate::open`; and a station enters itself before it opens its gate.
        fence(Ordering::SeqCst);
        if self.table.map.is_lost() {
            // The other stations still have the table in which the region is listed.
            return Err(AccessInProgress);
        }
        for (index, word) in self.table.header().users.iter().enumerate() {
            let mut users = word.load(Ordering::Relaxed);
            while users != 0 {
                let slot = index * WORD_BITS + users.trailing_zeros() as usize;
                users &= users - 1;
                let access = self.table.gate(slot).observe();
                if let Some(access) = access.filter(|access| access.region == region) {
                    self.wait_for(slot, access, deadline)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until an access has ended, or the process of its station.
    #[cold]
    fn wait_for(
        &self,
        slot: usize,
        access: Observed,
        deadline: Instant,
    ) -> Result<(), AccessInProgress> {
        let gate = self.table.gate(slot);
        let mut turns = 0u32;
        while !gate.has_ended(access) {
            turns = turns.wrapping_add(1);
            if turns < SPINS {
                spin_loop();
                continue;
            }
            yield_now();
            if !turns.is_multiple_of(YIELDS_BETWEEN_CHECKS) {
                continue;
            }
            if !self.station.is_running(slot, access.generation) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(AccessInProgress);
            }
        }
        Ok(())
    }
}

fn open_pagemap() -> io::Result<File> {
    let file = File::open("/proc/self/pagemap")?;
    above_standard_streams(file.into()).map(File::from)
}

/// A region that was removed, or whose rights were reduced, in the table that other stations read.
#[derive(Debug)]
#[must_use]
pub struct Revoked {
    memory: Arc<ExportedMemory>,
    /// Its handle.
    region: u32,
}

impl Revoked {
    /// Waits until no other station accesses the region any more by what it looked up before.
    ///
    /// # Errors
    /// An access does not end in time: its process is stopped.
    pub fn wait_until(self, deadline: Instant) -> Result<(), AccessInProgress> {
        self.memory.wait_until(self.region, deadline)
    }
}
