//! A DPDK device: lookup, configuration, start, queries and removal.

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

use super::config::{DpdkError, FailureDetail, RING_PREFIX};
use super::eal::{self, Eal};
use super::log::{self, Mark};
use super::memif::{self, ControlChannel, ControlRequest};
use super::pool::Pool;
use super::rings::RingEndpoint;
use crate::af_packet::is_station;
use crate::port::MacBytes;

/// Default bytes of a memif slot.
pub(super) const MEMIF_SLOT_BYTES: u32 = 2304;

/// The operation that fails while another port has the queue.
pub(super) const RX_QUEUE_SETUP: &str = "receive queue setup";

/// DPDK port numbers in use by ports of this process.
static PORTS_IN_USE: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn ports_in_use() -> std::sync::MutexGuard<'static, BTreeSet<u16>> {
    PORTS_IN_USE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Properties of a driver that DPDK does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverKind {
    /// Memory shared with another process. Carries frames of any length, whatever MTU it reports. Bursts fault if the
    /// peer unmaps or truncates the memory while they run.
    Memif,
    /// Frames of any length, within this process.
    Memory,
    /// An AF_PACKET socket, whose slots limit the frame length.
    AfPacket,
    /// Any other.
    Other,
}

impl DriverKind {
    fn of(driver: &str) -> Self {
        match driver {
            memif::DRIVER => Self::Memif,
            "net_ring" | "net_null" => Self::Memory,
            "net_af_packet" => Self::AfPacket,
            _ => Self::Other,
        }
    }
}

/// Blocks DPDK's interrupt thread until dropped: memif accesses the same state there and in the caller's thread without
/// a lock, and aborts the process when both run at the same time.
struct InterruptsBlocked(bool);

impl InterruptsBlocked {
    /// Blocks the interrupt thread if the device is a memif; does nothing for other drivers. The caller holds
    /// [`Eal::control`].
    fn for_device(device: &str) -> Self {
        let is_memif = device.starts_with(memif::DRIVER);
        // SAFETY: EAL runs, this thread holds its control lock, and it is not the interrupt thread.
        Self(is_memif && unsafe { dpdk_sys_hold_interrupts() } == 0)
    }
}

impl Drop for InterruptsBlocked {
    fn drop(&mut self) {
        if !self.0 {
            return;
        }
        // SAFETY: the thread is blocked.
        unsafe { dpdk_sys_release_interrupts() };
        // Block it again, which runs after everything that was queued for the thread: it has seen all closes by then.
        // SAFETY: as above, the thread is not blocked now.
        if unsafe { dpdk_sys_hold_interrupts() } == 0 {
            // SAFETY: the thread is blocked.
            unsafe { dpdk_sys_release_interrupts() };
        }
    }
}

/// Properties of a device, mostly as DPDK reports them.
#[derive(Clone, Debug)]
pub(super) struct DeviceProperties {
    pub(super) kind: DriverKind,
    pub(super) rx_queues: u32,
    pub(super) tx_queues: u32,
    pub(super) max_mtu_bytes: u32,
    /// Index of the network interface behind it, if there is one.
    pub(super) interface_index: Option<u32>,
}

/// Origin of a device, which determines how it is closed.
#[derive(Debug)]
enum Origin {
    /// Added for this port, and removed with it.
    Added,
    /// An endpoint of a pair of rings.
    RingPair(RingEndpoint),
    /// Existed before this port, and is kept.
    Preexisting,
}

/// A DPDK device in use by one port; stopped on drop.
#[derive(Debug)]
pub(super) struct Device {
    eal: &'static Eal,
    pub(super) port: u16,
    /// As configured, with its keys.
    pub(super) name: String,
    origin: Origin,
    started: bool,
    /// Only for memif.
    control: Option<ControlChannel>,
}

/// Frames that the queues hold (queue depths).
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    pub(super) rx_frames: u16,
    pub(super) tx_frames: u16,
}

/// Adds a memif slot size that holds our longest frame to the device's arguments, unless they contain one. A frame that
/// needs several slots is not safe: DPDK 22.11 sends the first slot even if the ring is full then, and the peer reads a
/// chain that never ends.
fn with_slot_size(device: &str) -> String {
    match device.starts_with(memif::DRIVER) && !device.contains(",bsize=") {
        true => format!("{device},bsize={MEMIF_SLOT_BYTES}"),
        false => device.to_owned(),
    }
}

