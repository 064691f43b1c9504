//! Frames with a bad CRC. They are dropped; if an RDMA write is then incomplete, the error is
//! RDMAW_DATA instead of RDMAW_ABORT (VIPL 3.8.1).

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode;

use crate::endpoint::RxStream;
use crate::engine::Engine;
use crate::engine_io::AsyncError;

impl Engine {
    /// Records the RDMA write that a frame with a bad CRC names. Affects only the code of an error.
    #[cold]
    pub(super) fn note_damaged(&mut self, bytes: &[u8]) {
        let Ok(frame) = FrameView::parse_damaged(bytes) else {
            return;
        };
        let Ok(iu) = frame.iu() else { return };
        if iu.header.opcode != Opcode::WriteRequest
            || iu.header.flags & message_request::IMMEDIATE != 0
        {
            return;
        }
        let vi = self.slot_of(iu.header.handle);
        if let Some(ep) = self.endpoint_mut(vi)
            && ep.handle == iu.header.handle
            && ep.peer == frame.fc.s_id
        {
            ep.rx.damaged_write = Some(iu.header.msg_id);
        }
    }
}

impl RxStream {
    /// Returns `RDMAW_DATA` if a frame of this message was damaged, else `error`.
    pub(super) fn damaged_or(&self, msg_id: u32, error: AsyncError) -> AsyncError {
        if self.damaged_write == Some(msg_id) {
            AsyncError::RdmaWriteData
        } else {
            error
        }
    }
}
