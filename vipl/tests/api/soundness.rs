//! Calls by handle on objects of the safe API. Handles are numbers, so safe code can create any handle: such a call
//! loses messages or leaks memory at most (ADR 0036). The documentation of the calls tests code that must not compile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::raw::{PAGE_BYTES, Pages, post_empty_recv};
use crate::common::{Endpoint, WRITABLE, open};
use vipl::{Done, RdmaRegion, VipError, provider};

const MARK: &[u8] = b"not freed";

fn marked_region(end: &Endpoint) -> (RdmaRegion, u64) {
    // Large enough for the allocator to unmap it when freed, so that a later read fails.
    let region = end.region(40 << 20, WRITABLE);
    region.write(0, MARK);
    let address = region.remote_buffer().address;
    (region, address)
}

/// Returns whether the marker is at this address; reads through a file, which fails for unmapped memory.
fn has_mark(address: u64) -> bool {
    let mut bytes = [0; MARK.len()];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, address).is_ok() && bytes == MARK
}

#[test]
fn region_dropped_after_its_deregistration_is_freed() {
    let end = Endpoint::new();
    let (region, address) = marked_region(&end);
    assert!(has_mark(address));
    drop(region);
    assert!(!has_mark(address));
}

/// VipCloseNic removes registrations one after the other, while calls already report that the NIC is not open.
#[test]
fn region_of_a_nic_closed_by_its_handle_is_never_freed() {
    let end = Endpoint::new();
    let (region, address) = marked_region(&end);
    provider::close_nic(end.nic.handle()).unwrap();
    drop(region);
    assert!(has_mark(address));
}

#[test]
fn region_deregistered_by_its_handle_is_never_freed() {
    let end = Endpoint::new();
    let (region, address) = marked_region(&end);
    provider::deregister_mem(end.nic.handle(), address, region.handle()).unwrap();
    assert_eq!(region.attributes().unwrap_err(), VipError::InvalidParameter);
    drop(region);
    assert!(has_mark(address));
}

#[test]
fn descriptor_collected_by_vi_handle_is_lost_and_the_vi_stays_usable() {
    let end = Endpoint::new();
    end.post_receives(1, 64);
    end.post_receives(1, 128);
    end.vi.disconnect().unwrap();
    let taken = provider::recv_done(end.vi.handle()).unwrap();
    assert!(matches!(taken, Done::Completed { .. }));
    let second = end.vi.recv_done().unwrap().expect("the other one");
    assert_eq!(second.descriptor.buffer(0).len(), 128);
    assert!(end.vi.recv_done().unwrap().is_none());
    // The lost descriptor keeps the NIC open.
    provider::close_nic(end.nic.handle()).unwrap();
}

#[test]
fn descriptor_posted_by_vi_handle_is_never_returned_as_an_owned_one() {
    let end = Endpoint::new();
    let memory = Pages::new(1);
    let region = memory.register(end.nic.handle(), Some(end.ptag.handle()));
    let region = region.unwrap();
    let post = |slot: usize| {
        post_empty_recv(end.vi.handle(), memory.at(slot * 64), region).unwrap();
    };
    post(0);
    end.post_receives(1, 64);
    post(PAGE_BYTES / 64 - 1);
    end.vi.disconnect().unwrap();
    assert_eq!(end.vi.recv_done().unwrap_err(), VipError::DescriptorError);
    let owned = end.vi.recv_done().unwrap().expect("the owned one");
    assert_eq!(owned.descriptor.buffer(0).len(), 64);
    // The last descriptor is not collected; the VI is destroyed nevertheless.
    let (nic, vi) = (end.nic.clone(), end.vi.handle());
    drop(end);
    assert_eq!(
        provider::query_vi(vi).unwrap_err(),
        VipError::InvalidParameter
    );
    provider::deregister_mem(nic.handle(), memory.at(0), region).unwrap();
}

#[test]
fn nic_closed_by_its_handle_does_not_affect_other_handles() {
    let (closed, other) = (Endpoint::new(), Endpoint::on(open(), |vi| vi));
    closed.post_receives(1, 64);
    provider::close_nic(closed.nic.handle()).unwrap();
    // Its VI is destroyed, with the posted descriptors; other memory can still be used.
    let invalid = VipError::InvalidParameter;
    assert_eq!(closed.vi.recv_done().unwrap_err(), invalid);
    assert_eq!(closed.vi.state().unwrap_err(), invalid);
    assert_eq!(closed.nic.create_ptag().unwrap_err(), invalid);
    drop(closed);
    other.post_receives(1, 64);
    other.vi.disconnect().unwrap();
    assert!(other.vi.recv_done().unwrap().is_some());
}
