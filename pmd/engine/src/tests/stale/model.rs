//! Connections over that network, messages that name themselves, and a judge who looks at every
//! byte that is placed, every message that is delivered and every descriptor that completes.

use std::collections::{HashMap, VecDeque};

use super::contents::Name;
use super::network::Network;
use crate::testkit::host::{Event, Place, Placement, Received, Send};
use crate::testkit::net::{Net, S, config, read};
use crate::testkit::rng::Rng;
use crate::testkit::without::nothing_left_out;
use crate::{Counter, EndpointState, Level, RecoveryConfig, Status, ViIndex, ViParams};

pub(super) const R_A_TOV: u64 = 10 * S;
/// Less than the delay of the wire: what is sent can be taken off it.
const TICK_NS: u64 = 500;
/// Written by peers, and read by peers.
const REGION: u32 = 7;
const SOURCE: u32 = 8;
/// Ranges of a region that messages take in turn.
const RANGES: u32 = 64;

/// What is played.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) level: Level,
    pub(super) recovery: bool,
    pub(super) nodes: usize,
    /// Bytes of messages: one of these.
    pub(super) lengths: &'static [usize],
    /// Writes and reads, too.
    pub(super) rdma: bool,
    /// Also from the server to the client.
    pub(super) both_ways: bool,
    /// Frames that arrive late or never, in a million.
    pub(super) held: u32,
    /// OX_IDs that a port has for messages; all others are taken. `None`: all.
    pub(super) ox_ids: Option<usize>,
    /// Bits of the random numbers that handles and first message IDs are drawn from.
    pub(super) random_mask: u32,
    pub(super) data_field_bytes: u16,
}

impl Setup {
    pub(super) fn new(seed: u64, level: Level) -> Self {
        Self {
            seed,
            level,
            recovery: false,
            nodes: 2,
            lengths: &[16, 64, 2096, 5000, 9000],
            rdma: true,
            both_ways: true,
            held: 0,
            ox_ids: None,
            random_mask: u32::MAX,
            data_field_bytes: 2112,
        }
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }
}

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

/// One end of a connection.
pub(super) struct End {
    pub(super) node: usize,
    pub(super) vi: ViIndex,
    posted: Vec<Message>,
    /// The ID of the descriptor of the first of them.
    first_send_id: u64,
    broken: bool,
    /// With recovery: how far its messages are acknowledged.
    acknowledged: Option<(u32, u32)>,
    /// The next message of the other end that can take a receive descriptor.
    next: u32,
    delivered: u32,
    /// Whose bytes are in a receive descriptor.
    owners: HashMap<u64, Name>,
}

/// Two ends, and the number of their connection.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    connection: u16,
}

pub(super) struct Model {
    pub(super) net: Net,
    setup: Setup,
    /// Every port hears every frame.
    pub(super) flooded: bool,
    network: Network,
    rng: Rng,
    flying: VecDeque<(u64, usize, Vec<u8>)>,
    pub(super) pairs: Vec<Pair>,
    connections: u16,
    taken_ox_ids: Vec<(usize, u16, u16)>,
    turns: u64,
}

