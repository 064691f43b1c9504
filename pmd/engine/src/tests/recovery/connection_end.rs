//! The end of connections with recovery: silent peers, disconnects, failed messages, invalid memory.

use fcvi_frame::iu::Opcode::{ReadResponse, SendRequest};
use vi_types::{Status, ViState};

use super::{RD, RR, TARGET, US, is_retransmitted, pair, pair_with, withheld};
use crate::Counter;
use crate::testkit::net::{CLIENT, MS, S, SERVER};
use crate::testkit::{
    expected_events::{
        connection_lost_events, peer_disconnected_events, receive_failed, received, send_failed,
        sent, without_partial_data,
    },
    io::{Event, Send},
};

#[test]
fn silent_peer_breaks_the_connection_after_all_tries() {
    for (level, tries) in [(RD, 10), (RR, 10), (RD, 1), (RR, 3)] {
        let (mut net, a, _) = pair_with(level, |_, config| {
            config.recovery.as_mut().expect("on").tries = tries;
        });
        net.wire.cut = true;
        net.post_send(CLIENT, a, &[1; 8]);
        net.post_read(CLIENT, a, (0, TARGET), 8);
        net.post_send(CLIENT, a, &[2; 5_000]);
        net.advance(15 * S);
        let log = net.log(CLIENT, a);
        let completed_with = |status: Status| {
            log.iter()
                .filter(|e| matches!(e, Event::Sent(_, s, _) if *s == status))
                .count()
        };
        // At Reliable Delivery only a read can report it (VIPL 5.2).
        let failed = log.iter().find_map(|event| match event {
            Event::Sent(id, Status::TRANSPORT, _) => Some(*id),
            _ => None,
        });
        assert_eq!(failed, Some(u64::from(level == RD)), "{log:?}");
        assert_eq!(completed_with(Status::TRANSPORT), 1);
        assert_eq!(completed_with(Status::FLUSHED), 2);
        assert_eq!(net.state(CLIENT, a), ViState::Error);
        let requests = net.frames(CLIENT, SendRequest);
        let probes = requests.iter().filter(|f| is_retransmitted(f)).count();
        assert_eq!(probes, tries as usize);
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 1);
    }
}

/// A placed message must not be flushed at its sender because the receiver disconnects.
#[test]
fn disconnect_acknowledges_placed_messages_first() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        net.post_send(CLIENT, a, &[1; 8]);
        while net.log(SERVER, b).is_empty() {
            assert!(net.deliver_one());
        }
        net.disconnect(SERVER, b);
        net.settle();
        let mut log = vec![sent(0, 8)];
        log.extend(peer_disconnected_events());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// With recovery an incomplete message breaks the connection after FCVI_ULP_TIMEOUT, not after E_D_TOV.
#[test]
fn incomplete_message_breaks_after_the_ulp_timeout() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 5_000);
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 5_000]);
    });
    net.wire.cut = true;
    net.inject(SERVER, &frames[0]);
    net.advance(19 * S);
    assert_eq!(net.log(SERVER, b), []);
    net.advance(2 * S);
    let mut log = vec![receive_failed(0, Status::TRANSPORT.with(Status::PARTIAL))];
    log.extend(connection_lost_events());
    assert_eq!(without_partial_data(net.log(SERVER, b)), log);
}

