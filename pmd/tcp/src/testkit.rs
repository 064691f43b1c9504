//! A NIC of the unit tests, polled by the test, which takes the roles of remote hosts.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vi_config::TlsConfig;
use vi_core::log_limiter::LogLimiter;
use vi_types::{HostAddress, MissLimits, ReliabilityLevel, ViIndex, ViParams};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::testkit::Host;

use crate::listen_retry::{LISTEN_TIMEOUT, retry_listening};
use crate::shared_listener::ListenState;
use crate::stream_error::is_would_block;
use crate::{Credentials, HandshakeLimits, Settings, ViTcp};

/// Long enough for slow machines.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const NAMED: &[u8] = b"called";

pub(super) static LOG_LIMITER: LogLimiter = LogLimiter::new(u32::MAX);

/// Configuration of a NIC.
pub(super) struct Config {
    pub(super) settings: Settings,
    /// Directory of the programs that share the port.
    pub(super) directory: Option<PathBuf>,
    pub(super) tls: Option<TlsConfig>,
}

/// Configures TLS.
pub(super) fn with_tls(config: &mut Config, tls: TlsConfig) {
    config.settings.handshake_limits = HandshakeLimits {
        total: tls.max_handshakes_per_second,
        per_source: tls.max_handshakes_per_source,
    };
    config.tls = Some(tls);
}

/// Configures the directory of the programs that share the port.
pub(super) fn in_directory(config: &mut Config, directory: &Path) {
    config.directory = Some(directory.to_owned());
}

/// A NIC, and the queues of its VIs.
pub(super) struct Nic {
    pub(super) tcp: ViTcp,
    pub(super) io: Host,
    vis: u32,
}

/// The NIC under test, which makes progress only when it is polled.
pub(super) struct Program {
    nic: Mutex<Nic>,
    started: Instant,
    pub(super) at: SocketAddr,
}

impl Program {
    /// Opens a NIC at an address that is unique for `test`.
    pub(super) fn new(test: u32, change: impl FnOnce(&mut Config)) -> Self {
        let host = Self::host(test);
        let defaults = vi_config::ViTcp::default();
        let limits = vi_config::Limits::default();
        let mut config = Config {
            settings: Settings {
                host: HostAddress(host.to_ipv6_mapped().octets()),
                port: defaults.port,
                scope: 0,
                max_vi: 8,
                max_incoming: limits.max_incoming,
                max_in_flight: limits.max_in_flight,
                max_reads: limits.max_rdma_reads,
                response_timeout_ns: 600_000_000_000,
                retry_ns: 1_000_000,
                probe_ms: 0,
                miss_limits: MissLimits::default(),
                handshake_limits: HandshakeLimits {
                    total: 0,
                    per_source: 0,
                },
                log_limiter: &LOG_LIMITER,
                flow_control: false,
                credits_low: defaults.credits_low,
            },
            directory: None,
            tls: None,
        };
        change(&mut config);
        let credentials = config
            .tls
            .as_ref()
            .map(|tls| Credentials::read(tls, host.into(), &LOG_LIMITER).unwrap());
        let is_exclusive = credentials.is_some();
        let mut tcp = ViTcp::new(config.settings, config.directory, credentials, None).unwrap();
        if is_exclusive {
            tcp.listen_exclusively().unwrap();
        }
        Self {
            nic: Mutex::new(Nic {
                tcp,
                io: Host::default(),
                vis: 0,
            }),
            started: Instant::now(),
            at: SocketAddr::new(host.into(), defaults.port),
        }
    }

    /// Returns the address that is unique for `test`.
    pub(super) fn host(test: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits((0x7F60_0000 + (test << 16)) | std::process::id() & 0xFFFF)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with<T>(&self, call: impl FnOnce(&mut ViTcp, &mut Host) -> T) -> T {
        let nic = &mut *self.lock();
        call(&mut nic.tcp, &mut nic.io)
    }

    /// Creates a VI, as which the NIC listens; returns whether it does.
    pub(super) fn listen(&self) -> bool {
        let params = ViParams {
            level: ReliabilityLevel::ReliableDelivery,
            max_transfer_bytes: 1 << 16,
            rdma_write: false,
            rdma_read: false,
        };
        let listens = retry_listening(LISTEN_TIMEOUT, |is_last_try| {
            let state = self.with(|tcp, _| tcp.connector.start_listening(is_last_try));
            match state {
                ListenState::Listening => Some(true),
                ListenState::PortTaken if !is_last_try => None,
                ListenState::PortTaken | ListenState::Failed => Some(false),
            }
        });
        let nic = &mut *self.lock();
        listens
            && nic
                .tcp
                .create_vi(params)
                .inspect(|_| nic.vis += 1)
                .is_some()
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        let counters = self.with(|tcp, _| tcp.counters());
        counters.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Polls it once.
    pub(super) fn poll(&self) {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let nic = &mut *self.lock();
        nic.tcp.poll_sockets(now_ns, &mut nic.io);
        for vi in 0..nic.vis {
            nic.tcp.pump(now_ns, ViIndex(vi), &mut nic.io);
        }
        nic.tcp.handle_timeout(now_ns, u32::MAX, &mut nic.io);
    }

    /// Polls it until `condition` returns a value.
    pub(super) fn poll_until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            self.poll();
            if let Some(value) = condition() {
                return value;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "timed out: {:?}",
                self.with(|tcp, _| tcp.counters())
            );
        }
    }

    pub(super) fn dial(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.at).unwrap();
        tcp.set_nonblocking(true).unwrap();
        tcp
    }

    /// Connects from another local address.
    pub(super) fn dial_from(&self, host: Ipv4Addr) -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket
            .bind(&SocketAddr::new(host.into(), 0).into())
            .unwrap();
        socket.connect(&self.at.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.into()
    }

    /// Receives the response; returns its segment type.
    pub(super) fn response_type(&self, tcp: &mut TcpStream) -> u8 {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        self.poll_until(|| match tcp.read(&mut header) {
            Ok(SEGMENT_HEADER_BYTES) => Some(header[1] >> 3),
            Ok(bytes) => panic!("{bytes} bytes of a response"),
            Err(error) if is_would_block(&error) => None,
            Err(error) => panic!("{error}"),
        })
    }
}

// Segment types.
pub(super) const CONNECT_ACCEPT: u8 = 6;
pub(super) const NO_MATCH: u8 = 8;

/// A Connect Request for [`NAMED`].
pub(super) fn request(peer: bool) -> Vec<u8> {
    let mut request = vec![1, 5 << 3 | 2, 0, 24 + 44];
    request.resize(SEGMENT_HEADER_BYTES, 0);
    // Reliable Delivery, and whether it is a peer's.
    request.extend([0, if peer { 0x37 } else { 0x27 }, 0, 1]);
    request.extend((1u32 << 16).to_be_bytes());
    request.extend([b'c'; 1]);
    request.resize(SEGMENT_HEADER_BYTES + 24, 0);
    request.extend([0, 1, 0, NAMED.len() as u8]);
    request.extend(NAMED);
    request.resize(SEGMENT_HEADER_BYTES + 44, 0);
    request
}
