//! Every order in which two requests that match and their responses can cross.
//!
//! Two ends post one request each and the frames of each direction arrive in the order in
//! which they were sent; whether the next thing is a request or the arrival of a frame at
//! one port or the other is tried in every way there is. Each such order is run with either
//! end outranking the other, by each thing that can decide it, and once more with each of its
//! frames lost, doubled at once, or doubled after everything else. Always exactly one connection
//! comes of it, in time, and it is the higher one's; requests beside it are not touched.

mod cases;

use std::collections::{BTreeSet, VecDeque};

use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::{ConnectStatus, connect_parameter};

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params, received};
use crate::{Counter, EndpointState, EngineConfig, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
/// Two repetitions of a lost IU, and then some.
const IN_TIME: u64 = 60 * MS;

/// What decides between the two, and for which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// N_Port_Names differ.
    PortName(usize),
    /// They are equal: the connection IDs differ.
    ConnectionId(usize),
    /// Those are equal, too: the N_Port_IDs differ.
    PortId(usize),
    /// Two VIs of one port: the connection IDs differ. End 0 asks first.
    OnePort(usize),
}

impl Rank {
    fn higher(self) -> usize {
        match self {
            Rank::PortName(higher)
            | Rank::ConnectionId(higher)
            | Rank::PortId(higher)
            | Rank::OnePort(higher) => higher,
        }
    }

    fn nodes(self) -> [usize; 2] {
        match self {
            Rank::OnePort(_) => [CLIENT; 2],
            Rank::PortName(_) | Rank::ConnectionId(_) | Rank::PortId(_) => [CLIENT, SERVER],
        }
    }

    fn configs(self) -> Vec<EngineConfig> {
        let mut configs: Vec<_> = (0..2).map(config).collect();
        let ids = [configs[0].n_port_id, configs[1].n_port_id];
        let name = configs[SERVER].port_name;
        for config in &mut configs {
            config.port_name = name;
        }
        match self {
            Rank::PortName(higher) => configs[higher].port_name = name + 1,
            Rank::PortId(higher) => {
                configs[higher].n_port_id = ids[1];
                configs[1 - higher].n_port_id = ids[0];
            }
            Rank::ConnectionId(_) | Rank::OnePort(_) => {}
        }
        configs
    }

    /// The connection IDs that the ports drew last.
    fn draw(self, net: &mut Net) {
        let last = match self {
            Rank::PortName(_) => return,
            Rank::ConnectionId(0) => [2000, 1000],
            Rank::ConnectionId(_) => [1000, 2000],
            Rank::PortId(_) => [1000; 2],
            // The second one comes after the end of the numbers.
            Rank::OnePort(0) => [u32::MAX - 1; 2],
            Rank::OnePort(_) => [1000; 2],
        };
        for (node, last) in net.nodes.iter_mut().zip(last) {
            node.engine.next_connection_id = last;
        }
    }
}

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

/// What can happen next: an end asks, or a frame arrives at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Post(usize),
    Arrive(usize),
}

/// What happened at an end, and what its port sent then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// Is it the higher one?
    higher: bool,
    /// The IU that arrived; `None`: it asked.
    arrived: Option<&'static str>,
    sent: Vec<&'static str>,
}

/// Requests beside the two that cross: one in the pools, and one that a consumer holds.
struct Beside {
    pooled: ViIndex,
    held: ViIndex,
    listener: u64,
}

/// A run along given choices; beyond them the first possible step is taken.
struct Run {
    net: Net,
    rank: Rank,
    nodes: [usize; 2],
    vis: [ViIndex; 2],
    posted: [bool; 2],
    connection_ids: [u32; 2],
    beside: Beside,
    /// Frames on their way to each node.
    flying: [VecDeque<Vec<u8>>; 2],
    sent: usize,
    late: Vec<(usize, Vec<u8>)>,
    fault: Fault,
    /// The choices made, each with the number of possible ones.
    made: Vec<(usize, usize)>,
    events: Vec<Event>,
}

