//! Disconnects: by either side, by both, with lost disconnect IUs, and after the loss of a peer.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{
    ConnectResponse2 as Resp2, DisconnectRequest as Rqst, DisconnectResponse as Resp, SendRequest,
};
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, CallError, ReliabilityLevel, Status, ViState};

use super::receive_checks::edited;
use crate::Counter;
use crate::connection::Break;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, params};
use crate::testkit::{
    expected_events::{connection_lost_events, peer_disconnected_events, received},
    io::{Event, Receive},
};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RETRY: u64 = 5 * S;

fn reason(frame: &[u8]) -> MessageReason {
    let frame = FrameView::parse(frame).unwrap();
    MessageReason::from_parameter(frame.iu().unwrap().header.parameter)
}

#[test]
fn disconnect_makes_the_vi_idle_and_the_peer_an_error() {
    let (mut net, a, b) = Net::connected(RD);
    net.disconnect(CLIENT, a);
    assert_eq!(net.log(CLIENT, a), [Event::State(ViState::Idle)]);
    net.settle();
    assert_eq!(net.log(SERVER, b), peer_disconnected_events());
    assert_eq!(net.ius(), [(CLIENT, Rqst), (SERVER, Resp)]);
    assert_eq!(
        reason(&net.frames(CLIENT, Rqst)[0]),
        MessageReason::Disconnected
    );
    assert_eq!(reason(&net.frames(SERVER, Resp)[0]), MessageReason::None);
    net.disconnect(SERVER, b);
    net.disconnect(SERVER, b);
    net.advance(60 * S);
    assert_eq!(net.ius().len(), 2);
    for node in [CLIENT, SERVER] {
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
        assert_eq!(net.nodes[node].engine.port.timers.len(), 0);
    }
}

/// The slot of the handle is that of the VI, its number that of another connection.
#[test]
fn disconnect_with_another_handle_is_dropped() {
    const HANDLE: usize = 52;
    let (mut net, a, b) = Net::connected(RD);
    net.wire.cut = true;
    net.disconnect(CLIENT, a);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    let other = edited(&request, Eof::T, |frame| frame[HANDLE] ^= 0x80);
    net.inject(SERVER, &other);
    let state = net.nodes[SERVER].engine.state(b);
    assert_eq!(state, Some(ViState::Connected));
    assert_eq!(net.count(SERVER, Counter::UnknownDisconnects), 1);
    net.inject(SERVER, &request);
    assert_eq!(net.log(SERVER, b), peer_disconnected_events());
}

#[test]
fn disconnect_is_legal_in_every_state_and_flushes_in_order() {
    for steps in 0..5 {
        let mut net = Net::pair();
        let a = net.create(CLIENT, params(RD));
        let b = net.create(SERVER, params(RD));
        let listener = net.listen(SERVER, "x");
        if steps >= 1 {
            net.request(CLIENT, a, "x", &[SERVER], None);
            net.settle();
        }
        if steps >= 2 {
            if steps == 2 {
                net.wire.lose(CLIENT, Resp2, u32::MAX);
            }
            let conn = net.indication(SERVER, listener).unwrap().conn;
            net.accept(SERVER, conn, b).unwrap();
            net.settle();
        }
        if steps == 4 {
            net.disconnect(CLIENT, a);
            net.settle();
            assert_eq!(net.state(SERVER, b), ViState::Error);
        }
        for (node, vi) in [(SERVER, b), (CLIENT, a)] {
            net.log(node, vi);
            for _ in 0..3 {
                net.post_receive(node, vi, 10);
            }
            net.disconnect(node, vi);
            assert_eq!(net.state(node, vi), ViState::Idle);
            let flushed: Vec<_> = net
                .log(node, vi)
                .into_iter()
                .filter_map(|e| match e {
                    Event::Received(r) => Some((r.id, r.status)),
                    _ => None,
                })
                .collect();
            assert_eq!(flushed, [0, 1, 2].map(|id| (id, Status::FLUSHED)));
            assert!(net.nodes[node].engine.destroy_vi(vi));
        }
        net.advance(60 * S);
        for node in [CLIENT, SERVER] {
            assert_eq!(net.nodes[node].engine.exchange_usage().0, 0);
        }
    }
}

#[test]
fn simultaneous_disconnects_answer_each_other() {
    let (mut net, a, b) = Net::connected(RD);
    net.disconnect(CLIENT, a);
    net.disconnect(SERVER, b);
    net.advance(60 * S);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        assert_eq!(net.state(node, vi), ViState::Idle);
        assert_eq!(net.log(node, vi), [Event::State(ViState::Idle)]);
        assert_eq!(net.frames(node, Rqst).len(), 1);
        assert_eq!(net.frames(node, Resp).len(), 1);
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn simultaneous_breaks_are_reported_once_at_each_side() {
    let (mut net, a, b) = Net::connected(RD);
    net.post_send(CLIENT, a, b"no receive");
    net.post_send(SERVER, b, b"no receive");
    net.advance(60 * S);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        let lost = Event::Async(AsyncError::ConnectionLost);
        let lost = net.log(node, vi).iter().filter(|e| **e == lost).count();
        assert_eq!(lost, 1);
        assert_eq!(net.count(node, Counter::Breaks), 1);
    }
}

