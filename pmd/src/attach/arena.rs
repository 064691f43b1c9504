//! The memory that an application and the process share: two rings, and who sleeps.
//!
//! ```text
//!  0      header: magic, sizes
//!  64     the process sleeps (u32)         written by both
//!  128    the application sleeps (u32)     written by both
//!  132    wake-ups of the application (u32), a futex word   written by both
//!  192    submissions taken (u32)          written by the process
//!  256    completions taken (u32)          written by the application
//!  4096   submission ring: lines of 64 bytes
//!  ...    completion ring: entries of 32 bytes
//! ```
//! An entry is valid when the number of its lap stands in its first word, which is written last.
//! Each side keeps its own indices for itself and believes nothing of the other's but how much it
//! took, which is clamped. Everything is read and written as whole atomic words.

mod completion;
mod submission;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pmd_port::port::AsFutexWord;

use crate::memory::mapped::{self, MappedMemory, facts_of};
use crate::memory::shared::sealed;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, futex_wake};

pub(crate) use completion::{Completed, Listener, OpCode, Teller, Told};
use submission::lines_of;
pub(crate) use submission::{Submission, Submitter, Taker};

/// `VIADUCT1` and the version of this layout.
const MAGIC: u64 = 0x3154_4355_4441_4956;
const HEADER_BYTES: usize = 4096;
const PROCESS_SLEEPS: usize = 64;
const APPLICATION_SLEEPS: usize = 128;
const APPLICATION_WAKEUPS: usize = 132;
const SUBMISSIONS_TAKEN: usize = 192;
const COMPLETIONS_TAKEN: usize = 256;
/// Words of a submission line and of a completion entry.
const LINE_WORDS: usize = 8;
const ENTRY_WORDS: usize = 4;
/// How large the rings of an arena are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSizes {
    /// Lines of the submission ring; a power of two.
    pub(crate) submissions: u32,
    /// Entries of the completion ring; a power of two.
    pub(crate) completions: u32,
}

impl RingSizes {
    /// Rings in which a descriptor of so many segments has room, at least.
    pub(crate) fn for_segments(segments: u32) -> Self {
        let lines = lines_of(segments as usize).saturating_mul(2);
        Self {
            submissions: lines.next_power_of_two().max(1024),
            completions: 1024,
        }
    }

    fn submission_bytes(self) -> usize {
        self.submissions as usize * LINE_WORDS * 8
    }

    fn completion_bytes(self) -> usize {
        self.completions as usize * ENTRY_WORDS * 8
    }

    fn bytes(self) -> usize {
        HEADER_BYTES + self.submission_bytes() + self.completion_bytes()
    }
}

/// A VI by its place and the generation that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViName {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// The other side wrote what it never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonsense(pub(crate) &'static str);

/// An arena, mapped into this process.
pub(crate) struct Arena {
    map: MappedMemory,
    sizes: RingSizes,
}

impl Arena {
    /// Makes an arena that nobody can cut short.
    pub(crate) fn create(sizes: RingSizes) -> io::Result<(Self, OwnedFd)> {
        let fd = sealed(sizes.bytes())?;
        let arena = Self {
            map: map(fd.try_clone()?, sizes.bytes())?,
            sizes,
        };
        let header = arena.words::<2>(0);
        header[1].store(
            u64::from(sizes.submissions) << 32 | u64::from(sizes.completions),
            Ordering::Relaxed,
        );
        // Release: partner of the Acquire load in `open`; the descriptor is passed on later.
        header[0].store(MAGIC, Ordering::Release);
        Ok((arena, fd))
    }

    /// Seals the arena, of which this is the descriptor, so that nobody punches holes into it: both
    /// sides have mapped it, and nobody else can. All of its pages are there afterwards.
    pub(crate) fn seal(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        mapped::seal(fd).map_err(io::Error::other)?;
        self.map.populate()
    }

