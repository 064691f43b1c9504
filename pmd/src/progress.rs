//! Who polls when the program does not: the NIC's own threads.
//!
//! *Inline*: the program's threads take turns inside their calls. The NIC's
//! thread looks now and then whether they do; after a bounded time without a
//! call, or when one of them goes to sleep, it takes over: it polls, and when
//! nothing comes it arms the port and sleeps on it. A program that comes back
//! finds the port armed, disarms it and sends the thread back to looking.
//!
//! *Pinned*: the NIC's thread polls on its core and never sleeps.
//!
//! A second thread calls the error handlers, so that no handler runs in a turn.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_port::WakeSource;

use crate::config::Progress;
use crate::device::Device;
use crate::open::OpenError;
use crate::poller::Poller;
use crate::sync::{self, AtomicU32, Ordering};

/// How often the port's upkeep runs.
const UPKEEP: Duration = Duration::from_millis(50);

/// Where the NIC's thread rests, and how to get it up.
#[derive(Default)]
pub(crate) struct Rest {
    /// The thread sleeps on this while it only looks.
    bell: AtomicU32,
    /// Wakes a thread that sleeps on a port's descriptor.
    wake_fd: OnceLock<OwnedFd>,
}

impl Rest {
    /// The program polls again: whoever sleeps on the port is sent back to looking.
    #[inline]
    pub(crate) fn leave(&self, poller: &mut Poller) {
        if poller.armed.is_some() {
            self.unarm(poller);
        }
    }

    #[cold]
    fn unarm(&self, poller: &mut Poller) {
        if let Some(source) = poller.armed.take() {
            poller.path.port.disarm();
            self.rouse(&source);
        }
    }

    fn rouse(&self, source: &WakeSource) {
        match source {
            WakeSource::Futex { word, .. } => {
                word.word().fetch_add(1, Ordering::SeqCst);
                sync::futex_wake(word.word(), i32::MAX, true);
            }
            WakeSource::Fd(_) | WakeSource::Poll => self.signal_fd(),
        }
    }

    fn signal_fd(&self) {
        if let Some(fd) = self.wake_fd.get() {
            let one = 1u64.to_ne_bytes();
            // SAFETY: 8 bytes of this frame, to an eventfd that lives as long as `self`.
            // A full counter means that the thread is being woken already.
            unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), 8) };
        }
    }

    /// Gets the thread up from whatever it sleeps on, to look around.
    pub(crate) fn interrupt(&self, device: &Device) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        sync::futex_wake(&self.bell, 1, false);
        let mut held = device.hold();
        if let Some(poller) = held.as_mut() {
            self.leave(poller);
        }
    }

    /// A thread of the program goes to sleep: the NIC's thread is to take over at once.
    pub(crate) fn call_in(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        sync::futex_wake(&self.bell, 1, false);
    }

    fn sleep_on(&self, source: &WakeSource, limit: Duration) {
        match source {
            WakeSource::Futex { word, expected } => {
                sync::futex_wait(word.word(), *expected, Some(limit.as_nanos() as u64), true);
            }
            WakeSource::Fd(fd) => self.sleep_on_fd(*fd, limit),
            WakeSource::Poll => {
                self.sleep_on_fd(-1, limit.min(Duration::from_millis(1)));
            }
        }
    }

    fn sleep_on_fd(&self, fd: i32, limit: Duration) {
        let wake = self.wake_fd.get().map_or(-1, AsRawFd::as_raw_fd);
        let mut fds = [fd, wake].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: two entries and a time of this frame; no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &limit, core::ptr::null()) };
        if fds[1].revents != 0 {
            let mut count = [0u8; 8];
            // SAFETY: 8 bytes of this frame, from a non-blocking eventfd.
            unsafe { libc::read(wake, count.as_mut_ptr().cast(), 8) };
        }
    }
}

/// Starts the threads of a device whose poller is in place.
pub(crate) fn start(device: &'static Device) -> Result<Vec<JoinHandle<()>>, OpenError> {
    if device.rest.wake_fd.get().is_none() {
        // SAFETY: eventfd(2) takes two integers and gives a new descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(OpenError::new(format!("eventfd: {error}")));
        }
        // SAFETY: the descriptor is new and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        device.rest.wake_fd.get_or_init(|| fd);
    }
    let core = core_of(device)?;
    let name = &device.config.name;
    let spawn = |role: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(format!("{role}-{name}"))
            .spawn(run)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))
    };
    let poll = spawn(
        "poll",
        Box::new(move || match core {
            Some(core) => pinned(device, core),
            None => inline(device),
        }),
    )?;
    let events = spawn("events", Box::new(move || crate::instance::deliver(device)))?;
    Ok(vec![poll, events])
}

