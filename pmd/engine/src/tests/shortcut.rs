//! The shortcut: messages between two VIs of one engine, which need no frames.
//!
//! `data`, `reads` and `errors` test all messages and errors over frames and over the shortcut, and `programs` compares
//! random programs. The tests here cover what only the shortcut does.

mod programs;

use fcvi_frame::iu::Opcode::{ConnectResponse3, DisconnectRequest, SendRequest};
use vi_types::{AsyncError, Pumped, ReliabilityLevel, Status, ViIndex, ViParams, ViState};

use crate::testkit::io::{Event, Send};
use crate::testkit::net::{CLIENT, Net, S, SERVER, config, params};
use crate::testkit::topology::{Topology, with_topology};
use crate::{Counter, EngineConfig};
use crate::{
    recovery::RecoveryConfig,
    testkit::expected_events::{
        connection_lost_events, peer_disconnected_events, received, send_failed, sent,
    },
};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const LEVELS: [ReliabilityLevel; 3] = [UD, RD, RR];

/// Returns one engine with two connected VIs.
fn pair_with(
    level: ReliabilityLevel,
    adjust: impl Fn(&mut EngineConfig),
) -> (Net, ViIndex, ViIndex) {
    with_topology(Topology::Shortcut, || {
        let mut net = Net::pair_with(1, adjust);
        let (a, b) = net.join(level);
        net.clear_logs();
        net.wire.trace.clear();
        (net, a, b)
    })
}

fn pair(level: ReliabilityLevel) -> (Net, ViIndex, ViIndex) {
    pair_with(level, |_| {})
}

fn assert_no_message_frames(net: &Net) {
    assert_eq!(net.total(Counter::TxFrames), 0);
    assert!(net.nodes[CLIENT].engine.exchange_usage() == (0, 0));
    assert_eq!(net.ius(), []);
}

/// A probe of an idle connection between two VIs of one port would get no response: discovery receives the link
/// services and drops those with the local address.
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
        assert_no_message_frames(&net);
    }
}

fn is_sent(event: &Event) -> bool {
    matches!(event, Event::Sent(..))
}

