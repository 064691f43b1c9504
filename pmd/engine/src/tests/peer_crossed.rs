//! Exhaustive test of two matching peer requests whose IUs cross.
//!
//! Two sides post one request each and the frames of each direction arrive in the order in which they were sent. A
//! depth-first search runs every order of the steps: a side posts its request, or a frame arrives at a port. Each order
//! is run with either side as the higher one, for each value that can decide the rank, and again with each of its
//! frames lost, duplicated at once, or repeated at the end. The result is always exactly one connection, originated by
//! the higher side, within the time limit; other requests are not affected.

mod cases;

use std::collections::{BTreeSet, VecDeque};

use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::{ConnectStatus, connect_parameter};
use vi_types::{ReliabilityLevel, ViIndex, ViState};

use crate::connection_ids::ConnectionIds;
use crate::testkit::{
    expected_events::received,
    net::{CLIENT, MS, Net, S, SERVER, config, params},
};
use crate::{Counter, EngineConfig};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
/// Time limit of a connection: two retries of a lost IU and a reserve.
const TIME_LIMIT: u64 = 60 * MS;

/// The value that decides the rank, and the higher side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// N_Port_Names differ.
    PortName(usize),
    /// The names are equal, the connection IDs differ.
    ConnectionId(usize),
    /// Both are equal, the N_Port_IDs differ.
    PortId(usize),
    /// Two VIs of one port: the connection IDs differ. Side 0 requests first.
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

    /// Skips connection IDs of the ports until the next ones have this rank.
    fn set_connection_ids(self, net: &mut Net) {
        let mut ids = net.nodes.iter_mut();
        let mut ids = || ids.next().map(|node| &mut node.engine.port.connection_ids);
        let (Some(first), Some(second)) = (ids(), ids()) else {
            return;
        };
        let next = |ids: &ConnectionIds| ids.clone().allocate();
        match self {
            Rank::PortName(_) => {}
            Rank::PortId(_) => *second = first.clone(),
            Rank::ConnectionId(higher) => {
                while (next(first) > next(second)) != (higher == 0) {
                    first.allocate();
                }
            }
            Rank::OnePort(higher) => {
                let after_next = |ids: &ConnectionIds| {
                    let mut ids = ids.clone();
                    ids.allocate();
                    ids.allocate()
                };
                while (next(first) > after_next(first)) != (higher == 0) {
                    first.allocate();
                }
            }
        }
    }
}

/// A fault of one frame, numbered from the first one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Lost(usize),
    /// It arrives twice in a row.
    Duplicated(usize),
    /// It arrives once more when no other frame is in flight.
    Late(usize),
}

/// A possible next step: a side posts its request, or a frame arrives at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Post(usize),
    Arrive(usize),
}

/// A step at one side, and the IUs that its port then sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// The side is the higher one.
    higher: bool,
    /// The IU that arrived; `None`: the side posted its request.
    arrived: Option<&'static str>,
    sent: Vec<&'static str>,
}

/// Requests besides the two that cross: one in the pool, and one pending at a consumer.
struct OtherRequests {
    pooled: ViIndex,
    pending: ViIndex,
    listener: u64,
}

/// A run with given choices; after the last one it takes the first possible step.
struct Run {
    net: Net,
    rank: Rank,
    nodes: [usize; 2],
    vis: [ViIndex; 2],
    posted: [bool; 2],
    connection_ids: [u32; 2],
    other_requests: OtherRequests,
    /// Frames in flight to each node.
    in_flight: [VecDeque<Vec<u8>>; 2],
    sent: usize,
    late: Vec<(usize, Vec<u8>)>,
    fault: Fault,
    /// The choices made, each with the number of possible steps.
    made: Vec<(usize, usize)>,
    events: Vec<Event>,
}

impl Run {
    fn new(rank: Rank, fault: Fault) -> Self {
        let mut net = Net::new(rank.configs(), 11);
        net.wire.tracing = false;
        let nodes = rank.nodes();
        let vis = nodes.map(|node| net.create(node, params(RD)));
        let other_requests = OtherRequests {
            pooled: net.create(nodes[0], params(RD)),
            pending: net.create(nodes[0], params(RD)),
            listener: net.listen(nodes[1], "pending"),
        };
        net.peer_request(nodes[0], other_requests.pooled, "pooled", &[nodes[1]], None);
        net.request(
            nodes[0],
            other_requests.pending,
            "pending",
            &[nodes[1]],
            None,
        );
        net.settle();
        rank.set_connection_ids(&mut net);
        Self {
            net,
            rank,
            nodes,
            vis,
            posted: [false; 2],
            connection_ids: [0; 2],
            other_requests,
            in_flight: [VecDeque::new(), VecDeque::new()],
            sent: 0,
            late: Vec::new(),
            fault,
            made: Vec::new(),
            events: Vec::new(),
        }
    }

