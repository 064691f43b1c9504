//! Sends, RDMA writes and reads that wait for the peer: order of completion, and what is behind a failed one.

use crate::common;
use crate::common::{
    Endpoint, MAX_TRANSFER_BYTES, READ_WRITE, READABLE, RELIABLE, WAIT, WRITABLE, connect, open_as,
    pattern,
};
use pmd::config::NicConfig;
use vipl::{
    Completed, CompletedOperation, CqEntry, Descriptor, ErrorCode, MemoryHandle, RdmaRegion,
    ReliabilityLevel, RemoteBuffer, ViState, VipError,
};

const LENGTH_ERROR: u32 = 0x08;
const FLUSHED: u32 = 0x20;
const RDMA_PROT_ERROR: u32 = 0x80;
const REMOTE_DESC_ERROR: u32 = 0x100;

fn errors_of(completed: &Completed) -> u32 {
    completed.status.raw() & 0x1FE
}

/// Connects two VIs of this level on two stations with these changes; the second allows RDMA.
fn pair_of(
    level: ReliabilityLevel,
    limits: impl Fn(&mut NicConfig),
    client: impl FnOnce(vipl::ViBuilder) -> vipl::ViBuilder,
) -> (Endpoint, Endpoint) {
    let client = Endpoint::on(open_as(&limits), |vi| client(vi.reliability(level)));
    let nic = open_as(|config| {
        limits(config);
        config.limits.max_cq = 512;
    });
    let server = Endpoint::on(nic, |vi| {
        vi.reliability(level).rdma_read(true).rdma_write(true)
    });
    connect(&client, &server);
    (client, server)
}

fn pair(level: ReliabilityLevel) -> (Endpoint, Endpoint) {
    pair_of(level, |_| (), |vi| vi)
}

/// Memory of this endpoint with this content that peers may read.
fn memory(end: &Endpoint, bytes: &[u8]) -> RdmaRegion {
    let memory = end.region(bytes.len(), READABLE);
    memory.write(0, bytes);
    memory
}

/// Waits for the next send; returns its errors, operation and length.
fn sent(end: &Endpoint) -> (u32, CompletedOperation, usize) {
    let done = end.sent();
    let errors = errors_of(&done);
    (errors, done.status.operation(), done.length_bytes())
}

/// Checks that both VIs have lost the connection, with one ConnLost each.
fn expect_break(client: &Endpoint, server: &Endpoint) {
    for end in [client, server] {
        end.expect_errors(&[ErrorCode::ConnLost]);
        assert_eq!(end.vi.state().unwrap(), ViState::Error);
        assert!(end.errors.none());
    }
}

#[test]
fn read_of_the_maximum_transfer_size_is_complete() {
    for level in RELIABLE {
        let longest = common::open().attributes().max_transfer_size;
        let reader = Endpoint::on(common::open(), |vi| {
            vi.reliability(level).max_transfer_bytes(longest)
        });
        let target = Endpoint::on(open_as(|config| config.limits.max_cq = 512), |vi| {
            let vi = vi.reliability(level).max_transfer_bytes(longest);
            vi.rdma_read(true)
        });
        connect(&reader, &target);
        let bytes = pattern(8, longest as usize);
        let memory = memory(&target, &bytes);
        let done = reader.send(reader.read_of(memory.remote_buffer(), bytes.len()));
        assert!(done.ok().unwrap().first_bytes() == bytes);
        let refused = reader.send(reader.read_of(memory.remote_buffer(), bytes.len() + 1));
        assert!(refused.status.is_length_error(), "{}", refused.status);
    }
}

/// Posts reads, sends and writes alternately; returns the expected operation and length of each completion.
fn post_mixture(
    reader: &Endpoint,
    target: &Endpoint,
    memory: &RdmaRegion,
    rounds: usize,
) -> Vec<(CompletedOperation, usize)> {
    let (source, sink) = (memory.remote_buffer(), memory.remote_buffer().at(65_536));
    let mut posted = Vec::new();
    for round in 0..rounds {
        target.post_receives(1, 16);
        let descriptors: [(Descriptor, _); 4] = [
            (
                reader.read_of(source, 65_536 - round),
                CompletedOperation::RdmaRead,
            ),
            (
                reader.message(&[round as u8; 16][..round % 16]),
                CompletedOperation::Send,
            ),
            (
                reader.read_of(source.at(7), round),
                CompletedOperation::RdmaRead,
            ),
            (
                reader.write_of(&pattern(round, 100 + round), sink),
                CompletedOperation::RdmaWrite,
            ),
        ];
        for (descriptor, operation) in descriptors {
            posted.push((operation, descriptor.used_bytes()));
            reader.vi.post_send(descriptor).unwrap();
        }
    }
    posted
}

