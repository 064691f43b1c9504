//! Builds the poller of a NIC from its configuration: port, layers, N_Port, engine.

use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use fc_port::login::LoginConfig;
use fc_port::vn_port::VnPort;
use fc_port::vn2vn::Vn2vnConfig;
use fcvi_frame::ethernet::{
    ETHERTYPE_FCOE, ETHERTYPE_FIP, HEADER_BYTES as ETHERNET_HEADER_BYTES, MacAddress,
};
use fcvi_frame::fc::NPortId;
use fcvi_frame::fcoe;
use pmd_port::layer::{fault, pcapng};
use pmd_port::{Capabilities, Port};
use vi_core::doorbell::MAX_VI;
use vi_core::sync::Ordering;
use vi_core::sys::random_bytes;
use vi_engine::{Engine, EngineConfig, max_message_bytes};

use super::claims::{Claim, Claims};
use super::error::OpenError;
use crate::capture_file;
use crate::coalesce::Coalescer;
use crate::config::{self, FaultConfig, Network, NicConfig, ip_address};
use crate::datapath::{Datapath, DirectStation};
use crate::device::Device;
use crate::discovery::{Discovery, FC_VI};
use crate::neighbours::Neighbours;
use crate::nic_backend::Backend;
use crate::poller::{PollState, Poller};
use crate::ports;
use crate::transport::FcVi;
use vi_tcp::{HandshakeLimits, ViTcp};

/// Part of a message between two applications of a datapath process that one system call copies if their
/// memory is not shared.
const SERVED_PART_BYTES: u32 = 256 * 1024;

/// Timeout of a FARP-REQ, whose reply takes one round trip.
const FARP_TIMEOUT_NS: u64 = 250_000_000;

/// The EtherTypes of Fibre Channel.
const ETHERTYPES: [u16; 2] = [ETHERTYPE_FCOE, ETHERTYPE_FIP];

/// A port, the N_Port_ID of this NIC, and its claim.
struct Station {
    port: Box<dyn Port>,
    id: NPortId,
    claim: Option<Claim>,
}

/// Builds the backend of a device: the poller of its transport.
pub(super) fn backend(device: &'static Device) -> Result<Backend, OpenError> {
    Ok(match &device.config.network {
        Network::ViTcp(tcp) => Backend::ViTcp(Box::new(stream_poller(device, tcp)?)),
        _ => Backend::FcVi(frame_poller(device)?),
    })
}

/// Returns the scope ID of the host address of a NIC with VI/TCP: the interface index of a link-local address.
fn tcp_scope(config: &NicConfig) -> Result<u32, OpenError> {
    let scope = config::scope(&config.own_host());
    scope.map_err(|error| OpenError::new(error.to_string()))
}

/// Returns the listening address of a NIC with VI/TCP.
pub(crate) fn tcp_address(
    config: &NicConfig,
    tcp: &config::ViTcp,
) -> Result<SocketAddr, OpenError> {
    Ok(match config.own_host().ip() {
        IpAddr::V4(host) => SocketAddr::from((host, tcp.port)),
        IpAddr::V6(host) => SocketAddrV6::new(host, tcp.port, 0, tcp_scope(config)?).into(),
    })
}

/// Returns the limits on TLS handshakes.
fn handshake_limits(tcp: &config::ViTcp) -> HandshakeLimits {
    let tls = tcp.tls.clone().unwrap_or_default();
    HandshakeLimits {
        total: tls.max_handshakes_per_second,
        per_source: tls.max_handshakes_per_source,
    }
}

