//! RDMA writes and reads between two stations of a segment without frames: same effects, errors and order as in frames.

#[path = "../common/mod.rs"]
mod common;

mod sends;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use common::raw::{Pages, register};
use common::{
    Endpoint, LEVELS, READ_WRITE, READABLE, RELIABLE, SecondProcess, WRITABLE, connect, counter,
    is_child, pattern, wait_until,
};
use pmd::config::{Network, NicConfig};
use vipl::{
    ErrorCode, MemoryHandle, Nic, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer,
    SharedMemory, Status, provider as vip,
};

/// Name by which the server of a second process listens.
const SERVICE: &[u8] = b"direct";

fn max_direct_files(config: &mut NicConfig) -> &mut u32 {
    match &mut config.network {
        Network::Shm(shm) => &mut shm.max_direct_files,
        other => panic!("{other:?}"),
    }
}

/// The configuration of a NIC that no other caller has, and so of a station of its own: they differ in the number of VIs.
fn config_of(files: u32) -> NicConfig {
    static NEXT: AtomicU32 = AtomicU32::new(8);
    common::config(|config| {
        config.limits.max_vi = NEXT.fetch_add(1, Ordering::Relaxed);
        *max_direct_files(config) = files;
    })
}

fn nic(files: u32) -> Nic {
    Nic::open_with(&config_of(files)).unwrap()
}

fn end(nic: Nic, level: ReliabilityLevel) -> Endpoint {
    Endpoint::on(nic, |vi| {
        let reads = level != ReliabilityLevel::UnreliableDelivery;
        vi.reliability(level).rdma_write(true).rdma_read(reads)
    })
}

/// Two connected VIs of this level on NICs of their own, which map at most these numbers of each other's files.
fn stations(level: ReliabilityLevel, files: [u32; 2]) -> (Endpoint, Endpoint) {
    let ends = (end(nic(files[0]), level), end(nic(files[1]), level));
    connect(&ends.0, &ends.1);
    ends
}

const FILES: [u32; 2] = [1024, 1024];
const RELIABLE_DELIVERY: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

fn direct_messages(end: &Endpoint) -> u64 {
    counter(end.nic.handle(), "direct_messages")
}

/// Writes until the peer has handled all frames, after which operations need none.
fn end_frames(client: &Endpoint, remote: RemoteBuffer) {
    let before = direct_messages(client);
    wait_until("an operation needs no frames", || {
        client.send(client.write_of(&[0], remote)).ok().unwrap();
        direct_messages(client) > before
    });
}

#[test]
fn writes_and_reads_need_no_frames() {
    for level in RELIABLE {
        let (client, server) = stations(level, FILES);
        let region = server.region(1 << 16, READ_WRITE);
        let remote = region.remote_buffer();
        end_frames(&client, remote);
        let (messages, frames) = (
            direct_messages(&client),
            counter(client.nic.handle(), "tx_frames"),
        );
        for len_bytes in [1, 7, 8, 64, 4096, 65535, 65536] {
            let bytes = pattern(len_bytes, len_bytes);
            client.send(client.write_of(&bytes, remote)).ok().unwrap();
            let mut there = vec![0; len_bytes];
            region.read(0, &mut there);
            assert!(there == bytes, "{level:?}: {len_bytes} bytes");
            let read = client.send(client.read_of(remote, len_bytes)).ok().unwrap();
            assert!(
                read.descriptor.buffer(0) == bytes,
                "{level:?}: {len_bytes} bytes"
            );
        }
        assert_eq!(direct_messages(&client) - messages, 14);
        assert_eq!(counter(client.nic.handle(), "tx_frames"), frames);
    }
}