#[test]
fn completions_keep_the_posting_order_behind_pending_reads() {
    const ROUNDS: usize = 12;
    // The minimum, some, and more than are posted.
    let limits = [(1, 1), (2, 5), (256, 256)];
    for (level, (reads, in_flight)) in RELIABLE.into_iter().flat_map(|l| limits.map(|n| (l, n))) {
        let limits = |config: &mut NicConfig| {
            (config.limits.max_rdma_reads, config.limits.max_in_flight) = (reads, in_flight);
        };
        let cq = open_as(limits).create_cq(256).unwrap();
        let (reader, target) = pair_of(level, limits, |vi| vi.send_cq(&cq));
        let bytes = pattern(1, 65_536);
        let memory = target.region(65_536 + 4096, READ_WRITE);
        memory.write(0, &bytes);
        let posted = post_mixture(&reader, &target, &memory, ROUNDS);
        for (number, (operation, length)) in posted.into_iter().enumerate() {
            let entry = CqEntry {
                vi: reader.vi.handle(),
                recv_queue: false,
            };
            assert_eq!(cq.wait(WAIT).unwrap(), entry);
            let done = reader.vi.send_done().expect("the descriptor of its entry");
            let done = done.unwrap().ok().unwrap();
            let found = (done.status.operation(), done.length_bytes());
            assert_eq!(found, (operation, length), "number {number}");
            if operation == CompletedOperation::RdmaRead {
                let at = if number % 4 == 0 { 0 } else { 7 };
                assert!(done.first_bytes() == &bytes[at..at + length]);
            }
        }
        let none = Err(VipError::NotDone);
        assert_eq!(cq.done(), none, "one entry for each descriptor");
        for round in 0..ROUNDS {
            target.expect_message(&[round as u8; 16][..round % 16]);
        }
    }
}

#[test]
fn reads_before_a_refused_read_complete_or_are_flushed_in_order() {
    for level in RELIABLE {
        let (reader, target) = pair(level);
        let bytes = pattern(2, 65_536);
        let memory = memory(&target, &bytes);
        let valid = memory.remote_buffer();
        let invalid = RemoteBuffer {
            handle: MemoryHandle(0),
            ..valid
        };
        let reads = [(valid, bytes.len()); 3].into_iter();
        for (remote, length) in reads.chain([(invalid, 8), (valid, 8)]) {
            let read = reader.read_of(remote, length);
            reader.vi.post_send(read).unwrap();
        }
        // The refusal does not wait for the pending responses before it.
        let mut was_flushed = false;
        for _ in 0..3 {
            let done = reader.sent();
            if done.status.is_ok() {
                assert!(!was_flushed && done.first_bytes() == bytes);
            } else {
                assert_eq!(errors_of(&done), FLUSHED);
                was_flushed = true;
            }
        }
        assert_eq!(errors_of(&reader.sent()), RDMA_PROT_ERROR);
        let flushed = reader.sent();
        assert_eq!(errors_of(&flushed), FLUSHED);
        assert_eq!(flushed.descriptor.buffer(0), [0; 8], "nothing is read");
        target.expect_errors(&[ErrorCode::RdmarProt, ErrorCode::ConnLost]);
        reader.expect_errors(&[ErrorCode::ConnLost]);
    }
}

