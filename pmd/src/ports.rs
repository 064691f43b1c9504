//! Opens the port of a NIC by its configuration.

use core::fmt::Display;
use core::time::Duration;

use fcvi_frame::ethernet::{ETHERTYPE_FCOE, ETHERTYPE_FIP, MacAddress};
use fcvi_frame::fc::NPortId;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::af_xdp::{self, AfXdpConfig, AfXdpPort};
#[cfg(feature = "dpdk")]
use pmd_port::dpdk::{DpdkConfig, DpdkPort, EalConfig};
use pmd_port::shm::{ShmConfig, ShmPort};
use pmd_port::{MacBytes, Port};

use super::error::OpenError;
use crate::config::{AfPacket, AfXdp, CopyMode, Dpdk, Network, NicConfig, Shm};

/// The EtherTypes of Fibre Channel.
const ETHERTYPES: [u16; 2] = [ETHERTYPE_FCOE, ETHERTYPE_FIP];

/// Opens the port for a station with this N_Port_ID. With discovery it has none yet, and
/// receives frames to all VN_Ports and to its interface. On `shm` the segment assigns the N_Port_ID.
pub(super) fn open(config: &NicConfig, id: NPortId) -> Result<Box<dyn Port>, OpenError> {
    let mac = MacAddress::vn2vn(id).0;
    match &config.network {
        Network::Shm(keys) => shm(keys),
        Network::AfPacket(keys) => af_packet(config, keys, mac),
        Network::AfXdp(keys) => af_xdp(config, keys, mac),
        Network::Dpdk(keys) => dpdk(config, keys, mac),
        Network::ViTcp(_) => Err(without_port()),
    }
}

/// Makes the checks of [`open`]: the configuration, permissions, the interface. Only a shared-memory station
/// is opened, briefly.
pub(crate) fn check(config: &NicConfig) -> Result<(), OpenError> {
    let mac = MacAddress::vn2vn(NPortId::default()).0;
    match &config.network {
        Network::Shm(keys) => shm(keys).map(drop),
        Network::AfPacket(keys) => {
            AfPacketPort::check(&af_packet_settings(config, keys, mac)).map_err(open_error)
        }
        Network::AfXdp(keys) => {
            AfXdpPort::check(&af_xdp_settings(config, keys, mac)).map_err(open_error)
        }
        Network::Dpdk(keys) => check_dpdk(config, keys, mac),
        Network::ViTcp(_) => Err(without_port()),
    }
}

/// Error of opening a port for a NIC that has none.
fn without_port() -> OpenError {
    OpenError::new("[nic.vi_tcp] has no port")
}

fn open_error(error: impl Display) -> OpenError {
    OpenError::new(error.to_string())
}

/// Returns the multicast groups of a station.
fn multicast(config: &NicConfig) -> Vec<MacBytes> {
    match config.discovers() {
        true => vec![MacAddress::ALL_VN2VN.0],
        false => Vec::new(),
    }
}

fn shm(keys: &Shm) -> Result<Box<dyn Port>, OpenError> {
    let mut settings = ShmConfig::new(keys.segment.clone());
    if let Some(directory) = &keys.directory {
        settings.directory.clone_from(directory);
    }
    settings.slots_per_ring = keys.ring_frames;
    settings.max_stations = keys.max_stations;
    let port = ShmPort::open(settings).map_err(open_error)?;
    Ok(Box::new(port))
}

fn af_packet_settings(config: &NicConfig, keys: &AfPacket, mac: MacBytes) -> AfPacketConfig {
    AfPacketConfig {
        ethertypes: ETHERTYPES.to_vec(),
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        multicast: multicast(config),
        interface_address: config.discovers(),
        ..AfPacketConfig::new(&keys.interface, mac)
    }
}

