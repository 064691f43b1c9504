//! Descriptors and their completions, as far as protocols need them.

use crate::{Status, ViIndex};

/// Waiters to notify of an event that completes no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Waiters for the outcome of a connection call on this VI.
    Outcome(ViIndex),
    /// Waiters for a connection request on the listener of this number.
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

/// Kind of an operation, which determines the response that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A send.
    Send,
    /// An RDMA write, with or without immediate data.
    Write {
        /// It has immediate data, so it takes a receive descriptor.
        immediate: bool,
    },
    /// An RDMA read.
    Read,
}

impl OperationKind {
    /// Returns the kind of operation of a descriptor.
    #[inline]
    pub fn of(work: &SendWork) -> Self {
        match work.operation {
            Operation::Send => Self::Send,
            Operation::Write { .. } => Self::Write {
                immediate: work.immediate.is_some(),
            },
            Operation::Read { .. } => Self::Read,
        }
    }
}

/// Lengths of messages that can be sent without the send queue, unless something is ahead of them: below this many bytes,
/// 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneStepLimits {
    /// Of sends.
    pub sends_below_bytes: u32,
    /// Of RDMA operations.
    pub rdma_below_bytes: u32,
}

/// The most bytes of an RDMA operation without frames that are copied at a time: about a burst of frames.
pub const DIRECT_PART_BYTES: u32 = 64 * 1024;

/// Destination of a message that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDestination {
    /// A send into the claimed receive descriptor.
    Receive {
        /// Total length of the descriptor's data segments in bytes.
        capacity_bytes: u32,
    },
    /// An RDMA write into registered memory.
    Write {
        /// Address and memory handle of the message's first byte.
        target: (u64, u32),
        /// Length of the message in bytes.
        total_bytes: u32,
        /// Its immediate data took a receive descriptor.
        claimed: bool,
    },
    /// The message failed: the rest of it is discarded.
    Discard,
}

impl MessageDestination {
    /// Reports whether such a message takes a receive descriptor.
    #[inline]
    pub fn claims(&self) -> bool {
        match self {
            Self::Receive { .. } => true,
            Self::Write { claimed, .. } => *claimed,
            Self::Discard => false,
        }
    }

    /// Returns the completion of the receive descriptor that such a message took, when all of it is placed; `None` if
    /// it took none.
    #[inline]
    pub fn completion(&self, length_bytes: u32, immediate: Option<u32>) -> Option<Completion> {
        self.claims().then_some(Completion {
            remote_write: matches!(self, Self::Write { .. }),
            ..Completion::received(length_bytes, immediate)
        })
    }
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

impl Completion {
    /// The completion of a received message.
    #[inline]
    #[must_use]
    pub fn received(length_bytes: u32, immediate: Option<u32>) -> Self {
        Self {
            status: Status::OK,
            length_bytes,
            immediate,
            remote_write: false,
        }
    }
}