type Verdict = Result<(), String>;

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
            node.host.register(REGION, 0, bytes);
            node.host.register(SOURCE, 0, bytes);
            node.host.placements = Some(Vec::new());
            node.host.random_mask = setup.random_mask;
        }
        Self {
            net,
            network: Network::new(setup.seed, R_A_TOV),
            rng: Rng::new(setup.seed),
            setup,
            flooded: false,
            flying: VecDeque::new(),
            pairs: Vec::new(),
            connections: 0,
            taken_ox_ids: Vec::new(),
            turns: 0,
        }
    }

    pub(super) fn create(&mut self, node: usize) -> ViIndex {
        let params = ViParams {
            level: self.setup.level,
            max_transfer_bytes: self.setup.longest() as u32,
            rdma_write: true,
            rdma_read: self.setup.level != Level::UnreliableDelivery,
        };
        self.net.create(node, params)
    }

    /// Two VIs that are to be connected.
    pub(super) fn pair(&mut self, client: (usize, ViIndex), server: (usize, ViIndex)) -> usize {
        let end = |(node, vi)| End {
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
            ends: [end(client), end(server)],
            connection: 0,
        });
        self.pairs.len() - 1
    }

    /// Connects a pair; stale frames arrive meanwhile. Tries again until it succeeds.
    pub(super) fn connect(&mut self, at: usize) -> Verdict {
        let [(client, a), (server, b)] =
            [0, 1].map(|end| (self.pairs[at].ends[end].node, self.pairs[at].ends[end].vi));
        for _ in 0..50 {
            self.net.disconnect(client, a);
            self.net.disconnect(server, b);
            self.idle(1_000_000)?;
            self.start(at);
            let name = format!("pair {at}");
            let mut listener = self.net.listen(server, &name);
            self.net.request(client, a, &name, &[server], None);
            for _ in 0..200 {
                self.idle(10_000)?;
                if let Some(found) = self.net.indication(server, listener) {
                    // What is accepted may be late; the client says so, and the next one counts.
                    let _ = self.net.accept(server, found.conn, b);
                    listener = self.net.listen(server, &name);
                }
                let connected = |node, vi| self.net.state(node, vi) == EndpointState::Connected;
                if connected(client, a) && connected(server, b) {
                    break;
                }
            }
            self.net
                .act(server, |engine, host| engine.unlisten(listener, host));
            let _ = (self.net.outcome(client, a), self.net.outcome(server, b));
            let states = [self.net.state(client, a), self.net.state(server, b)];
            if states == [EndpointState::Connected; 2] {
                return Ok(());
            }
        }
        Err("no connection comes about".to_owned())
    }

    /// The books of a new connection.
    fn start(&mut self, at: usize) {
        self.connections += 1;
        let pair = &mut self.pairs[at];
        pair.connection = self.connections;
        for end in &mut pair.ends {
            let queues = self.net.nodes[end.node].host.vi(end.vi);
            queues.log.clear();
            queues.reads.clear();
            end.posted.clear();
            end.first_send_id = queues.next_send_id;
            end.broken = false;
            end.acknowledged = None;
            end.next = 0;
            end.delivered = 0;
            end.owners.clear();
        }
    }

    pub(super) fn disconnect(&mut self, at: usize) -> Verdict {
        self.judge()?;
        for end in 0..2 {
            let (node, vi) = (self.pairs[at].ends[end].node, self.pairs[at].ends[end].vi);
            self.net.disconnect(node, vi);
            self.pairs[at].ends[end].broken = true;
            self.net.log(node, vi);
        }
        self.idle(1_000_000)
    }

    /// Each end posts so many messages, and all that can complete has done so.
    pub(super) fn traffic(&mut self, at: usize, messages: usize) -> Verdict {
        let ways = if self.setup.both_ways { 2 } else { 1 };
        self.narrow();
        for (end, other) in [(0, 1), (1, 0)].into_iter().take(ways) {
            let (node, vi) = (
                self.pairs[at].ends[other].node,
                self.pairs[at].ends[other].vi,
            );
            for _ in self.pairs[at].ends[end].posted.len()..messages {
                self.net.post_receive(node, vi, self.setup.longest() as u32);
            }
        }
        loop {
            let mut working = false;
            for end in 0..ways {
                let this = &self.pairs[at].ends[end];
                let (node, vi) = (this.node, this.vi);
                let left = messages - this.posted.len();
                let waiting = self.net.nodes[node].host.vi(vi).sends.len();
                if this.broken {
                    continue;
                }
                if left > 0 && waiting < 4 {
                    self.post(at, end);
                }
                working |= left > 0 || waiting > 0;
            }
            let moved = self.turn()?;
            if !working && !moved {
                break;
            }
            if !moved {
                // Whoever waits, waits for a timer.
                self.net.advance(100_000);
            }
        }
        self.widen();
        self.rest(at, messages, ways)
    }

    /// Everything was posted and has arrived, unless the network held something.
    fn rest(&mut self, at: usize, messages: usize, ways: usize) -> Verdict {
        self.idle(100_000)?;
        // Whatever was sent once is well formed.
        for counter in [
            Counter::DropMalformed,
            Counter::DropBadCrc,
            Counter::DropBadIu,
        ] {
            for node in 0..self.setup.nodes {
                assert!(!nothing_left_out() || self.net.count(node, counter) == 0);
            }
        }
        let lossless = self.setup.held == 0;
        for (from, to) in [(0, 1), (1, 0)].into_iter().take(ways) {
            let ends = &self.pairs[at].ends;
            if ends[from].broken || ends[to].broken {
                continue;
            }
            let takes =
                |m: &&Message| matches!(m.kind, Kind::Send | Kind::Write { immediate: true });
            let expected = ends[from].posted.iter().filter(takes).count();
            if lossless
                && (ends[to].delivered as usize, messages) != (expected, ends[from].posted.len())
            {
                return Err(format!(
                    "{} of {expected} messages delivered",
                    ends[to].delivered
                ));
            }
        }
        Ok(())
    }

    fn post(&mut self, at: usize, end: usize) {
        let pair = &mut self.pairs[at];
        let number = pair.ends[end].posted.len() as u32;
        let name = Name {
            connection: pair.connection,
            from: end as u8,
            number,
        };
        let length_bytes =
            self.setup.lengths[self.rng.below(self.setup.lengths.len() as u64) as usize];
        let kinds = match (self.setup.rdma, self.setup.level) {
            (false, _) => 1,
            (true, Level::UnreliableDelivery) => 4,
            (true, _) => 5,
        };
        let kind = match self.rng.below(kinds) {
            0 | 1 => Kind::Send,
            2 => Kind::Write { immediate: true },
            3 => Kind::Write { immediate: false },
            _ => Kind::Read,
        };
        let address = u64::from(number % RANGES) * self.setup.longest() as u64;
        pair.ends[end].posted.push(Message {
            kind,
            length_bytes,
            address,
            placed_bytes: 0,
        });
        let (node, vi, peer) = (
            pair.ends[end].node,
            pair.ends[end].vi,
            pair.ends[1 - end].node,
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
                let source = self.net.nodes[peer].host.regions.get_mut(&SOURCE);
                let from = address as usize;
                source.expect("a region").bytes[from..from + length_bytes]
                    .copy_from_slice(&name.bytes(length_bytes));
                read((address, SOURCE), length_bytes)
            }
        };
        self.net.post(node, vi, send);
    }

    /// Leaves so few OX_IDs to the messages that they are used again soon.
    fn narrow(&mut self) {
        let Some(left) = self.setup.ox_ids else {
            return;
        };
        for (at, node) in self.net.nodes.iter_mut().enumerate() {
            let mut all = Vec::new();
            while let Some(taken) = node.engine.exchanges.open(self.net.now_ns) {
                all.push((at, taken.ox_id, taken.seq_cnt));
            }
            for (_, ox_id, seq_cnt) in all.split_off(all.len().saturating_sub(left)) {
                node.engine.exchanges.close(ox_id, seq_cnt);
            }
            self.taken_ox_ids.extend(all);
        }
    }

    fn widen(&mut self) {
        for (at, ox_id, seq_cnt) in self.taken_ox_ids.drain(..) {
            self.net.nodes[at].engine.exchanges.close(ox_id, seq_cnt);
        }
    }

    /// Lets time pass until nothing is on its way any more.
    pub(super) fn idle(&mut self, duration_ns: u64) -> Verdict {
        let end_ns = self.net.now_ns + duration_ns;
        while self.turn()? || self.net.now_ns < end_ns {
            if self.flying.is_empty() {
                self.net.advance((duration_ns / 4).max(TICK_NS));
            }
        }
        Ok(())
    }

    /// One frame arrives, after those that resemble it. False if there was none.
    fn turn(&mut self) -> Result<bool, String> {
        self.turns += 1;
        if self.turns > 4_000_000 {
            return Err("it does not come to rest".to_owned());
        }
        self.net.advance(TICK_NS);
        self.take_off();
        let Some((sent_ns, to, bytes)) = self.flying.pop_front() else {
            self.judge()?;
            return Ok(false);
        };
        let now_ns = self.net.now_ns;
        for stale in self.network.stale(now_ns, to, &bytes) {
            self.net.inject(to, &stale);
            self.judge()?;
        }
        self.network.remember(sent_ns, to, &bytes);
        if !self.network.chance(self.setup.held) {
            self.net.inject(to, &bytes);
            self.judge()?;
        }
        Ok(true)
    }

    fn take_off(&mut self) {
        let now_ns = self.net.now_ns;
        for (to, bytes) in self.net.wire.take_flying() {
            let all = 0..self.setup.nodes;
            let hear = all.filter(|node| *node == to || self.flooded);
            for node in hear {
                self.flying.push_back((now_ns, node, bytes.clone()));
            }
        }
    }

    fn judge(&mut self) -> Verdict {
        for node in 0..self.setup.nodes {
            let placements = self.net.nodes[node].host.placements.as_mut();
            for placement in placements.map(core::mem::take).unwrap_or_default() {
                self.judge_placement(node, &placement)?;
            }
        }
        for at in 0..self.pairs.len() {
            for end in 0..2 {
                self.judge_log(at, end)?;
                self.judge_acknowledged(at, end)?;
            }
        }
        Ok(())
    }

    /// Bytes must be of a message of this connection, and go where it says.
    fn judge_placement(&mut self, node: usize, placement: &Placement) -> Verdict {
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
        let Some(message) = pair.ends[from].posted.get_mut(name.number as usize) else {
            return wrong("bytes of an earlier connection");
        };
        let to = if message.kind == Kind::Read {
            from
        } else {
            1 - from
        };
        message.placed_bytes += placement.bytes.len();
        let fits = match (message.kind, placement.place) {
            (Kind::Send, Place::Receive(_)) => true,
            (Kind::Write { .. }, Place::Region(REGION, address)) => address == message.address,
            (Kind::Read, Place::Read(id)) => {
                id == pair.ends[from].first_send_id + u64::from(name.number)
            }
            _ => false,
        };
        if pair.ends[to].node != node || pair.ends[to].vi != placement.vi || !fits {
            return wrong("bytes of another message");
        }
        if let Place::Receive(id) = placement.place {
            let owner = *pair.ends[to].owners.entry(id).or_insert(name);
            if owner != name {
                return wrong("bytes of two messages");
            }
        }
        Ok(())
    }

    fn judge_log(&mut self, at: usize, end: usize) -> Verdict {
        let this = &self.pairs[at].ends[end];
        if this.broken {
            return Ok(());
        }
        let log = self.net.log(this.node, this.vi);
        for event in log {
            let lossless = self.setup.held == 0;
            match event {
                Event::Sent(id, Status::OK, _) => self.judge_sent(at, end, id)?,
                Event::Received(received) if received.status.is_ok() => {
                    self.judge_received(at, end, &received)?;
                }
                Event::State(EndpointState::Error) if !lossless => {
                    self.pairs[at].ends[end].broken = true;
                    return Ok(());
                }
                Event::State(EndpointState::Error) => return Err("the connection broke".to_owned()),
                Event::State(_) => {}
                Event::Sent(..) | Event::Received(_) | Event::Async(_) if lossless => {
                    return Err(format!("nothing was lost: {event:?}"));
                }
                Event::Sent(..) | Event::Received(_) | Event::Async(_) => {}
            }
        }
        Ok(())
    }

    /// What is acknowledged stays acknowledged.
    fn judge_acknowledged(&mut self, at: usize, end: usize) -> Verdict {
        let this = &mut self.pairs[at].ends[end];
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

    /// What completes well at Reliable Reception, or with recovery, or is a read, is placed.
    fn judge_sent(&self, at: usize, end: usize, id: u64) -> Verdict {
        let this = &self.pairs[at].ends[end];
        let number = (id - this.first_send_id) as usize;
        let message = this.posted[number];
        let promised = self.setup.recovery
            || self.setup.level == Level::ReliableReception
            || message.kind == Kind::Read;
        if promised && message.placed_bytes < message.length_bytes {
            return Err(format!(
                "message {number} completed, but is not placed: {message:?}"
            ));
        }
        Ok(())
    }

    /// The messages of the other end, in order, each once; reliable ones without a gap.
    fn judge_received(&mut self, at: usize, end: usize, received: &Received) -> Verdict {
        let pair = &mut self.pairs[at];
        let number = match received.immediate {
            Some(number) => number,
            None => {
                let owner = pair.ends[end].owners.get(&received.id);
                owner.ok_or("a message without bytes")?.number
            }
        };
        let next = pair.ends[end].next;
        let skipped = pair.ends[1 - end]
            .posted
            .get(next as usize..number as usize);
        let takes = |m: &Message| matches!(m.kind, Kind::Send | Kind::Write { immediate: true });
        let gap = skipped.is_none_or(|skipped| skipped.iter().any(takes));
        let may_skip = self.setup.level == Level::UnreliableDelivery && self.setup.held > 0;
        if number < next || (gap && !may_skip) {
            return Err(format!("message {number} instead of {next}"));
        }
        let message = pair.ends[1 - end].posted[number as usize];
        let whole = message.placed_bytes == message.length_bytes;
        if !whole || received.length_bytes as usize != message.length_bytes {
            return Err(format!("not the whole message {number}: {message:?}"));
        }
        pair.ends[end].next = number + 1;
        pair.ends[end].delivered += 1;
        Ok(())
    }
}