impl Run {
    fn new(rank: Rank, fault: Fault) -> Self {
        let mut net = Net::new(rank.configs(), 11);
        net.wire.tracing = false;
        let nodes = rank.nodes();
        let vis = nodes.map(|node| net.create(node, params(RD)));
        let beside = Beside {
            pooled: net.create(nodes[0], params(RD)),
            held: net.create(nodes[0], params(RD)),
            listener: net.listen(nodes[1], "held"),
        };
        net.peer_request(nodes[0], beside.pooled, "pooled", &[nodes[1]], None);
        net.request(nodes[0], beside.held, "held", &[nodes[1]], None);
        net.settle();
        rank.draw(&mut net);
        Self {
            net,
            rank,
            nodes,
            vis,
            posted: [false; 2],
            connection_ids: [0; 2],
            beside,
            flying: [VecDeque::new(), VecDeque::new()],
            sent: 0,
            late: Vec::new(),
            fault,
            made: Vec::new(),
            events: Vec::new(),
        }
    }

    fn possible(&self) -> Vec<Step> {
        let in_turn = matches!(self.rank, Rank::OnePort(_));
        let may_post =
            |end: &usize| !self.posted[*end] && (!in_turn || *end == 0 || self.posted[0]);
        let posts = (0..2).filter(may_post).map(Step::Post);
        let arrivals = (0..2)
            .filter(|n| !self.flying[*n].is_empty())
            .map(Step::Arrive);
        posts.chain(arrivals).collect()
    }

    fn step(&mut self, step: Step) {
        let (end, arrived) = match step {
            Step::Post(end) => {
                self.posted[end] = true;
                let (node, peer) = (self.nodes[end], self.nodes[1 - end]);
                self.net
                    .peer_request(node, self.vis[end], "x", &[peer], None);
                self.connection_ids[end] = self.net.nodes[node].engine.next_connection_id;
                (end, None)
            }
            Step::Arrive(node) => {
                let Some(frame) = self.flying[node].pop_front() else {
                    return;
                };
                let (originator, iu) = self.name(&frame);
                self.net.inject(node, &frame);
                let asked = matches!(iu, "RQST" | "RESP2");
                let end = if asked { 1 - originator } else { originator };
                (end, Some(iu))
            }
        };
        let sent = self.take_off();
        self.events.push(Event {
            higher: end == self.rank.higher(),
            arrived,
            sent,
        });
    }

    /// What was sent is on its way, as far as nothing goes wrong with it.
    fn take_off(&mut self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (to, frame) in self.net.wire.take_flying() {
            let number = self.sent;
            self.sent += 1;
            names.push(self.name(&frame).1);
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
        names
    }

    /// The end that asked for the connection which a frame is about, and its IU.
    fn name(&self, bytes: &[u8]) -> (usize, &'static str) {
        let frame = FrameView::parse(bytes).expect("a frame");
        let iu = frame.iu().expect("an IU");
        let asks = matches!(
            iu.header.opcode,
            Opcode::ConnectRequest | Opcode::ConnectResponse2
        );
        let asking_port = if asks { frame.fc.s_id } else { frame.fc.d_id };
        let is_its = |end: &usize| {
            self.connection_ids[*end] == iu.header.connection_id()
                && self.net.nodes[self.nodes[*end]].id == asking_port
        };
        ((0..2).find(is_its).unwrap_or(0), name_of(&iu))
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

    fn judge(&mut self, what: &str) {
        self.judge_ends(what);
        self.talk(what);
        self.judge_beside(what);
        // Nothing stays behind: no repetition, no half a procedure.
        self.net.advance(30 * S);
        for node in &self.net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}");
            assert_eq!(node.engine.timers.len(), 0, "{what}");
            assert!(node.engine.closing.iter().all(Option::is_none), "{what}");
            assert!(node.engine.incoming.iter().all(Option::is_none), "{what}");
            assert_eq!(node.engine.counters().get(Counter::Breaks), 0, "{what}");
        }
        for end in 0..2 {
            let state = self.net.state(self.nodes[end], self.vis[end]);
            assert_eq!(state, EndpointState::Connected, "{what}");
        }
    }

