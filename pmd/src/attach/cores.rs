//! The pinned poll threads of a datapath process: each polls the NICs of its core.
//!
//! An idle thread continues to poll, or, with `idle = "hybrid"`, sleeps after `spin_us`: it requests a wake-up from
//! every port and every application, polls once more, and sleeps until a frame, a submission or a timer.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;
use pmd_port::wake::Slept;
use vi_core::sync::{AtomicBool, AtomicU64, Ordering};
use vi_core::sys;

use super::client::Clients;
use crate::config::{Idle, ProcessConfig};
use crate::device::Device;
use crate::open::OpenError;
use crate::progress;
use crate::wait_policy::YieldPolicy;

/// Interval of the upkeep of the ports, and the longest sleep.
const UPKEEP: Duration = Duration::from_millis(50);
/// The shortest sleep: a shorter one costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep on a port that cannot wake the thread, and while an application leaves its completion ring full.
const LONGEST_BLIND_SLEEP: Duration = Duration::from_millis(1);
/// Rounds in which a call holds the backend lock of a NIC, until the thread yields the core: some microseconds.
const ROUNDS_BEFORE_YIELD: u32 = 64;
/// Rounds in which calls that wait for the backend lock have priority. Later the thread polls nevertheless: the kernel
/// may run other threads than those of the calls.
const ROUNDS_OF_PRIORITY: u32 = 1024;
/// Idle rounds between two readings of the clock.
const ROUNDS_BETWEEN_CLOCK_READS: u32 = 64;

/// Counters of a poll thread.
#[derive(Debug, Default)]
pub(super) struct CoreCounters {
    pub(super) rounds: AtomicU64,
    pub(super) busy_rounds: AtomicU64,
    pub(super) sleeps: AtomicU64,
    pub(super) sleeping: AtomicBool,
}

/// A poll thread and its NICs.
pub(super) struct Core {
    pub(super) number: usize,
    /// NICs that the thread has not taken over yet.
    added: Mutex<Vec<Nic>>,
    pub(super) counters: CoreCounters,
    /// The event by which other threads of this process wake the thread.
    event: sys::EventFd,
    /// The events by which applications wake the thread.
    wakeups: sys::WakeupSet,
    /// NICs were added.
    changed: AtomicBool,
    stop: AtomicBool,
    idle: Idle,
    spin: Duration,
}

impl Core {
    pub(super) fn new(number: usize, config: &ProcessConfig) -> Result<Arc<Self>, OpenError> {
        let event = sys::EventFd::new().map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        let wakeups = sys::WakeupSet::new().map_err(|e| OpenError::new(format!("epoll: {e}")))?;
        Ok(Arc::new(Self {
            number,
            added: Mutex::new(Vec::new()),
            counters: CoreCounters::default(),
            event,
            wakeups,
            changed: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            idle: config.idle,
            spin: Duration::from_micros(config.spin_us),
        }))
    }

