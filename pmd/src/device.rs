//! A NIC of this process: its tables, its turn, and who runs it.
//!
//! A `Device` is made when a NIC is first opened and kept for the life of the
//! process, so that handles can always be looked up; its port, engine and
//! threads live from the first open to the last close.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use vi_engine::EndpointState;

use crate::config::{NicConfig, Progress};
use crate::datapath::PathCounters;
use crate::doorbell::Doorbells;
use crate::events::EventQueue;
use crate::instance::Instances;
use crate::memory::table::{RegionLimits, RegionTable};
use crate::open::{self, OpenError};
use crate::poller::Poller;
use crate::progress::Rest;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::token::{Held, Token};
use crate::vi::{CqShared, Shelf, ViShared};

/// Devices of one process, at most: as many as a handle can tell apart.
const MAX_DEVICES: usize = 4096;

static DEVICES: [OnceLock<&'static Device>; MAX_DEVICES] =
    [const { OnceLock::new() }; MAX_DEVICES];
/// Opening and closing of any device, one at a time.
static OPENING: Mutex<()> = Mutex::new(());

/// A NIC of this process.
pub(crate) struct Device {
    number: u16,
    pub(crate) config: NicConfig,
    /// Distinguishes devices: two configurations are two devices even under one name.
    fingerprint: String,
    pub(crate) host: [u8; 16],
    pub(crate) turn: Token<Option<Poller>>,
    pub(crate) doorbells: Doorbells,
    pub(crate) regions: RegionTable,
    pub(crate) events: EventQueue,
    pub(crate) vis: Shelf<ViShared>,
    pub(crate) cqs: Shelf<CqShared>,
    pub(crate) instances: Instances,
    /// The program's threads poll in their calls.
    pub(crate) inline: bool,
    /// Changes with every call of the program that polls.
    pub(crate) activity: AtomicU32,
    /// Threads that sleep on `changed`.
    pub(crate) sleepers: AtomicU32,
    /// Bumped when something completed while someone slept.
    pub(crate) changed: AtomicU32,
    pub(crate) rest: Rest,
    pub(crate) stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
                lock: config.lock_memory,
            }),
            events: EventQueue::new(),
            vis: Shelf::new(config.max_vi),
            cqs: Shelf::new(config.max_cq),
            instances: Instances::default(),
            inline: config.progress == Progress::Inline,
            activity: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            changed: AtomicU32::new(0),
            rest: Rest::default(),
            stop: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            config,
        }
    }

    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The turn, for a control call.
    pub(crate) fn hold(&self) -> Held<'_, Option<Poller>> {
        self.turn.hold()
    }

    /// Runs one turn if the program's threads do the polling and nobody else is at it.
    #[inline]
    pub(crate) fn poll(&'static self) {
        if !self.inline {
            return;
        }
        self.note_activity();
        if let Some(mut held) = self.turn.try_hold() {
            if let Some(poller) = held.as_mut() {
                self.rest.leave(poller);
                poller.turn(&self.doorbells);
                self.announce(poller);
            }
        }
    }

    /// Has what was posted on this VI sent.
    #[inline]
    pub(crate) fn kick(&'static self, vi: &ViShared) {
        if self.inline {
            self.note_activity();
            if let Some(mut held) = self.turn.try_hold() {
                if let Some(poller) = held.as_mut() {
                    self.rest.leave(poller);
                    poller.kick(vi.index);
                    self.announce(poller);
                    return;
                }
            }
        }
        self.doorbells.ring(vi.index.0);
        if vi.state() != EndpointState::Connected {
            self.flush_unconnected(vi);
        }
    }

    /// What was posted on a VI that processes nothing comes back at once (VIPL 2.4, 3.3.5).
    #[cold]
    pub(crate) fn flush_unconnected(&self, vi: &ViShared) {
        if let Some(poller) = self.hold().as_mut() {
            poller.flush_unconnected(vi.index);
            self.announce(poller);
        }
    }

    /// The program made a call. A lost update costs nothing: any change will do.
    #[inline]
    fn note_activity(&self) {
        let seen = self.activity.load(Ordering::Relaxed);
        self.activity.store(seen.wrapping_add(1), Ordering::Relaxed);
    }

    /// Wakes whoever sleeps until something completes, if anything did.
    #[inline]
    pub(crate) fn announce(&self, poller: &mut Poller) {
        if core::mem::take(&mut poller.path.completed) {
            // Partner: the heavy barrier in `wait`. Either we see the sleeper, or it
            // sees the completion.
            crate::sync::light_barrier();
            if self.sleepers.load(Ordering::Relaxed) != 0 {
                self.wake_sleepers();
            }
        }
    }

    #[cold]
    pub(crate) fn wake_sleepers(&self) {
        self.changed.fetch_add(1, Ordering::SeqCst);
        crate::sync::futex_wake(&self.changed, i32::MAX, false);
    }

    /// Counters of the data path and the engine, by name.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let held = self.hold();
        let Some(poller) = held.as_ref() else {
            return Vec::new();
        };
        let mut all: Vec<(String, u64)> = poller
            .engine
            .counters()
            .iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let PathCounters {
            cq_overruns,
            lost_descriptors,
            tx_no_room,
        } = poller.path.counters;
        let stats = poller.path.port.stats();
        let usage = self.regions.usage();
        let (exchanges_open, exchanges_dead) = poller.engine.exchange_usage();
        for (name, value) in [
            ("cq_overruns", cq_overruns),
            ("lost_descriptors", lost_descriptors),
            ("tx_no_room", tx_no_room),
            ("events_dropped", self.events.dropped()),
            ("exchanges_open", exchanges_open as u64),
            ("exchanges_dead", exchanges_dead as u64),
            ("regions", usage.regions),
            ("registered_bytes", usage.bytes),
            ("registrations_unlocked", usage.unlocked),
            ("turns", poller.turns),
            ("busy_turns", poller.busy_turns),
            ("port_rx_frames", stats.rx_frames),
            ("port_rx_bytes", stats.rx_bytes),
            ("port_tx_frames", stats.tx_frames),
            ("port_tx_bytes", stats.tx_bytes),
        ] {
            all.push((name.to_owned(), value));
        }
        all.extend(
            stats
                .counters
                .iter()
                .map(|c| (format!("port_{}", c.name), c.value)),
        );
        all
    }
}

