//! RDMA writes that are refused.

use super::{Case, RD, RR, UD, remote_write_failed};
use crate::testkit::host::Event;
use crate::testkit::net::{CLIENT, Net, SERVER, params, send_failed, sent};
use crate::{AsyncError, Counter, Level, Status, ViParams};

/// Targets that are not allowed: beyond both ends, around the end of the address space, an
/// unknown handle, and nothing at a place where nothing may be.
const BAD_TARGETS: [((u64, u32), usize); 6] = [
    ((0x0FFF, 7), 8),
    ((0x1000 + 8192 - 7, 7), 8),
    ((0x1000, 7), 8193),
    ((u64::MAX - 3, 7), 8),
    ((0x1000, 8), 8),
    ((0x0FFF, 7), 0),
];

fn refused_write(level: Level, target: (u64, u32), len: usize, immediate: Option<u32>) -> Case {
    let mut case = Case::new(level);
    case.write(target, len, immediate);
    case.net.settle();
    assert_eq!(case.net.count(SERVER, Counter::DropRdmaProtection), 1);
    let bytes = &case.net.nodes[SERVER].host.regions[&7].bytes;
    assert!(bytes.iter().all(|b| *b == 0));
    case
}

#[test]
fn write_refused_ud() {
    for (target, len) in BAD_TARGETS {
        refused_write(UD, target, len, None).goes_on(
            &[sent(0, len as u32)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

#[test]
fn write_refused_rd() {
    for (target, len) in BAD_TARGETS {
        refused_write(RD, target, len, None).breaks(
            &[sent(0, len as u32)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

#[test]
fn write_refused_rr() {
    for (target, len) in BAD_TARGETS {
        refused_write(RR, target, len, None).breaks(
            &[send_failed(0, Status::RDMA_PROTECTION)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

#[test]
fn write_refused_with_immediate_ud() {
    for (target, len) in BAD_TARGETS {
        refused_write(UD, target, len, Some(1)).goes_on(
            &[sent(0, len as u32)],
            &[remote_write_failed(0, Status::PROTECTION)],
        );
    }
}

#[test]
fn write_refused_with_immediate_rd() {
    for (target, len) in BAD_TARGETS {
        refused_write(RD, target, len, Some(1)).breaks(
            &[sent(0, len as u32)],
            &[remote_write_failed(0, Status::PROTECTION)],
        );
    }
}

#[test]
fn write_refused_with_immediate_rr() {
    for (target, len) in BAD_TARGETS {
        refused_write(RR, target, len, Some(1)).breaks(
            &[send_failed(0, Status::RDMA_PROTECTION)],
            &[remote_write_failed(0, Status::PROTECTION)],
        );
    }
}

/// A VI without the attribute, and a write longer than the VI's MaxTransferSize.
fn write_not_allowed_by_vi(level: Level, rdma_write: bool, max_transfer_bytes: u32) -> Case {
    let mut net = Net::pair();
    let vi = ViParams {
        rdma_write,
        max_transfer_bytes,
        ..params(level)
    };
    let (a, b) = (net.create(CLIENT, vi), net.create(SERVER, vi));
    net.connect(a, b);
    net.clear_logs();
    net.nodes[SERVER].host.register(7, 0, 100);
    let mut case = Case { net, a, b };
    case.write((0, 7), 50, None);
    case
}

#[test]
fn write_not_allowed_by_vi_ud() {
    for (rdma_write, size) in [(false, 100), (true, 49)] {
        write_not_allowed_by_vi(UD, rdma_write, size).goes_on(
            &[sent(0, 50)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

#[test]
fn write_not_allowed_by_vi_rd() {
    for (rdma_write, size) in [(false, 100), (true, 49)] {
        write_not_allowed_by_vi(RD, rdma_write, size).breaks(
            &[sent(0, 50)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

#[test]
fn write_not_allowed_by_vi_rr() {
    for (rdma_write, size) in [(false, 100), (true, 49)] {
        write_not_allowed_by_vi(RR, rdma_write, size).breaks(
            &[send_failed(0, Status::RDMA_PROTECTION)],
            &[Event::Async(AsyncError::RdmaWriteProtection)],
        );
    }
}

fn write_target_gone(level: Level, immediate: Option<u32>) -> Case {
    let mut case = Case::new(level);
    let region = case.net.nodes[SERVER].host.regions.get_mut(&7).unwrap();
    region.gone_from = 3000;
    case.write((0x1000, 7), 6000, immediate);
    case
}

#[test]
fn write_target_gone_ud() {
    let refused = Event::Async(AsyncError::RdmaWriteProtection);
    write_target_gone(UD, None).goes_on(&[sent(0, 6000)], &[refused]);
    let failed = remote_write_failed(0, Status::PROTECTION);
    write_target_gone(UD, Some(1)).goes_on(&[sent(0, 6000)], &[failed]);
}

#[test]
fn write_target_gone_rd() {
    let refused = Event::Async(AsyncError::RdmaWriteProtection);
    write_target_gone(RD, None).breaks(&[sent(0, 6000)], &[refused]);
    let failed = remote_write_failed(0, Status::PROTECTION);
    write_target_gone(RD, Some(1)).breaks(&[sent(0, 6000)], &[failed]);
}

#[test]
fn write_target_gone_rr() {
    let sender = [send_failed(0, Status::RDMA_PROTECTION)];
    let refused = Event::Async(AsyncError::RdmaWriteProtection);
    write_target_gone(RR, None).breaks(&sender, &[refused]);
    let failed = remote_write_failed(0, Status::PROTECTION);
    write_target_gone(RR, Some(1)).breaks(&sender, &[failed]);
}
