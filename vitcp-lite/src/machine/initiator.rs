//! State machine of the initiator of a connection, the draft's active side [VI/TCP 4.2].

use super::Failure;

/// State of a connection request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InitiatorState {
    /// No request.
    #[default]
    Disconnected,
    /// The TCP connection is being set up.
    Connecting,
    /// A Connect Request was sent.
    PendingAccept,
    /// The VIs are connected.
    Connected,
}

impl InitiatorState {
    /// All variants.
    pub const ALL: [InitiatorState; 4] = [
        InitiatorState::Disconnected,
        InitiatorState::Connecting,
        InitiatorState::PendingAccept,
        InitiatorState::Connected,
    ];
}

/// Event of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InitiatorEvent {
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
}

impl InitiatorEvent {
    /// All variants.
    pub const ALL: [InitiatorEvent; 11] = [
        InitiatorEvent::Request,
        InitiatorEvent::TcpFailed,
        InitiatorEvent::TcpNotYet,
        InitiatorEvent::TcpEstablished,
        InitiatorEvent::TcpClosed,
        InitiatorEvent::Accept,
        InitiatorEvent::Reject,
        InitiatorEvent::Challenge,
        InitiatorEvent::NoMatch,
        InitiatorEvent::Timeout,
        InitiatorEvent::Disconnect,
    ];
}

/// Action of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InitiatorAction {
    /// None: the event is expected.
    None,
    /// Set up a TCP connection; a new one after a closed connection or a failed attempt.
    SetUpTcp,
    /// Send a Connect Request.
    SendRequest,
    /// Send the next Connect Request, with the response to the challenge, on the same TCP connection.
    AnswerChallenge,
    /// Close the TCP connection, or stop setting it up. No request of the consumer is pending.
    CloseTcp,
    /// Report to the consumer that its VI is connected.
    Connected,
    /// Close the TCP connection if there is one, or stop setting it up; report the failure to the
    /// consumer.
    Failed(Failure),
    /// None, and count it: the event is invalid in this state.
    Unexpected,
}

impl InitiatorState {
    /// Returns the next state and the action for `event`.
    ///
    /// The diagram of [VI/TCP 4.2], with additions in brackets: No Match is a failure of its own,
    /// the consumer's timeout and its disconnect also count in Connecting, a TCP connection that
    /// closes during its setup has failed, one that cannot be set up yet is retried, and a
    /// challenge gets a response.
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
    pub const fn on(self, event: InitiatorEvent) -> (InitiatorState, InitiatorAction) {
        use InitiatorAction as A;
        use InitiatorEvent as E;
        use InitiatorState as S;
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
