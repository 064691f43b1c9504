//! RDMA reads: read data, order of completion, fences, and refused reads.

mod common;

use std::sync::mpsc::{Receiver, channel};

use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, connect, is_child, open, open_as, pattern,
    retry_no_match,
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
/// Initial content of the buffers of reads.
const BEFORE: u8 = 0xEE;
/// Memory is registered in whole pages (VIPL 3.4.3): the end of a small region.
const PAGE_BYTES: u64 = 4096;

/// Connects a reader with a target whose VI allows RDMA reads, on two stations.
fn reader_and_target(level: ReliabilityLevel) -> (Endpoint, Endpoint) {
    let reader = Endpoint::on(open(), |vi| vi.reliability(level));
    let target = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
        vi.reliability(level).rdma_read(true)
    });
    connect(&reader, &target);
    (reader, target)
}

/// Memory of this endpoint with this content that peers may read.
fn memory(end: &Endpoint, bytes: &[u8]) -> RdmaRegion {
    let memory = end
        .nic
        .create_rdma_region(bytes.len(), &end.ptag, READABLE)
        .unwrap();
    memory.write(0, bytes);
    memory
}

/// A read of `len_bytes` into one segment.
fn read_of(end: &Endpoint, remote: RemoteBuffer, len_bytes: usize) -> Descriptor {
    let mut descriptor = end.descriptor(len_bytes + 1);
    descriptor.buffer_mut(0).fill(BEFORE);
    descriptor.set_used_bytes(0, len_bytes);
    descriptor.set_operation(Operation::RdmaRead(remote));
    descriptor
}

fn is_unchanged(descriptor: &Descriptor) -> bool {
    descriptor.buffer(0).iter().all(|&byte| byte == BEFORE)
}

