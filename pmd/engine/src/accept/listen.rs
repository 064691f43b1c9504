//! Listeners: consumers that wait for a connection request.

use vi_types::{ConnId, Discriminator};

/// A consumer that waits for one request.
#[derive(Debug)]
struct Listener {
    id: u64,
    discriminator: Discriminator,
    matched: Option<ConnId>,
}

/// The listeners of an N_Port, in the order in which they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    next: u64,
}

impl Listeners {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Adds a listener. Returns its number.
    pub(super) fn add(&mut self, discriminator: Discriminator) -> u64 {
        self.next += 1;
        self.listeners.push(Listener {
            id: self.next,
            discriminator,
            matched: None,
        });
        self.next
    }

    /// Returns the request that a listener has matched.
    pub(super) fn matched(&self, id: u64) -> Option<ConnId> {
        self.listeners.iter().find(|l| l.id == id)?.matched
    }

    /// Removes a listener. Returns its discriminator and the request that it has matched.
    pub(super) fn remove(&mut self, id: u64) -> Option<(Discriminator, Option<ConnId>)> {
        let at = self.listeners.iter().position(|l| l.id == id)?;
        let removed = self.listeners.remove(at);
        Some((removed.discriminator, removed.matched))
    }

    /// Reports whether a listener waits for this discriminator.
    pub(super) fn has(&self, discriminator: &Discriminator) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|l| l.matched.is_none() && l.discriminator == *discriminator)
    }

    /// Gives a request to the listener that waits longest for this discriminator. Returns its
    /// number.
    pub(super) fn give(&mut self, discriminator: &Discriminator, conn: ConnId) -> Option<u64> {
        let waits = |l: &&mut Listener| l.matched.is_none() && l.discriminator == *discriminator;
        let listener = self.listeners.iter_mut().find(waits)?;
        listener.matched = Some(conn);
        Some(listener.id)
    }
}
