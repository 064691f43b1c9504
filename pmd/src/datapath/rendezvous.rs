//! Long sends between programs of a segment, which the receiver copies from the memory of the sender (docs/adr/0069).

use vi_core::memory::direct_access::{DirectAccess, PeerMemory};
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, copy};
use vi_core::posted_descriptor::still_valid;
use vi_engine::CopyResult;

use super::ViPath;
use super::direct_access::{DirectPath, DirectStation};

/// A VI whose peer is in another station, and the memory of both. The caller holds the backend lock.
pub(super) struct Rendezvous<'a> {
    pub(super) path: &'a mut ViPath,
    pub(super) regions: &'a RegionTable,
    pub(super) station: &'a mut DirectStation,
}

impl Rendezvous<'_> {
    /// Returns address and handle of the memory of the next send, if it has one segment, in a region that other stations
    /// may be able to map.
    pub(super) fn own_source(&self) -> Option<(u64, u32)> {
        let path = &self.path;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { path.shared.send.ahead(path.in_flight) }?;
        let [segment] = slot.data() else {
            return None;
        };
        let is_listed = path.direct.is_some() && self.station.exported().lists(segment.handle);
        is_listed.then_some((segment.address, segment.handle))
    }

    /// Returns whether a message of the peer fits into the oldest receive that is not claimed, and can be copied from its
    /// memory.
    pub(super) fn can_copy(&mut self, source: (u64, u32), message_bytes: u32) -> bool {
        let path = &self.path;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { path.shared.recv.ahead(path.claimed) };
        let fits = slot.is_some_and(|slot| {
            slot.fault == 0
                && slot.length_bytes >= message_bytes
                && still_valid(slot, self.regions, path.tag, Access::Write)
        });
        let peer = path.direct.as_ref().filter(|_| fits);
        peer.is_some_and(|peer| begin(self.station, peer, source, message_bytes, (0, 0)).is_some())
    }

    /// Copies a part of a message from the memory of the peer into the oldest claimed receive.
    pub(super) fn copy(
        &mut self,
        source: (u64, u32),
        message_bytes: u32,
        (offset_bytes, bytes): (u32, u32),
    ) -> CopyResult {
        let Self {
            path,
            regions,
            station,
        } = self;
        let queue = &path.shared.recv;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { queue.head() }.filter(|_| path.claimed > 0);
        let Some(slot) = slot else {
            return CopyResult::LocalInvalid;
        };
        if !still_valid(slot, regions, path.tag, Access::Write) {
            return CopyResult::LocalInvalid;
        }
        let Some(peer) = path.direct.as_ref() else {
            return CopyResult::ConnectionEnded;
        };
        let part = (offset_bytes, bytes);
        let begun = begin(station, peer, source, message_bytes, part);
        let is_copied = begun.is_some_and(|begun| {
            let from = begun.address();
            let cursor = path.recv_cursor.of(queue.sequence(0));
            let fits = cursor.walk(slot.data(), offset_bytes, bytes as usize, |to, piece| {
                // SAFETY: the segments were found valid under the backend lock, held since, and the source until the
                // access ends.
                unsafe { copy::between(from + piece.start as u64, to, piece.len()) };
            });
            begun.finish_send() && fits
        });
        let is_connected = |memory: &mut PeerMemory| memory.is_connected(peer.vi());
        if is_copied {
            CopyResult::Copied
        } else if station.memory_of(peer).is_some_and(is_connected) {
            CopyResult::RemoteInvalid
        } else {
            CopyResult::ConnectionEnded
        }
    }
}

/// Begins an access to a part of a message that the peer sends.
fn begin<'a>(
    station: &'a mut DirectStation,
    peer: &DirectPath,
    source: (u64, u32),
    message_bytes: u32,
    part: (u32, u32),
) -> Option<DirectAccess<'a>> {
    let memory = station.memory_of(peer)?;
    memory.access(peer.vi(), source, message_bytes, part, Access::Read)
}
