//! What the program of one VI does, one thing after the other.

use fcvi_frame::flags::WireReliability;

use super::books::Identity;
use super::world::{MAX_TIMEOUT_NS, R_A_TOV_NS, ULP_TIMEOUT_NS, World, host_of};
use crate::testkit::net::{MS, params};
use crate::{ConnectError, EndpointState, Indication, Level, ViIndex};

const LEVELS: [Level; 3] = [
    Level::UnreliableDelivery,
    Level::ReliableDelivery,
    Level::ReliableReception,
];
const SERVICES: [&str; 2] = ["a", "b"];
const MEETINGS: [&str; 2] = ["x", "y"];
/// Longer than any message.
const RECEIVE_BYTES: u32 = 64;
/// Not planned.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// Where a program is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Between two connections.
    Resting {
        until_ns: u64,
    },
    /// A request was made; its outcome is there by then.
    Asking {
        peer: bool,
        latest_ns: u64,
    },
    Listening {
        listener: u64,
        until_ns: u64,
    },
    /// A client's request is kept waiting.
    Thinking {
        asked: Indication,
        until_ns: u64,
    },
    /// A request was accepted; the outcome is there by then.
    Accepting {
        latest_ns: u64,
    },
    Connected,
    /// The connection broke; it is left then.
    Broken {
        until_ns: u64,
    },
}

/// One VI and its program.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) node: usize,
    pub(super) vi: ViIndex,
    pub(super) step: Step,
    pub(super) level: Level,
    /// The host and the discriminator that it asked for; a server: its own host.
    pub(super) asked: (usize, &'static str),
    /// When it takes its request back, or leaves.
    pub(super) leaves_ns: u64,
    /// When it talks.
    pub(super) talks_ns: u64,
    /// The connection that it is in, or was in last.
    pub(super) identity: Option<Identity>,
    pub(super) record: Option<usize>,
    /// Our handle in the connection that the VI remembers.
    former: Option<u32>,
}

impl Actor {
    pub(super) fn new(node: usize, vi: ViIndex) -> Self {
        Self {
            node,
            vi,
            step: Step::Resting { until_ns: 0 },
            level: Level::ReliableDelivery,
            asked: (0, ""),
            leaves_ns: NEVER_NS,
            talks_ns: NEVER_NS,
            identity: None,
            record: None,
            former: None,
        }
    }
}

impl World {
    /// When this actor wants to act, if nothing happens to it before.
    pub(super) fn wakes_ns(&self, at: usize) -> Option<u64> {
        let actor = &self.actors[at];
        match actor.step {
            Step::Resting { until_ns } => (!self.ending && self.is_free(at)).then_some(until_ns),
            Step::Asking { latest_ns, .. } | Step::Accepting { latest_ns } => {
                Some(latest_ns.min(actor.leaves_ns))
            }
            Step::Listening { until_ns, .. }
            | Step::Thinking { until_ns, .. }
            | Step::Broken { until_ns } => Some(until_ns),
            Step::Connected => self.connected_wakes_ns(at),
        }
    }

    /// Is its last connection over at both ends?
    pub(super) fn is_free(&self, at: usize) -> bool {
        let record = self.actors[at].record;
        record.is_none_or(|number| self.books.is_over(number))
    }

    pub(super) fn act(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        match self.actors[at].step {
            Step::Resting { until_ns } => {
                if !self.ending && until_ns <= now_ns && self.is_free(at) {
                    self.begin(at);
                }
            }
            Step::Asking { peer, latest_ns } => self.ask_for_outcome(at, peer, latest_ns),
            Step::Accepting { latest_ns } => self.ask_for_outcome(at, false, latest_ns),
            Step::Listening { listener, until_ns } => self.listen(at, listener, until_ns),
            Step::Thinking { asked, until_ns } if until_ns <= now_ns => self.decide(at, &asked),
            Step::Connected => self.in_connection(at),
            Step::Broken { until_ns } if until_ns <= now_ns => self.leave(at),
            Step::Thinking { .. } | Step::Broken { .. } => {}
        }
    }

