//! Tests of both ends of a ring against a model, and against contents that no producer writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

use proptest::prelude::*;

use super::config::ShmConfig;
use super::layout::{Geometry, MAX_FRAME_BYTES, flag_word};
use super::rx_ring::{Polled, RxRing};
use super::slots::Slots;
use super::tx_ring::{Returned, TxRing};
use crate::mbuf::Mbuf;
use crate::sync::mapped::Ordering;

const SLOTS: u32 = 8;
const SENDER: usize = 1;

/// The file of a station, and mappings of one of its rings.
struct Memory {
    file: File,
    geometry: Geometry,
}

impl Memory {
    fn new() -> Self {
        let geometry = Geometry::of(&ShmConfig {
            slots_per_ring: SLOTS,
            max_stations: 2,
            ..ShmConfig::default()
        });
        // SAFETY: the name is NUL-terminated; the call touches no other memory.
        let fd = unsafe { libc::memfd_create(c"ring-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(geometry.station_bytes())
            .expect("a memory file can grow");
        Self { file, geometry }
    }

    fn slots(&self) -> Slots {
        Slots::map(&self.file, &self.geometry, SENDER).expect("a ring")
    }

    fn tx(&self) -> TxRing {
        TxRing::take_over(self.slots(), 0)
    }

    fn rx(&self) -> RxRing {
        RxRing::new(self.slots())
    }
}

fn position(mbuf: &Mbuf) -> u32 {
    mbuf.cookie()
}

fn send(tx: &mut TxRing, value: u8) -> bool {
    let Some(mut mbuf) = tx.lend(0) else {
        return false;
    };
    mbuf.buffer_mut()[0] = value;
    assert!(tx.send(position(&mbuf), 1));
    true
}

fn frame(rx: &mut RxRing) -> Option<Mbuf> {
    match rx.poll(0) {
        Polled::Frame(mbuf) => Some(mbuf),
        Polled::Empty => None,
        other => panic!("{other:?}"),
    }
}

fn receive(rx: &mut RxRing) -> Option<u8> {
    let mbuf = frame(rx)?;
    let value = mbuf.bytes()[0];
    assert!(rx.give_back(position(&mbuf)));
    Some(value)
}

#[derive(Clone, Debug)]
enum Step {
    Lend,
    Send(usize),
    Unlend(usize),
    Poll,
    GiveBack(usize),
    FlushHead,
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Lend),
        4 => any::<usize>().prop_map(Step::Send),
        1 => any::<usize>().prop_map(Step::Unlend),
        4 => Just(Step::Poll),
        3 => any::<usize>().prop_map(Step::GiveBack),
        1 => Just(Step::FlushHead),
        1 => Just(Step::TakeOver),
    ]
}

/// Contents of a slot in the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Lent,
    Frame(u8),
    Void,
}

/// A model of a ring: slots from the first lent to the last,
/// of which the consumer sees those before the first that is lent.
#[derive(Default)]
struct Model {
    first: u32,
    slots: VecDeque<Slot>,
}

impl Model {
    fn set(&mut self, position: u32, slot: Slot) {
        self.slots[(position - self.first) as usize] = slot;
    }

    fn poll(&mut self) -> Option<Slot> {
        match self.slots.front() {
            None | Some(Slot::Lent) => None,
            Some(_) => {
                self.first += 1;
                self.slots.pop_front()
            }
        }
    }
}

