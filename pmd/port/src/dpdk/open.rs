//! Opening a port: EAL, the device, its buffers and its addresses.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys::{dpdk_sys_caller, dpdk_sys_frame, dpdk_sys_guard, dpdk_sys_lease_lcore};

use super::addresses::{Own, Reception};
use super::config::{DpdkConfig, DpdkError};
use super::counts::{Counts, DeviceCounts};
use super::device::{Depths, Device, Kind, MEMIF_SLOT_BYTES, RX_QUEUE_SETUP, Traits};
use super::driver::{DpdkPort, Lcore};
use super::eal::{self, Eal};
use super::log;
use super::pool::{Buffers, CACHE, Pool};
use super::program;
use crate::af_packet::link::LinkWatch;
use crate::af_packet::{
    ETHERNET_HEADER_BYTES, MIN_MTU_BYTES, find_interface, frame_bytes, open_socket,
};
use crate::af_xdp::bpf::Link;
use crate::descriptor_number::Placeholders;
use crate::mbuf::BURST;
use crate::port::{Capabilities, MacBytes, WakeSource};

/// The MTU that a device is given which has no interface, if it can: FCoE's longest frame fits.
const GOOD_MTU_BYTES: u32 = 2500;
/// The MTU that DPDK gives every device.
const COMMON_MTU_BYTES: u32 = 1500;
/// Bytes of a slot of net_af_packet that are not the frame's, and the slot if nobody says.
const SLOT_OVERHEAD_BYTES: u32 = 66;
const SLOT_BYTES: u32 = 2048;
/// Buffers that devices keep beside those in their queues: AF_XDP's rings.
const DEVICE_BUFFERS: u32 = 4096;

/// What is open when opening fails half way. Its parts go in this order: a device that closes handles devices itself,
/// and closes before its pool goes.
struct Opening<'a> {
    control: MutexGuard<'a, ()>,
    device: Device,
    pool: Option<Arc<Pool>>,
}

/// A device that is set up.
struct Ready {
    /// Receive queues.
    queues: u16,
    max_frame_bytes: u32,
    pool: Arc<Pool>,
}

/// How long a device is waited for whose interface another port had, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
/// The driver of such devices.
const LATE_DRIVER: &str = "net_af_xdp";

/// How many buffers keep every queue full, and let the caller hold as many again.
fn buffers(config: &DpdkConfig, depths: Depths, queues: u32) -> u32 {
    let in_queues = u32::from(depths.rx_frames) * queues + u32::from(depths.tx_frames);
    // An lcore's cache overflows at one and a half times its size.
    let at_hand = CACHE * 3 / 2 + 4 * BURST as u32;
    in_queues + config.rx_frames + config.tx_frames + at_hand + DEVICE_BUFFERS
}

/// For the two ends of a pair of rings, made before they are asked how deep they are.
fn ring_pool(config: &DpdkConfig) -> Result<Pool, DpdkError> {
    let depths = Depths {
        rx_frames: config.rx_frames.min(u16::MAX.into()) as u16,
        tx_frames: config.tx_frames.min(u16::MAX.into()) as u16,
    };
    Pool::new(2 * buffers(config, depths, 1), 0)
}

/// Gives the device its MTU; returns how long its frames can be, unless an interface says so later.
fn set_mtu(
    config: &DpdkConfig,
    device: &Device,
    traits: &Traits,
    first_bytes: u32,
) -> Result<u32, DpdkError> {
    if matches!(traits.kind, Kind::Memif | Kind::Memory) {
        return Ok(frame_bytes(config.mtu_bytes.unwrap_or(GOOD_MTU_BYTES)));
    }
    let has_interface = traits.interface_index.is_some();
    let wanted = match config.mtu_bytes {
        Some(mtu_bytes) => mtu_bytes,
        None if has_interface => return Ok(frame_bytes(GOOD_MTU_BYTES)),
        None => GOOD_MTU_BYTES.min(traits.max_mtu_bytes),
    };
    match device.set_mtu(wanted) {
        Ok(true) => Ok(frame_bytes(wanted)),
        Ok(false) if config.mtu_bytes.is_none() => Ok(frame_bytes(first_bytes)),
        Err(_) if config.mtu_bytes.is_none() => Ok(frame_bytes(device.mtu_bytes())),
        Ok(false) => Err(DpdkError::MtuRefused {
            device: config.device.clone(),
            mtu_bytes: wanted,
            said: eal::said(libc::ENOTSUP, log::mark()),
        }),
        Err(said) => Err(DpdkError::MtuRefused {
            device: config.device.clone(),
            mtu_bytes: wanted,
            said,
        }),
    }
}

