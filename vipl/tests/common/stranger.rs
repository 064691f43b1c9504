//! The other end of a connection over VI/TCP, written byte by byte, so that it can say what our own end never would.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pmd::config::{NicConfig, TransportKind};
use pmd::descriptor::status;
use socket2::{Domain, Socket, Type};
use vipl::{Completed, ErrorCode, ReliabilityLevel, RemoteBuffer, ViBuilder, ViChoices, ViState};

use super::{End, MAX_TRANSFER_BYTES, PATIENCE, WAIT, open_as, own_host, unique_discriminator};

pub(crate) const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::Unreliable,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
pub(crate) const RELIABLE: [ReliabilityLevel; 2] = [LEVELS[1], LEVELS[2]];

// The numbers of docs/spec/vitcp.md.
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
/// Of Calling Attributes: descriptor flow control.
pub(crate) const FLOW_CONTROL: u16 = 1 << 3;

/// A segment of the other side's.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) offset: u32,
    pub(crate) number: u32,
    pub(crate) ack: u32,
    pub(crate) posted: u16,
    pub(crate) error: u16,
    pub(crate) behind: Vec<u8>,
}

/// The other end of a connection.
pub(crate) struct Stranger {
    pub(crate) tcp: TcpStream,
    /// Of its last message, and of the last of the other side's.
    pub(crate) number: u32,
    pub(crate) heard: u32,
}

impl Stranger {
    /// A segment as it wants one: numbers as they are, whatever they should be.
    pub(crate) fn segment(
        kind: u8,
        flags: u8,
        (number, ack): (u32, u32),
        behind: &[u8],
    ) -> Vec<u8> {
        let bytes = u16::try_from(24 + behind.len()).unwrap();
        let mut segment = vec![1, kind << 3 | flags];
        segment.extend(bytes.to_be_bytes());
        segment.extend([0; 8]);
        segment.extend(number.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        segment.extend([0, 100, 0, 0]);
        segment.extend(behind);
        segment
    }

    /// Its next message, right but for what the arguments make of it.
    pub(crate) fn next(&mut self, kind: u8, flags: u8, behind: &[u8]) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        Self::segment(kind, flags, (self.number, self.heard), behind)
    }

    /// Another segment of its last message.
    pub(crate) fn further(&self, kind: u8, flags: u8, offset: u32, behind: &[u8]) -> Vec<u8> {
        let mut segment = Self::segment(kind, flags, (self.number, self.heard), behind);
        segment[4..8].copy_from_slice(&offset.to_be_bytes());
        segment
    }

    pub(crate) fn say(&mut self, kind: u8, flags: u8, behind: &[u8]) {
        let segment = self.next(kind, flags, behind);
        self.write(&segment);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    /// The next segment; `None` at the end of the stream, which is between two segments.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        self.hear_whole().unwrap()
    }

    /// As [`Stranger::hear`], where the stream may end within a segment, which is `UnexpectedEof`.
    pub(crate) fn hear_whole(&mut self) -> io::Result<Option<Heard>> {
        let mut header = [0; 24];
        match self.tcp.read(&mut header[..1])? {
            0 => return Ok(None),
            _ => self.tcp.read_exact(&mut header[1..])?,
        }
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_be_bytes(header[at..at + 2].try_into().unwrap());
        let mut behind = vec![0; usize::from(half(2)) - 24];
        self.tcp.read_exact(&mut behind)?;
        let kind = header[1] >> 3;
        if kind != READ_RESPONSE {
            self.heard = word(12);
        }
        Ok(Some(Heard {
            kind,
            flags: header[1] & 7,
            offset: word(4),
            number: word(12),
            ack: word(16),
            posted: half(20),
            error: half(22),
            behind,
        }))
    }

    /// The next segment of this type.
    pub(crate) fn hear_a(&mut self, kind: u8) -> Heard {
        loop {
            let heard = self.hear().expect("the stream goes on");
            if heard.kind == kind {
                return heard;
            }
        }
    }

    /// What it is told of errors (which message, and what) before the stream ends.
    pub(crate) fn told_at_the_end(&mut self) -> Vec<(u32, u16)> {
        let mut told = Vec::new();
        while let Some(heard) = self.hear() {
            if heard.error != 0 {
                told.push((heard.ack, heard.error));
            }
        }
        told
    }
}

/// Address, handle and length of a message of RDMA.
pub(crate) fn rdma(remote: RemoteBuffer, total_bytes: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = remote.address.to_be_bytes().to_vec();
    header.extend(remote.handle.0.to_be_bytes());
    header.extend(total_bytes.to_be_bytes());
    header.extend(payload);
    header
}

/// How a stranger and one of ours meet.
pub(crate) struct Meeting {
    pub(crate) level: ReliabilityLevel,
    /// Calling Attributes and MTU Size of the stranger's request.
    pub(crate) attributes: u16,
    pub(crate) mtu_bytes: u32,
    /// What its TCP takes in a segment, if it says so.
    pub(crate) mss_bytes: Option<u32>,
    /// What our VI wants.
    pub(crate) choices: ViChoices,
}

