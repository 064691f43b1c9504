//! A descriptor whose memory goes while it is sent, behind others that wait for their answers:
//! whatever ends the wait, it is the one that failed.

use fcvi_frame::iu::Opcode::{DisconnectRequest, ReadRequest};

use super::{Case, INCOMPLETE, RD, RR};
use crate::testkit::host::{Event, Send};
use crate::testkit::net::{CLIENT, S, SERVER, receive_failed, received, send_failed};
use crate::{AsyncError, Counter, Level, Status};

const RELIABLE: [Level; 2] = [RD, RR];
const PARTIAL: Status = Status::PROTECTION.with(Status::PARTIAL);

/// The client's port carries a message up to here, then its memory is gone.
fn gone_from(offset_bytes: u32) -> Send {
    Send {
        data: vec![1; 5000],
        gone_from: Some(offset_bytes),
        ..Send::default()
    }
}

/// A read that the server's port has no room to answer, and a send whose memory goes.
fn behind_a_read(level: Level, offset_bytes: u32) -> Case {
    let mut case = Case::with_receives(level, &[9000, 9000, 9000]);
    case.net.nodes[SERVER].host.room = 0;
    case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
    case.net.post(CLIENT, case.a, gone_from(offset_bytes));
    case.net.settle();
    assert_eq!(case.net.log(CLIENT, case.a), [], "it waits for the read");
    case
}

fn flushed_and(status: Status) -> [Event; 2] {
    [send_failed(0, Status::FLUSHED), send_failed(1, status)]
}

/// The other end waits E_D_TOV for the rest of the message, the read longer.
#[test]
fn read_in_front_of_a_half_sent_message_is_flushed() {
    for level in RELIABLE {
        let mut case = behind_a_read(level, 3000);
        case.net.advance(3 * S);
        assert_eq!(case.net.count(SERVER, Counter::IncompleteMessages), 1);
        case.net.nodes[SERVER].host.room = usize::MAX;
        case.net.advance(S);
        case.breaks(&flushed_and(PARTIAL), &[receive_failed(0, INCOMPLETE)]);
    }
}

/// The other end broke, but nothing that it said of it arrives.
#[test]
fn read_in_front_of_a_half_sent_message_is_flushed_without_a_word_of_the_other_end() {
    for level in RELIABLE {
        let mut case = behind_a_read(level, 3000);
        case.net.wire.lose(SERVER, DisconnectRequest, u32::MAX);
        case.net.advance(3 * S);
        case.net.nodes[SERVER].host.room = usize::MAX;
        let ulp_timeout_ns = case.net.nodes[CLIENT].engine.config().ulp_timeout_ns;
        case.net.advance(ulp_timeout_ns);
        assert_eq!(case.net.count(CLIENT, Counter::ResponseTimeouts), 1);
        case.breaks(&flushed_and(PARTIAL), &[receive_failed(0, INCOMPLETE)]);
    }
}

/// The response to the first send had no room: the other end cannot say which message failed.
#[test]
fn send_in_front_of_a_half_sent_message_is_flushed_rr() {
    let mut case = Case::with_receives(RR, &[9000, 9000, 9000]);
    case.net.nodes[SERVER].host.room = 0;
    case.net.post_send(CLIENT, case.a, b"first");
    case.net.post(CLIENT, case.a, gone_from(3000));
    case.net.advance(3 * S);
    case.net.nodes[SERVER].host.room = usize::MAX;
    case.net.advance(S);
    let server = [received(0, b"first"), receive_failed(1, INCOMPLETE)];
    case.breaks(&flushed_and(PARTIAL), &server);
}

/// A connection that ends for another reason: what failed here did fail.
#[test]
fn local_error_behind_a_read_is_told_when_the_peer_disconnects() {
    for level in RELIABLE {
        for (offset_bytes, status) in [(0, Status::PROTECTION), (3000, PARTIAL)] {
            let mut case = behind_a_read(level, offset_bytes);
            case.net.nodes[SERVER].host.room = usize::MAX;
            case.net.disconnect(SERVER, case.b);
            case.net.settle();
            let log = case.net.log(CLIENT, case.a);
            assert_eq!(log[..2], flushed_and(status));
            assert_eq!(log.last(), Some(&Event::Async(AsyncError::Disconnected)));
        }
    }
}

/// The read's request was lost, which the half-sent message shows: the read is the one.
#[test]
fn lost_read_in_front_of_a_half_sent_message_fails() {
    for level in RELIABLE {
        let mut case = Case::with_receives(level, &[9000, 9000, 9000]);
        case.net.wire.lose(CLIENT, ReadRequest, 1);
        case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
        case.net.post(CLIENT, case.a, gone_from(3000));
        let client = [
            send_failed(0, Status::TRANSPORT),
            send_failed(1, Status::FLUSHED),
        ];
        case.net.settle();
        let log = case.net.log(CLIENT, case.a);
        let sends = log.iter().filter(|e| matches!(e, Event::Sent(..)));
        assert!(sends.eq(&client), "{log:?}");
    }
}

/// Nothing of the second one was sent: what the other end misses is the rest of the first.
#[test]
fn send_without_its_last_frame_fails_also_in_front_of_a_local_error_rr() {
    let mut case = Case::with_receives(RR, &[9000, 9000, 9000]);
    case.net.wire.cut = true;
    case.net.post_send(CLIENT, case.a, &[1; 6000]);
    let frames = case.net.frames(CLIENT, fcvi_frame::iu::Opcode::SendRequest);
    case.net.wire.cut = false;
    for frame in &frames[..2] {
        case.net.inject(SERVER, frame);
    }
    case.net.post(CLIENT, case.a, gone_from(0));
    case.net.advance(3 * S);
    let failed = send_failed(0, Status::TRANSPORT);
    case.breaks(&[failed], &[receive_failed(0, INCOMPLETE)]);
}
