//! Frames that wait for their time.

use std::collections::VecDeque;

use crate::mbuf::Mbuf;
use crate::port::MacBytes;

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) mbuf: Mbuf,
    pub(super) dst: MacBytes,
    due_turn: u64,
    due_frame: u64,
}

impl Held {
    /// A frame that goes on as soon as there is room.
    pub(super) fn until_room(mbuf: Mbuf, dst: MacBytes) -> Self {
        Self::until(mbuf, dst, 0, 0)
    }

    /// A frame that goes on in a turn, or after so many frames have passed in all.
    pub(super) fn until(mbuf: Mbuf, dst: MacBytes, due_turn: u64, due_frame: u64) -> Self {
        Self {
            mbuf,
            dst,
            due_turn,
            due_frame,
        }
    }

    fn is_due(&self, turn: u64, passed_frames: u64) -> bool {
        turn >= self.due_turn || passed_frames >= self.due_frame
    }
}

/// The waiting frames of one side: no more than its pool has buffers.
#[derive(Debug)]
pub(super) struct HeldFrames {
    frames: VecDeque<Held>,
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

    pub(super) fn push(&mut self, held: Held) {
        self.frames.push_back(held);
    }

    /// Takes the frame that has waited longest.
    pub(super) fn take_oldest(&mut self) -> Option<Held> {
        self.frames.pop_front()
    }

    /// Takes the frame that has waited longest of those whose time has come.
    pub(super) fn take_due(&mut self, turn: u64, passed_frames: u64) -> Option<Held> {
        let mut frames = self.frames.iter();
        let at = frames.position(|held| held.is_due(turn, passed_frames))?;
        self.frames.remove(at)
    }
}
