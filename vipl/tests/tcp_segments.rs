//! Segments over VI/TCP as a stranger writes and reads them, where nothing is wrong with them (docs/spec/vitcp.md).

mod common;

use common::stranger::{DESCRIPTOR_ERROR, Heard};
use common::stranger::{
    END, IMMEDIATE, LEVELS, Meeting, NOP, READ_REQUEST, READ_RESPONSE, RELIABLE, SEND, Stranger,
    WRITE, errors_of, goes_on, is_over, plain, rdma, strangers, told_of,
};
use common::tls::counter;
use common::{MAX_TRANSFER_BYTES, WAIT, pattern};
use vipl::{ErrorCode, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer};

const ANY: RdmaAccess = RdmaAccess {
    write: true,
    read: true,
};

/// Two segments of a message; which of them say immediate data is one bit each.
fn in_two(stranger: &mut Stranger, kind: u8, header: &[u8], says: [bool; 2]) {
    let behind = |payload: &[u8]| [header, payload].concat();
    let first = stranger.next(kind, 0, &behind(b"in two "));
    let second = stranger.further(kind, END, 7, &behind(b"pieces"));
    for ((mut segment, says), immediate) in [first, second].into_iter().zip(says).zip([1, 2]) {
        if says {
            segment[1] |= IMMEDIATE;
            segment[11] = immediate;
        }
        stranger.write(&segment);
    }
}

/// The draft does not say in which segment it stands.
#[test]
fn immediate_data_counts_from_the_first_segment_that_has_it() {
    for (level, kind) in LEVELS.into_iter().flat_map(|l| [(l, SEND), (l, WRITE)]) {
        for (says, expected) in [([true, false], 1), ([false, true], 2), ([true, true], 1)] {
            let (ours, mut stranger) = strangers(level, |_| (), |vi| vi.rdma_write(true));
            let memory = (ours.nic.create_rdma_region(64, &ours.ptag, ANY)).unwrap();
            for _ in 0..2 {
                ours.vi.post_recv(ours.room(64)).unwrap();
            }
            let header = match kind {
                WRITE => rdma(memory.remote_buffer(), 13, &[]),
                _ => Vec::new(),
            };
            in_two(&mut stranger, kind, &header, says);
            let arrived = ours.recv().ok().unwrap();
            assert_eq!(arrived.immediate(), Some(expected), "{level:?} {kind}");
            if kind == SEND {
                assert_eq!(arrived.first_bytes(), b"in two pieces");
            } else {
                let mut placed = [0; 13];
                memory.read(0, &mut placed);
                assert_eq!(&placed, b"in two pieces");
            }
            goes_on(&ours, &mut stranger);
        }
    }
}

/// A write takes its receive when its immediate data is said; if there is none, that is the guide's error.
#[test]
fn immediate_data_that_comes_late_wants_a_receive_all_the_same() {
    for level in LEVELS {
        let (ours, mut stranger) = strangers(level, |_| (), |vi| vi.rdma_write(true));
        let memory = (ours.nic.create_rdma_region(64, &ours.ptag, ANY)).unwrap();
        let header = rdma(memory.remote_buffer(), 13, &[]);
        in_two(&mut stranger, WRITE, &header, [false, true]);
        assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::RecvqEmpty);
        if level == ReliabilityLevel::Unreliable {
            ours.vi.post_recv(ours.room(64)).unwrap();
            goes_on(&ours, &mut stranger);
            continue;
        }
        let told = told_of(level, stranger.number, DESCRIPTOR_ERROR);
        is_over(&ours, &mut stranger, &told);
    }
}

