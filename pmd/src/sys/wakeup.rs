//! Wake-ups of a poll thread by attached processes.
//!
//! Each client gets an eventfd, and wakes the poll thread by a write to it. The poll thread sleeps on an epoll set and
//! never reads, writes or closes a file that a client has open, too: a client could make each of these block, or have
//! them release a descriptor that takes long to close. Between the two is an epoll set for each client, so that
//! removing a client, which takes the locks of its eventfd, holds no lock that the poll thread takes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use pmd_port::descriptor_number::above_standard_streams;

/// The most wake-ups reported by one call of epoll_wait(2); further ones are reported by the next.
const EVENTS: usize = 32;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn new_set() -> io::Result<OwnedFd> {
    // SAFETY: epoll_create1(2) takes an integer and returns a new descriptor or -1.
    let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor is new and has no other owner.
    above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds a descriptor to a set, which reports each of its wake-ups once.
fn add(set: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: fd as u64,
    };
    // SAFETY: an entry of this frame is read.
    checked(unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
    Ok(())
}

/// The epoll set of the wake-ups of all clients of one poll thread.
#[derive(Debug)]
pub(crate) struct WakeupSet(OwnedFd);

/// One client's wake-up in a [`WakeupSet`], removed on drop.
#[derive(Debug)]
pub(crate) struct ClientWakeup {
    /// Never shared with another process.
    _set: OwnedFd,
}

impl WakeupSet {
    pub(crate) fn new() -> io::Result<Self> {
        new_set().map(Self)
    }

    /// Adds a client; returns the descriptor from which the client makes its [`Waker`].
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub(crate) fn add_client(&self) -> io::Result<(ClientWakeup, OwnedFd)> {
        // SAFETY: eventfd(2) takes two integers and returns a new descriptor or -1.
        let fd = checked(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        // SAFETY: the descriptor is new and has no other owner.
        let event = above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) })?;
        let set = new_set()?;
        add(&set, event.as_fd())?;
        add(&self.0, set.as_fd())?;
        Ok((ClientWakeup { _set: set }, event))
    }

    /// Consumes the wake-ups so far: the set is readable again after the next one.
    pub(crate) fn clear(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let (fd, to) = (self.0.as_raw_fd(), events.as_mut_ptr());
        // SAFETY: at most `EVENTS` entries of this frame are written; the call does not wait.
        unsafe { libc::epoll_wait(fd, to, EVENTS as libc::c_int, 0) };
    }
}

impl AsRawFd for WakeupSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The client side of a wake-up: wakes the poll thread.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    /// Takes the descriptor that [`WakeupSet::add_client`] returned.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Wakes the poll thread.
    pub(crate) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 bytes of this frame. The eventfd does not block; its counter is full after 2^64 wake-ups.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(set: &WakeupSet) -> bool {
        let mut entry = super::super::poll_entry(set.as_raw_fd());
        // SAFETY: one entry of this frame.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    #[test]
    fn wakeup_set_reports_each_wakeup_once() {
        let set = WakeupSet::new().unwrap();
        let clients: Vec<_> = (0..3).map(|_| set.add_client().unwrap()).collect();
        assert!(!is_readable(&set));
        let (wakeups, wakers): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        let wakers: Vec<_> = wakers.into_iter().map(Waker::new).collect();
        for _ in 0..3 {
            for waker in &wakers {
                waker.wake();
                assert!(is_readable(&set));
                set.clear();
                assert!(!is_readable(&set));
            }
        }
        drop(wakers);
        assert!(!is_readable(&set), "a removed client wakes nothing");
        drop(wakeups);
    }

    /// A client may keep its descriptor after it is removed.
    #[test]
    fn removed_client_wakes_nothing() {
        let set = WakeupSet::new().unwrap();
        let (wakeup, event) = set.add_client().unwrap();
        let waker = Waker::new(event);
        waker.wake();
        drop(wakeup);
        assert!(!is_readable(&set));
        waker.wake();
        assert!(!is_readable(&set));
    }

    /// Both processes share one open file: the client can change its flags and its counter.
    #[test]
    fn poll_thread_does_not_block_on_a_full_or_blocking_eventfd() {
        let set = WakeupSet::new().unwrap();
        let (wakeup, event) = set.add_client().unwrap();
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: 8 bytes of this frame.
        let written = unsafe { libc::write(event.as_raw_fd(), full.as_ptr().cast(), full.len()) };
        assert_eq!(written, 8);
        // SAFETY: integers.
        let changed = unsafe { libc::fcntl(event.as_raw_fd(), libc::F_SETFL, 0) };
        assert_eq!(changed, 0);
        assert!(is_readable(&set));
        set.clear();
        assert!(!is_readable(&set));
        drop(wakeup);
    }
}
