//! Who polls when the program does not: the NIC's own threads.
//!
//! *Inline*: the program's threads take turns inside their calls. The NIC's
//! thread looks now and then whether they do; after a bounded time without a
//! call, or when one of them goes to sleep, it takes over: it polls, and when
//! nothing comes it arms the port and sleeps on it. A program that comes back
//! finds the port armed, disarms it and sends the thread back to looking.
//!
//! ```text
//!             a thread sleeps, or no call for takeover_us
//!   looking ---------------------------------------------> polling <--+
//!      ^                                                     |        | frame, timer,
//!      |            the program polls                        | idle   | doorbell
//!      +-----------------------------------------------------+        |
//!      |            the program polls                        v        |
//!      +------------------------------------------------- resting ----+
//! ```
//!
//! *Pinned*: the NIC's thread polls on its core and never sleeps.
//!
//! A NIC of a datapath process is polled by a thread of that (`attach/cores.rs`), which may sleep.
//!
//! A second thread calls the error handlers, so that no handler runs in a turn.

use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;

use crate::config::Progress;
use crate::device::Device;
use crate::driver::Driver;
use crate::open::OpenError;
use crate::patience::Patience;
use crate::sleepers::Event;
use crate::sync::{self, AtomicBool, AtomicU32, Ordering, fence};
use crate::sys;

mod core_rest;

pub(crate) use core_rest::CoreRest;

/// How often the port's upkeep runs.
const UPKEEP: Duration = Duration::from_millis(50);
/// A sleep shorter than this costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// How long a port that wakes nobody is left alone.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// Where the NIC's thread rests, and how to get it up.
#[derive(Default)]
pub(crate) struct Rest {
    /// Counts what the NIC's thread should hear of at once; it sleeps on this while it looks.
    bell: AtomicU32,
    /// The NIC's thread sleeps, or is about to, or only looks: it drains no doorbells.
    deaf: AtomicBool,
    /// The NIC's thread is at the turn, or about to try; it looks for doorbells afterwards.
    attends: AtomicBool,
    /// Wakes a thread that sleeps on a port's descriptor.
    event: OnceLock<sys::Event>,
    /// The core of a datapath process that polls the NIC.
    pub(crate) core: CoreRest,
}

impl Rest {
    /// The program polls again: whoever sleeps on the port is sent back to looking.
    #[inline]
    pub(crate) fn leave(&self, driver: &mut Driver) {
        if driver.armed().is_some() {
            self.unarm(driver);
        }
    }

    #[cold]
    fn unarm(&self, driver: &mut Driver) {
        if let Some(source) = driver.armed().take() {
            driver.disarm();
            // Nobody has polled for as long as the thread slept: the last answer is old.
            driver.refresh_clock();
            self.rouse(&source);
        }
    }

    fn rouse(&self, source: &WakeSource) {
        match source {
            WakeSource::Futex { word, .. } => {
                word.word().fetch_add(1, Ordering::SeqCst);
                sync::futex_wake(word.word(), i32::MAX, true);
            }
            WakeSource::Fd(_) | WakeSource::Poll => {
                if let Some(event) = self.event.get() {
                    event.signal();
                }
            }
        }
    }

    /// True if a doorbell that was just rung may be heard by nobody for a while: whoever has
    /// the turn may have drained them already. If false, the NIC's thread drains it.
    #[inline]
    pub(crate) fn is_deaf(&self) -> bool {
        // Partner: the heavy barrier in `go_deaf`. Either the thread sees the doorbell, or
        // we see that it is deaf.
        sync::light_barrier();
        self.deaf.load(Ordering::Relaxed)
    }

