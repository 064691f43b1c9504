//! Message recovery, case by case.

mod carried;
mod checks;
mod endings;
mod last_words;
mod order_of_writes;
mod progress;
mod reads_again;

use fcvi_frame::fc::FCtl;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::gaps::{MissingRange, MissingRanges};
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest, SendResponse, WriteRequest};

use crate::testkit::host::{Event, Send};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params, received, sent};
use crate::testkit::rng::Rng;
use crate::{Counter, EndpointState, EngineConfig, Level, RecoveryConfig, Status, ViIndex};

const RD: Level = Level::ReliableDelivery;
const RR: Level = Level::ReliableReception;
const US: u64 = 1_000;
const TARGET: u32 = 7;

fn pair_with(level: Level, change: impl Fn(usize, &mut EngineConfig)) -> (Net, ViIndex, ViIndex) {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.recovery = Some(RecoveryConfig::default());
        change(node, &mut config);
        config
    });
    let mut net = Net::new(configs.to_vec(), 9);
    let (a, b) = net.join(level);
    net.clear_logs();
    net.wire.trace.clear();
    for node in [CLIENT, SERVER] {
        net.nodes[node].host.register(TARGET, 0, 100_000);
    }
    (net, a, b)
}

fn pair(level: Level) -> (Net, ViIndex, ViIndex) {
    pair_with(level, |_, _| ())
}

fn write(len: usize, immediate: Option<u32>) -> Send {
    Send {
        data: vec![7; len],
        remote: Some((0, TARGET)),
        immediate,
        ..Send::default()
    }
}

/// The frames that `act` has a node send, none of which arrives.
fn kept(net: &mut Net, act: impl FnOnce(&mut Net)) -> Vec<Vec<u8>> {
    let before = net.wire.trace.len();
    net.wire.cut = true;
    act(net);
    net.wire.cut = false;
    let new = net.wire.trace[before..].iter();
    new.map(|sent| sent.bytes.clone()).collect()
}

/// What an acknowledgement says: the last message that is whole, bytes of the next one, gaps.
fn acknowledgement(bytes: &[u8]) -> (u32, u32, Vec<MissingRange>) {
    let view = FrameView::parse(bytes).expect("a frame");
    let iu = view.iu().expect("an IU");
    assert_eq!((iu.header.opcode, iu.header.flags), (SendResponse, 0x20));
    assert_eq!(view.fc.f_ctl.0 & 0xFF_FFF8, 0x98_0008);
    let ranges = match iu.header.parameter {
        0 => {
            assert!(iu.payload.is_empty());
            Vec::new()
        }
        parameter => {
            assert_eq!(parameter, 0xC000_0000);
            let ranges = MissingRanges::parse(iu.payload).expect("ranges");
            ranges.iter().collect()
        }
    };
    (iu.header.msg_id, view.fc.parameter, ranges)
}

fn acknowledgements(net: &Net, from: usize) -> Vec<(u32, u32, Vec<MissingRange>)> {
    let frames = net.frames(from, SendResponse);
    frames.iter().map(|bytes| acknowledgement(bytes)).collect()
}

fn msg_id(bytes: &[u8]) -> u32 {
    let view = FrameView::parse(bytes).expect("a frame");
    view.iu().expect("an IU").header.msg_id
}

/// A frame as it was, without the bit that says that it was sent before.
fn without_bit_9(bytes: &[u8]) -> Vec<u8> {
    let view = FrameView::parse(bytes).expect("a frame");
    assert!(view.fc.f_ctl.contains(FCtl::RETRANSMITTED));
    let mut bytes = bytes.to_vec();
    bytes[38] &= !2;
    let eof = view.eof;
    let length = bytes.len();
    seal(&mut bytes, length, eof).expect("a legal length");
    bytes
}

fn resent(bytes: &[u8]) -> bool {
    let view = FrameView::parse(bytes).expect("a frame");
    view.fc.f_ctl.contains(FCtl::RETRANSMITTED)
}

