//! Lost and damaged frames, and lost messages.

use fcvi_frame::fcoe::FCOE_TRAILER_BYTES;
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest, SendResponse, WriteRequest};
use vi_types::{AsyncError, ReliabilityLevel, Status};

use super::{Case, RD, RR, UD, remote_write_failed};
use crate::Counter;
use crate::testkit::net::{CLIENT, S, SERVER};
use crate::testkit::{
    expected_events::{receive_failed, received, send_failed, sent},
    io::Event,
};

const INCOMPLETE: Status = Status::TRANSPORT.with(Status::PARTIAL);

/// Loses frame `lost` of a message of three, `remote` with immediate data.
fn frame_missing(
    level: ReliabilityLevel,
    remote: bool,
    lost: usize,
    immediate: Option<u32>,
) -> Case {
    frame_altered(level, remote, lost, immediate, |_| None)
}

/// Returns the frame with one bit of its last payload byte changed.
fn damaged(frame: &[u8]) -> Option<Vec<u8>> {
    let mut damaged = frame.to_vec();
    let at = damaged.len() - FCOE_TRAILER_BYTES - 1;
    damaged[at] ^= 1;
    Some(damaged)
}

/// Delivers a message of three frames, of which frame `lost` is replaced by the result of `alter`, or dropped.
fn frame_altered(
    level: ReliabilityLevel,
    remote: bool,
    lost: usize,
    immediate: Option<u32>,
    alter: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Case {
    let mut case = Case::with_receives(level, &[9000, 9000, 9000]);
    case.net.wire.cut = true;
    if remote {
        case.write((0x1000, 7), 6000, immediate);
    } else {
        case.net.post_send(CLIENT, case.a, &[1; 6000]);
    }
    let opcode = if remote { WriteRequest } else { SendRequest };
    let frames = case.net.frames(CLIENT, opcode);
    assert_eq!(frames.len(), 3);
    case.net.wire.cut = false;
    for (at, frame) in frames.iter().enumerate() {
        if at != lost {
            case.net.inject(SERVER, frame);
        } else if let Some(altered) = alter(frame) {
            case.net.inject(SERVER, &altered);
        }
    }
    case
}

#[test]
fn frame_missing_ud() {
    frame_missing(UD, false, 1, None)
        .stays_connected(&[sent(0, 6000)], &[receive_failed(0, INCOMPLETE)]);
    let failed = remote_write_failed(0, INCOMPLETE);
    frame_missing(UD, true, 1, Some(1)).stays_connected(&[sent(0, 6000)], &[failed]);
    // Without its first frame a message claims no descriptor.
    frame_missing(UD, false, 0, None).stays_connected(&[sent(0, 6000)], &[]);
    // Without its last one it ends by E_D_TOV ...
    let mut case = frame_missing(UD, false, 2, None);
    case.net.advance(2 * S - 1);
    assert_eq!(case.net.log(SERVER, case.b), []);
    case.net.advance(1);
    assert_eq!(case.net.count(SERVER, Counter::IncompleteMessages), 1);
    case.stays_connected(&[sent(0, 6000)], &[receive_failed(0, INCOMPLETE)]);
    // ... or by the next message.
    let mut case = frame_missing(UD, false, 2, None);
    case.net.post_send(CLIENT, case.a, b"next");
    case.stays_connected(
        &[sent(0, 6000), sent(1, 4)],
        &[receive_failed(0, INCOMPLETE), received(1, b"next")],
    );
}

#[test]
fn frame_missing_rd() {
    frame_missing(RD, false, 1, None).breaks(&[sent(0, 6000)], &[receive_failed(0, INCOMPLETE)]);
    let failed = remote_write_failed(0, INCOMPLETE);
    frame_missing(RD, true, 1, Some(1)).breaks(&[sent(0, 6000)], &[failed]);
    let failed = receive_failed(0, Status::TRANSPORT);
    frame_missing(RD, false, 0, None).breaks(&[sent(0, 6000)], &[failed]);
    let mut case = frame_missing(RD, false, 2, None);
    case.net.advance(2 * S);
    case.breaks(&[sent(0, 6000)], &[receive_failed(0, INCOMPLETE)]);
    let mut case = frame_missing(RD, false, 2, None);
    case.net.post_send(CLIENT, case.a, b"next");
    case.breaks(
        &[sent(0, 6000), sent(1, 4)],
        &[receive_failed(0, INCOMPLETE)],
    );
}

/// The sender's first descriptor, whose message or response was lost.
const FAILED: Event = Event::Sent(0, Status::TRANSPORT, 0);

#[test]
fn frame_missing_rr() {
    frame_missing(RR, false, 1, None).breaks(&[FAILED], &[receive_failed(0, INCOMPLETE)]);
    let failed = remote_write_failed(0, INCOMPLETE);
    frame_missing(RR, true, 1, Some(1)).breaks(&[FAILED], &[failed]);
    let failed = receive_failed(0, Status::TRANSPORT);
    frame_missing(RR, false, 0, None).breaks(&[FAILED], &[failed]);
    let mut case = frame_missing(RR, false, 2, None);
    case.net.advance(2 * S);
    case.breaks(&[FAILED], &[receive_failed(0, INCOMPLETE)]);
    let mut case = frame_missing(RR, false, 2, None);
    case.net.post_send(CLIENT, case.a, b"next");
    case.breaks(&[FAILED], &[receive_failed(0, INCOMPLETE)]);
}

#[test]
fn frame_missing_in_write_ud() {
    frame_missing(UD, true, 0, None).stays_connected(&[sent(0, 6000)], &[]);
    frame_missing(UD, true, 1, None).stays_connected(&[sent(0, 6000)], &[]);
    let mut case = frame_missing(UD, true, 2, None);
    case.net.advance(2 * S);
    assert_eq!(case.net.count(SERVER, Counter::IncompleteMessages), 1);
    case.stays_connected(&[sent(0, 6000)], &[]);
}

#[test]
fn frame_missing_in_write_rd() {
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    frame_missing(RD, true, 0, None).breaks(&[sent(0, 6000)], &[aborted]);
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    frame_missing(RD, true, 1, None).breaks(&[sent(0, 6000)], &[aborted]);
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    let mut case = frame_missing(RD, true, 2, None);
    case.net.advance(2 * S);
    case.breaks(&[sent(0, 6000)], &[aborted]);
}

#[test]
fn frame_missing_in_write_rr() {
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    frame_missing(RR, true, 0, None).breaks(&[FAILED], &[aborted]);
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    frame_missing(RR, true, 1, None).breaks(&[FAILED], &[aborted]);
    let aborted = Event::Async(AsyncError::RdmaWriteAbort);
    let mut case = frame_missing(RR, true, 2, None);
    case.net.advance(2 * S);
    case.breaks(&[FAILED], &[aborted]);
}

/// One frame of a write has a bad CRC: RDMAW_DATA at the target; at the writer as for a missing frame.
#[test]
fn frame_damaged_in_write_ud() {
    frame_altered(UD, true, 1, None, damaged).stays_connected(&[sent(0, 6000)], &[]);
}

fn frame_damaged_in_write(level: ReliabilityLevel, writer: &[Event]) {
    let data = || Event::Async(AsyncError::RdmaWriteData);
    for at in 0..2 {
        frame_altered(level, true, at, None, damaged).breaks(writer, &[data()]);
    }
    let mut case = frame_altered(level, true, 2, None, damaged);
    case.net.advance(2 * S);
    case.breaks(writer, &[data()]);
    // With immediate data the receive descriptor reports it.
    let failed = remote_write_failed(0, INCOMPLETE);
    frame_altered(level, true, 1, Some(1), damaged).breaks(writer, &[failed]);
}

#[test]
fn frame_damaged_in_write_rd() {
    frame_damaged_in_write(RD, &[sent(0, 6000)]);
    // A write of one frame; the message behind it reveals the loss.
    let mut case = Case::with_receives(RD, &[]);
    case.net.wire.cut = true;
    case.write((0x1000, 7), 8, None);
    let frames = case.net.frames(CLIENT, WriteRequest);
    case.net.wire.cut = false;
    case.net
        .inject(SERVER, &damaged(&frames[0]).expect("a frame"));
    case.write((0x1000, 7), 8, None);
    let data = Event::Async(AsyncError::RdmaWriteData);
    case.breaks(&[sent(0, 8), sent(1, 8)], &[data]);
}

#[test]
fn frame_damaged_in_write_rr() {
    frame_damaged_in_write(RR, &[FAILED]);
}

fn message_lost(level: ReliabilityLevel, next_is_write: bool, receives: &[u32]) -> Case {
    let mut case = Case::with_receives(level, receives);
    case.net.wire.lose(CLIENT, SendRequest, 1);
    case.net.post_send(CLIENT, case.a, b"lost");
    if next_is_write {
        case.write((0x1000, 7), 4, None);
    } else {
        case.net.post_send(CLIENT, case.a, b"next");
    }
    case
}

#[test]
fn message_lost_ud() {
    let mut case = message_lost(UD, false, &[64, 64]);
    case.net.settle();
    assert_eq!(case.net.count(SERVER, Counter::LostMessages), 1);
    case.stays_connected(&[sent(0, 4), sent(1, 4)], &[received(0, b"next")]);
    message_lost(UD, true, &[64]).stays_connected(&[sent(0, 4), sent(1, 4)], &[]);
}

#[test]
fn message_lost_rd() {
    let transport = || Event::Async(AsyncError::RdmaTransport);
    let sends = [sent(0, 4), sent(1, 4)];
    let failed = receive_failed(0, Status::TRANSPORT);
    message_lost(RD, false, &[64, 64]).breaks(&sends, &[failed]);
    message_lost(RD, false, &[]).breaks(&sends, &[transport()]);
    message_lost(RD, true, &[64]).breaks(&sends, &[transport()]);
}

#[test]
fn message_lost_rr() {
    let transport = || Event::Async(AsyncError::RdmaTransport);
    let failed = receive_failed(0, Status::TRANSPORT);
    message_lost(RR, false, &[64, 64]).breaks(&[FAILED], &[failed]);
    message_lost(RR, false, &[]).breaks(&[FAILED], &[transport()]);
    message_lost(RR, true, &[64]).breaks(&[FAILED], &[transport()]);
}

/// Frame `lost` of the three with a read's data is missing.
#[test]
fn read_data_missing_rd_and_rr() {
    for level in [RD, RR] {
        for lost in 0..3 {
            let mut case = Case::new(level);
            case.net.wire.lose(SERVER, ReadResponse, u32::MAX);
            case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
            case.net.settle();
            let frames = case.net.frames(SERVER, ReadResponse);
            for (at, frame) in frames.iter().enumerate() {
                if at != lost {
                    case.net.inject(CLIENT, frame);
                }
            }
            if lost == 2 {
                // Only the timeout detects it.
                let ulp_timeout_ns = case.net.nodes[CLIENT].engine.config().ulp_timeout_ns;
                case.net.advance(ulp_timeout_ns);
            }
            let status = if lost == 0 {
                Status::TRANSPORT
            } else {
                INCOMPLETE
            };
            case.breaks(&[send_failed(0, status)], &[]);
        }
    }
}

/// A lost read request is detected by the next message or the timeout.
#[test]
fn read_request_lost_rd_and_rr() {
    for level in [RD, RR] {
        for next in [true, false] {
            let mut case = Case::new(level);
            case.net.wire.lose(CLIENT, ReadRequest, 1);
            case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
            if next {
                case.net.post_send(CLIENT, case.a, b"next");
                case.breaks(&[FAILED], &[receive_failed(0, Status::TRANSPORT)]);
            } else {
                let ulp_timeout_ns = case.net.nodes[CLIENT].engine.config().ulp_timeout_ns;
                case.net.advance(ulp_timeout_ns);
                assert_eq!(case.net.count(CLIENT, Counter::ResponseTimeouts), 1);
                case.breaks(&[FAILED], &[]);
            }
        }
    }
}

/// A lost read response is detected by data of the next read. At RR, read data also reveals a lost SEND_RESP.
#[test]
fn read_response_lost_rd_and_rr() {
    for level in [RD, RR] {
        let mut case = Case::new(level);
        case.net.wire.lose(SERVER, ReadResponse, 1);
        case.net.post_read(CLIENT, case.a, (0x1000, 7), 100);
        case.net.post_read(CLIENT, case.a, (0x1000, 7), 100);
        case.net.settle();
        assert_eq!(case.net.count(CLIENT, Counter::LostResponses), 1);
        case.breaks(&[FAILED], &[]);
    }
    let mut case = Case::new(RR);
    case.net.wire.lose(SERVER, SendResponse, 1);
    case.net.post_send(CLIENT, case.a, b"placed");
    case.net.post_read(CLIENT, case.a, (0x1000, 7), 100);
    case.net.settle();
    assert_eq!(case.net.count(CLIENT, Counter::LostResponses), 1);
    case.breaks(&[FAILED], &[received(0, b"placed")]);
}

/// A read request reveals the loss of a message before it; it takes no descriptor.
#[test]
fn message_lost_before_a_read_rd_and_rr() {
    for level in [RD, RR] {
        let mut case = Case::new(level);
        case.net.wire.lose(CLIENT, SendRequest, 1);
        case.net.post_send(CLIENT, case.a, b"lost");
        case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
        let first = if level == RR { FAILED } else { sent(0, 4) };
        let mut client = vec![first];
        if level == RD {
            client.push(send_failed(1, Status::TRANSPORT));
        }
        case.breaks(&client, &[Event::Async(AsyncError::RdmaTransport)]);
    }
}

/// Only RR detects the loss of the last message before a pause.
#[test]
fn last_message_lost_rr() {
    let mut case = Case::new(RR);
    case.net.wire.lose(CLIENT, SendRequest, 1);
    case.net.post_send(CLIENT, case.a, b"lost");
    let ulp_timeout_ns = case.net.nodes[CLIENT].engine.config().ulp_timeout_ns;
    case.net.advance(ulp_timeout_ns - 1);
    assert_eq!(case.net.log(CLIENT, case.a), []);
    case.net.advance(1);
    assert_eq!(case.net.count(CLIENT, Counter::ResponseTimeouts), 1);
    case.breaks(&[send_failed(0, Status::TRANSPORT)], &[]);
}
