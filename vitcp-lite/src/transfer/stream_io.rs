//! What data transfer needs of the queues and the memory of its VI.

use vi_types::{QueueIo, SendWork, ViIndex};

use super::MemoryRanges;

/// How bytes of a message can be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferAccess {
    /// In place: the ranges were added.
    Direct,
    /// By a copy: they are in too many ranges, or in another process.
    NeedsCopy,
    /// Not at all: the memory is not valid, or no longer.
    Invalid,
}

/// Memory of a VI that a peer or a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageMemory {
    /// The data segments of the descriptor this many positions behind the oldest on the send queue.
    Send(u32),
    /// The data segments of the RDMA read this many positions behind the oldest on the send queue.
    ReadTarget(u32),
    /// The data segments of the oldest claimed receive.
    Receive,
    /// The memory that a peer reads, at this address and handle.
    ReadSource((u64, u32)),
}

/// An access of a peer to memory of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
}

/// Queues and memory of the VIs of a NIC, as a byte stream uses them: ranges for system calls without a copy, and
/// copies where the memory is not directly accessible.
pub trait StreamIo: QueueIo {
    /// Returns the work of the descriptor `ahead` positions behind the first one that is not in flight; its `fault`
    /// includes memory that is no longer valid.
    fn work_ahead(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork>;

    /// Returns the number of descriptors that are sent and not complete.
    fn in_flight(&mut self, vi: ViIndex) -> u32;

    /// Returns the number of receives that no message has claimed.
    fn unclaimed(&mut self, vi: ViIndex) -> u32;

    /// Enables or disables notification of the poller about receives posted on this VI. The caller checks for
    /// receives that were posted before, after this call.
    fn set_notify_receives(&mut self, vi: ViIndex, enabled: bool);

    /// Adds the ranges of `bytes` bytes from `offset_bytes` on. They are valid until the backend lock is released.
    fn locate(
        &mut self,
        vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        bytes: u32,
        ranges: &mut MemoryRanges,
    ) -> BufferAccess;

    /// Notes that data was read directly into a located range.
    fn note_arrived(&mut self);

    /// Copies bytes of a message from `offset_bytes` on. Returns false if their memory is not valid.
    fn copy_out(
        &mut self,
        vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        to: &mut [u8],
    ) -> bool;

    /// Places a whole message into the oldest receive descriptor and completes that. Returns false, without effect,
    /// in the cases for the slow path: an earlier claim, an error, another process.
    fn take_whole(&mut self, vi: ViIndex, payload: &[u8], immediate: Option<u32>) -> bool;

    /// Copies out the data of the only descriptor on a send queue with nothing in flight, if it is a send without a
    /// fault that fits into `to`. Returns its work.
    fn copy_lone_send(&mut self, vi: ViIndex, to: &mut [u8]) -> Option<SendWork>;

    /// Checks handle, tag, range and rights of an access by the peer of this VI.
    fn may_access(&mut self, vi: ViIndex, at: (u64, u32), bytes: u32, access: RemoteAccess)
    -> bool;
}
