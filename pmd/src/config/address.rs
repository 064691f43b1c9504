//! Host addresses of NICs and of their neighbours.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use fcvi_frame::fc::NPortId;
use serde::Deserialize;
use vi_core::sys::interface_index;
use vi_types::HostAddress;

use super::error::ValueError;
use super::{ConfigError, NicConfig, TransportKind, parse};

/// IP address of a NIC; with VI/TCP a link-local address includes its interface: `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnHost {
    ip: IpAddr,
    interface: Option<String>,
}

impl OwnHost {
    /// Returns the address without its interface.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the index of the interface, which is the scope ID of socket addresses; 0 without an interface.
    ///
    /// # Errors
    /// There is no such interface.
    pub(crate) fn scope(&self) -> Result<u32, ConfigError> {
        let Some(interface) = &self.interface else {
            return Ok(0);
        };
        let index = interface_index(interface);
        index.or_else(|| interface.parse().ok()).ok_or_else(|| {
            ConfigError::new(format!(
                "host = \"{self}\": no interface \"{interface}\": `ip link` lists interfaces"
            ))
        })
    }

    /// Validates the address for this transport.
    pub(super) fn error(&self, transport: TransportKind) -> Option<ValueError> {
        let is_link_local = matches!(self.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let problem = match (&self.interface, transport) {
            (Some(_), TransportKind::FcVi) => {
                "an interface (%NAME) is valid only with transport = \"vi-tcp\": remove it"
                    .to_owned()
            }
            (Some(_), TransportKind::ViTcp) if !is_link_local => {
                "only a link-local address, fe80::..., may have an interface: remove %NAME".into()
            }
            (None, TransportKind::ViTcp) if is_link_local => format!(
                "a link-local address requires its interface: host = \"{}%eth0\"; `ip link` lists interfaces",
                self.ip
            ),
            _ => return host_error(self.ip),
        };
        let text = format!("host = \"{self}\": {problem}");
        Some(ValueError::new("host", text))
    }
}

impl fmt::Display for OwnHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            None => self.ip.fmt(f),
            Some(interface) => write!(f, "{}%{interface}", self.ip),
        }
    }
}

impl TryFrom<String> for OwnHost {
    type Error = std::net::AddrParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let (ip, interface) = match text.split_once('%') {
            Some((ip, interface)) => (ip, Some(interface.to_owned())),
            None => (text.as_str(), None),
        };
        let ip = ip.parse()?;
        Ok(Self { ip, interface })
    }
}

impl From<IpAddr> for OwnHost {
    fn from(ip: IpAddr) -> Self {
        let interface = None;
        Self { ip, interface }
    }
}

impl From<Ipv4Addr> for OwnHost {
    fn from(ip: Ipv4Addr) -> Self {
        IpAddr::V4(ip).into()
    }
}

/// Refuses unspecified and multicast addresses.
pub(super) fn host_error(host: IpAddr) -> Option<ValueError> {
    (host.is_unspecified() || host.is_multicast()).then(|| {
        let text = format!("host = \"{host}\": must be the unicast address of one host");
        ValueError::new("host", text)
    })
}

impl NicConfig {
    /// Returns the host address of this NIC in its 16-byte form.
    pub fn host_address(&self) -> HostAddress {
        host_address(self.own_host().ip)
    }

    /// Returns the IP address of this NIC.
    pub fn own_host(&self) -> OwnHost {
        self.host.clone().unwrap_or(match self.transport {
            TransportKind::FcVi => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST).into(),
            TransportKind::ViTcp => Ipv4Addr::LOCALHOST.into(),
        })
    }

    /// Returns the configured neighbours: host addresses and their N_Port_IDs.
    pub fn neighbours(&self) -> Result<Vec<(HostAddress, Vec<NPortId>)>, ConfigError> {
        self.neighbour
            .iter()
            .map(|neighbour| {
                let ids = parse::ids(&neighbour.n_port_ids).map_err(ConfigError::new)?;
                Ok((host_address(neighbour.host), ids))
            })
            .collect()
    }
}

/// Returns the IP address of a host address.
pub(crate) fn ip_address(host: HostAddress) -> IpAddr {
    let v6 = std::net::Ipv6Addr::from(host.0);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Returns the 16-byte form of an IP address; IPv4 addresses are mapped to IPv6.
pub fn host_address(ip: IpAddr) -> HostAddress {
    match ip {
        IpAddr::V4(v4) => HostAddress(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => HostAddress(v6.octets()),
    }
}
