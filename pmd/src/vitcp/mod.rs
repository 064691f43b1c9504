//! VI/TCP (docs/spec/vitcp.md): VIs over TCP connections, polled by the NIC's poller.
//!
//! | module | contents |
//! | --- | --- |
//! | this file | [`ViTcp`]: the tables of VIs and connections |
//! | `poll_sockets`, `budget` | one poll of the sockets: epoll, reads; limits of its work |
//! | `socket` | non-blocking TCP sockets and epoll: system calls |
//! | `tls`, `credentials` | TLS on the sockets; certificates and keys |
//! | `handshakes` | turns of TLS handshakes |
//! | `source` | sources of connections, to which limits apply |
//! | `hot_connection` | the connection with the most recent data: read without epoll |
//! | `connection` | state of a TCP connection and of a VI |
//! | `establish` | connection calls of the consumer |
//! | `initiator`, `responder` | outgoing and incoming connection requests |
//! | `simultaneous_open` | peer-to-peer requests that cross |
//! | `connection_options` | options of a connection beyond the guide |
//! | `keys`, `challenge` | keys shared with other hosts; challenges and proofs |
//! | `shared_listener` | one TCP port for all programs of a host |
//! | `local_peer` | lookup of the remote VI of a connection within the NIC |
//! | `unbound` | limits on connections without a VI: pending and draining |
//! | `closing` | connection teardown |
//! | `transmit`, `send_batch` | segmentation of descriptors; the segments of one system call |
//! | `receive` | received segments: matching to messages, placement, completion |
//! | `in_flight` | descriptors that are sent and not complete |
//! | `stream_port` | the sockets as a `Port` of the poller |
//! | `timers`, `counters` | timers and counters |
//!
//! Formats and connection state machines are in `vitcp-lite`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Arguments;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use vi_core::log_limiter::LogLimiter;
use vi_engine::misses::PeerMisses;
use vi_engine::{ConnId, MissLimits, ViParams};
use vi_types::{ConnectionOptions, HostAddress, ViIndex, ViState};

use pmd_port::PortStats;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use crate::datapath::Datapath;
use crate::datapath::stream::IoVecs;

mod budget;
mod challenge;
mod closing;
mod connection;
mod connection_options;
mod counters;
mod credentials;
mod epoll_set;
mod establish;
mod handshakes;
mod hot_connection;
mod in_flight;
mod initiator;
mod keys;
mod local_peer;
mod poll_sockets;
mod receive;
mod responder;
mod send_batch;
mod shared_listener;
mod simultaneous_open;
mod socket;
mod source;
mod stream_port;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod timers;
mod tls;
mod transmit;
mod unbound;

pub(crate) use counters::Counters;
pub(crate) use credentials::Credentials;
pub(crate) use handshakes::HandshakeLimits;
pub(crate) use keys::Keys;
pub(crate) use shared_listener::{ListenState, check_listening};
pub(crate) use socket::try_bind;
pub(crate) use stream_port::StreamPort;

use budget::Budget;
use connection::{Connection, Endpoint, Listener, Phase};
use counters::Counter;
use epoll_set::EpollSet;
use handshakes::Handshakes;
use send_batch::SendBatch;
use shared_listener::{LISTENER_GENERATION, SharedListener};
use socket::{SocketOptions, host_of, is_would_block, socket_address};
use source::Source;
use timers::{TimerKey, Timers};
use unbound::UnboundQueue;

/// Maximum user bytes in a segment of a send.
pub(crate) const NATIVE_MTU_BYTES: u32 = 65_535 - SEGMENT_HEADER_BYTES as u32;

/// Bytes of the receive buffer, which takes the data that is not read directly into its destination.
const BUFFER_BYTES: usize = 128 << 10;
/// Maximum memory ranges of one read.
const MAX_IOVECS: usize = 64;
/// Maximum connections accepted in one poll, and of some other tasks of connection establishment.
const MAX_ACCEPTS: u32 = 8;
/// Polls between two epoll calls: adaptive within this range.
const EPOLL_INTERVAL: core::ops::RangeInclusive<u32> = 4..=32;

/// Configuration of a VI/TCP NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) host: HostAddress,
    pub(crate) port: u16,
    /// Interface number of a link-local address; 0 for others.
    pub(crate) scope: u32,
    pub(crate) max_vi: u32,
    /// Limit of incoming connections without a VI.
    pub(crate) max_incoming: u32,
    /// Limit of descriptors in flight per VI.
    pub(crate) max_in_flight: u32,
    /// Limit of outstanding RDMA reads of a peer per VI.
    pub(crate) max_reads: u16,
    /// Timeout of a response, and of the Connect Request on an accepted connection.
    pub(crate) response_timeout_ns: u64,
    /// Initial retry interval of a connection request without a listener.
    pub(crate) retry_ns: u64,
    /// Keepalive interval; 0 disables keepalive.
    pub(crate) probe_ms: u64,
    /// Limits on RDMA accesses of a peer whose handle names no region.
    pub(crate) miss_limits: MissLimits,
    /// Limits on the TLS handshakes that peers start.
    pub(crate) handshake_limits: HandshakeLimits,
    /// Rate limiter of log lines that peers or applications can cause.
    pub(crate) log_limiter: &'static LogLimiter,
    /// Initial option of new VIs: descriptor flow control.
    pub(crate) flow_control: bool,
    /// Posted receives are advertised at once to a peer with fewer unused credits.
    pub(crate) credits_low: u16,
}

