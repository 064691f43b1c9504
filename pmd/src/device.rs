//! A NIC of this process: its tables, its backend lock, and its threads.
//!
//! A `Device` is created when a NIC is first opened and kept for the life of the
//! process, so that handles can always be looked up; its port, engine and
//! threads exist from the first open to the last close.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use pmd_port::PortFailure;
use vi_core::biased_lock::{BiasedGuard, BiasedLock};
use vi_core::events::AsyncEvent;
use vi_core::fork::OpenCloseLock;
use vi_core::handler_thread::in_handler;
use vi_core::memory::table::RegionLimits;
use vi_core::nic_shared::{NicLimits, NicShared};
use vi_core::post::NewDescriptor;
use vi_core::posted_descriptor::OneSegmentSend;
use vi_core::queue::PostEnd;
use vi_core::sync::{AtomicBool, AtomicU32, Ordering};
use vi_core::vi::ViShared;
use vi_types::{ViIndex, ViState};

use crate::attach::calls::AttachedCalls;
use crate::config::{NicConfig, Protection};
use crate::control::LocalCalls;
use crate::control_calls::ControlCalls;
use crate::nic_backend::Backend;
use crate::nic_handle::NicHandles;
use crate::open::OpenError;
use crate::poll_thread::PollThread;
use crate::wait_policy::{SpinPolicy, YieldPolicy};

mod all_devices;
mod attached;
mod counters;

pub(crate) use all_devices::{mark_all_inherited, wake_event_threads};
pub(crate) use attached::Attached;

/// Maximum number of devices of one process, limited by the device field of a handle.
const MAX_DEVICES: usize = 4096;

static DEVICES: [OnceLock<&'static Device>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// A NIC of this process.
pub(crate) struct Device {
    /// The part that queues and backend use.
    pub(crate) shared: NicShared,
    pub(crate) config: NicConfig,
    /// Identifies the configuration: two configurations are two devices even with the same name.
    fingerprint: String,
    pub(crate) host: [u8; 16],
    pub(crate) backend: BiasedLock<Option<Backend>>,
    /// The control calls, as its backend carries them out.
    pub(crate) calls: &'static dyn ControlCalls,
    pub(crate) nic_handles: NicHandles,
    /// The threads of the program poll in their calls.
    pub(crate) inline: bool,
    /// Changes with every call of the program that may poll.
    pub(crate) activity: AtomicU32,
    /// Coalesced frames may be pending.
    pub(crate) coalesced: AtomicBool,
    pub(crate) poll_thread: PollThread,
    pub(crate) yield_policy: YieldPolicy,
    pub(crate) spin_policy: SpinPolicy,
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
    pub(crate) attached: Option<Attached>,
    /// The poll threads of a datapath process poll this NIC.
    pub(crate) served: AtomicBool,
    /// Maximum message length of a VI in bytes.
    max_transfer_bytes: AtomicU32,
}

/// Returns all devices of the process.
pub(crate) fn all() -> impl Iterator<Item = &'static Device> {
    DEVICES.iter().map_while(OnceLock::get).copied()
}

/// Returns the device with this number.
#[inline]
pub(crate) fn device_of(number: u16) -> Option<&'static Device> {
    DEVICES.get(number as usize)?.get().copied()
}

/// Returns the limits of a NIC with this configuration.
fn limits(config: &NicConfig) -> NicLimits {
    NicLimits {
        max_vi: config.limits.max_vi,
        max_cq: config.limits.max_cq,
        max_descriptors_per_queue: config.limits.max_descriptors_per_queue,
        max_segments_per_descriptor: config.limits.max_segments_per_descriptor,
        max_notifies_per_queue: config.limits.max_notifies_per_queue,
        max_notify_threads: config.limits.max_notify_threads,
        max_log_lines_per_second: config.limits.max_log_lines_per_second,
        regions: RegionLimits {
            regions: config.limits.max_regions,
            bytes: config.limits.max_registered_bytes,
            region_bytes: config.limits.max_region_bytes,
            lock: config.lock_memory,
        },
        is_lenient: config.protection == Protection::Lenient,
    }
}