#[test]
fn broken_connection_does_not_break_again() {
    let (mut net, a, b) = Net::connected(RD);
    let now_ns = net.now_ns;
    for _ in 0..2 {
        net.act(CLIENT, |engine, io| {
            let (ep, mut cx) = engine.split(now_ns, a, io).unwrap();
            ep.break_local(&mut cx, Break(MessageReason::ProtocolError));
            engine.fail_vi(now_ns, a, io);
        });
        net.peer_lost(SERVER, CLIENT);
    }
    net.advance(60 * S);
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
    assert_eq!(net.log(SERVER, b), connection_lost_events());
}

#[test]
fn lost_disconnect_is_repeated_three_times() {
    for lost in 0..5 {
        let (mut net, a, b) = Net::connected(RD);
        net.wire.lose(CLIENT, Rqst, lost);
        net.disconnect(CLIENT, a);
        net.advance(60 * S);
        let delivered = lost < 4;
        assert_eq!(net.log(SERVER, b) == peer_disconnected_events(), delivered);
        assert_eq!(net.frames(CLIENT, Rqst).len(), 4.min(lost as usize + 1));
        assert_eq!(
            net.count(CLIENT, Counter::CloseTimeouts),
            u64::from(!delivered)
        );
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
        assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
    }
}

#[test]
fn repeated_disconnect_is_answered_with_unknown_handle() {
    let (mut net, a, b) = Net::connected(RD);
    net.wire.lose(SERVER, Resp, 1);
    net.disconnect(CLIENT, a);
    net.advance(RETRY);
    net.settle();
    assert_eq!(net.log(SERVER, b), peer_disconnected_events());
    let answers = net.frames(SERVER, Resp);
    assert_eq!(reason(&answers[1]), MessageReason::UnknownHandle);
    assert_eq!(net.count(CLIENT, Counter::CloseTimeouts), 0);
    assert_eq!(net.count(CLIENT, Counter::Retries), 1);
}

#[test]
fn send_after_lost_disconnects_is_answered_with_a_disconnect() {
    for by_error in [false, true] {
        let (mut net, a, b) = Net::connected(RD);
        net.wire.cut = true;
        let now_ns = net.now_ns;
        if by_error {
            net.act(SERVER, |engine, io| engine.fail_vi(now_ns, b, io));
        } else {
            net.disconnect(SERVER, b);
        }
        net.advance(60 * S);
        assert_eq!(net.count(SERVER, Counter::CloseTimeouts), 1);
        net.wire.cut = false;
        assert_eq!(net.state(CLIENT, a), ViState::Connected);
        net.log(CLIENT, a);
        // A burst causes one disconnect, not one per message.
        net.wire.trace.clear();
        for _ in 0..5 {
            net.post_send(CLIENT, a, b"after the disconnect");
        }
        net.settle();
        assert_eq!(net.state(CLIENT, a), ViState::Error);
        assert_eq!(net.frames(SERVER, Rqst).len(), 1);
        assert_eq!(net.count(SERVER, Counter::DropUnknownHandle), 5);
        assert_eq!(net.count(CLIENT, Counter::Breaks), 1);
    }
}

#[test]
fn receiver_in_error_breaks_a_busy_sender_in_bounded_time() {
    let (mut net, a, b) = Net::connected(RD);
    net.wire.lose(SERVER, Rqst, 3);
    net.post_send(CLIENT, a, b"no receive is posted");
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::Error);
    let start_ns = net.now_ns;
    while net.state(CLIENT, a) == ViState::Connected {
        net.post_send(CLIENT, a, b"continues");
        net.advance(100 * MS);
        assert!(net.now_ns < start_ns + 4 * RETRY, "sender not notified");
    }
    let lost = Event::Async(AsyncError::ConnectionLost);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        let log = net.log(node, vi);
        assert_eq!(log.iter().filter(|e| **e == lost).count(), 1);
    }
}

#[test]
fn a_disconnect_of_an_unknown_connection_is_answered_and_changes_nothing() {
    let (mut net, a, b) = Net::connected(RD);
    let (c, _) = net.join(RD);
    net.clear_logs();
    net.disconnect(CLIENT, c);
    let frame = net.frames(CLIENT, Rqst)[0].clone();
    net.settle();
    net.wire.trace.clear();
    net.clear_logs();
    net.inject(SERVER, &frame);
    net.settle();
    let answer = net.frames(SERVER, Resp);
    assert_eq!(reason(&answer[0]), MessageReason::UnknownHandle);
    assert_eq!(net.count(CLIENT, Counter::DropStrayConnect), 1);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    net.post_receive(SERVER, b, 10);
    net.post_send(CLIENT, a, b"ok");
    net.settle();
    assert_eq!(net.log(SERVER, b), [received(0, b"ok")]);
}

