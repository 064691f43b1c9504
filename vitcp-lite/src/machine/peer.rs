//! State machine of peer-to-peer connection establishment [VI/TCP 4].
//!
//! Both peers send a Connect Request. In a simultaneous open only one request may remain: the peer
//! with the lexicographically lower address yields, and continues as the responder.

use super::Failure;
use crate::ce::Discriminator;

/// Address of a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Its IP address, in IPv6 form.
    pub host: [u8; 16],
    /// The source TCP port of its request.
    pub port: u16,
    /// The VI of the host; not compared.
    pub discriminator: Discriminator,
}

/// Which of two requests remains in a simultaneous open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precedence {
    /// The peer's; our own is abandoned.
    YieldToPeer,
    /// Our own; the peer's is refused.
    KeepOwn,
}

/// Returns which request remains in a simultaneous open: that of the lexicographically higher IP
/// address. Between two of one host, which the draft does not define, the higher TCP port. Both are
/// equal only for a connection to itself.
#[must_use]
pub fn precedence(ours: PeerName, theirs: PeerName) -> Precedence {
    if (ours.host, ours.port) < (theirs.host, theirs.port) {
        Precedence::YieldToPeer
    } else {
        Precedence::KeepOwn
    }
}

/// State of a peer's connection request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerState {
    /// No request.
    #[default]
    Disconnected,
    /// The TCP connection is being set up.
    Connecting,
    /// A Connect Request was sent.
    PendingAccept,
    /// The peer was not available: the request is retried after an interval.
    Waiting,
    /// The VIs are connected.
    Connected,
}

impl PeerState {
    /// All variants.
    pub const ALL: [PeerState; 5] = [
        PeerState::Disconnected,
        PeerState::Connecting,
        PeerState::PendingAccept,
        PeerState::Waiting,
        PeerState::Connected,
    ];
}

/// Event of a peer's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerEvent {
    /// The consumer requests a connection.
    Request,
    /// The TCP connection could not be set up.
    TcpFailed,
    /// The TCP connection could not be set up yet: the peer does not respond, and may later.
    TcpNotYet,
    /// The TCP connection is established.
    TcpEstablished,
    /// The peer closed the TCP connection, or it broke.
    TcpClosed,
    /// A Connect Accept was received.
    Accept,
    /// A Connect Reject was received that is not a challenge.
    Reject,
    /// A Connect Reject was received that is a challenge, the first on this TCP connection, and a
    /// response is available.
    Challenge,
    /// A Connect No Match was received.
    NoMatch,
    /// The consumer's timeout expired.
    Timeout,
    /// The consumer disconnects, or cancels its request.
    Disconnect,
    /// The retry interval expired.
    Retry,
    /// A matching Connect Request of the peer was received on a TCP connection of its own.
    SimultaneousOpen(Precedence),
}

impl PeerEvent {
    /// All variants.
    pub const ALL: [PeerEvent; 14] = [
        PeerEvent::Request,
        PeerEvent::TcpFailed,
        PeerEvent::TcpNotYet,
        PeerEvent::TcpEstablished,
        PeerEvent::TcpClosed,
        PeerEvent::Accept,
        PeerEvent::Reject,
        PeerEvent::Challenge,
        PeerEvent::NoMatch,
        PeerEvent::Timeout,
        PeerEvent::Disconnect,
        PeerEvent::Retry,
        PeerEvent::SimultaneousOpen(Precedence::YieldToPeer),
        PeerEvent::SimultaneousOpen(Precedence::KeepOwn),
    ];
}

/// Action of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAction {
    /// None: the event is expected.
    None,
    /// Set up a TCP connection.
    SetUpTcp,
    /// Send a Connect Request.
    SendRequest,
    /// Send the next Connect Request, with the response to the challenge, on the same TCP connection.
    AnswerChallenge,
    /// Close the TCP connection, if there is one, or stop setting it up.
    CloseTcp,
    /// Report to the consumer that its VI is connected.
    Connected,
    /// Close the TCP connection if there is one, or stop setting it up; report the failure to the
    /// consumer.
    Failed(Failure),
    /// Close our own TCP connection if there is one, or stop setting it up; send a Connect
    /// Accept on the peer's, and report to the consumer that its VI is connected.
    AcceptTheirs,
    /// Send a Connect No Match on the peer's TCP connection, and close that one.
    RefuseTheirs,
    /// None, and count it: the event is invalid in this state.
    Unexpected,
}

