//! Frames copied as they pass, for an operator who looks at them.
//!
//! The poller puts each frame that the filter lets through into a bounded ring; whoever has the
//! other end takes it out at leisure. What does not fit is counted and lost to the tap, never
//! waited for, and the poller wakes nobody. Buffers go round, so that nothing is allocated while
//! frames pass.

pub(crate) mod filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pmd_port::layer::pcapng::format::Direction;
use pmd_port::ring::{Consumer, Producer, spsc};
use pmd_port::{BURST, Mbuf, MbufBatch, Port};

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use filter::Filter;

/// What a frame in the ring costs beside its bytes, about.
const SLOT_BYTES: usize = 64;
/// Frames in the ring, at most.
const MAX_SLOTS: usize = 1 << 16;

/// A frame that passed.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Its first bytes.
    kept: Vec<u8>,
    /// How many it had.
    pub(crate) seen_bytes: u32,
    /// Which way it went.
    pub(crate) direction: Direction,
    /// When, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

impl Taken {
    /// The first bytes of the frame, as many as were to be kept.
    pub(crate) fn kept(&self) -> &[u8] {
        &self.kept
    }
}

/// What both ends know.
#[derive(Debug, Default)]
struct Shared {
    /// Frames for which there was no room. Relaxed: a count, written by the poller alone.
    dropped: AtomicU64,
    /// The poller's end is gone.
    over: AtomicBool,
}

/// What becomes of a frame that is about to be sent.
enum Staged {
    Unwanted,
    NoRoom,
    Kept(Taken),
}

/// The poller's end.
pub(crate) struct Tap {
    filled: Producer<Taken>,
    empty: Consumer<Taken>,
    /// Empty ones that came back unused.
    spare: Vec<Taken>,
    staged: Vec<Staged>,
    filter: Filter,
    longest_bytes: usize,
    shared: Arc<Shared>,
}

/// The end of whoever looks.
pub(crate) struct Taker {
    filled: Consumer<Taken>,
    empty: Producer<Taken>,
    shared: Arc<Shared>,
}

/// A tap for frames that fit the filter, `longest_bytes` of each, with room for about `room_bytes`.
pub(crate) fn tap(filter: Filter, longest_bytes: usize, room_bytes: usize) -> (Tap, Taker) {
    let slots = (room_bytes / (longest_bytes + SLOT_BYTES)).clamp(BURST, MAX_SLOTS);
    let (filled, to_take) = spsc(slots);
    let (mut back, empty) = spsc(slots);
    let mut fresh = (0..slots).map(|_| Taken {
        kept: Vec::with_capacity(longest_bytes),
        seen_bytes: 0,
        direction: Direction::Inbound,
        time_ns: 0,
    });
    back.push_batch(&mut fresh);
    let shared = Arc::new(Shared::default());
    let tap = Tap {
        filled,
        empty,
        spare: Vec::with_capacity(BURST),
        staged: Vec::with_capacity(BURST),
        filter,
        longest_bytes,
        shared: Arc::clone(&shared),
    };
    let taker = Taker {
        filled: to_take,
        empty: back,
        shared,
    };
    (tap, taker)
}

impl Tap {
    /// Is this taker its other end?
    pub(crate) fn is_of(&self, taker: &Taker) -> bool {
        Arc::ptr_eq(&self.shared, &taker.shared)
    }

    /// Takes down what came.
    #[cold]
    #[inline(never)]
    pub(crate) fn received(&mut self, frames: &MbufBatch) {
        let time_ns = now_ns();
        for mbuf in frames.iter() {
            let staged = self.stage(mbuf, Direction::Inbound, time_ns);
            self.settle(staged, true);
        }
    }

    /// Gives a batch to the port, and takes down what it takes.
    #[cold]
    #[inline(never)]
    pub(crate) fn send(&mut self, port: &mut dyn Port, batch: &mut MbufBatch) {
        let time_ns = now_ns();
        // What the port takes is gone, so it is copied before.
        let mut staged = core::mem::take(&mut self.staged);
        staged.extend(
            batch
                .iter()
                .map(|mbuf| self.stage(mbuf, Direction::Outbound, time_ns)),
        );
        let sent = port.tx_burst(batch);
        for (number, one) in staged.drain(..).enumerate() {
            self.settle(one, number < sent);
        }
        self.staged = staged;
    }

    fn stage(&mut self, mbuf: &Mbuf, direction: Direction, time_ns: u64) -> Staged {
        let bytes = mbuf.bytes();
        if !self.filter.fits(bytes, direction) {
            return Staged::Unwanted;
        }
        let Some(mut taken) = self.spare.pop().or_else(|| self.empty.pop()) else {
            return Staged::NoRoom;
        };
        taken.kept.clear();
        // As many as there is room for: nothing is allocated.
        taken
            .kept
            .extend(bytes.iter().take(self.longest_bytes).copied());
        taken.seen_bytes = bytes.len() as u32;
        taken.direction = direction;
        taken.time_ns = time_ns;
        Staged::Kept(taken)
    }

    fn settle(&mut self, staged: Staged, passed: bool) {
        match staged {
            // One that comes again will be looked at again.
            Staged::Kept(taken) if !passed => self.spare.push(taken),
            Staged::Kept(taken) => {
                if let Err(taken) = self.filled.push(taken) {
                    // There are no more buffers than places.
                    self.spare.push(taken);
                    self.count_dropped();
                }
            }
            Staged::NoRoom if passed => self.count_dropped(),
            Staged::NoRoom | Staged::Unwanted => {}
        }
    }

    fn count_dropped(&self) {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        self.shared.dropped.store(dropped + 1, Ordering::Relaxed);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Release: whoever sees it in `is_over` sees every frame before it, too.
        self.shared.over.store(true, Ordering::Release);
    }
}

impl Taker {
    /// Is the poller's end gone? Then what is in the ring is all that there will be.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: partner of the Release in the drop of the tap.
        self.shared.over.load(Ordering::Acquire)
    }

    /// Shows the oldest frame and gives its buffer back; `None` if there is none.
    pub(crate) fn take<R>(&mut self, show: impl FnOnce(&Taken) -> R) -> Option<R> {
        let taken = self.filled.pop()?;
        let shown = show(&taken);
        // There is a place for every buffer.
        let _back = self.empty.push(taken);
        Some(shown)
    }

    /// Frames for which there was no room so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
