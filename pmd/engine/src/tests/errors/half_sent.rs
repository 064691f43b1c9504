//! A descriptor whose memory becomes invalid while it is sent, behind descriptors with pending responses: it is the one
//! that fails, whatever ends the connection.

use fcvi_frame::iu::Opcode::{DisconnectRequest, ReadRequest};
use vi_types::{AsyncError, ReliabilityLevel, Status};

use super::{Case, INCOMPLETE, RD, RR};
use crate::Counter;
use crate::testkit::net::{CLIENT, S, SERVER};
use crate::testkit::{
    expected_events::{receive_failed, received, send_failed},
    io::{Event, Send},
};

const RELIABLE: [ReliabilityLevel; 2] = [RD, RR];
const PARTIAL: Status = Status::PROTECTION.with(Status::PARTIAL);

/// Returns a message whose memory is invalid from `offset_bytes` on.
fn gone_from(offset_bytes: u32) -> Send {
    Send {
        data: vec![1; 5000],
        gone_from: Some(offset_bytes),
        ..Send::default()
    }
}

/// Posts a read that the server cannot answer because its port is full, and a send whose memory becomes invalid.
fn behind_a_read(level: ReliabilityLevel, offset_bytes: u32) -> Case {
    let mut case = Case::with_receives(level, &[9000, 9000, 9000]);
    case.net.nodes[SERVER].io.room = 0;
    case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
    case.net.post(CLIENT, case.a, gone_from(offset_bytes));
    case.net.settle();
    assert_eq!(case.net.log(CLIENT, case.a), [], "it waits for the read");
    case
}

fn flushed_and(status: Status) -> [Event; 2] {
    [send_failed(0, Status::FLUSHED), send_failed(1, status)]
}

/// The server breaks when the rest of the message is missing for E_D_TOV; the read has a longer timeout.
#[test]
fn read_in_front_of_a_half_sent_message_is_flushed() {
    for level in RELIABLE {
        let mut case = behind_a_read(level, 3000);
        case.net.advance(3 * S);
        assert_eq!(case.net.count(SERVER, Counter::IncompleteMessages), 1);
        case.net.nodes[SERVER].io.room = usize::MAX;
        case.net.advance(S);
        case.breaks(&flushed_and(PARTIAL), &[receive_failed(0, INCOMPLETE)]);
    }
}

/// The server breaks, but its disconnect requests are lost.
#[test]
fn read_in_front_of_a_half_sent_message_is_flushed_at_the_response_timeout() {
    for level in RELIABLE {
        let mut case = behind_a_read(level, 3000);
        case.net.wire.lose(SERVER, DisconnectRequest, u32::MAX);
        case.net.advance(3 * S);
        case.net.nodes[SERVER].io.room = usize::MAX;
        let ulp_timeout_ns = case.net.nodes[CLIENT].engine.config().ulp_timeout_ns;
        case.net.advance(ulp_timeout_ns);
        assert_eq!(case.net.count(CLIENT, Counter::ResponseTimeouts), 1);
        case.breaks(&flushed_and(PARTIAL), &[receive_failed(0, INCOMPLETE)]);
    }
}

/// The server's port is full when the first send is to be answered: its disconnect cannot identify the failed message.
#[test]
fn send_in_front_of_a_half_sent_message_is_flushed_rr() {
    let mut case = Case::with_receives(RR, &[9000, 9000, 9000]);
    case.net.nodes[SERVER].io.room = 0;
    case.net.post_send(CLIENT, case.a, b"first");
    case.net.post(CLIENT, case.a, gone_from(3000));
    case.net.advance(3 * S);
    case.net.nodes[SERVER].io.room = usize::MAX;
    case.net.advance(S);
    let server = [received(0, b"first"), receive_failed(1, INCOMPLETE)];
    case.breaks(&flushed_and(PARTIAL), &server);
}

/// The connection ends for another reason; the local error is reported all the same.
#[test]
fn local_error_behind_a_read_is_reported_when_the_peer_disconnects() {
    for level in RELIABLE {
        for (offset_bytes, status) in [(0, Status::PROTECTION), (3000, PARTIAL)] {
            let mut case = behind_a_read(level, offset_bytes);
            case.net.nodes[SERVER].io.room = usize::MAX;
            case.net.disconnect(SERVER, case.b);
            case.net.settle();
            let log = case.net.log(CLIENT, case.a);
            assert_eq!(log[..2], flushed_and(status));
            assert_eq!(log.last(), Some(&Event::Async(AsyncError::Disconnected)));
        }
    }
}

/// The half-sent message reveals that the read request was lost: the read fails.
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

/// No frame of the second message was sent: the server lacks the rest of the first one.
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