/// Between ports, and within one port without the configuration key.
#[test]
fn frames_are_used_between_ports_and_without_the_key() {
    for topology in [Topology::Wire, Topology::Port] {
        with_topology(topology, || {
            let mut net = Net::pair_with(1, |config| config.shortcut = topology == Topology::Wire);
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

/// Recovery is negotiated, but the shortcut does not use it.
#[test]
fn recovery_is_not_used_by_the_shortcut() {
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
        assert_no_message_frames(&net);
        assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
    }
}

/// The server may send before its RESP3 has arrived: its first message implies it [FCVI P-12].
#[test]
fn the_first_message_implies_response3() {
    with_topology(Topology::Shortcut, || {
        let mut net = Net::pair();
        net.wire.lose(CLIENT, ConnectResponse3, 1);
        let (a, b, conn) = net.request_pending(RD);
        net.post_receive(CLIENT, a, 10);
        net.accept(SERVER, conn, b).unwrap();
        net.settle();
        assert_eq!(net.state(SERVER, b), ViState::Connected);
        assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
        net.clear_logs();
        net.post_send(SERVER, b, b"early");
        let connected = Event::State(ViState::Connected);
        assert_eq!(net.log(CLIENT, a), [connected, received(0, b"early")]);
        assert_eq!(net.log(SERVER, b), [sent(0, 5)]);
        net.advance(60 * S);
        assert_eq!(net.log(CLIENT, a), []);
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
    });
}

/// As over frames, the client sees the connection before the disconnect.
#[test]
fn disconnect_right_after_the_accept_follows_connected_at_the_client() {
    with_topology(Topology::Shortcut, || {
        let mut net = Net::pair();
        let (a, b, conn) = net.request_pending(RD);
        net.accept(SERVER, conn, b).unwrap();
        while net.state(SERVER, b) != ViState::Connected {
            assert!(net.deliver_one());
        }
        assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
        net.clear_logs();
        net.disconnect(SERVER, b);
        net.settle();
        let connected = Event::State(ViState::Connected);
        assert_eq!(
            net.log(CLIENT, a),
            [vec![connected], peer_disconnected_events()].concat()
        );
        assert!(
            net.outcome(CLIENT, a)
                .is_some_and(|outcome| outcome.is_ok())
        );
    });
}

/// Either side disconnects before the client has received RESP3.
#[test]
fn half_open_connection_ends_at_both_sides_at_once() {
    for closer in [CLIENT, SERVER] {
        with_topology(Topology::Shortcut, || {
            let mut net = Net::pair();
            net.wire.lose(CLIENT, ConnectResponse3, u32::MAX);
            let (a, b, conn) = net.request_pending(RD);
            net.accept(SERVER, conn, b).unwrap();
            net.settle();
            net.wire.trace.clear();
            net.disconnect(closer, if closer == CLIENT { a } else { b });
            let [of_client, of_server] = if closer == CLIENT {
                [ViState::Idle, ViState::Error]
            } else {
                [ViState::Error, ViState::Idle]
            };
            assert_eq!(net.state(CLIENT, a), of_client);
            assert_eq!(net.state(SERVER, b), of_server);
            net.advance(60 * S);
            assert!(net.frames(CLIENT, DisconnectRequest).is_empty());
            assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
            assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
        });
    }
}

#[test]
fn disconnect_ends_both_sides_at_once_and_both_can_reconnect() {
    let (mut net, a, b) = pair(RD);
    for _ in 0..3 {
        net.post_receive(SERVER, b, 10);
        net.disconnect(CLIENT, a);
        assert_eq!(net.log(CLIENT, a), [Event::State(ViState::Idle)]);
        let log = net.log(SERVER, b);
        assert_eq!(log.first(), Some(&peer_disconnected_events()[0]));
        assert_eq!(log.last(), Some(&peer_disconnected_events()[1]));
        assert_eq!(log.len(), 3);
        net.disconnect(SERVER, b);
        assert_eq!(net.ius(), [], "no frame is needed");
        net.connect(a, b);
        net.clear_logs();
        net.wire.trace.clear();
        let rx = net.post_receive(SERVER, b, 10);
        net.post_send(CLIENT, a, b"again");
        assert_eq!(net.log(SERVER, b), [received(rx, b"again")]);
        net.clear_logs();
    }
}

/// A long message is moved in parts, so that other VIs and the other direction are served between them.
#[test]
fn one_call_moves_at_most_the_configured_bytes() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 1024);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.post_receive(node, vi, 10_000);
        let data = vec![node as u8 + 1; 4000];
        let send = Send {
            data,
            ..Send::default()
        };
        net.nodes[node].io.post_send(vi, send);
    }
    let now_ns = net.now_ns;
    let placed = |net: &mut Net, vi| net.nodes[CLIENT].io.vi(vi).receives[0].data.len();
    for parts in 1..4 {
        for (vi, other) in [(a, b), (b, a)] {
            let pumped = net.act(CLIENT, |engine, io| engine.pump(now_ns, vi, 100, io));
            assert_eq!(pumped, Pumped::More);
            assert_eq!(placed(&mut net, other), parts * 1024);
        }
    }
    for vi in [a, b] {
        net.act(CLIENT, |engine, io| engine.pump(now_ns, vi, 100, io));
    }
    let log = net.log(CLIENT, a);
    assert_eq!(log, [sent(0, 4000), received(0, &[2; 4000])]);
    assert_eq!(net.log(SERVER, b), [received(0, &[1; 4000]), sent(0, 4000)]);
}

/// With any limit a call makes progress, and only the last part ends inside a cache line.
#[test]
fn limit_below_a_cache_line_is_raised_to_one() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 0);
    net.nodes[CLIENT].io.placements = Some(Vec::new());
    net.post_receive(SERVER, b, 1000);
    net.post_send(CLIENT, a, &[7; 1000]);
    assert_eq!(net.log(SERVER, b), [received(0, &[7; 1000])]);
    let placements = net.nodes[CLIENT].io.placements.take().unwrap();
    assert_eq!(placements.len(), 1000_usize.div_ceil(64));
    let (last, parts) = placements.split_last().unwrap();
    assert!(parts.iter().all(|part| part.bytes.len() == 64));
    assert_eq!(last.offset_bytes, 960);
}

/// The next message uses the remaining bytes of a call, but no part ends inside a cache line.
#[test]
fn parts_of_messages_that_share_a_call_end_between_cache_lines() {
    let (mut net, a, b) = pair_with(RD, |config| config.shortcut_bytes = 1000);
    net.nodes[CLIENT].io.placements = Some(Vec::new());
    for len in [13, 3000] {
        net.post_receive(SERVER, b, 3000);
        let send = Send {
            data: vec![7; len],
            ..Send::default()
        };
        net.nodes[CLIENT].io.post_send(a, send);
    }
    net.pump(CLIENT);
    let placements = net.nodes[CLIENT].io.placements.take().unwrap();
    let sizes: Vec<_> = placements.iter().map(|part| part.bytes.len()).collect();
    assert_eq!(sizes, [13, 960, 960, 960, 120]);
}

