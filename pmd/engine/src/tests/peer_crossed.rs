//! Every order in which two requests that match and their responses can cross.
//!
//! Two nodes post one request each and the frames of each direction arrive in the order in
//! which they were sent; whether the next thing is a request or the arrival of a frame at
//! one node or the other is tried in every way there is. Each such order is run with either
//! port outranking the other, and once more with each of its frames lost, doubled at once,
//! or doubled after everything else. Always exactly one connection comes of it, in time.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::{ConnectStatus, connect_parameter};

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params, received};
use crate::{Counter, EndpointState, EngineConfig, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
/// Two repetitions of a lost IU, and then some.
const IN_TIME: u64 = 60 * MS;

/// What goes wrong with one frame, counted from the first one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Lost(usize),
    /// It arrives twice in a row.
    Doubled(usize),
    /// It arrives once more when nothing else is on its way.
    Late(usize),
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Post(usize),
    Arrive(usize),
}

/// A run along given choices; beyond them the first possible step is taken.
struct Run {
    net: Net,
    vis: [ViIndex; 2],
    posted: [bool; 2],
    /// Frames on their way to each node.
    flying: [VecDeque<Vec<u8>>; 2],
    sent: usize,
    late: Vec<(usize, Vec<u8>)>,
    fault: Fault,
    /// The choices made, each with the number of possible ones.
    made: Vec<(usize, usize)>,
    trace: String,
}

/// Node 1 outranks node 0 or the other way around.
fn configs(higher: usize) -> Vec<EngineConfig> {
    let mut configs: Vec<_> = (0..2).map(config).collect();
    let name = configs[SERVER].port_name;
    configs[higher].port_name = name + 1;
    configs[1 - higher].port_name = name;
    configs
}

impl Run {
    fn new(higher: usize, fault: Fault) -> Self {
        let mut net = Net::new(configs(higher), 11);
        net.wire.tracing = false;
        let vis = [
            net.create(CLIENT, params(RD)),
            net.create(SERVER, params(RD)),
        ];
        Self {
            net,
            vis,
            posted: [false; 2],
            flying: [VecDeque::new(), VecDeque::new()],
            sent: 0,
            late: Vec::new(),
            fault,
            made: Vec::new(),
            trace: String::new(),
        }
    }

    fn possible(&self) -> Vec<Step> {
        let posts = (0..2).filter(|n| !self.posted[*n]).map(Step::Post);
        let arrivals = (0..2)
            .filter(|n| !self.flying[*n].is_empty())
            .map(Step::Arrive);
        posts.chain(arrivals).collect()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Post(node) => {
                self.posted[node] = true;
                write!(self.trace, " {node}:post").expect("a string");
                let vi = self.vis[node];
                self.net.peer_request(node, vi, "x", &[1 - node], None);
            }
            Step::Arrive(node) => {
                if let Some(frame) = self.flying[node].pop_front() {
                    write!(self.trace, " {node}<{}", name(&frame)).expect("a string");
                    self.net.inject(node, &frame);
                }
            }
        }
        self.take_off();
    }

    /// What was sent is on its way, as far as nothing goes wrong with it.
    fn take_off(&mut self) {
        for (to, frame) in self.net.wire.take_flying() {
            let number = self.sent;
            self.sent += 1;
            let copies = match self.fault {
                Fault::Lost(n) if n == number => 0,
                Fault::Doubled(n) if n == number => 2,
                Fault::Late(n) if n == number => {
                    self.late.push((to, frame.clone()));
                    1
                }
                Fault::None | Fault::Lost(_) | Fault::Doubled(_) | Fault::Late(_) => 1,
            };
            for _ in 0..copies {
                self.flying[to].push_back(frame.clone());
            }
        }
    }

    fn run(&mut self, choices: &[usize]) {
        loop {
            let possible = self.possible();
            if possible.is_empty() {
                break;
            }
            // A fault takes possibilities away: then the last one is chosen.
            let choice = choices.get(self.made.len()).copied().unwrap_or(0);
            let choice = choice.min(possible.len() - 1);
            self.made.push((choice, possible.len()));
            self.step(possible[choice]);
        }
        for (to, frame) in core::mem::take(&mut self.late) {
            self.net.inject(to, &frame);
        }
        self.take_off();
        // The rest goes its way without choices.
        for to in 0..2 {
            for frame in core::mem::take(&mut self.flying[to]) {
                self.net.wire.inject(self.net.now_ns, to, frame);
            }
        }
        self.net.advance(IN_TIME);
    }

    fn judge(&mut self, higher: usize, what: &str) {
        for node in 0..2 {
            let state = self.net.state(node, self.vis[node]);
            assert_eq!(state, EndpointState::Connected, "{what}");
            let outcome = self.net.peer_outcome(node, self.vis[node]);
            let remote = outcome.expect("an outcome").expect("a connection");
            assert_eq!(remote.n_port_id, self.net.nodes[1 - node].id, "{what}");
            assert_eq!(self.net.count(node, Counter::Connects), 1, "{what}");
            assert_eq!(self.net.count(node, Counter::Breaks), 0, "{what}");
        }
        let end = |node: usize| {
            let vi = self.vis[node].slot();
            let ep = self.net.nodes[node].engine.endpoints[vi].as_ref();
            let ep = ep.expect("a VI");
            (ep.handle, ep.link.expect("a connection"))
        };
        let ((handle0, link0), (handle1, link1)) = (end(0), end(1));
        assert_eq!(link0.connection_id, link1.connection_id, "{what}");
        assert_eq!((link0.peer_handle, link1.peer_handle), (handle1, handle0));
        let originators = [link0.originator, link1.originator];
        assert_eq!(originators, [higher == 0, higher == 1], "{what}");
        self.talk(what);
        // Nothing stays behind: no repetition, no half a procedure.
        self.net.advance(30 * S);
        for node in &self.net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}");
            assert_eq!(node.engine.timers.len(), 0, "{what}");
            assert!(node.engine.closing.iter().all(Option::is_none), "{what}");
        }
        for node in 0..2 {
            let state = self.net.state(node, self.vis[node]);
            assert_eq!(state, EndpointState::Connected, "{what}");
        }
    }

    fn talk(&mut self, what: &str) {
        for node in 0..2 {
            let id = self.net.post_receive(1 - node, self.vis[1 - node], 16);
            self.net.log(1 - node, self.vis[1 - node]);
            self.net.post_send(node, self.vis[node], b"hello");
            self.net.settle();
            let log = self.net.log(1 - node, self.vis[1 - node]);
            assert_eq!(log, [received(id, b"hello")], "{what}");
        }
    }
}

