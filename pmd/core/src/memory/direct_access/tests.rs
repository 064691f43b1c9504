use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use pmd_port::Port;
use pmd_port::mapping::Mapping;
use pmd_port::shm::{SegmentStation, ShmConfig, ShmPort};
use proptest::prelude::*;
use vi_types::LockPolicy;

use super::exported::connection;
use super::*;
use crate::memory::SharedMemory;
use crate::memory::backing::Owner;
use crate::memory::shared_allocator::create_sealed;
use crate::memory::table::{RegionAttributes, RegionError, RegionLimits, RegionTable};

mod hostile;

const VI: u32 = 3;
const VIS: u32 = 16;
const HANDLE: u32 = 0x1234_0003;
const TAG: u32 = 7;
const MAX_TRANSFER_BYTES: u32 = 16 * 4096;
const FILES: usize = 4;

/// A station, and its exported regions.
struct Station {
    port: Option<ShmPort>,
    station: SegmentStation,
    regions: RegionTable,
}

impl Station {
    fn join(segment: &str) -> Self {
        let mut config = ShmConfig::new(segment);
        config.directory = std::env::temp_dir();
        config.max_stations = 4;
        let port = ShmPort::open(config).unwrap();
        let station = port.segment_station().unwrap();
        let regions = RegionTable::new(RegionLimits {
            regions: 64,
            bytes: 1 << 30,
            region_bytes: 1 << 30,
            lock: LockPolicy::Never,
        });
        regions.export(VIS, station.clone()).unwrap();
        Self {
            port: Some(port),
            station,
            regions,
        }
    }

    fn exported(&self) -> Arc<ExportedMemory> {
        self.regions.exported().unwrap()
    }

    fn at(&self) -> (usize, u64) {
        (self.station.slot(), self.station.generation())
    }

    /// Connects the VI to one of the other station.
    fn connect(&self, other: &Self) {
        let vi = VisibleVi {
            handle: HANDLE,
            peer: other.at(),
            tag: TagCheck::tag(TAG),
            rdma_write: true,
            rdma_read: true,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
        };
        self.exported().open_vi(VI, &vi);
    }

    fn register(&self, memory: &SharedMemory, attributes: RegionAttributes) -> u32 {
        let admit = || Ok::<_, RegionError>(attributes);
        let bytes = memory.len_bytes() as u64;
        let register = |random| {
            self.regions
                .register(1, address(memory), bytes, random, admit)
        };
        register(0x5A5A).unwrap()
    }

    /// Opens the memory of another station.
    fn open(&self, other: &Self) -> PeerMemory {
        let opened = PeerMemory::open(&self.exported(), other.at(), FILES).unwrap();
        opened.expect("it shares its memory")
    }

    fn peer_vi(&self) -> PeerVi {
        PeerVi::new(VI, HANDLE, &self.station)
    }
}

fn deregister(
    regions: &RegionTable,
    memory: &SharedMemory,
    handle: u32,
) -> Result<(), AccessInProgress> {
    let removed = regions.deregister(Owner::PROGRAM, address(memory), handle);
    removed.expect("a region").finish()
}

fn address(memory: &SharedMemory) -> u64 {
    memory.address().as_ptr().expose_provenance() as u64
}

fn all_rights() -> RegionAttributes {
    RegionAttributes {
        tag: TAG,
        rdma_write: true,
        rdma_read: true,
    }
}

/// Two stations of a segment of this test, the VI of the first connected to the second.
fn stations(test: &str) -> (Station, Station) {
    let segment = format!("direct-{test}-{}", std::process::id());
    let ends = (Station::join(&segment), Station::join(&segment));
    ends.0.connect(&ends.1);
    ends
}

/// Reads one byte of the other station by a pointer of its mapping.
fn byte_at(address: u64) -> u8 {
    // SAFETY: the tests pass addresses of accesses in progress.
    unsafe { (address as *const u8).read_volatile() }
}

