//! A NIC of this process: its tables, its backend lock, and its threads.
//!
//! A `Device` is created when a NIC is first opened and kept for the life of the
//! process, so that handles can always be looked up; its port, engine and
//! threads exist from the first open to the last close.

use std::fmt::Arguments;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pmd_port::PortFailure;
use vi_engine::ViIndex;
use vi_types::{CallError, Outcome, ViState};

use crate::attach::calls;
use crate::biased_lock::{BiasedGuard, BiasedLock};
use crate::config::{NicConfig, Progress};
use crate::discovery;
use crate::doorbell::Doorbells;
use crate::events::{AsyncEvent, EventQueue};
use crate::fork::{self, ForkHooks, OpenCloseLock};
use crate::log_limiter::LogLimiter;
use crate::main_thread;
use crate::memory::table::{RegionLimits, RegionTable};
use crate::nic_backend::Backend;
use crate::nic_handle::{self, NicHandles};
use crate::notify;
use crate::open::{self, OpenError};
use crate::progress::{self, PollThread};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::vi::{CqShared, ObjectTable, ViShared};
use crate::waiters::{Event, Waiters};
use crate::yield_policy::YieldPolicy;

mod all_devices;
mod attached;
mod counters;

pub(crate) use attached::{attach, attach_as};

use all_devices::{mark_all_inherited, wake_event_threads};
use attached::Attached;

/// Timeout for the acknowledgement of a close by the datapath process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of devices of one process, limited by the device field of a handle.
const MAX_DEVICES: usize = 4096;

