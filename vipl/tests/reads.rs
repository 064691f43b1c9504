//! RDMA reads: what is read, in which order it completes, and what is refused.

mod common;

use std::sync::mpsc::{Receiver, channel};

use common::{
    End, PATIENCE, SecondProcess, WAIT, connect, is_child, open, open_as, pattern, persist,
};
use vipl::{
    CompletedOperation, CqEntry, Descriptor, ErrorCode, Operation, RdmaAccess, RdmaRegion,
    ReliabilityLevel, RemoteBuffer, ResourceCode, Status, ViState, VipError,
};

const READABLE: RdmaAccess = RdmaAccess {
    write: false,
    read: true,
};
const LEVELS: [ReliabilityLevel; 2] = [
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
/// What stands in a buffer before anything is read into it.
const BEFORE: u8 = 0xEE;
/// Memory is registered by whole pages (VIPL 3.4.3): this is where a small region ends.
const PAGE_BYTES: u64 = 4096;

/// A reader and a target whose VI lets it read, each a station of its own.
fn reader_and_target(level: ReliabilityLevel) -> (End, End) {
    let reader = End::on(open(), |vi| vi.reliability(level));
    let target = End::on(open_as(|config| config.max_cq = 512), |vi| {
        vi.reliability(level).rdma_read(true)
    });
    connect(&reader, &target);
    (reader, target)
}

/// Memory of this end that peers may read, with a pattern in it.
fn memory(end: &End, bytes: &[u8]) -> RdmaRegion {
    let memory = end
        .nic
        .create_rdma_region(bytes.len(), &end.ptag, READABLE)
        .unwrap();
    memory.write(0, bytes);
    memory
}

/// A read of so many bytes into one segment.
fn read_of(end: &End, remote: RemoteBuffer, len_bytes: usize) -> Descriptor {
    let mut descriptor = end.room(len_bytes + 1);
    descriptor.buffer_mut(0).fill(BEFORE);
    descriptor.set_used_bytes(0, len_bytes);
    descriptor.set_operation(Operation::RdmaRead(remote));
    descriptor
}

fn is_untouched(descriptor: &Descriptor) -> bool {
    descriptor.buffer(0).iter().all(|&byte| byte == BEFORE)
}

#[test]
fn reads_of_every_size_bring_the_bytes_and_touch_no_others() {
    for level in LEVELS {
        let (reader, target) = reader_and_target(level);
        let bytes = pattern(3, 70_000);
        let memory = memory(&target, &bytes);
        for (at, size) in [
            (0, 0),
            (0, 1),
            (8, 8),
            (11, 8),
            (1, 2095),
            (3, 2096),
            (0, 2097),
            (4095, 4097),
            (13, 65_535),
            (0, 65_536),
        ] {
            let remote = memory.remote_buffer().at(at as u64);
            let done = reader.send(read_of(&reader, remote, size)).ok().unwrap();
            assert_eq!(
                (
                    done.status.operation(),
                    done.length_bytes(),
                    done.immediate()
                ),
                (CompletedOperation::RdmaRead, size, None)
            );
            assert!(
                done.first_bytes() == &bytes[at..at + size],
                "{size} at {at}"
            );
            assert_eq!(done.descriptor.buffer(0)[size], BEFORE, "behind {size}");
        }
        assert!(
            target.vi.recv_done().unwrap().is_none(),
            "no descriptor is consumed"
        );
        assert!(reader.errors.none() && target.errors.none());
    }
}

#[test]
fn a_read_of_the_longest_transfer_is_whole() {
    for level in LEVELS {
        let nic = open();
        let longest = nic.attributes().max_transfer_size;
        let shape = |vi: vipl::ViBuilder| vi.reliability(level).max_transfer_bytes(longest);
        let reader = End::on(nic, shape);
        let target = End::on(open_as(|config| config.max_cq = 512), |vi| {
            shape(vi).rdma_read(true)
        });
        connect(&reader, &target);
        let bytes = pattern(8, longest as usize);
        let memory = memory(&target, &bytes);
        let done = reader.send(read_of(&reader, memory.remote_buffer(), bytes.len()));
        assert!(done.ok().unwrap().first_bytes() == bytes);
        let beyond = read_of(&reader, memory.remote_buffer(), bytes.len() + 1);
        let refused = reader.send(beyond);
        assert!(refused.status.is_length_error(), "{}", refused.status);
        assert!(is_untouched(&refused.descriptor));
    }
}

#[test]
fn a_read_fills_many_segments_in_order() {
    const SEGMENTS: usize = 252;
    for level in LEVELS {
        let (reader, target) = reader_and_target(level);
        let bytes = pattern(5, 60_000);
        let memory = memory(&target, &bytes);
        let mut descriptor = reader.empty(SEGMENTS);
        let mut expected = 5;
        let mut ranges = Vec::new();
        for segment in 0..SEGMENTS {
            // Of every length, also none; the buffers begin at odd addresses.
            let length = segment * 7 % 31 * 15;
            let mut buffer = reader.buffer(length + 2);
            buffer.fill(BEFORE);
            let mut buffer = buffer.split_off(1);
            buffer.truncate(length + 1);
            descriptor.push(buffer).unwrap();
            descriptor.set_used_bytes(segment, length);
            ranges.push(expected..expected + length);
            expected += length;
        }
        descriptor.set_operation(Operation::RdmaRead(memory.remote_buffer().at(5)));
        let done = reader.send(descriptor).ok().unwrap();
        assert_eq!(done.length_bytes(), expected - 5);
        for (segment, range) in ranges.into_iter().enumerate() {
            let (data, rest) = done.descriptor.buffer(segment).split_at(range.len());
            assert!(data == &bytes[range], "segment {segment}");
            assert_eq!(rest, [BEFORE], "behind segment {segment}");
        }
    }
}

/// Posts reads, sends and writes in turn, and gives what each of them should give back.
fn post_a_mixture(
    reader: &End,
    target: &End,
    source: &RdmaRegion,
    sink: &RdmaRegion,
    rounds: usize,
) -> Vec<(CompletedOperation, usize)> {
    let mut posted = Vec::new();
    for round in 0..rounds {
        target.vi.post_recv(target.room(16)).unwrap();
        let long = 65_536 - round;
        let write = {
            let mut write = reader.message(&pattern(round, 100 + round));
            write.set_operation(Operation::RdmaWrite(sink.remote_buffer()));
            write
        };
        for (descriptor, operation) in [
            (
                read_of(reader, source.remote_buffer(), long),
                CompletedOperation::RdmaRead,
            ),
            (
                reader.message(&[round as u8; 16][..round % 16]),
                CompletedOperation::Send,
            ),
            (
                read_of(reader, source.remote_buffer().at(7), round),
                CompletedOperation::RdmaRead,
            ),
            (write, CompletedOperation::RdmaWrite),
        ] {
            posted.push((operation, descriptor.used_bytes()));
            reader.vi.post_send(descriptor).unwrap();
        }
    }
    posted
}

#[test]
fn completions_come_in_the_order_of_posting_also_behind_reads_under_way() {
    for level in LEVELS {
        // The fewest, some, and more than are posted.
        for (reads, in_flight) in [(1, 1), (2, 5), (256, 256)] {
            let limits = move |config: &mut pmd::config::NicConfig| {
                (config.max_rdma_reads, config.max_in_flight) = (reads, in_flight);
            };
            let nic = open_as(limits);
            let cq = nic.create_cq(256).unwrap();
            let reader = End::on(nic, |vi| vi.reliability(level).send_cq(&cq));
            let target = End::on(
                open_as(|config| {
                    limits(config);
                    config.max_cq = 512;
                }),
                |vi| vi.reliability(level).rdma_read(true).rdma_write(true),
            );
            connect(&reader, &target);
            let bytes = pattern(1, 65_536);
            let source = memory(&target, &bytes);
            let writable = RdmaAccess {
                write: true,
                read: false,
            };
            let sink = target
                .nic
                .create_rdma_region(4096, &target.ptag, writable)
                .unwrap();
            let posted = post_a_mixture(&reader, &target, &source, &sink, 12);
            for (number, (operation, length)) in posted.into_iter().enumerate() {
                let entry = CqEntry {
                    vi: reader.vi.handle(),
                    recv_queue: false,
                };
                assert_eq!(cq.wait(WAIT).unwrap(), entry);
                let done = reader.vi.send_done().expect("its entry is there");
                let done = done.unwrap().ok().unwrap();
                assert_eq!(
                    (done.status.operation(), done.length_bytes()),
                    (operation, length),
                    "number {number}"
                );
                if operation == CompletedOperation::RdmaRead {
                    let at = if number % 4 == 0 { 0 } else { 7 };
                    assert!(done.first_bytes() == &bytes[at..at + length]);
                }
            }
            assert_eq!(cq.done(), Err(VipError::NotDone), "one entry for each");
            for round in 0..12 {
                let arrived = target.recv().ok().unwrap();
                assert_eq!(arrived.first_bytes(), &[round as u8; 16][..round % 16]);
            }
        }
    }
}

#[test]
fn a_fenced_write_does_not_overtake_the_reads_before_it() {
    const BYTES: usize = 60_000;
    for level in LEVELS {
        let reader = End::on(open(), |vi| vi.reliability(level));
        let target = End::on(open_as(|config| config.max_cq = 512), |vi| {
            vi.reliability(level).rdma_read(true).rdma_write(true)
        });
        connect(&reader, &target);
        let both = RdmaAccess {
            write: true,
            read: true,
        };
        let memory = target
            .nic
            .create_rdma_region(BYTES, &target.ptag, both)
            .unwrap();
        for round in 0..20_u8 {
            let written = vec![round + 1; BYTES];
            for _ in 0..3 {
                let read = read_of(&reader, memory.remote_buffer(), BYTES);
                reader.vi.post_send(read).unwrap();
            }
            let mut write = reader.message(&written);
            write.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
            write.set_fence(true);
            reader.vi.post_send(write).unwrap();
            for _ in 0..3 {
                let done = reader.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
                let old = done.first_bytes().iter().all(|&byte| byte == round);
                assert!(old, "round {round}: nothing of what was written later");
            }
            reader.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        }
    }
}

/// Reads what may not be read and sees to it that all are told.
fn expect_refusal(name: &str, reader: &End, target: &End, remote: RemoteBuffer, bytes: usize) {
    let watched = watch(target);
    // What is posted behind it is not processed.
    target.vi.post_recv(target.room(8)).unwrap();
    reader.vi.post_recv(reader.room(8)).unwrap();
    reader.vi.post_send(read_of(reader, remote, bytes)).unwrap();
    reader.vi.post_send(reader.message(b"behind")).unwrap();
    let refused = reader.vi.send_wait(WAIT).unwrap().unwrap();
    assert_eq!(errors_of(refused.status), RDMA_PROT_ERROR, "{name}");
    assert_eq!(
        (refused.status.operation(), refused.length_bytes()),
        (CompletedOperation::RdmaRead, 0),
        "{name}"
    );
    assert!(is_untouched(&refused.descriptor), "{name}");
    let behind = reader.vi.send_wait(WAIT).unwrap().unwrap();
    assert_eq!(errors_of(behind.status), FLUSHED, "{name}");
    assert_eq!(errors_of(reader.recv().status), FLUSHED, "{name}");
    assert_eq!(errors_of(target.recv().status), FLUSHED, "{name}");
    assert_eq!(reader.errors.next_of(&reader.vi), ErrorCode::ConnLost);
    let vi = Some(target.vi.handle());
    let told = watched.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (told.code, told.vi, told.op_code, told.resource),
        (ErrorCode::RdmarProt, vi, 4, ResourceCode::Vi),
        "{name}"
    );
    let told = watched.recv_timeout(PATIENCE).unwrap();
    assert_eq!((told.code, told.vi), (ErrorCode::ConnLost, vi), "{name}");
    for end in [reader, target] {
        assert_eq!(end.vi.state().unwrap(), ViState::Error, "{name}");
        end.vi.disconnect().unwrap();
    }
    assert!(watched.try_recv().is_err(), "{name}: told once");
}

