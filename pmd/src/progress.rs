//! Progress of a NIC: the poll thread, and waits of the program's threads.
//!
//! *Inline*: the program's threads poll inside their calls. The NIC's poll thread checks at
//! intervals whether they do; after a bounded time without a call, or when one of them waits, it
//! takes over: it polls, and when idle it arms the port and sleeps on it. A program that polls again
//! finds the port armed, disarms it, and the thread returns to watching.
//!
//! ```text
//!             a thread waits, or no call for takeover_us
//!  watching ---------------------------------------------> polling <--+
//!      ^                                                     |        | frame, timer,
//!      |            the program polls                        | idle   | doorbell
//!      +-----------------------------------------------------+        |
//!      |            the program polls                        v        |
//!      +------------------------------------------------ sleeping ----+
//! ```
//!
//! *Pinned*: the poll thread polls on its core and never sleeps.
//!
//! A NIC of a datapath process is polled by a thread of that process (`attach/cores.rs`), which may
//! sleep.
//!
//! A second thread calls the error handlers, so that no handler runs in the poll loop.

use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;

use crate::config::Progress;
use crate::device::Device;
use crate::nic_backend::Backend;
use crate::open::OpenError;
use crate::sync::{self, AtomicBool, AtomicU32, Ordering, fence};
use crate::sys;
use crate::waiters::Event;
use crate::yield_policy::YieldPolicy;

mod core_sleep;

pub(crate) use core_sleep::CoreSleep;

/// The interval of the port's upkeep.
const UPKEEP: Duration = Duration::from_millis(50);
/// The shortest sleep: a shorter one costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep on a port that cannot wake a thread.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// The state of the NIC's poll thread that other threads use: whether it polls, and how to wake it.
#[derive(Default)]
pub(crate) struct PollThread {
    /// Counts notifications to the poll thread; a futex on which it sleeps while it watches.
    notifications: AtomicU32,
    /// The poll thread drains no doorbells: it sleeps, is about to, or only watches.
    doorbells_unattended: AtomicBool,
    /// The poll thread holds the backend lock, or is about to take it; it checks for doorbells afterwards.
    is_polling: AtomicBool,
    /// Wakes a thread that sleeps on a port's descriptor.
    event: OnceLock<sys::EventFd>,
    /// The sleep of the datapath process's core that polls the NIC.
    pub(crate) core: CoreSleep,
}

impl PollThread {
    /// Called when the program polls: wakes a poll thread that sleeps on the port, if one does.
    #[inline]
    pub(crate) fn wake_if_armed(&self, backend: &mut Backend) {
        if backend.armed().is_some() {
            self.disarm_and_wake(backend);
        }
    }

    #[cold]
    fn disarm_and_wake(&self, backend: &mut Backend) {
        if let Some(source) = backend.armed().take() {
            backend.disarm();
            // No thread has polled while this one slept: the last reading is old.
            backend.refresh_clock();
            self.wake(&source);
        }
    }

