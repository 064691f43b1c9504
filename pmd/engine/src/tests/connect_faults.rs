//! Connect IUs that are lost, retransmitted, crossing, delayed or unexpected.

use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{
    self, ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest,
};
use vi_types::{CallError, ConnId, ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::testkit::{
    expected_events::received,
    net::{CLIENT, MS, Net, S, SERVER, params},
};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
/// A quarter of FCVI_ULP_TIMEOUT.
const RETRY: u64 = 5 * S;

/// A client request that the server's consumer has not answered.
fn pending_request(net: &mut Net) -> (ViIndex, ViIndex, ConnId) {
    let (a, b, conn) = net.request_pending(RD);
    (a, b, conn)
}

/// Each retransmission is a sequence of its own: no two frames have the same identity.
#[test]
fn retransmitted_connect_ius_have_a_new_frame_identity() {
    for (from, opcode) in [(SERVER, Resp1), (CLIENT, Resp2), (SERVER, Resp3)] {
        let mut net = Net::pair();
        net.wire.lose(from, opcode, 3);
        let (_, b, conn) = pending_request(&mut net);
        net.accept(SERVER, conn, b).unwrap();
        for _ in 0..4 {
            net.settle();
            net.advance(RETRY);
        }
        let frames = net.wire.trace.iter().map(|sent| {
            let frame = FrameView::parse(&sent.bytes).expect("a valid frame");
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

/// Loses each of the four IUs once or three times; the connection is established all the same.
#[test]
fn lost_connect_iu_is_retransmitted_until_connected() {
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
                    (open, net.nodes[node].engine.port.timers.len()),
                    (0, 0),
                    "{what}"
                );
            }
        }
    }
}

/// With message recovery each connect IU may be lost fourteen times.
#[test]
fn with_recovery_connect_ius_are_retransmitted_more_often() {
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
fn request_is_repeated_at_most_every_100_ms_unless_the_timeout_is_short() {
    for (ulp_timeout, requests) in [(20 * S, 16), (1600 * MS, 16), (800 * MS, 8), (200 * MS, 4)] {
        let mut net = Net::pair_with(1, |config| {
            config.recovery = Some(Default::default());
            config.ulp_timeout_ns = ulp_timeout;
        });
        net.wire.cut = true;
        let a = net.create(CLIENT, params(RD));
        net.request(CLIENT, a, "x", &[SERVER], Some(ulp_timeout));
        net.advance(ulp_timeout);
        assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
        assert_eq!(net.frames(CLIENT, Rqst).len(), requests, "{ulp_timeout}");
    }
}

#[test]
fn request_to_a_silent_host_is_repeated_until_the_timeout() {
    let mut net = Net::pair();
    net.wire.cut = true;
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "x", &[SERVER], Some(17 * S));
    net.advance(17 * S - 1);
    assert_eq!(net.outcome(CLIENT, a), None);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 4);
    net.advance(1);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    net.advance(40 * S);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 4);
    // Four disconnect requests cancel it at the peer.
    assert_eq!(net.frames(CLIENT, DisconnectRequest).len(), 4);
    assert_eq!(net.count(CLIENT, Counter::CloseTimeouts), 1);
    let again = net.nodes[CLIENT]
        .engine
        .port
        .exchanges
        .open_control(net.now_ns);
    assert!(again.is_some());
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (1, 0));
}

#[test]
fn request_without_a_timeout_is_repeated_indefinitely() {
    let mut net = Net::pair();
    net.wire.cut = true;
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.advance(1000 * S);
    assert_eq!(net.outcome(CLIENT, a), None);
    assert_eq!(net.frames(CLIENT, Rqst).len(), 201);
}

#[test]
fn server_without_response2_times_out_and_disconnects() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
    net.post_receive(SERVER, b, 8);
    net.wire.lose(CLIENT, Resp2, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    // Four times E_D_TOV.
    net.advance(8 * S - 1);
    assert_eq!(net.state(SERVER, b), ViState::ConnectPending);
    assert_eq!(net.frames(SERVER, Resp1).len(), 4);
    net.advance(1);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
    assert_eq!(net.nodes[SERVER].io.vi(b).receives.len(), 1);
    // The pending request is removed too.
    assert!(net.nodes[SERVER].engine.port.incoming[0].is_none());
    assert!(net.nodes[SERVER].engine.destroy_vi(b));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
}

/// A short FCVI_ULP_TIMEOUT is the timeout of RESP2 too. With recovery RESP1 is sent 16 times.
#[test]
fn server_without_response2_waits_no_longer_than_the_ulp_timeout() {
    for (ulp_timeout, recovers, timeout, sent) in [
        (S, false, S, 4),
        (2 * S, true, 2 * S, 16),
        (20 * S, true, 8 * S, 16),
        (60 * S, false, 8 * S, 4),
    ] {
        let mut net = Net::pair_with(1, |config| {
            config.ulp_timeout_ns = ulp_timeout;
            config.recovery = recovers.then(Default::default);
        });
        let (_, b, conn) = pending_request(&mut net);
        net.wire.lose(CLIENT, Resp2, u32::MAX);
        net.accept(SERVER, conn, b).unwrap();
        net.advance(timeout - 1);
        assert_eq!(net.state(SERVER, b), ViState::ConnectPending);
        assert_eq!(net.frames(SERVER, Resp1).len(), sent);
        net.advance(1);
        assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    }
}

