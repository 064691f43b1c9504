//! Regions of applications that this process serves, and regions under assigned handles.

use std::sync::Arc;

use super::*;
use crate::handle::FIELD_MASK;
use crate::memory::backing::ClientMemory;
use crate::memory::client_mapping::MappedMemory;
use crate::memory::testkit::{Process, mappings_of, sealed_file, unlockable_memory};

const PAGE: u64 = pages::PAGE_BYTES;

fn owner(number: u32) -> Owner {
    Owner::client(number).unwrap()
}

fn register_for(
    table: &RegionTable,
    number: u32,
    backing: Backing,
    (address, bytes): (u64, u64),
    writable: bool,
) -> Result<u32, RegionError> {
    let memory = ClientMemory {
        owner: owner(number),
        backing,
        writable,
    };
    let nic_handle = 100 + u64::from(number);
    table.register_for(nic_handle, memory, (address, bytes), 5, || Ok(TAGGED))
}

fn mapped(bytes: u64) -> Backing {
    Backing::Mapped(MappedMemory::map(sealed_file(bytes), 0, bytes).unwrap())
}

#[test]
fn region_of_a_client_is_accessible_to_its_owner_only() {
    let table = table();
    let at = 0x7000_0000;
    let handle = register_for(&table, 3, mapped(PAGE), (at, 64), true).unwrap();
    let may = |check| table.check(handle, check, at, 64, Access::Read);
    assert!(may(TagCheck::of(owner(3), 7)));
    assert!(may(TagCheck::of(owner(3), 0)), "lenient");
    assert!(!may(TagCheck::of(owner(3), 8)), "another tag");
    for other in [1, 2, 4, 3 + (1 << 8), FIELD_MASK] {
        assert!(!may(TagCheck::of(owner(other), 7)), "{other}");
        assert!(!may(TagCheck::of(owner(other), 0)), "{other}, lenient");
    }
    assert!(
        !may(TagCheck::tag(7)) && !may(TagCheck::LENIENT),
        "this program"
    );
    // The client cannot access regions of this program either.
    let memory = page();
    let own = memory.as_ptr() as u64;
    let own_handle = register(&table, own, 64, TAGGED).unwrap();
    for tag in [0, 7] {
        let check = TagCheck::of(owner(3), tag);
        assert!(!table.check(own_handle, check, own, 64, Access::Read));
    }
}

/// Otherwise an application that registers one file often uses up the bytes of the NIC.
#[test]
fn mapped_file_counts_once_as_a_whole_however_many_regions_are_in_it() {
    let table = RegionTable::new(RegionLimits {
        regions: 64,
        bytes: 6 * PAGE,
        region_bytes: 1 << 30,
        lock: LockPolicy::Never,
    });
    let bytes = || table.usage().bytes;
    let file = MappedMemory::map(sealed_file(4 * PAGE), 0, 4 * PAGE).unwrap();
    let at = 0x7000_0000;
    let register = |number, page: u64, pages: u64| {
        let part = Backing::Mapped(file.range(page * PAGE, pages * PAGE).unwrap());
        register_for(&table, number, part, (at + page * PAGE, pages * PAGE), true)
    };
    // Also those of another application that shares it.
    let regions = [(1, 0, 4), (1, 0, 4), (1, 3, 1), (2, 1, 2), (2, 0, 4)]
        .map(|(number, page, pages)| (number, page, register(number, page, pages).unwrap()));
    assert_eq!(bytes(), 4 * PAGE);
    // Other memory still fits, up to the limit, and a refused registration leaves nothing.
    let other = register_for(&table, 3, mapped(2 * PAGE), (at, 64), true).unwrap();
    assert_eq!(bytes(), 6 * PAGE);
    let refused = register_for(&table, 3, mapped(PAGE), (at, 64), true);
    let limit = ResourceError::Limit(LimitReached {
        limit: Limit::MaxRegisteredBytes,
        value: 6 * PAGE,
        in_use: 6 * PAGE,
        wanted: PAGE,
        of: LimitOf::Nic,
    });
    assert_eq!(refused, Err(RegionError::Resource(limit)));
    let part = || Backing::Mapped(file.range(0, PAGE).unwrap());
    let memory = ClientMemory {
        owner: owner(1),
        backing: part(),
        writable: true,
    };
    let admit = || Err(RegionError::Invalid);
    let refused = table.register_for(101, memory, (at, PAGE), 5, admit);
    assert_eq!(refused, Err(RegionError::Invalid));
    assert_eq!((table.usage().regions, bytes()), (6, 6 * PAGE));
    // It counts until its last region is removed: by one call, or with a NIC handle.
    let [(_, page, first), .., (_, _, last)] = regions;
    assert!(
        table
            .deregister(owner(1), at + page * PAGE, first)
            .is_some()
    );
    assert_eq!(table.deregister_some(101, usize::MAX).len(), 2);
    assert_eq!(bytes(), 6 * PAGE);
    assert!(table.deregister(owner(2), at, last).is_some());
    assert_eq!(bytes(), 6 * PAGE);
    assert_eq!(table.deregister_some(102, usize::MAX).len(), 1);
    assert_eq!(bytes(), 2 * PAGE);
    assert!(table.deregister(owner(3), at, other).is_some());
    assert_eq!((table.usage().regions, bytes()), (0, 0));
    assert!(register(1, 0, 4).is_ok());
    assert_eq!(bytes(), 4 * PAGE);
}

