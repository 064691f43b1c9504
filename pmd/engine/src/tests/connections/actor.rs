//! The application of one VI: a state machine that requests, listens, accepts, rejects and disconnects.

use vi_types::{CallError, Indication, ReliabilityLevel, ViIndex, ViState};

use super::accounting::Identity;
use super::world::{MAX_TIMEOUT_NS, R_A_TOV_NS, ULP_TIMEOUT_NS, World, host_of};

use crate::testkit::net::{MS, params};

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::UnreliableDelivery,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
const SERVICES: [&str; 2] = ["a", "b"];
const PEER_NAMES: [&str; 2] = ["x", "y"];
/// Longer than any message.
const RECEIVE_BYTES: u32 = 64;
/// Not scheduled.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// State of an application.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Between two connections.
    Idle {
        until_ns: u64,
    },
    /// A request was made; it has an outcome at `latest_ns`.
    Requesting {
        peer: bool,
        latest_ns: u64,
    },
    Listening {
        listener: u64,
        until_ns: u64,
    },
    /// A client's request is pending.
    Deciding {
        request: Indication,
        until_ns: u64,
    },
    /// A request was accepted; the call has an outcome at `latest_ns`.
    Accepting {
        latest_ns: u64,
    },
    Connected,
    /// The connection broke; the VI disconnects at `until_ns`.
    Broken {
        until_ns: u64,
    },
}

/// One VI and its application.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) node: usize,
    pub(super) vi: ViIndex,
    pub(super) step: Step,
    pub(super) level: ReliabilityLevel,
    /// Requested host and discriminator; for a server, its own host.
    pub(super) target: (usize, &'static str),
    /// When it cancels its request or disconnects.
    pub(super) disconnects_ns: u64,
    /// When it sends.
    pub(super) sends_ns: u64,
    /// The current or last connection.
    pub(super) identity: Option<Identity>,
    pub(super) record: Option<usize>,
    /// Local handle of the previous connection that the VI stores.
    previous: Option<u32>,
}

impl Actor {
    pub(super) fn new(node: usize, vi: ViIndex) -> Self {
        Self {
            node,
            vi,
            step: Step::Idle { until_ns: 0 },
            level: ReliabilityLevel::ReliableDelivery,
            target: (0, ""),
            disconnects_ns: NEVER_NS,
            sends_ns: NEVER_NS,
            identity: None,
            record: None,
            previous: None,
        }
    }
}

impl World {
    /// Returns when this actor acts next, unless an event occurs earlier.
    pub(super) fn wakes_ns(&self, at: usize) -> Option<u64> {
        let actor = &self.actors[at];
        match actor.step {
            Step::Idle { until_ns } => (!self.ending && self.is_free(at)).then_some(until_ns),
            Step::Requesting { latest_ns, .. } | Step::Accepting { latest_ns } => {
                Some(latest_ns.min(actor.disconnects_ns))
            }
            Step::Listening { until_ns, .. }
            | Step::Deciding { until_ns, .. }
            | Step::Broken { until_ns } => Some(until_ns),
            Step::Connected => self.connected_wakes_ns(at),
        }
    }

    /// Reports whether both sides of its last connection have ended.
    pub(super) fn is_free(&self, at: usize) -> bool {
        let record = self.actors[at].record;
        record.is_none_or(|number| self.accounting.is_over(number))
    }

    pub(super) fn act(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        match self.actors[at].step {
            Step::Idle { until_ns } => {
                if !self.ending && until_ns <= now_ns && self.is_free(at) {
                    self.begin(at);
                }
            }
            Step::Requesting { peer, latest_ns } => self.check_outcome(at, peer, latest_ns),
            Step::Accepting { latest_ns } => self.check_outcome(at, false, latest_ns),
            Step::Listening { listener, until_ns } => self.listen(at, listener, until_ns),
            Step::Deciding { request, until_ns } if until_ns <= now_ns => self.decide(at, &request),
            Step::Connected => self.act_connected(at),
            Step::Broken { until_ns } if until_ns <= now_ns => self.disconnect(at),
            Step::Deciding { .. } | Step::Broken { .. } => {}
        }
    }

