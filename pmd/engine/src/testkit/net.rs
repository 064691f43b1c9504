//! Engines, their I/O models and the wire under one injected clock.

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use fcvi_frame::frame::Payload;
use fcvi_frame::iu::Opcode;
pub(crate) use protocol_testkit::time::{MS, S};
use vi_types::{
    CallError, ConnId, Discriminator, HostAddress, Indication, NetAddress, Pumped,
    ReliabilityLevel, ViIndex, ViParams, ViState,
};

use super::io::{Event, Receive, Send, TestIo};
pub(crate) use super::nodes::Node;
use super::nodes::Nodes;
use super::topology::{Topology, topology};
use super::wire::{Sent, Wire};
use crate::recovery::MAX_RETRANSMITS;
use crate::timer::KEYS_PER_VI;
use crate::{ConnectCommand, Counter, Engine, EngineConfig, RemoteVi};

/// The usual roles of the first two nodes.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

/// N_Ports on one wire.
pub(crate) struct Net {
    pub(crate) now_ns: u64,
    pub(crate) nodes: Nodes,
    pub(crate) wire: Wire,
}

/// VI attributes for tests to which they do not matter.
pub(crate) fn params(level: ReliabilityLevel) -> ViParams {
    ViParams {
        level,
        max_transfer_bytes: 1 << 20,
        rdma_write: true,
        rdma_read: level.is_reliable(),
    }
}

pub(crate) fn discriminator(name: &str) -> Discriminator {
    Discriminator::new(name.as_bytes()).expect("a short name")
}

pub(crate) fn config(node: usize) -> EngineConfig {
    let id = NPortId::new(0x0101 + node as u32).expect("24 bits");
    let host = HostAddress::from_ipv4([10, 0, 0, node as u8 + 1]);
    let mut config = EngineConfig::new(id, host);
    config.port_name = 0x2000_0000_0000_0000 + node as u64;
    config.max_vi = 64;
    config.max_incoming = 8;
    config.max_pending_disconnects = 16;
    config
}

impl Net {
    pub(crate) fn new(configs: Vec<EngineConfig>, seed: u64) -> Self {
        let node = |(at, config): (usize, EngineConfig)| Node {
            id: config.n_port_id,
            engine: Engine::new(config, seed.wrapping_mul(0x9E37_79B9 + at as u64)),
            io: TestIo::new(seed ^ (at as u64 + 1)),
        };
        Self {
            now_ns: 5 * S,
            nodes: Nodes::new(configs.into_iter().enumerate().map(node).collect()),
            wire: Wire::new(seed),
        }
    }

    /// Creates client and server, joined as [`topology`] selects.
    pub(crate) fn pair() -> Self {
        Self::pair_with(1, |_| {})
    }

    /// As [`Net::pair`], with adjusted configurations.
    pub(crate) fn pair_with(seed: u64, adjust: impl Fn(&mut EngineConfig)) -> Self {
        let nodes: &[usize] = match topology() {
            Topology::Wire => &[CLIENT, SERVER],
            Topology::Port | Topology::Shortcut => &[CLIENT],
        };
        let configs = nodes.iter().map(|node| {
            let mut config = config(*node);
            config.shortcut = topology() == Topology::Shortcut;
            // The payload of one frame.
            config.shortcut_bytes = 2096;
            adjust(&mut config);
            config
        });
        Self::new(configs.collect(), seed)
    }

    /// Creates client and server with a connected VI each, and empty logs.
    pub(crate) fn connected(level: ReliabilityLevel) -> (Self, ViIndex, ViIndex) {
        let mut net = Self::pair();
        let (a, b) = net.join(level);
        net.clear_logs();
        net.wire.trace.clear();
        (net, a, b)
    }

    /// Creates a VI each for the first two nodes, and connects them.
    pub(crate) fn join(&mut self, level: ReliabilityLevel) -> (ViIndex, ViIndex) {
        let a = self.create(CLIENT, params(level));
        let b = self.create(SERVER, params(level));
        self.connect(a, b);
        (a, b)
    }

