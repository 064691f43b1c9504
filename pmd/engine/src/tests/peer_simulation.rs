//! Many peer requests of many ports on a bad wire.
//!
//! The VIs of four ports on two hosts post requests for a few discriminators at random, are
//! disconnected at random, their requests time out, a port's program dies and another one
//! takes its place, while the wire loses, doubles, delays and damages frames. Then the wire heals, and the judge looks:
//!
//! * Who is connected is connected with exactly one VI, which is connected with it, and
//!   both asked for each other's host and for the same discriminator.
//! * No two requests that match are left in the pool.
//! * A break is told; no exchange, timer or table entry stays behind.

use crate::testkit::host::TestHost;
use crate::testkit::net::{MS, Net, S, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{ConnectError, Counter, EndpointState, Engine, EngineConfig, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
const PORTS: usize = 4;
const VIS: usize = 3;
const NAMES: [&str; 2] = ["x", "y"];

/// One VI and the request it has or had.
#[derive(Clone, Copy, Debug)]
struct Subject {
    node: usize,
    vi: ViIndex,
    asked_host: usize,
    name: &'static str,
}

#[derive(Debug, Default)]
struct Tally {
    connections: u64,
    timeouts: u64,
    returned: u64,
    crossed: u64,
}

struct Simulation {
    net: Net,
    rng: Rng,
    subjects: Vec<Subject>,
    tally: Tally,
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
        configs[node].port_name = 0x3000_0000_0000_0000 | rng.next() >> 8;
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
        let mut subjects = Vec::new();
        for node in 0..PORTS {
            for _ in 0..VIS {
                subjects.push(Subject {
                    node,
                    vi: net.create(node, params(RD)),
                    asked_host: 0,
                    name: NAMES[0],
                });
            }
        }
        Self {
            net,
            rng,
            subjects,
            tally: Tally::default(),
            what: format!("seed {seed:#x}, {faults:?}"),
        }
    }

    fn state(&self, s: &Subject) -> EndpointState {
        self.net.state(s.node, s.vi)
    }

    fn act(&mut self) {
        let at = self.rng.below(self.subjects.len() as u64) as usize;
        let subject = self.subjects[at];
        match self.rng.below(12) {
            0..7 if self.state(&subject) == EndpointState::Idle => self.post(at),
            7 => self.net.disconnect(subject.node, subject.vi),
            8 if self.rng.below(4) == 0 => self.replace(subject.node),
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

    /// The program of a port dies and another one takes its place and its N_Port_ID, while
    /// frames from and to it are on their way.
    fn replace(&mut self, node: usize) {
        let mut config = self.net.nodes[node].engine.config().clone();
        config.port_name = 0x3000_0000_0000_0000 | self.rng.next() >> 8;
        self.count(node);
        self.net.nodes[node].engine = Engine::new(config, self.rng.next());
        self.net.nodes[node].host = TestHost::new(self.rng.next());
        for subject in self.subjects.iter_mut().filter(|s| s.node == node) {
            subject.vi = self.net.create(node, params(RD));
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
        self.tally.connections += counters.get(Counter::Connects);
        self.tally.returned += counters.get(Counter::PeerReturned);
        self.tally.crossed += counters.get(Counter::PeerCrossed);
    }

    fn post(&mut self, at: usize) {
        let asked_host = self.rng.below(2) as usize;
        let name = NAMES[self.rng.below(2) as usize];
        let timeout_ns = (self.rng.below(3) == 0).then(|| 1 + self.rng.below(100 * MS));
        let subject = &mut self.subjects[at];
        (subject.asked_host, subject.name) = (asked_host, name);
        let subject = *subject;
        let ports = [2 * asked_host, 2 * asked_host + 1];
        self.net
            .peer_request(subject.node, subject.vi, name, &ports, timeout_ns);
    }

    /// Takes the outcomes that there are.
    fn collect(&mut self) {
        for subject in self.subjects.clone() {
            if self.net.nodes[subject.node]
                .engine
                .peer_request(subject.vi)
                .is_none()
            {
                continue;
            }
            match self.net.peer_outcome(subject.node, subject.vi) {
                None => {
                    let pending = self.state(&subject);
                    assert_eq!(pending, EndpointState::ConnectPending, "{}", self.what);
                }
                Some(Ok(_)) => {}
                Some(Err(ConnectError::Timeout)) => self.tally.timeouts += 1,
                Some(Err(other)) => panic!("{}: {other:?}", self.what),
            }
        }
    }

    fn heal(&mut self) {
        self.net.wire.faults = Faults::default();
        // FCVI_ULP_TIMEOUT ends what faults left half done; then the longest interval passes.
        self.net.advance(4 * S);
        self.collect();
        // Who is in a connection whose other end left learns it by talking.
        for subject in self.subjects.clone() {
            if self.state(&subject) == EndpointState::Connected {
                self.net.post_receive(subject.node, subject.vi, 16);
                self.net.post_send(subject.node, subject.vi, b"there?");
            }
        }
        self.net.advance(4 * S);
        self.collect();
    }

    /// The other end of a connection, by its handle.
    fn other_end(&self, of: &Subject) -> Option<Subject> {
        let ep = |s: &Subject| self.net.nodes[s.node].engine.endpoints[s.vi.slot()].as_ref();
        let link = ep(of)?.link?;
        let handle = ep(of)?.handle;
        let mutual = |s: &&Subject| {
            self.net.nodes[s.node].id == link.peer
                && ep(s).is_some_and(|e| {
                    e.handle == link.peer_handle
                        && e.link.is_some_and(|l| {
                            l.peer == self.net.nodes[of.node].id
                                && l.peer_handle == handle
                                && l.connection_id == link.connection_id
                                && l.originator != link.originator
                        })
                })
        };
        self.subjects.iter().find(mutual).copied()
    }

    fn matching(&self, a: &Subject, b: &Subject) -> bool {
        a.asked_host == host_of(b.node) && b.asked_host == host_of(a.node) && a.name == b.name
    }

    fn judge(&mut self) {
        let what = self.what.clone();
        let mut pool: Vec<Subject> = Vec::new();
        for subject in self.subjects.clone() {
            match self.state(&subject) {
                EndpointState::Connected => {
                    let other = self.other_end(&subject);
                    let other = other.unwrap_or_else(|| panic!("{what}: {subject:?} is alone"));
                    assert_eq!(self.state(&other), EndpointState::Connected, "{what}");
                    assert!(self.matching(&subject, &other), "{what}");
                    assert!(subject.node != other.node || subject.vi != other.vi);
                }
                EndpointState::ConnectPending => {
                    let left = pool.iter().find(|p| self.matching(p, &subject));
                    assert!(left.is_none(), "{what}: {left:?} and {subject:?} are left");
                    pool.push(subject);
                }
                EndpointState::Idle | EndpointState::Error => {}
            }
        }
        for subject in self.subjects.clone() {
            self.net.disconnect(subject.node, subject.vi);
        }
        self.net.advance(2 * S);
        for node in &self.net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}: open exchanges");
            assert!(node.engine.closing.iter().all(Option::is_none), "{what}");
            assert!(node.engine.incoming.iter().all(Option::is_none), "{what}");
            assert_eq!(node.engine.timers.len(), 0, "{what}");
        }
        for node in 0..PORTS {
            self.count(node);
        }
    }
}

fn simulate(seeds: u64, faults: Faults) -> Tally {
    let mut total = Tally::default();
    for seed in 0..seeds {
        let mut simulation = Simulation::new(0x9EE2_0000 + seed, faults);
        for _ in 0..120 {
            simulation.act();
        }
        simulation.heal();
        simulation.judge();
        total.connections += simulation.tally.connections;
        total.timeouts += simulation.tally.timeouts;
        total.returned += simulation.tally.returned;
        total.crossed += simulation.tally.crossed;
    }
    println!("{faults:?}: {total:?}");
    total
}

#[test]
fn peers_find_each_other_on_good_and_bad_wires() {
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
        let tally = simulate(150, faults);
        assert!(tally.connections > 1000 && tally.crossed > 100, "{tally:?}");
        assert!(tally.timeouts > 50 && tally.returned > 0, "{tally:?}");
    }
}
