//! Errors over VI/TCP as the peer observes them (docs/spec/vitcp.md, Errors), with a scripted peer.

use std::time::{Duration, Instant};

use crate::common::scripted_peer::{
    ConnectionSetup, DESCRIPTOR_ERROR, END, MESSAGE_IN_ERROR, NOP, PROTECTION_ERROR, READ_REQUEST,
    SEND, ScriptedPeer, TRANSMIT_ERROR, WRITE, connect_plain, connect_with, errors_of,
    expect_connected, expect_connection_lost, expected_reports, rdma,
};
use crate::common::{LEVELS, READ_WRITE, READABLE, RELIABLE, WRITABLE};
use pmd::config::NicConfig;
use vi_types::status;
use vipl::{ConnectionOptions, ErrorCode, ReliabilityLevel, RemoteBuffer, ViState};

/// Memory of the peer, which it does not check.
const OF_PEER: RemoteBuffer = RemoteBuffer {
    address: 0x0101,
    handle: vipl::MemoryHandle(1),
};

#[test]
fn a_send_with_transmit_error_fails_its_receive() {
    for level in LEVELS {
        let (local, mut peer) = connect_plain(level);
        local.post_receives(2, 64);
        peer.send(SEND, END | TRANSMIT_ERROR, b"half");
        let expected = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
        assert_eq!(errors_of(&local.recv()), expected, "{level:?}");
        if level == ReliabilityLevel::UnreliableDelivery {
            expect_connected(&local, &mut peer);
            continue;
        }
        assert_eq!(errors_of(&local.recv()), status::DESC_FLUSHED_ERROR);
        let reports = expected_reports(level, peer.number, MESSAGE_IN_ERROR);
        expect_connection_lost(&local, &mut peer, &reports);
    }
}

#[test]
fn write_with_wrong_length_is_reported_at_reliable_levels() {
    for (level, bytes) in LEVELS
        .into_iter()
        .flat_map(|level| [(level, 16), (level, 33)])
    {
        let (local, mut peer) = connect_with(level, |_| (), |vi| vi.rdma_write(true));
        let memory = local.region(64, WRITABLE);
        local.post_receives(1, 64);
        let other = rdma(memory.remote_buffer(), 32, &vec![7; bytes]);
        peer.send(WRITE, END, &other);
        if level == ReliabilityLevel::UnreliableDelivery {
            expect_connected(&local, &mut peer);
            continue;
        }
        local.expect_errors(&[ErrorCode::RdmawAbort]);
        let reports = expected_reports(level, peer.number, MESSAGE_IN_ERROR);
        expect_connection_lost(&local, &mut peer, &reports);
    }
}

/// A protocol violation breaks the connection at each level, without an error report.
#[test]
fn protocol_violation_breaks_the_connection() {
    type Malformed = fn(&mut ScriptedPeer) -> Vec<u8>;
    let version: Malformed = |peer| {
        let mut segment = peer.next_segment(NOP, END, &[]);
        segment[0] = 2;
        segment
    };
    let kind: Malformed = |peer| peer.next_segment(9, END, &[]);
    let length: Malformed = |peer| peer.next_segment(NOP, END, &[0]);
    let skipped: Malformed = |peer| {
        let _skipped = peer.next_segment(NOP, END, &[]);
        peer.next_segment(SEND, END, b"late")
    };
    let nested: Malformed = |peer| {
        let mut both = peer.next_segment(SEND, 0, b"begun");
        both.extend(peer.next_segment(NOP, END, &[]));
        both
    };
    let cases = [
        ("a version", version),
        ("a type", kind),
        ("a length", length),
        ("a skipped number", skipped),
        ("a message inside another", nested),
    ];
    for level in LEVELS {
        for (what, malformed) in cases {
            let (local, mut peer) = connect_plain(level);
            local.post_receives(1, 64);
            let bytes = malformed(&mut peer);
            peer.write(&bytes);
            let flushed = errors_of(&local.recv());
            assert_eq!(flushed, status::DESC_FLUSHED_ERROR, "{level:?}: {what}");
            expect_connection_lost(&local, &mut peer, &[]);
        }
    }
}

