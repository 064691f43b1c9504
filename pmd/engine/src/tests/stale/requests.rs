//! Connections asked for, held, made, refused, taken back and ended, over the network that
//! repeats everything and loses disconnects; and a judge of what each end believes of the other.

use std::collections::{HashMap, HashSet, VecDeque};

use fcvi_frame::iu::Opcode;

use super::model::R_A_TOV;
use super::network::Network;
use crate::endpoint::Phase;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::opcode;
use crate::{ConnId, ConnectError, Counter, EndpointState, Level, ViIndex};

const STEPS: u64 = 400;
/// Less than the delay of the wire.
const TICK_NS: u64 = 500;

/// A connection: the N_Port_ID of who asked for it, and the ID that it chose.
type Key = (u32, u32);

/// What an end believes: itself and its handle, the peer and the peer's handle.
type Half = (Key, (u32, u32), (u32, u32));

struct Client {
    node: usize,
    vi: ViIndex,
    /// What it asks for, until it takes that back.
    asks: Option<Key>,
}

struct Play {
    net: Net,
    network: Network,
    rng: Rng,
    flying: VecDeque<(u64, usize, Vec<u8>)>,
    lossy: bool,
    clients: Vec<Client>,
    servers: Vec<ViIndex>,
    listeners: Vec<u64>,
    held: Vec<(ConnId, Key)>,
    accepting: HashMap<ViIndex, Key>,
    shown: HashSet<Key>,
    rejected: HashSet<Key>,
    /// Left by one of its ends.
    ended: HashSet<Key>,
    halves: HashSet<Half>,
    connected: HashMap<(usize, ViIndex), Key>,
}

/// With `alike` two clients draw the same connection IDs.
pub(super) fn play(seed: u64, alike: bool) -> Result<(), String> {
    let clients = if alike { vec![CLIENT, 2] } else { vec![CLIENT] };
    let configs = (0..=clients.len()).map(|node| {
        let mut config = config(node);
        config.r_a_tov_ns = R_A_TOV;
        config
    });
    let mut net = Net::new(configs.collect(), seed);
    net.wire.tracing = false;
    if alike {
        let first = net.nodes[CLIENT].engine.next_connection_id;
        net.nodes[2].engine.next_connection_id = first;
    }
    let rd = params(Level::ReliableDelivery);
    let of_each = |node: &usize| [*node; 2];
    let nodes: Vec<usize> = clients.iter().flat_map(of_each).collect();
    let clients = nodes.iter().map(|node| Client {
        node: *node,
        vi: net.create(*node, rd),
        asks: None,
    });
    let clients: Vec<Client> = clients.collect();
    let servers = (0..6).map(|_| net.create(SERVER, rd)).collect();
    let mut play = Play {
        network: Network::new(seed, R_A_TOV),
        rng: Rng::new(seed),
        flying: VecDeque::new(),
        lossy: true,
        clients,
        servers,
        listeners: (0..2).map(|_| net.listen(SERVER, "x")).collect(),
        held: Vec::new(),
        accepting: HashMap::new(),
        shown: HashSet::new(),
        rejected: HashSet::new(),
        ended: HashSet::new(),
        halves: HashSet::new(),
        connected: HashMap::new(),
        net,
    };
    for _ in 0..STEPS {
        play.act()?;
        let pause = match play.rng.below(16) {
            0 => play.rng.below(2 * S),
            _ => play.rng.below(MS),
        };
        play.pass(pause)?;
    }
    play.lossy = false;
    play.pass(60 * S)?;
    play.judge_end()
}

impl Play {
    fn key_of(&self, node: usize, connection_id: u32) -> Key {
        (self.net.nodes[node].id.get(), connection_id)
    }

