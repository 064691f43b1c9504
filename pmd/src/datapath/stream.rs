//! Message memory for stream sockets: I/O vectors for system calls without a copy, and copies where
//! the memory is not directly accessible.

use vi_core::descriptor::control;
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, copy};
use vi_core::posted_descriptor::{Cursor, gather, scatter, still_valid};
use vi_core::queue::Slot;
use vi_core::sync::{self, Ordering};
use vi_engine::{Completion, EngineIo, SendWork, Status};
use vi_types::{ViIndex, status};

use super::engine_io::work_of;
use super::{Datapath, ViPath};

/// The most pieces of one message in one system call: a message in more pieces is copied.
const MAX_PIECES: usize = 32;

/// I/O vectors, in the order of the bytes.
#[derive(Default)]
pub(crate) struct IoVecs {
    list: Vec<libc::iovec>,
}

// SAFETY: the pointers are used only by the thread that holds the NIC's backend lock.
unsafe impl Send for IoVecs {}

impl IoVecs {
    pub(crate) fn with_capacity(pieces: usize) -> Self {
        Self {
            list: Vec::with_capacity(pieces),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    pub(crate) fn truncate(&mut self, pieces: usize) {
        self.list.truncate(pieces);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of pieces that fit without an allocation.
    pub(crate) fn room(&self) -> usize {
        self.list.capacity() - self.list.len()
    }

    pub(crate) fn push(&mut self, address: u64, bytes: usize) {
        self.list.push(libc::iovec {
            iov_base: core::ptr::with_exposed_provenance_mut(address as usize),
            iov_len: bytes,
        });
    }

    /// Adds `bytes` bytes to the last piece.
    pub(crate) fn grow_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len += bytes;
        }
    }

    pub(crate) fn last_bytes(&self) -> usize {
        self.list.last().map_or(0, |last| last.iov_len)
    }

    /// Sets the length of the last piece.
    pub(crate) fn set_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len = bytes;
        }
    }

    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        &self.list
    }

    /// Returns the total number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|piece| piece.iov_len).sum()
    }

    /// Visits `bytes` bytes from `at` on, piece by piece: the address, and the range of the bytes at it.
    fn walk(&self, at: usize, bytes: usize, mut visit: impl FnMut(u64, core::ops::Range<usize>)) {
        let (mut skip, mut done) = (at, 0);
        for piece in &self.list {
            if skip >= piece.iov_len {
                skip -= piece.iov_len;
                continue;
            }
            let take = (piece.iov_len - skip).min(bytes - done);
            visit((piece.iov_base.addr() + skip) as u64, done..done + take);
            done += take;
            skip = 0;
            if done == bytes {
                break;
            }
        }
    }

    /// Copies bytes out of the pieces from `at` on; returns the number copied.
    ///
    /// # Safety
    /// The pieces may be read.
    pub(crate) unsafe fn copy_out(&self, at: usize, to: &mut [u8]) -> usize {
        let mut copied = 0;
        self.walk(at, to.len(), |from, range| {
            copied = range.end;
            if let Some(to) = to.get_mut(range) {
                // SAFETY: part of a piece, by the caller's contract.
                unsafe { copy::read(from, to) };
            }
        });
        copied
    }

    /// Copies bytes into the pieces from `at` on; excess bytes are ignored.
    ///
    /// # Safety
    /// The pieces may be written.
    pub(crate) unsafe fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.walk(at, bytes.len(), |to, range| {
            if let Some(from) = bytes.get(range) {
                // SAFETY: part of a piece, by the caller's contract.
                unsafe { copy::write(to, from) };
            }
        });
    }
}

/// How bytes of a message can be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferAccess {
    /// In place: the pieces were added.
    Direct,
    /// By a copy: they are in too many pieces, or in another process.
    NeedsCopy,
    /// Not at all: the memory is not valid, or no longer.
    Invalid,
}

/// Memory of a VI that a peer or a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageMemory {
    /// The data segments of the descriptor this many positions behind the oldest on the send queue.
    Send(u32),
    /// The data segments of the RDMA read this many positions behind the oldest on the send queue.
    ReadTarget(u32),
    /// The data segments of the oldest claimed receive.
    Receive,
    /// The memory that a peer reads, at this address and handle.
    ReadSource((u64, u32)),
}

