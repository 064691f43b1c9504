//! Message recovery: acknowledgements, gaps, retransmission, order and the end of connections.

mod checks;
mod connection_end;
mod disconnect_ack;
mod order_of_writes;
mod piggyback;
mod progress;
mod repeated_reads;

use fcvi_frame::fc::FCtl;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::gaps::{MissingRange, MissingRanges};
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest, SendResponse, WriteRequest};
use vi_types::{ReliabilityLevel, Status, ViIndex, ViState};

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::{
    expected_events::{received, sent},
    io::{Event, Send},
};
use crate::{Counter, EngineConfig, RecoveryConfig};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const US: u64 = 1_000;
const TARGET: u32 = 7;

fn pair_with(
    level: ReliabilityLevel,
    change: impl Fn(usize, &mut EngineConfig),
) -> (Net, ViIndex, ViIndex) {
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
        net.nodes[node].io.register(TARGET, 0, 100_000);
    }
    (net, a, b)
}

fn pair(level: ReliabilityLevel) -> (Net, ViIndex, ViIndex) {
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

/// Returns the frames that are sent during `act`, none of which is delivered.
fn withheld(net: &mut Net, act: impl FnOnce(&mut Net)) -> Vec<Vec<u8>> {
    let before = net.wire.trace.len();
    net.wire.cut = true;
    act(net);
    net.wire.cut = false;
    let new = net.wire.trace[before..].iter();
    new.map(|sent| sent.bytes.clone()).collect()
}

/// Parses an acknowledgement: the last complete message, bytes of the next one, gaps.
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

/// Returns the frame with the retransmission bit cleared, sealed again.
fn clear_retransmitted(bytes: &[u8]) -> Vec<u8> {
    let view = FrameView::parse(bytes).expect("a frame");
    assert!(view.fc.f_ctl.contains(FCtl::RETRANSMITTED));
    let mut bytes = bytes.to_vec();
    bytes[38] &= !2;
    let eof = view.eof;
    let length = bytes.len();
    seal(&mut bytes, length, eof).expect("a legal length");
    bytes
}

fn is_retransmitted(bytes: &[u8]) -> bool {
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
        assert_eq!(net.log(CLIENT, a), [], "{level:?}: it may still be lost");
        net.advance(60 * US);
        assert_eq!(net.log(CLIENT, a), [sent(tx, 5)]);
        let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
        assert_eq!(acknowledgements(&net, SERVER), [(first, 0, vec![])]);
        net.advance(S);
        assert_eq!(net.wire.trace.len(), 2, "nothing more is sent");
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
fn message_longer_than_the_window_is_delivered() {
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
fn gap_is_reported_at_once_and_only_missing_frames_are_retransmitted() {
    let (mut net, a, b) = pair(RD);
    let data = Rng::new(2).bytes(20_000);
    net.post_receive(SERVER, b, 20_000);
    let frames = withheld(&mut net, |net| {
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
    for (at, gaps) in [
        (0, None),
        (3, Some(vec![gap(1, 2 * 2096)])),
        (4, None),
        (8, Some(vec![gap(1, 2 * 2096), gap(5, 3 * 2096)])),
        (6, None),
        (9, None),
    ] {
        let sent = withheld(&mut net, |net| {
            net.now_ns += US;
            net.inject(SERVER, &frames[at]);
        });
        let reports: Vec<_> = sent.iter().map(|bytes| acknowledgement(bytes)).collect();
        let expected = gaps.map(|gaps| (before, 2096, gaps));
        assert_eq!(reports, Vec::from_iter(expected), "frame {at}");
    }
    // The gap reports were lost, but the pending acknowledgement of the last frame contains all gaps.
    net.wire.trace.clear();
    net.advance(20 * MS);
    let again = net.frames(CLIENT, SendRequest);
    let numbers = |frames: &[Vec<u8>]| -> Vec<u32> {
        let offset = |bytes: &Vec<u8>| FrameView::parse(bytes).expect("a frame").fc.parameter;
        frames.iter().map(|bytes| offset(bytes) / 2096).collect()
    };
    assert_eq!(numbers(&again), [1, 2, 5, 7]);
    for frame in &again {
        let original = frames.iter().find(|f| **f == clear_retransmitted(frame));
        assert!(original.is_some(), "identical to the original");
    }
    assert_eq!(net.log(SERVER, b), [received(0, &data)]);
    assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
    assert_eq!(net.count(CLIENT, Counter::FramesResent), 4);
    assert_eq!(net.count(SERVER, Counter::AheadPlaced), 5);
}

/// Requests of every kind, each lost once: the retransmission is identical.
#[test]
fn retransmission_is_identical_to_the_lost_frame() {
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
            assert_eq!(clear_retransmitted(&frames[1]), frames[0], "{opcode}");
            let log = net.log(CLIENT, a);
            assert!(
                matches!(log[..], [Event::Sent(0, Status::OK, _)]),
                "{log:?}"
            );
            assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
        }
    }
}

/// Measures the delivery of a message whose frame is lost, once the round-trip time is known.
#[test]
fn lost_message_is_recovered_within_a_millisecond() {
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

/// An application that polls memory sees the last bytes of a write after everything before them.
#[test]
fn last_bytes_of_a_write_are_placed_after_everything_before() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 10);
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 10]);
        net.post(CLIENT, a, write(5_000, None));
    });
    let at = |net: &Net, at: usize| net.nodes[SERVER].io.regions[&TARGET].bytes[at];
    net.wire.cut = true;
    for frame in &frames[2..] {
        net.inject(SERVER, frame);
    }
    assert_eq!(
        (at(&net, 2_080), at(&net, 4_999)),
        (0, 0),
        "an unknown message before it"
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

/// The descriptor of a message is unknown while no frame of the message before it has arrived.
#[test]
fn out_of_order_messages_claim_their_descriptors_in_order() {
    let (mut net, a, b) = pair(RD);
    let data: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 5_000]).collect();
    let frames = withheld(&mut net, |net| {
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
fn without_recovery_at_both_sides_a_lost_frame_breaks() {
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
        assert_eq!(net.log(CLIENT, a), [sent(0, 8)], "no recovery");
        net.post_send(CLIENT, a, &[2; 8]);
        net.advance(MS);
        assert_eq!(net.state(SERVER, b), ViState::Error);
        assert_eq!(net.state(CLIENT, a), ViState::Error);
    }
    let mut net = Net::new([CLIENT, SERVER].map(config).to_vec(), 1);
    for node in &mut net.nodes {
        node.engine.port.config.recovery = Some(RecoveryConfig::default());
    }
    let (a, _) = net.join(ReliabilityLevel::UnreliableDelivery);
    net.clear_logs();
    net.post_send(CLIENT, a, &[1; 8]);
    assert_eq!(
        net.log(CLIENT, a),
        [sent(0, 8)],
        "never at Unreliable Delivery"
    );
}

#[test]
fn repeated_read_resumes_at_the_first_missing_byte() {
    let (mut net, a, _) = pair(RD);
    let source = Rng::new(4).bytes(100_000);
    let region = net.nodes[SERVER].io.regions.get_mut(&TARGET);
    region.expect("registered").bytes = source.clone();
    net.post_read(CLIENT, a, (100, TARGET), 20_000);
    for _ in 0..4 {
        assert!(net.deliver_one());
    }
    net.wire.lose(SERVER, ReadResponse, 0);
    let mut in_flight = net.wire.take_in_transit();
    in_flight.remove(0);
    for (to, bytes) in in_flight {
        net.inject(to, &bytes);
    }
    net.advance(20 * MS);
    let requests = net.frames(CLIENT, ReadRequest);
    assert_eq!(requests.len(), 2, "repeated once");
    let view = FrameView::parse(&requests[1]).expect("a frame");
    let from = view.iu().expect("an IU").header.parameter;
    assert_eq!(from, 3 * 2096);
    assert!(is_retransmitted(&requests[1]));
    assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
    assert!(net.read_data(CLIENT, a)[0].1 == source[100..20_100]);
    assert_eq!(net.count(SERVER, Counter::ReadsRepeated), 1);
}

/// On a lossy network the first message may replace a lost RESP3.
#[test]
fn first_message_implies_a_lost_response3() {
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
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
    net.post_send(SERVER, b, &[3; 8]);
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert!(net.log(CLIENT, a).contains(&received(0, &[3; 8])));
}
