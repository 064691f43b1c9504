//! Connection state machines [VI/TCP 4]: states, events and actions of connection establishment.
//!
//! | module | machine |
//! | --- | --- |
//! | [`initiator`] | sends a Connect Request: the draft's active side [VI/TCP 4.2] |
//! | [`responder`] | receives a Connect Request: the draft's passive side [VI/TCP 4.3] |
//! | [`peer`] | sends and receives Connect Requests: peer to peer [VI/TCP 4] |
//!
//! A state is a value: `on` returns the next state and the one action of the transition. An event
//! that is invalid in a state leaves it unchanged and returns `Unexpected`. Events concern the
//! current TCP connection only: the caller passes none of an abandoned connection.

pub mod initiator;
pub mod peer;
pub mod responder;

use core::fmt;

pub use initiator::{InitiatorAction, InitiatorEvent, InitiatorState};
pub use peer::{PeerAction, PeerEvent, PeerName, PeerState, Precedence, precedence};
pub use responder::{ResponderAction, ResponderEvent, ResponderState};

/// The reason why a connection request of the consumer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No TCP connection could be set up.
    Tcp,
    /// A Connect Reject was received.
    Rejected,
    /// A Connect No Match was received: the peer has no listener for the discriminator.
    NoMatch,
    /// The consumer's timeout expired.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "no TCP connection",
            Self::Rejected => "rejected",
            Self::NoMatch => "no listener",
            Self::Timeout => "timed out",
        })
    }
}

#[cfg(test)]
mod tests;
