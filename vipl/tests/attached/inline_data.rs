//! Inline buffers: short messages from and to private memory of programs, passed in the shared queues.

use crate::attached_bounce_buffers::{
    MESSAGES, Segments, bytes_of, end, fill, message_arrives, pattern,
};
use crate::common::datapath::{DatapathProcess, SHM, serve_if_child, with_process_of};
use crate::common::raw::{PAGE_BYTES, Pages, RawEndpoint, attributes, connect, segment};
use crate::common::{READABLE, WRITABLE, own_host};
use vi_core::descriptor::{ControlSegment, DataSegment, control};
use vi_types::{ReliabilityLevel, status};
use vipl::provider as vip;
use vipl::{RdmaAccess, ViAttributes};

/// The longest message in an inline buffer.
const INLINE_BYTES: u32 = 4096;

/// Runs a test with a process that has this number of inline buffers: with messages between its VIs copied (true), and in
/// frames.
fn with_buffers(test: &str, buffers: u32, run: impl Fn(&DatapathProcess, bool)) {
    serve_if_child();
    for shortcut in [true, false] {
        let nic = format!(
            "{SHM}fc_vi.shortcut = {shortcut}\nfc_vi.e_d_tov_ms = 60000\nfc_vi.silent_port_ms = 60000\n"
        );
        let process = format!("inline_buffers = {buffers}");
        with_process_of(test, &nic, &process, |process| run(process, shortcut));
    }
}

/// As [`end`], whose memory peers may access.
fn end_with_access(
    process: &DatapathProcess,
    access: RdmaAccess,
    level: ReliabilityLevel,
) -> RawEndpoint {
    let nic = vip::attach_nic(&process.socket(), "VINIC0").unwrap();
    let ptag = Some(vip::create_ptag(nic).unwrap());
    let attributes = ViAttributes {
        rdma_read: true,
        reliability: level as u16,
        ..attributes(ptag)
    };
    let mut end = RawEndpoint::with_memory(nic, ptag, Pages::new(4), &attributes);
    vip::deregister_mem(nic, end.memory.at(0), end.handle).unwrap();
    end.handle = end.memory.register_for(nic, ptag, access).unwrap();
    end
}

const LONGEST: (Segments, Segments) = (&[(1, INLINE_BYTES)], &[(3, 96), (200, INLINE_BYTES)]);
const TOO_LONG: (Segments, Segments) = (&[(0, INLINE_BYTES), (5000, 1)], &[(0, 5000)]);

#[test]
fn messages_of_private_memory_arrive_with_and_without_inline_buffers() {
    let test = "messages_of_private_memory_arrive_with_and_without_inline_buffers";
    for buffers in [0, 1, 128] {
        with_buffers(test, buffers, |process, shortcut| {
            let [client, server] = [end(process), end(process)];
            connect(&client, &server);
            for (sent, receives) in MESSAGES.into_iter().chain([LONGEST, TOO_LONG]) {
                message_arrives(&client, &server, sent, receives);
                message_arrives(&server, &client, sent, receives);
            }
            // Each way, four are short enough. One of these is longer than a frame.
            let expected = match (buffers, shortcut) {
                (0, _) => 0,
                (_, true) => 2 * (4 + 4),
                (_, false) => 2 * (4 + 3),
            };
            assert_eq!(process.inline_messages(), expected, "{buffers} buffers");
        });
    }
}

#[test]
fn more_messages_than_inline_buffers_arrive_in_order() {
    const MESSAGES: usize = 24;
    const SLOT_BYTES: usize = 256;
    let test = "more_messages_than_inline_buffers_arrive_in_order";
    with_buffers(test, 3, |process, _| {
        let [client, server] = [end(process), end(process)];
        connect(&client, &server);
        for round in 0..5 {
            let length = |number: usize| ((number * 37 + round) % SLOT_BYTES) as u32;
            fill(&client, |at| pattern(at + round));
            fill(&server, |_| 0xA5);
            for number in 0..MESSAGES {
                let receive = server.segment(number * SLOT_BYTES, SLOT_BYTES as u32);
                server.post_recv(number, &[receive]);
            }
            for number in 0..MESSAGES {
                let send = client.segment(number * SLOT_BYTES, length(number));
                client.post_send(number, &[send]);
            }
            for number in 0..MESSAGES {
                assert_eq!(client.sent() & status::ERROR_MASK, 0);
                assert_eq!(server.received() & status::ERROR_MASK, 0);
                let whole = [(number * SLOT_BYTES, SLOT_BYTES as u32)];
                let mut expected = bytes_of(&client, &whole);
                expected[length(number) as usize..].fill(0xA5);
                assert_eq!(bytes_of(&server, &whole), expected, "message {number}");
            }
        }
        assert!(process.inline_messages() > 0);
    });
}

