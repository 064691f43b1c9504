//! Descriptors of a send queue with one data segment, as far as they can be carried out without the queue.

use vi_types::{Operation, SendWork, Status};

use super::{Header, PostRules};
use crate::descriptor::control;
use crate::memory::Access;
use crate::sync::Ordering;

/// A send, RDMA write or RDMA read with one data segment and without a fault.
#[derive(Clone, Copy, Debug)]
pub struct OneSegmentSend {
    /// Address of the descriptor.
    pub descriptor: u64,
    /// Its control field.
    pub control: u16,
    /// What it requests.
    pub work: SendWork,
    /// Address of its data.
    pub data: u64,
    /// Descriptor and data were found valid in this epoch of the region table.
    pub epoch: u32,
}

impl Header {
    /// Returns the send that this descriptor of a send queue requests; `None` if it requests another operation, has more
    /// or fewer segments, or a fault.
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline]
    pub(crate) unsafe fn one_segment_send(&self, rules: &PostRules<'_>) -> Option<OneSegmentSend> {
        if self.requested() != control::OP_SEND_RECV {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.with_one_segment(rules, 0, Access::Read, || Some(Operation::Send)) }
    }

    /// As [`Self::one_segment_send`], for an RDMA operation.
    ///
    /// # Safety
    /// As for [`Header::read`].
    pub(crate) unsafe fn one_segment_rdma(&self, rules: &PostRules<'_>) -> Option<OneSegmentSend> {
        let is_read = match self.requested() {
            control::OP_RDMA_WRITE => false,
            control::OP_RDMA_READ if rules.reads.load(Ordering::Relaxed) => true,
            _ => return None,
        };
        let access = if is_read { Access::Write } else { Access::Read };
        let operation = || {
            // SAFETY: called for a descriptor that is readable and has two segments.
            let remote = unsafe { self.segment(0) };
            let at = (remote.address, remote.handle);
            let operation = match is_read {
                true => Operation::Read { remote: at },
                false => Operation::Write { remote: at },
            };
            (remote.length == 0).then_some(operation)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.with_one_segment(rules, 1, access, operation) }
    }

    /// Returns operation and reserved bits of the control field.
    #[inline]
    fn requested(&self) -> u16 {
        self.control.control & (control::OP_MASK | control::RESERVED)
    }

    /// Returns the send that this descriptor requests if it has one data segment after its address segments, which
    /// `operation` reads.
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline(always)]
    unsafe fn with_one_segment(
        &self,
        rules: &PostRules<'_>,
        address_segments: usize,
        access: Access,
        operation: impl FnOnce() -> Option<Operation>,
    ) -> Option<OneSegmentSend> {
        let control = &self.control;
        let has_one = usize::from(control.segment_count) == address_segments + 1;
        if !has_one || control.reserved != 0 || self.too_many_segments(rules) {
            return None;
        }
        let operation = operation()?;
        // SAFETY: the descriptor is readable, and has as many segments.
        let data = unsafe { self.segment(address_segments) };
        let length_bytes = control.length;
        let is_sendable = data.length == length_bytes
            && length_bytes <= rules.max_transfer_bytes
            && self.is_valid(rules, &data, access);
        is_sendable.then_some(OneSegmentSend {
            descriptor: self.address,
            control: control.control,
            work: SendWork {
                length_bytes,
                immediate: (control.control & control::IMMEDIATE != 0)
                    .then_some(control.immediate_data),
                operation,
                fence: control.control & control::QFENCE != 0,
                fault: Status::OK,
            },
            data: data.address,
            epoch: self.epoch,
        })
    }
}
