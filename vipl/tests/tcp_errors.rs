//! Errors over VI/TCP as the other end sees them (docs/spec/vitcp.md, Errors): a stranger that writes its segments byte
//! by byte, so that it can say what our own end never would.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use common::{End, MAX_TRANSFER_BYTES, PATIENCE, WAIT, open_as, own_host, unique_discriminator};
use pmd::config::{NicConfig, TransportKind};
use pmd::descriptor::status;
use vipl::{
    Completed, Descriptor, ErrorCode, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer,
    ViBuilder, ViState,
};

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::Unreliable,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
const RELIABLE: [ReliabilityLevel; 2] = [LEVELS[1], LEVELS[2]];

// The numbers of docs/spec/vitcp.md.
const SEND: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const WRITE: u8 = 3;
const NOP: u8 = 4;
const CONNECT_REQUEST: u8 = 5;
const CONNECT_ACCEPT: u8 = 6;
const CONNECT_NO_MATCH: u8 = 8;
const END: u8 = 2;
const TRANSMIT_ERROR: u8 = 4;
const MESSAGE_IN_ERROR: u16 = 0x0001;

/// A segment of the other side's.
#[derive(Clone, Debug)]
struct Heard {
    kind: u8,
    number: u32,
    ack: u32,
    error: u16,
    behind: Vec<u8>,
}

/// The other end of a connection.
struct Stranger {
    tcp: TcpStream,
    /// Of its last message, and of the last of the other side's.
    number: u32,
    heard: u32,
}

impl Stranger {
    /// A segment as it wants one: numbers as they are, whatever they should be.
    fn segment(kind: u8, flags: u8, (number, ack): (u32, u32), behind: &[u8]) -> Vec<u8> {
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
    fn next(&mut self, kind: u8, flags: u8, behind: &[u8]) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        Self::segment(kind, flags, (self.number, self.heard), behind)
    }

