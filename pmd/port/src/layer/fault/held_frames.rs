//! Frames that are held until a later call.

use std::collections::VecDeque;

use crate::mbuf::Mbuf;
use crate::port::MacBytes;

/// A frame that is held, and when it is due.
#[derive(Debug)]
pub(super) struct HeldFrame {
    pub(super) mbuf: Mbuf,
    pub(super) dst: MacBytes,
    due_call: u64,
    due_frame: u64,
}

impl HeldFrame {
    /// Holds a frame until a buffer of the inner port is free.
    pub(super) fn until_room(mbuf: Mbuf, dst: MacBytes) -> Self {
        Self::until(mbuf, dst, 0, 0)
    }

    /// Holds a frame until the given call, or until `due_frame` frames were forwarded in total.
    pub(super) fn until(mbuf: Mbuf, dst: MacBytes, due_call: u64, due_frame: u64) -> Self {
        Self {
            mbuf,
            dst,
            due_call,
            due_frame,
        }
    }

    fn is_due(&self, call: u64, passed_frames: u64) -> bool {
        call >= self.due_call || passed_frames >= self.due_frame
    }
}

/// The held frames of one direction: at most as many as its pool has buffers.
#[derive(Debug)]
pub(super) struct HeldFrames {
    frames: VecDeque<HeldFrame>,
}

impl HeldFrames {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            frames: VecDeque::with_capacity(capacity),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn push(&mut self, held: HeldFrame) {
        self.frames.push_back(held);
    }

    /// Removes the frame that is held longest.
    pub(super) fn take_oldest(&mut self) -> Option<HeldFrame> {
        self.frames.pop_front()
    }

    /// Removes the due frame that is held longest.
    pub(super) fn take_due(&mut self, call: u64, passed_frames: u64) -> Option<HeldFrame> {
        let mut frames = self.frames.iter();
        let at = frames.position(|held| held.is_due(call, passed_frames))?;
        self.frames.remove(at)
    }
}
