//! Two VIs of one engine, whose messages need no frames.
//!
//! That every kind of message and every error is as over frames is shown where those are tested,
//! in `data`, `reads` and `errors`, for each way in which ends are joined; and by random programs
//! that are played over frames and by the shortcut. Here is what is special about it.

mod programs;

use fcvi_frame::iu::Opcode::{ConnectResponse3, DisconnectRequest, SendRequest};

use crate::recovery::RecoveryConfig;
use crate::testkit::host::{Event, Send};
use crate::testkit::net::{
    CLIENT, Net, S, SERVER, broken, config, left, params, received, send_failed, sent,
};
use crate::testkit::way::{Way, joined_by};
use crate::{
    AsyncError, Counter, EndpointState, EngineConfig, Level, Pumped, Status, ViIndex, ViParams,
};

const UD: Level = Level::UnreliableDelivery;
const RD: Level = Level::ReliableDelivery;
const RR: Level = Level::ReliableReception;
const LEVELS: [Level; 3] = [UD, RD, RR];

/// One engine with two connected VIs.
fn pair_with(level: Level, adjust: impl Fn(&mut EngineConfig)) -> (Net, ViIndex, ViIndex) {
    joined_by(Way::Shortcut, || {
        let mut net = Net::pair_with(1, adjust);
        let (a, b) = net.join(level);
        net.clear_logs();
        net.wire.trace.clear();
        (net, a, b)
    })
}

fn pair(level: Level) -> (Net, ViIndex, ViIndex) {
    pair_with(level, |_| {})
}

fn no_frame_of_a_message(net: &Net) {
    assert_eq!(net.total(Counter::TxFrames), 0);
    assert!(net.nodes[CLIENT].engine.exchange_usage() == (0, 0));
    assert_eq!(net.ius(), []);
}

/// An idle connection between two VIs of one port: nothing answers a probe of the own port where discovery takes link
/// services, and drops those with the own address.
#[test]
fn idle_connection_within_one_port_is_not_probed() {
    let (mut net, a, b) = pair_with(RD, |config| config.probe_interval_ns = S);
    net.wire.cut = true;
    net.advance(100 * S);
    assert_eq!(net.log(CLIENT, a), []);
    assert_eq!(net.log(SERVER, b), []);
    assert_eq!(net.total(Counter::PeersLost), 0);
    assert!(net.wire.trace.is_empty(), "no probe");
}

#[test]
fn messages_are_counted_and_need_no_frames() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level);
        for len in [0, 1, 5000] {
            net.post_receive(SERVER, b, 5000);
            net.post_send(CLIENT, a, &vec![1; len]);
        }
        net.post_receive(CLIENT, a, 10);
        net.post_send(SERVER, b, b"back");
        let lengths: Vec<_> = net.log(CLIENT, a).into_iter().filter(is_sent).collect();
        assert_eq!(lengths, [sent(0, 0), sent(1, 1), sent(2, 5000)]);
        assert_eq!(net.total(Counter::ShortcutMessages), 4);
        assert_eq!(net.total(Counter::ShortcutBytes), 5005);
        assert_eq!(net.total(Counter::TxMessages), 4);
        assert_eq!(net.total(Counter::RxMessages), 4);
        no_frame_of_a_message(&net);
    }
}

fn is_sent(event: &Event) -> bool {
    matches!(event, Event::Sent(..))
}

/// Without the key, and between ports, as ever.
#[test]
fn frames_are_used_unless_both_ends_are_ours_and_the_configuration_says_so() {
    for way in [Way::Wire, Way::Port] {
        joined_by(way, || {
            let mut net = Net::pair_with(1, |config| config.shortcut = way == Way::Wire);
            let (a, b) = net.join(RD);
            net.post_receive(SERVER, b, 10);
            net.post_send(CLIENT, a, b"frame");
            net.settle();
            assert_eq!(net.frames(CLIENT, SendRequest).len(), 1);
            assert_eq!(net.total(Counter::ShortcutMessages), 0);
            assert_eq!(net.total(Counter::RxFrames), 1);
        });
    }
}