    fn say(&mut self, kind: u8, flags: u8, behind: &[u8]) {
        let segment = self.next(kind, flags, behind);
        self.write(&segment);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    /// The next segment; `None` at the end of the stream.
    fn hear(&mut self) -> Option<Heard> {
        let mut header = [0; 24];
        self.tcp.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_be_bytes(header[at..at + 2].try_into().unwrap());
        let mut behind = vec![0; usize::from(half(2)) - 24];
        self.tcp.read_exact(&mut behind).ok()?;
        let kind = header[1] >> 3;
        if kind != READ_RESPONSE {
            self.heard = word(12);
        }
        Some(Heard {
            kind,
            number: word(12),
            ack: word(16),
            error: half(22),
            behind,
        })
    }

    /// The next segment of this type.
    fn hear_a(&mut self, kind: u8) -> Heard {
        loop {
            let heard = self.hear().expect("the stream goes on");
            if heard.kind == kind {
                return heard;
            }
        }
    }

    /// What it is told of errors (which message, and what) before the stream ends.
    fn told_at_the_end(&mut self) -> Vec<(u32, u16)> {
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
fn rdma(remote: RemoteBuffer, total_bytes: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = remote.address.to_be_bytes().to_vec();
    header.extend(remote.handle.0.to_be_bytes());
    header.extend(total_bytes.to_be_bytes());
    header.extend(payload);
    header
}

fn ce_header(level: ReliabilityLevel, called: &[u8]) -> Vec<u8> {
    let attributes: u16 = match level {
        ReliabilityLevel::ReliableDelivery => 0x27,
        ReliabilityLevel::ReliableReception => 0x47,
        _ => 0x06,
    };
    let mut ce = attributes.to_be_bytes().to_vec();
    ce.extend([0, 8]);
    ce.extend((MAX_TRANSFER_BYTES as u32).to_be_bytes());
    ce.extend(b"stranger\0\0\0\0\0\0\0\0");
    // Reads at a time, and the name that is called.
    ce.extend([0, 4, 0, called.len() as u8]);
    ce.extend(called);
    ce.resize(44, 0);
    ce
}

/// One of ours, and a stranger that is connected to it.
fn strangers(
    level: ReliabilityLevel,
    change: impl FnOnce(&mut NicConfig),
    shape: impl FnOnce(ViBuilder) -> ViBuilder,
) -> (End, Stranger) {
    let host = Ipv4Addr::from_bits(own_host().to_bits() ^ (7 << 16));
    let nic = open_as(|config| {
        config.transport = TransportKind::ViTcp;
        config.host = Some(host.into());
        change(config);
    });
    let ours = End::on(nic, |vi| shape(vi.reliability(level)));
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
            let Ok(tcp) = TcpStream::connect((host, 8420)) else {
                std::thread::yield_now();
                continue;
            };
            tcp.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut stranger = Stranger {
                tcp,
                number: 0xFFFF_FFFE,
                heard: 0,
            };
            let (number, ce) = (stranger.number, ce_header(level, &name));
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

fn plain(level: ReliabilityLevel) -> (End, Stranger) {
    strangers(level, |_| (), |vi| vi)
}

fn errors_of(completed: &Completed) -> u32 {
    completed.status.raw() & status::ERROR_MASK
}

/// The connection is over: our end is told once, and the stranger hears these errors before the stream ends.
fn is_over(ours: &End, stranger: &mut Stranger, told: &[(u32, u16)]) {
    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
    assert_eq!(ours.vi.state().unwrap(), ViState::Error);
    assert_eq!(stranger.told_at_the_end(), told);
    assert!(ours.errors.none());
}

/// The connection goes on: the next message comes to the next receive.
fn goes_on(ours: &End, stranger: &mut Stranger) {
    stranger.say(SEND, END, b"next");
    let arrived = ours.recv().ok().unwrap();
    assert_eq!(arrived.first_bytes(), b"next");
    assert_eq!(ours.vi.state().unwrap(), ViState::Connected);
    assert!(ours.errors.none());
}

/// What its sender hears of a message that failed: its number and why, where it waits for that.
fn told_of(level: ReliabilityLevel, number: u32, error: u16) -> Vec<(u32, u16)> {
    match level {
        ReliabilityLevel::ReliableReception => vec![(number, error)],
        _ => Vec::new(),
    }
}

#[test]
fn a_send_with_transmit_error_fails_its_receive() {
    for level in LEVELS {
        let (ours, mut stranger) = plain(level);
        for _ in 0..2 {
            ours.vi.post_recv(ours.room(64)).unwrap();
        }
        stranger.say(SEND, END | TRANSMIT_ERROR, b"half");
        let expected = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
        assert_eq!(errors_of(&ours.recv()), expected, "{level:?}");
        if level == ReliabilityLevel::Unreliable {
            goes_on(&ours, &mut stranger);
            continue;
        }
        assert_eq!(errors_of(&ours.recv()), status::DESC_FLUSHED_ERROR);
        let told = told_of(level, stranger.number, MESSAGE_IN_ERROR);
        is_over(&ours, &mut stranger, &told);
    }
}

#[test]
fn a_write_that_ends_early_is_told_of_where_it_is_reliable() {
    const WRITABLE: RdmaAccess = RdmaAccess {
        write: true,
        read: false,
    };
    for level in LEVELS {
        let (ours, mut stranger) = strangers(level, |_| (), |vi| vi.rdma_write(true));
        let memory = ours
            .nic
            .create_rdma_region(64, &ours.ptag, WRITABLE)
            .unwrap();
        ours.vi.post_recv(ours.room(64)).unwrap();
        let half = rdma(memory.remote_buffer(), 32, &[7; 16]);
        stranger.say(WRITE, END, &half);
        if level == ReliabilityLevel::Unreliable {
            goes_on(&ours, &mut stranger);
            continue;
        }
        assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::RdmawAbort);
        let told = told_of(level, stranger.number, MESSAGE_IN_ERROR);
        is_over(&ours, &mut stranger, &told);
    }
}

/// Whatever the level, bytes that are against the protocol end the connection, and nothing is said of them.
#[test]
fn who_does_not_keep_to_the_protocol_loses_the_connection() {
    type Lie = fn(&mut Stranger) -> Vec<u8>;
    let lies: [(&str, Lie); 5] = [
        ("a version", |stranger| {
            let mut segment = stranger.next(NOP, END, &[]);
            segment[0] = 2;
            segment
        }),
        ("a type", |stranger| stranger.next(9, END, &[])),
        ("a length", |stranger| stranger.next(NOP, END, &[0])),
        ("a number left out", |stranger| {
            let _out = stranger.next(NOP, END, &[]);
            stranger.next(SEND, END, b"late")
        }),
        ("a message inside another", |stranger| {
            let mut both = stranger.next(SEND, 0, b"begun");
            both.extend(stranger.next(NOP, END, &[]));
            both
        }),
    ];
    for level in LEVELS {
        for (what, lie) in lies {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_recv(ours.room(64)).unwrap();
            let bytes = lie(&mut stranger);
            stranger.write(&bytes);
            let flushed = ours.recv();
            let expected = status::DESC_FLUSHED_ERROR;
            assert_eq!(errors_of(&flushed), expected, "{level:?}: {what}");
            is_over(&ours, &mut stranger, &[]);
        }
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_counts_only_where_one_is_waited_for() {
    for level in LEVELS {
        let (ours, mut stranger) = plain(level);
        ours.vi.post_recv(ours.room(64)).unwrap();
        ours.vi.post_send(ours.message(b"ours")).unwrap();
        stranger.hear_a(SEND);
        stranger.heard = stranger.heard.wrapping_add(1);
        stranger.say(NOP, END, &[]);
        let sent = ours.vi.send_wait(WAIT).unwrap().unwrap();
        if level == ReliabilityLevel::ReliableReception {
            assert_eq!(errors_of(&sent), status::DESC_FLUSHED_ERROR);
            is_over(&ours, &mut stranger, &[]);
        } else {
            assert!(sent.status.is_ok());
            goes_on(&ours, &mut stranger);
        }
    }
}

#[test]
fn more_reads_than_are_taken_at_a_time_end_the_connection() {
    const READABLE: RdmaAccess = RdmaAccess {
        write: false,
        read: true,
    };
    for level in RELIABLE {
        let one = |config: &mut NicConfig| config.max_rdma_reads = 1;
        let (ours, mut stranger) = strangers(level, one, |vi| vi.rdma_read(true));
        let memory = ours
            .nic
            .create_rdma_region(64, &ours.ptag, READABLE)
            .unwrap();
        let request = rdma(memory.remote_buffer(), 64, &[]);
        let mut both = stranger.next(READ_REQUEST, END, &request);
        both.extend(stranger.next(READ_REQUEST, END, &request));
        stranger.write(&both);
        is_over(&ours, &mut stranger, &[]);
    }
}

#[test]
fn a_read_at_unreliable_delivery_is_against_the_protocol() {
    let (ours, mut stranger) = plain(ReliabilityLevel::Unreliable);
    let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    stranger.say(READ_REQUEST, END, &rdma(somewhere, 64, &[]));
    is_over(&ours, &mut stranger, &[]);
}

fn read_of(ours: &End, bytes: usize) -> Descriptor {
    let mut descriptor = ours.room(bytes);
    descriptor.set_used_bytes(0, bytes);
    let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    descriptor.set_operation(Operation::RdmaRead(somewhere));
    descriptor
}

#[test]
fn an_answer_that_is_none_fails_its_read() {
    let partly = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
    // Bytes of a first segment if there is one, then of the last; its flags; what the read ends with.
    let answers = [
        (0, 17, END, status::TRANSPORT_ERROR),
        (0, 15, END, status::TRANSPORT_ERROR),
        (8, 9, END, partly),
        (0, 0, END | TRANSMIT_ERROR, status::RDMA_PROT_ERROR),
    ];
    for level in RELIABLE {
        for (first, last, flags, expected) in answers {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_send(read_of(&ours, 16)).unwrap();
            let asked = stranger.hear_a(READ_REQUEST);
            let mut offset = 0u32;
            for (bytes, flags) in [(first, 0), (last, flags)] {
                if bytes == 0 && flags == 0 {
                    continue;
                }
                let mut behind = asked.behind.clone();
                behind.extend(vec![5; bytes]);
                let numbers = (asked.number, stranger.heard);
                let mut answer = Stranger::segment(READ_RESPONSE, flags, numbers, &behind);
                answer[4..8].copy_from_slice(&offset.to_be_bytes());
                offset += bytes as u32;
                stranger.write(&answer);
            }
            let read = ours.vi.send_wait(WAIT).unwrap().unwrap();
            assert_eq!(errors_of(&read), expected, "{level:?}: {first}, {last}");
            is_over(&ours, &mut stranger, &[]);
        }
    }
}

/// A message of Reliable Reception and a read wait for their answer as long as they may.
#[test]
fn an_answer_that_never_comes_is_a_transport_error() {
    const TIMEOUT_MS: u64 = 300;
    for level in RELIABLE {
        let soon = |config: &mut NicConfig| config.ulp_timeout_ms = Some(TIMEOUT_MS);
        let (ours, mut stranger) = strangers(level, soon, |vi| vi);
        let begun = Instant::now();
        let reads = level == ReliabilityLevel::ReliableDelivery;
        let asks = if reads {
            read_of(&ours, 16)
        } else {
            ours.message(b"heard, and not answered")
        };
        ours.vi.post_send(asks).unwrap();
        ours.vi.post_send(ours.message(b"behind")).unwrap();
        let waited = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&waited), status::TRANSPORT_ERROR, "{level:?}");
        assert!(begun.elapsed() >= Duration::from_millis(TIMEOUT_MS));
        let behind = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&behind), status::DESC_FLUSHED_ERROR, "{level:?}");
        is_over(&ours, &mut stranger, &[]);
    }
}

/// FIN in the middle of a message, and a stream that is cut while something of ours was not read.
#[test]
fn a_stream_that_ends_flushes_what_it_leaves_open() {
    for level in LEVELS {
        for is_cut in [false, true] {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_recv(ours.room(64)).unwrap();
            stranger.say(SEND, 0, b"half of a");
            if is_cut {
                ours.vi.post_send(ours.message(b"not read")).unwrap();
                // TCP answers a close with such bytes unread with RST.
                let mut some = [0; 32];
                while stranger.tcp.peek(&mut some).unwrap() < some.len() {}
            }
            drop(stranger);
            assert_eq!(errors_of(&ours.recv()), status::DESC_FLUSHED_ERROR);
            if is_cut {
                let sent = ours.vi.send_wait(WAIT).unwrap().unwrap();
                let waits = level == ReliabilityLevel::ReliableReception;
                let expected = if waits { status::DESC_FLUSHED_ERROR } else { 0 };
                assert_eq!(errors_of(&sent), expected, "{level:?}");
            }
            assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
            assert_eq!(ours.vi.state().unwrap(), ViState::Error);
            assert!(ours.errors.none());
        }
    }
}
