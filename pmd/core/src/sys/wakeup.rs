//! Wake-ups of a poll thread by attached processes.
//!
//! Each client gets an eventfd, and wakes the poll thread by a write to it. The poll thread sleeps on an epoll set and
//! never reads, writes or closes a file that a client has open, too: a client could make each of these block, or have
//! them release a descriptor that takes long to close. Between the two is an epoll set for each client, so that
//! removing a client, which takes the locks of its eventfd, holds no lock that the poll thread takes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::unistd::write;
use pmd_port::descriptor_number::above_standard_streams;

/// The most wake-ups reported by one call of epoll_wait(2); further ones are reported by the next.
const EVENTS: usize = 32;

fn new_set() -> io::Result<Epoll> {
    let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    above_standard_streams(set.0).map(Epoll)
}

/// Adds a descriptor to a set, which reports each of its wake-ups once.
fn add(set: &Epoll, fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    let event = EpollEvent::new(flags, fd.as_raw_fd() as u64);
    Ok(set.add(fd, event)?)
}

/// The epoll set of the wake-ups of all clients of one poll thread.
#[derive(Debug)]
pub struct WakeupSet(Epoll);

/// One client's wake-up in a [`WakeupSet`], removed on drop.
#[derive(Debug)]
pub struct ClientWakeup {
    /// Never shared with another process.
    _set: Epoll,
}

impl WakeupSet {
    /// Creates a set without descriptors.
    pub fn new() -> io::Result<Self> {
        new_set().map(Self)
    }

    /// Adds a client; returns the descriptor from which the client makes its [`Waker`].
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub fn add_client(&self) -> io::Result<(ClientWakeup, OwnedFd)> {
        let event = super::new_eventfd()?;
        let set = new_set()?;
        add(&set, event.as_fd())?;
        add(&self.0, set.0.as_fd())?;
        Ok((ClientWakeup { _set: set }, event))
    }

    /// Consumes the wake-ups so far: the set is readable again after the next one.
    pub fn clear(&self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        // The call does not wait.
        let _count = self.0.wait(&mut events, PollTimeout::ZERO);
    }
}

impl AsRawFd for WakeupSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

/// The client side of a wake-up: wakes the poll thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Takes the descriptor that [`WakeupSet::add_client`] returned.
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Wakes the poll thread.
    pub fn wake(&self) {
        // The eventfd does not block; its counter is full after 2^64 wake-ups.
        let _written = write(&self.0, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::poll;

    fn is_readable(set: &WakeupSet) -> bool {
        let entry = super::super::poll_entry(set.0.0.as_fd());
        poll(&mut [entry], PollTimeout::ZERO) == Ok(1)
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
        assert_eq!(write(&event, &(u64::MAX - 1).to_ne_bytes()), Ok(8));
        fcntl(&event, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        assert!(is_readable(&set));
        set.clear();
        assert!(!is_readable(&set));
        drop(wakeup);
    }
}
