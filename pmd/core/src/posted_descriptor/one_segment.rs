//! Descriptors of sends and RDMA writes with one data segment, as far as they can be sent without the send queue.

use vi_types::{Operation, SendWork, Status};

use super::{Header, PostRules};
use crate::descriptor::{DataSegment, control};
use crate::memory::Access;

/// A send or RDMA write with one data segment and without a fault.
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
    /// Returns the send that this descriptor of a send queue requests; `None` if it is a read, has more or fewer
    /// segments, or a fault.
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline]
    pub(crate) unsafe fn one_segment_send(&self, rules: &PostRules<'_>) -> Option<OneSegmentSend> {
        let control = &self.control;
        let address_segments = match control.control & (control::OP_MASK | control::RESERVED) {
            control::OP_SEND_RECV => 0,
            control::OP_RDMA_WRITE => 1,
            _ => return None,
        };
        let has_one = usize::from(control.segment_count) == address_segments + 1;
        if !has_one || control.reserved != 0 || self.too_many_segments(rules) {
            return None;
        }
        // SAFETY: the descriptor is readable, and has as many segments.
        let segment = |index| unsafe { self.segment(index) };
        let operation = if address_segments == 0 {
            Operation::Send
        } else {
            let remote: DataSegment = segment(0);
            if remote.length != 0 {
                return None;
            }
            Operation::Write {
                remote: (remote.address, remote.handle),
            }
        };
        let data = segment(address_segments);
        let length_bytes = control.length;
        let is_sendable = data.length == length_bytes
            && length_bytes <= rules.max_transfer_bytes
            && self.is_valid(rules, &data, Access::Read);
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
