//! Bytes of messages for a stream: where they lie, for system calls that take and give them without
//! a copy of ours, and copies where that cannot be.

use vi_engine::{Completion, Host, SendWork, Status, ViIndex};

use super::host::work_of;
use super::{Datapath, ViPath};
use crate::descriptor::{control, status};
use crate::memory::table::RegionTable;
use crate::memory::{Access, copy};
use crate::post::{Cursor, gather, scatter, still_valid};
use crate::queue::Slot;
use crate::sync::{self, Ordering};

/// Pieces of one message in one system call, at most: what lies in more is copied.
const MAX_PIECES: usize = 32;

/// Places in memory, in the order of the bytes.
#[derive(Default)]
pub(crate) struct Pieces {
    list: Vec<libc::iovec>,
}

// SAFETY: the pointers are used by whoever holds the NIC's turn, on whichever thread.
unsafe impl Send for Pieces {}

impl Pieces {
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

    /// Room that needs no allocation.
    pub(crate) fn room(&self) -> usize {
        self.list.capacity() - self.list.len()
    }

    pub(crate) fn push(&mut self, address: u64, bytes: usize) {
        self.list.push(libc::iovec {
            iov_base: core::ptr::with_exposed_provenance_mut(address as usize),
            iov_len: bytes,
        });
    }

    /// The last piece goes on for so many bytes more.
    pub(crate) fn grow_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len += bytes;
        }
    }

    pub(crate) fn last_bytes(&self) -> usize {
        self.list.last().map_or(0, |last| last.iov_len)
    }

    /// The last piece has so many bytes.
    pub(crate) fn set_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len = bytes;
        }
    }

    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        &self.list
    }

    /// Bytes in all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|piece| piece.iov_len).sum()
    }

    /// Goes through so many bytes from `at` on, place by place: the address, and which of them are there.
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

    /// Copies what is in the pieces from `at` on; how many bytes there were for `to`.
    ///
    /// # Safety
    /// The pieces may be read.
    pub(crate) unsafe fn copy_out(&self, at: usize, to: &mut [u8]) -> usize {
        let mut copied = 0;
        self.walk(at, to.len(), |from, range| {
            copied = range.end;
            if let Some(to) = to.get_mut(range) {
                // SAFETY: of a piece, for which the caller vouches.
                unsafe { copy::read(from, to) };
            }
        });
        copied
    }

    /// Copies bytes into the pieces from `at` on; what they have no room for is left out.
    ///
    /// # Safety
    /// The pieces may be written.
    pub(crate) unsafe fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.walk(at, bytes.len(), |to, range| {
            if let Some(from) = bytes.get(range) {
                // SAFETY: of a piece, for which the caller vouches.
                unsafe { copy::write(to, from) };
            }
        });
    }
}

/// Where bytes of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// In the pieces that were added.
    Here,
    /// They must be copied: they lie in too many pieces, or in another process.
    Apart,
    /// Their memory is not valid any more, or was never.
    Nowhere,
}

/// Which memory of a VI a peer or a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The data segments of the descriptor so many places behind the oldest on the send queue.
    Sending(u32),
    /// The data segments of the read so many places behind the oldest on the send queue.
    Reading(u32),
    /// The oldest claimed receive.
    Receiving,
    /// What a peer reads, at this address and handle.
    Read((u64, u32)),
}

impl Datapath {
    /// What the descriptor `ahead` places behind the first one that is not in flight wants done;
    /// what is wrong with its memory now is its fault.
    #[inline]
    pub(crate) fn work_ahead(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork> {
        let regions = self.regions;
        let path = self.vi(vi)?;
        // SAFETY: we run under the turn; the reference ends with this call.
        let slot = unsafe { path.shared.send.ahead(path.in_flight + ahead) }?;
        let mut fault = slot.fault;
        if fault == 0 && !still_valid(slot, regions, path.tag, slot.access()) {
            fault = status::PROTECTION_ERROR;
        }
        Some(work_of(slot, fault))
    }

    /// Descriptors that are sent and not complete.
    pub(crate) fn in_flight(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi).map_or(0, |path| path.in_flight)
    }

    /// Is anything on the send queue that was not sent?
    #[inline]
    pub(crate) fn has_unsent(&mut self, vi: ViIndex) -> bool {
        self.vi(vi)
            .is_some_and(|path| path.shared.send.depth() > path.in_flight)
    }

