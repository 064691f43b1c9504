//! Ownership of objects: drops in any order, NICs closed by handle, and processes that exit or are killed.

mod common;

use std::thread;
use std::time::Instant;

use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, connect, is_child, open, open_as, pair, retry_no_match,
    unique_discriminator,
};
use vipl::{
    CompletedOperation, ErrorCode, MemAttributes, Nic, Operation, RdmaAccess, ReliabilityLevel,
    RemoteBuffer, Timeout, ViState, VipError,
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
    let many = end.nic.create_buffers(3, 5000, &end.ptag).unwrap();
    assert_eq!(
        many.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(),
        [5000; 3]
    );
    assert_eq!(
        end.nic.create_region(0, &end.ptag).unwrap_err(),
        VipError::InvalidParameter
    );
    assert_eq!(
        end.nic.create_buffers(2, 0, &end.ptag).unwrap_err(),
        VipError::InvalidParameter
    );
    assert_eq!(
        end.nic
            .create_buffers(2, usize::MAX, &end.ptag)
            .unwrap_err(),
        VipError::InvalidParameter
    );
    assert_eq!(
        end.nic
            .create_descriptors(1, 100_000, &end.ptag)
            .unwrap_err(),
        VipError::InvalidParameter
    );
    assert!(end.nic.create_descriptors(1, 252, &end.ptag).is_ok());
}

