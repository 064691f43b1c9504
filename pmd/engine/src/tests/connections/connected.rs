//! The application of a connected VI, and the checks of the events that it received.

use vi_types::{AsyncError, ReliabilityLevel, ViState};

use super::accounting::{Identity, SideId};
use super::actor::{Actor, NEVER_NS, Step};
use super::world::{R_A_TOV_NS, ULP_TIMEOUT_NS, World, host_of};

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::testkit::io::Event;
use crate::testkit::net::MS;

/// Maximum time from both sides being connected to the first disconnect.
const HOLD_NS: u64 = 30 * MS;
/// Maximum time between two disconnects whose IUs shall cross.
const CROSS_NS: u64 = 2_000;
/// Maximum time from a disconnect to the error at the peer.
const NOTIFY_NS: u64 = ULP_TIMEOUT_NS + R_A_TOV_NS;
/// Interval of the messages that a peer sends if every disconnect IU was lost,
const SEND_INTERVAL_NS: u64 = 10 * MS;
/// and maximum time from the first of them to the error.
const NOTIFY_BY_SEND_NS: u64 = 2 * ULP_TIMEOUT_NS;

impl World {
    fn endpoint(&self, (node, handle): SideId) -> Option<&Endpoint> {
        let engine = &self.net.nodes[node].engine;
        let ep = engine.endpoint(engine.port.slot_of(handle))?;
        (ep.handle == handle).then_some(ep)
    }

    /// Returns the current connection of a VI, or the one that has just ended.
    fn identity(&self, at: usize) -> Identity {
        let Actor { node, vi, .. } = self.actors[at];
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        let ep = ep.expect("a VI");
        let (connection_id, own, peer, handle) = match (&ep.connection, &ep.previous) {
            (Some(connection), _) => (
                connection.connection_id,
                ep.handle,
                connection.peer,
                connection.peer_handle,
            ),
            (None, Some(f)) => (f.connection_id, f.handle, f.peer, f.peer_handle),
            (None, None) => panic!("no connection"),
        };
        let other = self.net.nodes.iter().position(|node| node.id == peer);
        Identity {
            connection_id,
            own: (node, own),
            peer: (other.expect("a port"), handle),
        }
    }

    /// Returns the peer's side of this connection, or `None` after it ended.
    fn peer_connection(&self, identity: &Identity) -> Option<&Connection> {
        let connection = self.endpoint(identity.peer)?.connection.as_ref()?;
        let (node, handle) = identity.own;
        let fits = connection.peer == self.net.nodes[node].id
            && connection.peer_handle == handle
            && connection.connection_id == identity.connection_id;
        fits.then_some(connection)
    }

    /// Records a connection call that succeeded, checks the match and schedules the next actions.
    pub(super) fn connected(&mut self, at: usize, peer: bool) {
        let now_ns = self.net.now_ns;
        let identity = self.identity(at);
        let (node, handle) = identity.peer;
        let vi = self.net.nodes[node].engine.port.slot_of(handle);
        let is_other = |actor: &Actor| actor.node == node && actor.vi == vi;
        let other = self.actors.iter().position(is_other).expect("a VI");
        assert_ne!(other, at, "connected with itself");
        let peer_connection = self.peer_connection(&identity);
        let ended = peer_connection.is_none();
        if let (Some(theirs), Some(own)) =
            (peer_connection, self.peer_connection(&identity.reversed()))
        {
            assert_ne!(theirs.originator, own.originator, "{identity:?}");
        }
        let number = self
            .accounting
            .connected(now_ns, (at, &identity), (other, ended));
        self.log(at, || format!("connected with {other}: {identity:?}"));
        let free = self.is_free(other) && matches!(self.actors[other].step, Step::Idle { .. });
        if !ended || free {
            self.enter(other, number);
            self.check_match(at, other, peer);
        }
        self.enter(at, number);
        let actor = &mut self.actors[at];
        actor.identity = Some(identity);
        (actor.step, actor.disconnects_ns) = (Step::Connected, NEVER_NS);
        if self.accounting.record(number).both_connected() {
            self.count(match peer {
                true => "peer-to-peer connections",
                false => "client-server connections",
            });
            self.count(match self.actors[at].level {
                ReliabilityLevel::UnreliableDelivery => "connections of UnreliableDelivery",
                ReliabilityLevel::ReliableDelivery => "connections of ReliableDelivery",
                ReliabilityLevel::ReliableReception => "connections of ReliableReception",
            });
            self.plan(at, other);
        } else if self.rng.below(10) == 0 {
            // Disconnects before the peer is connected.
            self.actors[at].disconnects_ns = now_ns + self.rng.below(HOLD_NS);
        }
    }

    /// Sets the actor's connection. A peer request may have had another one: a half-open connection that failed while
    /// the request stayed pending.
    fn enter(&mut self, at: usize, number: usize) {
        if self.actors[at].record.is_some_and(|other| other != number) {
            self.mark_ended(at);
        }
        self.actors[at].record = Some(number);
    }

    /// Asserts that both VIs requested each other.
    fn check_match(&self, at: usize, other: usize, peer: bool) {
        let (one, two) = (&self.actors[at], &self.actors[other]);
        let what = || format!("{one:?}, {two:?}");
        assert_eq!(one.target.1, two.target.1, "{}", what());
        assert_eq!(one.level, two.level, "{}", what());
        let matches = [
            one.target.0 == host_of(two.node),
            two.target.0 == host_of(one.node),
        ];
        // A server's target is its own host: only the client requested the other one.
        let needed = if peer { 2 } else { 1 };
        let matching = matches.into_iter().filter(|matches| *matches).count();
        assert!(matching >= needed, "{}", what());
    }

