//! A peer of VI/TCP whose segments the test writes byte by byte, so that it can send what the library never sends.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pmd::config::{Network, NicConfig, ViTcp};
use socket2::{Domain, Socket, Type};
use vi_types::status;
use vipl::{
    Completed, ConnectionOptions, ErrorCode, ReliabilityLevel, RemoteBuffer, ViBuilder, ViState,
};

use super::{
    Endpoint, FIRST_OF_PEERS, FIRST_OF_TLS, MAX_TRANSFER_BYTES, TIMEOUT, inline_keys, open_as,
    tcp_host, unique_discriminator,
};

// Segment types and flags of docs/spec/vitcp.md.
pub(crate) const SEND: u8 = 0;
pub(crate) const READ_REQUEST: u8 = 1;
pub(crate) const READ_RESPONSE: u8 = 2;
pub(crate) const WRITE: u8 = 3;
pub(crate) const NOP: u8 = 4;
pub(crate) const CONNECT_REQUEST: u8 = 5;
pub(crate) const CONNECT_ACCEPT: u8 = 6;
pub(crate) const CONNECT_NO_MATCH: u8 = 8;
pub(crate) const IMMEDIATE: u8 = 1;
pub(crate) const END: u8 = 2;
pub(crate) const TRANSMIT_ERROR: u8 = 4;
/// Remote Error Codes.
pub(crate) const MESSAGE_IN_ERROR: u16 = 0x0001;
pub(crate) const PROTECTION_ERROR: u16 = 0x0100;
pub(crate) const DESCRIPTOR_ERROR: u16 = 0x0200;
/// Bit of Calling Attributes: descriptor flow control.
pub(crate) const FLOW_CONTROL: u16 = 1 << 3;

/// A segment received from the library.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedSegment {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) offset: u32,
    pub(crate) number: u32,
    pub(crate) ack: u32,
    pub(crate) posted: u16,
    pub(crate) error: u16,
    pub(crate) body: Vec<u8>,
}

/// The scripted side of a connection.
pub(crate) struct ScriptedPeer {
    pub(crate) tcp: TcpStream,
    /// Message Number of the last sent message.
    pub(crate) number: u32,
    /// Message Number of the last received message.
    pub(crate) last_received: u32,
}