static DEVICES: [OnceLock<&'static Device>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// A NIC of this process.
pub(crate) struct Device {
    number: u16,
    pub(crate) config: NicConfig,
    /// Identifies the configuration: two configurations are two devices even with the same name.
    fingerprint: String,
    pub(crate) host: [u8; 16],
    pub(crate) backend: BiasedLock<Option<Backend>>,
    pub(crate) doorbells: Doorbells,
    pub(crate) regions: RegionTable,
    pub(crate) events: EventQueue,
    /// Log lines that peers or applications can cause.
    pub(crate) log_limiter: LogLimiter,
    pub(crate) vis: ObjectTable<ViShared>,
    pub(crate) cqs: ObjectTable<CqShared>,
    pub(crate) nic_handles: NicHandles,
    /// The threads of the program poll in their calls.
    pub(crate) inline: bool,
    /// Changes with every call of the program that may poll.
    pub(crate) activity: AtomicU32,
    /// Coalesced frames may be pending.
    pub(crate) coalesced: AtomicBool,
    pub(crate) waiters: Waiters,
    pub(crate) poll_thread: PollThread,
    pub(crate) yield_policy: YieldPolicy,
    /// Number of times that the NIC was taken down; threads of an earlier epoch end.
    epoch: AtomicU32,
    /// Opened by the process that forked this one.
    inherited: AtomicBool,
    /// A VI without a tag was created, which is logged once.
    pub(crate) lenient_warned: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The closed NIC is still leaving its network, which happens without the open/close lock.
    leaving: Mutex<bool>,
    network_left: Condvar,
    /// The datapath process and its NIC, if this device is attached to one.
    attached: Option<Attached>,
    /// The poll threads of a datapath process poll this NIC.
    pub(crate) served: AtomicBool,
    /// Number of threads that call notify handlers.
    pub(crate) notify_threads: AtomicU32,
    /// Number of entries that full completion queues have dropped.
    cq_overruns: AtomicU64,
    /// Maximum message length of a VI in bytes.
    max_transfer_bytes: AtomicU32,
}

/// Returns the device with this number.
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
            backend: BiasedLock::new(None),
            doorbells: Doorbells::new(),
            regions: RegionTable::new(RegionLimits {
                regions: config.max_regions,
                bytes: config.max_registered_bytes,
                region_bytes: config.max_region_bytes,
                lock: config.lock_memory,
            }),
            events: EventQueue::new(),
            log_limiter: LogLimiter::new(config.max_log_lines_per_second),
            vis: ObjectTable::new(config.max_vi),
            cqs: ObjectTable::new(config.max_cq),
            nic_handles: NicHandles::default(),
            inline: config.progress == Progress::Inline,
            activity: AtomicU32::new(0),
            coalesced: AtomicBool::new(false),
            waiters: Waiters::new(),
            poll_thread: PollThread::default(),
            yield_policy: YieldPolicy::new(),
            epoch: AtomicU32::new(0),
            inherited: AtomicBool::new(false),
            lenient_warned: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            leaving: Mutex::new(false),
            network_left: Condvar::new(),
            attached: None,
            served: AtomicBool::new(false),
            notify_threads: AtomicU32::new(0),
            cq_overruns: AtomicU64::new(0),
            max_transfer_bytes: AtomicU32::new(config.max_transfer_bytes),
            config,
        }
    }

    /// Returns whether the engine is in a datapath process.
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns whether this process opened the NIC, rather than inheriting it by fork(2).
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        !self.inherited.load(Ordering::Relaxed)
    }

    /// Returns whether threads of this process poll in their calls. Not in a forked child:
    /// the sockets and rings belong to its parent, and its posts are refused.
    #[inline]
    fn is_polled_here(&self) -> bool {
        self.inline && self.is_ours()
    }

    /// Returns whether the epoch in which a thread was started is still the current one.
    #[inline]
    pub(crate) fn is_current_epoch(&self, epoch: u32) -> bool {
        // Acquire: partner of the increment in `take_down`.
        self.epoch.load(Ordering::Acquire) == epoch
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Acquires the backend lock, for a control call.
    pub(crate) fn lock(&self) -> BiasedGuard<'_, Option<Backend>> {
        self.backend.lock()
    }

    /// Returns the failure of the port of the open NIC, if it has failed.
    pub(crate) fn failure(&self) -> Option<PortFailure> {
        self.lock()
            .as_ref()
            .and_then(Backend::poller)
            .and_then(|poller| poller.failure)
    }

    /// Polls once if the threads of the program poll and no other thread holds the backend lock.
    #[inline(never)]
    pub(crate) fn poll(&'static self) {
        if !self.is_polled_here() {
            return;
        }
        self.note_activity();
        if let Some(mut held) = self.backend.try_lock()
            && let Some(backend) = held.as_mut()
        {
            self.poll_thread.wake_if_armed(backend);
            backend.poll(&self.doorbells);
            self.note_coalesced(backend);
            self.wake_waiters(backend);
            if !backend.should_yield() {
                return;
            }
        } else {
            return;
        }
        // The poll found no work: yields the core if other processes need it.
        self.yield_policy.yield_core();
    }

    /// Sends the posted descriptors of this VI.
    #[inline]
    pub(crate) fn kick(&'static self, vi: &ViShared) {
        if self.inline {
            self.note_activity();
            if let Some(mut held) = self.backend.try_lock()
                && let Some(backend) = held.as_mut()
            {
                self.poll_thread.wake_if_armed(backend);
                backend.kick(vi.index, &self.doorbells);
                if backend.has_delayed_sends() && self.waiters.any() {
                    // The waiting threads sleep, so that no other poll follows soon.
                    backend.send_coalesced();
                }
                self.note_coalesced(backend);
                self.wake_waiters(backend);
                return;
            }
        }
        self.ring(vi.index);
        if vi.state() != ViState::Connected && !self.is_attached() {
            self.flush_unconnected(vi);
        }
    }

    /// Records whether coalesced frames are pending. A thread that sees an outdated value polls needlessly, or
    /// leaves the frames to the next poll of the NIC's thread.
    #[inline]
    fn note_coalesced(&self, backend: &Backend) {
        let pending = backend.has_coalesced();
        if self.coalesced.load(Ordering::Relaxed) != pending {
            self.coalesced.store(pending, Ordering::Relaxed);
        }
    }

    /// Sends all coalesced frames.
    #[inline]
    pub(crate) fn finish_burst(&'static self) {
        if self.coalesced.load(Ordering::Relaxed) {
            self.poll();
        }
    }

    /// Rings the doorbell of a VI, and ensures that a thread serves it.
    #[inline]
    pub(crate) fn ring(&self, vi: ViIndex) {
        self.doorbells.ring(vi.0);
        if self.poll_thread.doorbells_unattended() {
            self.serve_doorbells();
        }
    }

    /// Polls on behalf of the NIC's thread, unless that thread is polling or has resumed: then it
    /// serves the doorbell. So a posting thread never waits for the NIC's thread, which the
    /// scheduler may have preempted; it waits only for other threads of the program.
    #[cold]
    fn serve_doorbells(&self) {
        let mut spins = 0u32;
        while self.poll_thread.doorbells_unattended() && !self.poll_thread.is_polling() {
            if let Some(mut held) = self.backend.try_lock() {
                if let Some(backend) = held.as_mut() {
                    self.poll_thread.wake_if_armed(backend);
                    backend.poll(&self.doorbells);
                    self.wake_waiters(backend);
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

    /// Flushes the descriptors of an unconnected VI immediately (VIPL 2.4, 3.3.5). Only if the
    /// engine is in this process: a datapath process does this itself.
    #[cold]
    pub(crate) fn flush_unconnected(&self, vi: &ViShared) {
        if let Some(Backend::Local(poller)) = self.lock().as_mut() {
            poller.flush_unconnected(vi.index);
            self.notify(poller.path.take_pending_events());
        }
    }

    /// Returns the maximum message length of a VI in bytes: as configured, or the limit of the port.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes.load(Ordering::Relaxed)
    }

    /// Limits messages to `max_bytes`, the limit of the port, when the NIC is opened. Returns true
    /// if that is less than configured.
    pub(crate) fn limit_transfers(&self, max_bytes: u32) -> bool {
        let configured = self.config.max_transfer_bytes;
        self.max_transfer_bytes
            .store(configured.min(max_bytes), Ordering::Relaxed);
        max_bytes < configured
    }

    /// Reports the error of a post and moves its VI, which is marked as broken, to Error (VIPL
    /// 6.3.1). Holds the lock for both: the error precedes the loss of the connection, and a handler
    /// that queries the VI finds it in Error.
    #[cold]
    pub(crate) fn fail_broken(&self, vi: ViIndex, error: AsyncEvent) {
        let mut held = self.lock();
        self.events.push(error);
        if let Some(backend) = held.as_mut() {
            backend.fail_broken(vi, &self.doorbells);
            self.wake_waiters(backend);
        }
    }

    /// Records a call of the program. A lost concurrent update is harmless: any change suffices.
    #[inline]
    fn note_activity(&self) {
        let seen = self.activity.load(Ordering::Relaxed);
        self.activity.store(seen.wrapping_add(1), Ordering::Relaxed);
    }

    /// Wakes the threads that wait for events which the backend has recorded.
    #[inline]
    pub(crate) fn wake_waiters(&self, backend: &mut Backend) {
        self.notify(backend.take_pending_events());
    }

    /// Wakes the threads that wait for any of these events.
    #[inline]
    pub(crate) fn notify(&self, events: Event) {
        if !events.is_none() {
            self.waiters.notify(events);
        }
    }

    /// Wakes all waiters.
    #[cold]
    pub(crate) fn wake_all_waiters(&self) {
        self.waiters.wake(Event::ALL);
    }
}

static FORK_HOOKS: ForkHooks = ForkHooks {
    lock: || Box::new(()),
    in_child: mark_all_inherited,
};

/// Prepares the process for a NIC: fork(2), the end of the main thread, barriers.
pub(crate) fn prepare_process() -> Result<(), OpenError> {
    crate::sync::register_barrier();
    fork::register(&FORK_HOOKS).map_err(|error| OpenError::new(error.to_string()))?;
    main_thread::install_exit_hook(wake_event_threads);
    Ok(())
}

/// Acquires the open/close lock and the device of this configuration. Waits while the device is leaving its network,
/// since its port is in use until then.
fn begin_open(config: &NicConfig) -> Result<(OpenCloseLock, &'static Device), OpenError> {
    prepare_process()?;
    loop {
        let lock = OpenCloseLock::acquire();
        let device = find_or_create(config, format!("{config:?}"), || None)?;
        if !*device.leaving() {
            return Ok((lock, device));
        }
        drop(lock);
        let is_leaving = |leaving: &mut bool| *leaving;
        drop(device.network_left.wait_while(device.leaving(), is_leaving));
    }
}

/// Opens the device of this configuration: its port is up and its threads run. Returns the device and a new
/// NIC handle.
pub(crate) fn open(config: &NicConfig) -> Result<(&'static Device, u64), OpenError> {
    config.check().map_err(|e| OpenError::new(e.to_string()))?;
    open::check_memory(config.max_vi)?;
    let (lock, device) = begin_open(config)?;
    if device.nic_handles.count() == 0 {
        if device.served.load(Ordering::Relaxed) {
            // The datapath process opens it again itself.
            return Err(OpenError::new("the NIC is down"));
        }
        device.bring_up()?;
    } else if let Some(failure) = device.failure() {
        return Err(OpenError::new(format!(
            "{failure}: the NIC can be opened again when all its handles in this process are closed"
        )));
    }
    let nic_handle = device.nic_handles.open(device.number, 0);
    drop(lock);
    if let Err(error) = discovery::await_up(device) {
        let _was_open = close(device, nic_handle);
        return Err(error);
    }
    Ok((device, nic_handle))
}

/// As [`open`], for a datapath process: its poll threads poll the NIC, once `begin` has run.
pub(crate) fn open_served(
    config: &NicConfig,
    begin: impl FnOnce(&'static Device) -> Result<(), OpenError>,
) -> Result<(&'static Device, u64), OpenError> {
    let (lock, device) = begin_open(config)?;
    if device.nic_handles.count() > 0 {
        return Err(OpenError::new(
            "a call of an application that has ended still uses the NIC",
        ));
    }
    device.served.store(true, Ordering::Relaxed);
    device.bring_up()?;
    let nic_handle = device.nic_handles.open(device.number, 0);
    drop(lock);
    if let Err(error) = begin(device).and_then(|()| discovery::await_up(device)) {
        let _was_open = close(device, nic_handle);
        return Err(error);
    }
    Ok((device, nic_handle))
}

/// As [`open`], without threads: the test polls the NIC.
#[cfg(test)]
pub(crate) fn open_without_threads(
    config: &NicConfig,
) -> Result<(&'static Device, u64), OpenError> {
    let (_lock, device) = begin_open(config)?;
    if device.nic_handles.count() == 0 {
        *device.lock() = Some(Backend::Local(open::poller(device)?));
    }
    Ok((device, device.nic_handles.open(device.number, 0)))
}

impl Device {
    fn bring_up(&'static self) -> Result<(), OpenError> {
        self.start(Backend::Local(open::poller(self)?))
    }

    fn start(&'static self, backend: Backend) -> Result<(), OpenError> {
        *self.lock() = Some(backend);
        let epoch = self.epoch();
        self.events.open(epoch);
        let mut threads = Vec::with_capacity(2);
        let started = progress::start(self, epoch, &mut threads);
        *self.threads() = threads;
        if started.is_err() {
            self.abort_open();
        }
        started
    }

    /// Takes the NIC down again after an open that failed.
    fn abort_open(&'static self) {
        let (backend, threads) = self.take_down();
        if let Some(mut backend) = backend {
            backend.leave_network();
        }
        self.join(threads);
    }

    /// Leaves the network, whose duration depends on peers, up to a limit, and so happens without the open/close
    /// lock. Then closes the port.
    fn leave(&'static self, backend: Option<Backend>) {
        let Some(mut backend) = backend else {
            return;
        };
        backend.leave_network();
        // No fork while the port is closed.
        let _lock = OpenCloseLock::acquire();
        drop(backend);
        *self.leaving() = false;
        self.network_left.notify_all();
    }

    fn leaving(&self) -> MutexGuard<'_, bool> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops polling. Returns the backend, which has to leave its network, and the threads, which end soon.
    fn take_down(&'static self) -> (Option<Backend>, Vec<JoinHandle<()>>) {
        // SeqCst, and before the interrupt: a thread that prepares to sleep after the interrupt
        // sees the new epoch, and one that sleeps already is woken by it.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.events.close();
        self.poll_thread.interrupt(self);
        // The NIC of a datapath process stays in its network.
        let backend = self.lock().take();
        let backend = backend.filter(|backend| backend.poller().is_some());
        let control = self.attached.as_ref().and_then(Attached::take_control);
        // Threads in blocking calls hold it, too; and the process may not know that the handle is closed.
        if let Some(control) = control {
            control.shut_down();
        }
        (backend, core::mem::take(&mut *self.threads()))
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
        // waits for it. The threads end on their own.
        if nic_handle::in_handler() {
            return;
        }
        for thread in threads {
            if thread.join().is_err() {
                log::error!("NIC {}: a thread panicked", self.config.name);
            }
        }
    }

    /// Marks the NIC as inherited, in a forked child.
    fn mark_inherited(&self) {
        self.inherited.store(true, Ordering::Relaxed);
        for vi in self.vis.iter() {
            vi.retire();
        }
        for cq in self.cqs.iter() {
            cq.retire();
        }
    }
}

/// Finds the device with this fingerprint, or creates it.
fn find_or_create(
    config: &NicConfig,
    fingerprint: String,
    attached: impl FnOnce() -> Option<Attached>,
) -> Result<&'static Device, OpenError> {
    for (number, slot) in DEVICES.iter().enumerate() {
        match slot.get() {
            Some(device) if device.is_ours() && device.fingerprint == fingerprint => {
                return Ok(device);
            }
            Some(_) => {}
            None => {
                let mut device = Device::new(number as u16, config.clone(), fingerprint);
                device.attached = attached();
                return Ok(slot.get_or_init(|| Box::leak(Box::new(device))));
            }
        }
    }
    Err(OpenError::new(
        "too many different NIC configurations in one process",
    ))
}

/// Closes a NIC handle and releases all it owns; with the last handle the NIC is taken down, which takes about
/// `ulp_timeout_ms` at most, whatever peers do, and blocks neither other NICs nor fork(2). After this
/// returns, no handler of the NIC handle runs, unless this is called from a handler.
///
/// # Errors
/// `InvalidParameter` if the handle was closed already. `Resource` if the datapath process has
/// not acknowledged the close: then nothing is closed, since the process may still access the memory.
pub(crate) fn close(device: &'static Device, nic_handle: u64) -> Outcome<()> {
    let (closed, ended, removed, (backend, threads)) = {
        let _lock = OpenCloseLock::acquire();
        let remote = device.nic_handles.remote(nic_handle);
        if let Some(remote) = remote.filter(|_| device.is_attached()) {
            let is_last = device.nic_handles.count() == 1;
            calls::close(device, remote, is_last, CLOSE_TIMEOUT)?;
        }
        let closed = device.nic_handles.close(nic_handle);
        let closed = closed.ok_or(CallError::InvalidParameter)?;
        let (ended, removed) =
            crate::control::release_nic_handle(device, nic_handle, closed.conns());
        let down = if device.nic_handles.count() == 0 {
            let down = device.take_down();
            *device.leaving() = down.0.is_some();
            down
        } else {
            (None, Vec::new())
        };
        (closed, ended, removed, down)
    };
    // Calls that wait on objects of this handle return.
    device.wake_all_waiters();
    device.leave(backend);
    notify::join_ended(ended);
    device.nic_handles.await_handler(nic_handle);
    device.join(threads);
    drop(removed);
    // The handler is dropped last and outside of every lock: its drop may run code of the program.
    drop(closed);
    Ok(())
}
