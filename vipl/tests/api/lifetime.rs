//! Ownership of objects: full queues, drops in any order, shared VIs, and killed peers.

use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::Instant;

use crate::common::{
    Endpoint, READABLE, SecondProcess, TIMEOUT, WAIT, WRITABLE, connect, deliver, is_child,
    open_as, pair, pattern,
};
use vipl::{
    CompletedOperation, ErrorCode, MemAttributes, Nic, RdmaAccess, ReliabilityLevel, RemoteBuffer,
    ViState, VipError,
};

#[test]
fn post_to_a_full_queue_returns_the_descriptor() {
    let end = Endpoint::new();
    let depth = end.nic.attributes().max_descriptors_per_queue as usize;
    let descriptors = end.nic.create_descriptors(depth + 1, 0, &end.ptag).unwrap();
    let mut refused = 0;
    for descriptor in descriptors {
        if let Err(error) = end.vi.post_recv(descriptor) {
            assert_eq!(error.error, VipError::ErrorResource);
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(end.vi.state().unwrap(), ViState::Idle);
    end.vi.disconnect().unwrap();
    for _ in 0..depth {
        assert!(end.vi.recv_done().unwrap().unwrap().status.is_flushed());
    }
    assert!(end.vi.recv_done().unwrap().is_none());
    end.vi.post_recv(end.empty(0)).unwrap();
    assert!(end.errors.none(), "no overrun error");
}

#[test]
fn a_descriptor_of_another_tag_is_not_posted() {
    let (end, other) = (Endpoint::new(), Endpoint::new());
    let refused = end.vi.post_recv(other.descriptor(8)).unwrap_err();
    assert_eq!(refused.error, VipError::InvalidPtag);
    assert_eq!(refused.descriptor.buffer(0).len(), 8, "with its buffer");
    // Tags of all handles of one NIC are valid.
    let shared = end.nic.vi(&other.ptag).build().unwrap();
    shared.post_recv(refused.descriptor).unwrap();
    assert!(end.errors.none());
}

#[test]
fn regions_are_zeroed_aligned_and_cut_without_overlap() {
    let end = Endpoint::new();
    let region = end.nic.create_region(1000, &end.ptag).unwrap();
    let expected = MemAttributes {
        ptag: Some(end.ptag.handle()),
        rdma_write: false,
        rdma_read: false,
    };
    assert_eq!(region.attributes().unwrap(), expected);
    assert_eq!(region.len_bytes(), 1000);
    let mut buffers = region.split(100);
    // At 0, 128, .. 896.
    assert_eq!(buffers.len(), 8);
    for (number, buffer) in buffers.iter_mut().enumerate() {
        assert!(buffer.iter().all(|&byte| byte == 0));
        assert_eq!((buffer.len(), buffer.as_ptr() as usize % 64), (100, 0));
        buffer.fill(number as u8 + 1);
    }
    assert_eq!(buffers[0].as_ptr() as usize % 4096, 0);
    for (number, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().all(|&byte| byte == number as u8 + 1));
    }
    let (nic, ptag) = (&end.nic, &end.ptag);
    let many = nic.create_buffers(3, 5000, ptag).unwrap();
    assert!(many.len() == 3 && many.iter().all(|buffer| buffer.len() == 5000));
    assert!(nic.create_descriptors(1, 252, ptag).is_ok());
    let invalid = [
        nic.create_region(0, ptag).err(),
        nic.create_buffers(2, 0, ptag).err(),
        nic.create_buffers(2, usize::MAX, ptag).err(),
        nic.create_descriptors(1, 100_000, ptag).err(),
    ];
    assert_eq!(invalid, [Some(VipError::InvalidParameter); 4]);
}

#[test]
fn everything_may_be_dropped_in_any_order_with_descriptors_posted() {
    for order in 0..6 {
        let (client, server) = pair();
        let memory = client.region(64, RdmaAccess::default());
        for end in [&client, &server] {
            end.post_receives(3, 64);
        }
        let Endpoint {
            vi,
            ptag,
            nic,
            errors,
        } = client;
        match order {
            0 => drop((vi, ptag, nic, memory)),
            1 => drop((nic, ptag, vi, memory)),
            2 => drop((memory, nic, vi, ptag)),
            3 => drop((ptag, memory, vi, nic)),
            4 => drop((vi, nic, memory, ptag)),
            _ => drop((ptag, nic, memory, vi)),
        }
        drop(errors);
        server.expect_errors(&[ErrorCode::ConnLost]);
        assert!(server.recv().status.is_flushed());
    }
}

#[test]
fn unknown_nic_names_are_invalid() {
    let refused = ["", "nosuchnic", "VINIC9999999"].map(|name| Nic::open(name).err());
    assert_eq!(refused, [Some(VipError::InvalidParameter); 3]);
}

#[test]
fn public_types_are_send_and_sync() {
    fn is_free<T: Send + Sync>() {}
    is_free::<Nic>();
    is_free::<vipl::Ptag>();
    is_free::<vipl::Vi>();
    is_free::<vipl::CompletionQueue>();
    is_free::<vipl::ConnectionRequest>();
    is_free::<vipl::MemoryRegion>();
    is_free::<vipl::Buffer>();
    is_free::<vipl::RdmaRegion>();
    is_free::<vipl::Descriptor>();
    is_free::<vipl::Completed>();
}

#[test]
fn threads_share_a_vi() {
    const MESSAGES: u64 = 2000;
    const POSTED: usize = 32;
    let (client, server) = pair();
    server.post_receives(POSTED, 8);
    let (grant, take) = sync_channel::<()>(POSTED);
    let (spare, used) = channel();
    for _ in 0..POSTED {
        grant.send(()).unwrap();
    }
    for _ in 0..8 {
        spare.send(client.descriptor(8)).unwrap();
    }
    thread::scope(|scope| {
        let (client, server) = (&client, &server);
        scope.spawn(move || {
            for message in 0..MESSAGES {
                let receive = server.expect_message(&message.to_le_bytes());
                server.vi.post_recv(receive).unwrap();
                // Fails after the last send.
                let _ = grant.send(());
            }
        });
        scope.spawn(move || {
            for message in 0..MESSAGES {
                take.recv_timeout(TIMEOUT).unwrap();
                let mut send = used.recv_timeout(TIMEOUT).unwrap();
                let _: &vipl::Descriptor = &send;
                send.buffer_mut(0).copy_from_slice(&message.to_le_bytes());
                client.vi.post_send(send).unwrap();
            }
        });
        scope.spawn(move || {
            let deadline = Instant::now() + TIMEOUT;
            let mut done = 0;
            while done < MESSAGES {
                assert!(Instant::now() < deadline, "{done} sends are done");
                if let Some(sent) = client.vi.send_wait(WAIT).unwrap() {
                    done += 1;
                    // Fails after the last message.
                    let _ = spare.send(sent.ok().unwrap().descriptor);
                }
            }
        });
    });
}

#[test]
fn sends_and_reads_of_a_killed_peer_are_flushed() {
    check_requests_of_killed_peer(
        "sends_and_reads_of_a_killed_peer_are_flushed",
        ReliabilityLevel::ReliableDelivery,
    );
}

#[test]
fn sends_and_reads_of_a_peer_killed_at_reliable_reception_are_flushed() {
    check_requests_of_killed_peer(
        "sends_and_reads_of_a_peer_killed_at_reliable_reception_are_flushed",
        ReliabilityLevel::ReliableReception,
    );
}

/// Runs the target, which is killed with reads and sends pending, and its reader, in two processes.
fn check_requests_of_killed_peer(test: &str, level: ReliabilityLevel) {
    const BYTES: usize = 65_536;
    let name = format!("killed-{}", level as u16);
    let name = name.as_bytes();
    if is_child() {
        let victim = Endpoint::with(|vi| vi.reliability(level).rdma_read(true));
        let memory = victim.region(BYTES, READABLE);
        memory.write(0, &[0x5A; BYTES]);
        victim.post_receives(8, 8);
        victim.connect_to(name);
        victim.send_bytes(&memory.remote_buffer().to_bytes());
        loop {
            thread::park();
        }
    }
    // A program that is stopped serves no reads in frames.
    let nic = open_as(|config| {
        config.ulp_timeout_ms = Some(600_000);
        crate::common::use_frames(config);
    });
    let survivor = Endpoint::on(nic, |vi| vi.reliability(level));
    survivor.post_receives(2, RemoteBuffer::BYTES);
    let mut victim = SecondProcess::start(test);
    survivor.accept(&survivor.address(name));
    let arrived = survivor.recv().ok().unwrap();
    let remote = RemoteBuffer::from_bytes(arrived.first_bytes().try_into().unwrap());
    survivor.send_bytes(b"answered");
    // The victim serves nothing more, but is still connected.
    victim.stop();
    // At Reliable Delivery a send completes when it is sent, if no read is before it.
    let waits = level == ReliabilityLevel::ReliableReception;
    let sends_before = if waits { 3 } else { 0 };
    for _ in 0..sends_before {
        survivor.post_message(b"before");
    }
    for _ in 0..3 {
        let read = survivor.read_of(remote, BYTES);
        survivor.vi.post_send(read).unwrap();
    }
    survivor.post_message(b"behind");
    for _ in 0..100 {
        assert_eq!(survivor.vi.send_done().unwrap_err(), VipError::NotDone);
    }
    victim.kill();
    survivor.expect_errors(&[ErrorCode::ConnLost]);
    for number in 0..sends_before + 4 {
        let flushed = survivor.sent();
        assert!(flushed.status.is_flushed(), "number {number}");
        let is_read = flushed.status.operation() == CompletedOperation::RdmaRead;
        assert_eq!(is_read, (sends_before..sends_before + 3).contains(&number));
        assert!(!is_read || flushed.descriptor.buffer(0).iter().all(|byte| *byte == 0));
    }
    assert!(survivor.recv().status.is_flushed());
    // The VI can serve the next peer.
    survivor.vi.disconnect().unwrap();
    let next = Endpoint::of_level(level);
    connect(&next, &survivor);
    deliver(&next, &survivor, b"next");
}

#[test]
fn region_copies_at_any_offset_and_length_are_exact() {
    let end = Endpoint::new();
    let memory = end.region(64, WRITABLE);
    for (offset, len) in (0..20).flat_map(|offset| (0..30).map(move |len| (offset, len))) {
        memory.write(0, &[0xA5; 64]);
        let bytes = pattern(offset + len, len);
        memory.write(offset, &bytes);
        let mut seen = vec![0; len];
        memory.read(offset, &mut seen);
        assert_eq!(seen, bytes);
        let mut all = [0; 64];
        memory.read(0, &mut all);
        let mut others = all[..offset].iter().chain(&all[offset + len..]);
        assert!(others.all(|&byte| byte == 0xA5));
    }
    memory.store_u64(56, 42);
    assert_eq!(memory.load_u64(56), 42);
    let panics = |access: &dyn Fn()| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(access));
        assert!(outcome.is_err());
    };
    for (offset, len) in [(64, 1), (0, 65), (usize::MAX, 2)] {
        panics(&|| memory.read(offset, &mut vec![0; len]));
    }
    panics(&|| {
        let _ = memory.load_u64(4); // unaligned
    });
}
