use vi_types::{Limit, LimitOf, LimitReached};

use super::*;
use crate::memory::{page_locks, pages};

mod clients;

fn table() -> RegionTable {
    RegionTable::new(RegionLimits {
        regions: 1024,
        bytes: 1 << 30,
        region_bytes: 1 << 30,
        lock: LockPolicy::BestEffort,
    })
}

fn register(
    table: &RegionTable,
    address: u64,
    length_bytes: u64,
    attributes: RegionAttributes,
) -> Result<u32, RegionError> {
    table.register(1, address, length_bytes, 0, || Ok(attributes))
}

fn deregister(table: &RegionTable, address: u64, handle: u32) -> bool {
    table.deregister(Owner::PROGRAM, address, handle).is_some()
}

/// Tries to destroy a tag; returns whether it was unused.
fn ends(table: &RegionTable, tag: u32) -> bool {
    let mut ended = false;
    let found = table.end_tag(tag, || ended = true);
    assert_eq!(found, ended);
    found
}

fn page() -> Vec<u8> {
    vec![0u8; 3 * pages::PAGE_BYTES as usize]
}

const TAGGED: RegionAttributes = RegionAttributes {
    tag: 7,
    rdma_write: true,
    rdma_read: false,
};

#[test]
fn check_requires_pages_tag_rights_and_generation() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let handle = register(&table, at, 4096, TAGGED).unwrap();
    let (base, end) = pages::page_range(at, 4096).unwrap();
    let check = |tag, address, len, access| table.check(handle, tag, address, len, access);
    let tag = TagCheck::tag(7);
    assert!(check(tag, base, end - base, Access::RemoteWrite));
    assert!(check(tag, end, 0, Access::Read));
    assert!(
        !check(tag, base, end - base + 1, Access::Read),
        "one byte past"
    );
    assert!(!check(tag, base - 1, 1, Access::Read), "one byte before");
    assert!(!check(tag, u64::MAX, 2, Access::Read), "the sum wraps");
    assert!(
        !check(tag, 16, 0, Access::Read),
        "no bytes at a bad address"
    );
    assert!(
        !check(TagCheck::tag(8), base, 1, Access::Read),
        "another tag"
    );
    assert!(check(TagCheck::LENIENT, base, 1, Access::Read));
    assert!(
        !table.check(handle ^ 0x1_0000, tag, base, 1, Access::Read),
        "generation"
    );
    assert!(!table.check(0, tag, base, 1, Access::Read));
}

#[test]
fn remote_access_requires_rdma_rights() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    for (rdma_write, rdma_read) in [(false, false), (false, true), (true, false), (true, true)] {
        let attributes = RegionAttributes {
            tag: 7,
            rdma_write,
            rdma_read,
        };
        let handle = register(&table, at, 1, attributes).unwrap();
        let may = |access| table.check(handle, TagCheck::tag(7), at, 1, access);
        assert_eq!(may(Access::RemoteWrite), rdma_write);
        assert_eq!(may(Access::RemoteRead), rdma_read);
        assert!(may(Access::Read) && may(Access::Write), "local access");
    }
}

#[test]
fn handle_is_invalid_after_deregistration_and_not_reused() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let first = register(&table, at, 1, TAGGED).unwrap();
    assert!(!deregister(&table, at + 1, first), "another address");
    assert!(deregister(&table, at, first));
    assert!(!deregister(&table, at, first));
    let second = register(&table, at, 1, TAGGED).unwrap();
    assert_ne!(first, second);
    assert!(!table.check(first, TagCheck::tag(7), at, 1, Access::Read));
    assert!(table.check(second, TagCheck::tag(7), at, 1, Access::Read));
    assert_eq!(table.query(Owner::PROGRAM, at, second), Some(TAGGED));
    assert!(!ends(&table, 7));
    assert_eq!(table.deregister_some(1, usize::MAX).len(), 1);
    assert!(ends(&table, 7));
    assert_eq!(table.usage().bytes, 0);
}

