//! The end that asks [VI/TCP 4.2].

use super::Failure;

/// Where a request for a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActiveState {
    /// Nothing is asked for.
    #[default]
    Disconnected,
    /// The TCP connection is being set up.
    Connecting,
    /// A Connect Request was sent.
    PendingAccept,
    /// The VIs are connected.
    Connected,
}

impl ActiveState {
    /// All of them.
    pub const ALL: [ActiveState; 4] = [
        ActiveState::Disconnected,
        ActiveState::Connecting,
        ActiveState::PendingAccept,
        ActiveState::Connected,
    ];
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActiveEvent {
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
}

impl ActiveEvent {
    /// All of them.
    pub const ALL: [ActiveEvent; 11] = [
        ActiveEvent::Request,
        ActiveEvent::TcpFailed,
        ActiveEvent::TcpNotYet,
        ActiveEvent::TcpEstablished,
        ActiveEvent::TcpClosed,
        ActiveEvent::Accept,
        ActiveEvent::Reject,
        ActiveEvent::Challenge,
        ActiveEvent::NoMatch,
        ActiveEvent::Timeout,
        ActiveEvent::Disconnect,
    ];
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActiveAction {
    /// Nothing: it was to be expected.
    None,
    /// Set up a TCP connection, a new one if there was one or could not be one yet.
    SetUpTcp,
    /// Send a Connect Request.
    SendRequest,
    /// Send the next Connect Request, with the answer to the challenge, on the same TCP connection.
    AnswerChallenge,
    /// Close the TCP connection, or stop setting it up. No request of the consumer waits.
    CloseTcp,
    /// Tell the consumer that its VI is connected.
    Connected,
    /// Close the TCP connection if there is one, or stop setting it up; tell the consumer.
    Failed(Failure),
    /// Nothing, and count it: the event makes no sense here.
    Unexpected,
}

impl ActiveState {
    /// What `event` makes of the state, and what is to be done.
    ///
    /// The diagram of [VI/TCP 4.2]. In brackets what it does not have: No Match is an end
    /// of its own, the consumer's time and its change of mind count from the start, a TCP
    /// connection that closes while it is set up has failed, one that cannot be set up yet is
    /// set up again, and a challenge is answered.
    ///
    /// ```text
    ///          +----------------+  (Legend: event - action)
    ///          |  Disconnected  | <------------------------------+
    ///          +----------------+                                |
    ///                  |  VipConnectRequest                      |
    ///                  |  - set up TCP connection                |
    ///                 \|/                                        |
    ///          +----------------+  TCP set-up fails              |
    ///   +----->|   Connecting   |>-------------------------------+
    ///   |      +----------------+  [Timeout, Disconnect]         |
    ///   | TCP closes   |  TCP connection established             |
    ///   | - re-        |  - Connect Request                      |
    ///   | establish   \|/                                        |
    ///   |      +----------------+  Connect Reject or Timeout     |
    ///   +-----<| Pending Accept |>-------------------------------+
    ///          +----------------+  [No Match, Disconnect]        |
    ///            |   ^ |           - close TCP connection        |
    ///            +---+ | Connect Accept                          |
    ///      [Challenge  |                                         |
    ///      - Connect   |                                         |
    ///      Request]   \|/                                        |
    ///          +----------------+  Vip or TCP disconnect         |
    ///          |   Connected    |>-------------------------------+
    ///          +----------------+  - close TCP connection
    /// ```
    #[must_use]
    pub const fn on(self, event: ActiveEvent) -> (ActiveState, ActiveAction) {
        use ActiveAction as A;
        use ActiveEvent as E;
        use ActiveState as S;
        match (self, event) {
            (S::Disconnected, E::Request) => (S::Connecting, A::SetUpTcp),
            (S::Disconnected, E::TcpClosed) => (S::Disconnected, A::None),

            (S::Connecting, E::TcpEstablished) => (S::PendingAccept, A::SendRequest),
            (S::Connecting, E::TcpFailed | E::TcpClosed) => {
                (S::Disconnected, A::Failed(Failure::Tcp))
            }

            (S::Connecting, E::TcpNotYet) | (S::PendingAccept, E::TcpClosed) => {
                (S::Connecting, A::SetUpTcp)
            }
            (S::PendingAccept, E::Accept) => (S::Connected, A::Connected),
            (S::PendingAccept, E::Reject) => (S::Disconnected, A::Failed(Failure::Rejected)),
            (S::PendingAccept, E::Challenge) => (S::PendingAccept, A::AnswerChallenge),
            (S::PendingAccept, E::NoMatch) => (S::Disconnected, A::Failed(Failure::NoMatch)),

            (S::Connecting | S::PendingAccept, E::Timeout) => {
                (S::Disconnected, A::Failed(Failure::Timeout))
            }
            (S::Connecting | S::PendingAccept, E::Disconnect) => (S::Disconnected, A::CloseTcp),

            (S::Connected, E::Disconnect | E::TcpClosed) => (S::Disconnected, A::CloseTcp),

            (state, _) => (state, A::Unexpected),
        }
    }
}
