//! Simulation of many peer requests of many ports on a faulty wire.
//!
//! The VIs of four ports on two hosts post requests for a few discriminators at random, are disconnected at random,
//! their requests time out, the application of a port dies and is replaced, while the wire loses, duplicates, delays
//! and corrupts frames. Then the faults stop, and these properties are checked:
//!
//! * A connected VI has exactly one peer VI, which is connected with it, and both requested each other's host and the
//!   same discriminator.
//! * No two matching requests remain in the pool.
//! * A break is reported; no exchange, timer or table entry remains.

use vi_types::{CallError, ReliabilityLevel, ViIndex, ViState};

use crate::testkit::io::TestIo;
use crate::testkit::net::{MS, Net, S, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{Counter, Engine, EngineConfig};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const PORTS: usize = 4;
const VIS: usize = 3;
const NAMES: [&str; 2] = ["x", "y"];

/// One VI and its current or last request.
#[derive(Clone, Copy, Debug)]
struct PeerVi {
    node: usize,
    vi: ViIndex,
    target_host: usize,
    name: &'static str,
}

#[derive(Debug, Default)]
struct Totals {
    connections: u64,
    timeouts: u64,
    returned: u64,
    crossed: u64,
}

struct Simulation {
    net: Net,
    rng: Rng,
    peer_vis: Vec<PeerVi>,
    totals: Totals,
    what: String,
}

/// Ports 0 and 1 are host 0, ports 2 and 3 are host 1.
fn host_of(node: usize) -> usize {
    node / 2
}

fn configs(rng: &mut Rng) -> Vec<EngineConfig> {
    let mut configs: Vec<_> = (0..PORTS).map(config).collect();
    for node in 0..PORTS {
        configs[node].host = configs[2 * host_of(node)].host;
        configs[node].port_name = 0x3000_0000_0000_0000 | rng.next_u64() >> 8;
        configs[node].ulp_timeout_ns = 400 * MS;
        configs[node].r_a_tov_ns = 200 * MS;
    }
    configs
}

impl Simulation {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(configs(&mut rng), seed);
        net.wire.tracing = false;
        net.wire.faults = faults;
        let mut peer_vis = Vec::new();
        for node in 0..PORTS {
            for _ in 0..VIS {
                peer_vis.push(PeerVi {
                    node,
                    vi: net.create(node, params(RD)),
                    target_host: 0,
                    name: NAMES[0],
                });
            }
        }
        Self {
            net,
            rng,
            peer_vis,
            totals: Totals::default(),
            what: format!("seed {seed:#x}, {faults:?}"),
        }
    }

    fn state(&self, s: &PeerVi) -> ViState {
        self.net.state(s.node, s.vi)
    }

    fn act(&mut self) {
        let at = self.rng.below(self.peer_vis.len() as u64) as usize;
        let peer_vi = self.peer_vis[at];
        match self.rng.below(12) {
            0..7 if self.state(&peer_vi) == ViState::Idle => self.post(at),
            7 => self.net.disconnect(peer_vi.node, peer_vi.vi),
            8 if self.rng.below(4) == 0 => self.replace(peer_vi.node),
            _ => {}
        }
        let pause = match self.rng.below(4) {
            0 => self.rng.below(30 * MS),
            1 => self.rng.below(MS / 10),
            _ => self.rng.below(3_000),
        };
        self.net.advance(pause);
        self.collect();
    }

    /// Replaces the application of a port by one with the same N_Port_ID while frames from and to it are in flight.
    fn replace(&mut self, node: usize) {
        let mut config = self.net.nodes[node].engine.config().clone();
        config.port_name = 0x3000_0000_0000_0000 | self.rng.next_u64() >> 8;
        self.count(node);
        self.net.nodes[node].engine = Engine::new(config, self.rng.next_u64());
        self.net.nodes[node].io = TestIo::new(self.rng.next_u64());
        for peer_vi in self.peer_vis.iter_mut().filter(|s| s.node == node) {
            peer_vi.vi = self.net.create(node, params(RD));
        }
        for other in (0..PORTS).filter(|other| *other != node) {
            self.net.peer_lost(other, node);
            if self.rng.below(2) == 0 {
                self.net.port_joined(other, node);
            }
        }
    }

    fn count(&mut self, node: usize) {
        let counters = self.net.nodes[node].engine.counters();
        self.totals.connections += counters.get(Counter::Connects);
        self.totals.returned += counters.get(Counter::PeerReturned);
        self.totals.crossed += counters.get(Counter::PeerCrossed);
    }

    fn post(&mut self, at: usize) {
        let target_host = self.rng.below(2) as usize;
        let name = NAMES[self.rng.below(2) as usize];
        let timeout_ns = (self.rng.below(3) == 0).then(|| 1 + self.rng.below(100 * MS));
        let peer_vi = &mut self.peer_vis[at];
        (peer_vi.target_host, peer_vi.name) = (target_host, name);
        let peer_vi = *peer_vi;
        let ports = [2 * target_host, 2 * target_host + 1];
        self.net
            .peer_request(peer_vi.node, peer_vi.vi, name, &ports, timeout_ns);
    }

    /// Takes all outcomes that are available.
    fn collect(&mut self) {
        for peer_vi in self.peer_vis.clone() {
            if self.net.nodes[peer_vi.node]
                .engine
                .peer_request(peer_vi.vi)
                .is_none()
            {
                continue;
            }
            match self.net.peer_outcome(peer_vi.node, peer_vi.vi) {
                None => {
                    let pending = self.state(&peer_vi);
                    assert_eq!(pending, ViState::ConnectPending, "{}", self.what);
                }
                Some(Ok(_)) => {}
                Some(Err(CallError::Timeout)) => self.totals.timeouts += 1,
                Some(Err(other)) => panic!("{}: {other:?}", self.what),
            }
        }
    }

    fn stop_faults(&mut self) {
        self.net.wire.faults = Faults::default();
        // FCVI_ULP_TIMEOUT ends unfinished procedures; then the longest retry interval passes.
        self.net.advance(4 * S);
        self.collect();
        // A VI whose peer has left the connection is notified when it sends.
        for peer_vi in self.peer_vis.clone() {
            if self.state(&peer_vi) == ViState::Connected {
                self.net.post_receive(peer_vi.node, peer_vi.vi, 16);
                self.net.post_send(peer_vi.node, peer_vi.vi, b"probe");
            }
        }
        self.net.advance(4 * S);
        self.collect();
    }

    /// Returns the peer VI of a connection, found by its handle.
    fn peer_of(&self, of: &PeerVi) -> Option<PeerVi> {
        let ep = |s: &PeerVi| self.net.nodes[s.node].engine.endpoints[s.vi.slot()].as_ref();
        let connection = ep(of)?.connection?;
        let handle = ep(of)?.handle;
        let mutual = |s: &&PeerVi| {
            self.net.nodes[s.node].id == connection.peer
                && ep(s).is_some_and(|e| {
                    e.handle == connection.peer_handle
                        && e.connection.is_some_and(|l| {
                            l.peer == self.net.nodes[of.node].id
                                && l.peer_handle == handle
                                && l.connection_id == connection.connection_id
                                && l.originator != connection.originator
                        })
                })
        };
        self.peer_vis.iter().find(mutual).copied()
    }

    fn matching(&self, a: &PeerVi, b: &PeerVi) -> bool {
        a.target_host == host_of(b.node) && b.target_host == host_of(a.node) && a.name == b.name
    }

    fn check(&mut self) {
        let what = self.what.clone();
        let mut pool: Vec<PeerVi> = Vec::new();
        for peer_vi in self.peer_vis.clone() {
            match self.state(&peer_vi) {
                ViState::Connected => {
                    let other = self.peer_of(&peer_vi);
                    let other = other.unwrap_or_else(|| panic!("{what}: {peer_vi:?} has no peer"));
                    assert_eq!(self.state(&other), ViState::Connected, "{what}");
                    assert!(self.matching(&peer_vi, &other), "{what}");
                    assert!(peer_vi.node != other.node || peer_vi.vi != other.vi);
                }
                ViState::ConnectPending => {
                    let unmatched = pool.iter().find(|p| self.matching(p, &peer_vi));
                    assert!(
                        unmatched.is_none(),
                        "{what}: {unmatched:?} and {peer_vi:?} did not connect"
                    );
                    pool.push(peer_vi);
                }
                ViState::Idle | ViState::Error => {}
            }
        }
        for peer_vi in self.peer_vis.clone() {
            self.net.disconnect(peer_vi.node, peer_vi.vi);
        }
        self.net.advance(2 * S);
        for node in &self.net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}: open exchanges");
            assert!(
                node.engine
                    .port
                    .pending_disconnects
                    .iter()
                    .all(Option::is_none),
                "{what}"
            );
            assert!(
                node.engine.port.incoming.iter().all(Option::is_none),
                "{what}"
            );
            assert_eq!(node.engine.port.timers.len(), 0, "{what}");
        }
        for node in 0..PORTS {
            self.count(node);
        }
    }
}

