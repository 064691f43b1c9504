//! What a program does while it is connected, and what it saw when it leaves.

use super::actor::{Actor, NEVER_NS, Step};
use super::books::{EndName, Identity};
use super::world::{R_A_TOV_NS, ULP_TIMEOUT_NS, World, host_of};
use crate::endpoint::{Endpoint, Link};
use crate::testkit::host::Event;
use crate::testkit::net::MS;
use crate::{AsyncError, EndpointState, Level};

/// Longest time between the moment at which both ends are connected and the first one's leaving.
const HOLD_NS: u64 = 30 * MS;
/// Both ends leave, and their frames cross.
const CROSS_NS: u64 = 2_000;
/// Who should know that the other end left is told within this.
const TELL_NS: u64 = ULP_TIMEOUT_NS + R_A_TOV_NS;
/// If every disconnect was lost it talks so often,
const TALK_NS: u64 = 10 * MS;
/// and is told within this.
const TALKS_NS: u64 = 2 * ULP_TIMEOUT_NS;

impl World {
    fn endpoint(&self, (node, handle): EndName) -> Option<&Endpoint> {
        let engine = &self.net.nodes[node].engine;
        let ep = engine.endpoint(engine.place_of(handle))?;
        (ep.handle == handle).then_some(ep)
    }

    /// The connection that a VI is in, or has just lost.
    fn identity(&self, at: usize) -> Identity {
        let Actor { node, vi, .. } = self.actors[at];
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        let ep = ep.expect("a VI");
        let (connection_id, own, peer, handle) = match (&ep.link, &ep.former) {
            (Some(link), _) => (link.connection_id, ep.handle, link.peer, link.peer_handle),
            (None, Some(f)) => (f.connection_id, f.handle, f.peer, f.peer_handle),
            (None, None) => panic!("connected with nobody"),
        };
        let other = self.net.nodes.iter().position(|node| node.id == peer);
        Identity {
            connection_id,
            own: (node, own),
            other: (other.expect("a port"), handle),
        }
    }

    /// The other end's link of this connection, while it has it.
    fn other_link(&self, identity: &Identity) -> Option<&Link> {
        let link = self.endpoint(identity.other)?.link.as_ref()?;
        let (node, handle) = identity.own;
        let fits = link.peer == self.net.nodes[node].id
            && link.peer_handle == handle
            && link.connection_id == identity.connection_id;
        fits.then_some(link)
    }

    /// A connection call came to its good end.
    pub(super) fn connected(&mut self, at: usize, peer: bool) {
        let now_ns = self.net.now_ns;
        let identity = self.identity(at);
        let (node, handle) = identity.other;
        let vi = self.net.nodes[node].engine.place_of(handle);
        let is_other = |actor: &Actor| actor.node == node && actor.vi == vi;
        let other = self.actors.iter().position(is_other).expect("a VI");
        assert_ne!(other, at, "connected with itself");
        let other_link = self.other_link(&identity);
        let left = other_link.is_none();
        if let (Some(theirs), Some(own)) = (other_link, self.other_link(&identity.turned())) {
            assert_ne!(theirs.originator, own.originator, "{identity:?}");
        }
        let number = self.books.connected(now_ns, (at, &identity), (other, left));
        self.tell(at, || format!("connected with {other}: {identity:?}"));
        let free = self.is_free(other) && matches!(self.actors[other].step, Step::Resting { .. });
        if !left || free {
            self.enter(other, number);
            self.judge_match(at, other, peer);
        }
        self.enter(at, number);
        let actor = &mut self.actors[at];
        actor.identity = Some(identity);
        (actor.step, actor.leaves_ns) = (Step::Connected, NEVER_NS);
        if self.books.record(number).is_whole() {
            self.count(match peer {
                true => "peer-to-peer connections",
                false => "client-server connections",
            });
            self.count(match self.actors[at].level {
                Level::UnreliableDelivery => "connections of UnreliableDelivery",
                Level::ReliableDelivery => "connections of ReliableDelivery",
                Level::ReliableReception => "connections of ReliableReception",
            });
            self.plan(at, other);
        } else if self.rng.below(10) == 0 {
            // Before the other end knows that it is connected.
            self.actors[at].leaves_ns = now_ns + self.rng.below(HOLD_NS);
        }
    }

    /// It is in this connection. In another one before, if it asks as a peer: half of that came to
    /// nothing, and the request goes on.
    fn enter(&mut self, at: usize, number: usize) {
        if self.actors[at].record.is_some_and(|other| other != number) {
            self.end_side(at);
        }
        self.actors[at].record = Some(number);
    }

    /// Both asked for each other.
    fn judge_match(&self, at: usize, other: usize, peer: bool) {
        let (one, two) = (&self.actors[at], &self.actors[other]);
        let what = || format!("{one:?}, {two:?}");
        assert_eq!(one.asked.1, two.asked.1, "{}", what());
        assert_eq!(one.level, two.level, "{}", what());
        let asked = [
            one.asked.0 == host_of(two.node),
            two.asked.0 == host_of(one.node),
        ];
        // A server's own host is its own affair: the client asked for it.
        let needed = if peer { 2 } else { 1 };
        let asked = asked.into_iter().filter(|asked| *asked).count();
        assert!(asked >= needed, "{}", what());
    }