#[test]
fn segments_at_any_offset_are_gathered_and_scattered() {
    let (client, server) = stations(RELIABLE_DELIVERY, FILES);
    let region = server.region(4096, READ_WRITE);
    end_frames(&client, region.remote_buffer());
    for offset in [0, 1, 5, 8, 13] {
        region.write(0, &[0xEE; 4096]);
        let remote = region.remote_buffer().at(offset as u64);
        let parts = [pattern(1, 3), pattern(2, 18), pattern(3, 40)];
        let mut descriptor = client.empty(3);
        for part in &parts {
            let mut buffer = client.buffer(part.len());
            buffer.copy_from_slice(part);
            descriptor.push(buffer).unwrap();
        }
        descriptor.set_operation(Operation::RdmaWrite(remote));
        let before = direct_messages(&client);
        let written = client.send(descriptor).ok().unwrap();
        assert_eq!(direct_messages(&client), before + 1);
        let mut there = [0; 4096];
        region.read(0, &mut there);
        let bytes = parts.concat();
        assert_eq!(&there[offset..offset + bytes.len()], &bytes[..]);
        assert!(there[..offset].iter().all(|byte| *byte == 0xEE));
        assert!(
            there[offset + bytes.len()..]
                .iter()
                .all(|byte| *byte == 0xEE)
        );
        let mut descriptor = written.descriptor;
        descriptor.set_operation(Operation::RdmaRead(remote));
        let read = client.send(descriptor).ok().unwrap().descriptor;
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(read.buffer(index), &part[..]);
        }
    }
}

#[test]
fn key_of_either_side_disables_direct_access() {
    for files in [[0, 1024], [1024, 0], [0, 0]] {
        let (client, server) = stations(RELIABLE_DELIVERY, files);
        let region = server.region(64, READ_WRITE);
        for number in 0..20 {
            let bytes = pattern(number, 64);
            client
                .send(client.write_of(&bytes, region.remote_buffer()))
                .ok()
                .unwrap();
            let read = client.send(client.read_of(region.remote_buffer(), 64));
            assert!(read.ok().unwrap().descriptor.buffer(0) == bytes);
        }
        let own = client.region(64, READ_WRITE);
        for _ in 0..20 {
            server
                .send(server.read_of(own.remote_buffer(), 64))
                .ok()
                .unwrap();
        }
        assert_eq!(direct_messages(&client) + direct_messages(&server), 0);
    }
}

#[test]
fn nic_that_is_opened_again_has_direct_access_again() {
    let server = end(nic(1024), RELIABLE_DELIVERY);
    let mut again = None;
    for _ in 0..3 {
        let config = again.get_or_insert_with(|| config_of(1024));
        let client = end(Nic::open_with(config).unwrap(), RELIABLE_DELIVERY);
        connect(&client, &server);
        let (region, own) = (server.region(64, READ_WRITE), client.region(64, READ_WRITE));
        end_frames(&client, region.remote_buffer());
        end_frames(&server, own.remote_buffer());
        drop((own, client));
        server.expect_errors(&[ErrorCode::ConnLost]);
        server.vi.disconnect().unwrap();
    }
}

/// An operation that the peer refuses.
#[derive(Clone, Copy, Debug)]
enum Refused {
    WriteToReadOnly,
    ReadOfWriteOnly,
    PastTheEnd,
    UnknownHandle,
    WithoutRight,
    Deregistered,
}

/// Carries out a refused operation after some that are allowed; returns the status of its descriptor and the errors
/// that client and server see.
fn outcome(level: ReliabilityLevel, refused: Refused, files: u32) -> (Status, Vec<ErrorCode>) {
    let client = end(nic(files), level);
    let enabled = !matches!(refused, Refused::WithoutRight);
    let server = Endpoint::on(nic(files), |vi| {
        vi.reliability(level).rdma_write(true).rdma_read(enabled)
    });
    connect(&client, &server);
    let all = server.region(4096, WRITABLE);
    let read_only = server.region(4096, READABLE);
    let gone = server.region(4096, READ_WRITE).remote_buffer();
    if files > 0 {
        end_frames(&client, all.remote_buffer());
    }
    let (at, read_at) = (all.remote_buffer(), read_only.remote_buffer());
    let unknown = RemoteBuffer {
        handle: MemoryHandle(at.handle.0 ^ 1 << 20),
        ..at
    };
    let descriptor = match refused {
        Refused::WriteToReadOnly => client.write_of(b"refused", read_at),
        Refused::ReadOfWriteOnly => client.read_of(at, 8),
        Refused::PastTheEnd => client.write_of(b"refused", at.at(4090)),
        Refused::UnknownHandle => client.write_of(b"refused", unknown),
        Refused::WithoutRight => client.read_of(read_at, 8),
        Refused::Deregistered => client.write_of(b"refused", gone),
    };
    let sent = client.send(descriptor);
    let errors = |end: &Endpoint| end.errors.next_of(&end.vi);
    let lost = match level {
        ReliabilityLevel::UnreliableDelivery => Vec::new(),
        _ => vec![errors(&client), errors(&server), errors(&server)],
    };
    (sent.status, lost)
}

