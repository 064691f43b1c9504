//! VI/TCP (docs/spec/vitcp.md): VIs over TCP connections, polled by the NIC's loop.
//!
//! | room | what is in it |
//! | --- | --- |
//! | this file | [`ViTcp`]: the tables |
//! | `look` | one look at the sockets |
//! | `socket` | system calls on sockets |
//! | `secure`, `credentials` | TLS in front of them |
//! | `warm` | the connection that brought something last: read without being asked after |
//! | `connection` | one TCP connection, one VI: what is known of them |
//! | `establish`, `active`, `passive`, `crossing` | connections made: commands, the asking end, the asked end, peers that ask each other |
//! | `choices` | what VIs want of connections beyond the guide |
//! | `keys`, `challenge` | keys that are shared with other hosts, and who has to prove to have one |
//! | `door` | one TCP port for all programs of a host |
//! | `local_peer` | the other end of a connection within the NIC |
//! | `guests` | places of connections that are no VI's yet, or none any more |
//! | `closing` | connections ended |
//! | `transmit`, `gather` | descriptors cut into segments, and one system call's worth of them |
//! | `receive` | segments matched to messages, placed, completed |
//! | `in_flight` | descriptors that were sent and are not complete |
//! | `port` | what stands for the sockets where the poller wants a port |
//! | `timers`, `counters` | what is to be done later; what happened |
//!
//! The formats and the machines of connection establishment are in `vitcp-lite`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Arguments;
use std::io;
use std::path::PathBuf;

use vi_engine::misses::PeerMisses;
use vi_engine::{ConnId, EndpointState, MissLimits, ViIndex, ViParams};

use fcvi_frame::connect::HostAddress;
use pmd_port::PortStats;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use crate::choices::ViChoices;
use crate::datapath::Datapath;
use crate::datapath::stream::Pieces;
use crate::log_limiter::LogLimiter;

mod active;
mod challenge;
mod choices;
mod closing;
mod connection;
mod counters;
mod credentials;
mod crossing;
mod door;
mod establish;
mod gather;
mod guests;
mod in_flight;
mod keys;
mod local_peer;
mod look;
mod passive;
mod port;
mod receive;
mod secure;
mod socket;
mod timers;
mod transmit;
mod warm;

pub(crate) use counters::Counters;
pub(crate) use credentials::Credentials;
pub(crate) use door::{ListenState, check_listening};
pub(crate) use keys::Keys;
pub(crate) use port::StreamPort;
pub(crate) use socket::try_bind;

use connection::{Connection, Endpoint, Phase};
use counters::Counter;
use door::{DOORS, Door};
use establish::Listener;
use gather::Gather;
use guests::Guests;
use socket::{End, Habits, Watch, is_for_later};
use timers::{Key, Timers};

/// User bytes in a segment of a send, at most.
pub(crate) const NATIVE_MTU_BYTES: u32 = 65_535 - SEGMENT_HEADER_BYTES as u32;

/// Bytes that are read at once, but for those that go to their place directly.
const BUFFER_BYTES: usize = 128 << 10;
/// Pieces of memory into which is read at once.
const MAX_PIECES: usize = 64;
/// Connections that come in, in one look.
const ACCEPTS_AT_ONCE: u32 = 32;
/// All connections are asked after at least so often, in looks.
const LOOKS_BETWEEN: core::ops::RangeInclusive<u32> = 4..=32;

/// What a NIC's configuration says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) host: HostAddress,
    pub(crate) port: u16,
    /// The interface of link-local addresses; 0 without one.
    pub(crate) scope: u32,
    pub(crate) max_vi: u32,
    /// Connections that are no VI's, at most.
    pub(crate) max_incoming: u32,
    /// Descriptors in flight of a VI, at most.
    pub(crate) max_in_flight: u32,
    /// RDMA reads of a peer that a VI serves at a time.
    pub(crate) max_reads: u16,
    /// How long an answer may take, and a Connect Request on a connection that came in.
    pub(crate) answer_ns: u64,
    /// A request that found nobody is made again after so long at first.
    pub(crate) retry_ns: u64,
    pub(crate) probe_ms: u64,
    /// Limits on RDMA accesses of a host whose handle names no region.
    pub(crate) miss_limits: MissLimits,
    /// Log lines that peers or applications can cause.
    pub(crate) log_limiter: &'static LogLimiter,
    /// New VIs want descriptor flow control.
    pub(crate) flow_control: bool,
    /// A peer that knows of fewer receives is told of new ones at once.
    pub(crate) credits_low: u16,
}

