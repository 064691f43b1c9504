//! Posting of a descriptor on a work queue of a VI.

use vi_types::{QueueKind, status};

use crate::descriptor::{control, send_operation};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::posted_descriptor::{Header, PostRules};
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

    /// Parses a descriptor and posts it, if `admit` returns true for its [`Slot::units`]; called last, so that it may
    /// count them.
    ///
    /// # Safety
    /// The memory of the descriptor stays mapped while this call runs, also if another thread deregisters its region.
    #[inline]
    pub unsafe fn post(
        &self,
        queue: QueueKind,
        end: &mut PostEnd,
        (address, region): (u64, u32),
        context: usize,
        admit: impl FnOnce(u32) -> bool,
    ) -> Result<(), PostFailure> {
        let rules = self.rules();
        let failed = |code, control| PostFailure {
            code,
            operation: match queue {
                QueueKind::Send => send_operation(control),
                QueueKind::Receive => status::OP_RECEIVE,
            },
        };
        // SAFETY: found registered, and mapped while this call runs, as our caller promises.
        let header = unsafe { Header::read(&rules, address, region) };
        let Ok(header) = header else {
            // The operation cannot be read.
            return Err(failed(ErrorCode::PostDesc, control::OP_SEND_RECV));
        };
        let fill = |slot: &mut Slot| {
            match queue {
                // SAFETY: as above.
                QueueKind::Send => unsafe { header.fill_send(&rules, slot) },
                // SAFETY: as above.
                QueueKind::Receive => unsafe { header.fill_receive(&rules, slot) },
            }
            admit(slot.units())
        };
        if self.queue(queue).post_with(end, context, fill) {
            Ok(())
        } else {
            Err(failed(ErrorCode::ViOverrun, header.control()))
        }
    }
}

/// The reason for which a post breaks its VI.
pub struct PostFailure {
    /// The error to report.
    pub code: ErrorCode,
    /// The operation of the descriptor, an `OP_*` of the status word.
    operation: u32,
}
