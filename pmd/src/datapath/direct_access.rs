//! RDMA operations on the memory of other stations of the segment, without frames (docs/adr/0068).

use std::sync::Arc;
use std::time::Instant;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::frame::Payload;
use pmd_port::{MacBytes, Port};
use vi_core::descriptor::DataSegment;
use vi_core::memory::direct_access::{
    DirectAccess, ExportedMemory, MappedFile, PeerMemory, PeerVi, VisibleVi,
};
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, copy};
use vi_core::posted_descriptor::{Cursor, still_valid};
use vi_engine::{Direct, DirectConnection, vi_of_handle};
use vi_types::{Operation, SendWork, ViIndex};

use super::rendezvous::Rendezvous;
use super::shortcut::write_in_order;
use super::{Datapath, ViPath, path_of};

/// RDMA writes of at most this length, of one segment, are read before they are written.
const SMALL_BYTES: u32 = 64;

/// The NIC's own station, and the memory of the others.
pub(crate) struct DirectStation {
    exported: Arc<ExportedMemory>,
    /// Of each station, if it shares any. Opened with the first connection.
    peers: Vec<Option<PeerMemory>>,
    /// The most files of one station that are mapped.
    max_files: usize,
    /// Mappings that are not needed any more.
    unused: Vec<MappedFile>,
}

/// The peer of a VI, in another station.
pub(crate) struct DirectPath {
    slot: usize,
    mac: MacBytes,
    vi: PeerVi,
    /// The ID of the VI's next message in frames when `unhandled` was set; `None` before.
    seen: Option<u32>,
    /// The position in the ring to the peer after the last frame of this VI, if the peer may not have handled it.
    unhandled: Option<u64>,
}

impl DirectPath {
    /// Returns the VI in the table of its station.
    pub(super) fn vi(&self) -> PeerVi {
        self.vi
    }

    /// Notes that the peer has handled all frames of this VI, whose next message in frames is `sent`.
    pub(super) fn note_handled(&mut self, sent: u32) {
        self.seen = Some(sent);
        self.unhandled = None;
    }

    /// Returns whether the peer has handled all frames of this VI, whose next message in frames is `sent`.
    #[inline]
    fn is_in_order(&mut self, port: &dyn Port, sent: u32) -> bool {
        if self.seen != Some(sent) {
            let Some(position) = port.sent_to(self.mac) else {
                return false;
            };
            self.seen = Some(sent);
            self.unhandled = Some(position);
        }
        let Some(position) = self.unhandled else {
            return true;
        };
        let handled = port.has_freed(self.mac, position);
        if handled {
            self.unhandled = None;
        }
        handled
    }
}

impl DirectStation {
    /// Prepares access to the memory of the other stations of the segment to which the memory is exported.
    pub(crate) fn new(exported: Arc<ExportedMemory>, max_files: u32) -> Box<Self> {
        let slots = exported.station().slots();
        Box::new(Self {
            exported,
            peers: (0..slots).map(|_| None).collect(),
            max_files: max_files as usize,
            unused: Vec::new(),
        })
    }

    /// Returns the own memory, as the other stations see it.
    pub(super) fn exported(&self) -> &ExportedMemory {
        &self.exported
    }

    /// Returns the memory of the station of a VI's peer.
    pub(super) fn memory_of(&mut self, peer: &DirectPath) -> Option<&mut PeerMemory> {
        self.peers.get_mut(peer.slot)?.as_mut()
    }

    /// Ends access to all other stations.
    pub(super) fn leave_all(&mut self) {
        for mut peer in self.peers.drain(..).flatten() {
            peer.take_all(&mut self.unused);
        }
    }

    /// Returns the memory of a station; maps its table if necessary.
    fn peer(&mut self, at: (usize, u64)) -> Option<&mut PeerMemory> {
        let peer = self.peers.get_mut(at.0)?;
        if peer.as_ref().is_none_or(|peer| peer.station() != at) {
            if let Some(mut left) = peer.take() {
                left.take_all(&mut self.unused);
            }
            *peer = match PeerMemory::open(&self.exported, at, self.max_files) {
                Ok(opened) => opened,
                Err(error) => {
                    log::debug!(
                        "the memory of station {} cannot be accessed directly: {error}",
                        at.0
                    );
                    None
                }
            };
        }
        peer.as_mut()
    }
}

impl Datapath {
    /// Has RDMA operations carried out without frames where that is possible.
    pub(crate) fn set_direct(&mut self, direct: Option<Box<DirectStation>>) {
        self.direct = direct;
    }

