//! RDMA operations that the remote side must refuse, which ends the connection.

use vipl::{Descriptor, MemoryHandle, Operation, RemoteBuffer};

use crate::header::PeerMemory;
use crate::pattern::Rng;
use crate::plan::SlotConfig;
use crate::source::SOURCE_BYTES;
use crate::window::end_bytes;

/// The maximum length of an unexpected write or read.
const LONGEST_BYTES: u64 = 300;

/// An RDMA operation that the remote side must refuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnexpectedAccess {
    pub(crate) operation: Operation,
    pub(crate) length_bytes: usize,
}

impl UnexpectedAccess {
    /// Chooses a random operation.
    pub(crate) fn choose(config: &SlotConfig, memory: &PeerMemory, rng: &mut Rng) -> Self {
        let length_bytes = 1 + rng.below(LONGEST_BYTES);
        // Across the end of the registration, or completely beyond it.
        let beyond =
            |end: u64, rng: &mut Rng| end + LONGEST_BYTES - rng.below(LONGEST_BYTES + length_bytes);
        let invalid_handle = RemoteBuffer {
            handle: MemoryHandle(0),
            ..memory.source
        };
        let operation = match rng.below(if config.reads { 6 } else { 2 }) {
            0 => Operation::RdmaWrite(memory.window.at(beyond(end_bytes(config), rng))),
            1 => Operation::RdmaWrite(memory.source.at(rng.below(4096))),
            2 => Operation::RdmaRead(invalid_handle),
            3 if !config.reads_back => Operation::RdmaRead(memory.window),
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

    pub(crate) fn apply(&self, descriptor: &mut Descriptor) {
        descriptor.set_operation(self.operation);
        descriptor.set_immediate(None);
        descriptor.set_fence(false);
    }
}