/// Builds the poller of a NIC with VI/TCP.
fn stream_poller(
    device: &'static Device,
    tcp_config: &config::ViTcp,
) -> Result<Poller<ViTcp>, OpenError> {
    let config = &device.config;
    let max_vi = config.limits.max_vi.min(MAX_VI);
    let mut address = tcp_address(config, tcp_config)?;
    // Any port: other programs of this host may use the port of the NIC, and share it.
    address.set_port(0);
    vi_tcp::try_bind(address).map_err(|error| {
        let host = config.own_host();
        OpenError::new(format!(
            "host = \"{host}\": {error}: it must be an address of this host (`ip address` lists them)"
        ))
    })?;
    let settings = vi_tcp::Settings {
        host: config.host_address(),
        port: tcp_config.port,
        scope: tcp_scope(config)?,
        max_vi,
        max_incoming: config.limits.max_incoming,
        max_in_flight: config.limits.max_in_flight,
        max_reads: config.limits.max_rdma_reads,
        response_timeout_ns: config.ulp_timeout_ms() * 1_000_000,
        retry_ns: config.peer_retry_ms * 1_000_000,
        probe_ms: config.network.probe_interval_ms(),
        miss_limits: config::miss_limits(&config.limits),
        handshake_limits: handshake_limits(tcp_config),
        log_limiter: &device.shared.log_limiter,
        flow_control: tcp_config.flow_control,
        credits_low: tcp_config.credits_low,
    };
    let credentials = tcp_config
        .tls
        .as_ref()
        .map(|tls| {
            vi_tcp::Credentials::read(tls, ip_address(settings.host), &device.shared.log_limiter)
        })
        .transpose()
        .map_err(OpenError::new)?;
    let keys = vi_tcp::read_keys(tcp_config.key_file.as_deref()).map_err(OpenError::new)?;
    let mut tcp = ViTcp::new(settings, tcp_config.directory.clone(), credentials, keys)
        .map_err(|error| OpenError::new(format!("VI/TCP: epoll failed: {error}")))?;
    let port = tcp.port();
    let at = port.capabilities().device.clone();
    if tcp_config.tls.is_some() {
        tcp.listen_exclusively()
            .map_err(|error| OpenError::new(format!("{at}: cannot listen: {error}")))?;
    }
    log::info!(
        "{}: VI/TCP{} at {at}, {} progress",
        config.name,
        if tcp_config.tls.is_some() {
            " with TLS"
        } else {
            ""
        },
        config.progress.name(),
    );
    let path = Datapath::new(
        Box::new(port),
        &device.shared.regions,
        &device.shared.events,
        max_vi,
    );
    let coalescer = Coalescer::for_streams(config.progress.inline_keys().coalesce_frames);
    Ok(Poller::new(tcp, PollState::new(path, coalescer, None)))
}

