//! What an end of memif may say, and when: DPDK does not ask, and believes what it is told.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::socket::{MESSAGE_BYTES, Message};

/// The types of messages.
pub(super) const ACK: u16 = 1;
pub(super) const HELLO: u16 = 2;
pub(super) const INIT: u16 = 3;
pub(super) const ADD_REGION: u16 = 4;
pub(super) const ADD_RING: u16 = 5;
pub(super) const CONNECT: u16 = 6;
pub(super) const CONNECTED: u16 = 7;
pub(super) const DISCONNECT: u16 = 8;

/// Regions that an end can share, at most.
const REGIONS_MAX: usize = 255;
/// A ring's head, and a slot of it.
const RING_HEAD_BYTES: u64 = 128;
const RING_SLOT_BYTES: u64 = 16;
/// The longest ring, as a power of two.
const RING_LOG2_MAX: u8 = 14;

/// Who speaks.
#[derive(Debug)]
pub(super) enum Speaker {
    Client(Client),
    Server { greeted: bool, queues: u16 },
}

/// What a client has said so far.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// Receive queues of the server: DPDK reads a ring for each, also if there is none.
    queues: u16,
    begun: bool,
    /// Bytes of each region.
    regions: Vec<u64>,
    /// Rings to the client and to the server.
    rings: [u16; 2],
}

impl Message {
    /// Its type; `None` if it is no message of memif's.
    pub(super) fn kind(&self) -> Option<u16> {
        (self.bytes.len() == MESSAGE_BYTES).then(|| self.number(0))
    }

    /// Two bytes of it.
    fn number(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// The message that ends a conversation.
    pub(super) fn goodbye(why: &str) -> Self {
        let mut bytes = DISCONNECT.to_le_bytes().to_vec();
        // No error of a certain number, and the text.
        bytes.extend([0; 4]);
        bytes.extend(why.as_bytes());
        bytes.resize(MESSAGE_BYTES, 0);
        Self { bytes, fd: None }
    }
}

impl Speaker {
    pub(super) fn client(queues: u16) -> Self {
        Self::Client(Client {
            queues,
            ..Client::default()
        })
    }

    pub(super) fn server(queues: u16) -> Self {
        Self::Server {
            greeted: false,
            queues,
        }
    }

    /// Has a server greeted? Whoever leaves it earlier ends DPDK's.
    pub(super) fn has_greeted(&self) -> bool {
        matches!(self, Self::Server { greeted: true, .. })
    }

    /// May this be said now? Tells why not. What came with it that does not belong to it is closed.
    pub(super) fn check(&mut self, message: &mut Message) -> Result<(), &'static str> {
        let kind = message
            .kind()
            .ok_or("a message has not the length of one")?;
        if kind == DISCONNECT {
            message.fd = None;
            return Ok(());
        }
        if message.fd.is_some() != matches!(kind, ADD_REGION | ADD_RING) {
            return Err("a descriptor is missing, or one too many");
        }
        match self {
            Self::Client(client) => client.check(kind, message),
            Self::Server { greeted, queues } => match (kind, *greeted) {
                (HELLO, false) => {
                    *greeted = true;
                    // The highest numbers of rings each way that it has.
                    let most = message.number(40).min(message.number(42));
                    match most >= *queues - 1 {
                        true => Ok(()),
                        false => Err("the server has fewer queues than queues says"),
                    }
                }
                (ACK | CONNECTED, true) => Ok(()),
                _ => Err("a server does not say that, or not now"),
            },
        }
    }
}

impl Client {
    fn check(&mut self, kind: u16, message: &Message) -> Result<(), &'static str> {
        match (kind, self.begun, &message.fd) {
            (INIT, false, _) => {
                self.begun = true;
                Ok(())
            }
            (ADD_REGION, true, Some(memory)) => self.region(message, memory),
            (ADD_RING, true, Some(bell)) => self.ring(message, bell),
            (CONNECT, true, _) => match self.rings {
                [to_client, to_server] if to_client > 0 && to_server == self.queues => Ok(()),
                _ => Err("both ends must have as many queues: see the key queues"),
            },
            _ => Err("a client does not say that, or not now"),
        }
    }

    fn region(&mut self, message: &Message, memory: &OwnedFd) -> Result<(), &'static str> {
        if usize::from(message.number(2)) != self.regions.len() || self.regions.len() == REGIONS_MAX
        {
            return Err("regions do not come in their order");
        }
        let size = message.bytes[4..].first_chunk().copied();
        let size = size.map_or(u64::MAX, u64::from_le_bytes);
        // Where it is possible it will not be cut short; elsewhere a burst that faults is given up.
        // SAFETY: takes numbers only.
        unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let there = memory.try_clone().map(File::from);
        match there.and_then(|file| file.metadata()) {
            Ok(metadata) if metadata.size() >= size => {
                self.regions.push(size);
                Ok(())
            }
            _ => Err("a region is shorter than it says"),
        }
    }

    fn ring(&mut self, message: &Message, bell: &OwnedFd) -> Result<(), &'static str> {
        let [flags, index, region] = [2, 4, 6].map(|at| message.number(at));
        let offset = message.bytes[8..].first_chunk().copied();
        let offset = u64::from(offset.map_or(u32::MAX, u32::from_le_bytes));
        let log2 = message.bytes[12];
        let count = &mut self.rings[usize::from(flags & 1)];
        if index != *count {
            return Err("rings do not come in their order");
        }
        // DPDK would lose the descriptor.
        if index >= self.queues {
            return Err("both ends must have as many queues: see the key queues");
        }
        let Some(&size) = self.regions.get(usize::from(region)) else {
            return Err("a ring is in no region");
        };
        if log2 > RING_LOG2_MAX || offset + RING_HEAD_BYTES + (RING_SLOT_BYTES << log2) > size {
            return Err("a ring is not inside its region");
        }
        if !is_bell(bell) {
            return Err("a ring has a descriptor that is no eventfd");
        }
        *count += 1;
        Ok(())
    }
}

/// Is it an eventfd? DPDK reads and writes it in a burst, so it is made one that nobody waits at, unless the other end makes
/// it another.
fn is_bell(fd: &OwnedFd) -> bool {
    let target = fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
    if !target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]") {
        return false;
    }
    // SAFETY: takes numbers only.
    let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if set != 0 {
        log::warn!("an eventfd of memif's: {}", io::Error::last_os_error());
    }
    set == 0
}