/// How long frames are that the device's slots hold.
fn slot_limit(device: &Device, kind: Kind) -> u32 {
    let number = |key| device.key(key).and_then(|text| text.parse().ok());
    match kind {
        // Longer ones it cuts or loses.
        Kind::AfPacket => number("framesz")
            .unwrap_or(SLOT_BYTES)
            .saturating_sub(SLOT_OVERHEAD_BYTES),
        Kind::Memif => number("bsize").unwrap_or(MEMIF_SLOT_BYTES),
        Kind::Memory | Kind::Other => u32::MAX,
    }
}

fn interface_name(index: u32) -> String {
    let mut name = [0u8; libc::IFNAMSIZ];
    // SAFETY: there is room for the longest name.
    unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let end = name.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
}

/// A locally administered address that nobody else has, for a device without one.
fn random_mac() -> MacBytes {
    let [a, b, c, d, e, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    [0x02, a, b, c, d, e]
}

/// Has the device, or the network interface behind it, receive for our addresses; returns its own address and how long
/// the interface's frames are.
fn reception(
    config: &DpdkConfig,
    device: &Device,
    traits: &Traits,
) -> Result<(Reception, MacBytes, u32), DpdkError> {
    let Some(index) = traits.interface_index else {
        let mac = device.mac().unwrap_or_else(random_mac);
        let mut own = Own::new(config, device.port, mac);
        own.join(&config.device, config.mac)?;
        return Ok((Reception::Device(own), mac, u32::MAX));
    };
    let control = open_socket()?;
    let name = interface_name(index);
    let (interface, link) = find_interface(&control, &name)?;
    let watch = LinkWatch::new(interface.index, link);
    let reception = Reception::on_interface(config, &name, control, interface, watch)?;
    Ok((reception, interface.mac, frame_bytes(link.mtu_bytes)))
}

/// The program that the device put on its interface, held so that it goes with us.
fn hold_program(config: &DpdkConfig, index: u32) -> Option<Link> {
    program::hold(index).unwrap_or_else(|error| {
        ::log::warn!(
            "{}: its XDP program stays on the interface if this process is killed, until the next start \
             (`ip link set dev {} xdp off` takes it off): {error}",
            config.device,
            interface_name(index)
        );
        None
    })
}

/// An lcore and what its bursts are like.
fn caller(kind: Kind) -> Result<Lcore, DpdkError> {
    let guarded = kind == Kind::Memif;
    if guarded {
        let mark = log::mark();
        // SAFETY: handles two signals, and passes on what is not its own.
        let number = unsafe { dpdk_sys_guard() };
        if number != 0 {
            return Err(DpdkError::Dpdk {
                call: "handling SIGSEGV, for bursts whose other end goes",
                said: eal::said(number, mark),
            });
        }
    }
    // SAFETY: EAL runs, and its arguments keep other processes from joining it.
    let lcore = unsafe { dpdk_sys_lease_lcore() };
    Ok(Lcore(dpdk_sys_caller {
        lcore,
        guarded: guarded.into(),
        refused: 0,
        given_up: 0,
    }))
}

impl Opening<'_> {
    /// Configures the device with its queues and buffers, and starts it.
    fn set_up(&mut self, config: &DpdkConfig, traits: &Traits) -> Result<Ready, DpdkError> {
        if config.queues > traits.rx_queues {
            return Err(DpdkError::TooFewQueues {
                device: config.device.clone(),
                queues: traits.rx_queues,
            });
        }
        // Some drivers want as many of both.
        let queues = (
            config.queues as u16,
            config.queues.min(traits.tx_queues) as u16,
        );
        let device = &mut self.device;
        let first_bytes = COMMON_MTU_BYTES.min(traits.max_mtu_bytes);
        device.configure(queues, first_bytes)?;
        let max_frame_bytes = set_mtu(config, device, traits, first_bytes)?;
        let depths = device.depths(config.rx_frames, config.tx_frames)?;
        let pool = match device.shared_pool() {
            Some(pool) => pool,
            None => {
                let count = buffers(config, depths, config.queues);
                Arc::new(Pool::new(count, device.socket())?)
            }
        };
        self.pool = Some(Arc::clone(&pool));
        device.set_queues_up(queues, depths, &pool)?;
        let started = device.start();
        started.map_err(|said| DpdkError::Dpdk {
            call: "starting the device",
            said,
        })?;
        device.begin(queues.0)?;
        Ok(Ready {
            queues: queues.0,
            max_frame_bytes,
            pool,
        })
    }
}