    /// Starts an action at random, mostly one that another actor waits for.
    fn begin(&mut self, at: usize) {
        let own_host = host_of(self.actors[at].node);
        let level = LEVELS[self.rng.below(3) as usize];
        let role = self.rng.below(10);
        let mut target = (self.rng.below(2) as usize, "");
        let actor = &mut self.actors[at];
        (actor.level, actor.identity, actor.record) = (level, None, None);
        (actor.disconnects_ns, actor.sends_ns) = (NEVER_NS, NEVER_NS);
        match role {
            0..3 => {
                target = (own_host, SERVICES[self.rng.below(2) as usize]);
                self.actors[at].target = target;
                self.begin_listening(at);
                return;
            }
            3..7 => {
                target.1 = SERVICES[self.rng.below(2) as usize];
                let waiting = |actor: &Actor| matches!(actor.step, Step::Listening { .. });
                if let Some(found) = self.find_actor(17, waiting) {
                    target = self.actors[found].target;
                }
            }
            _ => {
                target.1 = PEER_NAMES[self.rng.below(2) as usize];
                let waiting = |actor: &Actor| {
                    matches!(actor.step, Step::Requesting { peer: true, .. })
                        && actor.target.0 == own_host
                };
                if let Some(found) = self.find_actor(14, waiting) {
                    let other = &self.actors[found];
                    target = (host_of(other.node), other.target.1);
                    if self.rng.below(20) > 0 {
                        self.actors[at].level = self.actors[found].level;
                    }
                }
            }
        }
        self.actors[at].target = target;
        self.begin_request(at, role >= 7);
    }

    /// Returns a random actor that matches, or `None`; `None` at least in `20 - of_20` of 20 calls.
    fn find_actor(&mut self, of_20: u64, fits: impl Fn(&Actor) -> bool) -> Option<usize> {
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
        // Some requests are cancelled before they have an outcome.
        if self.rng.below(10) == 0 {
            self.actors[at].disconnects_ns = self.net.now_ns + self.rng.below(20 * MS);
        }
    }

    fn begin_request(&mut self, at: usize, peer: bool) {
        self.prepare(at);
        let now_ns = self.net.now_ns;
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        let (host, name) = self.actors[at].target;
        let targets = [2 * host, 2 * host + 1];
        let timeout_ns = match self.rng.below(8) {
            0 => MS + self.rng.below(4 * MS),
            1..3 => 20 * MS + self.rng.below(180 * MS),
            _ => ULP_TIMEOUT_NS / 2 + self.rng.below(MAX_TIMEOUT_NS - ULP_TIMEOUT_NS / 2),
        };
        // A half-open connection of a client has a timeout of its own.
        let half_ns = if peer { 0 } else { ULP_TIMEOUT_NS };
        let latest_ns = now_ns + timeout_ns + half_ns;
        self.actors[at].step = Step::Requesting { peer, latest_ns };
        self.log(at, || format!("requests {host} {name}, peer {peer}"));
        let limit = Some(timeout_ns);
        if peer {
            self.net.peer_request(node, vi, name, &targets, limit);
        } else {
            self.net.request(node, vi, name, &targets, limit);
        }
    }

    fn begin_listening(&mut self, at: usize) {
        let (node, name) = (self.actors[at].node, self.actors[at].target.1);
        let listener = self.net.listen(node, name);
        let until_ns = self.net.now_ns + MS + self.rng.below(300 * MS);
        self.actors[at].step = Step::Listening { listener, until_ns };
        self.log(at, || format!("listens for {name}"));
    }

    fn listen(&mut self, at: usize, listener: u64, until_ns: u64) {
        let now_ns = self.net.now_ns;
        let node = self.actors[at].node;
        if let Some(request) = self.net.indication(node, listener) {
            let delay_ns = match self.rng.below(10) {
                0..6 => 0,
                6..9 => self.rng.below(20 * MS),
                _ => self.rng.below(ULP_TIMEOUT_NS),
            };
            let until_ns = now_ns + delay_ns;
            self.actors[at].step = Step::Deciding { request, until_ns };
        } else if until_ns <= now_ns {
            self.net
                .act(node, |engine, io| engine.unlisten(listener, io));
            self.count("server: no request");
            self.become_idle(at);
        }
    }

