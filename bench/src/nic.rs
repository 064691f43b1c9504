//! The NIC of a run, and the raw port for its control.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmd::config::{
    AfPacket, Config, Idle, Network, NicConfig, ProcessConfig, ip_address, socket_of,
};
use pmd::ports::{self, Station};
use pmd_port::{MacBytes, Port};
use vi_types::{Discriminator, HostAddress, NetAddress};
use vipl::{
    ErrorCode, ErrorDescriptor, ErrorHandler, NicAttributes, NicHandle, PtagHandle, provider,
};

use crate::error::{Error, Result};
use crate::output;
use crate::sync::{AtomicU64, Ordering};

/// Transport name in results, where there is no port.
const VI_TCP: &str = "vi-tcp";

/// Local experimental EtherType (IEEE Std 802): no other protocol receives it.
pub(crate) const ETHERTYPE: u16 = 0x88B5;

/// NIC options of the command line.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// Configuration file, or `None` for a private shared-memory segment.
    pub config: Option<PathBuf>,
    /// Name of the NIC in the configuration.
    pub device: String,
    /// Name of the segment, without a configuration.
    pub segment: Option<String>,
    /// Memory of the buffers.
    pub memory: MemoryKind,
}

/// Memory of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MemoryKind {
    /// Private memory of the program (heap).
    #[default]
    Private,
    /// Shared memory from the library's allocator, which a datapath process can map.
    Shared,
}

/// Settings with which a NIC is opened.
#[derive(Clone, Debug)]
pub struct NicSettings {
    /// Configuration of the NIC.
    pub config: NicConfig,
    /// The datapath process that owns the NIC.
    process: Option<ProcessConfig>,
    memory: MemoryKind,
}

impl NicSettings {
    /// Creates settings of a NIC that this program opens itself.
    #[must_use]
    pub fn own(config: NicConfig) -> Self {
        Self {
            config,
            process: None,
            memory: MemoryKind::default(),
        }
    }

    /// Returns whether a datapath process owns the NIC.
    pub(crate) fn is_attached(&self) -> bool {
        self.process.is_some()
    }

    /// Returns whether that process busy-polls and never yields its core.
    pub(crate) fn process_spins(&self) -> bool {
        let spins = |process: &ProcessConfig| process.idle == Idle::Spin;
        self.process.as_ref().is_some_and(spins)
    }

    /// Returns the core on which that process polls the NIC.
    pub(crate) fn process_core(&self) -> Option<usize> {
        let last = || core_affinity::get_core_ids().and_then(|ids| ids.last().map(|id| id.id));
        self.process.as_ref()?;
        self.config.progress.core().or_else(last)
    }
}

impl NicOptions {
    /// Loads the selected configuration.
    ///
    /// # Errors
    /// [`Error::Usage`] if the file is invalid or does not contain the NIC.
    pub fn load(&self) -> Result<NicSettings> {
        let settings = match (&self.config, &self.segment) {
            (Some(path), _) => load_file(path, &self.device)?,
            (None, Some(segment)) => NicSettings::own(private_segment(segment)),
            (None, None) => {
                return Err(Error::Usage(
                    "neither a configuration file nor a segment is given".into(),
                ));
            }
        };
        Ok(NicSettings {
            memory: self.memory,
            ..settings
        })
    }
}

/// An open NIC with the protection tag of the program.
pub struct Nic {
    handle: NicHandle,
    ptag: PtagHandle,
    attributes: NicAttributes,
    lost_connections: Arc<AtomicU64>,
    memory: MemoryKind,
}

