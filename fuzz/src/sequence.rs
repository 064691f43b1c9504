//! Numbers that begin again at 0, beside numbers that do not.

use std::collections::VecDeque;

use vitcp_lite::{Credits, Posted, is_after};

use crate::input::Input;

/// Order of numbers; both ends of a connection; a peer that says what it likes.
///
/// # Panics
/// If a count is not that of the wide numbers, or a sender waits for ever.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    order(input.u32(), input.u32());
    if input.byte() & 1 == 0 {
        Flow::new(&mut input).run(&mut input);
    } else {
        any_words(&mut input);
    }
}

fn order(a: u32, b: u32) {
    let ahead = (i64::from(a) - i64::from(b)).rem_euclid(1 << 32);
    assert_eq!(is_after(a, b), (1..1 << 31).contains(&ahead));
    assert!(!(is_after(a, b) && is_after(b, a)));
}

/// One direction of a connection: a sender with credits, a receiver that posts, and what is on
/// its way between them.
struct Flow {
    credits: Credits,
    posted: Posted,
    threshold: u64,
    /// Words on their way to the sender, with what they stand for.
    words: VecDeque<(u16, u64)>,
    /// Messages on their way to the receiver.
    messages: u64,
    /// Posted, said, heard of by the sender, sent, received: since the beginning.
    total: u64,
    said: u64,
    heard: u64,
    sent: u64,
    received: u64,
}

impl Flow {
    fn new(input: &mut Input<'_>) -> Self {
        let threshold = input.u16();
        let mut posted = Posted::new(threshold);
        let total = u64::from(input.u16());
        posted.note(total as u32);
        let first = posted.word();
        posted.note_said();
        let said = total.min(32767);
        assert_eq!(u64::from(first), said);
        Self {
            credits: Credits::new(first),
            posted,
            threshold: threshold.into(),
            words: VecDeque::new(),
            messages: 0,
            total,
            said,
            heard: said,
            sent: 0,
            received: 0,
        }
    }

    fn run(&mut self, input: &mut Input<'_>) {
        // Enough for some turns of 16 bits, in a time that a fuzzer has.
        let mut budget: u64 = 400_000;
        while !input.is_empty() {
            let what = input.byte();
            let count = u64::from(input.u16()).min(budget);
            budget -= count;
            match what % 6 {
                0 => self.post(count),
                1 => self.say(),
                2 => self.hear(),
                3 => self.send(count),
                4 => self.receive(count),
                _ => self.post(count * 100),
            }
            self.compare();
        }
        self.settle();
    }

    fn post(&mut self, count: u64) {
        // A count that is half the range ahead cannot be told from one behind.
        self.total += count;
        let behind = self.total.saturating_sub(5);
        self.posted.note(self.total as u32);
        self.posted.note(behind as u32);
    }

    fn say(&mut self) {
        self.said = self.said.max(self.total.min(self.received + 32767));
        // One that is not sent was not said.
        let _unsent = self.posted.word();
        let word = self.posted.word();
        self.posted.note_said();
        assert_eq!(word, self.said as u16, "what is said");
        self.words.push_back((word, self.said));
    }

    fn hear(&mut self) {
        if let Some((word, said)) = self.words.pop_front() {
            self.credits.note_posted(word);
            self.heard = said;
        }
    }

    fn send(&mut self, count: u64) {
        for _ in 0..count {
            let may = self.sent < self.heard;
            assert_eq!(self.credits.use_one(), may, "credits");
            if !may {
                return;
            }
            self.sent += 1;
            self.messages += 1;
        }
    }

    fn receive(&mut self, count: u64) {
        for _ in 0..count.min(self.messages) {
            self.messages -= 1;
            self.received += 1;
            self.posted.use_one();
            assert!(self.received <= self.total, "a message without descriptor");
        }
    }

    fn compare(&self) {
        assert_eq!(u64::from(self.credits.available()), self.heard - self.sent);
        let more = self.total.min(self.received + 32767) > self.said;
        let is_low = self.said < self.received + self.threshold;
        assert_eq!(self.posted.wants_nop(), more && is_low, "a NOP is due");
    }

    /// Everything arrives, and NOPs are sent as they are due: who could send, may.
    fn settle(&mut self) {
        self.receive(self.messages);
        if self.posted.wants_nop() {
            self.say();
            assert!(!self.posted.wants_nop(), "one word says it all");
        }
        while !self.words.is_empty() {
            self.hear();
        }
        self.compare();
        if self.total > self.sent && self.threshold > 0 {
            assert!(self.credits.available() > 0, "the sender waits for ever");
        }
    }
}

/// A peer that says anything, and takes descriptors that it was not told of.
fn any_words(input: &mut Input<'_>) {
    let first = input.u16();
    let mut credits = Credits::new(first);
    let mut posted = Posted::new(input.u16());
    let (mut last, mut unused) = (first, u64::from(first));
    let mut total = 0;
    while !input.is_empty() {
        let (what, value) = (input.byte(), input.u16());
        match what % 4 {
            0 => {
                let ahead = (i64::from(value) - i64::from(last)).rem_euclid(65536);
                credits.note_posted(value);
                if (1..32768).contains(&ahead) {
                    last = value;
                    unused += ahead as u64;
                }
            }
            1 => {
                assert_eq!(credits.use_one(), unused > 0);
                unused = unused.saturating_sub(1);
            }
            2 => {
                total += u64::from(value % 50);
                posted.note(total as u32);
            }
            _ => (0..value % 50).for_each(|_| posted.use_one()),
        }
        assert_eq!(u64::from(credits.available()), unused.min(65535));
        assert!(u64::from(posted.word()) <= total, "more than is posted");
    }
}