/// Recovery is offered, but there is nothing to recover.
#[test]
fn recovery_has_nothing_to_do() {
    for level in LEVELS {
        let (mut net, a, b) = pair_with(level, |config| {
            config.recovery = Some(RecoveryConfig::default());
        });
        for _ in 0..100 {
            net.post_receive(SERVER, b, 10);
            net.post_send(CLIENT, a, b"10 bytes");
        }
        net.advance(60 * S);
        assert_eq!(net.log(CLIENT, a).len(), 100);
        no_frame_of_a_message(&net);
        assert_eq!(net.nodes[CLIENT].engine.timers.len(), 0);
    }
}

/// The server may send before its RESP3 is there: its first message implies it [FCVI P-12].
#[test]
fn the_first_message_implies_response3() {
    joined_by(Way::Shortcut, || {
        let mut net = Net::pair();
        net.wire.lose(CLIENT, ConnectResponse3, 1);
        let (a, b, conn) = net.ask(RD);
        net.post_receive(CLIENT, a, 10);
        net.accept(SERVER, conn, b).unwrap();
        net.settle();
        assert_eq!(net.state(SERVER, b), EndpointState::Connected);
        assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
        net.clear_logs();
        net.post_send(SERVER, b, b"early");
        let connected = Event::State(EndpointState::Connected);
        assert_eq!(net.log(CLIENT, a), [connected, received(0, b"early")]);
        assert_eq!(net.log(SERVER, b), [sent(0, 5)]);
        net.advance(60 * S);
        assert_eq!(net.log(CLIENT, a), []);
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
    });
}

/// As over frames: the client hears that it was accepted before it hears of the end.
#[test]
fn a_server_that_accepts_and_leaves_at_once_was_connected_for_its_client() {
    joined_by(Way::Shortcut, || {
        let mut net = Net::pair();
        let (a, b, conn) = net.ask(RD);
        net.accept(SERVER, conn, b).unwrap();
        while net.state(SERVER, b) != EndpointState::Connected {
            assert!(net.deliver_one());
        }
        assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
        net.clear_logs();
        net.disconnect(SERVER, b);
        net.settle();
        let connected = Event::State(EndpointState::Connected);
        assert_eq!(net.log(CLIENT, a), [vec![connected], left()].concat());
        assert!(
            net.outcome(CLIENT, a)
                .is_some_and(|outcome| outcome.is_ok())
        );
    });
}

/// Either end may leave while the client has not seen RESP3.
#[test]
fn half_a_connection_ends_at_both_ends_at_once() {
    for leaver in [CLIENT, SERVER] {
        joined_by(Way::Shortcut, || {
            let mut net = Net::pair();
            net.wire.lose(CLIENT, ConnectResponse3, u32::MAX);
            let (a, b, conn) = net.ask(RD);
            net.accept(SERVER, conn, b).unwrap();
            net.settle();
            net.wire.trace.clear();
            net.disconnect(leaver, if leaver == CLIENT { a } else { b });
            let [of_client, of_server] = if leaver == CLIENT {
                [EndpointState::Idle, EndpointState::Error]
            } else {
                [EndpointState::Error, EndpointState::Idle]
            };
            assert_eq!(net.state(CLIENT, a), of_client);
            assert_eq!(net.state(SERVER, b), of_server);
            net.advance(60 * S);
            assert!(net.frames(CLIENT, DisconnectRequest).is_empty());
            assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
            assert_eq!(net.nodes[CLIENT].engine.timers.len(), 0);
        });
    }
}