/// The generation of a handle does not depend on the previous one at the same index.
#[test]
fn handle_generation_is_the_random_bits_of_its_registration() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let mut register = |random| {
        let admitted = || Ok::<_, RegionError>(TAGGED);
        let handle = table.register(1, at, 1, random, admitted).unwrap();
        assert!(deregister(&table, at, handle));
        assert_eq!(handle & 0xFFFF, 0, "one index");
        (handle >> 16) as u16
    };
    let randoms = [0x1234, 0x0001, 0xFFFF, 0x8000, 0x1234];
    assert_eq!(randoms.map(&mut register), randoms);
    // Never 0, and never the previous one.
    let mut previous = 0x1234;
    for random in [0x1234, 0x1234, 0, 0, 0, 0xFFFF, 0xFFFF, 0, 0xFFFF, 0xFFFF] {
        let generation = register(random);
        assert!(generation != 0 && generation != previous, "{random:#x}");
        previous = generation;
    }
}

#[test]
fn registration_refused_by_admit_leaves_no_trace() {
    let table = table();
    let memory = page();
    // A page without other data.
    let at = (memory.as_ptr() as u64).next_multiple_of(pages::PAGE_BYTES);
    let locked = || page_locks::lock_counts().count_below(at + 1);
    // Regions of earlier tests may have locked this page.
    let before = locked();
    let refused = table.register(1, at, pages::PAGE_BYTES, 0, || {
        assert_eq!(locked(), before + 1);
        Err(RegionError::Invalid)
    });
    assert_eq!(refused, Err(RegionError::Invalid));
    assert_eq!(locked(), before);
    let usage = table.usage();
    assert_eq!((usage.regions, usage.bytes), (0, 0));
}

#[test]
fn set_replaces_attributes_and_begins_an_epoch() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let handle = register(&table, at, 64, TAGGED).unwrap();
    let epoch = table.epoch();
    let other = RegionAttributes {
        tag: 8,
        rdma_write: false,
        rdma_read: true,
    };
    assert!(
        table.set(Owner::PROGRAM, at + 1, handle, other).is_none(),
        "another address"
    );
    assert!(
        table
            .set(Owner::PROGRAM, at, handle ^ 0x1_0000, other)
            .is_none(),
        "another region"
    );
    assert_eq!(table.query(Owner::PROGRAM, at, handle), Some(TAGGED));
    assert_eq!(table.epoch(), epoch, "nothing changed");
    assert!(table.set(Owner::PROGRAM, at, handle, other).is_some());
    assert_ne!(table.epoch(), epoch);
    assert_eq!(table.query(Owner::PROGRAM, at, handle), Some(other));
    let check = |tag, access| table.check(handle, TagCheck::tag(tag), at, 64, access);
    assert!(!check(7, Access::Read), "the old tag");
    assert!(check(8, Access::Write), "page access is unchanged");
    assert!(!check(8, Access::RemoteWrite), "the right is revoked");
    assert!(ends(&table, 7) && !ends(&table, 8));
    assert!(table.set(Owner::PROGRAM, at, handle, TAGGED).is_some());
    assert!(check(7, Access::RemoteWrite));
}

#[test]
fn overlapping_registrations_are_independent() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let a = register(&table, at, 8192, TAGGED).unwrap();
    let b = register(&table, at + 4096, 4096, TAGGED).unwrap();
    assert!(deregister(&table, at, a));
    assert!(table.check(b, TagCheck::tag(7), at + 4096, 4096, Access::RemoteWrite));
}

