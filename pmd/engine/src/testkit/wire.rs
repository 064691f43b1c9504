//! Frames in transit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode;

use super::rng::Rng;

/// Fault rates, in parts per million of all frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) corrupt: u32,
    /// Delayed by up to `late_ns`, so that others overtake it.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
}

/// A frame that was given to the wire.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) from: usize,
    pub(crate) opcode: Option<Opcode>,
    pub(crate) bytes: Vec<u8>,
}

/// Loss of the next `count` frames of this IU from this node.
#[derive(Clone, Copy, Debug)]
struct Loss {
    from: usize,
    opcode: Option<Opcode>,
    count: u32,
}

/// Arrival time, sequence number, destination node, frame.
type InTransit = (u64, u64, usize, Vec<u8>);

/// A wire with a delay, a trace of its frames, and faults.
pub(crate) struct Wire {
    pub(crate) delay_ns: u64,
    pub(crate) faults: Faults,
    /// All frames are lost.
    pub(crate) cut: bool,
    pub(crate) trace: Vec<Sent>,
    pub(crate) tracing: bool,
    losses: Vec<Loss>,
    in_transit: BinaryHeap<Reverse<InTransit>>,
    sequence: u64,
    rng: Rng,
}

/// Returns the IU of a frame; `None` for an ELS.
pub(crate) fn opcode(bytes: &[u8]) -> Option<Opcode> {
    let frame = FrameView::parse(bytes).ok()?;
    frame.iu().ok().map(|iu| iu.header.opcode)
}

impl Wire {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            delay_ns: 1_000,
            faults: Faults::default(),
            cut: false,
            trace: Vec::new(),
            tracing: true,
            losses: Vec::new(),
            in_transit: BinaryHeap::new(),
            sequence: 0,
            rng: Rng::new(seed),
        }
    }

    /// Drops the next `count` frames of this IU (`None`: ELS) from this node; replaces an earlier
    /// order.
    pub(crate) fn lose(&mut self, from: usize, opcode: impl Into<Option<Opcode>>, count: u32) {
        let opcode = opcode.into();
        self.losses.retain(|l| (l.from, l.opcode) != (from, opcode));
        self.losses.push(Loss {
            from,
            opcode,
            count,
        });
    }

    /// Cancels all ordered losses.
    pub(crate) fn clear_losses(&mut self) {
        self.losses.clear();
    }

    fn is_lost(&mut self, from: usize, opcode: Option<Opcode>) -> bool {
        let loss = self
            .losses
            .iter_mut()
            .find(|l| l.from == from && l.opcode == opcode && l.count > 0);
        if let Some(loss) = loss {
            loss.count -= 1;
            return true;
        }
        self.cut || self.rng.chance(self.faults.loss)
    }

    /// Accepts a frame of a node.
    pub(crate) fn send(&mut self, now_ns: u64, from: usize, to: usize, bytes: Vec<u8>) {
        let opcode = opcode(&bytes);
        if self.tracing {
            self.trace.push(Sent {
                from,
                opcode,
                bytes: bytes.clone(),
            });
        }
        if self.is_lost(from, opcode) {
            return;
        }
        let copies = 1 + u32::from(self.rng.chance(self.faults.duplicate));
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if self.rng.chance(self.faults.corrupt) {
                let at = self.rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.below(8);
            }
            let mut at_ns = now_ns + self.delay_ns;
            if self.rng.chance(self.faults.late) {
                at_ns += self.rng.below(self.faults.late_ns);
            }
            self.inject(at_ns, to, bytes);
        }
    }

    /// Takes the frames in transit, in the order in which they were sent.
    pub(crate) fn take_in_transit(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut in_transit: Vec<InTransit> = self.in_transit.drain().map(|Reverse(f)| f).collect();
        in_transit.sort_by_key(|(_, sequence, ..)| *sequence);
        let frames = in_transit.into_iter();
        frames.map(|(_, _, to, bytes)| (to, bytes)).collect()
    }

    /// Adds a frame of any sender.
    pub(crate) fn inject(&mut self, at_ns: u64, to: usize, bytes: Vec<u8>) {
        self.sequence += 1;
        self.in_transit
            .push(Reverse((at_ns, self.sequence, to, bytes)));
    }

    /// Returns the arrival time of the next frame.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.in_transit.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn arrived(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.in_transit
            .pop()
            .map(|Reverse((_, _, to, bytes))| (to, bytes))
    }
}
