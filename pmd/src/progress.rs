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
//! A second thread calls the error handlers (`error_handlers.rs`), so that no handler runs in the poll loop.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;
use vi_core::biased_lock::BiasedGuard;
use vi_core::sync::{self, Ordering};
use vi_core::sys;
use vi_core::waiters::Event;

use crate::call_waiters::{CallWaiters, Object};
use crate::device::Device;
use crate::nic_backend::Backend;
use crate::open::OpenError;
use crate::poller::PollState;
use crate::wait_policy::{TakeoverPolicy, YieldPolicy};

/// The interval of the port's upkeep.
const UPKEEP: Duration = Duration::from_millis(50);
/// Polls of a waiting thread between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 32;
/// The shortest sleep: a shorter one costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// Starts the poll thread of a device that has its backend, unless the cores of a datapath process poll it.
pub(crate) fn start(
    device: &'static Device,
    epoch: u32,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), OpenError> {
    if device.poll_thread.event.get().is_none() {
        let event = sys::EventFd::new().map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        device.poll_thread.event.get_or_init(|| event);
    }
    if device.served.load(Ordering::Relaxed) {
        return Ok(());
    }
    let core = core_of(device)?;
    let run = move || match core {
        Some(core) => pinned(device, epoch, core),
        None => inline(device, epoch),
    };
    let name = format!("poll-{}", device.shared.name);
    threads.push(sys::start_thread(name, run).map_err(OpenError::thread)?);
    Ok(())
}

/// Returns the core of a pinned NIC, `None` for an inline one.
///
/// # Errors
/// The core does not exist, or this process may not use it.
fn core_of(device: &Device) -> Result<Option<core_affinity::CoreId>, OpenError> {
    if !device.config.progress.is_pinned() {
        return Ok(None);
    }
    find_core(device.config.progress.core()).map(Some)
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
        let mut unused = Vec::new();
        if let Some(backend) = held.as_mut() {
            if backend.poll(&device.shared.doorbells) {
                idle_polls = 0;
            }
            device.wake_waiters(backend);
            let now_ns = backend.state().map_or(0, |poller| poller.clock.last_ns());
            if now_ns >= upkeep_at_ns {
                upkeep_at_ns = now_ns + UPKEEP.as_nanos() as u64;
                unused = backend.upkeep();
            }
        }
        drop(held);
        drop(unused);
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
    let mut takeover = TakeoverPolicy::new(device.config.progress.inline_keys().takeover_us);
    let mut upkeep = Instant::now();
    let mut seen = Activity::of(device);
    let mut seen_at = Instant::now();
    stop_draining(device);
    while device.is_current_epoch(epoch) {
        // Upkeep is always done by this thread, also while the program polls.
        let interval_ns = takeover.silence().min(UPKEEP).as_nanos() as u64;
        let word = &device.poll_thread.notifications;
        sync::futex_wait(word, seen.notifications, Some(interval_ns), false);
        run_upkeep(device, &mut upkeep);
        let now = Activity::of(device);
        let waits = now.notifications != seen.notifications && device.shared.waiters.any();
        let polls = now.polls != seen.polls;
        if waits || (!polls && seen_at.elapsed() >= takeover.silence()) {
            if !waits && let Some(polled) = poll_in_place_of_program(device, epoch) {
                if polled.worked {
                    takeover.was_late();
                } else {
                    takeover.was_early();
                }
            }
            seen = take_over(device, epoch, now, &mut upkeep);
            seen_at = Instant::now();
        } else {
            seen = now;
            if polls {
                takeover.was_early();
                seen_at = Instant::now();
            }
        }
    }
}