/// Builds the poller of a NIC with FC-VI.
fn frame_poller(device: &'static Device) -> Result<Poller<FcVi>, OpenError> {
    let config = &device.config;
    let station = match (config.network.is_on_wire(), config.addressing.r#static()) {
        (false, _) => open_shm(config)?,
        (true, None) => open_anonymous(config)?,
        (true, Some(ids)) => open_configured(config, &ids.n_port_ids)?,
    };
    let mut port = station.port;
    if let Some(faults) = &config.fc_vi.fault {
        let injector = fault::FaultInjector::new(port, fault_rates(faults))
            .map_err(|e| OpenError::new(format!("fault: {e}")))?;
        log::info!("{}: fault injection enabled: {faults}", config.name);
        port = Box::new(injector);
    }
    if let Some(path) = &config.fc_vi.capture {
        let tee = capture_file::create(path)
            .and_then(|file| pcapng::PcapngTee::new(port, BufWriter::new(file)))
            .map_err(|e| OpenError::new(format!("capture {}: {e}", path.display())))?;
        port = Box::new(tee);
    }
    let capabilities = port.capabilities().clone();
    let data_field = data_field_bytes(capabilities.max_frame_bytes)?;
    let max_bytes = max_message_bytes(data_field);
    if device.limit_transfers(max_bytes) {
        log::warn!(
            "{}: max_transfer_bytes = {}: messages are limited to {max_bytes} bytes, 65,536 frames: lower it, or \
             raise the MTU",
            config.name,
            config.limits.max_transfer_bytes
        );
    }
    let mut engine_config = EngineConfig::new(station.id, config.host_address());
    let mut seed = [0u8; 24];
    random_bytes(&mut seed);
    let (first, names) = seed.split_at(8);
    let (port_name, node_name) = config.addressing.discovery().names();
    engine_config.port_name = port_name.unwrap_or_else(|| local_name(names, 0));
    engine_config.node_name = node_name.unwrap_or_else(|| local_name(names, 8));
    engine_config.data_field_bytes = data_field;
    engine_config.e_d_tov_ns = config.fc_vi.e_d_tov_ms * 1_000_000;
    engine_config.r_a_tov_ns = config.r_a_tov_ms() * 1_000_000;
    engine_config.ulp_timeout_ns = config.ulp_timeout_ms() * 1_000_000;
    engine_config.silent_port_ns = config.silent_port_ms() * 1_000_000;
    engine_config.peer_retry_ns = config.peer_retry_ms * 1_000_000;
    engine_config.probe_interval_ns = match config.network.is_on_wire() {
        // The segment reports stations that have died.
        false => 0,
        true => config.network.probe_interval_ms() * 1_000_000,
    };
    let max_vi = config.limits.max_vi.min(MAX_VI);
    engine_config.max_vi = max_vi;
    engine_config.max_incoming = config.limits.max_incoming;
    engine_config.max_discriminator_bytes = config.limits.max_discriminator_bytes;
    engine_config.max_reads_accepted = config.limits.max_rdma_reads;
    engine_config.max_unanswered = config.limits.max_in_flight;
    engine_config.miss_limits = config::miss_limits(&config.limits);
    engine_config.recovery = config::recovery(config);
    engine_config.shortcut = config.fc_vi.shortcut;
    if device.served.load(Ordering::Relaxed) {
        engine_config.shortcut_bytes = SERVED_PART_BYTES;
    }
    let neighbours = neighbours(config, station.id)?;
    let (port_name, node_name) = (engine_config.port_name, engine_config.node_name);
    log::info!(
        "{}: {} {} as N_Port {}, host {}, {} bytes a frame, {} progress",
        config.name,
        capabilities.driver,
        capabilities.device,
        station.id,
        config.host_address(),
        data_field,
        config.progress.name(),
    );
    let first = u64::from_le_bytes(first.first_chunk().copied().unwrap_or_default());
    let mut engine = Engine::new(engine_config, first);
    let direct = direct_station(device, port.as_ref(), max_vi);
    let mut path = Datapath::new(port, &device.shared.regions, &device.shared.events, max_vi);
    path.set_direct(direct);
    let discovery = match config.discovers() {
        true => {
            engine.require_login();
            let port = vn_port(config, &capabilities, (port_name, node_name), data_field)?;
            Some(Box::new(Discovery::new(port)))
        }
        false => None,
    };
    let coalescer = Coalescer::new(
        config.progress.inline_keys().coalesce_frames,
        capabilities.send_alone,
    );
    let mut state = PollState::new(path, coalescer, station.claim);
    let mut transport = FcVi::new(engine, neighbours, discovery);
    transport.start_discovery(state.clock.now_ns());
    Ok(Poller::new(transport, state))
}

/// Exports the memory of a NIC to the other stations of its segment, and prepares access to theirs; `None` without a
/// segment, or if it is disabled. A datapath process does neither: its memory is that of applications.
fn direct_station(
    device: &'static Device,
    port: &dyn Port,
    max_vi: u32,
) -> Option<Box<DirectStation>> {
    let Network::Shm(shm) = &device.config.network else {
        return None;
    };
    let is_served = device.served.load(Ordering::Relaxed);
    let station = port.segment_station()?;
    if shm.max_direct_files == 0 || is_served {
        return None;
    }
    let regions = &device.shared.regions;
    if let Err(error) = regions.export(max_vi, station) {
        let name = &device.config.name;
        log::warn!("{name}: other programs cannot access its memory directly: {error}");
        return None;
    }
    let exported = regions.exported()?;
    Some(DirectStation::new(exported, shm.max_direct_files))
}

