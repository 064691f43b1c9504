//! RDMA writes: placed data, order of visibility, immediate data, and refused writes.

mod common;

use std::time::Instant;

use common::{Endpoint, SecondProcess, TIMEOUT, WAIT, connect, is_child, pattern, retry_no_match};
use vipl::{
    CompletedOperation, ErrorCode, MemAttributes, Operation, RdmaAccess, RdmaRegion,
    ReliabilityLevel, RemoteBuffer, SharedMemory, ViState, provider,
};

const WRITABLE: RdmaAccess = RdmaAccess {
    write: true,
    read: false,
};

/// Memory is registered in whole pages (VIPL 3.4.3): the end of a small region.
const PAGE_BYTES: u64 = 4096;

/// Connects a writer with a target whose VI allows RDMA writes.
fn writer_and_target() -> (Endpoint, Endpoint) {
    let ends = (Endpoint::new(), Endpoint::with(|vi| vi.rdma_write(true)));
    connect(&ends.0, &ends.1);
    ends
}

fn region(end: &Endpoint, len_bytes: usize) -> RdmaRegion {
    end.nic
        .create_rdma_region(len_bytes, &end.ptag, WRITABLE)
        .unwrap()
}

fn write(
    end: &Endpoint,
    bytes: &[u8],
    remote: RemoteBuffer,
    immediate: Option<u32>,
) -> vipl::Completed {
    let mut descriptor = end.message(bytes);
    descriptor.set_operation(Operation::RdmaWrite(remote));
    descriptor.set_immediate(immediate);
    end.send(descriptor)
}

/// Spins until the word has the value, without calls of the library.
fn spin_until(region: &RdmaRegion, offset_bytes: usize, value: u64) {
    let deadline = Instant::now() + TIMEOUT;
    while region.load_u64(offset_bytes) != value {
        assert!(Instant::now() < deadline, "the word is not written");
        std::hint::spin_loop();
    }
}

#[test]
fn write_with_immediate_data_consumes_a_receive() {
    let (writer, target) = writer_and_target();
    let memory = region(&target, 10_000);
    for (round, size) in [0, 1, 7, 64, 2113, 9_000].into_iter().enumerate() {
        target.vi.post_recv(target.empty(0)).unwrap();
        let bytes = pattern(round, size);
        let sent = write(
            &writer,
            &bytes,
            memory.remote_buffer().at(11),
            Some(round as u32),
        )
        .ok()
        .unwrap();
        assert_eq!(
            (sent.status.operation(), sent.length_bytes()),
            (CompletedOperation::RdmaWrite, size)
        );
        let arrived = target.recv().ok().unwrap();
        assert_eq!(
            arrived.status.operation(),
            CompletedOperation::RemoteRdmaWrite
        );
        assert_eq!(
            (arrived.immediate(), arrived.length_bytes()),
            (Some(round as u32), size)
        );
        let mut seen = vec![0; size];
        memory.read(11, &mut seen);
        assert!(seen == bytes, "{size} bytes");
    }
    let mut before = [0xFF; 11];
    memory.read(0, &mut before);
    assert_eq!(before, [0; 11], "bytes before the target");
}

#[test]
fn rdma_write_to_shared_memory_is_placed() {
    let (writer, target) = writer_and_target();
    let memory = SharedMemory::allocate(10_000).unwrap();
    let address = memory.address().as_ptr().expose_provenance() as u64;
    let attributes = MemAttributes {
        ptag: Some(target.ptag.handle()),
        rdma_write: true,
        rdma_read: false,
    };
    let nic = target.nic.handle();
    let bytes = memory.len_bytes() as u64;
    // SAFETY: mapped until `memory` is dropped, after its deregistration.
    let handle = unsafe { provider::register_mem(nic, address, bytes, &attributes) }.unwrap();
    let (sent, remote) = (pattern(3, 9_000), RemoteBuffer { address, handle });
    target.vi.post_recv(target.empty(0)).unwrap();
    write(&writer, &sent, remote.at(11), Some(1)).ok().unwrap();
    target.recv().ok().unwrap();
    let start = memory.address().as_ptr().cast_const();
    // SAFETY: inside the allocation, which is no longer written.
    let seen = unsafe { std::slice::from_raw_parts(start, 11 + sent.len()) };
    assert!(seen[..11] == [0; 11] && seen[11..] == sent);
    provider::deregister_mem(nic, address, handle).unwrap();
}

