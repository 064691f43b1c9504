//! What the engine calls: queues, registered memory and the port.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};
use vi_types::{ViIndex, ViState, status};

pub use vi_types::AsyncError;

/// Error bits of the status of a completed descriptor (VIPL 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// No error bit.
    pub const OK: Status = Status(0);
    /// Local Format Error.
    pub const FORMAT: Status = Status(status::FORMAT_ERROR);
    /// Local Protection Error.
    pub const PROTECTION: Status = Status(status::PROTECTION_ERROR);
    /// Local Length Error.
    pub const LENGTH: Status = Status(status::LENGTH_ERROR);
    /// Partial Packet Error, always with another bit.
    pub const PARTIAL: Status = Status(status::PARTIAL_ERROR);
    /// Descriptor Flushed.
    pub const FLUSHED: Status = Status(status::DESC_FLUSHED_ERROR);
    /// Transport Error.
    pub const TRANSPORT: Status = Status(status::TRANSPORT_ERROR);
    /// RDMA Protection Error: the remote side refused a read or write.
    pub const RDMA_PROTECTION: Status = Status(status::RDMA_PROT_ERROR);
    /// Remote Descriptor Error: the remote receive descriptor did not fit, or none was posted.
    pub const REMOTE_DESCRIPTOR: Status = Status(status::REMOTE_DESC_ERROR);

    /// Returns the union of both sets of bits.
    #[must_use]
    pub const fn with(self, other: Status) -> Status {
        Status(self.0 | other.0)
    }

    /// Reports whether all of these bits are set.
    pub(crate) const fn has(self, bits: Status) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Reports whether no error bit is set.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

/// Waiters to notify of an event that completes no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Waiters for the outcome of a connection call on this VI.
    Outcome(ViIndex),
    /// Waiters for a connection request on the listener of this number, as returned by
    /// [`Engine::listen`](crate::Engine::listen).
    Request(u64),
    /// All waiters: a port appeared or was lost.
    All,
}

/// Operation of a descriptor on a send queue (VIPL 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message for the peer's next receive descriptor.
    Send,
    /// An RDMA write.
    Write {
        /// Address and memory handle of the target.
        remote: (u64, u32),
    },
    /// An RDMA read into the data segments.
    Read {
        /// Address and memory handle of the source.
        remote: (u64, u32),
    },
}

/// A descriptor on a send queue, as far as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWork {
    /// Total length of its data segments in bytes.
    pub length_bytes: u32,
    /// Immediate data, if the descriptor carries any. Reads have none.
    pub immediate: Option<u32>,
    /// Its operation.
    pub operation: Operation,
    /// The queue fence is set: it waits until every earlier read of its queue is complete.
    pub fence: bool,
    /// Error bits found when the descriptor was parsed or its memory checked; such a descriptor is
    /// completed with them and never sent.
    pub fault: Status,
}

/// Result of claiming a receive descriptor for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No descriptor is posted.
    Empty,
    /// It is claimed.
    Ready {
        /// Total length of its data segments in bytes.
        capacity_bytes: u32,
    },
    /// It is unusable: to be completed with these bits in its turn.
    Fault(Status),
}

/// Outcome of a receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Error bits, or none.
    pub status: Status,
    /// Bytes transferred; 0 with an error.
    pub length_bytes: u32,
    /// Immediate data that came with the message.
    pub immediate: Option<u32>,
    /// The message was an RDMA write of the peer.
    pub remote_write: bool,
}

/// Result of giving a frame to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The port has accepted it.
    Sent,
    /// No room; retry in a later poll.
    NoRoom,
    /// The memory of the descriptor is no longer valid; nothing was sent.
    Fault,
}

/// Result of moving bytes between two VIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All bytes were moved.
    All,
    /// The memory of the descriptor on the send queue is no longer valid; nothing was moved.
    LocalInvalid,
    /// The memory of the other VI is no longer valid; nothing was moved.
    RemoteInvalid,
}

/// Queues, memory and port of one N_Port, as the engine uses them.
///
/// A send queue has three positions:
///
/// ```text
///      oldest                next_send
///        |  in flight           |  posted             free
///        |  sent, not complete  |  not yet sent
/// ```
/// Descriptors in flight wait for a response, for data, or for an earlier one that does: the
/// completions of a queue are in posting order. Usually none is in flight, and the oldest is the one
/// that [`EngineIo::next_send`] returns.
///
/// All calls are made from verbs of the engine, on the thread that runs it. None of them may block or
/// allocate.
pub trait EngineIo {
    /// Returns the first descriptor of the VI's send queue that is not in flight, and leaves it
    /// there.
    fn next_send(&mut self, vi: ViIndex) -> Option<SendWork>;

    /// Puts the descriptor that [`EngineIo::next_send`] returned in flight.
    fn keep_in_flight(&mut self, vi: ViIndex);

    /// Completes the oldest descriptor of the send queue: the first one in flight or, if none is,
    /// the one that [`EngineIo::next_send`] returned.
    fn complete_send(&mut self, vi: ViIndex, status: Status, length_bytes: u32);

    /// Reports whether the completion of a descriptor of this VI could not be written because its
    /// memory is no longer registered (VIPL 3.8.1). The engine starts and completes nothing more on
    /// the VI then, and [`Engine::fail_vi`](crate::Engine::fail_vi) is called after the verb.
    fn is_failing(&self, vi: ViIndex) -> bool;