fn port_by_name(name: &str) -> Option<u16> {
    let name = CString::new(name).ok()?;
    let mut port = 0;
    // SAFETY: the name is NUL-terminated, and the pointer is valid for a port number.
    let found = unsafe { rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
    (found == 0).then_some(port)
}

/// Returns the port of a device, which may be named with its keys; `None` if it was not added yet.
fn port_of(device: &str) -> Option<u16> {
    port_by_name(device.split(',').next().unwrap_or(device))
}

fn ports() -> BTreeSet<u16> {
    // SAFETY: accepts any port number.
    let is_valid = |&port: &u16| unsafe { rte_eth_dev_is_valid_port(port) } != 0;
    (0..RTE_MAX_ETHPORTS as u16).filter(is_valid).collect()
}

impl Device {
    /// Whether DPDK has the device already: then its descriptors are those of this process.
    pub(super) fn is_added(eal: &Eal, device: &str) -> bool {
        let _control = eal.control();
        port_of(device).is_some()
    }

    /// Finds or adds the device. Rings hold `frames` frames, and both their endpoints share the pool. The caller holds
    /// [`Eal::control`].
    pub(super) fn find(
        eal: &'static Eal,
        device: &str,
        frames: u32,
        pool: impl FnOnce() -> Result<Pool, DpdkError>,
    ) -> Result<Self, DpdkError> {
        let mark = log::mark();
        let (port, origin, control) = match device.strip_prefix(RING_PREFIX) {
            Some(name) => {
                let endpoint = RingEndpoint::open(name, frames, pool)?;
                let port = endpoint.create_port(mark)?;
                (port, Origin::RingPair(endpoint), None)
            }
            None => Self::find_or_add(device, mark)?,
        };
        if !ports_in_use().insert(port) {
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
        if let Some(port) = port_of(device) {
            if device.starts_with(memif::DRIVER) && !ports_in_use().contains(&port) {
                return Err(DpdkError::BadConfig {
                    key: "device",
                    reason: "must contain the keys of its net_memif: name the device here, not in args",
                });
            }
            return Ok((port, Origin::Preexisting, None));
        }
        let no_device = |detail| DpdkError::NoDevice {
            device: device.to_owned(),
            detail,
        };
        let control = ControlChannel::prepare(device).map_err(|error| DpdkError::Socket {
            device: device.to_owned(),
            error,
        })?;
        let devargs = control.as_ref().map_or(device, ControlChannel::devargs);
        let devargs = CString::new(with_slot_size(devargs))
            .map_err(|_| no_device(eal::failure(libc::EINVAL, mark)))?;
        let before = ports();
        let _blocked = InterruptsBlocked::for_device(device);
        // SAFETY: EAL runs, and this thread holds its control lock.
        let probe = || unsafe { rte_dev_probe(devargs.as_ptr()) };
        // Drivers warn about optional features; errors quote the log anyway.
        let probed = log::expecting_failure(probe);
        if probed < 0 {
            return Err(no_device(eal::failure(probed, mark)));
        }
        let added = ports().difference(&before).next().copied();
        match port_of(device).or(added) {
            Some(port) => Ok((port, Origin::Added, control)),
            None => Err(no_device(eal::failure(libc::ENODEV, mark))),
        }
    }

    /// Returns the value of a key in the device's configured name.
    pub(super) fn key(&self, key: &str) -> Option<&str> {
        let mut pairs = self.name.split(',').skip(1);
        pairs.find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }

    fn call_error(&self, call: &'static str, number: c_int, mark: Mark) -> DpdkError {
        DpdkError::Dpdk {
            call,
            detail: eal::failure(number, mark),
        }
    }

    fn info(&self) -> Result<rte_eth_dev_info, DpdkError> {
        let mark = log::mark();
        let mut info = MaybeUninit::uninit();
        // SAFETY: the port exists, and the pointer is valid for the record.
        let result = unsafe { rte_eth_dev_info_get(self.port, info.as_mut_ptr()) };
        if result != 0 {
            return Err(self.call_error("reading the device information", result, mark));
        }
        // SAFETY: the call succeeded, so the whole record is written.
        Ok(unsafe { info.assume_init() })
    }

    pub(super) fn properties(&self) -> Result<DeviceProperties, DpdkError> {
        let info = self.info()?;
        let driver = match info.driver_name.is_null() {
            true => String::new(),
            // SAFETY: the driver's name is NUL-terminated and lives as long as the driver.
            false => unsafe { CStr::from_ptr(info.driver_name) }
                .to_string_lossy()
                .into_owned(),
        };
        Ok(DeviceProperties {
            kind: DriverKind::of(&driver),
            rx_queues: info.max_rx_queues.into(),
            tx_queues: info.max_tx_queues.into(),
            max_mtu_bytes: info.max_mtu.into(),
            interface_index: (info.if_index != 0).then_some(info.if_index),
        })
    }

    /// Returns the pool that both endpoints of a pair of rings share; `None` for other devices.
    pub(super) fn shared_pool(&self) -> Option<std::sync::Arc<Pool>> {
        match &self.origin {
            Origin::RingPair(endpoint) => Some(endpoint.pool()),
            Origin::Added | Origin::Preexisting => None,
        }
    }

    /// Returns the NUMA node of the device, or -1.
    pub(super) fn socket(&self) -> i32 {
        // SAFETY: the port exists.
        unsafe { rte_eth_dev_socket_id(self.port) }
    }

    /// Returns the device's own address, before other receive addresses are added; net_ring has none.
    pub(super) fn mac(&self) -> Option<MacBytes> {
        let mut address = MaybeUninit::uninit();
        // SAFETY: the port exists, and the pointer is valid for an address.
        let result = unsafe { rte_eth_macaddr_get(self.port, address.as_mut_ptr()) };
        // SAFETY: if the call succeeded, the address is written.
        let mac = (result == 0).then(|| unsafe { address.assume_init() }.addr_bytes);
        mac.filter(|&mac| is_station(mac))
    }

    /// Configures the numbers of (receive, send) queues and the initial MTU.
    pub(super) fn configure(&self, queues: (u16, u16), mtu_bytes: u32) -> Result<(), DpdkError> {
        let mark = log::mark();
        let mut conf = rte_eth_conf::default();
        conf.rxmode.mtu = mtu_bytes;
        // SAFETY: the port exists and is stopped, and the record is copied.
        match unsafe { rte_eth_dev_configure(self.port, queues.0, queues.1, &conf) } {
            0 => Ok(()),
            number => Err(self.call_error("configuring the device", number, mark)),
        }
    }

    /// Sets the device's MTU; `false` if the driver does not support this.
    pub(super) fn set_mtu(&self, mtu_bytes: u32) -> Result<bool, FailureDetail> {
        let mark = log::mark();
        let mtu = u16::try_from(mtu_bytes).unwrap_or(u16::MAX);
        // SAFETY: the port exists.
        match unsafe { rte_eth_dev_set_mtu(self.port, mtu) } {
            0 => Ok(true),
            number if number == -libc::ENOTSUP => Ok(false),
            number => Err(eal::failure(number, mark)),
        }
    }

    pub(super) fn mtu_bytes(&self) -> u32 {
        let mut mtu = 0;
        // SAFETY: the port exists, and the pointer is valid for an MTU.
        unsafe { rte_eth_dev_get_mtu(self.port, &mut mtu) };
        mtu.into()
    }

    /// Returns the queue depths nearest to the given ones that the driver supports.
    pub(super) fn depths(&self, rx_frames: u32, tx_frames: u32) -> Result<Depths, DpdkError> {
        let mark = log::mark();
        let short = |frames| u16::try_from(frames).unwrap_or(u16::MAX);
        let (mut rx, mut tx) = (short(rx_frames), short(tx_frames));
        // SAFETY: the port exists, and both pointers are valid.
        match unsafe { rte_eth_dev_adjust_nb_rx_tx_desc(self.port, &mut rx, &mut tx) } {
            0 => Ok(Depths {
                rx_frames: rx,
                tx_frames: tx,
            }),
            number => Err(self.call_error("adjusting the queue depths", number, mark)),
        }
    }

    /// Sets up all queues; the pool outlives the device.
    pub(super) fn set_up_queues(
        &self,
        queues: (u16, u16),
        depths: Depths,
        pool: &Pool,
    ) -> Result<(), DpdkError> {
        let mark = log::mark();
        let socket = self.socket() as u32;
        for queue in 0..queues.0 {
            // SAFETY: the port is configured with this queue, and the pool outlives it, as the caller promises.
            let result = unsafe {
                rte_eth_rx_queue_setup(
                    self.port,
                    queue,
                    depths.rx_frames,
                    socket,
                    ptr::null(),
                    pool.as_ptr(),
                )
            };
            if result != 0 {
                return Err(self.call_error(RX_QUEUE_SETUP, result, mark));
            }
        }
        for queue in 0..queues.1 {
            // SAFETY: the port is configured with this queue.
            let result = unsafe {
                rte_eth_tx_queue_setup(self.port, queue, depths.tx_frames, socket, ptr::null())
            };
            if result != 0 {
                return Err(self.call_error("send queue setup", result, mark));
            }
        }
        Ok(())
    }

    /// Starts the device. The caller holds [`Eal::control`].
    pub(super) fn start(&mut self) -> Result<(), FailureDetail> {
        let mark = log::mark();
        let _blocked = InterruptsBlocked::for_device(&self.name);
        // SAFETY: the port's queues are set up, and this thread holds the control lock.
        match unsafe { rte_eth_dev_start(self.port) } {
            0 => {
                self.started = true;
                Ok(())
            }
            number => Err(eal::failure(number, mark)),
        }
    }

    /// Stops and restarts the device; `true` if that succeeded.
    pub(super) fn restart(&mut self) -> bool {
        let eal = self.eal;
        let _control = eal.control();
        self.stop();
        log::expecting_failure(|| self.start()).is_ok()
    }

    fn stop(&mut self) {
        if self.started {
            self.started = false;
            let _blocked = InterruptsBlocked::for_device(&self.name);
            // SAFETY: the port exists, this thread holds the control lock, and no thread uses the queues.
            unsafe { rte_eth_dev_stop(self.port) };
        }
    }

    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// Starts the control channel of a memif device, which is started and has `queues` receive queues.
    pub(super) fn start_control_channel(&mut self, queues: u16) -> Result<(), DpdkError> {
        let result = match &mut self.control {
            Some(control) => control.start(self.eal, queues),
            None => Ok(()),
        };
        result.map_err(|error| DpdkError::Socket {
            device: self.name.clone(),
            error,
        })
    }

    /// Returns the pending request of memif's control channel. The caller, the poller, runs no burst meanwhile.
    pub(super) fn control_request(&self) -> ControlRequest {
        let control = self.control.as_ref();
        control.map_or_else(ControlRequest::default, ControlChannel::poll_request)
    }

    pub(super) fn is_ring_pair(&self) -> bool {
        matches!(self.origin, Origin::RingPair(_))
    }

    /// True if the other port of a pair of rings is closed. Cheap: one load.
    #[inline]
    pub(super) fn ring_peer_closed(&self) -> bool {
        matches!(&self.origin, Origin::RingPair(endpoint) if !endpoint.has_peer())
    }

    /// True if the link is up: for a pair of rings, if the other port is open.
    pub(super) fn link_is_up(&self) -> bool {
        if let Origin::RingPair(endpoint) = &self.origin {
            return endpoint.has_peer();
        }
        // SAFETY: accepts any port number.
        unsafe { dpdk_sys_link_is_up(self.port) != 0 }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.eal.is_forked() {
            return;
        }
        // No client may connect to memif's server once it is removed: its listening socket would use freed memory.
        self.control = None;
        let _control = self.eal.control();
        self.stop();
        let _blocked = InterruptsBlocked::for_device(&self.name);
        match (&self.origin, self.info()) {
            (Origin::Preexisting, _) => {}
            // SAFETY: the port is stopped and returns its buffers to its pool. This thread holds the control lock.
            (_, Ok(info)) if !info.device.is_null() => unsafe {
                // memif's server logs that its socket file is missing: we removed that early.
                log::expecting_failure(|| rte_dev_remove(info.device));
            },
            // SAFETY: as above.
            _ => unsafe {
                rte_eth_dev_close(self.port);
            },
        }
        ports_in_use().remove(&self.port);
    }
}
