//! Order of the frames of one message [FCVI P-10, rule 5].

use fcvi_frame::fc::FcHeader;

use crate::synonym::{Check, skips};

/// Position of a frame relative to the placed bytes of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameOrder {
    Duplicate,
    Next,
    /// Frames in between are missing.
    Gap,
}

/// Compares the SEQ_CNT and relative offset of a frame with the expected ones.
#[inline]
pub(super) fn frame_order(fc: &FcHeader, next_seq_cnt: u16, placed_bytes: u32) -> FrameOrder {
    let ahead = fc.seq_cnt.wrapping_sub(next_seq_cnt);
    let repeats_count = ahead > i16::MAX as u16 && !skips(Check::SequenceCount);
    if repeats_count || (fc.parameter < placed_bytes && !skips(Check::RelativeOffset)) {
        return FrameOrder::Duplicate;
    }
    let counts = ahead == 0 || skips(Check::SequenceCount);
    if counts && (fc.parameter == placed_bytes || skips(Check::RelativeOffset)) {
        FrameOrder::Next
    } else {
        FrameOrder::Gap
    }
}
