//! An end that asks and is asked: peer to peer [VI/TCP 4].
//!
//! Both ends send a Connect Request. If the two cross, only one may stand: the end with
//! the lexicographically lower address concedes, and goes on as the passive one.

use super::Failure;
use crate::discriminator::Discriminator;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Its IP address, in IPv6 form.
    pub host: [u8; 16],
    /// The TCP port that its request comes from.
    pub port: u16,
    /// Which VI of the host; takes no part in the order.
    pub discriminator: Discriminator,
}

/// What becomes of our own request when the peer's crosses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It gives way to the peer's.
    Concede,
    /// It stays, and the peer's gives way.
    Stand,
}

/// Whose request stands when two cross: that of the lexicographically higher IP address.
/// Between two of one host, which the draft does not have, the higher TCP port. Equal in
/// both is only who talks to itself.
#[must_use]
pub fn standing(ours: PeerName, theirs: PeerName) -> Standing {
    if (ours.host, ours.port) < (theirs.host, theirs.port) {
        Standing::Concede
    } else {
        Standing::Stand
    }
}

/// Where a peer's request for a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerState {
    /// Nothing is asked for.
    #[default]
    Disconnected,
    /// The TCP connection is being set up.
    Connecting,
    /// A Connect Request was sent.
    PendingAccept,
    /// The other end was not there: it is asked again after a while.
    Waiting,
    /// The VIs are connected.
    Connected,
}

impl PeerState {
    /// All of them.
    pub const ALL: [PeerState; 5] = [
        PeerState::Disconnected,
        PeerState::Connecting,
        PeerState::PendingAccept,
        PeerState::Waiting,
        PeerState::Connected,
    ];
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerEvent {
    /// The consumer asks for a connection.
    Request,
    /// The TCP connection could not be set up.
    TcpFailed,
    /// The TCP connection could not be set up yet: the other end is not there, and may come.
    TcpNotYet,
    /// The TCP connection is there.
    TcpEstablished,
    /// The TCP connection was closed by the other end, or broke.
    TcpClosed,
    /// A Connect Accept came.
    Accept,
    /// A Connect Reject came that is no challenge.
    Reject,
    /// A Connect Reject came that is a challenge, the first on this TCP connection, and there is an
    /// answer to it.
    Challenge,
    /// A Connect No Match came.
    NoMatch,
    /// The consumer's time is over.
    Timeout,
    /// The consumer ends the connection, or gives its request up.
    Disconnect,
    /// The while is over: time to ask again.
    Retry,
    /// A Connect Request of the peer came in, on a TCP connection of its own, and matches.
    Crossed(Standing),
}

impl PeerEvent {
    /// All of them.
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
        PeerEvent::Crossed(Standing::Concede),
        PeerEvent::Crossed(Standing::Stand),
    ];
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAction {
    /// Nothing: it was to be expected.
    None,
    /// Set up a TCP connection.
    SetUpTcp,
    /// Send a Connect Request.
    SendRequest,
    /// Send the next Connect Request, with the answer to the challenge, on the same TCP connection.
    AnswerChallenge,
    /// Close the TCP connection, if there is one, or stop setting it up.
    CloseTcp,
    /// Tell the consumer that its VI is connected.
    Connected,
    /// Close the TCP connection if there is one, or stop setting it up; tell the consumer.
    Failed(Failure),
    /// Close our own TCP connection if there is one, or stop setting it up; send a Connect
    /// Accept on the peer's, and tell the consumer that its VI is connected.
    AcceptTheirs,
    /// Send a Connect No Match on the peer's TCP connection, and close that one.
    RefuseTheirs,
    /// Nothing, and count it: the event makes no sense here.
    Unexpected,
}

impl PeerState {
    /// What `event` makes of the state, and what is to be done.
    ///
    /// The draft has no diagram of it: it is that of [VI/TCP 4.2], with Waiting for the
    /// repeated attempts of [VI/TCP 4]. Not in the picture: a TCP connection that cannot be set up
    /// yet leads from Connecting to Waiting.
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
    ///   Concede   |    |    | Connect Accept             |            |
    ///   - accept \|/  \|/  \|/                          \|/           |
    ///     theirs +---------------------------------------------+      |
    ///            |                  Connected                  |>-----+
    ///            +---------------------------------------------+
    ///                                   Vip or TCP disconnect - close
    /// ```
    ///
    /// Where a request that crosses ours makes it concede, the peer's is accepted; where
    /// ours stands, the peer's is refused and nothing else changes. A challenge in Pending Accept is
    /// answered there.
    #[must_use]
    pub const fn on(self, event: PeerEvent) -> (PeerState, PeerAction) {
        use PeerAction as A;
        use PeerEvent as E;
        use PeerState as S;
        use Standing::{Concede, Stand};
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

            (S::Connecting | S::PendingAccept, E::Crossed(Stand)) => (self, A::RefuseTheirs),
            (S::Connecting | S::PendingAccept, E::Crossed(Concede))
            | (S::Waiting, E::Crossed(_)) => (S::Connected, A::AcceptTheirs),

            (S::Connecting | S::PendingAccept | S::Waiting, E::Timeout) => {
                (S::Disconnected, A::Failed(Failure::Timeout))
            }
            (S::Connecting | S::PendingAccept | S::Waiting, E::Disconnect)
            | (S::Connected, E::Disconnect | E::TcpClosed) => (S::Disconnected, A::CloseTcp),

            (state, _) => (state, A::Unexpected),
        }
    }
}
