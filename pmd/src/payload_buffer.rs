//! The buffer in which the payload of a frame is gathered if it is not in one piece in this process.

use fcvi_frame::fcoe::MAX_DATA_FIELD_BYTES;
use fcvi_frame::frame::Payload;

/// A buffer for one payload.
pub(crate) struct PayloadBuffer {
    bytes: Box<[u8; MAX_DATA_FIELD_BYTES]>,
}

impl PayloadBuffer {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Box::new([0; MAX_DATA_FIELD_BYTES]),
        }
    }

    /// Returns a payload of this length, which `gather` fills. `None`: `gather` failed, or the
    /// payload is too long for a frame.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        payload_bytes: usize,
        gather: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Payload<'_>> {
        let payload = self.bytes.get_mut(..payload_bytes)?;
        gather(payload).then_some(Payload::from_slice(payload))
    }
}
