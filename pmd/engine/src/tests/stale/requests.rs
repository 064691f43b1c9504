//! Connections that are requested, pending, accepted, rejected, cancelled and ended over the network, which repeats all
//! frames and loses disconnects; checks the state of both sides.

use std::collections::{HashMap, HashSet, VecDeque};

use fcvi_frame::iu::Opcode;
use vi_types::{CallError, ConnId, ReliabilityLevel, ViIndex, ViState};

use super::model::R_A_TOV;
use super::network::Network;
use crate::Counter;
use crate::endpoint::Phase;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::opcode;

const STEPS: u64 = 400;
/// Less than the delay of the wire.
const TICK_NS: u64 = 500;

/// Identifies a connection: the N_Port_ID of the originator, and the connection ID that it chose.
type Key = (u32, u32);

/// A connection as one side sees it: local N_Port_ID and handle, then those of the peer.
type SideView = (Key, (u32, u32), (u32, u32));

struct Client {
    node: usize,
    vi: ViIndex,
    /// The connection that it requests, until it cancels or disconnects.
    requested: Option<Key>,
}

struct Simulation {
    net: Net,
    network: Network,
    rng: Rng,
    in_flight: VecDeque<(u64, usize, Vec<u8>)>,
    lossy: bool,
    clients: Vec<Client>,
    servers: Vec<ViIndex>,
    listeners: Vec<u64>,
    pending: Vec<(ConnId, Key)>,
    accepting: HashMap<ViIndex, Key>,
    indicated: HashSet<Key>,
    rejected: HashSet<Key>,
    /// Disconnected by one of its sides.
    ended: HashSet<Key>,
    views: HashSet<SideView>,
    connected: HashMap<(usize, ViIndex), Key>,
}

/// Runs the simulation. With `similar` two clients use the same connection IDs.
pub(super) fn run(seed: u64, similar: bool) -> Result<(), String> {
    let clients = if similar {
        vec![CLIENT, 2]
    } else {
        vec![CLIENT]
    };
    let configs = (0..=clients.len()).map(|node| {
        let mut config = config(node);
        config.r_a_tov_ns = R_A_TOV;
        config
    });
    let mut net = Net::new(configs.collect(), seed);
    net.wire.tracing = false;
    if similar {
        net.nodes[2].engine.port.connection_ids =
            net.nodes[CLIENT].engine.port.connection_ids.clone();
    }
    let rd = params(ReliabilityLevel::ReliableDelivery);
    let of_each = |node: &usize| [*node; 2];
    let nodes: Vec<usize> = clients.iter().flat_map(of_each).collect();
    let clients = nodes.iter().map(|node| Client {
        node: *node,
        vi: net.create(*node, rd),
        requested: None,
    });
    let clients: Vec<Client> = clients.collect();
    let servers = (0..6).map(|_| net.create(SERVER, rd)).collect();
    let mut simulation = Simulation {
        network: Network::new(seed, R_A_TOV),
        rng: Rng::new(seed),
        in_flight: VecDeque::new(),
        lossy: true,
        clients,
        servers,
        listeners: (0..2).map(|_| net.listen(SERVER, "x")).collect(),
        pending: Vec::new(),
        accepting: HashMap::new(),
        indicated: HashSet::new(),
        rejected: HashSet::new(),
        ended: HashSet::new(),
        views: HashSet::new(),
        connected: HashMap::new(),
        net,
    };
    for _ in 0..STEPS {
        simulation.act()?;
        let pause = match simulation.rng.below(16) {
            0 => simulation.rng.below(2 * S),
            _ => simulation.rng.below(MS),
        };
        simulation.advance(pause)?;
    }
    simulation.lossy = false;
    simulation.advance(60 * S)?;
    simulation.check_end()
}

impl Simulation {
    fn key_of(&self, node: usize, connection_id: u32) -> Key {
        (self.net.nodes[node].id.get(), connection_id)
    }