    /// Something new, most often what somebody waits for.
    fn begin(&mut self, at: usize) {
        let own_host = host_of(self.actors[at].node);
        let level = LEVELS[self.rng.below(3) as usize];
        let role = self.rng.below(10);
        let mut asked = (self.rng.below(2) as usize, "");
        let actor = &mut self.actors[at];
        (actor.level, actor.identity, actor.record) = (level, None, None);
        (actor.leaves_ns, actor.talks_ns) = (NEVER_NS, NEVER_NS);
        match role {
            0..3 => {
                asked = (own_host, SERVICES[self.rng.below(2) as usize]);
                self.actors[at].asked = asked;
                self.begin_listening(at);
                return;
            }
            3..7 => {
                asked.1 = SERVICES[self.rng.below(2) as usize];
                let waiting = |actor: &Actor| matches!(actor.step, Step::Listening { .. });
                if let Some(found) = self.somebody(17, waiting) {
                    asked = self.actors[found].asked;
                }
            }
            _ => {
                asked.1 = MEETINGS[self.rng.below(2) as usize];
                let waiting = |actor: &Actor| {
                    matches!(actor.step, Step::Asking { peer: true, .. })
                        && actor.asked.0 == own_host
                };
                if let Some(found) = self.somebody(14, waiting) {
                    let other = &self.actors[found];
                    asked = (host_of(other.node), other.asked.1);
                    if self.rng.below(20) > 0 {
                        self.actors[at].level = self.actors[found].level;
                    }
                }
            }
        }
        self.actors[at].asked = asked;
        self.begin_asking(at, role >= 7);
    }