    /// Starts the thread, pinned to its core.
    pub(super) fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, OpenError> {
        let id = progress::find_core(Some(self.number))?;
        let core = Arc::clone(self);
        let builder = std::thread::Builder::new().name(format!("core-{}", self.number));
        let thread = sys::with_signals_blocked(|| {
            builder.spawn(move || {
                if !core_affinity::set_for_current(id) {
                    log::warn!("the poll thread could not be pinned to core {}", id.id);
                }
                core.run();
            })
        });
        thread.map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))
    }

    /// Adds a NIC that the thread is to poll. All resources for that are allocated when this returns.
    pub(super) fn add(&self, device: &'static Device) -> Result<(), OpenError> {
        let nic = Nic::new(device, &self.event)?;
        let event = self.event.try_clone();
        let event = event.map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        device.poll_thread.core.set_waker(event);
        self.added().push(nic);
        self.changed.store(true, Ordering::Release);
        self.event.signal();
        Ok(())
    }

    fn added(&self) -> MutexGuard<'_, Vec<Nic>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.event.signal();
    }

    /// Adds an application that can wake the thread; also returns the descriptor for the application.
    pub(super) fn add_client(&self) -> std::io::Result<(sys::ClientWakeup, OwnedFd)> {
        self.wakeups.add_client()
    }

    fn run(&self) {
        let mut nics: Vec<Nic> = Vec::new();
        let (mut upkeep_at, mut idle_since) = (Instant::now(), Instant::now());
        // Other programs may share this core.
        let yield_policy = YieldPolicy::new();
        let (mut idle_rounds, mut rounds_since_yield, mut contended_rounds) = (0u32, 0u32, 0u32);
        // Acquire: partners of the Release stores in `stop` and `add`.
        while !self.stop.load(Ordering::Acquire) {
            // Loaded first: the swap would lock a cache line in each round.
            if self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel) {
                nics.append(&mut self.added());
            }
            let (mut worked, mut lock_held) = (false, false);
            for nic in &nics {
                match nic.poll(contended_rounds) {
                    Some(busy) => worked |= busy,
                    None => lock_held = true,
                }
            }
            count(&self.counters.rounds);
            if lock_held {
                back_off(&mut contended_rounds);
            } else {
                contended_rounds = 0;
            }
            if worked {
                count(&self.counters.busy_rounds);
            }
            if worked || lock_held {
                (idle_rounds, rounds_since_yield) = (0, 0);
                // A busy thread reads the clock at intervals, too.
                let rounds = self.counters.rounds.load(Ordering::Relaxed);
                if !rounds.is_multiple_of(u64::from(ROUNDS_BETWEEN_CLOCK_READS)) {
                    continue;
                }
            } else {
                (idle_rounds, rounds_since_yield) = (idle_rounds + 1, rounds_since_yield + 1);
                if rounds_since_yield >= yield_policy.idle_polls() {
                    rounds_since_yield = 0;
                    yield_policy.yield_core();
                }
                if !idle_rounds.is_multiple_of(ROUNDS_BETWEEN_CLOCK_READS) {
                    core::hint::spin_loop();
                    continue;
                }
            }
            let now = Instant::now();
            if idle_rounds <= ROUNDS_BETWEEN_CLOCK_READS {
                idle_since = now;
            }
            if now >= upkeep_at {
                upkeep_at = now + UPKEEP;
                for nic in &nics {
                    nic.upkeep();
                }
            }
            if self.idle == Idle::Hybrid && now - idle_since >= self.spin {
                self.sleep(&nics);
                // After a wake-up without work, as for upkeep, it sleeps again after a few rounds.
                idle_rounds = ROUNDS_BETWEEN_CLOCK_READS;
            }
        }
    }

    /// Sleeps until a wake-up or a timer, unless a NIC has work.
    fn sleep(&self, nics: &[Nic]) {
        let mut limit = UPKEEP;
        let mut fds: Vec<RawFd> = Vec::with_capacity(nics.len() + 1);
        fds.push(self.wakeups.as_raw_fd());
        let mut worked = false;
        for nic in nics {
            match nic.prepare_sleep() {
                SleepDecision::SleepOn(source, longest) => {
                    limit = limit.min(longest);
                    match source {
                        WakeSource::Fd(fd) => fds.push(fd),
                        WakeSource::Poll => limit = limit.min(LONGEST_BLIND_SLEEP),
                        WakeSource::Futex { .. } => nic.wake_thread.watch(source),
                    }
                }
                SleepDecision::NicDown => {}
                SleepDecision::Busy => worked = true,
            }
        }
        if !worked && !self.stop.load(Ordering::Acquire) {
            self.counters.sleeping.store(true, Ordering::Relaxed);
            count(&self.counters.sleeps);
            self.event.sleep_with(&fds, limit);
            self.wakeups.clear();
            self.counters.sleeping.store(false, Ordering::Relaxed);
        }
        for nic in nics {
            nic.finish_sleep();
        }
    }
}

