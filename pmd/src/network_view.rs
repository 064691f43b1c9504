//! The port of a NIC on its network, and the other ports that it sees, for diagnostics.

use std::time::Duration;

use fc_port::login::PortState;
use fc_port::vn_port::NeighbourView;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

/// Snapshot of the port of a NIC and its neighbours.
#[derive(Clone, Debug)]
pub struct NetworkView {
    /// The port of this NIC.
    pub own: OwnPort,
    /// The other ports, ordered by N_Port_ID.
    pub ports: Vec<NeighbourPort>,
}

/// The port of this NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// Its N_Port_ID; `None` until it has claimed one.
    pub n_port_id: Option<NPortId>,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The host address.
    pub host: HostAddress,
    /// Its state.
    pub state: OwnState,
    /// Its neighbours are discovered by FIP VN2VN; otherwise they are configured, or on the same segment
    /// of shared memory.
    pub discovers: bool,
}

/// State of the port of this NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnState {
    /// It probes for an unused N_Port_ID.
    Probing,
    /// It is reachable.
    Up,
    /// The port driver has failed.
    Failed,
}

/// Another port.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourPort {
    /// Its N_Port_ID.
    pub n_port_id: NPortId,
    /// Its host, if known.
    pub host: Option<HostAddress>,
    /// Results of discovery and login; `None` if it is configured, or on the same segment
    /// of shared memory.
    pub found: Option<DiscoveredPort>,
}

/// Results of discovery and login for a port.
#[derive(Clone, Copy, Debug)]
pub struct DiscoveredPort {
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The address of its interface.
    pub mac: MacAddress,
    /// The largest FCoE PDU that it accepts, as it advertises, in bytes.
    pub max_fcoe_bytes: u16,
    /// The largest FCoE PDU received from it, in bytes; `None` if there was none.
    pub path_fcoe_bytes: Option<u16>,
    /// It supports FC-VI.
    pub speaks_fc_vi: bool,
    /// State of the login.
    pub login: LoginState,
    /// The negotiated maximum data field of a frame, in bytes, after login.
    pub data_field_bytes: Option<u16>,
    /// Time since the last frame from it.
    pub heard_ago: Duration,
}

/// State of the login with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginState {
    /// Waits for its first beacon, or for the path MTU probe.
    Found,
    /// The login is in progress.
    LoggingIn,
    /// Logged in.
    LoggedIn,
    /// The login ended or failed.
    LoggedOut,
}

impl NetworkView {
    /// Returns whether both views are equal, except for the times of the last frames.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let all_same = || {
            self.ports
                .iter()
                .zip(&other.ports)
                .all(|(a, b)| a.is_same(b))
        };
        self.own == other.own && self.ports.len() == other.ports.len() && all_same()
    }
}

impl NeighbourPort {
    /// Returns whether both are equal, except for the time of the last frame.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        // All but `heard_ago`.
        let found = |port: &Self| {
            port.found.map(|found| {
                (
                    (found.port_name, found.node_name, found.mac),
                    (found.max_fcoe_bytes, found.path_fcoe_bytes),
                    (found.speaks_fc_vi, found.login, found.data_field_bytes),
                )
            })
        };
        self.n_port_id == other.n_port_id && self.host == other.host && found(self) == found(other)
    }

    pub(crate) fn seen(now_ns: u64, view: &NeighbourView) -> Self {
        let neighbour = &view.neighbour;
        let port = view.port.as_ref();
        let login = port.map_or(LoginState::Found, |port| match port.state {
            PortState::Known => LoginState::Found,
            PortState::FlogiSent | PortState::PlogiWait | PortState::PlogiSent => {
                LoginState::LoggingIn
            }
            PortState::LoggedIn => LoginState::LoggedIn,
            PortState::LogoSent | PortState::LoggedOut => LoginState::LoggedOut,
        });
        Self {
            n_port_id: neighbour.id,
            host: port.and_then(|port| port.host),
            found: Some(DiscoveredPort {
                port_name: neighbour.port_name,
                node_name: neighbour.node_name,
                mac: neighbour.enode_mac,
                max_fcoe_bytes: neighbour.max_fcoe_bytes,
                path_fcoe_bytes: neighbour.path_fcoe_bytes,
                speaks_fc_vi: neighbour.supports_fc4,
                login,
                data_field_bytes: port
                    .and_then(|port| port.login)
                    .map(|login| login.data_field_bytes),
                heard_ago: Duration::from_nanos(now_ns.saturating_sub(view.last_rx_ns)),
            }),
        }
    }
}
