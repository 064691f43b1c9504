//! What each side sends: every length, kind and byte follows from the seed, the VI, the connection, the side and the
//! number of the message, so that the receiver knows what must arrive without believing what did.

use vipl::ReliabilityLevel;

use crate::header::Header;
use crate::pattern::{Rng, key};

/// Cells of a window.
pub(crate) const CELLS: u32 = 4;

/// The process at one end of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

/// How completions of a work queue are learnt of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaping {
    /// From the work queue, by Done.
    Done,
    /// From the work queue, mostly by Wait.
    Wait,
    /// From a completion queue.
    Queue,
}

/// Which threads serve a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Its owner alone.
    Alone,
    /// Its owner posts, the next thread reaps.
    Split,
    /// Its owner and the next thread do both, at the same time.
    Contended,
}

/// What is fixed for a slot: a pair of VIs, one at each side, that are connected again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) slot: u16,
    pub(crate) level: ReliabilityLevel,
    /// Who asks for connections.
    pub(crate) client: Side,
    pub(crate) max_transfer_bytes: usize,
    pub(crate) cell_bytes: usize,
    pub(crate) receives: usize,
    pub(crate) sends: usize,
    pub(crate) sharing: Sharing,
    pub(crate) send_reaping: Reaping,
    pub(crate) receive_reaping: Reaping,
}

impl Shape {
    pub(crate) fn new(slot: u16) -> Self {
        let reaping = |number| match number % 3 {
            0 => Reaping::Done,
            1 => Reaping::Wait,
            _ => Reaping::Queue,
        };
        // Some slots have the NIC's longest messages, and few descriptors for them.
        let is_long = slot % 16 == 6;
        Self {
            slot,
            level: match slot % 4 {
                1 => ReliabilityLevel::Unreliable,
                _ => ReliabilityLevel::ReliableDelivery,
            },
            client: if (slot / 2).is_multiple_of(2) {
                Side::Left
            } else {
                Side::Right
            },
            max_transfer_bytes: if is_long { 1 << 20 } else { 1 << 16 },
            cell_bytes: [2 << 10, 16 << 10, 64 << 10][usize::from(slot) % 3],
            receives: if is_long { 8 } else { 12 },
            sends: if is_long { 3 } else { 6 },
            sharing: match slot / 4 % 4 {
                2 => Sharing::Split,
                3 => Sharing::Contended,
                _ => Sharing::Alone,
            },
            send_reaping: reaping(slot / 3),
            receive_reaping: reaping(slot),
        }
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.level != ReliabilityLevel::Unreliable
    }
}

/// One direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) seed: u64,
    pub(crate) slot: u16,
    pub(crate) connection: u32,
    pub(crate) from: Side,
}

/// What a message is. RDMA reads carry no message: they will be a kind of their own when there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    /// An RDMA write with immediate data.
    Write,
}

/// What must arrive in a receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// Of a send; a write has its own plan.
    pub(crate) length_bytes: usize,
    pub(crate) has_immediate: bool,
}

/// What must arrive in a cell of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) offset_bytes: usize,
    pub(crate) length_bytes: usize,
}

const MESSAGES: u64 = 1;
const WRITES: u64 = 2;

impl Stream {
    fn key(&self, what: u64, number: u32) -> u64 {
        key(&[
            self.seed,
            u64::from(self.slot),
            u64::from(self.connection),
            self.from as u64,
            what,
            u64::from(number),
        ])
    }

    /// The key of a message's bytes.
    pub(crate) fn message_key(&self, number: u32) -> u64 {
        self.key(MESSAGES, number)
    }

    /// The key of a write's bytes.
    pub(crate) fn write_key(&self, number: u32) -> u64 {
        self.key(WRITES, number)
    }

    /// Message `number`, unless it carries only what the sides tell each other.
    pub(crate) fn message(&self, shape: &Shape, number: u32) -> Message {
        let mut rng = Rng::new(self.message_key(number).rotate_left(17));
        if rng.chance(150) {
            return Message {
                kind: Kind::Write,
                length_bytes: 0,
                has_immediate: true,
            };
        }
        let header_bytes = Header::BYTES as u64;
        let limit = shape.max_transfer_bytes as u64;
        let length_bytes = match rng.below(100) {
            0..8 => 0,
            8..20 => rng.below(header_bytes),
            20..60 => header_bytes + rng.below(512),
            60..90 => header_bytes + rng.below(4096),
            90..98 => header_bytes + rng.below((1 << 16) - header_bytes + 1),
            _ => limit - rng.below(2),
        } as usize;
        // On an unreliable connection each message names itself, in one of the two ways.
        let must_mark = !shape.is_reliable() && length_bytes < Header::BYTES;
        Message {
            kind: Kind::Send,
            length_bytes,
            has_immediate: must_mark || rng.chance(300),
        }
    }

    /// RDMA writes without immediate data before message `number`. A reliable connection tells of their loss.
    pub(crate) fn silent_writes_before(&self, shape: &Shape, number: u32) -> u32 {
        if !shape.is_reliable() {
            return 0;
        }
        let mut rng = Rng::new(self.message_key(number).rotate_left(31));
        if rng.chance(150) {
            1 + rng.below(2) as u32
        } else {
            0
        }
    }

    /// RDMA write `number`, with or without immediate data.
    pub(crate) fn write(&self, shape: &Shape, number: u32) -> Write {
        let mut rng = Rng::new(self.write_key(number).rotate_left(17));
        let cell_bytes = shape.cell_bytes as u64;
        let length_bytes = match rng.below(10) {
            0 => rng.below(2),
            1 => cell_bytes,
            2..7 => rng.below(cell_bytes / 16),
            _ => rng.below(cell_bytes),
        };
        let offset_bytes = rng.below(cell_bytes - length_bytes + 1);
        Write {
            offset_bytes: offset_bytes as usize,
            length_bytes: length_bytes as usize,
        }
    }
}
