//! Drivers of ports: how each table of the configuration becomes an open port. A driver is an implementation of
//! `Driver` and its line in `driver`.

use core::fmt::Display;
use core::time::Duration;

use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::af_xdp::{self, AfXdpConfig, AfXdpPort};
#[cfg(feature = "dpdk")]
use pmd_port::dpdk::{DpdkConfig, DpdkPort, EalConfig};
use pmd_port::shm::{ShmConfig, ShmPort};
use pmd_port::{MacBytes, Port};

use crate::config::{AfPacket, AfXdp, CopyMode, Dpdk, Network, Shm};
use crate::open::OpenError;

/// The station that a port is opened for. A segment assigns the address of its stations, and delivers all frames to
/// them.
#[derive(Clone, Debug)]
pub struct Station {
    /// Name of the NIC, for log lines.
    pub nic: String,
    /// MAC address.
    pub mac: MacBytes,
    /// EtherTypes of the received frames.
    pub ethertypes: Vec<u16>,
    /// Multicast groups of the received frames.
    pub multicast: Vec<MacBytes>,
    /// Whether frames to the address of the interface are received, too.
    pub interface_address: bool,
    /// Maximum time that the port may delay a frame; `None`: that of the driver.
    pub standstill_limit: Option<Duration>,
}

/// A table of the configuration that opens a port.
trait Driver {
    /// Opens the port.
    fn open(&self, station: Station) -> Result<Box<dyn Port>, OpenError>;

    /// Makes the checks of [`Self::open`]: the configuration, permissions, the interface. Only a shared-memory station
    /// is opened, briefly.
    fn check(&self, station: Station) -> Result<(), OpenError>;
}

fn driver(network: &Network) -> Result<&dyn Driver, OpenError> {
    Ok(match network {
        Network::Shm(shm) => shm,
        Network::AfPacket(af_packet) => af_packet,
        Network::AfXdp(af_xdp) => af_xdp,
        Network::Dpdk(dpdk) => dpdk,
        Network::ViTcp(_) => return Err(OpenError::new("[nic.vi_tcp] has no port")),
    })
}

/// Opens the port of a network for a station.
///
/// # Errors
/// That of the driver, with its remedy; the network has no port.
pub fn open(network: &Network, station: Station) -> Result<Box<dyn Port>, OpenError> {
    driver(network)?.open(station)
}

/// Makes the checks of [`open`]; opens no device, and a shared-memory station only briefly.
pub(crate) fn check(network: &Network, station: Station) -> Result<(), OpenError> {
    driver(network)?.check(station)
}

fn open_error(error: impl Display) -> OpenError {
    OpenError::new(error.to_string())
}

impl Driver for Shm {
    fn open(&self, _: Station) -> Result<Box<dyn Port>, OpenError> {
        let mut config = ShmConfig::new(self.segment.clone());
        if let Some(directory) = &self.directory {
            config.directory.clone_from(directory);
        }
        config.slots_per_ring = self.ring_frames;
        config.max_stations = self.max_stations;
        Ok(Box::new(ShmPort::open(config).map_err(open_error)?))
    }

    fn check(&self, station: Station) -> Result<(), OpenError> {
        self.open(station).map(drop)
    }
}

fn af_packet_config(keys: &AfPacket, station: Station) -> AfPacketConfig {
    AfPacketConfig {
        ethertypes: station.ethertypes,
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        multicast: station.multicast,
        interface_address: station.interface_address,
        ..AfPacketConfig::new(&keys.interface, station.mac)
    }
}

impl Driver for AfPacket {
    fn open(&self, station: Station) -> Result<Box<dyn Port>, OpenError> {
        let port = AfPacketPort::open(af_packet_config(self, station)).map_err(open_error)?;
        Ok(Box::new(port))
    }

    fn check(&self, station: Station) -> Result<(), OpenError> {
        AfPacketPort::check(&af_packet_config(self, station)).map_err(open_error)
    }
}

fn af_xdp_config(keys: &AfXdp, station: Station) -> AfXdpConfig {
    let default = AfXdpConfig::new(&keys.interface, station.mac);
    AfXdpConfig {
        ethertypes: station.ethertypes,
        queue: keys.queue,
        queues: keys.queues,
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        multicast: station.multicast,
        interface_address: station.interface_address,
        copy: match keys.copy {
            CopyMode::Auto => af_xdp::CopyMode::Auto,
            CopyMode::ZeroCopy => af_xdp::CopyMode::ZeroCopy,
            CopyMode::Copy => af_xdp::CopyMode::Copy,
        },
        standstill_limit: station.standstill_limit.unwrap_or(default.standstill_limit),
        ..default
    }
}

impl Driver for AfXdp {
    fn open(&self, station: Station) -> Result<Box<dyn Port>, OpenError> {
        let nic = station.nic.clone();
        let port = AfXdpPort::open(af_xdp_config(self, station)).map_err(open_error)?;
        log::info!(
            "{nic}: XDP on {}: frames steered by {}, {}",
            self.interface,
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

    fn check(&self, station: Station) -> Result<(), OpenError> {
        AfXdpPort::check(&af_xdp_config(self, station)).map_err(open_error)
    }
}

#[cfg(feature = "dpdk")]
fn dpdk_config(keys: &Dpdk, station: Station) -> DpdkConfig {
    DpdkConfig {
        eal: EalConfig {
            huge_pages: keys.huge_pages,
            memory_mb: keys.memory_mb,
            args: keys.args.clone(),
        },
        ethertypes: station.ethertypes,
        queues: keys.queues,
        rx_frames: keys.rx_frames,
        tx_frames: keys.tx_frames,
        mtu_bytes: keys.mtu_bytes,
        multicast: station.multicast,
        interface_address: station.interface_address,
        ..DpdkConfig::new(&keys.device, station.mac)
    }
}

#[cfg(feature = "dpdk")]
impl Driver for Dpdk {
    fn open(&self, station: Station) -> Result<Box<dyn Port>, OpenError> {
        let nic = station.nic.clone();
        let port = DpdkPort::open(dpdk_config(self, station)).map_err(open_error)?;
        log::info!(
            "{nic}: DPDK device {:?}, memory in {} pages",
            self.device,
            if self.huge_pages { "huge" } else { "ordinary" },
        );
        Ok(Box::new(port))
    }

    /// Checks the configuration only: DPDK opens its devices when it is initialized.
    fn check(&self, station: Station) -> Result<(), OpenError> {
        dpdk_config(self, station).check().map_err(open_error)
    }
}

#[cfg(not(feature = "dpdk"))]
impl Driver for Dpdk {
    fn open(&self, _: Station) -> Result<Box<dyn Port>, OpenError> {
        Err(OpenError::new(crate::config::WITHOUT_DPDK))
    }

    fn check(&self, station: Station) -> Result<(), OpenError> {
        self.open(station).map(drop)
    }
}

#[cfg(all(test, not(feature = "dpdk")))]
mod tests {
    use super::*;

    #[test]
    fn port_of_a_program_without_dpdk_is_refused() {
        let dpdk = Dpdk {
            device: "net_memif0,role=server".into(),
            ..Dpdk::default()
        };
        let station = Station {
            nic: "VINIC0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            ethertypes: Vec::new(),
            multicast: Vec::new(),
            interface_address: false,
            standstill_limit: None,
        };
        let refused = open(&Network::Dpdk(dpdk), station).err().unwrap();
        assert_eq!(
            refused.to_string(),
            "[nic.dpdk]: this program was built without DPDK: build it with --features dpdk"
        );
    }
}