/// Builds the VN_Port of a NIC that uses discovery.
fn vn_port(
    config: &NicConfig,
    capabilities: &Capabilities,
    (port_name, node_name): (u64, u64),
    data_field_bytes: u16,
) -> Result<VnPort, OpenError> {
    let enode_mac = capabilities.interface_mac.ok_or_else(|| {
        OpenError::new(format!(
            "{} has no address of its own, which discovery requires: set n_port_ids, and list neighbours",
            capabilities.device
        ))
    })?;
    let beacon_ns = config.addressing.discovery().beacon_ms * 1_000_000;
    let mut discovery = Vn2vnConfig::new(port_name, node_name, FC_VI, MacAddress(enode_mac));
    let pdu_bytes = capabilities.max_frame_bytes - ETHERNET_HEADER_BYTES;
    discovery.max_fcoe_bytes = u16::try_from(pdu_bytes).unwrap_or(u16::MAX);
    discovery.beacon_interval_ns = beacon_ns;
    discovery.neighbour_lifetime_ns = beacon_ns / 2 * 5;
    let mut login = LoginConfig::new(port_name, node_name, FC_VI, Some(config.host_address()));
    login.data_field_bytes = data_field_bytes;
    login.e_d_tov_ns = config.fc_vi.e_d_tov_ms * 1_000_000;
    login.r_a_tov_ns = config.r_a_tov_ms() * 1_000_000;
    login.farp_timeout_ns = FARP_TIMEOUT_NS;
    let mut seed = [0; 8];
    random_bytes(&mut seed);
    Ok(VnPort::new(discovery, login, u64::from_le_bytes(seed)))
}

/// Returns the maximum data field of a frame of the port, in bytes.
fn data_field_bytes(max_frame_bytes: usize) -> Result<u16, OpenError> {
    let overhead = 14 + fcoe::FCOE_HEADER_BYTES + 24 + fcoe::FCOE_TRAILER_BYTES;
    let room = max_frame_bytes.saturating_sub(overhead) & !3;
    if room < fcoe::MIN_DATA_FIELD_BYTES {
        return Err(OpenError::new(format!(
            "frames of {max_frame_bytes} bytes are too short for FCoE: raise the MTU of the interface"
        )));
    }
    Ok(room.min(fcoe::MAX_DATA_FIELD_BYTES) as u16)
}

/// Returns a random locally assigned name (NAA 3), unique for each NIC handle.
fn local_name(random: &[u8], at: usize) -> u64 {
    let mut name = [0u8; 8];
    for (to, from) in name.iter_mut().zip(random.iter().skip(at)) {
        *to = *from;
    }
    u64::from_be_bytes(name) >> 4 | 0x3 << 60
}

fn neighbours(config: &NicConfig, id: NPortId) -> Result<Neighbours, OpenError> {
    let text = |e: config::ConfigError| OpenError::new(e.to_string());
    let siblings = match (config.network.is_on_wire(), config.addressing.r#static()) {
        (true, Some(ids)) => config::n_port_ids(&ids.n_port_ids).map_err(text)?,
        _ => Vec::new(),
    };
    Ok(Neighbours::new(
        config.host_address(),
        id,
        siblings,
        config::neighbours(config).map_err(text)?,
    ))
}

fn fault_rates(config: &FaultConfig) -> fault::FaultConfig {
    let mut rates = fault::FaultConfig {
        seed: config.seed,
        ..fault::FaultConfig::default()
    };
    rates.tx = fault::FaultRates {
        loss_ppm: config.loss_ppm,
        duplicate_ppm: config.duplication_ppm,
        reorder_ppm: config.reordering_ppm,
        corrupt_ppm: config.corruption_ppm,
        delay_ppm: config.delay_ppm,
    };
    if config.delay_turns > 0 {
        rates.delay_calls_max = config.delay_turns;
    }
    rates
}

