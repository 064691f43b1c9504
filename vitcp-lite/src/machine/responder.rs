//! State machine of the responder to a Connect Request, the draft's passive side [VI/TCP 4.3].

/// State of an incoming TCP connection. Listening is a state of the port, not of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResponderState {
    /// Accepted; no segment received yet.
    #[default]
    Incoming,
    /// A challenge was sent; the next Connect Request is awaited.
    Challenged,
    /// A Connect Request was received; a listener for it is looked up.
    Matching,
    /// The request was reported to the consumer that listens; its decision is awaited.
    PendingAccept,
    /// The VIs are connected.
    Connected,
    /// Closed.
    Disconnected,
}

impl ResponderState {
    /// All variants.
    pub const ALL: [ResponderState; 6] = [
        ResponderState::Incoming,
        ResponderState::Challenged,
        ResponderState::Matching,
        ResponderState::PendingAccept,
        ResponderState::Connected,
        ResponderState::Disconnected,
    ];
}

/// Event of an incoming TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponderEvent {
    /// A Connect Request was received that needs no (further) proof.
    Request,
    /// The first Connect Request was received, and its sender must prove that it has the key.
    ProofRequired,
    /// A Connect Request was received without a valid proof, or from a host without a key.
    ProofFailed,
    /// No listener matches the called discriminator.
    NoMatch,
    /// A listener matches.
    Match,
    /// The consumer accepts.
    Accept,
    /// The consumer rejects.
    Reject,
    /// The timeout for a Connect Request expired.
    Timeout,
    /// The peer closed the TCP connection, or it broke.
    TcpClosed,
    /// The consumer disconnects.
    Disconnect,
}

impl ResponderEvent {
    /// All variants.
    pub const ALL: [ResponderEvent; 10] = [
        ResponderEvent::Request,
        ResponderEvent::ProofRequired,
        ResponderEvent::ProofFailed,
        ResponderEvent::NoMatch,
        ResponderEvent::Match,
        ResponderEvent::Accept,
        ResponderEvent::Reject,
        ResponderEvent::Timeout,
        ResponderEvent::TcpClosed,
        ResponderEvent::Disconnect,
    ];
}

/// Action of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponderAction {
    /// None: the event is expected.
    None,
    /// Look up a listener for the called discriminator.
    Match,
    /// Report the request to the consumer that listens.
    Indicate,
    /// Send a Connect Reject that is a challenge; the TCP connection stays open.
    SendChallenge,
    /// Send a Connect No Match, then close the TCP connection.
    SendNoMatchAndClose,
    /// Send a Connect Reject, then close the TCP connection.
    SendRejectAndClose,
    /// Send a Connect Accept.
    SendAccept,
    /// Close the TCP connection.
    CloseTcp,
    /// None, and count it: the event is invalid in this state.
    Unexpected,
}

impl ResponderState {
    /// Returns the next state and the action for `event`.
    ///
    /// The diagram of [VI/TCP 4.3], with additions in brackets: a TCP connection can close at any
    /// time, and a sender may be challenged before its request is matched.
    ///
    /// ```text
    ///   incoming TCP connection - accept TCP connection
    ///          |          (Legend: event - action)
    ///         \|/
    ///  +----------------+  Timeout - close TCP connection           +--------------+
    ///  |    Incoming    |>---------------------------------------->>| Disconnected |
    ///  +----------------+  TCP connection closes                    +--------------+
    ///     |       |  [no key for it - Connect Reject; close]               ^
    ///     |       |                                                        |
    ///     |       |  [Connect Request without proof - challenge]           |
    ///     |      \|/                                                       |
    ///     |   +------------+  [Timeout, TCP closes - close;                |
    ///     |   | Challenged |>----------------------------------------------+
    ///     |   +------------+  no valid proof - Connect Reject; close]      |
    ///     |       |                                                        |
    ///     |       |  [Connect Request with proof]                          |
    ///     |       |                                                        |
    ///     |  incoming Connect Request                                      |
    ///    \|/     \|/                                                       |
    ///  +----------------+  No matching discriminator [TCP closes]          |
    ///  |    Matching    |>-------------------------------------------------+
    ///  +----------------+  - send Connect No Match; close TCP connection   |
    ///          |                                                           |
    ///          |  discriminator match                                      |
    ///         \|/                                                          |
    ///  +----------------+  VipConnectReject [TCP closes]                   |
    ///  | Pending Accept |>-------------------------------------------------+
    ///  +----------------+  - Connect Reject; close TCP connection          |
    ///          |                                                           |
    ///          |  VipConnectAccept - Connect Accept                        |
    ///         \|/                                                          |
    ///  +----------------+  Vip or TCP disconnect - close TCP connection    |
    ///  |   Connected    |>-------------------------------------------------+
    ///  +----------------+
    /// ```
    #[must_use]
    pub const fn on(self, event: ResponderEvent) -> (ResponderState, ResponderAction) {
        use ResponderAction as A;
        use ResponderEvent as E;
        use ResponderState as S;
        match (self, event) {
            (S::Incoming | S::Challenged, E::Request) => (S::Matching, A::Match),
            (S::Incoming, E::ProofRequired) => (S::Challenged, A::SendChallenge),
            (S::Incoming | S::Challenged, E::ProofFailed) => {
                (S::Disconnected, A::SendRejectAndClose)
            }
            (S::Incoming | S::Challenged, E::Timeout) => (S::Disconnected, A::CloseTcp),

            (S::Matching, E::NoMatch) => (S::Disconnected, A::SendNoMatchAndClose),
            (S::Matching, E::Match) => (S::PendingAccept, A::Indicate),

            (S::PendingAccept, E::Accept) => (S::Connected, A::SendAccept),
            (S::PendingAccept, E::Reject) => (S::Disconnected, A::SendRejectAndClose),

            (S::Connected, E::Disconnect) => (S::Disconnected, A::CloseTcp),

            (
                S::Incoming | S::Challenged | S::Matching | S::PendingAccept | S::Connected,
                E::TcpClosed,
            ) => (S::Disconnected, A::CloseTcp),
            (S::Disconnected, E::TcpClosed) => (S::Disconnected, A::None),

            (state, _) => (state, A::Unexpected),
        }
    }
}