#[test]
fn a_message_cut_off_by_a_disconnect_frees_its_ox_id_after_r_a_tov() {
    let (mut net, a, _) = Net::connected(RD);
    net.nodes[CLIENT].io.room = 1;
    net.post_send(CLIENT, a, &[0; 5000]);
    net.nodes[CLIENT].io.room = usize::MAX;
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
    let now_ns = net.now_ns + 10 * S;
    let pool = &mut net.nodes[CLIENT].engine.port.exchanges;
    assert!(pool.open(now_ns).is_some());
    assert_eq!(pool.usage(), (1, 0));
}

#[test]
fn a_message_that_was_never_sent_costs_no_ox_id() {
    let (mut net, a, _) = Net::connected(RD);
    net.nodes[CLIENT].io.room = 0;
    net.post_send(CLIENT, a, &[0; 5000]);
    net.nodes[CLIENT].io.room = usize::MAX;
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn lost_peer_ends_only_connections_with_it() {
    let configs = (0..3).map(crate::testkit::net::config).collect();
    let mut net = Net::new(configs, 5);
    let (a, b) = net.join(RD);
    // The client is also connected to node 2, has a second request at the server, and a pending request from it.
    let c = net.create(CLIENT, params(RD));
    let d = net.create(2, params(RD));
    let listener = net.listen(2, "y");
    net.request(CLIENT, c, "y", &[2], None);
    net.settle();
    let conn = net.indication(2, listener).unwrap().conn;
    net.accept(2, conn, d).unwrap();
    net.settle();
    let requesting = net.create(CLIENT, params(RD));
    net.listen(SERVER, "x");
    net.request(CLIENT, requesting, "x", &[SERVER], None);
    let server_vi = net.create(SERVER, params(RD));
    let listener = net.listen(CLIENT, "z");
    net.request(SERVER, server_vi, "z", &[CLIENT], None);
    net.settle();
    let pending = net.indication(CLIENT, listener).unwrap().conn;
    net.clear_logs();
    net.peer_lost(CLIENT, SERVER);
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
    assert_eq!(net.error(CLIENT, requesting), Some(CallError::NotReachable));
    let late = net.create(CLIENT, params(RD));
    let void = net.accept(CLIENT, pending, late);
    assert_eq!(void, Err(CallError::Timeout));
    assert_eq!(net.log(CLIENT, c), []);
    assert_eq!(net.state(CLIENT, c), ViState::Connected);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    // The server still sends on the connection, but a station that was lost gets no response.
    net.wire.trace.clear();
    net.post_send(SERVER, b, b"to a lost peer");
    net.settle();
    assert_eq!(net.ius(), [(SERVER, SendRequest)]);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

#[test]
fn peer_lost_during_connection_setup_ends_it() {
    for server_side in [false, true] {
        let mut net = Net::pair();
        let a = net.create(CLIENT, params(RD));
        let b = net.create(SERVER, params(RD));
        let receive = Receive::default;
        net.nodes[CLIENT].io.post_receive(a, receive());
        net.nodes[SERVER].io.post_receive(b, receive());
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let conn = net.indication(SERVER, listener).unwrap().conn;
        net.wire.lose(CLIENT, Resp2, u32::MAX);
        net.accept(SERVER, conn, b).unwrap();
        net.settle();
        let (node, vi, peer, error, state) = if server_side {
            (SERVER, b, CLIENT, CallError::Timeout, ViState::Idle)
        } else {
            let error = CallError::NotReachable;
            (CLIENT, a, SERVER, error, ViState::Error)
        };
        net.peer_lost(node, peer);
        assert_eq!(net.error(node, vi), Some(error));
        assert_eq!(net.state(node, vi), state);
        let posted = net.nodes[node].io.vi(vi).receives.len();
        assert_eq!(posted, usize::from(server_side), "flushed in Error only");
        assert_eq!(net.nodes[node].engine.exchange_usage().0, 0);
        assert!(net.nodes[SERVER].engine.port.incoming[0].is_none() == server_side);
    }
}

#[test]
fn descriptors_posted_in_error_are_flushed() {
    let (mut net, a, b) = Net::connected(RD);
    net.disconnect(SERVER, b);
    net.settle();
    net.log(CLIENT, a);
    net.post_send(CLIENT, a, b"too late");
    assert_eq!(net.log(CLIENT, a), [Event::Sent(0, Status::FLUSHED, 0)]);
}