/// Posts a send of one segment on a VI, or an RDMA read into it.
fn post(end: &RawEndpoint, slot: usize, control: u16, segments: &[DataSegment]) {
    let head = ControlSegment {
        control,
        length: segments.last().map_or(0, |segment| segment.length),
        ..ControlSegment::default()
    };
    let descriptor = end.write_descriptor(slot, head, segments);
    // SAFETY: the memory stays mapped and is not accessed until the descriptor is returned.
    unsafe { vip::post_send(end.vi, descriptor, end.handle) }.unwrap();
}

/// The data of a fenced send, and of one behind it, may be that of an RDMA read before it.
#[test]
fn sends_behind_a_fence_send_what_the_rdma_read_before_it_has_read() {
    const BYTES: u32 = 64;
    let test = "sends_behind_a_fence_send_what_the_rdma_read_before_it_has_read";
    with_buffers(test, 128, |process, _| {
        let level = ReliabilityLevel::ReliableDelivery;
        let client = end_with_access(process, RdmaAccess::default(), level);
        let server = end_with_access(process, READABLE, level);
        connect(&client, &server);
        for round in 0..3 {
            fill(&client, |_| 0);
            fill(&server, |at| pattern(at + round));
            let arrive_at = [2 * PAGE_BYTES, 2 * PAGE_BYTES + 100];
            for (slot, at) in arrive_at.into_iter().enumerate() {
                server.post_recv(slot, &[server.segment(at, BYTES)]);
            }
            let source = segment(server.memory.at(PAGE_BYTES + 5), server.handle, 0);
            let data = client.segment(0, BYTES);
            post(&client, 0, control::OP_RDMA_READ, &[source, data]);
            post(&client, 1, control::QFENCE, &[data]);
            post(&client, 2, control::OP_SEND_RECV, &[data]);
            assert_eq!(client.sent(), status::DONE | status::OP_RDMA_READ);
            for at in arrive_at {
                assert_eq!(client.sent(), status::DONE | status::OP_SEND);
                assert_eq!(server.received() & status::ERROR_MASK, 0);
                let arrived = bytes_of(&server, &[(at, BYTES)]);
                assert_eq!(arrived, bytes_of(&server, &[(5, BYTES)]));
            }
        }
    });
}

/// At Reliable Reception a send is complete when the data is in the memory of the receiver, where peers find it.
#[test]
fn peer_reads_a_received_message_before_its_receive_is_reaped() {
    const BYTES: u32 = 40;
    let test = "peer_reads_a_received_message_before_its_receive_is_reaped";
    with_buffers(test, 128, |process, _| {
        let level = ReliabilityLevel::ReliableReception;
        let client = end_with_access(process, RdmaAccess::default(), level);
        let server = end_with_access(process, READABLE, level);
        connect(&client, &server);
        fill(&client, pattern);
        fill(&server, |_| 0);
        server.post_recv(0, &[server.segment(7, BYTES)]);
        client.post_send(0, &[client.segment(0, BYTES)]);
        assert_eq!(client.sent(), status::DONE | status::OP_SEND);
        let source = segment(server.memory.at(PAGE_BYTES + 7), server.handle, 0);
        let target = client.segment(2 * PAGE_BYTES, BYTES);
        post(&client, 1, control::OP_RDMA_READ, &[source, target]);
        assert_eq!(client.sent(), status::DONE | status::OP_RDMA_READ);
        assert_eq!(
            bytes_of(&client, &[(2 * PAGE_BYTES, BYTES)]),
            bytes_of(&client, &[(0, BYTES)])
        );
        assert_eq!(process.inline_messages(), 1, "the send only");
        assert_eq!(server.received() & status::ERROR_MASK, 0);
    });
}

