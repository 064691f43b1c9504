//! Memory shared by one application and the datapath process: a submission ring, a completion ring, and the sleep
//! flags of both sides.
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
//!  ...    inline buffers of sends, written by the application; then of receives, written by the process
//! ```
//! An entry is valid when its first word, which is written last, contains its lap number. Each side keeps its own
//! indices in private memory, and trusts nothing of the other side but the number of entries taken, which is clamped.
//! Everything but the content of inline buffers is read and written as whole atomic words.

mod completion;
mod inline_buffers;
mod submission;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pmd_port::port::AsFutexWord;
use vi_core::memory::client_mapping::{self, MapError, MappedMemory, memfd_info};
use vi_core::memory::shared_allocator::create_sealed;
use vi_core::sync::{AtomicU32, AtomicU64, Ordering, fence, futex_wake};
use vi_types::LockPolicy;

pub(crate) use completion::{
    Completed, CompletionConsumer, CompletionEntry, CompletionProducer, OpCode,
};
pub(crate) use inline_buffers::{INLINE_BYTES, SendBuffers};
use submission::lines_of;
pub(crate) use submission::{Submission, SubmissionConsumer, SubmissionProducer, Submitted};

/// `VIADUCT2` and the version of this layout.
const MAGIC: u64 = 0x3254_4355_4441_4956;
const HEADER_BYTES: usize = 4096;
const PROCESS_SLEEPS: usize = 64;
const APPLICATION_SLEEPS: usize = 128;
const APPLICATION_WAKEUPS: usize = 132;
const SUBMISSIONS_TAKEN: usize = 192;
const COMPLETIONS_TAKEN: usize = 256;
/// Maximum number of inline buffers of each direction.
const MAX_INLINE_BUFFERS: u32 = 1 << 16;
/// 64-bit words of a submission line.
const LINE_WORDS: usize = 8;
/// 64-bit words of a completion entry.
const ENTRY_WORDS: usize = 4;

/// Sizes of the two rings, and number of inline buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSizes {
    /// Lines of the submission ring; a power of two.
    pub(crate) submissions: u32,
    /// Entries of the completion ring; a power of two.
    pub(crate) completions: u32,
    /// Inline buffers of sends, and as many of receives.
    pub(crate) inline_buffers: u32,
}

impl RingSizes {
    /// Sizes for descriptors of up to this number of segments, without inline buffers.
    pub(crate) fn for_segments(segments: u32) -> Self {
        let lines = lines_of(segments as usize).saturating_mul(2);
        Self {
            submissions: lines.next_power_of_two().max(1024),
            completions: 1024,
            inline_buffers: 0,
        }
    }

    pub(crate) fn with_inline_buffers(self, inline_buffers: u32) -> Self {
        Self {
            inline_buffers,
            ..self
        }
    }

    fn submission_bytes(self) -> usize {
        self.submissions as usize * LINE_WORDS * 8
    }

    fn completion_bytes(self) -> usize {
        self.completions as usize * ENTRY_WORDS * 8
    }

    fn bytes_before_buffers(self) -> usize {
        HEADER_BYTES + self.submission_bytes() + self.completion_bytes()
    }

    fn bytes(self) -> usize {
        self.bytes_before_buffers() + 2 * (self.inline_buffers * INLINE_BYTES) as usize
    }
}

/// Identifies a VI: its index and the generation of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// What the other side wrote in violation of the ring protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);

/// The shared memory, mapped into this process.
pub(crate) struct SharedQueues {
    map: MappedMemory,
    sizes: RingSizes,
}

impl SharedQueues {
    /// Allocates the memory, sealed against shrinking, and returns its file descriptor, too.
    pub(crate) fn create(sizes: RingSizes) -> io::Result<(Self, OwnedFd)> {
        let fd = create_sealed(sizes.bytes())?;
        let queues = Self {
            map: map(fd.try_clone()?, sizes.bytes())?,
            sizes,
        };
        let header = queues.words::<3>(0);
        header[2].store(sizes.inline_buffers.into(), Ordering::Relaxed);
        header[1].store(
            u64::from(sizes.submissions) << 32 | u64::from(sizes.completions),
            Ordering::Relaxed,
        );
        // Release: partner of the Acquire load in `open`; the descriptor is passed on later.
        header[0].store(MAGIC, Ordering::Release);
        Ok((queues, fd))
    }

    /// Seals the memory, of which `fd` is the descriptor, against holes and new writable mappings, after both sides
    /// have mapped it. All of its pages are allocated afterwards, and locked as `policy` requires.
    pub(crate) fn seal(&self, fd: BorrowedFd<'_>, policy: LockPolicy) -> io::Result<()> {
        client_mapping::seal(fd).map_err(io::Error::other)?;
        self.map.populate()?;
        if policy != LockPolicy::Never
            && let Err(number) = self.map.lock_pages()
            && policy == LockPolicy::Required
        {
            return Err(io::Error::other(MapError::NotLocked(number)));
        }
        Ok(())
    }