    /// Both are connected with each other by one connection, which the higher one asked for.
    fn judge_ends(&mut self, what: &str) {
        for end in 0..2 {
            let (node, vi) = (self.nodes[end], self.vis[end]);
            let state = self.net.state(node, vi);
            assert_eq!(state, EndpointState::Connected, "{what}");
            let outcome = self.net.peer_outcome(node, vi);
            let remote = outcome.expect("an outcome").expect("a connection");
            assert_eq!(remote.n_port_id, self.net.nodes[self.nodes[1 - end]].id);
        }
        let connects = (0..2).map(|node| self.net.count(node, Counter::Connects));
        assert_eq!(connects.sum::<u64>(), 2, "{what}");
        let end = |end: usize| {
            let engine = &self.net.nodes[self.nodes[end]].engine;
            let ep = engine.endpoints[self.vis[end].slot()].as_ref();
            let ep = ep.expect("a VI");
            (ep.handle, ep.link.expect("a connection"))
        };
        let ((handle0, link0), (handle1, link1)) = (end(0), end(1));
        assert_eq!(link0.connection_id, link1.connection_id, "{what}");
        assert_eq!((link0.peer_handle, link1.peer_handle), (handle1, handle0));
        let higher = self.rank.higher();
        let originators = [link0.originator, link1.originator];
        assert_eq!(originators, [higher == 0, higher == 1], "{what}");
    }

    fn talk(&mut self, what: &str) {
        for end in 0..2 {
            let (from, to) = (end, 1 - end);
            let id = self.net.post_receive(self.nodes[to], self.vis[to], 16);
            self.net.log(self.nodes[to], self.vis[to]);
            self.net
                .post_send(self.nodes[from], self.vis[from], b"hello");
            self.net.settle();
            let log = self.net.log(self.nodes[to], self.vis[to]);
            assert_eq!(log, [received(id, b"hello")], "{what}");
        }
    }

    /// The requests beside them wait as before, and find their matches.
    fn judge_beside(&mut self, what: &str) {
        let [here, there] = self.nodes;
        for vi in [self.beside.pooled, self.beside.held] {
            let state = self.net.state(here, vi);
            assert_eq!(state, EndpointState::ConnectPending, "{what}");
        }
        let [pooled, held] = [0; 2].map(|_| self.net.create(there, params(RD)));
        self.net
            .peer_request(there, pooled, "pooled", &[here], None);
        let found = self.net.indication(there, self.beside.listener);
        let conn = found.expect("a request").conn;
        self.net.accept(there, conn, held).expect("a request");
        self.net.advance(IN_TIME);
        for (node, vi) in [
            (here, self.beside.pooled),
            (here, self.beside.held),
            (there, pooled),
            (there, held),
        ] {
            let state = self.net.state(node, vi);
            assert_eq!(state, EndpointState::Connected, "{what}");
        }
    }
}

/// The name of an IU in the table.
fn name_of(iu: &IuView<'_>) -> &'static str {
    match iu.header.opcode {
        Opcode::ConnectRequest => "RQST",
        Opcode::ConnectResponse1 => match connect_parameter::unpack(iu.header.parameter).0 {
            ConnectStatus::GoOn => "RESP1 accepted",
            ConnectStatus::Pending => "RESP1 pending",
            ConnectStatus::Superseded => "RESP1 superseded",
            ConnectStatus::Failed | ConnectStatus::Unknown(_) => "RESP1 failed",
        },
        Opcode::ConnectResponse2 => "RESP2",
        Opcode::ConnectResponse3 => "RESP3",
        Opcode::DisconnectRequest => "DISCONNECT_RQST",
        Opcode::DisconnectResponse => "DISCONNECT_RESP",
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

/// Runs and judges every order that there is with this fault; what happened in which order,
/// and the greatest number of frames.
fn orders(rank: Rank, fault: Fault) -> (BTreeSet<Vec<Event>>, usize) {
    let (mut traces, mut frames) = (BTreeSet::new(), 0);
    let mut choices = Some(Vec::new());
    while let Some(given) = choices {
        let mut run = Run::new(rank, fault);
        run.run(&given);
        frames = frames.max(run.sent);
        choices = following(run.made.clone());
        let what = format!("{rank:?}, {fault:?}: {}", cases::line(&run.events));
        run.judge(&what);
        traces.insert(run.events);
    }
    (traces, frames)
}

#[test]
fn every_order_with_each_of_its_frames_lost_or_doubled() {
    let mut runs = 0;
    for rank in [
        Rank::PortName(SERVER),
        Rank::PortName(CLIENT),
        Rank::ConnectionId(SERVER),
        Rank::OnePort(SERVER),
        Rank::OnePort(CLIENT),
    ] {
        let (_, frames) = orders(rank, Fault::None);
        for at in 0..frames {
            for fault in [Fault::Lost(at), Fault::Doubled(at), Fault::Late(at)] {
                runs += orders(rank, fault).0.len();
            }
        }
    }
    println!("{runs} orders");
    assert!(runs > 1000);
}
