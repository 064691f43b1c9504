//! Checks of received frames, in the order of the wire profile [FCVI P-10]. Each frame differs from a valid one in one
//! field, is dropped and counted by its own counter, and changes no state. The VI is reliable: a frame that passed the
//! checks would break its connection.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::seal;
use fcvi_frame::iu::Opcode::{
    self, ConnectRequest, ConnectResponse1, ConnectResponse2, ConnectResponse3, DisconnectRequest,
    DisconnectResponse, SendRequest, WriteRequest,
};
use vi_types::{ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::testkit::net::{CLIENT, Net, SERVER, params};
use crate::testkit::{
    expected_events::received,
    io::{Receive, Send},
};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;

// Offsets in a frame.
const DST: usize = 0;
const SRC: usize = 6;
const ETHERTYPE: usize = 12;
const FCOE_VERSION: usize = 14;
pub(super) const SOF: usize = 27;
pub(super) const R_CTL: usize = 28;
const D_ID: usize = 29;
const S_ID: usize = 33;
const TYPE: usize = 36;
pub(super) const F_CTL: usize = 37;
pub(super) const SEQ_ID: usize = 40;
const DF_CTL: usize = 41;
pub(super) const SEQ_CNT: usize = 42;
pub(super) const OX_ID: usize = 44;
pub(super) const OFFSET: usize = 48;
pub(super) const HANDLE: usize = 52;
pub(super) const OPCODE: usize = 56;
pub(super) const FLAGS: usize = 57;
pub(super) const MSG_ID: usize = 60;

/// Returns a copy of the frame with this edit, sealed again.
pub(super) fn edited(frame: &[u8], eof: Eof, edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    edit(&mut frame);
    let len = frame.len();
    seal(&mut frame, len, eof).unwrap();
    frame
}

pub(super) fn add(frame: &mut [u8], at: usize, n: u32) {
    let field = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let sum = field.wrapping_add(n);
    frame[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

/// A connected pair, a receive at the server, and the frames of a message that were not delivered.
struct Case {
    net: Net,
    b: ViIndex,
    frames: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Case {
    fn new(len: usize) -> Self {
        Self::at(RD, len)
    }

    fn at(level: ReliabilityLevel, len: usize) -> Self {
        let (mut net, a, b) = Net::connected(level);
        let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        net.post_receive(SERVER, b, len as u32);
        net.wire.cut = true;
        net.post_send(CLIENT, a, &data);
        net.wire.cut = false;
        let frames = net.frames(CLIENT, SendRequest);
        Self {
            net,
            b,
            frames,
            data,
        }
    }

    /// Asserts that the frame is dropped, counted only by `counter`, and has no other effect.
    fn dropped(&mut self, frame: &[u8], counter: Counter, what: &str) {
        let before: Vec<u64> = Counter::ALL
            .iter()
            .map(|c| self.net.count(SERVER, *c))
            .collect();
        self.net.inject(SERVER, frame);
        for (c, before) in Counter::ALL.iter().zip(before) {
            let now = self.net.count(SERVER, *c);
            let expected = before + u64::from(*c == counter);
            assert_eq!(now, expected, "{what}: {c:?}");
        }
        assert_eq!(self.net.log(SERVER, self.b), [], "{what}");
        let state = self.net.state(SERVER, self.b);
        assert_eq!(state, ViState::Connected, "{what}");
    }

    /// Delivers the valid frames from index `from` on; asserts that the message is complete.
    fn arrives(mut self, from: usize) {
        for frame in &self.frames[from..] {
            self.net.inject(SERVER, frame);
        }
        let log = self.net.log(SERVER, self.b);
        assert_eq!(log, [received(0, &self.data)]);
    }
}

#[test]
fn malformed_frames_are_dropped() {
    let mut case = Case::new(40);
    let good = case.frames[0].clone();
    let damaged = |at: usize| {
        let mut frame = good.clone();
        frame[at] ^= 1;
        frame
    };
    let last = good.len() - 1;
    for at in [R_CTL, S_ID, OX_ID, HANDLE, MSG_ID, 68, last - 8, last - 4] {
        case.dropped(&damaged(at), Counter::DropBadCrc, "CRC");
    }
    for at in [ETHERTYPE, FCOE_VERSION, SOF, last - 3] {
        let mut frame = good.clone();
        frame[at] ^= 0x30;
        case.dropped(&frame, Counter::DropMalformed, "not an FCoE frame");
    }
    for len in [0, 13, 14, 59, last, last - 3] {
        case.dropped(&good[..len], Counter::DropMalformed, "cut short");
    }
    let mut long = good.clone();
    long.push(0);
    case.dropped(&long, Counter::DropMalformed, "too long");
    case.arrives(0);
}

#[test]
fn frames_of_other_stations_or_types_are_dropped() {
    let mut case = Case::new(40);
    let good = case.frames[0].clone();
    let cases: [(&str, usize, Counter); 6] = [
        ("destination", DST + 5, Counter::DropBadAddress),
        ("destination prefix", DST + 2, Counter::DropBadAddress),
        ("source", SRC + 5, Counter::DropBadAddress),
        ("D_ID", D_ID + 2, Counter::DropBadAddress),
        ("S_ID without its source", S_ID + 2, Counter::DropBadAddress),
        ("TYPE", TYPE, Counter::DropUnknownType),
    ];
    for (what, at, counter) in cases {
        let frame = edited(&good, Eof::T, |f| f[at] ^= 0x20);
        case.dropped(&frame, counter, what);
    }
    case.arrives(0);
}

#[test]
fn ius_with_inconsistent_headers_are_dropped() {
    let mut case = Case::new(40);
    let good = case.frames[0].clone();
    let cases: [(&str, usize, u8, Counter); 10] = [
        ("unknown opcode", OPCODE, 0x70, Counter::DropBadIu),
        ("R_CTL of another IU", R_CTL, 0x03, Counter::DropBadIu),
        ("DF_CTL of a long header", DF_CTL, 0x03, Counter::DropBadIu),
        ("no relative offset", F_CTL + 2, 0x08, Counter::DropBadIu),
        ("from the responder", F_CTL, 0x80, Counter::DropBadIu),
        ("not the first sequence", F_CTL, 0x20, Counter::DropBadIu),
        ("first frame, offset", OFFSET + 3, 0x04, Counter::DropBadIu),
        ("UD", FLAGS, 0x10, Counter::DropWrongLevel),
        ("RR", FLAGS, 0x30, Counter::DropWrongLevel),
        ("requests a response", FLAGS, 0x40, Counter::DropWrongLevel),
    ];
    for (what, at, flip, counter) in cases {
        let frame = edited(&good, Eof::T, |f| f[at] ^= flip);
        case.dropped(&frame, counter, what);
    }
    case.arrives(0);
}

#[test]
fn handle_with_any_wrong_bit_matches_no_vi() {
    let mut case = Case::new(40);
    // Other VIs in the slots that a wrong bit selects.
    for _ in 0..8 {
        let vi = case.net.create(SERVER, params(RD));
        case.net.post_receive(SERVER, vi, 100);
    }
    let good = case.frames[0].clone();
    for bit in 0..32 {
        let frame = edited(&good, Eof::T, |f| f[HANDLE + bit / 8] ^= 1 << (bit % 8));
        case.dropped(&frame, Counter::DropUnknownHandle, "handle");
    }
    let frame = edited(&good, Eof::T, |f| f[HANDLE..HANDLE + 4].fill(0));
    case.dropped(&frame, Counter::DropUnknownHandle, "handle 0");
    case.arrives(0);
}

#[test]
fn valid_handle_from_another_port_matches_no_vi() {
    let mut case = Case::new(40);
    let good = case.frames[0].clone();
    let frame = edited(&good, Eof::T, |f| {
        f[S_ID + 2] ^= 0x40;
        f[SRC + 5] ^= 0x40;
    });
    case.dropped(&frame, Counter::DropWrongPeer, "peer");
    case.arrives(0);
}

#[test]
fn messages_outside_the_window_are_dropped() {
    let mut case = Case::new(40);
    let good = case.frames[0].clone();
    let window = case.net.nodes[SERVER].engine.config().message_window;
    for behind in [1, 2, 1000, 1 << 30, (1 << 31) - 1] {
        let frame = edited(&good, Eof::T, |f| add(f, MSG_ID, 0u32.wrapping_sub(behind)));
        case.dropped(&frame, Counter::DropStaleMessage, "older");
    }
    for ahead in [window + 1, 1 << 30, (1 << 31) - 1] {
        let frame = edited(&good, Eof::T, |f| add(f, MSG_ID, ahead));
        case.dropped(&frame, Counter::DropOutOfWindow, "beyond the window");
    }
    case.arrives(0);
}

#[test]
fn continuation_frames_without_a_first_frame_are_dropped() {
    let mut case = Case::at(UD, 5000);
    for at in [1, 2] {
        let frame = case.frames[at].clone();
        case.dropped(&frame, Counter::DropNoContext, "no message is open");
    }
    case.arrives(0);
    // On a reliable VI a frame of the next message, or of one within the window, reveals a loss: other frames are
    // dropped.
    let mut case = Case::new(5000);
    let window = case.net.nodes[SERVER].engine.config().message_window;
    for ahead in [0u32.wrapping_sub(1), 1 << 31, window + 1] {
        let frame = edited(&case.frames[1].clone(), Eof::N, |f| add(f, MSG_ID, ahead));
        case.dropped(&frame, Counter::DropNoContext, "no message is open");
    }
    case.arrives(0);
}

#[test]
fn continuation_frames_of_another_message_are_dropped() {
    let mut case = Case::new(5000);
    case.net.inject(SERVER, &case.frames[0].clone());
    let next = case.frames[1].clone();
    let cases: [(&str, usize, Counter); 4] = [
        ("message ID", MSG_ID + 3, Counter::DropOtherMessage),
        ("OX_ID", OX_ID + 1, Counter::DropSynonym),
        ("OX_ID", OX_ID, Counter::DropSynonym),
        ("SEQ_ID", SEQ_ID, Counter::DropSynonym),
    ];
    for (what, at, counter) in cases {
        let frame = edited(&next, Eof::N, |f| f[at] ^= 1);
        case.dropped(&frame, counter, what);
    }
    case.arrives(1);
}

#[test]
fn duplicate_frames_of_a_message_are_dropped() {
    let mut case = Case::new(7000);
    case.net.inject(SERVER, &case.frames[0].clone());
    case.net.inject(SERVER, &case.frames[1].clone());
    let first = case.frames[0].clone();
    case.dropped(&first, Counter::DropStaleMessage, "first frame");
    let second = case.frames[1].clone();
    case.dropped(&second, Counter::DropDuplicate, "second frame");
    // An overlap: the next SEQ_CNT, but bytes that have arrived already.
    let overlap = edited(&case.frames[2].clone(), Eof::N, |f| {
        add(f, OFFSET, 0u32.wrapping_sub(4));
    });
    case.dropped(&overlap, Counter::DropDuplicate, "overlap");
    // The expected bytes, under a SEQ_CNT that has arrived already.
    let behind = edited(&case.frames[2].clone(), Eof::N, |f| f[SEQ_CNT + 1] -= 1);
    case.dropped(&behind, Counter::DropDuplicate, "SEQ_CNT");
    case.arrives(2);
}

#[test]
fn duplicate_message_is_delivered_once() {
    let mut case = Case::new(5000);
    let frames = case.frames.clone();
    for frame in &frames {
        case.net.inject(SERVER, frame);
    }
    let log = case.net.log(SERVER, case.b);
    assert_eq!(log, [received(0, &case.data)]);
    case.net.post_receive(SERVER, case.b, 5000);
    case.dropped(&frames[0], Counter::DropStaleMessage, "first");
    for frame in &frames[1..] {
        case.dropped(frame, Counter::DropNoContext, "further");
    }
}

#[test]
fn remaining_frames_of_a_failed_message_are_discarded() {
    let (mut net, a, b) = Net::connected(UD);
    let small = Receive {
        capacity_bytes: 10,
        ..Receive::default()
    };
    net.nodes[SERVER].io.post_receive(b, small);
    net.post_send(CLIENT, a, &[1; 7000]);
    net.settle();
    assert_eq!(net.count(SERVER, Counter::DropDiscarded), 3);
    assert_eq!(net.count(SERVER, Counter::RxFrames), 0);
}

/// Replays every frame of a connection into the next one between the same VIs.
#[test]
fn replay_of_an_earlier_connection_is_dropped() {
    let (mut net, a, b) = Net::connected(RD);
    net.nodes[SERVER].io.register(7, 0, 8192);
    for immediate in [None, Some(3)] {
        net.post_receive(SERVER, b, 5000);
        net.post_send(CLIENT, a, &[1; 5000]);
        let write = Send {
            data: vec![2; 5000],
            remote: Some((0, 7)),
            immediate,
            ..Send::default()
        };
        net.post_receive(SERVER, b, 0);
        net.post(CLIENT, a, write);
        net.settle();
    }
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    let old: Vec<_> = net
        .wire
        .trace
        .drain(..)
        .filter(|s| s.from == CLIENT)
        .collect();
    assert!(old.len() > 12);
    net.connect(a, b);
    net.clear_logs();
    net.post_receive(SERVER, b, 5000);
    net.nodes[SERVER].io.register(7, 0, 8192);
    for sent in &old {
        let before = net.count(SERVER, Counter::DropUnknownHandle);
        net.inject(SERVER, &sent.bytes);
        let message = matches!(sent.opcode, Some(SendRequest | WriteRequest));
        let after = net.count(SERVER, Counter::DropUnknownHandle);
        assert_eq!(after - before, u64::from(message));
    }
    net.settle();
    assert_eq!(net.log(SERVER, b), []);
    assert_eq!(net.log(CLIENT, a), []);
    assert!(
        net.nodes[SERVER].io.regions[&7]
            .bytes
            .iter()
            .all(|b| *b == 0)
    );
    net.post_send(CLIENT, a, b"new message");
    net.settle();
    let log = net.log(SERVER, b);
    assert_eq!(log.len(), 1);
    assert!(matches!(&log[0], crate::testkit::io::Event::Received(r) if r.data == b"new message"));
}

/// The same OX_ID, SEQ_ID and SEQ_CNT as the frame that is expected, but of an older message.
#[test]
fn synonym_frame_of_an_older_message_is_dropped() {
    let mut case = Case::new(5000);
    case.net.inject(SERVER, &case.frames[0].clone());
    let synonym = edited(&case.frames[1].clone(), Eof::N, |f| {
        add(f, MSG_ID, 0u32.wrapping_sub(1000));
        f[70..100].fill(0xEE);
    });
    case.dropped(&synonym, Counter::DropOtherMessage, "older message");
    case.arrives(1);
}

/// Connect and disconnect IUs that are not a complete sequence, or come from the wrong side.
#[test]
fn incomplete_or_misdirected_connection_ius_are_dropped() {
    let mut net = Net::pair();
    let (a, _) = net.join(RD);
    net.disconnect(CLIENT, a);
    net.settle();
    let cases: [(usize, usize, Opcode); 6] = [
        (CLIENT, SERVER, ConnectRequest),
        (SERVER, CLIENT, ConnectResponse1),
        (CLIENT, SERVER, ConnectResponse2),
        (SERVER, CLIENT, ConnectResponse3),
        (CLIENT, SERVER, DisconnectRequest),
        (SERVER, CLIENT, DisconnectResponse),
    ];
    net.listen(SERVER, "x");
    let ius = net.wire.trace.len();
    for (from, to, opcode) in cases {
        let good = net.frames(from, opcode)[0].clone();
        let edits: [(usize, u8, Eof); 4] = [
            (SOF, 0x2E ^ 0x36, Eof::T),
            (F_CTL, 0x08, Eof::T),
            (F_CTL, 0x80, Eof::T),
            (SEQ_CNT, 0, Eof::N),
        ];
        for (at, flip, eof) in edits {
            let frame = edited(&good, eof, |f| f[at] ^= flip);
            let before = net.count(to, Counter::DropBadIu);
            net.inject(to, &frame);
            assert_eq!(net.count(to, Counter::DropBadIu), before + 1, "{opcode:?}");
            assert_eq!(net.wire.trace.len(), ius, "{opcode:?} is answered");
        }
    }
}

#[test]
fn connect_iu_with_a_payload_of_the_wrong_length_is_dropped() {
    let (mut net, a, b) = Net::connected(RD);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    let good = net.frames(CLIENT, ConnectRequest)[0].clone();
    let mut short = good.clone();
    short.drain(100..104);
    let len = short.len();
    seal(&mut short, len, Eof::T).unwrap();
    net.wire.trace.clear();
    net.inject(SERVER, &short);
    assert_eq!(net.count(SERVER, Counter::DropBadIu), 1);
    assert!(net.wire.trace.is_empty());
}
