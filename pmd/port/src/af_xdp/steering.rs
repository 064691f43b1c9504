//! What comes in on the interface and is ours goes to our sockets.

use std::io;
use std::os::fd::AsFd;

use super::bpf::{Array, Link, Mode, Program, SocketMap};
use super::program;
use crate::port::MacBytes;

/// Maps that exist before there is a program that uses them.
#[derive(Debug)]
pub(super) struct Maps {
    sockets: SocketMap,
    other_queues: Array,
}

impl Maps {
    /// Maps for the queues below `queues`.
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        Ok(Self {
            sockets: SocketMap::new(queues)?,
            other_queues: Array::new()?,
        })
    }

    /// Loads a program that steers frames with these EtherTypes and destinations.
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

/// A program on an interface, and the sockets that it steers to.
#[derive(Debug)]
pub(super) struct Steering {
    link: Link,
    maps: Maps,
    mode: Mode,
}

impl Steering {
    pub(super) fn new(link: Link, maps: Maps, mode: Mode) -> Self {
        Self { link, maps, mode }
    }

    /// Where the program runs.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Steers our frames that come in on a queue to a socket.
    pub(super) fn insert(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        self.maps.sockets.insert(queue, socket)
    }

    /// Steers these frames from now on, and not those from before.
    pub(super) fn change(&self, ethertypes: &[u16], addresses: &[MacBytes]) -> io::Result<()> {
        self.link.replace(&self.maps.load(ethertypes, addresses)?)
    }

    /// How many of our frames came in on a queue without a socket, and went on to the kernel.
    pub(super) fn other_queues(&self) -> io::Result<u64> {
        self.maps.other_queues.value()
    }
}