/// Waits while a call holds the backend lock of a NIC. Calls hold it briefly; if one does not, its thread may be
/// waiting for this core.
#[cold]
fn back_off(contended_rounds: &mut u32) {
    *contended_rounds += 1;
    if contended_rounds.is_multiple_of(ROUNDS_BEFORE_YIELD) {
        std::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

/// Whether the thread may sleep, as far as one NIC is concerned.
#[derive(Debug)]
enum SleepDecision {
    /// It may not: the NIC has work.
    Busy,
    /// It may, on this source and for this time at most.
    SleepOn(WakeSource, Duration),
    /// It may: the NIC is down.
    NicDown,
}

/// A NIC that the thread polls.
struct Nic {
    device: &'static Device,
    wake_thread: WakeThread,
}

impl Nic {
    /// `event` wakes the poll thread.
    fn new(device: &'static Device, event: &sys::EventFd) -> Result<Self, OpenError> {
        let event = event
            .try_clone()
            .map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        let wake_thread = WakeThread::start(event, &device.config.name)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            device,
            wake_thread,
        })
    }

    /// Polls the NIC. True if there was work; `None` if a call holds the backend lock, or has priority.
    /// `contended_rounds`: the number of rounds since the last one in which none did.
    #[inline]
    fn poll(&self, contended_rounds: u32) -> Option<bool> {
        let lock = &self.device.backend;
        let mut held = if contended_rounds < ROUNDS_OF_PRIORITY {
            lock.try_lock()?
        } else {
            lock.try_lock_first()?
        };
        let Some(backend) = held.as_mut() else {
            return Some(false);
        };
        let worked = backend.poll(&self.device.shared.doorbells);
        self.device.wake_waiters(backend);
        Some(worked)
    }

    fn upkeep(&self) {
        let unused = self.device.lock().as_mut().map(|backend| {
            let unused = backend.upkeep();
            backend.poll_thoroughly(&self.device.shared.doorbells);
            self.device.wake_waiters(backend);
            unused
        });
        drop(unused);
    }

    /// Requests wake-ups from the port and the applications, and polls once more.
    fn prepare_sleep(&self) -> SleepDecision {
        let mut held = self.device.lock();
        let Some(backend) = held.as_mut() else {
            return SleepDecision::NicDown;
        };
        let source = backend.arm();
        if let Some(clients) = Clients::of_backend(backend) {
            clients.prepare_sleep();
        }
        let worked = backend.poll_thoroughly(&self.device.shared.doorbells);
        self.device.wake_waiters(backend);
        if worked || self.device.shared.doorbells.any() || backend.has_unsent() {
            return SleepDecision::Busy;
        }
        let timer = backend
            .until_timer_ns()
            .map_or(UPKEEP, Duration::from_nanos);
        // An application whose completion ring is full wakes the thread when it has made space, or never: it is checked
        // at intervals, and does not keep the core awake.
        let longest = match Clients::of_backend(backend)
            .is_some_and(|clients| clients.has_pending_entries())
        {
            true => LONGEST_BLIND_SLEEP,
            false => UPKEEP,
        };
        let limit = timer.clamp(SHORTEST_SLEEP, longest);
        let now_ns = backend.state().map_or(0, |poller| poller.clock.last_ns());
        let until_ns = now_ns + limit.as_nanos() as u64;
        self.device.poll_thread.core.prepare_sleep(until_ns);
        SleepDecision::SleepOn(source, limit)
    }

    fn finish_sleep(&self) {
        self.wake_thread.cancel();
        let mut held = self.device.lock();
        self.device.poll_thread.core.finish_sleep();
        if let Some(backend) = held.as_mut() {
            backend.disarm();
            backend.refresh_clock();
            if let Some(clients) = Clients::of_backend(backend) {
                clients.finish_sleep();
            }
        }
    }
}

/// State shared with a wake thread.
#[derive(Default)]
struct WakeState {
    source: Option<WakeSource>,
    stop: bool,
}

/// A thread that waits for a port without a file descriptor, and wakes the poll thread.
struct WakeThread {
    state: Arc<(Mutex<WakeState>, Condvar)>,
}

impl WakeThread {
    fn start(event: sys::EventFd, name: &str) -> std::io::Result<Self> {
        let state = Arc::new((Mutex::new(WakeState::default()), Condvar::new()));
        let shared = Arc::clone(&state);
        let builder = std::thread::Builder::new().name(format!("wake-{name}"));
        sys::with_signals_blocked(|| {
            builder.spawn(move || {
                while let Some(source) = next_source(&shared) {
                    // An error wakes the thread, too.
                    if !matches!(source.sleep(UPKEEP), Ok(Slept::TimedOut)) {
                        event.signal();
                    }
                }
            })
        })?;
        Ok(Self { state })
    }

