//! Connections over the network, with checks of every placed byte, delivered message and completed descriptor.

use std::collections::{HashMap, VecDeque};

use vi_types::{ReliabilityLevel, Status, ViIndex, ViParams, ViState};

use super::contents::Name;
use super::network::Network;
use super::setup::Setup;
use crate::testkit::io::{Destination, Event, Placement, Received, Send};
use crate::testkit::net::{Net, S, config, read};
use crate::testkit::rng::Rng;
use crate::{Counter, RecoveryConfig};

pub(super) const R_A_TOV: u64 = 10 * S;
/// Less than the delay of the wire, so that frames can be taken from it in flight.
const TICK_NS: u64 = 500;
/// Written by peers, and read by peers.
const REGION: u32 = 7;
const SOURCE: u32 = 8;
/// Number of ranges of a region, which messages use in turn.
const RANGES: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write { immediate: bool },
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    length_bytes: usize,
    address: u64,
    placed_bytes: usize,
}

/// One side of a connection.
pub(super) struct Endpoint {
    pub(super) node: usize,
    pub(super) vi: ViIndex,
    posted: Vec<Message>,
    /// The ID of their first descriptor.
    first_send_id: u64,
    broken: bool,
    /// With recovery: position up to which its messages are acknowledged.
    acknowledged: Option<(u32, u32)>,
    /// The next message of the peer that can take a receive descriptor.
    next: u32,
    delivered: u32,
    /// The message whose bytes are in a receive descriptor.
    owners: HashMap<u64, Name>,
}

/// Two connected sides, and the number of their connection.
pub(super) struct Pair {
    pub(super) sides: [Endpoint; 2],
    connection: u16,
}

pub(super) struct Model {
    pub(super) net: Net,
    setup: Setup,
    /// Every port receives every frame.
    pub(super) flooded: bool,
    network: Network,
    rng: Rng,
    in_flight: VecDeque<(u64, usize, Vec<u8>)>,
    pub(super) pairs: Vec<Pair>,
    connections: u16,
    taken_ox_ids: Vec<(usize, u16, u16)>,
    steps: u64,
}

/// The result of a check; an error describes the effect of a stale frame.
type Checked = Result<(), String>;

impl Model {
    pub(super) fn new(setup: Setup) -> Self {
        let configs = (0..setup.nodes).map(|node| {
            let mut config = config(node);
            config.data_field_bytes = setup.data_field_bytes;
            config.r_a_tov_ns = R_A_TOV;
            config.recovery = setup.recovery.then(RecoveryConfig::default);
            config
        });
        let mut net = Net::new(configs.collect(), setup.seed);
        net.wire.tracing = false;
        for node in &mut net.nodes {
            let bytes = RANGES as usize * setup.longest();
            node.io.register(REGION, 0, bytes);
            node.io.register(SOURCE, 0, bytes);
            node.io.placements = Some(Vec::new());
            node.io.random_mask = setup.random_mask;
        }
        Self {
            net,
            network: Network::new(setup.seed, R_A_TOV),
            rng: Rng::new(setup.seed),
            setup,
            flooded: false,
            in_flight: VecDeque::new(),
            pairs: Vec::new(),
            connections: 0,
            taken_ox_ids: Vec::new(),
            steps: 0,
        }
    }

    pub(super) fn create(&mut self, node: usize) -> ViIndex {
        let params = ViParams {
            level: self.setup.level,
            max_transfer_bytes: self.setup.longest() as u32,
            rdma_write: true,
            rdma_read: self.setup.level.is_reliable(),
        };
        self.net.create(node, params)
    }

    /// Adds two VIs that are to be connected; returns the index of the pair.
    pub(super) fn pair(&mut self, client: (usize, ViIndex), server: (usize, ViIndex)) -> usize {
        let side = |(node, vi)| Endpoint {
            node,
            vi,
            posted: Vec::new(),
            first_send_id: 0,
            broken: true,
            acknowledged: None,
            next: 0,
            delivered: 0,
            owners: HashMap::new(),
        };
        self.pairs.push(Pair {
            sides: [side(client), side(server)],
            connection: 0,
        });
        self.pairs.len() - 1
    }

