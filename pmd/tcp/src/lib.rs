//! VI/TCP (docs/spec/vitcp.md): VIs over TCP connections, polled by the NIC's poller. Queues and memory of the VIs are the
//! caller's ([`StreamIo`]).
//!
//! | module | contents |
//! | --- | --- |
//! | this file, `poll_sockets`, `transmit` | [`ViTcp`]: reads and writes the sockets of connected VIs |
//! | `connector` | establishment and end of connections: calls of the consumer, timers |
//! | `sockets` | its events of sockets: accepted connections, connection establishment |
//! | `initiator`, `responder` | its outgoing and incoming connection requests |
//! | `simultaneous_open` | its peer-to-peer requests that cross |
//! | `endpoint`, `endpoint_table`, `request` | the VIs, and their connection requests |
//! | `listeners` | consumers that wait for a connection request |
//! | `connection`, `connection_table` | the TCP connections, and those with work for the next polls |
//! | `closing`, `unbound` | connections without a VI: graceful close; limits |
//! | `ce_header` | headers of connection establishment |
//! | `keys`, `key_file`, `challenge` | keys shared with other hosts, and their file; challenges and proofs |
//! | `shared_listener`, `listen_retry` | one TCP port for all programs of a host; retries while another program has it |
//! | `socket`, `epoll_set` | non-blocking TCP sockets and epoll: system calls |
//! | `tls`, `credentials` | TLS on the sockets; certificates and keys. Without the feature `tls`: `without_tls` |
//! | `stream_error` | what an error of a socket or of TLS means |
//! | `handshakes` | turns of TLS handshakes |
//! | `stream_port` | the sockets as a `Port` of the poller |
//! | `context`, `timers`, `counters`, `budget` | settings, timers, counters, limits of one poll |
//!
//! Formats, connection state machines and the data transfer of a connection are in `vitcp-lite`.

use std::io;
use std::path::PathBuf;

use vi_core::log_limiter::LogLimiter;

use vi_types::{ConnectionOptions, HostAddress, MissLimits, ViIndex, ViParams, ViState};

use pmd_port::PortStats;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

mod budget;
mod ce_header;
mod challenge;
mod closing;
mod connection;
mod connection_table;
mod connector;
mod context;
mod counters;
#[cfg(feature = "tls")]
mod credentials;
mod endpoint;
mod endpoint_table;
mod epoll_set;
mod handshakes;
mod initiator;
mod key_file;
mod keys;
mod listen_retry;
mod listeners;
mod poll_sockets;
mod request;
mod responder;
mod shared_listener;
mod simultaneous_open;
mod socket;
mod sockets;
mod stream_error;
mod stream_port;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod timers;
#[cfg(feature = "tls")]
mod tls;
mod transmit;
mod unbound;
#[cfg(not(feature = "tls"))]
mod without_tls;

pub use connector::Connector;
#[cfg(feature = "tls")]
pub use credentials::Credentials;
pub use handshakes::HandshakeLimits;
pub use key_file::read_keys;
pub use keys::Keys;
pub use listen_retry::{LISTEN_TIMEOUT, retry_listening};
pub use shared_listener::{ListenState, check_listening};
pub use socket::try_bind;
pub use stream_port::StreamPort;
#[cfg(not(feature = "tls"))]
pub use without_tls::Credentials;

use context::Context;
use counters::Counter;
use endpoint::Phase;
use timers::TimerKey;
#[cfg(feature = "tls")]
use tls::TlsSession;
use vitcp_lite::source::host_of;
use vitcp_lite::transfer::{Counter as TransferCounter, MemoryRanges, SendBatch, StreamIo};
#[cfg(not(feature = "tls"))]
use without_tls::TlsSession;

