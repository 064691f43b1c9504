//! Frames to send: a bounded queue of answers, and broadcasts that follow from the state.

use std::collections::VecDeque;

use fcvi_frame::fip::Vn2vnFrame;
use fcvi_frame::{EmitError, MacAddress};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};
use crate::rate_limiter::RateLimiter;

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Destination.
    pub dst: MacAddress,
    /// Contents.
    pub frame: Vn2vnFrame,
    /// Its length with padding, Ethernet header included.
    pub frame_bytes: usize,
}

impl Outbound {
    /// Writes the frame to the start of `out` and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        self.frame.emit(self.dst, self.frame_bytes, out)
    }
}

/// An answer to one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A probe reply.
    Probe(MacAddress),
    /// A claim response, and the length that its Ethernet payload is padded to.
    Claim(MacAddress, u16),
}

/// Frames that are due to all ports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Broadcasts {
    pub(super) probe: bool,
    pub(super) claim: bool,
    pub(super) beacon: bool,
}

/// Whose share of the answers is used.
#[derive(Debug)]
pub(super) enum Sender<'a> {
    /// A port that is not logged in.
    Other,
    /// A pinned neighbour, and its limiter.
    Pinned(&'a mut RateLimiter),
}

/// Queued answers, and their limits per second. A station that forges frames cannot use up the
/// answers to logged-in neighbours, nor by claims those to probes.
#[derive(Debug)]
pub(super) struct Answers {
    queued: VecDeque<Answer>,
    max: usize,
    max_per_s: u32,
    max_per_pinned_s: u32,
    limiter: RateLimiter,
    probes: RateLimiter,
}

impl Answers {
    pub(super) fn new(config: &Vn2vnConfig) -> Self {
        let max = config.max_answers.max(1);
        Self {
            queued: VecDeque::with_capacity(max),
            max,
            max_per_s: config.max_answers_per_s,
            max_per_pinned_s: config.max_answers_per_pinned_s,
            limiter: RateLimiter::default(),
            probes: RateLimiter::default(),
        }
    }

    /// Reports whether one more frame may be sent in answer to a port that is not logged in.
    pub(super) fn allow(&mut self, now_ns: u64, counters: &mut Vn2vnCounters) -> bool {
        let is_allowed = self.limiter.take(now_ns, self.max_per_s);
        if !is_allowed {
            counters.count(Vn2vnCounter::AnswersLimited);
        }
        is_allowed
    }

    /// Queues an answer, unless the same one is queued already.
    pub(super) fn push(
        &mut self,
        now_ns: u64,
        answer: Answer,
        sender: Sender<'_>,
        counters: &mut Vn2vnCounters,
    ) {
        if self.queued.contains(&answer) {
            return;
        }
        let (limiter, max_per_s, max) = match (sender, answer) {
            (Sender::Pinned(limiter), _) => (limiter, self.max_per_pinned_s, self.max),
            (Sender::Other, Answer::Probe(_)) => {
                (&mut self.probes, self.max_per_s, self.max.div_ceil(2))
            }
            (Sender::Other, Answer::Claim(..)) => {
                (&mut self.limiter, self.max_per_s, self.max.div_ceil(2))
            }
        };
        if self.queued.len() >= max {
            counters.count(Vn2vnCounter::AnswersFull);
        } else if limiter.take(now_ns, max_per_s) {
            self.queued.push_back(answer);
        } else {
            counters.count(Vn2vnCounter::AnswersLimited);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Answer> {
        self.queued.pop_front()
    }

    /// Drops queued answers, which would be sent under another N_Port_ID.
    pub(super) fn clear(&mut self) {
        self.queued.clear();
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queued.capacity()
    }
}