impl Nic {
    /// Opens the NIC.
    ///
    /// # Errors
    /// [`Error::Call`] with the call that failed.
    pub fn open(settings: &NicSettings) -> Result<Self> {
        let opened = match &settings.process {
            Some(process) => provider::attach_nic(&socket_of(process), &settings.config.name),
            None => provider::open_nic_with(&settings.config),
        };
        let handle = opened.map_err(|error| Error::call("VipOpenNic", error))?;
        let lost_connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost_connections);
        let handler: ErrorHandler = Box::new(move |error| record_error(error, &counted));
        let prepared = provider::error_callback(handle, Some(handler))
            .map_err(|error| Error::call("VipErrorCallback", error))
            .and_then(|()| {
                provider::create_ptag(handle).map_err(|error| Error::call("VipCreatePtag", error))
            })
            .and_then(|ptag| {
                provider::query_nic(handle)
                    .map(|attributes| (ptag, attributes))
                    .map_err(|error| Error::call("VipQueryNic", error))
            });
        match prepared {
            Ok((ptag, attributes)) => Ok(Self {
                handle,
                ptag,
                attributes,
                lost_connections,
                memory: settings.memory,
            }),
            Err(error) => {
                // The first error is reported.
                let _ = provider::close_nic(handle);
                Err(error)
            }
        }
    }

    /// Returns the NIC handle.
    pub fn handle(&self) -> NicHandle {
        self.handle
    }

    /// Returns the memory kind of the buffers.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// Returns the protection tag of all VIs and registered memory.
    pub fn ptag(&self) -> PtagHandle {
        self.ptag
    }

    /// Returns the counters of poll iterations.
    ///
    /// # Errors
    /// [`Error::Call`] if the counters cannot be read.
    pub(crate) fn poll_counters(&self) -> Result<PollCounters> {
        let counters =
            provider::counters(self.handle).map_err(|error| Error::call("NIC counters", error))?;
        let counter = |name: &str| {
            counters
                .iter()
                .find(|(n, _)| n == name)
                .map_or(0, |(_, v)| *v)
        };
        Ok(PollCounters {
            busy: counter("busy_turns"),
            timed: counter("timed_turns"),
            timed_ns: counter("timed_ns"),
        })
    }

    /// Returns the count of connections that the stack has reported lost.
    pub(crate) fn lost_connections(&self) -> &Arc<AtomicU64> {
        &self.lost_connections
    }

    /// Returns the IP address of the NIC's host address.
    pub(crate) fn ip(&self) -> IpAddr {
        ip_address(HostAddress(*self.attributes.local_nic_address))
    }

    /// Returns the network address of `discriminator` on this host.
    pub fn local(&self, discriminator: Discriminator) -> NetAddress {
        NetAddress {
            host: HostAddress(*self.attributes.local_nic_address),
            discriminator,
        }
    }

    /// Returns the network address of `discriminator` on the host with this name; starts and stops the name service.
    ///
    /// # Errors
    /// [`Error::Call`] if the name cannot be resolved.
    pub fn remote(&self, host: &str, discriminator: Discriminator) -> Result<NetAddress> {
        provider::ns_init(self.handle, None).map_err(|error| Error::call("VipNSInit", error))?;
        let found = provider::ns_get_host_by_name(self.handle, host, 0)
            .map_err(|error| Error::call("VipNSGetHostByName", error));
        provider::ns_shutdown(self.handle).map_err(|error| Error::call("VipNSShutdown", error))?;
        Ok(NetAddress {
            host: found?,
            discriminator,
        })
    }
}

/// Counters of the busy poll iterations of a NIC, and the time of a sample of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollCounters {
    busy: u64,
    timed: u64,
    timed_ns: u64,
}

impl PollCounters {
    /// Returns the poller time per message in ns since `before`, in which `messages` were delivered.
    pub(crate) fn ns_per_message(&self, before: &Self, messages: u64) -> Option<f64> {
        let (timed, busy) = (self.timed - before.timed, self.busy - before.busy);
        let mean_ns = (self.timed_ns - before.timed_ns) as f64 / timed as f64;
        (timed > 0 && messages > 0).then(|| mean_ns * busy as f64 / messages as f64)
    }
}

/// Counts lost connections. Other losses are part of the results; all other errors are printed.
fn record_error(error: &ErrorDescriptor, lost_connections: &AtomicU64) {
    match error.code {
        ErrorCode::ConnLost => {
            // Relaxed: no data depends on the count; readers query the stack after a change.
            lost_connections.fetch_add(1, Ordering::Relaxed);
        }
        ErrorCode::RecvqEmpty
        | ErrorCode::RdmawData
        | ErrorCode::RdmawAbort
        | ErrorCode::RdmaTransport => {}
        code => output::note(format_args!("NIC error: {code}")),
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // Fails only if the NIC is not open any more.
        let _ = provider::close_nic(self.handle);
    }
}

fn load_file(path: &Path, device: &str) -> Result<NicSettings> {
    let config = Config::read(path).map_err(|error| Error::Usage(error.to_string()))?;
    let nic = config
        .nic(device)
        .cloned()
        .ok_or_else(|| Error::Usage(format!("{}: no NIC `{device}`", path.display())))?;
    Ok(NicSettings {
        config: nic,
        process: config.process,
        memory: MemoryKind::default(),
    })
}