    fn possible(&self) -> Vec<Step> {
        let in_order = matches!(self.rank, Rank::OnePort(_));
        let may_post =
            |side: &usize| !self.posted[*side] && (!in_order || *side == 0 || self.posted[0]);
        let posts = (0..2).filter(may_post).map(Step::Post);
        let arrivals = (0..2)
            .filter(|n| !self.in_flight[*n].is_empty())
            .map(Step::Arrive);
        posts.chain(arrivals).collect()
    }

    fn step(&mut self, step: Step) {
        let (side, arrived) = match step {
            Step::Post(side) => {
                self.posted[side] = true;
                let (node, peer) = (self.nodes[side], self.nodes[1 - side]);
                self.net
                    .peer_request(node, self.vis[side], "x", &[peer], None);
                self.connection_ids[side] = self.net.nodes[node].engine.port.connection_ids.last();
                (side, None)
            }
            Step::Arrive(node) => {
                let Some(frame) = self.in_flight[node].pop_front() else {
                    return;
                };
                let (originator, iu) = self.identify(&frame);
                self.net.inject(node, &frame);
                let from_originator = matches!(iu, "RQST" | "RESP2");
                let side = if from_originator {
                    1 - originator
                } else {
                    originator
                };
                (side, Some(iu))
            }
        };
        let sent = self.dispatch_sent();
        self.events.push(Event {
            higher: side == self.rank.higher(),
            arrived,
            sent,
        });
    }

    /// Moves the frames just sent to `in_flight`, subject to the fault; returns their names.
    fn dispatch_sent(&mut self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (to, frame) in self.net.wire.take_in_transit() {
            let number = self.sent;
            self.sent += 1;
            names.push(self.identify(&frame).1);
            let copies = match self.fault {
                Fault::Lost(n) if n == number => 0,
                Fault::Duplicated(n) if n == number => 2,
                Fault::Late(n) if n == number => {
                    self.late.push((to, frame.clone()));
                    1
                }
                Fault::None | Fault::Lost(_) | Fault::Duplicated(_) | Fault::Late(_) => 1,
            };
            for _ in 0..copies {
                self.in_flight[to].push_back(frame.clone());
            }
        }
        names
    }

    /// Returns the side that originated the connection of a frame, and the name of the IU.
    fn identify(&self, bytes: &[u8]) -> (usize, &'static str) {
        let frame = FrameView::parse(bytes).expect("a frame");
        let iu = frame.iu().expect("an IU");
        let from_originator = matches!(
            iu.header.opcode,
            Opcode::ConnectRequest | Opcode::ConnectResponse2
        );
        let originator_port = if from_originator {
            frame.fc.s_id
        } else {
            frame.fc.d_id
        };
        let is_originator = |side: &usize| {
            self.connection_ids[*side] == iu.header.connection_id()
                && self.net.nodes[self.nodes[*side]].id == originator_port
        };
        ((0..2).find(is_originator).unwrap_or(0), name_of(&iu))
    }

    fn run(&mut self, choices: &[usize]) {
        loop {
            let possible = self.possible();
            if possible.is_empty() {
                break;
            }
            // With a fault fewer steps may be possible: then the last one is chosen.
            let choice = choices.get(self.made.len()).copied().unwrap_or(0);
            let choice = choice.min(possible.len() - 1);
            self.made.push((choice, possible.len()));
            self.step(possible[choice]);
        }
        for (to, frame) in core::mem::take(&mut self.late) {
            self.net.inject(to, &frame);
        }
        self.dispatch_sent();
        // The remaining frames arrive without choices.
        for to in 0..2 {
            for frame in core::mem::take(&mut self.in_flight[to]) {
                self.net.wire.inject(self.net.now_ns, to, frame);
            }
        }
        self.net.advance(TIME_LIMIT);
    }