    /// One of those who fit; nobody in some of 20 cases.
    fn somebody(&mut self, of_20: u64, fits: impl Fn(&Actor) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.actors.len())
            .filter(|at| fits(&self.actors[*at]))
            .collect();
        let wanted = self.rng.below(20) < of_20 && !found.is_empty();
        wanted.then(|| found[self.rng.below(found.len() as u64) as usize])
    }

    fn prepare(&mut self, at: usize) {
        let Actor {
            node, vi, level, ..
        } = self.actors[at];
        let engine = &mut self.net.nodes[node].engine;
        assert!(engine.set_params(vi, params(level)), "an Idle VI");
        if self.rng.below(2) == 0 {
            self.net.post_receive(node, vi, RECEIVE_BYTES);
        }
        // Taken back before there is an outcome, now and then.
        if self.rng.below(10) == 0 {
            self.actors[at].leaves_ns = self.net.now_ns + self.rng.below(20 * MS);
        }
    }

    fn begin_asking(&mut self, at: usize, peer: bool) {
        self.prepare(at);
        let now_ns = self.net.now_ns;
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        let (host, name) = self.actors[at].asked;
        let targets = [2 * host, 2 * host + 1];
        let timeout_ns = match self.rng.below(8) {
            0 => MS + self.rng.below(4 * MS),
            1..3 => 20 * MS + self.rng.below(180 * MS),
            _ => ULP_TIMEOUT_NS / 2 + self.rng.below(MAX_TIMEOUT_NS - ULP_TIMEOUT_NS / 2),
        };
        // A client's half connection has a time-out of its own.
        let half_ns = if peer { 0 } else { ULP_TIMEOUT_NS };
        let latest_ns = now_ns + timeout_ns + half_ns;
        self.actors[at].step = Step::Asking { peer, latest_ns };
        self.tell(at, || format!("asks {host} {name}, peer {peer}"));
        let limit = Some(timeout_ns);
        if peer {
            self.net.peer_request(node, vi, name, &targets, limit);
        } else {
            self.net.request(node, vi, name, &targets, limit);
        }
    }

    fn begin_listening(&mut self, at: usize) {
        let (node, name) = (self.actors[at].node, self.actors[at].asked.1);
        let listener = self.net.listen(node, name);
        let until_ns = self.net.now_ns + MS + self.rng.below(300 * MS);
        self.actors[at].step = Step::Listening { listener, until_ns };
        self.tell(at, || format!("listens for {name}"));
    }

    fn listen(&mut self, at: usize, listener: u64, until_ns: u64) {
        let now_ns = self.net.now_ns;
        let node = self.actors[at].node;
        if let Some(asked) = self.net.indication(node, listener) {
            let thinks_ns = match self.rng.below(10) {
                0..6 => 0,
                6..9 => self.rng.below(20 * MS),
                _ => self.rng.below(ULP_TIMEOUT_NS),
            };
            let until_ns = now_ns + thinks_ns;
            self.actors[at].step = Step::Thinking { asked, until_ns };
        } else if until_ns <= now_ns {
            self.net
                .act(node, |engine, host| engine.unlisten(listener, host));
            self.count("server: nobody came");
            self.rest(at);
        }
    }

    /// A request is rejected, or accepted with a VI that fits it or does not.
    fn decide(&mut self, at: usize, asked: &Indication) {
        let level = match asked.attributes.reliability {
            WireReliability::Ud => Level::UnreliableDelivery,
            WireReliability::Rr => Level::ReliableReception,
            _ => Level::ReliableDelivery,
        };
        if self.rng.below(10) == 0 {
            self.reject(at, asked);
            return;
        }
        if self.rng.below(8) > 0 {
            self.actors[at].level = level;
        }
        self.prepare(at);
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        match self.net.accept(node, asked.conn, vi) {
            Ok(()) => {
                let latest_ns = self.net.now_ns + ULP_TIMEOUT_NS;
                self.actors[at].step = Step::Accepting { latest_ns };
                self.tell(at, || format!("accepts {asked:?}"));
            }
            Err(ConnectError::Timeout) => {
                self.count("server: void");
                self.leave(at);
            }
            Err(ConnectError::ReliabilityLevel) => {
                assert_ne!(self.actors[at].level, level);
                self.count("server: attributes differ");
                self.net.disconnect(node, vi);
                self.hear(at);
                self.reject(at, asked);
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn reject(&mut self, at: usize, asked: &Indication) {
        let rejected = self.net.reject(self.actors[at].node, asked.conn);
        rejected.expect("a request that was neither accepted nor rejected");
        self.tell(at, || format!("rejects {asked:?}"));
        self.rest(at);
    }

    /// Has the request an outcome? It must by now, or may be taken back.
    fn ask_for_outcome(&mut self, at: usize, peer: bool, latest_ns: u64) {
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        let outcome = if peer {
            self.net.peer_outcome(node, vi)
        } else {
            self.net.outcome(node, vi)
        };
        let server = matches!(self.actors[at].step, Step::Accepting { .. });
        match outcome {
            Some(Ok(_)) => self.connected(at, peer),
            Some(Err(error)) => {
                self.tell(at, || format!("{error:?}"));
                self.count(failure(peer, server, error));
                self.leave(at);
            }
            None => {
                assert!(self.net.now_ns < latest_ns, "no outcome in time: {at}");
                if self.actors[at].leaves_ns <= self.net.now_ns {
                    self.count("requests taken back");
                    self.leave(at);
                }
            }
        }
    }

    /// Leaves the connection, or whatever came of it, and rests.
    pub(super) fn leave(&mut self, at: usize) {
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        let waited = match self.actors[at].step {
            Step::Asking { peer: false, .. } | Step::Accepting { .. } => {
                self.net.state(node, vi) == EndpointState::ConnectPending
            }
            _ => false,
        };
        self.net.disconnect(node, vi);
        if waited {
            let told = self.net.outcome(node, vi).map(|outcome| outcome.err());
            assert_eq!(told, Some(Some(ConnectError::InvalidState)));
        }
        assert_eq!(self.net.state(node, vi), EndpointState::Idle);
        self.tell(at, || "leaves".into());
        self.hear(at);
        self.end_side(at);
        self.rest(at);
    }

    pub(super) fn rest(&mut self, at: usize) {
        let Actor { node, vi, .. } = self.actors[at];
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        let former = ep.and_then(|ep| ep.former).map(|former| former.handle);
        let actor = &mut self.actors[at];
        // Half a connection was left, of which the other end may have all: this VI can tell it
        // so until it has left another one.
        let own = actor.identity.map(|identity| identity.own.1);
        let half = former != actor.former && former != own;
        actor.former = former;
        let pause_ns = match self.rng.below(4) {
            0 => 0,
            _ => self.rng.below(20 * MS),
        };
        let half_ns = if half { ULP_TIMEOUT_NS + R_A_TOV_NS } else { 0 };
        let until_ns = self.net.now_ns + pause_ns + half_ns;
        self.actors[at].step = Step::Resting { until_ns };
    }
}

/// A connection call that failed, for the tally.
fn failure(peer: bool, server: bool, error: ConnectError) -> &'static str {
    match (peer, server, error) {
        (false, false, ConnectError::Timeout) => "client: Timeout",
        (false, false, ConnectError::NoMatch) => "client: NoMatch",
        (false, false, ConnectError::Rejected) => "client: Rejected",
        (false, false, ConnectError::Resources) => "client: Resources",
        (false, true, ConnectError::Timeout) => "server: Timeout",
        (true, _, ConnectError::Timeout) => "peer: Timeout",
        (true, _, ConnectError::ReliabilityLevel) => "peer: ReliabilityLevel",
        _ => panic!("{error:?}, peer {peer}, server {server}"),
    }
}
