//! A port of DPDK's: found, configured, started, asked and closed.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::ptr;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::Mutex;

use dpdk_sys::{
    RTE_MAX_ETHPORTS, dpdk_sys_hold_interrupts, dpdk_sys_link_is_up, dpdk_sys_release_interrupts,
    rte_dev_probe, rte_dev_remove, rte_eth_conf, rte_eth_dev_adjust_nb_rx_tx_desc,
    rte_eth_dev_close, rte_eth_dev_configure, rte_eth_dev_get_mtu, rte_eth_dev_get_port_by_name,
    rte_eth_dev_info, rte_eth_dev_info_get, rte_eth_dev_is_valid_port, rte_eth_dev_set_mtu,
    rte_eth_dev_socket_id, rte_eth_dev_start, rte_eth_dev_stop, rte_eth_macaddr_get,
    rte_eth_rx_queue_setup, rte_eth_tx_queue_setup,
};

use super::config::{DpdkError, RINGS, Said};
use super::eal::{self, Eal};
use super::log::{self, Mark};
use super::memif::{self, ControlChannel, Wish};
use super::pool::Pool;
use super::rings::End;
use crate::af_packet::is_station;
use crate::port::MacBytes;

/// Bytes of a slot of memif.
pub(super) const MEMIF_SLOT_BYTES: u32 = 2304;

/// What is refused when another has the queue.
pub(super) const RX_QUEUE_SETUP: &str = "setting a receive queue up";

/// The ports of DPDK's that ports of this process have.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn taken() -> std::sync::MutexGuard<'static, BTreeSet<u16>> {
    TAKEN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a driver is like that it does not say of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory shared with another process. Carries frames of any length, whatever it says of its MTU. Bursts fault
    /// when the other end goes while they run.
    Memif,
    /// Frames of any length, which go to whoever reads them.
    Memory,
    /// A socket of the family AF_PACKET: its slots bound the frames.
    AfPacket,
    /// Any other.
    Other,
}

impl Kind {
    fn of(driver: &str) -> Self {
        match driver {
            memif::DRIVER => Self::Memif,
            "net_ring" | "net_null" => Self::Memory,
            "net_af_packet" => Self::AfPacket,
            _ => Self::Other,
        }
    }
}

/// While this lives, nothing runs on DPDK's interrupt thread: memif does there, without a lock, what its callers do
/// elsewhere at the same time, and ends the process when the two meet.
struct Quiet(bool);

impl Quiet {
    /// For memif; others have their interrupts. The caller handles devices.
    fn around(device: &str) -> Self {
        let is_memif = device.starts_with(memif::DRIVER);
        // SAFETY: EAL runs, this thread handles devices, and it is not the interrupt thread.
        Self(is_memif && unsafe { dpdk_sys_hold_interrupts() } == 0)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if !self.0 {
            return;
        }
        // SAFETY: it is held.
        unsafe { dpdk_sys_release_interrupts() };
        // Once more, which comes after all that was told to the thread: what is closed is closed for it, too.
        // SAFETY: as above, the thread is not held now.
        if unsafe { dpdk_sys_hold_interrupts() } == 0 {
            // SAFETY: it is held.
            unsafe { dpdk_sys_release_interrupts() };
        }
    }
}

/// What a device says of itself.
#[derive(Clone, Debug)]
pub(super) struct Traits {
    pub(super) kind: Kind,
    pub(super) rx_queues: u32,
    pub(super) tx_queues: u32,
    pub(super) max_mtu_bytes: u32,
    /// Of the network interface behind it, if there is one.
    pub(super) interface_index: Option<u32>,
}

/// How a device goes away.
#[derive(Debug)]
enum Origin {
    /// It was added for us, and is removed.
    Added,
    /// An end of a pair of rings.
    Rings(End),
    /// It was there before us, and stays.
    Found,
}

/// A port of DPDK's that is ours until this is dropped, which stops it.
#[derive(Debug)]
pub(super) struct Device {
    eal: &'static Eal,
    pub(super) port: u16,
    /// As the configuration has it.
    pub(super) name: String,
    origin: Origin,
    started: bool,
    /// Of memif.
    control: Option<ControlChannel>,
}

