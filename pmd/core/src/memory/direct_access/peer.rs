//! The registered memory of another station of the segment, mapped here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::mapping::Mapping;
use pmd_port::shm::SegmentStation;

use super::exported::{ExportedMemory, connection};
use super::gate::Gate;
use super::{FileRange, MAGIC, PART_BYTES, Table, VIS_AT, WORD_BITS};
use crate::memory::Access;
use crate::memory::client_mapping::{BudgetPermit, CLIENTS, memfd_info};
use crate::sync::{AtomicU64, Ordering};

/// A VI of another station, through which its memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerVi {
    /// Its index in the table of its station.
    index: u32,
    connection: u64,
}

impl PeerVi {
    /// Names the VI that has this handle in frames, at an index of its station, and is connected to a VI of `own`.
    pub fn new(index: u32, handle: u32, own: &SegmentStation) -> Self {
        Self {
            index,
            connection: connection(handle, (own.slot(), own.generation())),
        }
    }
}

/// The most VIs, and the most regions, of a table: their indices have 16 bits.
const MAX_ENTRIES: u32 = 1 << 16;
/// Bytes of all files of other stations that are mapped by this process.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);
/// Their limit: an eighth of the address space, so that no station can use it up with files that have no pages.
const MAX_MAPPED_BYTES: u64 = 1 << 44;
/// Files that could not be mapped, which are not tried again before the next upkeep.
const MAX_REFUSED: usize = 16;
/// A file that was not accessed for this time is unmapped after its station has removed regions.
const IDLE: Duration = Duration::from_secs(2);

/// A mapped file of another station.
#[derive(Debug)]
pub struct MappedFile {
    inode: u64,
    map: Mapping,
    /// Accessed since the files were marked as unused.
    is_used: bool,
    /// Its part of [`MAPPED_BYTES`].
    _bytes: MappedBytes,
    _permit: BudgetPermit,
}

/// A part of [`MAPPED_BYTES`].
#[derive(Debug)]
struct MappedBytes(u64);