/// The VIs of a NIC, and their TCP connections.
pub(crate) struct ViTcp {
    settings: Settings,
    /// If present, all connections use TLS.
    credentials: Option<Credentials>,
    /// If present, only hosts with a key can connect.
    keys: Option<Keys>,
    endpoints: Vec<Option<Endpoint>>,
    /// Unused slots of `endpoints`; the lowest is taken next.
    free: BinaryHeap<Reverse<u32>>,
    connections: Vec<Option<Box<Connection>>>,
    free_connections: Vec<u32>,
    next_generation: u32,
    /// Connections without a VI: not yet bound, and draining after their VI left.
    pending: UnboundQueue,
    draining: UnboundQueue,
    epoll: EpollSet,
    shared_listener: SharedListener,
    /// Directory of the Unix socket that shares the listener; by default the runtime directory.
    local_directory: Option<PathBuf>,
    /// Connections that are readable, or writable again.
    ready: VecDeque<u32>,
    /// The connection with the most recent data, and the remaining polls that read it without epoll.
    hot: Option<(u32, u32)>,
    /// Consecutive polls with data from the hot connection only.
    consecutive_hits: u32,
    /// The connection that is not registered with epoll.
    unregistered: Option<u32>,
    /// Polls since the last epoll call, and their limit.
    polls_since_epoll: u32,
    epoll_interval: u32,
    /// Consecutive polls skipped because data was just sent.
    skipped_polls: u32,
    /// Connections with corked data.
    corked: Vec<u32>,
    /// Polls since the last write.
    polls_since_write: u32,
    timers: Timers,
    listeners: Vec<Listener>,
    next_listener: u64,
    next_peer_request: u64,
    /// Peer requests to resolve now: they were deferred until the response to our own request.
    deferred_peers: Vec<ConnId>,
    /// RDMA misses of all peers.
    misses: PeerMisses<Source>,
    handshakes: Handshakes,
    /// What the current poll may still do.
    budget: Budget,
    buffer: Box<[u8]>,
    iovecs: IoVecs,
    batch: SendBatch,
    counters: Counters,
}