    /// One end does something.
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
                self.leave(SERVER, vi);
            }
            1 if !self.held.is_empty() => {
                let at = self.rng.below(self.held.len() as u64) as usize;
                let (conn, key) = self.held.swap_remove(at);
                if self.net.reject(SERVER, conn).is_ok() {
                    self.rejected.insert(key);
                }
            }
            _ if !self.held.is_empty() => self.accept()?,
            _ => {}
        }
        Ok(())
    }

    fn act_client(&mut self, at: usize) {
        let (node, vi) = (self.clients[at].node, self.clients[at].vi);
        let patient = self.rng.below(3) > 0;
        match self.net.state(node, vi) {
            EndpointState::ConnectPending | EndpointState::Connected if patient => {}
            EndpointState::Idle => {
                self.net.request(node, vi, "x", &[SERVER], None);
                let id = self.net.nodes[node].engine.next_connection_id;
                self.clients[at].asks = Some(self.key_of(node, id));
            }
            EndpointState::ConnectPending | EndpointState::Connected | EndpointState::Error => {
                if let Some(key) = self.clients[at].asks.take() {
                    self.ended.insert(key);
                }
                self.leave(node, vi);
            }
        }
    }

    /// The consumer of this VI disconnects.
    fn leave(&mut self, node: usize, vi: ViIndex) {
        let ep = self.net.nodes[node].engine.endpoints[vi.slot()].as_ref();
        if let Some(link) = ep.and_then(|ep| ep.link) {
            let originator = if link.originator {
                self.net.nodes[node].id.get()
            } else {
                link.peer.get()
            };
            self.ended.insert((originator, link.connection_id));
        }
        self.connected.remove(&(node, vi));
        self.accepting.remove(&vi);
        self.net.disconnect(node, vi);
        let _ = self.net.outcome(node, vi);
    }

    fn accept(&mut self) -> Result<(), String> {
        let idle = |vi: &&ViIndex| self.net.state(SERVER, **vi) == EndpointState::Idle;
        let Some(vi) = self.servers.iter().find(idle).copied() else {
            return Ok(());
        };
        let at = self.rng.below(self.held.len() as u64) as usize;
        let (conn, key) = self.held.swap_remove(at);
        match self.net.accept(SERVER, conn, vi) {
            Ok(()) => {
                self.accepting.insert(vi, key);
                Ok(())
            }
            Err(ConnectError::Timeout) if self.is_asked_for(key) => {
                Err(format!("{key:?} was taken back by a late disconnect"))
            }
            Err(_) => Ok(()),
        }
    }

    fn is_asked_for(&self, key: Key) -> bool {
        self.clients.iter().any(|client| client.asks == Some(key))
    }

    /// Lets time pass, and everything arrive that is on its way.
    fn pass(&mut self, duration_ns: u64) -> Result<(), String> {
        let end_ns = self.net.now_ns + duration_ns;
        loop {
            self.net.advance(TICK_NS);
            let now_ns = self.net.now_ns;
            for (to, bytes) in self.net.wire.take_flying() {
                self.flying.push_back((now_ns, to, bytes));
            }
            match self.flying.pop_front() {
                Some((sent_ns, to, bytes)) => self.arrive(sent_ns, to, &bytes)?,
                None if self.net.now_ns >= end_ns => return self.judge(),
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
            self.judge()?;
        }
        self.network.remember(sent_ns, to, bytes);
        let may_be_lost = opcode(bytes) == Some(Opcode::DisconnectRequest);
        if !(self.lossy && may_be_lost && self.network.chance(500_000)) {
            self.net.inject(to, bytes);
            self.judge()?;
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), String> {
        self.judge_shown()?;
        self.judge_ends()?;
        self.judge_outcomes()
    }

    /// Each request is shown to one consumer, once.
    fn judge_shown(&mut self) -> Result<(), String> {
        for at in 0..self.listeners.len() {
            let Some(found) = self.net.indication(SERVER, self.listeners[at]) else {
                continue;
            };
            self.listeners[at] = self.net.listen(SERVER, "x");
            let incoming = &self.net.nodes[SERVER].engine.incoming[found.conn.index as usize];
            let incoming = incoming.as_ref().ok_or("no request")?;
            let key = (incoming.s_id.get(), incoming.connection_id);
            if !self.shown.insert(key) {
                return Err(format!("{key:?} was shown twice"));
            }
            self.held.push((found.conn, key));
        }
        Ok(())
    }

    /// Whoever is connected is so with an end that was, or is, connected with it.
    fn judge_ends(&mut self) -> Result<(), String> {
        let mut connected = Vec::new();
        for (node, this) in self.net.nodes.iter().enumerate() {
            for (slot, ep) in this.engine.endpoints.iter().enumerate() {
                let Some((ep, link)) = ep.as_ref().and_then(|ep| Some((ep, ep.link?))) else {
                    continue;
                };
                let (own, peer) = (this.id.get(), link.peer.get());
                let key = (if link.originator { own } else { peer }, link.connection_id);
                let (here, there) = ((own, ep.handle), (peer, link.peer_handle));
                self.halves.insert((key, here, there));
                if matches!(ep.phase, Phase::Connected) {
                    connected.push(((node, ViIndex(slot as u32)), (key, there, here)));
                }
            }
        }
        for (at, other_half) in connected {
            if !self.halves.contains(&other_half) {
                return Err(format!("{at:?} is connected with nobody: {other_half:?}"));
            }
            self.connected.insert(at, other_half.0);
        }
        let broken = |at: &(usize, ViIndex)| self.net.state(at.0, at.1) != EndpointState::Connected;
        let broken: Vec<_> = self.connected.keys().copied().filter(broken).collect();
        for at in broken {
            let key = self.connected.remove(&at);
            if key.is_some_and(|key| !self.ended.contains(&key)) {
                return Err(format!("{at:?}: nobody ended {key:?}"));
            }
        }
        Ok(())
    }

    /// A request fails for a reason.
    fn judge_outcomes(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            let (node, vi, asks) = {
                let client = &self.clients[at];
                (client.node, client.vi, client.asks)
            };
            let Some(Err(error)) = self.net.outcome(node, vi) else {
                continue;
            };
            self.clients[at].asks = None;
            if error == ConnectError::Resources {
                // Whoever was shown its requests let them lie.
                assert!(self.net.count(SERVER, Counter::DropIncomingFull) > 0);
                continue;
            }
            if asks.is_some_and(|key| !self.rejected.contains(&key) && !self.ended.contains(&key)) {
                return Err(format!("{asks:?} failed, and nobody refused it: {error:?}"));
            }
        }
        for vi in self.servers.clone() {
            let Some(outcome) = self.net.outcome(SERVER, vi) else {
                continue;
            };
            let key = self.accepting.remove(&vi);
            if outcome.is_err() && key.is_some_and(|key| self.is_asked_for(key)) {
                return Err(format!("{key:?} was accepted, and nobody took it back"));
            }
        }
        Ok(())
    }

    /// In the end both ends of each connection are connected, or neither is; nobody waits.
    fn judge_end(&self) -> Result<(), String> {
        for (at, key) in &self.connected {
            let both = self.connected.values().filter(|other| *other == key);
            if both.count() != 2 {
                return Err(format!("{at:?} alone is connected: {key:?}"));
            }
        }
        for node in &self.net.nodes {
            if node.engine.closing.iter().any(Option::is_some) {
                return Err("a disconnect is left".to_owned());
            }
        }
        Ok(())
    }
}
