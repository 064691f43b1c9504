//! Bells between two processes, of which neither can hold the other one up.
//!
//! An eventfd would be one file for both: whoever has it can make it block, fill it, and so stop
//! whoever rings. The two ends of a socket are files of their own, and what is said here never
//! waits, however the file is set.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Bells that are looked at after one sleep; the others ring on.
const RUNG: usize = 32;

/// One end: it rings at the other one.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// The two ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: two descriptors of this frame are written.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new and nobody else has them.
        let own = |end| Self(unsafe { OwnedFd::from_raw_fd(end) });
        Ok((own(ends[0]), own(ends[1])))
    }

    /// An end that another process made.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Rings at the other end. One that is full rings already, and one that is gone hears nothing.
    pub(crate) fn ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let byte = 1u8;
        // SAFETY: one byte of this frame.
        unsafe { libc::send(self.0.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
    }

    /// Forgets that the other end rang. Whoever rings more often than once rings again.
    pub(crate) fn clear(&self) {
        let mut bytes = [0u8; 512];
        let (fd, to) = (self.0.as_raw_fd(), bytes.as_mut_ptr().cast());
        // SAFETY: so many bytes of this frame are written.
        unsafe { libc::recv(fd, to, size_of_val(&bytes), libc::MSG_DONTWAIT) };
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Any number of bells, to be slept on together. One that goes away leaves by itself.
pub(crate) struct Bells(OwnedFd);

impl Bells {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1(2) takes an integer and gives a new descriptor or -1.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// From now on this one counts, until it is dropped. Each ring wakes once: an end that is
    /// full, or closed, does not ring for ever.
    pub(crate) fn add(&self, bell: &Bell) -> io::Result<()> {
        let fd = bell.as_raw_fd();
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: fd as u64,
        };
        // SAFETY: an entry of this frame is read.
        let added =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if added != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Forgets that any of them rang; what was rung is still in each.
    pub(crate) fn clear(&self) {
        let mut rung = [libc::epoll_event { events: 0, u64: 0 }; RUNG];
        let (fd, to) = (self.0.as_raw_fd(), rung.as_mut_ptr());
        // SAFETY: so many entries of this frame are written; it does not wait.
        unsafe { libc::epoll_wait(fd, to, RUNG as libc::c_int, 0) };
    }
}

impl AsRawFd for Bells {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: &impl AsRawFd) -> bool {
        let mut entry = super::super::entry(fd.as_raw_fd());
        // SAFETY: one entry of this frame.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    /// Makes an end wait, as whoever has it can.
    fn make_blocking(bell: &Bell) {
        // SAFETY: integers.
        let set = unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_SETFL, 0) };
        assert_eq!(set, 0);
    }

    #[test]
    fn nobody_waits_for_an_end_that_is_full_or_empty_or_gone() {
        let (ours, theirs) = Bell::pair().unwrap();
        make_blocking(&theirs);
        ours.clear();
        // More than any socket holds.
        for _ in 0..100_000 {
            ours.ring();
        }
        assert!(readable(&theirs));
        for _ in 0..100_000 {
            theirs.ring();
        }
        drop(theirs);
        ours.ring();
        ours.clear();
    }

    #[test]
    fn each_ring_wakes_once() {
        let bells = Bells::new().unwrap();
        let (ours, theirs) = Bell::pair().unwrap();
        bells.add(&ours).unwrap();
        assert!(!readable(&bells));
        for _ in 0..3 {
            theirs.ring();
            assert!(readable(&bells));
            bells.clear();
            // Not even if nobody has heard it.
            assert!(!readable(&bells));
        }
        ours.clear();
        assert!(!readable(&ours));
        drop(theirs);
        bells.clear();
        assert!(!readable(&bells), "one that is gone does not ring for ever");
    }
}
