//! Connect IUs lost, repeated, crossed, delayed and stray.

use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{
    self, ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest,
};

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, params, received};
use crate::{ConnId, ConnectError, Counter, EndpointState, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
/// A quarter of FCVI_ULP_TIMEOUT.
const RETRY: u64 = 5 * S;

/// A request of the client that the server's consumer holds.
fn held(net: &mut Net) -> (ViIndex, ViIndex, ConnId) {
    let (a, b, conn) = net.ask(RD);
    (a, b, conn)
}

/// Whatever is said again is another sequence, so that no two frames have the same identity.
#[test]
fn what_is_said_again_has_an_identity_of_its_own() {
    for (from, opcode) in [(SERVER, Resp1), (CLIENT, Resp2), (SERVER, Resp3)] {
        let mut net = Net::pair();
        net.wire.lose(from, opcode, 3);
        let (_, b, conn) = held(&mut net);
        net.accept(SERVER, conn, b).unwrap();
        for _ in 0..4 {
            net.settle();
            net.advance(RETRY);
        }
        let frames = net.wire.trace.iter().map(|sent| {
            let frame = FrameView::parse(&sent.bytes).expect("a good frame");
            let fc = frame.fc;
            (fc.s_id, fc.ox_id, fc.seq_id, fc.seq_cnt)
        });
        let mut identities: Vec<_> = frames.collect();
        let all = identities.len();
        identities.sort_unstable();
        identities.dedup();
        assert!(all > 4, "{opcode:?}");
        assert_eq!(identities.len(), all, "{opcode:?}");
    }
}

/// Each of the four IUs lost once or three times: a connection all the same, and when.
#[test]
fn a_lost_iu_is_repeated_until_there_is_a_connection() {
    let cases: [(usize, Opcode, &[usize]); 4] = [
        (CLIENT, Rqst, &[CLIENT]),
        (SERVER, Resp1, &[CLIENT, SERVER]),
        (CLIENT, Resp2, &[CLIENT, SERVER]),
        (SERVER, Resp3, &[CLIENT]),
    ];
    for (from, opcode, retried_by) in cases {
        for lost in [1, 3] {
            let mut net = Net::pair();
            net.wire.lose(from, opcode, lost);
            let a = net.create(CLIENT, params(RD));
            let b = net.create(SERVER, params(RD));
            let listener = net.listen(SERVER, "x");
            net.request(CLIENT, a, "x", &[SERVER], None);
            for _ in 0..=lost {
                net.settle();
                if let Some(found) = net.indication(SERVER, listener) {
                    net.accept(SERVER, found.conn, b).unwrap();
                    net.settle();
                }
                net.advance(RETRY);
            }
            let what = format!("{opcode:?} lost {lost} times");
            assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))), "{what}");
            assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))), "{what}");
            let retries: u64 = retried_by
                .iter()
                .map(|n| net.count(*n, Counter::Retries))
                .sum();
            assert!(retries >= u64::from(lost), "{what}");
            for node in [CLIENT, SERVER] {
                assert_eq!(net.count(node, Counter::Connects), 1, "{what}");
                let (open, _) = net.nodes[node].engine.exchange_usage();
                assert_eq!(
                    (open, net.nodes[node].engine.timers.len()),
                    (0, 0),
                    "{what}"
                );
            }
        }
    }
}

/// With message recovery each of them may be lost fourteen times.
#[test]
fn where_frames_are_lost_an_iu_is_repeated_more_often() {
    for (from, opcode) in [
        (CLIENT, Rqst),
        (SERVER, Resp1),
        (CLIENT, Resp2),
        (SERVER, Resp3),
    ] {
        let mut net = Net::pair_with(1, |config| config.recovery = Some(Default::default()));
        net.wire.lose(from, opcode, 14);
        let a = net.create(CLIENT, params(RD));
        let b = net.create(SERVER, params(RD));
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], Some(4 * RETRY));
        let mut accepted = false;
        for _ in 0..15 {
            net.settle();
            if let Some(found) = net.indication(SERVER, listener) {
                net.accept(SERVER, found.conn, b).unwrap();
                accepted = true;
                net.settle();
            }
            net.advance(RETRY / 4);
        }
        assert!(accepted, "{opcode:?}");
        assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))), "{opcode:?}");
        assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))), "{opcode:?}");
    }
}

