//! What the engine asks of its surroundings: queues, registered memory, a port.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};

use crate::endpoint::EndpointState;
use crate::engine::ViIndex;

/// Status bits of a completed descriptor, as the guide numbers them (VIPL 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// No error bit.
    pub const OK: Status = Status(0);
    /// Local Format Error.
    pub const FORMAT: Status = Status(0x0000_0002);
    /// Local Protection Error.
    pub const PROTECTION: Status = Status(0x0000_0004);
    /// Local Length Error.
    pub const LENGTH: Status = Status(0x0000_0008);
    /// Partial Packet Error, always with another bit.
    pub const PARTIAL: Status = Status(0x0000_0010);
    /// Descriptor Flushed.
    pub const FLUSHED: Status = Status(0x0000_0020);
    /// Transport Error.
    pub const TRANSPORT: Status = Status(0x0000_0040);
    /// RDMA Protection Error: the other end refused a read or write.
    pub const RDMA_PROTECTION: Status = Status(0x0000_0080);
    /// Remote Descriptor Error: the other end's receive descriptor did not fit, or there was none.
    pub const REMOTE_DESCRIPTOR: Status = Status(0x0000_0100);

    /// Both sets of bits.
    #[must_use]
    pub const fn with(self, other: Status) -> Status {
        Status(self.0 | other.0)
    }

    /// True if all of these bits are set.
    pub(crate) const fn has(self, bits: Status) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// True without any error bit.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

/// Who waits for something that is no descriptor's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Those who wait for the outcome of a connection call on this VI.
    Outcome(ViIndex),
    /// Who listens for a connection request under this number, that of
    /// [`Engine::listen`](crate::Engine::listen).
    Request(u64),
    /// Everybody: a port came or went.
    All,
}

/// Something that no descriptor waits for (VIPL 3.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncError {
    /// The connection was lost; the VI is in the Error state.
    ConnectionLost,
    /// The peer disconnected; the VI is in the Error state.
    Disconnected,
    /// A message came and no receive descriptor was posted.
    ReceiveQueueEmpty,
    /// An incoming RDMA write without immediate data was refused.
    RdmaWriteProtection,
    /// An incoming RDMA write without immediate data came damaged.
    RdmaWriteData,
    /// An incoming RDMA write without immediate data ended early.
    RdmaWriteAbort,
    /// An incoming RDMA read was refused.
    RdmaReadProtection,
    /// A message that consumes no descriptor was lost.
    RdmaTransport,
}

/// What a descriptor on a send queue wants done (VIPL 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message for the peer's next receive descriptor.
    Send,
    /// An RDMA write.
    Write {
        /// Address and memory handle of the target.
        remote: (u64, u32),
    },
    /// An RDMA read; the data segments are where the bytes go.
    Read {
        /// Address and memory handle of the source.
        remote: (u64, u32),
    },
}

/// A descriptor on a send queue, as far as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWork {
    /// Bytes of all its data segments.
    pub length_bytes: u32,
    /// Immediate data, if the descriptor carries any. Reads have none.
    pub immediate: Option<u32>,
    /// What is to be done.
    pub operation: Operation,
    /// Queue fence was set: it waits until every earlier read of its queue is done.
    pub fence: bool,
    /// Error bits found when the descriptor was parsed or its memory checked;
    /// such a descriptor is completed with them and never sent.
    pub fault: Status,
}

/// What a receive queue says to a message that wants its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No descriptor is posted.
    Empty,
    /// It is ours and holds so many bytes.
    Ready {
        /// Bytes of all its data segments.
        capacity_bytes: u32,
    },
    /// It is unusable: to be completed with these bits in its turn.
    Fault(Status),
}

/// How a receive descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Error bits, or none.
    pub status: Status,
    /// Bytes transferred; 0 with an error.
    pub length_bytes: u32,
    /// Immediate data that came with the message.
    pub immediate: Option<u32>,
    /// The message was an RDMA write from the other end.
    pub remote_write: bool,
}

/// What became of a frame given to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The port has it.
    Sent,
    /// No room; try again in a later turn.
    NoRoom,
    /// The memory of the descriptor is no longer valid; nothing was sent.
    Fault,
}

/// What became of bytes that were to be moved between two VIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All of them are there.
    All,
    /// The memory of the descriptor on the send queue is no longer valid; nothing was moved.
    OwnGone,
    /// The memory at the other end is no longer valid; nothing was moved.
    OtherGone,
}

/// Queues, memory and port of one N_Port, as the engine sees them.
///
/// A send queue has three positions:
///
/// ```text
///      oldest                next_send
///        |  in flight           |  posted             free
///        |  sent, not complete  |  not yet sent
/// ```
/// Descriptors in flight wait for a response, for data, or for an earlier one
/// that does: completions of a queue are in posting order. Mostly none is, and
/// the oldest is the one that [`Host::next_send`] names.
///
/// Every call is made from inside a verb of the engine, by the thread that
/// runs it. None of them may block or allocate.
pub trait Host {
    /// The first descriptor of the VI's send queue that is not in flight, left in place.
    fn next_send(&mut self, vi: ViIndex) -> Option<SendWork>;

    /// The descriptor that [`Host::next_send`] named is in flight from now on.
    fn keep_in_flight(&mut self, vi: ViIndex);

