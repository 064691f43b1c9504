//! Bytes from one end to another, wherever the two are: the provider's own buffers, this
//! program's memory, memory of a client that is mapped here, memory that only the client has.
//!
//! What lies near is copied. What is far is collected and moved by one system call for all pieces
//! of a frame; between two clients, by one call from the one into the staging buffer and one from
//! there to the other.
//!
//! Each piece is looked up before it is used. Whatever the kernel says of far memory (unmapped,
//! read-only, the client gone, a part only) is like a lookup that fails: an error of that end.

use core::mem::MaybeUninit;

use crate::descriptor::DataSegment;
use crate::memory::client::{Client, MAX_PIECES, piece};
use crate::memory::copy::{LAST_BYTES, WORD_BYTES, before_last_word, before_ordered};
use crate::memory::place::Location;
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck, copy};
use crate::post::Cursor;
use crate::sync::{Ordering, fence};

/// Bytes on their way from one client to another.
const STAGING_BYTES: usize = 256 << 10;
/// Pieces of a write in order that one call of the kernel makes: all of them where stores become
/// visible in the order in which they are made. Elsewhere each is a call, with a fence before it.
const ORDERED_PIECES: usize = if cfg!(target_arch = "x86_64") { 3 } else { 1 };

/// Which end's memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Where the bytes come from.
    Source,
    /// Where they go.
    Target,
}

/// Memory that a VI names.
pub(crate) struct Named<'a> {
    /// What the VI shows.
    pub(crate) tag: TagCheck,
    pub(crate) access: Access,
    pub(crate) segments: &'a [DataSegment],
    /// Where in the segments it was last.
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) offset_bytes: u32,
}

/// One end of a transfer.
pub(crate) enum End<'a> {
    /// A buffer of the provider's, by its address.
    Own(u64),
    Named(Named<'a>),
}

/// A range that a peer names, of a VI.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    /// What the VI shows.
    pub(crate) tag: TagCheck,
    pub(crate) handle: u32,
    pub(crate) address: u64,
}

/// Moves bytes for the poll loop of one NIC.
pub(crate) struct Mover {
    /// Clients that were found alive in this turn are not asked again.
    turn: u64,
    staging: Box<[u8]>,
    /// Accesses to the memory of clients that the kernel refused.
    pub(crate) client_faults: u64,
}

impl Mover {
    pub(crate) fn new() -> Self {
        Self {
            turn: 0,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            client_faults: 0,
        }
    }