#[test]
fn a_disconnect_ends_both_ends_at_once_and_both_can_connect_again() {
    let (mut net, a, b) = pair(RD);
    for _ in 0..3 {
        net.post_receive(SERVER, b, 10);
        net.disconnect(CLIENT, a);
        assert_eq!(net.log(CLIENT, a), [Event::State(EndpointState::Idle)]);
        let log = net.log(SERVER, b);
        assert_eq!(log.first(), Some(&left()[0]));
        assert_eq!(log.last(), Some(&left()[1]));
        assert_eq!(log.len(), 3);
        net.disconnect(SERVER, b);
        assert_eq!(net.ius(), [], "nobody needs to be told by a frame");
        net.connect(a, b);
        net.clear_logs();
        net.wire.trace.clear();
        let rx = net.post_receive(SERVER, b, 10);
        net.post_send(CLIENT, a, b"again");
        assert_eq!(net.log(SERVER, b), [received(rx, b"again")]);
        net.clear_logs();
    }
}

/// Between the parts of a long message others have their turn, and bytes go both ways.
#[test]
fn one_call_moves_no_more_than_is_configured() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 1024);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.post_receive(node, vi, 10_000);
        let data = vec![node as u8 + 1; 4000];
        let send = Send {
            data,
            ..Send::default()
        };
        net.nodes[node].host.post_send(vi, send);
    }
    let now_ns = net.now_ns;
    let placed = |net: &mut Net, vi| net.nodes[CLIENT].host.vi(vi).receives[0].data.len();
    for parts in 1..4 {
        for (vi, other) in [(a, b), (b, a)] {
            let pumped = net.act(CLIENT, |engine, host| engine.pump(now_ns, vi, 100, host));
            assert_eq!(pumped, Pumped::More);
            assert_eq!(placed(&mut net, other), parts * 1024);
        }
    }
    for vi in [a, b] {
        net.act(CLIENT, |engine, host| engine.pump(now_ns, vi, 100, host));
    }
    let log = net.log(CLIENT, a);
    assert_eq!(log, [sent(0, 4000), received(0, &[2; 4000])]);
    assert_eq!(net.log(SERVER, b), [received(0, &[1; 4000]), sent(0, 4000)]);
}

/// However small the limit, a call comes forward; and no part but the last ends inside a word.
#[test]
fn a_limit_below_a_line_is_a_line() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 0);
    net.nodes[CLIENT].host.placements = Some(Vec::new());
    net.post_receive(SERVER, b, 1000);
    net.post_send(CLIENT, a, &[7; 1000]);
    assert_eq!(net.log(SERVER, b), [received(0, &[7; 1000])]);
    let placements = net.nodes[CLIENT].host.placements.take().unwrap();
    assert_eq!(placements.len(), 1000_usize.div_ceil(64));
    let (last, parts) = placements.split_last().unwrap();
    assert!(parts.iter().all(|part| part.bytes.len() == 64));
    assert_eq!(last.offset_bytes, 960);
}

/// What a message leaves of a call's bytes is used, but no part ends inside a word.
#[test]
fn parts_of_messages_that_share_a_call_end_between_words() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 1000);
    net.nodes[CLIENT].host.placements = Some(Vec::new());
    for len in [13, 3000] {
        net.post_receive(SERVER, b, 3000);
        let send = Send {
            data: vec![7; len],
            ..Send::default()
        };
        net.nodes[CLIENT].host.post_send(a, send);
    }
    net.pump(CLIENT);
    let placements = net.nodes[CLIENT].host.placements.take().unwrap();
    let sizes: Vec<_> = placements.iter().map(|part| part.bytes.len()).collect();
    assert_eq!(sizes, [13, 960, 960, 960, 120]);
}