    /// Sends one frame of the descriptor that [`EngineIo::next_send`] returned: the header from
    /// `template` and `per_frame`, `payload_bytes` gathered from `per_frame.relative_offset` on,
    /// fill and trailer. A read request is such a frame with 0 bytes of payload, whatever the
    /// descriptor's length.
    fn transmit_data(
        &mut self,
        vi: ViIndex,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        payload_bytes: u32,
        last: bool,
    ) -> Transmit;

    /// Returns the descriptor `ahead` positions after the oldest in flight; if `ahead` is the
    /// number in flight, the one that [`EngineIo::next_send`] returned.
    fn in_flight_work(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork>;

    /// Retransmits a frame of that descriptor, as [`EngineIo::transmit_data`], whose state it does
    /// not change.
    fn retransmit_data(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        payload_bytes: u32,
        last: bool,
    ) -> Transmit;

    /// Sends one single-frame sequence that carries `payload` (a multiple of 4 bytes).
    fn transmit_control(&mut self, header: &FrameHeader, payload: &[u8]) -> Transmit;

    /// Claims the first descriptor of the receive queue that is not claimed, for a new message.
    /// Several are claimed only while messages arrive ahead of order. One with a `Fault` stays
    /// unclaimed; if none before it is claimed, [`EngineIo::complete_receive`] may follow.
    fn claim_receive(&mut self, vi: ViIndex) -> Claim;

    /// Copies bytes into the claimed descriptor `ahead` positions after the head of the receive
    /// queue. The engine has checked that they fit, and places no byte twice. Returns false if the
    /// memory is no longer valid.
    fn place_receive(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8])
    -> bool;

    /// Completes the head of the receive queue, which is claimed or has a fault.
    fn complete_receive(&mut self, vi: ViIndex, completion: Completion);

    /// Reports whether the peer of this VI may write there: checks handle, tag, range and rights.
    fn check_rdma_write(&mut self, vi: ViIndex, target: &DeviceHeader) -> bool;

    /// Reports whether a handle names a region of this VI's tag and owner. Called only for refused
    /// accesses.
    fn names_region(&mut self, vi: ViIndex, handle: u32) -> bool;

    /// Copies bytes of an RDMA write to `target.rmt_va + offset_bytes`, the last ones last. Returns
    /// false if the target is no longer valid.
    fn place_rdma_write(
        &mut self,
        vi: ViIndex,
        target: (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool;

    /// Copies bytes of an RDMA read into the data segments of the descriptor `ahead` positions
    /// after the oldest in flight. The engine has checked that they fit. Each read in flight is
    /// filled in order, independently of the others. Returns false if the descriptor's memory is no
    /// longer valid.
    fn place_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool;

    /// Reports whether the peer of this VI may read there: checks handle, tag, range (`tot_len`
    /// bytes) and rights. Called for reads of 0 bytes too.
    fn check_rdma_read(&mut self, vi: ViIndex, source: &DeviceHeader) -> bool;

    /// Sends one frame of an RDMA read's data, as [`EngineIo::transmit_data`], with `payload_bytes`
    /// gathered at `source.0 + per_frame.relative_offset` from the memory of the handle `source.1`.
    /// Returns `Fault` if the peer may no longer read there, which is checked for every frame.
    fn transmit_read(
        &mut self,
        vi: ViIndex,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        source: (u64, u32),
        payload_bytes: u32,
        last: bool,
    ) -> Transmit;

    /// Moves `bytes` bytes at `offset_bytes` of a message between two VIs of this engine, from
    /// memory to memory. The message is that of the descriptor which [`EngineIo::next_send`]
    /// returned for `vi`, with this operation: a send is copied into the oldest claimed descriptor
    /// of `other`; a write to the memory of `other` that it names, the last bytes last; a read from
    /// there into its own data segments. The engine has checked that the bytes fit; rights and
    /// range of the memory are checked at each call.
    fn move_message(
        &mut self,
        vi: ViIndex,
        other: ViIndex,
        operation: Operation,
        offset_bytes: u32,
        bytes: u32,
    ) -> Moved;

    /// Requests a call of [`Engine::pump`](crate::Engine::pump) for this VI in this poll or the
    /// next, whether or not anything is posted: its send queue is not deferred any more, or
    /// responses or read data are pending. Not called from that verb.
    fn resume(&mut self, vi: ViIndex);

    /// Completes all descriptors of the send queue as flushed, in order: those in flight, then
    /// those posted. None is in flight afterwards.
    fn flush_sends(&mut self, vi: ViIndex);

    /// Completes all descriptors of the receive queue as flushed, in order.
    fn flush_receives(&mut self, vi: ViIndex);

    /// Sets the state of the VI that its consumer sees.
    fn set_state(&mut self, vi: ViIndex, state: ViState);

    /// Reports an asynchronous error to the consumer.
    fn report(&mut self, vi: ViIndex, error: AsyncError);

    /// Notifies waiters of a connection request, or of the outcome of a connection call.
    fn control_event(&mut self, waiter: Waiter);

    /// Returns 32 unpredictable random bits.
    fn random(&mut self) -> u32;
}