/// An out-of-order message that would fail is dropped, and fails when it arrives in order.
#[test]
fn out_of_order_message_does_not_fail_early() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let frames = withheld(&mut net, |net| {
            net.post_send(CLIENT, a, &[1; 3_000]);
            net.post_send(CLIENT, a, &[2; 3_000]);
        });
        net.post_receive(SERVER, b, 3_000);
        net.post_receive(SERVER, b, 2_999);
        net.wire.cut = true;
        for at in [0, 2, 3] {
            net.inject(SERVER, &frames[at]);
        }
        assert_eq!(net.count(SERVER, Counter::DropAheadUnfit), 1);
        assert_eq!(net.log(SERVER, b), []);
        net.wire.cut = false;
        net.advance(20 * MS);
        let mut log = vec![received(0, &[1; 3_000]), receive_failed(1, Status::LENGTH)];
        log.extend(connection_lost_events());
        assert_eq!(without_partial_data(net.log(SERVER, b)), log);
        let failed = match level {
            // The guide has no such status for sends of Reliable Delivery (VIPL 5.2).
            RD => Status::FLUSHED,
            _ => Status::REMOTE_DESCRIPTOR,
        };
        let states = connection_lost_events();
        let mut log = vec![sent(0, 3_000)];
        if level == RD {
            log.extend([states[0].clone(), send_failed(1, failed), states[1].clone()]);
        } else {
            log.push(send_failed(1, failed));
            log.extend(states);
        }
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// One frame completes several messages.
#[test]
fn message_behind_lost_receive_descriptor_is_not_delivered() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let frames = withheld(&mut net, |net| {
            net.post_send(CLIENT, a, &[1; 3_000]);
            net.post_send(CLIENT, a, &[2]);
        });
        for _ in 0..2 {
            net.post_receive(SERVER, b, 3_000);
        }
        net.nodes[SERVER].io.vi(b).receives[0].lost = true;
        for at in [0, 2, 1] {
            net.inject(SERVER, &frames[at]);
        }
        let log = [received(0, &[1; 3_000])];
        assert_eq!(net.log(SERVER, b), log, "{level:?}");
    }
}

#[test]
fn invalid_memory_at_retransmission_fails_the_descriptor() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        net.post_receive(SERVER, b, 8);
        net.wire.lose(CLIENT, SendRequest, 2);
        net.post_send(CLIENT, a, &[1; 8]);
        net.post_send(CLIENT, a, &[2; 8]);
        net.nodes[CLIENT].io.vi(a).sends[0].gone_from = Some(0);
        net.advance(50 * MS);
        let log = net.log(CLIENT, a);
        assert_eq!(log[0], send_failed(0, Status::PROTECTION), "{level:?}");
        assert_eq!(net.state(SERVER, b), ViState::Error);
    }
}

/// The memory of a message becomes invalid while it is sent, and the server has received a part of it.
#[test]
fn local_error_of_a_partly_sent_message_behind_a_read_is_reported() {
    let (mut net, a, b) = pair_with(RD, |_, config| {
        let recovery = config.recovery.as_mut().expect("on");
        (recovery.min_window_frames, recovery.max_window_frames) = (20, 20);
    });
    net.post_receive(SERVER, b, 60_000);
    net.wire.lose(SERVER, ReadResponse, 1);
    net.post_read(CLIENT, a, (0, TARGET), 100);
    let gone = Send {
        data: vec![1; 60_000],
        gone_from: Some(50_000),
        ..Send::default()
    };
    net.post(CLIENT, a, gone);
    net.advance(100 * MS);
    let failed = Status::PROTECTION.with(Status::PARTIAL);
    let mut log = vec![sent(0, 100), send_failed(1, failed)];
    log.extend(connection_lost_events());
    assert_eq!(net.log(CLIENT, a), log);
}

/// A message that failed while it was sent cannot serve as a probe: the message before it does.
#[test]
fn lost_message_before_a_local_error_is_retransmitted() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        let gone = Send {
            data: vec![1; 5_000],
            gone_from: Some(3_000),
            ..Send::default()
        };
        withheld(&mut net, |net| {
            net.post_send(CLIENT, a, &[4; 8]);
            net.post(CLIENT, a, gone);
        });
        net.advance(100 * MS);
        assert_eq!(net.log(SERVER, b)[0], received(0, &[4; 8]), "{level:?}");
        let failed = Status::PROTECTION.with(Status::PARTIAL);
        let mut log = vec![sent(0, 8), send_failed(1, failed)];
        log.extend(connection_lost_events());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// The rights of a read are checked again when it is repeated.
#[test]
fn repeated_read_of_deregistered_memory_is_refused() {
    let (mut net, a, b) = pair(RD);
    net.wire.lose(SERVER, ReadResponse, 1);
    net.post_read(CLIENT, a, (0, TARGET), 100);
    net.advance(5 * US);
    net.nodes[SERVER].io.regions.remove(&TARGET);
    net.advance(20 * MS);
    let log = net.log(CLIENT, a);
    assert_eq!(log[0], send_failed(0, Status::RDMA_PROTECTION));
    assert_eq!(net.state(SERVER, b), ViState::Error);
}
