//! Our port on its network, and the ports that it sees there: what a person asks for.

use std::time::Duration;

use fcvi_frame::connect::HostAddress;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use vi_engine::Engine;
use vi_engine::login::PortState;
use vi_engine::vn_port::NeighbourView;

use crate::control::{ControlError, Outcome};
use crate::driver::Driver;
use crate::poller::Poller;
use crate::progress::wait;
use crate::sleepers::Event;

/// Our port and its neighbours at one moment; owns all it says.
#[derive(Clone, Debug)]
pub struct Neighbourhood {
    /// Our port.
    pub own: OwnPort,
    /// The other ports, in the order of their N_Port_IDs.
    pub ports: Vec<NeighbourPort>,
}

/// Our port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// Its N_Port_ID; `None` while it looks for one.
    pub n_port_id: Option<NPortId>,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// Our host.
    pub host: HostAddress,
    /// What it is doing.
    pub state: OwnState,
    /// Its neighbours are found by FIP VN2VN; else they are configured, or on the same segment
    /// of shared memory.
    pub discovers: bool,
}

/// What our port is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnState {
    /// It looks for an N_Port_ID that nobody else has.
    Probing,
    /// It can be reached.
    Up,
    /// What carries its frames failed.
    Failed,
}

/// A port that is not ours.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourPort {
    /// Its N_Port_ID.
    pub n_port_id: NPortId,
    /// The host that it belongs to, if it is known.
    pub host: Option<HostAddress>,
    /// What discovery and login know of it; `None` if it is configured, or on the same segment
    /// of shared memory.
    pub found: Option<FoundPort>,
}

/// What discovery and login know of a port.
#[derive(Clone, Copy, Debug)]
pub struct FoundPort {
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The address of its interface.
    pub mac: MacAddress,
    /// The largest FCoE PDU that it takes, as it says, in bytes.
    pub max_fcoe_bytes: u16,
    /// The largest FCoE PDU that came through from it, in bytes; `None` as long as none did.
    pub path_fcoe_bytes: Option<u16>,
    /// It speaks FC-VI.
    pub speaks_fc_vi: bool,
    /// Where the login stands.
    pub login: LoginState,
    /// The largest data field of a frame between us, in bytes, once agreed.
    pub data_field_bytes: Option<u16>,
    /// Something was heard of it so long ago.
    pub heard_ago: Duration,
}

/// Where the login with a port stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginState {
    /// Its first beacon, or the proof of what the way to it carries, is awaited.
    Found,
    /// A login is on its way.
    LoggingIn,
    /// Logged in.
    LoggedIn,
    /// The login ended or failed.
    LoggedOut,
}

impl Neighbourhood {
    /// Whether the other says the same of the same ports, whenever they were heard last.
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

    fn of(poller: &mut Poller) -> Self {
        let now_ns = poller.clock.now_ns();
        let engine = poller.engine.fc_vi().map(Engine::config);
        let names = engine.map(|config| (config.port_name, config.node_name));
        let (port_name, node_name) = names.unwrap_or_default();
        let discovery = poller.discovery.as_deref();
        let is_up = discovery.is_none_or(|discovery| discovery.is_up());
        let own = OwnPort {
            n_port_id: engine
                .map(|config| config.n_port_id)
                .filter(|id| *id != NPortId::default()),
            port_name,
            node_name,
            host: poller.neighbours.own_host(),
            state: match (poller.failure, is_up) {
                (Some(_), _) => OwnState::Failed,
                (None, true) => OwnState::Up,
                (None, false) => OwnState::Probing,
            },
            discovers: discovery.is_some(),
        };
        let mut ports: Vec<NeighbourPort> = match discovery {
            Some(discovery) => {
                let seen = discovery.neighbours();
                seen.map(|view| NeighbourPort::seen(now_ns, &view))
                    .collect()
            }
            None => {
                let known = poller.neighbours.others();
                known
                    .map(|(n_port_id, host)| NeighbourPort {
                        n_port_id,
                        host: Some(host),
                        found: None,
                    })
                    .collect()
            }
        };
        ports.sort_by_key(|port| port.n_port_id.get());
        Self { own, ports }
    }
}

impl NeighbourPort {
    /// Whether the other says the same of the same port, whenever it was heard last.
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

    fn seen(now_ns: u64, view: &NeighbourView) -> Self {
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
            found: Some(FoundPort {
                port_name: neighbour.port_name,
                node_name: neighbour.node_name,
                mac: neighbour.enode_mac,
                max_fcoe_bytes: neighbour.max_fcoe_bytes,
                path_fcoe_bytes: neighbour.path_fcoe_bytes,
                speaks_fc_vi: neighbour.supports_fc_vi,
                login,
                data_field_bytes: port
                    .and_then(|port| port.login)
                    .map(|login| login.data_field_bytes),
                heard_ago: Duration::from_nanos(now_ns.saturating_sub(view.heard_ns)),
            }),
        }
    }
}

/// Our port on its network and the ports that it sees there now, by FIP VN2VN if the NIC
/// discovers; else those that are configured, or on the same segment of shared memory.
///
/// # Errors
/// [`ControlError::InvalidParameter`] if the handle is not that of an open NIC.
pub fn neighbourhood(handle: u64) -> Outcome<Neighbourhood> {
    let device = super::nic(handle)?;
    let mut held = device.hold();
    let driver = held.as_mut().ok_or(ControlError::InvalidParameter)?;
    device.rest.leave(driver);
    // Who is there since just now counts.
    driver.long_turn(&device.doorbells);
    device.announce(driver);
    let poller = driver.engine_mut().ok_or(ControlError::InvalidParameter)?;
    Ok(Neighbourhood::of(poller))
}

/// Waits until the neighbourhood is not what `known` says, and gives the new one; `None` if it
/// is still the same after `limit`.
///
/// # Errors
/// [`ControlError::InvalidParameter`] if the handle is not that of an open NIC, or the NIC is
/// closed meanwhile.
pub fn await_neighbourhood(
    handle: u64,
    known: &Neighbourhood,
    limit: Option<Duration>,
) -> Outcome<Option<Neighbourhood>> {
    let device = super::nic(handle)?;
    let look = || {
        if let Err(error) = super::nic(handle) {
            return Some(Err(error));
        }
        let mut held = device.hold();
        let Some(poller) = held.as_mut().and_then(Driver::engine_mut) else {
            return Some(Err(ControlError::InvalidParameter));
        };
        let now = Neighbourhood::of(poller);
        (!now.is_same(known)).then_some(Ok(now))
    };
    // Every change in what a segment or discovery shows is one of these.
    match wait(device, Event::CONTROL, limit, look) {
        Ok(found) => found.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
