//! Releases a port's kernel resources in forked children.
//!
//! A forked child shares every descriptor and mapping, and the kernel releases what they
//! refer to (an XDP program on an interface, a multicast membership, a bound queue) only with the
//! last copy: it would outlive the parent's port for as long as the child exists. Therefore, in a
//! child, the descriptors registered here are replaced by unused ones and the mappings by private
//! zeroed memory. Descriptor numbers and address ranges stay occupied: the child may drop its
//! copies of the parent's ports, which affects no other process.
//!
//! A child of vfork(2) or posix_spawn(3) runs no fork handlers; it executes another program
//! at once, and the descriptors are closed then.

use core::cell::RefCell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::deferred_close;
use crate::descriptor_number::above_standard_streams;

/// A resource that forked children must not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Descriptor(RawFd),
    Range { start: usize, len_bytes: usize },
}

type Table = MutexGuard<'static, Vec<Resource>>;

/// All registered resources. The lock is held while a resource is created or released, with no
/// other lock acquired after it, and across fork(2).
static RESOURCES: Mutex<Vec<Resource>> = Mutex::new(Vec::new());

thread_local! {
    /// Locks that this thread holds from before a fork until after it.
    static FORK_LOCKS: RefCell<Option<(Table, deferred_close::QueueLock)>> =
        const { RefCell::new(None) };
}

fn table() -> Table {
    RESOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the fork handlers, once per process. Code that holds its own locks across a fork, and creates or closes
/// ports under them, must register its handlers after this: prepare handlers run in reverse order of registration.
///
/// # Errors
/// pthread_atfork(3) has no memory.
pub fn install_handlers() -> io::Result<()> {
    static INSTALLED: OnceLock<libc::c_int> = OnceLock::new();
    let error = *INSTALLED.get_or_init(|| {
        // SAFETY: the functions live as long as the code of the library and do not unwind.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) }
    });
    match error {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn prepare() {
    let queue = deferred_close::lock_queue();
    let table = table();
    // Without effect in a thread that forks while its thread-locals are being destroyed.
    let _destroyed = FORK_LOCKS.try_with(|held| *held.borrow_mut() = Some((table, queue)));
}

extern "C" fn in_parent() {
    let _destroyed = FORK_LOCKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    let held = FORK_LOCKS.try_with(|held| held.borrow_mut().take());
    if let Some((mut table, mut queue)) = held.ok().flatten() {
        table.iter().for_each(Resource::replace);
        // The child may close the descriptors, and open others under the same numbers.
        table.clear();
        queue.in_child();
    }
}

impl Resource {
    /// Replaces the resource in a child, whose only thread is this one. Async-signal-safe calls only.
    fn replace(&self) {
        match *self {
            Self::Descriptor(fd) => replace_descriptor(fd),
            Self::Range { start, len_bytes } => replace_range(start, len_bytes),
        }
    }

    /// Removes the resource from the table; returns the lock, to be held until the resource is released.
    fn unregister(self) -> Table {
        let mut table = table();
        if let Some(at) = table.iter().position(|entry| *entry == self) {
            table.swap_remove(at);
        }
        table
    }
}

/// Replaces a descriptor by an unused eventfd under the same number.
fn replace_descriptor(fd: RawFd) {
    // SAFETY: takes two integers and touches no memory of ours.
    let placeholder = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if placeholder < 0 {
        // No descriptor is left for a placeholder: the number becomes free.
        // SAFETY: the table holds only open descriptors of drivers.
        unsafe { libc::close(fd) };
        return;
    }
    // SAFETY: integers only. The file of `fd` is released, and no other code uses the number.
    unsafe { libc::dup3(placeholder, fd, libc::O_CLOEXEC) };
    // SAFETY: created above, and used by no other code.
    unsafe { libc::close(placeholder) };
}

/// Maps zeroed private memory over this range.
fn replace_range(start: usize, len_bytes: usize) {
    // SAFETY: the table holds exactly the range of a driver's mapping, whose bytes are
    // accessed through raw pointers and make no promises to the compiler. If it fails, the range
    // is unchanged.
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

/// A descriptor that is replaced by a placeholder in forked children.
#[derive(Debug)]
pub struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    close: Close,
}

/// How the file of a [`Descriptor`] is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    /// With the table locked: it does not block.
    Locked,
    /// By the dropping thread without the lock, since it may block.
    Unlocked,
    /// By the thread of [`deferred_close`].
    Deferred,
}

/// Replaces files that are closed without the lock.
static PLACEHOLDER: OnceLock<Descriptor> = OnceLock::new();

impl Descriptor {
    /// Creates a descriptor by `make` and registers it; forks are blocked meanwhile.
    ///
    /// # Errors
    /// Those of `make` and of [`install_handlers`].
    pub fn make(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        install_handlers()?;
        let mut table = table();
        let fd = above_standard_streams(make()?)?;
        table.push(Resource::Descriptor(fd.as_raw_fd()));
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            close: Close::Locked,
        })
    }

    /// Marks a descriptor that another process created, passed or shares, or can put descriptors into. If this
    /// process closes the last copy, close(2) can block for as long as that process wants (`SO_LINGER`, a file
    /// system in user space), so the drop leaves it to [`deferred_close`].
    #[must_use]
    pub fn into_foreign(mut self) -> Self {
        self.set_foreign();
        self
    }

    /// As [`Descriptor::into_foreign`], in place.
    pub fn set_foreign(&mut self) {
        self.close = Close::Deferred;
    }

    /// Returns whether the descriptor is marked by [`Descriptor::into_foreign`].
    pub fn is_foreign(&self) -> bool {
        self.close == Close::Deferred
    }

    /// Marks a descriptor whose close another process can delay, and that is dropped by a thread which serves only
    /// that process: the drop closes it without the lock, so that it delays neither forks nor other descriptors.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn close_unlocked_on_drop(&mut self) -> io::Result<()> {
        create_placeholder()?;
        self.close = Close::Unlocked;
        Ok(())
    }

    /// Closes the file without blocking forks, however long that takes: a placeholder replaces it under its
    /// number, which a child and a later drop find.
    pub fn close_file(&self) {
        let Some(placeholder) = PLACEHOLDER.get() else {
            return;
        };
        let (from, to) = (placeholder.as_raw_fd(), self.fd.as_raw_fd());
        // SAFETY: integers only. `to` is owned by `self` and no longer used.
        while unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0 {
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
                // Only a number that is not open; the drop handles that as well.
                return;
            }
        }
    }

    /// Closes the descriptor now, without the lock; for [`deferred_close`].
    pub(crate) fn close_unlocked(mut self) {
        self.close = Close::Unlocked;
    }
}

