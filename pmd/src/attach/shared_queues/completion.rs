//! The completion ring, from the process to the application: completed descriptors and asynchronous errors.

use vi_core::sync::Ordering;

use vi_core::memory::backing::InlineBuffer;

use super::inline_buffers::ReceiveBuffers;
use super::{COMPLETIONS_TAKEN, ProtocolViolation, SharedQueues, ViId, lap};

/// An entry of the completion ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionEntry {
    /// The oldest descriptor of a send queue is complete.
    Sent(Completed),
    /// The oldest descriptor of a receive queue is complete.
    Received(Completed),
    /// An asynchronous error of the VI, or of the NIC if the generation of the [`ViId`] is 0: code and resource as in
    /// an error descriptor, and the word of an [`OpCode`].
    Error {
        code: u32,
        resource: u32,
        op_code: u32,
    },
}

/// The operation code of an asynchronous error, packed into a word with the number of disconnects of the VI before the
/// error (bits 16 to 31) and whether the peer disconnected in order (bit 15).
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

/// Status, length and immediate data of a completed descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completed {
    /// The status word.
    pub(crate) status: u32,
    pub(crate) length_bytes: u32,
    /// Valid if the status has the immediate data bit.
    pub(crate) immediate: u32,
    /// The number of the inline buffer that has the data; 0 without one.
    pub(crate) inline_buffer: u32,
}

/// Codes of the kinds of entries.
const SENT: u64 = 0;
const RECEIVED: u64 = 1;
const ERROR: u64 = 2;

/// Writes completion entries: the process's side.
pub(crate) struct CompletionProducer {
    next: u32,
    /// The number of entries that the application had taken, as read last.
    taken: u32,
    buffers: ReceiveBuffers,
}

impl CompletionProducer {
    pub(crate) fn new(queues: &SharedQueues) -> Self {
        Self {
            next: 0,
            taken: 0,
            buffers: ReceiveBuffers::new(queues),
        }
    }

    /// True if another entry fits.
    ///
    /// # Errors
    /// The application reports more entries taken than there were.
    #[inline]
    pub(crate) fn has_space(&mut self, queues: &SharedQueues) -> Result<bool, ProtocolViolation> {
        if self.next.wrapping_sub(self.taken) < queues.sizes.completions {
            return Ok(true);
        }
        self.read_taken(queues)?;
        Ok(self.next.wrapping_sub(self.taken) < queues.sizes.completions)
    }

    /// Reads how many entries the application has taken, and gets their inline buffers back.
    fn read_taken(&mut self, queues: &SharedQueues) -> Result<(), ProtocolViolation> {
        // Acquire: partner of the Release store in `CompletionConsumer::release`.
        let taken = queues.word(COMPLETIONS_TAKEN).load(Ordering::Acquire);
        let waiting = self.next.wrapping_sub(taken);
        // The number never decreases, and never exceeds the number written.
        if waiting > self.next.wrapping_sub(self.taken) {
            return Err(ProtocolViolation("more completions taken than written"));
        }
        while self.taken != taken {
            self.buffers.take_back_of(self.taken);
            self.taken = self.taken.wrapping_add(1);
        }
        Ok(())
    }

    /// Takes a free inline buffer, for the data of the receive that is reported next; `None` if all are in use.
    ///
    /// # Errors
    /// As [`Self::has_space`].
    #[inline]
    pub(crate) fn take_buffer(
        &mut self,
        queues: &SharedQueues,
    ) -> Result<Option<InlineBuffer>, ProtocolViolation> {
        if let Some(buffer) = self.buffers.take(queues) {
            return Ok(Some(buffer));
        }
        self.read_taken(queues)?;
        Ok(self.buffers.take(queues))
    }

    /// Writes an entry; [`Self::has_space`] must have returned true.
    #[inline]
    pub(crate) fn push(&mut self, queues: &SharedQueues, vi: ViId, completion: CompletionEntry) {
        let entry = queues.entry(self.next);
        let (kind, first, second, buffer) = match completion {
            CompletionEntry::Sent(c) | CompletionEntry::Received(c) => (
                if matches!(completion, CompletionEntry::Sent(_)) {
                    SENT
                } else {
                    RECEIVED
                },
                u64::from(c.status) << 32 | u64::from(c.length_bytes),
                u64::from(c.immediate) << 32,
                c.inline_buffer,
            ),
            CompletionEntry::Error {
                code,
                resource,
                op_code,
            } => (
                ERROR,
                u64::from(code) << 32 | u64::from(resource),
                u64::from(op_code) << 32,
                0,
            ),
        };
        if kind == RECEIVED && buffer != 0 {
            self.buffers.report(self.next, buffer);
        }
        entry[1].store(first, Ordering::Relaxed);
        entry[2].store(second | u64::from(vi.generation), Ordering::Relaxed);
        entry[3].store(buffer.into(), Ordering::Relaxed);
        let lap = lap(self.next, queues.sizes.completions) << 32;
        // Release: partner of the Acquire load in `CompletionConsumer::pop`.
        entry[0].store(lap | u64::from(vi.index) << 16 | kind, Ordering::Release);
        self.next = self.next.wrapping_add(1);
    }
}

/// Reads completion entries: the application's side.
#[derive(Default)]
pub(crate) struct CompletionConsumer {
    next: u32,
}

impl CompletionConsumer {
    /// Removes and returns the oldest entry.
    #[inline]
    pub(crate) fn pop(&mut self, queues: &SharedQueues) -> Option<(ViId, CompletionEntry)> {
        let entry = queues.entry(self.next);
        // Acquire: partner of the Release store in `CompletionProducer::push`.
        let head = entry[0].load(Ordering::Acquire);
        if head >> 32 != lap(self.next, queues.sizes.completions) {
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
            inline_buffer: entry[3].load(Ordering::Relaxed) as u32,
        };
        let completion = match head & 0xFFFF {
            SENT => CompletionEntry::Sent(completed),
            RECEIVED => CompletionEntry::Received(completed),
            _ => CompletionEntry::Error {
                code: completed.status,
                resource: completed.length_bytes,
                op_code: completed.immediate,
            },
        };
        self.next = self.next.wrapping_add(1);
        let vi = ViId {
            index: (head >> 16) as u16,
            generation: second as u32,
        };
        Some((vi, completion))
    }

    /// Returns the space of the removed entries to the process.
    #[inline]
    pub(crate) fn release(&mut self, queues: &SharedQueues) {
        // Release: partner of the Acquire load in `CompletionProducer::has_space`.
        queues
            .word(COMPLETIONS_TAKEN)
            .store(self.next, Ordering::Release);
    }
}