#[test]
fn a_request_is_repeated_every_100_ms_at_most_unless_the_time_out_is_short() {
    for (ulp_timeout, asked) in [(20 * S, 16), (1600 * MS, 16), (800 * MS, 8), (200 * MS, 4)] {
        let mut net = Net::pair_with(1, |config| {
            config.recovery = Some(Default::default());
            config.ulp_timeout_ns = ulp_timeout;
        });
        net.wire.cut = true;
        let a = net.create(CLIENT, params(RD));
        net.request(CLIENT, a, "x", &[SERVER], Some(ulp_timeout));
        net.advance(ulp_timeout);
        assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
        assert_eq!(net.frames(CLIENT, Rqst).len(), asked, "{ulp_timeout}");
    }
}

#[test]
fn a_silent_host_is_asked_until_the_consumers_time_out() {
    let mut net = Net::pair();
    net.wire.cut = true;
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "x", &[SERVER], Some(17 * S));
    net.advance(17 * S - 1);
    assert_eq!(net.outcome(CLIENT, a), None);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 4);
    net.advance(1);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    net.advance(40 * S);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 4);
    // Its peer is told four times that the request is void.
    assert_eq!(net.frames(CLIENT, DisconnectRequest).len(), 4);
    assert_eq!(net.count(CLIENT, Counter::CloseTimeouts), 1);
    let again = net.nodes[CLIENT].engine.exchanges.open_control(net.now_ns);
    assert!(again.is_some());
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (1, 0));
}

#[test]
fn without_time_out_a_request_is_repeated_forever() {
    let mut net = Net::pair();
    net.wire.cut = true;
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.advance(1000 * S);
    assert_eq!(net.outcome(CLIENT, a), None);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 201);
}

#[test]
fn a_server_that_gets_no_response2_gives_up_and_tells() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.post_receive(SERVER, b, 8);
    net.wire.lose(CLIENT, Resp2, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.advance(4 * RETRY - 1);
    assert_eq!(net.state(SERVER, b), EndpointState::ConnectPending);
    assert_eq!(net.frames(SERVER, Resp1).len(), 4);
    net.advance(1);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    assert_eq!(net.state(SERVER, b), EndpointState::Idle);
    assert_eq!(net.nodes[SERVER].host.vi(b).receives.len(), 1);
    // The request is forgotten with it.
    assert!(net.nodes[SERVER].engine.incoming[0].is_none());
    assert!(net.nodes[SERVER].engine.destroy_vi(b));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
}

#[test]
fn a_client_that_gets_no_response3_gives_up_and_the_server_breaks() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.post_receive(CLIENT, a, 8);
    net.wire.lose(SERVER, Resp3, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    net.advance(4 * RETRY);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.frames(CLIENT, Resp2).len(), 4);
    assert_eq!(net.nodes[CLIENT].host.vi(a).receives.len(), 1);
    net.settle();
    assert_eq!(net.state(SERVER, b), EndpointState::Error);
}