#[test]
fn write_access_requires_writable_client_memory() {
    let table = table();
    let at = 0x7000_0000;
    let handle = register_for(&table, 3, mapped(PAGE), (at, 64), false).unwrap();
    let may = |access| table.check(handle, TagCheck::of(owner(3), 7), at, 64, access);
    assert!(may(Access::Read));
    assert!(
        !may(Access::Write) && !may(Access::RemoteWrite),
        "read-only"
    );
    let handle = register_for(&table, 3, mapped(PAGE), (at, 64), true).unwrap();
    let may = |access| table.check(handle, TagCheck::of(owner(3), 7), at, 64, access);
    assert!(may(Access::Write) && may(Access::RemoteWrite));
    assert!(!may(Access::RemoteRead));
}

#[test]
fn region_is_queried_changed_and_deregistered_by_its_owner_only() {
    let table = table();
    let at = 0x7000_0010;
    let handle = register_for(&table, 3, mapped(PAGE), (at, 64), true).unwrap();
    let other = RegionAttributes { tag: 8, ..TAGGED };
    for wrong in [Owner::PROGRAM, owner(4)] {
        assert!(table.query(wrong, at, handle).is_none());
        assert!(table.set(wrong, at, handle, other).is_none());
        assert!(table.deregister(wrong, at, handle).is_none());
    }
    assert_eq!(table.query(owner(3), at, handle), Some(TAGGED));
    assert!(table.set(owner(3), at, handle, other).is_some());
    assert_eq!(table.query(owner(3), at, handle), Some(other));
    let check = TagCheck::of(owner(3), 8);
    assert!(
        table.check(handle, check, at, 64, Access::Write),
        "as writable"
    );
    assert!(table.deregister(owner(3), at, handle).is_some());
    assert!(!table.check(handle, check, at, 64, Access::Read));
}

#[test]
fn memory_is_unmapped_when_the_removed_region_is_dropped() {
    let table = table();
    let fd = sealed_file(2 * PAGE);
    let backing = |offset| {
        let fd = fd.try_clone().unwrap();
        Backing::Mapped(MappedMemory::map(fd, offset, PAGE).unwrap())
    };
    let first = register_for(&table, 3, backing(0), (0x7000_0000, 64), true).unwrap();
    register_for(&table, 3, backing(PAGE), (0x7000_1000, 64), true).unwrap();
    register_for(&table, 4, mapped(PAGE), (0x7000_0000, 64), true).unwrap();
    let removed = table.deregister(owner(3), 0x7000_0000, first).unwrap();
    assert_eq!(mappings_of(&fd), 2, "not before it is dropped");
    drop(removed);
    assert_eq!(mappings_of(&fd), 1);
    let removed = table.deregister_some(103, usize::MAX);
    assert_eq!(removed.len(), 1, "not the other client's");
    drop(removed);
    assert_eq!(mappings_of(&fd), 0);
    let usage = table.usage();
    assert_eq!((usage.regions, usage.bytes), (1, PAGE));
    drop(table.deregister_some(104, usize::MAX));
    assert_eq!(table.usage().bytes, 0);
    assert_eq!(table.usage().unlocked, 0, "pages of clients are not locked");
}

#[test]
fn regions_in_memory_that_cannot_be_locked_are_counted() {
    let table = table();
    let memory = unlockable_memory(&sealed_file(2 * PAGE));
    let region = || Backing::Mapped(memory.range(0, PAGE).unwrap());
    register_for(&table, 3, region(), (0x7000_0000, 64), true).unwrap();
    assert_eq!(table.usage().unlocked, 0, "that was not attempted");
    memory.lock_pages().unwrap_err();
    for handle in 1..3 {
        register_for(&table, 3, region(), (0x7000_0000, 64), true).unwrap();
        assert_eq!(table.usage().unlocked, handle);
    }
}

