//! The memory of one endpoint, and its expected content.
//!
//! ```text
//!   descriptors      long descriptors   data              edge     read-only   not mapped
//!   128 of 256 bytes  4 of 8 KiB        112 pages         1 page   1 page      1 page
//! ```
//! No byte belongs to two pending operations, so the expected content does not depend on their order.

use vipl::SharedMemory;

use crate::common::raw::Pages;
use crate::model::PAGE_BYTES;
use crate::oracle::Violation;
use crate::player::Checked;

const SHORT_BYTES: u64 = 256;
const SHORT_SLOTS: usize = 128;
const LONG_BYTES: u64 = 8192;
const LONG_SLOTS: usize = 4;
const DATA_AT: u64 = SHORT_BYTES * SHORT_SLOTS as u64 + LONG_BYTES * LONG_SLOTS as u64;
const DATA_BYTES: u64 = 112 * PAGE_BYTES;
const EDGE_AT: u64 = DATA_AT + DATA_BYTES;
const READ_ONLY_AT: u64 = EDGE_AT + PAGE_BYTES;
const UNMAPPED_AT: u64 = READ_ONLY_AT + PAGE_BYTES;
const ALL_BYTES: u64 = UNMAPPED_AT + PAGE_BYTES;
const LINE_BYTES: u64 = 64;

/// Memory of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    Short(usize),
    Long(usize),
    Lines { from: usize, to: usize },
}

/// Environment variable that selects the memory of the endpoints: private, or shared if it is not set.
const MEMORY: &str = "VIPL_TEST_MEMORY";

/// Returns whether the memory is private.
pub(crate) fn is_private() -> bool {
    std::env::var_os(MEMORY).is_some_and(|kind| kind == "private")
}

/// Owner of the memory.
enum Memory {
    Private(#[allow(dead_code, reason = "owned until dropped")] Pages),
    Shared(#[allow(dead_code, reason = "owned until dropped")] SharedMemory),
}

/// The memory of one endpoint.
pub(crate) struct Arena {
    base: u64,
    /// Freed when all handles of the NIC that registered it are closed.
    _memory: Memory,
    /// Expected content, up to the unmapped page.
    expected: Vec<u8>,
    short: [bool; SHORT_SLOTS],
    long: [bool; LONG_SLOTS],
    lines: Vec<bool>,
}

impl Arena {
    /// The memory is that of the library's allocator, which the other endpoint accesses directly, or private memory.
    pub(crate) fn new() -> Self {
        let memory = if is_private() {
            Memory::Private(Pages::new((ALL_BYTES / PAGE_BYTES) as usize))
        } else {
            Memory::Shared(SharedMemory::allocate(ALL_BYTES as usize).expect("memory"))
        };
        let base = match &memory {
            Memory::Private(pages) => pages.at(0),
            Memory::Shared(shared) => shared.address().as_ptr().expose_provenance() as u64,
        };
        let mut arena = Self {
            base,
            _memory: memory,
            expected: vec![0; UNMAPPED_AT as usize],
            short: [false; SHORT_SLOTS],
            long: [false; LONG_SLOTS],
            lines: vec![false; (DATA_BYTES / LINE_BYTES) as usize],
        };
        let page: Vec<u8> = (0..PAGE_BYTES)
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        arena.write(arena.read_only(), &page);
        arena.protect(READ_ONLY_AT, libc::PROT_READ);
        arena.protect(UNMAPPED_AT, libc::PROT_NONE);
        arena
    }

    fn protect(&self, at: u64, rights: libc::c_int) {
        let page = (self.base + at) as *mut libc::c_void;
        // SAFETY: a page of our own mapping, without references to it.
        let failed = unsafe { libc::mprotect(page, PAGE_BYTES as usize, rights) };
        assert_eq!(failed, 0);
    }

    /// Start and end of the writable memory: descriptors, data, edge.
    pub(crate) fn writable(&self) -> (u64, u64) {
        (self.base, self.writable_end())
    }

    /// Address of the read-only page.
    pub(crate) fn read_only(&self) -> u64 {
        self.base + READ_ONLY_AT
    }

    /// Address of the unmapped page.
    pub(crate) fn unmapped(&self) -> u64 {
        self.base + UNMAPPED_AT
    }

    /// End of the writable memory; the page before it is never allocated.
    pub(crate) fn writable_end(&self) -> u64 {
        self.base + READ_ONLY_AT
    }

    /// Returns whether the range is readable memory of this arena.
    pub(crate) fn contains(&self, address: u64, length_bytes: u64) -> bool {
        address >= self.base
            && address
                .checked_add(length_bytes)
                .is_some_and(|end| end <= self.base + UNMAPPED_AT)
    }

    fn at(&self, address: u64) -> usize {
        (address - self.base) as usize
    }

    /// Reads memory.
    pub(crate) fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        assert!(self.contains(address, length_bytes as u64));
        let mut bytes = vec![0; length_bytes];
        // SAFETY: readable bytes of our mapping; bytes that the provider writes meanwhile have arbitrary values.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length_bytes)
        };
        bytes
    }