#[test]
fn refused_operations_have_the_errors_of_frames() {
    let all = [
        Refused::WriteToReadOnly,
        Refused::ReadOfWriteOnly,
        Refused::PastTheEnd,
        Refused::UnknownHandle,
        Refused::WithoutRight,
        Refused::Deregistered,
    ];
    for level in RELIABLE {
        for refused in all {
            let in_frames = outcome(level, refused, 0);
            assert_eq!(
                outcome(level, refused, 1024),
                in_frames,
                "{level:?} {refused:?}"
            );
        }
    }
}

#[test]
fn write_comes_after_the_sends_and_writes_before_it() {
    const BYTES: usize = 3 * 4096;
    // A long flag waits for what is before it, and is then written without frames; a short one is mostly in frames.
    const FLAG_BYTES: usize = 2 * 4096;
    for level in LEVELS {
        let (client, server) = stations(level, FILES);
        let flag = server.region(FLAG_BYTES, READ_WRITE);
        let heap = Pages::new(4);
        let ptag = Some(server.ptag.handle());
        let handle = register(
            server.nic.handle(),
            ptag,
            heap.at(0),
            heap.bytes(),
            WRITABLE,
        );
        let handle = handle.unwrap();
        let on_heap = RemoteBuffer {
            address: heap.at(0),
            handle,
        };
        for number in 1..500u64 {
            server.post_receives(1, 8);
            let bytes = [number as u8; BYTES];
            client
                .vi
                .post_send(client.write_of(&bytes, on_heap))
                .unwrap();
            client.post_message(&number.to_ne_bytes());
            let words = if number % 2 == 0 { 1 } else { FLAG_BYTES / 8 };
            let at = flag.remote_buffer().at((FLAG_BYTES - 8 * words) as u64);
            let write = client.write_of(&number.to_ne_bytes().repeat(words), at);
            client.vi.post_send(write).unwrap();
            wait_until("the flag is written", || {
                flag.load_u64(FLAG_BYTES - 8) == number
            });
            assert!(
                (0..BYTES).all(|at| heap.read(at) == number as u8),
                "{level:?} {number}"
            );
            let received = server.vi.recv_done();
            assert!(received.is_ok(), "{level:?} {number}: {received:?}");
            client.expect_sent(3);
        }
        assert!(direct_messages(&client) > 0, "{level:?}");
        vip::deregister_mem(server.nic.handle(), heap.at(0), handle).unwrap();
    }
}

#[test]
fn immediate_data_and_direct_writes_keep_their_order() {
    let (client, server) = stations(RELIABLE_DELIVERY, FILES);
    let region = server.region(8, READ_WRITE);
    end_frames(&client, region.remote_buffer());
    for number in (0..300u64).step_by(3) {
        server.post_receives(1, 8);
        let write = |number: u64| client.write_of(&number.to_ne_bytes(), region.remote_buffer());
        let mut notified = write(number + 1);
        notified.set_immediate(Some(number as u32));
        for descriptor in [write(number), notified, write(number + 2)] {
            client.vi.post_send(descriptor).unwrap();
        }
        let received = server.recv();
        assert_eq!(received.immediate(), Some(number as u32));
        client.expect_sent(3);
        wait_until("the last write arrives", || {
            region.load_u64(0) == number + 2
        });
    }
    assert!(direct_messages(&client) > 0);
}