#[test]
fn locate_returns_local_and_foreign_locations() {
    let table = table();
    let memory = MappedMemory::map(sealed_file(2 * PAGE), 0, 2 * PAGE).unwrap();
    let mapped_at = memory.address();
    let at = 0x7000_0FF0;
    let local = register_for(&table, 3, Backing::Mapped(memory), (at, 64), true).unwrap();
    let process = Process::with_pages(1);
    let backing = Backing::Foreign(Arc::new(process.client()));
    let foreign = register_for(&table, 3, backing, (process.address, 64), true).unwrap();
    let locate = |handle, tag, at| {
        // SAFETY: no other thread uses the table.
        unsafe { table.locate(handle, tag, at, 8, Access::Read) }
    };
    let client = TagCheck::of(owner(3), 7);
    let found = locate(local, client, at + 16);
    assert!(
        matches!(found, Some(Location::Local(found)) if found == mapped_at + 0x1000),
        "{found:?}"
    );
    let found = locate(foreign, client, process.address + 4);
    assert!(matches!(found, Some(Location::Foreign(_, at)) if at == process.address + 4));
    assert!(locate(local, TagCheck::tag(7), at).is_none());
    let own = page();
    let address = own.as_ptr() as u64;
    let handle = register(&table, address, 64, TAGGED).unwrap();
    let found = locate(handle, TagCheck::tag(7), address);
    assert!(matches!(found, Some(Location::Local(found)) if found == address));
}

#[test]
fn mapping_shorter_than_the_pages_of_a_range_is_refused() {
    let table = table();
    // Sixty-four bytes across a page boundary.
    let refused = register_for(&table, 3, mapped(PAGE), (0x7000_0FF0, 64), true);
    assert_eq!(refused, Err(RegionError::Invalid));
    let refused = register_for(&table, 3, mapped(PAGE), (0x7000_0000, 0), true);
    assert_eq!(refused, Err(RegionError::Invalid));
    let refused = register_for(&table, 3, mapped(PAGE), (u64::MAX - 8, 64), true);
    assert_eq!(refused, Err(RegionError::Invalid));
    assert_eq!(table.usage().regions, 0);
    let no_memory = RegionError::Resource(ResourceError::OutOfMemory);
    let admitted = || Err(no_memory);
    let memory = ClientMemory {
        owner: owner(3),
        backing: mapped(PAGE),
        writable: true,
    };
    let refused = table.register_for(3, memory, (0x7000_0000, 64), 0, admitted);
    assert_eq!(refused, Err(no_memory));
    assert_eq!((table.usage().regions, table.usage().bytes), (0, 0));
}

fn adopt(table: &RegionTable, handle: u32, address: u64) -> Result<(), RegionError> {
    table.adopt(1, handle, (address, 64), None, || Ok(TAGGED))
}

#[test]
fn adopt_registers_under_the_assigned_handle() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let given = 0x1234_0007;
    adopt(&table, given, at).unwrap();
    let may = |handle| table.check(handle, TagCheck::tag(7), at, 64, Access::RemoteWrite);
    assert!(may(given));
    assert!(!may(given ^ 0x1_0000) && !may(given ^ 1));
    assert_eq!(table.query(Owner::PROGRAM, at, given), Some(TAGGED));
    assert_eq!(adopt(&table, given, at), Err(RegionError::Invalid), "taken");
    assert_eq!(adopt(&table, 0, at), Err(RegionError::Invalid));
    assert_eq!(
        adopt(&table, 7, at),
        Err(RegionError::Invalid),
        "no generation"
    );
    let reached = LimitReached::all_in_use(Limit::MaxRegions, 1024u32, LimitOf::Nic);
    assert_eq!(
        adopt(&table, 0x1_0000 | 1024, at),
        Err(RegionError::Resource(reached))
    );
    assert_eq!(
        adopt(&table, 0x1_0008, 4096),
        Err(RegionError::Invalid),
        "not mapped"
    );
    assert_eq!(table.usage().regions, 1);
    // The process reuses the index before this program has deregistered the first region.
    let newer = given + 0x1_0000;
    std::thread::scope(|scope| {
        let adopting = scope.spawn(|| adopt(&table, newer, at));
        while table.usage().regions < 2 && !adopting.is_finished() {
            std::thread::yield_now();
        }
        assert!(may(given));
        assert!(deregister(&table, at, given));
        assert!(!may(given));
        assert_eq!(adopting.join().unwrap(), Ok(()));
    });
    assert!(may(newer));
}

#[test]
fn adopted_and_registered_regions_never_share_an_index() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let mut live = Vec::new();
    for round in 0..4u32 {
        for index in [3, 9, 4] {
            let handle = (round + 1) << 16 | index;
            adopt(&table, handle, at).unwrap();
            live.push(handle);
        }
        for _ in 0..12 {
            live.push(register(&table, at, 64, TAGGED).unwrap());
        }
        let mut indices: Vec<_> = live.iter().map(|handle| handle & 0xFFFF).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), live.len(), "{live:x?}");
        for handle in &live {
            assert!(table.check(*handle, TagCheck::tag(7), at, 64, Access::Read));
        }
        for handle in live.drain(..) {
            assert!(deregister(&table, at, handle));
        }
        assert_eq!(table.usage().regions, 0);
    }
    // Indices are reused.
    let (indices, free) = table.control.lock().unwrap().index_counts();
    assert!(
        free <= indices && indices <= 10 + 4 * 15,
        "{free} of {indices}"
    );
}
