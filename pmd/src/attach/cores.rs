//! The pinned threads of a datapath process: each polls the NICs of its core.
//!
//! A thread that finds nothing to do goes on looking, or, where the configuration says `hybrid`,
//! sleeps after a while: every port and every application is told to wake it, it looks once more,
//! and sleeps until a frame, a submission or a timer.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;
use pmd_port::wake::Slept;

use crate::config::{Idle, ProcessConfig};
use crate::device::Device;
use crate::open::OpenError;
use crate::patience::Patience;
use crate::progress;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::sys;

/// How often the upkeep of the ports runs, and how long a thread sleeps at most.
const UPKEEP: Duration = Duration::from_millis(50);
/// A sleep shorter than this costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// How long a port that wakes nobody is left alone, and an application that makes no room.
const BLIND_SLEEP: Duration = Duration::from_millis(1);
/// Rounds in which a call has the turn until the core is given away: some microseconds.
const REFUSALS: u32 = 64;
/// Rounds that find nothing between two looks at the clock.
const ROUNDS: u32 = 64;

/// What a core's thread has done.
#[derive(Debug, Default)]
pub(super) struct CoreCounters {
    pub(super) rounds: AtomicU64,
    pub(super) busy_rounds: AtomicU64,
    pub(super) sleeps: AtomicU64,
    pub(super) sleeping: AtomicBool,
}

/// A core and its NICs.
pub(super) struct Core {
    pub(super) number: usize,
    /// NICs that its thread is to take in.
    arrivals: Mutex<Vec<Nic>>,
    pub(super) counters: CoreCounters,
    /// What whoever in this process has something for its thread wakes it by.
    event: sys::Event,
    /// What applications wake its thread by.
    wakeups: sys::WakeupSet,
    /// There are arrivals.
    changed: AtomicBool,
    stop: AtomicBool,
    idle: Idle,
    spin: Duration,
}

impl Core {
    pub(super) fn new(number: usize, config: &ProcessConfig) -> Result<Arc<Self>, OpenError> {
        let event = sys::Event::new().map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        let wakeups = sys::WakeupSet::new().map_err(|e| OpenError::new(format!("epoll: {e}")))?;
        Ok(Arc::new(Self {
            number,
            arrivals: Mutex::new(Vec::new()),
            counters: CoreCounters::default(),
            event,
            wakeups,
            changed: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            idle: config.idle,
            spin: Duration::from_micros(config.spin_us),
        }))
    }

    /// Starts the thread, on its core.
    pub(super) fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, OpenError> {
        let id = progress::find_core(Some(self.number))?;
        let core = Arc::clone(self);
        let builder = std::thread::Builder::new().name(format!("core-{}", self.number));
        let thread = sys::without_signals(|| {
            builder.spawn(move || {
                if !core_affinity::set_for_current(id) {
                    log::warn!("the poll thread could not be pinned to core {}", id.id);
                }
                core.run();
            })
        });
        thread.map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))
    }

    /// From now on the thread polls this NIC, too. All that it needs for that is there when this
    /// returns.
    pub(super) fn add(&self, device: &'static Device) -> Result<(), OpenError> {
        let nic = Nic::new(device, &self.event)?;
        let event = self.event.try_clone();
        let event = event.map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        device.rest.core.polled_by(event);
        self.arrivals().push(nic);
        self.changed.store(true, Ordering::Release);
        self.event.signal();
        Ok(())
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Nic>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.event.signal();
    }

    /// There is something to do on a NIC of the thread.
    pub(super) fn rouse(&self) {
        self.event.signal();
    }

    /// Adds an application that can wake the thread; gives the descriptor that the application gets for that.
    pub(super) fn add_client(&self) -> std::io::Result<(sys::ClientWakeup, OwnedFd)> {
        self.wakeups.add_client()
    }

    fn run(&self) {
        let mut nics: Vec<Nic> = Vec::new();
        let (mut upkeep_at, mut idle_since) = (Instant::now(), Instant::now());
        // Programs may have to share this core with its thread.
        let patience = Patience::new();
        let (mut idle_rounds, mut kept_rounds, mut refusals) = (0u32, 0u32, 0u32);
        // Acquire: partners of the Release stores in `stop` and `add`.
        while !self.stop.load(Ordering::Acquire) {
            // Looked at first: the swap locks a line in each round.
            if self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel) {
                nics.append(&mut self.arrivals());
            }
            let (mut worked, mut refused) = (false, false);
            for nic in &nics {
                match nic.turn() {
                    Some(busy) => worked |= busy,
                    None => refused = true,
                }
            }
            count(&self.counters.rounds);
            if refused {
                give_way(&mut refusals);
            } else {
                refusals = 0;
            }
            if worked {
                count(&self.counters.busy_rounds);
            }
            if worked || refused {
                (idle_rounds, kept_rounds) = (0, 0);
                // A busy thread looks at the clock now and then, too.
                let rounds = self.counters.rounds.load(Ordering::Relaxed);
                if !rounds.is_multiple_of(u64::from(ROUNDS)) {
                    continue;
                }
            } else {
                (idle_rounds, kept_rounds) = (idle_rounds + 1, kept_rounds + 1);
                if kept_rounds >= patience.turns() {
                    kept_rounds = 0;
                    patience.give_way();
                }
                if !idle_rounds.is_multiple_of(ROUNDS) {
                    core::hint::spin_loop();
                    continue;
                }
            }
            let now = Instant::now();
            if idle_rounds <= ROUNDS {
                idle_since = now;
            }
            if now >= upkeep_at {
                upkeep_at = now + UPKEEP;
                for nic in &nics {
                    nic.keep_up();
                }
            }
            if self.idle == Idle::Hybrid && now - idle_since >= self.spin {
                self.rest(&nics);
                // Woken for nothing, as for upkeep, it sleeps again after a few rounds.
                idle_rounds = ROUNDS;
            }
        }
    }

    /// Sleeps until there is something to do.
    fn rest(&self, nics: &[Nic]) {
        let mut limit = UPKEEP;
        let mut fds: Vec<RawFd> = Vec::with_capacity(nics.len() + 1);
        fds.push(self.wakeups.as_raw_fd());
        let mut worked = false;
        for nic in nics {
            match nic.lie_down() {
                Rest::On(source, longest) => {
                    limit = limit.min(longest);
                    match source {
                        WakeSource::Fd(fd) => fds.push(fd),
                        WakeSource::Poll => limit = limit.min(BLIND_SLEEP),
                        WakeSource::Futex { .. } => nic.waker.watch(source),
                    }
                }
                Rest::Down => {}
                Rest::Busy => worked = true,
            }
        }
        if !worked && !self.stop.load(Ordering::Acquire) {
            self.counters.sleeping.store(true, Ordering::Relaxed);
            count(&self.counters.sleeps);
            self.event.sleep_beside(&fds, limit);
            self.wakeups.clear();
            self.counters.sleeping.store(false, Ordering::Relaxed);
        }
        for nic in nics {
            nic.get_up();
        }
    }
}

