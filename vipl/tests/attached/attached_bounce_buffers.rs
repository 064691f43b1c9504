//! Bounce buffers: memory of a program that its datapath process cannot access.

use crate::common::datapath::{DatapathProcess, with_process};
use crate::common::raw::{
    self, PAGE_BYTES, Pages, RawEndpoint, attributes, connect, mem_attributes, register,
    set_mem_attributes,
};
use crate::common::{READ_WRITE, READABLE, WRITABLE};
use vi_core::descriptor::{ControlSegment, DataSegment, control};
use vi_types::status;
use vipl::provider as vip;
use vipl::{SharedMemory, ViAttributes, VipError};

/// Runs a test with a process that accesses shared memory only.
fn without_foreign_memory(test: &str, quota: &str, run: impl FnOnce(&DatapathProcess)) {
    with_process(test, &format!("foreign_memory = false\n{quota}"), run);
}

/// An endpoint whose VI may use RDMA, and whose memory is private.
pub(super) fn end(process: &DatapathProcess) -> RawEndpoint {
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
pub(super) fn fill(end: &RawEndpoint, byte: impl Fn(usize) -> u8) {
    let data: Vec<_> = (0..end.memory.bytes() - PAGE_BYTES).map(byte).collect();
    end.memory.write(PAGE_BYTES, &data);
}

pub(super) fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Concatenates the bytes of these segments.
pub(super) fn bytes_of(end: &RawEndpoint, segments: &[(usize, u32)]) -> Vec<u8> {
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
pub(super) type Segments = &'static [(usize, u32)];

/// Segments of a send, and of the receive that it arrives in.
pub(super) const MESSAGES: [(Segments, Segments); 6] = [
    (&[], &[(0, 64)]),
    (&[(0, 1)], &[(5, 1)]),
    (&[(4095, 2)], &[(4090, 8), (1, 3)]),
    (&[(1, 4000), (5000, 3000)], &[(100, 7000)]),
    (&[(7, 9000)], &[(3, 4096), (6000, 6000)]),
    (&[(0, 0), (12287, 1)], &[(0, 0), (8000, 2)]),
];

pub(super) fn message_arrives(
    from: &RawEndpoint,
    to: &RawEndpoint,
    sent: Segments,
    receives: Segments,
) {
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

#[test]
fn rdma_initiated_from_private_memory_is_copied() {
    const BYTES: u32 = 9000;
    let test = "rdma_initiated_from_private_memory_is_copied";
    without_foreign_memory(test, "", |process| {
        let [initiator, target] = [end(process), end(process)];
        connect(&initiator, &target);
        let shared = SharedMemory::allocate(3 * PAGE_BYTES).unwrap();
        let at = shared.address().as_ptr() as u64;
        let (nic, ptag) = (target.nic, target.ptag);
        let region = register(nic, ptag, at, 3 * PAGE_BYTES, READ_WRITE).unwrap();
        let remote = raw::segment(at, region, 0);
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
        for access in [WRITABLE, READABLE, READ_WRITE] {
            let refused = memory.register_for(end.nic, end.ptag, access);
            assert_eq!(refused.err(), Some(VipError::ErrorResource));
        }
        let region = memory.register(end.nic, end.ptag).unwrap();
        let wanted = mem_attributes(end.ptag, WRITABLE);
        let refused = set_mem_attributes(end.nic, at, region, &wanted);
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
        for _ in 0..100 {
            let region = memory.register(end.nic, end.ptag).unwrap();
            let refused = more.register(end.nic, end.ptag);
            assert_eq!(refused.err(), Some(VipError::ErrorResource));
            vip::deregister_mem(end.nic, memory.at(0), region).unwrap();
        }
    });
}