/// Creates the placeholder for files that are closed without the lock.
pub(crate) fn create_placeholder() -> io::Result<()> {
    if PLACEHOLDER.get().is_none() {
        let made = Descriptor::make(eventfd)?;
        // Another thread may have been first.
        let _used = PLACEHOLDER.set(made);
    }
    Ok(())
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes two integers; returns a new descriptor or -1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
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
        let entry = Resource::Descriptor(self.fd.as_raw_fd());
        // In a child it is a placeholder and not in the table.
        if self.close != Close::Locked && table().contains(&entry) {
            if self.close == Close::Deferred {
                // SAFETY: not used again: `self` is being dropped.
                let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
                deferred_close::enqueue(Self {
                    fd: ManuallyDrop::new(fd),
                    close: Close::Deferred,
                });
                return;
            }
            self.close_file();
        }
        let _lock = entry.unregister();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// A range of memory that is replaced in forked children.
#[derive(Debug)]
pub(crate) struct Range(Resource);

impl Range {
    /// Maps a range by `make` and registers it; forks are blocked meanwhile.
    ///
    /// # Errors
    /// Those of `make` and of [`install_handlers`].
    pub(crate) fn make(
        len_bytes: usize,
        make: impl FnOnce() -> io::Result<NonNull<u8>>,
    ) -> io::Result<(NonNull<u8>, Self)> {
        install_handlers()?;
        let mut table = table();
        let address = make()?;
        let entry = Resource::Range {
            start: address.as_ptr() as usize,
            len_bytes,
        };
        table.push(entry);
        Ok((address, Self(entry)))
    }

    /// Unregisters the range. Forks are blocked until the returned guard is dropped, which must be
    /// after the range is unmapped.
    pub(crate) fn unregister(self) -> impl Drop {
        self.0.unregister()
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
        // SAFETY: the descriptors are new and have no other owner.
        fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into()
    }

    /// Returns the result of read(2) of one byte: 0 once the write end is closed.
    fn read(fd: &OwnedFd) -> isize {
        let mut byte = 0u8;
        // SAFETY: one byte of this frame is written.
        unsafe { libc::read(fd.as_raw_fd(), (&raw mut byte).cast(), 1) }
    }

    #[test]
    fn replaced_descriptor_releases_its_file() {
        let (reader, writer) = pipe();
        replace_descriptor(writer.as_raw_fd());
        assert_eq!(read(&reader), 0, "the write end is closed");
        // The number is still an open descriptor.
        drop(writer);
    }

    #[test]
    fn dropped_descriptor_is_unregistered() {
        let is_in_table = |fd| table().contains(&Resource::Descriptor(fd));
        let (_reader, writer) = pipe();
        let number = writer.as_raw_fd();
        let descriptor = Descriptor::make(|| Ok(writer)).expect("a descriptor");
        assert!(is_in_table(number));
        assert_eq!(descriptor.as_fd().as_raw_fd(), number);
        drop(descriptor);
        assert!(!is_in_table(number));
        Descriptor::make(|| Err(io::ErrorKind::Other.into())).expect_err("no descriptor");
        // The lock was released.
        drop(table());
    }

    /// Returns a connection whose close blocks until the returned peer has read everything, at most `seconds`.
    fn lingering(seconds: libc::c_int) -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut local =
            std::net::TcpStream::connect(listener.local_addr().expect("it")).expect("a connection");
        let (peer, _) = listener.accept().expect("a connection");
        local.set_nonblocking(true).expect("a flag");
        while io::Write::write(&mut local, &[0; 1 << 16]).is_ok() {}
        local.set_nonblocking(false).expect("a flag");
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: seconds,
        };
        let (fd, from) = (local.as_raw_fd(), (&raw const linger).cast());
        let length = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the kernel reads a value of this frame, of that size.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, length) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        (local.into(), peer)
    }

    #[test]
    fn drop_of_foreign_descriptor_does_not_wait_for_its_close() {
        const LINGER: u64 = 60;
        deferred_close::start().expect("a thread");
        let begun = std::time::Instant::now();
        let (local, mut peer) = lingering(LINGER as libc::c_int);
        let number = local.as_raw_fd();
        drop(
            Descriptor::make(|| Ok(local))
                .expect("a descriptor")
                .into_foreign(),
        );
        // The table is not locked: another descriptor can be created and dropped, as in a fork.
        drop(Descriptor::make(|| Ok(pipe().0)).expect("a descriptor"));
        assert!(
            begun.elapsed().as_secs() < LINGER / 2,
            "the drop waited for the close"
        );
        io::copy(&mut peer, &mut io::sink()).expect("end of stream");
        // The number is unregistered after the close.
        while table().contains(&Resource::Descriptor(number)) {
            assert!(begun.elapsed().as_secs() < LINGER / 2, "it is not released");
            std::thread::yield_now();
        }
    }
}