impl Datapath {
    /// Returns the work of the descriptor `ahead` positions behind the first one that is not in
    /// flight; its `fault` includes memory that is no longer valid.
    #[inline]
    pub(crate) fn work_ahead(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork> {
        let regions = self.regions;
        let path = self.vi(vi)?;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { path.shared.send.ahead(path.in_flight + ahead) }?;
        let mut fault = slot.fault;
        if fault == 0 && !still_valid(slot, regions, path.tag, slot.access()) {
            fault = status::PROTECTION_ERROR;
        }
        Some(work_of(slot, fault))
    }

    /// Returns the number of descriptors that are sent and not complete.
    pub(crate) fn in_flight(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi).map_or(0, |path| path.in_flight)
    }

    /// Returns true if the send queue has an unsent descriptor.
    #[inline]
    pub(crate) fn has_unsent(&mut self, vi: ViIndex) -> bool {
        self.vi(vi)
            .is_some_and(|path| path.shared.send.depth() > path.in_flight)
    }

    /// Returns the number of receives that no message has claimed.
    pub(crate) fn unclaimed(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi)
            .map_or(0, |path| path.shared.recv.depth() - path.claimed)
    }

    /// Enables or disables notification of the poller about receives posted on this VI. The caller
    /// checks for receives that were posted before, after this call.
    pub(crate) fn set_notify_receives(&mut self, vi: ViIndex, enabled: bool) {
        if let Some(path) = self.vi(vi)
            && path.shared.notify_receives.load(Ordering::Relaxed) != enabled
        {
            path.shared
                .notify_receives
                .store(enabled, Ordering::Relaxed);
            // Partner: the light barrier of the posting thread, in `ViShared::notifies_receives`.
            sync::heavy_barrier();
        }
    }

    /// Adds the pieces of `bytes` bytes from `offset_bytes` on. They are valid until the backend lock is
    /// released.
    pub(crate) fn locate(
        &mut self,
        vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        bytes: u32,
        pieces: &mut IoVecs,
    ) -> BufferAccess {
        let regions = self.regions;
        let Some(path) = self.vi(vi) else {
            return BufferAccess::Invalid;
        };
        let tag = path.tag;
        match memory {
            MessageMemory::Send(_) | MessageMemory::ReadTarget(_) | MessageMemory::Receive => {
                let Some((slot, cursor)) = slot_of(path, memory, regions) else {
                    return BufferAccess::Invalid;
                };
                if tag.is_client() {
                    return BufferAccess::NeedsCopy;
                }
                let (before, room) = (pieces.len(), pieces.room().min(MAX_PIECES));
                let mut fits = true;
                let walked = cursor.walk(slot.data(), offset_bytes, bytes as usize, |at, range| {
                    fits &= pieces.len() - before < room;
                    if fits {
                        pieces.push(at, range.len());
                    }
                });
                match (walked, fits) {
                    (true, true) => BufferAccess::Direct,
                    (true, false) => {
                        pieces.truncate(before);
                        BufferAccess::NeedsCopy
                    }
                    (false, _) => {
                        pieces.truncate(before);
                        BufferAccess::Invalid
                    }
                }
            }
            MessageMemory::ReadSource((address, handle)) => {
                let access = Access::RemoteRead;
                let at = address.checked_add(u64::from(offset_bytes));
                let allowed = |at: &u64| regions.check(handle, tag, *at, u64::from(bytes), access);
                match at.filter(allowed) {
                    None => BufferAccess::Invalid,
                    Some(_) if tag.is_client() || pieces.room() == 0 => BufferAccess::NeedsCopy,
                    Some(at) => {
                        pieces.push(at, bytes as usize);
                        BufferAccess::Direct
                    }
                }
            }
        }
    }

    /// Copies bytes of a message from `offset_bytes` on. Returns false if their memory is not valid.
    pub(crate) fn copy_out(
        &mut self,
        vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        to: &mut [u8],
    ) -> bool {
        let (path, access) = self.parts(vi);
        let Some(path) = path else {
            return false;
        };
        let tag = path.tag;
        if let MessageMemory::ReadSource((address, handle)) = memory {
            let Some(at) = address.checked_add(u64::from(offset_bytes)) else {
                return false;
            };
            if tag.is_client() {
                // SAFETY: we hold the backend lock.
                return unsafe { access.read_of_client((tag, at, handle), to) };
            }
            let bytes = to.len() as u64;
            if !(access.regions).check(handle, tag, at, bytes, Access::RemoteRead) {
                return false;
            }
            // SAFETY: checked under the backend lock, held since; deregistration needs it.
            unsafe { copy::read(at, to) };
            return true;
        }
        let Some((slot, cursor)) = slot_of(path, memory, access.regions) else {
            return false;
        };
        // SAFETY: the segments were found valid just now, and we hold the backend lock.
        unsafe { access.gather(tag, cursor, slot, offset_bytes, to) }
    }

    /// Places a whole message into the oldest receive descriptor and completes that. Returns false,
    /// without effect, in the cases for the slow path: an earlier claim, an error, another process.
    #[inline]
    pub(crate) fn take_whole(
        &mut self,
        vi: ViIndex,
        payload: &[u8],
        immediate: Option<u32>,
    ) -> bool {
        let regions = self.regions;
        let Some(path) = self.vi(vi) else {
            return false;
        };
        if path.claimed > 0 || path.tag.is_client() {
            return false;
        }
        // SAFETY: we hold the backend lock; the reference ends before the completion.
        let Some(slot) = (unsafe { path.shared.recv.head() }) else {
            return false;
        };
        let fits = slot.fault == 0
            && payload.len() <= slot.length_bytes as usize
            && still_valid(slot, regions, path.tag, Access::Write);
        // SAFETY: the segments were found valid just now.
        if !fits || !unsafe { scatter(&mut Cursor::default(), slot, 0, payload) } {
            return false;
        }
        let completion = Completion {
            status: Status::OK,
            length_bytes: payload.len() as u32,
            immediate,
            remote_write: false,
        };
        self.complete_receive(vi, completion);
        true
    }

    /// Copies out the data of the only descriptor on a send queue with nothing in flight, if it is a
    /// send without a fault that fits into `to`. Returns its work.
    #[inline]
    pub(crate) fn copy_lone_send(&mut self, vi: ViIndex, to: &mut [u8]) -> Option<SendWork> {
        let regions = self.regions;
        let path = self.vi(vi)?;
        let queue = &path.shared.send;
        if path.in_flight > 0 || path.tag.is_client() || queue.depth() != 1 {
            return None;
        }
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { queue.head() }?;
        let is_simple = slot.fault == 0
            && slot.control & control::OP_MASK == control::OP_SEND_RECV
            && still_valid(slot, regions, path.tag, Access::Read);
        let to = to
            .get_mut(..slot.length_bytes as usize)
            .filter(|_| is_simple)?;
        // SAFETY: the segments were found valid just now, and we hold the backend lock.
        let whole = unsafe { gather(&mut Cursor::default(), slot, 0, to) };
        whole.then(|| work_of(slot, 0))
    }

    /// Checks handle, tag, range and rights of an access by the peer of this VI.
    pub(crate) fn may_access(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        bytes: u32,
        access: Access,
    ) -> bool {
        let regions = self.regions;
        self.vi(vi)
            .is_some_and(|path| regions.check(handle, path.tag, address, u64::from(bytes), access))
    }
}

/// Returns the slot that `memory` names, if it is valid for that use, and its cursor.
fn slot_of<'p>(
    path: &'p mut ViPath,
    memory: MessageMemory,
    regions: &RegionTable,
) -> Option<(&'p Slot, &'p mut Cursor)> {
    let (queue, ahead, cursor, access) = match memory {
        MessageMemory::Send(ahead) => (
            &path.shared.send,
            ahead,
            &mut path.again_cursor,
            Access::Read,
        ),
        MessageMemory::ReadTarget(ahead) => (
            &path.shared.send,
            ahead,
            &mut path.read_cursor,
            Access::Write,
        ),
        MessageMemory::Receive if path.claimed > 0 => {
            (&path.shared.recv, 0, &mut path.recv_cursor, Access::Write)
        }
        MessageMemory::Receive | MessageMemory::ReadSource(_) => return None,
    };
    let cursor = cursor.of(queue.sequence(ahead));
    // SAFETY: we hold the backend lock, which the borrow of the path shows; there is no other
    // reference to this slot.
    let slot = unsafe { queue.ahead(ahead) }?;
    let fits = memory == MessageMemory::Receive || slot.access() == access;
    (fits && still_valid(slot, regions, path.tag, access)).then_some((&*slot, cursor))
}