#[test]
fn client_without_response3_times_out_and_the_server_breaks() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
    net.post_receive(CLIENT, a, 8);
    net.wire.lose(SERVER, Resp3, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    net.advance(4 * RETRY);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.frames(CLIENT, Resp2).len(), 4);
    assert_eq!(net.nodes[CLIENT].io.vi(a).receives.len(), 1);
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::Error);
}

#[test]
fn a_message_implies_a_lost_response3() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
    net.post_receive(CLIENT, a, 8);
    net.wire.lose(SERVER, Resp3, u32::MAX);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
    net.post_send(SERVER, b, b"hello");
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert_eq!(net.log(CLIENT, a).last(), Some(&received(0, b"hello")));
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn only_an_expected_message_implies_response3() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
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
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
}

#[test]
fn retry_before_the_accept_ends_the_older_exchange() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
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
    // The superseded exchange was abandoned: its OX_ID is quarantined for R_A_TOV.
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}

#[test]
fn response1_that_crosses_a_retry_connects() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
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
fn duplicated_connect_ius_connect_once() {
    let mut net = Net::pair();
    net.wire.faults.duplicate = 1_000_000;
    let (a, b) = net.join(RD);
    net.advance(10 * S);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        assert_eq!(net.state(node, vi), ViState::Connected);
        assert_eq!(net.count(node, Counter::Connects), 1);
        let (open, _) = net.nodes[node].engine.exchange_usage();
        assert_eq!(open, 0);
    }
}

#[test]
fn duplicate_request_makes_no_second_indication() {
    let mut net = Net::pair();
    let (_, b, conn) = pending_request(&mut net);
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
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    assert_eq!(net.frames(SERVER, Resp1).len(), 2);
    assert_eq!(net.indication(SERVER, second), None);
}

#[test]
fn lost_rejection_is_repeated() {
    let mut net = Net::pair();
    let (a, _, conn) = pending_request(&mut net);
    let second = net.listen(SERVER, "x");
    net.wire.lose(SERVER, Resp1, 1);
    net.reject(SERVER, conn).unwrap();
    net.advance(RETRY);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    assert_eq!(net.indication(SERVER, second), None);
    // The rejection is kept only as long as the client repeats its request.
    net.advance(4 * RETRY);
    assert!(net.nodes[SERVER].engine.port.incoming[0].is_none());
}

#[test]
fn acceptance_of_a_cancelled_request_is_answered_with_a_disconnect() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
    net.wire.lose(CLIENT, DisconnectRequest, 1);
    net.disconnect(CLIENT, a);
    net.accept(SERVER, conn, b).unwrap();
    net.advance(RETRY);
    net.settle();
    assert!(net.count(CLIENT, Counter::DropStrayConnect) >= 1);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
}

#[test]
fn responses_of_an_earlier_attempt_do_not_complete_a_new_one() {
    let mut net = Net::pair();
    let (a, b, conn) = pending_request(&mut net);
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
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
    assert_eq!(net.count(CLIENT, Counter::DropStrayConnect), 2);
    net.wire.cut = false;
    let response2 = net.frames(CLIENT, Resp2)[0].clone();
    net.inject(SERVER, &response2);
    assert_eq!(net.count(SERVER, Counter::DropStrayConnect), 1);
}

#[test]
fn response_with_another_connection_id_is_dropped() {
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
fn connect_ius_are_retried_soon_while_the_port_is_full() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    net.nodes[CLIENT].io.room = 0;
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.advance(5 * MS);
    assert!(net.count(CLIENT, Counter::ControlNoRoom) >= 5);
    net.nodes[CLIENT].io.room = 1;
    net.advance(2 * MS);
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.nodes[SERVER].io.room = 0;
    net.accept(SERVER, conn, b).unwrap();
    net.advance(5 * MS);
    net.nodes[SERVER].io.room = 2;
    net.advance(2 * MS);
    assert_eq!(net.state(SERVER, b), ViState::ConnectPending);
    net.nodes[CLIENT].io.room = 1;
    net.advance(2 * MS);
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))));
    net.disconnect(CLIENT, a);
    net.advance(3 * MS);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    net.nodes[CLIENT].io.room = usize::MAX;
    net.nodes[SERVER].io.room = usize::MAX;
    net.advance(2 * MS);
    assert_eq!(net.state(SERVER, b), ViState::Error);
    for node in [CLIENT, SERVER] {
        assert_eq!(net.count(node, Counter::Retries), 0);
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn connect_times_out_when_the_port_stays_full() {
    let mut net = Net::pair();
    let (_, b, conn) = pending_request(&mut net);
    net.nodes[SERVER].io.room = 0;
    net.accept(SERVER, conn, b).unwrap();
    net.advance(4 * RETRY);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    net.advance(4 * RETRY);
    assert_eq!(net.count(SERVER, Counter::CloseTimeouts), 1);
    assert_eq!(net.nodes[SERVER].engine.port.timers.len(), 0);
}

/// A refusal whose F_CTL leaves the exchange open must not leak its OX_ID.
#[test]
fn refusal_without_last_sequence_leaks_no_ox_id() {
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
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}