#[test]
fn a_send_completes_when_it_is_acknowledged() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 10);
        let tx = net.post_send(CLIENT, a, b"hello");
        net.advance(50 * US);
        assert_eq!(net.log(SERVER, b), [received(0, b"hello")]);
        assert_eq!(net.log(CLIENT, a), [], "{level:?}: it may be lost yet");
        net.advance(60 * US);
        assert_eq!(net.log(CLIENT, a), [sent(tx, 5)]);
        let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
        assert_eq!(acknowledgements(&net, SERVER), [(first, 0, vec![])]);
        net.advance(S);
        assert_eq!(net.wire.trace.len(), 2, "nothing is left to say");
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn messages_and_bytes_are_acknowledged_in_batches() {
    let (mut net, a, b) = pair(RD);
    for n in 0..8 {
        net.post_receive(SERVER, b, 40_000);
        net.post_send(CLIENT, a, &[n; 8]);
    }
    net.advance(10 * US);
    assert_eq!(acknowledgements(&net, SERVER).len(), 1, "eight messages");
    assert_eq!(net.log(CLIENT, a).len(), 8);
    net.wire.trace.clear();
    net.post_receive(SERVER, b, 40_000);
    net.post_send(CLIENT, a, &[1; 40_000]);
    net.advance(10 * US);
    let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
    let placed = 16 * 2096;
    assert_eq!(
        acknowledgements(&net, SERVER),
        [(first.wrapping_sub(1), placed, vec![])],
        "32 KiB"
    );
}

#[test]
fn a_message_longer_than_the_window_goes_on() {
    let (mut net, a, b) = pair_with(RD, |_, config| {
        let recovery = config.recovery.as_mut().expect("on");
        (recovery.min_window_frames, recovery.max_window_frames) = (4, 4);
    });
    let data = Rng::new(1).bytes(100_000);
    net.post_receive(SERVER, b, 100_000);
    let tx = net.post_send(CLIENT, a, &data);
    assert_eq!(net.frames(CLIENT, SendRequest).len(), 4);
    net.advance(10 * MS);
    assert_eq!(net.log(CLIENT, a), [sent(tx, 100_000)]);
    assert_eq!(net.log(SERVER, b), [received(0, &data)]);
    assert_eq!(net.count(CLIENT, Counter::FramesResent), 0);
}

#[test]
fn a_gap_is_told_at_once_and_only_what_is_missing_is_sent_again() {
    let (mut net, a, b) = pair(RD);
    let data = Rng::new(2).bytes(20_000);
    net.post_receive(SERVER, b, 20_000);
    let frames = kept(&mut net, |net| {
        net.post_send(CLIENT, a, &data);
    });
    let first = msg_id(&frames[0]);
    assert_eq!(frames.len(), 10);
    let gap = |from: u32, length_bytes| MissingRange {
        msg_id: first,
        offset_bytes: from * 2096,
        length_bytes,
    };
    let before = first.wrapping_sub(1);
    for (at, told) in [
        (0, None),
        (3, Some(vec![gap(1, 2 * 2096)])),
        (4, None),
        (8, Some(vec![gap(1, 2 * 2096), gap(5, 3 * 2096)])),
        (6, None),
        (9, None),
    ] {
        let said = kept(&mut net, |net| {
            net.now_ns += US;
            net.inject(SERVER, &frames[at]);
        });
        let said: Vec<_> = said.iter().map(|bytes| acknowledgement(bytes)).collect();
        let told = told.map(|gaps| (before, 2096, gaps));
        assert_eq!(said, Vec::from_iter(told), "frame {at}");
    }
    // The sender heard nothing of it, but what is owed for the last frame says it all.
    net.wire.trace.clear();
    net.advance(20 * MS);
    let again = net.frames(CLIENT, SendRequest);
    let places = |frames: &[Vec<u8>]| -> Vec<u32> {
        let place = |bytes: &Vec<u8>| FrameView::parse(bytes).expect("a frame").fc.parameter;
        frames.iter().map(|bytes| place(bytes) / 2096).collect()
    };
    assert_eq!(places(&again), [1, 2, 5, 7]);
    for frame in &again {
        let original = frames.iter().find(|f| **f == without_bit_9(frame));
        assert!(original.is_some(), "byte for byte what it was");
    }
    assert_eq!(net.log(SERVER, b), [received(0, &data)]);
    assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
    assert_eq!(net.count(CLIENT, Counter::FramesResent), 4);
    assert_eq!(net.count(SERVER, Counter::AheadPlaced), 5);
}