    fn check(&mut self, what: &str) {
        self.check_sides(what);
        self.exchange_messages(what);
        self.check_other_requests(what);
        // No state remains: no retries, no unfinished procedure.
        self.net.advance(30 * S);
        for node in &self.net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}");
            assert_eq!(node.engine.port.timers.len(), 0, "{what}");
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
            assert_eq!(node.engine.counters().get(Counter::Breaks), 0, "{what}");
        }
        for side in 0..2 {
            let state = self.net.state(self.nodes[side], self.vis[side]);
            assert_eq!(state, ViState::Connected, "{what}");
        }
    }

    /// Asserts that both sides are connected with each other by one connection, originated by the higher side.
    fn check_sides(&mut self, what: &str) {
        for side in 0..2 {
            let (node, vi) = (self.nodes[side], self.vis[side]);
            let state = self.net.state(node, vi);
            assert_eq!(state, ViState::Connected, "{what}");
            let outcome = self.net.peer_outcome(node, vi);
            let remote = outcome.expect("an outcome").expect("a connection");
            assert_eq!(remote.n_port_id, self.net.nodes[self.nodes[1 - side]].id);
        }
        let connects = (0..2).map(|node| self.net.count(node, Counter::Connects));
        assert_eq!(connects.sum::<u64>(), 2, "{what}");
        let side = |side: usize| {
            let engine = &self.net.nodes[self.nodes[side]].engine;
            let ep = engine.endpoints[self.vis[side].slot()].as_ref();
            let ep = ep.expect("a VI");
            (ep.handle, ep.connection.expect("a connection"))
        };
        let ((handle0, connection0), (handle1, connection1)) = (side(0), side(1));
        assert_eq!(
            connection0.connection_id, connection1.connection_id,
            "{what}"
        );
        assert_eq!(
            (connection0.peer_handle, connection1.peer_handle),
            (handle1, handle0)
        );
        let higher = self.rank.higher();
        let originators = [connection0.originator, connection1.originator];
        assert_eq!(originators, [higher == 0, higher == 1], "{what}");
    }

    fn exchange_messages(&mut self, what: &str) {
        for side in 0..2 {
            let (from, to) = (side, 1 - side);
            let id = self.net.post_receive(self.nodes[to], self.vis[to], 16);
            self.net.log(self.nodes[to], self.vis[to]);
            self.net
                .post_send(self.nodes[from], self.vis[from], b"hello");
            self.net.settle();
            let log = self.net.log(self.nodes[to], self.vis[to]);
            assert_eq!(log, [received(id, b"hello")], "{what}");
        }
    }

    /// Asserts that the other requests are pending, and that they find their matches.
    fn check_other_requests(&mut self, what: &str) {
        let [local, remote] = self.nodes;
        for vi in [self.other_requests.pooled, self.other_requests.pending] {
            let state = self.net.state(local, vi);
            assert_eq!(state, ViState::ConnectPending, "{what}");
        }
        let [pooled, pending] = [0; 2].map(|_| self.net.create(remote, params(RD)));
        self.net
            .peer_request(remote, pooled, "pooled", &[local], None);
        let found = self.net.indication(remote, self.other_requests.listener);
        let conn = found.expect("a request").conn;
        self.net.accept(remote, conn, pending).expect("a request");
        self.net.advance(TIME_LIMIT);
        for (node, vi) in [
            (local, self.other_requests.pooled),
            (local, self.other_requests.pending),
            (remote, pooled),
            (remote, pending),
        ] {
            let state = self.net.state(node, vi);
            assert_eq!(state, ViState::Connected, "{what}");
        }
    }
}

/// Returns the name of an IU in the document.
fn name_of(iu: &IuView<'_>) -> &'static str {
    match iu.header.opcode {
        Opcode::ConnectRequest => "RQST",
        Opcode::ConnectResponse1 => match connect_parameter::unpack(iu.header.parameter).0 {
            ConnectStatus::Continue => "RESP1 accepted",
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

/// Returns the next choices of the depth-first search; `None` after the last ones.
fn next_choices(mut made: Vec<(usize, usize)>) -> Option<Vec<usize>> {
    while let Some((choice, possible)) = made.pop() {
        if choice + 1 < possible {
            let mut choices: Vec<usize> = made.into_iter().map(|(choice, _)| choice).collect();
            choices.push(choice + 1);
            return Some(choices);
        }
    }
    None
}

/// Runs and checks every possible order with this fault. Returns the event traces and the maximum number of frames.
fn orders(rank: Rank, fault: Fault) -> (BTreeSet<Vec<Event>>, usize) {
    let (mut traces, mut frames) = (BTreeSet::new(), 0);
    let mut choices = Some(Vec::new());
    while let Some(given) = choices {
        let mut run = Run::new(rank, fault);
        run.run(&given);
        frames = frames.max(run.sent);
        choices = next_choices(run.made.clone());
        let what = format!("{rank:?}, {fault:?}: {}", cases::line(&run.events));
        run.check(&what);
        traces.insert(run.events);
    }
    (traces, frames)
}

#[test]
fn every_order_connects_with_each_frame_lost_or_duplicated() {
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
            for fault in [Fault::Lost(at), Fault::Duplicated(at), Fault::Late(at)] {
                runs += orders(rank, fault).0.len();
            }
        }
    }
    println!("{runs} orders");
    assert!(runs > 1000);
}