    fn watch(&self, source: WakeSource) {
        let (state, changed) = &*self.state;
        state.lock().unwrap_or_else(PoisonError::into_inner).source = Some(source);
        changed.notify_one();
    }

    fn cancel(&self) {
        let (state, _) = &*self.state;
        state.lock().unwrap_or_else(PoisonError::into_inner).source = None;
    }
}

impl Drop for WakeThread {
    fn drop(&mut self) {
        let (state, changed) = &*self.state;
        state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        changed.notify_one();
    }
}

/// Waits for the next source to watch; `None` when the thread is to stop.
fn next_source(shared: &(Mutex<WakeState>, Condvar)) -> Option<WakeSource> {
    let (state, changed) = shared;
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if state.stop {
            return None;
        }
        if let Some(source) = state.source.take() {
            return Some(source);
        }
        state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::client::{Client, Limits};
    use crate::attach::shared_queues::{RingSizes, SharedQueues};
    use crate::config::{Network, NicConfig};
    use crate::nic_backend::Backend;
    use crate::open;
    use vi_core::control_socket::Socket;
    use vi_core::events::AsyncEvent;

    #[test]
    fn needs_wake_is_true_only_while_the_core_sleeps() {
        let config = NicConfig {
            network: Network::segment(format!("unit-{}-core-sleeps", std::process::id())),
            ..NicConfig::default()
        };
        let (device, nic) = open::open_without_threads(&config).unwrap();
        let event = sys::EventFd::new().unwrap();
        let polled = Nic::new(device, &event).unwrap();
        let needs_wake = || {
            let mut held = device.lock();
            let backend = held.as_mut().unwrap();
            let poller = backend.state_mut().unwrap();
            let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
            assert!(poller.path.batch.push(mbuf).is_ok());
            let needs_wake = device.poll_thread.core.needs_wake(backend);
            let poller = backend.state_mut().unwrap();
            let mbuf = poller.path.batch.pop().unwrap();
            poller.path.port.free(mbuf);
            needs_wake
        };
        assert!(!needs_wake(), "it is awake and polls");
        assert!(matches!(polled.prepare_sleep(), SleepDecision::SleepOn(..)));
        assert!(needs_wake());
        polled.finish_sleep();
        assert!(!needs_wake());
        open::close(device, nic).unwrap();
    }

    /// An application that never reads its completion ring.
    fn unresponsive_client() -> Client {
        let (queues, _) = SharedQueues::create(RingSizes::for_segments(1)).unwrap();
        let (attach_socket, _) = Socket::pair().unwrap();
        let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
        let limits = Limits {
            segments: 1,
            descriptors: 1,
            share: 1,
        };
        Client::new(
            0,
            queues,
            wakeup,
            Arc::new(attach_socket),
            Arc::default(),
            limits,
        )
    }

    #[test]
    fn sleep_is_short_while_an_application_leaves_its_ring_full() {
        let config = NicConfig {
            network: Network::segment(format!("unit-{}-cores-room", std::process::id())),
            ..NicConfig::default()
        };
        let (device, handle) = open::open_without_threads(&config).unwrap();
        let nic = Nic::new(device, &sys::EventFd::new().unwrap()).unwrap();
        let longest = || {
            loop {
                match nic.prepare_sleep() {
                    SleepDecision::SleepOn(_, longest) => return longest,
                    SleepDecision::Busy => nic.finish_sleep(),
                    SleepDecision::NicDown => panic!("it is down"),
                }
            }
        };
        let report = |errors: usize| {
            let mut held = device.lock();
            let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
            let id = Clients::attach(&mut poller.path, unresponsive_client());
            for _ in 0..errors {
                let clients = Clients::of(&mut poller.path).unwrap();
                clients.report(id, &AsyncEvent::of_nic());
                poller.path.deliver_completions();
            }
        };
        report(1);
        assert!(longest() > LONGEST_BLIND_SLEEP, "it was reported");
        report(100_000);
        assert!(longest() <= LONGEST_BLIND_SLEEP, "more than the ring holds");
        open::close(device, handle).unwrap();
        assert!(matches!(nic.prepare_sleep(), SleepDecision::NicDown));
    }
}
