//! Limits of an attached application on the data path.

use vi_core::error_backlog::Subject;
use vi_core::events::{ErrorCode, ResourceCode};
use vi_core::queue::descriptor_units;
use vi_core::sync::Ordering;
use vi_core::vi::ViShared;
use vi_types::status;

use super::{Client, count};
use crate::attach::shared_queues::{CompletionEntry, OpCode, ViId};

/// Maximum number of submissions of an application that are taken in one poll, for each unit of its share.
const BUDGET: u32 = 8;
/// Maximum number of completions and errors that are reported to an application in one poll, for each unit of its share.
pub(super) const REPORT_BUDGET: u32 = 32;

/// Limits of an application on the data path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Data segments of a descriptor.
    pub(crate) segments: u32,
    /// Descriptors that are taken and not complete, long ones as several; further submissions wait in the ring.
    pub(crate) descriptors: u32,
    /// Scheduling weight.
    pub(crate) share: u32,
}

impl Limits {
    /// Maximum number of submissions taken in one poll.
    pub(super) fn submissions_per_poll(self) -> u32 {
        BUDGET.saturating_mul(self.share)
    }

    /// Maximum number of completions and errors reported in one poll.
    pub(super) fn reports_per_poll(self) -> u32 {
        REPORT_BUDGET.saturating_mul(self.share)
    }
}

impl Client {
    /// Returns whether a descriptor of this many segments must wait until others are complete. The library counts as this
    /// does and rejects the post; for another library the submission waits in the ring.
    #[inline]
    pub(super) fn must_wait(&self, segments: u16) -> bool {
        let in_use = self.uncompleted + self.segment_pool.extra_units();
        // One is always possible.
        in_use > 0 && in_use.saturating_add(descriptor_units(segments)) > self.limits.descriptors
    }

    /// Fails the VI of a descriptor of this operation for whose segments there is no memory, as one post too many does
    /// (VIPL 3.8.1).
    #[cold]
    pub(super) fn fail_without_memory(&mut self, vi: &ViShared, id: ViId, operation: u32) {
        count(&self.counters.out_of_memory);
        vi.broken.store(true, Ordering::Release);
        let op_code = OpCode {
            op_code: operation >> status::OP_SHIFT,
            is_orderly: false,
            connection: vi.disconnects.load(Ordering::Relaxed) as u16,
        };
        let entry = CompletionEntry::Error {
            code: ErrorCode::ViOverrun as u32,
            resource: ResourceCode::Vi as u32,
            op_code: op_code.word(),
        };
        let subject = Subject {
            vi: Some(u32::from(id.index)),
            is_loss: false,
        };
        self.queue_error(subject, (id, entry));
    }
}
