//! One send that came as a whole: placed and completed at once.

use vi_engine::Host;
use vitcp_lite::SegmentHeader;

use super::{Receiver, immediate_of};
use crate::vitcp::closing::Ending;
use crate::vitcp::counters::Counter;

impl Receiver<'_> {
    /// A send that is there as a whole, as most small ones are. False, and nothing of it is done,
    /// if it must go the long way.
    #[inline]
    pub(super) fn whole(&mut self, header: &SegmentHeader, payload: &[u8]) -> Result<bool, Ending> {
        let rx = &self.connection.rx;
        let fits = rx.message.is_none()
            && header.message == rx.number.wrapping_add(1)
            && payload.len() <= self.params.max_transfer_bytes as usize;
        if !fits {
            return Ok(false);
        }
        // What it says counts as soon as it is there, and does no harm twice.
        self.heard(header)?;
        let immediate = immediate_of(header);
        if !self.path.take_whole(self.vi, payload, immediate) {
            return Ok(false);
        }
        self.counters.count(Counter::RxSegments);
        self.connection.rx.number = header.message;
        self.count_claim();
        self.is_good(header.message);
        if self.connection.rx.posted.is_some() {
            self.path.resume(self.vi);
        }
        Ok(true)
    }
}
