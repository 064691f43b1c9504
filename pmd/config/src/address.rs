//! Host addresses of NICs and of their neighbours.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use vi_types::HostAddress;

use crate::error::ValueError;
use crate::network::Network;
use crate::nic::NicConfig;
use crate::table::Value;

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

    /// Returns its interface, by name or number.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    /// Validates the address for this network.
    pub(crate) fn error(&self, network: &Network) -> Option<ValueError> {
        let is_vi_tcp = network.vi_tcp().is_some();
        let is_link_local = matches!(self.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let problem = match (&self.interface, is_vi_tcp) {
            (Some(_), false) => {
                "an interface (%NAME) is valid only with [nic.vi_tcp]: remove it".to_owned()
            }
            (Some(_), true) if !is_link_local => {
                "only a link-local address, fe80::..., may have an interface: remove %NAME".into()
            }
            (None, true) if is_link_local => format!(
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

impl Value for OwnHost {}

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
pub(crate) fn host_error(host: IpAddr) -> Option<ValueError> {
    (host.is_unspecified() || host.is_multicast()).then(|| {
        let text = format!("host = \"{host}\": must be the unicast address of one host");
        ValueError::new("host", text)
    })
}

impl NicConfig {
    /// Returns the host address of this NIC in its 16-byte form.
    #[must_use]
    pub fn host_address(&self) -> HostAddress {
        host_address(self.own_host().ip)
    }

    /// Returns the IP address of this NIC.
    #[must_use]
    pub fn own_host(&self) -> OwnHost {
        self.host.clone().unwrap_or(match self.network {
            Network::ViTcp(_) => Ipv4Addr::LOCALHOST.into(),
            _ => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
        })
    }
}

/// Returns the IP address of a host address.
#[must_use]
pub fn ip_address(host: HostAddress) -> IpAddr {
    let v6 = Ipv6Addr::from(host.0);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Returns the 16-byte form of an IP address; IPv4 addresses are mapped to IPv6.
#[must_use]
pub fn host_address(ip: IpAddr) -> HostAddress {
    match ip {
        IpAddr::V4(v4) => HostAddress(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => HostAddress(v6.octets()),
    }
}
