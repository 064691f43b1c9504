//! Acknowledgements piggybacked on a send or write in the other direction.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{SendRequest, WriteRequest};
use vi_types::ViIndex;

use super::{RD, RR, US, acknowledgements, msg_id, pair, withheld, write};
use crate::Counter;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER};
use crate::testkit::{
    expected_events::{received, sent},
    io::Send,
};

/// Returns FCVI_PARAMETER of a frame that carries an acknowledgement.
fn piggybacked(bytes: &[u8]) -> Option<u32> {
    let view = FrameView::parse(bytes).expect("a frame");
    let header = view.iu().expect("an IU").header;
    let acknowledges = header.flags & message_request::ACKNOWLEDGES != 0;
    acknowledges.then_some(header.parameter)
}

/// Delivers a message of eight bytes to the server, whose acknowledgement is pending. Returns its ID and FCVI_MSG_ID.
fn pending_ack(net: &mut Net, a: ViIndex, b: ViIndex) -> (u64, u32) {
    net.post_receive(SERVER, b, 8);
    net.post_receive(CLIENT, a, 8);
    let tx = net.post_send(CLIENT, a, &[1; 8]);
    net.advance(20 * US);
    let request = net.frames(CLIENT, SendRequest).pop().expect("sent");
    (tx, msg_id(&request))
}

#[test]
fn reply_carries_the_pending_acknowledgement() {
    for level in [RD, RR] {
        for reply in [SendRequest, WriteRequest] {
            let (mut net, a, b) = pair(level);
            let (tx, request) = pending_ack(&mut net, a, b);
            assert_eq!(net.log(CLIENT, a), []);
            if reply == SendRequest {
                net.post_send(SERVER, b, &[2; 8]);
            } else {
                net.post(SERVER, b, write(8, None));
            }
            net.advance(20 * US);
            let replies = net.frames(SERVER, reply);
            assert_eq!(piggybacked(&replies[0]), Some(request));
            let mut log = net.log(CLIENT, a);
            assert_eq!(log.remove(0), sent(tx, 8), "with the reply");
            if reply == SendRequest {
                assert_eq!(log, [received(0, &[2; 8])]);
            }
            net.advance(S);
            assert_eq!(
                acknowledgements(&net, SERVER),
                [],
                "no separate acknowledgement"
            );
            assert_eq!(acknowledgements(&net, CLIENT).len(), 1, "of the reply");
            assert_eq!(net.count(SERVER, Counter::TxAcknowledgementsCarried), 1);
            assert_eq!(net.count(CLIENT, Counter::RxAcknowledgementsCarried), 1);
        }
    }
}

/// Each of alternating messages acknowledges the one before it: no other frames are sent.
#[test]
fn alternating_messages_need_no_separate_acknowledgements() {
    let (mut net, a, b) = pair(RD);
    for _ in 0..100 {
        for (node, vi, other, to) in [(CLIENT, a, SERVER, b), (SERVER, b, CLIENT, a)] {
            net.post_receive(other, to, 8);
            net.post_send(node, vi, &[3; 8]);
            net.advance(10 * US);
        }
    }
    assert_eq!(net.wire.trace.len(), 200);
    assert_eq!(net.count(CLIENT, Counter::RxAcknowledgementsCarried), 100);
    assert_eq!(net.count(SERVER, Counter::RxAcknowledgementsCarried), 99);
}

#[test]
fn first_frame_of_a_long_reply_carries_the_acknowledgement() {
    let (mut net, a, b) = pair(RD);
    let (tx, request) = pending_ack(&mut net, a, b);
    net.post_receive(CLIENT, a, 10_000);
    let long = withheld(&mut net, |net| {
        net.post(SERVER, b, write(5_000, None));
    });
    assert!(long.len() > 2);
    assert_eq!(piggybacked(&long[0]), Some(request));
    assert!(long[1..].iter().all(|frame| piggybacked(frame).is_none()));
    net.inject(CLIENT, &long[0]);
    assert_eq!(net.log(CLIENT, a), [sent(tx, 8)]);
}

