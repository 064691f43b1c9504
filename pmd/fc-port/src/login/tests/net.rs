//! Several machines on a simulated segment that loses, duplicates, delays and reorders frames.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::NPortId;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::frame::{FrameHeader, FrameView, seal};

use super::frames::{host, neighbour};
use crate::Neighbour;
use crate::login::{Carrier, ElsOut, LoginConfig, LoginEvent, LoginMachine, PortLogin};
use crate::testkit::FC_VI;
use protocol_testkit::rng::Rng;

/// Faults per million frames, and the maximum delay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) lost: u32,
    pub(super) repeated: u32,
    pub(super) delayed: u32,
    pub(super) delay_ns: u64,
}

/// A machine, and the state that follows from its events.
pub(super) struct Node {
    pub(super) machine: LoginMachine,
    number: u8,
    /// The node is connected to the segment.
    pub(super) is_up: bool,
    /// Logins that were reported and have not ended.
    pub(super) logins: Vec<PortLogin>,
    /// Ports reported for each host; `None`: the resolution has ended.
    pub(super) hosts: Vec<(u8, Option<NPortId>)>,
    pub(super) failures: u32,
    /// Reported hosts of the logged-in ports.
    pub(super) ports: Vec<(NPortId, u8)>,
}

/// A frame in flight.
struct InFlight {
    at_ns: u64,
    to: usize,
    from: u8,
    out: ElsOut,
}

pub(super) struct Segment {
    pub(super) nodes: Vec<Node>,
    pub(super) now_ns: u64,
    pub(super) faults: Faults,
    /// Discovery reports that the ports support the FC-4 protocol of the machines.
    pub(super) supports_fc4: bool,
    /// No FARP frame arrives.
    pub(super) drop_farp: bool,
    rng: Rng,
    in_flight: Vec<InFlight>,
}

/// Latency of a frame without faults.
const LATENCY_NS: u64 = 10_000;

impl Segment {
    pub(super) fn new(nodes: u8, seed: u64) -> Self {
        let mut segment = Self {
            nodes: Vec::new(),
            now_ns: 0,
            faults: Faults::default(),
            supports_fc4: false,
            drop_farp: false,
            rng: Rng::new(seed),
            in_flight: Vec::new(),
        };
        for number in 1..=nodes {
            let machine = segment.machine(number);
            segment.nodes.push(Node {
                machine,
                number,
                is_up: false,
                logins: Vec::new(),
                hosts: Vec::new(),
                failures: 0,
                ports: Vec::new(),
            });
        }
        segment
    }

    /// Returns the machine of node `number`: two nodes share a host, and each has its own frame size.
    fn machine(&mut self, number: u8) -> LoginMachine {
        let me = neighbour(number);
        let host = host(number.div_ceil(2));
        let mut config = LoginConfig::new(me.port_name, me.node_name, FC_VI, Some(host));
        config.data_field_bytes = 2112 - 100 * u16::from(number);
        LoginMachine::new(config, self.rng.next_u64())
    }

    /// Returns a node as discovery reports it to the others.
    fn as_found(&self, at: usize) -> Neighbour {
        Neighbour {
            supports_fc4: self.supports_fc4,
            ..neighbour(self.nodes[at].number)
        }
    }

    /// Starts a node: it gets its N_Port_ID, it and the others find each other, and they are ready for logins a little
    /// later.
    pub(super) fn start(&mut self, at: usize) {
        let me = self.as_found(at);
        self.nodes[at].is_up = true;
        self.nodes[at].machine.set_id(self.now_ns, Some(me.id));
        for other in 0..self.nodes.len() {
            if other == at || !self.nodes[other].is_up {
                continue;
            }
            let peer = self.as_found(other);
            self.nodes[at].machine.neighbour_found(self.now_ns, &peer);
            self.nodes[other].machine.neighbour_found(self.now_ns, &me);
            let wait_ns = self.rng.below(100_000_000);
            self.run(wait_ns);
            self.nodes[at].machine.neighbour_ready(self.now_ns, &peer);
            let wait_ns = self.rng.below(100_000_000);
            self.run(wait_ns);
            self.nodes[other].machine.neighbour_ready(self.now_ns, &me);
        }
    }

    /// Stops a node without notice; it has no state when it starts again. The others get no event.
    pub(super) fn kill(&mut self, at: usize) {
        let machine = self.machine(self.nodes[at].number);
        let node = &mut self.nodes[at];
        node.machine = machine;
        node.is_up = false;
        node.logins.clear();
        node.hosts.clear();
        node.ports.clear();
    }

