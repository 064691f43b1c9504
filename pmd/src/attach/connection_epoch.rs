//! The connection epoch of an attached VI: matches replies and errors with the connection that they belong to.
//!
//! Replies come over a socket and errors over the completion ring, so that one may overtake the other: an error may
//! be taken after its connection was ended and the next one established, and the reply that reports a connection
//! after the error that ended it. Both sides count the disconnects of a VI; an error carries the count.

/// The current connection of a VI: the number of disconnects before it, modulo 2^16.
#[derive(Debug, Default)]
pub(super) struct ConnectionEpoch {
    connection: u16,
    /// The last connection that an error ended.
    broken: Option<u16>,
    /// Disconnect calls in progress.
    disconnects: u32,
}

impl ConnectionEpoch {
    /// The number of the current or next connection.
    pub(super) fn connection(&self) -> u16 {
        self.connection
    }

    /// Notes an error of this connection; false if the connection was disconnected before.
    pub(super) fn set_broken_in(&mut self, connection: u16) -> bool {
        // The numbers wrap; an error is reported long before half of them are used.
        let is_old = connection.wrapping_sub(self.connection).cast_signed() < 0;
        if !is_old {
            self.broken = Some(connection);
        }
        !is_old
    }

    /// Notes an error of the current connection.
    pub(super) fn set_broken(&mut self) {
        self.broken = Some(self.connection);
    }

    /// True if an error ended the current connection.
    pub(super) fn is_broken(&self) -> bool {
        self.broken == Some(self.connection)
    }

    /// Notes that a disconnect call begins.
    pub(super) fn begin_disconnect(&mut self) {
        self.disconnects += 1;
    }

    /// Notes that a disconnect call has returned.
    pub(super) fn end_disconnect(&mut self) {
        self.disconnects = self.disconnects.saturating_sub(1);
    }

    /// True while a disconnect call is in progress.
    pub(super) fn is_disconnecting(&self) -> bool {
        self.disconnects > 0
    }

    /// Notes that the connection was disconnected.
    pub(super) fn advance(&mut self) {
        self.connection = self.connection.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_disconnected_connection_does_not_break_the_next_one() {
        let mut epoch = ConnectionEpoch {
            connection: u16::MAX,
            ..ConnectionEpoch::default()
        };
        assert!(epoch.set_broken_in(u16::MAX));
        assert!(epoch.is_broken());
        epoch.advance();
        assert!(!epoch.is_broken());
        assert!(!epoch.set_broken_in(u16::MAX));
        assert!(!epoch.is_broken());
        assert!(epoch.set_broken_in(0));
        assert!(epoch.is_broken());
    }

    #[test]
    fn error_that_overtakes_the_reply_to_a_disconnect_breaks_the_next_connection() {
        let mut epoch = ConnectionEpoch::default();
        epoch.begin_disconnect();
        assert!(epoch.set_broken_in(1), "of the next connection");
        assert!(!epoch.is_broken());
        epoch.end_disconnect();
        epoch.advance();
        assert!(epoch.is_broken());
    }
}
