//! Connection establishment [VI/TCP 4]: what happens in which state, and what is to be done.
//!
//! | room | who |
//! | --- | --- |
//! | [`active`] | asks for a connection [VI/TCP 4.2] |
//! | [`passive`] | is asked [VI/TCP 4.3] |
//! | [`peer`] | asks and is asked, peer to peer [VI/TCP 4] |
//!
//! A machine is a value: `on` gives the next one and the one action that belongs to the
//! step. An event that makes no sense in a state leaves it as it is and gives `Unexpected`.
//! Events are of the TCP connection in use: of one that was given up, nothing is told.

pub mod active;
pub mod passive;
pub mod peer;

use core::fmt;

pub use active::{ActiveAction, ActiveEvent, ActiveState};
pub use passive::{PassiveAction, PassiveEvent, PassiveState};
pub use peer::{PeerAction, PeerEvent, PeerName, PeerState, Standing, standing};

/// Why a consumer's request for a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No TCP connection could be set up.
    Tcp,
    /// A Connect Reject came.
    Rejected,
    /// A Connect No Match came: nobody waits there.
    NoMatch,
    /// The consumer's time is over.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "no TCP connection",
            Self::Rejected => "rejected",
            Self::NoMatch => "nobody waits for it",
            Self::Timeout => "timed out",
        })
    }
}

#[cfg(test)]
mod tests;
