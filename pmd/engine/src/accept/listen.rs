//! Listeners: consumers that wait for a connection request.

use fcvi_frame::reason::ConnectReason;
use vi_types::Discriminator;

use crate::accept::incoming::IncomingState;
use crate::accept::{ConnId, Indication};
use crate::engine::Engine;
use crate::engine_io::{EngineIo, Waiter};

/// A consumer that waits for one request.
#[derive(Debug)]
pub(crate) struct Listener {
    id: u64,
    discriminator: Discriminator,
    matched: Option<ConnId>,
}

impl Engine {
    /// Waits for one request with this discriminator (VIPL 3.3.1). Returns the listener number for
    /// [`Engine::take_indication`] and [`Engine::unlisten`].
    pub fn listen(&mut self, discriminator: Discriminator) -> u64 {
        self.next_listener += 1;
        self.listeners.push(Listener {
            id: self.next_listener,
            discriminator,
            matched: None,
        });
        self.next_listener
    }

    /// Takes the request that this listener matched, once, and removes the listener.
    pub fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let at = self.listeners.iter().position(|l| l.id == listener)?;
        let conn = self.listeners[at].matched?;
        let incoming = self.incoming_mut(conn)?;
        let indication = Indication {
            conn,
            remote: incoming.local,
            attributes: incoming.attributes,
        };
        self.listeners.remove(at);
        Some(indication)
    }

    /// Removes a listener. A request that it has matched is given to another listener, or answered
    /// with NO_MATCH.
    pub fn unlisten<I: EngineIo>(&mut self, listener: u64, io: &mut I) {
        let Some(at) = self.listeners.iter().position(|l| l.id == listener) else {
            return;
        };
        let removed = self.listeners.remove(at);
        let Some(conn) = removed.matched else {
            return;
        };
        let is_pending = self
            .incoming_mut(conn)
            .is_some_and(|i| i.state == IncomingState::Pending);
        let other = if is_pending {
            self.match_listener(&removed.discriminator, conn)
        } else {
            None
        };
        if let Some(other) = other {
            io.control_event(Waiter::Request(other));
            return;
        }
        if is_pending {
            self.refuse_pending(conn, ConnectReason::NoMatch, io);
        }
        self.remove_request(conn);
    }

    /// Reports whether a listener waits for this discriminator.
    pub(super) fn has_listener(&self, discriminator: &Discriminator) -> bool {
        self.listeners
            .iter()
            .any(|l| l.matched.is_none() && l.discriminator == *discriminator)
    }

    /// Gives a request to the listener that waits longest for this discriminator. Returns its
    /// number.
    pub(super) fn match_listener(
        &mut self,
        discriminator: &Discriminator,
        conn: ConnId,
    ) -> Option<u64> {
        let listener = self
            .listeners
            .iter_mut()
            .find(|l| l.matched.is_none() && l.discriminator == *discriminator)?;
        listener.matched = Some(conn);
        Some(listener.id)
    }
}