impl DpdkPort {
    /// Opens a port on a device. Devices on network interfaces look for them in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// Each reason has its own [`DpdkError`], whose text says what to do.
    pub fn open(config: DpdkConfig) -> Result<Self, DpdkError> {
        config.check()?;
        let _placeholders = Placeholders::new();
        let eal = Eal::get(&config.eal)?;
        let start = Instant::now();
        // The kernel forgets late who had a queue.
        while config.device.starts_with(LATE_DRIVER) && start.elapsed() < PATIENCE {
            match log::expecting_failure(|| Self::open_once(eal, config.clone())) {
                Err(DpdkError::Dpdk {
                    call: RX_QUEUE_SETUP,
                    ..
                }) => WakeSource::Poll.sleep(PAUSE).map_or((), |_| ()),
                result => return result,
            }
        }
        Self::open_once(eal, config)
    }

    fn open_once(eal: &'static Eal, config: DpdkConfig) -> Result<Self, DpdkError> {
        let control = eal.control();
        let frames = config.rx_frames.max(config.tx_frames);
        let device = Device::find(eal, &config.device, frames, || ring_pool(&config))?;
        let mut opening = Opening {
            control,
            device,
            pool: None,
        };
        let traits = opening.device.traits()?;
        let ready = opening.set_up(&config, &traits)?;
        let (reception, interface_mac, limit_bytes) = reception(&config, &opening.device, &traits)?;
        let slot_bytes = slot_limit(&opening.device, traits.kind);
        let max_frame_bytes = ready.max_frame_bytes.min(limit_bytes).min(slot_bytes);
        if max_frame_bytes < frame_bytes(MIN_MTU_BYTES) {
            return Err(DpdkError::MtuTooSmall {
                device: config.device,
                mtu_bytes: max_frame_bytes.saturating_sub(ETHERNET_HEADER_BYTES),
                needed_bytes: MIN_MTU_BYTES,
            });
        }
        let program = match traits.interface_index {
            Some(index) if config.device.starts_with(LATE_DRIVER) => hold_program(&config, index),
            _ => None,
        };
        let caller = caller(traits.kind)?;
        let filter = reception.filter(config.mac);
        let Opening {
            control: _control,
            device,
            ..
        } = opening;
        let mut port = Self {
            capabilities: Capabilities {
                driver: "dpdk",
                mac: config.mac,
                interface_mac: Some(interface_mac),
                device: config.device,
                max_frame_bytes: max_frame_bytes as usize,
                lossless: false,
                send_alone: false,
            },
            eal,
            accountable: traits.kind == Kind::Memif && device.key("zero-copy") != Some("yes"),
            device_counts: DeviceCounts::new(device.port),
            device: ManuallyDrop::new(device),
            program,
            caller: ManuallyDrop::new(caller),
            buffers: ManuallyDrop::new(Buffers::new(ready.pool)),
            reception,
            filter,
            stock: Vec::with_capacity(config.tx_frames as usize + BURST),
            returning: Vec::with_capacity(BURST),
            to_send_left: config.tx_frames,
            tx_limit_bytes: max_frame_bytes as usize,
            queues: ready.queues,
            next_queue: 0,
            room: Box::new([dpdk_sys_frame::default(); BURST]),
            to_self: VecDeque::with_capacity(config.tx_frames as usize),
            ahead: VecDeque::with_capacity(BURST),
            own_first: false,
            link_up: false,
            link_changes: 0,
            held: false,
            accounted: 0,
            counts: Counts::default(),
        };
        port.empty_rings();
        port.look_at_link();
        port.link_changes = 0;
        Ok(port)
    }
}
