//! Opens a port: the socket, its filter, its rings and its addresses.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use super::addresses::Addresses;
use super::config::{AfPacketConfig, AfPacketError};
use super::counts::Counts;
use super::driver::{AfPacketPort, frame_bytes};
use super::filter;
use super::link::LinkMonitor;
use super::rx::RxRing;
use super::slots::Slots;
use super::socket::{Interface, LinkState, Socket};
use super::tx::TxRing;
use crate::mapping::Mapping;
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::Capabilities;

/// Minimum MTU: for the smallest legal FC receive size, a data field of 256 bytes.
pub(crate) const MIN_MTU_BYTES: u32 = 302;
/// Maximum number of frames to the own address that are queued inside the port.
const SELF_FRAMES: u32 = 64;
/// Upper bound of the bytes that the kernel accounts for one frame besides its length.
const SEND_OVERHEAD_BYTES: usize = 1024;

/// Maximum length of an interface name.
const NAME_MAX_BYTES: usize = libc::IFNAMSIZ - 1;

fn os(call: &'static str) -> impl Fn(io::Error) -> AfPacketError {
    move |source| AfPacketError::Os { call, source }
}

/// Opens the socket; without a protocol it receives nothing yet.
pub(crate) fn open_socket() -> Result<Socket, AfPacketError> {
    Socket::open().map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AfPacketError::NotPermitted,
        _ => os("opening a packet socket")(source),
    })
}

/// Looks up the interface and rejects one that cannot carry our frames.
pub(crate) fn find_interface(
    socket: &Socket,
    name: &str,
) -> Result<(Interface, LinkState), AfPacketError> {
    let interface = name.to_owned();
    if name.len() > NAME_MAX_BYTES {
        return Err(AfPacketError::NameTooLong { interface });
    }
    if name.is_empty() || name.contains('\0') {
        return Err(AfPacketError::NoSuchInterface { interface });
    }
    let found = match socket.interface(name) {
        Ok(found) => found,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            return Err(AfPacketError::NoSuchInterface { interface });
        }
        Err(error) => return Err(os("looking up the interface")(error)),
    };
    if !found.ethernet {
        return Err(AfPacketError::NotEthernet { interface });
    }
    let link = socket
        .link_state(found.index)
        .map_err(os("reading the interface's state"))?;
    if !link.up {
        return Err(AfPacketError::InterfaceDown { interface });
    }
    if link.mtu_bytes < MIN_MTU_BYTES {
        return Err(AfPacketError::MtuTooSmall {
            interface,
            mtu_bytes: link.mtu_bytes,
            needed_bytes: MIN_MTU_BYTES,
        });
    }
    Ok((found, link))
}

/// Creates and maps both rings.
fn make_rings(
    socket: &Socket,
    config: &AfPacketConfig,
    max_frame_bytes: u32,
) -> Result<(RxRing, TxRing, Mapping), AfPacketError> {
    let rx_geometry = RxRing::geometry(config.rx_frames, max_frame_bytes);
    let tx_geometry = TxRing::geometry(config.tx_frames, max_frame_bytes);
    let ring_bytes = rx_geometry.ring_bytes() + tx_geometry.ring_bytes();
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    socket
        .set_packet_option(libc::PACKET_VERSION, version)
        .map_err(os("choosing TPACKET_V2"))?;
    socket
        .set_packet_option(libc::PACKET_LOSS, 1)
        .map_err(os("setting PACKET_LOSS"))?;
    let refused = |source: io::Error| AfPacketError::RingMemory { ring_bytes, source };
    socket
        .make_ring(libc::PACKET_RX_RING, &rx_geometry.request())
        .map_err(refused)?;
    socket
        .make_ring(libc::PACKET_TX_RING, &tx_geometry.request())
        .map_err(refused)?;
    let memory = Mapping::of_kernel(socket.as_fd(), 0, ring_bytes).map_err(refused)?;
    // SAFETY: the kernel maps the receive ring first, with this geometry; the
    // port keeps the mapping as long as the ring, and no other value uses it.
    let rx_slots = unsafe { Slots::new(memory.as_ptr(), rx_geometry) };
    // SAFETY: the mapping is longer than the receive ring by the send ring.
    let tx_start = unsafe { memory.as_ptr().add(rx_geometry.ring_bytes()) };
    // SAFETY: the send ring follows the receive ring; the rest as above.
    let tx_slots = unsafe { Slots::new(tx_start, tx_geometry) };
    let rx = RxRing::new(rx_slots, max_frame_bytes);
    let tx = TxRing::new(tx_slots, max_frame_bytes);
    Ok((rx, tx, memory))
}

impl AfPacketPort {
    /// Checks the first steps of [`Self::open`]: the configuration, the permission, the interface.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn check(config: &AfPacketConfig) -> Result<(), AfPacketError> {
        config.check()?;
        let socket = open_socket()?;
        find_interface(&socket, &config.interface).map(drop)
    }

    /// Opens a port on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// Each reason has its own [`AfPacketError`], whose text includes the remedy.
    pub fn open(config: AfPacketConfig) -> Result<Self, AfPacketError> {
        config.check()?;
        let socket = open_socket()?;
        let (interface, link) = find_interface(&socket, &config.interface)?;
        let max_frame_bytes = frame_bytes(link.mtu_bytes);
        let mut addresses = Addresses::new(&config, interface);
        let destinations = addresses.with_station(config.mac);
        socket
            .attach_filter(&mut filter::program(addresses.ethertypes(), &destinations))
            .map_err(os("attaching the receive filter"))?;
        let (rx, tx, memory) = make_rings(&socket, &config, max_frame_bytes)?;
        socket
            .set_packet_option(libc::PACKET_QDISC_BYPASS, config.qdisc_bypass.into())
            .map_err(os("setting PACKET_QDISC_BYPASS"))?;
        socket.set_send_buffer(
            config.tx_frames as usize * (max_frame_bytes as usize + SEND_OVERHEAD_BYTES),
        );
        let self_pool = Mempool::new(MempoolConfig {
            buffers: SELF_FRAMES,
            buffer_bytes: max_frame_bytes,
            huge_pages: false,
            tag: 0,
        })
        .map_err(os("mapping memory for frames to ourselves"))?;
        addresses.join(&socket, config.mac)?;
        socket
            .bind(interface.index)
            .map_err(os("binding to the interface"))?;
        Ok(Self {
            capabilities: Capabilities {
                driver: "af_packet",
                device: config.interface,
                mac: config.mac,
                interface_mac: Some(interface.mac),
                max_frame_bytes: max_frame_bytes as usize,
                lossless: false,
                send_alone: false,
                next_buffer_bytes: 0,
            },
            rx,
            tx,
            self_pool,
            self_queue: VecDeque::with_capacity(SELF_FRAMES as usize),
            socket,
            memory: ManuallyDrop::new(memory),
            addresses,
            link: LinkMonitor::new(interface.index, link),
            counts: Counts::default(),
        })
    }
}