/// Both messages are partly moved when one fails: the other is flushed.
#[test]
fn failed_message_flushes_the_message_of_the_other_direction() {
    for (level, status) in [(RD, Status::OK), (RR, Status::REMOTE_DESCRIPTOR)] {
        let (mut net, a, b) = pair_with(level, |config| config.shortcut_bytes = 1024);
        let gone = crate::testkit::io::Receive {
            capacity_bytes: 4000,
            gone_from: Some(2000),
            ..crate::testkit::io::Receive::default()
        };
        net.nodes[CLIENT].io.post_receive(b, gone);
        net.post_receive(CLIENT, a, 4000);
        for vi in [a, b] {
            let send = Send {
                data: vec![1; 4000],
                ..Send::default()
            };
            net.nodes[CLIENT].io.post_send(vi, send);
        }
        let now_ns = net.now_ns;
        for vi in [b, a, a] {
            net.act(CLIENT, |engine, io| engine.pump(now_ns, vi, 100, io));
        }
        let length_bytes = if status.is_ok() { 4000 } else { 0 };
        let log = net.log(CLIENT, a);
        assert_eq!(log[0], Event::Sent(0, status, length_bytes));
        assert_eq!(log[1], connection_lost_events()[0]);
        let log = net.log(SERVER, b);
        assert!(log.contains(&send_failed(0, Status::FLUSHED)));
        assert_eq!(log.last(), Some(&Event::Async(AsyncError::ConnectionLost)));
        assert_eq!(net.total(Counter::Breaks), 2);
    }
}

/// Frames with a handle of a shortcut connection are dropped, whatever their source.
#[test]
fn frame_with_the_handle_of_a_shortcut_connection_is_dropped() {
    let (mut net, a, b) = with_topology(Topology::Port, || Net::connected(RD));
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

/// Returns the frame with another handle, the first word behind the FC header.
fn with_handle(frame: &[u8], handle: u32) -> Vec<u8> {
    use fcvi_frame::fcoe::Eof;
    let mut frame = frame.to_vec();
    const DEVICE_HEADER: usize = 14 + 14 + 24;
    frame[DEVICE_HEADER..DEVICE_HEADER + 4].copy_from_slice(&handle.to_be_bytes());
    let bytes = frame.len();
    fcvi_frame::frame::seal(&mut frame, bytes, Eof::T).unwrap();
    frame
}

/// A peer that claims the local address gets no shortcut.
#[test]
fn client_of_another_engine_gets_no_shortcut() {
    let mut server = config(SERVER);
    server.shortcut = true;
    let mut net = Net::new(vec![config(CLIENT), server], 1);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    net.connect(a, b);
    let connection = net.nodes[SERVER]
        .engine
        .endpoint(b)
        .unwrap()
        .connection
        .unwrap();
    let own = net.nodes[SERVER].id;
    let (c, d) = (
        net.create(SERVER, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for vi in [c, d] {
        let engine = &mut net.nodes[SERVER].engine;
        let mut forged = connection;
        forged.peer = own;
        let io = &mut ();
        let (ep, mut cx) = engine.split(0, vi, io).unwrap();
        ep.bind(&mut cx, forged, 1, 1);
        engine.enable_shortcut(vi);
        assert!(engine.endpoint(vi).unwrap().shortcut.is_none());
    }
}

#[test]
fn message_above_max_transfer_size_is_refused_before_any_byte_is_moved() {
    with_topology(Topology::Shortcut, || {
        let mut net = Net::pair();
        let small = ViParams {
            max_transfer_bytes: 3000,
            ..params(UD)
        };
        let (a, b) = (net.create(CLIENT, small), net.create(SERVER, small));
        net.connect(a, b);
        net.nodes[CLIENT].io.placements = Some(Vec::new());
        net.post_receive(SERVER, b, 9000);
        net.post_send(CLIENT, a, &[1; 6000]);
        let placements = net.nodes[CLIENT].io.placements.take();
        assert!(placements.unwrap().is_empty());
    });
}