    fn wake(&self, source: &WakeSource) {
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

    /// Returns true if a doorbell that was just rung may stay undrained for a while: the holder of
    /// the backend lock may have drained already. If false, the poll thread drains it.
    #[inline]
    pub(crate) fn doorbells_unattended(&self) -> bool {
        // Partner: the heavy barrier in `mark_doorbells_unattended`. Either the thread sees the
        // doorbell, or we see the flag.
        sync::light_barrier();
        self.doorbells_unattended.load(Ordering::Relaxed)
    }

    /// Declares that the poll thread drains no more doorbells. It must check for some after this.
    fn mark_doorbells_unattended(&self) {
        self.doorbells_unattended.store(true, Ordering::Relaxed);
        // Partner: the light barrier in `doorbells_unattended`.
        sync::heavy_barrier();
    }

    /// Returns true if the poll thread holds the backend lock or is about to take it. It then drains the
    /// doorbells rung before this call, and the caller need not wait for it to be scheduled.
    pub(crate) fn is_polling(&self) -> bool {
        // Partner: the fence in `while_polling`. Either the thread sees the doorbell afterwards,
        // or we see that it has finished.
        fence(Ordering::SeqCst);
        self.is_polling.load(Ordering::Relaxed)
    }

    /// Runs `poll`, in which the poll thread takes the backend lock. It must check for doorbells after this.
    fn while_polling<R>(&self, poll: impl FnOnce() -> R) -> R {
        self.is_polling.store(true, Ordering::Relaxed);
        let result = poll();
        self.is_polling.store(false, Ordering::Relaxed);
        // Partner: the fence in `is_polling`.
        fence(Ordering::SeqCst);
        result
    }

    /// Wakes the poll thread, unless it sleeps on the port.
    pub(crate) fn notify(&self) {
        self.notifications.fetch_add(1, Ordering::SeqCst);
        sync::futex_wake(&self.notifications, 1, false);
    }

    /// Wakes the poll thread, also if it sleeps on the port.
    pub(crate) fn interrupt(&self, device: &Device) {
        self.notify();
        if let Some(backend) = device.lock().as_mut() {
            self.wake_if_armed(backend);
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

/// Starts the threads of a device that has its poller. `threads` gets those that were started, also
/// when starting another one fails.
pub(crate) fn start(
    device: &'static Device,
    epoch: u32,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), OpenError> {
    if device.poll_thread.event.get().is_none() {
        let event = sys::EventFd::new().map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        device.poll_thread.event.get_or_init(|| event);
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
        Box::new(move || crate::nic_handle::deliver(device, epoch)),
    )?);
    Ok(())
}

/// Returns the core of a pinned NIC, `None` for an inline one.
///
/// # Errors
/// The core does not exist, or this process may not use it.
fn core_of(device: &Device) -> Result<Option<core_affinity::CoreId>, OpenError> {
    if device.config.progress == Progress::Inline {
        return Ok(None);
    }
    find_core(device.config.core).map(Some)
}

/// Returns the core with this number, or the last one that this process may use.
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
    let yield_policy = YieldPolicy::new();
    let mut idle_polls = 0;
    while device.is_current_epoch(epoch) {
        let Some(mut held) = device.backend.try_lock() else {
            std::thread::yield_now();
            continue;
        };
        idle_polls += 1;
        if let Some(backend) = held.as_mut() {
            if backend.poll(&device.doorbells) {
                idle_polls = 0;
            }
            device.wake_waiters(backend);
            let now_ns = backend.poller().map_or(0, |poller| poller.clock.last_ns());
            if now_ns >= upkeep_at_ns {
                upkeep_at_ns = now_ns + UPKEEP.as_nanos() as u64;
                backend.upkeep();
            }
        }
        drop(held);
        if idle_polls >= yield_policy.idle_polls() {
            idle_polls = 0;
            yield_policy.yield_core();
        }
        core::hint::spin_loop();
    }
}

/// A snapshot of the program's activity, taken by the poll thread.
#[derive(Clone, Copy)]
struct Activity {
    notifications: u32,
    polls: u32,
}

impl Activity {
    fn of(device: &Device) -> Self {
        // The notifications first: a thread polls before it waits. So polls that are seen without a
        // notification are those of a thread that is awake, or that notifies later.
        Self {
            notifications: device.poll_thread.notifications.load(Ordering::SeqCst),
            polls: device.activity.load(Ordering::Relaxed),
        }
    }
}

/// Runs the poll thread of an inline NIC: watches, and takes over when the program does not poll.
fn inline(device: &'static Device, epoch: u32) {
    let silence = Duration::from_micros(device.config.takeover_us);
    // Upkeep is always done by this thread, also while the program polls.
    let interval_ns = silence.min(UPKEEP).as_nanos() as u64;
    let mut upkeep = Instant::now();
    let mut seen = Activity::of(device);
    let mut seen_at = Instant::now();
    stop_draining(device);
    while device.is_current_epoch(epoch) {
        let word = &device.poll_thread.notifications;
        sync::futex_wait(word, seen.notifications, Some(interval_ns), false);
        run_upkeep(device, &mut upkeep);
        let now = Activity::of(device);
        let waits = now.notifications != seen.notifications && device.waiters.any();
        let polls = now.polls != seen.polls;
        if waits || (!polls && seen_at.elapsed() >= silence) {
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

/// Leaves doorbells to the threads that ring them; drains those that were rung before.
fn stop_draining(device: &'static Device) {
    device.poll_thread.mark_doorbells_unattended();
    // Repeated: doorbells rung meanwhile were left to this thread.
    while device.doorbells.any() {
        device.poll_thread.while_polling(|| {
            let mut held = device.backend.lock_unbiased();
            // A NIC without a poller is closed, and its doorbells are void.
            let Some(backend) = held.as_mut() else {
                device.doorbells.drain(|_| ());
                return;
            };
            backend.poll(&device.doorbells);
            device.wake_waiters(backend);
        });
    }
}

fn run_upkeep(device: &'static Device, upkeep: &mut Instant) {
    if upkeep.elapsed() >= UPKEEP {
        *upkeep = Instant::now();
        // A program that posts meanwhile leaves its doorbell to this thread: waiting for the
        // backend lock could cost it a system call.
        device
            .poll_thread
            .doorbells_unattended
            .store(false, Ordering::Relaxed);
        if let Some(backend) = device.backend.lock_unbiased().as_mut() {
            backend.upkeep();
            // A program that polls rarely serves clock and timers even more rarely.
            backend.poll_thoroughly(&device.doorbells);
            device.wake_waiters(backend);
        }
        stop_draining(device);
    }
}

/// Polls in place of the program until it polls again without a wait. Returns its activity then.
fn take_over(
    device: &'static Device,
    epoch: u32,
    mut seen: Activity,
    upkeep: &mut Instant,
) -> Activity {
    let spin = Duration::from_micros(device.config.spin_us);
    let mut idle_since = Instant::now();
    while device.is_current_epoch(epoch) {
        // First, so that a posting thread does not wait for the poll that follows.
        device
            .poll_thread
            .doorbells_unattended
            .store(false, Ordering::Relaxed);
        if let Some(mut held) = device.backend.try_lock_unbiased()
            && device.is_current_epoch(epoch)
            && let Some(backend) = held.as_mut()
        {
            if backend.poll(&device.doorbells) {
                idle_since = Instant::now();
            }
            device.wake_waiters(backend);
        }
        let now = Activity::of(device);
        if now.polls != seen.polls && now.notifications == seen.notifications {
            stop_draining(device);
            return now;
        }
        seen = now;
        run_upkeep(device, upkeep);
        let idle = idle_since.elapsed();
        if idle >= spin {
            sleep(device, epoch, idle);
        } else {
            core::hint::spin_loop();
        }
    }
    seen
}

/// Arms the port, polls once more, and sleeps until a frame, a timer, a doorbell or a poll of the
/// program. `idle`: how long there was no work.
fn sleep(device: &'static Device, epoch: u32, idle: Duration) {
    let thread = &device.poll_thread;
    let Some((source, limit)) = thread.while_polling(|| prepare_sleep(device, epoch, idle)) else {
        return;
    };
    // Doorbells rung meanwhile were left to this thread.
    if !device.doorbells.any() {
        thread.sleep_on(&source, limit);
    }
    // Doorbells rung during this call are drained by this thread's next poll or `stop_draining`.
    thread.while_polling(|| finish_sleep(device, epoch));
}

/// Arms the port; returns the wake source and the longest sleep, or `None` if there is work.
fn prepare_sleep(
    device: &'static Device,
    epoch: u32,
    idle: Duration,
) -> Option<(WakeSource, Duration)> {
    let mut held = device.backend.lock_unbiased();
    let backend = held.as_mut()?;
    if !device.is_current_epoch(epoch) {
        return None;
    }
    let source = backend.arm();
    device.poll_thread.mark_doorbells_unattended();
    let worked = backend.poll_thoroughly(&device.doorbells);
    device.wake_waiters(backend);
    if worked {
        backend.disarm();
        return None;
    }
    *backend.armed() = Some(source.clone());
    Some((source, longest_sleep(backend, idle)))
}

/// Disarms the port after a sleep.
fn finish_sleep(device: &'static Device, epoch: u32) {
    let mut held = device.backend.lock_unbiased();
    // In a later epoch the port, and the sleep on it, belong to another thread.
    if let Some(backend) = held.as_mut()
        && device.is_current_epoch(epoch)
        && backend.armed().take().is_some()
    {
        backend.disarm();
        backend.refresh_clock();
    }
}

/// Returns how long the thread may sleep if no frame arrives.
fn longest_sleep(backend: &mut Backend, idle: Duration) -> Duration {
    let timer = backend
        .until_timer_ns()
        .map_or(UPKEEP, Duration::from_nanos);
    // A port does not wake the thread when it has room again: sending is retried after a part of
    // the time that it has waited already.
    let room = if backend.has_unsent() {
        idle / 4
    } else {
        UPKEEP
    };
    timer.min(room).clamp(SHORTEST_SLEEP, UPKEEP)
}

/// The wait timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

/// Waits until `check` returns a value: polls for the configured time, then sleeps. On a NIC of a
/// datapath process, whose core polls, it checks once and sleeps: each check may take the backend lock
/// from other threads.
/// `event`: the events after which `check` may return a value.
/// `limit`: the timeout; `None` waits without limit.
pub(crate) fn wait<T>(
    device: &'static Device,
    event: Event,
    limit: Option<Duration>,
    mut check: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    if device.served.load(Ordering::Relaxed) {
        return wait_for_core(device, event, limit, check);
    }
    device.finish_burst();
    let start = Instant::now();
    let spin = Duration::from_micros(device.config.spin_us);
    loop {
        for _ in 0..32 {
            if let Some(found) = check() {
                return Ok(found);
            }
            device.poll();
            core::hint::spin_loop();
        }
        let waited = start.elapsed();
        if limit.is_some_and(|limit| waited >= limit) {
            return check().ok_or(TimedOut);
        }
        if waited >= spin {
            break;
        }
    }
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let found = device.waiters.sleep(event, left_ns, &mut check, || {
            if device.inline {
                device.poll_thread.notify();
            }
        });
        if let Some(found) = found.or_else(&mut check) {
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            return Err(TimedOut);
        }
    }
}

fn wait_for_core<T>(
    device: &'static Device,
    event: Event,
    limit: Option<Duration>,
    mut check: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    let mut left = limit;
    if left == Some(Duration::ZERO) {
        return check().ok_or(TimedOut);
    }
    // The core continues the work that the call has begun.
    device.poll_thread.core.wake();
    loop {
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        if let Some(found) = device.waiters.sleep(event, left_ns, &mut check, || ()) {
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
