//! Sends and RDMA writes of one frame that find their send queue idle: sent and completed without a place on the queue
//! (docs/adr/0066).

use fcvi_frame::frame::Payload;
use vi_core::completion::{CompletionStatus, complete_unqueued};
use vi_core::descriptor::send_operation;
use vi_core::posted_descriptor::OneSegmentSend;
use vi_core::queue::IdleSlot;
use vi_core::sync::Ordering;
use vi_types::{OneStepLimits, QueueKind, ViIndex, status};

use super::client_memory::payload_at;
use super::{Datapath, path_of};

impl Datapath {
    /// Sets the lengths below which posting threads try to send a message of this VI in one step.
    #[inline]
    pub(crate) fn hint_one_step(&mut self, vi: ViIndex, limits: OneStepLimits) {
        if let Some(path) = self.vi(vi) {
            let (sends, rdma) = (
                &path.shared.one_step_below_bytes,
                &path.shared.one_step_rdma_below_bytes,
            );
            sends.store(limits.sends_below_bytes, Ordering::Relaxed);
            rdma.store(limits.rdma_below_bytes, Ordering::Relaxed);
        }
    }

    /// Passes the memory of a descriptor to `transmit` and completes its descriptor if that returns true. Returns false if it
    /// does not, or if its memory may have been deregistered, or if its VI is broken or waits to be served.
    #[inline(always)]
    pub(crate) fn send_in_one_step(
        &mut self,
        vi: ViIndex,
        send: &OneSegmentSend,
        (slot, context): (IdleSlot<'_>, usize),
        transmit: impl FnOnce(&mut Self, Payload<'_>) -> bool,
    ) -> bool {
        let is_valid = self.regions.epoch() == send.epoch && self.failed.is_empty();
        let Some(path) = path_of(&mut self.vis, vi).filter(|_| is_valid) else {
            return false;
        };
        if path.queued || path.shared.broken.load(Ordering::Relaxed) {
            return false;
        }
        let (handle, target) = (path.handle, path.send_target);
        let length_bytes = send.work.length_bytes;
        let payload = if length_bytes == 0 {
            Payload::EMPTY
        } else {
            // SAFETY: valid in the current epoch; we hold the backend lock, and so the epoch, until we return.
            unsafe { payload_at(send.data, length_bytes) }
        };
        if !transmit(self, payload) {
            return false;
        }
        let completion = CompletionStatus {
            word: status::DONE | send_operation(send.control),
            length_bytes,
            immediate: None,
        };
        // SAFETY: as above, of the descriptor.
        let sequence = unsafe { complete_unqueued(slot, send.descriptor, context, completion) };
        self.counters.sent_in_one_step += 1;
        self.announce(handle, target, QueueKind::Send, sequence);
        true
    }
}
