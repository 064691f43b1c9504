//! Bounce buffers: memory of a program that its datapath process cannot access.

mod common;

use common::datapath::{DatapathProcess, serve_if_child};
use common::raw::{PAGE_BYTES, Pages, RawEndpoint, attributes, connect};
use pmd::descriptor::{ControlSegment, DataSegment, control};
use vi_types::status;
use vipl::provider as vip;
use vipl::{MemAttributes, MemoryHandle, Result, SharedMemory, ViAttributes, VipError};

/// Runs a test with a process that accesses shared memory only.
fn without_foreign_memory(test: &str, quota: &str, run: impl FnOnce(&DatapathProcess)) {
    if serve_if_child() {
        return;
    }
    let process = DatapathProcess::start(test, &format!("foreign_memory = false\n{quota}"));
    run(&process);
    process.stop();
}

/// An endpoint whose VI may use RDMA, and whose memory is private.
fn end(process: &DatapathProcess) -> RawEndpoint {
    let nic = vip::attach_nic(&process.socket(), "VINIC0").unwrap();
    let ptag = vip::create_ptag(nic).unwrap();
    let mut end = RawEndpoint::of(nic, Some(ptag));
    vip::destroy_vi(end.vi).unwrap();
    let attributes = ViAttributes {
        rdma_read: true,
        ..attributes(end.ptag)
    };
    end.vi = vip::create_vi(nic, &attributes, None, None).unwrap();
    end
}

/// Fills the data pages of an endpoint.
fn fill(end: &RawEndpoint, byte: impl Fn(usize) -> u8) {
    let data: Vec<_> = (0..end.memory.bytes() - PAGE_BYTES).map(byte).collect();
    end.memory.write(PAGE_BYTES, &data);
}

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Concatenates the bytes of these segments.
fn bytes_of(end: &RawEndpoint, segments: &[(usize, u32)]) -> Vec<u8> {
    let offsets = segments
        .iter()
        .flat_map(|(from, length)| *from..*from + *length as usize);
    offsets.map(|at| end.memory.read(PAGE_BYTES + at)).collect()
}

fn segments_of(end: &RawEndpoint, segments: &[(usize, u32)]) -> Vec<DataSegment> {
    let segments = segments.iter();
    segments
        .map(|(at, length)| end.segment(*at, *length))
        .collect()
}

/// Offsets of segments in the data pages, and their lengths.
type Segments = &'static [(usize, u32)];

/// Segments of a send, and of the receive that it arrives in.
const MESSAGES: [(Segments, Segments); 6] = [
    (&[], &[(0, 64)]),
    (&[(0, 1)], &[(5, 1)]),
    (&[(4095, 2)], &[(4090, 8), (1, 3)]),
    (&[(1, 4000), (5000, 3000)], &[(100, 7000)]),
    (&[(7, 9000)], &[(3, 4096), (6000, 6000)]),
    (&[(0, 0), (12287, 1)], &[(0, 0), (8000, 2)]),
];

fn message_arrives(from: &RawEndpoint, to: &RawEndpoint, sent: Segments, receives: Segments) {
    fill(from, pattern);
    fill(to, |_| 0xA5);
    to.post_recv(0, &segments_of(to, receives));
    from.post_send(0, &segments_of(from, sent));
    assert_eq!(from.sent() & status::ERROR_MASK, 0, "{sent:?}");
    assert_eq!(to.received() & status::ERROR_MASK, 0, "{sent:?}");
    let expected = bytes_of(from, sent);
    let arrived = bytes_of(to, receives);
    let (message, rest) = arrived.split_at(expected.len());
    assert_eq!(message, expected, "{sent:?} into {receives:?}");
    assert!(
        rest.iter().all(|byte| *byte == 0xA5),
        "more than the message"
    );
}

#[test]
fn messages_from_and_to_private_memory_arrive() {
    let test = "messages_from_and_to_private_memory_arrive";
    without_foreign_memory(test, "", |process| {
        let [client, server] = [end(process), end(process)];
        connect(&client, &server);
        for (sent, receives) in MESSAGES {
            message_arrives(&client, &server, sent, receives);
            message_arrives(&server, &client, sent, receives);
        }
    });
}

