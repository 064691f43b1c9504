//! Checks of responses and read requests [FCVI P-10, rule 7]. Each frame differs from a valid one in one field, is
//! dropped and counted by its own counter, and changes no state. A frame that may not be dropped breaks the connection,
//! and both sides report it.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::seal;
use fcvi_frame::iu::Opcode::{
    self, ReadRequest, ReadResponse, SendRequest, SendResponse, WriteResponse,
};
use vi_types::{ReliabilityLevel, Status, ViIndex, ViState};

use super::receive_checks::{
    F_CTL, FLAGS, HANDLE, MSG_ID, OFFSET, OPCODE, OX_ID, R_CTL, SEQ_CNT, SOF, add, edited,
};
use crate::Counter;
use crate::testkit::net::{CLIENT, Net, S, SERVER, config, read};
use crate::testkit::{
    expected_events::{connection_lost_events, received, send_failed, sent},
    io::{Event, Send},
};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const PARTIAL: Status = Status::TRANSPORT.with(Status::PARTIAL);

/// A connected pair, and frames that one side sent and the other has not received.
struct Case {
    net: Net,
    a: ViIndex,
    b: ViIndex,
    /// The receiver of these frames, and its VI.
    to: (usize, ViIndex),
    frames: Vec<Vec<u8>>,
}

impl Case {
    /// Posts `send` at the client and withholds the response frames.
    fn response(level: ReliabilityLevel, send: Send, opcode: Opcode) -> Self {
        let (mut net, a, b) = connected_pair(level);
        net.wire.lose(SERVER, opcode, u32::MAX);
        net.post(CLIENT, a, send);
        net.settle();
        let frames = net.frames(SERVER, opcode);
        assert!(!frames.is_empty());
        assert_eq!(net.log(CLIENT, a), []);
        net.clear_logs();
        net.wire.lose(SERVER, opcode, 0);
        let to = (CLIENT, a);
        Self {
            net,
            a,
            b,
            to,
            frames,
        }
    }

    fn send_response() -> Self {
        let send = Send {
            data: b"message".to_vec(),
            ..Send::default()
        };
        Self::response(RR, send, SendResponse)
    }

    /// A read whose three data frames are withheld.
    fn read_data(level: ReliabilityLevel) -> Self {
        Self::response(level, read((0x1000, 7), 5000), ReadResponse)
    }

    /// A read request that the server has not received.
    fn read_request(level: ReliabilityLevel) -> Self {
        let (mut net, a, b) = connected_pair(level);
        net.wire.cut = true;
        net.post_read(CLIENT, a, (0x1000, 7), 5000);
        net.wire.cut = false;
        let frames = net.frames(CLIENT, ReadRequest);
        let to = (SERVER, b);
        Self {
            net,
            a,
            b,
            to,
            frames,
        }
    }

    /// Asserts that the frame is dropped, counted only by `counter`, and has no other effect.
    fn dropped(&mut self, frame: &[u8], counter: Counter, what: &str) {
        let (to, vi) = self.to;
        let count = |net: &Net| -> Vec<u64> {
            let all = Counter::ALL.iter();
            all.map(|c| net.count(to, *c)).collect()
        };
        let before = count(&self.net);
        self.net.inject(to, frame);
        for ((c, before), now) in Counter::ALL.iter().zip(before).zip(count(&self.net)) {
            let expected = before + u64::from(*c == counter);
            assert_eq!(now, expected, "{what}: {c:?}");
        }
        assert_eq!(self.net.log(to, vi), [], "{what}");
        assert_eq!(self.net.state(to, vi), ViState::Connected, "{what}");
    }