    /// Connects a pair while stale frames arrive; retries until it succeeds.
    pub(super) fn connect(&mut self, at: usize) -> Checked {
        let [(client, a), (server, b)] = [0, 1].map(|side| {
            (
                self.pairs[at].sides[side].node,
                self.pairs[at].sides[side].vi,
            )
        });
        for _ in 0..50 {
            self.net.disconnect(client, a);
            self.net.disconnect(server, b);
            self.idle(1_000_000)?;
            self.reset_records(at);
            let name = format!("pair {at}");
            let mut listener = self.net.listen(server, &name);
            self.net.request(client, a, &name, &[server], None);
            for _ in 0..200 {
                self.idle(10_000)?;
                if let Some(found) = self.net.indication(server, listener) {
                    // The accepted request may be stale; the client rejects it, and the next one counts.
                    let _ = self.net.accept(server, found.conn, b);
                    listener = self.net.listen(server, &name);
                }
                let connected = |node, vi| self.net.state(node, vi) == ViState::Connected;
                if connected(client, a) && connected(server, b) {
                    break;
                }
            }
            self.net
                .act(server, |engine, io| engine.unlisten(listener, io));
            let _ = (self.net.outcome(client, a), self.net.outcome(server, b));
            let states = [self.net.state(client, a), self.net.state(server, b)];
            if states == [ViState::Connected; 2] {
                return Ok(());
            }
        }
        Err("no connection is made".to_owned())
    }

    /// Resets the records of a pair for a new connection.
    fn reset_records(&mut self, at: usize) {
        self.connections += 1;
        let pair = &mut self.pairs[at];
        pair.connection = self.connections;
        for side in &mut pair.sides {
            let queues = self.net.nodes[side.node].io.vi(side.vi);
            queues.log.clear();
            queues.reads.clear();
            side.posted.clear();
            side.first_send_id = queues.next_send_id;
            side.broken = false;
            side.acknowledged = None;
            side.next = 0;
            side.delivered = 0;
            side.owners.clear();
        }
    }

    pub(super) fn disconnect(&mut self, at: usize) -> Checked {
        self.check()?;
        for side in 0..2 {
            let (node, vi) = (
                self.pairs[at].sides[side].node,
                self.pairs[at].sides[side].vi,
            );
            self.net.disconnect(node, vi);
            self.pairs[at].sides[side].broken = true;
            self.net.log(node, vi);
        }
        self.idle(1_000_000)
    }

    /// Lets each side post messages up to `messages`, and waits until all have completed.
    pub(super) fn traffic(&mut self, at: usize, messages: usize) -> Checked {
        let ways = if self.setup.both_ways { 2 } else { 1 };
        self.occupy_ox_ids();
        for (side, other) in [(0, 1), (1, 0)].into_iter().take(ways) {
            let receiver = &self.pairs[at].sides[other];
            let (node, vi) = (receiver.node, receiver.vi);
            for _ in self.pairs[at].sides[side].posted.len()..messages {
                self.net.post_receive(node, vi, self.setup.longest() as u32);
            }
        }
        loop {
            let mut working = false;
            for side in 0..ways {
                let this = &self.pairs[at].sides[side];
                let (node, vi) = (this.node, this.vi);
                let remaining = messages - this.posted.len();
                let pending = self.net.nodes[node].io.vi(vi).sends.len();
                if this.broken {
                    continue;
                }
                if remaining > 0 && pending < 4 {
                    self.post(at, side);
                }
                working |= remaining > 0 || pending > 0;
            }
            let delivered = self.step()?;
            if !working && !delivered {
                break;
            }
            if !delivered {
                // All pending operations wait for a timer.
                self.net.advance(100_000);
            }
        }
        self.release_ox_ids();
        self.check_delivery(at, messages, ways)
    }

    /// Checks that everything was posted and has arrived, unless the network withheld frames.
    fn check_delivery(&mut self, at: usize, messages: usize, ways: usize) -> Checked {
        self.idle(100_000)?;
        // All frames that were sent are valid.
        for counter in [
            Counter::DropMalformed,
            Counter::DropBadCrc,
            Counter::DropBadIu,
        ] {
            for node in 0..self.setup.nodes {
                assert_eq!(self.net.count(node, counter), 0);
            }
        }
        let lossless = self.setup.withheld == 0;
        for (from, to) in [(0, 1), (1, 0)].into_iter().take(ways) {
            let sides = &self.pairs[at].sides;
            if sides[from].broken || sides[to].broken {
                continue;
            }
            let takes =
                |m: &&Message| matches!(m.kind, Kind::Send | Kind::Write { immediate: true });
            let expected = sides[from].posted.iter().filter(takes).count();
            let delivered = sides[to].delivered as usize;
            if lossless && (delivered, messages) != (expected, sides[from].posted.len()) {
                return Err(format!("{delivered} of {expected} messages delivered"));
            }
        }
        Ok(())
    }