fn private_segment(segment: &str) -> NicConfig {
    NicConfig {
        name: "VINIC0".into(),
        network: Network::segment(segment),
        ..NicConfig::default()
    }
}

/// Returns the `port` of results: the driver of the NIC's port, or `vi-tcp`, which has no port.
pub fn port_name(config: &NicConfig) -> &'static str {
    match &config.network {
        Network::ViTcp(_) => VI_TCP,
        network => network.name(),
    }
}

/// Returns whether the transport of this NIC is VI/TCP.
pub(crate) fn is_vi_tcp(config: &NicConfig) -> bool {
    config.network.vi_tcp().is_some()
}

/// Returns the configuration of the raw control's port: a port of the NIC's kind, on another segment or as another
/// station on the same interface. An interface supports one `af_xdp` port: its control is an `af_packet` station,
/// whose frames bypass it. A DPDK device has one port as well: the control of `net_af_packet` is an `af_packet`
/// station on the same interface, since both receive its frames. Returns `None` for all other devices: `net_af_xdp`
/// takes every frame of its interface.
pub(crate) fn raw_control_config(config: &NicConfig) -> Option<NicConfig> {
    let station = match &config.network {
        Network::AfXdp(port) => AfPacket {
            interface: port.interface.clone(),
            rx_frames: port.rx_frames,
            tx_frames: port.tx_frames,
            ..AfPacket::default()
        },
        Network::Dpdk(port) => AfPacket {
            interface: shared_interface(&port.device)?.to_owned(),
            rx_frames: port.rx_frames,
            tx_frames: port.tx_frames,
            ..AfPacket::default()
        },
        _ => return Some(config.clone()),
    };
    Some(NicConfig {
        network: Network::AfPacket(station),
        ..config.clone()
    })
}

/// Returns the interface of a DPDK device that does not take frames away from other sockets.
fn shared_interface(device: &str) -> Option<&str> {
    let keys = device.strip_prefix("net_af_packet")?.split(',').skip(1);
    let mut named = keys.filter_map(|key| key.strip_prefix("iface="));
    named.next()
}

/// Opens the port of the raw control.
///
/// # Errors
/// [`Error::Port`] with the error of the driver, or if the device supports no second port.
pub fn open_raw_port(config: &NicConfig, is_client: bool) -> Result<Box<dyn Port>> {
    let raw_config = raw_control_config(config).ok_or_else(|| {
        let device = config.network.wire().unwrap_or_default();
        Error::Port(format!(
            "not available: DPDK device {device:?} has a single port: use --no-control"
        ))
    })?;
    open_station(&raw_config, raw_mac(is_client), ETHERTYPE)
}

/// Opens the port of a NIC configuration for frames with this EtherType, and with this MAC address if the driver
/// supports a choice. On shared memory it is on a segment of its own.
///
/// # Errors
/// [`Error::Port`] with the error of the driver.
pub(crate) fn open_station(
    config: &NicConfig,
    mac: MacBytes,
    ethertype: u16,
) -> Result<Box<dyn Port>> {
    let mut network = config.network.clone();
    if let Some(segment) = network.segment_name_mut() {
        *segment += "-raw";
    }
    let station = Station {
        nic: config.name.clone(),
        mac,
        ethertypes: vec![ethertype],
        multicast: Vec::new(),
        interface_address: false,
        standstill_limit: None,
    };
    ports::open(&network, station)
        .map_err(|error| Error::Port(format!("NIC {}: {error}", config.name)))
}