#[test]
fn a_message_implies_a_lost_response3() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.post_receive(CLIENT, a, 8);
    net.wire.lose(SERVER, Resp3, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
    net.post_send(SERVER, b, b"hello");
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert_eq!(net.log(CLIENT, a).last(), Some(&received(0, b"hello")));
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn only_a_message_that_is_expected_implies_response3() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.wire.lose(SERVER, Resp3, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    net.wire.lose(SERVER, Opcode::SendRequest, 1);
    net.post_send(SERVER, b, b"hello");
    let mut frame = net.frames(SERVER, Opcode::SendRequest)[0].clone();
    let bytes = frame.len();
    frame[60] ^= 0x80; // FCVI_MSG_ID, half the number space away
    seal(&mut frame, bytes, fcvi_frame::fcoe::Eof::T).unwrap();
    net.inject(CLIENT, &frame);
    assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
}

#[test]
fn a_retry_while_the_consumer_thinks_ends_the_older_exchange() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.advance(RETRY);
    net.settle();
    assert_eq!(net.ius(), [(CLIENT, Rqst), (CLIENT, Rqst), (SERVER, Resp1)]);
    let first = net.frames(CLIENT, Rqst)[0].clone();
    let pending = net.frames(SERVER, Resp1)[0].clone();
    let (first, pending) = (
        FrameView::parse(&first).unwrap().fc,
        FrameView::parse(&pending).unwrap().fc,
    );
    assert_eq!(first.ox_id, pending.ox_id);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    let newest = net.frames(CLIENT, Rqst)[1].clone();
    let accepted = net.frames(SERVER, Resp1)[1].clone();
    let ox_id = |bytes: &[u8]| FrameView::parse(bytes).unwrap().fc.ox_id;
    assert_eq!(ox_id(&newest), ox_id(&accepted));
    // The superseded exchange was given up: it is dead for R_A_TOV.
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}

#[test]
fn response1_that_crosses_a_retry_connects() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.wire.delay_ns = 2 * MS;
    net.advance(RETRY - net.now_ns % S - MS);
    net.accept(SERVER, conn, b).unwrap();
    net.advance(2 * S);
    let order: Vec<_> = net.ius().into_iter().map(|(_, iu)| iu).collect();
    assert_eq!(order[..3], [Rqst, Resp1, Rqst]);
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))));
    assert_eq!(net.count(CLIENT, Counter::Connects), 1);
    assert_eq!(net.count(SERVER, Counter::Connects), 1);
    let (open, _) = net.nodes[CLIENT].engine.exchange_usage();
    assert_eq!(open, 0);
}

#[test]
fn doubled_ius_connect_once() {
    let mut net = Net::pair();
    net.wire.faults.duplicate = 1_000_000;
    let (a, b) = net.join(RD);
    net.advance(10 * S);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        assert_eq!(net.state(node, vi), EndpointState::Connected);
        assert_eq!(net.count(node, Counter::Connects), 1);
        let (open, _) = net.nodes[node].engine.exchange_usage();
        assert_eq!(open, 0);
    }
}

#[test]
fn a_duplicate_request_is_not_a_second_one() {
    let mut net = Net::pair();
    let (_, b, conn) = held(&mut net);
    let second = net.listen(SERVER, "x");
    let request = net.frames(CLIENT, Rqst)[0].clone();
    net.inject(SERVER, &request);
    assert_eq!(net.indication(SERVER, second), None);
    net.accept(SERVER, conn, b).unwrap();
    net.inject(SERVER, &request);
    assert_eq!(net.frames(SERVER, Resp1).len(), 2);
    net.settle();
    net.inject(SERVER, &request);
    net.settle();
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    assert_eq!(net.frames(SERVER, Resp1).len(), 2);
    assert_eq!(net.indication(SERVER, second), None);
}

#[test]
fn a_rejection_that_was_lost_is_said_again() {
    let mut net = Net::pair();
    let (a, _, conn) = held(&mut net);
    let second = net.listen(SERVER, "x");
    net.wire.lose(SERVER, Resp1, 1);
    net.reject(SERVER, conn).unwrap();
    net.advance(RETRY);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    assert_eq!(net.indication(SERVER, second), None);
    // It is remembered no longer than the client asks.
    net.advance(4 * RETRY);
    assert!(net.nodes[SERVER].engine.incoming[0].is_none());
}

