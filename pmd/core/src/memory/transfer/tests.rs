use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vi_types::LockPolicy;

use super::*;
use crate::memory::backing::{Backing, ClientMemory, Owner};
use crate::memory::client_mapping::MappedMemory;
use crate::memory::copy;
use crate::memory::pages::PAGE_BYTES;
use crate::memory::table::{RegionAttributes, RegionError, RegionLimits};
use crate::memory::testkit::{Process, map_private, sealed_file};

/// Pages of each area.
const PAGES: u64 = 4;
const AREA_BYTES: usize = (PAGES * PAGE_BYTES) as usize;
/// Sources are in the lower half, targets in the upper one, so that they never overlap.
const HALF_BYTES: usize = AREA_BYTES / 2;
const TAG: u32 = 7;

/// Memory of a VI.
enum Area {
    /// Memory of this program.
    Own { address: u64 },
    /// Memory of a client, mapped here at a different address.
    Mapped { address: u64, mapped_at: u64 },
    /// Memory of a client process.
    Foreign { process: Process },
}

impl Area {
    /// Returns the address in the VI's program.
    fn address(&self) -> u64 {
        match self {
            Self::Own { address } | Self::Mapped { address, .. } => *address,
            Self::Foreign { process } => process.address,
        }
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; AREA_BYTES];
        match self {
            Self::Own { address: at } | Self::Mapped { mapped_at: at, .. } => {
                // SAFETY: memory of the test, mapped.
                unsafe { copy::read(*at, &mut bytes) };
            }
            Self::Foreign { process } => bytes = process.read(0, AREA_BYTES),
        }
        bytes
    }

    fn write(&self, bytes: &[u8]) {
        match self {
            // SAFETY: memory of the test, mapped.
            Self::Own { address: at } | Self::Mapped { mapped_at: at, .. } => unsafe {
                copy::write(*at, bytes);
            },
            Self::Foreign { process } => process.write(0, bytes),
        }
    }
}

/// The program's own VI and those of two clients, two areas each.
struct World {
    regions: RegionTable,
    mover: RefCell<Mover>,
    /// Areas and their handles.
    areas: [[(Area, u32); 2]; 3],
    tags: [TagCheck; 3],
}

const ALL: RegionAttributes = RegionAttributes {
    tag: TAG,
    rdma_write: true,
    rdma_read: true,
};

fn table() -> RegionTable {
    RegionTable::new(RegionLimits {
        regions: 1024,
        bytes: 1 << 30,
        region_bytes: 1 << 30,
        lock: LockPolicy::Never,
    })
}

fn owner(number: u32) -> Owner {
    Owner::client(number).unwrap()
}

/// Registers memory for a client.
fn register_for(
    regions: &RegionTable,
    number: u32,
    backing: Backing,
    address: u64,
    bytes: u64,
) -> Result<u32, RegionError> {
    let memory = ClientMemory {
        owner: owner(number),
        backing,
        writable: true,
    };
    regions.register_for(u64::from(number), memory, (address, bytes), 0, || Ok(ALL))
}

fn own(regions: &RegionTable) -> (Area, u32) {
    let address = map_private(AREA_BYTES as u64);
    let handle = regions.register(9, address, AREA_BYTES as u64, 0, || {
        Ok::<_, RegionError>(ALL)
    });
    (Area::Own { address }, handle.unwrap())
}

fn mapped(regions: &RegionTable, number: u32) -> (Area, u32) {
    let bytes = AREA_BYTES as u64;
    // An address of the client that is not mapped here.
    let address = 0x10_0000_0000 * u64::from(number);
    let memory = MappedMemory::map(sealed_file(bytes), 0, bytes).unwrap();
    let mapped_at = memory.address();
    let backing = Backing::Mapped(memory);
    let handle = register_for(regions, number, backing, address, bytes).unwrap();
    (Area::Mapped { address, mapped_at }, handle)
}

fn foreign(regions: &RegionTable, number: u32, process: Process) -> (Area, u32) {
    let backing = Backing::Foreign(Arc::new(process.client()));
    let (address, bytes) = (process.address, process.len_bytes);
    let handle = register_for(regions, number, backing, address, bytes).unwrap();
    (Area::Foreign { process }, handle)
}