#[test]
fn access_reaches_the_bytes_of_the_region() {
    let (owner, user) = stations("reaches");
    let memory = SharedMemory::allocate(3 * 4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let mut peer = user.open(&owner);
    for at in [0, 1, 4095, 4096, 3 * 4096 - 8] {
        // SAFETY: inside the allocation.
        let byte = unsafe { memory.address().add(at as usize) };
        // SAFETY: as above; the bytes are only used here.
        unsafe { byte.write(at as u8 | 1) };
        let remote = (address(&memory) + at, handle);
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            let begun = peer
                .access(user.peer_vi(), remote, 8, (0, 8), access)
                .unwrap();
            assert_eq!(byte_at(begun.address()), at as u8 | 1);
            assert!(begun.finish());
        }
    }
    // The second part of a message.
    let begun = peer.access(
        user.peer_vi(),
        (address(&memory), handle),
        4097,
        (4096, 1),
        Access::RemoteRead,
    );
    assert_eq!(byte_at(begun.unwrap().address()), 4096u64 as u8 | 1);
}

#[test]
fn what_frames_may_not_do_is_refused() {
    let (owner, user) = stations("refused");
    let memory = SharedMemory::allocate(4 * 4096).unwrap();
    let heap = vec![0u8; 3 * 4096];
    let at = address(&memory);
    let handle = owner.register(&memory, all_rights());
    let rights = |tag, rdma_write, rdma_read| RegionAttributes {
        tag,
        rdma_write,
        rdma_read,
    };
    let read_only = owner.register(&memory, rights(TAG, false, true));
    let write_only = owner.register(&memory, rights(TAG, true, false));
    let other_tag = owner.register(&memory, rights(TAG + 1, true, true));
    let heap_at = (heap.as_ptr() as u64).next_multiple_of(4096);
    let admit = || Ok::<_, RegionError>(all_rights());
    let on_heap = owner.regions.register(1, heap_at, 4096, 1, admit).unwrap();
    let gone = owner.register(&memory, all_rights());
    deregister(&owner.regions, &memory, gone).unwrap();
    let mut peer = user.open(&owner);
    let vi = user.peer_vi();
    let (read, write) = (Access::RemoteRead, Access::RemoteWrite);
    let bytes = 4 * 4096;
    let (too_long, past) = (MAX_TRANSFER_BYTES + 1, at + u64::from(bytes) - 7);
    let table = [
        ("all of it", vi, (at, handle), bytes, read, true),
        ("behind its end", vi, (past, handle), 8, read, false),
        ("before its begin", vi, (at - 1, handle), 8, write, false),
        (
            "wrapping around",
            vi,
            (u64::MAX - 3, handle),
            8,
            read,
            false,
        ),
        (
            "longer than a message",
            vi,
            (at, handle),
            too_long,
            read,
            false,
        ),
        ("a write to read-only", vi, (at, read_only), 8, write, false),
        ("a read of it", vi, (at, read_only), 8, read, true),
        ("a read of write-only", vi, (at, write_only), 8, read, false),
        ("a write to it", vi, (at, write_only), 8, write, true),
        ("another tag", vi, (at, other_tag), 8, read, false),
        (
            "another generation",
            vi,
            (at, handle ^ 1 << 16),
            8,
            read,
            false,
        ),
        (
            "an index beyond all",
            vi,
            (at, handle | 0xFFFF),
            8,
            read,
            false,
        ),
        ("handle 0", vi, (at, 0), 8, read, false),
        ("a deregistered region", vi, (at, gone), 8, read, false),
        ("the heap", vi, (heap_at, on_heap), 8, read, false),
    ];
    for (what, vi, remote, bytes, access, allowed) in table {
        let begun = peer.access(vi, remote, bytes, (0, 8), access);
        assert_eq!(begun.is_some(), allowed, "{what}");
    }
    // More than a part, and behind the end of the message.
    assert!(
        peer.access(vi, (at, handle), bytes, (0, PART_BYTES + 1), read)
            .is_none()
    );
    assert!(peer.access(vi, (at, handle), 8, (4, 5), read).is_none());
}

