//! Errors of the calls of a VI provider.

use core::fmt;

use crate::ResourceError;

/// Error of a call, by the terms of the VIPL guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CallError {
    /// A parameter or handle is not valid.
    InvalidParameter,
    /// A limit was reached, or the object is in use.
    Resource(ResourceError),
    /// The VI is in the wrong state.
    InvalidState,
    /// The reliability level is not supported, or differs from the peer's.
    ReliabilityLevel,
    /// The maximum transfer size is not supported, or differs.
    MaxTransferSize,
    /// The quality of service is not supported, or differs.
    Qos,
    /// The protection tag is not valid.
    Ptag,
    /// RDMA reads are not supported at this reliability level.
    RdmaRead,
    /// The call timed out.
    Timeout,
    /// The peer's consumer rejected the request.
    Rejected,
    /// No program listens with the discriminator.
    NoMatch,
    /// The host cannot be reached, or all of its ports were lost.
    NotReachable,
    /// Nothing is posted.
    QueueEmpty,
}

impl CallError {
    /// No handle, file descriptor or memory is left for a connection, on this host or at the peer.
    pub const NO_RESOURCES: Self = Self::Resource(ResourceError::Connection);
}

/// Result of a call.
pub type Outcome<T> = Result<T, CallError>;

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidParameter => "a parameter or handle is not valid",
            Self::Resource(error) => return error.fmt(f),
            Self::InvalidState => "the VI is in the wrong state",
            Self::ReliabilityLevel => "the reliability level is not supported, or differs",
            Self::MaxTransferSize => "the maximum transfer size is not supported, or differs",
            Self::Qos => "the quality of service is not supported, or differs",
            Self::Ptag => "the protection tag is not valid",
            Self::RdmaRead => "RDMA reads are not supported at this reliability level",
            Self::Timeout => "timed out",
            Self::Rejected => "rejected by the peer",
            Self::NoMatch => "no program listens there",
            Self::NotReachable => "the host cannot be reached",
            Self::QueueEmpty => "nothing is posted",
        })
    }
}

impl From<ResourceError> for CallError {
    fn from(error: ResourceError) -> Self {
        Self::Resource(error)
    }
}