#[test]
fn ack_of_an_unsent_message_is_an_error_only_at_reliable_reception() {
    for level in LEVELS {
        let (local, mut peer) = connect_plain(level);
        local.post_receives(1, 64);
        local.post_message(b"ours");
        peer.receive_kind(SEND);
        peer.last_received = peer.last_received.wrapping_add(1);
        peer.send(NOP, END, &[]);
        let sent = local.sent();
        if level == ReliabilityLevel::ReliableReception {
            assert_eq!(errors_of(&sent), status::DESC_FLUSHED_ERROR);
            expect_connection_lost(&local, &mut peer, &[]);
        } else {
            assert!(sent.status.is_ok());
            expect_connected(&local, &mut peer);
        }
    }
}

/// An undefined Remote Error Code for a message that waits for its response.
#[test]
fn undefined_remote_error_code_is_a_transport_error() {
    let level = ReliabilityLevel::ReliableReception;
    let (local, mut peer) = connect_plain(level);
    local.post_message(b"ours");
    local.post_message(b"behind");
    let first = peer.receive_kind(SEND);
    peer.last_received = first.number;
    let mut nop = peer.next_segment(NOP, END, &[]);
    nop[22] = 3;
    peer.write(&nop);
    for expected in [status::TRANSPORT_ERROR, status::DESC_FLUSHED_ERROR] {
        assert_eq!(errors_of(&local.sent()), expected);
    }
    expect_connection_lost(&local, &mut peer, &[]);
}

/// Above the negotiated size, though the memory is large enough: a send is too long, a write or read is refused.
#[test]
fn message_above_the_negotiated_transfer_size_is_an_error() {
    const NEGOTIATED_BYTES: u32 = 4096;
    for level in LEVELS {
        let reliable = level != ReliabilityLevel::UnreliableDelivery;
        for kind in [SEND, WRITE, READ_REQUEST] {
            if kind == READ_REQUEST && !reliable {
                continue;
            }
            let mut setup = ConnectionSetup::new(level);
            setup.mtu_bytes = NEGOTIATED_BYTES;
            setup.options = ConnectionOptions {
                negotiate_mtu: true,
                ..ConnectionOptions::default()
            };
            let rights = |vi: vipl::ViBuilder| vi.rdma_write(true).rdma_read(reliable);
            let (local, mut peer) = setup.connect(|_| (), rights);
            let negotiated = local.vi.negotiated_options().unwrap();
            assert_eq!(negotiated.max_transfer_bytes, NEGOTIATED_BYTES);
            let memory = local.region(8192, READ_WRITE);
            local.post_receives(2, 8192);
            let bytes = vec![7; NEGOTIATED_BYTES as usize + 1];
            let header =
                |payload: &[u8]| rdma(memory.remote_buffer(), NEGOTIATED_BYTES + 1, payload);
            match kind {
                SEND => peer.send(SEND, END, &bytes),
                WRITE => peer.send(WRITE, END, &header(&bytes)),
                _ => peer.send(READ_REQUEST, END, &header(&[])),
            }
            let error = match kind {
                SEND => {
                    assert_eq!(errors_of(&local.recv()), status::LENGTH_ERROR, "{level:?}");
                    DESCRIPTOR_ERROR
                }
                WRITE => {
                    local.expect_errors(&[ErrorCode::RdmawProt]);
                    PROTECTION_ERROR
                }
                _ => {
                    local.expect_errors(&[ErrorCode::RdmarProt]);
                    0
                }
            };
            if !reliable {
                expect_connected(&local, &mut peer);
                continue;
            }
            let reports = match kind {
                READ_REQUEST => Vec::new(),
                _ => expected_reports(level, peer.number, error),
            };
            expect_connection_lost(&local, &mut peer, &reports);
        }
    }
}

#[test]
fn reads_above_the_advertised_limit_break_the_connection() {
    for level in RELIABLE {
        let one = |config: &mut NicConfig| config.limits.max_rdma_reads = 1;
        let (local, mut peer) = connect_with(level, one, |vi| vi.rdma_read(true));
        let memory = local.region(64, READABLE);
        let request = rdma(memory.remote_buffer(), 64, &[]);
        let mut both = peer.next_segment(READ_REQUEST, END, &request);
        both.extend(peer.next_segment(READ_REQUEST, END, &request));
        peer.write(&both);
        expect_connection_lost(&local, &mut peer, &[]);
    }
}

