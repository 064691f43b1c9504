//! Opening a port: EAL, the device, its buffers and its addresses.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys::{dpdk_sys_caller, dpdk_sys_frame, dpdk_sys_guard, dpdk_sys_lease_lcore};

use super::addresses::{DeviceAddresses, ReceiveAddresses};
use super::config::{DpdkConfig, DpdkError};
use super::counts::{Counts, DeviceCounts};
use super::device::{
    Depths, Device, DeviceProperties, DriverKind, MEMIF_SLOT_BYTES, RX_QUEUE_SETUP,
};
use super::driver::{DpdkPort, Lcore};
use super::eal::{self, Eal};
use super::log;
use super::pool::{Buffers, CACHE, Pool};
use super::tap;
use super::xdp_program;
use crate::af_packet::link::LinkMonitor;
use crate::af_packet::{
    ETHERNET_HEADER_BYTES, MIN_MTU_BYTES, find_interface, frame_bytes, open_socket,
};
use crate::af_xdp::bpf::XdpLink;
use crate::descriptor_number::Placeholders;
use crate::mbuf::BURST;
use crate::port::{Capabilities, MacBytes, WakeSource};

/// Default MTU of a device without a network interface, if it supports that: FCoE's longest frame fits.
const GOOD_MTU_BYTES: u32 = 2500;
/// DPDK's default MTU.
const COMMON_MTU_BYTES: u32 = 1500;
/// Bytes of a net_af_packet slot that do not hold the frame, and the default slot size.
const SLOT_OVERHEAD_BYTES: u32 = 66;
const DEFAULT_SLOT_BYTES: u32 = 2048;
/// Buffers that devices hold besides those in their queues: AF_XDP's rings.
const DEVICE_BUFFERS: u32 = 4096;

/// A device during setup, closed on drop if opening fails. The fields are dropped in this order: closing the device
/// takes the control lock itself, and the pool must outlive the device.
struct DeviceSetup<'a> {
    control: MutexGuard<'a, ()>,
    device: Device,
    pool: Option<Arc<Pool>>,
}

/// The result of setting up a device.
struct SetupResult {
    /// Number of receive queues.
    queues: u16,
    max_frame_bytes: u32,
    pool: Arc<Pool>,
}

/// Timeout and retry interval for a device whose queue the kernel has not released yet.
const TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The driver with this problem.
const RETRY_DRIVER: &str = "net_af_xdp";

/// Returns the number of buffers that keep every queue full and let the caller hold as many again.
fn buffers(config: &DpdkConfig, depths: Depths, queues: u32) -> u32 {
    let in_queues = u32::from(depths.rx_frames) * queues + u32::from(depths.tx_frames);
    // An lcore's cache overflows at one and a half times its size.
    let cached = CACHE * 3 / 2 + 4 * BURST as u32;
    in_queues + config.rx_frames + config.tx_frames + cached + DEVICE_BUFFERS
}

/// Creates the pool for both ports of a pair of rings, before the queue depths are known.
fn ring_pool(config: &DpdkConfig) -> Result<Pool, DpdkError> {
    let depths = Depths {
        rx_frames: config.rx_frames.min(u16::MAX.into()) as u16,
        tx_frames: config.tx_frames.min(u16::MAX.into()) as u16,
    };
    Pool::new(2 * buffers(config, depths, 1), 0)
}

/// Sets the device's MTU; returns its maximum frame length, which a network interface may lower later.
fn set_mtu(
    config: &DpdkConfig,
    device: &Device,
    properties: &DeviceProperties,
    first_bytes: u32,
) -> Result<u32, DpdkError> {
    if matches!(properties.kind, DriverKind::Memif | DriverKind::Memory) {
        return Ok(frame_bytes(config.mtu_bytes.unwrap_or(GOOD_MTU_BYTES)));
    }
    let has_interface = properties.interface_index.is_some();
    let wanted = match config.mtu_bytes {
        Some(mtu_bytes) => mtu_bytes,
        None if has_interface => return Ok(frame_bytes(GOOD_MTU_BYTES)),
        None => GOOD_MTU_BYTES.min(properties.max_mtu_bytes),
    };
    match device.set_mtu(wanted) {
        Ok(true) => Ok(frame_bytes(wanted)),
        Ok(false) if config.mtu_bytes.is_none() => Ok(frame_bytes(first_bytes)),
        Err(_) if config.mtu_bytes.is_none() => Ok(frame_bytes(device.mtu_bytes())),
        Ok(false) => Err(DpdkError::MtuRefused {
            device: config.device.clone(),
            mtu_bytes: wanted,
            detail: eal::failure(libc::ENOTSUP, log::mark()),
        }),
        Err(detail) => Err(DpdkError::MtuRefused {
            device: config.device.clone(),
            mtu_bytes: wanted,
            detail,
        }),
    }
}

