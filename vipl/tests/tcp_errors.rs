//! Errors over VI/TCP as the other end sees them (docs/spec/vitcp.md, Errors): a stranger that writes its segments byte
//! by byte, so that it can say what our own end never would.

mod common;

use std::time::{Duration, Instant};

use common::stranger::{
    DESCRIPTOR_ERROR, END, LEVELS, MESSAGE_IN_ERROR, Meeting, NOP, PROTECTION_ERROR, READ_REQUEST,
    READ_RESPONSE, RELIABLE, SEND, Stranger, TRANSMIT_ERROR, WRITE, errors_of, goes_on, is_over,
    plain, rdma, strangers, told_of,
};
use common::{End, WAIT};
use pmd::config::NicConfig;
use pmd::descriptor::status;
use vipl::{
    Descriptor, ErrorCode, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer, ViChoices,
    ViState,
};

#[test]
fn a_send_with_transmit_error_fails_its_receive() {
    for level in LEVELS {
        let (ours, mut stranger) = plain(level);
        for _ in 0..2 {
            ours.vi.post_recv(ours.room(64)).unwrap();
        }
        stranger.say(SEND, END | TRANSMIT_ERROR, b"half");
        let expected = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
        assert_eq!(errors_of(&ours.recv()), expected, "{level:?}");
        if level == ReliabilityLevel::Unreliable {
            goes_on(&ours, &mut stranger);
            continue;
        }
        assert_eq!(errors_of(&ours.recv()), status::DESC_FLUSHED_ERROR);
        let told = told_of(level, stranger.number, MESSAGE_IN_ERROR);
        is_over(&ours, &mut stranger, &told);
    }
}

#[test]
fn a_write_of_another_length_than_it_said_is_told_of_where_it_is_reliable() {
    const WRITABLE: RdmaAccess = RdmaAccess {
        write: true,
        read: false,
    };
    for (level, bytes) in LEVELS
        .into_iter()
        .flat_map(|level| [(level, 16), (level, 33)])
    {
        let (ours, mut stranger) = strangers(level, |_| (), |vi| vi.rdma_write(true));
        let memory = ours
            .nic
            .create_rdma_region(64, &ours.ptag, WRITABLE)
            .unwrap();
        ours.vi.post_recv(ours.room(64)).unwrap();
        let other = rdma(memory.remote_buffer(), 32, &vec![7; bytes]);
        stranger.say(WRITE, END, &other);
        if level == ReliabilityLevel::Unreliable {
            goes_on(&ours, &mut stranger);
            continue;
        }
        assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::RdmawAbort);
        let told = told_of(level, stranger.number, MESSAGE_IN_ERROR);
        is_over(&ours, &mut stranger, &told);
    }
}

/// Whatever the level, bytes that are against the protocol end the connection, and nothing is said of them.
#[test]
fn who_does_not_keep_to_the_protocol_loses_the_connection() {
    type Lie = fn(&mut Stranger) -> Vec<u8>;
    let lies: [(&str, Lie); 5] = [
        ("a version", |stranger| {
            let mut segment = stranger.next(NOP, END, &[]);
            segment[0] = 2;
            segment
        }),
        ("a type", |stranger| stranger.next(9, END, &[])),
        ("a length", |stranger| stranger.next(NOP, END, &[0])),
        ("a number left out", |stranger| {
            let _out = stranger.next(NOP, END, &[]);
            stranger.next(SEND, END, b"late")
        }),
        ("a message inside another", |stranger| {
            let mut both = stranger.next(SEND, 0, b"begun");
            both.extend(stranger.next(NOP, END, &[]));
            both
        }),
    ];
    for level in LEVELS {
        for (what, lie) in lies {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_recv(ours.room(64)).unwrap();
            let bytes = lie(&mut stranger);
            stranger.write(&bytes);
            let flushed = ours.recv();
            let expected = status::DESC_FLUSHED_ERROR;
            assert_eq!(errors_of(&flushed), expected, "{level:?}: {what}");
            is_over(&ours, &mut stranger, &[]);
        }
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_counts_only_where_one_is_waited_for() {
    for level in LEVELS {
        let (ours, mut stranger) = plain(level);
        ours.vi.post_recv(ours.room(64)).unwrap();
        ours.vi.post_send(ours.message(b"ours")).unwrap();
        stranger.hear_a(SEND);
        stranger.heard = stranger.heard.wrapping_add(1);
        stranger.say(NOP, END, &[]);
        let sent = ours.vi.send_wait(WAIT).unwrap().unwrap();
        if level == ReliabilityLevel::ReliableReception {
            assert_eq!(errors_of(&sent), status::DESC_FLUSHED_ERROR);
            is_over(&ours, &mut stranger, &[]);
        } else {
            assert!(sent.status.is_ok());
            goes_on(&ours, &mut stranger);
        }
    }
}

/// A Remote Error Code that is none, for a message that waits for its answer.
#[test]
fn an_error_that_is_none_of_the_drafts_is_a_transport_error() {
    let level = ReliabilityLevel::ReliableReception;
    let (ours, mut stranger) = plain(level);
    ours.vi.post_send(ours.message(b"ours")).unwrap();
    ours.vi.post_send(ours.message(b"behind")).unwrap();
    let first = stranger.hear_a(SEND);
    stranger.heard = first.number;
    let mut nop = stranger.next(NOP, END, &[]);
    nop[22] = 3;
    stranger.write(&nop);
    for expected in [status::TRANSPORT_ERROR, status::DESC_FLUSHED_ERROR] {
        let sent = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&sent), expected);
    }
    is_over(&ours, &mut stranger, &[]);
}