/// Requests of every kind, each lost once: what is sent again is what was sent.
#[test]
fn what_is_sent_again_is_byte_for_byte_what_was_lost() {
    for level in [RD, RR] {
        for (opcode, send) in [
            (
                SendRequest,
                Send {
                    data: vec![5; 13],
                    immediate: Some(77),
                    fence: true,
                    ..Send::default()
                },
            ),
            (WriteRequest, write(14, Some(78))),
            (WriteRequest, write(0, None)),
            (
                ReadRequest,
                Send {
                    read: true,
                    ..write(15, None)
                },
            ),
        ] {
            let (mut net, a, b) = pair(level);
            net.post_receive(SERVER, b, 100);
            net.wire.lose(CLIENT, opcode, 1);
            net.post(CLIENT, a, send);
            net.advance(20 * MS);
            let frames = net.frames(CLIENT, opcode);
            assert_eq!(frames.len(), 2, "{opcode}");
            assert_eq!(without_bit_9(&frames[1]), frames[0], "{opcode}");
            let log = net.log(CLIENT, a);
            assert!(
                matches!(log[..], [Event::Sent(0, Status::OK, _)]),
                "{log:?}"
            );
            assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
        }
    }
}

/// Half of the round trip of a ping whose request is lost, once the round trip is known.
#[test]
fn a_lost_ping_costs_less_than_a_millisecond() {
    let (mut net, a, b) = pair(RD);
    for _ in 0..20 {
        net.post_receive(SERVER, b, 8);
        net.post_send(CLIENT, a, &[1; 8]);
        net.advance(200 * US);
    }
    net.clear_logs();
    net.post_receive(SERVER, b, 8);
    net.wire.lose(CLIENT, SendRequest, 1);
    let begin = net.now_ns;
    net.post_send(CLIENT, a, &[2; 8]);
    while net.log(SERVER, b).is_empty() {
        net.advance(10 * US);
    }
    assert!(net.now_ns - begin < MS, "{} us", (net.now_ns - begin) / US);
}

/// Who polls memory sees the last bytes last: of the message, and of all before it.
#[test]
fn the_end_of_a_write_is_placed_when_everything_before_it_is() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 10);
    let frames = kept(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 10]);
        net.post(CLIENT, a, write(5_000, None));
    });
    let at = |net: &Net, at: usize| net.nodes[SERVER].host.regions[&TARGET].bytes[at];
    net.wire.cut = true;
    for frame in &frames[2..] {
        net.inject(SERVER, frame);
    }
    assert_eq!(
        (at(&net, 2_080), at(&net, 4_999)),
        (0, 0),
        "an unknown message in front"
    );
    for frame in [&frames[0], &frames[2], &frames[3]] {
        net.inject(SERVER, frame);
    }
    assert_eq!(
        (at(&net, 2_080), at(&net, 4_999)),
        (7, 0),
        "its first frame is missing"
    );
    assert_eq!(net.count(SERVER, Counter::DropAheadLastOfWrite), 1);
    net.wire.cut = false;
    net.advance(20 * MS);
    assert_eq!((at(&net, 0), at(&net, 4_999)), (7, 7));
    assert_eq!(net.log(CLIENT, a), [sent(0, 10), sent(1, 5_000)]);
}

