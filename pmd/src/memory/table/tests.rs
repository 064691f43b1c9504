use super::*;

fn table() -> RegionTable {
    RegionTable::new(RegionLimits {
        regions: 1024,
        bytes: 1 << 30,
        region_bytes: 1 << 30,
        lock: LockPolicy::BestEffort,
    })
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
    let handle = table.register(1, at, 4096, TAGGED, 0).unwrap();
    let (base, end) = pages::page_range(at, 4096).unwrap();
    let check = |tag, address, len, access| table.check(handle, tag, address, len, access);
    let tag = TagCheck::Tag(7);
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
        !check(TagCheck::Tag(8), base, 1, Access::Read),
        "another tag"
    );
    assert!(check(TagCheck::Lenient, base, 1, Access::Read));
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
        let handle = table.register(1, at, 1, attributes, 0).unwrap();
        let may = |access| table.check(handle, TagCheck::Tag(7), at, 1, access);
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
    let first = table.register(1, at, 1, TAGGED, 0).unwrap();
    assert!(!table.deregister(at + 1, first), "another address");
    assert!(table.deregister(at, first));
    assert!(!table.deregister(at, first));
    let second = table.register(1, at, 1, TAGGED, 0).unwrap();
    assert_ne!(first, second);
    assert!(!table.check(first, TagCheck::Tag(7), at, 1, Access::Read));
    assert!(table.check(second, TagCheck::Tag(7), at, 1, Access::Read));
    assert_eq!(table.query(at, second), Some(TAGGED));
    assert!(table.uses_tag(7));
    table.deregister_all(1);
    assert!(!table.uses_tag(7));
    assert_eq!(table.usage().bytes, 0);
}

#[test]
fn changed_attributes_hold_from_then_on_and_begin_an_epoch() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let handle = table.register(1, at, 64, TAGGED, 0).unwrap();
    let epoch = table.epoch();
    let other = RegionAttributes {
        tag: 8,
        rdma_write: false,
        rdma_read: true,
    };
    assert!(!table.set(at + 1, handle, other), "another address");
    assert!(!table.set(at, handle ^ 0x1_0000, other), "another region");
    assert_eq!(table.query(at, handle), Some(TAGGED));
    assert_eq!(table.epoch(), epoch, "nothing changed");
    assert!(table.set(at, handle, other));
    assert_ne!(table.epoch(), epoch);
    assert_eq!(table.query(at, handle), Some(other));
    let check = |tag, access| table.check(handle, TagCheck::Tag(tag), at, 64, access);
    assert!(!check(7, Access::Read), "the old tag");
    assert!(
        check(8, Access::Write),
        "the pages are as writable as before"
    );
    assert!(!check(8, Access::RemoteWrite), "the right is gone");
    assert!(!table.uses_tag(7) && table.uses_tag(8));
    assert!(table.set(at, handle, TAGGED));
    assert!(check(7, Access::RemoteWrite));
}

#[test]
fn overlapping_registrations_live_apart() {
    let table = table();
    let memory = page();
    let at = memory.as_ptr() as u64;
    let a = table.register(1, at, 8192, TAGGED, 0).unwrap();
    let b = table.register(1, at + 4096, 4096, TAGGED, 0).unwrap();
    assert!(table.deregister(at, a));
    assert!(table.check(b, TagCheck::Tag(7), at + 4096, 4096, Access::RemoteWrite));
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
    assert_eq!(
        table.register(1, at, 0, TAGGED, 0),
        Err(RegionError::Invalid)
    );
    assert_eq!(
        table.register(1, 4096, 1, TAGGED, 0),
        Err(RegionError::Invalid)
    );
    assert_eq!(
        table.register(1, at, 2 << 20, TAGGED, 0),
        Err(RegionError::Resource)
    );
    assert_eq!(
        table.register(1, at, 8193, TAGGED, 0),
        Err(RegionError::Resource)
    );
    assert_eq!(table.usage().regions, 0);
    table.register(1, at, 1, TAGGED, 0).unwrap();
    assert_eq!(
        table.register(1, at, 1, TAGGED, 0),
        Err(RegionError::Resource)
    );
}
