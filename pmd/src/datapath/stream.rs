//! Queues and memory for data transfer over stream sockets.

use vi_core::descriptor::control;
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, copy};
use vi_core::posted_descriptor::{Cursor, gather, scatter, still_valid};
use vi_core::queue::Slot;
use vi_core::sync::{self, Ordering};
use vi_types::QueueIo;
use vi_types::{Completion, SendWork, Status, ViIndex, status};

use super::engine_io::work_of;
use super::{Datapath, ViPath};
use vitcp_lite::transfer::{BufferAccess, MemoryRanges, MessageMemory, RemoteAccess, StreamIo};

const _: () = assert!(vitcp_lite::transfer::WORD_BYTES == copy::WORD_BYTES);

/// Maximum memory ranges of one message in one system call: a message in more ranges is copied.
const MAX_RANGES: usize = 32;

impl StreamIo for Datapath {
    #[inline]
    fn work_ahead(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork> {
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

    fn in_flight(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi).map_or(0, |path| path.in_flight)
    }

    fn unclaimed(&mut self, vi: ViIndex) -> u32 {
        self.vi(vi)
            .map_or(0, |path| path.shared.recv.depth() - path.claimed)
    }

    fn set_notify_receives(&mut self, vi: ViIndex, enabled: bool) {
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

    fn locate(
        &mut self,
        vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        bytes: u32,
        ranges: &mut MemoryRanges,
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
                let (before, room) = (ranges.len(), ranges.room().min(MAX_RANGES));
                let mut fits = true;
                let walked = cursor.walk(slot.data(), offset_bytes, bytes as usize, |at, range| {
                    fits &= ranges.len() - before < room;
                    if fits {
                        ranges.push(at, range.len());
                    }
                });
                match (walked, fits) {
                    (true, true) => BufferAccess::Direct,
                    (true, false) => {
                        ranges.truncate(before);
                        BufferAccess::NeedsCopy
                    }
                    (false, _) => {
                        ranges.truncate(before);
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
                    Some(_) if tag.is_client() || ranges.room() == 0 => BufferAccess::NeedsCopy,
                    Some(at) => {
                        ranges.push(at, bytes as usize);
                        BufferAccess::Direct
                    }
                }
            }
        }
    }

    fn note_arrived(&mut self) {
        self.arrived = true;
    }

    fn copy_out(
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

    #[inline]
    fn take_whole(&mut self, vi: ViIndex, payload: &[u8], immediate: Option<u32>) -> bool {
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

    #[inline]
    fn copy_lone_send(&mut self, vi: ViIndex, to: &mut [u8]) -> Option<SendWork> {
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

    fn may_access(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        bytes: u32,
        access: RemoteAccess,
    ) -> bool {
        let regions = self.regions;
        let access = match access {
            RemoteAccess::Read => Access::RemoteRead,
            RemoteAccess::Write => Access::RemoteWrite,
        };
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