/// A program that polls the target sees no word of it in part, wherever the stream is cut.
#[test]
fn rdma_write_cut_at_any_byte_writes_aligned_words_whole() {
    const BYTES: usize = 40;
    const WRITTEN: u64 = u64::MAX;
    let (ours, mut stranger) = strangers(
        ReliabilityLevel::ReliableDelivery,
        |_| (),
        |vi| vi.rdma_write(true),
    );
    let memory = (ours.nic.create_rdma_region(64, &ours.ptag, ANY)).unwrap();
    let at = memory.remote_buffer();
    for (start, cut) in (0..8usize).flat_map(|start| (1..BYTES).map(move |cut| (start, cut))) {
        memory.write(0, &[0; 64]);
        let target = RemoteBuffer {
            address: at.address + start as u64,
            ..at
        };
        let header = rdma(target, BYTES as u32, &[0xFF; BYTES]);
        let segment = stranger.next(WRITE, END, &header);
        let (first, rest) = segment.split_at(segment.len() - BYTES + cut);
        let read_bytes = counter(&ours.nic, "rx_bytes") + first.len() as u64;
        stranger.write(first);
        while counter(&ours.nic, "rx_bytes") < read_bytes {
            ours.vi.state().unwrap();
        }
        let words = (start.next_multiple_of(8)..start + BYTES - 7).step_by(8);
        for word in words {
            let is_there = word + 8 <= start + cut;
            let expected = if is_there { WRITTEN } else { 0 };
            assert_eq!(memory.load_u64(word), expected, "{start} {cut} {word}");
        }
        stranger.write(rest);
        let mut placed = [0; BYTES];
        while placed != [0xFF; BYTES] {
            ours.vi.state().unwrap();
            memory.read(start, &mut placed);
        }
    }
    ours.vi.post_recv(ours.room(64)).unwrap();
    goes_on(&ours, &mut stranger);
}

/// An end that knows of the draft's one bit only fits both reliable levels, and neither fits one without it.
#[test]
fn who_says_only_that_it_is_reliable_fits_both_levels() {
    const RELIABLE_ONLY: u16 = 0x07;
    for level in RELIABLE {
        let mut meeting = Meeting::at(level);
        meeting.attributes = RELIABLE_ONLY;
        let (ours, mut stranger) = meeting.hold(|_| (), |vi| vi);
        ours.vi.post_recv(ours.room(64)).unwrap();
        stranger.say(SEND, END, b"first");
        assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"first");
        // It may wait for acknowledgements, and so is told.
        while stranger.hear_a(NOP).ack != stranger.number {}
        ours.vi.post_send(ours.message(b"answer")).unwrap();
        stranger.hear_a(SEND);
        stranger.say(NOP, END, &[]);
        assert!(ours.vi.send_wait(WAIT).unwrap().unwrap().status.is_ok());
    }
}

/// Whoever looks at the traffic of a NIC sees it, whatever carries it.
#[test]
fn what_connections_carry_is_counted_as_a_ports_traffic() {
    let (ours, mut stranger) = plain(ReliabilityLevel::ReliableDelivery);
    ours.vi.post_recv(ours.room(64)).unwrap();
    ours.vi.post_send(ours.message(b"there")).unwrap();
    stranger.hear_a(SEND);
    stranger.say(SEND, END, b"back");
    ours.recv().ok().unwrap();
    for (port, stream) in [
        ("port_rx_frames", "rx_segments"),
        ("port_rx_bytes", "rx_bytes"),
        ("port_tx_frames", "tx_segments"),
        ("port_tx_bytes", "tx_bytes"),
    ] {
        let carried = counter(&ours.nic, stream);
        assert!(carried > 0, "{stream}");
        assert_eq!(counter(&ours.nic, port), carried, "{port}");
    }
}

fn said_bytes(segment: &Heard) -> usize {
    24 + segment.behind.len()
}

/// All segments of the next message of this type.
fn message(stranger: &mut Stranger, kind: u8) -> Vec<Heard> {
    let mut segments = Vec::new();
    loop {
        segments.push(stranger.hear_a(kind));
        if segments.last().is_some_and(|last| last.flags & END != 0) {
            return segments;
        }
    }
}

/// One VI segment in one TCP segment, where the path tells how much that carries [VI/TCP 2.2.2.2.3].
#[test]
fn no_segment_is_longer_than_what_the_path_carries() {
    for mss_bytes in [600, 1460, 9000] {
        let mut meeting = Meeting::at(ReliabilityLevel::ReliableDelivery);
        meeting.mss_bytes = Some(mss_bytes);
        let (ours, mut stranger) = meeting.hold(|_| (), |vi| vi);
        let bytes = pattern(7, 40_000);
        ours.vi.post_send(ours.message(&bytes)).unwrap();
        let segments = message(&mut stranger, SEND);
        let longest = segments.iter().map(said_bytes).max().unwrap();
        assert!(longest <= mss_bytes as usize, "{longest} of {mss_bytes}");
        // And hardly shorter: options of TCP have 40 bytes at most.
        assert!(
            longest + 40 >= mss_bytes as usize,
            "{longest} of {mss_bytes}"
        );
        let payload: Vec<u8> = segments.iter().flat_map(|s| s.behind.clone()).collect();
        assert!(payload == bytes);
    }
}