/// Returns the length of the longest frame that fits into the device's slots.
fn slot_limit(device: &Device, kind: DriverKind) -> u32 {
    let number = |key| device.key(key).and_then(|text| text.parse().ok());
    match kind {
        // It truncates or drops longer frames.
        DriverKind::AfPacket => number("framesz")
            .unwrap_or(DEFAULT_SLOT_BYTES)
            .saturating_sub(SLOT_OVERHEAD_BYTES),
        DriverKind::Memif => number("bsize").unwrap_or(MEMIF_SLOT_BYTES),
        DriverKind::Memory | DriverKind::Other => u32::MAX,
    }
}

fn interface_name(index: u32) -> String {
    let mut name = [0u8; libc::IFNAMSIZ];
    // SAFETY: the buffer holds the longest name.
    unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let end = name.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
}

/// Returns a random locally administered address, for a device without one.
fn random_mac() -> MacBytes {
    let [a, b, c, d, e, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    [0x02, a, b, c, d, e]
}

/// Configures our receive addresses on the device, or on the network interface behind it; returns them, the device's
/// own address and the maximum frame length of the interface.
fn receive_addresses(
    config: &DpdkConfig,
    device: &Device,
    properties: &DeviceProperties,
) -> Result<(ReceiveAddresses, MacBytes, u32), DpdkError> {
    let Some(index) = properties.interface_index else {
        let mac = device.mac().unwrap_or_else(random_mac);
        let mut addresses = DeviceAddresses::new(config, device.port, mac);
        addresses.join(&config.device, config.mac)?;
        return Ok((ReceiveAddresses::Device(addresses), mac, u32::MAX));
    };
    let control = open_socket()?;
    let name = interface_name(index);
    if let Err(error) = tap::close_on_exec(&config.device, &name) {
        ::log::warn!(
            "{}: child processes keep a queue of {name}, since /proc/self/fd cannot be read: {error}",
            config.device
        );
    }
    let (interface, link) = find_interface(&control, &name)?;
    let monitor = LinkMonitor::new(interface.index, link);
    let addresses = ReceiveAddresses::on_interface(config, &name, control, interface, monitor)?;
    Ok((addresses, interface.mac, frame_bytes(link.mtu_bytes)))
}

/// Ties the XDP program that the device attached to its interface to the life of this process, by a BPF link.
fn link_program(config: &DpdkConfig, index: u32) -> Option<XdpLink> {
    xdp_program::link(index).unwrap_or_else(|error| {
        ::log::warn!(
            "{}: no BPF link for its XDP program: {error}: if this process is killed, the program stays attached until \
             the next start (to detach it: `ip link set dev {} xdp off`)",
            config.device,
            interface_name(index)
        );
        None
    })
}

/// Leases an lcore; bursts of memif are guarded against faults.
fn caller(kind: DriverKind) -> Result<Lcore, DpdkError> {
    let guarded = kind == DriverKind::Memif;
    if guarded {
        let mark = log::mark();
        // SAFETY: handles two signals, and passes on those that guarded bursts did not cause.
        let number = unsafe { dpdk_sys_guard() };
        if number != 0 {
            return Err(DpdkError::Dpdk {
                call: "installing the SIGSEGV handler that memif needs",
                detail: eal::failure(number, mark),
            });
        }
    }
    // SAFETY: EAL runs, and its arguments exclude secondary processes.
    let lcore = unsafe { dpdk_sys_lease_lcore() };
    Ok(Lcore(dpdk_sys_caller {
        lcore,
        guarded: guarded.into(),
        multi_segment_drops: 0,
        given_up: 0,
    }))
}

impl DeviceSetup<'_> {
    /// Configures the device with its queues and buffers, and starts it.
    fn set_up(
        &mut self,
        config: &DpdkConfig,
        properties: &DeviceProperties,
    ) -> Result<SetupResult, DpdkError> {
        if config.queues > properties.rx_queues {
            return Err(DpdkError::TooFewQueues {
                device: config.device.clone(),
                queues: properties.rx_queues,
            });
        }
        // Some drivers need equal numbers of both.
        let queues = (
            config.queues as u16,
            config.queues.min(properties.tx_queues) as u16,
        );
        let device = &mut self.device;
        let first_bytes = COMMON_MTU_BYTES.min(properties.max_mtu_bytes);
        device.configure(queues, first_bytes)?;
        let max_frame_bytes = set_mtu(config, device, properties, first_bytes)?;
        let depths = device.depths(config.rx_frames, config.tx_frames)?;
        let pool = match device.shared_pool() {
            Some(pool) => pool,
            None => {
                let count = buffers(config, depths, config.queues);
                Arc::new(Pool::new(count, device.socket())?)
            }
        };
        self.pool = Some(Arc::clone(&pool));
        device.set_up_queues(queues, depths, &pool)?;
        let started = device.start();
        started.map_err(|detail| DpdkError::Dpdk {
            call: "starting the device",
            detail,
        })?;
        device.start_control_channel(queues.0)?;
        Ok(SetupResult {
            queues: queues.0,
            max_frame_bytes,
            pool,
        })
    }
}

