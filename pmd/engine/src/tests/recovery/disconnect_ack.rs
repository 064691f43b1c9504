//! Acknowledgement by DISCONNECT_RQST: placed messages complete at the end of a connection although every other
//! acknowledgement is lost, because the disconnect is repeated until it arrives.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{DisconnectRequest, SendRequest, SendResponse};
use vi_types::{ReliabilityLevel, Status, ViIndex, ViState};

use super::{RD, RR, msg_id, pair, pair_with};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER};
use crate::testkit::{
    expected_events::{connection_lost_events, peer_disconnected_events, send_failed, sent},
    io::Event,
};

/// Returns whether a DISCONNECT_RQST acknowledges, and its FCVI_MSG_ID.
fn acknowledged(bytes: &[u8]) -> (bool, u32) {
    let view = FrameView::parse(bytes).expect("a frame");
    let header = view.iu().expect("an IU").header;
    (header.flags & disconnect::ACKNOWLEDGES != 0, header.msg_id)
}

/// Sends two messages, of which the server places the first and has no descriptor for the second. Its acknowledgement
/// and its refusal are lost.
fn refused_with_lost_responses(level: ReliabilityLevel) -> (Net, ViIndex) {
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
fn placed_message_completes_when_the_next_one_is_refused() {
    for (level, status) in [(RD, Status::FLUSHED), (RR, Status::REMOTE_DESCRIPTOR)] {
        for lost in [0, 1] {
            let (mut net, a) = refused_with_lost_responses(level);
            net.wire.lose(SERVER, DisconnectRequest, lost);
            net.advance(6 * S);
            let first = msg_id(&net.frames(CLIENT, SendRequest)[0]);
            for request in net.frames(SERVER, DisconnectRequest) {
                assert_eq!(
                    acknowledged(&request),
                    (true, first),
                    "the first, not the second"
                );
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
fn disconnect_completes_a_placed_message() {
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
        log.extend(peer_disconnected_events());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// Every disconnect is lost; the answer to a later probe acknowledges the placed message.
#[test]
fn probe_after_lost_disconnects_completes_a_placed_message() {
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
        net.wire.clear_losses();
        net.advance(S);
        let mut log = vec![sent(0, 8)];
        log.extend(connection_lost_events());
        assert_eq!(net.log(CLIENT, a), log, "{level:?}");
    }
}

/// A disconnect without an acknowledgement, or with an invalid one, fails the oldest message.
#[test]
fn disconnect_without_a_valid_acknowledgement_fails_the_oldest_message() {
    type Change = fn(&mut Vec<u8>, u32);
    let absent: Change = |bytes, _| {
        bytes[57] &= !disconnect::ACKNOWLEDGES;
        bytes[60..64].fill(0);
    };
    let beyond_sent: Change = |bytes, first| {
        bytes[60..64].copy_from_slice(&first.wrapping_add(2).to_be_bytes());
    };
    let outdated: Change = |bytes, first| {
        bytes[60..64].copy_from_slice(&first.wrapping_sub(1).to_be_bytes());
    };
    for change in [absent, beyond_sent, outdated] {
        let (mut net, a) = refused_with_lost_responses(RR);
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
        assert_eq!(net.state(CLIENT, a), ViState::Error);
    }
}

/// Without recovery each message has its own response, and a disconnect acknowledges none.
#[test]
fn without_recovery_a_disconnect_acknowledges_nothing() {
    let (mut net, a, b) = Net::connected(RR);
    net.post_receive(SERVER, b, 8);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_send(CLIENT, a, &[1; 8]);
    net.settle();
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(
        acknowledged(&net.frames(SERVER, DisconnectRequest)[0]),
        (false, 0)
    );
    assert_eq!(sends(&mut net, a), [send_failed(0, Status::FLUSHED)]);
}