const RDMA_PROT_ERROR: u32 = 0x80;
const FLUSHED: u32 = 0x20;

fn errors_of(status: Status) -> u32 {
    status.raw() & 0x1FE
}

/// What a handler is told, without the pointer.
struct Told {
    code: ErrorCode,
    vi: Option<vipl::ViHandle>,
    op_code: u32,
    resource: ResourceCode,
}

fn watch(end: &End) -> Receiver<Told> {
    let (sender, receiver) = channel();
    end.nic
        .set_error_handler(move |error| {
            assert!(error.descriptor.is_null() && error.cq.is_none());
            // The test that no longer listens is not interested.
            let _ = sender.send(Told {
                code: error.code,
                vi: error.vi,
                op_code: error.op_code,
                resource: error.resource,
            });
        })
        .unwrap();
    receiver
}

#[test]
fn a_read_of_what_is_not_there_is_refused() {
    type Lie = fn(&RdmaRegion) -> RemoteBuffer;
    let lies: [(&str, usize, Lie); 8] = [
        ("one byte past the end", 8, |memory| {
            memory.remote_buffer().at(PAGE_BYTES - 7)
        }),
        ("many bytes past the end", 65_536, |memory| {
            memory.remote_buffer()
        }),
        ("before the beginning", 8, |memory| {
            memory.remote_buffer().at(u64::MAX)
        }),
        ("a sum that wraps", 8, |memory| RemoteBuffer {
            address: u64::MAX - 3,
            handle: memory.handle(),
        }),
        ("a handle that is not known", 8, |memory| RemoteBuffer {
            handle: vipl::MemoryHandle(memory.handle().0 ^ 0x5A5A_0000),
            ..memory.remote_buffer()
        }),
        ("no handle", 8, |memory| RemoteBuffer {
            handle: vipl::MemoryHandle(0),
            ..memory.remote_buffer()
        }),
        ("no bytes of no handle", 0, |memory| RemoteBuffer {
            handle: vipl::MemoryHandle(0),
            ..memory.remote_buffer()
        }),
        ("no bytes past the end", 0, |memory| {
            memory.remote_buffer().at(PAGE_BYTES + 1)
        }),
    ];
    for level in LEVELS {
        for (name, bytes, lie) in lies {
            let (reader, target) = reader_and_target(level);
            let memory = memory(&target, &[0x55; 64]);
            expect_refusal(name, &reader, &target, lie(&memory), bytes);
        }
    }
}