impl PeerState {
    /// Returns the next state and the action for `event`.
    ///
    /// The draft has no diagram of it: this is that of [VI/TCP 4.2], with Waiting for the
    /// repeated attempts of [VI/TCP 4]. Not shown: a TCP connection that cannot be set up yet leads
    /// from Connecting to Waiting.
    ///
    /// ```text
    ///          +----------------+  (Legend: event - action)
    ///          |  Disconnected  | <-----------------------------------+
    ///          +----------------+                                     |
    ///                  |  VipConnectPeerRequest                       |
    ///                  |  - set up TCP connection                     |
    ///                 \|/                                             |
    ///          +----------------+  TCP setup fail, Timeout, Disconnect|
    ///   +----->|   Connecting   |>------------------------------------+
    ///   |      +----------------+                                     |
    ///   | Retry   |    | TCP connection established                   |
    ///   | - set   |    | - Connect Request                            |
    ///   | up TCP  |   \|/                       +-----------+ Timeout |
    ///   +---------|----|-----------------------<|  Waiting  |>--------+
    ///             |    |                        +-----------+         |
    ///             |    |   No Match, TCP closes   ^      | request    |
    ///             |  +----------------+ - close   |      | of peer    |
    ///             |  | Pending Accept |>----------+      | - accept   |
    ///             |  +----------------+ Reject, Timeout  |   theirs   |
    ///             |    |    |       +>-------------------|------------+
    ///   Yield     |    |    | Connect Accept             |            |
    ///   - accept \|/  \|/  \|/                          \|/           |
    ///     theirs +---------------------------------------------+      |
    ///            |                  Connected                  |>-----+
    ///            +---------------------------------------------+
    ///                                   Vip or TCP disconnect - close
    /// ```
    ///
    /// In a simultaneous open the peer's request is accepted where ours yields; where ours remains,
    /// the peer's is refused and the state does not change. A challenge in Pending Accept gets a
    /// response in that state.
    #[must_use]
    pub const fn on(self, event: PeerEvent) -> (PeerState, PeerAction) {
        use PeerAction as A;
        use PeerEvent as E;
        use PeerState as S;
        use Precedence::{KeepOwn, YieldToPeer};
        match (self, event) {
            (S::Disconnected, E::Request) => (S::Connecting, A::SetUpTcp),

            (S::Connecting, E::TcpEstablished) => (S::PendingAccept, A::SendRequest),
            (S::Connecting, E::TcpFailed | E::TcpClosed) => {
                (S::Disconnected, A::Failed(Failure::Tcp))
            }

            (S::Connecting, E::TcpNotYet) => (S::Waiting, A::None),

            (S::PendingAccept, E::Accept) => (S::Connected, A::Connected),
            (S::PendingAccept, E::Reject) => (S::Disconnected, A::Failed(Failure::Rejected)),
            (S::PendingAccept, E::Challenge) => (S::PendingAccept, A::AnswerChallenge),
            (S::PendingAccept, E::NoMatch | E::TcpClosed) => (S::Waiting, A::CloseTcp),

            (S::Waiting, E::Retry) => (S::Connecting, A::SetUpTcp),
            (S::Disconnected | S::Waiting, E::TcpClosed) => (self, A::None),

            (S::Connecting | S::PendingAccept, E::SimultaneousOpen(KeepOwn)) => {
                (self, A::RefuseTheirs)
            }
            (S::Connecting | S::PendingAccept, E::SimultaneousOpen(YieldToPeer))
            | (S::Waiting, E::SimultaneousOpen(_)) => (S::Connected, A::AcceptTheirs),

            (S::Connecting | S::PendingAccept | S::Waiting, E::Timeout) => {
                (S::Disconnected, A::Failed(Failure::Timeout))
            }
            (S::Connecting | S::PendingAccept | S::Waiting, E::Disconnect)
            | (S::Connected, E::Disconnect | E::TcpClosed) => (S::Disconnected, A::CloseTcp),

            (state, _) => (state, A::Unexpected),
        }
    }
}
