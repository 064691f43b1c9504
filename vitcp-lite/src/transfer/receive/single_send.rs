//! Fast path for a send of one segment that is completely received: placed and completed at once.

use crate::SegmentHeader;

use super::{Receiver, immediate_of};
use crate::transfer::Counter;
use crate::transfer::{CloseReason, StreamIo};

impl<P: StreamIo> Receiver<'_, P> {
    /// Places and completes a completely received send. Returns false, without effect on the message, if it
    /// needs the general path.
    ///
    /// # Errors
    /// Why the connection breaks.
    #[inline]
    pub(super) fn receive_single(
        &mut self,
        header: &SegmentHeader,
        payload: &[u8],
    ) -> Result<bool, CloseReason> {
        let rx = &self.transfer.rx;
        let fits = rx.message.is_none()
            && header.message == rx.number.wrapping_add(1)
            && payload.len() <= self.transfer.params.max_transfer_bytes as usize;
        if !fits {
            return Ok(false);
        }
        // Idempotent: the general path processes it again.
        self.process_header(header)?;
        let immediate = immediate_of(header);
        if !self.path.take_whole(self.vi, payload, immediate) {
            return Ok(false);
        }
        self.counters.count(Counter::RxSegments);
        self.transfer.rx.number = header.message;
        self.count_claim();
        self.message_placed(header.message);
        if self.transfer.rx.posted.is_some() {
            self.path.resume(self.vi);
        }
        Ok(true)
    }
}