fn af_packet(
    config: &NicConfig,
    keys: &AfPacket,
    mac: MacBytes,
) -> Result<Box<dyn Port>, OpenError> {
    let port = AfPacketPort::open(af_packet_settings(config, keys, mac)).map_err(open_error)?;
    Ok(Box::new(port))
}

fn af_xdp_settings(config: &NicConfig, keys: &AfXdp, mac: MacBytes) -> AfXdpConfig {
    AfXdpConfig {
        ethertypes: ETHERTYPES.to_vec(),
        queue: keys.queue,
        queues: keys.queues,
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        multicast: multicast(config),
        interface_address: config.discovers(),
        copy: match keys.copy {
            CopyMode::Auto => af_xdp::CopyMode::Auto,
            CopyMode::ZeroCopy => af_xdp::CopyMode::ZeroCopy,
            CopyMode::Copy => af_xdp::CopyMode::Copy,
        },
        // A frame that was delayed by this time may live as long again on the wire.
        standstill_limit: Duration::from_millis(config.r_a_tov_ms() / 2),
        ..AfXdpConfig::new(&keys.interface, mac)
    }
}

fn af_xdp(config: &NicConfig, keys: &AfXdp, mac: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    let port = AfXdpPort::open(af_xdp_settings(config, keys, mac)).map_err(open_error)?;
    log::info!(
        "{}: XDP on {}: frames steered by {}, {}",
        config.name,
        keys.interface,
        if port.is_native() {
            "the driver"
        } else {
            "the kernel"
        },
        if port.is_zero_copy() {
            "zero-copy"
        } else {
            "copied"
        },
    );
    Ok(Box::new(port))
}

#[cfg(feature = "dpdk")]
fn dpdk_settings(config: &NicConfig, keys: &Dpdk, mac: MacBytes) -> DpdkConfig {
    DpdkConfig {
        eal: EalConfig {
            huge_pages: keys.huge_pages,
            memory_mb: keys.memory_mb,
            args: keys.args.clone(),
        },
        ethertypes: ETHERTYPES.to_vec(),
        queues: keys.queues,
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        mtu_bytes: keys.mtu_bytes,
        multicast: multicast(config),
        interface_address: config.discovers(),
        ..DpdkConfig::new(&keys.device, mac)
    }
}

/// Checks the configuration only: DPDK opens its devices when it is initialized.
#[cfg(feature = "dpdk")]
fn check_dpdk(config: &NicConfig, keys: &Dpdk, mac: MacBytes) -> Result<(), OpenError> {
    dpdk_settings(config, keys, mac).check().map_err(open_error)
}

#[cfg(feature = "dpdk")]
fn dpdk(config: &NicConfig, keys: &Dpdk, mac: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    let port = DpdkPort::open(dpdk_settings(config, keys, mac)).map_err(open_error)?;
    log::info!(
        "{}: DPDK device {:?}, memory in {} pages",
        config.name,
        keys.device,
        if keys.huge_pages { "huge" } else { "ordinary" },
    );
    Ok(Box::new(port))
}

#[cfg(not(feature = "dpdk"))]
fn check_dpdk(_: &NicConfig, _: &Dpdk, _: MacBytes) -> Result<(), OpenError> {
    Err(OpenError::new(crate::config::WITHOUT_DPDK))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(_: &NicConfig, _: &Dpdk, _: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    Err(OpenError::new(crate::config::WITHOUT_DPDK))
}

#[cfg(all(test, not(feature = "dpdk")))]
mod tests {
    use super::*;

    #[test]
    fn port_of_a_program_without_dpdk_is_refused() {
        let config = NicConfig {
            network: Network::Dpdk(Dpdk {
                device: "net_memif0,role=server".into(),
                ..Dpdk::default()
            }),
            ..NicConfig::default()
        };
        let refused = open(&config, NPortId::default()).err().unwrap();
        assert_eq!(
            refused.to_string(),
            "[nic.dpdk]: this program was built without DPDK: build it with --features dpdk"
        );
    }
}
