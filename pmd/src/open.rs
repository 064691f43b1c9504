//! Opens and closes NICs: brings up port, engine and threads, and takes them down.

mod attached;
mod claims;
mod error;
mod poller;

pub(crate) use attached::{attach, attach_as};
pub(crate) use claims::Claim;
pub use error::OpenError;
pub(crate) use poller::{check_port, tcp_address};

use std::thread::JoinHandle;
use std::time::Duration;

use pmd_port::thread::has_memory;
use vi_core::fork::{self, ForkHooks, OpenCloseLock};
use vi_core::main_thread;
use vi_core::memory::table::Removed;
use vi_core::notify_slot::join_ended;
use vi_core::sync::{Ordering, register_barrier};
use vi_core::sys;
use vi_core::waiters::Event;
use vi_types::{CallError, Outcome, ResourceError};

use crate::config::NicConfig;
use crate::control::release_nic_handle;
use crate::device::{self, Device, mark_all_inherited, wake_event_threads};
use crate::error_handlers;
use crate::nic_backend::Backend;
use crate::progress::{self, wait};

/// Checks that there is enough memory for a NIC with this many VIs. Opening the NIC then assumes it, since
/// it makes hundreds of allocations.
fn check_memory(max_vi: u32) -> Result<(), OpenError> {
    /// Upper bounds for a NIC without VIs, and for what each VI adds before it is created.
    const FIXED_BYTES: usize = 8 << 20;
    const BYTES_PER_VI: usize = 4096;
    /// Upper bound for its segment or rings, and its threads.
    const MAPPINGS: usize = 64;
    let bytes = FIXED_BYTES + max_vi as usize * BYTES_PER_VI;
    if has_memory(bytes, MAPPINGS) {
        return Ok(());
    }
    Err(OpenError::new(format!(
        "out of memory: {} KiB in {MAPPINGS} mappings needed; check RLIMIT_AS (ulimit -v) and \
         vm.max_map_count",
        bytes >> 10
    )))
}

static FORK_HOOKS: ForkHooks = ForkHooks {
    lock: || Box::new(()),
    in_child: mark_all_inherited,
};

/// Prepares the process for a NIC: fork(2), the end of the main thread, barriers.
pub(crate) fn prepare_process() -> Result<(), OpenError> {
    register_barrier();
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
        let device = device::find_or_create(config, format!("{config:?}"), || None)?;
        if !*device.leaving() {
            return Ok((lock, device));
        }
        drop(lock);
        device.await_network_left();
    }
}

