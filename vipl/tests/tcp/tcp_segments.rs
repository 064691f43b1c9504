//! Valid segments over VI/TCP, written and read by a scripted peer (docs/spec/vitcp.md).

use crate::common::scripted_peer::{
    ConnectionSetup, DESCRIPTOR_ERROR, END, IMMEDIATE, NOP, READ_REQUEST, READ_RESPONSE,
    ReceivedSegment, SEND, ScriptedPeer, WRITE, connect_plain, connect_with, expect_connected,
    expect_connection_lost, expected_reports, rdma,
};
use crate::common::{LEVELS, MAX_TRANSFER_BYTES, READ_WRITE, RELIABLE, counter, pattern};
use vipl::{ErrorCode, ReliabilityLevel, RemoteBuffer};

/// Sends a message in two segments, with immediate data in those that `has_immediate` selects.
fn send_in_two(peer: &mut ScriptedPeer, kind: u8, header: &[u8], has_immediate: [bool; 2]) {
    let body = |payload: &[u8]| [header, payload].concat();
    let first = peer.next_segment(kind, 0, &body(b"in two "));
    let second = peer.continuation(kind, END, 7, &body(b"pieces"));
    let segments = [first, second].into_iter().zip(has_immediate);
    for ((mut segment, has_immediate), immediate) in segments.zip([1, 2]) {
        if has_immediate {
            segment[1] |= IMMEDIATE;
            segment[11] = immediate;
        }
        peer.write(&segment);
    }
}

/// The draft does not specify which segment contains it.
#[test]
fn immediate_data_of_the_first_segment_that_has_it_is_used() {
    for (level, kind) in LEVELS.into_iter().flat_map(|l| [(l, SEND), (l, WRITE)]) {
        for (segments, expected) in [([true, false], 1), ([false, true], 2), ([true, true], 1)] {
            let (local, mut peer) = connect_with(level, |_| (), |vi| vi.rdma_write(true));
            let memory = local.region(64, READ_WRITE);
            local.post_receives(2, 64);
            let header = match kind {
                WRITE => rdma(memory.remote_buffer(), 13, &[]),
                _ => Vec::new(),
            };
            send_in_two(&mut peer, kind, &header, segments);
            let arrived = local.recv().ok().unwrap();
            assert_eq!(arrived.immediate(), Some(expected), "{level:?} {kind}");
            if kind == SEND {
                assert_eq!(arrived.first_bytes(), b"in two pieces");
            } else {
                let mut placed = [0; 13];
                memory.read(0, &mut placed);
                assert_eq!(&placed, b"in two pieces");
            }
            expect_connected(&local, &mut peer);
        }
    }
}

/// A write claims a receive when its immediate data arrives; without one the error is RECVQ_EMPTY.
#[test]
fn immediate_data_in_a_later_segment_consumes_a_receive() {
    for level in LEVELS {
        let (local, mut peer) = connect_with(level, |_| (), |vi| vi.rdma_write(true));
        let memory = local.region(64, READ_WRITE);
        let header = rdma(memory.remote_buffer(), 13, &[]);
        send_in_two(&mut peer, WRITE, &header, [false, true]);
        local.expect_errors(&[ErrorCode::RecvqEmpty]);
        if level == ReliabilityLevel::UnreliableDelivery {
            local.post_receives(1, 64);
            expect_connected(&local, &mut peer);
            continue;
        }
        let reports = expected_reports(level, peer.number, DESCRIPTOR_ERROR);
        expect_connection_lost(&local, &mut peer, &reports);
    }
}

/// A program that polls the target sees no torn word, wherever TCP splits the stream.
#[test]
fn rdma_write_cut_at_any_byte_writes_aligned_words_whole() {
    const BYTES: usize = 40;
    const WRITTEN: u64 = u64::MAX;
    let level = ReliabilityLevel::ReliableDelivery;
    let (local, mut peer) = connect_with(level, |_| (), |vi| vi.rdma_write(true));
    let memory = local.region(64, READ_WRITE);
    let at = memory.remote_buffer();
    for (start, cut) in (0..8usize).flat_map(|start| (1..BYTES).map(move |cut| (start, cut))) {
        memory.write(0, &[0; 64]);
        let header = rdma(at.at(start as u64), BYTES as u32, &[0xFF; BYTES]);
        let segment = peer.next_segment(WRITE, END, &header);
        let (first, rest) = segment.split_at(segment.len() - BYTES + cut);
        let read_bytes = counter(local.nic.handle(), "rx_bytes") + first.len() as u64;
        peer.write(first);
        while counter(local.nic.handle(), "rx_bytes") < read_bytes {
            local.vi.state().unwrap();
        }
        let words = (start.next_multiple_of(8)..start + BYTES - 7).step_by(8);
        for word in words {
            let is_there = word + 8 <= start + cut;
            let expected = if is_there { WRITTEN } else { 0 };
            assert_eq!(memory.load_u64(word), expected, "{start} {cut} {word}");
        }
        peer.write(rest);
        let mut placed = [0; BYTES];
        while placed != [0xFF; BYTES] {
            local.vi.state().unwrap();
            memory.read(start, &mut placed);
        }
    }
    local.post_receives(1, 64);
    expect_connected(&local, &mut peer);
}

/// A peer that sets only the draft's reliability bit matches both reliable levels; one without it matches neither.
#[test]
fn reliable_only_attribute_matches_both_reliable_levels() {
    const RELIABLE_ONLY: u16 = 0x07;
    for level in RELIABLE {
        let mut setup = ConnectionSetup::new(level);
        setup.attributes = RELIABLE_ONLY;
        let (local, mut peer) = setup.connect(|_| (), |vi| vi);
        local.post_receives(1, 64);
        peer.send(SEND, END, b"first");
        local.expect_message(b"first");
        // The peer may be of Reliable Reception, so that acknowledgements are sent.
        while peer.receive_kind(NOP).ack != peer.number {}
        local.post_message(b"answer");
        peer.receive_kind(SEND);
        peer.send(NOP, END, &[]);
        local.expect_sent(1);
    }
}

