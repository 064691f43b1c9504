//! The whole run of one side, and what must be left of it.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2e::sync::{AtomicBool, AtomicU64, Ordering};
use vipl::{CompletionQueue, HostAddress, Nic, provider};

use crate::books::{Books, Wire};
use crate::census::{Census, Memory};
use crate::control::{Common, Control, TIMEOUT};
use crate::events::Events;
use crate::pattern::{Rng, key};
use crate::plan::{Shape, Sharing};
use crate::slot::Place;
use crate::worker::{Duties, Worker, serve_cq};
use crate::{Failure, Run};

/// Entries of each completion queue.
const CQ_ENTRIES: u64 = 64;
/// How often the memory is looked at, and whether all threads go on.
const LOOK: Duration = Duration::from_secs(1);

/// Runs one side from the opening of its NIC to its closing.
pub(crate) fn run(run: &Run) -> Result<(), Failure> {
    // A NIC that was open once keeps its place in the process, and an event of the system with it.
    drop(open(&run.nic)?);
    let before = Census::take_alone()?;
    let nic = open(&run.nic)?;
    let events = Events::default();
    let noted = events.clone();
    nic.set_error_handler(move |error| noted.note(error))?;
    let common = Arc::new(Common {
        side: run.side,
        seed: run.seed,
        remote: run.host.map_or(nic.host_address(), address),
        place: Place {
            ptag: nic.create_ptag()?,
            nic: nic.clone(),
            wire: run.host.map_or(Wire::Lossless, |_| Wire::Lossy),
        },
        events,
        books: Books::create(&run.books)?,
        directory: Mutex::default(),
        taken_past_cqs: AtomicU64::new(0),
        idle_entries: AtomicU64::new(0),
    });
    let outcome = Crew::hire(run, &common)
        .and_then(|crew| crew.work(&common, Duration::from_secs(run.seconds)));
    let memory = outcome?;
    let (first_kib, last_kib) = memory.judge()?;
    tell("resident_first_minute_kib", first_kib);
    tell("resident_last_minute_kib", last_kib);
    let common = Arc::try_unwrap(common).map_err(|_| "a thread keeps what is everybody's")?;
    clear(common, nic, run.among_others)?;
    let after = Census::take_alone()?;
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

fn tell(name: &str, number: u64) {
    println!("count {name} {number}");
}

type Outcome = Result<(Vec<Control>, Rng), Failure>;

/// The threads of a side.
struct Crew {
    threads: Vec<JoinHandle<()>>,
    cqs: Vec<CompletionQueue>,
    outcomes: Receiver<(usize, Outcome)>,
    rounds: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl Crew {
    fn hire(run: &Run, common: &Arc<Common>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, outcomes) = mpsc::channel();
        let (workers, cqs) = workers(run, common, &stop)?;
        let mut crew = Self {
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
            crew.rounds.push(Arc::clone(&worker.rounds));
            let sender = sender.clone();
            let thread = thread::Builder::new().name(format!("stress-{number}"));
            crew.threads.push(thread.spawn(move || {
                // Nobody listens any more once another thread has failed.
                let _ = sender.send((number, worker.run()));
            })?);
        }
        Ok(crew)
    }

    /// Lets the threads work for so long, then takes their slots apart.
    fn work(self, common: &Common, limit: Duration) -> Result<Memory, Failure> {
        let mut memory = Memory::new(limit);
        let deadline = Instant::now() + limit;
        let mut seen = vec![(0, Instant::now()); self.rounds.len()];
        while Instant::now() < deadline {
            match self
                .outcomes
                .recv_timeout(LOOK.min(deadline.saturating_duration_since(Instant::now())))
            {
                Ok((number, Err(error))) => return Err(format!("thread {number}: {error}").into()),
                Ok((number, Ok(_))) => {
                    return Err(format!("thread {number} ended too early").into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("all threads are gone".into()),
            }
            memory.sample()?;
            expect_rounds(&self.rounds, &mut seen);
        }
        self.stop.store(true, Ordering::SeqCst);
        let mut owners = Vec::new();
        for _ in &self.threads {
            let (number, outcome) = self
                .outcomes
                .recv_timeout(TIMEOUT * 2)
                .map_err(|_| hung("a thread does not come to its end"))?;
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
        tell("rounds", rounds);
        for (controls, mut rng) in owners {
            for control in controls {
                control.finish(common, &mut rng)?;
            }
        }
        expect_entries(&self.cqs, common)?;
        Ok(memory)
    }
}

/// Collects what is left on the completion queues: there was an entry for each completion, save those that the NIC
/// says it has dropped.
fn expect_entries(cqs: &[CompletionQueue], common: &Common) -> Result<(), Failure> {
    let mut rng = Rng::new(0);
    for cq in cqs {
        while serve_cq(cq, None, common, &mut rng)? {}
    }
    let counters = provider::counters(common.place.nic.handle())?;
    let dropped = counters.iter().find(|(name, _)| name == "cq_overruns");
    let (_, dropped) = dropped.ok_or("the NIC does not count its cq_overruns")?;
    let idle = common.idle_entries.load(Ordering::SeqCst);
    let taken = common.taken_past_cqs.load(Ordering::SeqCst);
    tell("idle_entries", idle);
    if idle + dropped != taken {
        return Err(format!(
            "{taken} completions were taken without their entries, of which {idle} were found \
             and {dropped} dropped"
        )
        .into());
    }
    Ok(())
}

/// Says that something hangs, for whoever takes a look at the stacks.
fn hung(what: &str) -> Failure {
    println!("hung: {what}");
    what.into()
}

fn expect_rounds(rounds: &[Arc<AtomicU64>], seen: &mut [(u64, Instant)]) {
    for (number, (rounds, (last, since))) in rounds.iter().zip(seen).enumerate() {
        let now = rounds.load(Ordering::Relaxed);
        if now != *last {
            (*last, *since) = (now, Instant::now());
        } else if since.elapsed() > TIMEOUT {
            hung(&format!("thread {number} since {:?}", since.elapsed()));
        }
    }
}

/// Divides slots and completion queues, which are given too, among the threads.
fn workers(
    run: &Run,
    common: &Arc<Common>,
    stop: &Arc<AtomicBool>,
) -> Result<(Vec<Worker>, Vec<CompletionQueue>), Failure> {
    let threads = usize::from(run.threads);
    let nic = &common.place.nic;
    let cqs = |count: usize| -> Result<Vec<CompletionQueue>, Failure> {
        (0..count).map(|_| Ok(nic.create_cq(CQ_ENTRIES)?)).collect()
    };
    // One for each thread alone, and one for each two neighbours.
    let (own_cqs, pair_cqs) = (cqs(threads)?, cqs(threads)?);
    let mut workers: Vec<Worker> = (0..threads)
        .map(|number| {
            let before = (number + threads - 1) % threads;
            Worker {
                common: Arc::clone(common),
                controls: Vec::new(),
                duties: Vec::new(),
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
        let shape = Shape::new(number);
        let owner = usize::from(number) % threads;
        let next = (owner + 1) % threads;
        let reap_cq = match shape.sharing {
            Sharing::Alone => &own_cqs[owner],
            Sharing::Split => &own_cqs[next],
            Sharing::Contended => &pair_cqs[owner],
        };
        let control = Control::new(common, shape, reap_cq, &mut rng)?;
        let duties = |posts, reaps| Duties {
            slot: Arc::clone(&control.slot),
            posts,
            reaps,
        };
        let (first, second) = match shape.sharing {
            Sharing::Alone => (duties(true, true), None),
            Sharing::Split => (duties(true, false), Some(duties(false, true))),
            Sharing::Contended => (duties(true, true), Some(duties(true, true))),
        };
        workers[owner].duties.push(first);
        workers[next].duties.extend(second);
        workers[owner].controls.push(control);
    }
    Ok((workers, [own_cqs, pair_cqs].concat()))
}

/// What must be 0 when everything was given back.
const MUST_BE_ZERO: [&str; 5] = [
    "exchanges_open",
    "regions",
    "registered_bytes",
    "lost_descriptors",
    "events_dropped",
];

/// Gives everything back; the NIC must have nothing left of it, which only who has it alone can tell.
fn clear(common: Common, nic: Nic, among_others: bool) -> Result<(), Failure> {
    let Common {
        place,
        books,
        directory,
        events,
        ..
    } = common;
    drop(directory);
    let deadline = Instant::now() + TIMEOUT;
    // The last exchanges end when the other side has answered, or was given up.
    let (news, never) = mpsc::channel::<()>();
    let counters = loop {
        let counters = provider::counters(nic.handle())?;
        let left =
            |(name, number): &&(String, u64)| MUST_BE_ZERO.contains(&name.as_str()) && *number > 0;
        let Some((name, number)) = counters.iter().find(left).filter(|_| !among_others) else {
            break counters;
        };
        if Instant::now() >= deadline {
            return Err(format!("{number} {name} are left").into());
        }
        // No event tells of it, and nothing is ever sent here.
        let _ = never.recv_timeout(Duration::from_millis(1));
    };
    drop(news);
    for name in MUST_BE_ZERO {
        if !counters.iter().any(|(known, _)| known == name) {
            return Err(format!("the NIC does not count its {name}").into());
        }
    }
    for (name, number) in counters.iter().filter(|(_, number)| *number > 0) {
        tell(name, *number);
    }
    drop(place);
    drop(nic);
    // Nothing is reported any more.
    let (losses, refusals, other) = events.totals();
    tell("losses_reported", losses);
    if let Some(first) = other.first() {
        return Err(format!(
            "{} reports of errors that nobody made: {first}",
            other.len()
        )
        .into());
    }
    books.close(refusals)
}
