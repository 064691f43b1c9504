//! What the other side must refuse; the connection ends with it.

use vipl::{Descriptor, MemoryHandle, Operation, RemoteBuffer};

use crate::header::PeerMemory;
use crate::pattern::Rng;
use crate::plan::Shape;
use crate::source::SOURCE_BYTES;
use crate::window::end_bytes;

/// The longest stray write or read.
const LONGEST_BYTES: u64 = 300;

/// One operation that must be refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stray {
    pub(crate) operation: Operation,
    pub(crate) length_bytes: usize,
}

impl Stray {
    /// One of those that there are for a slot.
    pub(crate) fn choose(shape: &Shape, memory: &PeerMemory, rng: &mut Rng) -> Self {
        let length_bytes = 1 + rng.below(LONGEST_BYTES);
        // Across the end of what is registered, or wholly beyond it.
        let beyond =
            |end: u64, rng: &mut Rng| end + LONGEST_BYTES - rng.below(LONGEST_BYTES + length_bytes);
        let nowhere = RemoteBuffer {
            handle: MemoryHandle(0),
            ..memory.source
        };
        let operation = match rng.below(if shape.reads { 6 } else { 2 }) {
            0 => Operation::RdmaWrite(memory.window.at(beyond(end_bytes(shape), rng))),
            1 => Operation::RdmaWrite(memory.source.at(rng.below(4096))),
            2 => Operation::RdmaRead(nowhere),
            3 if !shape.reads_back => Operation::RdmaRead(memory.window),
            _ => Operation::RdmaRead(memory.source.at(beyond(SOURCE_BYTES as u64, rng))),
        };
        Self {
            operation,
            length_bytes: length_bytes as usize,
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.operation, Operation::RdmaRead(_))
    }

    pub(crate) fn ask(&self, descriptor: &mut Descriptor) {
        descriptor.set_operation(self.operation);
        descriptor.set_immediate(None);
        descriptor.set_fence(false);
    }
}
