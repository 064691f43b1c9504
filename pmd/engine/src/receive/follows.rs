//! Frames of one message, one after the other [FCVI P-10, rule 5].

use fcvi_frame::fc::FcHeader;

use crate::synonym::{Check, skips};

/// How a frame stands to the bytes of its message that are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Duplicate,
    Next,
    /// Frames between are missing.
    Gap,
}

/// Is this the frame with this SEQ_CNT and relative offset, is it behind it, or in front?
#[inline]
pub(super) fn follows(fc: &FcHeader, next_seq_cnt: u16, placed_bytes: u32) -> Follows {
    let ahead = fc.seq_cnt.wrapping_sub(next_seq_cnt);
    let counted_again = ahead > i16::MAX as u16 && !skips(Check::SequenceCount);
    if counted_again || (fc.parameter < placed_bytes && !skips(Check::RelativeOffset)) {
        return Follows::Duplicate;
    }
    let counts = ahead == 0 || skips(Check::SequenceCount);
    if counts && (fc.parameter == placed_bytes || skips(Check::RelativeOffset)) {
        Follows::Next
    } else {
        Follows::Gap
    }
}
