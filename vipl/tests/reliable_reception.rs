//! Reliable Reception: a send completes when the peer has placed it, or with the error that the peer reports.

mod common;

use common::{
    Endpoint, SecondProcess, WAIT, connect, is_child, open, open_as, pattern, retry_no_match,
};
use vipl::{
    CompletedOperation, Descriptor, ErrorCode, Operation, RdmaAccess, RdmaRegion, ReliabilityLevel,
    RemoteBuffer, Status, ViState, VipError,
};

const PROTECTION_ERROR: u32 = 0x04;
const LENGTH_ERROR: u32 = 0x08;
const FLUSHED: u32 = 0x20;
const RDMA_PROT_ERROR: u32 = 0x80;
const REMOTE_DESC_ERROR: u32 = 0x100;

fn errors_of(status: Status) -> u32 {
    status.raw() & 0x1FE
}

/// Connects two VIs of Reliable Reception on two stations; the second allows RDMA writes.
fn pair() -> (Endpoint, Endpoint) {
    let client = Endpoint::on(open(), |vi| {
        vi.reliability(ReliabilityLevel::ReliableReception)
    });
    let server = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
        vi.reliability(ReliabilityLevel::ReliableReception)
            .rdma_write(true)
    });
    connect(&client, &server);
    (client, server)
}

fn writable(end: &Endpoint, len_bytes: usize) -> RdmaRegion {
    let access = RdmaAccess {
        write: true,
        read: false,
    };
    end.nic
        .create_rdma_region(len_bytes, &end.ptag, access)
        .unwrap()
}

fn write_of(end: &Endpoint, bytes: &[u8], remote: RemoteBuffer) -> Descriptor {
    let mut descriptor = end.message(bytes);
    descriptor.set_operation(Operation::RdmaWrite(remote));
    descriptor
}

fn sent(end: &Endpoint) -> (u32, CompletedOperation, usize) {
    let done = end.vi.send_wait(WAIT).unwrap().unwrap();
    (
        errors_of(done.status),
        done.status.operation(),
        done.length_bytes(),
    )
}

/// Checks that both VIs have lost the connection, with one ConnLost each.
fn expect_break(client: &Endpoint, server: &Endpoint) {
    for end in [client, server] {
        assert_eq!(end.errors.next_of(&end.vi), ErrorCode::ConnLost);
        assert_eq!(end.vi.state().unwrap(), ViState::Error);
        assert!(end.errors.none());
    }
}

#[test]
fn completed_send_or_write_has_been_placed() {
    let (client, server) = pair();
    let memory = writable(&server, 65_536);
    for (round, size) in [0, 1, 8, 64, 2096, 2097, 10_000, 65_536]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(round, size);
        server.vi.post_recv(server.descriptor(size.max(1))).unwrap();
        client.vi.post_send(client.message(&bytes)).unwrap();
        assert_eq!(sent(&client), (0, CompletedOperation::Send, size));
        // Without waiting: at this level the message is placed before the send completes.
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert!(arrived.first_bytes() == bytes, "{size} bytes");
        let bytes = pattern(round + 100, size);
        let write = write_of(&client, &bytes, memory.remote_buffer());
        client.vi.post_send(write).unwrap();
        assert_eq!(sent(&client), (0, CompletedOperation::RdmaWrite, size));
        let mut seen = vec![0; size];
        memory.read(0, &mut seen);
        assert!(seen == bytes, "{size} bytes written");
    }
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn immediate_data_is_delivered() {
    let (client, server) = pair();
    let memory = writable(&server, 64);
    for size in [0, 8] {
        let mut write = write_of(&client, &pattern(1, size), memory.remote_buffer());
        write.set_immediate(Some(0x8000_0001));
        server.vi.post_recv(server.empty(0)).unwrap();
        client.vi.post_send(write).unwrap();
        assert_eq!(sent(&client), (0, CompletedOperation::RdmaWrite, size));
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(
            (arrived.immediate(), arrived.length_bytes()),
            (Some(0x8000_0001), size)
        );
    }
}