    /// Connects VIs of the first two nodes; both must succeed.
    pub(crate) fn connect(&mut self, a: ViIndex, b: ViIndex) {
        let listener = self.listen(SERVER, "x");
        self.request(CLIENT, a, "x", &[SERVER], None);
        self.settle();
        let conn = self.indication(SERVER, listener).expect("a request").conn;
        self.accept(SERVER, conn, b).expect("matching attributes");
        self.settle();
        assert!(matches!(self.outcome(CLIENT, a), Some(Ok(_))));
        assert!(matches!(self.outcome(SERVER, b), Some(Ok(_))));
    }

    /// Creates a VI on each side and a request of the client without timeout, which the server's
    /// consumer has taken and not answered.
    pub(crate) fn request_pending(
        &mut self,
        level: ReliabilityLevel,
    ) -> (ViIndex, ViIndex, ConnId) {
        let a = self.create(CLIENT, params(level));
        let b = self.create(SERVER, params(level));
        let listener = self.listen(SERVER, "x");
        self.request(CLIENT, a, "x", &[SERVER], None);
        self.settle();
        let request = self.indication(SERVER, listener);
        (a, b, request.expect("a request").conn)
    }

    pub(crate) fn create(&mut self, node: usize, params: ViParams) -> ViIndex {
        self.nodes[node]
            .engine
            .create_vi(params)
            .expect("a free slot")
    }

    pub(crate) fn listen(&mut self, node: usize, name: &str) -> u64 {
        self.nodes[node].engine.listen(discriminator(name))
    }

    pub(crate) fn indication(&mut self, node: usize, listener: u64) -> Option<Indication> {
        self.nodes[node].engine.take_indication(listener)
    }

    /// Sends a request to nodes, all of them ports of the host of the first one.
    pub(crate) fn request(
        &mut self,
        node: usize,
        vi: ViIndex,
        name: &str,
        targets: &[usize],
        timeout_ns: Option<u64>,
    ) {
        let outcome = self.try_request(node, vi, name, targets, timeout_ns);
        outcome.expect("an Idle VI");
    }

    pub(crate) fn try_request(
        &mut self,
        node: usize,
        vi: ViIndex,
        name: &str,
        targets: &[usize],
        timeout_ns: Option<u64>,
    ) -> Result<(), CallError> {
        let ids: Vec<NPortId> = targets.iter().map(|t| self.nodes[*t].id).collect();
        let command = self.command(node, name, targets, &ids, timeout_ns);
        let now_ns = self.now_ns;
        self.act(node, |engine, io| engine.connect(now_ns, vi, &command, io))
    }