impl World {
    fn new() -> Self {
        let regions = table();
        let client =
            |number, process| [mapped(&regions, number), foreign(&regions, number, process)];
        let [one, other] = Process::two_with_pages(PAGES);
        Self {
            areas: [
                [own(&regions), own(&regions)],
                client(1, one),
                client(2, other),
            ],
            mover: RefCell::new(Mover::default()),
            tags: [
                TagCheck::tag(TAG),
                TagCheck::of(owner(1), TAG),
                TagCheck::of(owner(2), TAG),
            ],
            regions,
        }
    }

    fn segments(&self, vi: usize, pieces: &[Piece]) -> Vec<DataSegment> {
        let segment = |piece: &Piece| {
            let (area, handle) = &self.areas[vi][piece.area];
            DataSegment {
                address: area.address() + piece.offset as u64,
                handle: *handle,
                length: piece.bytes as u32,
            }
        };
        pieces.iter().map(segment).collect()
    }

    fn named<'a>(
        &self,
        vi: usize,
        access: Access,
        segments: &'a [DataSegment],
        cursor: &'a mut Cursor,
        offset_bytes: u32,
    ) -> SegmentRange<'a> {
        SegmentRange {
            tag: self.tags[vi],
            access,
            segments,
            cursor,
            offset_bytes,
        }
    }
}

fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

/// Contents of all areas.
type Contents = Vec<Vec<Vec<u8>>>;

impl World {
    /// Fills the areas with bytes that depend on their position.
    fn fill(&self) -> Contents {
        let mut filled = Contents::new();
        for (vi, areas) in self.areas.iter().enumerate() {
            let mut of_vi = Vec::new();
            for (number, (area, _)) in areas.iter().enumerate() {
                let seed = vi * 2 + number;
                let bytes = (0..AREA_BYTES).map(|i| (i * 7 + i / 251 + seed * 41) as u8);
                let bytes: Vec<u8> = bytes.collect();
                area.write(&bytes);
                of_vi.push(bytes);
            }
            filled.push(of_vi);
        }
        filled
    }

    fn read(&self) -> Contents {
        let of_vi = |areas: &[(Area, u32); 2]| areas.iter().map(|(area, _)| area.read()).collect();
        self.areas.iter().map(of_vi).collect()
    }
}

/// A piece of an area.
#[derive(Clone, Copy, Debug)]
struct Piece {
    area: usize,
    offset: usize,
    bytes: usize,
}

/// Generates non-overlapping pieces of one half of the two areas.
fn pieces(first: usize) -> impl Strategy<Value = Vec<Piece>> {
    let one = (0usize..2, 0usize..40, 0usize..400);
    proptest::collection::vec(one, 1..12).prop_map(move |all| {
        let mut at = [first; 2];
        let place = |(area, gap, bytes): (usize, usize, usize)| {
            let offset: usize = at[area] + gap;
            let bytes = bytes.min((first + HALF_BYTES).saturating_sub(offset));
            at[area] = offset + bytes;
            Piece {
                area,
                offset,
                bytes,
            }
        };
        all.into_iter().map(place).collect()
    })
}

fn sum(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.bytes).sum()
}

/// Returns area and offset of each byte of some pieces.
fn flat(pieces: &[Piece]) -> Vec<(usize, usize)> {
    let of = |piece: &Piece| {
        let (area, offset) = (piece.area, piece.offset);
        (0..piece.bytes).map(move |i| (area, offset + i))
    };
    pieces.iter().flat_map(of).collect()
}