#[test]
fn sends_in_flight_complete_in_order() {
    for in_flight in [1, 3, 256] {
        let client = Endpoint::on(open_as(|config| config.max_in_flight = in_flight), |vi| {
            vi.reliability(ReliabilityLevel::ReliableReception)
        });
        let server = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
            vi.reliability(ReliabilityLevel::ReliableReception)
        });
        connect(&client, &server);
        for round in 0..3 {
            for (from, to) in [(&client, &server), (&server, &client)] {
                for message in 0..300 {
                    to.vi.post_recv(to.descriptor(message + round + 1)).unwrap();
                }
                for message in 0..300 {
                    let bytes = pattern(message, message + round);
                    from.vi.post_send(from.message(&bytes)).unwrap();
                }
            }
            for end in [&client, &server] {
                for message in 0..300 {
                    let expected = (0, CompletedOperation::Send, message + round);
                    assert_eq!(sent(end), expected);
                }
            }
            for end in [&client, &server] {
                for message in 0..300 {
                    let arrived = end.recv().ok().unwrap();
                    assert_eq!(arrived.first_bytes(), pattern(message, message + round));
                }
            }
        }
    }
}

#[test]
fn nothing_behind_a_failed_send_is_processed() {
    const GOOD: usize = 10;
    let (client, server) = pair();
    let memory = writable(&server, 64);
    for message in 0..GOOD {
        server.vi.post_recv(server.descriptor(message + 1)).unwrap();
    }
    client.vi.post_recv(client.descriptor(8)).unwrap();
    for message in 0..GOOD {
        let bytes = pattern(message, message);
        client.vi.post_send(client.message(&bytes)).unwrap();
    }
    // A message without a receive descriptor, and sends behind it.
    client.vi.post_send(client.message(b"too many")).unwrap();
    for offset in 0..20 {
        let remote = memory.remote_buffer().at(offset);
        let write = write_of(&client, &[0xEE; 8], remote);
        client.vi.post_send(write).unwrap();
        client.vi.post_send(client.message(b"behind")).unwrap();
    }
    for message in 0..GOOD {
        assert_eq!(sent(&client), (0, CompletedOperation::Send, message));
    }
    let failed = (REMOTE_DESC_ERROR, CompletedOperation::Send, 0);
    assert_eq!(sent(&client), failed);
    for _ in 0..20 {
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::RdmaWrite, 0));
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::Send, 0));
    }
    assert!(client.vi.send_done().unwrap().is_none());
    assert_eq!(errors_of(client.recv().status), FLUSHED);
    assert_eq!(
        server.errors.next_of(&server.vi),
        ErrorCode::RecvqEmpty,
        "reported where the descriptor is missing"
    );
    expect_break(&client, &server);
    for message in 0..GOOD {
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(arrived.first_bytes(), pattern(message, message));
    }
    assert!(server.vi.recv_done().unwrap().is_none());
    let mut seen = [0xFF; 64];
    memory.read(0, &mut seen);
    assert_eq!(seen, [0; 64], "the memory of the target");
}

#[test]
fn too_small_receive_is_reported_at_both_sides() {
    type Receive = fn(&Endpoint) -> Descriptor;
    let receives: [(&str, u32, usize, Receive); 2] = [
        ("too small", LENGTH_ERROR, 9, |end| end.descriptor(8)),
        ("no segment", LENGTH_ERROR, 1, |end| end.empty(0)),
    ];
    for (name, expected, size, receive) in receives {
        let (client, server) = pair();
        server.vi.post_recv(receive(&server)).unwrap();
        server.vi.post_recv(server.descriptor(64)).unwrap();
        let bytes = pattern(1, size);
        client.vi.post_send(client.message(&bytes)).unwrap();
        client.vi.post_send(client.message(b"behind")).unwrap();
        let failed = (REMOTE_DESC_ERROR, CompletedOperation::Send, 0);
        assert_eq!(sent(&client), failed, "{name}");
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::Send, 0));
        let arrived = server.recv();
        assert_eq!(errors_of(arrived.status), expected, "{name}");
        assert_eq!(arrived.length_bytes(), 0);
        assert_eq!(errors_of(server.recv().status), FLUSHED);
        expect_break(&client, &server);
    }
}