    /// Writes memory, as the program.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        assert!(self.contains(address, bytes.len() as u64));
        // SAFETY: writable bytes of our mapping, allocated for this operation.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        };
        self.expect(address, bytes);
    }

    /// Sets the expected content of a range.
    pub(crate) fn expect(&mut self, address: u64, bytes: &[u8]) {
        let at = self.at(address);
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Accepts the present content of a range: the guide does not specify it.
    pub(crate) fn accept_content(&mut self, address: u64, length_bytes: usize) {
        let found = self.read(address, length_bytes);
        self.expect(address, &found);
    }

    /// Checks the content of all memory.
    pub(crate) fn check_all(&self) -> Checked {
        self.check(self.base, UNMAPPED_AT as usize)
    }

    /// Returns the expected content of all memory.
    pub(crate) fn expected(&self) -> Vec<u8> {
        self.expected.clone()
    }

    pub(crate) fn set_expected(&mut self, expected: Vec<u8>) {
        self.expected = expected;
    }

    /// Checks the content of a range.
    pub(crate) fn check(&self, address: u64, length_bytes: usize) -> Checked {
        let found = self.read(address, length_bytes);
        let at = self.at(address);
        let must = &self.expected[at..at + length_bytes];
        match found.iter().zip(must).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(offset) => Err(Violation(format!(
                "byte {offset} of {length_bytes} at {address:#x} is {:#x}, must be {:#x}",
                found[offset], must[offset]
            ))),
        }
    }

    /// Allocates memory for a descriptor.
    pub(crate) fn allocate_descriptor(&mut self, length_bytes: u64) -> Option<(u64, Allocation)> {
        if length_bytes <= SHORT_BYTES {
            let slot = self.short.iter().position(|is_used| !is_used)?;
            self.short[slot] = true;
            return Some((
                self.base + slot as u64 * SHORT_BYTES,
                Allocation::Short(slot),
            ));
        }
        let slot = self.long.iter().position(|is_used| !is_used)?;
        self.long[slot] = true;
        let long_at = self.base + SHORT_BYTES * SHORT_SLOTS as u64;
        Some((long_at + slot as u64 * LONG_BYTES, Allocation::Long(slot)))
    }

    /// Allocates data memory at an address that `seed` determines.
    pub(crate) fn allocate_data(
        &mut self,
        length_bytes: u32,
        seed: u32,
    ) -> Option<(u64, Allocation)> {
        let skew = u64::from(seed >> 16) % LINE_BYTES;
        let lines = ((skew + u64::from(length_bytes)).div_ceil(LINE_BYTES)).max(1) as usize;
        let positions = self.lines.len().checked_sub(lines)? + 1;
        let first = seed as usize % positions;
        let from = (0..positions)
            .map(|step| (first + step) % positions)
            .find(|from| {
                self.lines[*from..from + lines]
                    .iter()
                    .all(|is_used| !is_used)
            })?;
        let to = from + lines;
        self.lines[from..to].fill(true);
        let address = self.base + DATA_AT + from as u64 * LINE_BYTES + skew;
        Some((address, Allocation::Lines { from, to }))
    }

    /// Accepts the present content of an allocation.
    pub(crate) fn accept_allocation(&mut self, allocation: Allocation) {
        let (at, length_bytes) = match allocation {
            Allocation::Short(slot) => (slot as u64 * SHORT_BYTES, SHORT_BYTES),
            Allocation::Long(slot) => {
                let long_at = SHORT_BYTES * SHORT_SLOTS as u64;
                (long_at + slot as u64 * LONG_BYTES, LONG_BYTES)
            }
            Allocation::Lines { from, to } => (
                DATA_AT + from as u64 * LINE_BYTES,
                (to - from) as u64 * LINE_BYTES,
            ),
        };
        self.accept_content(self.base + at, length_bytes as usize);
    }

    pub(crate) fn free(&mut self, allocation: Allocation) {
        match allocation {
            Allocation::Short(slot) => self.short[slot] = false,
            Allocation::Long(slot) => self.long[slot] = false,
            Allocation::Lines { from, to } => self.lines[from..to].fill(false),
        }
    }
}