#[test]
fn transfer_between_any_two_locations_matches_the_model() {
    let world = World::new();
    let strategy = (
        (0usize..3, 0usize..3),
        (pieces(0), pieces(HALF_BYTES)),
        proptest::collection::vec(1usize..700, 1..6),
    );
    let run = runner().run(&strategy, |((source, target), (from, to), cuts)| {
        let mut expected = world.fill();
        let (from_segments, to_segments) =
            (world.segments(source, &from), world.segments(target, &to));
        let (mut from_cursor, mut to_cursor) = (Cursor::default(), Cursor::default());
        let total = sum(&from).min(sum(&to));
        let (mut done, mut cuts) = (0, cuts.iter().cycle());
        let mut mover = world.mover.borrow_mut();
        mover.begin_poll();
        while done < total {
            let step = (total - done).min(*cuts.next().unwrap());
            let (from, to) = (&from_segments, &to_segments);
            let offset = done as u32;
            let from = world.named(source, Access::Read, from, &mut from_cursor, offset);
            let to = world.named(target, Access::Write, to, &mut to_cursor, offset);
            let (from, to) = (TransferEnd::Segments(from), TransferEnd::Segments(to));
            // SAFETY: no other thread uses the table or the memory.
            let moved = unsafe { mover.transfer(&world.regions, from, to, step) };
            prop_assert_eq!(moved, Ok(()));
            done += step;
        }
        for ((from_area, from), (to_area, to)) in flat(&from).iter().zip(flat(&to)) {
            expected[target][to_area][to] = expected[source][*from_area][*from];
        }
        prop_assert!(world.read() == expected);
        Ok(())
    });
    run.unwrap();
    assert_eq!(world.mover.borrow().client_faults, 0);
}