    fn post(&mut self, at: usize, side: usize) {
        let pair = &mut self.pairs[at];
        let number = pair.sides[side].posted.len() as u32;
        let name = Name {
            connection: pair.connection,
            from: side as u8,
            number,
        };
        let length_bytes =
            self.setup.lengths[self.rng.below(self.setup.lengths.len() as u64) as usize];
        let kinds = match (self.setup.rdma, self.setup.level) {
            (false, _) => 1,
            (true, ReliabilityLevel::UnreliableDelivery) => 4,
            (true, _) => 5,
        };
        let kind = match self.rng.below(kinds) {
            0 | 1 => Kind::Send,
            2 => Kind::Write { immediate: true },
            3 => Kind::Write { immediate: false },
            _ => Kind::Read,
        };
        let address = u64::from(number % RANGES) * self.setup.longest() as u64;
        pair.sides[side].posted.push(Message {
            kind,
            length_bytes,
            address,
            placed_bytes: 0,
        });
        let (node, vi, peer) = (
            pair.sides[side].node,
            pair.sides[side].vi,
            pair.sides[1 - side].node,
        );
        let send = match kind {
            Kind::Send => Send {
                data: name.bytes(length_bytes),
                ..Send::default()
            },
            Kind::Write { immediate } => Send {
                data: name.bytes(length_bytes),
                remote: Some((address, REGION)),
                immediate: immediate.then_some(number),
                ..Send::default()
            },
            Kind::Read => {
                let source = self.net.nodes[peer].io.regions.get_mut(&SOURCE);
                let from = address as usize;
                source.expect("a region").bytes[from..from + length_bytes]
                    .copy_from_slice(&name.bytes(length_bytes));
                read((address, SOURCE), length_bytes)
            }
        };
        self.net.post(node, vi, send);
    }

    /// Occupies OX_IDs so that the free ones are reused soon.
    fn occupy_ox_ids(&mut self) {
        let Some(free) = self.setup.ox_ids else {
            return;
        };
        for (at, node) in self.net.nodes.iter_mut().enumerate() {
            let mut all = Vec::new();
            while let Some(taken) = node.engine.port.exchanges.open(self.net.now_ns) {
                all.push((at, taken.ox_id, taken.seq_cnt));
            }
            for (_, ox_id, seq_cnt) in all.split_off(all.len().saturating_sub(free)) {
                node.engine.port.exchanges.close(ox_id, seq_cnt);
            }
            self.taken_ox_ids.extend(all);
        }
    }

    fn release_ox_ids(&mut self) {
        for (at, ox_id, seq_cnt) in self.taken_ox_ids.drain(..) {
            let pool = &mut self.net.nodes[at].engine.port.exchanges;
            pool.close(ox_id, seq_cnt);
        }
    }

    /// Lets time pass until no frame is in flight.
    pub(super) fn idle(&mut self, duration_ns: u64) -> Checked {
        let end_ns = self.net.now_ns + duration_ns;
        while self.step()? || self.net.now_ns < end_ns {
            if self.in_flight.is_empty() {
                self.net.advance((duration_ns / 4).max(TICK_NS));
            }
        }
        Ok(())
    }

    /// Delivers one frame, after the stale ones similar to it. Returns false if there was none.
    fn step(&mut self) -> Result<bool, String> {
        self.steps += 1;
        if self.steps > 4_000_000 {
            return Err("the traffic does not end".to_owned());
        }
        self.net.advance(TICK_NS);
        self.collect_sent();
        let Some((sent_ns, to, bytes)) = self.in_flight.pop_front() else {
            self.check()?;
            return Ok(false);
        };
        let now_ns = self.net.now_ns;
        for stale in self.network.stale(now_ns, to, &bytes) {
            self.net.inject(to, &stale);
            self.check()?;
        }
        self.network.record(sent_ns, to, &bytes);
        if !self.network.chance(self.setup.withheld) {
            self.net.inject(to, &bytes);
            self.check()?;
        }
        Ok(true)
    }

    fn collect_sent(&mut self) {
        let now_ns = self.net.now_ns;
        for (to, bytes) in self.net.wire.take_in_transit() {
            let all = 0..self.setup.nodes;
            let receivers = all.filter(|node| *node == to || self.flooded);
            for node in receivers {
                self.in_flight.push_back((now_ns, node, bytes.clone()));
            }
        }
    }

    fn check(&mut self) -> Checked {
        for node in 0..self.setup.nodes {
            let placements = self.net.nodes[node].io.placements.as_mut();
            for placement in placements.map(core::mem::take).unwrap_or_default() {
                self.check_placement(node, &placement)?;
            }
        }
        for at in 0..self.pairs.len() {
            for side in 0..2 {
                self.check_log(at, side)?;
                self.check_acknowledged(at, side)?;
            }
        }
        Ok(())
    }

