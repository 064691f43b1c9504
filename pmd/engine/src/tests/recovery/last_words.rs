//! What was placed when a connection ends, although every acknowledgement of it is lost: the
//! DISCONNECT_RQST says it, which is repeated until it arrives.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{DisconnectRequest, SendRequest, SendResponse};

use super::{RD, RR, msg_id, pair, pair_with};
use crate::testkit::host::Event;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, broken, left, send_failed, sent};
use crate::{EndpointState, Level, Status, ViIndex};

/// Flags and FCVI_MSG_ID of a DISCONNECT_RQST.
fn says(bytes: &[u8]) -> (bool, u32) {
    let view = FrameView::parse(bytes).expect("a frame");
    let header = view.iu().expect("an IU").header;
    (header.flags & disconnect::ACKNOWLEDGES != 0, header.msg_id)
}

/// Two messages, of which the server takes the first and has no descriptor for the second. Its
/// acknowledgement and its refusal are lost.
fn refused_in_silence(level: Level) -> (Net, ViIndex) {
    let (mut net, a, b) = pair(level);
    net.post_receive(SERVER, b, 8);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_send(CLIENT, a, &[1; 8]);
    net.post_send(CLIENT, a, &[2; 8]);
    (net, a)
}

fn sends(net: &mut Net, a: ViIndex) -> Vec<Event> {
    let log = net.log(CLIENT, a).into_iter();
    log.filter(|event| matches!(event, Event::Sent(..)))
        .collect()
}

#[test]
fn a_message_that_was_placed_is_not_blamed_for_the_one_behind_it() {
    for (level, status) in [(RD, Status::FLUSHED), (RR, Status::REMOTE_DESCRIPTOR)] {
        for lost in [0, 1] {
            let (mut net, a) = refused_in_silence(level);
            net.wire.lose(SERVER, DisconnectRequest, lost);
            net.advance(6 * S);
            let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
            for request in net.frames(SERVER, DisconnectRequest) {
                assert_eq!(says(&request), (true, first), "the first, not the second");
            }
            assert_eq!(
                sends(&mut net, a),
                [sent(0, 8), send_failed(1, status)],
                "{level:?}, {lost} lost"
            );
        }
    }
}

#[test]
fn what_was_placed_is_complete_although_who_leaves_is_heard_late() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, 8);
        net.wire.lose(SERVER, SendResponse, u32::MAX);
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

/// Not even a disconnect arrives in its time; whoever asks later is told all the same.
#[test]
fn who_asks_later_is_told_what_was_placed() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair_with(level, |node, config| {
            if node == SERVER {
                config.ulp_timeout_ns = 40 * MS;
            }
        });
        net.post_receive(SERVER, b, 8);
        net.wire.lose(SERVER, SendResponse, u32::MAX);
        net.wire.lose(SERVER, DisconnectRequest, u32::MAX);
        net.post_send(CLIENT, a, &[1; 8]);
        while net.log(SERVER, b).is_empty() {
            assert!(net.deliver_one());
        }
        net.disconnect(SERVER, b);
        net.advance(60 * MS);
        assert_eq!(net.log(CLIENT, a), []);
        net.wire.heal();
        net.advance(S);
        let mut log = vec![sent(0, 8)];
        log.extend(broken());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// A disconnect that does not say it, or says what cannot be, is taken as ever: the oldest
/// message is blamed.
#[test]
fn a_disconnect_that_says_nothing_of_it_is_taken_as_ever() {
    type Change = fn(&mut Vec<u8>, u32);
    let nothing: Change = |bytes, _| {
        bytes[57] &= !disconnect::ACKNOWLEDGES;
        bytes[60..64].fill(0);
    };
    let too_much: Change = |bytes, first| {
        bytes[60..64].copy_from_slice(&first.wrapping_add(2).to_be_bytes());
    };
    let long_since: Change = |bytes, first| {
        bytes[60..64].copy_from_slice(&first.wrapping_sub(1).to_be_bytes());
    };
    for change in [nothing, too_much, long_since] {
        let (mut net, a) = refused_in_silence(RR);
        net.wire.lose(SERVER, DisconnectRequest, u32::MAX);
        net.settle();
        let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
        let mut request = net.frames(SERVER, DisconnectRequest).remove(0);
        change(&mut request, first);
        let length = request.len();
        seal(&mut request, length, Eof::T).expect("a legal length");
        net.inject(CLIENT, &request);
        assert_eq!(
            sends(&mut net, a),
            [
                send_failed(0, Status::REMOTE_DESCRIPTOR),
                send_failed(1, Status::FLUSHED)
            ]
        );
        assert_eq!(net.state(CLIENT, a), EndpointState::Error);
    }
}

/// Without recovery each message has its own response, and a disconnect says nothing of them.
#[test]
fn without_recovery_a_disconnect_acknowledges_nothing() {
    let (mut net, a, b) = Net::connected(RR);
    net.post_receive(SERVER, b, 8);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_send(CLIENT, a, &[1; 8]);
    net.settle();
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(says(&net.frames(SERVER, DisconnectRequest)[0]), (false, 0));
    assert_eq!(sends(&mut net, a), [send_failed(0, Status::FLUSHED)]);
}