impl ScriptedPeer {
    /// Encodes a segment with arbitrary Message Number and Message ACK.
    pub(crate) fn segment(kind: u8, flags: u8, (number, ack): (u32, u32), body: &[u8]) -> Vec<u8> {
        let bytes = u16::try_from(24 + body.len()).unwrap();
        let mut segment = vec![1, kind << 3 | flags];
        segment.extend(bytes.to_be_bytes());
        segment.extend([0; 8]);
        segment.extend(number.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        segment.extend([0, 100, 0, 0]);
        segment.extend(body);
        segment
    }

    /// Encodes the first segment of the next message, with valid numbers.
    pub(crate) fn next_segment(&mut self, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        Self::segment(kind, flags, (self.number, self.last_received), body)
    }

    /// Encodes a segment of the response to a read request.
    pub(crate) fn read_response(
        &self,
        request: &ReceivedSegment,
        flags: u8,
        offset: u32,
        body: &[u8],
    ) -> Vec<u8> {
        let numbers = (request.number, self.last_received);
        let mut segment = Self::segment(READ_RESPONSE, flags, numbers, body);
        segment[4..8].copy_from_slice(&offset.to_be_bytes());
        segment
    }

    /// Encodes a further segment of the last message.
    pub(crate) fn continuation(&self, kind: u8, flags: u8, offset: u32, body: &[u8]) -> Vec<u8> {
        let mut segment = Self::segment(kind, flags, (self.number, self.last_received), body);
        segment[4..8].copy_from_slice(&offset.to_be_bytes());
        segment
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, body: &[u8]) {
        let segment = self.next_segment(kind, flags, body);
        self.write(&segment);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    /// Receives the next segment; `None` at end of file, which must be between two segments.
    pub(crate) fn receive(&mut self) -> Option<ReceivedSegment> {
        self.try_receive().unwrap()
    }

    /// As [`ScriptedPeer::receive`]; end of file within a segment is `UnexpectedEof`.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<ReceivedSegment>> {
        let mut header = [0; 24];
        match self.tcp.read(&mut header[..1])? {
            0 => return Ok(None),
            _ => self.tcp.read_exact(&mut header[1..])?,
        }
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_be_bytes(header[at..at + 2].try_into().unwrap());
        let mut body = vec![0; usize::from(half(2)) - 24];
        self.tcp.read_exact(&mut body)?;
        let kind = header[1] >> 3;
        if kind != READ_RESPONSE {
            self.last_received = word(12);
        }
        Ok(Some(ReceivedSegment {
            kind,
            flags: header[1] & 7,
            offset: word(4),
            number: word(12),
            ack: word(16),
            posted: half(20),
            error: half(22),
            body,
        }))
    }

    /// Receives segments up to the first one of this type.
    pub(crate) fn receive_kind(&mut self, kind: u8) -> ReceivedSegment {
        loop {
            let segment = self.receive().expect("a segment");
            if segment.kind == kind {
                return segment;
            }
        }
    }

    /// Receives to end of file and returns the error reports: Message ACK and Remote Error Code.
    pub(crate) fn reports_until_eof(&mut self) -> Vec<(u32, u16)> {
        let mut reports = Vec::new();
        while let Some(segment) = self.receive() {
            if segment.error != 0 {
                reports.push((segment.ack, segment.error));
            }
        }
        reports
    }
}

/// Encodes the RDMA header (address, handle, length) and its payload.
pub(crate) fn rdma(remote: RemoteBuffer, total_bytes: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = remote.address.to_be_bytes().to_vec();
    header.extend(remote.handle.0.to_be_bytes());
    header.extend(total_bytes.to_be_bytes());
    header.extend(payload);
    header
}

/// How a scripted peer connects with a VI of the library.
pub(crate) struct ConnectionSetup {
    pub(crate) level: ReliabilityLevel,
    /// Calling Attributes of the peer's request.
    pub(crate) attributes: u16,
    /// MTU Size of the peer's request.
    pub(crate) mtu_bytes: u32,
    /// Maximum segment size that the peer's TCP advertises, if set.
    pub(crate) mss_bytes: Option<u32>,
    /// Options of the library's VI.
    pub(crate) options: ConnectionOptions,
}

/// An address for each test thread, so that each test has its own NIC and counters.
fn host_of_test() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: u32 =
            FIRST_OF_PEERS + NEXT.fetch_add(1, Ordering::Relaxed) % (FIRST_OF_TLS - FIRST_OF_PEERS);
    }
    tcp_host(NUMBER.with(|number| *number))
}

impl ConnectionSetup {
    /// A request that matches a VI of this level.
    pub(crate) fn new(level: ReliabilityLevel) -> Self {
        let attributes = match level {
            ReliabilityLevel::ReliableDelivery => 0x27,
            ReliabilityLevel::ReliableReception => 0x47,
            _ => 0x06,
        };
        Self {
            level,
            attributes,
            mtu_bytes: MAX_TRANSFER_BYTES as u32,
            mss_bytes: None,
            options: ConnectionOptions::default(),
        }
    }

    pub(crate) fn ce_header(&self, called: &[u8]) -> Vec<u8> {
        let mut ce = self.attributes.to_be_bytes().to_vec();
        ce.extend([0, 8]);
        ce.extend(self.mtu_bytes.to_be_bytes());
        ce.extend(b"scripted\0\0\0\0\0\0\0\0");
        // Maximum of outstanding reads, and the called discriminator.
        ce.extend([0, 4, 0, called.len() as u8]);
        ce.extend(called);
        ce.resize(44, 0);
        ce
    }

