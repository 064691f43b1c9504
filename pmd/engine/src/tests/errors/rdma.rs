//! RDMA writes and reads that are refused.

use fcvi_frame::iu::Opcode::{DisconnectRequest, ReadResponse};
use vi_types::{AsyncError, ReliabilityLevel, Status, ViParams};

use super::{Case, RD, RR, UD, remote_write_failed};
use crate::Counter;
use crate::testkit::net::{CLIENT, Net, SERVER, params};
use crate::testkit::topology::for_each_topology;
use crate::testkit::{
    expected_events::{send_failed, sent},
    io::{Event, Send},
};

/// Invalid targets: before and beyond the region, wrapping around the address space, an unknown handle, and zero bytes
/// outside the region.
const BAD_TARGETS: [((u64, u32), usize); 6] = [
    ((0x0FFF, 7), 8),
    ((0x1000 + 8192 - 7, 7), 8),
    ((0x1000, 7), 8193),
    ((u64::MAX - 3, 7), 8),
    ((0x1000, 8), 8),
    ((0x0FFF, 7), 0),
];

fn refused_write(
    level: ReliabilityLevel,
    target: (u64, u32),
    len: usize,
    immediate: Option<u32>,
) -> Case {
    let mut case = Case::new(level);
    case.write(target, len, immediate);
    case.net.settle();
    assert_eq!(case.net.count(SERVER, Counter::DropRdmaProtection), 1);
    let bytes = &case.net.nodes[SERVER].io.regions[&7].bytes;
    assert!(bytes.iter().all(|b| *b == 0));
    case
}

#[test]
fn write_refused_ud() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(UD, target, len, None).stays_connected(
                &[sent(0, len as u32)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

#[test]
fn write_refused_rd() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(RD, target, len, None).breaks(
                &[sent(0, len as u32)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

#[test]
fn write_refused_rr() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(RR, target, len, None).breaks(
                &[send_failed(0, Status::RDMA_PROTECTION)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

#[test]
fn write_refused_with_immediate_ud() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(UD, target, len, Some(1)).stays_connected(
                &[sent(0, len as u32)],
                &[remote_write_failed(0, Status::PROTECTION)],
            );
        }
    });
}

#[test]
fn write_refused_with_immediate_rd() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(RD, target, len, Some(1)).breaks(
                &[sent(0, len as u32)],
                &[remote_write_failed(0, Status::PROTECTION)],
            );
        }
    });
}

#[test]
fn write_refused_with_immediate_rr() {
    for_each_topology(|| {
        for (target, len) in BAD_TARGETS {
            refused_write(RR, target, len, Some(1)).breaks(
                &[send_failed(0, Status::RDMA_PROTECTION)],
                &[remote_write_failed(0, Status::PROTECTION)],
            );
        }
    });
}

/// Connects two VIs with these attributes and registers 100 bytes of memory at the server.
fn pair_with(vi: ViParams) -> Case {
    let mut net = Net::pair();
    let (a, b) = (net.create(CLIENT, vi), net.create(SERVER, vi));
    net.connect(a, b);
    net.clear_logs();
    net.nodes[SERVER].io.register(7, 0, 100);
    Case { net, a, b }
}

/// Writes to a VI without the attribute, or more than the VI's MaxTransferSize.
pub(super) fn write_not_allowed_by_vi(
    level: ReliabilityLevel,
    rdma_write: bool,
    max_transfer_bytes: u32,
) -> Case {
    let mut case = pair_with(ViParams {
        rdma_write,
        max_transfer_bytes,
        ..params(level)
    });
    case.write((0, 7), 50, None);
    case
}