    /// Both ends are connected: who leaves when, and who talks before.
    fn plan(&mut self, at: usize, other: usize) {
        let hold_ns = self.rng.below(HOLD_NS);
        let first_ns = self.net.now_ns + hold_ns;
        let leaves = match self.rng.below(4) {
            0 => [first_ns, first_ns],
            1 => [first_ns, first_ns + self.rng.below(CROSS_NS)],
            2 => [first_ns, NEVER_NS],
            _ => [NEVER_NS, first_ns],
        };
        for (at, leaves_ns) in [at, other].into_iter().zip(leaves) {
            let talks = self.rng.below(4) == 0;
            let talks_ns = self.net.now_ns + self.rng.below(hold_ns + 1);
            let actor = &mut self.actors[at];
            // It may have had enough already.
            if matches!(actor.step, Step::Connected) {
                actor.leaves_ns = leaves_ns.min(actor.leaves_ns);
                actor.talks_ns = if talks { talks_ns } else { NEVER_NS };
            }
        }
    }

    /// The other end left: this one knows it by then, or talks.
    fn told_ns(&self, at: usize) -> Option<u64> {
        let number = self.actors[at].record.expect("a connection");
        let left_ns = self.books.other(number, at).ended_ns?;
        Some(left_ns + TELL_NS)
    }

    /// When it talks: as planned, or because it should have been told; then again and again.
    fn talks_ns(&self, at: usize) -> u64 {
        let planned_ns = self.actors[at].talks_ns;
        match (planned_ns, self.told_ns(at)) {
            (NEVER_NS, Some(told_ns)) => told_ns,
            _ => planned_ns,
        }
    }

    /// When a connected actor wants to act.
    pub(super) fn connected_wakes_ns(&self, at: usize) -> Option<u64> {
        let at_ns = self.actors[at].leaves_ns.min(self.talks_ns(at));
        (at_ns != NEVER_NS).then_some(at_ns)
    }

    pub(super) fn in_connection(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let Actor { node, vi, .. } = self.actors[at];
        if self.net.state(node, vi) == EndpointState::Error {
            self.tell(at, || "broken".into());
            self.count("broke");
            let until_ns = now_ns + self.rng.below(10 * MS);
            let actor = &mut self.actors[at];
            actor.step = Step::Broken { until_ns };
            (actor.leaves_ns, actor.talks_ns) = (NEVER_NS, NEVER_NS);
            self.end_side(at);
            return;
        }
        assert_eq!(self.net.state(node, vi), EndpointState::Connected);
        if self.actors[at].leaves_ns <= now_ns {
            self.leave(at);
            return;
        }
        if self.talks_ns(at) > now_ns {
            return;
        }
        self.actors[at].talks_ns = match self.told_ns(at).filter(|told_ns| *told_ns <= now_ns) {
            Some(told_ns) => {
                assert!(now_ns < told_ns + TALKS_NS, "{at} was never told");
                let number = self.actors[at].record.expect("a connection");
                if !core::mem::replace(&mut self.books.record(number).talked, true) {
                    self.count("was told only when it talked");
                }
                now_ns + TALK_NS
            }
            None => NEVER_NS,
        };
        let message = self.actors[at].identity.expect("a connection").message();
        self.net.post_send(node, vi, &message);
    }

    /// It is in its connection no more.
    pub(super) fn end_side(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let Some(number) = self.actors[at].record else {
            return;
        };
        let record = self.books.record(number);
        if record.end(at).ended_ns.is_some() {
            return;
        }
        record.end(at).ended_ns = Some(now_ns);
        if !record.is_over() {
            return;
        }
        if record.is_whole() {
            let at_once = record.ends[0].ended_ns == record.ends[1].ended_ns;
            self.made += 1;
            if at_once {
                self.count("both ends left at once");
            }
        } else {
            self.count("one end alone was connected");
        }
    }

    /// What its consumer saw since it began.
    pub(super) fn hear(&mut self, at: usize) {
        let Actor {
            node, vi, identity, ..
        } = self.actors[at];
        let (mut breaks, mut losses) = (0, 0);
        for event in self.net.log(node, vi) {
            match event {
                Event::State(EndpointState::Error) => breaks += 1,
                Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) => losses += 1,
                Event::Received(received) if received.status.is_ok() => {
                    let sent = identity.map(|identity| identity.turned().message());
                    assert_eq!(Some(received.data), sent, "of another connection");
                    self.count("messages");
                }
                Event::State(_) | Event::Async(_) | Event::Sent(..) | Event::Received(_) => {}
            }
        }
        assert!(breaks <= 1, "broken twice");
        assert_eq!(losses, breaks, "each break is told once");
        let queues = self.net.nodes[node].host.vi(vi);
        assert!(queues.sends.is_empty() && queues.receives.is_empty());
    }
}
