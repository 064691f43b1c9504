//! A thread that serves its slots and completion queues in random order until the end of the run.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use e2e::sync::{AtomicBool, AtomicU64, Ordering};
use vipl::{CompletionQueue, CqEntry, Timeout, VipError};

use crate::control::{Common, Control};
use crate::pattern::Rng;
use crate::plan::CompletionMode;
use crate::slot::{Slot, lock};
use e2e::failure::Failure;

/// Maximum number of consecutive steps of one task.
const BATCH: u32 = 8;
/// Maximum wait on one queue, during which the other queues of the thread are not served.
const LONGEST_WAIT_US: u64 = 500;
/// Maximum pause of a thread between calls.
const LONGEST_PAUSE_US: u64 = 4000;

/// The tasks of a thread for one slot.
pub(crate) struct SlotTasks {
    pub(crate) slot: Arc<Slot>,
    pub(crate) posts: bool,
    pub(crate) reaps: bool,
}

/// The state of one thread.
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) controls: Vec<Control>,
    pub(crate) tasks: Vec<SlotTasks>,
    pub(crate) cqs: Vec<CompletionQueue>,
    pub(crate) rng: Rng,
    /// Number of completed rounds, for the stall check.
    pub(crate) rounds: Arc<AtomicU64>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Worker {
    /// Runs until `stop` is set; returns the slots of this thread.
    pub(crate) fn run(mut self) -> Result<(Vec<Control>, Rng), Failure> {
        while !self.stop.load(Ordering::SeqCst) {
            self.round()?;
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok((self.controls, self.rng))
    }

    fn round(&mut self) -> Result<(), Failure> {
        let first = self.rng.below(self.tasks.len() as u64) as usize;
        for number in 0..self.tasks.len() {
            let at = (first + number) % self.tasks.len();
            serve(&self.tasks[at], &self.common, &mut self.rng)?;
            if number % 4 == 0 {
                self.serve_cqs()?;
            }
        }
        for control in &mut self.controls {
            control.step(&self.common, &mut self.rng)?;
        }
        if self.rng.chance(20) {
            // A pause, as of a program that computes between calls.
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

fn serve(tasks: &SlotTasks, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
    let slot = &tasks.slot;
    if tasks.posts {
        for _ in 0..BATCH {
            let posted_receive = lock(&slot.receive_post).step(slot)?;
            let posted_send = lock(&slot.send_post).step(slot, rng)?;
            if !posted_receive && !posted_send {
                break;
            }
        }
    }
    if tasks.reaps {
        let wait_for = |mode, rng: &mut Rng| {
            let is_up = slot.shared.is_up.load(Ordering::SeqCst);
            (mode == CompletionMode::Wait && is_up && rng.chance(50)).then(|| random_wait(rng))
        };
        for _ in 0..BATCH {
            if slot.config.send_mode == CompletionMode::Queue {
                break;
            }
            let wait = wait_for(slot.config.send_mode, rng);
            if !lock(&slot.send_reap).step(slot, &common.context, wait, rng)? {
                break;
            }
        }
        for _ in 0..BATCH {
            if slot.config.receive_mode == CompletionMode::Queue {
                break;
            }
            let wait = wait_for(slot.config.receive_mode, rng);
            if !lock(&slot.receive_reap).step(slot, &common.context, wait, rng)? {
                break;
            }
        }
    }
    Ok(())
}

/// Takes an entry and its completion. Returns false if there is none within `wait`.
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
        Err(error) => return Err(format!("completion queue: {error}").into()),
    };
    if !reap(entry, common, rng)? {
        // The thread that ends a connection takes completions without their entries.
        let stale = common.stale_entries.fetch_add(1, Ordering::SeqCst) + 1;
        let taken = common.completions_without_entry.load(Ordering::SeqCst);
        if stale > taken {
            return Err(format!(
                "{entry:?} without a completion: {stale} entries without completions, \
                 {taken} completions taken without entries"
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
        let mut task = lock(&slot.receive_reap);
        Ok(task.vi.handle() == entry.vi && task.step(&slot, &common.context, None, rng)?)
    } else {
        let mut task = lock(&slot.send_reap);
        Ok(task.vi.handle() == entry.vi && task.step(&slot, &common.context, None, rng)?)
    }
}