    /// Checks that placed bytes belong to a message of this connection and to its target.
    fn check_placement(&mut self, node: usize, placement: &Placement) -> Checked {
        let wrong = |why: &str| Err(format!("{why}: node {node}, {placement:?}"));
        let name = Name::of(&placement.bytes, placement.offset_bytes as usize)?;
        let Some(pair) = self
            .pairs
            .iter_mut()
            .find(|p| p.connection == name.connection)
        else {
            return wrong("bytes of an earlier connection");
        };
        let from = usize::from(name.from);
        let Some(message) = pair.sides[from].posted.get_mut(name.number as usize) else {
            return wrong("bytes of an earlier connection");
        };
        let to = if message.kind == Kind::Read {
            from
        } else {
            1 - from
        };
        message.placed_bytes += placement.bytes.len();
        let fits = match (message.kind, placement.destination) {
            (Kind::Send, Destination::Receive(_)) => true,
            (Kind::Write { .. }, Destination::Region(REGION, address)) => {
                address == message.address
            }
            (Kind::Read, Destination::Read(id)) => {
                id == pair.sides[from].first_send_id + u64::from(name.number)
            }
            _ => false,
        };
        if pair.sides[to].node != node || pair.sides[to].vi != placement.vi || !fits {
            return wrong("bytes of another message");
        }
        if let Destination::Receive(id) = placement.destination {
            let owner = *pair.sides[to].owners.entry(id).or_insert(name);
            if owner != name {
                return wrong("bytes of two messages");
            }
        }
        Ok(())
    }

    fn check_log(&mut self, at: usize, side: usize) -> Checked {
        let this = &self.pairs[at].sides[side];
        if this.broken {
            return Ok(());
        }
        let log = self.net.log(this.node, this.vi);
        for event in log {
            let lossless = self.setup.withheld == 0;
            match event {
                Event::Sent(id, Status::OK, _) => self.check_sent(at, side, id)?,
                Event::Received(received) if received.status.is_ok() => {
                    self.check_received(at, side, &received)?;
                }
                Event::State(ViState::Error) if !lossless => {
                    self.pairs[at].sides[side].broken = true;
                    return Ok(());
                }
                Event::State(ViState::Error) => return Err("the connection broke".to_owned()),
                Event::State(_) => {}
                Event::Sent(..) | Event::Received(_) | Event::Async(_) if lossless => {
                    return Err(format!("nothing was lost: {event:?}"));
                }
                Event::Sent(..) | Event::Received(_) | Event::Async(_) => {}
            }
        }
        Ok(())
    }

    /// Checks that acknowledgements never go back.
    fn check_acknowledged(&mut self, at: usize, side: usize) -> Checked {
        let this = &mut self.pairs[at].sides[side];
        let ep = self.net.nodes[this.node].engine.endpoints[this.vi.slot()].as_ref();
        let tx = ep.and_then(|ep| ep.tx.as_ref()).filter(|_| !this.broken);
        let now = tx.and_then(|tx| Some(tx.recovery.as_ref()?.acknowledged_to()));
        let before = core::mem::replace(&mut this.acknowledged, now);
        let (Some(before), Some(now)) = (before, now) else {
            return Ok(());
        };
        let further = now.0.wrapping_sub(before.0);
        if further > i32::MAX as u32 || (further == 0 && now.1 < before.1) {
            return Err(format!("acknowledged up to {now:?} after {before:?}"));
        }
        Ok(())
    }

    /// Checks that a descriptor that completes without error is placed (Reliable Reception, recovery, reads).
    fn check_sent(&self, at: usize, side: usize, id: u64) -> Checked {
        let this = &self.pairs[at].sides[side];
        let number = (id - this.first_send_id) as usize;
        let message = this.posted[number];
        let promised = self.setup.recovery
            || self.setup.level == ReliabilityLevel::ReliableReception
            || message.kind == Kind::Read;
        if promised && message.placed_bytes < message.length_bytes {
            return Err(format!(
                "message {number} completed, but is not placed: {message:?}"
            ));
        }
        Ok(())
    }

    /// Checks that the messages of the peer arrive in order, each once, and reliable ones without a gap.
    fn check_received(&mut self, at: usize, side: usize, received: &Received) -> Checked {
        let pair = &mut self.pairs[at];
        let number = match received.immediate {
            Some(number) => number,
            None => {
                let owner = pair.sides[side].owners.get(&received.id);
                owner.ok_or("a message without bytes")?.number
            }
        };
        let next = pair.sides[side].next;
        let skipped = pair.sides[1 - side]
            .posted
            .get(next as usize..number as usize);
        let takes = |m: &Message| matches!(m.kind, Kind::Send | Kind::Write { immediate: true });
        let gap = skipped.is_none_or(|skipped| skipped.iter().any(takes));
        let may_skip = !self.setup.level.is_reliable() && self.setup.withheld > 0;
        if number < next || (gap && !may_skip) {
            return Err(format!("message {number} instead of {next}"));
        }
        let message = pair.sides[1 - side].posted[number as usize];
        let whole = message.placed_bytes == message.length_bytes;
        if !whole || received.length_bytes as usize != message.length_bytes {
            return Err(format!("message {number} is incomplete: {message:?}"));
        }
        pair.sides[side].next = number + 1;
        pair.sides[side].delivered += 1;
        Ok(())
    }
}