impl ViTcp {
    /// Creates a NIC without VIs.
    ///
    /// # Errors
    /// The error of `epoll_create1`.
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
            pending: UnboundQueue::new(settings.max_incoming),
            draining: UnboundQueue::new(max_vi),
            epoll: EpollSet::new()?,
            shared_listener: SharedListener::new(),
            local_directory,
            ready: VecDeque::new(),
            hot: None,
            consecutive_hits: 0,
            unregistered: None,
            polls_since_epoll: 0,
            skipped_polls: 0,
            epoll_interval: *EPOLL_INTERVAL.start(),
            corked: Vec::new(),
            polls_since_write: 0,
            timers: Timers::default(),
            listeners: Vec::new(),
            next_listener: 0,
            next_peer_request: 0,
            deferred_peers: Vec::new(),
            misses: PeerMisses::new(settings.miss_limits),
            handshakes: Handshakes::new(settings.handshake_limits),
            budget: Budget::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            iovecs: IoVecs::with_capacity(MAX_IOVECS),
            batch: SendBatch::new(),
            counters: Counters::default(),
            settings,
            credentials,
            keys,
        })
    }

    /// Returns the own host.
    pub(crate) fn host(&self) -> HostAddress {
        self.settings.host
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Adds the traffic of the connections to port statistics: segments as frames, and bytes of TCP.
    pub(crate) fn add_traffic(&self, stats: &mut PortStats) {
        let of = |counter| self.counters.get(counter);
        stats.rx_frames += of(Counter::RxSegments);
        stats.rx_bytes += of(Counter::RxBytes);
        stats.tx_frames += of(Counter::TxSegments);
        stats.tx_bytes += of(Counter::TxBytes);
    }

    /// Returns the `Port` that represents the sockets of this NIC.
    pub(crate) fn port(&self) -> StreamPort {
        let device = self.local_address().to_string();
        StreamPort::new(device, self.epoll.descriptor())
    }

    fn local_address(&self) -> SocketAddr {
        let settings = &self.settings;
        socket_address(settings.host.0, settings.port, settings.scope)
    }

    /// Logs a rate-limited line, which a peer or an application can cause.
    fn log_limited(&self, level: log::Level, line: Arguments<'_>) {
        let subject = format!("vi-tcp {}", self.local_address());
        self.settings.log_limiter.log(level, &subject, line);
    }

    fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            keepalive: core::time::Duration::from_millis(self.settings.probe_ms),
        }
    }

    /// Adds an Idle VI; `None` if all slots are used.
    pub(crate) fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        let options = ConnectionOptions {
            flow_control: self.settings.flow_control,
            ..ConnectionOptions::default()
        };
        *self.endpoints.get_mut(slot as usize)? = Some(Endpoint::new(params, options));
        Some(ViIndex(slot))
    }

    /// Sets the user that owns a VI: its peer on this NIC is limited by user.
    pub(crate) fn set_user(&mut self, vi: ViIndex, user: u32) {
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.user = user;
        }
    }

    /// Removes a VI, which must be Idle; returns false otherwise.
    pub(crate) fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self.state(vi) == Some(ViState::Idle);
        if idle && let Some(slot) = self.endpoints.get_mut(vi.0 as usize) {
            *slot = None;
            self.free.push(Reverse(vi.0));
            self.timers.clear(TimerKey::Request(vi.0));
            self.timers.clear(TimerKey::Response(vi.0));
        }
        idle
    }

    /// Replaces the consumer's attributes of a VI, which must be Idle; returns false otherwise.
    pub(crate) fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Returns the state of a VI.
    pub(crate) fn state(&self, vi: ViIndex) -> Option<ViState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// Returns the remote host of a VI's connection.
    pub(crate) fn peer(&self, vi: ViIndex) -> Option<HostAddress> {
        match self.endpoint(vi)?.phase {
            Phase::Connected(number) => {
                let connection = self.connections.get(number as usize)?.as_ref()?;
                Some(HostAddress(host_of(connection.remote)))
            }
            Phase::Idle | Phase::Requesting(_) | Phase::Error => None,
        }
    }

    /// Returns the refused RDMA accesses of the peer on this VI's connection, or on the last one that
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
            Phase::Idle | Phase::Requesting(_) | Phase::Error => ep.refused_accesses,
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

    /// Takes a connection out of the table, so that the other tables can be borrowed.
    fn take(&mut self, number: u32) -> Option<Box<Connection>> {
        self.connections.get_mut(number as usize)?.take()
    }

    /// Puts a connection back into the table.
    fn put(&mut self, number: u32, connection: Box<Connection>) {
        if let Some(slot) = self.connections.get_mut(number as usize) {
            *slot = Some(connection);
        }
    }

    /// Adds a TCP connection to the table, and registers it with epoll. Returns its number.
    fn add(&mut self, make: impl FnOnce(u32) -> Connection) -> io::Result<u32> {
        let number = match self.free_connections.pop() {
            Some(number) => number,
            None => {
                self.connections.push(None);
                let count = self.connections.len();
                // Each connection is in these at most once, so that no message allocates.
                self.ready.reserve(count.saturating_sub(self.ready.len()));
                self.corked.reserve(count.saturating_sub(self.corked.len()));
                (count - 1) as u32
            }
        };
        self.next_generation = self.next_generation.wrapping_add(1) % LISTENER_GENERATION;
        let connection = Box::new(make(self.next_generation));
        let data = connection.epoll_data(number);
        if let Err(error) = self.epoll.add(&connection.stream, data) {
            self.free_connections.push(number);
            return Err(error);
        }
        self.put(number, connection);
        Ok(number)
    }

    /// Closes a TCP connection and frees its slot.
    fn remove(&mut self, number: u32) {
        if let Some(connection) = self.take(number) {
            if connection.stream.is_foreign() {
                // Another process may keep the socket open, so closing it here does not unregister it.
                self.epoll.remove(&connection.stream);
            }
            self.release_unbound(connection.unbound);
            if connection.handshake_waits {
                self.cancel_handshake(number, connection.remote);
            }
            self.timers.clear(TimerKey::Connection(number));
            self.free_connections.push(number);
            self.ready.retain(|queued| *queued != number);
        }
        if self.hot.is_some_and(|(hot, _)| hot == number) {
            self.hot = None;
        }
        if self.unregistered == Some(number) {
            self.unregistered = None;
        }
    }

    /// Queues a connection for one of the next polls.
    fn queue(&mut self, number: u32) {
        if let Some(connection) = self.connection_mut(number)
            && !core::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Returns the time of the next timer, at which to call [`ViTcp::handle_timeout`].
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Checks whether work is left from the last poll.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
            || self.has_corked()
            || self.handshakes.is_due()
            || !self.deferred_peers.is_empty()
            || self.shared_listener.has_returned()
    }

    /// Has the next poll call epoll.
    pub(crate) fn poll_epoll_next(&mut self) {
        self.register_all();
        self.polls_since_epoll = u32::MAX;
    }

    /// Handles due timers, at most `budget`.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        for _ in 0..budget {
            match self.timers.pop_due(now_ns) {
                None => return,
                Some(TimerKey::Connection(number)) => self.connection_timeout(number),
                Some(TimerKey::Request(slot)) => self.request_timeout(now_ns, ViIndex(slot), path),
                Some(TimerKey::Response(slot)) => {
                    self.response_timeout(now_ns, ViIndex(slot), path);
                }
                Some(TimerKey::SharedListener) => self.retry_listener(now_ns),
                Some(TimerKey::Handshakes) => self.handshakes.set_due(),
            }
        }
    }
}
