//! Posting of a descriptor on a work queue of a VI.

use vi_types::{QueueKind, status};

use crate::descriptor::{control, send_operation};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::posted_descriptor::{Header, OneSegmentSend, PostRules};
use crate::queue::{PostEnd, Slot};
use crate::sync::Ordering;
use crate::vi::ViShared;

impl ViShared {
    #[inline]
    fn rules(&self) -> PostRules<'_> {
        PostRules {
            regions: &self.nic.regions,
            tag: self.tag_check(),
            max_segments: self.nic.limits.max_segments_per_descriptor,
            max_transfer_bytes: self.max_transfer_bytes.load(Ordering::Relaxed),
            clips_receives: self.nic.limits.is_lenient,
            reads: &self.reads,
        }
    }

    /// Marks the VI as broken by a post (VIPL 6.3.1); returns the error to report.
    #[cold]
    pub fn mark_broken(&self, failure: &PostFailure, descriptor: u64) -> AsyncEvent {
        self.broken.store(true, Ordering::Release);
        AsyncEvent {
            vi: self.live_handle(),
            nic_handle: self.nic_handle(),
            cq: 0,
            descriptor,
            op_code: failure.operation >> status::OP_SHIFT,
            resource: match failure.code {
                ErrorCode::ViOverrun => ResourceCode::Vi,
                _ => ResourceCode::Descriptor,
            },
            code: failure.code,
            is_orderly: false,
        }
    }

    /// Reads a descriptor that is to be posted on a queue.
    ///
    /// # Safety
    /// The memory of the descriptor stays mapped as long as the result is used, also if another thread deregisters its
    /// region.
    #[inline]
    pub unsafe fn read_descriptor(
        &self,
        queue: QueueKind,
        (address, region): (u64, u32),
    ) -> Result<NewDescriptor<'_>, PostFailure> {
        let rules = self.rules();
        // SAFETY: found registered, and mapped, as our caller promises.
        match unsafe { Header::read(&rules, address, region) } {
            Ok(header) => Ok(NewDescriptor {
                vi: self,
                queue,
                rules,
                header,
            }),
            // The operation cannot be read.
            Err(_) => Err(failure(ErrorCode::PostDesc, queue, control::OP_SEND_RECV)),
        }
    }
}

/// A descriptor that was read to be posted on a queue of a VI.
pub struct NewDescriptor<'a> {
    vi: &'a ViShared,
    queue: QueueKind,
    rules: PostRules<'a>,
    header: Header,
}

impl<'a> NewDescriptor<'a> {
    /// Returns the VI on which it is to be posted.
    #[inline]
    pub fn vi(&self) -> &'a ViShared {
        self.vi
    }

    /// Returns whether it requests an RDMA operation, or none that is known.
    #[inline]
    pub fn is_rdma(&self) -> bool {
        self.header.control() & control::OP_MASK != control::OP_SEND_RECV
    }

    /// Returns the send that it requests, if it is to be posted on the send queue and can be sent without it.
    #[inline]
    pub fn one_segment_send(&self) -> Option<OneSegmentSend> {
        if self.queue != QueueKind::Send {
            return None;
        }
        // SAFETY: promised by the caller of `read_descriptor`.
        unsafe { self.header.one_segment_send(&self.rules) }
    }

    /// As [`Self::one_segment_send`], for an RDMA operation.
    pub fn one_segment_rdma(&self) -> Option<OneSegmentSend> {
        if self.queue != QueueKind::Send {
            return None;
        }
        // SAFETY: promised by the caller of `read_descriptor`.
        unsafe { self.header.one_segment_rdma(&self.rules) }
    }

    /// Posts it, if `admit` returns true for its [`Slot::units`]; called last, so that it may count them. `end` is that
    /// of its queue.
    #[inline]
    pub fn post(
        self,
        end: &mut PostEnd,
        context: usize,
        admit: impl FnOnce(u32) -> bool,
    ) -> Result<(), PostFailure> {
        let Self {
            vi,
            queue,
            rules,
            header,
        } = self;
        let fill = |slot: &mut Slot| {
            match queue {
                // SAFETY: promised by the caller of `read_descriptor`.
                QueueKind::Send => unsafe { header.fill_send(&rules, slot) },
                // SAFETY: as above.
                QueueKind::Receive => unsafe { header.fill_receive(&rules, slot) },
            }
            admit(slot.units())
        };
        if vi.queue(queue).post_with(end, context, fill) {
            Ok(())
        } else {
            Err(failure(ErrorCode::ViOverrun, queue, header.control()))
        }
    }
}

fn failure(code: ErrorCode, queue: QueueKind, control: u16) -> PostFailure {
    PostFailure {
        code,
        operation: match queue {
            QueueKind::Send => send_operation(control),
            QueueKind::Receive => status::OP_RECEIVE,
        },
    }
}

/// The reason for which a post breaks its VI.
pub struct PostFailure {
    /// The error to report.
    pub code: ErrorCode,
    /// The operation of the descriptor, an `OP_*` of the status word.
    operation: u32,
}