/// The core of a pinned NIC; it must exist and be ours.
fn core_of(device: &Device) -> Result<Option<core_affinity::CoreId>, OpenError> {
    if device.config.progress == Progress::Inline {
        return Ok(None);
    }
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let ids: Vec<usize> = cores.iter().map(|c| c.id).collect();
    let wanted = device.config.core.or_else(|| ids.last().copied());
    cores
        .into_iter()
        .find(|c| Some(c.id) == wanted)
        .map(Some)
        .ok_or_else(|| {
            OpenError::new(format!(
                "core = {wanted:?} is not one of the cores this process may use: {ids:?}"
            ))
        })
}

fn pinned(device: &'static Device, core: core_affinity::CoreId) {
    if !core_affinity::set_for_current(core) {
        log::warn!("the poll thread could not be pinned to core {}", core.id);
    }
    let mut upkeep = Instant::now();
    let mut idle = 0u32;
    while !device.stop.load(Ordering::Relaxed) {
        let Some(mut held) = device.turn.try_hold() else {
            std::thread::yield_now();
            continue;
        };
        if let Some(poller) = held.as_mut() {
            if poller.turn(&device.doorbells) {
                idle = 0;
            } else {
                idle += 1;
            }
            device.announce(poller);
            if idle % 1024 == 1023 && upkeep.elapsed() >= UPKEEP {
                upkeep = Instant::now();
                poller.path.port.upkeep();
            }
        }
        drop(held);
        core::hint::spin_loop();
    }
}

/// The thread of an inline NIC: looks, and takes over when nobody polls.
fn inline(device: &'static Device) {
    let look = Duration::from_micros(device.config.takeover_us);
    let mut upkeep = Instant::now();
    while !device.stop.load(Ordering::SeqCst) {
        let bell = device.rest.bell.load(Ordering::SeqCst);
        let activity = device.activity.load(Ordering::Relaxed);
        if device.sleepers.load(Ordering::SeqCst) == 0 {
            sync::futex_wait(&device.rest.bell, bell, Some(look.as_nanos() as u64), false);
        }
        keep_up(device, &mut upkeep);
        let asleep = device.sleepers.load(Ordering::SeqCst) != 0;
        if asleep || device.activity.load(Ordering::Relaxed) == activity {
            take_over(device, &mut upkeep);
        }
    }
}

fn keep_up(device: &'static Device, upkeep: &mut Instant) {
    if upkeep.elapsed() >= UPKEEP {
        *upkeep = Instant::now();
        if let Some(poller) = device.hold().as_mut() {
            poller.path.port.upkeep();
        }
    }
}

/// Polls in place of the program until it comes back.
fn take_over(device: &'static Device, upkeep: &mut Instant) {
    let spin = Duration::from_micros(device.config.spin_us);
    let mut last_work = Instant::now();
    let activity = device.activity.load(Ordering::Relaxed);
    while !device.stop.load(Ordering::SeqCst) {
        let back = device.activity.load(Ordering::Relaxed) != activity;
        if back && device.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(mut held) = device.turn.try_hold() {
            if let Some(poller) = held.as_mut() {
                if poller.turn(&device.doorbells) {
                    last_work = Instant::now();
                }
                device.announce(poller);
            }
        }
        if last_work.elapsed() >= spin {
            rest(device);
            keep_up(device, upkeep);
            last_work = Instant::now();
        } else {
            core::hint::spin_loop();
        }
    }
}

/// Arms the port, looks once more, and sleeps until a frame, a timer, or the program comes.
fn rest(device: &'static Device) {
    let (source, limit) = {
        let mut held = device.hold();
        let Some(poller) = held.as_mut() else {
            return;
        };
        let source = poller.path.port.arm();
        let worked = poller.turn(&device.doorbells);
        device.announce(poller);
        if worked {
            poller.path.port.disarm();
            return;
        }
        poller.armed = Some(source.clone());
        let now_ns = poller.clock.last_ns();
        let timer = poller
            .engine
            .poll_timeout()
            .map_or(UPKEEP, |at| Duration::from_nanos(at.saturating_sub(now_ns)));
        (source, timer.clamp(Duration::from_micros(20), UPKEEP))
    };
    device.rest.sleep_on(&source, limit);
    let mut held = device.hold();
    if let Some(poller) = held.as_mut() {
        if poller.armed.take().is_some() {
            poller.path.port.disarm();
        }
    }
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

/// Polls until `look` finds something: spins for the configured time, then sleeps.
/// `limit`: `None` waits for ever.
pub(crate) fn wait<T>(
    device: &'static Device,
    limit: Option<Duration>,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
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
        let seen = device.changed.load(Ordering::SeqCst);
        device.sleepers.fetch_add(1, Ordering::SeqCst);
        // Partner: the light barrier in `Device::announce`.
        sync::heavy_barrier();
        let found = look();
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        if found.is_none() && left != Some(Duration::ZERO) {
            if device.inline {
                device.rest.call_in();
            }
            sync::futex_wait(
                &device.changed,
                seen,
                left.map(|l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX)),
                false,
            );
        }
        device.sleepers.fetch_sub(1, Ordering::SeqCst);
        if let Some(found) = found.or_else(&mut look) {
            return Ok(found);
        }
        if left == Some(Duration::ZERO) {
            return Err(TimedOut);
        }
    }
}