    /// Performs a random action of a client or server.
    fn act(&mut self) -> Result<(), String> {
        if self.rng.below(2) == 0 {
            let at = self.rng.below(self.clients.len() as u64) as usize;
            self.act_client(at);
            return Ok(());
        }
        match self.rng.below(4) {
            0 => {
                let at = self.rng.below(self.servers.len() as u64) as usize;
                let vi = self.servers[at];
                self.disconnect(SERVER, vi);
            }
            1 if !self.pending.is_empty() => {
                let at = self.rng.below(self.pending.len() as u64) as usize;
                let (conn, key) = self.pending.swap_remove(at);
                if self.net.reject(SERVER, conn).is_ok() {
                    self.rejected.insert(key);
                }
            }
            _ if !self.pending.is_empty() => self.accept()?,
            _ => {}
        }
        Ok(())
    }

    fn act_client(&mut self, at: usize) {
        let (node, vi) = (self.clients[at].node, self.clients[at].vi);
        let keeps = self.rng.below(3) > 0;
        match self.net.state(node, vi) {
            ViState::ConnectPending | ViState::Connected if keeps => {}
            ViState::Idle => {
                self.net.request(node, vi, "x", &[SERVER], None);
                let id = self.net.nodes[node].engine.port.connection_ids.last();
                self.clients[at].requested = Some(self.key_of(node, id));
            }
            ViState::ConnectPending | ViState::Connected | ViState::Error => {
                if let Some(key) = self.clients[at].requested.take() {
                    self.ended.insert(key);
                }
                self.disconnect(node, vi);
            }
        }
    }

    /// Disconnects a VI.
    fn disconnect(&mut self, node: usize, vi: ViIndex) {
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        if let Some(connection) = ep.and_then(|ep| ep.connection) {
            let originator = if connection.originator {
                self.net.nodes[node].id.get()
            } else {
                connection.peer.get()
            };
            self.ended.insert((originator, connection.connection_id));
        }
        self.connected.remove(&(node, vi));
        self.accepting.remove(&vi);
        self.net.disconnect(node, vi);
        let _ = self.net.outcome(node, vi);
    }

    fn accept(&mut self) -> Result<(), String> {
        let idle = |vi: &&ViIndex| self.net.state(SERVER, **vi) == ViState::Idle;
        let Some(vi) = self.servers.iter().find(idle).copied() else {
            return Ok(());
        };
        let at = self.rng.below(self.pending.len() as u64) as usize;
        let (conn, key) = self.pending.swap_remove(at);
        match self.net.accept(SERVER, conn, vi) {
            Ok(()) => {
                self.accepting.insert(vi, key);
                Ok(())
            }
            Err(CallError::Timeout) if self.is_requested(key) => {
                Err(format!("{key:?} was cancelled by a late disconnect"))
            }
            Err(_) => Ok(()),
        }
    }

    fn is_requested(&self, key: Key) -> bool {
        self.clients
            .iter()
            .any(|client| client.requested == Some(key))
    }

    /// Advances the time and delivers all frames in flight.
    fn advance(&mut self, duration_ns: u64) -> Result<(), String> {
        let end_ns = self.net.now_ns + duration_ns;
        loop {
            self.net.advance(TICK_NS);
            let now_ns = self.net.now_ns;
            for (to, bytes) in self.net.wire.take_in_transit() {
                self.in_flight.push_back((now_ns, to, bytes));
            }
            match self.in_flight.pop_front() {
                Some((sent_ns, to, bytes)) => self.arrive(sent_ns, to, &bytes)?,
                None if self.net.now_ns >= end_ns => return self.check(),
                None => {
                    let timers = self
                        .net
                        .nodes
                        .iter()
                        .filter_map(|n| n.engine.poll_timeout());
                    let next_ns = timers.chain([end_ns]).min().unwrap_or(end_ns);
                    self.net.now_ns = self.net.now_ns.max(next_ns.min(end_ns));
                }
            }
        }
    }

