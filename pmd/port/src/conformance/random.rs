//! Random operations in both directions, compared with a queue as the model.

use std::collections::VecDeque;

use super::Pair;
use super::frames::{Deadline, MIN_FRAME_BYTES, free_all, serial_of, write_frame};
use crate::mbuf::{BURST, Mbuf, MbufBatch};
use crate::port::{MacBytes, Port};
use crate::rng::Rng;

const OPERATIONS: usize = 20_000;
const SEEDS: [u64; 4] = [1, 0xFCF1, 0x8906, 0x0EFD_0000_0001];
const HELD_FRAMES_MAX: usize = 40;

/// One direction of a pair.
struct Flow {
    src: MacBytes,
    dst: MacBytes,
    lossless: bool,
    next_serial: u32,
    /// Written and not yet sent.
    unsent: MbufBatch,
    unsent_serials: VecDeque<u32>,
    /// Sent and not yet received.
    expected: VecDeque<u32>,
    /// Received and not yet freed.
    held: Vec<(u32, Mbuf)>,
}

impl Flow {
    fn new(from: &dyn Port, to: &dyn Port) -> Self {
        Self {
            src: from.capabilities().mac,
            dst: to.capabilities().mac,
            lossless: from.capabilities().lossless && to.capabilities().lossless,
            next_serial: 0,
            unsent: MbufBatch::new(),
            unsent_serials: VecDeque::new(),
            expected: VecDeque::new(),
            held: Vec::new(),
        }
    }

    fn write(&mut self, from: &mut dyn Port, rng: &mut Rng) {
        for _ in 0..=rng.below(8) {
            if self.unsent.room() == 0 {
                return;
            }
            let Some(mut mbuf) = from.alloc(self.dst) else {
                return;
            };
            let spread = mbuf.capacity().min(400) - MIN_FRAME_BYTES;
            let len_bytes = MIN_FRAME_BYTES + rng.below(spread as u32) as usize;
            write_frame(&mut mbuf, self.dst, self.src, self.next_serial, len_bytes);
            self.unsent.push(mbuf).expect("room was checked");
            self.unsent_serials.push_back(self.next_serial);
            self.next_serial += 1;
        }
    }

    fn transmit(&mut self, from: &mut dyn Port) {
        let taken = from.tx_burst(&mut self.unsent);
        self.expected.extend(self.unsent_serials.drain(..taken));
        assert_eq!(self.unsent.len(), self.unsent_serials.len());
    }

    fn free_one_unsent(&mut self, from: &mut dyn Port) {
        if let Some(mbuf) = self.unsent.pop() {
            self.unsent_serials.pop_front();
            from.free(mbuf);
        }
    }

    fn receive(&mut self, to: &mut dyn Port, max: usize) {
        let mut batch = MbufBatch::new();
        let added = to.rx_burst(&mut batch, max);
        assert!(added <= max && added == batch.len());
        while let Some(mbuf) = batch.pop() {
            let serial = serial_of(mbuf.bytes(), self.dst, self.src);
            let expected = if self.lossless {
                self.expected.pop_front()
            } else {
                let found = self.expected.iter().position(|&sent| sent == serial);
                let lost = found.expect("sent before, received once and in order");
                self.expected.drain(..=lost).next_back()
            };
            assert_eq!(expected, Some(serial));
            self.held.push((serial, mbuf));
        }
    }

    fn free_one_received(&mut self, to: &mut dyn Port, rng: &mut Rng) {
        if self.held.is_empty() {
            return;
        }
        let at = rng.below(self.held.len() as u32) as usize;
        let (serial, mbuf) = self.held.swap_remove(at);
        assert_eq!(serial_of(mbuf.bytes(), self.dst, self.src), serial);
        to.free(mbuf);
    }

    fn step(&mut self, from: &mut dyn Port, to: &mut dyn Port, rng: &mut Rng) {
        match rng.below(10) {
            0..=2 => self.write(from, rng),
            3..=4 => self.transmit(from),
            5 => self.free_one_unsent(from),
            6..=7 if self.held.len() < HELD_FRAMES_MAX => {
                self.receive(to, rng.below(12) as usize);
            }
            _ => (0..4).for_each(|_| self.free_one_received(to, rng)),
        }
    }

    fn finish(&mut self, from: &mut dyn Port, to: &mut dyn Port, rng: &mut Rng) {
        let deadline = Deadline::new("the last random frames");
        while !self.held.is_empty() {
            self.free_one_received(to, rng);
        }
        while !self.unsent.is_empty() || (self.lossless && !self.expected.is_empty()) {
            self.transmit(from);
            self.receive(to, BURST);
            while !self.held.is_empty() {
                self.free_one_received(to, rng);
            }
            deadline.check();
        }
        free_all(from, &mut self.unsent);
    }
}

pub(super) fn random_operations_match_queue_model(make: &mut dyn FnMut() -> Pair) {
    for seed in SEEDS {
        eprintln!("seed {seed:#x}");
        let mut rng = Rng::new(seed);
        let (mut a, mut b) = make();
        let mut a_to_b = Flow::new(&*a, &*b);
        let mut b_to_a = Flow::new(&*b, &*a);
        for _ in 0..OPERATIONS {
            a_to_b.step(&mut *a, &mut *b, &mut rng);
            b_to_a.step(&mut *b, &mut *a, &mut rng);
        }
        a_to_b.finish(&mut *a, &mut *b, &mut rng);
        b_to_a.finish(&mut *b, &mut *a, &mut rng);
        assert!(a_to_b.next_serial > 1_000 && b_to_a.next_serial > 1_000);
    }
}