#[test]
fn completed_send_or_write_has_been_placed() {
    let (client, server) = pair(ReliabilityLevel::ReliableReception);
    let memory = server.region(65_536, WRITABLE);
    let sizes = [0, 1, 8, 64, 2096, 2097, 10_000, 65_536];
    for (round, size) in sizes.into_iter().enumerate() {
        let bytes = pattern(round, size);
        server.post_receives(1, size.max(1));
        client.post_message(&bytes);
        assert_eq!(sent(&client), (0, CompletedOperation::Send, size));
        // Without waiting: at this level the message is placed before the send completes.
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert!(arrived.first_bytes() == bytes, "{size} bytes");
        for (message, immediate) in [(round + 100, None), (round + 200, Some(round as u32))] {
            let bytes = pattern(message, size);
            let mut write = client.write_of(&bytes, memory.remote_buffer());
            write.set_immediate(immediate);
            if immediate.is_some() {
                server.vi.post_recv(server.empty(0)).unwrap();
            }
            client.vi.post_send(write).unwrap();
            assert_eq!(sent(&client), (0, CompletedOperation::RdmaWrite, size));
            let mut seen = vec![0; size];
            memory.read(0, &mut seen);
            assert!(seen == bytes, "{size} bytes written, {immediate:?}");
            let arrived = server.vi.recv_done().unwrap();
            let found = arrived.map(|arrived| {
                let arrived = arrived.ok().unwrap();
                (arrived.immediate(), arrived.length_bytes())
            });
            assert_eq!(found, immediate.map(|_| (immediate, size)));
        }
    }
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn sends_in_flight_complete_in_order() {
    const EACH: usize = 300;
    for in_flight in [1, 3, 256] {
        let limits = |config: &mut NicConfig| config.limits.max_in_flight = in_flight;
        let (client, server) = pair_of(ReliabilityLevel::ReliableReception, limits, |vi| vi);
        for round in 0..3 {
            for (from, to) in [(&client, &server), (&server, &client)] {
                for message in 0..EACH {
                    to.post_receives(1, message + round + 1);
                }
                for message in 0..EACH {
                    from.post_message(&pattern(message, message + round));
                }
            }
            for end in [&client, &server] {
                for message in 0..EACH {
                    let expected = (0, CompletedOperation::Send, message + round);
                    assert_eq!(sent(end), expected);
                }
            }
            for end in [&client, &server] {
                for message in 0..EACH {
                    end.expect_message(&pattern(message, message + round));
                }
            }
        }
    }
}

#[test]
fn nothing_behind_a_failed_send_is_processed() {
    const GOOD: usize = 10;
    let (client, server) = pair(ReliabilityLevel::ReliableReception);
    let memory = server.region(64, WRITABLE);
    for message in 0..GOOD {
        server.post_receives(1, message + 1);
    }
    client.post_receives(1, 8);
    for message in 0..GOOD {
        client.post_message(&pattern(message, message));
    }
    // A message without a receive descriptor, and sends behind it.
    client.post_message(b"too many");
    for offset in 0..20 {
        let remote = memory.remote_buffer().at(offset);
        let write = client.write_of(&[0xEE; 8], remote);
        client.vi.post_send(write).unwrap();
        client.post_message(b"behind");
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
    assert_eq!(errors_of(&client.recv()), FLUSHED);
    // Reported where the descriptor is missing.
    server.expect_errors(&[ErrorCode::RecvqEmpty]);
    expect_break(&client, &server);
    for message in 0..GOOD {
        server.expect_message(&pattern(message, message));
    }
    assert!(server.vi.recv_done().unwrap().is_none());
    let mut seen = [0xFF; 64];
    memory.read(0, &mut seen);
    assert_eq!(seen, [0; 64], "the memory of the target");
}

/// The target reports the cause before the lost connection, and places nothing that is behind it.
#[test]
fn cause_of_a_break_is_reported_first() {
    for level in RELIABLE {
        let (client, server) = pair(level);
        client.post_message(b"no receive");
        server.expect_errors(&[ErrorCode::RecvqEmpty]);
        expect_break(&client, &server);

        let (client, server) = pair(level);
        let memory = server.region(64, WRITABLE);
        let valid = memory.remote_buffer();
        let handle = MemoryHandle(valid.handle.0 ^ 0x5A5A_0000);
        for remote in [RemoteBuffer { handle, ..valid }, valid] {
            let write = client.write_of(&[0xEE; 8], remote);
            client.vi.post_send(write).unwrap();
        }
        server.expect_errors(&[ErrorCode::RdmawProt]);
        expect_break(&client, &server);
        if level == ReliabilityLevel::ReliableReception {
            for errors in [RDMA_PROT_ERROR, FLUSHED] {
                assert_eq!(sent(&client), (errors, CompletedOperation::RdmaWrite, 0));
            }
        }
        assert_eq!(memory.load_u64(0), 0);
    }
}

#[test]
fn local_error_completes_behind_sends_in_flight() {
    let (client, server) = pair(ReliabilityLevel::ReliableReception);
    let memory = server.region(64, WRITABLE);
    server.post_receives(4, 65_536);
    for round in 0..3 {
        client.post_message(&pattern(round, 60_000 + round));
    }
    // Longer than the transfer size.
    let long = client.descriptor(MAX_TRANSFER_BYTES + 1);
    client.vi.post_send(long).unwrap();
    let behind = client.write_of(&[0xEE; 8], memory.remote_buffer());
    client.vi.post_send(behind).unwrap();
    for round in 0..3 {
        let expected = (0, CompletedOperation::Send, 60_000 + round);
        assert_eq!(sent(&client), expected);
    }
    assert_eq!(sent(&client), (LENGTH_ERROR, CompletedOperation::Send, 0));
    assert_eq!(sent(&client), (FLUSHED, CompletedOperation::RdmaWrite, 0));
    expect_break(&client, &server);
    for round in 0..3 {
        server.expect_message(&pattern(round, 60_000 + round));
    }
    assert_eq!(errors_of(&server.recv()), FLUSHED);
    assert_eq!(memory.load_u64(0), 0);
}

#[test]
fn unacknowledged_sends_are_flushed_when_the_peer_disconnects() {
    let (client, server) = pair(ReliabilityLevel::ReliableReception);
    server.post_receives(1, 8);
    client.send_bytes(b"arrives");
    server.vi.disconnect().unwrap();
    for _ in 0..5 {
        client.post_message(b"too late");
    }
    for _ in 0..5 {
        assert_eq!(sent(&client), (FLUSHED, CompletedOperation::Send, 0));
    }
    client.expect_errors(&[ErrorCode::ConnLost]);
    assert!(server.errors.none());
}