/// The device of this configuration, open: its port is up and its threads run. The
/// returned instance is one opening of it.
pub(crate) fn open(config: &NicConfig) -> Result<(&'static Device, u64), OpenError> {
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    crate::sync::register_barrier();
    let device = find_or_make(config)?;
    if device.instances.count() == 0 {
        let poller = open::poller(device)?;
        *device.hold() = Some(poller);
        device.stop.store(false, Ordering::SeqCst);
        device.events.set_closed(false);
        let threads = match crate::progress::start(device) {
            Ok(threads) => threads,
            Err(error) => {
                *device.hold() = None;
                return Err(error);
            }
        };
        *device
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = threads;
    }
    let instance = device.instances.open(device.number);
    Ok((device, instance))
}

fn find_or_make(config: &NicConfig) -> Result<&'static Device, OpenError> {
    let fingerprint = format!("{config:?}");
    for (number, place) in DEVICES.iter().enumerate() {
        match place.get() {
            Some(device) if device.fingerprint == fingerprint => return Ok(device),
            Some(_) => {}
            None => {
                let device = Device::new(number as u16, config.clone(), fingerprint);
                return Ok(place.get_or_init(|| Box::leak(Box::new(device))));
            }
        }
    }
    Err(OpenError::new("too many different NIC configurations in one process"))
}

/// Ends one opening and releases all it owns; with the last one the NIC goes down.
pub(crate) fn close(device: &'static Device, instance: u64) {
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    crate::control::release_instance(device, instance);
    device.instances.close(instance);
    if device.instances.count() > 0 {
        return;
    }
    device.stop.store(true, Ordering::SeqCst);
    device.events.set_closed(true);
    device.rest.interrupt(device);
    device.wake_sleepers();
    let threads = core::mem::take(
        &mut *device
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    );
    for thread in threads {
        // A handler that closes the NIC runs on one of them: it cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("a thread of NIC {} panicked", device.config.name);
        }
    }
    *device.hold() = None;
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes(out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: the kernel writes at most `rest.len()` bytes at `rest`.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got > 0 {
            done += got as usize;
        } else {
            let error = std::io::Error::last_os_error();
            assert!(
                error.kind() == std::io::ErrorKind::Interrupted,
                "the kernel has no random numbers: {error}"
            );
        }
    }
}
