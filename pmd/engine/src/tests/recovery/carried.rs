//! Acknowledgements that a send or write of the other direction carries.

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{SendRequest, WriteRequest};

use super::{RD, RR, US, acknowledgements, kept, msg_id, pair, write};
use crate::testkit::host::Send;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, received, sent};
use crate::{Counter, ViIndex};

/// FCVI_PARAMETER of a frame, if it acknowledges.
fn carried(bytes: &[u8]) -> Option<u32> {
    let view = FrameView::parse(bytes).expect("a frame");
    let header = view.iu().expect("an IU").header;
    let acknowledges = header.flags & message_request::ACKNOWLEDGES != 0;
    acknowledges.then_some(header.parameter)
}

/// The client's message of eight bytes is with the server, which owes an acknowledgement.
fn asked(net: &mut Net, a: ViIndex, b: ViIndex) -> (u64, u32) {
    net.post_receive(SERVER, b, 8);
    net.post_receive(CLIENT, a, 8);
    let tx = net.post_send(CLIENT, a, &[1; 8]);
    net.advance(20 * US);
    let request = net.frames(CLIENT, SendRequest).pop().expect("sent");
    (tx, msg_id(&request))
}

#[test]
fn a_reply_carries_what_is_owed() {
    for level in [RD, RR] {
        for reply in [SendRequest, WriteRequest] {
            let (mut net, a, b) = pair(level);
            let (tx, request) = asked(&mut net, a, b);
            assert_eq!(net.log(CLIENT, a), []);
            if reply == SendRequest {
                net.post_send(SERVER, b, &[2; 8]);
            } else {
                net.post(SERVER, b, write(8, None));
            }
            net.advance(20 * US);
            let replies = net.frames(SERVER, reply);
            assert_eq!(carried(&replies[0]), Some(request));
            let mut log = net.log(CLIENT, a);
            assert_eq!(log.remove(0), sent(tx, 8), "with the reply");
            if reply == SendRequest {
                assert_eq!(log, [received(0, &[2; 8])]);
            }
            net.advance(S);
            assert_eq!(
                acknowledgements(&net, SERVER),
                [],
                "there is no more to say"
            );
            assert_eq!(acknowledgements(&net, CLIENT).len(), 1, "of the reply");
            assert_eq!(net.count(SERVER, Counter::TxAcknowledgementsCarried), 1);
            assert_eq!(net.count(CLIENT, Counter::RxAcknowledgementsCarried), 1);
        }
    }
}

/// There and back again, each message is acknowledged by the next: nothing else is sent.
#[test]
fn a_dialogue_needs_no_acknowledgements_of_their_own() {
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
fn the_first_frame_of_a_long_reply_carries_it() {
    let (mut net, a, b) = pair(RD);
    let (tx, request) = asked(&mut net, a, b);
    net.post_receive(CLIENT, a, 10_000);
    let long = kept(&mut net, |net| {
        net.post(SERVER, b, write(5_000, None));
    });
    assert!(long.len() > 2);
    assert_eq!(carried(&long[0]), Some(request));
    assert!(long[1..].iter().all(|frame| carried(frame).is_none()));
    net.inject(CLIENT, &long[0]);
    assert_eq!(net.log(CLIENT, a), [sent(tx, 8)]);
}

/// Immediate data needs the place; what is missing, or there in part, is more than a number.
#[test]
fn what_a_frame_cannot_carry_is_told_as_ever() {
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
        kept(net, |net| {
            net.post_send(CLIENT, a, &[4; 8]);
        });
        let ahead = kept(net, |net| {
            net.post_send(CLIENT, a, &[5; 8]);
        });
        net.inject(SERVER, &ahead[0]);
        net.post_send(SERVER, b, &[2; 8]);
    };
    let in_part = |net: &mut Net, a: ViIndex, b: ViIndex| {
        net.post_receive(SERVER, b, 10_000);
        let frames = kept(net, |net| {
            net.post_send(CLIENT, a, &[4; 5_000]);
        });
        net.inject(SERVER, &frames[0]);
        net.post_send(SERVER, b, &[2; 8]);
    };
    type Act = fn(&mut Net, ViIndex, ViIndex);
    let cases: [(&str, Act); 3] = [
        ("immediate data", immediate),
        ("behind a gap", behind_a_gap),
        ("in part", in_part),
    ];
    for (case, act) in cases {
        let (mut net, a, b) = pair(RD);
        let (tx, _) = asked(&mut net, a, b);
        act(&mut net, a, b);
        net.advance(20 * US);
        let reply = net.frames(SERVER, SendRequest).remove(0);
        assert_eq!(carried(&reply), None, "{case}");
        net.advance(20 * MS);
        assert!(!acknowledgements(&net, SERVER).is_empty(), "{case}");
        assert!(net.log(CLIENT, a).contains(&sent(tx, 8)), "{case}");
    }
}

/// A frame that is sent again says nothing about the other direction: it would be old.
#[test]
fn a_frame_that_is_sent_again_carries_nothing() {
    let (mut net, a, b) = pair(RD);
    asked(&mut net, a, b);
    kept(&mut net, |net| {
        net.post_send(SERVER, b, &[2; 8]);
    });
    net.wire.trace.clear();
    net.advance(50 * MS);
    let again = net.frames(SERVER, SendRequest);
    assert!(!again.is_empty());
    assert!(again.iter().all(|frame| carried(frame).is_none()));
    assert_eq!(net.log(CLIENT, a).len(), 2, "both are there");
}

#[test]
fn carried_acknowledgements_that_cannot_be_are_dropped() {
    let (mut net, a, b) = pair(RD);
    let (tx, request) = asked(&mut net, a, b);
    let reply = kept(&mut net, |net| {
        net.post_send(SERVER, b, &[2; 8]);
    });
    for (ahead, counter) in [
        (1, Counter::DropStrayResponse),
        (1 << 30, Counter::DropStrayResponse),
        (u32::MAX - 1, Counter::StaleAcknowledgements),
    ] {
        let mut bytes = reply[0].clone();
        let said = request.wrapping_add(ahead);
        bytes[64..68].copy_from_slice(&said.to_be_bytes());
        let length = bytes.len();
        fcvi_frame::frame::seal(&mut bytes, length, fcvi_frame::fcoe::Eof::T).expect("a length");
        let before = net.count(CLIENT, counter);
        net.inject(CLIENT, &bytes);
        assert_eq!(net.count(CLIENT, counter), before + 1, "{ahead}");
        assert!(!net.log(CLIENT, a).contains(&sent(tx, 8)), "{ahead}");
    }
    net.inject(CLIENT, &reply[0]);
    assert!(
        net.log(CLIENT, a).contains(&sent(tx, 8)),
        "also of a frame that is stale itself"
    );
}