/// Both messages are half moved when the one fails: the other is flushed.
#[test]
fn a_message_that_fails_takes_the_one_of_the_other_direction_with_it() {
    for (level, status) in [(RD, Status::OK), (RR, Status::REMOTE_DESCRIPTOR)] {
        let (mut net, a, b) = pair_with(level, |config| config.shortcut_bytes = 1024);
        let gone = crate::testkit::host::Receive {
            capacity_bytes: 4000,
            gone_from: Some(2000),
            ..crate::testkit::host::Receive::default()
        };
        net.nodes[CLIENT].host.post_receive(b, gone);
        net.post_receive(CLIENT, a, 4000);
        for vi in [a, b] {
            let send = Send {
                data: vec![1; 4000],
                ..Send::default()
            };
            net.nodes[CLIENT].host.post_send(vi, send);
        }
        let now_ns = net.now_ns;
        for vi in [b, a, a] {
            net.act(CLIENT, |engine, host| engine.pump(now_ns, vi, 100, host));
        }
        let length_bytes = if status.is_ok() { 4000 } else { 0 };
        let log = net.log(CLIENT, a);
        assert_eq!(log[0], Event::Sent(0, status, length_bytes));
        assert_eq!(log[1], broken()[0]);
        let log = net.log(SERVER, b);
        assert!(log.contains(&send_failed(0, Status::FLUSHED)));
        assert_eq!(log.last(), Some(&Event::Async(AsyncError::ConnectionLost)));
        assert_eq!(net.total(Counter::Breaks), 2);
    }
}

/// Frames that name a handle of such a connection are nobody's, whoever sends them.
#[test]
fn a_frame_with_the_handle_of_a_connection_without_frames_is_dropped() {
    let (mut net, a, b) = joined_by(Way::Port, || Net::connected(RD));
    net.post_receive(SERVER, b, 10);
    net.post_send(CLIENT, a, b"frame");
    let frame = net.frames(CLIENT, SendRequest)[0].clone();
    let (mut other, a, b) = pair(RD);
    let handle = other.nodes[CLIENT].engine.endpoint(b).unwrap().handle;
    other.post_receive(SERVER, b, 10);
    other.inject(SERVER, &with_handle(&frame, handle));
    assert_eq!(other.total(Counter::DropWrongPeer), 1);
    other.post_send(CLIENT, a, b"memory");
    assert_eq!(other.log(SERVER, b), [received(0, b"memory")]);
}

/// The same frame for another handle, in the first word behind the FC header.
fn with_handle(frame: &[u8], handle: u32) -> Vec<u8> {
    use fcvi_frame::fcoe::Eof;
    let mut frame = frame.to_vec();
    const DEVICE_HEADER: usize = 14 + 14 + 24;
    frame[DEVICE_HEADER..DEVICE_HEADER + 4].copy_from_slice(&handle.to_be_bytes());
    let bytes = frame.len();
    fcvi_frame::frame::seal(&mut frame, bytes, Eof::T).unwrap();
    frame
}

/// Another port that says it has our address makes no VI of ours its client.
#[test]
fn a_client_that_is_not_ours_is_sent_frames() {
    let mut server = config(SERVER);
    server.shortcut = true;
    let mut net = Net::new(vec![config(CLIENT), server], 1);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    net.connect(a, b);
    let link = net.nodes[SERVER].engine.endpoint(b).unwrap().link.unwrap();
    let own = net.nodes[SERVER].id;
    let (c, d) = (
        net.create(SERVER, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for vi in [c, d] {
        let engine = &mut net.nodes[SERVER].engine;
        let mut pretended = link;
        pretended.peer = own;
        engine.bind(0, vi, pretended, 1, 1);
        engine.take_shortcut(vi);
        assert!(engine.endpoint(vi).unwrap().shortcut.is_none());
    }
}

#[test]
fn a_small_vi_refuses_a_long_message_before_a_byte_is_moved() {
    joined_by(Way::Shortcut, || {
        let mut net = Net::pair();
        let small = ViParams {
            max_transfer_bytes: 3000,
            ..params(UD)
        };
        let (a, b) = (net.create(CLIENT, small), net.create(SERVER, small));
        net.connect(a, b);
        net.nodes[CLIENT].host.placements = Some(Vec::new());
        net.post_receive(SERVER, b, 9000);
        net.post_send(CLIENT, a, &[1; 6000]);
        let placements = net.nodes[CLIENT].host.placements.take();
        assert!(placements.unwrap().is_empty());
    });
}
