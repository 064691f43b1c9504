//! Calls by handle on objects of the safe API. Handles are numbers, so safe code can create any handle: such a call
//! loses messages or leaks memory at most (ADR 0036). The documentation of the calls tests code that must not compile.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::raw::{PAGE_BYTES, Pages};
use common::{Endpoint, open};
use pmd::descriptor::ControlSegment;
use vipl::{Done, MemoryHandle, RawDescriptor, RdmaAccess, RdmaRegion, VipError, provider};

const MARK: &[u8] = b"not freed";

fn marked_region(end: &Endpoint) -> (RdmaRegion, u64) {
    let access = RdmaAccess {
        write: true,
        read: false,
    };
    // Large enough for the allocator to unmap it when freed, so that a later read fails.
    let bytes = 40 << 20;
    let region = end
        .nic
        .create_rdma_region(bytes, &end.ptag, access)
        .unwrap();
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
    end.vi.post_recv(end.descriptor(64)).unwrap();
    end.vi.post_recv(end.descriptor(128)).unwrap();
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
    let region = memory.register(end.nic.handle(), Some(end.ptag.handle()), false);
    let region: MemoryHandle = region.unwrap();
    let post = |slot: usize| {
        let at = memory.at(slot * 64) as *mut RawDescriptor;
        let descriptor = RawDescriptor {
            control: ControlSegment::default(),
            ..RawDescriptor::default()
        };
        // SAFETY: a line of the test's own page, which is not posted.
        unsafe { at.write(descriptor) };
        // SAFETY: the page stays mapped and is not accessed until the descriptor is returned.
        unsafe { provider::post_recv(end.vi.handle(), at, region) }.unwrap();
    };
    post(0);
    end.vi.post_recv(end.descriptor(64)).unwrap();
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
    closed.vi.post_recv(closed.descriptor(64)).unwrap();
    provider::close_nic(closed.nic.handle()).unwrap();
    // Its VI is destroyed, with the posted descriptors; other memory can still be used.
    assert_eq!(
        closed.vi.recv_done().unwrap_err(),
        VipError::InvalidParameter
    );
    drop(closed);
    other.vi.post_recv(other.descriptor(64)).unwrap();
    other.vi.disconnect().unwrap();
    assert!(other.vi.recv_done().unwrap().is_some());
}