impl Device {
    fn new(number: u16, config: NicConfig, fingerprint: String) -> Self {
        Self {
            shared: NicShared::new(number, config.name.clone(), limits(&config)),
            fingerprint,
            host: config.host_address().0,
            backend: BiasedLock::new(None),
            calls: &LocalCalls,
            nic_handles: NicHandles::default(),
            inline: !config.progress.is_pinned(),
            activity: AtomicU32::new(0),
            coalesced: AtomicBool::new(false),
            poll_thread: PollThread::default(),
            yield_policy: YieldPolicy::new(),
            spin_policy: SpinPolicy::new(config.spin_us, !config.progress.is_pinned()),
            epoch: AtomicU32::new(0),
            inherited: AtomicBool::new(false),
            lenient_warned: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            leaving: Mutex::new(false),
            network_left: Condvar::new(),
            attached: None,
            served: AtomicBool::new(false),
            max_transfer_bytes: AtomicU32::new(config.limits.max_transfer_bytes),
            config,
        }
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
            .and_then(Backend::state)
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
            backend.poll(&self.shared.doorbells);
            self.note_coalesced(backend);
            self.wake_waiters(backend);
            if !backend.should_yield(&self.yield_policy) {
                return;
            }
        } else {
            return;
        }
        // The poll found no work: yields the core if other processes need it.
        self.yield_policy.yield_core();
    }

    /// Calls the backend to send something, unless another thread holds the lock.
    #[inline]
    fn try_send<R>(&'static self, send: impl FnOnce(&mut Backend) -> R) -> Option<R> {
        self.note_activity();
        let mut held = self.backend.try_lock()?;
        let backend = held.as_mut()?;
        self.poll_thread.wake_if_armed(backend);
        let sent = send(backend);
        if backend.has_delayed_sends() && self.shared.waiters.any() {
            // The waiting threads sleep, so that no other poll follows soon.
            backend.send_delayed();
        }
        self.note_coalesced(backend);
        self.wake_waiters(backend);
        Some(sent)
    }

    /// Sends a descriptor that is to be posted on the send queue at once, without the queue, and completes it there.
    /// Returns false if that is not possible; then nothing was sent, and it is to be posted.
    #[inline]
    pub(crate) fn send_in_one_step(
        &'static self,
        descriptor: &NewDescriptor<'_>,
        end: &mut PostEnd,
        context: usize,
    ) -> bool {
        if !self.inline {
            return false;
        }
        if descriptor.is_rdma() {
            return self.carry_out_rdma(descriptor, end, context);
        }
        let vi = descriptor.vi();
        let below_bytes = vi.one_step_below_bytes.load(Ordering::Relaxed);
        let send = || descriptor.one_segment_send();
        self.carry_out(vi, below_bytes, send, end, context)
    }

    /// As [`Self::send_in_one_step`], for an RDMA operation. A separate function, so that sends do not pay for it.
    #[inline(never)]
    fn carry_out_rdma(
        &'static self,
        descriptor: &NewDescriptor<'_>,
        end: &mut PostEnd,
        context: usize,
    ) -> bool {
        let vi = descriptor.vi();
        let below_bytes = vi.one_step_rdma_below_bytes.load(Ordering::Relaxed);
        let rdma = || descriptor.one_segment_rdma();
        self.carry_out(vi, below_bytes, rdma, end, context)
    }

    #[inline(always)]
    fn carry_out(
        &'static self,
        vi: &ViShared,
        below_bytes: u32,
        find: impl FnOnce() -> Option<OneSegmentSend>,
        end: &mut PostEnd,
        context: usize,
    ) -> bool {
        if below_bytes == 0 {
            return false;
        }
        let Some(send) = find().filter(|send| send.work.length_bytes < below_bytes) else {
            return false;
        };
        let Some(slot) = vi.send.idle_slot(end) else {
            return false;
        };
        let sent =
            self.try_send(|backend| backend.send_in_one_step(vi.index, &send, slot, context));
        sent == Some(true)
    }

    /// Sends the posted descriptors of this VI.
    #[inline]
    pub(crate) fn kick(&'static self, vi: &ViShared) {
        let kick = |backend: &mut Backend| backend.kick(vi.index, &self.shared.doorbells);
        if self.inline && self.try_send(kick).is_some() {
            return;
        }
        self.ring(vi.index);
        if vi.state() != ViState::Connected {
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
        self.shared.doorbells.ring(vi.0);
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
                    backend.poll(&self.shared.doorbells);
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
        if let Some((transport, state)) = self.lock().as_mut().and_then(|held| held.local_mut()) {
            state.flush_unconnected(transport, vi.index);
            self.shared.notify(state.path.take_pending_events());
        }
    }

    /// Returns the maximum message length of a VI in bytes: as configured, or the limit of the port.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes.load(Ordering::Relaxed)
    }

    /// Limits messages to `max_bytes`, the limit of the port, when the NIC is opened. Returns true
    /// if that is less than configured.
    pub(crate) fn limit_transfers(&self, max_bytes: u32) -> bool {
        let configured = self.config.limits.max_transfer_bytes;
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
        self.shared.events.push(error);
        if let Some(backend) = held.as_mut() {
            backend.fail_broken(vi, &self.shared.doorbells);
            self.wake_waiters(backend);
        }
    }

    /// Records a call of the program. A lost concurrent update is harmless: any change suffices.
    #[inline]
    fn note_activity(&self) {
        let seen = self.activity.load(Ordering::Relaxed);
        self.activity.store(seen.wrapping_add(1), Ordering::Relaxed);
    }

    /// Wakes the threads that wait for events which the backend has recorded; returns their number.
    #[inline]
    pub(crate) fn wake_waiters(&self, backend: &mut Backend) -> usize {
        self.shared.notify(backend.take_pending_events())
    }

    /// Leaves the network, whose duration depends on peers, up to a limit, and so happens without the open/close
    /// lock. Then closes the port.
    pub(crate) fn leave(&'static self, backend: Option<Backend>) {
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

    /// Waits until the closed NIC has left its network.
    pub(crate) fn await_network_left(&self) {
        let is_leaving = |leaving: &mut bool| *leaving;
        drop(self.network_left.wait_while(self.leaving(), is_leaving));
    }

    pub(crate) fn leaving(&self) -> MutexGuard<'_, bool> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops polling. Returns the backend, which has to leave its network, and the threads, which end soon.
    pub(crate) fn take_down(&'static self) -> (Option<Backend>, Vec<JoinHandle<()>>) {
        // SeqCst, and before the interrupt: a thread that prepares to sleep after the interrupt
        // sees the new epoch, and one that sleeps already is woken by it.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.events.close();
        self.poll_thread.interrupt(&self.backend);
        // The NIC of a datapath process stays in its network.
        let backend = self.lock().take();
        let backend = backend.filter(|backend| backend.local().is_some());
        let control = self.attached.as_ref().and_then(Attached::take_control);
        // Threads in blocking calls hold it, too; and the process may not know that the handle is closed.
        if let Some(control) = control {
            control.shut_down();
        }
        (backend, core::mem::take(&mut *self.threads()))
    }

    pub(crate) fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, threads: Vec<JoinHandle<()>>) {
        // A handler that closes a NIC would wait for itself, or for another handler that
        // waits for it. The threads end on their own.
        if in_handler() {
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
        self.shared.retire_all();
    }
}

/// Finds the device with this fingerprint, or creates it.
pub(crate) fn find_or_create(
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
                if let Some(attached) = attached() {
                    device.attached = Some(attached);
                    device.calls = &AttachedCalls;
                }
                return Ok(slot.get_or_init(|| Box::leak(Box::new(device))));
            }
        }
    }
    Err(OpenError::new(
        "too many different NIC configurations in one process",
    ))
}