    fn arrive(&mut self, sent_ns: u64, to: usize, bytes: &[u8]) -> Result<(), String> {
        for stale in self.network.stale(self.net.now_ns, to, bytes) {
            self.net.inject(to, &stale);
            self.check()?;
        }
        self.network.record(sent_ns, to, bytes);
        let may_be_lost = opcode(bytes) == Some(Opcode::DisconnectRequest);
        if !(self.lossy && may_be_lost && self.network.chance(500_000)) {
            self.net.inject(to, bytes);
            self.check()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_indications()?;
        self.check_sides()?;
        self.check_outcomes()
    }

    /// Checks that each request is indicated to one consumer, once.
    fn check_indications(&mut self) -> Result<(), String> {
        for at in 0..self.listeners.len() {
            let Some(found) = self.net.indication(SERVER, self.listeners[at]) else {
                continue;
            };
            self.listeners[at] = self.net.listen(SERVER, "x");
            let incoming =
                &self.net.nodes[SERVER].engine.port.incoming[found.conn.index() as usize];
            let incoming = incoming.as_ref().ok_or("no request")?;
            let key = (incoming.s_id.get(), incoming.connection_id);
            if !self.indicated.insert(key) {
                return Err(format!("{key:?} was indicated twice"));
            }
            self.pending.push((found.conn, key));
        }
        Ok(())
    }

    /// Checks that every connected VI has a peer that is or was connected with it, and that connections end only when a
    /// side disconnects.
    fn check_sides(&mut self) -> Result<(), String> {
        let mut connected = Vec::new();
        for (node, this) in self.net.nodes.iter().enumerate() {
            for (slot, ep) in this.engine.endpoints.iter().enumerate() {
                let Some((ep, connection)) = ep.as_ref().and_then(|ep| Some((ep, ep.connection?)))
                else {
                    continue;
                };
                let (own, peer) = (this.id.get(), connection.peer.get());
                let key = (
                    if connection.originator { own } else { peer },
                    connection.connection_id,
                );
                let (local, remote) = ((own, ep.handle), (peer, connection.peer_handle));
                self.views.insert((key, local, remote));
                if matches!(ep.phase, Phase::Connected) {
                    connected.push(((node, ViIndex(slot as u32)), (key, remote, local)));
                }
            }
        }
        for (at, peer_view) in connected {
            if !self.views.contains(&peer_view) {
                return Err(format!("{at:?} is connected without a peer: {peer_view:?}"));
            }
            self.connected.insert(at, peer_view.0);
        }
        let broken = |at: &(usize, ViIndex)| self.net.state(at.0, at.1) != ViState::Connected;
        let broken: Vec<_> = self.connected.keys().copied().filter(broken).collect();
        for at in broken {
            let key = self.connected.remove(&at);
            if key.is_some_and(|key| !self.ended.contains(&key)) {
                return Err(format!("{at:?}: {key:?} ended without a disconnect"));
            }
        }
        Ok(())
    }

    /// Checks that requests and acceptances fail only after a rejection, a cancellation or a disconnect.
    fn check_outcomes(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            let (node, vi, requested) = {
                let client = &self.clients[at];
                (client.node, client.vi, client.requested)
            };
            let Some(Err(error)) = self.net.outcome(node, vi) else {
                continue;
            };
            self.clients[at].requested = None;
            if error == CallError::NO_RESOURCES {
                // The table is full of requests without an answer.
                assert!(self.net.count(SERVER, Counter::DropIncomingFull) > 0);
                continue;
            }
            if requested
                .is_some_and(|key| !self.rejected.contains(&key) && !self.ended.contains(&key))
            {
                return Err(format!(
                    "{requested:?} failed without a rejection: {error:?}"
                ));
            }
        }
        for vi in self.servers.clone() {
            let Some(outcome) = self.net.outcome(SERVER, vi) else {
                continue;
            };
            let key = self.accepting.remove(&vi);
            if outcome.is_err() && key.is_some_and(|key| self.is_requested(key)) {
                return Err(format!(
                    "{key:?} was accepted and failed without a cancellation"
                ));
            }
        }
        Ok(())
    }

    /// Checks that finally both sides of each connection are connected or neither is, and no disconnect is pending.
    fn check_end(&self) -> Result<(), String> {
        for (at, key) in &self.connected {
            let both = self.connected.values().filter(|other| *other == key);
            if both.count() != 2 {
                return Err(format!("only {at:?} is connected: {key:?}"));
            }
        }
        for node in &self.net.nodes {
            if node
                .engine
                .port
                .pending_disconnects
                .iter()
                .any(Option::is_some)
            {
                return Err("a disconnect is pending".to_owned());
            }
        }
        Ok(())
    }
}