/// The VIs of a NIC, and their TCP connections.
pub(crate) struct ViTcp {
    settings: Settings,
    /// Connections are of TLS, with these.
    credentials: Option<Credentials>,
    /// Without any, everybody is spoken with.
    keys: Option<Keys>,
    endpoints: Vec<Option<Endpoint>>,
    /// Places in `endpoints` without a VI: the first of them is taken next.
    free: BinaryHeap<Reverse<u32>>,
    connections: Vec<Option<Box<Connection>>>,
    free_connections: Vec<u32>,
    next_generation: u32,
    /// Connections that are no VI's yet, and those that are none any more.
    incoming: Guests,
    leaving: Guests,
    watch: Watch,
    door: Door,
    /// Where programs of one user at the port find each other, if not in the runtime directory.
    local_directory: Option<PathBuf>,
    /// Connections that have something to be read, or new room.
    ready: VecDeque<u32>,
    /// The connection that brought something last, and the looks left in which it is read first.
    warm: Option<(u32, u32)>,
    /// How many times in a row it was that one.
    in_a_row: u32,
    /// The connection of which the system does not tell.
    untold: Option<u32>,
    /// Looks since all of them were asked after, and how many may be.
    looks: u32,
    looks_between: u32,
    /// Looks that were left out one after the other, since something was just sent.
    looks_left_out: u32,
    /// Connections of which TCP keeps something back.
    corked: Vec<u32>,
    /// Looks since anything was written.
    corked_looks: u32,
    timers: Timers,
    listeners: Vec<Listener>,
    next_listener: u64,
    next_peer_request: u64,
    /// Requests of peers that waited for the answer to one of ours.
    ask_again: Vec<ConnId>,
    /// Misses of all hosts.
    misses: PeerMisses<HostAddress>,
    buffer: Box<[u8]>,
    pieces: Pieces,
    gather: Gather,
    counters: Counters,
}