/// Returns a locally administered MAC address of this process for raw frames.
pub(crate) fn raw_mac(is_client: bool) -> MacBytes {
    let id = std::process::id().to_be_bytes();
    [0x02, u8::from(is_client), id[0], id[1], id[2], id[3]]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use pmd::config::{AfXdp, Dpdk, ViTcp};

    fn nic_options(config: Option<PathBuf>, device: &str) -> NicOptions {
        NicOptions {
            config,
            device: device.into(),
            segment: Some("vibench-1".into()),
            memory: MemoryKind::default(),
        }
    }

    #[test]
    fn nic_options_without_file_use_private_segment() {
        let config = nic_options(None, "VINIC0").load().unwrap().config;
        assert_eq!(config.network, Network::segment("vibench-1"));
        assert_eq!(port_name(&config), "shm");
    }

    #[test]
    fn vi_tcp_nic_has_no_port() {
        let config = NicConfig {
            name: "VINIC0".into(),
            host: Some(std::net::Ipv4Addr::new(127, 0, 0, 7).into()),
            network: Network::ViTcp(ViTcp {
                port: 18_427,
                ..ViTcp::default()
            }),
            ..NicConfig::default()
        };
        assert_eq!(port_name(&config), "vi-tcp");
        assert_eq!(ip_address(config.host_address()), config.own_host().ip());
        let refused = open_station(&config, raw_mac(true), ETHERTYPE).err();
        let refused = refused.unwrap().to_string();
        assert!(
            refused.contains("VINIC0") && refused.contains("vi_tcp"),
            "{refused}"
        );
        let nic = Nic::open(&NicSettings::own(config.clone())).unwrap();
        assert_eq!(nic.ip(), config.own_host().ip());
        let six = "2001:db8::1".parse::<Ipv6Addr>().unwrap();
        assert_eq!(ip_address(HostAddress(six.octets())), IpAddr::V6(six));
    }

    #[test]
    fn host_names_are_resolved_repeatedly() {
        let config = private_segment(&format!("vibench-names-{}", std::process::id()));
        let nic = Nic::open(&NicSettings::own(config)).unwrap();
        let discriminator = Discriminator::new(b"x").unwrap();
        for _ in 0..2 {
            let found = nic.remote("localhost", discriminator).unwrap();
            assert_eq!(found, nic.local(discriminator));
            assert!(nic.remote("no such host", discriminator).is_err());
        }
    }

    #[test]
    fn nic_options_with_file_load_named_nic() {
        let name = format!("vibench-nic-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "[[nic]]\nshm.segment = \"mine\"\n").unwrap();
        let found = nic_options(Some(path.clone()), "VINIC0").load();
        let missing = nic_options(Some(path.clone()), "VINIC7").load();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap().config.network, Network::segment("mine"));
        assert!(missing.unwrap_err().to_string().contains("VINIC7"));
        assert!(nic_options(Some(path), "VINIC0").load().is_err());
    }

    fn on_device(device: &str) -> NicConfig {
        NicConfig {
            network: Network::Dpdk(Dpdk {
                device: device.into(),
                ..Dpdk::default()
            }),
            ..NicConfig::default()
        }
    }

    #[test]
    fn raw_control_config_depends_on_driver() {
        let raw_config = |network: Network| {
            let config = NicConfig {
                network,
                ..NicConfig::default()
            };
            raw_control_config(&config).map(|raw| raw.network)
        };
        let dpdk = |device: &str| {
            raw_config(Network::Dpdk(Dpdk {
                device: device.into(),
                ..Dpdk::default()
            }))
        };
        let station = |interface: &str| {
            Some(Network::AfPacket(AfPacket {
                interface: interface.to_owned(),
                ..AfPacket::default()
            }))
        };
        let segment = Network::segment("s");
        assert_eq!(raw_config(segment.clone()), Some(segment));
        assert_eq!(raw_config(station("a").unwrap()), station("a"));
        let xdp = AfXdp {
            interface: "a".into(),
            ..AfXdp::default()
        };
        assert_eq!(raw_config(Network::AfXdp(xdp)), station("a"));
        assert_eq!(dpdk("net_af_packet0,qpairs=1,iface=b"), station("b"));
        for alone in [
            "net_af_xdp0,iface=b",
            "net_tap0,iface=b",
            "net_memif0,role=server",
            "0000:01:00.0",
            "net_af_packet0",
        ] {
            assert_eq!(dpdk(alone), None, "{alone}");
        }
        let alone = on_device("net_null0");
        let refused = open_raw_port(&alone, true).err().unwrap().to_string();
        assert!(
            refused.contains("net_null0") && refused.contains("--no-control"),
            "{refused}"
        );
    }

    #[cfg(not(feature = "dpdk"))]
    #[test]
    fn dpdk_port_without_dpdk_feature_fails() {
        let config = on_device("net_null0");
        let refused = open_station(&config, raw_mac(true), ETHERTYPE).err();
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("--features dpdk"), "{refused}");
    }

    #[test]
    fn raw_mac_differs_between_client_and_server() {
        assert_ne!(raw_mac(true), raw_mac(false));
        assert_eq!(raw_mac(true)[0] & 3, 2, "unicast, locally administered");
    }
}
