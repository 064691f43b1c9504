//! How connections with recovery end.

use fcvi_frame::iu::Opcode::{ReadResponse, SendRequest};

use super::{RD, RR, TARGET, US, kept, pair, pair_with, resent};
use crate::testkit::host::{Event, Send};
use crate::testkit::net::{
    CLIENT, MS, S, SERVER, broken, left, receive_failed, received, send_failed, sent,
    without_partial_data,
};
use crate::{Counter, EndpointState, Status};

#[test]
fn a_silent_peer_is_asked_so_often_and_then_given_up() {
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
        let ends = |status: Status| {
            log.iter()
                .filter(|e| matches!(e, Event::Sent(_, s, _) if *s == status))
                .count()
        };
        // At Reliable Delivery only a read can be told of it (VIPL 5.2).
        let blamed = log.iter().find_map(|event| match event {
            Event::Sent(id, Status::TRANSPORT, _) => Some(*id),
            _ => None,
        });
        assert_eq!(blamed, Some(u64::from(level == RD)), "{log:?}");
        assert_eq!((ends(Status::TRANSPORT), ends(Status::FLUSHED)), (1, 2));
        assert_eq!(net.state(CLIENT, a), EndpointState::Error);
        let asked = net.frames(CLIENT, SendRequest);
        assert_eq!(asked.iter().filter(|f| resent(f)).count(), tries as usize);
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 1);
    }
}

/// What is placed must not be flushed at its sender because the receiver leaves.
#[test]
fn who_leaves_says_first_what_is_placed() {
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
        log.extend(left());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// E_D_TOV is no reason to break while the sender lives; FCVI_ULP_TIMEOUT is.
#[test]
fn an_incomplete_message_waits_for_its_sender() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 5_000);
    let frames = kept(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 5_000]);
    });
    net.wire.cut = true;
    net.inject(SERVER, &frames[0]);
    net.advance(19 * S);
    assert_eq!(net.log(SERVER, b), []);
    net.advance(2 * S);
    let mut log = vec![receive_failed(0, Status::TRANSPORT.with(Status::PARTIAL))];
    log.extend(broken());
    assert_eq!(without_partial_data(net.log(SERVER, b)), log);
}

/// What would fail in order is dropped ahead of it, and fails when its turn comes.
#[test]
fn nothing_fails_ahead_of_order() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let frames = kept(&mut net, |net| {
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
        log.extend(broken());
        assert_eq!(without_partial_data(net.log(SERVER, b)), log);
        let failed = match level {
            // The guide has no such status for sends of Reliable Delivery (VIPL 5.2).
            RD => Status::FLUSHED,
            _ => Status::REMOTE_DESCRIPTOR,
        };
        let states = broken();
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

/// One frame puts several messages in order.
#[test]
fn message_behind_lost_receive_descriptor_is_not_delivered() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let frames = kept(&mut net, |net| {
            net.post_send(CLIENT, a, &[1; 3_000]);
            net.post_send(CLIENT, a, &[2]);
        });
        for _ in 0..2 {
            net.post_receive(SERVER, b, 3_000);
        }
        net.nodes[SERVER].host.vi(b).receives[0].lost = true;
        for at in [0, 2, 1] {
            net.inject(SERVER, &frames[at]);
        }
        let log = [received(0, &[1; 3_000])];
        assert_eq!(net.log(SERVER, b), log, "{level:?}");
    }
}

#[test]
fn memory_that_is_gone_when_it_is_sent_again_fails_the_descriptor() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        net.post_receive(SERVER, b, 8);
        net.wire.lose(CLIENT, SendRequest, 2);
        net.post_send(CLIENT, a, &[1; 8]);
        net.post_send(CLIENT, a, &[2; 8]);
        net.nodes[CLIENT].host.vi(a).sends[0].gone_from = Some(0);
        net.advance(50 * MS);
        let log = net.log(CLIENT, a);
        assert_eq!(log[0], send_failed(0, Status::PROTECTION), "{level:?}");
        assert_eq!(net.state(SERVER, b), EndpointState::Error);
    }
}

/// A message of which the other end has a part, and whose memory goes while it is sent.
#[test]
fn a_fault_behind_a_read_is_told_although_the_window_counted_on_its_message() {
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
    log.extend(broken());
    assert_eq!(net.log(CLIENT, a), log);
}

/// What failed while it was sent cannot be asked with: what is in front of it is.
#[test]
fn a_lost_message_in_front_of_a_fault_is_sent_again() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        let gone = Send {
            data: vec![1; 5_000],
            gone_from: Some(3_000),
            ..Send::default()
        };
        kept(&mut net, |net| {
            net.post_send(CLIENT, a, &[4; 8]);
            net.post(CLIENT, a, gone);
        });
        net.advance(100 * MS);
        assert_eq!(net.log(SERVER, b)[0], received(0, &[4; 8]), "{level:?}");
        let failed = Status::PROTECTION.with(Status::PARTIAL);
        let mut log = vec![sent(0, 8), send_failed(1, failed)];
        log.extend(broken());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// The rights of a read are checked again when it is asked for again.
#[test]
fn a_repeated_read_of_memory_that_is_gone_is_refused() {
    let (mut net, a, b) = pair(RD);
    net.wire.lose(SERVER, ReadResponse, 1);
    net.post_read(CLIENT, a, (0, TARGET), 100);
    net.advance(5 * US);
    net.nodes[SERVER].host.regions.remove(&TARGET);
    net.advance(20 * MS);
    let log = net.log(CLIENT, a);
    assert_eq!(log[0], send_failed(0, Status::RDMA_PROTECTION));
    assert_eq!(net.state(SERVER, b), EndpointState::Error);
}