fn simulate(seeds: u64, faults: Faults) -> Totals {
    let mut total = Totals::default();
    for seed in 0..seeds {
        let mut simulation = Simulation::new(0x9EE2_0000 + seed, faults);
        for _ in 0..120 {
            simulation.act();
        }
        simulation.stop_faults();
        simulation.check();
        total.connections += simulation.totals.connections;
        total.timeouts += simulation.totals.timeouts;
        total.returned += simulation.totals.returned;
        total.crossed += simulation.totals.crossed;
    }
    println!("{faults:?}: {total:?}");
    total
}

#[test]
fn peer_requests_connect_on_reliable_and_faulty_wires() {
    let none = Faults {
        late_ns: 5 * MS,
        ..Faults::default()
    };
    let wires = [
        none,
        Faults {
            loss: 50_000,
            ..none
        },
        Faults {
            duplicate: 200_000,
            late: 100_000,
            ..none
        },
        Faults {
            loss: 150_000,
            duplicate: 100_000,
            corrupt: 50_000,
            late: 100_000,
            ..none
        },
    ];
    for faults in wires {
        let totals = simulate(150, faults);
        assert!(
            totals.connections > 1000 && totals.crossed > 100,
            "{totals:?}"
        );
        assert!(totals.timeouts > 50 && totals.returned > 0, "{totals:?}");
    }
}
