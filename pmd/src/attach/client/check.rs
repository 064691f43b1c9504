//! Checks of the descriptors that applications submit.

use vi_core::descriptor::{control, send_operation};
use vi_core::queue::Slot;
use vi_types::{QueueKind, status};

/// Returns the operation of a descriptor, an `OP_*` of the status word.
pub(super) fn operation_of(slot: &Slot, kind: QueueKind) -> u32 {
    match kind {
        QueueKind::Send => send_operation(slot.control),
        QueueKind::Receive => status::OP_RECEIVE,
    }
}

/// Validates a descriptor as the library does; an invalid one completes with an error.
pub(super) fn check(slot: &mut Slot, kind: QueueKind, reads: bool, max_bytes: u32) {
    slot.fault &= status::ERROR_MASK;
    if slot.fault != 0 {
        slot.length_bytes = 0;
        return;
    }
    let sum: u64 = match slot.data() {
        [only] => only.length.into(),
        segments => segments.iter().map(|s| u64::from(s.length)).sum(),
    };
    let op = slot.control & control::OP_MASK;
    let (known, fits) = match kind {
        QueueKind::Receive => {
            slot.length_bytes = u32::try_from(sum).unwrap_or(u32::MAX);
            (op == control::OP_SEND_RECV, true)
        }
        QueueKind::Send => (
            match op {
                control::OP_SEND_RECV | control::OP_RDMA_WRITE => true,
                control::OP_RDMA_READ => reads && slot.control & control::IMMEDIATE == 0,
                _ => false,
            },
            sum == u64::from(slot.length_bytes) && sum <= u64::from(max_bytes),
        ),
    };
    if !known || slot.control & control::RESERVED != 0 {
        slot.fault = status::FORMAT_ERROR;
    } else if !fits {
        slot.fault = status::LENGTH_ERROR;
    }
    if slot.fault != 0 {
        slot.length_bytes = 0;
    }
}
