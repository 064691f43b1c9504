use super::*;
use crate::memory::{locked, pages};
use crate::resource_error::{Limit, LimitOf, LimitReached};

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

/// Can this tag be ended?
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
fn a_range_is_inside_its_pages_with_its_tag_and_rights_or_refused() {
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
fn peers_read_and_write_only_where_they_may() {
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
        assert!(may(Access::Read) && may(Access::Write), "its owner may");
    }
}

#[test]
fn a_handle_dies_with_its_region_and_is_not_used_again() {
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

/// The generation of a handle says nothing of the one before in the same place.
#[test]
fn handle_generation_is_the_random_bits_of_its_registration() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let mut register = |random| {
        let admitted = || Ok::<_, RegionError>(TAGGED);
        let handle = table.register(1, at, 1, random, admitted).unwrap();
        assert!(deregister(&table, at, handle));
        assert_eq!(handle & 0xFFFF, 0, "one place");
        (handle >> 16) as u16
    };
    let randoms = [0x1234, 0x0001, 0xFFFF, 0x8000, 0x1234];
    assert_eq!(randoms.map(&mut register), randoms);
    // Never 0, and never the one before.
    let mut before = 0x1234;
    for random in [0x1234, 0x1234, 0, 0, 0, 0xFFFF, 0xFFFF, 0, 0xFFFF, 0xFFFF] {
        let generation = register(random);
        assert!(generation != 0 && generation != before, "{random:#x}");
        before = generation;
    }
}

#[test]
fn a_registration_that_is_refused_last_leaves_nothing() {
    let table = table();
    let memory = page();
    // A page that is nobody else's.
    let at = (memory.as_ptr() as u64).next_multiple_of(pages::PAGE_BYTES);
    let locked = || locked::hold().count_below(at + 1);
    // Regions of tests before, whose memory this was.
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
fn changed_attributes_hold_from_then_on_and_begin_an_epoch() {
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
        !table.set(Owner::PROGRAM, at + 1, handle, other),
        "another address"
    );
    assert!(
        !table.set(Owner::PROGRAM, at, handle ^ 0x1_0000, other),
        "another region"
    );
    assert_eq!(table.query(Owner::PROGRAM, at, handle), Some(TAGGED));
    assert_eq!(table.epoch(), epoch, "nothing changed");
    assert!(table.set(Owner::PROGRAM, at, handle, other));
    assert_ne!(table.epoch(), epoch);
    assert_eq!(table.query(Owner::PROGRAM, at, handle), Some(other));
    let check = |tag, access| table.check(handle, TagCheck::tag(tag), at, 64, access);
    assert!(!check(7, Access::Read), "the old tag");
    assert!(
        check(8, Access::Write),
        "the pages are as writable as before"
    );
    assert!(!check(8, Access::RemoteWrite), "the right is gone");
    assert!(ends(&table, 7) && !ends(&table, 8));
    assert!(table.set(Owner::PROGRAM, at, handle, TAGGED));
    assert!(check(7, Access::RemoteWrite));
}

#[test]
fn overlapping_registrations_live_apart() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let a = register(&table, at, 8192, TAGGED).unwrap();
    let b = register(&table, at + 4096, 4096, TAGGED).unwrap();
    assert!(deregister(&table, at, a));
    assert!(table.check(b, TagCheck::tag(7), at + 4096, 4096, Access::RemoteWrite));
}

#[test]
fn limits_and_bad_ranges_are_refused() {
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

/// Whether anything is mapped there does not change the answer.
#[test]
fn more_than_there_can_be_is_refused_before_the_pages_are_looked_at() {
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
    assert_eq!(table.look(4096, bytes), Err(exceeded));
    assert_eq!(register(&table, 4096, bytes, TAGGED), Err(exceeded));
    assert_eq!(table.look(4096, bytes - 1), Err(RegionError::Invalid));
}

#[test]
fn an_opening_ends_in_portions_and_touches_its_own_regions_alone() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let enter = |instance, tag| {
        let attributes = RegionAttributes { tag, ..TAGGED };
        let admitted = || Ok::<_, RegionError>(attributes);
        table.register(instance, at, 1, 0, admitted).unwrap()
    };
    let mut handles = Vec::new();
    for round in 0..20u32 {
        for instance in [1, 2, 3] {
            handles.push(enter(instance, 7 + round % 3));
        }
    }
    let check = || {
        let control = table.control.lock().unwrap();
        control.assert_holdings(&[1, 2, 3, 4], &[7, 8, 9, 10]);
    };
    check();
    // In the middle of the lists, and others in their places.
    for handle in handles.iter().skip(4).step_by(5) {
        assert!(deregister(&table, at, *handle));
        check();
    }
    let other = RegionAttributes { tag: 10, ..TAGGED };
    assert!(table.set(Owner::PROGRAM, at, handles[0], other));
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
    // What was checked before is looked up again, once for a portion.
    assert_eq!(table.epoch(), epoch + portions.len() as u32);
    assert_eq!(
        table.usage().regions,
        (handles.len() - 12 + 1 - mine) as u64
    );
    for instance in [1, 3] {
        drop(table.deregister_some(instance, usize::MAX));
    }
    check();
    assert!([7, 8, 9, 10].iter().all(|tag| ends(&table, *tag)));
    assert_eq!(table.usage().bytes, 0);
}

#[test]
fn a_tag_that_a_vi_has_does_not_end() {
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
