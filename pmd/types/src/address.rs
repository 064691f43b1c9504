//! Addresses of connections: a host, and a discriminator that names a VI of it (VIPL 4.1).

use core::fmt;
use core::net::Ipv6Addr;

use crate::bounded_bytes::BoundedBytes;

/// The host part of a network address, in the form of an IPv6 address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostAddress(pub [u8; 16]);

impl HostAddress {
    /// Returns `::ffff:a.b.c.d`.
    #[must_use]
    pub const fn from_ipv4(address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
    }
}

/// In dotted form if it is an IPv4 address, else as IPv6 text.
impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.0);
        match address.to_ipv4_mapped() {
            Some(v4) => fmt::Display::fmt(&v4, f),
            None => fmt::Display::fmt(&address, f),
        }
    }
}

impl fmt::Debug for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identifier of a VI of a host before it is connected: up to 44 bytes.
pub type Discriminator = BoundedBytes<44>;

/// Address of a VI before it is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NetAddress {
    /// The host.
    pub host: HostAddress,
    /// The VI of the host.
    pub discriminator: Discriminator,
}

impl fmt::Display for NetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.host, self.discriminator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::ToString};

    #[test]
    fn addresses_are_displayed_as_host_and_discriminator() {
        let mut address = NetAddress {
            host: HostAddress::from_ipv4([10, 0, 0, 7]),
            discriminator: Discriminator::new(b"echo\x01").unwrap(),
        };
        assert_eq!(address.to_string(), "10.0.0.7#echo\\x01");
        address.host.0[0] = 0xFD;
        assert_eq!(format!("{:?}", address.host), "fd00::ffff:a00:7");
    }
}