/// A call has a NIC's turn. It is a short one; if it lasts, its thread may be waiting for this
/// very core.
#[cold]
fn give_way(refusals: &mut u32) {
    *refusals += 1;
    if refusals.is_multiple_of(REFUSALS) {
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

/// How a thread may sleep, as far as one NIC is concerned.
#[derive(Debug)]
enum Rest {
    /// Not at all: something was to be done.
    Busy,
    /// On this, for so long at most.
    On(WakeSource, Duration),
    /// As it likes: the NIC is down.
    Down,
}

/// A NIC as its core polls it.
struct Nic {
    device: &'static Device,
    waker: Waker,
}

impl Nic {
    /// `event` wakes the thread that is to poll it.
    fn new(device: &'static Device, event: &sys::Event) -> Result<Self, OpenError> {
        let event = event
            .try_clone()
            .map_err(|e| OpenError::new(format!("eventfd: {e}")))?;
        let waker = Waker::start(event, &device.config.name)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))?;
        Ok(Self { device, waker })
    }

    /// True if there was something to do; `None` if a call has the turn.
    #[inline]
    fn turn(&self) -> Option<bool> {
        let mut held = self.device.turn.try_hold()?;
        let Some(driver) = held.as_mut() else {
            return Some(false);
        };
        let worked = driver.turn(&self.device.doorbells);
        self.device.announce(driver);
        Some(worked)
    }

    fn keep_up(&self) {
        if let Some(driver) = self.device.hold().as_mut() {
            driver.upkeep();
            driver.long_turn(&self.device.doorbells);
            self.device.announce(driver);
        }
    }

    /// Has port and applications wake this thread, and looks once more.
    fn lie_down(&self) -> Rest {
        let mut held = self.device.hold();
        let Some(driver) = held.as_mut() else {
            return Rest::Down;
        };
        let source = driver.arm();
        if let Some(poller) = driver.engine_mut() {
            poller.path.clients.lie_down();
        }
        let worked = driver.long_turn(&self.device.doorbells);
        self.device.announce(driver);
        if worked || self.device.doorbells.any() || driver.has_unsent() {
            return Rest::Busy;
        }
        let timer = driver.until_timer_ns().map_or(UPKEEP, Duration::from_nanos);
        // An application that has no room for what it is to be told rings when it has made some,
        // or never: it is looked at now and then, and does not keep the core awake.
        let poller = driver.engine();
        let most = match poller.is_some_and(|poller| poller.path.clients.has_untold()) {
            true => BLIND_SLEEP,
            false => UPKEEP,
        };
        let limit = timer.clamp(SHORTEST_SLEEP, most);
        let now_ns = poller.map_or(0, |poller| poller.clock.last_ns());
        let until_ns = now_ns + limit.as_nanos() as u64;
        self.device.rest.core.lie_down(until_ns);
        Rest::On(source, limit)
    }

    fn get_up(&self) {
        self.waker.forget();
        let mut held = self.device.hold();
        self.device.rest.core.get_up();
        if let Some(driver) = held.as_mut() {
            driver.disarm();
            driver.refresh_clock();
            if let Some(poller) = driver.engine().map(|poller| &poller.path.clients) {
                poller.get_up();
            }
        }
    }
}