    fn connect_tcp(&self, to: SocketAddrV4) -> Option<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(bytes) = self.mss_bytes {
            socket.set_tcp_mss(bytes).unwrap();
        }
        socket.connect(&to.into()).ok()?;
        Some(socket.into())
    }

    /// Connects the peer with a VI that `configure` changes, on a NIC whose configuration `change` changes.
    pub(crate) fn connect(
        &self,
        change: impl FnOnce(&mut NicConfig),
        configure: impl FnOnce(ViBuilder) -> ViBuilder,
    ) -> (Endpoint, ScriptedPeer) {
        let host = host_of_test();
        let nic = open_as(|config| {
            config.network = Network::ViTcp(ViTcp::default());
            config.host = Some(host.into());
            // Sends each posted descriptor at once, so that the state of the connection is known.
            inline_keys(config).coalesce_frames = 1;
            change(config);
        });
        let local = Endpoint::on(nic, |vi| configure(vi.reliability(self.level)));
        local.vi.set_connection_options(&self.options).unwrap();
        let name = unique_discriminator();
        let address = local.nic.local_address(&name).unwrap();
        let peer = std::thread::scope(|scope| {
            scope.spawn(|| local.accept(&address));
            let deadline = Instant::now() + TIMEOUT;
            loop {
                assert!(Instant::now() < deadline, "no response to the request");
                let Some(tcp) = self.connect_tcp(SocketAddrV4::new(host, 8420)) else {
                    std::thread::yield_now();
                    continue;
                };
                tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut peer = ScriptedPeer {
                    tcp,
                    number: 0xFFFF_FFFE,
                    last_received: 0,
                };
                let (number, ce) = (peer.number, self.ce_header(&name));
                peer.write(&ScriptedPeer::segment(
                    CONNECT_REQUEST,
                    END,
                    (number, 0),
                    &ce,
                ));
                let response = peer.receive().expect("a response");
                match response.kind {
                    CONNECT_ACCEPT => break peer,
                    kind => assert_eq!(kind, CONNECT_NO_MATCH),
                }
            }
        });
        (local, peer)
    }
}

/// Connects a VI of this level, on a changed NIC, with a scripted peer.
pub(crate) fn connect_with(
    level: ReliabilityLevel,
    change: impl FnOnce(&mut NicConfig),
    configure: impl FnOnce(ViBuilder) -> ViBuilder,
) -> (Endpoint, ScriptedPeer) {
    ConnectionSetup::new(level).connect(change, configure)
}

/// As [`connect_with`], with the default configuration.
pub(crate) fn connect_plain(level: ReliabilityLevel) -> (Endpoint, ScriptedPeer) {
    connect_with(level, |_| (), |vi| vi)
}

pub(crate) fn errors_of(completed: &Completed) -> u32 {
    completed.status.raw() & status::ERROR_MASK
}

/// Checks that the connection is lost: one ConnLost, and these error reports to the peer before end of file.
pub(crate) fn expect_connection_lost(
    local: &Endpoint,
    peer: &mut ScriptedPeer,
    reports: &[(u32, u16)],
) {
    local.expect_errors(&[ErrorCode::ConnLost]);
    assert_eq!(local.vi.state().unwrap(), ViState::Error);
    assert_eq!(peer.reports_until_eof(), reports);
    assert!(local.errors.none());
}

/// Checks that the connection is still established: the next message arrives in the next receive.
pub(crate) fn expect_connected(local: &Endpoint, peer: &mut ScriptedPeer) {
    peer.send(SEND, END, b"next");
    local.expect_message(b"next");
    assert_eq!(local.vi.state().unwrap(), ViState::Connected);
    assert!(local.errors.none());
}

/// The error reports that the sender of a failed message receives: only at Reliable Reception.
pub(crate) fn expected_reports(
    level: ReliabilityLevel,
    number: u32,
    error: u16,
) -> Vec<(u32, u16)> {
    match level {
        ReliabilityLevel::ReliableReception => vec![(number, error)],
        _ => Vec::new(),
    }
}