#[test]
fn last_word_of_a_write_is_visible_last_without_calls_of_the_target() {
    const WORDS: usize = 1025;
    let (writer, target) = writer_and_target();
    let memory = region(&target, WORDS * 8);
    for round in 1..=50_u64 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                write(
                    &writer,
                    &round.to_ne_bytes().repeat(WORDS),
                    memory.remote_buffer(),
                    None,
                )
            });
            spin_until(&memory, (WORDS - 1) * 8, round);
            let torn = (0..WORDS).find(|word| memory.load_u64(word * 8) != round);
            assert_eq!(torn, None, "round {round}");
        });
    }
    assert!(target.vi.recv_done().unwrap().is_none() && target.errors.none());
}

#[test]
fn process_that_makes_no_call_is_written_to() {
    const NAME: &[u8] = b"rdma-inactive";
    const LAST: u64 = 0x0123_4567_89AB_CDEF;
    if is_child() {
        let writer = Endpoint::new();
        let own = writer.nic.local_address(b"writer").unwrap();
        let address = writer.nic.local_address(NAME).unwrap();
        writer
            .vi
            .post_recv(writer.descriptor(RemoteBuffer::BYTES))
            .unwrap();
        retry_no_match(|| writer.vi.connect(&own, &address, WAIT)).unwrap();
        let arrived = writer.recv().ok().unwrap();
        let remote = RemoteBuffer::from_bytes(arrived.first_bytes().try_into().unwrap());
        let mut bytes = pattern(5, 65_528);
        bytes.extend_from_slice(&LAST.to_ne_bytes());
        assert!(write(&writer, &bytes, remote, None).status.is_ok());
        // The target disconnects after it has checked all data.
        assert_eq!(writer.errors.next_of(&writer.vi), ErrorCode::ConnLost);
        return;
    }
    let target = Endpoint::with(|vi| vi.rdma_write(true));
    let memory = region(&target, 65_536);
    let address = target.nic.local_address(NAME).unwrap();
    let second = SecondProcess::start("process_that_makes_no_call_is_written_to");
    target
        .nic
        .connect_wait(&address, WAIT)
        .unwrap()
        .accept(&target.vi)
        .unwrap();
    target
        .send(target.message(&memory.remote_buffer().to_bytes()))
        .ok()
        .unwrap();
    spin_until(&memory, 65_528, LAST);
    let mut seen = vec![0; 65_528];
    memory.read(0, &mut seen);
    assert!(seen == pattern(5, 65_528));
    target.vi.disconnect().unwrap();
    second.join();
}

#[test]
fn invalid_write_is_refused_and_changes_nothing() {
    type Remote = fn(&RdmaRegion) -> RemoteBuffer;
    let cases: [(&str, Remote); 5] = [
        ("one byte past the end", |memory| {
            memory.remote_buffer().at(PAGE_BYTES - 7)
        }),
        ("before the beginning", |memory| {
            memory.remote_buffer().at(u64::MAX)
        }),
        ("a sum that wraps", |_| RemoteBuffer {
            address: u64::MAX - 3,
            handle: vipl::MemoryHandle(1),
        }),
        ("an unknown handle", |memory| RemoteBuffer {
            handle: vipl::MemoryHandle(memory.handle().0 ^ 0x5A5A_0000),
            ..memory.remote_buffer()
        }),
        ("no handle", |memory| RemoteBuffer {
            handle: vipl::MemoryHandle(0),
            ..memory.remote_buffer()
        }),
    ];
    for (name, remote) in cases {
        let (writer, target) = writer_and_target();
        let memory = region(&target, 64);
        write(&writer, &[0xEE; 8], remote(&memory), None);
        assert_eq!(
            target.errors.next_of(&target.vi),
            ErrorCode::RdmawProt,
            "{name}"
        );
        assert_eq!(
            target.errors.next_of(&target.vi),
            ErrorCode::ConnLost,
            "{name}"
        );
        assert_eq!(
            writer.errors.next_of(&writer.vi),
            ErrorCode::ConnLost,
            "{name}"
        );
        let mut seen = [0xFF; 64];
        memory.read(0, &mut seen);
        assert_eq!(seen, [0; 64], "{name}");
    }
}