/// An IU in the trace.
fn name(bytes: &[u8]) -> &'static str {
    let frame = FrameView::parse(bytes).expect("a frame");
    let iu = frame.iu().expect("an IU");
    match iu.header.opcode {
        Opcode::ConnectRequest => "RQST",
        Opcode::ConnectResponse1 => match connect_parameter::unpack(iu.header.parameter).0 {
            ConnectStatus::GoOn => "RESP1(0)",
            ConnectStatus::Pending => "RESP1(1)",
            ConnectStatus::Superseded => "RESP1(2)",
            ConnectStatus::Failed | ConnectStatus::Unknown(_) => "RESP1(failed)",
        },
        Opcode::ConnectResponse2 => "RESP2",
        Opcode::ConnectResponse3 => "RESP3",
        Opcode::DisconnectRequest => "DISC",
        Opcode::DisconnectResponse => "DISC_RESP",
        _ => "message",
    }
}

/// The next choices in the order of a depth-first search; `None` after the last ones.
fn following(mut made: Vec<(usize, usize)>) -> Option<Vec<usize>> {
    while let Some((choice, possible)) = made.pop() {
        if choice + 1 < possible {
            let mut choices: Vec<usize> = made.into_iter().map(|(choice, _)| choice).collect();
            choices.push(choice + 1);
            return Some(choices);
        }
    }
    None
}

/// Runs and judges every order that there is with this fault; what arrived in which order,
/// and the greatest number of frames.
fn orders(higher: usize, fault: Fault) -> (BTreeSet<String>, usize) {
    let (mut traces, mut frames) = (BTreeSet::new(), 0);
    let mut choices = Some(Vec::new());
    while let Some(given) = choices {
        let mut run = Run::new(higher, fault);
        run.run(&given);
        frames = frames.max(run.sent);
        choices = following(run.made.clone());
        let what = format!("node {higher} higher, {fault:?}:{}", run.trace);
        run.judge(higher, &what);
        traces.insert(run.trace);
    }
    (traces, frames)
}

/// The table of what arrives in which order, for both winners. A connection takes no time
/// but that of its frames: no order waits for a timer.
#[test]
fn every_order_makes_one_connection() {
    let mut table = String::new();
    for higher in [SERVER, CLIENT] {
        writeln!(table, "the port of node {higher} is the higher one").expect("a string");
        for trace in orders(higher, Fault::None).0 {
            writeln!(table, "   {trace}").expect("a string");
        }
    }
    let expected = include_str!("peer_crossed/orders.txt");
    assert!(table == expected, "the whole table:\n{table}");
}

#[test]
fn every_order_with_each_of_its_frames_lost_or_doubled() {
    let mut runs = 0;
    for higher in [SERVER, CLIENT] {
        let (_, frames) = orders(higher, Fault::None);
        for at in 0..frames {
            for fault in [Fault::Lost(at), Fault::Doubled(at), Fault::Late(at)] {
                runs += orders(higher, fault).0.len();
            }
        }
    }
    println!("{runs} orders");
    assert!(runs > 500);
}