    /// Delivers the valid frames from index `from` on; asserts that the descriptor completes without error.
    fn completes(mut self, from: usize, length_bytes: u32) {
        let (to, _) = self.to;
        for frame in &self.frames[from..] {
            self.net.inject(to, frame);
        }
        self.net.settle();
        assert_eq!(self.net.log(CLIENT, self.a), [sent(0, length_bytes)]);
        assert_eq!(self.net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    }

    /// Asserts that both sides break and the client's descriptor completes with `status`.
    fn breaks(mut self, status: Status, what: &str) {
        self.net.settle();
        let log = self.net.log(CLIENT, self.a);
        assert_eq!(log[0], send_failed(0, status), "{what}");
        assert_eq!(log[1..], connection_lost_events(), "{what}");
        let log = self.net.log(SERVER, self.b);
        assert_eq!(log.first(), Some(&connection_lost_events()[0]), "{what}");
        assert_eq!(log.last(), Some(&connection_lost_events()[1]), "{what}");
        self.net.advance(60 * S);
        for node in [CLIENT, SERVER] {
            assert_eq!(self.net.nodes[node].engine.exchange_usage().0, 0);
        }
    }
}

fn connected_pair(level: ReliabilityLevel) -> (Net, ViIndex, ViIndex) {
    let (mut net, a, b) = Net::connected(level);
    net.nodes[SERVER].io.register(7, 0x1000, 20_000);
    net.post_receive(SERVER, b, 10_000);
    (net, a, b)
}

#[test]
fn responses_that_match_no_request_are_dropped() {
    let mut case = Case::send_response();
    let good = case.frames[0].clone();
    let cases: [(&str, usize, u8, Counter); 10] = [
        ("handle", HANDLE + 1, 1, Counter::DropUnknownHandle),
        ("newer message", MSG_ID + 3, 2, Counter::DropStrayResponse),
        ("OX_ID", OX_ID + 1, 1, Counter::DropStrayResponse),
        ("OX_ID", OX_ID, 1, Counter::DropStrayResponse),
        ("further frame", SOF, 0x2E ^ 0x36, Counter::DropBadIu),
        ("from the originator", F_CTL, 0x80, Counter::DropBadIu),
        ("the first sequence", F_CTL, 0x20, Counter::DropBadIu),
        ("not the last sequence", F_CTL, 0x10, Counter::DropBadIu),
        ("not the last frame", F_CTL, 0x08, Counter::DropBadIu),
        ("R_CTL of another IU", R_CTL, 0x06, Counter::DropBadIu),
    ];
    for (what, at, flip, counter) in cases {
        let frame = edited(&good, Eof::T, |f| f[at] ^= flip);
        case.dropped(&frame, counter, what);
    }
    let open = edited(&good, Eof::N, |_| {});
    case.dropped(&open, Counter::DropBadIu, "EOFn");
    for behind in [1u32, 1000, 1 << 31] {
        let old = edited(&good, Eof::T, |f| add(f, MSG_ID, 0u32.wrapping_sub(behind)));
        case.dropped(&old, Counter::DropStrayResponse, "older message");
    }
    let write = edited(&good, Eof::T, |f| f[OPCODE] = WriteResponse.raw());
    case.dropped(&write, Counter::DropStrayResponse, "WRITE_RESP to a send");
    let mut long = good.clone();
    long.splice(68..68, [0; 4]);
    let len = long.len();
    seal(&mut long, len, Eof::T).unwrap();
    case.dropped(&long, Counter::DropBadIu, "a payload");
    let data = edited(&good, Eof::T, |f| {
        f[OPCODE] = ReadResponse.raw();
        f[R_CTL] = 0x01;
        f[F_CTL + 2] |= 8;
        f[FLAGS] = 0x40;
    });
    case.dropped(&data, Counter::DropStrayResponse, "READ_RESP to a send");
    case.completes(0, 7);
}

/// An error response must match the request that it refuses.
#[test]
fn refusals_that_match_no_request_are_dropped() {
    let mut case = Case::send_response();
    let good = case.frames[0].clone();
    let refusal = |at: usize| {
        edited(&good, Eof::T, |f| {
            f[FLAGS] = 0x80;
            f[at] ^= 1;
        })
    };
    case.dropped(&refusal(OX_ID + 1), Counter::DropStrayResponse, "OX_ID");
    case.dropped(&refusal(MSG_ID + 3), Counter::DropStrayResponse, "message");
    case.completes(0, 7);
}

#[test]
fn unexpected_responses_are_dropped() {
    for (level, opcode, counter) in [
        (UD, SendResponse, Counter::DropWrongLevel),
        (UD, ReadResponse, Counter::DropWrongLevel),
        (RD, SendResponse, Counter::DropStrayResponse),
        (RD, ReadResponse, Counter::DropStrayResponse),
        (RR, SendResponse, Counter::DropStrayResponse),
    ] {
        let (mut net, a, b) = connected_pair(level);
        net.wire.cut = true;
        net.post_receive(CLIENT, a, 100);
        // A message of the server, edited into a response to the client.
        net.post_send(SERVER, b, b"");
        net.wire.cut = false;
        let frame = net.frames(SERVER, SendRequest)[0].clone();
        let frames = vec![edited(&frame, Eof::T, |f| {
            f[OPCODE] = opcode.raw();
            f[R_CTL] = opcode.r_ctl().raw();
            f[F_CTL..F_CTL + 3].copy_from_slice(&[0x98, 0, 8]);
            f[FLAGS] = if opcode == ReadResponse { 0x40 } else { 0 };
        })];
        let to = (CLIENT, a);
        let good = frames[0].clone();
        let mut case = Case {
            net,
            a,
            b,
            to,
            frames,
        };
        case.dropped(&good, counter, &format!("{level:?}, {opcode:?}"));
    }
}

#[test]
fn refusal_with_an_invalid_reason_is_a_transport_error() {
    // No error, RDMA read protected, disconnected, unknown.
    for reason in [0x00, 0x41, 0x49, 0x99] {
        let mut case = Case::send_response();
        let refusal = edited(&case.frames[0].clone(), Eof::T, |f| {
            f[FLAGS] = 0x80;
            f[MSG_ID + 4] = reason;
        });
        case.net.inject(CLIENT, &refusal);
        case.breaks(Status::TRANSPORT, &format!("{reason:#x}"));
    }
}

#[test]
fn out_of_order_response_counts_as_a_lost_response() {
    let (mut net, a, b) = connected_pair(RR);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_receive(SERVER, b, 100);
    net.post_send(CLIENT, a, b"first");
    net.post_send(CLIENT, a, b"second");
    net.settle();
    let frames = net.frames(SERVER, SendResponse);
    for at in [1, 0] {
        net.inject(CLIENT, &frames[at]);
    }
    assert_eq!(net.count(CLIENT, Counter::LostResponses), 1);
    let log = net.log(CLIENT, a);
    assert_eq!(log[0], send_failed(0, Status::TRANSPORT));
    assert!(log.contains(&send_failed(1, Status::FLUSHED)));
    // The first response then matched no connection and caused no second break.
    assert_eq!(net.count(CLIENT, Counter::DropUnknownHandle), 1);
    assert_eq!(net.count(CLIENT, Counter::Breaks), 1);
}

/// A response to a message that is still being sent can only be a refusal.
#[test]
fn response_before_the_message_is_fully_sent_is_dropped() {
    let (mut net, a, b) = connected_pair(RR);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_send(CLIENT, a, b"first");
    net.settle();
    let response = net.frames(SERVER, SendResponse)[0].clone();
    net.inject(CLIENT, &response);
    assert_eq!(net.log(CLIENT, a), [sent(0, 5)]);
    net.nodes[CLIENT].io.room = 1;
    net.post_receive(SERVER, b, 10_000);
    net.post_send(CLIENT, a, &[1; 5000]);
    let request = net.frames(CLIENT, SendRequest).pop().unwrap();
    let early = edited(&response, Eof::T, |f| {
        add(f, MSG_ID, 1);
        f[OX_ID..OX_ID + 2].copy_from_slice(&request[OX_ID..OX_ID + 2]);
    });
    let to = (CLIENT, a);
    let frames = Vec::new();
    let mut case = Case {
        net,
        a,
        b,
        to,
        frames,
    };
    case.dropped(&early, Counter::DropStrayResponse, "early");
    case.net.nodes[CLIENT].io.room = usize::MAX;
    case.net.wire.lose(SERVER, SendResponse, 0);
    case.net.pump(CLIENT);
    case.net.settle();
    let placed = case.net.log(SERVER, case.b);
    assert_eq!(placed.last(), Some(&received(1, &[1; 5000])));
}

#[test]
fn read_data_that_matches_no_read_is_dropped() {
    for level in [RD, RR] {
        let mut case = Case::read_data(level);
        let good = case.frames[0].clone();
        let cases: [(&str, usize, u8, Counter); 9] = [
            ("handle", HANDLE + 1, 1, Counter::DropUnknownHandle),
            ("message", MSG_ID + 3, 1, Counter::DropStrayResponse),
            ("message", MSG_ID, 0x80, Counter::DropStrayResponse),
            ("OX_ID", OX_ID + 1, 1, Counter::DropStrayResponse),
            ("no relative offset", F_CTL + 2, 0x08, Counter::DropBadIu),
            ("from the originator", F_CTL, 0x80, Counter::DropBadIu),
            ("last, but not the end", FLAGS, 0x40, Counter::DropBadIu),
            (
                "not the first frame, offset 0",
                SOF,
                0x2E ^ 0x36,
                Counter::DropBadIu,
            ),
            (
                "first frame, offset not 0",
                OFFSET + 3,
                4,
                Counter::DropBadIu,
            ),
        ];
        for (what, at, flip, counter) in cases {
            let frame = edited(&good, Eof::N, |f| f[at] ^= flip);
            case.dropped(&frame, counter, what);
        }
        let mut empty = good.clone();
        empty.drain(68..68 + 2096);
        let len = empty.len();
        seal(&mut empty, len, Eof::N).unwrap();
        case.dropped(&empty, Counter::DropBadIu, "a frame without data");
        case.completes(0, 5000);
    }
}

#[test]
fn duplicate_read_data_is_dropped() {
    for level in [RD, RR] {
        let mut case = Case::read_data(level);
        let frames = case.frames.clone();
        case.net.inject(CLIENT, &frames[0]);
        case.dropped(&frames[0], Counter::DropDuplicate, "first");
        case.net.inject(CLIENT, &frames[1]);
        case.dropped(&frames[0], Counter::DropDuplicate, "first");
        case.dropped(&frames[1], Counter::DropDuplicate, "second");
        let overlap = edited(&frames[2], Eof::T, |f| {
            add(f, OFFSET, 0u32.wrapping_sub(4));
        });
        case.dropped(&overlap, Counter::DropDuplicate, "overlap");
        let behind = edited(&frames[2], Eof::T, |f| {
            f[SEQ_CNT..SEQ_CNT + 2].copy_from_slice(&frames[1][SEQ_CNT..SEQ_CNT + 2]);
        });
        case.dropped(&behind, Counter::DropDuplicate, "SEQ_CNT");
        case.net.inject(CLIENT, &frames[2]);
        assert_eq!(case.net.log(CLIENT, case.a), [sent(0, 5000)]);
        for frame in &frames {
            case.dropped(frame, Counter::DropStrayResponse, "after the read");
        }
    }
}

#[test]
fn read_data_too_long_too_short_or_with_gaps_breaks() {
    type Edit = fn(&mut Vec<Vec<u8>>);
    let cases: [(&str, usize, Edit); 5] = [
        ("a gap in the relative offset", 2, |f| {
            f[1] = edited(&f[1], Eof::N, |f| add(f, OFFSET, 4));
        }),
        ("a gap in SEQ_CNT", 2, |f| {
            f[1] = edited(&f[1], Eof::N, |f| f[SEQ_CNT + 1] += 1);
        }),
        ("too short", 2, |f| {
            f[1] = edited(&f[1], Eof::T, |f| {
                f[F_CTL] |= 0x08;
                f[FLAGS] |= 0x40;
            });
        }),
        ("all bytes, but not the end", 3, |f| {
            f[2] = edited(&f[2], Eof::N, |f| {
                f[F_CTL] &= !0x08;
                f[FLAGS] = 0;
            });
        }),
        ("too long", 3, |f| {
            let (head, tail) = f[2].split_at(68);
            let mut long = [head, &[0; 4], tail].concat();
            let len = long.len();
            seal(&mut long, len, Eof::T).unwrap();
            f[2] = long;
        }),
    ];
    for level in [RD, RR] {
        for (what, upto, edit) in cases {
            let mut case = Case::read_data(level);
            edit(&mut case.frames);
            for frame in &case.frames[..upto].to_vec() {
                case.net.inject(CLIENT, frame);
            }
            assert_eq!(case.net.count(CLIENT, Counter::IncompleteMessages), 1);
            case.breaks(PARTIAL, what);
        }
        let mut case = Case::response(level, read((0x1000, 7), 0), ReadResponse);
        let (head, tail) = case.frames[0].split_at(68);
        let mut long = [head, &[0; 4], tail].concat();
        let len = long.len();
        seal(&mut long, len, Eof::T).unwrap();
        case.net.inject(CLIENT, &long);
        case.breaks(Status::TRANSPORT, "data for an empty read");
    }
}

#[test]
fn invalid_read_requests_are_dropped() {
    for level in [RD, RR] {
        let mut case = Case::read_request(level);
        let good = case.frames[0].clone();
        let cases: [(&str, usize, u8, Counter); 9] = [
            ("handle", HANDLE + 1, 1, Counter::DropUnknownHandle),
            ("older message", MSG_ID, 0x80, Counter::DropStaleMessage),
            ("another level", FLAGS, 0x30, Counter::DropWrongLevel),
            (
                "no response requested",
                FLAGS,
                0x40,
                Counter::DropWrongLevel,
            ),
            ("further frame", SOF, 0x2E ^ 0x36, Counter::DropBadIu),
            ("from the responder", F_CTL, 0x80, Counter::DropBadIu),
            ("not the first sequence", F_CTL, 0x20, Counter::DropBadIu),
            ("not the end", F_CTL, 0x08, Counter::DropBadIu),
            ("no initiative", F_CTL, 0x01, Counter::DropBadIu),
        ];
        for (what, at, flip, counter) in cases {
            let frame = edited(&good, Eof::T, |f| f[at] ^= flip);
            case.dropped(&frame, counter, what);
        }
        let mut long = good.clone();
        long.splice(84..84, [0; 4]);
        let len = long.len();
        seal(&mut long, len, Eof::T).unwrap();
        case.dropped(&long, Counter::DropBadIu, "a payload");
        case.net.inject(SERVER, &good);
        case.dropped(&good, Counter::DropStaleMessage, "twice");
        case.net.settle();
        assert_eq!(case.net.log(CLIENT, case.a), [sent(0, 5000)]);
    }
}

#[test]
fn reliable_reception_message_without_response_flags_is_dropped() {
    let (mut net, a, b) = connected_pair(RR);
    net.wire.cut = true;
    net.post_send(CLIENT, a, b"message");
    net.wire.cut = false;
    let frames = net.frames(CLIENT, SendRequest);
    let to = (SERVER, b);
    let mut case = Case {
        net,
        a,
        b,
        to,
        frames,
    };
    for flags in [0x20, 0x40, 0x50, 0x70] {
        let frame = edited(&case.frames[0].clone(), Eof::T, |f| f[FLAGS] = flags);
        case.dropped(&frame, Counter::DropWrongLevel, "flags");
    }
    case.completes(0, 7);
}

#[test]
fn read_request_at_unreliable_delivery_is_dropped() {
    let mut case = Case::read_request(RD);
    let mut request = case.frames[0].clone();
    case.net.disconnect(CLIENT, case.a);
    case.net.settle();
    let (a, b) = case.net.join(UD);
    let ep = case.net.nodes[SERVER].engine.endpoints[b.slot()].as_ref();
    let (handle, expected) = ep.map(|ep| (ep.handle, ep.rx.reassembly.expected)).unwrap();
    case.net.clear_logs();
    request[HANDLE..HANDLE + 4].copy_from_slice(&handle.to_be_bytes());
    request[MSG_ID..MSG_ID + 4].copy_from_slice(&expected.to_be_bytes());
    (case.a, case.b, case.to) = (a, b, (SERVER, b));
    for flags in [0x40, 0x50, 0x60] {
        let frame = edited(&request, Eof::T, |f| f[FLAGS] = flags);
        case.dropped(&frame, Counter::DropWrongLevel, "UD");
    }
}

#[test]
fn reads_beyond_the_advertised_limit_break_the_connection() {
    for level in [RD, RR] {
        let limit = 3;
        let mut server = config(SERVER);
        server.max_reads_accepted = limit;
        let mut net = Net::new(vec![config(CLIENT), server], 6);
        let (a, b) = net.join(level);
        net.clear_logs();
        net.nodes[SERVER].io.register(7, 0x1000, 100);
        net.nodes[SERVER].io.room = 0;
        net.post_read(CLIENT, a, (0x1000, 7), 100);
        net.settle();
        let good = net.frames(CLIENT, ReadRequest)[0].clone();
        for n in 1..=u32::from(limit) {
            assert_eq!(net.log(SERVER, b), []);
            let request = edited(&good, Eof::T, |f| {
                add(f, MSG_ID, n);
                f[OX_ID] ^= n as u8;
            });
            net.inject(SERVER, &request);
        }
        assert_eq!(net.count(SERVER, Counter::DropTooManyReads), 1);
        assert_eq!(net.log(SERVER, b), connection_lost_events());
        net.nodes[SERVER].io.room = usize::MAX;
        net.advance(S);
        // The reason concerns no message: the read is only flushed.
        let log = [
            connection_lost_events()[0].clone(),
            send_failed(0, Status::FLUSHED),
            connection_lost_events()[1].clone(),
        ];
        assert_eq!(net.log(CLIENT, a), log);
        assert!(net.frames(SERVER, ReadResponse).is_empty());
    }
}

/// Read data for a closed connection makes the receiver repeat the disconnect.
#[test]
fn read_data_for_a_closed_connection_is_answered_with_a_disconnect() {
    let mut case = Case::read_data(RD);
    case.net.wire.cut = true;
    case.net.disconnect(CLIENT, case.a);
    case.net.advance(60 * S);
    case.net.wire.cut = false;
    assert_eq!(case.net.state(SERVER, case.b), ViState::Connected);
    let frame = case.frames[0].clone();
    case.net.inject(CLIENT, &frame);
    case.net.settle();
    assert_eq!(case.net.state(SERVER, case.b), ViState::Error);
    let log = case.net.log(CLIENT, case.a);
    assert!(!log.contains(&Event::State(ViState::Error)));
}