impl DpdkPort {
    /// Opens a port on a device. The network interface of a device is looked up in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// Each cause has its own [`DpdkError`], whose text contains the remedy.
    pub fn open(config: DpdkConfig) -> Result<Self, DpdkError> {
        config.check()?;
        let _placeholders = Placeholders::new();
        let eal = Eal::get(&config.eal)?;
        // The wait is without the control lock, for which poll threads may wait.
        if !Device::is_added(eal, &config.device) {
            tap::await_no_other_queue(&config.device)?;
        }
        let start = Instant::now();
        // The kernel releases the queue of a closed socket late.
        while config.device.starts_with(RETRY_DRIVER) && start.elapsed() < TIMEOUT {
            match log::expecting_failure(|| Self::open_once(eal, config.clone())) {
                Err(DpdkError::Dpdk {
                    call: RX_QUEUE_SETUP,
                    ..
                }) => {
                    // If the sleep fails, the next attempt only comes sooner.
                    let _early = WakeSource::Poll.sleep(RETRY_INTERVAL);
                }
                result => return result,
            }
        }
        Self::open_once(eal, config)
    }

    fn open_once(eal: &'static Eal, config: DpdkConfig) -> Result<Self, DpdkError> {
        let control = eal.control();
        let frames = config.rx_frames.max(config.tx_frames);
        let device = Device::find(eal, &config.device, frames, || ring_pool(&config))?;
        let mut setup = DeviceSetup {
            control,
            device,
            pool: None,
        };
        let properties = setup.device.properties()?;
        let result = setup.set_up(&config, &properties)?;
        let (receive_addresses, interface_mac, limit_bytes) =
            receive_addresses(&config, &setup.device, &properties)?;
        let slot_bytes = slot_limit(&setup.device, properties.kind);
        let max_frame_bytes = result.max_frame_bytes.min(limit_bytes).min(slot_bytes);
        if max_frame_bytes < frame_bytes(MIN_MTU_BYTES) {
            return Err(DpdkError::MtuTooSmall {
                device: config.device,
                mtu_bytes: max_frame_bytes.saturating_sub(ETHERNET_HEADER_BYTES),
                needed_bytes: MIN_MTU_BYTES,
            });
        }
        let program = match properties.interface_index {
            Some(index) if config.device.starts_with(RETRY_DRIVER) => link_program(&config, index),
            _ => None,
        };
        let caller = caller(properties.kind)?;
        let filter = receive_addresses.filter(config.mac);
        let DeviceSetup {
            control: _control,
            device,
            ..
        } = setup;
        let mut port = Self {
            capabilities: Capabilities {
                driver: "dpdk",
                mac: config.mac,
                interface_mac: Some(interface_mac),
                device: config.device,
                max_frame_bytes: max_frame_bytes as usize,
                lossless: false,
                send_alone: false,
                next_buffer_bytes: 0,
            },
            eal,
            can_recover: properties.kind == DriverKind::Memif
                && device.key("zero-copy") != Some("yes"),
            device_counts: DeviceCounts::new(device.port),
            device: ManuallyDrop::new(device),
            program,
            caller: ManuallyDrop::new(caller),
            buffers: ManuallyDrop::new(Buffers::new(result.pool)),
            receive_addresses,
            filter,
            tx_cache: Vec::with_capacity(config.tx_frames as usize + BURST),
            pending_returns: Vec::with_capacity(BURST),
            tx_buffers_left: config.tx_frames,
            tx_limit_bytes: max_frame_bytes as usize,
            queues: result.queues,
            next_queue: 0,
            burst: Box::new([dpdk_sys_frame::default(); BURST]),
            to_self: VecDeque::with_capacity(config.tx_frames as usize),
            rx_backlog: VecDeque::with_capacity(BURST),
            self_first: false,
            link_up: false,
            link_changes: 0,
            bursts_paused: false,
            recovered_bursts: 0,
            counts: Counts::default(),
        };
        port.drain_ring();
        port.update_link();
        port.link_changes = 0;
        Ok(port)
    }
}
