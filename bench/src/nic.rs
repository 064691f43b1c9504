//! Which NIC is opened, and which raw port stands beside it.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fcvi_frame::{Discriminator, HostAddress, NetAddress};
use pmd::config::{Config, CopyMode, Idle, NicConfig, PortKind, ProcessConfig, TransportKind};
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::af_xdp::{self, AfXdpConfig, AfXdpPort};
#[cfg(feature = "dpdk")]
use pmd_port::dpdk::{DpdkConfig, DpdkPort, EalConfig};
use pmd_port::shm::{ShmConfig, ShmPort};
use pmd_port::{MacBytes, Port};
use vipl::{
    ErrorCode, ErrorDescriptor, ErrorHandler, NicAttributes, NicHandle, PtagHandle, provider,
};

use crate::cli::Ends;
use crate::control::ETHERTYPE;
use crate::error::{Error, Result};
use crate::output;
use crate::sync::{AtomicU64, Ordering};

/// What carries messages where no port does.
const VI_TCP: &str = "vi-tcp";

/// What the command line says about the NIC.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Configuration file, or `None` for a shared-memory segment of the run.
    pub config: Option<PathBuf>,
    /// The NIC's name in the configuration.
    pub device: String,
    /// The segment when there is no configuration.
    pub segment: Option<String>,
    /// Where buffers are.
    pub memory: MemoryKind,
}

/// Where buffers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MemoryKind {
    /// The program's heap.
    #[default]
    Private,
    /// The library's allocator: a datapath process maps it.
    Shared,
}

/// A NIC to be opened.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its configuration.
    pub config: NicConfig,
    /// The datapath process that has it.
    process: Option<ProcessConfig>,
    memory: MemoryKind,
}

impl Choice {
    /// One that this program opens by itself.
    #[must_use]
    pub fn own(config: NicConfig) -> Self {
        Self {
            config,
            process: None,
            memory: MemoryKind::default(),
        }
    }

    /// Whether a datapath process has it.
    pub(crate) fn is_attached(&self) -> bool {
        self.process.is_some()
    }

    /// Whether that process never leaves its core to others.
    pub(crate) fn process_spins(&self) -> bool {
        let spins = |process: &ProcessConfig| process.idle == Idle::Spin;
        self.process.as_ref().is_some_and(spins)
    }

    /// The core of that process on which the NIC is polled.
    pub(crate) fn process_core(&self) -> Option<usize> {
        let last = || core_affinity::get_core_ids().and_then(|ids| ids.last().map(|id| id.id));
        self.process.as_ref()?;
        self.config.core.or_else(last)
    }
}

impl Selection {
    /// What the options of a run select; without a configuration a segment of its own.
    pub(crate) fn of_run(ends: &Ends, tag: &str) -> Self {
        Self {
            config: ends.config.clone(),
            device: ends.device.clone(),
            segment: Some(format!("vibench-{tag}")),
            memory: ends.memory,
        }
    }

    /// The configuration that this selects.
    ///
    /// # Errors
    /// [`Error::Usage`] with what the file does not say.
    pub fn load(&self) -> Result<Choice> {
        let choice = match (&self.config, &self.segment) {
            (Some(path), _) => from_file(path, &self.device)?,
            (None, Some(segment)) => Choice::own(private_segment(segment)),
            (None, None) => {
                return Err(Error::Usage(
                    "neither a configuration nor a segment is named".into(),
                ));
            }
        };
        Ok(Choice {
            memory: self.memory,
            ..choice
        })
    }
}

/// An open NIC with the one protection tag that the program uses.
pub struct Nic {
    handle: NicHandle,
    ptag: PtagHandle,
    attributes: NicAttributes,
    losses: Arc<AtomicU64>,
    memory: MemoryKind,
}