#[test]
fn reads_of_every_size_fill_exactly_their_length() {
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
fn read_of_the_maximum_transfer_size_is_complete() {
    for level in LEVELS {
        let nic = open();
        let longest = nic.attributes().max_transfer_size;
        let configure = |vi: vipl::ViBuilder| vi.reliability(level).max_transfer_bytes(longest);
        let reader = Endpoint::on(nic, configure);
        let target = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
            configure(vi).rdma_read(true)
        });
        connect(&reader, &target);
        let bytes = pattern(8, longest as usize);
        let memory = memory(&target, &bytes);
        let done = reader.send(read_of(&reader, memory.remote_buffer(), bytes.len()));
        assert!(done.ok().unwrap().first_bytes() == bytes);
        let beyond = read_of(&reader, memory.remote_buffer(), bytes.len() + 1);
        let refused = reader.send(beyond);
        assert!(refused.status.is_length_error(), "{}", refused.status);
        assert!(is_unchanged(&refused.descriptor));
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
            // Different lengths, some of them 0; the buffers begin at odd addresses.
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

/// Posts reads, sends and writes alternately; returns the expected operation and length of each completion.
fn post_mixture(
    reader: &Endpoint,
    target: &Endpoint,
    source: &RdmaRegion,
    sink: &RdmaRegion,
    rounds: usize,
) -> Vec<(CompletedOperation, usize)> {
    let mut posted = Vec::new();
    for round in 0..rounds {
        target.vi.post_recv(target.descriptor(16)).unwrap();
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
fn completions_keep_the_posting_order_behind_pending_reads() {
    for level in LEVELS {
        // The minimum, some, and more than are posted.
        for (reads, in_flight) in [(1, 1), (2, 5), (256, 256)] {
            let limits = move |config: &mut pmd::config::NicConfig| {
                (config.max_rdma_reads, config.max_in_flight) = (reads, in_flight);
            };
            let nic = open_as(limits);
            let cq = nic.create_cq(256).unwrap();
            let reader = Endpoint::on(nic, |vi| vi.reliability(level).send_cq(&cq));
            let target = Endpoint::on(
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
            let posted = post_mixture(&reader, &target, &source, &sink, 12);
            for (number, (operation, length)) in posted.into_iter().enumerate() {
                let entry = CqEntry {
                    vi: reader.vi.handle(),
                    recv_queue: false,
                };
                assert_eq!(cq.wait(WAIT).unwrap(), entry);
                let done = reader.vi.send_done().expect("the descriptor of its entry");
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
            assert_eq!(
                cq.done(),
                Err(VipError::NotDone),
                "one entry for each descriptor"
            );
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
        let reader = Endpoint::on(open(), |vi| vi.reliability(level));
        let target = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
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
                assert!(old, "round {round}: data of the later write");
            }
            reader.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        }
    }
}

/// Posts an invalid read and checks the errors at both sides.
fn expect_refusal(
    name: &str,
    reader: &Endpoint,
    target: &Endpoint,
    remote: RemoteBuffer,
    bytes: usize,
) {
    let reports = reports_of(target);
    // Descriptors behind it are not processed.
    target.vi.post_recv(target.descriptor(8)).unwrap();
    reader.vi.post_recv(reader.descriptor(8)).unwrap();
    reader.vi.post_send(read_of(reader, remote, bytes)).unwrap();
    reader.vi.post_send(reader.message(b"behind")).unwrap();
    let refused = reader.vi.send_wait(WAIT).unwrap().unwrap();
    assert_eq!(errors_of(refused.status), RDMA_PROT_ERROR, "{name}");
    assert_eq!(
        (refused.status.operation(), refused.length_bytes()),
        (CompletedOperation::RdmaRead, 0),
        "{name}"
    );
    assert!(is_unchanged(&refused.descriptor), "{name}");
    let behind = reader.vi.send_wait(WAIT).unwrap().unwrap();
    assert_eq!(errors_of(behind.status), FLUSHED, "{name}");
    assert_eq!(errors_of(reader.recv().status), FLUSHED, "{name}");
    assert_eq!(errors_of(target.recv().status), FLUSHED, "{name}");
    assert_eq!(reader.errors.next_of(&reader.vi), ErrorCode::ConnLost);
    let vi = Some(target.vi.handle());
    let report = reports.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        (report.code, report.vi, report.op_code, report.resource),
        (ErrorCode::RdmarProt, vi, 4, ResourceCode::Vi),
        "{name}"
    );
    let report = reports.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        (report.code, report.vi),
        (ErrorCode::ConnLost, vi),
        "{name}"
    );
    for end in [reader, target] {
        assert_eq!(end.vi.state().unwrap(), ViState::Error, "{name}");
        end.vi.disconnect().unwrap();
    }
    assert!(reports.try_recv().is_err(), "{name}: reported once");
}

const RDMA_PROT_ERROR: u32 = 0x80;
const FLUSHED: u32 = 0x20;

fn errors_of(status: Status) -> u32 {
    status.raw() & 0x1FE
}

/// An asynchronous error, without the pointer.
struct Report {
    code: ErrorCode,
    vi: Option<vipl::ViHandle>,
    op_code: u32,
    resource: ResourceCode,
}

fn reports_of(end: &Endpoint) -> Receiver<Report> {
    let (sender, receiver) = channel();
    end.nic
        .set_error_handler(move |error| {
            assert!(error.descriptor.is_null() && error.cq.is_none());
            // Fails if the test no longer uses the receiver.
            let _ = sender.send(Report {
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
fn read_outside_of_a_region_is_refused() {
    type Remote = fn(&RdmaRegion) -> RemoteBuffer;
    let cases: [(&str, usize, Remote); 8] = [
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
        ("an unknown handle", 8, |memory| RemoteBuffer {
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
        for (name, bytes, remote) in cases {
            let (reader, target) = reader_and_target(level);
            let memory = memory(&target, &[0x55; 64]);
            expect_refusal(name, &reader, &target, remote(&memory), bytes);
        }
    }
}

#[test]
fn read_requires_rights_of_vi_region_and_tag() {
    for level in LEVELS {
        for (missing, bytes) in [
            ("vi", 8),
            ("vi", 0),
            ("region", 8),
            ("region", 0),
            ("tag", 8),
        ] {
            let reader = Endpoint::on(open(), |vi| vi.reliability(level));
            let target = Endpoint::on(open_as(|config| config.max_cq = 512), |vi| {
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
fn reads_before_a_refused_read_complete_or_are_flushed_in_order() {
    for level in LEVELS {
        let (reader, target) = reader_and_target(level);
        let bytes = pattern(2, 65_536);
        let memory = memory(&target, &bytes);
        for _ in 0..3 {
            let read = read_of(&reader, memory.remote_buffer(), bytes.len());
            reader.vi.post_send(read).unwrap();
        }
        let invalid = RemoteBuffer {
            handle: vipl::MemoryHandle(0),
            ..memory.remote_buffer()
        };
        reader.vi.post_send(read_of(&reader, invalid, 8)).unwrap();
        reader
            .vi
            .post_send(read_of(&reader, memory.remote_buffer(), 8))
            .unwrap();
        let next = || reader.vi.send_wait(WAIT).unwrap().unwrap();
        // The refusal does not wait for the pending responses before it.
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
        assert!(is_unchanged(&flushed.descriptor));
        assert_eq!(target.errors.next_of(&target.vi), ErrorCode::RdmarProt);
        assert_eq!(target.errors.next_of(&target.vi), ErrorCode::ConnLost);
        assert_eq!(reader.errors.next_of(&reader.vi), ErrorCode::ConnLost);
    }
}

#[test]
fn read_on_an_unreliable_vi_is_a_format_error() {
    let end = Endpoint::with(|vi| vi.reliability(ReliabilityLevel::UnreliableDelivery));
    let levels = end.nic.attributes().rdma_read_support;
    assert_eq!(levels, LEVELS[0] as u16 | LEVELS[1] as u16);
    let readable = end
        .nic
        .vi(&end.ptag)
        .reliability(ReliabilityLevel::UnreliableDelivery)
        .rdma_read(true)
        .build();
    assert_eq!(readable.unwrap_err(), VipError::InvalidRdmaRead);
    let peer = Endpoint::with(|vi| vi.reliability(ReliabilityLevel::UnreliableDelivery));
    connect(&end, &peer);
    let memory = memory(&peer, &[1; 64]);
    let refused = end.send(read_of(&end, memory.remote_buffer(), 8));
    assert!(refused.status.is_format_error(), "{}", refused.status);
    assert_eq!(refused.status.operation(), CompletedOperation::RdmaRead);
    assert!(is_unchanged(&refused.descriptor));
    assert_eq!(end.vi.state().unwrap(), ViState::Connected);
    peer.vi.post_recv(peer.descriptor(8)).unwrap();
    end.send(end.message(b"still on")).ok().unwrap();
    assert_eq!(peer.recv().ok().unwrap().first_bytes(), b"still on");
}

#[test]
fn process_that_makes_no_call_is_read() {
    const NAME: &[u8] = b"reads-inactive";
    const BYTES: usize = 65_536;
    if is_child() {
        let reader = Endpoint::new();
        let own = reader.nic.local_address(b"reader").unwrap();
        let address = reader.nic.local_address(NAME).unwrap();
        reader
            .vi
            .post_recv(reader.descriptor(RemoteBuffer::BYTES))
            .unwrap();
        retry_no_match(|| reader.vi.connect(&own, &address, WAIT)).unwrap();
        let arrived = reader.recv().ok().unwrap();
        let remote = RemoteBuffer::from_bytes(arrived.first_bytes().try_into().unwrap());
        for _ in 0..10 {
            let done = reader.send(read_of(&reader, remote, BYTES)).ok().unwrap();
            assert!(done.first_bytes() == pattern(6, BYTES));
        }
        return;
    }
    let target = Endpoint::with(|vi| vi.rdma_read(true));
    let memory = memory(&target, &pattern(6, BYTES));
    let address = target.nic.local_address(NAME).unwrap();
    let second = SecondProcess::start("process_that_makes_no_call_is_read");
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