/// An answer's segments and those of a message of ours go in turn [VI/TCP 2.2.2.2.3], each message in its order.
#[test]
fn answers_go_in_turn_with_messages_of_our_own() {
    for level in RELIABLE {
        let mut meeting = Meeting::at(level);
        meeting.mss_bytes = Some(1460);
        let (ours, mut stranger) = meeting.hold(|_| (), |vi| vi.rdma_read(true));
        let bytes = pattern(1, MAX_TRANSFER_BYTES);
        let memory = ours
            .nic
            .create_rdma_region(MAX_TRANSFER_BYTES, &ours.ptag, ANY)
            .unwrap();
        memory.write(0, &bytes);
        // TCP does not take all of these: some wait when the request comes.
        let sends = 256;
        for _ in 0..sends {
            ours.vi.post_send(ours.message(&bytes)).unwrap();
        }
        let request = rdma(memory.remote_buffer(), MAX_TRANSFER_BYTES as u32, &[]);
        stranger.say(READ_REQUEST, END, &request);
        let asked = stranger.number;
        let (mut sent, mut answered) = (0, 0u32);
        let mut kinds = Vec::new();
        while sent < sends || answered < MAX_TRANSFER_BYTES as u32 {
            let segment = stranger.hear().expect("the stream goes on");
            match segment.kind {
                SEND if segment.flags & END == 0 => {}
                SEND => {
                    sent += 1;
                    if level == ReliabilityLevel::ReliableReception {
                        stranger.say(NOP, END, &[]);
                    }
                }
                READ_RESPONSE => {
                    assert_eq!((segment.number, segment.offset), (asked, answered));
                    assert_eq!(segment.behind[..16], request);
                    let payload = &segment.behind[16..];
                    let at = answered as usize;
                    assert!(payload == &bytes[at..at + payload.len()]);
                    answered += payload.len() as u32;
                }
                _ => continue,
            }
            kinds.push(segment.kind);
        }
        let begins = kinds
            .iter()
            .position(|kind| *kind == READ_RESPONSE)
            .unwrap();
        let ends = kinds
            .iter()
            .rposition(|kind| *kind == READ_RESPONSE)
            .unwrap();
        let others = kinds[begins..=ends]
            .iter()
            .filter(|kind| **kind == SEND)
            .count();
        assert!(others > 10, "{others} of {}", ends - begins);
    }
}

/// What the peer does in its turn: its answer may have other messages between its segments.
#[test]
fn an_answer_may_have_messages_between_its_segments() {
    for level in RELIABLE {
        let (ours, mut stranger) = plain(level);
        ours.vi.post_recv(ours.room(64)).unwrap();
        let mut read = ours.room(16);
        read.set_used_bytes(0, 16);
        let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
        read.set_operation(Operation::RdmaRead(somewhere));
        ours.vi.post_send(read).unwrap();
        let asked = stranger.hear_a(READ_REQUEST);
        for (flags, offset, part) in [(0, 0u32, b"half of "), (END, 8, b"a thing.")] {
            let numbers = (asked.number, stranger.heard);
            let behind = [&asked.behind[..], part].concat();
            let mut answer = Stranger::segment(READ_RESPONSE, flags, numbers, &behind);
            answer[4..8].copy_from_slice(&offset.to_be_bytes());
            stranger.write(&answer);
            if offset == 0 {
                stranger.say(SEND, END, b"between");
                assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"between");
            }
        }
        let read = ours.vi.send_wait(WAIT).unwrap().unwrap();
        assert_eq!(errors_of(&read), 0);
        assert_eq!(read.first_bytes(), b"half of a thing.");
    }
}