fn id_of(port: &dyn Port) -> Result<NPortId, OpenError> {
    let mac = port.capabilities().mac;
    NPortId::new(u32::from_be_bytes([0, mac[3], mac[4], mac[5]]))
        .ok_or_else(|| OpenError::new("the port has no N_Port_ID"))
}

/// Returns the station of a NIC with this N_Port_ID. With discovery it has none yet, and receives frames to all VN_Ports
/// and to its interface.
fn fc_station(config: &NicConfig, id: NPortId) -> ports::Station {
    let discovers = config.discovers();
    ports::Station {
        nic: config.name.clone(),
        mac: MacAddress::vn2vn(id).0,
        ethertypes: ETHERTYPES.to_vec(),
        multicast: match discovers {
            true => vec![MacAddress::ALL_VN2VN.0],
            false => Vec::new(),
        },
        interface_address: discovers,
        // A frame that was delayed by this time may live as long again on the wire.
        standstill_limit: Some(Duration::from_millis(config.r_a_tov_ms() / 2)),
    }
}

fn open_port(config: &NicConfig, id: NPortId) -> Result<Box<dyn Port>, OpenError> {
    ports::open(&config.network, fc_station(config, id))
}

/// Makes the checks of opening the port of a NIC with FC-VI.
pub(crate) fn check_port(config: &NicConfig) -> Result<(), OpenError> {
    ports::check(&config.network, fc_station(config, NPortId::default()))
}

/// Opens a station on a segment, which assigns its N_Port_ID.
fn open_shm(config: &NicConfig) -> Result<Station, OpenError> {
    let port = open_port(config, NPortId::default())?;
    let id = id_of(&*port)?;
    Ok(Station {
        port,
        id,
        claim: None,
    })
}

/// Opens a station without an N_Port_ID, which discovery claims later.
fn open_anonymous(config: &NicConfig) -> Result<Station, OpenError> {
    let id = NPortId::default();
    Ok(Station {
        port: open_port(config, id)?,
        id,
        claim: None,
    })
}

/// Opens a station with an N_Port_ID of the configuration.
fn open_configured(config: &NicConfig, n_port_ids: &str) -> Result<Station, OpenError> {
    let ids = config::n_port_ids(n_port_ids).map_err(|e| OpenError::new(e.to_string()))?;
    // Two devices of one name are on one wire only if their keys are equal, too.
    let wire = config.network.wire().unwrap_or_default();
    let claims = Claims::of(wire).map_err(|error| {
        OpenError::new(format!(
            "n_port_ids = {n_port_ids:?}: cannot be claimed: {error}: remove that path (as its owner or root), or \
             use discovery"
        ))
    })?;
    let mut claimed = None;
    for id in ids {
        if let Some(claim) = claims.claim(id)? {
            claimed = Some((id, claim));
            break;
        }
    }
    let (id, claim) = claimed.ok_or_else(|| {
        OpenError::new(format!(
            "n_port_ids = {n_port_ids:?}: all of them are in use by other programs on {wire}; set a larger range"
        ))
    })?;
    Ok(Station {
        port: open_port(config, id)?,
        id,
        claim: Some(claim),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_requires_an_interface_address() {
        let mut capabilities = Capabilities {
            driver: "dpdk",
            device: "ring:a".into(),
            mac: MacAddress::vn2vn(NPortId::default()).0,
            interface_mac: None,
            max_frame_bytes: 2172,
            lossless: false,
            send_alone: false,
            next_buffer_bytes: 0,
        };
        let config = NicConfig::default();
        let open = |capabilities: &Capabilities| vn_port(&config, capabilities, (1, 2), 2112);
        let refused = open(&capabilities).expect_err("no address").to_string();
        assert!(
            refused.starts_with("ring:a has no address") && refused.contains("n_port_ids"),
            "{refused}"
        );
        capabilities.interface_mac = Some([2, 0, 0, 0, 0, 1]);
        assert!(open(&capabilities).is_ok());
    }
}
