//! Values that go in and out of the calls.

use core::fmt;
use core::time::Duration;

pub use fcvi_frame::connect::{Discriminator, HostAddress, NetAddress};
pub use pmd::descriptor::RawDescriptor;
pub use pmd::events::{ErrorCode, ResourceCode};

/// Why a call did not succeed, with the numbers of `VIP_RETURN` (VIPL 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum VipError {
    /// Nothing is complete.
    NotDone = 1,
    /// A parameter or handle was invalid.
    InvalidParameter = 2,
    /// Not enough resources, or a conflict over one.
    ErrorResource = 3,
    /// Not in time.
    Timeout = 4,
    /// The other end rejected the connection.
    Reject = 5,
    /// The reliability level is invalid, not supported, or differs.
    InvalidReliabilityLevel = 6,
    /// The maximum transfer size is invalid, not supported, or differs.
    InvalidMtu = 7,
    /// The quality of service is invalid, not supported, or differs.
    InvalidQos = 8,
    /// The protection tag is invalid.
    InvalidPtag = 9,
    /// RDMA reads are not supported at this reliability level.
    InvalidRdmaRead = 10,
    /// A descriptor completed with an error, or the queue is empty.
    DescriptorError = 11,
    /// The VI is in the wrong state.
    InvalidState = 12,
    /// The name service does not know, or is not initialized.
    ErrorNameservice = 13,
    /// Nobody waits for this discriminator.
    NoMatch = 14,
    /// The host cannot be reached.
    NotReachable = 15,
}

impl fmt::Display for VipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDone => "nothing is complete yet",
            Self::InvalidParameter => "a parameter or handle is invalid",
            Self::ErrorResource => "not enough resources, or the resource is in use",
            Self::Timeout => "not in time",
            Self::Reject => "the other end rejected the connection",
            Self::InvalidReliabilityLevel => "the reliability level is not supported or differs",
            Self::InvalidMtu => "the maximum transfer size is not supported or differs",
            Self::InvalidQos => "the quality of service is not supported or differs",
            Self::InvalidPtag => "the protection tag is invalid",
            Self::InvalidRdmaRead => "RDMA reads are not supported at this reliability level",
            Self::DescriptorError => "a descriptor completed with an error, or none is posted",
            Self::InvalidState => "not valid in the VI's state",
            Self::ErrorNameservice => "the name service does not know, or is not initialized",
            Self::NoMatch => "nobody waits there for this discriminator",
            Self::NotReachable => "the host cannot be reached",
        })
    }
}

impl std::error::Error for VipError {}

/// Result of a call.
pub type Result<T> = core::result::Result<T, VipError>;

macro_rules! handles {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The handle as a number; never 0.
            #[inline]
            pub const fn into_raw(self) -> u64 {
                self.0
            }

            /// A handle from a number; a wrong one is refused by every call.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
        }
    )+};
}

handles! {
    /// One opening of a NIC.
    NicHandle;
    /// A VI.
    ViHandle;
    /// A completion queue.
    CqHandle;
    /// A connection request that waits for accept or reject.
    ConnHandle;
    /// A protection tag.
    PtagHandle;
}

/// A registered region; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub u32);

/// Reliability levels, with the bits of the guide (VIPL 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ReliabilityLevel {
    /// Unreliable Delivery: what is lost is not noticed, and a connection outlives errors.
    Unreliable = 1,
    /// Reliable Delivery: in order, once or not at all; an error breaks the connection. A send completes when it is on
    /// its way.
    ReliableDelivery = 2,
    /// Reliable Reception: as Reliable Delivery, but a send completes when the peer has placed it, or with what the
    /// peer says of it.
    ReliableReception = 4,
}

/// Attributes of a VI (VIPL 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViAttributes {
    /// Bit of the reliability level.
    pub reliability: u16,
    /// Longest message in bytes.
    pub max_transfer_bytes: u64,
    /// Quality of service; only 0 is supported.
    pub qos: u64,
    /// Protection tag.
    pub ptag: Option<PtagHandle>,
    /// RDMA writes of the other end are accepted.
    pub rdma_write: bool,
    /// RDMA reads of the other end are accepted.
    pub rdma_read: bool,
}