    /// The NIC's thread will drain no more doorbells. It has to look for some after this.
    fn go_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        // Partner: the light barrier in `is_deaf`.
        sync::heavy_barrier();
    }

    /// True if the NIC's thread is at the turn. What was rung before this was asked is then
    /// left to it: whoever rang need not wait until the scheduler lets it go on.
    pub(crate) fn attends(&self) -> bool {
        // Partner: the fence in `attend`. Either the thread sees the doorbell after its visit,
        // or we see that the visit is over.
        fence(Ordering::SeqCst);
        self.attends.load(Ordering::Relaxed)
    }

    /// A visit of the NIC's thread to the turn. It has to look for doorbells after this.
    fn attend<R>(&self, visit: impl FnOnce() -> R) -> R {
        self.attends.store(true, Ordering::Relaxed);
        let result = visit();
        self.attends.store(false, Ordering::Relaxed);
        // Partner: the fence in `attends`.
        fence(Ordering::SeqCst);
        result
    }

    /// Has the NIC's thread look around, unless it sleeps on the port.
    pub(crate) fn call_in(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        sync::futex_wake(&self.bell, 1, false);
    }

    /// Gets the NIC's thread up from whatever it sleeps on.
    pub(crate) fn interrupt(&self, device: &Device) {
        self.call_in();
        if let Some(driver) = device.hold().as_mut() {
            self.leave(driver);
        }
    }

    fn sleep_on(&self, source: &WakeSource, limit: Duration) {
        let fd = match source {
            WakeSource::Futex { word, expected } => {
                let limit_ns = limit.as_nanos() as u64;
                sync::futex_wait(word.word(), *expected, Some(limit_ns), true);
                return;
            }
            WakeSource::Fd(fd) => Some(*fd),
            WakeSource::Poll => None,
        };
        let limit = if fd.is_none() {
            limit.min(BLIND_SLEEP)
        } else {
            limit
        };
        if let Some(event) = self.event.get() {
            event.sleep(fd, limit);
        }
    }
}

/// Starts the threads of a device whose poller is in place. Those that were started are in
/// `threads` also if another could not be.
pub(crate) fn start(
    device: &'static Device,
    epoch: u32,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), OpenError> {
    if device.rest.event.get().is_none() {
        let event = sys::Event::new().map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        device.rest.event.get_or_init(|| event);
    }
    let is_served = device.served.load(Ordering::Relaxed);
    let core = if is_served { None } else { core_of(device)? };
    let name = &device.config.name;
    let spawn = |role: &str, run: Box<dyn FnOnce() + Send>| {
        sys::start_thread(format!("{role}-{name}"), run)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))
    };
    if !is_served {
        threads.push(spawn(
            "poll",
            Box::new(move || match core {
                Some(core) => pinned(device, epoch, core),
                None => inline(device, epoch),
            }),
        )?);
    }
    threads.push(spawn(
        "events",
        Box::new(move || crate::instance::deliver(device, epoch)),
    )?);
    Ok(())
}

/// The core of a pinned NIC; it must exist and be ours.
fn core_of(device: &Device) -> Result<Option<core_affinity::CoreId>, OpenError> {
    if device.config.progress == Progress::Inline {
        return Ok(None);
    }
    find_core(device.config.core).map(Some)
}

/// The core of this number, or the last one that this process may use.
pub(crate) fn find_core(wanted: Option<usize>) -> Result<core_affinity::CoreId, OpenError> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let ids: Vec<usize> = cores.iter().map(|c| c.id).collect();
    let wanted = wanted.or_else(|| ids.last().copied());
    cores
        .into_iter()
        .find(|c| Some(c.id) == wanted)
        .ok_or_else(|| {
            let known: Vec<String> = ids.iter().map(usize::to_string).collect();
            let wanted = wanted.map_or("any".into(), |core| core.to_string());
            OpenError::new(format!(
                "core = {wanted}: this process may not use it; it may use {}",
                known.join(", ")
            ))
        })
}

fn pinned(device: &'static Device, epoch: u32, core: core_affinity::CoreId) {
    if !core_affinity::set_for_current(core) {
        log::warn!("the poll thread could not be pinned to core {}", core.id);
    }
    let mut upkeep_at_ns = 0;
    // Another poll thread may be pinned to the same core.
    let patience = Patience::new();
    let mut idle_turns = 0;
    while device.runs(epoch) {
        let Some(mut held) = device.turn.try_hold() else {
            std::thread::yield_now();
            continue;
        };
        idle_turns += 1;
        if let Some(driver) = held.as_mut() {
            if driver.turn(&device.doorbells) {
                idle_turns = 0;
            }
            device.announce(driver);
            let now_ns = driver.engine().map_or(0, |poller| poller.clock.last_ns());
            if now_ns >= upkeep_at_ns {
                upkeep_at_ns = now_ns + UPKEEP.as_nanos() as u64;
                driver.upkeep();
            }
        }
        drop(held);
        if idle_turns >= patience.turns() {
            idle_turns = 0;
            patience.give_way();
        }
        core::hint::spin_loop();
    }
}

