//! What the engine calls: queues, registered memory and the port.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::NPortId;
use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameHeader, FrameToEmit, HeaderTemplate, Payload, PerFrame};
use vi_types::{Operation, QueueIo, SendWork, ViIndex, ViParams};

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

/// A data frame to send, without its payload.
#[derive(Clone, Copy, Debug)]
pub struct DataFrame<'a> {
    /// Constant fields of its header.
    pub template: &'a HeaderTemplate,
    /// The other fields of its header.
    pub per_frame: &'a PerFrame,
    /// It is the last of its sequence.
    pub last: bool,
}

impl<'a> DataFrame<'a> {
    /// Returns the frame with its payload. `prefetch_bytes`: as for [`FrameToEmit`].
    #[inline]
    #[must_use]
    pub fn with_payload(self, payload: Payload<'a>, prefetch_bytes: usize) -> FrameToEmit<'a> {
        FrameToEmit {
            template: self.template,
            per_frame: self.per_frame,
            payload,
            eof: if self.last { Eof::T } else { Eof::N },
            prefetch_bytes,
        }
    }
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

/// Result of copying a part of a message of the peer from its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyResult {
    /// It was copied.
    Copied,
    /// The memory of the receive descriptor is no longer valid.
    LocalInvalid,
    /// The memory of the peer cannot be accessed any more; some bytes may have been copied.
    RemoteInvalid,
    /// The peer has ended the connection, as it also says in a frame; some bytes may have been copied.
    ConnectionEnded,
}

/// Result of copying a part of an RDMA operation without frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It was copied.
    Copied,
    /// It is possible, but the peer has not handled all frames of this VI, which come before.
    NotYet,
    /// The memory cannot be accessed, or the peer may not access it: the whole message is sent in frames, with the same
    /// effect on memory.
    Impossible,
}

/// A connection to a VI of another N_Port, whose messages are sent in frames that the network does not lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectConnection {
    /// Handle of the own VI, which the peer uses in frames.
    pub handle: u32,
    /// The peer's N_Port and the handle of its VI.
    pub peer: (NPortId, u32),
    /// Attributes of the own VI.
    pub params: ViParams,
}

