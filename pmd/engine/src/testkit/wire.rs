//! Frames on their way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode;

use super::rng::Rng;

/// What goes wrong, in millionths of all frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) corrupt: u32,
    /// Late by up to `late_ns`, so that others overtake it.
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

/// The next `count` frames of this IU from this node are lost.
#[derive(Clone, Copy, Debug)]
struct Loss {
    from: usize,
    opcode: Option<Opcode>,
    count: u32,
}

/// When it arrives, its number, the node it goes to, the frame.
type Flying = (u64, u64, usize, Vec<u8>);

/// A wire with a delay, a trace of what went over it, and faults.
pub(crate) struct Wire {
    pub(crate) delay_ns: u64,
    pub(crate) faults: Faults,
    /// Nothing arrives.
    pub(crate) cut: bool,
    pub(crate) trace: Vec<Sent>,
    pub(crate) tracing: bool,
    losses: Vec<Loss>,
    flying: BinaryHeap<Reverse<Flying>>,
    sequence: u64,
    rng: Rng,
}

/// The IU of a frame; `None` for an ELS.
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
            flying: BinaryHeap::new(),
            sequence: 0,
            rng: Rng::new(seed),
        }
    }

    /// Loses the next `count` frames of this IU (`None`: ELS) from this node, whatever was
    /// asked before.
    pub(crate) fn lose(&mut self, from: usize, opcode: impl Into<Option<Opcode>>, count: u32) {
        let opcode = opcode.into();
        self.losses.retain(|l| (l.from, l.opcode) != (from, opcode));
        self.losses.push(Loss {
            from,
            opcode,
            count,
        });
    }

    /// No loss is left of those that were ordered.
    pub(crate) fn heal(&mut self) {
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

    /// A node gives a frame to the wire.
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

    /// Takes the frames that are on their way, in the order in which they were sent.
    pub(crate) fn take_flying(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut flying: Vec<Flying> = self.flying.drain().map(|Reverse(f)| f).collect();
        flying.sort_by_key(|(_, sequence, ..)| *sequence);
        let frames = flying.into_iter();
        frames.map(|(_, _, to, bytes)| (to, bytes)).collect()
    }

    /// A frame arrives, whoever sent it.
    pub(crate) fn inject(&mut self, at_ns: u64, to: usize, bytes: Vec<u8>) {
        self.sequence += 1;
        self.flying.push(Reverse((at_ns, self.sequence, to, bytes)));
    }

    /// When the next frame arrives.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.flying.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn arrived(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.flying
            .pop()
            .map(|Reverse((_, _, to, bytes))| (to, bytes))
    }
}