fn register(
    end: &RawEndpoint,
    address: u64,
    bytes: u64,
    [rdma_write, rdma_read]: [bool; 2],
) -> Result<MemoryHandle> {
    let attributes = MemAttributes {
        ptag: end.ptag,
        rdma_write,
        rdma_read,
    };
    // SAFETY: the tests' memory outlives its registration.
    unsafe { vip::register_mem(end.nic, address, bytes, &attributes) }
}

#[test]
fn rdma_initiated_from_private_memory_is_copied() {
    const BYTES: u32 = 9000;
    let test = "rdma_initiated_from_private_memory_is_copied";
    without_foreign_memory(test, "", |process| {
        let [initiator, target] = [end(process), end(process)];
        connect(&initiator, &target);
        let shared = SharedMemory::allocate(3 * PAGE_BYTES).unwrap();
        let at = shared.address().as_ptr() as u64;
        let region = register(&target, at, 3 * PAGE_BYTES as u64, [true, true]).unwrap();
        let remote = DataSegment {
            address: at,
            handle: region.0,
            length: 0,
        };
        fill(&initiator, pattern);
        initiator.post_write(0, initiator.segment(11, BYTES), remote);
        assert_eq!(initiator.sent(), status::DONE | status::OP_RDMA_WRITE);
        let expected = bytes_of(&initiator, &[(11, BYTES)]);
        // Reads the written bytes back, to another offset.
        fill(&initiator, |_| 0);
        let head = ControlSegment {
            control: control::OP_RDMA_READ,
            length: BYTES,
            ..ControlSegment::default()
        };
        let read = initiator.write_descriptor(0, head, &[remote, initiator.segment(2000, BYTES)]);
        // SAFETY: the memory stays mapped and is not accessed until the descriptor is returned.
        unsafe { vip::post_send(initiator.vi, read, initiator.handle) }.unwrap();
        assert_eq!(initiator.sent(), status::DONE | status::OP_RDMA_READ);
        assert_eq!(bytes_of(&initiator, &[(2000, BYTES)]), expected);
        vip::deregister_mem(target.nic, at, region).unwrap();
    });
}

#[test]
fn private_memory_for_rdma_of_peers_is_refused_with_the_reason() {
    let test = "private_memory_for_rdma_of_peers_is_refused_with_the_reason";
    without_foreign_memory(test, "", |process| {
        let end = end(process);
        let memory = Pages::new(1);
        let at = memory.at(0);
        for rights in [[true, false], [false, true], [true, true]] {
            let refused = register(&end, at, PAGE_BYTES as u64, rights);
            assert_eq!(refused.err(), Some(VipError::ErrorResource));
        }
        let region = register(&end, at, PAGE_BYTES as u64, [false, false]).unwrap();
        let wanted = MemAttributes {
            ptag: end.ptag,
            rdma_write: true,
            rdma_read: false,
        };
        // SAFETY: no reference to the memory exists.
        let refused = unsafe { vip::set_mem_attributes(end.nic, at, region, &wanted) };
        assert_eq!(refused, Err(VipError::ErrorResource));
        vip::deregister_mem(end.nic, at, region).unwrap();
    });
}

#[test]
fn bounce_buffers_count_towards_the_quota_and_are_freed_with_their_regions() {
    // The memory of the endpoint, and once more of the same size.
    let quota = "[process.quota]\nmax_registered_bytes = 32768";
    let test = "bounce_buffers_count_towards_the_quota_and_are_freed_with_their_regions";
    without_foreign_memory(test, quota, |process| {
        let end = end(process);
        let (memory, more) = (Pages::new(4), Pages::new(1));
        let bytes = memory.bytes() as u64;
        for _ in 0..100 {
            let region = register(&end, memory.at(0), bytes, [false, false]).unwrap();
            let refused = register(&end, more.at(0), PAGE_BYTES as u64, [false, false]);
            assert_eq!(refused.err(), Some(VipError::ErrorResource));
            vip::deregister_mem(end.nic, memory.at(0), region).unwrap();
        }
    });
}
