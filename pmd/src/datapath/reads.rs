//! RDMA reads: sends the local memory that a peer reads, and places what was read of a peer's.

use vi_core::memory::Access;
use vi_core::posted_descriptor::still_valid;
use vi_engine::{DataFrame, Transmit};
use vi_types::ViIndex;

use super::Datapath;
use super::client_memory::payload_at;

impl Datapath {
    /// Places read data into the descriptor `ahead` positions behind the oldest in flight. Returns
    /// false if its memory is no longer valid or is too short.
    pub(super) fn place_in_flight(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let (path, memory) = self.parts(vi);
        let Some(path) = path.filter(|path| ahead < path.in_flight) else {
            return false;
        };
        let queue = &path.shared.send;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let Some(slot) = (unsafe { queue.ahead(ahead) }) else {
            return false;
        };
        let (regions, tag) = (memory.regions, path.tag);
        if slot.access() != Access::Write || !still_valid(slot, regions, tag, Access::Write) {
            return false;
        }
        let cursor = path.read_cursor.of(queue.sequence(ahead));
        // SAFETY: the segments were found valid for writing under the backend lock, held since.
        unsafe { memory.scatter(tag, cursor, slot, offset_bytes, payload) }
    }

    /// Checks that the peer of this VI may read `bytes` bytes at this address and handle.
    pub(super) fn check_remote_read(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        bytes: u64,
    ) -> bool {
        let regions = self.regions;
        self.vi(vi)
            .is_some_and(|path| regions.check(handle, path.tag, address, bytes, Access::RemoteRead))
    }

    /// Sends one frame of the memory that a peer reads, from `address` plus the frame's offset on.
    pub(super) fn send_read(
        &mut self,
        vi: ViIndex,
        frame: DataFrame<'_>,
        (address, handle): (u64, u32),
        payload_bytes: u32,
    ) -> Transmit {
        let offset_bytes = frame.per_frame.relative_offset;
        self.transmit(vi, frame, |buffer, path, memory| {
            let at = address.checked_add(u64::from(offset_bytes))?;
            let (regions, tag) = (memory.regions, path.tag);
            if !regions.check(
                handle,
                tag,
                at,
                u64::from(payload_bytes),
                Access::RemoteRead,
            ) {
                return None;
            }
            if tag.is_client() {
                return buffer.fill(payload_bytes as usize, |to| {
                    // SAFETY: we hold the backend lock.
                    unsafe { memory.read_of_client((tag, at, handle), to) }
                });
            }
            // SAFETY: checked under the backend lock, held since.
            Some(unsafe { payload_at(at, payload_bytes) })
        })
    }
}
