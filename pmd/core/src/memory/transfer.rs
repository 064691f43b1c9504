//! Copies bytes between any two of: buffers of the provider, memory of this program, client memory
//! that is mapped here, and memory of client processes.
//!
//! Local memory is copied directly. Memory of a client process is accessed by one system call for all
//! pieces of a frame; between two client processes, by one call into the staging buffer and one
//! out of it.
//!
//! Each piece is looked up before it is used. An error of the kernel (unmapped, read-only, the
//! process has ended, partial copy) is handled like a failed lookup of that end.

use core::mem::MaybeUninit;

use crate::descriptor::DataSegment;
use crate::memory::backing::Location;
use crate::memory::client_process::{ClientProcess, MAX_IOVECS, iovec};
use crate::memory::copy::{LAST_BYTES, WORD_BYTES, before_last_word, before_ordered};
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck, copy};
use crate::posted_descriptor::Cursor;
use crate::sync::{Ordering, fence};

/// Size of the staging buffer between two client processes.
const STAGING_BYTES: usize = 256 << 10;
/// Parts of an ordered write that one system call may make: all of them on processors that make stores visible in
/// program order; elsewhere one per call, with a fence before it.
const ORDERED_PIECES: usize = if cfg!(target_arch = "x86_64") { 3 } else { 1 };

/// The end of a transfer whose memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The end that is read.
    Source,
    /// The end that is written.
    Target,
}

/// Message range in the data segments of a descriptor.
pub struct SegmentRange<'a> {
    /// Owner and tag of the VI.
    pub tag: TagCheck,
    /// Kind of access.
    pub access: Access,
    /// Data segments of a descriptor.
    pub segments: &'a [DataSegment],
    /// Position of the previous access in the segments.
    pub cursor: &'a mut Cursor,
    /// Offset of the first byte in the data segments.
    pub offset_bytes: u32,
}

/// One end of a transfer.
pub enum TransferEnd<'a> {
    /// Memory at this address of this process that was found usable: a buffer of the provider, or mapped memory of an
    /// application.
    Buffer(u64),
    /// Registered memory of a VI.
    Segments(SegmentRange<'a>),
}

impl TransferEnd<'_> {
    /// Returns the part behind the first `bytes` bytes.
    fn behind(&mut self, bytes: u32) -> TransferEnd<'_> {
        match self {
            Self::Buffer(address) => TransferEnd::Buffer(*address + u64::from(bytes)),
            Self::Segments(range) => TransferEnd::Segments(SegmentRange {
                cursor: &mut *range.cursor,
                offset_bytes: range.offset_bytes + bytes,
                ..*range
            }),
        }
    }
}

/// Start of an RDMA range of a VI, as its peer names it.
#[derive(Clone, Copy)]
pub struct RdmaRange {
    /// Owner and tag of the VI.
    pub tag: TagCheck,
    /// Memory handle.
    pub handle: u32,
    /// Address of the first byte.
    pub address: u64,
}

/// Copies bytes for the poll loop of one NIC.
pub struct Mover {
    /// Number of the current poll; the liveness of a client process is queried once per poll.
    poll: u64,
    staging: Box<[u8]>,
    /// Number of accesses to client processes that the kernel refused.
    pub client_faults: u64,
}

impl Default for Mover {
    fn default() -> Self {
        Self {
            poll: 0,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            client_faults: 0,
        }
    }
}

impl Mover {
    /// Begins a poll: the liveness of client processes is queried again.
    #[inline]
    pub fn begin_poll(&mut self) {
        self.poll += 1;
    }