    /// Maps the memory that the process allocated.
    ///
    /// # Errors
    /// Its size or version is wrong, or it cannot be mapped.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Self> {
        let info = memfd_info(fd.as_fd()).map_err(io::Error::other)?;
        let bytes = usize::try_from(info.bytes).unwrap_or(0);
        if bytes < HEADER_BYTES {
            return Err(io::Error::other("shared queues: the memory is too short"));
        }
        let mut queues = Self {
            map: map(fd, bytes)?,
            sizes: RingSizes {
                submissions: 1,
                completions: 1,
                inline_buffers: 0,
            },
        };
        let header = queues.words::<3>(0);
        // Acquire: partner of the Release store in `create`.
        if header[0].load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other(
                "shared queues: another version: use library and fcvi-pmd of the same release",
            ));
        }
        let sizes = header[1].load(Ordering::Relaxed);
        let sizes = RingSizes {
            submissions: (sizes >> 32) as u32,
            completions: sizes as u32,
            inline_buffers: header[2].load(Ordering::Relaxed) as u32,
        };
        let fits = |count: u32| count.is_power_of_two() && count <= 1 << 24;
        let is_valid = fits(sizes.submissions)
            && fits(sizes.completions)
            && sizes.inline_buffers <= MAX_INLINE_BUFFERS;
        if !is_valid || sizes.bytes() != bytes {
            return Err(io::Error::other(
                "shared queues: the ring sizes contradict the length of the memory",
            ));
        }
        queues.sizes = sizes;
        Ok(queues)
    }

    /// Lines of the submission ring: the maximum number of submissions in it.
    pub(crate) fn submissions(&self) -> u32 {
        self.sizes.submissions
    }

    /// Entries of the completion ring.
    pub(crate) fn completions(&self) -> u32 {
        self.sizes.completions
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

    /// Sets the sleep flag of the process, which must check the submission ring once more before it sleeps.
    pub(crate) fn prepare_process_sleep(&self) {
        self.prepare_sleep(PROCESS_SLEEPS);
    }

    /// Clears the sleep flag of the process.
    pub(crate) fn finish_process_sleep(&self) {
        self.word(PROCESS_SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Clears the sleep flag of the process; true if it was set: the caller, who has submitted, must wake the process.
    #[inline]
    pub(crate) fn must_wake_process(&self) -> bool {
        self.must_wake(PROCESS_SLEEPS)
    }

    /// Sets the sleep flag of the application, which must check the completion ring once more before it sleeps. Returns
    /// the value of the futex word at which it may sleep.
    pub(crate) fn prepare_application_sleep(&self) -> u32 {
        // Acquire: read before the flag below is visible; partner of the Release addition in `wake_application`.
        let expected = self.futex_word().load(Ordering::Acquire);
        self.prepare_sleep(APPLICATION_SLEEPS);
        expected
    }

    /// Clears the sleep flag of the application.
    pub(crate) fn finish_application_sleep(&self) {
        self.word(APPLICATION_SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Wakes the application if it sleeps, by a futex: the system call ends at the first waiter of the word (ADR 0057),
    /// and accesses nothing that the application could make block.
    #[inline]
    pub(crate) fn wake_application(&self) {
        if self.must_wake(APPLICATION_SLEEPS) {
            // Release: partner of the Acquire load in `prepare_application_sleep`.
            self.futex_word().fetch_add(1, Ordering::Release);
            futex_wake(self.futex_word(), 1, true);
        }
    }

    fn prepare_sleep(&self, flag: usize) {
        self.word(flag).store(1, Ordering::Relaxed);
        // SeqCst: partner of the fence in `must_wake`. Either the caller finds a new entry when it checks the ring
        // after this, or the writer of the entry finds the flag.
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn must_wake(&self, flag: usize) -> bool {
        // SeqCst: partner of the fence in `prepare_sleep`.
        fence(Ordering::SeqCst);
        let sleeps = self.word(flag);
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }
}

impl AsFutexWord for SharedQueues {
    fn futex_word(&self) -> &AtomicU32 {
        self.word(APPLICATION_WAKEUPS)
    }
}

/// Maps the whole memory.
fn map(fd: OwnedFd, bytes: usize) -> io::Result<MappedMemory> {
    MappedMemory::map(fd, 0, bytes as u64).map_err(io::Error::other)
}

/// The lap number of a ring index, as valid entries contain it; never 0, which new memory contains. `ring` is a power
/// of two.
#[inline]
const fn lap(number: u32, ring: u32) -> u64 {
    (number >> ring.trailing_zeros()).wrapping_add(1) as u64
}
