use pmd_port::loopback::{LoopbackConfig, LoopbackPort};

use super::*;

const FRAME_BYTES: usize = 100;

fn everything() -> Filter {
    Filter::parse("").unwrap()
}

/// Frames to the other port; each is filled with its number.
fn frames(
    port: &mut LoopbackPort,
    other: &LoopbackPort,
    numbers: core::ops::Range<u8>,
) -> MbufBatch {
    let mut batch = MbufBatch::new();
    for number in numbers {
        let mac = other.capabilities().mac;
        let mut mbuf = port.alloc(mac).unwrap();
        mbuf.buffer_mut()[..FRAME_BYTES].fill(number);
        mbuf.buffer_mut()[..6].copy_from_slice(&mac);
        mbuf.set_len(FRAME_BYTES);
        batch.push(mbuf).unwrap();
    }
    batch
}

fn numbers(taker: &mut Taker) -> Vec<u8> {
    core::iter::from_fn(|| taker.take(|taken| *taken.kept().last().unwrap())).collect()
}

#[test]
fn frames_are_taken_down_both_ways_and_cut() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut taker) = tap(everything(), 60, 1 << 20);
    let mut batch = frames(&mut left, &right, 1..4);
    tap.send(&mut left, &mut batch);
    assert!(batch.is_empty(), "the port took them");
    for number in 1..4 {
        let seen = taker.take(|taken| {
            assert_eq!(taken.kept().len(), 60);
            assert_eq!(taken.direction, Direction::Outbound);
            (taken.seen_bytes, taken.kept()[59])
        });
        assert_eq!(seen, Some((FRAME_BYTES as u32, number)));
    }
    assert!(taker.take(|_| ()).is_none());
    let mut came = MbufBatch::new();
    assert_eq!(right.rx_burst(&mut came, BURST), 3);
    tap.received(&came);
    let ways: Vec<_> = core::iter::from_fn(|| taker.take(|taken| taken.direction)).collect();
    assert_eq!(ways, [Direction::Inbound; 3]);
    while let Some(mbuf) = came.pop() {
        right.free(mbuf);
    }
    assert_eq!(taker.dropped(), 0);
    assert!(!taker.is_over());
    drop(tap);
    assert!(taker.is_over());
}

#[test]
fn what_does_not_fit_is_dropped_and_counted_and_passes_all_the_same() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut taker) = tap(everything(), FRAME_BYTES, 0);
    let mut passed = 0;
    for round in 0..3u8 {
        let mut batch = frames(&mut left, &right, 20 * round..20 * round + 20);
        tap.send(&mut left, &mut batch);
        let mut came = MbufBatch::new();
        passed += right.rx_burst(&mut came, BURST);
        while let Some(mbuf) = came.pop() {
            right.free(mbuf);
        }
    }
    assert_eq!(passed, 60);
    assert_eq!(numbers(&mut taker), (0..BURST as u8).collect::<Vec<_>>());
    assert_eq!(taker.dropped(), 60 - BURST as u64);
    // There is room again, as often as one likes.
    for _ in 0..10 {
        let mut batch = frames(&mut left, &right, 0..32);
        tap.send(&mut left, &mut batch);
        assert_eq!(numbers(&mut taker).len(), 32);
        let mut came = MbufBatch::new();
        right.rx_burst(&mut came, BURST);
        while let Some(mbuf) = came.pop() {
            right.free(mbuf);
        }
    }
    assert_eq!(taker.dropped(), 60 - BURST as u64);
}

#[test]
fn a_frame_that_the_port_does_not_take_was_not_sent() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut taker) = tap(everything(), FRAME_BYTES, 0);
    let mut port = Reluctant {
        port: &mut left,
        takes: 1,
    };
    let mut batch = frames(port.port, &right, 0..4);
    tap.send(&mut port, &mut batch);
    assert_eq!((batch.len(), numbers(&mut taker)), (3, vec![0]));
    port.takes = 8;
    tap.send(&mut port, &mut batch);
    assert_eq!((batch.len(), numbers(&mut taker)), (0, vec![1, 2, 3]));
    let mut came = MbufBatch::new();
    assert_eq!(right.rx_burst(&mut came, BURST), 4);
    while let Some(mbuf) = came.pop() {
        right.free(mbuf);
    }
    assert_eq!(taker.dropped(), 0);
}

/// A port that takes so many frames of a burst.
struct Reluctant<'a> {
    port: &'a mut LoopbackPort,
    takes: usize,
}

impl Port for Reluctant<'_> {
    fn capabilities(&self) -> &pmd_port::Capabilities {
        self.port.capabilities()
    }

    fn alloc(&mut self, dst: pmd_port::MacBytes) -> Option<Mbuf> {
        self.port.alloc(dst)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut some = MbufBatch::new();
        while some.len() < self.takes
            && let Some(mbuf) = batch.pop()
        {
            some.push(mbuf).unwrap();
        }
        self.port.tx_burst(&mut some)
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        self.port.rx_burst(batch, max)
    }

    fn free(&mut self, mbuf: Mbuf) {
        self.port.free(mbuf);
    }

    fn events(&mut self, out: &mut Vec<pmd_port::PortEvent>) -> bool {
        self.port.events(out)
    }

    fn arm(&mut self) -> pmd_port::WakeSource {
        self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn stats(&self) -> pmd_port::PortStats {
        self.port.stats()
    }
}

#[test]
fn only_frames_that_fit_use_room() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut taker) = tap(Filter::parse("in").unwrap(), FRAME_BYTES, 0);
    for _ in 0..3 {
        let mut batch = frames(&mut left, &right, 0..20);
        tap.send(&mut left, &mut batch);
        let mut came = MbufBatch::new();
        right.rx_burst(&mut came, BURST);
        while let Some(mbuf) = came.pop() {
            right.free(mbuf);
        }
    }
    assert!(taker.take(|_| ()).is_none());
    assert_eq!(taker.dropped(), 0);
}