/// Above what both have agreed on, though there is room for it: a send is too long, a write or read refused.
#[test]
fn a_message_above_the_agreed_transfer_size_is_an_error_though_there_is_room() {
    const AGREED_BYTES: u32 = 4096;
    const ANY: RdmaAccess = RdmaAccess {
        write: true,
        read: true,
    };
    for level in LEVELS {
        let reliable = level != ReliabilityLevel::Unreliable;
        for kind in [SEND, WRITE, READ_REQUEST] {
            if kind == READ_REQUEST && !reliable {
                continue;
            }
            let mut meeting = Meeting::at(level);
            meeting.mtu_bytes = AGREED_BYTES;
            meeting.choices = ViChoices {
                negotiates: true,
                ..ViChoices::default()
            };
            let rights = |vi: vipl::ViBuilder| vi.rdma_write(true).rdma_read(reliable);
            let (ours, mut stranger) = meeting.hold(|_| (), rights);
            assert_eq!(
                ours.vi.agreement().unwrap().max_transfer_bytes,
                AGREED_BYTES
            );
            let memory = (ours.nic.create_rdma_region(8192, &ours.ptag, ANY)).unwrap();
            for _ in 0..2 {
                ours.vi.post_recv(ours.room(8192)).unwrap();
            }
            let bytes = vec![7; AGREED_BYTES as usize + 1];
            let header = |payload: &[u8]| rdma(memory.remote_buffer(), AGREED_BYTES + 1, payload);
            match kind {
                SEND => stranger.say(SEND, END, &bytes),
                WRITE => stranger.say(WRITE, END, &header(&bytes)),
                _ => stranger.say(READ_REQUEST, END, &header(&[])),
            }
            let error = match kind {
                SEND => {
                    assert_eq!(errors_of(&ours.recv()), status::LENGTH_ERROR, "{level:?}");
                    DESCRIPTOR_ERROR
                }
                WRITE => {
                    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::RdmawProt);
                    PROTECTION_ERROR
                }
                _ => {
                    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::RdmarProt);
                    0
                }
            };
            if !reliable {
                goes_on(&ours, &mut stranger);
                continue;
            }
            let told = match kind {
                READ_REQUEST => Vec::new(),
                _ => told_of(level, stranger.number, error),
            };
            is_over(&ours, &mut stranger, &told);
        }
    }
}

#[test]
fn more_reads_than_are_taken_at_a_time_end_the_connection() {
    const READABLE: RdmaAccess = RdmaAccess {
        write: false,
        read: true,
    };
    for level in RELIABLE {
        let one = |config: &mut NicConfig| config.max_rdma_reads = 1;
        let (ours, mut stranger) = strangers(level, one, |vi| vi.rdma_read(true));
        let memory = ours
            .nic
            .create_rdma_region(64, &ours.ptag, READABLE)
            .unwrap();
        let request = rdma(memory.remote_buffer(), 64, &[]);
        let mut both = stranger.next(READ_REQUEST, END, &request);
        both.extend(stranger.next(READ_REQUEST, END, &request));
        stranger.write(&both);
        is_over(&ours, &mut stranger, &[]);
    }
}

#[test]
fn a_read_at_unreliable_delivery_is_against_the_protocol() {
    let (ours, mut stranger) = plain(ReliabilityLevel::Unreliable);
    let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    stranger.say(READ_REQUEST, END, &rdma(somewhere, 64, &[]));
    is_over(&ours, &mut stranger, &[]);
}