/// What the program has done so far, as the NIC's thread sees it.
#[derive(Clone, Copy)]
struct Seen {
    bell: u32,
    activity: u32,
}

impl Seen {
    fn of(device: &Device) -> Self {
        // The bell first: whoever goes to sleep has polled before. So polls that are seen
        // without a bell are those of a thread that is awake, or whose bell comes later.
        Self {
            bell: device.rest.bell.load(Ordering::SeqCst),
            activity: device.activity.load(Ordering::Relaxed),
        }
    }
}

/// The thread of an inline NIC: looks, and takes over when nobody polls.
fn inline(device: &'static Device, epoch: u32) {
    let silence = Duration::from_micros(device.config.takeover_us);
    // Also a program that polls for hours leaves upkeep to this thread.
    let look_ns = silence.min(UPKEEP).as_nanos() as u64;
    let mut upkeep = Instant::now();
    let mut seen = Seen::of(device);
    let mut seen_at = Instant::now();
    stop_draining(device);
    while device.runs(epoch) {
        sync::futex_wait(&device.rest.bell, seen.bell, Some(look_ns), false);
        keep_up(device, &mut upkeep);
        let now = Seen::of(device);
        let sleeps = now.bell != seen.bell && device.sleepers.any();
        let polls = now.activity != seen.activity;
        if sleeps || (!polls && seen_at.elapsed() >= silence) {
            seen = take_over(device, epoch, now, &mut upkeep);
            seen_at = Instant::now();
        } else {
            seen = now;
            if polls {
                seen_at = Instant::now();
            }
        }
    }
}

/// From now on whoever rings a doorbell sees to it; what was rung before is drained.
fn stop_draining(device: &'static Device) {
    device.rest.go_deaf();
    // Again after each visit: what was rung meanwhile was left to this thread.
    while device.doorbells.any() {
        device.rest.attend(|| {
            let mut held = device.turn.hold_as_guest();
            // A NIC without a poller went down, and its doorbells with it.
            let Some(driver) = held.as_mut() else {
                device.doorbells.drain(|_| ());
                return;
            };
            driver.turn(&device.doorbells);
            device.announce(driver);
        });
    }
}

fn keep_up(device: &'static Device, upkeep: &mut Instant) {
    if upkeep.elapsed() >= UPKEEP {
        *upkeep = Instant::now();
        // A program that posts meanwhile leaves its doorbell to this thread: waiting for the
        // turn could cost it a system call.
        device.rest.deaf.store(false, Ordering::Relaxed);
        if let Some(driver) = device.turn.hold_as_guest().as_mut() {
            driver.upkeep();
            // A program that polls rarely would look at clock and timers more rarely still.
            driver.long_turn(&device.doorbells);
            device.announce(driver);
        }
        stop_draining(device);
    }
}

/// Polls in place of the program until it polls again without going to sleep. Returns what
/// was seen of it then.
fn take_over(device: &'static Device, epoch: u32, mut seen: Seen, upkeep: &mut Instant) -> Seen {
    let spin = Duration::from_micros(device.config.spin_us);
    let mut idle_since = Instant::now();
    while device.runs(epoch) {
        // First, so that nobody who posts waits for the turn that follows.
        device.rest.deaf.store(false, Ordering::Relaxed);
        if let Some(mut held) = device.turn.try_hold_as_guest()
            && device.runs(epoch)
            && let Some(driver) = held.as_mut()
        {
            if driver.turn(&device.doorbells) {
                idle_since = Instant::now();
            }
            device.announce(driver);
        }
        let now = Seen::of(device);
        if now.activity != seen.activity && now.bell == seen.bell {
            stop_draining(device);
            return now;
        }
        seen = now;
        keep_up(device, upkeep);
        let idle = idle_since.elapsed();
        if idle >= spin {
            rest(device, epoch, idle);
        } else {
            core::hint::spin_loop();
        }
    }
    seen
}