#[test]
fn rights_are_needed_from_the_vi_the_region_and_the_tag() {
    for level in LEVELS {
        for (missing, bytes) in [
            ("vi", 8),
            ("vi", 0),
            ("region", 8),
            ("region", 0),
            ("tag", 8),
        ] {
            let reader = End::on(open(), |vi| vi.reliability(level));
            let target = End::on(open_as(|config| config.max_cq = 512), |vi| {
                vi.reliability(level)
                    .rdma_read(missing != "vi")
                    .rdma_write(true)
            });
            connect(&reader, &target);
            let ptag = match missing {
                "tag" => target.nic.create_ptag().unwrap(),
                _ => target.ptag.clone(),
            };
            let access = RdmaAccess {
                write: true,
                read: missing != "region",
            };
            let memory = target.nic.create_rdma_region(64, &ptag, access).unwrap();
            expect_refusal(missing, &reader, &target, memory.remote_buffer(), bytes);
        }
    }
}

#[test]
fn reads_before_a_refused_one_are_whole_or_flushed_and_it_is_told_in_its_place() {
    for level in LEVELS {
        let (reader, target) = reader_and_target(level);
        let bytes = pattern(2, 65_536);
        let memory = memory(&target, &bytes);
        for _ in 0..3 {
            let read = read_of(&reader, memory.remote_buffer(), bytes.len());
            reader.vi.post_send(read).unwrap();
        }
        let nowhere = RemoteBuffer {
            handle: vipl::MemoryHandle(0),
            ..memory.remote_buffer()
        };
        reader.vi.post_send(read_of(&reader, nowhere, 8)).unwrap();
        reader
            .vi
            .post_send(read_of(&reader, memory.remote_buffer(), 8))
            .unwrap();
        let next = || reader.vi.send_wait(WAIT).unwrap().unwrap();
        // The refusal does not wait until all that was asked for before it is sent.
        let mut was_flushed = false;
        for _ in 0..3 {
            let done = next();
            if done.status.is_ok() {
                assert!(!was_flushed && done.first_bytes() == bytes);
            } else {
                assert_eq!(errors_of(done.status), FLUSHED);
                was_flushed = true;
            }
        }
        assert_eq!(errors_of(next().status), RDMA_PROT_ERROR);
        let flushed = next();
        assert_eq!(errors_of(flushed.status), FLUSHED);
        assert!(is_untouched(&flushed.descriptor));
        assert_eq!(target.errors.next_of(&target.vi), ErrorCode::RdmarProt);
        assert_eq!(target.errors.next_of(&target.vi), ErrorCode::ConnLost);
        assert_eq!(reader.errors.next_of(&reader.vi), ErrorCode::ConnLost);
    }
}

