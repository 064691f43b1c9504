//! State of a VI on the data path of an attached NIC, and its submissions.

use vi_core::completion::CompletionTarget;
use vi_core::memory::Access;
use vi_core::queue::Slot;
use vi_core::sync::Ordering;
use vi_core::vi::ViShared;
use vi_types::ViState;

use crate::attach::bounce_buffers::copy_to_bounce_buffers;
use crate::attach::connection_epoch::ConnectionEpoch;
use crate::attach::inline_data;
use crate::attach::shared_queues::{
    SendBuffers, SharedQueues, Submission, SubmissionProducer, ViId,
};

/// State of a VI of this program.
pub(super) struct ViLocal {
    pub(super) shared: &'static ViShared,
    /// Its handle in this program.
    pub(super) handle: u64,
    /// Its identifier in the process.
    pub(super) remote_id: ViId,
    pub(super) send_target: CompletionTarget,
    pub(super) recv_target: CompletionTarget,
    /// Descriptors at the heads of the send and receive queue that are submitted and not complete.
    pub(super) submitted: [u32; 2],
    /// RDMA reads that are submitted and not complete.
    pub(super) reads: u32,
    /// In the run queue.
    pub(super) queued: bool,
    pub(super) epoch: ConnectionEpoch,
}

impl ViLocal {
    /// Submits all posted descriptors; false if the ring has no space for all of them.
    #[inline]
    pub(super) fn submit(
        &mut self,
        submissions: &mut SubmissionProducer,
        buffers: &mut SendBuffers,
        queues: &SharedQueues,
    ) -> bool {
        let shared = self.shared;
        let [sends, receives] = &mut self.submitted;
        for (queue, count, kind) in [
            (&shared.recv, receives, Submission::Receive),
            (&shared.send, sends, Submission::Send),
        ] {
            // SAFETY: the caller holds the backend lock; the reference ends before the next call.
            while let Some(slot) = unsafe { queue.ahead(*count) } {
                let mut inline_buffer = 0;
                if kind == Submission::Send && shared.nic.regions.has_unmapped() {
                    if !submissions.has_space_for(queues, slot) {
                        return false;
                    }
                    let (buffers, id) = ((&mut *buffers, queues), self.remote_id);
                    // SAFETY: the caller holds the backend lock.
                    inline_buffer =
                        unsafe { copy_unmapped(shared, slot, (buffers, id), self.reads) };
                }
                if !submissions.submit(queues, self.remote_id, kind, Some(slot), inline_buffer) {
                    return false;
                }
                if kind == Submission::Send && slot.access() == Access::Write {
                    self.reads += 1;
                }
                *count += 1;
            }
        }
        // Acquire: partner of the Release store of the thread whose post failed.
        if shared.broken.load(Ordering::Acquire) {
            if !submissions.submit(queues, self.remote_id, Submission::Break, None, 0) {
                return false;
            }
            shared.broken.store(false, Ordering::Relaxed);
            self.epoch.set_broken();
            shared.set_state(ViState::Error);
        }
        true
    }

    /// The sequence number behind the last submitted receive.
    pub(super) fn receives_submitted(&self) -> u32 {
        let [_, receives] = self.submitted;
        self.shared.recv.sequence(receives)
    }
}

/// Copies the data of a send or RDMA write that the process cannot access, or only by system calls, before it is
/// submitted. Returns the number of its inline buffer, or 0 without one. `reads`: RDMA reads of the VI that are not
/// complete. Where there is a fence behind them, they write the data before it is sent.
///
/// # Safety
/// The caller holds the NIC's backend lock; the descriptor is posted.
unsafe fn copy_unmapped(
    shared: &ViShared,
    slot: &mut Slot,
    (buffers, vi): ((&mut SendBuffers, &SharedQueues), ViId),
    reads: u32,
) -> u32 {
    let (regions, tag) = (&shared.nic.regions, shared.tag_check());
    let mut inline_buffer = 0;
    if reads == 0 {
        // SAFETY: passed on from our caller.
        inline_buffer = unsafe { inline_data::copy_to_buffer(buffers, vi, (regions, tag), slot) };
    }
    if inline_buffer == 0 {
        // SAFETY: likewise.
        unsafe { copy_to_bounce_buffers(regions, tag, slot) };
    }
    inline_buffer
}