    /// Rejects a request, or accepts it with a VI that may or may not match it.
    fn decide(&mut self, at: usize, request: &Indication) {
        let level = request.attributes.level;
        if self.rng.below(10) == 0 {
            self.reject(at, request);
            return;
        }
        if self.rng.below(8) > 0 {
            self.actors[at].level = level;
        }
        self.prepare(at);
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        match self.net.accept(node, request.conn, vi) {
            Ok(()) => {
                let latest_ns = self.net.now_ns + ULP_TIMEOUT_NS;
                self.actors[at].step = Step::Accepting { latest_ns };
                self.log(at, || format!("accepts {request:?}"));
            }
            Err(CallError::Timeout) => {
                self.count("server: request cancelled");
                self.disconnect(at);
            }
            Err(CallError::ReliabilityLevel) => {
                assert_ne!(self.actors[at].level, level);
                self.count("server: attributes differ");
                self.net.disconnect(node, vi);
                self.check_events(at);
                self.reject(at, request);
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn reject(&mut self, at: usize, request: &Indication) {
        let rejected = self.net.reject(self.actors[at].node, request.conn);
        rejected.expect("a request that was neither accepted nor rejected");
        self.log(at, || format!("rejects {request:?}"));
        self.become_idle(at);
    }

    /// Handles the outcome of a request, which must exist at `latest_ns`; may cancel a pending request.
    fn check_outcome(&mut self, at: usize, peer: bool, latest_ns: u64) {
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
                self.log(at, || format!("{error:?}"));
                self.count(failure(peer, server, error));
                self.disconnect(at);
            }
            None => {
                assert!(self.net.now_ns < latest_ns, "no outcome in time: {at}");
                if self.actors[at].disconnects_ns <= self.net.now_ns {
                    self.count("requests cancelled");
                    self.disconnect(at);
                }
            }
        }
    }

    /// Disconnects the VI in any state; the actor becomes idle.
    pub(super) fn disconnect(&mut self, at: usize) {
        let (node, vi) = (self.actors[at].node, self.actors[at].vi);
        let waited = match self.actors[at].step {
            Step::Requesting { peer: false, .. } | Step::Accepting { .. } => {
                self.net.state(node, vi) == ViState::ConnectPending
            }
            _ => false,
        };
        self.net.disconnect(node, vi);
        if waited {
            let error = self.net.outcome(node, vi).map(|outcome| outcome.err());
            assert_eq!(error, Some(Some(CallError::InvalidState)));
        }
        assert_eq!(self.net.state(node, vi), ViState::Idle);
        self.log(at, || "disconnects".into());
        self.check_events(at);
        self.mark_ended(at);
        self.become_idle(at);
    }

    pub(super) fn become_idle(&mut self, at: usize) {
        let Actor { node, vi, .. } = self.actors[at];
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        let previous = ep
            .and_then(|ep| ep.previous)
            .map(|previous| previous.handle);
        let actor = &mut self.actors[at];
        // A half-open connection ended that may be established at the peer: this VI can answer the peer's
        // frames with a disconnect until it ends another connection.
        let own = actor.identity.map(|identity| identity.own.1);
        let half = previous != actor.previous && previous != own;
        actor.previous = previous;
        let pause_ns = match self.rng.below(4) {
            0 => 0,
            _ => self.rng.below(20 * MS),
        };
        let half_ns = if half { ULP_TIMEOUT_NS + R_A_TOV_NS } else { 0 };
        let until_ns = self.net.now_ns + pause_ns + half_ns;
        self.actors[at].step = Step::Idle { until_ns };
    }
}

/// Names a failed connection call for the totals.
fn failure(peer: bool, server: bool, error: CallError) -> &'static str {
    match (peer, server, error) {
        (false, false, CallError::Timeout) => "client: Timeout",
        (false, false, CallError::NoMatch) => "client: NoMatch",
        (false, false, CallError::Rejected) => "client: Rejected",
        (false, false, CallError::NO_RESOURCES) => "client: Resources",
        (false, true, CallError::Timeout) => "server: Timeout",
        (true, _, CallError::Timeout) => "peer: Timeout",
        (true, _, CallError::ReliabilityLevel) => "peer: ReliabilityLevel",
        _ => panic!("{error:?}, peer {peer}, server {server}"),
    }
}