#[test]
fn write_requires_rights_of_vi_region_and_tag() {
    for missing in ["vi", "region", "tag"] {
        let writer = Endpoint::new();
        let target = Endpoint::with(|vi| vi.rdma_write(missing != "vi"));
        connect(&writer, &target);
        let ptag = if missing == "tag" {
            target.nic.create_ptag().unwrap()
        } else {
            target.ptag.clone()
        };
        let access = RdmaAccess {
            write: missing != "region",
            read: false,
        };
        let memory = target.nic.create_rdma_region(64, &ptag, access).unwrap();
        // With immediate data the receive descriptor has the error.
        target.vi.post_recv(target.empty(0)).unwrap();
        write(&writer, &[0xEE; 8], memory.remote_buffer(), Some(1));
        let arrived = target.recv();
        assert!(
            arrived.status.is_protection_error(),
            "{missing}: {:?}",
            arrived.status
        );
        assert_eq!(arrived.immediate(), None);
        assert_eq!(
            target.errors.next_of(&target.vi),
            ErrorCode::ConnLost,
            "{missing}"
        );
        assert_eq!(memory.load_u64(0), 0, "{missing}");
    }
}

#[test]
fn a_refused_write_leaves_an_unreliable_vi_connected() {
    let writer = Endpoint::with(|vi| vi.reliability(ReliabilityLevel::UnreliableDelivery));
    let target = Endpoint::with(|vi| {
        vi.reliability(ReliabilityLevel::UnreliableDelivery)
            .rdma_write(true)
    });
    connect(&writer, &target);
    let memory = region(&target, 64);
    assert!(
        write(
            &writer,
            &[0xEE; 8],
            memory.remote_buffer().at(PAGE_BYTES - 7),
            None
        )
        .status
        .is_ok()
    );
    assert_eq!(target.errors.next_of(&target.vi), ErrorCode::RdmawProt);
    assert_eq!(target.vi.state().unwrap(), ViState::Connected);
    assert!(
        write(
            &writer,
            &7_u64.to_ne_bytes(),
            memory.remote_buffer().at(56),
            None
        )
        .status
        .is_ok()
    );
    spin_until(&memory, 56, 7);
}

#[test]
fn region_copies_at_any_offset_and_length_are_exact() {
    let end = Endpoint::new();
    let memory = region(&end, 64);
    for offset in 0..20 {
        for len in 0..30 {
            memory.write(0, &[0xA5; 64]);
            let bytes = pattern(offset + len, len);
            memory.write(offset, &bytes);
            let mut seen = vec![0; len];
            memory.read(offset, &mut seen);
            assert_eq!(seen, bytes);
            let mut all = [0; 64];
            memory.read(0, &mut all);
            assert!(
                all[..offset]
                    .iter()
                    .chain(&all[offset + len..])
                    .all(|&byte| byte == 0xA5)
            );
        }
    }
    memory.store_u64(56, 42);
    assert_eq!(memory.load_u64(56), 42);
    for (offset, len) in [(64, 1), (0, 65), (usize::MAX, 2)] {
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            memory.read(offset, &mut vec![0; len])
        }));
        assert!(outside.is_err(), "{len} bytes at {offset}");
    }
    let unaligned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.load_u64(4)));
    assert!(unaligned.is_err());
}