    /// A turn begins: what was found out about clients is to be asked again.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.turn += 1;
    }

    /// Moves so many bytes. After a fault some of them may be where they should go.
    ///
    /// # Errors
    /// The end that may not be used so, has less bytes, or whose client's memory cannot be
    /// reached.
    ///
    /// # Safety
    /// The caller holds the NIC's turn. Its own buffers are as long, and nobody else has a
    /// reference to their bytes. The program's and the clients' memory stays mapped while it is
    /// registered.
    pub(crate) unsafe fn transfer<'t>(
        &mut self,
        regions: &'t RegionTable,
        from: End<'t>,
        to: End<'t>,
        bytes: usize,
    ) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        let mut from = Walk::new(from, Fault::Source)?;
        let mut to = Walk::new(to, Fault::Target)?;
        // SAFETY: passed on from our caller.
        unsafe { from.fill(regions, bytes) }?;
        // SAFETY: likewise.
        unsafe { to.fill(regions, bytes) }?;
        if let (Location::Near(source), Location::Near(target)) = (from.at, to.at)
            && from.left.min(to.left) == bytes
        {
            // SAFETY: both were found usable for so many bytes, in this turn.
            unsafe { copy_near(source, target, bytes) };
            return Ok(());
        }
        // SAFETY: passed on from our caller.
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
        let mut batch = Batch::new(self.turn, &mut self.staging);
        let mut left = bytes;
        let mut moved = Ok(());
        while left > 0 && moved.is_ok() {
            // SAFETY: passed on from our caller.
            unsafe { from.fill(regions, left) }?;
            // SAFETY: likewise.
            unsafe { to.fill(regions, left) }?;
            let step = from.left.min(to.left);
            // SAFETY: both were found usable for so many bytes, in this turn.
            moved = unsafe { batch.add(from.at, to.at, step) };
            from.take(step);
            to.take(step);
            left -= step;
        }
        // SAFETY: what was added was found usable in this turn.
        let moved = moved.and_then(|()| unsafe { batch.finish() });
        self.client_faults += u64::from(moved.is_err());
        moved
    }

    /// As [`Self::transfer`] into a range that the peer of the target's VI names, its bytes in the
    /// order of [`Self::place_in_order`].
    ///
    /// # Errors
    /// As for [`Self::transfer`].
    ///
    /// # Safety
    /// As for [`Self::transfer`].
    pub(crate) unsafe fn transfer_in_order(
        &mut self,
        regions: &RegionTable,
        mut from: Named<'_>,
        to: Remote,
        bytes: u32,
    ) -> Result<(), Fault> {
        let whole = u64::from(bytes);
        if !regions.check(to.handle, to.tag, to.address, whole, Access::RemoteWrite) {
            return Err(Fault::Target);
        }
        let body = before_ordered(to.address, bytes as usize);
        let offset_bytes = from.offset_bytes;
        let segments = [DataSegment {
            address: to.address,
            handle: to.handle,
            length: bytes,
        }];
        let target = Named {
            tag: to.tag,
            access: Access::RemoteWrite,
            segments: &segments,
            cursor: &mut Cursor::default(),
            offset_bytes: 0,
        };
        let source = Named {
            cursor: &mut *from.cursor,
            ..from
        };
        // SAFETY: passed on from our caller.
        unsafe { self.transfer(regions, End::Named(source), End::Named(target), body) }?;
        let mut last = [0u8; LAST_BYTES];
        let last = &mut last[..bytes as usize - body];
        from.offset_bytes = offset_bytes + body as u32;
        let buffer = End::Own(last.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: as above; the buffer is of this frame and as long.
        unsafe { self.transfer(regions, End::Named(from), buffer, last.len()) }?;
        let to = Remote {
            address: to.address + body as u64,
            ..to
        };
        // SAFETY: as above.
        unsafe { self.place_in_order(regions, to, last) }
    }

    /// Copies `payload` to where a peer names, so that whoever polls the last bytes sees them
    /// last. In memory that only the client has, the last aligned word goes after what is before
    /// it, and what is behind it goes last, but one word may be seen in parts: the kernel
    /// processes the pieces of a call in their order and does not say how it copies one.
    ///
    /// # Errors
    /// [`Fault::Target`].
    ///
    /// # Safety
    /// As for [`Self::transfer`].
    pub(crate) unsafe fn place_in_order(
        &mut self,
        regions: &RegionTable,
        to: Remote,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let bytes = payload.len() as u64;
        // SAFETY: passed on from our caller.
        let found =
            unsafe { regions.locate(to.handle, to.tag, to.address, bytes, Access::RemoteWrite) };
        match found.ok_or(Fault::Target)? {
            Location::Near(at) => {
                // SAFETY: so many bytes were found writable.
                unsafe { copy::write_in_order(at, payload) };
                Ok(())
            }
            Location::Far(client, at) => {
                let body = before_last_word(at, payload.len());
                let (word, tail) = match payload.len() - body {
                    0 => (0, 0),
                    last => (WORD_BYTES, last - WORD_BYTES),
                };
                let parts = [(0, body), (body, word), (body + word, tail)];
                let source = payload.as_ptr().expose_provenance() as u64;
                let near = parts.map(|(from, bytes)| piece(source + from as u64, bytes));
                let far = parts.map(|(from, bytes)| piece(at + from as u64, bytes));
                let calls = near.chunks(ORDERED_PIECES).zip(far.chunks(ORDERED_PIECES));
                let mut written = client.is_alive(self.turn);
                for (near, far) in calls {
                    // Release: its partner is the application's load of the bytes that it polls,
                    // which the kernel stores for us.
                    fence(Ordering::Release);
                    // SAFETY: the payload is read only.
                    written = written && unsafe { client.write(near, far) }.is_ok();
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

/// Copies between two places of ours.
///
/// # Safety
/// Readable and writable for so many bytes.
#[inline]
unsafe fn copy_near(from: u64, to: u64, bytes: usize) {
    let from = core::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: passed on from our caller. A program may name the same memory at both ends, so they
    // may overlap.
    unsafe { core::ptr::copy(from, to, bytes) };
}

/// An end, piece by piece.
struct Walk<'a> {
    end: End<'a>,
    fault: Fault,
    /// Where the piece is, what is left of it.
    at: Location<'a>,
    left: usize,
}

impl<'a> Walk<'a> {
    fn new(mut end: End<'a>, fault: Fault) -> Result<Self, Fault> {
        if let End::Named(named) = &mut end
            && !named.cursor.seek(named.segments, named.offset_bytes)
        {
            return Err(fault);
        }
        Ok(Self {
            end,
            fault,
            at: Location::Near(0),
            left: 0,
        })
    }

    /// Goes to the next piece if this one is used up; at most so long.
    ///
    /// # Safety
    /// The caller holds the NIC's turn as long as it uses the piece.
    unsafe fn fill(&mut self, regions: &'a RegionTable, at_most: usize) -> Result<(), Fault> {
        if self.left > 0 {
            return Ok(());
        }
        match &mut self.end {
            End::Own(address) => {
                (self.at, self.left) = (Location::Near(*address), at_most);
                *address += at_most as u64;
            }
            End::Named(named) => {
                let next = named.cursor.piece(named.segments, at_most);
                let next = next.ok_or(self.fault)?;
                let bytes = u64::from(next.length);
                // SAFETY: passed on from our caller.
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

/// What is to be moved by system calls: first what is read, then what is written.
struct Batch<'m, 't> {
    turn: u64,
    staging: &'m mut [u8],
    staged_bytes: usize,
    reads: Pieces<'t>,
    writes: Pieces<'t>,
}

impl<'m, 't> Batch<'m, 't> {
    fn new(turn: u64, staging: &'m mut [u8]) -> Self {
        Self {
            turn,
            staging,
            staged_bytes: 0,
            reads: Pieces::new(),
            writes: Pieces::new(),
        }
    }

    /// Moves so many bytes, now or with [`Self::finish`].
    ///
    /// # Safety
    /// The caller holds the NIC's turn until the batch is finished or dropped; both locations
    /// may be used so for so many bytes.
    unsafe fn add(
        &mut self,
        from: Location<'t>,
        to: Location<'t>,
        bytes: usize,
    ) -> Result<(), Fault> {
        match (from, to) {
            (Location::Near(from), Location::Near(to)) => {
                // SAFETY: as our caller promises.
                unsafe { copy_near(from, to, bytes) };
            }
            (Location::Far(client, from), Location::Near(to)) => {
                if !self.reads.has_room(client) {
                    // SAFETY: as for what was added.
                    unsafe { self.finish() }?;
                }
                self.reads.push(client, to, from, bytes);
            }
            (Location::Near(from), Location::Far(client, to)) => {
                if !self.writes.has_room(client) {
                    // SAFETY: as above.
                    unsafe { self.finish() }?;
                }
                self.writes.push(client, from, to, bytes);
            }
            (Location::Far(source, from), Location::Far(target, to)) => {
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
        (source, from): (&'t Client, u64),
        (target, to): (&'t Client, u64),
        bytes: usize,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes {
            let full = self.staged_bytes == self.staging.len();
            if full || !self.reads.has_room(source) || !self.writes.has_room(target) {
                // SAFETY: passed on from our caller.
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

    /// Makes the system calls and is empty.
    ///
    /// # Safety
    /// As for [`Self::add`].
    unsafe fn finish(&mut self) -> Result<(), Fault> {
        self.staged_bytes = 0;
        // SAFETY: what was added may be written, as whoever added it promised.
        let read = self.reads.take(self.turn, |client, near, far| unsafe {
            client.read(near, far)
        });
        if !read {
            return Err(Fault::Source);
        }
        // SAFETY: what was added may be read, likewise.
        let written = self.writes.take(self.turn, |client, near, far| unsafe {
            client.write(near, far)
        });
        if written { Ok(()) } else { Err(Fault::Target) }
    }
}

/// Pieces of our memory and as long ones of one client's.
struct Pieces<'t> {
    client: Option<&'t Client>,
    count: usize,
    near: [MaybeUninit<libc::iovec>; MAX_PIECES],
    far: [MaybeUninit<libc::iovec>; MAX_PIECES],
}

impl<'t> Pieces<'t> {
    fn new() -> Self {
        Self {
            client: None,
            count: 0,
            near: [const { MaybeUninit::uninit() }; MAX_PIECES],
            far: [const { MaybeUninit::uninit() }; MAX_PIECES],
        }
    }

    fn has_room(&self, client: &Client) -> bool {
        let same = self.client.is_none_or(|known| core::ptr::eq(known, client));
        same && self.count < MAX_PIECES
    }

    /// There is room for it.
    fn push(&mut self, client: &'t Client, near: u64, far: u64, bytes: usize) {
        self.client = Some(client);
        self.near[self.count].write(piece(near, bytes));
        self.far[self.count].write(piece(far, bytes));
        self.count += 1;
    }

    /// Gives all pieces to `call`, if there are any and their client lives, and is empty.
    fn take(
        &mut self,
        turn: u64,
        call: impl FnOnce(&Client, &[libc::iovec], &[libc::iovec]) -> std::io::Result<()>,
    ) -> bool {
        let count = core::mem::take(&mut self.count);
        let Some(client) = self.client.take() else {
            return true;
        };
        // SAFETY: so many were written since the last call.
        let near = unsafe { core::slice::from_raw_parts(self.near.as_ptr().cast(), count) };
        // SAFETY: likewise.
        let far = unsafe { core::slice::from_raw_parts(self.far.as_ptr().cast(), count) };
        client.is_alive(turn) && call(client, near, far).is_ok()
    }
}

#[cfg(test)]
mod tests;
