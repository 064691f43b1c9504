//! A NIC of the unit tests, polled by the test, which takes the roles of remote hosts.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use vi_types::{PtagHandle, ViAttributes};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use super::ViTcp;
use super::stream_error::is_would_block;

use crate::config::{Network, NicConfig, TlsConfig, ViTcp as ViTcpConfig};
use crate::datapath::Datapath;
use crate::device::Device;
use crate::nic;
use crate::nic_backend::Backend;
use crate::open;

/// Long enough for slow machines.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const NAMED: &[u8] = b"called";

/// The NIC under test, which makes progress only when it is polled.
pub(super) struct Program {
    pub(super) device: &'static Device,
    pub(super) nic: u64,
    ptag: u64,
    pub(super) at: SocketAddr,
}

/// Configures TLS.
pub(super) fn with_tls(config: &mut NicConfig, tls: TlsConfig) {
    config.network = Network::ViTcp(ViTcpConfig {
        tls: Some(tls),
        ..ViTcpConfig::default()
    });
}

/// Configures the directory of the programs that share the port.
pub(super) fn in_directory(config: &mut NicConfig, directory: &Path) {
    config.network = Network::ViTcp(ViTcpConfig {
        directory: Some(directory.to_owned()),
        ..ViTcpConfig::default()
    });
}

impl Program {
    /// Opens a NIC at an address that is unique for `test`.
    pub(super) fn new(test: u32, change: impl FnOnce(&mut NicConfig)) -> Self {
        let host = Self::host(test);
        let mut config = NicConfig {
            host: Some(host.into()),
            ulp_timeout_ms: Some(600_000),
            network: Network::ViTcp(ViTcpConfig::default()),
            ..NicConfig::default()
        };
        change(&mut config);
        let (device, nic) = open::open_without_threads(&config).unwrap();
        let at = SocketAddr::new(host.into(), ViTcpConfig::default().port);
        let ptag = nic::create_ptag(nic).unwrap();
        Self {
            device,
            nic,
            ptag,
            at,
        }
    }

    /// Returns the address that is unique for `test`.
    pub(super) fn host(test: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits((0x7F60_0000 + (test << 16)) | std::process::id() & 0xFFFF)
    }

    /// Calls its transport.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut ViTcp, &mut Datapath) -> T) -> T {
        let mut held = self.device.lock();
        let Some(Backend::ViTcp(poller)) = held.as_mut() else {
            panic!("another transport");
        };
        call(&mut poller.transport, &mut poller.state.path)
    }

    /// Has it listen; returns whether it does.
    pub(super) fn listen(&self) -> bool {
        let settings = ViAttributes {
            reliability: 2,
            max_transfer_bytes: 1 << 16,
            ptag: Some(PtagHandle::from_raw(self.ptag)),
            ..ViAttributes::default()
        };
        nic::create_vi(self.nic, &settings, 0, 0).is_ok()
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        let counters = nic::counters(self.nic).unwrap();
        counters.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// Polls it until `condition` returns a value.
    pub(super) fn poll_until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            self.device.poll();
            if let Some(value) = condition() {
                return value;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "timed out: {:?}",
                nic::counters(self.nic)
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

impl Drop for Program {
    fn drop(&mut self) {
        open::close(self.device, self.nic).unwrap();
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
