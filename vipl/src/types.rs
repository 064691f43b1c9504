//! Parameters and results of the calls.

use core::fmt;
use core::time::Duration;

pub use vi_core::descriptor::RawDescriptor;
pub use vi_core::events::{ErrorCode, ResourceCode};
pub use vi_core::reap::CqEntry;
pub use vi_types::{
    ConnHandle, CqHandle, Discriminator, HostAddress, MemAttributes, NetAddress, NicHandle,
    PtagHandle, ReliabilityLevel, ViAttributes, ViHandle, ViInfo, ViState,
};

/// Errors of the calls, with the values of `VIP_RETURN` (VIPL 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum VipError {
    /// Nothing has completed yet.
    NotDone = 1,
    /// A parameter or handle was invalid.
    InvalidParameter = 2,
    /// Not enough resources, or a conflict over one.
    ErrorResource = 3,
    /// The timeout has expired.
    Timeout = 4,
    /// The peer rejected the connection.
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
    /// The name or address is unknown to the name service, or the name service is not started.
    ErrorNameservice = 13,
    /// The host has no listener for this discriminator.
    NoMatch = 14,
    /// The host cannot be reached.
    NotReachable = 15,
}

impl fmt::Display for VipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDone => "nothing has completed yet",
            Self::InvalidParameter => "a parameter or handle is invalid",
            Self::ErrorResource => "not enough resources, or the resource is in use",
            Self::Timeout => "timed out",
            Self::Reject => "the peer rejected the connection",
            Self::InvalidReliabilityLevel => "the reliability level is not supported or differs",
            Self::InvalidMtu => "the maximum transfer size is not supported or differs",
            Self::InvalidQos => "the quality of service is not supported or differs",
            Self::InvalidPtag => "the protection tag is invalid",
            Self::InvalidRdmaRead => "RDMA reads are not supported at this reliability level",
            Self::DescriptorError => "a descriptor completed with an error, or none is posted",
            Self::InvalidState => "invalid in the state of the VI",
            Self::ErrorNameservice => "unknown to the name service, or it is not started",
            Self::NoMatch => "the host has no listener for this discriminator",
            Self::NotReachable => "the host cannot be reached",
        })
    }
}

impl std::error::Error for VipError {}

/// Result of a call.
pub type Result<T> = core::result::Result<T, VipError>;

/// Handle of a registered memory region; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub u32);

/// Attributes of a NIC (VIPL 4.5). Every number fits a signed 32-bit integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttributes {
    /// Name.
    pub name: String,
    /// Version of the hardware; always 0.
    pub hardware_version: u32,
    /// Version of this provider: major 8 bits, minor 8, patch 8.
    pub provider_version: u32,
    /// Length of a host address in bytes.
    pub nic_address_len: u16,
    /// Host address of the NIC.
    pub local_nic_address: &'static [u8; 16],
    /// Whether any call may be made from any thread.
    pub thread_safe: bool,
    /// Maximum length of a discriminator in bytes.
    pub max_discriminator_len: u16,
    /// Maximum total of registered memory in bytes.
    pub max_register_bytes: u64,
    /// Maximum number of registered regions.
    pub max_register_regions: u64,
    /// Maximum size of a region in bytes.
    pub max_register_block_bytes: u64,
    /// Maximum number of VIs.
    pub max_vi: u64,
    /// Maximum number of descriptors on a work queue.
    pub max_descriptors_per_queue: u64,
    /// Maximum number of segments of a descriptor, including the address segment.
    pub max_segments_per_desc: u64,
    /// Maximum number of completion queues.
    pub max_cq: u64,
    /// Maximum number of entries of a completion queue.
    pub max_cq_entries: u64,
    /// Maximum length of a message in bytes.
    pub max_transfer_size: u64,
    /// Maximum payload of a frame in bytes.
    pub native_mtu: u64,
    /// Maximum number of protection tags.
    pub max_ptags: u64,
    /// Bits of the supported reliability levels.
    pub reliability_level_support: u16,
    /// Bits of the levels with RDMA read.
    pub rdma_read_support: u16,
}

/// Timeout of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Does not wait.
    Immediate,
    /// Waits for at most this duration.
    After(Duration),
    /// Waits without a limit.
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

/// Result of polling a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The descriptor at the head had completed and was removed.
    Completed {
        /// The descriptor, owned by the program again.
        descriptor: *mut RawDescriptor,
        /// Its status word, as in its control segment.
        status: u32,
    },
    /// The queue is empty.
    Empty,
    /// The descriptor at the head has not completed.
    NotDone,
}

/// A completed descriptor, removed from its queue for a notify handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The descriptor, owned by the program again.
    pub descriptor: *mut RawDescriptor,
    /// Its status word, as in its control segment.
    pub status: u32,
}

/// A pending connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectIndication {
    /// The client's local address: host and discriminator.
    pub remote: NetAddress,
    /// Attributes of the client's VI; without a tag.
    pub attributes: ViAttributes,
    /// The handle for accept and reject.
    pub conn: ConnHandle,
}

/// An asynchronous error (VIPL 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorDescriptor {
    /// The NIC.
    pub nic: NicHandle,
    /// The VI concerned, if any.
    pub vi: Option<ViHandle>,
    /// The completion queue concerned, if any.
    pub cq: Option<CqHandle>,
    /// The descriptor concerned, or null.
    pub descriptor: *mut RawDescriptor,
    /// The operation: the completed-operation code of a status word.
    pub op_code: u32,
    /// The kind of object concerned.
    pub resource: ResourceCode,
    /// The error code.
    pub code: ErrorCode,
}

/// A handler of asynchronous errors; called on the NIC's error thread.
pub type ErrorHandler = Box<dyn FnMut(&ErrorDescriptor) + Send>;