    /// Takes the oldest descriptor off the send queue with this outcome: the first one in
    /// flight or, if none is, the one that [`Host::next_send`] names.
    fn complete_send(&mut self, vi: ViIndex, status: Status, length_bytes: u32);

    /// The completion of a descriptor of this VI could not be written, because its memory is no
    /// longer registered (VIPL 3.8.1): [`Engine::fail_vi`](crate::Engine::fail_vi) follows the
    /// verb. The engine starts nothing more on the VI before, and completes nothing more.
    fn is_failing(&self, vi: ViIndex) -> bool;

    /// Sends one frame of the descriptor that [`Host::next_send`] named: header
    /// from `template` and `per_frame`, `payload_bytes` gathered from
    /// `per_frame.relative_offset` on, fill and trailer. A read request is such a frame
    /// with 0 bytes of payload, whatever the descriptor's length.
    fn transmit_data(
        &mut self,
        vi: ViIndex,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        payload_bytes: u32,
        last: bool,
    ) -> Transmit;

    /// What the descriptor `ahead` places behind the oldest in flight wants done; with `ahead`
    /// as many as are in flight, the one that [`Host::next_send`] named.
    fn sent_work(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork>;

    /// Sends a frame of that descriptor again: as [`Host::transmit_data`], which goes on as if
    /// nothing had happened in between.
    fn transmit_again(
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

    /// Claims the first descriptor of the receive queue that is not claimed, for a message that
    /// starts. Several are claimed only while messages come ahead of order. One with a `Fault`
    /// stays unclaimed; if none in front of it is claimed, [`Host::complete_receive`] may follow.
    fn claim_receive(&mut self, vi: ViIndex) -> Claim;

    /// Places bytes into the claimed descriptor that so many others are claimed in front of;
    /// the engine has checked that they fit, and places no byte twice. `false` if its memory is
    /// no longer valid.
    fn place_receive(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8])
    -> bool;

    /// Takes the head off the receive queue with this outcome: it is claimed, or has a fault.
    fn complete_receive(&mut self, vi: ViIndex, completion: Completion);

    /// May the peer of this VI write there: handle, tag, range and rights.
    fn check_rdma_write(&mut self, vi: ViIndex, target: &DeviceHeader) -> bool;

    /// Checks whether a handle names a region of this VI's tag and owner. Asked only of accesses
    /// that were refused.
    fn names_region(&mut self, vi: ViIndex, handle: u32) -> bool;

    /// Places bytes of an RDMA write at `target.rmt_va + offset_bytes`, the last ones last.
    /// `false` if the target is no longer valid.
    fn place_rdma_write(
        &mut self,
        vi: ViIndex,
        target: (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool;

    /// Places bytes of an RDMA read into the data segments of the descriptor `ahead` places
    /// behind the oldest one in flight; the engine has checked that they fit. Reads in flight
    /// are filled independently of each other, each from its begin to its end.
    /// `false` if the descriptor's memory is no longer valid.
    fn place_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool;

    /// May the peer of this VI read there: handle, tag, range (`tot_len` bytes) and rights.
    /// Asked for reads of 0 bytes too.
    fn check_rdma_read(&mut self, vi: ViIndex, source: &DeviceHeader) -> bool;

    /// Sends one frame of the answer to an RDMA read: as [`Host::transmit_data`], with
    /// `payload_bytes` gathered at `source.0 + per_frame.relative_offset` from the memory of
    /// the handle `source.1`. `Fault` if the peer may no longer read there; checked again for
    /// every frame.
    fn transmit_read(
        &mut self,
        vi: ViIndex,
        template: &HeaderTemplate,
        per_frame: &PerFrame,
        source: (u64, u32),
        payload_bytes: u32,
        last: bool,
    ) -> Transmit;

    /// Moves the `bytes` from `offset_bytes` on of a message between two VIs of this host, from
    /// memory to memory. The message is that of the descriptor which [`Host::next_send`] named on
    /// `vi`, whose operation this is: a send goes into the oldest claimed descriptor of `other`; a
    /// write to the memory of `other` that it names, the last bytes last; a read comes from there
    /// into its own data segments. The engine has checked that the bytes fit; rights and range of
    /// the memory are checked again at each call.
    fn move_message(
        &mut self,
        vi: ViIndex,
        other: ViIndex,
        operation: Operation,
        offset_bytes: u32,
        bytes: u32,
    ) -> Moved;

    /// Something that held this VI's send queue is over, or a peer's read or a response waits
    /// to be sent: [`Engine::pump`](crate::Engine::pump) wants to be called for it in this or
    /// the next turn, whether or not anything is posted. Not called from inside that verb.
    fn resume(&mut self, vi: ViIndex);

    /// Completes whatever is on the send queue as flushed, in order: what is in flight, then
    /// what is posted. Nothing is in flight afterwards.
    fn flush_sends(&mut self, vi: ViIndex);

    /// Completes whatever is posted on the receive queue as flushed, in order.
    fn flush_receives(&mut self, vi: ViIndex);

    /// The VI is now in this state.
    fn set_state(&mut self, vi: ViIndex, state: EndpointState);

    /// Tells the consumer what no descriptor can tell.
    fn report(&mut self, vi: ViIndex, error: AsyncError);

    /// A connection request arrived, or the outcome of a connection call is known: these, who may
    /// wait for it, should look.
    fn control_event(&mut self, who: Waiter);

    /// 32 bits that nobody can guess.
    fn random(&mut self) -> u32;
}