impl ViTcp {
    /// A NIC without VIs.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(
        settings: Settings,
        local_directory: Option<PathBuf>,
        credentials: Option<Credentials>,
        keys: Option<Keys>,
    ) -> io::Result<Self> {
        let max_vi = settings.max_vi;
        Ok(Self {
            endpoints: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi).map(Reverse).collect(),
            connections: Vec::new(),
            free_connections: Vec::new(),
            next_generation: 0,
            incoming: Guests::new(settings.max_incoming),
            leaving: Guests::new(max_vi),
            watch: Watch::new()?,
            door: Door::new(),
            local_directory,
            ready: VecDeque::new(),
            warm: None,
            in_a_row: 0,
            untold: None,
            looks: 0,
            looks_left_out: 0,
            looks_between: *LOOKS_BETWEEN.start(),
            corked: Vec::new(),
            corked_looks: 0,
            timers: Timers::default(),
            listeners: Vec::new(),
            next_listener: 0,
            next_peer_request: 0,
            ask_again: Vec::new(),
            misses: PeerMisses::new(settings.miss_limits),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            pieces: Pieces::with_capacity(MAX_PIECES),
            gather: Gather::new(),
            counters: Counters::default(),
            settings,
            credentials,
            keys,
        })
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What its connections carried, in the place of what a port carries: segments, and bytes of TCP.
    pub(crate) fn add_traffic(&self, stats: &mut PortStats) {
        let of = |counter| self.counters.get(counter);
        stats.rx_frames += of(Counter::RxSegments);
        stats.rx_bytes += of(Counter::RxBytes);
        stats.tx_frames += of(Counter::TxSegments);
        stats.tx_bytes += of(Counter::TxBytes);
    }

    /// The port that stands for the sockets of this NIC.
    pub(crate) fn port(&self) -> StreamPort {
        let device = self.own_end().address().to_string();
        StreamPort::new(device, self.watch.descriptor())
    }

    fn own_end(&self) -> End {
        End {
            host: self.settings.host.0,
            port: self.settings.port,
            scope: self.settings.scope,
        }
    }

    /// Logs a line that a peer or an application can cause.
    fn log_limited(&self, level: log::Level, line: Arguments<'_>) {
        let own = self.own_end().address();
        let subject = format!("vi-tcp {own}");
        self.settings.log_limiter.log(level, &subject, line);
    }

    fn habits(&self) -> Habits {
        Habits {
            probe: core::time::Duration::from_millis(self.settings.probe_ms),
        }
    }

    /// Adds an Idle VI; `None` if all places are taken.
    pub(crate) fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        let choices = ViChoices {
            flow_control: self.settings.flow_control,
            ..ViChoices::default()
        };
        *self.endpoints.get_mut(slot as usize)? = Some(Endpoint::new(params, choices));
        Some(ViIndex(slot))
    }

    /// Removes a VI; only an Idle one can go. False if it stays.
    pub(crate) fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self.state(vi) == Some(EndpointState::Idle);
        if idle && let Some(place) = self.endpoints.get_mut(vi.0 as usize) {
            *place = None;
            self.free.push(Reverse(vi.0));
            self.timers.clear(Key::Request(vi.0));
            self.timers.clear(Key::Answer(vi.0));
        }
        idle
    }

    /// Replaces the consumer's choices for a VI; only for an Idle one. False if they stay.
    pub(crate) fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The state of a VI.
    pub(crate) fn state(&self, vi: ViIndex) -> Option<EndpointState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// The host at the other end of a VI's connection.
    pub(crate) fn peer(&self, vi: ViIndex) -> Option<HostAddress> {
        match self.endpoint(vi)?.phase {
            Phase::Connected(number) => {
                let connection = self.connections.get(number as usize)?.as_ref()?;
                Some(HostAddress(connection.far.host))
            }
            Phase::Idle | Phase::Asking(_) | Phase::Error => None,
        }
    }

    /// RDMA accesses of the peer that were refused on this VI's connection, or its last one that
    /// broke.
    pub(crate) fn refused_accesses(&self, vi: ViIndex) -> u32 {
        let Some(ep) = self.endpoint(vi) else {
            return 0;
        };
        match ep.phase {
            Phase::Connected(number) => {
                let connection = self.connection(number);
                connection.map_or(0, |connection| connection.rx.misses.refused())
            }
            Phase::Idle | Phase::Asking(_) | Phase::Error => ep.refused_accesses,
        }
    }

    fn endpoint(&self, vi: ViIndex) -> Option<&Endpoint> {
        self.endpoints.get(vi.0 as usize)?.as_ref()
    }

    fn endpoint_mut(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(vi.0 as usize)?.as_mut()
    }

    fn connection(&self, number: u32) -> Option<&Connection> {
        self.connections.get(number as usize)?.as_deref()
    }

    fn connection_mut(&mut self, number: u32) -> Option<&mut Connection> {
        self.connections.get_mut(number as usize)?.as_deref_mut()
    }

    /// Takes a connection out of its place, so that the tables can be used beside it.
    fn take(&mut self, number: u32) -> Option<Box<Connection>> {
        self.connections.get_mut(number as usize)?.take()
    }

    /// Puts it back.
    fn put(&mut self, number: u32, connection: Box<Connection>) {
        if let Some(place) = self.connections.get_mut(number as usize) {
            *place = Some(connection);
        }
    }

    /// Gives a TCP connection a place, and watches it.
    fn add(&mut self, make: impl FnOnce(u32) -> Connection) -> io::Result<u32> {
        let number = match self.free_connections.pop() {
            Some(number) => number,
            None => {
                self.connections.push(None);
                (self.connections.len() - 1) as u32
            }
        };
        self.next_generation = self.next_generation.wrapping_add(1) % DOORS;
        let connection = Box::new(make(self.next_generation));
        let watched = connection.watched_as(number);
        if let Err(error) = self.watch.add(&connection.stream, watched) {
            self.free_connections.push(number);
            return Err(error);
        }
        self.put(number, connection);
        Ok(number)
    }

    /// Closes a TCP connection and frees its place.
    fn remove(&mut self, number: u32) {
        if let Some(connection) = self.take(number) {
            if connection.stream.is_foreign() {
                // It stays open for a while: nothing else would make the system forget it.
                self.watch.remove(&connection.stream);
            }
            self.release(connection.guest);
            self.timers.clear(Key::Connection(number));
            self.free_connections.push(number);
        }
        if self.warm.is_some_and(|(warm, _)| warm == number) {
            self.warm = None;
        }
        if self.untold == Some(number) {
            self.untold = None;
        }
    }

    /// Has a connection served in one of the next looks.
    fn queue(&mut self, number: u32) {
        if let Some(connection) = self.connection_mut(number)
            && !core::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// When [`ViTcp::handle_timeout`] wants to be called.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Is anything left of what a look found?
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
            || self.has_corked()
            || !self.ask_again.is_empty()
            || self.door.has_backs()
    }

    /// The next look is at all sockets.
    pub(crate) fn look_at_all_next(&mut self) {
        self.watch_all();
        self.looks = u32::MAX;
    }

    /// Does what time wants done, at most `budget` things.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        for _ in 0..budget {
            match self.timers.pop_due(now_ns) {
                None => return,
                Some(Key::Connection(number)) => self.connection_timeout(number),
                Some(Key::Request(slot)) => self.request_timeout(now_ns, ViIndex(slot), path),
                Some(Key::Answer(slot)) => self.answer_timeout(now_ns, ViIndex(slot), path),
                Some(Key::Door) => self.try_door_again(now_ns),
            }
        }
    }
}