/// Leaves doorbells to the threads that ring them; drains those that were rung before.
fn stop_draining(device: &'static Device) {
    device.poll_thread.mark_doorbells_unattended();
    // Repeated: doorbells rung meanwhile were left to this thread.
    while device.shared.doorbells.any() {
        device.poll_thread.while_polling(|| {
            let mut held = device.backend.lock_unbiased();
            // A NIC without a poller is closed, and its doorbells are void.
            let Some(backend) = held.as_mut() else {
                device.shared.doorbells.drain(|_| ());
                return;
            };
            backend.poll(&device.shared.doorbells);
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
        let unused = device.backend.lock_unbiased().as_mut().map(|backend| {
            let unused = backend.upkeep();
            // A program that polls rarely serves clock and timers even more rarely.
            backend.poll_thoroughly(&device.shared.doorbells);
            device.wake_waiters(backend);
            unused
        });
        drop(unused);
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
    let spin = device.spin_policy.of_nic_thread();
    let mut idle_since = Instant::now();
    while device.is_current_epoch(epoch) {
        if let Some(polled) = poll_in_place_of_program(device, epoch) {
            if polled.worked {
                idle_since = Instant::now();
            }
            if polled.has_woken {
                // The thread that was woken may have this one's core.
                sync::yield_now();
            }
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
            sleep(device, epoch, seen, idle);
        } else {
            core::hint::spin_loop();
        }
    }
    seen
}

/// The result of one poll.
struct Polled {
    worked: bool,
    /// A waiting thread was woken.
    has_woken: bool,
}

/// Polls once, and drains the doorbells of the program; `None` if another thread holds the backend lock.
fn poll_in_place_of_program(device: &'static Device, epoch: u32) -> Option<Polled> {
    // First, so that a posting thread does not wait for the poll that follows.
    device
        .poll_thread
        .doorbells_unattended
        .store(false, Ordering::Relaxed);
    let mut held = device.backend.try_lock_unbiased()?;
    let backend = held.as_mut().filter(|_| device.is_current_epoch(epoch))?;
    let worked = backend.poll(&device.shared.doorbells);
    let has_woken = device.wake_waiters(backend) > 0;
    Some(Polled { worked, has_woken })
}

/// Arms the port, polls once more, and sleeps until a frame, a timer, a doorbell or a poll of the
/// program. `seen`: the program's activity before; `idle`: how long there was no work.
fn sleep(device: &'static Device, epoch: u32, seen: Activity, idle: Duration) {
    let thread = &device.poll_thread;
    let prepared = thread.while_polling(|| prepare_sleep(device, epoch, seen, idle));
    let Some((source, limit)) = prepared else {
        return;
    };
    // Doorbells rung meanwhile were left to this thread.
    if !device.shared.doorbells.any()
        && let Some(wake_up) = thread.sleep_on(&source, limit)
    {
        device.spin_policy.nic_thread_woken(wake_up);
    }
    // Doorbells rung during this call are drained by this thread's next poll or `stop_draining`.
    thread.while_polling(|| finish_sleep(device, epoch));
}

/// Arms the port; returns the wake source and the longest sleep, or `None` if there is work or the
/// program polls: a poll that finds the port armed makes a system call. This thread may not have run
/// for long since its last look at the program's activity, so that it looks again before and after.
fn prepare_sleep(
    device: &'static Device,
    epoch: u32,
    seen: Activity,
    idle: Duration,
) -> Option<(WakeSource, Duration)> {
    let mut held = device.backend.lock_unbiased();
    let backend = held.as_mut()?;
    let is_polled = || Activity::of(device).polls != seen.polls;
    if !device.is_current_epoch(epoch) || is_polled() {
        return None;
    }
    let source = backend.arm();
    device.poll_thread.mark_doorbells_unattended();
    let worked = backend.poll_thoroughly(&device.shared.doorbells);
    device.wake_waiters(backend);
    if worked || is_polled() {
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
    let spin = device.spin_policy.of_wait();
    let mut idle_polls = 0;
    loop {
        for _ in 0..POLLS_PER_CLOCK {
            if let Some(found) = check() {
                return Ok(found);
            }
            device.poll();
            core::hint::spin_loop();
        }
        let waited = start.elapsed();
        if limit.is_some_and(|limit| waited >= limit) {
            device.spin_policy.wait_timed_out();
            return check().ok_or(TimedOut);
        }
        if waited >= spin {
            break;
        }
        idle_polls += POLLS_PER_CLOCK;
        if idle_polls >= device.yield_policy.idle_polls() {
            // What is waited for may need this core.
            idle_polls = 0;
            device.yield_policy.yield_core();
        }
    }
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let found = device.shared.waiters.sleep(event, left_ns, &mut check, || {
            if device.inline {
                device.poll_thread.notify();
            }
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let wake_up = device.shared.waiters.since_wake();
        if let Some(found) = check() {
            device.spin_policy.wait_slept(start.elapsed(), wake_up);
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            device.spin_policy.wait_timed_out();
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
        if let Some(found) = device
            .shared
            .waiters
            .sleep(event, left_ns, &mut check, || ())
        {
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            return Err(TimedOut);
        }
        left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
    }
}

/// Waits until `check`, which is called with the backend lock held, returns a value.
/// `objects`: those after whose events `check` may return a value. It also returns one if there is no poller.
/// `limit`: the timeout; `None` waits without limit.
pub(crate) fn wait_for<T>(
    device: &'static Device,
    objects: &[Object],
    limit: Option<Duration>,
    mut check: impl FnMut(&mut BiasedGuard<'_, Option<Backend>>) -> Option<T>,
) -> Result<T, TimedOut> {
    if !device.served.load(Ordering::Relaxed) {
        let events = objects.iter().map(|object| object.event());
        let event = events.fold(Event::NONE, Event::or);
        return wait(device, event, limit, || check(&mut device.lock()));
    }
    let start = Instant::now();
    let mut left = limit;
    if left != Some(Duration::ZERO) {
        // The core continues the work that the call has begun.
        device.poll_thread.core.wake();
    }
    let mut waiting = None;
    loop {
        let call = {
            let mut held = device.lock();
            let found = check(&mut held);
            let calls = held.as_mut().and_then(Backend::state_mut).map(calls_of);
            let Some(calls) = calls else {
                return found.ok_or(TimedOut);
            };
            if found.is_some() || left == Some(Duration::ZERO) {
                if let Some(call) = &waiting {
                    calls.remove(objects, call);
                }
                return found.ok_or(TimedOut);
            }
            let call = waiting.get_or_insert_with(|| calls.add(objects));
            call.begin();
            Arc::clone(call)
        };
        call.sleep(left);
        left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
    }
}

fn calls_of(state: &mut PollState) -> &mut CallWaiters {
    &mut state.path.calls
}

#[cfg(test)]
mod tests;
