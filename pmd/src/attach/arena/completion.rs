//! From the process to the application: descriptors that are complete, and errors.

use super::{Arena, COMPLETIONS_TAKEN, Nonsense, ViName, lap};
use crate::sync::Ordering;

/// What the process tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The oldest descriptor of a send queue is complete.
    Sent(Completed),
    /// The oldest descriptor of a receive queue is complete.
    Received(Completed),
    /// An asynchronous error: code and resource as in an error descriptor, and an [`OpCode`].
    /// It is the VI's; with generation 0 the NIC's.
    Error {
        code: u32,
        resource: u32,
        op_code: u32,
    },
}

/// The operation code of an asynchronous error, in one word with the number of disconnects of the VI
/// before the error (bits 16 to 31), and whether the peer disconnected in order (bit 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpCode {
    pub(crate) op_code: u32,
    pub(crate) is_orderly: bool,
    pub(crate) connection: u16,
}

impl OpCode {
    const ORDERLY_SHIFT: u32 = 15;
    const OP_MASK: u32 = (1 << Self::ORDERLY_SHIFT) - 1;

    pub(crate) fn word(self) -> u32 {
        u32::from(self.connection) << 16
            | u32::from(self.is_orderly) << Self::ORDERLY_SHIFT
            | self.op_code & Self::OP_MASK
    }

    pub(crate) fn of(word: u32) -> Self {
        Self {
            op_code: word & Self::OP_MASK,
            is_orderly: word >> Self::ORDERLY_SHIFT & 1 != 0,
            connection: (word >> 16) as u16,
        }
    }
}

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completed {
    /// The status word.
    pub(crate) status: u32,
    pub(crate) length_bytes: u32,
    /// Immediate data, if the status says so.
    pub(crate) immediate: u32,
}

/// Codes of what is told.
const SENT: u64 = 0;
const RECEIVED: u64 = 1;
const ERROR: u64 = 2;

/// The process's end of the completion ring.
#[derive(Default)]
pub(crate) struct Teller {
    next: u32,
    /// What the application had taken when it was looked at last.
    taken: u32,
}

impl Teller {
    /// Room for another entry? Nonsense if the application says that it took what is not there.
    #[inline]
    pub(crate) fn has_room(&mut self, arena: &Arena) -> Result<bool, Nonsense> {
        let ring = arena.sizes.completions;
        if self.next.wrapping_sub(self.taken) < ring {
            return Ok(true);
        }
        // Acquire: partner of the Release store in `Listener::give_back`.
        let taken = arena.word(COMPLETIONS_TAKEN).load(Ordering::Acquire);
        let waiting = self.next.wrapping_sub(taken);
        // It never gets smaller, and never passes what was written.
        if waiting > ring {
            return Err(Nonsense("completions taken that were not there"));
        }
        self.taken = taken;
        Ok(waiting < ring)
    }

    /// Tells of something; there is room.
    #[inline]
    pub(crate) fn tell(&mut self, arena: &Arena, vi: ViName, told: Told) {
        let entry = arena.entry(self.next);
        let (kind, first, second) = match told {
            Told::Sent(c) | Told::Received(c) => (
                if matches!(told, Told::Sent(_)) {
                    SENT
                } else {
                    RECEIVED
                },
                u64::from(c.status) << 32 | u64::from(c.length_bytes),
                u64::from(c.immediate) << 32,
            ),
            Told::Error {
                code,
                resource,
                op_code,
            } => (
                ERROR,
                u64::from(code) << 32 | u64::from(resource),
                u64::from(op_code) << 32,
            ),
        };
        entry[1].store(first, Ordering::Relaxed);
        entry[2].store(second | u64::from(vi.generation), Ordering::Relaxed);
        let lap = lap(self.next, arena.sizes.completions) << 32;
        // Release: partner of the Acquire load in `Listener::take`.
        entry[0].store(lap | u64::from(vi.index) << 16 | kind, Ordering::Release);
        self.next = self.next.wrapping_add(1);
    }
}

/// The application's end of the completion ring.
#[derive(Default)]
pub(crate) struct Listener {
    next: u32,
}

impl Listener {
    /// The oldest entry.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena) -> Option<(ViName, Told)> {
        let entry = arena.entry(self.next);
        // Acquire: partner of the Release store in `Teller::tell`.
        let head = entry[0].load(Ordering::Acquire);
        if head >> 32 != lap(self.next, arena.sizes.completions) {
            return None;
        }
        let (first, second) = (
            entry[1].load(Ordering::Relaxed),
            entry[2].load(Ordering::Relaxed),
        );
        let completed = Completed {
            status: (first >> 32) as u32,
            length_bytes: first as u32,
            immediate: (second >> 32) as u32,
        };
        let told = match head & 0xFFFF {
            SENT => Told::Sent(completed),
            RECEIVED => Told::Received(completed),
            _ => Told::Error {
                code: completed.status,
                resource: completed.length_bytes,
                op_code: completed.immediate,
            },
        };
        self.next = self.next.wrapping_add(1);
        let vi = ViName {
            index: (head >> 16) as u16,
            generation: second as u32,
        };
        Some((vi, told))
    }

    /// Gives the room of what was taken back to the process.
    #[inline]
    pub(crate) fn give_back(&mut self, arena: &Arena) {
        // Release: partner of the Acquire load in `Teller::has_room`.
        arena
            .word(COMPLETIONS_TAKEN)
            .store(self.next, Ordering::Release);
    }
}