fn run(steps: Vec<Step>) {
    let memory = Memory::new();
    let (mut tx, mut rx) = (memory.tx(), memory.rx());
    let mut model = Model::default();
    let mut loans: Vec<Mbuf> = Vec::new();
    let mut held: Vec<(Mbuf, u8)> = Vec::new();
    let mut value = 0u8;
    for step in steps {
        match step {
            Step::Lend => {
                let end = model.first + model.slots.len() as u32;
                let oldest = held.iter().map(|(mbuf, _)| position(mbuf)).min();
                let in_use = end - oldest.unwrap_or(model.first);
                match tx.lend(0) {
                    Some(mbuf) => {
                        assert_eq!(position(&mbuf), end);
                        assert!(in_use < SLOTS, "a slot in use was lent");
                        model.slots.push_back(Slot::Lent);
                        loans.push(mbuf);
                    }
                    // Fewer released slots than a quarter may be unpublished.
                    None => assert!(in_use + SLOTS / 4 > SLOTS, "{in_use} slots in use"),
                }
            }
            Step::Send(at) if !loans.is_empty() => {
                let mut mbuf = loans.remove(at % loans.len());
                value = value.wrapping_add(1);
                mbuf.buffer_mut()[..3].fill(value);
                assert!(tx.send(position(&mbuf), 3));
                model.set(position(&mbuf), Slot::Frame(value));
            }
            Step::Unlend(at) if !loans.is_empty() => {
                let mbuf = loans.remove(at % loans.len());
                match tx.unlend(position(&mbuf)) {
                    Returned::Unlent => assert_eq!(model.slots.pop_back(), Some(Slot::Lent)),
                    Returned::Voided => model.set(position(&mbuf), Slot::Void),
                    Returned::Foreign => panic!("a loan was not known"),
                }
            }
            Step::Poll => match (rx.poll(0), model.poll()) {
                (Polled::Frame(mbuf), Some(Slot::Frame(value))) => {
                    assert_eq!(mbuf.bytes(), [value; 3]);
                    held.push((mbuf, value));
                }
                (Polled::Void, Some(Slot::Void)) | (Polled::Empty, None) => {}
                other => panic!("{other:?}"),
            },
            Step::GiveBack(at) if !held.is_empty() => {
                let (mbuf, value) = held.remove(at % held.len());
                assert_eq!(mbuf.bytes(), [value; 3], "overwritten while lent");
                assert!(rx.give_back(position(&mbuf)));
                assert!(!rx.give_back(position(&mbuf)), "given back twice");
            }
            Step::FlushHead => rx.flush_head(),
            Step::TakeOver => {
                // The producer ends with its lent slots, and with the ones returned after them.
                loans.clear();
                let lent = model.slots.iter().position(|slot| *slot == Slot::Lent);
                model.slots.truncate(lent.unwrap_or(model.slots.len()));
                tx = memory.tx();
            }
            Step::Send(_) | Step::Unlend(_) | Step::GiveBack(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Frames arrive in the order of lending, no slot is lent twice, and a new
    /// producer resumes where the last one stopped.
    #[test]
    fn ring_matches_the_model(steps in prop::collection::vec(step(), 1..400)) {
        run(steps);
    }

    /// No contents of the flags or the head make either end panic,
    /// lend a slot twice or loop.
    #[test]
    fn corrupt_ring_contents_are_tolerated(
        words in prop::collection::vec((0u64..16, any::<u64>(), any::<bool>()), 1..60),
        heads in prop::collection::vec(any::<u64>(), 1..10),
    ) {
        let memory = Memory::new();
        let corrupted = memory.slots();
        let (mut tx, mut rx) = (memory.tx(), memory.rx());
        for (at, word, plausible) in words {
            // Half of them with the number that the consumer expects.
            let word = if plausible { flag_word(at, word as u32 >> 16) } else { word };
            corrupted.flag(at).store(word, Ordering::Release);
            corrupted.head().store(heads[at as usize % heads.len()], Ordering::Release);
            let mut held = Vec::new();
            for _ in 0..3 * SLOTS {
                if let Polled::Frame(mbuf) = rx.poll(0) {
                    prop_assert!(mbuf.len() <= MAX_FRAME_BYTES);
                    held.push(mbuf);
                }
            }
            prop_assert!(held.len() <= SLOTS as usize);
            let mut addresses: Vec<_> = held.iter().map(|mbuf| mbuf.bytes().as_ptr()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), held.len(), "a slot lent twice");
            held.drain(..).for_each(|mbuf| assert!(rx.give_back(position(&mbuf))));
            let loans: Vec<_> = std::iter::from_fn(|| tx.lend(0)).collect();
            prop_assert!(loans.len() <= SLOTS as usize);
            for mbuf in loans.iter().rev() {
                prop_assert!(tx.unlend(position(mbuf)) != Returned::Foreign);
            }
            tx = memory.tx();
        }
    }
}

#[test]
fn every_slot_of_every_lap_carries_its_frame() {
    let memory = Memory::new();
    let (mut tx, mut rx) = (memory.tx(), memory.rx());
    for lap in 0..50u8 {
        for value in 0..SLOTS as u8 {
            assert!(send(&mut tx, lap.wrapping_mul(3) ^ value));
        }
        assert!(!send(&mut tx, 0), "the ring is full");
        for value in 0..SLOTS as u8 {
            assert_eq!(receive(&mut rx), Some(lap.wrapping_mul(3) ^ value));
        }
        assert_eq!(receive(&mut rx), None);
    }
}

#[test]
fn head_is_published_every_quarter_and_on_flush() {
    let memory = Memory::new();
    let (mut tx, mut rx) = (memory.tx(), memory.rx());
    let slots = memory.slots();
    let head = || slots.head().load(Ordering::Acquire);
    for value in 0..3 {
        assert!(send(&mut tx, value));
    }
    assert_eq!(receive(&mut rx), Some(0));
    assert_eq!(head(), 0);
    assert_eq!(receive(&mut rx), Some(1));
    assert_eq!(head(), 2, "a quarter of eight");
    assert_eq!(receive(&mut rx), Some(2));
    assert_eq!(head(), 2);
    rx.flush_head();
    assert_eq!(head(), 3);
}

#[test]
fn slots_returned_early_wait_for_the_oldest() {
    let memory = Memory::new();
    let (mut tx, mut rx) = (memory.tx(), memory.rx());
    while send(&mut tx, 1) {}
    let held: Vec<_> = std::iter::from_fn(|| frame(&mut rx)).collect();
    assert_eq!(held.len(), SLOTS as usize);
    for mbuf in held.iter().skip(1).rev() {
        assert!(rx.give_back(position(mbuf)));
    }
    rx.flush_head();
    assert!(!send(&mut tx, 2), "the oldest is still lent");
    assert!(rx.give_back(position(&held[0])));
    for _ in 0..SLOTS {
        assert!(send(&mut tx, 2));
    }
}

#[test]
fn new_producer_resumes_after_the_last_published_slot() {
    let memory = Memory::new();
    let mut rx = memory.rx();
    let mut first = memory.tx();
    assert!(send(&mut first, 1) && send(&mut first, 2));
    let mut half_written = first.lend(0).expect("room");
    half_written.buffer_mut().fill(0xee);
    let mut second = memory.tx();
    assert!(send(&mut second, 3));
    let received: Vec<_> = std::iter::from_fn(|| receive(&mut rx)).collect();
    assert_eq!(received, [1, 2, 3]);
    while send(&mut second, 4) {}
    let mut third = memory.tx();
    assert!(!send(&mut third, 5), "a full ring is taken over as full");
}

#[test]
fn invalid_lengths_are_skipped_and_their_slots_reused() {
    let memory = Memory::new();
    let (mut tx, mut rx) = (memory.tx(), memory.rx());
    let corrupted = memory.slots();
    for (at, len_bytes) in [MAX_FRAME_BYTES as u32 + 1, u32::MAX]
        .into_iter()
        .enumerate()
    {
        assert!(send(&mut tx, 9));
        let flag = corrupted.flag(at as u64);
        flag.store(flag_word(at as u64, len_bytes), Ordering::Release);
        assert!(matches!(rx.poll(0), Polled::BadLength));
    }
    for value in 0..2 * SLOTS as u8 {
        assert!(send(&mut tx, value));
        assert_eq!(receive(&mut rx), Some(value));
        rx.flush_head();
    }
}

#[test]
fn ring_beyond_the_end_of_the_file_is_rejected() {
    let memory = Memory::new();
    memory.file.set_len(4096).expect("a shorter file");
    let error = Slots::map(&memory.file, &memory.geometry, SENDER).expect_err("too short");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
