//! A NIC of this process: its tables, its turn, and who runs it.
//!
//! A `Device` is made when a NIC is first opened and kept for the life of the
//! process, so that handles can always be looked up; its port, engine and
//! threads live from the first open to the last close.

use std::fmt::Arguments;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pmd_port::PortFailure;
use vi_engine::{EndpointState, ViIndex};

use crate::attach::calls;
use crate::config::{NicConfig, Progress};
use crate::control::{ControlError, Outcome};
use crate::discovery;
use crate::doorbell::Doorbells;
use crate::driver::Driver;
use crate::events::{AsyncEvent, EventQueue};
use crate::fork::{self, Opening};
use crate::instance::{self, Instances};
use crate::log_limiter::LogLimiter;
use crate::main_thread;
use crate::memory::table::{RegionLimits, RegionTable};
use crate::notify;
use crate::open::{self, OpenError};
use crate::patience::Patience;
use crate::progress::{self, Rest};
use crate::sleepers::{Event, Sleepers};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::token::{Held, Token};
use crate::vi::{CqShared, Shelf, ViShared};

mod attached;
mod counters;
mod every;

pub(crate) use attached::{attach, attach_as};
pub(crate) use every::{disown_all, wake_event_threads};

use attached::Attached;

/// A datapath process acknowledges that a NIC is closed within this time, or the call fails.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Devices of one process, at most: as many as a handle can tell apart.
const MAX_DEVICES: usize = 4096;

static DEVICES: [OnceLock<&'static Device>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// A NIC of this process.
pub(crate) struct Device {
    number: u16,
    pub(crate) config: NicConfig,
    /// Distinguishes devices: two configurations are two devices even under one name.
    fingerprint: String,
    pub(crate) host: [u8; 16],
    pub(crate) turn: Token<Option<Driver>>,
    pub(crate) doorbells: Doorbells,
    pub(crate) regions: RegionTable,
    pub(crate) events: EventQueue,
    /// Log lines that peers or applications can cause.
    pub(crate) log_limiter: LogLimiter,
    pub(crate) vis: Shelf<ViShared>,
    pub(crate) cqs: Shelf<CqShared>,
    pub(crate) instances: Instances,
    /// The program's threads poll in their calls.
    pub(crate) inline: bool,
    /// Changes with every call of the program that polls.
    pub(crate) activity: AtomicU32,
    /// Frames may wait for what is posted next.
    pub(crate) coalesced: AtomicBool,
    pub(crate) sleepers: Sleepers,
    pub(crate) rest: Rest,
    pub(crate) patience: Patience,
    /// Counts how often the NIC went down; threads of an earlier time end.
    epoch: AtomicU32,
    /// Opened by the process that forked this one.
    foreign: AtomicBool,
    /// A VI without a tag was let through; said once.
    pub(crate) leniency_told: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What the last opening left still leaves its network, outside of the lock of openings.
    leaving: Mutex<bool>,
    left: Condvar,
    /// The datapath process and its NIC that this device stands for, if its engine is there.
    attached: Option<Attached>,
    /// The datapath process has its own threads take the turns.
    pub(crate) served: AtomicBool,
    /// Of queues that are notified of.
    pub(crate) notify_threads: AtomicU32,
    /// Entries that full completion queues have dropped.
    cq_overruns: AtomicU64,
    /// Bytes of the longest message of a VI.
    max_transfer_bytes: AtomicU32,
}

/// The device with this number.
#[inline]
pub(crate) fn device_of(number: u16) -> Option<&'static Device> {
    DEVICES.get(number as usize)?.get().copied()
}

impl Device {
    fn new(number: u16, config: NicConfig, fingerprint: String) -> Self {
        Self {
            number,
            fingerprint,
            host: config.host_address().0,
            turn: Token::new(None),
            doorbells: Doorbells::new(),
            regions: RegionTable::new(RegionLimits {
                regions: config.max_regions,
                bytes: config.max_registered_bytes,
                region_bytes: config.max_region_bytes,
                lock: config.lock_memory,
            }),
            events: EventQueue::new(),
            log_limiter: LogLimiter::new(config.max_log_lines_per_second),
            vis: Shelf::new(config.max_vi),
            cqs: Shelf::new(config.max_cq),
            instances: Instances::default(),
            inline: config.progress == Progress::Inline,
            activity: AtomicU32::new(0),
            coalesced: AtomicBool::new(false),
            sleepers: Sleepers::new(),
            rest: Rest::default(),
            patience: Patience::new(),
            epoch: AtomicU32::new(0),
            foreign: AtomicBool::new(false),
            leniency_told: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            leaving: Mutex::new(false),
            left: Condvar::new(),
            attached: None,
            served: AtomicBool::new(false),
            notify_threads: AtomicU32::new(0),
            cq_overruns: AtomicU64::new(0),
            max_transfer_bytes: AtomicU32::new(config.max_transfer_bytes),
            config,
        }
    }