#[test]
fn an_acceptance_of_a_request_that_is_over_is_answered_with_a_disconnect() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.wire.lose(CLIENT, DisconnectRequest, 1);
    net.disconnect(CLIENT, a);
    net.accept(SERVER, conn, b).unwrap();
    net.advance(RETRY);
    net.settle();
    assert!(net.count(CLIENT, Counter::DropStrayConnect) >= 1);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    assert_eq!(net.state(SERVER, b), EndpointState::Idle);
}

#[test]
fn responses_of_an_earlier_attempt_do_not_complete_a_new_one() {
    let mut net = Net::pair();
    let (a, b, conn) = held(&mut net);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    let old = [
        net.frames(SERVER, Resp1)[0].clone(),
        net.frames(SERVER, Resp3)[0].clone(),
    ];
    net.disconnect(CLIENT, a);
    net.settle();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &[SERVER], None);
    for frame in &old {
        net.inject(CLIENT, frame);
    }
    assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
    assert_eq!(net.count(CLIENT, Counter::DropStrayConnect), 2);
    net.wire.cut = false;
    let response2 = net.frames(CLIENT, Resp2)[0].clone();
    net.inject(SERVER, &response2);
    assert_eq!(net.count(SERVER, Counter::DropStrayConnect), 1);
}

#[test]
fn a_response_with_another_connection_id_answers_nothing() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.wire.lose(SERVER, Resp1, 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let mut refusal = net.frames(SERVER, Resp1)[0].clone();
    let bytes = refusal.len();
    refusal[83] ^= 1; // FCVI_CONNECTION_ID
    seal(&mut refusal, bytes, fcvi_frame::fcoe::Eof::T).unwrap();
    net.inject(CLIENT, &refusal);
    assert_eq!(net.count(CLIENT, Counter::DropStrayConnect), 1);
    assert_eq!(net.outcome(CLIENT, a), None);
}

#[test]
fn a_port_without_room_is_tried_again_soon() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    net.nodes[CLIENT].host.room = 0;
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.advance(5 * MS);
    assert!(net.count(CLIENT, Counter::ControlNoRoom) >= 5);
    net.nodes[CLIENT].host.room = 1;
    net.advance(2 * MS);
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.nodes[SERVER].host.room = 0;
    net.accept(SERVER, conn, b).unwrap();
    net.advance(5 * MS);
    net.nodes[SERVER].host.room = 2;
    net.advance(2 * MS);
    assert_eq!(net.state(SERVER, b), EndpointState::ConnectPending);
    net.nodes[CLIENT].host.room = 1;
    net.advance(2 * MS);
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))));
    net.disconnect(CLIENT, a);
    net.advance(3 * MS);
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    net.nodes[CLIENT].host.room = usize::MAX;
    net.nodes[SERVER].host.room = usize::MAX;
    net.advance(2 * MS);
    assert_eq!(net.state(SERVER, b), EndpointState::Error);
    for node in [CLIENT, SERVER] {
        assert_eq!(net.count(node, Counter::Retries), 0);
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn a_port_that_never_has_room_ends_the_attempt_in_time() {
    let mut net = Net::pair();
    let (_, b, conn) = held(&mut net);
    net.nodes[SERVER].host.room = 0;
    net.accept(SERVER, conn, b).unwrap();
    net.advance(4 * RETRY);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    net.advance(4 * RETRY);
    assert_eq!(net.count(SERVER, Counter::CloseTimeouts), 1);
    assert_eq!(net.nodes[SERVER].engine.timers.len(), 0);
}

/// A refusal whose F_CTL pretends that the exchange goes on must not keep its OX_ID.
#[test]
fn a_refusal_that_does_not_end_its_exchange_costs_no_ox_id() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.wire.lose(SERVER, Resp1, 1);
    net.settle();
    let mut refusal = net.frames(SERVER, Resp1)[0].clone();
    let bytes = refusal.len();
    refusal[28 + 9] &= !0x10; // F_CTL: not the last sequence
    seal(&mut refusal, bytes, fcvi_frame::fcoe::Eof::T).unwrap();
    net.inject(CLIENT, &refusal);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}
