//! The messages of each side: length, kind and content are functions of seed, VI, connection, side and message number,
//! so that the receiver can check them independently of the received data.

use vipl::ReliabilityLevel;

use crate::header::Header;
use crate::pattern::{Rng, key};

/// Number of cells of a window.
pub(crate) const CELLS: u32 = 4;

/// One of the two processes of a run.
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

/// How completions of a work queue are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionMode {
    /// From the work queue, by Done.
    Done,
    /// From the work queue, mostly by Wait.
    Wait,
    /// From a completion queue.
    Queue,
}

/// The threads that serve a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The owner only.
    Alone,
    /// The owner posts, the next thread reaps.
    Split,
    /// The owner and the next thread post and reap concurrently.
    Contended,
}

/// The constant attributes of a slot: a pair of VIs, one on each side, that are connected repeatedly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotConfig {
    pub(crate) slot: u16,
    pub(crate) level: ReliabilityLevel,
    /// RDMA reads are enabled. A send after a read completes after it.
    pub(crate) reads: bool,
    /// Also reads data that it has written.
    pub(crate) reads_back: bool,
    /// The side that requests connections.
    pub(crate) client: Side,
    pub(crate) max_transfer_bytes: usize,
    pub(crate) cell_bytes: usize,
    pub(crate) receives: usize,
    pub(crate) sends: usize,
    pub(crate) sharing: Sharing,
    pub(crate) send_mode: CompletionMode,
    pub(crate) receive_mode: CompletionMode,
}

impl SlotConfig {
    pub(crate) fn new(slot: u16) -> Self {
        let mode = |number| match number % 3 {
            0 => CompletionMode::Done,
            1 => CompletionMode::Wait,
            _ => CompletionMode::Queue,
        };
        // Some slots have the longest messages of the NIC, and few descriptors.
        let is_long = matches!(slot % 32, 6 | 11 | 22);
        let level = match slot % 4 {
            1 => ReliabilityLevel::UnreliableDelivery,
            3 => ReliabilityLevel::ReliableReception,
            _ => ReliabilityLevel::ReliableDelivery,
        };
        let reads = level.is_reliable() && slot % 8 != 2;
        Self {
            slot,
            level,
            reads,
            reads_back: reads && (slot / 8).is_multiple_of(2),
            client: if (slot ^ (slot / 4) ^ (slot / 16)).is_multiple_of(2) {
                Side::Left
            } else {
                Side::Right
            },
            max_transfer_bytes: if is_long { 1 << 20 } else { 1 << 16 },
            cell_bytes: [2 << 10, 16 << 10, 64 << 10][usize::from(slot) % 3],
            receives: if is_long { 8 } else { 12 },
            sends: match (is_long, reads) {
                (true, _) => 3,
                (false, false) => 6,
                (false, true) => 10,
            },
            sharing: match slot / 4 % 4 {
                2 => Sharing::Split,
                3 => Sharing::Contended,
                _ => Sharing::Alone,
            },
            send_mode: mode(slot / 3),
            receive_mode: mode(slot),
        }
    }

    /// Whether some operations complete only after a response of the remote side.
    pub(crate) fn needs_responses(&self) -> bool {
        self.reads || self.level == ReliabilityLevel::ReliableReception
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.level.is_reliable()
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

/// The kind of a message. RDMA reads are not messages: they are invisible to the remote application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Send,
    /// An RDMA write with immediate data.
    Write,
}

/// The expected content of a receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    /// The length of a send; a write has its own plan.
    pub(crate) length_bytes: usize,
    pub(crate) has_immediate: bool,
}

/// The expected content of a cell of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) offset_bytes: usize,
    pub(crate) length_bytes: usize,
}

const MESSAGES: u64 = 1;
const WRITES: u64 = 2;
const SOURCE: u64 = 3;

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

    /// Returns the key of the content of a message.
    pub(crate) fn message_key(&self, number: u32) -> u64 {
        self.key(MESSAGES, number)
    }

    /// Returns the key of the content of a write.
    pub(crate) fn write_key(&self, number: u32) -> u64 {
        self.key(WRITES, number)
    }

    /// Returns the other direction.
    pub(crate) fn reversed(&self) -> Self {
        Self {
            from: self.from.other(),
            ..*self
        }
    }

    /// Returns the key of the memory that the sender of this direction exposes for reads.
    pub(crate) fn source_key(&self) -> u64 {
        self.key(SOURCE, 0)
    }

    /// Returns message `number`, unless it is sent as a control message.
    pub(crate) fn message(&self, config: &SlotConfig, number: u32) -> Message {
        let mut rng = Rng::new(self.message_key(number).rotate_left(17));
        if rng.chance(150) {
            return Message {
                kind: MessageKind::Write,
                length_bytes: 0,
                has_immediate: true,
            };
        }
        let header_bytes = Header::BYTES as u64;
        let limit = config.max_transfer_bytes as u64;
        let length_bytes = match rng.below(100) {
            0..8 => 0,
            8..20 => rng.below(header_bytes),
            20..60 => header_bytes + rng.below(512),
            60..90 => header_bytes + rng.below(4096),
            90..98 => header_bytes + rng.below((1 << 16) - header_bytes + 1),
            _ => limit - rng.below(2),
        } as usize;
        // On an unreliable connection each message has its number in a header or in immediate data.
        let needs_immediate = !config.is_reliable() && length_bytes < Header::BYTES;
        Message {
            kind: MessageKind::Send,
            length_bytes,
            has_immediate: needs_immediate || rng.chance(300),
        }
    }

    /// Returns the number of RDMA writes without immediate data before message `number`; 0 on unreliable connections,
    /// which do not report their loss.
    pub(crate) fn plain_writes_before(&self, config: &SlotConfig, number: u32) -> u32 {
        if !config.is_reliable() {
            return 0;
        }
        let mut rng = Rng::new(self.message_key(number).rotate_left(31));
        if rng.chance(150) {
            1 + rng.below(2) as u32
        } else {
            0
        }
    }

    /// Returns the number of RDMA reads before message `number`, after its plain writes.
    pub(crate) fn reads_before(&self, config: &SlotConfig, number: u32) -> u32 {
        if !config.reads {
            return 0;
        }
        let mut rng = Rng::new(self.message_key(number).rotate_left(43));
        if rng.chance(250) {
            1 + rng.below(5) as u32
        } else {
            0
        }
    }

    /// Returns RDMA write `number`, with or without immediate data.
    pub(crate) fn write(&self, config: &SlotConfig, number: u32) -> Write {
        let mut rng = Rng::new(self.write_key(number).rotate_left(17));
        let cell_bytes = config.cell_bytes as u64;
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