    /// Allows direct access between a VI that is about to be Connected and its peer, in both directions.
    pub(super) fn allow_direct_access(&mut self, vi: ViIndex, connection: &DirectConnection) {
        let Some(direct) = &mut self.direct else {
            return;
        };
        let Some(path) = path_of(&mut self.vis, vi).filter(|path| path.client.is_none()) else {
            return;
        };
        let (peer, peer_handle) = connection.peer;
        let mac = MacAddress::vn2vn(peer).0;
        let Some(at) = direct.exported.station().find(mac) else {
            return;
        };
        let visible = VisibleVi {
            handle: connection.handle,
            peer: at,
            tag: path.tag,
            rdma_write: connection.params.rdma_write,
            rdma_read: connection.params.rdma_read,
            max_transfer_bytes: connection.params.max_transfer_bytes,
        };
        direct.exported.open_vi(vi.0, &visible);
        let exported = Arc::clone(&direct.exported);
        path.direct = direct.peer(at).map(|memory| {
            let index = vi_of_handle(peer_handle, memory.max_vis());
            DirectPath {
                slot: at.0,
                mac,
                vi: PeerVi::new(index.0, peer_handle, exported.station()),
                seen: None,
                unhandled: None,
            }
        });
    }

    /// Ends direct access between a VI and its peer.
    pub(super) fn end_direct_access(&mut self, vi: ViIndex) {
        if let Some(direct) = &self.direct {
            direct.exported.close_vi(vi.0);
        }
        if let Some(path) = self.vi(vi) {
            path.direct = None;
        }
    }

    /// Returns what it takes to carry out an RDMA operation without frames, if its memory can be accessed. Without `sent`,
    /// it is not its turn.
    #[inline]
    fn direct_operation(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: Option<u32>,
    ) -> Option<DirectOperation<'_>> {
        let Self {
            vis,
            regions,
            port,
            batch,
            direct,
            ..
        } = self;
        let (remote, access) = match work.operation {
            Operation::Send => return None,
            Operation::Write { remote } => (remote, Access::RemoteWrite),
            Operation::Read { remote } => (remote, Access::RemoteRead),
        };
        let path = path_of(vis, vi)?;
        let (peer, station) = (path.direct.as_mut()?, direct.as_mut()?);
        let memory = station.memory_of(peer)?;
        // First, since the line that shows the order is the peer's.
        if !memory.lists(remote.1) {
            return None;
        }
        // Frames in the batch are not in a ring yet.
        let is_in_order =
            sent.is_some_and(|sent| batch.is_empty() && peer.is_in_order(port.as_ref(), sent));
        let vi = peer.vi;
        Some(DirectOperation {
            path,
            regions,
            memory,
            vi,
            remote,
            message_bytes: work.length_bytes,
            access,
            is_in_order,
        })
    }

    /// Returns whether the memory that an RDMA operation names can be accessed.
    pub(super) fn reaches_directly(&mut self, vi: ViIndex, work: &SendWork) -> bool {
        let operation = self.direct_operation(vi, work, None);
        operation.is_some_and(|mut operation| operation.begin((0, 0)).is_some())
    }

    /// Copies a part of an RDMA operation; see [`vi_engine::EngineIo::access_directly`].
    #[inline]
    pub(super) fn copy_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        (offset_bytes, bytes): (u32, u32),
    ) -> Direct {
        let Some(operation) = self.direct_operation(vi, work, Some(sent)) else {
            return Direct::Impossible;
        };
        operation.copy(offset_bytes, bytes)
    }

    /// Carries out an RDMA operation that is on no queue; see [`vi_engine::EngineIo::access_whole_directly`].
    #[inline]
    pub(super) fn copy_whole_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        memory: Payload<'_>,
    ) -> bool {
        let operation = self.direct_operation(vi, work, Some(sent));
        operation.is_some_and(|operation| operation.copy_whole(memory))
    }

    /// Returns what it takes to copy sends between a VI and its peer in another station.
    pub(super) fn rendezvous(&mut self, vi: ViIndex) -> Option<Rendezvous<'_>> {
        Some(Rendezvous {
            path: path_of(&mut self.vis, vi)?,
            regions: self.regions,
            station: self.direct.as_deref_mut()?,
        })
    }

    /// Ends access to the memory of other stations, whose port has failed.
    pub(super) fn leave_stations(&mut self) {
        if let Some(direct) = &mut self.direct {
            direct.leave_all();
        }
    }

    /// Returns mappings that are not needed any more; the caller drops them after it has released the backend lock.
    pub(crate) fn take_unused_mappings(&mut self) -> Vec<MappedFile> {
        let Some(direct) = &mut self.direct else {
            return Vec::new();
        };
        let DirectStation {
            exported,
            peers,
            unused,
            ..
        } = &mut **direct;
        let now = Instant::now();
        for entry in peers {
            let Some(peer) = entry else {
                continue;
            };
            let (slot, generation) = peer.station();
            if exported.station().is_marked_live(slot, generation) {
                peer.take_unused(now, unused);
            } else {
                peer.take_all(unused);
                *entry = None;
            }
        }
        core::mem::take(unused)
    }
}

