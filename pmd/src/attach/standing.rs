//! Where the library stands with a VI that the process has: at which of its connections.
//!
//! Answers and errors come by two ways, so that the one may overtake the other: an error may be
//! taken after its connection was ended and another one made, and the answer that a connection
//! is made after the error that ended it. Both sides count the disconnects of a VI; an error
//! says in which connection it happened.

/// The connections of a VI, by the number of disconnects before them.
#[derive(Debug, Default)]
pub(super) struct Standing {
    connection: u16,
    /// The last connection that broke.
    broken: Option<u16>,
    /// Calls that are ending a connection.
    leaving: u32,
}

impl Standing {
    /// The connection that the VI is at, or will have next.
    pub(super) fn connection(&self) -> u16 {
        self.connection
    }

    /// An error broke the VI in this connection; false if that was ended before.
    pub(super) fn broke_in(&mut self, connection: u16) -> bool {
        // They wrap; an error is told long before half of them are through.
        let is_old = connection.wrapping_sub(self.connection).cast_signed() < 0;
        if !is_old {
            self.broken = Some(connection);
        }
        !is_old
    }

    /// The VI breaks now.
    pub(super) fn breaks(&mut self) {
        self.broken = Some(self.connection);
    }

    /// Did it break in the connection that it is at?
    pub(super) fn is_broken(&self) -> bool {
        self.broken == Some(self.connection)
    }

    /// A call asks for the end of the connection.
    pub(super) fn begin_leaving(&mut self) {
        self.leaving += 1;
    }

    /// It was answered.
    pub(super) fn end_leaving(&mut self) {
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Is the connection being ended?
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// The connection was ended.
    pub(super) fn leave(&mut self) {
        self.connection = self.connection.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_connection_that_was_ended_breaks_nothing() {
        let mut standing = Standing {
            connection: u16::MAX,
            ..Standing::default()
        };
        assert!(standing.broke_in(u16::MAX));
        assert!(standing.is_broken());
        standing.leave();
        assert!(!standing.is_broken());
        assert!(!standing.broke_in(u16::MAX));
        assert!(!standing.is_broken());
        assert!(standing.broke_in(0));
        assert!(standing.is_broken());
    }

    #[test]
    fn an_error_that_overtakes_the_answer_to_a_disconnect_counts() {
        let mut standing = Standing::default();
        standing.begin_leaving();
        assert!(standing.broke_in(1), "of the connection after it");
        assert!(!standing.is_broken());
        standing.end_leaving();
        standing.leave();
        assert!(standing.is_broken());
    }
}
