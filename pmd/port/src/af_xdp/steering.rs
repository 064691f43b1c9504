//! Redirects the port's frames from the interface to its sockets.

use std::io;
use std::os::fd::AsFd;

use super::bpf::{CounterMap, Mode, Program, SocketMap, XdpLink};
use super::program;
use crate::port::MacBytes;

/// The BPF maps, which are created before the program that uses them.
#[derive(Debug)]
pub(super) struct Maps {
    sockets: SocketMap,
    other_queues: CounterMap,
}

impl Maps {
    /// Creates the maps for the queues below `queues`.
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        Ok(Self {
            sockets: SocketMap::new(queues)?,
            other_queues: CounterMap::new()?,
        })
    }

    /// Loads a program that redirects frames with these EtherTypes and destinations.
    pub(super) fn load(&self, ethertypes: &[u16], addresses: &[MacBytes]) -> io::Result<Program> {
        let code = program::program(
            ethertypes,
            addresses,
            self.sockets.raw_fd(),
            self.other_queues.raw_fd(),
        );
        Program::load(&code)
    }
}

/// A program on an interface, and the sockets to which it redirects frames.
#[derive(Debug)]
pub(super) struct Steering {
    link: XdpLink,
    maps: Maps,
    mode: Mode,
}

impl Steering {
    pub(super) fn new(link: XdpLink, maps: Maps, mode: Mode) -> Self {
        Self { link, maps, mode }
    }

    /// Returns where the program runs.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Redirects the port's frames from a queue to a socket.
    pub(super) fn insert(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        self.maps.sockets.insert(queue, socket)
    }

    /// Replaces the redirected EtherTypes and destinations.
    pub(super) fn change(&self, ethertypes: &[u16], addresses: &[MacBytes]) -> io::Result<()> {
        self.link.replace(&self.maps.load(ethertypes, addresses)?)
    }

    /// Returns the number of the port's frames that arrived on a queue without a socket, and were passed to the kernel.
    pub(super) fn other_queues(&self) -> io::Result<u64> {
        self.maps.other_queues.value()
    }
}
