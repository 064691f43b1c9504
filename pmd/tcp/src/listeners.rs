//! Consumers that wait for connection requests (VIPL 3.3.1).

use vi_types::{ConnId, Discriminator};

/// A consumer that waits for a connection request.
#[derive(Debug)]
struct Listener {
    number: u64,
    discriminator: Discriminator,
    matched: Option<ConnId>,
}

/// The listeners of a NIC, oldest first.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    list: Vec<Listener>,
    next: u64,
}

impl Listeners {
    /// Adds a listener for one request with this discriminator. Returns its number.
    pub(super) fn add(&mut self, discriminator: Discriminator) -> u64 {
        self.next += 1;
        self.list.push(Listener {
            number: self.next,
            discriminator,
            matched: None,
        });
        self.next
    }

    /// Removes a listener; returns its discriminator and the request that it matched.
    pub(super) fn remove(&mut self, number: u64) -> Option<(Discriminator, Option<ConnId>)> {
        let at = self.list.iter().position(|l| l.number == number)?;
        let removed = self.list.remove(at);
        Some((removed.discriminator, removed.matched))
    }

    /// Returns the request that a listener matched.
    pub(super) fn matched(&self, number: u64) -> Option<ConnId> {
        self.list.iter().find(|l| l.number == number)?.matched
    }

    /// Passes a request to the oldest free listener with its discriminator; returns its number, or `None` if there
    /// is none.
    pub(super) fn match_request(
        &mut self,
        discriminator: &Discriminator,
        conn: ConnId,
    ) -> Option<u64> {
        let listener = self
            .list
            .iter_mut()
            .find(|l| l.matched.is_none() && l.discriminator == *discriminator)?;
        listener.matched = Some(conn);
        Some(listener.number)
    }

    /// Iterates over the discriminators of the free listeners.
    pub(super) fn free(&self) -> impl Iterator<Item = &Discriminator> {
        let free = self.list.iter().filter(|l| l.matched.is_none());
        free.map(|l| &l.discriminator)
    }
}