#[test]
fn frames_are_gathered_from_and_scattered_to_any_segments() {
    let world = World::new();
    let strategy = (
        0usize..3,
        pieces(0),
        any::<prop::sample::Index>(),
        1usize..2112,
    );
    let run = runner().run(&strategy, |(vi, pieces, start, bytes)| {
        let mut expected = world.fill();
        let segments = world.segments(vi, &pieces);
        let places = flat(&pieces);
        prop_assume!(!places.is_empty());
        let start = start.index(places.len());
        let bytes = bytes.min(places.len() - start);
        let mut mover = world.mover.borrow_mut();
        mover.begin_poll();
        let mut frame = vec![0xEE; bytes + 1];
        let mut cursor = Cursor::default();
        let from = world.named(vi, Access::Read, &segments, &mut cursor, start as u32);
        let (from, to) = (
            TransferEnd::Segments(from),
            TransferEnd::Buffer(frame.as_mut_ptr() as u64),
        );
        // SAFETY: no other thread uses the table or the memory; the frame is longer.
        let gathered = unsafe { mover.transfer(&world.regions, from, to, bytes) };
        prop_assert_eq!(gathered, Ok(()));
        for (got, (area, offset)) in frame.iter().zip(&places[start..start + bytes]) {
            prop_assert_eq!(*got, expected[vi][*area][*offset]);
        }
        prop_assert_eq!(frame[bytes], 0xEE);
        for byte in &mut frame {
            *byte = byte.wrapping_mul(3) ^ 0x5A;
        }
        let to = world.named(vi, Access::Write, &segments, &mut cursor, start as u32);
        let (from, to) = (
            TransferEnd::Buffer(frame.as_ptr() as u64),
            TransferEnd::Segments(to),
        );
        // SAFETY: as above.
        let scattered = unsafe { mover.transfer(&world.regions, from, to, bytes) };
        prop_assert_eq!(scattered, Ok(()));
        for (byte, (area, offset)) in frame.iter().zip(&places[start..start + bytes]) {
            expected[vi][*area][*offset] = *byte;
        }
        prop_assert!(world.read() == expected);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn ordered_write_changes_exactly_its_range() {
    let world = World::new();
    let strategy = (
        (0usize..3, 0usize..3),
        (0usize..2, 0usize..2),
        (0usize..100, 0usize..100),
        0usize..2112,
    );
    let run = runner().run(&strategy, |(vis, areas, offsets, bytes)| {
        let mut expected = world.fill();
        let piece = Piece {
            area: areas.0,
            offset: offsets.0,
            bytes,
        };
        let (area, handle) = &world.areas[vis.1][areas.1];
        let at = HALF_BYTES + offsets.1;
        let to = RdmaRange {
            tag: world.tags[vis.1],
            handle: *handle,
            address: area.address() + at as u64,
        };
        let payload = expected[vis.0][areas.0][offsets.0..offsets.0 + bytes].to_vec();
        expected[vis.1][areas.1][at..at + bytes].copy_from_slice(&payload);
        let segments = world.segments(vis.0, &[piece]);
        let mut cursor = Cursor::default();
        let from = world.named(vis.0, Access::Read, &segments, &mut cursor, 0);
        let mut mover = world.mover.borrow_mut();
        mover.begin_poll();
        // SAFETY: no other thread uses the table or the memory.
        let moved = unsafe {
            mover.transfer_in_order(
                &world.regions,
                TransferEnd::Segments(from),
                to,
                bytes as u32,
            )
        };
        prop_assert_eq!(moved, Ok(()));
        prop_assert!(world.read() == expected);
        world.fill();
        // SAFETY: as above.
        let placed = unsafe { mover.place_in_order(&world.regions, to, &payload) };
        prop_assert_eq!(placed, Ok(()));
        prop_assert!(world.read() == expected);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn before_last_word_finds_the_last_aligned_word() {
    for (at, bytes, before) in [
        (0, 8, 0),
        (0, 7, 7),
        (1, 14, 14),
        (1, 15, 7),
        (0, 23, 8),
        (3, 100, 85),
        (8, 0, 0),
    ] {
        assert_eq!(before_last_word(at, bytes), before, "{at} {bytes}");
        assert!(bytes - before <= LAST_BYTES || before == bytes);
    }
}

/// One client process with one area.
struct Alone {
    regions: RegionTable,
    mover: Mover,
    process: Process,
    handle: u32,
}

impl Alone {
    fn new(process: Process) -> Self {
        let regions = table();
        let backing = Backing::Foreign(Arc::new(process.client()));
        let (address, bytes) = (process.address, process.len_bytes);
        let handle = register_for(&regions, 1, backing, address, bytes).unwrap();
        let mut mover = Mover::default();
        mover.begin_poll();
        Self {
            regions,
            mover,
            process,
            handle,
        }
    }

    fn remote(&self, offset_bytes: u64) -> RdmaRange {
        RdmaRange {
            tag: TagCheck::of(owner(1), TAG),
            handle: self.handle,
            address: self.process.address + offset_bytes,
        }
    }

    /// Transfers between two parts of its memory, or between it and a local buffer.
    fn copy(
        &mut self,
        from: Option<&[DataSegment]>,
        to: Option<&[DataSegment]>,
        buffer: &mut [u8],
        bytes: usize,
    ) -> Result<(), Fault> {
        let (mut source, mut target) = (Cursor::default(), Cursor::default());
        let at = buffer.as_mut_ptr() as u64;
        let tag = TagCheck::of(owner(1), TAG);
        let end = |segments, access, cursor| match segments {
            None => TransferEnd::Buffer(at),
            Some(segments) => TransferEnd::Segments(SegmentRange {
                tag,
                access,
                segments,
                cursor,
                offset_bytes: 0,
            }),
        };
        let from = end(from, Access::Read, &mut source);
        let to = end(to, Access::Write, &mut target);
        // SAFETY: no other thread uses the table or the memory; the buffer is as long.
        unsafe { self.mover.transfer(&self.regions, from, to, bytes) }
    }

    fn segment(&self, offset_bytes: u64, length: u32) -> DataSegment {
        DataSegment {
            address: self.process.address + offset_bytes,
            handle: self.handle,
            length,
        }
    }
}

#[test]
fn transfer_exceeding_iovec_limit_and_staging_buffer_is_complete() {
    let mut alone = Alone::new(Process::with_pages(64));
    let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    alone.process.write(0, &bytes);
    let target = 128 * 1024;
    // One long piece into another, through the staging buffer.
    let long = (alone.segment(1, 99_999), alone.segment(target, 99_999));
    let moved = alone.copy(Some(&[long.0]), Some(&[long.1]), &mut [], 99_999);
    assert_eq!(moved, Ok(()));
    assert_eq!(alone.process.read(target, 99_999), bytes[1..]);
    // Many short pieces with gaps, into one piece and into a buffer.
    let many: Vec<_> = (0..700).map(|i| alone.segment(i * 3, 2)).collect();
    let expected: Vec<u8> = bytes[..2100].chunks(3).flat_map(|c| [c[0], c[1]]).collect();
    let one = alone.segment(target, 1400);
    assert_eq!(alone.copy(Some(&many), Some(&[one]), &mut [], 1400), Ok(()));
    assert_eq!(alone.process.read(target, 1400), expected);
    let mut buffer = vec![0; 1400];
    assert_eq!(alone.copy(Some(&many), None, &mut buffer, 1400), Ok(()));
    assert_eq!(buffer, expected);
    alone.process.write(0, &[0; 2100]);
    assert_eq!(alone.copy(None, Some(&many), &mut buffer, 1400), Ok(()));
    let mut spread = vec![0; 2100];
    for (i, pair) in expected.chunks(2).enumerate() {
        spread[i * 3..i * 3 + 2].copy_from_slice(pair);
    }
    assert_eq!(alone.process.read(0, 2100), spread);
    // The segments are too short.
    assert_eq!(
        alone.copy(Some(&[one]), None, &mut [0; 1401], 1401),
        Err(Fault::Source)
    );
    assert_eq!(
        alone.mover.client_faults, 0,
        "no fault of the client process"
    );
}

#[test]
fn killed_client_process_is_a_fault_of_its_end() {
    let mut alone = Alone::new(Process::with_pages(2));
    let segment = [alone.segment(0, 100)];
    let mut buffer = [1u8; 100];
    assert_eq!(alone.copy(None, Some(&segment), &mut buffer, 100), Ok(()));
    alone.process.kill();
    // In the same poll it counts as alive, but the system calls fail.
    for poll in 1..=2 {
        let faults = alone.mover.client_faults;
        let read = alone.copy(Some(&segment), None, &mut buffer, 100);
        assert_eq!(read, Err(Fault::Source), "poll {poll}");
        let written = alone.copy(None, Some(&segment), &mut buffer, 100);
        assert_eq!(written, Err(Fault::Target), "poll {poll}");
        let to = alone.remote(8);
        // SAFETY: no other thread uses the table or the memory.
        let placed = unsafe { alone.mover.place_in_order(&alone.regions, to, &buffer) };
        assert_eq!(placed, Err(Fault::Target), "poll {poll}");
        assert_eq!(alone.mover.client_faults, faults + 3);
        alone.mover.begin_poll();
    }
}

#[test]
fn ordered_write_that_fails_does_not_write_the_last_word() {
    let mut alone = Alone::new(Process::with_hole(2));
    // The first bytes are in an inaccessible page, the last word is not.
    let to = alone.remote(PAGE_BYTES - 24);
    // SAFETY: no other thread uses the table or the memory.
    let placed = unsafe { alone.mover.place_in_order(&alone.regions, to, &[0xAB; 35]) };
    assert_eq!(placed, Err(Fault::Target));
    assert_eq!(alone.process.read(PAGE_BYTES, 11), [0; 11]);
    assert_eq!(alone.mover.client_faults, 1);
    let to = alone.remote(PAGE_BYTES);
    // SAFETY: as above.
    let placed = unsafe { alone.mover.place_in_order(&alone.regions, to, &[0xAB; 35]) };
    assert_eq!(placed, Ok(()));
    assert_eq!(alone.process.read(PAGE_BYTES, 36)[34..], [0xAB, 0]);
}

#[test]
fn memory_that_fails_the_check_is_not_accessed_by_system_calls() {
    let mut alone = Alone::new(Process::with_pages(1));
    let right = alone.remote(0);
    for wrong in [
        RdmaRange {
            tag: TagCheck::of(owner(2), TAG),
            ..right
        },
        RdmaRange {
            tag: TagCheck::tag(TAG),
            ..right
        },
        RdmaRange {
            tag: TagCheck::LENIENT,
            ..right
        },
        RdmaRange {
            handle: right.handle ^ 0x1_0000,
            ..right
        },
        RdmaRange {
            address: right.address + PAGE_BYTES - 4,
            ..right
        },
    ] {
        // SAFETY: no other thread uses the table or the memory.
        let placed = unsafe { alone.mover.place_in_order(&alone.regions, wrong, &[1; 8]) };
        assert_eq!(placed, Err(Fault::Target));
    }
    assert_eq!(alone.process.read(0, 4096), [0; 4096]);
    assert_eq!(alone.mover.client_faults, 0);
}