    /// Is the engine another process's?
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Is the NIC this process's own?
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        !self.foreign.load(Ordering::Relaxed)
    }

    /// Do the threads of this process take turns, when they call? Those of a child that was forked
    /// do not, whatever they call: the sockets and rings are its parent's, and what it posts is refused.
    #[inline]
    fn is_polled_here(&self) -> bool {
        self.inline && self.is_ours()
    }

    /// May a thread that was started in this epoch go on?
    #[inline]
    pub(crate) fn runs(&self, epoch: u32) -> bool {
        // Acquire: partner of the increment in `take_down`.
        self.epoch.load(Ordering::Acquire) == epoch
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The turn, for a control call.
    pub(crate) fn hold(&self) -> Held<'_, Option<Driver>> {
        self.turn.hold()
    }

    /// Why the port of the open NIC carries nothing any more.
    pub(crate) fn failure(&self) -> Option<PortFailure> {
        self.hold()
            .as_ref()
            .and_then(Driver::engine)
            .and_then(|poller| poller.failure)
    }

    /// Runs one turn if the program's threads do the polling and nobody else is at it.
    #[inline(never)]
    pub(crate) fn poll(&'static self) {
        if !self.is_polled_here() {
            return;
        }
        self.note_activity();
        if let Some(mut held) = self.turn.try_hold()
            && let Some(driver) = held.as_mut()
        {
            self.rest.leave(driver);
            driver.turn(&self.doorbells);
            self.note_coalesced(driver);
            self.announce(driver);
            if !driver.gives_way() {
                return;
            }
        } else {
            return;
        }
        // Polling brings nothing about: on a core that others want, the process is one of them.
        self.patience.give_way();
    }

    /// Has what was posted on this VI sent.
    #[inline]
    pub(crate) fn kick(&'static self, vi: &ViShared) {
        if self.inline {
            self.note_activity();
            if let Some(mut held) = self.turn.try_hold()
                && let Some(driver) = held.as_mut()
            {
                self.rest.leave(driver);
                driver.kick(vi.index, &self.doorbells);
                if driver.keeps_back() && self.sleepers.any() {
                    // Nobody else polls soon.
                    driver.send_coalesced();
                }
                self.note_coalesced(driver);
                self.announce(driver);
                return;
            }
        }
        self.ring(vi.index);
        if vi.state() != EndpointState::Connected && !self.is_attached() {
            self.flush_unconnected(vi);
        }
    }

    /// Says whether frames wait for others. Whoever sees an old answer takes a turn too many, or leaves it to the next
    /// look of the NIC's thread.
    #[inline]
    fn note_coalesced(&self, driver: &Driver) {
        let waits = driver.has_coalesced();
        if self.coalesced.load(Ordering::Relaxed) != waits {
            self.coalesced.store(waits, Ordering::Relaxed);
        }
    }

    /// What was posted before this call is on its way when it returns.
    #[inline]
    pub(crate) fn finish_burst(&'static self) {
        if self.coalesced.load(Ordering::Relaxed) {
            self.poll();
        }
    }

    /// Has whoever takes the next turn look at this VI, and makes sure that one is taken.
    #[inline]
    pub(crate) fn ring(&self, vi: ViIndex) {
        self.doorbells.ring(vi.0);
        if self.rest.is_deaf() {
            self.answer_doorbells();
        }
    }

    /// Takes a turn in place of the NIC's thread, unless that is at it or back: then the
    /// doorbell is its to answer. So a thread that posts never waits for that one, which the
    /// scheduler may have stopped; it waits for another thread of the program only.
    #[cold]
    fn answer_doorbells(&self) {
        let mut spins = 0u32;
        while self.rest.is_deaf() && !self.rest.attends() {
            if let Some(mut held) = self.turn.try_hold() {
                if let Some(driver) = held.as_mut() {
                    self.rest.leave(driver);
                    driver.turn(&self.doorbells);
                    self.announce(driver);
                }
                return;
            }
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// What was posted on a VI that processes nothing comes back at once (VIPL 2.4, 3.3.5). Of a
    /// NIC whose engine is here: the datapath process looks for itself.
    #[cold]
    pub(crate) fn flush_unconnected(&self, vi: &ViShared) {
        if let Some(Driver::Engine(poller)) = self.hold().as_mut() {
            poller.flush_unconnected(vi.index);
            self.tell(poller.path.take_happened());
        }
    }

    /// Bytes of the longest message of a VI: as configured, or the limit of the port's frames.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes.load(Ordering::Relaxed)
    }

    /// Limits messages to `most_bytes`, the limit of the port's frames, when the NIC is opened. True
    /// if that is less than configured.
    pub(crate) fn limit_transfers(&self, most_bytes: u32) -> bool {
        let configured = self.config.max_transfer_bytes;
        self.max_transfer_bytes
            .store(configured.min(most_bytes), Ordering::Relaxed);
        most_bytes < configured
    }

    /// Reports the error of a post and moves its VI, which is marked as broken, to Error (VIPL
    /// 6.3.1). Holds the lock for both: the error precedes the loss of the connection, and a handler
    /// that queries the VI finds it in Error.
    #[cold]
    pub(crate) fn fail_broken(&self, vi: ViIndex, error: AsyncEvent) {
        let mut held = self.hold();
        self.events.push(error);
        if let Some(driver) = held.as_mut() {
            driver.fail_broken(vi, &self.doorbells);
            self.announce(driver);
        }
    }

    /// The program made a call. A lost update costs nothing: any change will do.
    #[inline]
    fn note_activity(&self) {
        let seen = self.activity.load(Ordering::Relaxed);
        self.activity.store(seen.wrapping_add(1), Ordering::Relaxed);
    }

    /// Wakes whoever sleeps until something happens that did.
    #[inline]
    pub(crate) fn announce(&self, driver: &mut Driver) {
        self.tell(driver.take_happened());
    }

    /// Wakes whoever sleeps until any of this happens.
    #[inline]
    pub(crate) fn tell(&self, happened: Event) {
        if !happened.is_none() {
            self.sleepers.tell(happened);
        }
    }

    /// Wakes whoever sleeps, for whatever.
    #[cold]
    pub(crate) fn wake_sleepers(&self) {
        self.sleepers.wake(Event::ALL);
    }
}

