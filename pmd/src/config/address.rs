//! Addresses of hosts, and whose ports they are.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;
use serde::Deserialize;

use super::mistake::Mistake;
use super::{ConfigError, NicConfig, TransportKind, parse};
use crate::sys::interface_index;

/// The IP address of a NIC; with VI/TCP a link-local one has its interface: `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnHost {
    ip: IpAddr,
    interface: Option<String>,
}

impl OwnHost {
    /// The address without its interface.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The index of its interface, the scope of its sockets' addresses; 0 without one.
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
                "host = \"{self}\": no interface \"{interface}\": `ip link` lists them"
            ))
        })
    }

    /// What is wrong with it, if anything is.
    pub(super) fn mistake(&self, transport: TransportKind) -> Option<Mistake> {
        let is_link_local = matches!(self.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let problem = match (&self.interface, transport) {
            (Some(_), TransportKind::FcVi) => "only for transport = \"vi-tcp\"".to_owned(),
            (Some(_), TransportKind::ViTcp) if !is_link_local => {
                "only a link-local address, fe80::..., has an interface".into()
            }
            (None, TransportKind::ViTcp) if is_link_local => format!(
                "a link-local address needs its interface: host = \"{}%eth0\"; `ip link` lists them",
                self.ip
            ),
            _ => return host_mistake(self.ip),
        };
        let text = format!("host = \"{self}\": {problem}");
        Some(Mistake::new("host", text))
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

/// Nobody's address, or everybody's.
pub(super) fn host_mistake(host: IpAddr) -> Option<Mistake> {
    (host.is_unspecified() || host.is_multicast()).then(|| {
        let text = format!("host = \"{host}\": must be the address of one host");
        Mistake::new("host", text)
    })
}

impl NicConfig {
    /// Our host address in its 16-byte form.
    pub fn host_address(&self) -> HostAddress {
        host_address(self.own_host().ip)
    }

    /// Our IP address.
    pub fn own_host(&self) -> OwnHost {
        self.host.clone().unwrap_or(match self.transport {
            TransportKind::FcVi => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST).into(),
            TransportKind::ViTcp => Ipv4Addr::LOCALHOST.into(),
        })
    }

    /// The static neighbours: host address and its ports.
    pub fn neighbours(&self) -> Result<Vec<(HostAddress, Vec<NPortId>)>, ConfigError> {
        self.neighbour
            .iter()
            .map(|n| {
                let ids = parse::ids(&n.n_port_ids).map_err(ConfigError::new)?;
                Ok((host_address(n.host), ids))
            })
            .collect()
    }
}

/// The IP address of a host address.
pub(crate) fn ip_address(host: HostAddress) -> IpAddr {
    let v6 = std::net::Ipv6Addr::from(host.0);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// The 16-byte form of an IP address; IPv4 is mapped.
pub fn host_address(ip: IpAddr) -> HostAddress {
    match ip {
        IpAddr::V4(v4) => HostAddress(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => HostAddress(v6.octets()),
    }
}