/// Memory that the program registers and deregisters itself.
fn register_shared(end: &Endpoint, memory: &SharedMemory, access: RdmaAccess) -> RemoteBuffer {
    let address = memory.address().as_ptr().expose_provenance() as u64;
    let (nic, ptag) = (end.nic.handle(), Some(end.ptag.handle()));
    let handle = register(nic, ptag, address, memory.len_bytes(), access);
    RemoteBuffer {
        address,
        handle: handle.unwrap(),
    }
}

fn words(memory: &SharedMemory) -> &[AtomicU64] {
    let at = memory.address().cast::<AtomicU64>();
    // SAFETY: all of the allocation, which is aligned to pages.
    unsafe { std::slice::from_raw_parts(at.as_ptr(), memory.len_bytes() / 8) }
}

#[test]
fn nothing_is_written_after_a_deregistration() {
    let (client, server) = stations(RELIABLE_DELIVERY, FILES);
    let memory = SharedMemory::allocate(1 << 16).unwrap();
    let mut direct = 0;
    // Fewer than the unknown handles that a peer may name (`max_handle_misses`).
    for round in 0..30u64 {
        let remote = register_shared(&server, &memory, READ_WRITE);
        end_frames(&client, remote);
        let before = direct_messages(&client);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut descriptor = client.write_of(&[1; 1 << 16], remote);
                while !is_over.load(Ordering::Relaxed) {
                    let sent = client.send(descriptor);
                    if !sent.status.is_ok() {
                        break;
                    }
                    descriptor = sent.descriptor;
                }
            });
            wait_until("a write", || {
                words(&memory)[8191].load(Ordering::Relaxed) != 0
            });
            vip::deregister_mem(server.nic.handle(), remote.address, remote.handle).unwrap();
            for word in words(&memory) {
                word.store(round, Ordering::Relaxed);
            }
            server.expect_errors(&[ErrorCode::RdmawProt, ErrorCode::ConnLost]);
            is_over.store(true, Ordering::Relaxed);
        });
        let is_kept = |word: &AtomicU64| word.load(Ordering::Relaxed) == round;
        assert!(words(&memory).iter().all(is_kept), "round {round}");
        words(&memory)[8191].store(0, Ordering::Relaxed);
        direct += direct_messages(&client) - before;
        client.expect_errors(&[ErrorCode::ConnLost]);
        for end in [&client, &server] {
            end.vi.disconnect().unwrap();
            while end.vi.send_done().unwrap().is_some() {}
        }
        connect(&client, &server);
    }
    assert!(direct > 0);
}

/// The second process of the next test: writes until it is killed.
#[test]
fn writer_in_another_process() {
    if !is_child() {
        return;
    }
    let client = end(nic(1024), RELIABLE_DELIVERY);
    client.post_receives(1, RemoteBuffer::BYTES);
    client.connect_to(SERVICE);
    let received = client.recv().ok().unwrap();
    let remote = RemoteBuffer::from_bytes(received.first_bytes().try_into().unwrap());
    let mut descriptor = client.write_of(&[1; 1 << 16], remote);
    loop {
        descriptor = client.send(descriptor).ok().unwrap().descriptor;
    }
}

#[test]
fn killed_writer_does_not_delay_a_deregistration() {
    let server = end(nic(1024), RELIABLE_DELIVERY);
    let address = server.address(SERVICE);
    for round in 0..10 {
        let memory = SharedMemory::allocate(1 << 16).unwrap();
        let remote = register_shared(&server, &memory, READ_WRITE);
        let mut writer = SecondProcess::start("writer_in_another_process");
        server.accept(&address);
        server.send_bytes(&remote.to_bytes());
        let last = &words(&memory)[8191];
        for _ in 0..3 {
            last.store(0, Ordering::Relaxed);
            wait_until("a write", || last.load(Ordering::Relaxed) != 0);
        }
        writer.kill();
        // Fails if it waits in vain.
        let outcome = vip::deregister_mem(server.nic.handle(), remote.address, remote.handle);
        assert_eq!(outcome, Ok(()), "round {round}");
        server.expect_errors(&[ErrorCode::ConnLost]);
        server.vi.disconnect().unwrap();
    }
}