#[test]
fn everything_may_be_dropped_in_any_order_with_descriptors_posted() {
    for order in 0..6 {
        let (client, server) = pair();
        let memory = client
            .nic
            .create_rdma_region(64, &client.ptag, RdmaAccess::default())
            .unwrap();
        for end in [&client, &server] {
            for _ in 0..3 {
                end.vi.post_recv(end.descriptor(64)).unwrap();
            }
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
        assert_eq!(
            server.errors.next_of(&server.vi),
            ErrorCode::ConnLost,
            "order {order}"
        );
        assert!(server.recv().status.is_flushed());
    }
}

#[test]
fn calls_on_a_nic_closed_by_handle_are_errors() {
    let (client, server) = pair();
    client.vi.post_recv(client.descriptor(64)).unwrap();
    vipl::provider::close_nic(client.nic.handle()).unwrap();
    assert_eq!(server.errors.next_of(&server.vi), ErrorCode::ConnLost);
    assert_eq!(
        client.vi.recv_done().unwrap_err(),
        VipError::InvalidParameter
    );
    assert_eq!(client.vi.state().unwrap_err(), VipError::InvalidParameter);
    assert_eq!(
        client.nic.create_ptag().unwrap_err(),
        VipError::InvalidParameter
    );
}

#[test]
fn a_nic_is_opened_and_closed_many_times() {
    let kept = open();
    for _ in 0..200 {
        let end = Endpoint::new();
        end.vi.post_recv(end.descriptor(64)).unwrap();
    }
    let at_once: Vec<Nic> = (0..16).map(|_| open()).collect();
    assert!(
        at_once
            .iter()
            .all(|nic| nic.host_address() == kept.host_address()),
        "one host, one address"
    );
}

#[test]
fn unknown_nic_names_are_refused() {
    drop(open());
    for name in ["", "nosuchnic", "VINIC9999999"] {
        assert_eq!(
            Nic::open(name).unwrap_err(),
            VipError::InvalidParameter,
            "{name}"
        );
    }
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
    const MESSAGES: usize = 2000;
    let (client, server) = pair();
    for _ in 0..32 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
    }
    let credits = std::sync::mpsc::sync_channel::<()>(32);
    for _ in 0..32 {
        credits.0.send(()).unwrap();
    }
    thread::scope(|scope| {
        let (grant, take) = credits;
        scope.spawn(|| {
            let grant = grant;
            for message in 0..MESSAGES {
                let arrived = server.recv().ok().unwrap();
                assert_eq!(arrived.first_bytes(), (message as u64).to_le_bytes());
                server.vi.post_recv(arrived.descriptor).unwrap();
                // Fails after the last send.
                let _ = grant.send(());
            }
        });
        let (spare, used) = std::sync::mpsc::channel();
        for _ in 0..8 {
            spare.send(client.descriptor(8)).unwrap();
        }
        scope.spawn(|| {
            let used = used;
            for message in 0..MESSAGES {
                take.recv_timeout(TIMEOUT).unwrap();
                let mut descriptor = used.recv_timeout(TIMEOUT).unwrap();
                let _: &vipl::Descriptor = &descriptor;
                descriptor
                    .buffer_mut(0)
                    .copy_from_slice(&(message as u64).to_le_bytes());
                client.vi.post_send(descriptor).unwrap();
            }
            drop(take);
        });
        scope.spawn(|| {
            let spare = spare;
            let deadline = Instant::now() + TIMEOUT;
            let mut done = 0;
            while done < MESSAGES {
                assert!(
                    Instant::now() < deadline,
                    "{done} of {MESSAGES} sends are done"
                );
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
fn a_killed_peer_is_a_lost_connection() {
    const NAME: &[u8] = b"lifetime-killed";
    if is_child() {
        let victim = Endpoint::new();
        let own = victim.nic.local_address(b"victim").unwrap();
        let address = victim.nic.local_address(NAME).unwrap();
        retry_no_match(|| victim.vi.connect(&own, &address, WAIT)).unwrap();
        victim.send(victim.message(b"alive")).ok().unwrap();
        loop {
            thread::park();
        }
    }
    let survivor = Endpoint::new();
    for _ in 0..3 {
        survivor.vi.post_recv(survivor.descriptor(8)).unwrap();
    }
    let address = survivor.nic.local_address(NAME).unwrap();
    let mut victim = SecondProcess::start("a_killed_peer_is_a_lost_connection");
    survivor
        .nic
        .connect_wait(&address, WAIT)
        .unwrap()
        .accept(&survivor.vi)
        .unwrap();
    assert_eq!(survivor.recv().ok().unwrap().first_bytes(), b"alive");
    victim.kill();
    assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
    for _ in 0..2 {
        assert!(survivor.recv().status.is_flushed());
    }
    assert_eq!(survivor.vi.state().unwrap(), ViState::Error);
    // The VI can serve the next peer.
    survivor.vi.disconnect().unwrap();
    let next = Endpoint::new();
    connect(&next, &survivor);
    survivor.vi.post_recv(survivor.descriptor(8)).unwrap();
    next.send(next.message(b"next")).ok().unwrap();
    assert_eq!(survivor.recv().first_bytes(), b"next");
}

#[test]
fn exit_without_teardown_leaves_nothing_behind() {
    const NAME: &[u8] = b"life-exiting";
    if is_child() {
        let end = Endpoint::new();
        let own = end.nic.local_address(b"exiting").unwrap();
        let address = end.nic.local_address(NAME).unwrap();
        end.vi.post_recv(end.descriptor(8)).unwrap();
        retry_no_match(|| end.vi.connect(&own, &address, WAIT)).unwrap();
        std::process::exit(0);
    }
    let survivor = Endpoint::new();
    let address = survivor.nic.local_address(NAME).unwrap();
    for _ in 0..3 {
        let exiting = SecondProcess::start("exit_without_teardown_leaves_nothing_behind");
        survivor.vi.post_recv(survivor.descriptor(8)).unwrap();
        survivor
            .nic
            .connect_wait(&address, WAIT)
            .unwrap()
            .accept(&survivor.vi)
            .unwrap();
        exiting.join();
        assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
        assert!(survivor.recv().status.is_flushed());
        survivor.vi.disconnect().unwrap();
    }
    let nowhere = survivor.nic.local_address(&unique_discriminator()).unwrap();
    assert_eq!(
        survivor
            .nic
            .connect_wait(&nowhere, Timeout::Immediate)
            .unwrap_err(),
        VipError::Timeout
    );
}

#[test]
fn reads_of_a_killed_peer_are_flushed() {
    check_reads_of_killed_peer(
        "reads_of_a_killed_peer_are_flushed",
        ReliabilityLevel::ReliableDelivery,
    );
}

#[test]
fn reads_of_a_peer_killed_at_reliable_reception_are_flushed() {
    check_reads_of_killed_peer(
        "reads_of_a_peer_killed_at_reliable_reception_are_flushed",
        ReliabilityLevel::ReliableReception,
    );
}

/// Runs the target, which is killed with reads pending, and its reader, in two processes.
fn check_reads_of_killed_peer(test: &str, level: ReliabilityLevel) {
    const BYTES: usize = 65_536;
    let name = format!("killed-{}", level as u16);
    let name = name.as_bytes();
    if is_child() {
        let readable = RdmaAccess {
            write: false,
            read: true,
        };
        let victim = Endpoint::with(|vi| vi.reliability(level).rdma_read(true));
        let own = victim.nic.local_address(b"victim").unwrap();
        let address = victim.nic.local_address(name).unwrap();
        let memory = victim
            .nic
            .create_rdma_region(BYTES, &victim.ptag, readable)
            .unwrap();
        memory.write(0, &[0x5A; BYTES]);
        retry_no_match(|| victim.vi.connect(&own, &address, WAIT)).unwrap();
        let remote = memory.remote_buffer().to_bytes();
        victim.send(victim.message(&remote)).ok().unwrap();
        loop {
            thread::park();
        }
    }
    let nic = open_as(|config| config.ulp_timeout_ms = Some(600_000));
    let survivor = Endpoint::on(nic, |vi| vi.reliability(level));
    for size in [RemoteBuffer::BYTES, 8] {
        survivor.vi.post_recv(survivor.descriptor(size)).unwrap();
    }
    let address = survivor.nic.local_address(name).unwrap();
    let mut victim = SecondProcess::start(test);
    let mut request = survivor.nic.connect_wait(&address, WAIT).unwrap();
    request.accept(&survivor.vi).unwrap();
    let arrived = survivor.recv().ok().unwrap();
    let remote = RemoteBuffer::from_bytes(arrived.first_bytes().try_into().unwrap());
    // The victim serves no more reads, but is still connected.
    victim.stop();
    for _ in 0..3 {
        let mut read = survivor.descriptor(BYTES);
        read.set_operation(Operation::RdmaRead(remote));
        survivor.vi.post_send(read).unwrap();
    }
    survivor.vi.post_send(survivor.message(b"behind")).unwrap();
    for _ in 0..100 {
        assert_eq!(survivor.vi.send_done().unwrap_err(), VipError::NotDone);
    }
    victim.kill();
    assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
    for number in 0..4 {
        let flushed = survivor.vi.send_wait(WAIT).unwrap().unwrap();
        assert!(flushed.status.is_flushed(), "number {number}");
        let is_read = flushed.status.operation() == CompletedOperation::RdmaRead;
        assert_eq!(is_read, number < 3);
        assert!(!is_read || flushed.descriptor.buffer(0).iter().all(|byte| *byte == 0));
    }
    assert!(survivor.recv().status.is_flushed());
}
