//! Ports, VIs and the clock of one world; what must be left when all is over.
//!
//! Now and then nothing new is begun. When every end has ended and the longest life that
//! anything may have is over, these are looked at in each engine, and must be empty: OX_IDs in
//! use and dead ones, requests kept for consumers or to be answered again, disconnects without a
//! response, listeners, timers, connections counted for a peer, and of each VI: handle, link,
//! both streams, connect outcome, peer request, descriptors. Then every VI is destroyed and made
//! anew.

use super::Tally;
use super::actor::{Actor, Step};
use super::books::Books;
use crate::endpoint::Phase;
use crate::testkit::net::{MS, Net, S, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{Counter, EngineConfig, Level, RecoveryConfig};

pub(super) const PORTS: usize = 4;
const VIS: usize = 3;
pub(super) const ULP_TIMEOUT_NS: u64 = 400 * MS;
/// No frame lives longer.
pub(super) const R_A_TOV_NS: u64 = 200 * MS;
/// The longest time-out of a request.
pub(super) const MAX_TIMEOUT_NS: u64 = 1500 * MS;
/// So many connections between two looks at what is left.
const BETWEEN_LOOKS: u64 = 200;
/// Everything that was begun is over by then.
const END_NS: u64 = 20 * S;

/// Of a million frames. A frame may be repeated and both of them delayed.
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
    pub(super) books: Books,
    /// Connections that both ends were in, and that are over.
    pub(super) made: u64,
    /// Nothing new is begun.
    pub(super) ending: bool,
    told: bool,
    tally: Tally,
}

fn configs(rng: &mut Rng) -> Vec<EngineConfig> {
    let recovery = (rng.below(2) == 0).then(RecoveryConfig::default);
    let mut configs: Vec<_> = (0..PORTS).map(config).collect();
    for node in 0..PORTS {
        configs[node].host = configs[2 * host_of(node)].host;
        configs[node].port_name = rng.next();
        configs[node].ulp_timeout_ns = ULP_TIMEOUT_NS;
        configs[node].r_a_tov_ns = R_A_TOV_NS;
        configs[node].e_d_tov_ns = R_A_TOV_NS / 4;
        configs[node].max_vi = VIS as u32;
        configs[node].max_incoming = 32;
        configs[node].max_closing = 32;
        configs[node].recovery = recovery.clone();
    }
    configs
}

impl World {
    /// `told`: everything that happens is printed.
    pub(super) fn new(seed: u64, told: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(configs(&mut rng), seed);
        net.wire.tracing = false;
        net.wire.faults = FAULTS;
        let places = (0..PORTS * VIS).map(|at| at / VIS);
        let actors = places
            .map(|node| {
                let vi = net.create(node, params(Level::ReliableDelivery));
                Actor::new(node, vi)
            })
            .collect();
        Self {
            net,
            rng,
            actors,
            books: Books::default(),
            made: 0,
            ending: false,
            told,
            tally: Tally::new(),
        }
    }

    /// Makes so many connections and looks at what is left.
    pub(super) fn play(&mut self, connections: u64) {
        while self.made < connections {
            let goal = connections.min(self.made + BETWEEN_LOOKS);
            self.ending = false;
            while self.made < goal {
                self.turn();
            }
            self.end();
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

    /// To the next moment at which something happens; whoever waits for it acts.
    fn turn(&mut self) {
        let timers = self.net.nodes.iter();
        let timers = timers.filter_map(|node| node.engine.poll_timeout());
        let wakes = (0..self.actors.len()).filter_map(|at| self.wakes_ns(at));
        let next = timers.chain(self.net.wire.next_ns()).chain(wakes).min();
        let next_ns = next.unwrap_or_else(|| panic!("nobody wants anything: {:#?}", self.actors));
        let next_ns = next_ns.max(self.net.now_ns);
        self.net.advance(next_ns - self.net.now_ns);
        for at in 0..self.actors.len() {
            self.act(at);
        }
    }

    /// Everything that was begun ends; then nothing is left.
    fn end(&mut self) {
        self.ending = true;
        let limit_ns = self.net.now_ns + END_NS;
        let at_rest = |world: &Self, actor: &Actor| {
            matches!(actor.step, Step::Resting { .. })
                && actor
                    .record
                    .is_none_or(|number| world.books.is_over(number))
        };
        while !self.actors.iter().all(|actor| at_rest(self, actor)) {
            assert!(self.net.now_ns < limit_ns, "{:?}", self.actors);
            self.turn();
        }
        // Twice: the last frame of a request may open a disconnect that nobody answers.
        let lives_ns = MAX_TIMEOUT_NS + 2 * (ULP_TIMEOUT_NS + R_A_TOV_NS);
        self.net.advance(lives_ns);
        assert_eq!(self.net.wire.next_ns(), None, "frames on their way");
        for node in 0..PORTS {
            self.judge_port(node);
        }
        for actor in &mut self.actors {
            let node = &mut self.net.nodes[actor.node];
            assert!(node.engine.destroy_vi(actor.vi), "an Idle VI");
        }
        for at in 0..self.actors.len() {
            let node = self.actors[at].node;
            let vi = self.net.create(node, params(Level::ReliableDelivery));
            self.actors[at] = Actor::new(node, vi);
        }
    }

    fn judge_port(&mut self, at: usize) {
        let now_ns = self.net.now_ns;
        let node = &mut self.net.nodes[at];
        let engine = &mut node.engine;
        // Those whose time is over are found when the next one is opened.
        let exchange = engine.exchanges.open_control(now_ns).expect("a free OX_ID");
        engine.exchanges.close(exchange.ox_id, exchange.seq_cnt);
        assert_eq!(engine.exchange_usage(), (0, 0), "open and dead OX_IDs");
        assert!(engine.incoming.iter().all(Option::is_none), "requests");
        assert!(engine.closing.iter().all(Option::is_none), "disconnects");
        assert!(engine.listeners.is_empty(), "listeners");
        assert_eq!(engine.timers.len(), 0, "timers");
        let counted = engine.peers.iter().map(|peer| peer.connections());
        assert_eq!(counted.sum::<u32>(), 0, "connections of peers");
        for ep in engine.endpoints.iter().flatten() {
            assert!(matches!(ep.phase, Phase::Idle), "{:?}", ep.phase);
            assert_eq!(ep.handle, 0, "handle");
            assert!(ep.link.is_none() && ep.tx.is_none(), "link, sending");
            let receiving = ep.rx.message.is_some() || ep.rx.recovery.is_some();
            assert!(!receiving, "receiving");
            assert!(ep.outcome.is_none() && ep.peer_request.is_none());
        }
        for queues in node.host.vis.values() {
            assert!(queues.sends.is_empty() && queues.receives.is_empty());
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        self.count_many(what, 1);
    }

    fn count_many(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.tally.entry(what).or_default() += times;
        }
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What an actor does or learns, for whoever looks for a mistake.
    pub(super) fn tell(&self, at: usize, what: impl FnOnce() -> String) {
        if self.told {
            let actor = &self.actors[at];
            let now_us = self.net.now_ns / 1_000;
            println!("{now_us:>12} {at:2} on {}: {}", actor.node, what());
        }
    }
}