#[test]
fn refused_write_is_reported_to_the_writer() {
    for immediate in [None, Some(7)] {
        let (client, server) = pair();
        let memory = writable(&server, 64);
        server.vi.post_recv(server.descriptor(8)).unwrap();
        let invalid = RemoteBuffer {
            handle: vipl::MemoryHandle(memory.handle().0 ^ 0x5A5A_0000),
            ..memory.remote_buffer()
        };
        let mut write = write_of(&client, &[0xEE; 8], invalid);
        write.set_immediate(immediate);
        client.vi.post_send(write).unwrap();
        client
            .vi
            .post_send(write_of(&client, &[0xEE; 8], memory.remote_buffer()))
            .unwrap();
        let failed = (RDMA_PROT_ERROR, CompletedOperation::RdmaWrite, 0);
        assert_eq!(sent(&client), failed);
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::RdmaWrite, 0));
        let arrived = server.recv();
        if immediate.is_some() {
            assert_eq!(errors_of(arrived.status), PROTECTION_ERROR);
        } else {
            assert_eq!(errors_of(arrived.status), FLUSHED);
            let code = server.errors.next_of(&server.vi);
            assert_eq!(code, ErrorCode::RdmawProt);
        }
        expect_break(&client, &server);
        assert_eq!(memory.load_u64(0), 0);
    }
}

#[test]
fn local_error_completes_behind_sends_in_flight() {
    let (client, server) = pair();
    let memory = writable(&server, 64);
    for _ in 0..4 {
        server.vi.post_recv(server.descriptor(65_536)).unwrap();
    }
    for round in 0..3 {
        let bytes = pattern(round, 60_000 + round);
        client.vi.post_send(client.message(&bytes)).unwrap();
    }
    // Longer than the transfer size.
    let long = client.descriptor(common::MAX_TRANSFER_BYTES + 1);
    client.vi.post_send(long).unwrap();
    let behind = write_of(&client, &[0xEE; 8], memory.remote_buffer());
    client.vi.post_send(behind).unwrap();
    for round in 0..3 {
        let expected = (0, CompletedOperation::Send, 60_000 + round);
        assert_eq!(sent(&client), expected);
    }
    assert_eq!(sent(&client), (LENGTH_ERROR, CompletedOperation::Send, 0));
    assert_eq!(sent(&client), (FLUSHED, CompletedOperation::RdmaWrite, 0));
    expect_break(&client, &server);
    for round in 0..3 {
        let arrived = server.recv().ok().unwrap();
        assert!(arrived.first_bytes() == pattern(round, 60_000 + round));
    }
    assert_eq!(errors_of(server.recv().status), FLUSHED);
    assert_eq!(memory.load_u64(0), 0);
}

#[test]
fn unacknowledged_sends_are_flushed_when_the_peer_disconnects() {
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    client.send(client.message(b"arrives")).ok().unwrap();
    server.vi.disconnect().unwrap();
    for _ in 0..5 {
        client.vi.post_send(client.message(b"too late")).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::Send, 0));
    }
    assert_eq!(client.errors.next_of(&client.vi), ErrorCode::ConnLost);
    assert!(server.errors.none());
}

#[test]
fn sends_to_a_killed_peer_are_flushed() {
    const NAME: &[u8] = b"reception-killed";
    let level = ReliabilityLevel::ReliableReception;
    if is_child() {
        let victim = Endpoint::with(|vi| vi.reliability(level));
        for _ in 0..8 {
            victim.vi.post_recv(victim.descriptor(8)).unwrap();
        }
        let own = victim.nic.local_address(b"victim").unwrap();
        let address = victim.nic.local_address(NAME).unwrap();
        retry_no_match(|| victim.vi.connect(&own, &address, WAIT)).unwrap();
        victim.send(victim.message(b"alive")).ok().unwrap();
        loop {
            std::thread::park();
        }
    }
    let nic = open_as(|config| config.ulp_timeout_ms = Some(600_000));
    let survivor = Endpoint::on(nic, |vi| vi.reliability(level));
    survivor.vi.post_recv(survivor.descriptor(8)).unwrap();
    let address = survivor.nic.local_address(NAME).unwrap();
    let mut victim = SecondProcess::start("sends_to_a_killed_peer_are_flushed");
    let mut request = survivor.nic.connect_wait(&address, WAIT).unwrap();
    request.accept(&survivor.vi).unwrap();
    assert_eq!(survivor.recv().ok().unwrap().first_bytes(), b"alive");
    survivor.send(survivor.message(b"answered")).ok().unwrap();
    victim.stop();
    for _ in 0..3 {
        survivor.vi.post_send(survivor.message(b"never")).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(survivor.vi.send_done().unwrap_err(), VipError::NotDone);
    }
    victim.kill();
    for _ in 0..3 {
        assert_eq!(sent(&survivor), (FLUSHED, CompletedOperation::Send, 0));
    }
    assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
}
