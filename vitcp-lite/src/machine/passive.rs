//! The end that is asked [VI/TCP 4.3].

/// Where an incoming TCP connection is. Listening is not a state of it, but of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PassiveState {
    /// It was accepted, and nothing has come yet.
    #[default]
    Incoming,
    /// Who asks was challenged, and has not asked again yet.
    Challenged,
    /// A Connect Request came, and somebody is looked for who waits for it.
    Matching,
    /// The consumer who waited was told.
    PendingAccept,
    /// The VIs are connected.
    Connected,
    /// It is over.
    Disconnected,
}

impl PassiveState {
    /// All of them.
    pub const ALL: [PassiveState; 6] = [
        PassiveState::Incoming,
        PassiveState::Challenged,
        PassiveState::Matching,
        PassiveState::PendingAccept,
        PassiveState::Connected,
        PassiveState::Disconnected,
    ];
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassiveEvent {
    /// A Connect Request came that says all that is wanted.
    Request,
    /// A Connect Request came, the first one, whose sender must prove itself.
    Unproven,
    /// A Connect Request came of somebody who has no key, or without the right proof.
    Disproved,
    /// Nobody waits for its discriminator.
    NoMatch,
    /// Somebody does.
    Match,
    /// The consumer accepts.
    Accept,
    /// The consumer rejects.
    Reject,
    /// No Connect Request came in time.
    Timeout,
    /// The TCP connection was closed by the other end, or broke.
    TcpClosed,
    /// The consumer ends the connection.
    Disconnect,
}

impl PassiveEvent {
    /// All of them.
    pub const ALL: [PassiveEvent; 10] = [
        PassiveEvent::Request,
        PassiveEvent::Unproven,
        PassiveEvent::Disproved,
        PassiveEvent::NoMatch,
        PassiveEvent::Match,
        PassiveEvent::Accept,
        PassiveEvent::Reject,
        PassiveEvent::Timeout,
        PassiveEvent::TcpClosed,
        PassiveEvent::Disconnect,
    ];
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassiveAction {
    /// Nothing: it was to be expected.
    None,
    /// Look for somebody who waits for the called discriminator.
    Match,
    /// Tell the consumer who waits.
    Indicate,
    /// Send a Connect Reject that is a challenge; the TCP connection stays.
    SendChallenge,
    /// Send a Connect No Match, then close the TCP connection.
    SendNoMatchAndClose,
    /// Send a Connect Reject, then close the TCP connection.
    SendRejectAndClose,
    /// Send a Connect Accept.
    SendAccept,
    /// Close the TCP connection.
    CloseTcp,
    /// Nothing, and count it: the event makes no sense here.
    Unexpected,
}

impl PassiveState {
    /// What `event` makes of the state, and what is to be done.
    ///
    /// The diagram of [VI/TCP 4.3]. In brackets what it does not have: a TCP connection
    /// can close at any time, and who asks may be challenged before anybody hears of it.
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
    ///     |   +------------+  no right proof - Connect Reject; close]      |
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
    pub const fn on(self, event: PassiveEvent) -> (PassiveState, PassiveAction) {
        use PassiveAction as A;
        use PassiveEvent as E;
        use PassiveState as S;
        match (self, event) {
            (S::Incoming | S::Challenged, E::Request) => (S::Matching, A::Match),
            (S::Incoming, E::Unproven) => (S::Challenged, A::SendChallenge),
            (S::Incoming | S::Challenged, E::Disproved) => (S::Disconnected, A::SendRejectAndClose),
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