/// Frames that the queues hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    pub(super) rx_frames: u16,
    pub(super) tx_frames: u16,
}

/// The device with slots of memif that hold our longest frame, unless it says itself how long they are. A longer frame
/// goes into several of them, of which DPDK 22.11 sends the first even if there is no room for the next: what the other
/// end reads then is without end.
fn with_slots(device: &str) -> String {
    match device.starts_with(memif::DRIVER) && !device.contains(",bsize=") {
        true => format!("{device},bsize={MEMIF_SLOT_BYTES}"),
        false => device.to_owned(),
    }
}

fn port_by_name(name: &str) -> Option<u16> {
    let name = CString::new(name).ok()?;
    let mut port = 0;
    // SAFETY: the name is a text, and there is room for a number.
    let found = unsafe { rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
    (found == 0).then_some(port)
}

fn ports() -> BTreeSet<u16> {
    // SAFETY: takes any number.
    let is_there = |&port: &u16| unsafe { rte_eth_dev_is_valid_port(port) } != 0;
    (0..RTE_MAX_ETHPORTS as u16).filter(is_there).collect()
}

impl Device {
    /// Finds or adds the device. Rings have room for so many frames, and their ends share the pool. The caller handles
    /// devices.
    pub(super) fn find(
        eal: &'static Eal,
        device: &str,
        frames: u32,
        pool: impl FnOnce() -> Result<Pool, DpdkError>,
    ) -> Result<Self, DpdkError> {
        let mark = log::mark();
        let (port, origin, control) = match device.strip_prefix(RINGS) {
            Some(name) => {
                let end = End::take(name, frames, pool)?;
                (end.make_port(mark)?, Origin::Rings(end), None)
            }
            None => Self::find_or_add(device, mark)?,
        };
        if !taken().insert(port) {
            return Err(DpdkError::DeviceTaken {
                device: device.to_owned(),
            });
        }
        Ok(Self {
            eal,
            port,
            name: device.to_owned(),
            origin,
            started: false,
            control,
        })
    }

    fn find_or_add(
        device: &str,
        mark: Mark,
    ) -> Result<(u16, Origin, Option<ControlChannel>), DpdkError> {
        let name = device.split(',').next().unwrap_or(device);
        if let Some(port) = port_by_name(name) {
            if device.starts_with(memif::DRIVER) && !taken().contains(&port) {
                return Err(DpdkError::BadConfig {
                    key: "device",
                    reason: "must have the keys of its net_memif, which is not to be named in args",
                });
            }
            return Ok((port, Origin::Found, None));
        }
        let no_device = |said| DpdkError::NoDevice {
            device: device.to_owned(),
            said,
        };
        let control = ControlChannel::prepare(device).map_err(|error| DpdkError::Socket {
            device: device.to_owned(),
            error,
        })?;
        let words = control.as_ref().map_or(device, ControlChannel::words);
        let words = CString::new(with_slots(words))
            .map_err(|_| no_device(eal::said(libc::EINVAL, mark)))?;
        let before = ports();
        let _quiet = Quiet::around(device);
        // SAFETY: EAL runs, and this thread handles devices.
        let probe = || unsafe { rte_dev_probe(words.as_ptr()) };
        // Drivers warn of what they do without, and errors quote them.
        let probed = log::expecting_failure(probe);
        if probed < 0 {
            return Err(no_device(eal::said(probed, mark)));
        }
        let added = ports().difference(&before).next().copied();
        match port_by_name(name).or(added) {
            Some(port) => Ok((port, Origin::Added, control)),
            None => Err(no_device(eal::said(libc::ENODEV, mark))),
        }
    }

    /// A key of the device's configuration.
    pub(super) fn key(&self, key: &str) -> Option<&str> {
        let mut words = self.name.split(',').skip(1);
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn refused(&self, call: &'static str, number: c_int, mark: Mark) -> DpdkError {
        DpdkError::Dpdk {
            call,
            said: eal::said(number, mark),
        }
    }

    fn info(&self) -> Result<rte_eth_dev_info, DpdkError> {
        let mark = log::mark();
        let mut info = MaybeUninit::uninit();
        // SAFETY: the port exists, and there is room for the record.
        let told = unsafe { rte_eth_dev_info_get(self.port, info.as_mut_ptr()) };
        if told != 0 {
            return Err(self.refused("asking the device what it is", told, mark));
        }
        // SAFETY: it was told, so all of it is written.
        Ok(unsafe { info.assume_init() })
    }

    pub(super) fn traits(&self) -> Result<Traits, DpdkError> {
        let info = self.info()?;
        let driver = match info.driver_name.is_null() {
            true => String::new(),
            // SAFETY: the driver's name is a text that lives as long as the driver.
            false => unsafe { CStr::from_ptr(info.driver_name) }
                .to_string_lossy()
                .into_owned(),
        };
        Ok(Traits {
            kind: Kind::of(&driver),
            rx_queues: info.max_rx_queues.into(),
            tx_queues: info.max_tx_queues.into(),
            max_mtu_bytes: info.max_mtu.into(),
            interface_index: (info.if_index != 0).then_some(info.if_index),
        })
    }

    /// The pool of a pair of rings.
    pub(super) fn shared_pool(&self) -> Option<std::sync::Arc<Pool>> {
        match &self.origin {
            Origin::Rings(end) => Some(end.pool()),
            Origin::Added | Origin::Found => None,
        }
    }

    /// The memory node that the device is near to, or -1.
    pub(super) fn socket(&self) -> i32 {
        // SAFETY: the port exists.
        unsafe { rte_eth_dev_socket_id(self.port) }
    }

    /// Its own address, before it is asked to receive for others; net_ring has none.
    pub(super) fn mac(&self) -> Option<MacBytes> {
        let mut address = MaybeUninit::uninit();
        // SAFETY: the port exists, and there is room for an address.
        let told = unsafe { rte_eth_macaddr_get(self.port, address.as_mut_ptr()) };
        // SAFETY: if it was told, it is written.
        let mac = (told == 0).then(|| unsafe { address.assume_init() }.addr_bytes);
        mac.filter(|&mac| is_station(mac))
    }

    /// Gives the device its queues; with an MTU if it is to have one from the start.
    pub(super) fn configure(&self, queues: (u16, u16), mtu_bytes: u32) -> Result<(), DpdkError> {
        let mark = log::mark();
        let mut conf = rte_eth_conf::default();
        conf.rxmode.mtu = mtu_bytes;
        // SAFETY: the port exists and is stopped, and the record is copied.
        match unsafe { rte_eth_dev_configure(self.port, queues.0, queues.1, &conf) } {
            0 => Ok(()),
            number => Err(self.refused("configuring the device", number, mark)),
        }
    }

    /// Gives the device an MTU; `false` if it knows of none.
    pub(super) fn set_mtu(&self, mtu_bytes: u32) -> Result<bool, Said> {
        let mark = log::mark();
        let mtu = u16::try_from(mtu_bytes).unwrap_or(u16::MAX);
        // SAFETY: the port exists.
        match unsafe { rte_eth_dev_set_mtu(self.port, mtu) } {
            0 => Ok(true),
            number if number == -libc::ENOTSUP => Ok(false),
            number => Err(eal::said(number, mark)),
        }
    }

    pub(super) fn mtu_bytes(&self) -> u32 {
        let mut mtu = 0;
        // SAFETY: the port exists, and there is room for a number.
        unsafe { rte_eth_dev_get_mtu(self.port, &mut mtu) };
        mtu.into()
    }

    /// How many of the frames asked for the queues will hold.
    pub(super) fn depths(&self, rx_frames: u32, tx_frames: u32) -> Result<Depths, DpdkError> {
        let mark = log::mark();
        let short = |frames| u16::try_from(frames).unwrap_or(u16::MAX);
        let (mut rx, mut tx) = (short(rx_frames), short(tx_frames));
        // SAFETY: the port exists, and both numbers are ours.
        match unsafe { rte_eth_dev_adjust_nb_rx_tx_desc(self.port, &mut rx, &mut tx) } {
            0 => Ok(Depths {
                rx_frames: rx,
                tx_frames: tx,
            }),
            number => Err(self.refused("asking how deep the queues are", number, mark)),
        }
    }

    /// Sets all queues up; the pool outlives the device.
    pub(super) fn set_queues_up(
        &self,
        queues: (u16, u16),
        depths: Depths,
        pool: &Pool,
    ) -> Result<(), DpdkError> {
        let mark = log::mark();
        let socket = self.socket() as u32;
        for queue in 0..queues.0 {
            // SAFETY: the port is configured with this queue, and the pool outlives it, as the caller promises.
            let done = unsafe {
                rte_eth_rx_queue_setup(
                    self.port,
                    queue,
                    depths.rx_frames,
                    socket,
                    ptr::null(),
                    pool.as_ptr(),
                )
            };
            if done != 0 {
                return Err(self.refused(RX_QUEUE_SETUP, done, mark));
            }
        }
        for queue in 0..queues.1 {
            // SAFETY: the port is configured with this queue.
            let done = unsafe {
                rte_eth_tx_queue_setup(self.port, queue, depths.tx_frames, socket, ptr::null())
            };
            if done != 0 {
                return Err(self.refused("setting a send queue up", done, mark));
            }
        }
        Ok(())
    }

    /// Starts it. The caller handles devices.
    pub(super) fn start(&mut self) -> Result<(), Said> {
        let mark = log::mark();
        let _quiet = Quiet::around(&self.name);
        // SAFETY: the port has its queues, and this thread handles devices.
        match unsafe { rte_eth_dev_start(self.port) } {
            0 => {
                self.started = true;
                Ok(())
            }
            number => Err(eal::said(number, mark)),
        }
    }

    /// Stops it and starts it again; `true` if it runs then.
    pub(super) fn restart(&mut self) -> bool {
        let eal = self.eal;
        let _control = eal.control();
        self.stop();
        log::expecting_failure(|| self.start()).is_ok()
    }

    fn stop(&mut self) {
        if self.started {
            self.started = false;
            let _quiet = Quiet::around(&self.name);
            // SAFETY: the port exists, this thread handles devices, and nobody uses its queues.
            unsafe { rte_eth_dev_stop(self.port) };
        }
    }

    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// Lets memif find its other end; the device is started, with so many receive queues.
    pub(super) fn begin(&mut self, queues: u16) -> Result<(), DpdkError> {
        let begun = match &mut self.control {
            Some(control) => control.begin(self.eal, queues),
            None => Ok(()),
        };
        begun.map_err(|error| DpdkError::Socket {
            device: self.name.clone(),
            error,
        })
    }

    /// What memif wants of the caller, who runs no burst while he asks.
    pub(super) fn wish(&self) -> Wish {
        let control = self.control.as_ref();
        control.map_or_else(Wish::default, ControlChannel::look)
    }

    pub(super) fn is_rings(&self) -> bool {
        matches!(self.origin, Origin::Rings(_))
    }

    /// Did the other end of a pair of rings go? Costs nothing to ask.
    #[inline]
    pub(super) fn lost_its_peer(&self) -> bool {
        matches!(&self.origin, Origin::Rings(end) if !end.has_peer())
    }

    /// Is the other end there?
    pub(super) fn link_is_up(&self) -> bool {
        if let Origin::Rings(end) = &self.origin {
            return end.has_peer();
        }
        // SAFETY: takes any number.
        unsafe { dpdk_sys_link_is_up(self.port) != 0 }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.eal.is_forked() {
            return;
        }
        // memif's server cannot do with clients once it is removed: whoever came then would be answered out of memory
        // that is gone.
        self.control = None;
        let _control = self.eal.control();
        self.stop();
        let _quiet = Quiet::around(&self.name);
        match (&self.origin, self.info()) {
            (Origin::Found, _) => {}
            // SAFETY: the port is stopped; what it still held goes back to its pool. This thread handles devices.
            (_, Ok(info)) if !info.device.is_null() => unsafe {
                // memif's server misses its file, which is gone since long.
                log::expecting_failure(|| rte_dev_remove(info.device));
            },
            // SAFETY: as above.
            _ => unsafe {
                rte_eth_dev_close(self.port);
            },
        }
        taken().remove(&self.port);
    }
}