/// Attributes of a memory region (VIPL 4.7). By default no tag and no RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemAttributes {
    /// Protection tag.
    pub ptag: Option<PtagHandle>,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// State of a VI (VIPL 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ViState {
    /// Not connected.
    Idle = 0,
    /// Connected.
    Connected = 1,
    /// A connection procedure is under way.
    ConnectPending = 2,
    /// The connection broke.
    Error = 3,
}

/// What there is to know about a VI (VIPL 3.7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViInfo {
    /// State.
    pub state: ViState,
    /// Attributes as given.
    pub attributes: ViAttributes,
    /// Nothing on the send queue.
    pub send_queue_empty: bool,
    /// Nothing on the receive queue.
    pub recv_queue_empty: bool,
}

/// Attributes of a NIC (VIPL 4.5). Every number fits a signed 32-bit integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttributes {
    /// Name.
    pub name: String,
    /// Version of the hardware: none here, 0.
    pub hardware_version: u32,
    /// Version of this provider: major 8 bits, minor 8, patch 8.
    pub provider_version: u32,
    /// Bytes of a host address.
    pub nic_address_len: u16,
    /// Our host address.
    pub local_nic_address: &'static [u8; 16],
    /// Any call may be made from any thread.
    pub thread_safe: bool,
    /// Bytes of a discriminator, at most.
    pub max_discriminator_len: u16,
    /// Bytes that can be registered.
    pub max_register_bytes: u64,
    /// Regions that can be registered.
    pub max_register_regions: u64,
    /// Bytes of the largest region.
    pub max_register_block_bytes: u64,
    /// VIs.
    pub max_vi: u64,
    /// Descriptors on one work queue.
    pub max_descriptors_per_queue: u64,
    /// Segments in one descriptor, the address segment included.
    pub max_segments_per_desc: u64,
    /// Completion queues.
    pub max_cq: u64,
    /// Entries of a completion queue.
    pub max_cq_entries: u64,
    /// Bytes of one message.
    pub max_transfer_size: u64,
    /// User bytes in one frame.
    pub native_mtu: u64,
    /// Protection tags.
    pub max_ptags: u64,
    /// Bits of the supported reliability levels.
    pub reliability_level_support: u16,
    /// Bits of the levels with RDMA read.
    pub rdma_read_support: u16,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Not at all.
    Immediate,
    /// So long.
    After(Duration),
    /// Until it happens.
    Infinite,
}

impl Timeout {
    pub(crate) fn limit(self) -> Option<Duration> {
        match self {
            Self::Immediate => Some(Duration::ZERO),
            Self::After(limit) => Some(limit),
            Self::Infinite => None,
        }
    }
}

impl From<Duration> for Timeout {
    fn from(limit: Duration) -> Self {
        Self::After(limit)
    }
}

/// What a look at a work queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The head was complete and is off the queue.
    Completed {
        /// The descriptor, back with the program.
        descriptor: *mut RawDescriptor,
        /// Its status word, as in its control segment.
        status: u32,
    },
    /// Nothing is posted.
    Empty,
    /// The head is not complete.
    NotDone,
}

/// A descriptor that came off its queue for a notify handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The descriptor, back with the program.
    pub descriptor: *mut RawDescriptor,
    /// Its status word, as in its control segment.
    pub status: u32,
}

/// An entry of a completion queue. Its descriptor may have been taken already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// The VI, which may be gone.
    pub vi: ViHandle,
    /// Its receive queue completed something, else its send queue.
    pub recv_queue: bool,
}

/// A connection request that was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectIndication {
    /// The client's name for the connection: its host, and the discriminator it gave.
    pub remote: NetAddress,
    /// Attributes of the client's VI; without a tag.
    pub attributes: ViAttributes,
    /// To accept or reject it.
    pub conn: ConnHandle,
}

/// An asynchronous error (VIPL 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorDescriptor {
    /// The NIC.
    pub nic: NicHandle,
    /// The VI, if it is about one.
    pub vi: Option<ViHandle>,
    /// The completion queue, if it is about one.
    pub cq: Option<CqHandle>,
    /// The descriptor, or null.
    pub descriptor: *mut RawDescriptor,
    /// What was being done: the completed-operation code of a status word.
    pub op_code: u32,
    /// What it is about.
    pub resource: ResourceCode,
    /// Which error.
    pub code: ErrorCode,
}

/// A consumer's error handler; called on a thread of the NIC.
pub type ErrorHandler = Box<dyn FnMut(&ErrorDescriptor) + Send>;
