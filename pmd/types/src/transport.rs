//! What the transports of a NIC share: connection requests, and the result of sending.

use crate::{NetAddress, ViParams};

/// Identifies a connection request of a peer that is pending for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// Returns the ID of the request in this slot, of this generation.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns its slot.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns its generation, which distinguishes requests that used the same slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// A matched connection request, as reported to the consumer (VIPL 3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indication {
    /// ID to accept or reject it with.
    pub conn: ConnId,
    /// Local address of the client for the connection.
    pub remote: NetAddress,
    /// Attributes of the client's VI.
    pub attributes: ViParams,
}

/// A request of the consumer to connect a VI (VIPL 3.3.4, 3.3.6).
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// Local address of the connection.
    pub local: &'a NetAddress,
    /// Remote host and discriminator.
    pub remote: &'a NetAddress,
    /// Timeout in nanoseconds; `None`: no timeout.
    pub timeout_ns: Option<u64>,
}

/// Why a transport stopped to send the descriptors of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing is left to send.
    Idle,
    /// The budget is used up; there is more to send.
    More,
    /// The port, the socket or the OX_ID pool has no room; there is more to send.
    Blocked,
}