    /// Advances the time.
    pub(super) fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        loop {
            self.pump();
            let frames = self.in_flight.iter().map(|frame| frame.at_ns);
            let timers = self
                .nodes
                .iter()
                .filter_map(|node| node.machine.poll_timeout());
            let Some(at_ns) = frames.chain(timers).min().filter(|at_ns| *at_ns <= end_ns) else {
                break;
            };
            assert!(at_ns >= self.now_ns, "a timer in the past");
            self.now_ns = at_ns;
            let due = |frame: &InFlight| frame.at_ns <= at_ns;
            while let Some(index) = self.in_flight.iter().position(due) {
                let frame = self.in_flight.swap_remove(index);
                self.deliver(&frame);
            }
            for node in &mut self.nodes {
                node.machine.handle_timeout(at_ns);
            }
        }
        self.now_ns = end_ns;
    }

    /// Sends all frames of the machines and records their events.
    fn pump(&mut self) {
        for at in 0..self.nodes.len() {
            while let Some(out) = self.nodes[at].machine.poll_outbound() {
                self.send(at, out);
            }
            while let Some(event) = self.nodes[at].machine.poll_event() {
                self.nodes[at].record(event);
            }
        }
    }

    fn send(&mut self, from: usize, out: ElsOut) {
        let is_farp = matches!(out.payload(), [0x54 | 0x55, ..]);
        if !self.nodes[from].is_up || (self.drop_farp && is_farp) {
            return;
        }
        let number = self.nodes[from].number;
        for to in 0..self.nodes.len() {
            let peer = neighbour(self.nodes[to].number);
            let is_for = match out.carrier {
                Carrier::Fip(_) => out.destination == peer.enode_mac,
                Carrier::Fcoe => {
                    out.destination == MacAddress::ALL_VN2VN
                        || out.destination == MacAddress::vn2vn(peer.id)
                }
            };
            if to == from || !is_for {
                continue;
            }
            let copies = if self.rng.chance(self.faults.lost) {
                0
            } else {
                1 + u32::from(self.rng.chance(self.faults.repeated))
            };
            for _ in 0..copies {
                let delayed = self.rng.chance(self.faults.delayed);
                let delay_ns = if delayed {
                    self.rng.below(self.faults.delay_ns)
                } else {
                    0
                };
                self.in_flight.push(InFlight {
                    at_ns: self.now_ns + LATENCY_NS + delay_ns,
                    to,
                    from: number,
                    out,
                });
            }
        }
    }

    fn deliver(&mut self, frame: &InFlight) {
        let node = &mut self.nodes[frame.to];
        if !node.is_up {
            return;
        }
        let sender = neighbour(frame.from);
        let out = &frame.out;
        match out.carrier {
            Carrier::Fip(_) => node.machine.handle_els(
                self.now_ns,
                out.carrier,
                sender.enode_mac,
                &out.fc,
                out.payload(),
            ),
            Carrier::Fcoe => {
                let bytes = fcoe_frame(out);
                let view = FrameView::parse(&bytes).expect("a valid frame");
                node.machine.handle_els(
                    self.now_ns,
                    out.carrier,
                    view.ethernet.src,
                    &view.fc,
                    view.data_field(),
                );
            }
        }
    }
}

impl Node {
    fn record(&mut self, event: LoginEvent) {
        match event {
            LoginEvent::LoggedIn(login) => {
                assert!(
                    self.logins.iter().all(|known| known.id != login.id),
                    "logged in twice without an end"
                );
                self.logins.push(login);
            }
            LoginEvent::LoggedOut { port_name, id, .. } => {
                let is_it = |l: &PortLogin| l.id == id && l.port_name == port_name;
                let index = self.logins.iter().position(is_it);
                self.logins.remove(index.expect("a reported login"));
                self.ports.retain(|(known, _)| *known != id);
            }
            LoginEvent::LoginFailed { .. } => self.failures += 1,
            LoginEvent::Resolved { host, id } => self.hosts.push((host.0[15], id)),
            LoginEvent::Host { id, host } => {
                assert!(self.logins.iter().any(|login| login.id == id));
                self.ports.retain(|(known, _)| *known != id);
                self.ports.push((id, host.0[15]));
            }
        }
    }
}

/// Returns the bytes of the frame on the wire.
fn fcoe_frame(out: &ElsOut) -> Vec<u8> {
    let header = FrameHeader {
        dst: out.destination,
        src: MacAddress::vn2vn(out.fc.s_id),
        sof: Sof::I3,
        fc: out.fc,
        device: None,
    };
    let mut bytes = vec![0; header.bytes()];
    header.emit(&mut bytes).expect("room for the header");
    bytes.extend_from_slice(out.payload());
    bytes.resize(bytes.len() + 8, 0);
    let frame_bytes = bytes.len();
    seal(&mut bytes, frame_bytes, Eof::T).expect("a legal length");
    bytes
}
