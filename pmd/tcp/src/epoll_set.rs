//! The set of a NIC's sockets that epoll watches.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pmd_port::descriptor_number::above_standard_streams;

/// Events of a registered socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    /// The user data of its registration.
    pub(super) data: u64,
    /// Data or the end of the stream can be read.
    pub(super) readable: bool,
    /// TCP has space again, or the connect has succeeded or failed.
    pub(super) writable: bool,
    /// The peer has closed, or the connection broke: the stream ends after the readable data.
    pub(super) peer_closed: bool,
}

/// An epoll instance and its event buffer.
#[derive(Debug)]
pub(super) struct EpollSet {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    /// A failed `epoll_wait` was logged.
    failure_logged: bool,
}

/// Maximum events of one `epoll_wait`.
const MAX_EVENTS: usize = 64;

impl EpollSet {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self {
            epoll: Epoll(above_standard_streams(epoll.0)?),
            events: vec![EpollEvent::empty(); MAX_EVENTS],
            failure_logged: false,
        })
    }

    /// Registers a connection edge-triggered: the caller reads and writes until `WouldBlock`.
    pub(super) fn add(&self, socket: impl AsFd, data: u64) -> io::Result<()> {
        let changes = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        Ok(self.epoll.add(socket, EpollEvent::new(changes, data))?)
    }

    /// Registers a socket for reading, level-triggered.
    pub(super) fn add_while_readable(&self, socket: impl AsFd, data: u64) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, data);
        Ok(self.epoll.add(socket, event)?)
    }

    /// Unregisters a socket that stays open.
    pub(super) fn remove(&self, socket: impl AsFd) {
        // It fails for a socket that is not registered.
        let _ignored = self.epoll.delete(socket);
    }

    /// Polls without blocking; returns the number of sockets with events.
    pub(super) fn poll(&mut self) -> usize {
        match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => {
                // It fails only because of a system call filter, and then every time.
                if !core::mem::replace(&mut self.failure_logged, true) {
                    log::error!("vi-tcp: epoll_wait failed, no TCP connection is served: {error}");
                }
                0
            }
        }
    }

    /// Waits for an event, at most `limit`.
    pub(super) fn wait(&mut self, limit: Duration) {
        let limit = EpollTimeout::try_from(limit).unwrap_or(EpollTimeout::ZERO);
        // The caller checks its sockets itself.
        let _count = self.epoll.wait(&mut self.events, limit);
    }

    /// Returns event `at` of the last poll.
    pub(super) fn readiness(&self, at: usize) -> Option<Readiness> {
        let event = self.events.get(at)?;
        let events = event.events();
        let broken = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        let closed = EpollFlags::EPOLLRDHUP | broken;
        Some(Readiness {
            data: event.data(),
            readable: events.intersects(EpollFlags::EPOLLIN | closed),
            writable: events.intersects(EpollFlags::EPOLLOUT | broken),
            peer_closed: events.intersects(closed),
        })
    }

    /// Returns the epoll descriptor, which is readable when a socket has events.
    pub(super) fn descriptor(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}
