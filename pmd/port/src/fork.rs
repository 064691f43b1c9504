//! What a child of this process does not keep of a port.
//!
//! A child that is forked has every descriptor and mapping too, and the kernel ends what they
//! stand for (a program on an interface, a membership, a queue that is taken) with the last of
//! them only: it would stay when the parent closes its port, for as long as the child lives. So
//! in a child the descriptors here become others that stand for nothing, and the mappings zeroed
//! memory of its own. Numbers and ranges stay taken: the child's copies of the parent's ports may
//! be dropped, and reach nobody.
//!
//! A child of vfork(2) or posix_spawn(3) has nothing to call this by; it executes another program
//! at once, and the descriptors are closed then.

use core::cell::RefCell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What the parent has alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Descriptor(RawFd),
    Range { start: usize, len_bytes: usize },
}

type Table = MutexGuard<'static, Vec<Kept>>;

/// All of it. Whoever makes or ends something that is in it has the lock meanwhile, and no other
/// lock behind it; whoever forks has it, too.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

thread_local! {
    /// What this thread holds from before a fork until after it.
    static FORKS: RefCell<Option<Table>> = const { RefCell::new(None) };
}

fn table() -> Table {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has forks noticed from now on. Whoever holds locks of its own from before a fork until after it, and makes or ends
/// ports under them, says so to the system behind this: what is said last is done first.
///
/// # Errors
/// The system has no memory for that.
pub fn watch() -> io::Result<()> {
    static WATCHED: OnceLock<libc::c_int> = OnceLock::new();
    let error = *WATCHED.get_or_init(|| {
        // SAFETY: the functions live as long as the code of the library and do not unwind.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) }
    });
    match error {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn before() {
    let table = table();
    // A thread that forks while its locals are being destroyed goes without.
    let _gone = FORKS.try_with(|held| *held.borrow_mut() = Some(table));
}

extern "C" fn in_parent() {
    let _gone = FORKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    let held = FORKS.try_with(|held| held.borrow_mut().take());
    if let Some(mut table) = held.ok().flatten() {
        table.iter().for_each(Kept::let_go);
        // The child may close the descriptors, and open others in their place.
        table.clear();
    }
}

impl Kept {
    /// In a child, whose only thread this is: lets go of it. Only calls that may be made there.
    fn let_go(&self) {
        match *self {
            Self::Descriptor(fd) => replace_descriptor(fd),
            Self::Range { start, len_bytes } => replace_range(start, len_bytes),
        }
    }

    /// Takes it out of the table, which is held until it is ended.
    fn forget(self) -> Table {
        let mut table = table();
        if let Some(at) = table.iter().position(|kept| *kept == self) {
            table.swap_remove(at);
        }
        table
    }
}

/// Puts a descriptor that stands for nothing in the place of this one.
fn replace_descriptor(fd: RawFd) {
    // SAFETY: takes two integers and touches no memory of ours.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if nothing < 0 {
        // No descriptor is left to take its place: the number is free then.
        // SAFETY: the table says that it is open, and a driver's.
        unsafe { libc::close(fd) };
        return;
    }
    // SAFETY: integers only. What `fd` stood for is let go of, and nobody else uses it.
    unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
    // SAFETY: made above, and nobody else has it.
    unsafe { libc::close(nothing) };
}

/// Maps zeroed memory in the place of this range.
fn replace_range(start: usize, len_bytes: usize) {
    // SAFETY: the table says that exactly this range is a mapping of a driver's, whose bytes are
    // accessed through raw pointers and make no promises to the compiler. If it fails, the range
    // is as it was.
    unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

/// A descriptor that no child keeps.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl Descriptor {
    /// Makes one by `make`, during which nobody can fork.
    ///
    /// # Errors
    /// Those of `make`, and that forks cannot be noticed.
    pub fn make(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        watch()?;
        let mut table = table();
        let fd = make()?;
        table.push(Kept::Descriptor(fd.as_raw_fd()));
        Ok(Self(ManuallyDrop::new(fd)))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _quiet = Kept::Descriptor(self.0.as_raw_fd()).forget();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A range of memory that no child keeps.
#[derive(Debug)]
pub(crate) struct Range(Kept);

impl Range {
    /// Maps one by `make`, during which nobody can fork.
    ///
    /// # Errors
    /// Those of `make`, and that forks cannot be noticed.
    pub(crate) fn make(
        len_bytes: usize,
        make: impl FnOnce() -> io::Result<NonNull<u8>>,
    ) -> io::Result<(NonNull<u8>, Self)> {
        watch()?;
        let mut table = table();
        let address = make()?;
        let kept = Kept::Range {
            start: address.as_ptr() as usize,
            len_bytes,
        };
        table.push(kept);
        Ok((address, Self(kept)))
    }

    /// Nobody can fork until what this returns is dropped, which is after the range was unmapped.
    pub(crate) fn end(self) -> impl Drop {
        self.0.forget()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn pipe() -> (OwnedFd, OwnedFd) {
        let mut fds = [0; 2];
        // SAFETY: two descriptors are written to an array of two.
        let result = unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) };
        assert_eq!(result, 0, "pipe2: {}", io::Error::last_os_error());
        // SAFETY: the descriptors were just made and belong to nobody else.
        fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into()
    }

    /// What read(2) of one byte says: nothing while the other end is open.
    fn read(fd: &OwnedFd) -> isize {
        let mut byte = 0u8;
        // SAFETY: one byte of this frame is written.
        unsafe { libc::read(fd.as_raw_fd(), (&raw mut byte).cast(), 1) }
    }

    #[test]
    fn what_is_in_the_place_of_a_descriptor_stands_for_nothing() {
        let (end, held) = pipe();
        replace_descriptor(held.as_raw_fd());
        assert_eq!(read(&end), 0, "the other end is closed");
        // The number is still a descriptor, and nobody else's.
        drop(held);
    }

    #[test]
    fn what_ends_is_not_in_the_table() {
        let is_in_table = |fd| table().contains(&Kept::Descriptor(fd));
        let (_end, held) = pipe();
        let number = held.as_raw_fd();
        let descriptor = Descriptor::make(|| Ok(held)).expect("a descriptor");
        assert!(is_in_table(number));
        assert_eq!(descriptor.as_fd().as_raw_fd(), number);
        drop(descriptor);
        assert!(!is_in_table(number));
        Descriptor::make(|| Err(io::ErrorKind::Other.into())).expect_err("nothing was made");
        // The lock is free again.
        drop(table());
    }
}
