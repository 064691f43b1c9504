//! Ports, VIs and the clock of one simulated world; checks that no state remains.
//!
//! From time to time the actors start nothing new. After every connection has ended and all timeouts have passed,
//! each engine must have no OX_IDs in use or in quarantine, no pending or answered requests, no disconnects without a
//! response, no listeners, timers or connections counted for a peer, and each VI no handle, link, streams, connect
//! outcome, peer request or descriptors. Then every VI is destroyed and created again.

use vi_types::ReliabilityLevel;

use super::Totals;
use super::accounting::Accounting;
use super::actor::{Actor, Step};
use crate::endpoint::Phase;
use crate::testkit::net::{MS, Net, S, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{Counter, EngineConfig, RecoveryConfig};

pub(super) const PORTS: usize = 4;
const VIS: usize = 3;
pub(super) const ULP_TIMEOUT_NS: u64 = 400 * MS;
/// Maximum lifetime of a frame.
pub(super) const R_A_TOV_NS: u64 = 200 * MS;
/// Maximum timeout of a request.
pub(super) const MAX_TIMEOUT_NS: u64 = 1500 * MS;
/// Connections between two checks for leftover state.
const CONNECTIONS_PER_CHECK: u64 = 200;
/// Maximum time until all connections and calls have ended.
const END_NS: u64 = 20 * S;

/// Per million frames. A frame may be duplicated and both copies delayed.
const FAULTS: Faults = Faults {
    loss: 100_000,
    duplicate: 100_000,
    corrupt: 0,
    late: 100_000,
    // With the delay of the wire no frame is older than R_A_TOV.
    late_ns: R_A_TOV_NS - MS,
};

/// Ports 0 and 1 are host 0, ports 2 and 3 are host 1.
pub(super) fn host_of(node: usize) -> usize {
    node / 2
}

pub(super) struct World {
    pub(super) net: Net,
    pub(super) rng: Rng,
    pub(super) actors: Vec<Actor>,
    pub(super) accounting: Accounting,
    /// Connections that were established at both sides and have ended.
    pub(super) made: u64,
    /// The actors start nothing new.
    pub(super) ending: bool,
    verbose: bool,
    totals: Totals,
}

fn configs(rng: &mut Rng) -> Vec<EngineConfig> {
    let recovery = (rng.below(2) == 0).then(RecoveryConfig::default);
    let mut configs: Vec<_> = (0..PORTS).map(config).collect();
    for node in 0..PORTS {
        configs[node].host = configs[2 * host_of(node)].host;
        configs[node].port_name = rng.next_u64();
        configs[node].ulp_timeout_ns = ULP_TIMEOUT_NS;
        configs[node].r_a_tov_ns = R_A_TOV_NS;
        configs[node].e_d_tov_ns = R_A_TOV_NS / 4;
        configs[node].max_vi = VIS as u32;
        configs[node].max_incoming = 32;
        configs[node].max_pending_disconnects = 32;
        configs[node].recovery = recovery.clone();
    }
    configs
}

impl World {
    /// `verbose`: prints all events.
    pub(super) fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(configs(&mut rng), seed);
        net.wire.tracing = false;
        net.wire.faults = FAULTS;
        let nodes = (0..PORTS * VIS).map(|at| at / VIS);
        let actors = nodes
            .map(|node| {
                let vi = net.create(node, params(ReliabilityLevel::ReliableDelivery));
                Actor::new(node, vi)
            })
            .collect();
        Self {
            net,
            rng,
            actors,
            accounting: Accounting::default(),
            made: 0,
            ending: false,
            verbose,
            totals: Totals::new(),
        }
    }

    /// Makes `connections` connections and checks for leftover state.
    pub(super) fn run(&mut self, connections: u64) {
        while self.made < connections {
            let goal = connections.min(self.made + CONNECTIONS_PER_CHECK);
            self.ending = false;
            while self.made < goal {
                self.advance_to_next_event();
            }
            self.finish();
        }
        for node in 0..PORTS {
            for counter in [
                Counter::Retries,
                Counter::PeerCrossed,
                Counter::PeerReturned,
                Counter::DropStrayConnect,
                Counter::CloseTimeouts,
                Counter::CloseOverflows,
                Counter::DropIncomingFull,
            ] {
                let times = self.net.count(node, counter);
                self.count_many(counter.name(), times);
            }
        }
    }

    /// Advances the clock to the next event and lets all actors act.
    fn advance_to_next_event(&mut self) {
        let timers = self.net.nodes.iter();
        let timers = timers.filter_map(|node| node.engine.poll_timeout());
        let wakes = (0..self.actors.len()).filter_map(|at| self.wakes_ns(at));
        let next = timers.chain(self.net.wire.next_ns()).chain(wakes).min();
        let next_ns = next.unwrap_or_else(|| panic!("no next event: {:#?}", self.actors));
        let next_ns = next_ns.max(self.net.now_ns);
        self.net.advance(next_ns - self.net.now_ns);
        for at in 0..self.actors.len() {
            self.act(at);
        }
    }

    /// Waits until all connections and calls have ended and asserts that no state remains.
    fn finish(&mut self) {
        self.ending = true;
        let limit_ns = self.net.now_ns + END_NS;
        let is_idle = |world: &Self, actor: &Actor| {
            matches!(actor.step, Step::Idle { .. })
                && actor
                    .record
                    .is_none_or(|number| world.accounting.is_over(number))
        };
        while !self.actors.iter().all(|actor| is_idle(self, actor)) {
            assert!(self.net.now_ns < limit_ns, "{:?}", self.actors);
            self.advance_to_next_event();
        }
        // Twice: the last frame of a request may start a disconnect without a response.
        let lives_ns = MAX_TIMEOUT_NS + 2 * (ULP_TIMEOUT_NS + R_A_TOV_NS);
        self.net.advance(lives_ns);
        assert_eq!(self.net.wire.next_ns(), None, "frames in flight");
        for node in 0..PORTS {
            self.check_port(node);
        }
        for actor in &mut self.actors {
            let node = &mut self.net.nodes[actor.node];
            assert!(node.engine.destroy_vi(actor.vi), "an Idle VI");
        }
        for at in 0..self.actors.len() {
            let node = self.actors[at].node;
            let vi = self
                .net
                .create(node, params(ReliabilityLevel::ReliableDelivery));
            self.actors[at] = Actor::new(node, vi);
        }
    }

    fn check_port(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let node = &mut self.net.nodes[at];
        let engine = &mut node.engine;
        // Quarantined OX_IDs whose R_A_TOV has expired are freed when the next exchange is opened.
        let exchange = engine
            .port
            .exchanges
            .open_control(now_ns)
            .expect("a free OX_ID");
        engine
            .port
            .exchanges
            .close(exchange.ox_id, exchange.seq_cnt);
        assert_eq!(engine.exchange_usage(), (0, 0), "open, quarantined");
        assert!(engine.port.incoming.iter().all(Option::is_none), "requests");
        assert!(
            engine.port.pending_disconnects.iter().all(Option::is_none),
            "disconnects"
        );
        assert!(engine.listeners.is_empty(), "listeners");
        assert_eq!(engine.port.timers.len(), 0, "timers");
        let counted = engine.port.peers.iter().map(|peer| peer.connections());
        assert_eq!(counted.sum::<u32>(), 0, "connections of peers");
        for ep in engine.endpoints.iter().flatten() {
            assert!(matches!(ep.phase, Phase::Idle), "{:?}", ep.phase);
            assert_eq!(ep.handle, 0, "handle");
            assert!(ep.connection.is_none() && ep.tx.is_none(), "link, sending");
            let receiving = ep.rx.reassembly.message.is_some() || ep.rx.ack.is_some();
            assert!(!receiving, "receiving");
            assert!(ep.outcome.is_none() && ep.peer_request.is_none());
        }
        for queues in node.io.vis.values() {
            assert!(queues.sends.is_empty() && queues.receives.is_empty());
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        self.count_many(what, 1);
    }

    fn count_many(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.totals.entry(what).or_default() += times;
        }
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Prints an action or event of an actor if the world is verbose.
    pub(super) fn log(&self, at: usize, what: impl FnOnce() -> String) {
        if self.verbose {
            let actor = &self.actors[at];
            let now_us = self.net.now_ns / 1_000;
            println!("{now_us:>12} {at:2} on {}: {}", actor.node, what());
        }
    }
}