/// Immediate data uses the same field; gaps and partial messages do not fit into it.
#[test]
fn acknowledgement_that_does_not_fit_is_sent_separately() {
    let immediate = |net: &mut Net, _: ViIndex, b: ViIndex| {
        let send = Send {
            data: vec![2; 8],
            immediate: Some(77),
            ..Send::default()
        };
        net.post(SERVER, b, send);
    };
    let behind_a_gap = |net: &mut Net, a: ViIndex, b: ViIndex| {
        net.post_receive(SERVER, b, 8);
        net.post_receive(SERVER, b, 8);
        withheld(net, |net| {
            net.post_send(CLIENT, a, &[4; 8]);
        });
        let ahead = withheld(net, |net| {
            net.post_send(CLIENT, a, &[5; 8]);
        });
        net.inject(SERVER, &ahead[0]);
        net.post_send(SERVER, b, &[2; 8]);
    };
    let partial = |net: &mut Net, a: ViIndex, b: ViIndex| {
        net.post_receive(SERVER, b, 10_000);
        let frames = withheld(net, |net| {
            net.post_send(CLIENT, a, &[4; 5_000]);
        });
        net.inject(SERVER, &frames[0]);
        net.post_send(SERVER, b, &[2; 8]);
    };
    type Act = fn(&mut Net, ViIndex, ViIndex);
    let cases: [(&str, Act); 3] = [
        ("immediate data", immediate),
        ("behind a gap", behind_a_gap),
        ("partial message", partial),
    ];
    for (case, act) in cases {
        let (mut net, a, b) = pair(RD);
        let (tx, _) = pending_ack(&mut net, a, b);
        act(&mut net, a, b);
        net.advance(20 * US);
        let reply = net.frames(SERVER, SendRequest).remove(0);
        assert_eq!(piggybacked(&reply), None, "{case}");
        net.advance(20 * MS);
        assert!(!acknowledgements(&net, SERVER).is_empty(), "{case}");
        assert!(net.log(CLIENT, a).contains(&sent(tx, 8)), "{case}");
    }
}

/// A retransmitted frame carries no acknowledgement: it would be outdated.
#[test]
fn retransmitted_frame_carries_no_acknowledgement() {
    let (mut net, a, b) = pair(RD);
    pending_ack(&mut net, a, b);
    withheld(&mut net, |net| {
        net.post_send(SERVER, b, &[2; 8]);
    });
    net.wire.trace.clear();
    net.advance(50 * MS);
    let again = net.frames(SERVER, SendRequest);
    assert!(!again.is_empty());
    assert!(again.iter().all(|frame| piggybacked(frame).is_none()));
    assert_eq!(net.log(CLIENT, a).len(), 2, "sent and received");
}

#[test]
fn dropped_frame_acknowledges_nothing() {
    let (mut net, a, b) = pair(RD);
    let (tx, _) = pending_ack(&mut net, a, b);
    let reply = withheld(&mut net, |net| {
        net.post_send(SERVER, b, &[2; 8]);
    });
    let far = msg_id(&reply[0]).wrapping_add(256).to_be_bytes();
    // An offset that is not a frame boundary; a message beyond the window.
    for (at, bytes, counter) in [
        (48, [0, 0, 0, 4], Counter::DropBadIu),
        (60, far, Counter::DropOutOfWindow),
    ] {
        let mut changed = reply[0].clone();
        changed[at..at + 4].copy_from_slice(&bytes);
        let length = changed.len();
        seal(&mut changed, length, Eof::T).expect("a legal length");
        let before = net.count(CLIENT, counter);
        net.inject(CLIENT, &changed);
        assert_eq!(net.count(CLIENT, counter), before + 1, "{counter:?}");
        assert_eq!(net.log(CLIENT, a), [], "{counter:?}");
    }
    net.inject(CLIENT, &reply[0]);
    assert_eq!(net.log(CLIENT, a)[0], sent(tx, 8));
}

#[test]
fn invalid_piggybacked_acknowledgements_are_dropped() {
    let (mut net, a, b) = pair(RD);
    let (tx, request) = pending_ack(&mut net, a, b);
    let reply = withheld(&mut net, |net| {
        net.post_send(SERVER, b, &[2; 8]);
    });
    for (ahead, counter) in [
        (1, Counter::DropStrayResponse),
        (1 << 30, Counter::DropStrayResponse),
        (u32::MAX - 1, Counter::StaleAcknowledgements),
    ] {
        let mut bytes = reply[0].clone();
        let acknowledged = request.wrapping_add(ahead);
        bytes[64..68].copy_from_slice(&acknowledged.to_be_bytes());
        let length = bytes.len();
        seal(&mut bytes, length, Eof::T).expect("a legal length");
        let before = net.count(CLIENT, counter);
        net.inject(CLIENT, &bytes);
        assert_eq!(net.count(CLIENT, counter), before + 1, "{ahead}");
        assert!(!net.log(CLIENT, a).contains(&sent(tx, 8)), "{ahead}");
    }
    net.inject(CLIENT, &reply[0]);
    assert!(
        net.log(CLIENT, a).contains(&sent(tx, 8)),
        "also if the frame itself is stale"
    );
}