    /// Copies `bytes` bytes. After a fault part of them may have been copied.
    ///
    /// # Errors
    /// The end whose access is not allowed, that has fewer bytes, or whose client process cannot be
    /// accessed.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock. Its own buffers have at least this length, and there are no other
    /// references to their bytes. Memory of the program and the clients stays mapped while it is
    /// registered.
    pub unsafe fn transfer<'t>(
        &mut self,
        regions: &'t RegionTable,
        from: TransferEnd<'t>,
        to: TransferEnd<'t>,
        bytes: usize,
    ) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        let mut from = Walk::new(from, Fault::Source)?;
        let mut to = Walk::new(to, Fault::Target)?;
        // SAFETY: guaranteed by the caller.
        unsafe { from.fill(regions, bytes) }?;
        // SAFETY: likewise.
        unsafe { to.fill(regions, bytes) }?;
        if let (Location::Local(source), Location::Local(target)) = (from.at, to.at)
            && from.left.min(to.left) == bytes
        {
            // SAFETY: both were found usable for this many bytes under the backend lock, held since.
            unsafe { copy_local(source, target, bytes) };
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.transfer_pieces(regions, from, to, bytes) }
    }

    /// [`Self::transfer`] piece by piece.
    ///
    /// # Safety
    /// As for [`Self::transfer`].
    #[inline(never)]
    unsafe fn transfer_pieces<'t>(
        &mut self,
        regions: &'t RegionTable,
        mut from: Walk<'t>,
        mut to: Walk<'t>,
        bytes: usize,
    ) -> Result<(), Fault> {
        let mut batch = Batch::new(self.poll, &mut self.staging);
        let mut left = bytes;
        let mut result = Ok(());
        while left > 0 && result.is_ok() {
            // SAFETY: guaranteed by the caller.
            unsafe { from.fill(regions, left) }?;
            // SAFETY: likewise.
            unsafe { to.fill(regions, left) }?;
            let step = from.left.min(to.left);
            // SAFETY: both were found usable for this many bytes under the backend lock, held since.
            result = unsafe { batch.add(from.at, to.at, step) };
            from.take(step);
            to.take(step);
            left -= step;
        }
        // SAFETY: what was added was found usable under the backend lock, held since.
        let result = result.and_then(|()| unsafe { batch.finish() });
        self.client_faults += u64::from(result.is_err());
        result
    }

    /// As [`Self::transfer`], into an RDMA range of the target's VI, with the byte order of
    /// [`Self::place_in_order`].
    ///
    /// # Errors
    /// As for [`Self::transfer`].
    ///
    /// # Safety
    /// As for [`Self::transfer`].
    pub unsafe fn transfer_in_order(
        &mut self,
        regions: &RegionTable,
        mut from: TransferEnd<'_>,
        to: RdmaRange,
        bytes: u32,
    ) -> Result<(), Fault> {
        let whole = u64::from(bytes);
        if !regions.check(to.handle, to.tag, to.address, whole, Access::RemoteWrite) {
            return Err(Fault::Target);
        }
        let body = before_ordered(to.address, bytes as usize);
        let segments = [DataSegment {
            address: to.address,
            handle: to.handle,
            length: bytes,
        }];
        let target = SegmentRange {
            tag: to.tag,
            access: Access::RemoteWrite,
            segments: &segments,
            cursor: &mut Cursor::default(),
            offset_bytes: 0,
        };
        let target = TransferEnd::Segments(target);
        // SAFETY: guaranteed by the caller.
        unsafe { self.transfer(regions, from.behind(0), target, body) }?;
        let mut last = [0u8; LAST_BYTES];
        let last = &mut last[..bytes as usize - body];
        let buffer = TransferEnd::Buffer(last.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: as above; the buffer is local and of this length.
        unsafe { self.transfer(regions, from.behind(body as u32), buffer, last.len()) }?;
        let to = RdmaRange {
            address: to.address + body as u64,
            ..to
        };
        // SAFETY: as above.
        unsafe { self.place_in_order(regions, to, last) }
    }

    /// Copies `payload` into an RDMA range, so that a program that polls the last bytes sees them
    /// last. In memory of a client process, the last aligned word is written after the bytes before
    /// it, and the bytes after it are written last, but a word may be seen torn: the kernel
    /// processes the iovecs of a call in order and does not specify how it copies each.
    ///
    /// # Errors
    /// [`Fault::Target`].
    ///
    /// # Safety
    /// As for [`Self::transfer`].
    pub unsafe fn place_in_order(
        &mut self,
        regions: &RegionTable,
        to: RdmaRange,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let bytes = payload.len() as u64;
        // SAFETY: guaranteed by the caller.
        let found =
            unsafe { regions.locate(to.handle, to.tag, to.address, bytes, Access::RemoteWrite) };
        match found.ok_or(Fault::Target)? {
            Location::Local(at) => {
                // SAFETY: this many bytes were found writable.
                unsafe { copy::write_in_order(at, payload) };
                Ok(())
            }
            Location::Foreign(client, at) => {
                let body = before_last_word(at, payload.len());
                let (word, tail) = match payload.len() - body {
                    0 => (0, 0),
                    last => (WORD_BYTES, last - WORD_BYTES),
                };
                let parts = [(0, body), (body, word), (body + word, tail)];
                let source = payload.as_ptr().expose_provenance() as u64;
                let local = parts.map(|(from, bytes)| iovec(source + from as u64, bytes));
                let remote = parts.map(|(from, bytes)| iovec(at + from as u64, bytes));
                let calls = local
                    .chunks(ORDERED_PIECES)
                    .zip(remote.chunks(ORDERED_PIECES));
                let mut written = client.is_alive(self.poll);
                for (local, remote) in calls {
                    // Release: its partner is the application's load of the bytes that it polls,
                    // which the kernel stores.
                    fence(Ordering::Release);
                    // SAFETY: the payload is only read.
                    written = written && unsafe { client.write(local, remote) }.is_ok();
                }
                if !written {
                    self.client_faults += 1;
                    return Err(Fault::Target);
                }
                Ok(())
            }
        }
    }
}

