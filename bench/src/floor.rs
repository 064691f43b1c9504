//! What a datapath process cannot be faster than: the same work by bare threads on the same cores.
//!
//! Latency: a word that goes from one end to a relay on the process's core, from there to the
//! other end, and back the same way, each hop a cache line of its own. Bandwidth: the relay's
//! core copies the messages from one buffer to another.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::channel::Seen;
use crate::cli::{Cores, Ends};
use crate::error::{Error, Result};
use crate::latency::{Limit, Pinged};
use crate::nic::Choice;
use crate::output;
use crate::plan::Test;
use crate::process::pin;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Looks without news before an end that shares its core offers it to the other one.
const LOOKS: u32 = 16;

/// A word on a cache line that nothing else is on, nor its neighbour.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Line(pub(crate) AtomicU64);

/// The cores of a run through a datapath process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) ends: Cores,
    /// The process's.
    pub(crate) relay: usize,
}

/// The hops of a word, and whether the round is over.
#[derive(Default)]
struct Way {
    to_relay: Line,
    to_far: Line,
    from_far: Line,
    to_near: Line,
    is_over: AtomicBool,
}

impl Way {
    fn relay(&self) {
        let (mut there, mut back) = (0, 0);
        while !self.is_over.load(Ordering::Relaxed) {
            let word = self.to_relay.0.load(Ordering::Acquire);
            if word != there {
                there = word;
                pass(&self.to_far, word);
            }
            let word = self.from_far.0.load(Ordering::Acquire);
            if word != back {
                back = word;
                pass(&self.to_near, word);
            }
        }
    }
}

/// Waits for another word than this; none if the round is over.
#[inline]
pub(crate) fn next(line: &Line, last: u64, is_over: &AtomicBool, gives_way: bool) -> Option<u64> {
    let mut looks = 0;
    loop {
        // Acquire: partner of the Release in `pass`.
        let word = line.0.load(Ordering::Acquire);
        if word != last {
            return Some(word);
        }
        looks += 1;
        if looks == LOOKS {
            looks = 0;
            // Relaxed: the flag carries no data.
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            if gives_way {
                thread::yield_now();
            }
        }
        spin_loop();
    }
}

/// Gives the other end its next word.
#[inline]
pub(crate) fn pass(line: &Line, word: u64) {
    // Release: partner of the Acquire loads of who waits.
    line.0.store(word, Ordering::Release);
}

/// Ends the round on every way out of it: the other threads wait for that.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Floor {
    /// That of a run, if it is one through a datapath process, whose ends are both here and which
    /// leaves its core to others while it has nothing to do.
    pub(crate) fn of_run(ends: &Ends, choice: &Choice, cores: Option<Cores>) -> Option<Self> {
        let relay = choice.process_core()?;
        let cores = cores.filter(|_| ends.connect.is_none())?;
        if choice.process_spins() {
            output::note(format_args!(
                "no control: the datapath process spins on core {relay}; with idle = \"hybrid\" it would leave it for that"
            ));
            return None;
        }
        Some(Self { ends: cores, relay })
    }

    /// Sends words and measures how long each takes to come back.
    pub(crate) fn ping(
        &self,
        limit: &Limit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<Pinged> {
        let way = Way::default();
        let shares = self.ends.near == self.ends.far;
        thread::scope(|scope| {
            let over = Over(&way.is_over);
            let relay = scope.spawn(|| pin(self.relay).map(|()| way.relay()));
            let far = scope.spawn(|| {
                pin(self.ends.far)?;
                let mut last = 0;
                while let Some(word) = next(&way.to_far, last, &way.is_over, shares) {
                    last = word;
                    pass(&way.from_far, word);
                }
                Ok(())
            });
            let mut pinged = Pinged::default();
            let start = Instant::now();
            let mut before = start;
            while !limit.is_over(before - start, pinged.round_trips)
                && !relay.is_finished()
                && !far.is_finished()
            {
                pass(&way.to_relay, pinged.round_trips + 1);
                if next(&way.to_near, pinged.round_trips, &way.is_over, shares).is_none() {
                    break;
                }
                let now = Instant::now();
                round_trips_ns.saturating_record((now - before).as_nanos() as u64);
                pinged.round_trips += 1;
                before = now;
            }
            pinged.elapsed = before - start;
            drop(over);
            for thread in [relay, far] {
                let ended = thread.join();
                ended.map_err(|_| Error::Port("a thread of the control panicked".into()))??;
            }
            Ok(pinged)
        })
    }

    /// Copies messages until the limit.
    pub(crate) fn copy(&self, test: &Test, limit: &Limit) -> Result<Seen> {
        let message_bytes = test.size_bytes as usize;
        let mut buffers = [1_u8, 2].map(|fill| vec![fill; message_bytes * test.buffers() as usize]);
        let run = || {
            pin(self.relay)?;
            let [from, to] = &mut buffers;
            let start = Instant::now();
            let mut copied = 0;
            let mut elapsed = Duration::ZERO;
            while !limit.is_over(elapsed, copied) {
                let pieces = from.chunks_exact(message_bytes);
                for (from, to) in pieces.zip(to.chunks_exact_mut(message_bytes)) {
                    to.copy_from_slice(from);
                    copied += 1;
                }
                elapsed = start.elapsed();
            }
            Ok(Seen {
                delivered: copied,
                timed: copied,
                elapsed_ns: elapsed.as_nanos() as u64,
                broken: None,
            })
        };
        let copied = thread::scope(|scope| scope.spawn(run).join());
        copied.map_err(|_| Error::Port("a thread of the control panicked".into()))?
    }
}