/// Opens the device of this configuration: its port is up and its threads run. Returns the device and a new
/// NIC handle.
pub(crate) fn open(config: &NicConfig) -> Result<(&'static Device, u64), OpenError> {
    config.check().map_err(|e| OpenError::new(e.to_string()))?;
    check_memory(config.limits.max_vi)?;
    let (lock, device) = begin_open(config)?;
    if device.nic_handles.count() == 0 {
        if device.served.load(Ordering::Relaxed) {
            // The datapath process opens it again itself.
            return Err(OpenError::new("the NIC is down"));
        }
        bring_up(device)?;
    } else if let Some(failure) = device.failure() {
        return Err(OpenError::new(format!(
            "{failure}: the NIC can be opened again when all its handles in this process are closed"
        )));
    }
    let nic_handle = device.nic_handles.open(device.shared.number, 0);
    drop(lock);
    if let Err(error) = await_up(device) {
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
    bring_up(device)?;
    let nic_handle = device.nic_handles.open(device.shared.number, 0);
    drop(lock);
    if let Err(error) = begin(device).and_then(|()| await_up(device)) {
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
        *device.lock() = Some(poller::backend(device)?);
    }
    Ok((device, device.nic_handles.open(device.shared.number, 0)))
}

/// Brings a NIC up: its port, and its threads.
fn bring_up(device: &'static Device) -> Result<(), OpenError> {
    start(device, poller::backend(device)?)
}

/// Begins an epoch of a NIC with this backend, and starts its threads.
fn start(device: &'static Device, backend: Backend) -> Result<(), OpenError> {
    *device.lock() = Some(backend);
    let epoch = device.epoch();
    device.shared.events.open(epoch);
    let mut threads = Vec::with_capacity(2);
    let started = progress::start(device, epoch, &mut threads)
        .and_then(|()| start_events(device, epoch, &mut threads));
    *device.threads() = threads;
    if started.is_err() {
        abort(device);
    }
    started
}

/// Starts the thread that calls the error handlers.
fn start_events(
    device: &'static Device,
    epoch: u32,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), OpenError> {
    let name = format!("events-{}", device.shared.name);
    let run = move || error_handlers::deliver(device, epoch);
    threads.push(sys::start_thread(name, run).map_err(OpenError::thread)?);
    Ok(())
}

/// Takes a NIC down again after an open that failed.
fn abort(device: &'static Device) {
    let (backend, threads) = device.take_down();
    if let Some(mut backend) = backend {
        backend.leave_network();
    }
    device.join(threads);
}

/// Waits until the NIC has an N_Port_ID.
fn await_up(device: &'static Device) -> Result<(), OpenError> {
    if !device.config.discovers() {
        return Ok(());
    }
    let timeout_ms = device.config.addressing.discovery().timeout_ms;
    let limit = Duration::from_millis(timeout_ms);
    let poll = || {
        let held = device.lock();
        match held.as_ref().and_then(|backend| backend.local()) {
            // Closed by another thread meanwhile; later calls report it.
            None => Some(()),
            Some((transport, state)) => {
                (transport.is_up() || state.failure.is_some()).then_some(())
            }
        }
    };
    wait(device, Event::CONTROL, Some(limit), poll).map_err(|_| {
        OpenError::new(format!(
            "no N_Port_ID on {} within timeout_ms = {}: other ports of the link claim each one that is tried; \
             raise timeout_ms in [nic.discovery], or set another port_name",
            device.config.network.wire_name().unwrap_or_default(), timeout_ms
        ))
    })
}

/// Closes a NIC handle and releases all it owns; with the last handle the NIC is taken down, which takes about
/// `ulp_timeout_ms` at most, whatever peers do, and blocks neither other NICs nor fork(2). After this
/// returns, no handler of the NIC handle runs, unless this is called from a handler.
///
/// # Errors
/// `InvalidParameter` if the handle was closed already. `Resource` if the datapath process has
/// not acknowledged the close: then nothing is closed, since the process may still access the memory. Of `Resource`,
/// [`ResourceError::AccessInProgress`] if another process of the segment is stopped while it accesses the memory: the NIC
/// handle is closed, but the memory must not be reused before.
pub(crate) fn close(device: &'static Device, nic_handle: u64) -> Outcome<()> {
    let (closed, ended, removed, (backend, threads)) = {
        let _lock = OpenCloseLock::acquire();
        if device.nic_handles.is_open(nic_handle) {
            device.calls.end_access(device, nic_handle)?;
        }
        let closed = device.nic_handles.close(nic_handle);
        let closed = closed.ok_or(CallError::InvalidParameter)?;
        let (ended, removed) = release_nic_handle(device, nic_handle, closed.conns());
        let down = if device.nic_handles.count() == 0 {
            let down = device.take_down();
            device.shared.regions.end_export();
            *device.leaving() = down.0.is_some();
            down
        } else {
            (None, Vec::new())
        };
        (closed, ended, removed, down)
    };
    // Calls that wait on objects of this handle return.
    device.shared.wake_all_waiters();
    device.leave(backend);
    join_ended(ended);
    device.nic_handles.await_handler(nic_handle);
    device.join(threads);
    let finished = Removed::finish_all(removed);
    // The handler is dropped last and outside of every lock: its drop may run code of the program.
    drop(closed);
    finished.map_err(|_| CallError::Resource(ResourceError::AccessInProgress))
}