/// Copies within this process.
///
/// # Safety
/// The source is readable and the target writable for this many bytes.
#[inline]
unsafe fn copy_local(from: u64, to: u64, bytes: usize) {
    let from = core::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: guaranteed by the caller. A program may name the same memory at both ends, so they
    // may overlap.
    unsafe { core::ptr::copy(from, to, bytes) };
}

/// One end of a transfer, piece by piece.
struct Walk<'a> {
    end: TransferEnd<'a>,
    fault: Fault,
    /// Location and length of the remainder of the current piece.
    at: Location<'a>,
    left: usize,
}

impl<'a> Walk<'a> {
    fn new(mut end: TransferEnd<'a>, fault: Fault) -> Result<Self, Fault> {
        if let TransferEnd::Segments(named) = &mut end
            && !named.cursor.seek(named.segments, named.offset_bytes)
        {
            return Err(fault);
        }
        Ok(Self {
            end,
            fault,
            at: Location::Local(0),
            left: 0,
        })
    }

    /// Advances to the next piece, of at most `at_most` bytes, if the current one is used up.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock as long as it uses the piece.
    unsafe fn fill(&mut self, regions: &'a RegionTable, at_most: usize) -> Result<(), Fault> {
        if self.left > 0 {
            return Ok(());
        }
        match &mut self.end {
            TransferEnd::Buffer(address) => {
                (self.at, self.left) = (Location::Local(*address), at_most);
                *address += at_most as u64;
            }
            TransferEnd::Segments(named) => {
                let next = named.cursor.piece(named.segments, at_most);
                let next = next.ok_or(self.fault)?;
                let bytes = u64::from(next.length);
                // SAFETY: guaranteed by the caller.
                let found = unsafe {
                    regions.locate(next.handle, named.tag, next.address, bytes, named.access)
                };
                self.at = found.ok_or(self.fault)?;
                self.left = next.length as usize;
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) {
        self.at = self.at.plus(bytes as u64);
        self.left -= bytes;
    }
}

/// Pending system calls of a transfer: first the reads, then the writes.
struct Batch<'m, 't> {
    poll: u64,
    staging: &'m mut [u8],
    staged_bytes: usize,
    reads: IovecBatch<'t>,
    writes: IovecBatch<'t>,
}

impl<'m, 't> Batch<'m, 't> {
    fn new(poll: u64, staging: &'m mut [u8]) -> Self {
        Self {
            poll,
            staging,
            staged_bytes: 0,
            reads: IovecBatch::new(),
            writes: IovecBatch::new(),
        }
    }

    /// Copies this many bytes, now or in [`Self::finish`].
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock until the batch is finished or dropped; both locations
    /// allow this access for this many bytes.
    unsafe fn add(
        &mut self,
        from: Location<'t>,
        to: Location<'t>,
        bytes: usize,
    ) -> Result<(), Fault> {
        match (from, to) {
            (Location::Local(from), Location::Local(to)) => {
                // SAFETY: as the caller promises.
                unsafe { copy_local(from, to, bytes) };
            }
            (Location::Foreign(client, from), Location::Local(to)) => {
                if !self.reads.has_room(client) {
                    // SAFETY: as promised for the added pieces.
                    unsafe { self.finish() }?;
                }
                self.reads.push(client, to, from, bytes);
            }
            (Location::Local(from), Location::Foreign(client, to)) => {
                if !self.writes.has_room(client) {
                    // SAFETY: as above.
                    unsafe { self.finish() }?;
                }
                self.writes.push(client, from, to, bytes);
            }
            (Location::Foreign(source, from), Location::Foreign(target, to)) => {
                // SAFETY: as above.
                unsafe { self.add_staged((source, from), (target, to), bytes) }?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Self::add`].
    unsafe fn add_staged(
        &mut self,
        (source, from): (&'t ClientProcess, u64),
        (target, to): (&'t ClientProcess, u64),
        bytes: usize,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes {
            let full = self.staged_bytes == self.staging.len();
            if full || !self.reads.has_room(source) || !self.writes.has_room(target) {
                // SAFETY: guaranteed by the caller.
                unsafe { self.finish() }?;
            }
            let room = &mut self.staging[self.staged_bytes..];
            let step = room.len().min(bytes - done);
            let stage = room.as_mut_ptr().expose_provenance() as u64;
            self.reads.push(source, stage, from + done as u64, step);
            self.writes.push(target, stage, to + done as u64, step);
            self.staged_bytes += step;
            done += step;
        }
        Ok(())
    }

    /// Makes the pending system calls.
    ///
    /// # Safety
    /// As for [`Self::add`].
    unsafe fn finish(&mut self) -> Result<(), Fault> {
        self.staged_bytes = 0;
        // SAFETY: the added local ranges are writable, as promised by the caller of `add`.
        let read = self.reads.take(self.poll, |client, local, remote| unsafe {
            client.read(local, remote)
        });
        if !read {
            return Err(Fault::Source);
        }
        // SAFETY: the added local ranges are readable, likewise.
        let written = self.writes.take(self.poll, |client, local, remote| unsafe {
            client.write(local, remote)
        });
        if written { Ok(()) } else { Err(Fault::Target) }
    }
}

/// Local ranges, and remote ranges of equal lengths in one client process.
struct IovecBatch<'t> {
    client: Option<&'t ClientProcess>,
    count: usize,
    local: [MaybeUninit<libc::iovec>; MAX_IOVECS],
    remote: [MaybeUninit<libc::iovec>; MAX_IOVECS],
}

impl<'t> IovecBatch<'t> {
    fn new() -> Self {
        Self {
            client: None,
            count: 0,
            local: [const { MaybeUninit::uninit() }; MAX_IOVECS],
            remote: [const { MaybeUninit::uninit() }; MAX_IOVECS],
        }
    }

    fn has_room(&self, client: &ClientProcess) -> bool {
        let same = self.client.is_none_or(|known| core::ptr::eq(known, client));
        same && self.count < MAX_IOVECS
    }

    /// Adds a pair of ranges; the caller has checked [`Self::has_room`].
    fn push(&mut self, client: &'t ClientProcess, local: u64, remote: u64, bytes: usize) {
        self.client = Some(client);
        self.local[self.count].write(iovec(local, bytes));
        self.remote[self.count].write(iovec(remote, bytes));
        self.count += 1;
    }

    /// Removes all ranges and passes them to `call`, if there are any; returns false if the client process has ended or
    /// the call fails.
    fn take(
        &mut self,
        poll: u64,
        call: impl FnOnce(&ClientProcess, &[libc::iovec], &[libc::iovec]) -> std::io::Result<()>,
    ) -> bool {
        let count = core::mem::take(&mut self.count);
        let Some(client) = self.client.take() else {
            return true;
        };
        // SAFETY: this many were written since the last call.
        let local = unsafe { core::slice::from_raw_parts(self.local.as_ptr().cast(), count) };
        // SAFETY: likewise.
        let remote = unsafe { core::slice::from_raw_parts(self.remote.as_ptr().cast(), count) };
        client.is_alive(poll) && call(client, local, remote).is_ok()
    }
}

#[cfg(test)]
mod tests;