#[test]
fn write_not_allowed_by_vi_ud() {
    for_each_topology(|| {
        for (rdma_write, size) in [(false, 100), (true, 49)] {
            write_not_allowed_by_vi(UD, rdma_write, size).stays_connected(
                &[sent(0, 50)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

#[test]
fn write_not_allowed_by_vi_rd() {
    for_each_topology(|| {
        for (rdma_write, size) in [(false, 100), (true, 49)] {
            write_not_allowed_by_vi(RD, rdma_write, size).breaks(
                &[sent(0, 50)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

#[test]
fn write_not_allowed_by_vi_rr() {
    for_each_topology(|| {
        for (rdma_write, size) in [(false, 100), (true, 49)] {
            write_not_allowed_by_vi(RR, rdma_write, size).breaks(
                &[send_failed(0, Status::RDMA_PROTECTION)],
                &[Event::Async(AsyncError::RdmaWriteProtection)],
            );
        }
    });
}

fn write_target_gone(level: ReliabilityLevel, immediate: Option<u32>) -> Case {
    let mut case = Case::new(level);
    let region = case.net.nodes[SERVER].io.regions.get_mut(&7).unwrap();
    region.gone_from = 3000;
    case.write((0x1000, 7), 6000, immediate);
    case
}

#[test]
fn write_target_gone_ud() {
    for_each_topology(|| {
        let refused = Event::Async(AsyncError::RdmaWriteProtection);
        write_target_gone(UD, None).stays_connected(&[sent(0, 6000)], &[refused]);
        let failed = remote_write_failed(0, Status::PROTECTION);
        write_target_gone(UD, Some(1)).stays_connected(&[sent(0, 6000)], &[failed]);
    });
}

#[test]
fn write_target_gone_rd() {
    for_each_topology(|| {
        let refused = Event::Async(AsyncError::RdmaWriteProtection);
        write_target_gone(RD, None).breaks(&[sent(0, 6000)], &[refused]);
        let failed = remote_write_failed(0, Status::PROTECTION);
        write_target_gone(RD, Some(1)).breaks(&[sent(0, 6000)], &[failed]);
    });
}

#[test]
fn write_target_gone_rr() {
    for_each_topology(|| {
        let sender = [send_failed(0, Status::RDMA_PROTECTION)];
        let refused = Event::Async(AsyncError::RdmaWriteProtection);
        write_target_gone(RR, None).breaks(&sender, &[refused]);
        let failed = remote_write_failed(0, Status::PROTECTION);
        write_target_gone(RR, Some(1)).breaks(&sender, &[failed]);
    });
}

// --- RDMA reads. At UD there are none: `reads.rs`.

const RELIABLE: [ReliabilityLevel; 2] = [RD, RR];
const REFUSED: Event = Event::Async(AsyncError::RdmaReadProtection);

/// Posts a read of the server's region, and a send behind it that must not be placed.
fn read(level: ReliabilityLevel, source: (u64, u32), len: usize) -> Case {
    let mut case = Case::new(level);
    case.read(source, len);
    case
}

impl Case {
    fn read(&mut self, source: (u64, u32), len: usize) {
        let io = &mut self.net.nodes[CLIENT].io;
        io.post_send(self.a, crate::testkit::net::read(source, len));
        io.post_send(self.a, Send::default());
        self.net.pump(CLIENT);
    }
}

#[test]
fn read_refused_rd_and_rr() {
    for_each_topology(|| {
        for level in RELIABLE {
            for (source, len) in BAD_TARGETS {
                let mut case = read(level, source, len);
                case.net.settle();
                assert_eq!(case.net.count(SERVER, Counter::DropRdmaProtection), 1);
                case.breaks(&[send_failed(0, Status::RDMA_PROTECTION)], &[REFUSED]);
            }
        }
    });
}

/// Reads from a VI without the attribute, or more than the VI's MaxTransferSize.
pub(super) fn read_not_allowed_by_vi(
    level: ReliabilityLevel,
    rdma_read: bool,
    max_transfer_bytes: u32,
) -> Case {
    let mut case = pair_with(ViParams {
        rdma_read,
        max_transfer_bytes,
        ..params(level)
    });
    case.read((0, 7), 50);
    case
}

#[test]
fn read_not_allowed_by_vi_rd_and_rr() {
    for_each_topology(|| {
        for level in RELIABLE {
            for (rdma_read, size) in [(false, 100), (true, 49)] {
                read_not_allowed_by_vi(level, rdma_read, size)
                    .breaks(&[send_failed(0, Status::RDMA_PROTECTION)], &[REFUSED]);
            }
        }
    });
}

#[test]
fn read_source_gone_rd_and_rr() {
    for_each_topology(|| {
        let partial = Status::RDMA_PROTECTION.with(Status::PARTIAL);
        for level in RELIABLE {
            for (gone_from, status) in [(0, Status::RDMA_PROTECTION), (3000, partial)] {
                let mut case = Case::new(level);
                let region = case.net.nodes[SERVER].io.regions.get_mut(&7).unwrap();
                region.gone_from = gone_from;
                case.net.post_read(CLIENT, case.a, (0x1000, 7), 6000);
                case.breaks(&[send_failed(0, status)], &[REFUSED]);
            }
        }
    });
}

#[test]
fn read_memory_gone_rd_and_rr() {
    for_each_topology(|| {
        let partial = Status::PROTECTION.with(Status::PARTIAL);
        for level in RELIABLE {
            for (gone_from, status) in [(0, Status::PROTECTION), (3000, partial)] {
                let mut case = Case::new(level);
                let gone = Send {
                    gone_from: Some(gone_from),
                    ..crate::testkit::net::read((0x1000, 7), 6000)
                };
                case.net.post(CLIENT, case.a, gone);
                case.breaks(&[send_failed(0, status)], &[]);
            }
        }
    });
}

/// Either the refusal or the disconnect is lost; the other one reports the error.
#[test]
fn read_refusal_is_reported_by_the_response_or_the_disconnect() {
    for level in RELIABLE {
        for lost in [ReadResponse, DisconnectRequest] {
            let mut case = Case::new(level);
            case.net.wire.lose(SERVER, lost, u32::MAX);
            case.read((0x1000, 8), 6000);
            case.breaks(&[send_failed(0, Status::RDMA_PROTECTION)], &[REFUSED]);
        }
    }
}

/// A read before the refused one, whose data has not arrived, is flushed: it did not fail.
#[test]
fn read_in_front_of_a_refused_one_is_flushed() {
    for level in RELIABLE {
        let mut case = Case::new(level);
        case.net.nodes[SERVER].io.room = 1;
        let io = &mut case.net.nodes[CLIENT].io;
        for handle in [7, 8] {
            io.post_send(case.a, crate::testkit::net::read((0x1000, handle), 6000));
        }
        case.net.pump(CLIENT);
        case.net.settle();
        case.net.nodes[SERVER].io.room = usize::MAX;
        case.net
            .advance(case.net.nodes[SERVER].engine.config().ulp_timeout_ns);
        let flushed = send_failed(0, Status::FLUSHED);
        let refused = send_failed(1, Status::RDMA_PROTECTION);
        case.breaks(&[flushed, refused], &[REFUSED]);
    }
}

/// With two pending reads a disconnect does not identify the refused one: the oldest completes with a transport error
/// and not with a protection error, which may not apply to it.
#[test]
fn read_in_front_of_a_lost_refusal_fails_with_a_transport_error() {
    for level in RELIABLE {
        let mut case = Case::new(level);
        case.net.nodes[SERVER].io.room = 0;
        let io = &mut case.net.nodes[CLIENT].io;
        for handle in [7, 8] {
            io.post_send(case.a, crate::testkit::net::read((0x1000, handle), 6000));
        }
        case.net.pump(CLIENT);
        case.net.settle();
        case.net.nodes[SERVER].io.room = usize::MAX;
        case.net
            .advance(case.net.nodes[SERVER].engine.config().ulp_timeout_ns);
        case.breaks(&[send_failed(0, Status::TRANSPORT)], &[REFUSED]);
    }
}

/// At RD the reason of a disconnect may concern a send, which has no response: the read before it is flushed.
#[test]
fn read_in_front_of_a_send_without_descriptor_is_flushed() {
    for level in RELIABLE {
        let mut case = Case::with_receives(level, &[]);
        case.net.nodes[SERVER].io.room = 0;
        case.read((0x1000, 7), 6000);
        case.net.settle();
        case.net.nodes[SERVER].io.room = usize::MAX;
        case.net
            .advance(case.net.nodes[SERVER].engine.config().ulp_timeout_ns);
        let send = if level == RR {
            Status::REMOTE_DESCRIPTOR
        } else {
            Status::FLUSHED
        };
        let log = case.net.log(CLIENT, case.a);
        let sends: Vec<_> = log
            .into_iter()
            .filter(|e| matches!(e, Event::Sent(..)))
            .collect();
        assert_eq!(
            sends,
            [send_failed(0, Status::FLUSHED), send_failed(1, send)]
        );
        let log = case.net.log(SERVER, case.b);
        assert_eq!(log[0], Event::Async(AsyncError::ReceiveQueueEmpty));
    }
}