    /// Receives that no message has claimed.
    pub(crate) fn unclaimed(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi)
            .map_or(0, |path| path.shared.recv.depth() - path.claimed)
    }

    /// From now on the poller hears of receives that are posted on this VI, or not any more. What
    /// was posted before is to be looked at after this.
    pub(crate) fn tell_receives(&mut self, vi: ViIndex, tells: bool) {
        if let Some(path) = self.vi(vi)
            && path.shared.tells_receives.load(Ordering::Relaxed) != tells
        {
            path.shared.tells_receives.store(tells, Ordering::Relaxed);
            // Partner: the light barrier of whoever posts.
            sync::heavy_barrier();
        }
    }

    /// Adds the places of so many bytes from `offset_bytes` on. They are valid until the turn ends.
    pub(crate) fn locate(
        &mut self,
        vi: ViIndex,
        place: Place,
        offset_bytes: u32,
        bytes: u32,
        pieces: &mut Pieces,
    ) -> Lies {
        let regions = self.regions;
        let Some(path) = self.vi(vi) else {
            return Lies::Nowhere;
        };
        let tag = path.tag;
        match place {
            Place::Sending(_) | Place::Reading(_) | Place::Receiving => {
                let Some((slot, cursor)) = slot_of(path, place, regions) else {
                    return Lies::Nowhere;
                };
                if tag.is_client() {
                    return Lies::Apart;
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
                    (true, true) => Lies::Here,
                    (true, false) => {
                        pieces.truncate(before);
                        Lies::Apart
                    }
                    (false, _) => {
                        pieces.truncate(before);
                        Lies::Nowhere
                    }
                }
            }
            Place::Read((address, handle)) => {
                let access = Access::RemoteRead;
                let at = address.checked_add(u64::from(offset_bytes));
                let allowed = |at: &u64| regions.check(handle, tag, *at, u64::from(bytes), access);
                match at.filter(allowed) {
                    None => Lies::Nowhere,
                    Some(_) if tag.is_client() || pieces.room() == 0 => Lies::Apart,
                    Some(at) => {
                        pieces.push(at, bytes as usize);
                        Lies::Here
                    }
                }
            }
        }
    }

    /// Copies bytes of a message from `offset_bytes` on. False if their memory is not valid.
    pub(crate) fn copy_out(
        &mut self,
        vi: ViIndex,
        place: Place,
        offset_bytes: u32,
        to: &mut [u8],
    ) -> bool {
        let (path, memory) = self.parts(vi);
        let Some(path) = path else {
            return false;
        };
        let tag = path.tag;
        if let Place::Read((address, handle)) = place {
            let Some(at) = address.checked_add(u64::from(offset_bytes)) else {
                return false;
            };
            if tag.is_client() {
                // SAFETY: we run under the turn.
                return unsafe { memory.read_of_client((tag, at, handle), to) };
            }
            let bytes = to.len() as u64;
            if !(memory.regions).check(handle, tag, at, bytes, Access::RemoteRead) {
                return false;
            }
            // SAFETY: checked in this turn, and deregistration needs the turn.
            unsafe { copy::read(at, to) };
            return true;
        }
        let Some((slot, cursor)) = slot_of(path, place, memory.regions) else {
            return false;
        };
        // SAFETY: the segments were found valid just now, and we run under the turn.
        unsafe { memory.gather(tag, cursor, slot, offset_bytes, to) }
    }

    /// Places a whole message into the oldest receive descriptor and completes that. False, and
    /// nothing is done, if that takes more: a claim before it, an error, another process.
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
        // SAFETY: we run under the turn; the reference ends before the completion.
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

    /// Copies out the data of the only descriptor that waits on a send queue with nothing in
    /// flight, if it is a send without a fault that fits into `to`. What it wants done.
    #[inline]
    pub(crate) fn copy_lone_send(&mut self, vi: ViIndex, to: &mut [u8]) -> Option<SendWork> {
        let regions = self.regions;
        let path = self.vi(vi)?;
        let queue = &path.shared.send;
        if path.in_flight > 0 || path.tag.is_client() || queue.depth() != 1 {
            return None;
        }
        // SAFETY: we run under the turn; the reference ends with this call.
        let slot = unsafe { queue.head() }?;
        let is_simple = slot.fault == 0
            && slot.control & control::OP_MASK == control::OP_SEND_RECV
            && still_valid(slot, regions, path.tag, Access::Read);
        let to = to
            .get_mut(..slot.length_bytes as usize)
            .filter(|_| is_simple)?;
        // SAFETY: the segments were found valid just now, and we run under the turn.
        let whole = unsafe { gather(&mut Cursor::default(), slot, 0, to) };
        whole.then(|| work_of(slot, 0))
    }

    /// May the peer of this VI write or read there: handle, tag, range and rights.
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

/// The slot that a place names, valid for its use, and the cursor that goes through it.
fn slot_of<'p>(
    path: &'p mut ViPath,
    place: Place,
    regions: &RegionTable,
) -> Option<(&'p Slot, &'p mut Cursor)> {
    let (queue, ahead, cursor, access) = match place {
        Place::Sending(ahead) => (
            &path.shared.send,
            ahead,
            &mut path.again_cursor,
            Access::Read,
        ),
        Place::Reading(ahead) => (
            &path.shared.send,
            ahead,
            &mut path.read_cursor,
            Access::Write,
        ),
        Place::Receiving if path.claimed > 0 => {
            (&path.shared.recv, 0, &mut path.recv_cursor, Access::Write)
        }
        Place::Receiving | Place::Read(_) => return None,
    };
    let cursor = cursor.of(queue.sequence(ahead));
    // SAFETY: we run under the turn, which the borrow of the path stands for; there is no other
    // reference to this slot.
    let slot = unsafe { queue.ahead(ahead) }?;
    let fits = place == Place::Receiving || slot.access() == access;
    (fits && still_valid(slot, regions, path.tag, access)).then_some((&*slot, cursor))
}
