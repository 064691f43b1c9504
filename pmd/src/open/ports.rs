//! The port of a NIC, opened as its configuration says.

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

use super::OpenError;
use crate::config::{CopyMode, NicConfig, PortKind};

/// The EtherTypes of Fibre Channel.
const ETHERTYPES: [u16; 2] = [ETHERTYPE_FCOE, ETHERTYPE_FIP];

/// Opens the port for a station with this N_Port_ID; on a network whose ports find each other it has none yet, and
/// hears what goes to all VN_Ports, and to its interface. On `shm` the segment gives a station its N_Port_ID.
pub(super) fn open(config: &NicConfig, id: NPortId) -> Result<Box<dyn Port>, OpenError> {
    let mac = MacAddress::vn2vn(id).0;
    match config.port {
        PortKind::Shm => shm(config),
        PortKind::AfPacket => af_packet(config, mac),
        PortKind::AfXdp => af_xdp(config, mac),
        PortKind::Dpdk => dpdk(config, mac),
    }
}

/// Checks what [`open`] would check first: the configuration, permissions, the interface. Only a station of shared memory
/// is opened, for a moment.
pub(super) fn check(config: &NicConfig) -> Result<(), OpenError> {
    let mac = MacAddress::vn2vn(NPortId::default()).0;
    match config.port {
        PortKind::Shm => shm(config).map(drop),
        PortKind::AfPacket => {
            AfPacketPort::check(&af_packet_settings(config, mac)).map_err(because)
        }
        PortKind::AfXdp => AfXdpPort::check(&af_xdp_settings(config, mac)).map_err(because),
        PortKind::Dpdk => check_dpdk(config, mac),
    }
}

fn because(error: impl Display) -> OpenError {
    OpenError::new(error.to_string())
}

/// Groups that a station hears.
fn multicast(config: &NicConfig) -> Vec<MacBytes> {
    match config.discovers() {
        true => vec![MacAddress::ALL_VN2VN.0],
        false => Vec::new(),
    }
}

fn shm(config: &NicConfig) -> Result<Box<dyn Port>, OpenError> {
    let mut settings = ShmConfig::new(config.segment.clone());
    if let Some(directory) = &config.directory {
        settings.directory.clone_from(directory);
    }
    settings.slots_per_ring = config.ring_frames;
    settings.max_stations = config.max_stations;
    let port = ShmPort::open(settings).map_err(because)?;
    Ok(Box::new(port))
}

fn af_packet_settings(config: &NicConfig, mac: MacBytes) -> AfPacketConfig {
    AfPacketConfig {
        ethertypes: ETHERTYPES.to_vec(),
        rx_frames: config.rx_frames,
        tx_frames: config.tx_frames,
        multicast: multicast(config),
        interface_address: config.discovers(),
        ..AfPacketConfig::new(&config.interface, mac)
    }
}

fn af_packet(config: &NicConfig, mac: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    let port = AfPacketPort::open(af_packet_settings(config, mac)).map_err(because)?;
    Ok(Box::new(port))
}

fn af_xdp_settings(config: &NicConfig, mac: MacBytes) -> AfXdpConfig {
    AfXdpConfig {
        ethertypes: ETHERTYPES.to_vec(),
        queue: config.queue,
        queues: config.queues,
        rx_frames: config.rx_frames,
        tx_frames: config.tx_frames,
        multicast: multicast(config),
        interface_address: config.discovers(),
        copy: match config.copy {
            CopyMode::Auto => af_xdp::CopyMode::Auto,
            CopyMode::ZeroCopy => af_xdp::CopyMode::ZeroCopy,
            CopyMode::Copy => af_xdp::CopyMode::Copy,
        },
        // A frame that stands so long may still live as long again on the wire.
        standstill_limit: Duration::from_millis(config.r_a_tov_ms() / 2),
        ..AfXdpConfig::new(&config.interface, mac)
    }
}

fn af_xdp(config: &NicConfig, mac: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    let port = AfXdpPort::open(af_xdp_settings(config, mac)).map_err(because)?;
    log::info!(
        "{}: frames of {} are steered by {}, and {}",
        config.name,
        config.interface,
        if port.is_native() {
            "its driver"
        } else {
            "the kernel"
        },
        if port.is_zero_copy() {
            "not copied"
        } else {
            "copied"
        },
    );
    Ok(Box::new(port))
}

#[cfg(feature = "dpdk")]
fn dpdk_settings(config: &NicConfig, mac: MacBytes) -> DpdkConfig {
    DpdkConfig {
        eal: EalConfig {
            huge_pages: config.huge_pages,
            memory_mb: config.memory_mb,
            args: config.args.clone(),
        },
        ethertypes: ETHERTYPES.to_vec(),
        queues: config.queues,
        rx_frames: config.rx_frames,
        tx_frames: config.tx_frames,
        mtu_bytes: config.mtu_bytes,
        multicast: multicast(config),
        interface_address: config.discovers(),
        ..DpdkConfig::new(&config.device, mac)
    }
}

/// DPDK takes its devices when it starts: only the configuration is checked.
#[cfg(feature = "dpdk")]
fn check_dpdk(config: &NicConfig, mac: MacBytes) -> Result<(), OpenError> {
    dpdk_settings(config, mac).check().map_err(because)
}

#[cfg(feature = "dpdk")]
fn dpdk(config: &NicConfig, mac: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    let port = DpdkPort::open(dpdk_settings(config, mac)).map_err(because)?;
    log::info!(
        "{}: DPDK has {:?}, and its memory in {} pages",
        config.name,
        config.device,
        if config.huge_pages {
            "huge"
        } else {
            "ordinary"
        },
    );
    Ok(Box::new(port))
}

#[cfg(not(feature = "dpdk"))]
fn check_dpdk(_: &NicConfig, _: MacBytes) -> Result<(), OpenError> {
    Err(OpenError::new(crate::config::WITHOUT_DPDK))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(_: &NicConfig, _: MacBytes) -> Result<Box<dyn Port>, OpenError> {
    Err(OpenError::new(crate::config::WITHOUT_DPDK))
}

#[cfg(all(test, not(feature = "dpdk")))]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_dpdk_says_so() {
        let config = NicConfig {
            port: PortKind::Dpdk,
            device: "net_memif0,role=server".into(),
            ..NicConfig::default()
        };
        let refused = open(&config, NPortId::default()).err().unwrap();
        assert_eq!(
            refused.to_string(),
            "port = \"dpdk\": this program was built without DPDK: build it with --features dpdk"
        );
    }
}