impl Nic {
    /// Opens the NIC.
    ///
    /// # Errors
    /// [`Error::Call`] with the call that failed.
    pub fn open(choice: &Choice) -> Result<Self> {
        let opened = match &choice.process {
            Some(process) => provider::attach_nic(&process.socket, &choice.config.name),
            None => provider::open_nic_with(&choice.config),
        };
        let handle = opened.map_err(|error| Error::call("VipOpenNic", error))?;
        let losses = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&losses);
        let handler: ErrorHandler = Box::new(move |error| take_note(error, &counted));
        let rest = provider::error_callback(handle, Some(handler))
            .map_err(|error| Error::call("VipErrorCallback", error))
            .and_then(|()| {
                provider::create_ptag(handle).map_err(|error| Error::call("VipCreatePtag", error))
            })
            .and_then(|ptag| {
                provider::query_nic(handle)
                    .map(|attributes| (ptag, attributes))
                    .map_err(|error| Error::call("VipQueryNic", error))
            });
        match rest {
            Ok((ptag, attributes)) => Ok(Self {
                handle,
                ptag,
                attributes,
                losses,
                memory: choice.memory,
            }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = provider::close_nic(handle);
                Err(error)
            }
        }
    }

    /// The handle.
    pub fn handle(&self) -> NicHandle {
        self.handle
    }

    /// Where buffers are.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// The tag of everything that the program registers.
    pub fn ptag(&self) -> PtagHandle {
        self.ptag
    }

    /// What its turns have done so far.
    ///
    /// # Errors
    /// [`Error::Call`] when the NIC is gone.
    pub(crate) fn turns(&self) -> Result<Turns> {
        let counters = provider::counters(self.handle)
            .map_err(|error| Error::call("the NIC's counters", error))?;
        let of = |name: &str| {
            counters
                .iter()
                .find(|(n, _)| n == name)
                .map_or(0, |(_, v)| *v)
        };
        Ok(Turns {
            busy: of("busy_turns"),
            timed: of("timed_turns"),
            timed_ns: of("timed_ns"),
        })
    }

    /// How many connections the stack has reported lost.
    pub(crate) fn losses(&self) -> &Arc<AtomicU64> {
        &self.losses
    }

    /// This host, as IP knows it.
    pub(crate) fn ip(&self) -> IpAddr {
        ip_of(HostAddress(*self.attributes.local_nic_address))
    }

    /// An address of this host.
    pub fn local(&self, discriminator: Discriminator) -> NetAddress {
        NetAddress {
            host: HostAddress(*self.attributes.local_nic_address),
            discriminator,
        }
    }

    /// An address of another host, by name. The name service runs for as long as it takes.
    ///
    /// # Errors
    /// [`Error::Call`] when the name is not known.
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

/// Turns of a NIC that did something, and of some of them how long they took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    busy: u64,
    timed: u64,
    timed_ns: u64,
}

impl Turns {
    /// Nanoseconds of turns from then on for each of so many messages.
    pub(crate) fn ns_per_message(&self, before: &Self, messages: u64) -> Option<f64> {
        let (timed, busy) = (self.timed - before.timed, self.busy - before.busy);
        let mean_ns = (self.timed_ns - before.timed_ns) as f64 / timed as f64;
        (timed > 0 && messages > 0).then(|| mean_ns * busy as f64 / messages as f64)
    }
}

/// Counts lost connections. Other losses are told with the results; anything else is a surprise.
fn take_note(error: &ErrorDescriptor, losses: &AtomicU64) {
    match error.code {
        ErrorCode::ConnLost => {
            // Relaxed: a count with no partner; whoever sees it change asks the stack.
            losses.fetch_add(1, Ordering::Relaxed);
        }
        ErrorCode::RecvqEmpty
        | ErrorCode::RdmawData
        | ErrorCode::RdmawAbort
        | ErrorCode::RdmaTransport => {}
        code => output::note(format_args!("the NIC reports {code}")),
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // Nothing is left to do if the NIC is not open any more.
        let _ = provider::close_nic(self.handle);
    }
}

fn from_file(path: &Path, device: &str) -> Result<Choice> {
    let config = Config::read(path).map_err(|error| Error::Usage(error.to_string()))?;
    let nic = config
        .nic(device)
        .cloned()
        .ok_or_else(|| Error::Usage(format!("{}: has no NIC `{device}`", path.display())))?;
    Ok(Choice {
        config: nic,
        process: config.process,
        memory: MemoryKind::default(),
    })
}

fn private_segment(segment: &str) -> NicConfig {
    NicConfig {
        name: "VINIC0".into(),
        port: PortKind::Shm,
        segment: segment.into(),
        ..NicConfig::default()
    }
}

/// What carries the messages of a NIC, as results give it: the driver of its port, or VI/TCP, which
/// has no port.
pub fn port_name(config: &NicConfig) -> &'static str {
    match config.transport {
        TransportKind::FcVi => config.port.name(),
        TransportKind::ViTcp => VI_TCP,
    }
}