/// Begins to open the device of this configuration. Waits while it still leaves its network: its port
/// is taken until then.
fn begin(config: &NicConfig) -> Result<(Opening, &'static Device), OpenError> {
    crate::sync::register_barrier();
    fork::watch()?;
    main_thread::watch();
    loop {
        let opening = Opening::begin();
        let device = find_or_make(config, format!("{config:?}"), || None)?;
        if !*device.leaving() {
            return Ok((opening, device));
        }
        drop(opening);
        let left = |leaving: &mut bool| *leaving;
        drop(device.left.wait_while(device.leaving(), left));
    }
}

/// The device of this configuration, open: its port is up and its threads run. The
/// returned instance is one opening of it.
pub(crate) fn open(config: &NicConfig) -> Result<(&'static Device, u64), OpenError> {
    config.check().map_err(|e| OpenError::new(e.to_string()))?;
    open::check_memory(config.max_vi)?;
    let (opening, device) = begin(config)?;
    if device.instances.count() == 0 {
        if device.served.load(Ordering::Relaxed) {
            // Whoever has opened it to serve does so again.
            return Err(OpenError::new("the NIC is down"));
        }
        device.bring_up()?;
    } else if let Some(failure) = device.failure() {
        return Err(OpenError::new(format!(
            "{failure}: the NIC can be opened again when all its openings in this process are closed"
        )));
    }
    let instance = device.instances.open(device.number, 0);
    drop(opening);
    if let Err(error) = discovery::await_up(device) {
        let _was_open = close(device, instance);
        return Err(error);
    }
    Ok((device, instance))
}