fn read_of(ours: &End, bytes: usize) -> Descriptor {
    let mut descriptor = ours.room(bytes);
    descriptor.set_used_bytes(0, bytes);
    let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    descriptor.set_operation(Operation::RdmaRead(somewhere));
    descriptor
}

#[test]
fn an_answer_that_is_none_fails_its_read() {
    let partly = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
    // Bytes of a first segment if there is one, then of the last; its flags, and a byte of its RDMA header that is
    // another one; what the read ends with.
    let answers = [
        (0, 17, END, None, status::TRANSPORT_ERROR),
        (0, 15, END, None, status::TRANSPORT_ERROR),
        (8, 9, END, None, partly),
        (0, 0, END | TRANSMIT_ERROR, None, status::RDMA_PROT_ERROR),
        // Of another address, handle or length than was asked for.
        (0, 16, END, Some(7), status::TRANSPORT_ERROR),
        (8, 8, END, Some(11), partly),
        (0, 16, END, Some(15), status::TRANSPORT_ERROR),
    ];
    for level in RELIABLE {
        for (first, last, flags, other, expected) in answers {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_send(read_of(&ours, 16)).unwrap();
            let asked = stranger.hear_a(READ_REQUEST);
            let mut offset = 0u32;
            for (bytes, flags) in [(first, 0), (last, flags)] {
                if bytes == 0 && flags == 0 {
                    continue;
                }
                let mut behind = asked.behind.clone();
                if let Some(at) = other.filter(|_| flags != 0) {
                    behind[at] ^= 1;
                }
                behind.extend(vec![5; bytes]);
                let numbers = (asked.number, stranger.heard);
                let mut answer = Stranger::segment(READ_RESPONSE, flags, numbers, &behind);
                answer[4..8].copy_from_slice(&offset.to_be_bytes());
                offset += bytes as u32;
                stranger.write(&answer);
            }
            let read = ours.vi.send_wait(WAIT).unwrap().unwrap();
            assert_eq!(
                errors_of(&read),
                expected,
                "{level:?}: {first}, {last}, {other:?}"
            );
            is_over(&ours, &mut stranger, &[]);
        }
    }
}

/// A message of Reliable Reception and a read wait for their answer as long as they may.
#[test]
fn an_answer_that_never_comes_is_a_transport_error() {
    const TIMEOUT_MS: u64 = 300;
    for level in RELIABLE {
        let soon = |config: &mut NicConfig| config.ulp_timeout_ms = Some(TIMEOUT_MS);
        // The time counts from the poller's last reading of its clock before the post, which came with the connection.
        let begun = Instant::now();
        let (ours, mut stranger) = strangers(level, soon, |vi| vi);
        let reads = level == ReliabilityLevel::ReliableDelivery;
        let asks = if reads {
            read_of(&ours, 16)
        } else {
            ours.message(b"heard, and not answered")
        };
        ours.vi.post_send(asks).unwrap();
        ours.vi.post_send(ours.message(b"behind")).unwrap();
        let waited = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&waited), status::TRANSPORT_ERROR, "{level:?}");
        assert!(begun.elapsed() >= Duration::from_millis(TIMEOUT_MS));
        let behind = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&behind), status::DESC_FLUSHED_ERROR, "{level:?}");
        is_over(&ours, &mut stranger, &[]);
    }
}

/// FIN in the middle of a message, and a stream that is cut while something of ours was not read.
#[test]
fn a_stream_that_ends_flushes_what_it_leaves_open() {
    for level in LEVELS {
        for is_cut in [false, true] {
            let (ours, mut stranger) = plain(level);
            ours.vi.post_recv(ours.room(64)).unwrap();
            stranger.say(SEND, 0, b"half of a");
            if is_cut {
                ours.vi.post_send(ours.message(b"not read")).unwrap();
                // TCP answers a close with such bytes unread with RST.
                let mut some = [0; 32];
                while stranger.tcp.peek(&mut some).unwrap() < some.len() {}
            }
            drop(stranger);
            assert_eq!(errors_of(&ours.recv()), status::DESC_FLUSHED_ERROR);
            if is_cut {
                let sent = ours.vi.send_wait(WAIT).unwrap().unwrap();
                let waits = level == ReliabilityLevel::ReliableReception;
                let expected = if waits { status::DESC_FLUSHED_ERROR } else { 0 };
                assert_eq!(errors_of(&sent), expected, "{level:?}");
            }
            assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
            assert_eq!(ours.vi.state().unwrap(), ViState::Error);
            assert!(ours.errors.none());
        }
    }
}
