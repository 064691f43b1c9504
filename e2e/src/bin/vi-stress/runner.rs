//! The whole run of one side, and the checks at its end.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2e::sync::{AtomicBool, AtomicU64, Ordering};
use vipl::{CompletionQueue, HostAddress, Nic, provider};

use crate::Run;
use crate::accounting::{RecordWriter, Wire};
use crate::control::{Common, Control, TIMEOUT};
use crate::events::Events;
use crate::pattern::{Rng, key};
use crate::plan::{Sharing, SlotConfig};
use crate::slot::NicContext;
use crate::thread_check::{MemorySamples, ResourceCounts};
use crate::worker::{SlotTasks, Worker, serve_cq};
use e2e::failure::Failure;

/// Number of entries of each completion queue.
const CQ_ENTRIES: u64 = 64;
/// Interval of memory samples and of checks that all threads make progress.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs one side, from opening to closing its NIC.
pub(crate) fn run(run: &Run) -> Result<(), Failure> {
    // The first open of a NIC allocates state, with an eventfd, that the process keeps.
    drop(open(&run.nic)?);
    let before = ResourceCounts::read_single_threaded()?;
    let nic = open(&run.nic)?;
    let events = Events::default();
    let recorded = events.clone();
    nic.set_error_handler(move |error| recorded.record(error))?;
    let common = Arc::new(Common {
        side: run.side,
        seed: run.seed,
        remote: run.host.map_or(nic.host_address(), address),
        context: NicContext {
            ptag: nic.create_ptag()?,
            nic: nic.clone(),
            wire: run.host.map_or(Wire::Lossless, |_| Wire::Lossy),
        },
        events,
        records: RecordWriter::create(&run.records)?,
        directory: Mutex::default(),
        completions_without_entry: AtomicU64::new(0),
        stale_entries: AtomicU64::new(0),
    });
    let outcome = Workers::spawn(run, &common).and_then(|workers| workers.run_for(&common, run));
    let memory = outcome?;
    let (first_kib, last_kib) = memory.check_growth()?;
    print_count("resident_first_minute_kib", first_kib);
    print_count("resident_last_minute_kib", last_kib);
    let common = Arc::try_unwrap(common).map_err(|_| "a thread still uses the shared state")?;
    release(common, nic, run.among_others)?;
    let after = ResourceCounts::read_single_threaded()?;
    if after != before {
        return Err(format!("{before:?} before the run, {after:?} after it").into());
    }
    Ok(())
}

fn open(name: &str) -> Result<Nic, Failure> {
    let nic = Nic::open(name);
    Ok(nic.map_err(|error| provider::last_error().unwrap_or_else(|| error.to_string()))?)
}

fn address(ip: std::net::IpAddr) -> HostAddress {
    let v6 = match ip {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        std::net::IpAddr::V6(v6) => v6,
    };
    HostAddress(v6.octets())
}

fn print_count(name: &str, number: u64) {
    println!("count {name} {number}");
}

type Outcome = Result<(Vec<Control>, Rng), Failure>;

/// The threads of a side.
struct Workers {
    threads: Vec<JoinHandle<()>>,
    cqs: Vec<CompletionQueue>,
    outcomes: Receiver<(usize, Outcome)>,
    rounds: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl Workers {
    fn spawn(run: &Run, common: &Arc<Common>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, outcomes) = mpsc::channel();
        let (workers, cqs) = workers(run, common, &stop)?;
        let mut this = Self {
            threads: Vec::new(),
            cqs,
            outcomes,
            rounds: Vec::new(),
            stop: Arc::clone(&stop),
        };
        for (number, mut worker) in workers.into_iter().enumerate() {
            let seed = key(&[run.seed, run.side as u64, number as u64]);
            println!("thread {number} of {}: seed {seed}", run.side.name());
            worker.rng = Rng::new(seed);
            this.rounds.push(Arc::clone(&worker.rounds));
            let sender = sender.clone();
            let thread = thread::Builder::new().name(format!("stress-{number}"));
            this.threads.push(thread.spawn(move || {
                // The receiver is gone once another thread has failed.
                let _ = sender.send((number, worker.run()));
            })?);
        }
        Ok(this)
    }