/// An address that only this test, which has a thread of its own, uses: so it has a NIC whose counters are its own.
fn host_of_test() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed) % 32;
    }
    let number = NUMBER.with(|number| *number);
    Ipv4Addr::from_bits(own_host().to_bits() ^ 1 << 16 ^ number << 17)
}

impl Meeting {
    /// A stranger that wants what one of ours of this level has.
    pub(crate) fn at(level: ReliabilityLevel) -> Self {
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
            choices: ViChoices::default(),
        }
    }

    pub(crate) fn ce_header(&self, called: &[u8]) -> Vec<u8> {
        let mut ce = self.attributes.to_be_bytes().to_vec();
        ce.extend([0, 8]);
        ce.extend(self.mtu_bytes.to_be_bytes());
        ce.extend(b"stranger\0\0\0\0\0\0\0\0");
        // Reads at a time, and the name that is called.
        ce.extend([0, 4, 0, called.len() as u8]);
        ce.extend(called);
        ce.resize(44, 0);
        ce
    }

    fn dial(&self, to: SocketAddrV4) -> Option<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(bytes) = self.mss_bytes {
            socket.set_tcp_mss(bytes).unwrap();
        }
        socket.connect(&to.into()).ok()?;
        Some(socket.into())
    }

    /// Connects them: one of ours, of a NIC and a VI that are changed, and the stranger.
    pub(crate) fn hold(
        &self,
        change: impl FnOnce(&mut NicConfig),
        shape: impl FnOnce(ViBuilder) -> ViBuilder,
    ) -> (End, Stranger) {
        let host = host_of_test();
        let nic = open_as(|config| {
            config.transport = TransportKind::ViTcp;
            config.host = Some(host.into());
            // What is posted is sent at once: a test knows how far it is.
            config.coalesce_frames = 1;
            change(config);
        });
        let ours = End::on(nic, |vi| shape(vi.reliability(self.level)));
        ours.vi.set_choices(&self.choices).unwrap();
        let name = unique_discriminator();
        let address = ours.nic.local_address(&name).unwrap();
        let tcp = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = ours.nic.connect_wait(&address, WAIT).unwrap();
                request.accept(&ours.vi).unwrap();
            });
            let deadline = Instant::now() + PATIENCE;
            loop {
                assert!(Instant::now() < deadline, "nobody answers");
                let Some(tcp) = self.dial(SocketAddrV4::new(host, 8420)) else {
                    std::thread::yield_now();
                    continue;
                };
                tcp.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut stranger = Stranger {
                    tcp,
                    number: 0xFFFF_FFFE,
                    heard: 0,
                };
                let (number, ce) = (stranger.number, self.ce_header(&name));
                stranger.write(&Stranger::segment(CONNECT_REQUEST, END, (number, 0), &ce));
                let answer = stranger.hear().expect("an answer");
                match answer.kind {
                    CONNECT_ACCEPT => break stranger,
                    kind => assert_eq!(kind, CONNECT_NO_MATCH),
                }
            }
        });
        (ours, tcp)
    }
}

/// One of ours, and a stranger that is connected to it.
pub(crate) fn strangers(
    level: ReliabilityLevel,
    change: impl FnOnce(&mut NicConfig),
    shape: impl FnOnce(ViBuilder) -> ViBuilder,
) -> (End, Stranger) {
    Meeting::at(level).hold(change, shape)
}

pub(crate) fn plain(level: ReliabilityLevel) -> (End, Stranger) {
    strangers(level, |_| (), |vi| vi)
}

pub(crate) fn errors_of(completed: &Completed) -> u32 {
    completed.status.raw() & status::ERROR_MASK
}

/// The connection is over: our end is told once, and the stranger hears these errors before the stream ends.
pub(crate) fn is_over(ours: &End, stranger: &mut Stranger, told: &[(u32, u16)]) {
    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
    assert_eq!(ours.vi.state().unwrap(), ViState::Error);
    assert_eq!(stranger.told_at_the_end(), told);
    assert!(ours.errors.none());
}

/// The connection goes on: the next message comes to the next receive.
pub(crate) fn goes_on(ours: &End, stranger: &mut Stranger) {
    stranger.say(SEND, END, b"next");
    let arrived = ours.recv().ok().unwrap();
    assert_eq!(arrived.first_bytes(), b"next");
    assert_eq!(ours.vi.state().unwrap(), ViState::Connected);
    assert!(ours.errors.none());
}

/// What its sender hears of a message that failed: its number and why, where it waits for that.
pub(crate) fn told_of(level: ReliabilityLevel, number: u32, error: u16) -> Vec<(u32, u16)> {
    match level {
        ReliabilityLevel::ReliableReception => vec![(number, error)],
        _ => Vec::new(),
    }
}