#[test]
fn registration_beyond_limits_or_of_bad_ranges_is_refused() {
    let table = RegionTable::new(RegionLimits {
        regions: 1,
        bytes: 1 << 20,
        region_bytes: 8192,
        lock: LockPolicy::Never,
    });
    let memory = page();
    let at = memory.as_ptr() as u64;
    assert_eq!(register(&table, at, 0, TAGGED), Err(RegionError::Invalid));
    assert_eq!(register(&table, 4096, 1, TAGGED), Err(RegionError::Invalid));
    let exceeded = |wanted| LimitReached::exceeded(Limit::MaxRegionBytes, 8192u64, wanted);
    for bytes in [2 << 20, 8193] {
        let refused = register(&table, at, bytes, TAGGED);
        assert_eq!(refused, Err(RegionError::Resource(exceeded(bytes))));
    }
    assert_eq!(table.usage().regions, 0);
    register(&table, at, 1, TAGGED).unwrap();
    let reached = LimitReached::all_in_use(Limit::MaxRegions, 1u32, LimitOf::Nic);
    let refused = register(&table, at, 1, TAGGED);
    assert_eq!(refused, Err(RegionError::Resource(reached)));
}

/// The result does not depend on whether the range is mapped.
#[test]
fn excessive_length_is_refused_before_pages_are_probed() {
    let table = RegionTable::new(RegionLimits {
        regions: 1,
        bytes: 1 << 20,
        region_bytes: 1 << 30,
        lock: LockPolicy::Never,
    });
    let bytes = (1 << 20) + 1;
    let pages = (1 << 20) + 4096;
    let exceeded = LimitReached::exceeded(Limit::MaxRegisteredBytes, 1u64 << 20, pages);
    let exceeded = RegionError::Resource(exceeded);
    assert_eq!(table.probe_pages(4096, bytes), Err(exceeded));
    assert_eq!(register(&table, 4096, bytes, TAGGED), Err(exceeded));
    assert_eq!(
        table.probe_pages(4096, bytes - 1),
        Err(RegionError::Invalid)
    );
}

#[test]
fn deregister_some_removes_regions_of_one_nic_handle_in_portions() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let enter = |nic_handle, tag| {
        let attributes = RegionAttributes { tag, ..TAGGED };
        let admitted = || Ok::<_, RegionError>(attributes);
        table.register(nic_handle, at, 1, 0, admitted).unwrap()
    };
    let mut handles = Vec::new();
    for round in 0..20u32 {
        for nic_handle in [1, 2, 3] {
            handles.push(enter(nic_handle, 7 + round % 3));
        }
    }
    let check = || {
        let control = table.control.lock().unwrap();
        control.assert_consistent(&[1, 2, 3, 4], &[7, 8, 9, 10]);
    };
    check();
    // From the middle of the lists, so that other regions move.
    for handle in handles.iter().skip(4).step_by(5) {
        assert!(deregister(&table, at, *handle));
        check();
    }
    let other = RegionAttributes { tag: 10, ..TAGGED };
    assert!(table.set(Owner::PROGRAM, at, handles[0], other).is_some());
    assert!(!ends(&table, 10));
    enter(1, 8);
    check();
    let mine = table.control.lock().unwrap().regions_of(2);
    let epoch = table.epoch();
    let mut portions = Vec::new();
    loop {
        let removed = table.deregister_some(2, 5).len();
        check();
        if removed == 0 {
            break;
        }
        portions.push(removed);
    }
    assert_eq!(portions.iter().sum::<usize>(), mine);
    assert!(portions.iter().all(|removed| *removed <= 5), "{portions:?}");
    // Each portion begins one epoch.
    assert_eq!(table.epoch(), epoch + portions.len() as u32);
    assert_eq!(
        table.usage().regions,
        (handles.len() - 12 + 1 - mine) as u64
    );
    for nic_handle in [1, 3] {
        drop(table.deregister_some(nic_handle, usize::MAX));
    }
    check();
    assert!([7, 8, 9, 10].iter().all(|tag| ends(&table, *tag)));
    assert_eq!(table.usage().bytes, 0);
}

#[test]
fn tag_used_by_a_vi_is_not_destroyed() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    table.use_tag(7);
    table.use_tag(7);
    let handle = register(&table, at, 1, TAGGED).unwrap();
    table.release_tag(7);
    assert!(!ends(&table, 7), "a region and a VI");
    assert!(deregister(&table, at, handle));
    assert!(!ends(&table, 7), "a VI");
    table.release_tag(7);
    assert!(ends(&table, 7));
}
