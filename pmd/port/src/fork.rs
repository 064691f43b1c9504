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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::descriptor_number::above_standard_streams;
use crate::release;

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
    static FORKS: RefCell<Option<(Table, release::Held)>> = const { RefCell::new(None) };
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
    let queue = release::hold();
    let table = table();
    // A thread that forks while its locals are being destroyed goes without.
    let _gone = FORKS.try_with(|held| *held.borrow_mut() = Some((table, queue)));
}

extern "C" fn in_parent() {
    let _gone = FORKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    let held = FORKS.try_with(|held| held.borrow_mut().take());
    if let Some((mut table, mut queue)) = held.ok().flatten() {
        table.iter().for_each(Kept::let_go);
        // The child may close the descriptors, and open others in their place.
        table.clear();
        queue.in_child();
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
pub struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    close: Close,
}

/// How the file of a [`Descriptor`] is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    /// With the table held: it does not block.
    AtOnce,
    /// By the thread that drops it, which may block, and holds nothing meanwhile.
    Apart,
    /// By the thread of [`release`].
    Later,
}

/// What takes the place of a file that is closed apart.
static NOTHING: OnceLock<Descriptor> = OnceLock::new();

impl Descriptor {
    /// Makes one by `make`, during which nobody can fork.
    ///
    /// # Errors
    /// Those of `make`, and that forks cannot be noticed.
    pub fn make(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        watch()?;
        let mut table = table();
        let fd = above_standard_streams(make()?)?;
        table.push(Kept::Descriptor(fd.as_raw_fd()));
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            close: Close::AtOnce,
        })
    }

    /// Marks it as one whose last copy may be ours to close though another process made it, passed
    /// it, shares it or can put descriptors into it. Closing such a file can block for as long as that process
    /// likes (`SO_LINGER`, a file system in user space), so the drop leaves it to [`release`].
    #[must_use]
    pub fn into_foreign(mut self) -> Self {
        self.set_foreign();
        self
    }

    /// As [`Descriptor::into_foreign`].
    pub fn set_foreign(&mut self) {
        self.close = Close::Later;
    }

    /// Is it marked by [`Descriptor::into_foreign`]?
    pub fn is_foreign(&self) -> bool {
        self.close == Close::Later
    }

    /// Marks it as one whose file another process can make slow to close, and that is dropped by a thread which serves
    /// that process alone: the thread closes it, and neither forks nor other descriptors wait meanwhile.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn close_apart_on_drop(&mut self) -> io::Result<()> {
        prepare()?;
        self.close = Close::Apart;
        Ok(())
    }

    /// Closes its file without holding up forks, however long that takes: a descriptor of nothing replaces it under its
    /// number, which a child and a later drop find.
    pub fn close_file(&self) {
        let Some(nothing) = NOTHING.get() else { return };
        let (from, to) = (nothing.as_raw_fd(), self.fd.as_raw_fd());
        // SAFETY: integers only. `to` is ours and nobody uses it any more.
        while unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0 {
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
                // Only a number that is not open: the drop finds the same.
                return;
            }
        }
    }

    /// Closes it now, as [`release`] does.
    pub(crate) fn close_apart(mut self) {
        self.close = Close::Apart;
    }
}

/// Makes what takes the place of files that are closed apart.
pub(crate) fn prepare() -> io::Result<()> {
    if NOTHING.get().is_none() {
        let made = Descriptor::make(nothing)?;
        // Another thread may have been quicker.
        let _used = NOTHING.set(made);
    }
    Ok(())
}

fn nothing() -> io::Result<OwnedFd> {
    // SAFETY: takes two integers; gives a new descriptor or -1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let kept = Kept::Descriptor(self.fd.as_raw_fd());
        // In a child it stands for nothing any more, and is in no table.
        if self.close != Close::AtOnce && table().contains(&kept) {
            if self.close == Close::Later {
                // SAFETY: not used again: `self` is being dropped.
                let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
                release::later(Self {
                    fd: ManuallyDrop::new(fd),
                    close: Close::Later,
                });
                return;
            }
            self.close_file();
        }
        let _quiet = kept.forget();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
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

    /// A connection whose close blocks until the returned peer has read everything, for so many seconds at most.
    fn lingering(seconds: libc::c_int) -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near =
            std::net::TcpStream::connect(listener.local_addr().expect("it")).expect("a connection");
        let (peer, _) = listener.accept().expect("a connection");
        near.set_nonblocking(true).expect("a flag");
        while io::Write::write(&mut near, &[0; 1 << 16]).is_ok() {}
        near.set_nonblocking(false).expect("a flag");
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: seconds,
        };
        let (fd, from) = (near.as_raw_fd(), (&raw const linger).cast());
        let length = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the kernel reads a value of this frame, of that size.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, length) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        (near.into(), peer)
    }

    #[test]
    fn drop_of_a_foreign_descriptor_whose_close_blocks_holds_up_nothing() {
        const LINGER: u64 = 60;
        release::start().expect("a thread");
        let begun = std::time::Instant::now();
        let (near, mut peer) = lingering(LINGER as libc::c_int);
        let number = near.as_raw_fd();
        drop(
            Descriptor::make(|| Ok(near))
                .expect("a descriptor")
                .into_foreign(),
        );
        // Neither is the next one, which a fork or an opening would make.
        drop(Descriptor::make(|| Ok(pipe().0)).expect("a descriptor"));
        assert!(
            begun.elapsed().as_secs() < LINGER / 2,
            "the close was waited for"
        );
        io::copy(&mut peer, &mut io::sink()).expect("it ends");
        // The number is free behind that.
        while table().contains(&Kept::Descriptor(number)) {
            assert!(begun.elapsed().as_secs() < LINGER / 2, "it is not released");
            std::thread::yield_now();
        }
    }
}