    /// Maps the arena that the process made.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Self> {
        let facts = facts_of(fd.as_fd()).map_err(io::Error::other)?;
        let bytes = usize::try_from(facts.bytes).unwrap_or(0);
        if bytes < HEADER_BYTES {
            return Err(io::Error::other("the arena is too short"));
        }
        let mut arena = Self {
            map: map(fd, bytes)?,
            sizes: RingSizes {
                submissions: 1,
                completions: 1,
            },
        };
        let header = arena.words::<2>(0);
        // Acquire: partner of the Release store in `create`.
        if header[0].load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other(
                "the arena is of another version: use library and fcvi-pmd of the same release",
            ));
        }
        let sizes = header[1].load(Ordering::Relaxed);
        let sizes = RingSizes {
            submissions: (sizes >> 32) as u32,
            completions: sizes as u32,
        };
        let fits = |count: u32| count.is_power_of_two() && count <= 1 << 24;
        let sound = fits(sizes.submissions) && fits(sizes.completions);
        if !sound || sizes.bytes() != bytes {
            return Err(io::Error::other("the arena is not as long as it says"));
        }
        arena.sizes = sizes;
        Ok(arena)
    }

    /// How many submissions there can be at a time, at most.
    pub(crate) fn submissions(&self) -> u32 {
        self.sizes.submissions
    }

    #[inline]
    fn at(&self, at: usize, bytes: usize) -> u64 {
        assert!(at + bytes <= self.map.len_bytes() as usize);
        self.map.address() + at as u64
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        let word = self.at(at, 4) as *mut u32;
        // SAFETY: an aligned word inside the mapping, which lives as long as the borrow; all
        // sides use it as an atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }

    #[inline]
    fn words<const COUNT: usize>(&self, at: usize) -> &[AtomicU64; COUNT] {
        let first = self.at(at, COUNT * 8) as *const [AtomicU64; COUNT];
        // SAFETY: aligned words inside the mapping, which lives as long as the borrow; all
        // sides use them as atomics.
        unsafe { &*first }
    }

    #[inline]
    fn line(&self, number: u32) -> &[AtomicU64; LINE_WORDS] {
        let at = (number & (self.sizes.submissions - 1)) as usize;
        self.words(HEADER_BYTES + at * LINE_WORDS * 8)
    }

    #[inline]
    fn entry(&self, number: u32) -> &[AtomicU64; ENTRY_WORDS] {
        let at = (number & (self.sizes.completions - 1)) as usize;
        let ring = HEADER_BYTES + self.sizes.submission_bytes();
        self.words(ring + at * ENTRY_WORDS * 8)
    }

    /// The process is about to sleep: it looks once more after this.
    pub(crate) fn process_lies_down(&self) {
        self.lie_down(PROCESS_SLEEPS);
    }

    /// The process is awake again.
    pub(crate) fn process_is_up(&self) {
        self.word(PROCESS_SLEEPS).store(0, Ordering::Relaxed);
    }

    /// True, once, if the process sleeps: whoever submitted something wakes it.
    #[inline]
    pub(crate) fn must_wake_process(&self) -> bool {
        self.must_wake(PROCESS_SLEEPS)
    }

    /// The application is about to sleep: it looks once more after this. Gives the value of the
    /// futex word while it may.
    pub(crate) fn application_lies_down(&self) -> u32 {
        // Acquire: read before the wish below is seen; partner of the Release addition in `wake_application`.
        let expected = self.futex_word().load(Ordering::Acquire);
        self.lie_down(APPLICATION_SLEEPS);
        expected
    }

    /// The application is awake again.
    pub(crate) fn application_is_up(&self) {
        self.word(APPLICATION_SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Wakes the application if it sleeps. By a futex of one waiter: the call takes no lock for longer than
    /// another one's entry in the kernel's list, and touches nothing that the application could make block.
    #[inline]
    pub(crate) fn wake_application(&self) {
        if self.must_wake(APPLICATION_SLEEPS) {
            // Release: partner of the Acquire load in `application_lies_down`.
            self.futex_word().fetch_add(1, Ordering::Release);
            futex_wake(self.futex_word(), 1, true);
        }
    }

    fn lie_down(&self, who: usize) {
        self.word(who).store(1, Ordering::Relaxed);
        // SeqCst: partner of the fence in `must_wake`. Either we find what was written when we
        // look after this, or whoever wrote it sees that we sleep.
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn must_wake(&self, who: usize) -> bool {
        // SeqCst: partner of the fence in `lie_down`.
        fence(Ordering::SeqCst);
        let sleeps = self.word(who);
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }
}

impl AsFutexWord for Arena {
    fn futex_word(&self) -> &AtomicU32 {
        self.word(APPLICATION_WAKEUPS)
    }
}

/// The whole of such memory.
fn map(fd: OwnedFd, bytes: usize) -> io::Result<MappedMemory> {
    MappedMemory::map(fd, 0, bytes as u64).map_err(io::Error::other)
}

/// The number of a lap of a ring, whose length is a power of two, as it stands in a valid entry:
/// never what the memory is made with.
#[inline]
const fn lap(number: u32, ring: u32) -> u64 {
    (number >> ring.trailing_zeros()).wrapping_add(1) as u64
}