/// The port counters have the traffic of every transport.
#[test]
fn tcp_traffic_is_counted_as_port_traffic() {
    let (local, mut peer) = connect_plain(ReliabilityLevel::ReliableDelivery);
    local.post_receives(1, 64);
    local.post_message(b"there");
    peer.receive_kind(SEND);
    peer.send(SEND, END, b"back");
    local.expect_message(b"back");
    for (port, stream) in [
        ("port_rx_frames", "rx_segments"),
        ("port_rx_bytes", "rx_bytes"),
        ("port_tx_frames", "tx_segments"),
        ("port_tx_bytes", "tx_bytes"),
    ] {
        let carried = counter(local.nic.handle(), stream);
        assert!(carried > 0, "{stream}");
        assert_eq!(counter(local.nic.handle(), port), carried, "{port}");
    }
}

/// Receives all segments of the next message of this type.
fn message(peer: &mut ScriptedPeer, kind: u8) -> Vec<ReceivedSegment> {
    let mut segments = Vec::new();
    loop {
        segments.push(peer.receive_kind(kind));
        if segments.last().is_some_and(|last| last.flags & END != 0) {
            return segments;
        }
    }
}

/// One VI segment fits one TCP segment, if the maximum segment size of the path is known [VI/TCP 2.2.2.2.3].
#[test]
fn segments_do_not_exceed_the_tcp_mss() {
    for mss_bytes in [600, 1460, 9000] {
        let mut setup = ConnectionSetup::new(ReliabilityLevel::ReliableDelivery);
        setup.mss_bytes = Some(mss_bytes);
        let (local, mut peer) = setup.connect(|_| (), |vi| vi);
        let bytes = pattern(7, 40_000);
        local.post_message(&bytes);
        let segments = message(&mut peer, SEND);
        let bytes_of = |segment: &ReceivedSegment| 24 + segment.body.len() as u32;
        let longest = segments.iter().map(bytes_of).max().unwrap();
        // Not much shorter: TCP options have at most 40 bytes.
        let fits = (mss_bytes - 40..=mss_bytes).contains(&longest);
        assert!(fits, "{longest} of {mss_bytes}");
        let payload: Vec<u8> = segments.iter().flat_map(|s| s.body.clone()).collect();
        assert!(payload == bytes);
    }
}

/// Segments of a read response alternate with those of local messages [VI/TCP 2.2.2.2.3]; each message is in order.
#[test]
fn read_responses_alternate_with_sends() {
    for level in RELIABLE {
        let mut setup = ConnectionSetup::new(level);
        setup.mss_bytes = Some(1460);
        let (local, mut peer) = setup.connect(|_| (), |vi| vi.rdma_read(true));
        let bytes = pattern(1, MAX_TRANSFER_BYTES);
        let memory = local.region(MAX_TRANSFER_BYTES, READ_WRITE);
        memory.write(0, &bytes);
        // More than the TCP send buffer holds: some are pending when the request arrives.
        let sends = 256;
        for _ in 0..sends {
            local.post_message(&bytes);
        }
        let request = rdma(memory.remote_buffer(), MAX_TRANSFER_BYTES as u32, &[]);
        peer.send(READ_REQUEST, END, &request);
        let request_number = peer.number;
        let (mut sent, mut response_bytes) = (0, 0u32);
        let mut kinds = Vec::new();
        while sent < sends || response_bytes < MAX_TRANSFER_BYTES as u32 {
            let segment = peer.receive().expect("a segment");
            match segment.kind {
                SEND if segment.flags & END == 0 => {}
                SEND => {
                    sent += 1;
                    if level == ReliabilityLevel::ReliableReception {
                        peer.send(NOP, END, &[]);
                    }
                }
                READ_RESPONSE => {
                    let expected = (request_number, response_bytes);
                    assert_eq!((segment.number, segment.offset), expected);
                    assert_eq!(segment.body[..16], request);
                    let payload = &segment.body[16..];
                    let at = response_bytes as usize;
                    assert!(payload == &bytes[at..at + payload.len()]);
                    response_bytes += payload.len() as u32;
                }
                _ => continue,
            }
            kinds.push(segment.kind);
        }
        let is_response = |kind: &u8| *kind == READ_RESPONSE;
        let begins = kinds.iter().position(is_response).unwrap();
        let ends = kinds.iter().rposition(is_response).unwrap();
        let others = kinds[begins..=ends]
            .iter()
            .filter(|kind| !is_response(kind));
        let others = others.count();
        assert!(others > 10, "{others} of {}", ends - begins);
    }
}

/// The peer may send other messages between the segments of its read response.
#[test]
fn read_response_may_be_interleaved_with_messages() {
    for level in RELIABLE {
        let (local, mut peer) = connect_plain(level);
        local.post_receives(1, 64);
        let remote = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
        local.vi.post_send(local.read_of(remote, 16)).unwrap();
        let request = peer.receive_kind(READ_REQUEST);
        for (flags, offset, part) in [(0, 0u32, b"half of "), (END, 8, b"a thing.")] {
            let body = [&request.body[..], part].concat();
            peer.write(&peer.read_response(&request, flags, offset, &body));
            if offset == 0 {
                peer.send(SEND, END, b"between");
                local.expect_message(b"between");
            }
        }
        let read = local.sent().ok().unwrap();
        assert_eq!(read.first_bytes(), b"half of a thing.");
    }
}