    /// Schedules the disconnects and messages of a connection that is established at both sides.
    fn plan(&mut self, at: usize, other: usize) {
        let hold_ns = self.rng.below(HOLD_NS);
        let first_ns = self.net.now_ns + hold_ns;
        let disconnects = match self.rng.below(4) {
            0 => [first_ns, first_ns],
            1 => [first_ns, first_ns + self.rng.below(CROSS_NS)],
            2 => [first_ns, NEVER_NS],
            _ => [NEVER_NS, first_ns],
        };
        for (at, disconnects_ns) in [at, other].into_iter().zip(disconnects) {
            let sends = self.rng.below(4) == 0;
            let sends_ns = self.net.now_ns + self.rng.below(hold_ns + 1);
            let actor = &mut self.actors[at];
            // It may have ended its connection already.
            if matches!(actor.step, Step::Connected) {
                actor.disconnects_ns = disconnects_ns.min(actor.disconnects_ns);
                actor.sends_ns = if sends { sends_ns } else { NEVER_NS };
            }
        }
    }

    /// Returns when this side must have been notified of the peer's disconnect, or sends; `None` before the disconnect.
    fn notified_ns(&self, at: usize) -> Option<u64> {
        let number = self.actors[at].record.expect("a connection");
        let ended_ns = self.accounting.peer(number, at).ended_ns?;
        Some(ended_ns + NOTIFY_NS)
    }

    /// Returns when it sends: as scheduled, or when it should have been notified, and then repeatedly.
    fn sends_ns(&self, at: usize) -> u64 {
        let planned_ns = self.actors[at].sends_ns;
        match (planned_ns, self.notified_ns(at)) {
            (NEVER_NS, Some(notified_ns)) => notified_ns,
            _ => planned_ns,
        }
    }

    /// Returns when a connected actor acts next.
    pub(super) fn connected_wakes_ns(&self, at: usize) -> Option<u64> {
        let at_ns = self.actors[at].disconnects_ns.min(self.sends_ns(at));
        (at_ns != NEVER_NS).then_some(at_ns)
    }

    pub(super) fn act_connected(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let Actor { node, vi, .. } = self.actors[at];
        if self.net.state(node, vi) == ViState::Error {
            self.log(at, || "broken".into());
            self.count("broken connections");
            let until_ns = now_ns + self.rng.below(10 * MS);
            let actor = &mut self.actors[at];
            actor.step = Step::Broken { until_ns };
            (actor.disconnects_ns, actor.sends_ns) = (NEVER_NS, NEVER_NS);
            self.mark_ended(at);
            return;
        }
        assert_eq!(self.net.state(node, vi), ViState::Connected);
        if self.actors[at].disconnects_ns <= now_ns {
            self.disconnect(at);
            return;
        }
        if self.sends_ns(at) > now_ns {
            return;
        }
        self.actors[at].sends_ns = match self.notified_ns(at).filter(|at_ns| *at_ns <= now_ns) {
            Some(notified_ns) => {
                let limit_ns = notified_ns + NOTIFY_BY_SEND_NS;
                assert!(now_ns < limit_ns, "{at} was not notified");
                let number = self.actors[at].record.expect("a connection");
                let record = self.accounting.record(number);
                if !core::mem::replace(&mut record.sent_to_be_notified, true) {
                    self.count("notified only after a send");
                }
                now_ns + SEND_INTERVAL_NS
            }
            None => NEVER_NS,
        };
        let message = self.actors[at].identity.expect("a connection").message();
        self.net.post_send(node, vi, &message);
    }

    /// Records that this side of the connection has ended.
    pub(super) fn mark_ended(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let Some(number) = self.actors[at].record else {
            return;
        };
        let record = self.accounting.record(number);
        if record.side(at).ended_ns.is_some() {
            return;
        }
        record.side(at).ended_ns = Some(now_ns);
        if !record.is_over() {
            return;
        }
        if record.both_connected() {
            let at_once = record.sides[0].ended_ns == record.sides[1].ended_ns;
            self.made += 1;
            if at_once {
                self.count("both sides disconnected at once");
            }
        } else {
            self.count("only one side was connected");
        }
    }

    /// Checks the events that the consumer of the VI received since the actor began.
    pub(super) fn check_events(&mut self, at: usize) {
        let Actor {
            node, vi, identity, ..
        } = self.actors[at];
        let (mut breaks, mut losses) = (0, 0);
        for event in self.net.log(node, vi) {
            match event {
                Event::State(ViState::Error) => breaks += 1,
                Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) => losses += 1,
                Event::Received(received) if received.status.is_ok() => {
                    let sent = identity.map(|identity| identity.reversed().message());
                    assert_eq!(Some(received.data), sent, "of another connection");
                    self.count("messages");
                }
                Event::State(_) | Event::Async(_) | Event::Sent(..) | Event::Received(_) => {}
            }
        }
        assert!(breaks <= 1, "broken twice");
        assert_eq!(losses, breaks, "each break is reported once");
        let queues = self.net.nodes[node].io.vi(vi);
        assert!(queues.sends.is_empty() && queues.receives.is_empty());
    }
}
