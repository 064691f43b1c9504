//! What a machine of connection establishment acts on: a TCP connection, and a consumer.
//!
//! It knows no state of the machine. An action that cannot be done, or leaves something open
//! that nobody closes any more, is an error of the machine.

/// The TCP connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// It is being set up.
    SettingUp,
    /// It is there, and nothing was sent on it.
    Established,
    /// It is there, and a Connect Request was sent.
    Asked,
}

/// Around the end that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The TCP connection, if there is one.
    pub tcp: Option<Tcp>,
    /// Waits the consumer for the outcome of its request?
    pub waiting: bool,
    /// Was the consumer told that its VI is connected, and has not ended it?
    pub connected: bool,
}

impl World {
    /// Was a Connect Request sent on the TCP connection, and not answered?
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.waiting && self.tcp == Some(Tcp::Asked)
    }

    /// The other end closed, or the connection broke: there is none any more.
    pub fn lose_tcp(&mut self) {
        self.tcp = None;
        self.connected = false;
    }

    /// The consumer has enough.
    pub fn give_up(&mut self) {
        self.waiting = false;
        self.connected = false;
    }

    /// Sets up a TCP connection, for who waits for one.
    pub fn set_up(&mut self) {
        assert!(self.waiting, "nobody waits for a connection");
        assert_eq!(self.tcp, None, "there is one");
        self.tcp = Some(Tcp::SettingUp);
    }

    /// Sends a Connect Request, once on a TCP connection.
    pub fn send_request(&mut self) {
        assert!(self.waiting, "nobody asked");
        assert_eq!(self.tcp, Some(Tcp::Established));
        self.tcp = Some(Tcp::Asked);
    }

    /// Sends another Connect Request behind the first, to answer a challenge.
    pub fn ask_again(&mut self) {
        assert!(self.is_asked(), "nothing was challenged");
    }

    /// Tells the consumer that its request was accepted.
    pub fn tell_connected(&mut self) {
        assert!(self.is_asked(), "connected without an accept");
        self.waiting = false;
        self.connected = true;
    }

    /// Tells the consumer that it was not.
    pub fn tell_failed(&mut self) {
        assert!(self.waiting, "nobody waits for the outcome");
        self.waiting = false;
        self.tcp = None;
    }

    /// Closes the TCP connection under a connection that has ended, or a request.
    pub fn close(&mut self) {
        assert!(!self.connected, "closed under a connection");
        self.tcp = None;
    }
}
