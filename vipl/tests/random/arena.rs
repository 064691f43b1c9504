//! The memory of one end, and beside it what must be in it.
//!
//! ```text
//!   descriptors      long descriptors   data              edge     read-only   not mapped
//!   128 of 256 bytes  4 of 8 KiB        112 pages         1 page   1 page      1 page
//! ```
//! The program never gives the same bytes to two operations at a time, so what must be in memory does not depend on
//! who comes first.

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
const HOLE_AT: u64 = READ_ONLY_AT + PAGE_BYTES;
const ALL_BYTES: u64 = HOLE_AT + PAGE_BYTES;
const LINE_BYTES: u64 = 64;

/// Bytes that the program may give to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lent {
    Short(usize),
    Long(usize),
    Lines { from: usize, to: usize },
}

/// The memory of one end.
pub(crate) struct Arena {
    base: u64,
    /// What must be in memory, up to the hole.
    expected: Vec<u8>,
    short: [bool; SHORT_SLOTS],
    long: [bool; LONG_SLOTS],
    lines: Vec<bool>,
}

impl Arena {
    pub(crate) fn new() -> Self {
        // SAFETY: a fresh private mapping, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ALL_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let mut arena = Self {
            base: base as u64,
            expected: vec![0; HOLE_AT as usize],
            short: [false; SHORT_SLOTS],
            long: [false; LONG_SLOTS],
            lines: vec![false; (DATA_BYTES / LINE_BYTES) as usize],
        };
        let page: Vec<u8> = (0..PAGE_BYTES)
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        arena.write(arena.read_only(), &page);
        arena.protect(READ_ONLY_AT, libc::PROT_READ);
        arena.protect(HOLE_AT, libc::PROT_NONE);
        arena
    }

    fn protect(&self, at: u64, rights: libc::c_int) {
        let page = (self.base + at) as *mut libc::c_void;
        // SAFETY: a page of our own mapping, to which nobody holds a reference.
        let failed = unsafe { libc::mprotect(page, PAGE_BYTES as usize, rights) };
        assert_eq!(failed, 0);
    }

    /// All that can be written: descriptors, data, edge.
    pub(crate) fn writable(&self) -> (u64, u64) {
        (self.base, self.edge_end())
    }

    /// The page that can only be read.
    pub(crate) fn read_only(&self) -> u64 {
        self.base + READ_ONLY_AT
    }

    /// A page that is not there.
    pub(crate) fn hole(&self) -> u64 {
        self.base + HOLE_AT
    }

    /// The end of what can be written; the page before it is lent to nobody.
    pub(crate) fn edge_end(&self) -> u64 {
        self.base + READ_ONLY_AT
    }

    /// Is all of this readable memory of this arena?
    pub(crate) fn holds(&self, address: u64, length_bytes: u64) -> bool {
        address >= self.base
            && address
                .checked_add(length_bytes)
                .is_some_and(|end| end <= self.base + HOLE_AT)
    }

    fn at(&self, address: u64) -> usize {
        (address - self.base) as usize
    }

    /// What is in memory.
    pub(crate) fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        assert!(self.holds(address, length_bytes as u64));
        let mut bytes = vec![0; length_bytes];
        // SAFETY: readable bytes of our mapping; what the provider writes meanwhile is read as some value.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length_bytes)
        };
        bytes
    }

    /// Writes as the program.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        assert!(self.holds(address, bytes.len() as u64));
        // SAFETY: writable bytes of our mapping, lent to this operation.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        };
        self.expect(address, bytes);
    }

    /// The provider must have written this.
    pub(crate) fn expect(&mut self, address: u64, bytes: &[u8]) {
        let at = self.at(address);
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What is in memory here is left open by the guide.
    pub(crate) fn adopt(&mut self, address: u64, length_bytes: usize) {
        let found = self.read(address, length_bytes);
        self.expect(address, &found);
    }

    /// All of it holds what it must: nothing was written that was not meant.
    pub(crate) fn check_all(&self) -> Checked {
        self.check(self.base, HOLE_AT as usize)
    }

    /// What must be in all of it.
    pub(crate) fn expected(&self) -> Vec<u8> {
        self.expected.clone()
    }

    pub(crate) fn set_expected(&mut self, expected: Vec<u8>) {
        self.expected = expected;
    }

    /// A part of it holds what it must.
    pub(crate) fn check(&self, address: u64, length_bytes: usize) -> Checked {
        let found = self.read(address, length_bytes);
        let at = self.at(address);
        let must = &self.expected[at..at + length_bytes];
        match found.iter().zip(must).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(wrong) => Err(Violation(format!(
                "byte {wrong} of {length_bytes} at {address:#x} is {:#x}, must be {:#x}",
                found[wrong], must[wrong]
            ))),
        }
    }

    /// Lends a place for a descriptor of so many bytes.
    pub(crate) fn lend_descriptor(&mut self, length_bytes: u64) -> Option<(u64, Lent)> {
        if length_bytes <= SHORT_BYTES {
            let slot = self.short.iter().position(|lent| !lent)?;
            self.short[slot] = true;
            return Some((self.base + slot as u64 * SHORT_BYTES, Lent::Short(slot)));
        }
        let slot = self.long.iter().position(|lent| !lent)?;
        self.long[slot] = true;
        let long_at = self.base + SHORT_BYTES * SHORT_SLOTS as u64;
        Some((long_at + slot as u64 * LONG_BYTES, Lent::Long(slot)))
    }

    /// Lends so many bytes of data, somewhere after a place that `dice` decides.
    pub(crate) fn lend_data(&mut self, length_bytes: u32, dice: u32) -> Option<(u64, Lent)> {
        let skew = u64::from(dice >> 16) % LINE_BYTES;
        let lines = ((skew + u64::from(length_bytes)).div_ceil(LINE_BYTES)).max(1) as usize;
        let places = self.lines.len().checked_sub(lines)? + 1;
        let first = dice as usize % places;
        let from = (0..places)
            .map(|step| (first + step) % places)
            .find(|from| self.lines[*from..from + lines].iter().all(|lent| !lent))?;
        let to = from + lines;
        self.lines[from..to].fill(true);
        let address = self.base + DATA_AT + from as u64 * LINE_BYTES + skew;
        Some((address, Lent::Lines { from, to }))
    }

    /// What is in bytes that were lent is left open.
    pub(crate) fn adopt_lent(&mut self, lent: Lent) {
        let (at, length_bytes) = match lent {
            Lent::Short(slot) => (slot as u64 * SHORT_BYTES, SHORT_BYTES),
            Lent::Long(slot) => {
                let long_at = SHORT_BYTES * SHORT_SLOTS as u64;
                (long_at + slot as u64 * LONG_BYTES, LONG_BYTES)
            }
            Lent::Lines { from, to } => (
                DATA_AT + from as u64 * LINE_BYTES,
                (to - from) as u64 * LINE_BYTES,
            ),
        };
        self.adopt(self.base + at, length_bytes as usize);
    }

    pub(crate) fn take_back(&mut self, lent: Lent) {
        match lent {
            Lent::Short(slot) => self.short[slot] = false,
            Lent::Long(slot) => self.long[slot] = false,
            Lent::Lines { from, to } => self.lines[from..to].fill(false),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our mapping; every opening of the NIC that knew it is closed.
        unsafe { libc::munmap(self.base as *mut libc::c_void, ALL_BYTES as usize) };
    }
}