    fn command<'a>(
        &self,
        node: usize,
        name: &str,
        targets: &[usize],
        ids: &'a [NPortId],
        timeout_ns: Option<u64>,
    ) -> ConnectCommand<'a> {
        let host_of = |node: &Node| node.engine.config().host;
        ConnectCommand {
            local: NetAddress {
                host: host_of(&self.nodes[node]),
                discriminator: discriminator("client"),
            },
            remote: NetAddress {
                host: host_of(&self.nodes[targets.first().copied().unwrap_or(node)]),
                discriminator: discriminator(name),
            },
            targets: ids,
            timeout_ns,
        }
    }

    /// Puts a request into the peer pool, for the host of the first of these nodes. Both sides use
    /// the discriminator `name`; the local one is not compared.
    pub(crate) fn peer_request(
        &mut self,
        node: usize,
        vi: ViIndex,
        name: &str,
        targets: &[usize],
        timeout_ns: Option<u64>,
    ) {
        let outcome = self.try_peer_request(node, vi, name, targets, timeout_ns);
        outcome.expect("an Idle VI");
    }

    pub(crate) fn try_peer_request(
        &mut self,
        node: usize,
        vi: ViIndex,
        name: &str,
        targets: &[usize],
        timeout_ns: Option<u64>,
    ) -> Result<(), CallError> {
        let ids: Vec<NPortId> = targets.iter().map(|t| self.nodes[*t].id).collect();
        let command = self.command(node, name, targets, &ids, timeout_ns);
        let now_ns = self.now_ns;
        self.act(node, |engine, io| {
            engine.connect_peer(now_ns, vi, &command, io)
        })
    }

    /// Takes the outcome of a VI's peer request, once; `None` while it has none.
    pub(crate) fn peer_outcome(
        &mut self,
        node: usize,
        vi: ViIndex,
    ) -> Option<Result<RemoteVi, CallError>> {
        let engine = &mut self.nodes[node].engine;
        match engine.peer_request(vi) {
            Some(number) => engine.take_peer_outcome(vi, number),
            None => Some(Err(CallError::InvalidState)),
        }
    }

    /// Returns the error of a finished peer request.
    pub(crate) fn peer_error(&mut self, node: usize, vi: ViIndex) -> Option<CallError> {
        self.peer_outcome(node, vi)?.err()
    }

    pub(crate) fn accept(
        &mut self,
        node: usize,
        conn: ConnId,
        vi: ViIndex,
    ) -> Result<(), CallError> {
        let now_ns = self.now_ns;
        self.act(node, |engine, io| engine.accept(now_ns, conn, vi, io))
    }

    pub(crate) fn reject(&mut self, node: usize, conn: ConnId) -> Result<(), CallError> {
        let now_ns = self.now_ns;
        self.act(node, |engine, io| engine.reject(now_ns, conn, io))
    }

    pub(crate) fn disconnect(&mut self, node: usize, vi: ViIndex) {
        let now_ns = self.now_ns;
        self.act(node, |engine, io| engine.disconnect(now_ns, vi, io));
    }

    pub(crate) fn peer_lost(&mut self, node: usize, peer: usize) {
        let (now_ns, id) = (self.now_ns, self.nodes[peer].id);
        self.act(node, |engine, io| engine.peer_lost(now_ns, id, io));
    }

    /// Reports another node to a node as found.
    pub(crate) fn port_joined(&mut self, node: usize, other: usize) {
        let (now_ns, id) = (self.now_ns, self.nodes[other].id);
        let address = self.nodes[other].engine.config().host;
        self.act(node, |engine, io| {
            engine.port_joined(now_ns, address, id, io);
        });
    }

    pub(crate) fn outcome(
        &mut self,
        node: usize,
        vi: ViIndex,
    ) -> Option<Result<RemoteVi, CallError>> {
        self.nodes[node].engine.take_outcome(vi)
    }

    /// Returns the error of a finished connection call.
    pub(crate) fn error(&mut self, node: usize, vi: ViIndex) -> Option<CallError> {
        self.outcome(node, vi)?.err()
    }

    pub(crate) fn state(&self, node: usize, vi: ViIndex) -> ViState {
        self.nodes[node].engine.state(vi).expect("a VI")
    }

    pub(crate) fn count(&self, node: usize, counter: Counter) -> u64 {
        self.nodes[node].engine.counters().get(counter)
    }

    /// Returns the sum of a counter over all nodes.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        let counts = self.nodes.iter().map(|n| n.engine.counters().get(counter));
        counts.sum()
    }

    pub(crate) fn post_receive(&mut self, node: usize, vi: ViIndex, capacity_bytes: u32) -> u64 {
        let receive = Receive {
            capacity_bytes,
            ..Receive::default()
        };
        self.nodes[node].io.post_receive(vi, receive)
    }

    pub(crate) fn post_send(&mut self, node: usize, vi: ViIndex, data: &[u8]) -> u64 {
        let send = Send {
            data: data.to_vec(),
            ..Send::default()
        };
        self.post(node, vi, send)
    }

    pub(crate) fn post(&mut self, node: usize, vi: ViIndex, send: Send) -> u64 {
        let now_ns = self.now_ns;
        let work = send.work();
        if self.nodes[node].io.may_send_in_one_step(vi, &send)
            && self.act(node, |engine, io| {
                engine.send_in_one_step(now_ns, vi, &work, Payload::from_slice(&send.data), io)
            })
        {
            return self.nodes[node].io.sent_in_one_step(vi, &send);
        }
        let id = self.nodes[node].io.post_send(vi, send);
        self.pump(node);
        id
    }

    /// Posts a read of `len` bytes.
    pub(crate) fn post_read(
        &mut self,
        node: usize,
        vi: ViIndex,
        source: (u64, u32),
        len: usize,
    ) -> u64 {
        self.post(node, vi, read(source, len))
    }

    /// Takes the data of completed reads.
    pub(crate) fn read_data(&mut self, node: usize, vi: ViIndex) -> Vec<(u64, Vec<u8>)> {
        core::mem::take(&mut self.nodes[node].io.vi(vi).reads)
    }

    /// Calls a verb of the engine, and gives what it sends to the wire.
    pub(crate) fn act<T>(
        &mut self,
        node: usize,
        verb: impl FnOnce(&mut Engine, &mut TestIo) -> T,
    ) -> T {
        let Node { engine, io, .. } = &mut self.nodes[node];
        let result = verb(engine, io);
        self.collect(node);
        self.check_bounds(node);
        result
    }

    fn collect(&mut self, node: usize) {
        while let Some(bytes) = self.nodes[node].io.out.pop_front() {
            let dst = MacAddress(bytes[..6].try_into().expect("6 bytes"));
            let to = self
                .nodes
                .iter()
                .position(|n| MacAddress::vn2vn(n.id) == dst);
            if let Some(to) = to {
                self.wire.send(self.now_ns, node, to, bytes);
            }
        }
    }

    /// Serves the run queue, as far as the port accepts frames.
    pub(crate) fn pump(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let Node { engine, io, .. } = &mut self.nodes[node];
        let mut posted: Vec<ViIndex> = io
            .vis
            .iter()
            .filter(|(_, q)| q.queued)
            .map(|(vi, _)| *vi)
            .collect();
        posted.sort();
        for vi in posted {
            io.vi(vi).queued = false;
            loop {
                match engine.pump(now_ns, vi, 16, io) {
                    Pumped::More => {}
                    Pumped::Idle => break,
                    Pumped::Blocked => {
                        io.vi(vi).queued = true;
                        break;
                    }
                }
            }
        }
        self.collect(node);
        self.check_bounds(node);
    }

    /// Checks that every table is within its limit.
    fn check_bounds(&self, node: usize) {
        let engine = &self.nodes[node].engine;
        let config = engine.config();
        assert!(engine.port.incoming.len() <= config.max_incoming as usize);
        assert!(engine.port.pending_disconnects.len() <= config.max_pending_disconnects as usize);
        for tx in engine
            .endpoints
            .iter()
            .flatten()
            .filter_map(|e| e.tx.as_ref())
        {
            assert!(tx.in_flight.len() <= config.max_unanswered as usize);
            let most = config.recovery.as_ref().map_or(0, |r| r.max_window_frames);
            assert!(tx.unacknowledged() <= most, "the window");
            let retransmits = tx.recovery.as_ref().map_or(0, |r| r.retransmit_count());
            assert!(retransmits <= MAX_RETRANSMITS);
        }
        for ep in engine.endpoints.iter().flatten() {
            let (runs, ahead) = ep.rx.reassembly.ahead.as_ref().map_or((0, 0), |r| r.kept());
            let most = config
                .recovery
                .as_ref()
                .map_or(0, |r| r.max_received_ranges);
            assert!(runs <= most as usize && ahead <= config.max_unanswered as usize);
        }
        assert!(engine.port.peers.len() <= config.max_vi as usize);
        let keys = 1
            + KEYS_PER_VI as u32 * config.max_vi
            + config.max_incoming
            + config.max_pending_disconnects;
        assert!(engine.port.timers.len() <= keys as usize);
    }

    /// Advances time: frames arrive, timers fire.
    pub(crate) fn advance(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        for node in 0..self.nodes.len() {
            self.pump(node);
        }
        loop {
            let timers = self.nodes.iter().filter_map(|n| n.engine.poll_timeout());
            let next = timers.chain(self.wire.next_ns()).min();
            match next {
                Some(at) if at <= end_ns => self.now_ns = self.now_ns.max(at),
                _ => break,
            }
            self.step();
        }
        self.now_ns = end_ns;
    }

    fn step(&mut self) {
        let now_ns = self.now_ns;
        while let Some((to, bytes)) = self.wire.arrived(now_ns) {
            self.act(to, |engine, io| engine.handle_frame(now_ns, &bytes, io));
        }
        for node in 0..self.nodes.len() {
            let due = self.nodes[node].engine.poll_timeout();
            if due.is_some_and(|at| at <= now_ns) {
                self.act(
                    node,
                    |engine, io| {
                        while engine.handle_timeout(now_ns, 8, io) {}
                    },
                );
                let next = self.nodes[node].engine.poll_timeout();
                assert!(
                    next.is_none_or(|at| at > now_ns),
                    "an expired timer stays set"
                );
            }
            self.pump(node);
        }
    }

    /// Delivers the oldest frame in transit, and lets each node send. Returns false if there is
    /// none.
    pub(crate) fn deliver_one(&mut self) -> bool {
        let Some(at_ns) = self.wire.next_ns() else {
            return false;
        };
        self.now_ns = self.now_ns.max(at_ns);
        let now_ns = self.now_ns;
        let Some((to, bytes)) = self.wire.arrived(now_ns) else {
            return false;
        };
        self.act(to, |engine, io| engine.handle_frame(now_ns, &bytes, io));
        for node in 0..self.nodes.len() {
            self.pump(node);
        }
        true
    }

    /// Delivers everything in transit; no procedure retries within that time.
    pub(crate) fn settle(&mut self) {
        self.advance(MS / 2);
    }

    /// Takes the log of a VI.
    pub(crate) fn log(&mut self, node: usize, vi: ViIndex) -> Vec<Event> {
        core::mem::take(&mut self.nodes[node].io.vi(vi).log)
    }

    pub(crate) fn clear_logs(&mut self) {
        for node in &mut self.nodes {
            for queues in node.io.vis.values_mut() {
                queues.log.clear();
            }
        }
    }

    /// Returns the IUs on the wire since the trace was cleared, with their senders.
    pub(crate) fn ius(&self) -> Vec<(usize, Opcode)> {
        let iu = |s: &Sent| s.opcode.map(|opcode| (s.from, opcode));
        self.wire.trace.iter().filter_map(iu).collect()
    }

    /// Returns the frames of one IU from one node.
    pub(crate) fn frames(&self, from: usize, opcode: Opcode) -> Vec<Vec<u8>> {
        let fits = |s: &&Sent| s.from == from && s.opcode == Some(opcode);
        let frames = self.wire.trace.iter().filter(fits);
        frames.map(|s| s.bytes.clone()).collect()
    }

    /// Delivers a frame to a node now.
    pub(crate) fn inject(&mut self, to: usize, bytes: &[u8]) {
        let now_ns = self.now_ns;
        self.act(to, |engine, io| engine.handle_frame(now_ns, bytes, io));
    }
}

/// Returns a read of `len` bytes.
pub(crate) fn read(source: (u64, u32), len: usize) -> Send {
    Send {
        data: vec![0; len],
        remote: Some(source),
        read: true,
        ..Send::default()
    }
}