/// Arms the port, looks once more, and sleeps until a frame, a timer, a doorbell or the
/// program comes. `idle`: since when nothing was to be done.
fn rest(device: &'static Device, epoch: u32, idle: Duration) {
    let Some((source, limit)) = device.rest.attend(|| lie_down(device, epoch, idle)) else {
        return;
    };
    // What was rung while it lay down was left to this thread.
    if !device.doorbells.any() {
        device.rest.sleep_on(&source, limit);
    }
    // What is rung during this visit is drained by this thread's next turn or `stop_draining`.
    device.rest.attend(|| get_up(device, epoch));
}

/// What to sleep on and how long, unless something is to be done first.
fn lie_down(device: &'static Device, epoch: u32, idle: Duration) -> Option<(WakeSource, Duration)> {
    let mut held = device.turn.hold_as_guest();
    let driver = held.as_mut()?;
    if !device.runs(epoch) {
        return None;
    }
    let source = driver.arm();
    device.rest.go_deaf();
    let worked = driver.long_turn(&device.doorbells);
    device.announce(driver);
    if worked {
        driver.disarm();
        return None;
    }
    *driver.armed() = Some(source.clone());
    Some((source, longest_rest(driver, idle)))
}

fn get_up(device: &'static Device, epoch: u32) {
    let mut held = device.turn.hold_as_guest();
    // In a later epoch the port and who sleeps on it are another's.
    if let Some(driver) = held.as_mut()
        && device.runs(epoch)
        && driver.armed().take().is_some()
    {
        driver.disarm();
        driver.refresh_clock();
    }
}

/// How long the thread may sleep if no frame comes.
fn longest_rest(driver: &mut Driver, idle: Duration) -> Duration {
    let timer = driver.until_timer_ns().map_or(UPKEEP, Duration::from_nanos);
    // A port wakes nobody when it has room again: what waits for room is tried once more
    // after a part of the time that it waited already.
    let room = if driver.has_unsent() {
        idle / 4
    } else {
        UPKEEP
    };
    timer.min(room).clamp(SHORTEST_SLEEP, UPKEEP)
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

/// Polls until `look` finds something: spins for the configured time, then sleeps. On a NIC of a
/// datapath process, whose core polls, it looks once and sleeps: each look may take the turn from
/// everybody.
/// `event`: what may have happened when `look` finds something that it did not find before.
/// `limit`: `None` waits for ever.
pub(crate) fn wait<T>(
    device: &'static Device,
    event: Event,
    limit: Option<Duration>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    if device.served.load(Ordering::Relaxed) {
        return wait_beside_core(device, event, limit, look);
    }
    device.finish_burst();
    let start = Instant::now();
    let spin = Duration::from_micros(device.config.spin_us);
    loop {
        for _ in 0..32 {
            if let Some(found) = look() {
                return Ok(found);
            }
            device.poll();
            core::hint::spin_loop();
        }
        let waited = start.elapsed();
        if limit.is_some_and(|limit| waited >= limit) {
            return look().ok_or(TimedOut);
        }
        if waited >= spin {
            break;
        }
    }
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let found = device.sleepers.sleep(event, left_ns, &mut look, || {
            if device.inline {
                device.rest.call_in();
            }
        });
        if let Some(found) = found.or_else(&mut look) {
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            return Err(TimedOut);
        }
    }
}

fn wait_beside_core<T>(
    device: &'static Device,
    event: Event,
    limit: Option<Duration>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    let mut left = limit;
    if left == Some(Duration::ZERO) {
        return look().ok_or(TimedOut);
    }
    // What the call has done so far is the core's to go on with.
    device.rest.core.rouse();
    loop {
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        if let Some(found) = device.sleepers.sleep(event, left_ns, &mut look, || ()) {
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            return Err(TimedOut);
        }
        left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
    }
}

#[cfg(test)]
mod tests;