#[test]
fn unreliable_vis_read_nothing_and_are_not_read() {
    let end = End::with(|vi| vi.reliability(ReliabilityLevel::Unreliable));
    let levels = end.nic.attributes().rdma_read_support;
    assert_eq!(levels, LEVELS[0] as u16 | LEVELS[1] as u16);
    let readable = end
        .nic
        .vi(&end.ptag)
        .reliability(ReliabilityLevel::Unreliable)
        .rdma_read(true)
        .build();
    assert_eq!(readable.unwrap_err(), VipError::InvalidRdmaRead);
    let peer = End::with(|vi| vi.reliability(ReliabilityLevel::Unreliable));
    connect(&end, &peer);
    let memory = memory(&peer, &[1; 64]);
    let refused = end.send(read_of(&end, memory.remote_buffer(), 8));
    assert!(refused.status.is_format_error(), "{}", refused.status);
    assert_eq!(refused.status.operation(), CompletedOperation::RdmaRead);
    assert!(is_untouched(&refused.descriptor));
    assert_eq!(end.vi.state().unwrap(), ViState::Connected);
    peer.vi.post_recv(peer.room(8)).unwrap();
    end.send(end.message(b"still on")).ok().unwrap();
    assert_eq!(peer.recv().ok().unwrap().first_bytes(), b"still on");
}

#[test]
fn a_process_that_makes_no_call_is_read_by_another() {
    const NAME: &[u8] = b"reads-silent";
    const BYTES: usize = 65_536;
    if is_child() {
        let reader = End::new();
        let own = reader.nic.local_address(b"reader").unwrap();
        let address = reader.nic.local_address(NAME).unwrap();
        reader
            .vi
            .post_recv(reader.room(RemoteBuffer::BYTES))
            .unwrap();
        persist(|| reader.vi.connect(&own, &address, WAIT)).unwrap();
        let told = reader.recv().ok().unwrap();
        let remote = RemoteBuffer::from_bytes(told.first_bytes().try_into().unwrap());
        for _ in 0..10 {
            let done = reader.send(read_of(&reader, remote, BYTES)).ok().unwrap();
            assert!(done.first_bytes() == pattern(6, BYTES));
        }
        return;
    }
    let target = End::with(|vi| vi.rdma_read(true));
    let memory = memory(&target, &pattern(6, BYTES));
    let address = target.nic.local_address(NAME).unwrap();
    let second = SecondProcess::start("a_process_that_makes_no_call_is_read_by_another");
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
    second.join();
    assert_eq!(target.errors.next_of(&target.vi), ErrorCode::ConnLost);
}