/// A host, as IP knows it.
pub(crate) fn ip_of(host: HostAddress) -> IpAddr {
    let v6 = Ipv6Addr::from(host.0);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Does this NIC speak VI/TCP?
pub(crate) fn is_vi_tcp(config: &NicConfig) -> bool {
    config.transport == TransportKind::ViTcp
}

/// The raw control's port beside the NIC's own: of the same kind, on another segment or
/// as another station on the same interface. An interface has room for one `af_xdp` port:
/// the control beside that one is an `af_packet` station, whose frames go past it. A device
/// of DPDK has one port, too: beside `net_af_packet` the control is a station on its
/// interface, which both hear. `None` beside all other devices; `net_af_xdp` takes every
/// frame of its interface.
pub(crate) fn raw_beside(config: &NicConfig) -> Option<NicConfig> {
    let interface = match config.port {
        PortKind::Shm | PortKind::AfPacket => return Some(config.clone()),
        PortKind::AfXdp => &config.interface,
        PortKind::Dpdk => shared_interface(&config.device)?,
    };
    Some(NicConfig {
        port: PortKind::AfPacket,
        interface: interface.to_owned(),
        ..config.clone()
    })
}

/// The interface behind a device of DPDK that leaves its frames to others, too.
fn shared_interface(device: &str) -> Option<&str> {
    let keys = device.strip_prefix("net_af_packet")?.split(',').skip(1);
    let mut named = keys.filter_map(|key| key.strip_prefix("iface="));
    named.next()
}

/// Opens the raw control's port.
///
/// # Errors
/// [`Error::Port`] with the driver's reason, or because there can be none beside the NIC's own.
pub fn open_raw_port(config: &NicConfig, is_near: bool) -> Result<Box<dyn Port>> {
    let beside = raw_beside(config).ok_or_else(|| {
        let device = &config.device;
        Error::Port(format!(
            "none beside DPDK's device {device:?}, which has one port: measure with --no-control"
        ))
    })?;
    open_station(&beside, raw_mac(is_near), ETHERTYPE)
}

/// Opens a port of the NIC's kind beside it or, if there can be one only, in its place; for frames
/// of this EtherType, with this address where the driver lets it be chosen.
///
/// # Errors
/// [`Error::Port`] with the driver's reason.
pub(crate) fn open_station(
    config: &NicConfig,
    mac: MacBytes,
    ethertype: u16,
) -> Result<Box<dyn Port>> {
    if is_vi_tcp(config) {
        return Err(Error::Port(format!(
            "NIC {}: transport = \"{VI_TCP}\" has none",
            config.name
        )));
    }
    match config.port {
        PortKind::Shm => {
            let mut raw = ShmConfig::new(format!("{}-raw", config.segment));
            if let Some(directory) = &config.directory {
                raw.directory.clone_from(directory);
            }
            raw.slots_per_ring = config.ring_frames;
            ShmPort::open(raw)
                .map(|port| Box::new(port) as Box<dyn Port>)
                .map_err(|error| Error::Port(error.to_string()))
        }
        PortKind::AfPacket => {
            let mut raw = AfPacketConfig::new(&config.interface, mac);
            raw.ethertypes = vec![ethertype];
            raw.rx_frames = config.rx_frames;
            raw.tx_frames = config.tx_frames;
            AfPacketPort::open(raw)
                .map(|port| Box::new(port) as Box<dyn Port>)
                .map_err(|error| Error::Port(error.to_string()))
        }
        PortKind::AfXdp => {
            let mut raw = AfXdpConfig::new(&config.interface, mac);
            raw.ethertypes = vec![ethertype];
            raw.rx_frames = config.rx_frames;
            raw.tx_frames = config.tx_frames;
            (raw.queue, raw.queues) = (config.queue, config.queues);
            raw.copy = match config.copy {
                CopyMode::Auto => af_xdp::CopyMode::Auto,
                CopyMode::ZeroCopy => af_xdp::CopyMode::ZeroCopy,
                CopyMode::Copy => af_xdp::CopyMode::Copy,
            };
            AfXdpPort::open(raw)
                .map(|port| Box::new(port) as Box<dyn Port>)
                .map_err(|error| Error::Port(error.to_string()))
        }
        PortKind::Dpdk => open_dpdk(config, mac, ethertype),
    }
}

#[cfg(feature = "dpdk")]
fn open_dpdk(config: &NicConfig, mac: MacBytes, ethertype: u16) -> Result<Box<dyn Port>> {
    let raw = DpdkConfig {
        eal: EalConfig {
            huge_pages: config.huge_pages,
            memory_mb: config.memory_mb,
            args: config.args.clone(),
        },
        ethertypes: vec![ethertype],
        queues: config.queues,
        rx_frames: config.rx_frames,
        tx_frames: config.tx_frames,
        mtu_bytes: config.mtu_bytes,
        ..DpdkConfig::new(&config.device, mac)
    };
    DpdkPort::open(raw)
        .map(|port| Box::new(port) as Box<dyn Port>)
        .map_err(|error| Error::Port(error.to_string()))
}

#[cfg(not(feature = "dpdk"))]
fn open_dpdk(_: &NicConfig, _: MacBytes, _: u16) -> Result<Box<dyn Port>> {
    Err(Error::Port(pmd::config::WITHOUT_DPDK.into()))
}

/// A locally administered station address of this process for raw frames.
pub(crate) fn raw_mac(is_near: bool) -> MacBytes {
    let id = std::process::id().to_be_bytes();
    [0x02, u8::from(is_near), id[0], id[1], id[2], id[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(config: Option<PathBuf>, device: &str) -> Selection {
        Selection {
            config,
            device: device.into(),
            segment: Some("vibench-1".into()),
            memory: MemoryKind::default(),
        }
    }

    #[test]
    fn without_a_file_the_segment_is_private() {
        let config = selection(None, "VINIC0").load().unwrap().config;
        assert_eq!(config.segment, "vibench-1");
        assert_eq!(port_name(&config), "shm");
    }

    #[test]
    fn vi_tcp_is_named_and_has_no_port() {
        let config = NicConfig {
            name: "VINIC0".into(),
            transport: TransportKind::ViTcp,
            host: Some(std::net::Ipv4Addr::new(127, 0, 0, 7).into()),
            tcp_port: 18_427,
            ..NicConfig::default()
        };
        assert_eq!(port_name(&config), "vi-tcp");
        assert_eq!(ip_of(config.host_address()), config.own_host().ip());
        let refused = open_station(&config, raw_mac(true), ETHERTYPE).err();
        let refused = refused.unwrap().to_string();
        assert!(
            refused.contains("VINIC0") && refused.contains("vi-tcp"),
            "{refused}"
        );
        let nic = Nic::open(&Choice::own(config.clone())).unwrap();
        assert_eq!(nic.ip(), config.own_host().ip());
        let six = "2001:db8::1".parse::<Ipv6Addr>().unwrap();
        assert_eq!(ip_of(HostAddress(six.octets())), IpAddr::V6(six));
    }

    #[test]
    fn names_are_looked_up_again_and_again() {
        let config = private_segment(&format!("vibench-names-{}", std::process::id()));
        let nic = Nic::open(&Choice::own(config)).unwrap();
        let discriminator = Discriminator::new(b"x").unwrap();
        for _ in 0..2 {
            let found = nic.remote("localhost", discriminator).unwrap();
            assert_eq!(found, nic.local(discriminator));
            assert!(nic.remote("no such host", discriminator).is_err());
        }
    }

    #[test]
    fn a_file_names_its_nics() {
        let name = format!("vibench-nic-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "[[nic]]\nsegment = \"mine\"\n").unwrap();
        let found = selection(Some(path.clone()), "VINIC0").load();
        let missing = selection(Some(path.clone()), "VINIC7").load();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap().config.segment, "mine");
        assert!(missing.unwrap_err().to_string().contains("VINIC7"));
        assert!(selection(Some(path), "VINIC0").load().is_err());
    }

    #[test]
    fn the_control_is_beside_the_nic_where_there_is_room() {
        let beside = |port, device: &str| {
            let (interface, device) = ("a".into(), device.into());
            let config = NicConfig {
                port,
                interface,
                device,
                ..NicConfig::default()
            };
            raw_beside(&config).map(|raw| (raw.port, raw.interface))
        };
        let station = |interface: &str| Some((PortKind::AfPacket, interface.to_owned()));
        assert_eq!(
            beside(PortKind::Shm, "").map(|(port, _)| port),
            Some(PortKind::Shm)
        );
        assert_eq!(beside(PortKind::AfPacket, ""), station("a"));
        assert_eq!(beside(PortKind::AfXdp, ""), station("a"));
        let shared = "net_af_packet0,qpairs=1,iface=b";
        assert_eq!(beside(PortKind::Dpdk, shared), station("b"));
        for alone in [
            "net_af_xdp0,iface=b",
            "net_tap0,iface=b",
            "net_memif0,role=server",
            "0000:01:00.0",
            "net_af_packet0",
        ] {
            assert_eq!(beside(PortKind::Dpdk, alone), None, "{alone}");
        }
        let alone = NicConfig {
            port: PortKind::Dpdk,
            device: "net_null0".into(),
            ..NicConfig::default()
        };
        let refused = open_raw_port(&alone, true).err().unwrap().to_string();
        assert!(
            refused.contains("net_null0") && refused.contains("--no-control"),
            "{refused}"
        );
    }

    #[cfg(not(feature = "dpdk"))]
    #[test]
    fn a_program_without_dpdk_says_so() {
        let config = NicConfig {
            port: PortKind::Dpdk,
            device: "net_null0".into(),
            ..NicConfig::default()
        };
        let refused = open_station(&config, raw_mac(true), ETHERTYPE).err();
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("--features dpdk"), "{refused}");
    }

    #[test]
    fn the_two_raw_stations_differ() {
        assert_ne!(raw_mac(true), raw_mac(false));
        assert_eq!(raw_mac(true)[0] & 3, 2, "unicast, locally administered");
    }
}