/// Maximum user bytes in a segment of a send.
pub const NATIVE_MTU_BYTES: u32 = 65_535 - SEGMENT_HEADER_BYTES as u32;

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
pub struct Settings {
    /// The own address.
    pub host: HostAddress,
    /// TCP port.
    pub port: u16,
    /// Interface number of a link-local address; 0 for others.
    pub scope: u32,
    /// Limit of VIs.
    pub max_vi: u32,
    /// Limit of incoming connections without a VI.
    pub max_incoming: u32,
    /// Limit of descriptors in flight per VI.
    pub max_in_flight: u32,
    /// Limit of outstanding RDMA reads of a peer per VI.
    pub max_reads: u16,
    /// Timeout of a response, and of the Connect Request on an accepted connection.
    pub response_timeout_ns: u64,
    /// Initial retry interval of a connection request without a listener.
    pub retry_ns: u64,
    /// Keepalive interval; 0 disables keepalive.
    pub probe_ms: u64,
    /// Limits on RDMA accesses of a peer whose handle names no region.
    pub miss_limits: MissLimits,
    /// Limits on the TLS handshakes that peers start.
    pub handshake_limits: HandshakeLimits,
    /// Rate limiter of log lines that peers or applications can cause.
    pub log_limiter: &'static LogLimiter,
    /// Initial option of new VIs: descriptor flow control.
    pub flow_control: bool,
    /// Posted receives are advertised at once to a peer with fewer unused credits.
    pub credits_low: u16,
}

/// A VI/TCP NIC: its VIs with their connections, and the polling of their sockets.
pub struct ViTcp {
    /// Establishment and end of connections.
    pub connector: Connector,
    /// Polls since the last epoll call, and their limit.
    polls_since_epoll: u32,
    epoll_interval: u32,
    /// Consecutive polls skipped because data was just sent.
    skipped_polls: u32,
    buffer: Box<[u8]>,
    iovecs: MemoryRanges,
    batch: SendBatch,
}

impl ViTcp {
    /// Creates a NIC without VIs.
    ///
    /// # Errors
    /// The error of `epoll_create1`.
    pub fn new(
        settings: Settings,
        local_directory: Option<PathBuf>,
        credentials: Option<Credentials>,
        keys: Option<Keys>,
    ) -> io::Result<Self> {
        let context = Context::new(settings);
        Ok(Self {
            connector: Connector::new(context, local_directory, credentials, keys)?,
            polls_since_epoll: 0,
            epoll_interval: *EPOLL_INTERVAL.start(),
            skipped_polls: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            iovecs: MemoryRanges::with_capacity(MAX_IOVECS),
            batch: SendBatch::default(),
        })
    }

    /// Returns the own host.
    pub fn host(&self) -> HostAddress {
        self.connector.context.settings.host
    }