#[test]
fn short_rdma_write_from_private_memory_is_placed() {
    let test = "short_rdma_write_from_private_memory_is_placed";
    with_buffers(test, 128, |process, _| {
        let level = ReliabilityLevel::ReliableDelivery;
        let client = end_with_access(process, RdmaAccess::default(), level);
        let server = end_with_access(process, WRITABLE, level);
        connect(&client, &server);
        fill(&client, pattern);
        for (at, bytes) in [(0, 8), (3, 1), (5, 30), (1, 4000)] {
            fill(&server, |_| 0xA5);
            let remote = segment(server.memory.at(PAGE_BYTES + at), server.handle, 0);
            client.post_write(0, client.segment(2, bytes), remote);
            assert_eq!(client.sent(), status::DONE | status::OP_RDMA_WRITE);
            // A message behind it shows that it was placed.
            server.post_recv(0, &[]);
            client.post_send(0, &[]);
            assert_eq!(client.sent() & status::ERROR_MASK, 0);
            assert_eq!(server.received() & status::ERROR_MASK, 0);
            assert_eq!(
                bytes_of(&server, &[(at, bytes)]),
                bytes_of(&client, &[(2, bytes)])
            );
            assert_eq!(bytes_of(&server, &[(at + bytes as usize, 9)]), [0xA5; 9]);
        }
        assert_eq!(process.inline_messages(), 4);
    });
}

#[test]
fn message_that_has_arrived_is_in_place_when_its_memory_is_deregistered() {
    const BYTES: u32 = 100;
    let test = "message_that_has_arrived_is_in_place_when_its_memory_is_deregistered";
    with_buffers(test, 128, |process, _| {
        let [client, server] = [end(process), end(process)];
        connect(&client, &server);
        fill(&client, pattern);
        let data = Pages::new(1);
        let region = data.register(server.nic, server.ptag).unwrap();
        server.post_recv(0, &[segment(data.at(0), region, BYTES)]);
        client.post_send(0, &[client.segment(0, BYTES)]);
        assert_eq!(client.sent(), status::DONE | status::OP_SEND);
        vip::deregister_mem(server.nic, data.at(0), region).unwrap();
        let arrived: Vec<_> = (0..BYTES as usize).map(|at| data.read(at)).collect();
        assert_eq!(arrived, bytes_of(&client, &[(0, BYTES)]));
        assert_eq!(server.received() & status::ERROR_MASK, 0);
        assert_eq!(process.inline_messages(), 2);
    });
}

#[test]
fn messages_of_private_memory_arrive_over_vi_tcp() {
    let test = "messages_of_private_memory_arrive_over_vi_tcp";
    serve_if_child();
    for is_foreign in [true, false] {
        let nic = format!("vi_tcp = {{}}\nhost = \"{}\"\n", own_host());
        let process = format!("foreign_memory = {is_foreign}");
        with_process_of(test, &nic, &process, |process| {
            let [client, server] = [end(process), end(process)];
            connect(&client, &server);
            for (sent, receives) in MESSAGES.into_iter().chain([LONGEST, TOO_LONG]) {
                message_arrives(&client, &server, sent, receives);
                message_arrives(&server, &client, sent, receives);
            }
            // Sends only, of memory that is accessed by system calls.
            let inline = process.inline_messages();
            assert_eq!(inline, if is_foreign { 2 * 4 } else { 0 });
        });
    }
}

#[test]
fn receive_of_several_segments_in_mapped_memory_needs_no_inline_buffer() {
    let test = "receive_of_several_segments_in_mapped_memory_needs_no_inline_buffer";
    with_buffers(test, 128, |process, _| {
        let nic = vip::attach_nic(&process.socket(), "VINIC0").unwrap();
        let ptag = Some(vip::create_ptag(nic).unwrap());
        let server = RawEndpoint::with_memory(nic, ptag, Pages::shared(4), &attributes(ptag));
        let client = end(process);
        connect(&client, &server);
        let (sent, receives): (Segments, Segments) = (&[(0, 40)], &[(10, 20), (100, 30)]);
        message_arrives(&client, &server, sent, receives);
        assert_eq!(process.inline_messages(), 1, "the send");
    });
}
