//! Validates the messages of a memif peer, which DPDK itself does not.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::socket::{MESSAGE_BYTES, Message};

/// Message types.
pub(super) const ACK: u16 = 1;
pub(super) const HELLO: u16 = 2;
pub(super) const INIT: u16 = 3;
pub(super) const ADD_REGION: u16 = 4;
pub(super) const ADD_RING: u16 = 5;
pub(super) const CONNECT: u16 = 6;
pub(super) const CONNECTED: u16 = 7;
pub(super) const DISCONNECT: u16 = 8;

/// Maximum number of memory regions of a peer.
const REGIONS_MAX: usize = 255;
/// Bytes of a ring's header, and of a slot.
const RING_HEAD_BYTES: u64 = 128;
const RING_SLOT_BYTES: u64 = 16;
/// Binary logarithm of the maximum number of slots of a ring.
const RING_LOG2_MAX: u8 = 14;

/// Validates the messages of one side, by its role and its earlier messages.
#[derive(Debug)]
pub(super) enum MessageValidator {
    Client(ClientState),
    Server { hello_received: bool, queues: u16 },
}

/// State of a client by the messages that were received from it.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    /// Receive queues of the server: DPDK reads a ring for each, even if the client has added none.
    queues: u16,
    init_received: bool,
    /// Bytes of each region.
    regions: Vec<u64>,
    /// Number of rings to the client, and to the server.
    rings: [u16; 2],
}

impl Message {
    /// Returns the message type; `None` if the length is not that of a memif message.
    pub(super) fn kind(&self) -> Option<u16> {
        (self.bytes.len() == MESSAGE_BYTES).then(|| self.number(0))
    }

    /// Returns a 16-bit field.
    fn number(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Creates the DISCONNECT message that closes a connection.
    pub(super) fn disconnect(reason: &str) -> Self {
        let mut bytes = DISCONNECT.to_le_bytes().to_vec();
        // Error code 0, then the text.
        bytes.extend([0; 4]);
        bytes.extend(reason.as_bytes());
        bytes.resize(MESSAGE_BYTES, 0);
        Self { bytes, fd: None }
    }
}

impl MessageValidator {
    /// Creates a validator of a client's messages, to a server with `queues` receive queues.
    pub(super) fn client(queues: u16) -> Self {
        Self::Client(ClientState {
            queues,
            ..ClientState::default()
        })
    }

    /// Creates a validator of a server's messages, which needs at least `queues` queues.
    pub(super) fn server(queues: u16) -> Self {
        Self::Server {
            hello_received: false,
            queues,
        }
    }

    /// True if HELLO was received from a server. DPDK's server aborts if the client disconnects earlier.
    pub(super) fn hello_received(&self) -> bool {
        matches!(
            self,
            Self::Server {
                hello_received: true,
                ..
            }
        )
    }

    /// Validates a message in the current state; the error is the cause. Closes an unexpected descriptor of a
    /// DISCONNECT.
    pub(super) fn check(&mut self, message: &mut Message) -> Result<(), &'static str> {
        let kind = message.kind().ok_or("a message has the wrong length")?;
        if kind == DISCONNECT {
            message.fd = None;
            return Ok(());
        }
        if message.fd.is_some() != matches!(kind, ADD_REGION | ADD_RING) {
            return Err("a message has a missing or an unexpected file descriptor");
        }
        match self {
            Self::Client(client) => client.check(kind, message),
            Self::Server {
                hello_received,
                queues,
            } => match (kind, *hello_received) {
                (HELLO, false) => {
                    *hello_received = true;
                    // The highest ring index that it supports in each direction.
                    let max_index = message.number(40).min(message.number(42));
                    match max_index >= *queues - 1 {
                        true => Ok(()),
                        false => Err("the server supports fewer queues than the key queues"),
                    }
                }
                (ACK | CONNECTED, true) => Ok(()),
                _ => Err("unexpected message type from a server"),
            },
        }
    }
}

impl ClientState {
    fn check(&mut self, kind: u16, message: &Message) -> Result<(), &'static str> {
        match (kind, self.init_received, &message.fd) {
            (INIT, false, _) => {
                self.init_received = true;
                Ok(())
            }
            (ADD_REGION, true, Some(memory)) => self.add_region(message, memory),
            (ADD_RING, true, Some(event_fd)) => self.add_ring(message, event_fd),
            (CONNECT, true, _) => match self.rings {
                [to_client, to_server] if to_client > 0 && to_server == self.queues => Ok(()),
                _ => Err("both sides must have the same number of queues: see the key queues"),
            },
            _ => Err("unexpected message type from a client"),
        }
    }

    fn add_region(&mut self, message: &Message, memory: &OwnedFd) -> Result<(), &'static str> {
        if usize::from(message.number(2)) != self.regions.len() || self.regions.len() == REGIONS_MAX
        {
            return Err("regions are out of order, or too many");
        }
        let size = message.bytes[4..].first_chunk().copied();
        let size = size.map_or(u64::MAX, u64::from_le_bytes);
        // Prevents truncation where seals are supported; elsewhere a burst that faults is aborted.
        // SAFETY: passes no pointers.
        unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let file = memory.try_clone().map(File::from);
        match file.and_then(|file| file.metadata()) {
            Ok(metadata) if metadata.size() >= size => {
                self.regions.push(size);
                Ok(())
            }
            _ => Err("a region is shorter than its announced size"),
        }
    }

    fn add_ring(&mut self, message: &Message, event_fd: &OwnedFd) -> Result<(), &'static str> {
        let [flags, index, region] = [2, 4, 6].map(|at| message.number(at));
        let offset = message.bytes[8..].first_chunk().copied();
        let offset = u64::from(offset.map_or(u32::MAX, u32::from_le_bytes));
        let log2 = message.bytes[12];
        let count = &mut self.rings[usize::from(flags & 1)];
        if index != *count {
            return Err("rings are out of order");
        }
        // DPDK would leak the descriptor.
        if index >= self.queues {
            return Err("both sides must have the same number of queues: see the key queues");
        }
        let Some(&size) = self.regions.get(usize::from(region)) else {
            return Err("a ring names an unknown region");
        };
        if log2 > RING_LOG2_MAX || offset + RING_HEAD_BYTES + (RING_SLOT_BYTES << log2) > size {
            return Err("a ring is not within its region");
        }
        if !set_nonblocking_eventfd(event_fd) {
            return Err("a ring has a descriptor that is not an eventfd");
        }
        *count += 1;
        Ok(())
    }
}

/// Makes an eventfd nonblocking; `false` if the descriptor is not an eventfd. DPDK reads and writes it in a burst,
/// which must not block; the peer can still make it blocking again.
fn set_nonblocking_eventfd(fd: &OwnedFd) -> bool {
    let target = fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
    if !target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]") {
        return false;
    }
    // SAFETY: passes no pointers.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if result != 0 {
        log::warn!(
            "memif eventfd: O_NONBLOCK failed: {}",
            io::Error::last_os_error()
        );
    }
    result == 0
}
