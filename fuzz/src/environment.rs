//! Model of the environment of a connection state machine: its TCP connection and its consumer.
//!
//! It is independent of the machine's state. An invalid action, or one that leaks a TCP connection
//! or a request, is an error of the machine.

/// State of the TCP connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Being established.
    Connecting,
    /// Established; nothing was sent.
    Established,
    /// Established; a Connect Request was sent.
    RequestSent,
}

/// Environment of the initiator of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The TCP connection, if there is one.
    pub tcp: Option<Tcp>,
    /// The consumer waits for the result of its request.
    pub waiting: bool,
    /// The consumer was notified that its VI is connected, and has not disconnected.
    pub connected: bool,
}

impl Environment {
    /// True if a Connect Request was sent on the TCP connection and has no response yet.
    #[must_use]
    pub fn is_request_pending(&self) -> bool {
        self.waiting && self.tcp == Some(Tcp::RequestSent)
    }

    /// Applies a close by the peer, or a failure of the TCP connection.
    pub fn lose_tcp(&mut self) {
        self.tcp = None;
        self.connected = false;
    }

    /// Applies a disconnect by the consumer, which also cancels its request.
    pub fn disconnect(&mut self) {
        self.waiting = false;
        self.connected = false;
    }

    /// Starts a TCP connection, for a waiting consumer.
    pub fn start_tcp(&mut self) {
        assert!(self.waiting, "no consumer waits for a connection");
        assert_eq!(self.tcp, None, "a TCP connection exists");
        self.tcp = Some(Tcp::Connecting);
    }

    /// Sends a Connect Request, once on a TCP connection.
    pub fn send_request(&mut self) {
        assert!(self.waiting, "no consumer waits for a connection");
        assert_eq!(self.tcp, Some(Tcp::Established));
        self.tcp = Some(Tcp::RequestSent);
    }

    /// Sends a second Connect Request, in response to a challenge.
    pub fn answer_challenge(&mut self) {
        assert!(self.is_request_pending(), "no request is pending");
    }

    /// Notifies the consumer that its request was accepted.
    pub fn notify_connected(&mut self) {
        assert!(self.is_request_pending(), "connected without an accept");
        self.waiting = false;
        self.connected = true;
    }

    /// Notifies the consumer that its request failed.
    pub fn notify_failed(&mut self) {
        assert!(self.waiting, "no consumer waits for the result");
        self.waiting = false;
        self.tcp = None;
    }

    /// Closes the TCP connection of an ended connection, or of a request.
    pub fn close_tcp(&mut self) {
        assert!(!self.connected, "closed under a connection");
        self.tcp = None;
    }
}