impl MappedBytes {
    fn take(bytes: u64) -> Option<Self> {
        let sum = |mapped: u64| {
            mapped
                .checked_add(bytes)
                .filter(|sum| *sum <= MAX_MAPPED_BYTES)
        };
        // Relaxed: a counter that orders no other memory access.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = MAPPED_BYTES.fetch_update(success, failure, sum);
        taken.is_ok().then_some(Self(bytes))
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The memory of another station.
#[derive(Debug)]
pub struct PeerMemory {
    own: SegmentStation,
    /// The device of memory files.
    device: u64,
    slot: usize,
    generation: u64,
    table: Table,
    /// The directory of the file descriptors of its process.
    descriptors: OwnedFd,
    files: Vec<MappedFile>,
    /// The file of the last access.
    last: usize,
    max_files: usize,
    /// [`super::TableHeader::removals`] when the files were marked as unused.
    seen_removals: u32,
    /// When they were marked, until those that are still unused are unmapped.
    marked_at: Option<Instant>,
    /// Inodes of files that could not be mapped since the last [`Self::take_unused`].
    refused: Vec<u64>,
}

/// Result of looking a region up.
enum Found {
    /// The address of the bytes here, and the index of their file.
    At(u64, usize),
    /// In a file that is not mapped.
    Unmapped(FileRange),
    /// Not accessible.
    Refused,
}

impl PeerMemory {
    /// Maps the table of a live station of the segment to which the own memory is exported; `None` if it shares no
    /// memory, or not with this process.
    ///
    /// # Errors
    /// Those of the system calls: the station's process has ended, or this one may not see its files.
    pub fn open(
        exported: &ExportedMemory,
        (slot, generation): (usize, u64),
        max_files: usize,
    ) -> io::Result<Option<Self>> {
        let own = exported.station();
        let device = exported.device()?;
        let Some(memory) = own.memory_of(slot, generation) else {
            return Ok(None);
        };
        let path = format!("/proc/{}/fd", memory.pid);
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let descriptors = above_standard_streams(open(path.as_str(), flags, Mode::empty())?)?;
        let Some(file) = open_sealed(&descriptors, memory.fd, device)? else {
            return Ok(None);
        };
        if file.bytes < VIS_AT as u64 {
            return Ok(None);
        }
        let max_bytes = Table::len_bytes(MAX_ENTRIES, MAX_ENTRIES) as u64;
        let bytes = file.bytes.min(max_bytes) as usize;
        let map = Mapping::shared(file.fd.as_fd(), 0, bytes)?;
        // Without VIs and regions, to read how many there are.
        let table = Table::new(map, 0, 0);
        let header = table.header();
        let (vis, regions) = (
            header.vis.load(Ordering::Relaxed),
            header.regions.load(Ordering::Relaxed),
        );
        let is_it = header.magic.load(Ordering::Relaxed) == MAGIC
            && header.key.load(Ordering::Relaxed) == memory.key
            && header.pid.load(Ordering::Relaxed) == memory.pid
            && vis <= MAX_ENTRIES
            && regions <= MAX_ENTRIES
            && Table::len_bytes(vis, regions) <= bytes;
        if !is_it {
            return Ok(None);
        }
        let table = Table::new(table.map, vis, regions);
        table.gate(own.slot()).take_over(own.generation());
        let users = &table.header().users[own.slot() / WORD_BITS];
        // SeqCst, partner: the fence of the owner before it reads the set: a gate is opened after this.
        users.fetch_or(1 << (own.slot() % WORD_BITS), Ordering::SeqCst);
        Ok(Some(Self {
            own: own.clone(),
            device,
            slot,
            generation,
            table,
            descriptors,
            files: Vec::new(),
            last: 0,
            max_files,
            seen_removals: 0,
            marked_at: None,
            refused: Vec::with_capacity(MAX_REFUSED),
        }))
    }

    /// Returns the maximum number of VIs of the station.
    pub fn max_vis(&self) -> usize {
        self.table.vis as usize
    }

    /// Returns slot and generation of the station.
    pub fn station(&self) -> (usize, u64) {
        (self.slot, self.generation)
    }

    /// Returns whether the table lists a region: those on the heap it does not. Costs no barrier.
    #[inline]
    pub fn lists(&self, handle: u32) -> bool {
        let region = self.table.region(handle);
        region.is_some_and(|region| region.entry.still_has(handle))
    }

    /// Returns whether the station is live and has not ended the connection of this VI of it.
    pub fn is_connected(&self, vi: PeerVi) -> bool {
        let shared = self.table.vi(vi.index);
        shared.is_some_and(|shared| shared.connection.is(vi.connection))
            && self.own.is_marked_live(self.slot, self.generation)
    }

    /// Begins an access to `bytes` bytes of a region at the offset of a message of `message_bytes`, which starts at
    /// `address`, through a VI. `None`: not allowed, or not possible. A file of the station is mapped at the first
    /// access to it, by system calls.
    ///
    /// The caller holds the NIC's backend lock until the access has ended.
    #[inline]
    pub fn access(
        &mut self,
        vi: PeerVi,
        (address, handle): (u64, u32),
        message_bytes: u32,
        (offset_bytes, bytes): (u32, u32),
        access: Access,
    ) -> Option<DirectAccess<'_>> {
        let part_end = offset_bytes.checked_add(bytes)?;
        if bytes > PART_BYTES || part_end > message_bytes {
            return None;
        }
        for _ in 0..2 {
            let gate = self.table.gate(self.own.slot());
            gate.open(handle);
            let found = self.find(vi, (address, handle), message_bytes, access);
            match found {
                Found::At(start, index) => {
                    self.last = index;
                    // Found by `find` just now.
                    let file = &mut self.files[index];
                    file.is_used = true;
                    return Some(DirectAccess {
                        gate: self.table.gate(self.own.slot()),
                        map: &file.map,
                        at: start + u64::from(offset_bytes),
                        table: &self.table,
                        vi,
                    });
                }
                Found::Refused => {
                    gate.close();
                    return None;
                }
                Found::Unmapped(range) => {
                    gate.close();
                    if !self.map_file(range) {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Maps a file; returns false if that is not possible at present.
    #[cold]
    fn map_file(&mut self, range: FileRange) -> bool {
        let is_full = self.files.len() >= self.max_files || self.refused.len() >= MAX_REFUSED;
        if is_full || self.refused.contains(&range.inode) {
            return false;
        }
        let Ok(Some(file)) = map_file(&self.descriptors, range, self.device) else {
            self.refused.push(range.inode);
            return false;
        };
        match self.search(range.inode) {
            // It was lost.
            Ok(at) => self.files[at] = file,
            Err(at) => self.files.insert(at, file),
        }
        true
    }

    #[inline]
    fn search(&self, inode: u64) -> Result<usize, usize> {
        self.files.binary_search_by_key(&inode, |file| file.inode)
    }

    /// Looks a region up; the gate is open.
    #[inline]
    fn find(
        &self,
        vi: PeerVi,
        (address, handle): (u64, u32),
        message_bytes: u32,
        access: Access,
    ) -> Found {
        let shared = self.table.vi(vi.index);
        let tag = shared.and_then(|shared| shared.tag_for(vi.connection, message_bytes, access));
        let region = self
            .table
            .region(handle)
            .and_then(|region| region.find(handle));
        let Some((tag, (view, range))) = tag.zip(region) else {
            return Found::Refused;
        };
        let is_live = |slot, generation| self.own.is_marked_live(slot, generation);
        if !view.allows(tag, address, u64::from(message_bytes), access)
            || !is_live(self.slot, self.generation)
            || !is_live(self.own.slot(), self.own.generation())
            || self.table.map.is_lost()
        {
            return Found::Refused;
        }
        let (base, end) = view.range();
        let is_it = |file: &MappedFile| file.inode == range.inode;
        let index = match self.files.get(self.last) {
            Some(file) if is_it(file) => self.last,
            _ => match self.search(range.inode) {
                Ok(index) => index,
                Err(_) => return Found::Unmapped(range),
            },
        };
        let Some(file) = self.files.get(index).filter(|file| !file.map.is_lost()) else {
            return Found::Unmapped(range);
        };
        // All of it was written by another process: nothing is assumed of it.
        let length = end.checked_sub(base);
        let file_end = length.and_then(|bytes| bytes.checked_add(range.offset_bytes));
        if file_end.is_none_or(|file_end| file_end > file.map.len() as u64) {
            return Found::Refused;
        }
        let start = file.map.as_ptr().as_ptr().expose_provenance() as u64;
        Found::At(start + range.offset_bytes + (address - base), index)
    }

    /// Removes the mappings of files that are not accessed for two seconds after the station has removed regions: their
    /// memory is freed only when it is not mapped any more. Unmapping may take long: the caller drops them after it has
    /// released the NIC's backend lock.
    pub fn take_unused(&mut self, now: Instant, unused: &mut Vec<MappedFile>) {
        self.refused.clear();
        let removals = self.table.header().removals.load(Ordering::Relaxed);
        match self.marked_at {
            Some(at) if now.saturating_duration_since(at) >= IDLE => {
                self.marked_at = None;
                unused.extend(self.files.extract_if(.., |file| !file.is_used));
            }
            None if removals != self.seen_removals => {
                self.seen_removals = removals;
                self.marked_at = Some(now);
                self.files.iter_mut().for_each(|file| file.is_used = false);
            }
            Some(_) | None => {}
        }
    }

    /// Removes all mappings of files; as [`Self::take_unused`].
    pub fn take_all(&mut self, unused: &mut Vec<MappedFile>) {
        unused.append(&mut self.files);
    }
}

/// An access in progress: the region stays registered until this is dropped.
#[derive(Debug)]
pub struct DirectAccess<'a> {
    gate: &'a Gate,
    map: &'a Mapping,
    at: u64,
    table: &'a Table,
    vi: PeerVi,
}

impl DirectAccess<'_> {
    /// Returns the address of the bytes in this process.
    #[inline]
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Returns the range of the file here.
    #[cfg(test)]
    pub(super) fn mapped_range(&self) -> (u64, u64) {
        let start = self.map.as_ptr().as_ptr().expose_provenance() as u64;
        (start, start + self.map.len() as u64)
    }

    /// Ends the access after the bytes were copied; returns whether they were the station's.
    #[inline]
    pub fn finish(self) -> bool {
        !self.map.is_lost()
    }

    /// As [`Self::finish`], of bytes that the station sends: returns false as well if the connection has ended meanwhile, since
    /// the station may then have written others.
    #[inline]
    pub fn finish_send(self) -> bool {
        let vi = self.table.vi(self.vi.index);
        let is_open = vi.is_some_and(|vi| vi.connection.is_still(self.vi.connection));
        is_open && self.finish()
    }
}

impl Drop for DirectAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        self.gate.close();
    }
}

/// An open file of another process that cannot shrink.
struct SealedFile {
    fd: OwnedFd,
    inode: u64,
    bytes: u64,
}

/// Opens a file of another process by the number of its descriptor; `None` if it is no memory file of this device that
/// is sealed against shrinking.
fn open_sealed(descriptors: &OwnedFd, number: u32, device: u64) -> io::Result<Option<SealedFile>> {
    let (name, path_only) = (number.to_string(), OFlag::O_PATH | OFlag::O_CLOEXEC);
    // First without opening it, since the number may be that of any file: opening or asking one that is not in memory
    // can block.
    let found = openat(descriptors, name.as_str(), path_only, Mode::empty())?;
    let found = above_standard_streams(found)?;
    if device_of(&found)? != device {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = above_standard_streams(open(again.as_str(), flags, Mode::empty())?)?;
    let info = memfd_info(fd.as_fd());
    Ok(info.ok().map(|info| SealedFile {
        fd,
        inode: info.inode,
        bytes: info.bytes,
    }))
}

/// Returns the device number of a file, as the kernel has it in memory.
pub(super) fn device_of(file: &OwnedFd) -> io::Result<u64> {
    // SAFETY: integers, valid as zeros.
    let mut found: libc::statx = unsafe { core::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is a terminated string, and a structure on this stack frame is written.
    let failed = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, 0, &raw mut found) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor))
}

/// Maps a file of another process; `None` if it is not the one that its table names, or beyond the limits.
#[cold]
fn map_file(
    descriptors: &OwnedFd,
    range: FileRange,
    device: u64,
) -> io::Result<Option<MappedFile>> {
    let file = open_sealed(descriptors, range.fd, device)?;
    let Some(file) = file.filter(|file| file.inode == range.inode && file.bytes > 0) else {
        return Ok(None);
    };
    let (Ok(permit), Some(bytes)) = (CLIENTS.take(), MappedBytes::take(file.bytes)) else {
        return Ok(None);
    };
    Ok(Some(MappedFile {
        inode: file.inode,
        map: Mapping::shared(file.fd.as_fd(), 0, file.bytes as usize)?,
        is_used: true,
        _bytes: bytes,
        _permit: permit,
    }))
}
