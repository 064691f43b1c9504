//! Message numbers and credits that wrap, compared with counters that do not.

use std::collections::VecDeque;

use vitcp_lite::{Credits, Posted, is_after};

use crate::input::Input;

/// Checks the order of message numbers, and the flow control between two ends, or with a peer that
/// sends any values.
///
/// # Panics
/// If a count differs from the wide counters, or a sender is blocked forever.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    order(input.u32(), input.u32());
    if input.byte() & 1 == 0 {
        Flow::new(&mut input).run(&mut input);
    } else {
        arbitrary_peer(&mut input);
    }
}

fn order(a: u32, b: u32) {
    let ahead = (i64::from(a) - i64::from(b)).rem_euclid(1 << 32);
    assert_eq!(is_after(a, b), (1..1 << 31).contains(&ahead));
    assert!(!(is_after(a, b) && is_after(b, a)));
}

/// One direction of a connection: a sender with credits, a receiver that posts descriptors, and the
/// messages and advertisements in flight.
struct Flow {
    credits: Credits,
    posted: Posted,
    threshold: u64,
    /// Advertisements in flight to the sender: the word on the wire, and the wide count.
    advertisements: VecDeque<(u16, u64)>,
    /// Messages in flight to the receiver.
    messages: u64,
    /// Total numbers of descriptors posted, advertised and known to the sender, and of messages sent and received.
    total: u64,
    advertised: u64,
    known: u64,
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
        posted.note_advertised();
        let advertised = total.min(32767);
        assert_eq!(u64::from(first), advertised);
        Self {
            credits: Credits::new(first),
            posted,
            threshold: threshold.into(),
            advertisements: VecDeque::new(),
            messages: 0,
            total,
            advertised,
            known: advertised,
            sent: 0,
            received: 0,
        }
    }

    fn run(&mut self, input: &mut Input<'_>) {
        // Enough to wrap 16 bits several times, and fast enough for a fuzzer.
        let mut budget: u64 = 400_000;
        while !input.is_empty() {
            let step = input.byte();
            let count = u64::from(input.u16()).min(budget);
            budget -= count;
            match step % 6 {
                0 => self.post(count),
                1 => self.advertise(),
                2 => self.receive_advertisement(),
                3 => self.send(count),
                4 => self.receive(count),
                _ => self.post(count * 100),
            }
            self.check_counts();
        }
        self.run_until_idle();
    }

    fn post(&mut self, count: u64) {
        // A past count is ignored. One that is half the range ahead is indistinguishable from a past one.
        self.total += count;
        let behind = self.total.saturating_sub(5);
        self.posted.note(self.total as u32);
        self.posted.note(behind as u32);
    }

    fn advertise(&mut self) {
        self.advertised = self.advertised.max(self.total.min(self.received + 32767));
        // A word that is not sent is not advertised.
        let _unsent = self.posted.word();
        let word = self.posted.word();
        self.posted.note_advertised();
        assert_eq!(word, self.advertised as u16, "the advertised word");
        self.advertisements.push_back((word, self.advertised));
    }

    fn receive_advertisement(&mut self) {
        if let Some((word, advertised)) = self.advertisements.pop_front() {
            self.credits.note_posted(word);
            self.known = advertised;
        }
    }

    fn send(&mut self, count: u64) {
        for _ in 0..count {
            let has_credit = self.sent < self.known;
            assert_eq!(self.credits.use_one(), has_credit, "credits");
            if !has_credit {
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

    fn check_counts(&self) {
        assert_eq!(u64::from(self.credits.available()), self.known - self.sent);
        let more = self.total.min(self.received + 32767) > self.advertised;
        let is_low = self.advertised < self.received + self.threshold;
        assert_eq!(self.posted.wants_nop(), more && is_low, "a NOP is due");
    }

    /// Delivers everything and sends the required NOPs: then a sender has credits if descriptors are posted.
    fn run_until_idle(&mut self) {
        self.receive(self.messages);
        if self.posted.wants_nop() {
            self.advertise();
            assert!(!self.posted.wants_nop(), "one NOP is enough");
        }
        while !self.advertisements.is_empty() {
            self.receive_advertisement();
        }
        self.check_counts();
        if self.total > self.sent && self.threshold > 0 {
            assert!(
                self.credits.available() > 0,
                "the sender is blocked forever"
            );
        }
    }
}

/// Checks a peer that sends any advertisements, and uses descriptors that were not advertised.
fn arbitrary_peer(input: &mut Input<'_>) {
    let first = input.u16();
    let mut credits = Credits::new(first);
    let mut posted = Posted::new(input.u16());
    let (mut last, mut unused) = (first, u64::from(first));
    let mut total = 0;
    while !input.is_empty() {
        let (step, value) = (input.byte(), input.u16());
        match step % 4 {
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