/// A message behind one of which nothing came: nobody knows which descriptor is whose.
#[test]
fn messages_ahead_claim_their_descriptors_in_order() {
    let (mut net, a, b) = pair(RD);
    let data: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 5_000]).collect();
    let frames = kept(&mut net, |net| {
        for data in &data {
            net.post_send(CLIENT, a, data);
        }
    });
    assert_eq!(frames.len(), 12);
    for _ in 0..3 {
        net.post_receive(SERVER, b, 5_000);
    }
    net.wire.cut = true;
    net.inject(SERVER, &frames[6]);
    assert_eq!(net.count(SERVER, Counter::DropAheadUnknown), 1);
    for at in [1, 4, 6, 7, 8, 10] {
        net.inject(SERVER, &frames[at]);
    }
    assert_eq!(
        net.count(SERVER, Counter::DropAheadNoDescriptor),
        1,
        "the fourth"
    );
    assert_eq!(net.log(SERVER, b), [], "in the order of the messages");
    net.post_receive(SERVER, b, 5_000);
    net.wire.cut = false;
    net.advance(20 * MS);
    let log: Vec<Event> = (0..4).map(|n| received(n, &data[n as usize])).collect();
    assert_eq!(net.log(SERVER, b), log);
    assert_eq!(net.log(CLIENT, a).len(), 4);
}

#[test]
fn without_both_ends_offering_it_the_first_lost_frame_breaks() {
    for on in [CLIENT, SERVER] {
        let (mut net, a, b) = pair_with(RD, |node, config| {
            if node != on {
                config.recovery = None;
            }
        });
        net.post_receive(SERVER, b, 8);
        net.post_receive(SERVER, b, 8);
        net.wire.lose(CLIENT, SendRequest, 1);
        net.post_send(CLIENT, a, &[1; 8]);
        assert_eq!(net.log(CLIENT, a), [sent(0, 8)], "strict");
        net.post_send(CLIENT, a, &[2; 8]);
        net.advance(MS);
        assert_eq!(net.state(SERVER, b), EndpointState::Error);
        assert_eq!(net.state(CLIENT, a), EndpointState::Error);
    }
    let mut net = Net::new([CLIENT, SERVER].map(config).to_vec(), 1);
    for node in &mut net.nodes {
        node.engine.config.recovery = Some(RecoveryConfig::default());
    }
    let (a, _) = net.join(Level::UnreliableDelivery);
    net.clear_logs();
    net.post_send(CLIENT, a, &[1; 8]);
    assert_eq!(
        net.log(CLIENT, a),
        [sent(0, 8)],
        "never at Unreliable Delivery"
    );
}

#[test]
fn a_read_goes_on_where_its_data_stopped() {
    let (mut net, a, _) = pair(RD);
    let source = Rng::new(4).bytes(100_000);
    let region = net.nodes[SERVER].host.regions.get_mut(&TARGET);
    region.expect("registered").bytes = source.clone();
    net.post_read(CLIENT, a, (100, TARGET), 20_000);
    for _ in 0..4 {
        assert!(net.deliver_one());
    }
    net.wire.lose(SERVER, ReadResponse, 0);
    let mut flying = net.wire.take_flying();
    flying.remove(0);
    for (to, bytes) in flying {
        net.inject(to, &bytes);
    }
    net.advance(20 * MS);
    let requests = net.frames(CLIENT, ReadRequest);
    assert_eq!(requests.len(), 2, "asked for again once");
    let view = FrameView::parse(&requests[1]).expect("a frame");
    let from = view.iu().expect("an IU").header.parameter;
    assert_eq!(from, 3 * 2096);
    assert!(resent(&requests[1]));
    assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
    assert!(net.read_data(CLIENT, a)[0].1 == source[100..20_100]);
    assert_eq!(net.count(SERVER, Counter::ReadsRepeated), 1);
}

/// Peers that shake hands over a bad network: the first message may stand for RESP3.
#[test]
fn the_first_message_implies_the_end_of_the_handshake() {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.recovery = Some(RecoveryConfig::default());
        config
    });
    let mut net = Net::new(configs.to_vec(), 5);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    net.post_receive(CLIENT, a, 8);
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    net.wire
        .lose(SERVER, fcvi_frame::iu::Opcode::ConnectResponse3, 1);
    net.accept(SERVER, conn, b).expect("matching attributes");
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
    net.post_send(SERVER, b, &[3; 8]);
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert!(net.log(CLIENT, a).contains(&received(0, &[3; 8])));
}