    /// Runs the threads for the runtime, then closes their slots. Beside other programs a side may have no turn for
    /// seconds: there the runtime is extended, by [`TIMEOUT`] at most, until it has a connection to compare.
    fn run_for(self, common: &Common, run: &Run) -> Result<MemorySamples, Failure> {
        let limit = Duration::from_secs(run.seconds);
        let mut memory = MemorySamples::new(limit);
        let start = Instant::now();
        let mut seen = vec![(0, start); self.rounds.len()];
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let is_enough = !run.among_others || common.records.has_arrived();
            if left.is_zero() && (is_enough || start.elapsed() >= limit + TIMEOUT) {
                break;
            }
            let interval = if left.is_zero() {
                CHECK_INTERVAL
            } else {
                CHECK_INTERVAL.min(left)
            };
            match self.outcomes.recv_timeout(interval) {
                Ok((number, Err(error))) => return Err(format!("thread {number}: {error}").into()),
                Ok((number, Ok(_))) => {
                    return Err(format!("thread {number} ended too early").into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("all threads have ended".into()),
            }
            memory.sample()?;
            check_rounds(&self.rounds, &mut seen);
        }
        self.stop.store(true, Ordering::SeqCst);
        let mut owners = Vec::new();
        for _ in &self.threads {
            let (number, outcome) = self
                .outcomes
                .recv_timeout(TIMEOUT * 2)
                .map_err(|_| hung("a thread does not end"))?;
            owners.push(outcome.map_err(|error| format!("thread {number}: {error}"))?);
        }
        for thread in self.threads {
            thread.join().map_err(|_| "a thread panicked")?;
        }
        let rounds: u64 = self
            .rounds
            .iter()
            .map(|rounds| rounds.load(Ordering::Relaxed))
            .sum();
        print_count("rounds", rounds);
        for (controls, mut rng) in owners {
            for control in controls {
                control.finish(common, &mut rng)?;
            }
        }
        check_entries(&self.cqs, common)?;
        Ok(memory)
    }
}

/// Drains the completion queues and checks that each completion had an entry, except those counted as `cq_overruns`.
fn check_entries(cqs: &[CompletionQueue], common: &Common) -> Result<(), Failure> {
    let mut rng = Rng::new(0);
    for cq in cqs {
        while serve_cq(cq, None, common, &mut rng)? {}
    }
    let counters = provider::counters(common.context.nic.handle())?;
    let dropped = counters.iter().find(|(name, _)| name == "cq_overruns");
    let (_, dropped) = dropped.ok_or("the NIC does not count its cq_overruns")?;
    let stale = common.stale_entries.load(Ordering::SeqCst);
    let taken = common.completions_without_entry.load(Ordering::SeqCst);
    print_count("stale_entries", stale);
    if stale + dropped != taken {
        return Err(format!(
            "{taken} completions were taken without their entries, of which {stale} were found \
             and {dropped} dropped"
        )
        .into());
    }
    Ok(())
}

/// Prints that a thread hangs; ci/stress then prints the stacks.
fn hung(what: &str) -> Failure {
    println!("hung: {what}");
    what.into()
}

/// Reports threads without progress within [`TIMEOUT`].
fn check_rounds(rounds: &[Arc<AtomicU64>], seen: &mut [(u64, Instant)]) {
    for (number, (rounds, (last, since))) in rounds.iter().zip(seen).enumerate() {
        let now = rounds.load(Ordering::Relaxed);
        if now != *last {
            (*last, *since) = (now, Instant::now());
        } else if since.elapsed() > TIMEOUT {
            hung(&format!("thread {number} since {:?}", since.elapsed()));
        }
    }
}

/// Assigns slots and completion queues to the threads; also returns the completion queues.
fn workers(
    run: &Run,
    common: &Arc<Common>,
    stop: &Arc<AtomicBool>,
) -> Result<(Vec<Worker>, Vec<CompletionQueue>), Failure> {
    let threads = usize::from(run.threads);
    let nic = &common.context.nic;
    let cqs = |count: usize| -> Result<Vec<CompletionQueue>, Failure> {
        (0..count).map(|_| Ok(nic.create_cq(CQ_ENTRIES)?)).collect()
    };
    // One per thread, and one per pair of consecutive threads.
    let (own_cqs, pair_cqs) = (cqs(threads)?, cqs(threads)?);
    let mut workers: Vec<Worker> = (0..threads)
        .map(|number| {
            let before = (number + threads - 1) % threads;
            Worker {
                common: Arc::clone(common),
                controls: Vec::new(),
                tasks: Vec::new(),
                cqs: vec![
                    own_cqs[number].clone(),
                    pair_cqs[number].clone(),
                    pair_cqs[before].clone(),
                ],
                rng: Rng::new(0),
                rounds: Arc::default(),
                stop: Arc::clone(stop),
            }
        })
        .collect();
    let mut rng = Rng::new(key(&[run.seed, run.side as u64]));
    for number in 0..run.slots {
        let config = SlotConfig::new(number);
        let owner = usize::from(number) % threads;
        let next = (owner + 1) % threads;
        let reap_cq = match config.sharing {
            Sharing::Alone => &own_cqs[owner],
            Sharing::Split => &own_cqs[next],
            Sharing::Contended => &pair_cqs[owner],
        };
        let control = Control::new(common, config, reap_cq, &mut rng)?;
        let tasks = |posts, reaps| SlotTasks {
            slot: Arc::clone(&control.slot),
            posts,
            reaps,
        };
        let (first, second) = match config.sharing {
            Sharing::Alone => (tasks(true, true), None),
            Sharing::Split => (tasks(true, false), Some(tasks(false, true))),
            Sharing::Contended => (tasks(true, true), Some(tasks(true, true))),
        };
        workers[owner].tasks.push(first);
        workers[next].tasks.extend(second);
        workers[owner].controls.push(control);
    }
    Ok((workers, [own_cqs, pair_cqs].concat()))
}

/// Counters that must be 0 after all resources are released.
const MUST_BE_ZERO: [&str; 5] = [
    "exchanges_open",
    "regions",
    "registered_bytes",
    "lost_descriptors",
    "events_dropped",
];

/// Releases all resources and checks the counters of the NIC, unless other programs use it.
fn release(common: Common, nic: Nic, among_others: bool) -> Result<(), Failure> {
    let Common {
        context,
        records,
        directory,
        events,
        ..
    } = common;
    drop(directory);
    let deadline = Instant::now() + TIMEOUT;
    // The last exchanges end when the remote side has responded, or after their timeout.
    let (sender, never) = mpsc::channel::<()>();
    let counters = loop {
        let counters = provider::counters(nic.handle())?;
        let left =
            |(name, number): &&(String, u64)| MUST_BE_ZERO.contains(&name.as_str()) && *number > 0;
        let Some((name, number)) = counters.iter().find(left).filter(|_| !among_others) else {
            break counters;
        };
        if Instant::now() >= deadline {
            return Err(format!("{name} is {number}, not 0").into());
        }
        // A pause: there is no notification, and nothing is sent on this channel.
        let _ = never.recv_timeout(Duration::from_millis(1));
    };
    drop(sender);
    for name in MUST_BE_ZERO {
        if !counters.iter().any(|(known, _)| known == name) {
            return Err(format!("the NIC does not count its {name}").into());
        }
    }
    for (name, number) in counters.iter().filter(|(_, number)| *number > 0) {
        print_count(name, *number);
    }
    drop(context);
    drop(nic);
    // The NIC is closed: no further errors are reported.
    let (losses, refusals, other) = events.totals();
    print_count("losses_reported", losses);
    if let Some(first) = other.first() {
        return Err(format!("{} unexpected errors: {first}", other.len()).into());
    }
    records.finish(refusals)
}