#[test]
fn read_request_at_unreliable_delivery_is_a_protocol_violation() {
    let (local, mut peer) = connect_plain(ReliabilityLevel::UnreliableDelivery);
    peer.send(READ_REQUEST, END, &rdma(OF_PEER, 64, &[]));
    expect_connection_lost(&local, &mut peer, &[]);
}

#[test]
fn invalid_read_response_fails_the_read() {
    let partial = status::TRANSPORT_ERROR | status::PARTIAL_ERROR;
    // Payload bytes of a first segment (0: none) and of the last; flags of the last, and the offset of a changed byte
    // in its RDMA header; errors of the read.
    let responses = [
        (0, 17, END, None, status::TRANSPORT_ERROR),
        (0, 15, END, None, status::TRANSPORT_ERROR),
        (8, 9, END, None, partial),
        (0, 0, END | TRANSMIT_ERROR, None, status::RDMA_PROT_ERROR),
        // Another address, handle or length than requested.
        (0, 16, END, Some(7), status::TRANSPORT_ERROR),
        (8, 8, END, Some(11), partial),
        (0, 16, END, Some(15), status::TRANSPORT_ERROR),
    ];
    for level in RELIABLE {
        for (first, last, flags, changed, expected) in responses {
            let (local, mut peer) = connect_plain(level);
            local.vi.post_send(local.read_of(OF_PEER, 16)).unwrap();
            let request = peer.receive_kind(READ_REQUEST);
            let mut offset = 0u32;
            for (bytes, flags) in [(first, 0), (last, flags)] {
                if bytes == 0 && flags == 0 {
                    continue;
                }
                let mut body = request.body.clone();
                if let Some(at) = changed.filter(|_| flags != 0) {
                    body[at] ^= 1;
                }
                body.extend(vec![5; bytes]);
                peer.write(&peer.read_response(&request, flags, offset, &body));
                offset += bytes as u32;
            }
            let found = errors_of(&local.sent());
            assert_eq!(found, expected, "{level:?}: {first}, {last}, {changed:?}");
            expect_connection_lost(&local, &mut peer, &[]);
        }
    }
}

/// A message of Reliable Reception and a read wait for their response until the timeout.
#[test]
fn missing_response_is_a_transport_error() {
    const TIMEOUT_MS: u64 = 300;
    for level in RELIABLE {
        let short_timeout = |config: &mut NicConfig| config.ulp_timeout_ms = Some(TIMEOUT_MS);
        // The timeout starts at the poller's last clock reading before the post, which is as old as the connection.
        let begun = Instant::now();
        let (local, mut peer) = connect_with(level, short_timeout, |vi| vi);
        let reads = level == ReliabilityLevel::ReliableDelivery;
        let descriptor = match reads {
            true => local.read_of(OF_PEER, 16),
            false => local.message(b"without a response"),
        };
        local.vi.post_send(descriptor).unwrap();
        local.post_message(b"behind");
        assert_eq!(errors_of(&local.sent()), status::TRANSPORT_ERROR);
        assert!(begun.elapsed() >= Duration::from_millis(TIMEOUT_MS));
        assert_eq!(errors_of(&local.sent()), status::DESC_FLUSHED_ERROR);
        expect_connection_lost(&local, &mut peer, &[]);
    }
}

/// A FIN within a message, and a reset by a peer that has unread data.
#[test]
fn fin_or_rst_flushes_pending_descriptors() {
    for level in LEVELS {
        for is_reset in [false, true] {
            let (local, mut peer) = connect_plain(level);
            local.post_receives(1, 64);
            peer.send(SEND, 0, b"half of a");
            if is_reset {
                local.post_message(b"not read");
                // TCP sends RST for a close with unread data.
                let mut unread = [0; 32];
                while peer.tcp.peek(&mut unread).unwrap() < unread.len() {}
            }
            drop(peer);
            assert_eq!(errors_of(&local.recv()), status::DESC_FLUSHED_ERROR);
            if is_reset {
                let sent = local.sent();
                let waits = level == ReliabilityLevel::ReliableReception;
                let expected = if waits { status::DESC_FLUSHED_ERROR } else { 0 };
                assert_eq!(errors_of(&sent), expected, "{level:?}");
            }
            local.expect_errors(&[ErrorCode::ConnLost]);
            assert_eq!(local.vi.state().unwrap(), ViState::Error);
            assert!(local.errors.none());
        }
    }
}