/// As [`open`], for a datapath process: its own threads take the turns, from `begin` on.
pub(crate) fn open_served(
    config: &NicConfig,
    begin: impl FnOnce(&'static Device) -> Result<(), OpenError>,
) -> Result<(&'static Device, u64), OpenError> {
    let (opening, device) = self::begin(config)?;
    if device.instances.count() > 0 {
        return Err(OpenError::new(
            "a call of a program that is gone still has it open",
        ));
    }
    device.served.store(true, Ordering::Relaxed);
    device.bring_up()?;
    let instance = device.instances.open(device.number, 0);
    drop(opening);
    if let Err(error) = begin(device).and_then(|()| discovery::await_up(device)) {
        let _was_open = close(device, instance);
        return Err(error);
    }
    Ok((device, instance))
}

/// As [`open`], but the NIC has no threads: a test plays their part.
#[cfg(test)]
pub(crate) fn open_unattended(config: &NicConfig) -> Result<(&'static Device, u64), OpenError> {
    let (_opening, device) = begin(config)?;
    if device.instances.count() == 0 {
        *device.hold() = Some(Driver::Engine(open::poller(device)?));
    }
    Ok((device, device.instances.open(device.number, 0)))
}

impl Device {
    fn bring_up(&'static self) -> Result<(), OpenError> {
        self.start(Driver::Engine(open::poller(self)?))
    }

    fn start(&'static self, driver: Driver) -> Result<(), OpenError> {
        *self.hold() = Some(driver);
        let epoch = self.epoch();
        self.events.open(epoch);
        let mut threads = Vec::with_capacity(2);
        let started = progress::start(self, epoch, &mut threads);
        *self.threads() = threads;
        if started.is_err() {
            self.abandon();
        }
        started
    }

    /// As the last close, within an opening that failed.
    fn abandon(&'static self) {
        let (driver, threads) = self.take_down();
        if let Some(mut driver) = driver {
            driver.leave_network();
        }
        self.join(threads);
    }

    /// Leaves the network, which takes as long as peers like, up to a limit: so not under the lock of
    /// openings. Then closes the port.
    fn leave(&'static self, driver: Option<Driver>) {
        let Some(mut driver) = driver else {
            return;
        };
        driver.leave_network();
        // No fork in the middle of this.
        let _opening = Opening::begin();
        drop(driver);
        *self.leaving() = false;
        self.left.notify_all();
    }

    fn leaving(&self) -> MutexGuard<'_, bool> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the polling. What is returned is to leave its network, and the threads end soon.
    fn take_down(&'static self) -> (Option<Driver>, Vec<JoinHandle<()>>) {
        // SeqCst, and before the interrupt: a thread that goes to rest after the interrupt
        // sees the new epoch, and one that rests already is got up by it.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.events.close();
        self.rest.interrupt(self);
        // The process that an attached NIC is of stays in its network.
        let driver = self.hold().take();
        let driver = driver.filter(|driver| driver.engine().is_some());
        let link = self.attached.as_ref().and_then(Attached::take_link);
        // Threads that wait in calls have it, too; and the end of an opening may not have been told.
        if let Some(link) = link {
            link.shut_down();
        }
        (driver, core::mem::take(&mut *self.threads()))
    }

    /// Logs a line that a peer or an application can cause.
    pub(crate) fn log_limited(&self, level: log::Level, line: Arguments<'_>) {
        let subject = format!("NIC {}", self.config.name);
        self.log_limiter.log(level, &subject, line);
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, threads: Vec<JoinHandle<()>>) {
        // A handler that closes a NIC would wait for itself, or for another handler that
        // waits for it. The threads end without being waited for.
        if instance::in_handler() {
            return;
        }
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread of NIC {} panicked", self.config.name);
            }
        }
    }

    /// In a process that was forked: this NIC is the parent's.
    fn disown(&self) {
        self.foreign.store(true, Ordering::Relaxed);
        for vi in self.vis.iter() {
            vi.retire();
        }
        for cq in self.cqs.iter() {
            cq.retire();
        }
    }
}

fn find_or_make(
    config: &NicConfig,
    fingerprint: String,
    attached: impl FnOnce() -> Option<Attached>,
) -> Result<&'static Device, OpenError> {
    for (number, place) in DEVICES.iter().enumerate() {
        match place.get() {
            Some(device) if device.is_ours() && device.fingerprint == fingerprint => {
                return Ok(device);
            }
            Some(_) => {}
            None => {
                let mut device = Device::new(number as u16, config.clone(), fingerprint);
                device.attached = attached();
                return Ok(place.get_or_init(|| Box::leak(Box::new(device))));
            }
        }
    }
    Err(OpenError::new(
        "too many different NIC configurations in one process",
    ))
}

/// Ends one opening and releases all it owns; with the last one the NIC goes down, which takes about
/// `ulp_timeout_ms` at most, whatever peers do, and holds up no other NIC and no fork. When this
/// returns, no handler of the opening runs, unless it is called from one.
///
/// # Errors
/// `InvalidParameter` if the opening was closed already. `Resource` if the datapath process has
/// not acknowledged it: then nothing is closed, since the process may still reach the memory.
pub(crate) fn close(device: &'static Device, instance: u64) -> Outcome<()> {
    let (closed, ended, removed, (driver, threads)) = {
        let _opening = Opening::begin();
        let remote = device.instances.remote(instance);
        if let Some(remote) = remote.filter(|_| device.is_attached()) {
            let is_last = device.instances.count() == 1;
            calls::close(device, remote, is_last, CLOSE_LIMIT)?;
        }
        let closed = device.instances.close(instance);
        let closed = closed.ok_or(ControlError::InvalidParameter)?;
        let (ended, removed) = crate::control::release_instance(device, instance, closed.conns());
        let down = if device.instances.count() == 0 {
            let down = device.take_down();
            *device.leaving() = down.0.is_some();
            down
        } else {
            (None, Vec::new())
        };
        (closed, ended, removed, down)
    };
    // Whoever waits for something of this opening learns that it is gone.
    device.wake_sleepers();
    device.leave(driver);
    notify::settle(ended);
    device.instances.await_handler(instance);
    device.join(threads);
    drop(removed);
    // The handler goes last and outside of every lock: it may own things of the program's.
    drop(closed);
    Ok(())
}
