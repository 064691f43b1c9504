//! Consumers that wait for a request.

use fcvi_frame::connect::Discriminator;
use fcvi_frame::reason::ConnectReason;

use crate::accept::incoming::IncomingState;
use crate::accept::{ConnId, Indication};
use crate::engine::Engine;
use crate::host::{Host, Waiter};

/// A consumer that waits for a request.
#[derive(Debug)]
pub(crate) struct Listener {
    id: u64,
    discriminator: Discriminator,
    matched: Option<ConnId>,
}

impl Engine {
    /// A consumer waits for one request with this discriminator (VIPL 3.3.1).
    /// Returns a number for [`Engine::take_indication`] and [`Engine::unlisten`].
    pub fn listen(&mut self, discriminator: Discriminator) -> u64 {
        self.next_listener += 1;
        self.listeners.push(Listener {
            id: self.next_listener,
            discriminator,
            matched: None,
        });
        self.next_listener
    }

    /// The request that this listener matched, once; the listener is gone then.
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

    /// The consumer waits no longer. A request that was matched meanwhile goes to
    /// another listener or is answered with NO_MATCH.
    pub fn unlisten<H: Host>(&mut self, listener: u64, host: &mut H) {
        let Some(at) = self.listeners.iter().position(|l| l.id == listener) else {
            return;
        };
        let gone = self.listeners.remove(at);
        let Some(conn) = gone.matched else {
            return;
        };
        let held = self
            .incoming_mut(conn)
            .is_some_and(|i| i.state == IncomingState::Held);
        let other = if held {
            self.match_listener(&gone.discriminator, conn)
        } else {
            None
        };
        if let Some(other) = other {
            host.control_event(Waiter::Request(other));
            return;
        }
        if held {
            self.refuse_held(conn, ConnectReason::NoMatch, host);
        }
        self.forget(conn);
    }

    /// Does anybody wait for this discriminator?
    pub(super) fn has_listener(&self, discriminator: &Discriminator) -> bool {
        self.listeners
            .iter()
            .any(|l| l.matched.is_none() && l.discriminator == *discriminator)
    }

    /// Gives a request to whoever waits longest for it, if anybody does.
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