/// An RDMA operation between the memory of a VI and that of its peer.
struct DirectOperation<'a> {
    path: &'a mut ViPath,
    regions: &'a RegionTable,
    memory: &'a mut PeerMemory,
    vi: PeerVi,
    remote: (u64, u32),
    message_bytes: u32,
    access: Access,
    /// The peer has handled all frames of the VI.
    is_in_order: bool,
}

impl DirectOperation<'_> {
    #[inline]
    fn begin(&mut self, part: (u32, u32)) -> Option<DirectAccess<'_>> {
        let Self { vi, remote, .. } = *self;
        (self.memory).access(vi, remote, self.message_bytes, part, self.access)
    }

    /// Copies a part of the operation whose descriptor is next on the send queue.
    #[inline]
    fn copy(self, offset_bytes: u32, bytes: u32) -> Direct {
        let Self {
            path,
            regions,
            memory,
            ..
        } = self;
        // SAFETY: we hold the backend lock; the reference ends with this call, and there is no other.
        let Some(slot) = (unsafe { path.shared.send.ahead(path.in_flight) }) else {
            return Direct::Impossible;
        };
        if !still_valid(slot, regions, path.tag, slot.access()) {
            return Direct::Impossible;
        }
        let part = (offset_bytes, bytes);
        let begun = memory.access(self.vi, self.remote, self.message_bytes, part, self.access);
        let Some(begun) = begun else {
            return Direct::Impossible;
        };
        if !self.is_in_order {
            return Direct::NotYet;
        }
        // SAFETY: the segments were found valid just now, and we hold the backend lock.
        if unsafe { copy_segments(&mut path.send_cursor, slot.data(), part, begun, self.access) } {
            Direct::Copied
        } else {
            Direct::Impossible
        }
    }

    /// Carries out an operation of one segment that is on no queue, if it is its turn.
    #[inline]
    fn copy_whole(mut self, memory: Payload<'_>) -> bool {
        if !self.is_in_order {
            return false;
        }
        let (bytes, access) = (self.message_bytes, self.access);
        let Some(begun) = self.begin((0, bytes)) else {
            return false;
        };
        let address = memory.as_ptr().expose_provenance() as u64;
        if access == Access::RemoteWrite && bytes <= SMALL_BYTES {
            let mut small = [0; SMALL_BYTES as usize];
            let Some(small) = small.get_mut(..bytes as usize) else {
                return false;
            };
            // SAFETY: the caller found the memory valid, and holds the backend lock.
            unsafe { copy::read(address, small) };
            // SAFETY: the target was found valid for writing until the access ends.
            unsafe { copy::write_in_order(begun.address(), small) };
            return begun.finish();
        }
        let segment = [DataSegment {
            address,
            handle: 0,
            length: bytes,
        }];
        // SAFETY: the caller found the memory valid, and holds the backend lock.
        unsafe { copy_segments(&mut Cursor::default(), &segment, (0, bytes), begun, access) }
    }
}

/// Copies a part of an RDMA operation between data segments and the memory of the peer; returns whether all of it was
/// copied.
///
/// # Safety
/// The segments were found valid for the operation under the backend lock, held since.
#[inline(always)]
unsafe fn copy_segments(
    cursor: &mut Cursor,
    segments: &[DataSegment],
    (offset_bytes, bytes): (u32, u32),
    begun: DirectAccess<'_>,
    access: Access,
) -> bool {
    let at = begun.address();
    let fits = if access == Access::RemoteWrite {
        // SAFETY: guaranteed by the caller, and the target was found valid for writing until the access ends.
        unsafe { write_in_order(cursor, segments, offset_bytes, at, bytes) }
    } else {
        cursor.walk(segments, offset_bytes, bytes as usize, |to, piece| {
            // SAFETY: as above, with source and target exchanged.
            unsafe { copy::between(at + piece.start as u64, to, piece.len()) };
        })
    };
    begun.finish() && fits
}