    /// Returns the counters by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let context = &self.connector.context;
        let transfer = context.transfer_counters.iter();
        transfer.chain(context.counters.iter()).collect()
    }

    /// Adds the traffic of the connections to port statistics: segments as frames, and bytes of TCP.
    pub fn add_traffic(&self, stats: &mut PortStats) {
        let context = &self.connector.context;
        stats.rx_frames += context.transfer_counters.get(TransferCounter::RxSegments);
        stats.rx_bytes += context.counters.get(Counter::RxBytes);
        stats.tx_frames += context.transfer_counters.get(TransferCounter::TxSegments);
        stats.tx_bytes += context.counters.get(Counter::TxBytes);
    }

    /// Returns the `Port` that represents the sockets of this NIC.
    pub fn port(&self) -> StreamPort {
        let device = self.connector.context.local_address().to_string();
        StreamPort::new(device, self.connector.connections.epoll.descriptor())
    }

    /// Listens as the only program at this port.
    ///
    /// # Errors
    /// Those of `bind` and `listen`.
    pub fn listen_exclusively(&mut self) -> io::Result<()> {
        let connector = &mut self.connector;
        let epoll = &connector.connections.epoll;
        connector
            .shared_listener
            .listen_exclusively(epoll, &connector.context)
    }

    /// Adds an Idle VI; `None` if all slots are used.
    pub fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let options = ConnectionOptions {
            flow_control: self.connector.context.settings.flow_control,
            ..ConnectionOptions::default()
        };
        self.connector.endpoints.create(params, options)
    }

    /// Sets the user that owns a VI: its peer on this NIC is limited by user.
    pub fn set_user(&mut self, vi: ViIndex, user: u32) {
        if let Some(endpoint) = self.connector.endpoints.get_mut(vi) {
            endpoint.user = user;
        }
    }

    /// Removes a VI, which must be Idle; returns false otherwise.
    pub fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let connector = &mut self.connector;
        let idle = connector.endpoints.idle(vi).is_some();
        if idle {
            connector.endpoints.remove(vi);
            let timers = &mut connector.context.timers;
            timers.clear(TimerKey::Request(vi.0));
            timers.clear(TimerKey::Response(vi.0));
        }
        idle
    }

    /// Replaces the consumer's attributes of a VI, which must be Idle; returns false otherwise.
    pub fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        let idle = self.connector.endpoints.idle(vi);
        idle.map(|endpoint| endpoint.params = params).is_some()
    }

    /// Returns the connection options of a VI.
    pub fn connection_options(&self, vi: ViIndex) -> Option<&ConnectionOptions> {
        self.connector
            .endpoints
            .get(vi)
            .map(|endpoint| &endpoint.options)
    }

    /// Replaces the connection options of a VI; returns false unless the VI is Idle.
    pub fn set_connection_options(&mut self, vi: ViIndex, options: &ConnectionOptions) -> bool {
        let idle = self.connector.endpoints.idle(vi);
        idle.map(|endpoint| endpoint.options.clone_from(options))
            .is_some()
    }

    /// Returns the state of a VI.
    pub fn state(&self, vi: ViIndex) -> Option<ViState> {
        Some(self.connector.endpoints.get(vi)?.state())
    }

    /// Returns the remote host of a VI's connection.
    pub fn peer(&self, vi: ViIndex) -> Option<HostAddress> {
        let number = self.connector.endpoints.connection_of(vi)?;
        let connection = self.connector.connections.get(number)?;
        Some(HostAddress(host_of(connection.remote)))
    }

    /// Returns the number of the VI's peer request, from the call until its outcome was taken.
    pub fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.connector.endpoints.get(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// Returns the refused RDMA accesses of the peer on this VI's connection, or on the last one that
    /// broke.
    pub fn refused_accesses(&self, vi: ViIndex) -> u32 {
        let Some(endpoint) = self.connector.endpoints.get(vi) else {
            return 0;
        };
        match endpoint.phase {
            Phase::Connected(number) => {
                let connection = self.connector.connections.get(number);
                connection.map_or(0, |connection| connection.transfer.rx.misses.refused())
            }
            Phase::Idle | Phase::Requesting(_) | Phase::Error => endpoint.refused_accesses,
        }
    }

    /// Returns the time of the next timer, at which to call [`ViTcp::handle_timeout`].
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.connector.context.timers.next()
    }

    /// Handles due timers, at most `budget`.
    pub fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut impl StreamIo) {
        for _ in 0..budget {
            match self.connector.context.timers.pop_due(now_ns) {
                None => return,
                Some(timer) => self.connector.on_timer(now_ns, timer, path),
            }
        }
    }

    /// Checks whether work is left from the last poll.
    pub fn has_more(&self) -> bool {
        let connector = &self.connector;
        connector.connections.ready() > 0
            || self.has_corked()
            || connector.connections.handshakes.is_due()
            || !connector.deferred_peers.is_empty()
            || connector.shared_listener.returned() > 0
    }

    /// Has the next poll call epoll.
    pub fn poll_epoll_next(&mut self) {
        self.connector.connections.register_all();
        self.polls_since_epoll = u32::MAX;
    }

    /// Checks whether TCP holds data back that was not pushed.
    #[inline]
    pub fn has_corked(&self) -> bool {
        !self.connector.connections.corked.is_empty()
    }

    /// Pushes the data that TCP has held back for some time; with `all` any.
    pub fn push(&mut self, now_ns: u64, all: bool) {
        self.connector.connections.push(now_ns, all);
    }
}
