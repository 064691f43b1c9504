//! Sources of connections, to which limits apply.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use vi_types::misses::MissKey;

/// Where connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A user of this NIC.
    User(u32),
    /// The addresses with these first `bits`, in IPv6 form.
    Network {
        /// The bits, in an address whose others are 0.
        prefix: u128,
        /// Their number.
        bits: u8,
    },
}

/// Bits of an IPv4 network of 256 addresses, in IPv6 form.
const IPV4_NETWORK_BITS: u8 = 96 + 24;
/// Bits of an IPv6 network: any host of it can take any of its addresses.
const NETWORK_BITS: u8 = 64;
/// Bits of a site, which has many networks.
const SITE_BITS: u8 = 48;

/// Returns a host address in IPv6 form.
#[must_use]
pub fn host_of(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Source {
    /// Returns the source of one address.
    #[must_use]
    pub fn address(remote: SocketAddr) -> Self {
        Self::Network {
            prefix: u128::from_be_bytes(host_of(remote)),
            bits: 128,
        }
    }

    /// Returns the source of all addresses that one host can take: an IPv4 address, or an IPv6 network.
    #[must_use]
    pub fn host(remote: SocketAddr) -> Self {
        let address = Self::address(remote);
        match remote {
            SocketAddr::V4(_) => address,
            SocketAddr::V6(_) => address.wider(NETWORK_BITS),
        }
    }

    fn wider(self, bits: u8) -> Self {
        match self {
            Self::User(_) => self,
            Self::Network { prefix, .. } => Self::Network {
                prefix: prefix & u128::MAX << 128u8.saturating_sub(bits),
                bits,
            },
        }
    }
}

impl MissKey for Source {
    /// An address belongs to its network, an IPv6 network to its site.
    fn group(self) -> Option<Self> {
        let Self::Network { prefix, bits } = self else {
            return None;
        };
        let is_ipv4 = Ipv6Addr::from_bits(prefix).to_ipv4_mapped().is_some();
        match bits {
            128 if is_ipv4 => Some(self.wider(IPV4_NETWORK_BITS)),
            128 => Some(self.wider(NETWORK_BITS)),
            NETWORK_BITS => Some(self.wider(SITE_BITS)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};
    use std::{format, vec::Vec};

    use super::*;

    fn groups(address: &str) -> Vec<String> {
        let remote = SocketAddr::new(address.parse().unwrap(), 1);
        let all = core::iter::successors(Some(Source::address(remote)), |source| source.group());
        all.map(|source| match source {
            Source::User(user) => user.to_string(),
            Source::Network { prefix, bits } => format!("{}/{bits}", Ipv6Addr::from_bits(prefix)),
        })
        .collect()
    }

    #[test]
    fn addresses_are_grouped_by_network_and_site() {
        assert_eq!(
            groups("2001:db8:1:2:3:4:5:6"),
            [
                "2001:db8:1:2:3:4:5:6/128",
                "2001:db8:1:2::/64",
                "2001:db8:1::/48"
            ]
        );
        let ipv4 = ["::ffff:192.0.2.77/128", "::ffff:192.0.2.0/120"];
        assert_eq!(groups("192.0.2.77"), ipv4);
        assert_eq!(Source::User(7).group(), None);
    }

    #[test]
    fn host_is_an_ipv4_address_or_an_ipv6_network() {
        let host = |address: &str| Source::host(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }
}
