//! Frames to send: a bounded queue of answers, and broadcasts that follow from the state.

use std::collections::VecDeque;

use fcvi_frame::fip::Vn2vnFrame;
use fcvi_frame::{EmitError, MacAddress};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};

const NS_PER_S: u64 = 1_000_000_000;

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

/// A limit of frames per second.
#[derive(Debug)]
pub(super) struct RateLimiter {
    per_s: u32,
    left: u32,
    second_ends_ns: u64,
}

impl RateLimiter {
    pub(super) fn new(per_s: u32) -> Self {
        Self {
            per_s,
            left: 0,
            second_ends_ns: 0,
        }
    }

    /// Reports whether one more may be sent; counts `limited` if not.
    pub(super) fn allow(
        &mut self,
        now_ns: u64,
        counters: &mut Vn2vnCounters,
        limited: Vn2vnCounter,
    ) -> bool {
        if now_ns >= self.second_ends_ns {
            self.left = self.per_s;
            self.second_ends_ns = now_ns.saturating_add(NS_PER_S);
        }
        let allowed = self.left > 0;
        if allowed {
            self.left -= 1;
        } else {
            counters.count(limited);
        }
        allowed
    }
}

/// Queued answers, and their limit per second.
#[derive(Debug)]
pub(super) struct Answers {
    queued: VecDeque<Answer>,
    max: usize,
    limiter: RateLimiter,
}

impl Answers {
    pub(super) fn new(config: &Vn2vnConfig) -> Self {
        let max = config.max_answers.max(1);
        Self {
            queued: VecDeque::with_capacity(max),
            max,
            limiter: RateLimiter::new(config.max_answers_per_s),
        }
    }

    /// Reports whether one more frame may be sent in answer to another port.
    pub(super) fn allow(&mut self, now_ns: u64, counters: &mut Vn2vnCounters) -> bool {
        let limited = Vn2vnCounter::AnswersLimited;
        self.limiter.allow(now_ns, counters, limited)
    }

    /// Queues an answer, unless the same one is queued already.
    pub(super) fn push(&mut self, now_ns: u64, answer: Answer, counters: &mut Vn2vnCounters) {
        if self.queued.contains(&answer) {
            return;
        }
        if self.queued.len() >= self.max {
            counters.count(Vn2vnCounter::AnswersFull);
        } else if self.allow(now_ns, counters) {
            self.queued.push_back(answer);
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
