//! A thread: serves its slots and completion queues in random order until the run is over.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use e2e::sync::{AtomicBool, AtomicU64, Ordering};
use vipl::{CompletionQueue, CqEntry, Timeout, VipError};

use crate::Failure;
use crate::control::{Common, Control};
use crate::pattern::Rng;
use crate::plan::Reaping;
use crate::slot::{Slot, lock};

/// Steps of one duty in a row, at most.
const BATCH: u32 = 8;
/// The longest wait on one queue: others are waiting too.
const LONGEST_WAIT_US: u64 = 500;
/// The longest time in which a thread makes no call at all.
const LONGEST_PAUSE_US: u64 = 4000;

/// What a thread does for a slot that it does not own, or for its own.
pub(crate) struct Duties {
    pub(crate) slot: Arc<Slot>,
    pub(crate) posts: bool,
    pub(crate) reaps: bool,
}

/// A thread's share of the work.
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) controls: Vec<Control>,
    pub(crate) duties: Vec<Duties>,
    pub(crate) cqs: Vec<CompletionQueue>,
    pub(crate) rng: Rng,
    /// Counts this thread's rounds, for whoever watches.
    pub(crate) rounds: Arc<AtomicU64>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Worker {
    /// Works until it is told to stop; gives the slots back that it owns.
    pub(crate) fn run(mut self) -> Result<(Vec<Control>, Rng), Failure> {
        while !self.stop.load(Ordering::SeqCst) {
            self.round()?;
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok((self.controls, self.rng))
    }

    fn round(&mut self) -> Result<(), Failure> {
        let first = self.rng.below(self.duties.len() as u64) as usize;
        for number in 0..self.duties.len() {
            let at = (first + number) % self.duties.len();
            serve(&self.duties[at], &self.common, &mut self.rng)?;
            if number % 4 == 0 {
                self.serve_cqs()?;
            }
        }
        for control in &mut self.controls {
            control.step(&self.common, &mut self.rng)?;
        }
        if self.rng.chance(20) {
            // Part of the load: a program that computes makes no calls.
            thread::park_timeout(Duration::from_micros(self.rng.below(LONGEST_PAUSE_US)));
        }
        Ok(())
    }

    fn serve_cqs(&mut self) -> Result<(), Failure> {
        for cq in &self.cqs {
            for _ in 0..BATCH {
                let wait = self.rng.chance(10).then(|| random_wait(&mut self.rng));
                if !serve_cq(cq, wait, &self.common, &mut self.rng)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn random_wait(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.below(LONGEST_WAIT_US))
}

fn serve(duties: &Duties, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
    let slot = &duties.slot;
    if duties.posts {
        for _ in 0..BATCH {
            let posted_receive = lock(&slot.receive_post).step(slot)?;
            let posted_send = lock(&slot.send_post).step(slot, rng)?;
            if !posted_receive && !posted_send {
                break;
            }
        }
    }
    if duties.reaps {
        let wait_for = |reaping, rng: &mut Rng| {
            let is_up = slot.shared.is_up.load(Ordering::SeqCst);
            (reaping == Reaping::Wait && is_up && rng.chance(50)).then(|| random_wait(rng))
        };
        for _ in 0..BATCH {
            if slot.shape.send_reaping == Reaping::Queue {
                break;
            }
            let wait = wait_for(slot.shape.send_reaping, rng);
            if !lock(&slot.send_reap).step(slot, &common.place, wait, rng)? {
                break;
            }
        }
        for _ in 0..BATCH {
            if slot.shape.receive_reaping == Reaping::Queue {
                break;
            }
            let wait = wait_for(slot.shape.receive_reaping, rng);
            if !lock(&slot.receive_reap).step(slot, &common.place, wait, rng)? {
                break;
            }
        }
    }
    Ok(())
}

/// Takes an entry and the completion that it stands for. False if there is none in time.
pub(crate) fn serve_cq(
    cq: &CompletionQueue,
    wait: Option<Duration>,
    common: &Common,
    rng: &mut Rng,
) -> Result<bool, Failure> {
    let found = match wait {
        Some(limit) => cq.wait(Timeout::After(limit)),
        None => cq.done(),
    };
    let entry = match found {
        Ok(entry) => entry,
        Err(VipError::NotDone | VipError::Timeout) => return Ok(false),
        Err(error) => return Err(format!("a completion queue: {error}").into()),
    };
    if !reap(entry, common, rng)? {
        // Whoever ends a connection takes completions past the queue.
        let idle = common.idle_entries.fetch_add(1, Ordering::SeqCst) + 1;
        let taken = common.taken_past_cqs.load(Ordering::SeqCst);
        if idle > taken {
            return Err(format!(
                "{entry:?} was told, but nothing has completed there: {idle} entries stood for \
                 nothing, {taken} completions were taken without"
            )
            .into());
        }
    }
    Ok(true)
}

fn reap(entry: CqEntry, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
    let Some(slot) = lock(&common.directory).get(&entry.vi).cloned() else {
        return Ok(false);
    };
    if entry.recv_queue {
        let mut duty = lock(&slot.receive_reap);
        Ok(duty.vi.handle() == entry.vi && duty.step(&slot, &common.place, None, rng)?)
    } else {
        let mut duty = lock(&slot.send_reap);
        Ok(duty.vi.handle() == entry.vi && duty.step(&slot, &common.place, None, rng)?)
    }
}