/// What a waker thread is to watch.
#[derive(Default)]
struct Watch {
    source: Option<WakeSource>,
    over: bool,
}

/// Turns the wake of a port that has no descriptor into that of the core's thread.
struct Waker {
    watch: Arc<(Mutex<Watch>, Condvar)>,
}

impl Waker {
    fn start(event: sys::Event, name: &str) -> std::io::Result<Self> {
        let watch = Arc::new((Mutex::new(Watch::default()), Condvar::new()));
        let shared = Arc::clone(&watch);
        let builder = std::thread::Builder::new().name(format!("wake-{name}"));
        sys::without_signals(|| {
            builder.spawn(move || {
                while let Some(source) = next(&shared) {
                    // An error is no reason to sleep on.
                    if !matches!(source.sleep(UPKEEP), Ok(Slept::TimedOut)) {
                        event.signal();
                    }
                }
            })
        })?;
        Ok(Self { watch })
    }

    fn watch(&self, source: WakeSource) {
        let (watch, changed) = &*self.watch;
        watch.lock().unwrap_or_else(PoisonError::into_inner).source = Some(source);
        changed.notify_one();
    }

    fn forget(&self) {
        let (watch, _) = &*self.watch;
        watch.lock().unwrap_or_else(PoisonError::into_inner).source = None;
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        let (watch, changed) = &*self.watch;
        watch.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        changed.notify_one();
    }
}

/// What to watch next; `None` when it is over.
fn next(shared: &(Mutex<Watch>, Condvar)) -> Option<WakeSource> {
    let (watch, changed) = shared;
    let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if watch.over {
            return None;
        }
        if let Some(source) = watch.source.take() {
            return Some(source);
        }
        watch = changed.wait(watch).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::arena::{Arena, RingSizes};
    use crate::attach::client::{Client, Limits};
    use crate::attach::socket::Socket;
    use crate::config::NicConfig;
    use crate::device;
    use crate::driver::Driver;
    use crate::events::AsyncEvent;

    #[test]
    fn calls_know_how_long_a_core_sleeps_and_when_it_is_up() {
        let config = NicConfig {
            segment: format!("unit-{}-core-sleeps", std::process::id()),
            ..NicConfig::default()
        };
        let (device, nic) = device::open_unattended(&config).unwrap();
        let event = sys::Event::new().unwrap();
        let polled = Nic::new(device, &event).unwrap();
        let has_unsent = || {
            let mut held = device.hold();
            let driver = held.as_mut().unwrap();
            let poller = driver.engine_mut().unwrap();
            let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
            assert!(poller.path.batch.push(mbuf).is_ok());
            let oversleeps = device.rest.core.oversleeps(driver);
            let poller = driver.engine_mut().unwrap();
            let mbuf = poller.path.batch.pop().unwrap();
            poller.path.port.free(mbuf);
            oversleeps
        };
        assert!(!has_unsent(), "it is awake and sees for itself");
        assert!(matches!(polled.lie_down(), Rest::On(..)));
        assert!(has_unsent());
        polled.get_up();
        assert!(!has_unsent());
        device::close(device, nic).unwrap();
    }

    /// An application that never looks at its rings.
    fn idler() -> Client {
        let (arena, _) = Arena::create(RingSizes::for_segments(1)).unwrap();
        let (life, _) = Socket::pair().unwrap();
        let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
        let limits = Limits {
            segments: 1,
            descriptors: 1,
            share: 1,
        };
        Client::new(0, arena, wakeup, Arc::new(life), Arc::default(), limits)
    }

    #[test]
    fn the_sleep_is_short_while_an_application_makes_no_room() {
        let config = NicConfig {
            segment: format!("unit-{}-cores-room", std::process::id()),
            ..NicConfig::default()
        };
        let (device, opening) = device::open_unattended(&config).unwrap();
        let nic = Nic::new(device, &sys::Event::new().unwrap()).unwrap();
        let longest = || {
            loop {
                match nic.lie_down() {
                    Rest::On(_, longest) => return longest,
                    Rest::Busy => nic.get_up(),
                    Rest::Down => panic!("it is down"),
                }
            }
        };
        let tell = |errors: usize| {
            let mut held = device.hold();
            let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
            let id = poller.path.add_client(idler());
            for _ in 0..errors {
                poller.path.clients.report(id, &AsyncEvent::of_nic());
                poller.path.settle_clients();
            }
        };
        tell(1);
        assert!(longest() > BLIND_SLEEP, "it was told");
        tell(100_000);
        assert!(longest() <= BLIND_SLEEP, "more than the ring holds");
        device::close(device, opening).unwrap();
        assert!(matches!(nic.lie_down(), Rest::Down));
    }
}