#[test]
fn vi_that_is_not_connected_to_the_station_is_refused() {
    let (owner, user) = stations("vis");
    let memory = SharedMemory::allocate(4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let mut peer = user.open(&owner);
    let own = &user.station;
    let table = [
        ("the connected VI", user.peer_vi(), true),
        ("another VI", PeerVi::new(VI + 1, HANDLE, own), false),
        ("no VI", PeerVi::new(VIS, HANDLE, own), false),
        (
            "an earlier connection",
            PeerVi::new(VI, HANDLE + 1024, own),
            false,
        ),
        (
            "another station",
            PeerVi::new(VI, HANDLE, &owner.station),
            false,
        ),
    ];
    for (what, vi, allowed) in table {
        let begun = peer.access(
            vi,
            (address(&memory), handle),
            8,
            (0, 8),
            Access::RemoteRead,
        );
        assert_eq!(begun.is_some(), allowed, "{what}");
    }
}

#[test]
fn access_ends_with_the_right_the_connection_and_the_station() {
    let (owner, user) = stations("ends");
    let memory = SharedMemory::allocate(4096).unwrap();
    let at = address(&memory);
    let handle = owner.register(&memory, all_rights());
    let mut peer = user.open(&owner);
    let (vi, write) = (user.peer_vi(), Access::RemoteWrite);
    let begun = |peer: &mut PeerMemory| peer.access(vi, (at, handle), 8, (0, 8), write).is_some();
    assert!(begun(&mut peer));
    let attributes = RegionAttributes {
        rdma_write: false,
        ..all_rights()
    };
    let changed = owner.regions.set(Owner::PROGRAM, at, handle, attributes);
    changed.expect("a region").finish().unwrap();
    assert!(!begun(&mut peer), "a right that was taken away");
    let changed = owner.regions.set(Owner::PROGRAM, at, handle, all_rights());
    changed.expect("a region").finish().unwrap();
    assert!(begun(&mut peer), "a right that was given again");
    owner.exported().close_vi(VI);
    assert!(!begun(&mut peer), "a VI that is not connected");
    owner.connect(&user);
    assert!(begun(&mut peer));
    drop(owner.port);
    assert!(!begun(&mut peer), "a station that has left");
}

#[test]
fn send_is_not_taken_after_the_connection_has_ended() {
    let (owner, user) = stations("send");
    let memory = SharedMemory::allocate(4096).unwrap();
    let no_rights = RegionAttributes {
        rdma_write: false,
        rdma_read: false,
        ..all_rights()
    };
    let handle = owner.register(&memory, no_rights);
    let mut peer = user.open(&owner);
    let remote = (address(&memory), handle);
    let mut begin = |access| {
        let begun = peer.access(user.peer_vi(), remote, 8, (0, 8), access);
        begun.is_some_and(|begun| {
            owner.exported().close_vi(VI);
            begun.finish_send()
        })
    };
    assert!(!begin(Access::RemoteRead) && !begin(Access::RemoteWrite));
    assert!(!begin(Access::Read), "the connection has ended");
    owner.connect(&user);
    let begun = peer.access(user.peer_vi(), remote, 8, (0, 8), Access::Read);
    assert!(begun.is_some_and(DirectAccess::finish_send));
}

#[test]
fn station_that_has_left_accesses_nothing() {
    let (owner, user) = stations("left");
    let memory = SharedMemory::allocate(4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let mut peer = user.open(&owner);
    let vi = user.peer_vi();
    let remote = (address(&memory), handle);
    let mut begun = || {
        let begun = peer.access(vi, remote, 8, (0, 8), Access::RemoteRead);
        begun.is_some()
    };
    assert!(begun());
    drop(user.port);
    assert!(!begun());
}

#[test]
fn deregistration_waits_for_an_access_in_progress() {
    let (owner, user) = stations("waits");
    let memory = SharedMemory::allocate(4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let mut peer = user.open(&owner);
    let remote = (address(&memory), handle);
    let begun = peer.access(user.peer_vi(), remote, 8, (0, 8), Access::RemoteWrite);
    let begun = begun.expect("an access");
    let regions = &owner.regions;
    thread::scope(|scope| {
        let deregistering = scope.spawn(|| deregister(regions, &memory, handle));
        // The region is gone before the access has ended.
        while regions.view(handle).is_some() {
            thread::yield_now();
        }
        // Far below the limit, also on a machine with other load.
        let until = Instant::now() + WAIT_LIMIT / 50;
        while Instant::now() < until {
            assert!(!deregistering.is_finished(), "it waits");
            thread::yield_now();
        }
        assert!(begun.finish());
        assert_eq!(deregistering.join().unwrap(), Ok(()));
    });
    // An access that never ends, of a process that runs.
    let handle = owner.register(&memory, all_rights());
    let remote = (address(&memory), handle);
    let begun = peer.access(user.peer_vi(), remote, 8, (0, 8), Access::RemoteWrite);
    core::mem::forget(begun.expect("an access"));
    let wait = |region, limit| {
        let deadline = Instant::now() + limit;
        owner.exported().wait_until(region, deadline)
    };
    let limit = Duration::from_millis(1);
    assert_eq!(wait(handle, limit), Err(AccessInProgress));
    assert_eq!(wait(handle ^ 1, limit), Ok(()), "another region");
    // Of one that has ended.
    drop(user.port);
    assert_eq!(wait(handle, WAIT_LIMIT), Ok(()));
}

#[test]
fn station_that_takes_a_slot_over_ends_the_access_of_the_one_before() {
    let (owner, user) = stations("slot");
    let memory = SharedMemory::allocate(4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let remote = (address(&memory), handle);
    let mut peer = user.open(&owner);
    let begun = peer.access(user.peer_vi(), remote, 8, (0, 8), Access::RemoteWrite);
    core::mem::forget(begun.expect("an access"));
    let slot = user.station.slot();
    drop(user);
    let segment = format!("direct-slot-{}", std::process::id());
    let next = Station::join(&segment);
    assert_eq!(next.station.slot(), slot);
    let mut peer = next.open(&owner);
    let waited = owner.exported().wait_until(handle, Instant::now());
    assert_eq!(waited, Ok(()));
    let vi = next.peer_vi();
    let refused = peer.access(vi, remote, 8, (0, 8), Access::RemoteWrite);
    assert!(
        refused.is_none(),
        "the connection is that of the station before"
    );
}

#[test]
fn files_are_unmapped_when_they_are_not_needed() {
    let (owner, user) = stations("files");
    let memories: Vec<_> = (0..=FILES)
        .map(|_| SharedMemory::allocate(4096).unwrap())
        .collect();
    let register = |memory| (address(memory), owner.register(memory, all_rights()));
    let regions: Vec<_> = memories.iter().map(register).collect();
    let mut peer = user.open(&owner);
    let vi = user.peer_vi();
    let reaches = |peer: &mut PeerMemory, region| {
        peer.access(vi, region, 8, (0, 8), Access::RemoteRead)
            .is_some()
    };
    let reached = regions.iter().filter(|region| reaches(&mut peer, **region));
    assert_eq!(reached.count(), FILES, "the limit of files");
    let (begin, mut unused) = (Instant::now(), Vec::new());
    let long_after = |seconds| begin + Duration::from_secs(seconds);
    peer.take_unused(begin, &mut unused);
    peer.take_unused(long_after(10), &mut unused);
    assert!(unused.is_empty(), "no region was removed");
    deregister(&owner.regions, &memories[0], regions[0].1).unwrap();
    peer.take_unused(long_after(20), &mut unused);
    assert!(reaches(&mut peer, regions[1]));
    peer.take_unused(long_after(21), &mut unused);
    assert!(unused.is_empty(), "not idle for long enough");
    peer.take_unused(long_after(22), &mut unused);
    assert_eq!(unused.len(), FILES - 1, "all but the one that was used");
    assert!(!reaches(&mut peer, regions[0]));
    for region in &regions[1..] {
        assert!(reaches(&mut peer, *region));
    }
    peer.take_all(&mut unused);
    assert_eq!(unused.len(), 2 * FILES - 1);
    assert!(reaches(&mut peer, regions[2]));
}

#[test]
fn table_of_another_process_or_key_is_not_used() {
    let (owner, user) = stations("table");
    let opens = || {
        PeerMemory::open(&user.exported(), owner.at(), FILES)
            .unwrap()
            .is_some()
    };
    assert!(opens());
    let exported = owner.exported();
    let header = exported.table_for_tests().header();
    for word in [&header.magic, &header.key] {
        word.fetch_xor(1, Ordering::Relaxed);
        assert!(!opens());
        word.fetch_xor(1, Ordering::Relaxed);
    }
    for (word, other) in [
        (&header.pid, 1),
        (&header.vis, u32::MAX),
        (&header.regions, 0xFFFF),
    ] {
        let before = word.swap(other, Ordering::Relaxed);
        assert!(!opens());
        word.store(before, Ordering::Relaxed);
    }
    assert!(opens());
    let (slot, generation) = owner.at();
    let next = PeerMemory::open(&user.exported(), (slot, generation + 1), FILES);
    assert!(next.unwrap().is_none(), "no such station");
}

#[test]
fn memory_file_that_the_program_has_mapped_is_accessible_while_registered() {
    let (owner, user) = stations("memfd");
    let mut peer = user.open(&owner);
    let register = |map: &Mapping| {
        let at = map.as_ptr().as_ptr().expose_provenance() as u64;
        let admit = || Ok::<_, RegionError>(all_rights());
        let register = |at| owner.regions.register(1, at, 4096, 1, admit);
        (at + 4096, register(at + 4096).unwrap())
    };
    let mut reaches = |region: (u64, u32)| {
        peer.access(user.peer_vi(), region, 8, (0, 8), Access::RemoteWrite)
            .map(|begun| byte_at(begun.address()))
    };
    let sealed = create_sealed(3 * 4096).unwrap();
    let map = Mapping::shared(sealed.as_fd(), 0, 3 * 4096).unwrap();
    // SAFETY: the first byte of the second page.
    let byte = unsafe { map.as_ptr().add(4096) };
    // SAFETY: as above.
    unsafe { byte.write(77) };
    let region = register(&map);
    assert_eq!(reaches(region), Some(77));
    // The region has a descriptor of its own.
    drop(sealed);
    assert_eq!(reaches(region), Some(77));
    let removed = owner.regions.deregister(Owner::PROGRAM, region.0, region.1);
    removed.expect("a region").finish().unwrap();
    assert_eq!(reaches(region), None);
    let again = register(&map);
    assert_eq!(reaches(again), None, "no descriptor is open any more");
    let unsealed = memfd_create(c"unsealed", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&unsealed, 3 * 4096).unwrap();
    let map = Mapping::shared(unsealed.as_fd(), 0, 3 * 4096).unwrap();
    assert_eq!(reaches(register(&map)), None, "it can shrink");
}

#[test]
fn tables_of_all_lengths_are_exported() {
    let (owner, user) = stations("lengths");
    for vis in [1, 8, 100, 1000] {
        for regions in [1, 24, 65, 1000] {
            let exported = ExportedMemory::create(vis, regions, owner.station.clone()).unwrap();
            let pages = SharedMemory::allocate(4096).unwrap();
            let at = address(&pages);
            let found = exported.find_pages(at, at + 4096).expect("shared pages");
            // The last region.
            let (handle, grant) = (0x7_0000 | (regions - 1), u64::from(TAG) << 32 | 0xFF);
            exported.publish(handle, grant, (at, at + 4096), &found);
            let peer = user.open(&owner);
            assert!(peer.lists(handle), "{vis} VIs, {regions} regions");
        }
    }
}

#[test]
fn connection_word_names_handle_and_station() {
    let word = connection(HANDLE, (3, 9));
    assert_ne!(word, 0);
    for other in [
        connection(HANDLE + 1, (3, 9)),
        connection(HANDLE, (4, 9)),
        connection(HANDLE, (3, 10)),
    ] {
        assert_ne!(word, other);
    }
}
