//! What a port has to send: a bounded list of answers, and what follows from its state.

use std::collections::VecDeque;

use fcvi_frame::fip::Vn2vnFrame;
use fcvi_frame::{EmitError, MacAddress};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};

const NS_PER_S: u64 = 1_000_000_000;

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Where to.
    pub dst: MacAddress,
    /// What.
    pub frame: Vn2vnFrame,
    /// Its length with padding, Ethernet header included.
    pub frame_bytes: usize,
}

impl Outbound {
    /// Writes the frame to the front of `out` and returns its length.
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
    /// A claim response, its Ethernet payload padded to this.
    Claim(MacAddress, u16),
}

/// What is to be sent to all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Broadcasts {
    pub(super) probe: bool,
    pub(super) claim: bool,
    pub(super) beacon: bool,
}

/// How many frames may still be sent within this second.
#[derive(Debug)]
pub(super) struct Budget {
    per_s: u32,
    left: u32,
    second_ends_ns: u64,
}

impl Budget {
    pub(super) fn new(per_s: u32) -> Self {
        Self {
            per_s,
            left: 0,
            second_ends_ns: 0,
        }
    }

    /// Whether one more may be sent; counted if not.
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

/// Answers that wait, and how many may still be given within this second.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<Answer>,
    max: usize,
    budget: Budget,
}

impl Answers {
    pub(super) fn new(config: &Vn2vnConfig) -> Self {
        let max = config.max_answers.max(1);
        Self {
            waiting: VecDeque::with_capacity(max),
            max,
            budget: Budget::new(config.max_answers_per_s),
        }
    }

    /// Whether one more frame may be sent because of what others send.
    pub(super) fn allow(&mut self, now_ns: u64, counters: &mut Vn2vnCounters) -> bool {
        let limited = Vn2vnCounter::AnswersLimited;
        self.budget.allow(now_ns, counters, limited)
    }

    /// Adds an answer; one that waits already is not given twice.
    pub(super) fn push(&mut self, now_ns: u64, answer: Answer, counters: &mut Vn2vnCounters) {
        if self.waiting.contains(&answer) {
            return;
        }
        if self.waiting.len() >= self.max {
            counters.count(Vn2vnCounter::AnswersFull);
        } else if self.allow(now_ns, counters) {
            self.waiting.push_back(answer);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Answer> {
        self.waiting.pop_front()
    }

    /// Forgets what waits: it would be said under another N_Port_ID.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.waiting.capacity()
    }
}