/// Queues, memory and port of one N_Port, as the engine uses them. All calls are made from verbs of the
/// engine. None of them may block or allocate.
pub trait EngineIo: QueueIo {
    /// Sends one frame of the descriptor that [`QueueIo::next_send`] returned, with `payload_bytes`
    /// of its data from `relative_offset` of the frame on. A read request is such a frame with 0
    /// bytes of payload, whatever the descriptor's length.
    fn transmit_data(&mut self, vi: ViIndex, frame: DataFrame<'_>, payload_bytes: u32) -> Transmit;

    /// Sends one frame with this payload, of a message that is on no queue.
    fn transmit_payload(&mut self, frame: DataFrame<'_>, payload: Payload<'_>) -> Transmit;

    /// Returns the descriptor `ahead` positions after the oldest in flight; if `ahead` is the
    /// number in flight, the one that [`QueueIo::next_send`] returned.
    fn in_flight_work(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork>;

    /// Retransmits a frame of that descriptor, as [`EngineIo::transmit_data`], whose state it does
    /// not change.
    fn retransmit_data(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        frame: DataFrame<'_>,
        payload_bytes: u32,
    ) -> Transmit;

    /// Sends one single-frame sequence that carries `payload` (a multiple of 4 bytes).
    fn transmit_control(&mut self, header: &FrameHeader, payload: &[u8]) -> Transmit;

    /// Copies a whole message into the oldest receive descriptor and completes it. Returns false
    /// without any effect if there is none, or if it is claimed, has a fault, is too short, or if its
    /// memory is not valid or not in this process. Then the message is received by
    /// [`QueueIo::claim_receive`] and what follows.
    fn receive_whole(&mut self, vi: ViIndex, payload: &[u8], immediate: Option<u32>) -> bool;

    /// Writes a whole RDMA write to the address and handle `target`. Returns false without any
    /// effect if the peer may not write there, or if the memory is not in this process. Then it is
    /// received by [`EngineIo::check_rdma_write`] and what follows.
    fn write_whole(&mut self, vi: ViIndex, target: (u64, u32), payload: &[u8]) -> bool;

    /// Reports whether the peer of this VI may write there: checks handle, tag, range and rights.
    fn check_rdma_write(&mut self, vi: ViIndex, target: &DeviceHeader) -> bool;

    /// Reports whether the peer of this VI may read there: checks handle, tag, range (`tot_len`
    /// bytes) and rights. Called for reads of 0 bytes too.
    fn check_rdma_read(&mut self, vi: ViIndex, source: &DeviceHeader) -> bool;

    /// Sends one frame of an RDMA read's data, as [`EngineIo::transmit_data`], with `payload_bytes`
    /// gathered at `source.0` plus its `relative_offset` from the memory of the handle `source.1`.
    /// Returns `Fault` if the peer may no longer read there, which is checked for every frame.
    fn transmit_read(
        &mut self,
        vi: ViIndex,
        frame: DataFrame<'_>,
        source: (u64, u32),
        payload_bytes: u32,
    ) -> Transmit;

    /// A VI is about to be Connected. Until its state changes again, RDMA operations between it and the peer may be
    /// carried out by [`EngineIo::access_directly`] of either side.
    fn connected(&mut self, vi: ViIndex, connection: &DirectConnection);

    /// Copies a part, offset and length in bytes, of an RDMA write or read between the memory of the descriptor that
    /// [`QueueIo::next_send`] returned and that of the peer, the last bytes of a write last. `sent`: the ID of the VI's
    /// next message in frames, which shows whether any were sent since the last call.
    fn access_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        part: (u32, u32),
    ) -> Direct;

    /// Returns whether [`EngineIo::access_directly`] is possible for such an operation, apart from what is sent before it.
    fn can_access_directly(&mut self, vi: ViIndex, work: &SendWork) -> bool;

    /// The peer has handled all frames of this VI, as its answer shows; `sent` as for [`EngineIo::access_directly`].
    fn peer_has_handled(&mut self, vi: ViIndex, sent: u32);

    /// As [`EngineIo::access_directly`], for a whole RDMA write or read that is on no queue; returns whether it was
    /// copied. `memory`: that of the descriptor, writable if it is a read.
    fn access_whole_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        memory: Payload<'_>,
    ) -> bool;

    /// Returns whether a descriptor is queued behind the one that [`QueueIo::next_send`] returned.
    fn has_later_send(&mut self, vi: ViIndex) -> bool;

    /// Returns address and handle of the memory of the descriptor that [`QueueIo::next_send`] returned, if the peer may
    /// be able to copy from it.
    fn rendezvous_source(&mut self, vi: ViIndex) -> Option<(u64, u32)>;

    /// Returns whether a message of the peer, in its memory at this address and handle, can be copied into the oldest
    /// receive descriptor that is not claimed.
    fn can_copy_from_peer(&mut self, vi: ViIndex, source: (u64, u32), message_bytes: u32) -> bool;

    /// Copies a part, offset and length in bytes, of such a message into the oldest claimed receive descriptor, which has
    /// room for it.
    fn copy_from_peer(
        &mut self,
        vi: ViIndex,
        source: (u64, u32),
        message_bytes: u32,
        part: (u32, u32),
    ) -> CopyResult;

    /// Ends the access of the peer to memory through a VI that is about to break: a send is completed after this.
    fn end_access(&mut self, vi: ViIndex);

    /// Moves `bytes` bytes at `offset_bytes` of a message between two VIs of this engine, from
    /// memory to memory. The message is that of the descriptor which [`QueueIo::next_send`]
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
}
