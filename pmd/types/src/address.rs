//! Addresses of connections: a host, and a discriminator that names a VI of it (VIPL 4.1).

use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::Ipv6Addr;

const _: () = assert!(Discriminator::MAX_BYTES <= u8::MAX as usize);

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
#[derive(Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<u8>", into = "Vec<u8>"))]
pub struct Discriminator {
    len: u8,
    bytes: [u8; Discriminator::MAX_BYTES],
}

impl Discriminator {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = 44;

    /// Creates a discriminator; `None` if it has more than [`Self::MAX_BYTES`] bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut all = [0; Self::MAX_BYTES];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len, bytes: all })
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let (used, _) = self
            .bytes
            .split_at_checked(usize::from(self.len))
            .unwrap_or((&self.bytes, &[]));
        used
    }

    /// Returns the bytes in use, followed by zeros.
    #[must_use]
    pub const fn padded(&self) -> &[u8; Self::MAX_BYTES] {
        &self.bytes
    }
}

impl TryFrom<Vec<u8>> for Discriminator {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, &'static str> {
        Self::new(&bytes).ok_or("discriminator too long")
    }
}

impl From<Discriminator> for Vec<u8> {
    fn from(discriminator: Discriminator) -> Self {
        discriminator.as_bytes().to_vec()
    }
}

impl Default for Discriminator {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: [0; Self::MAX_BYTES],
        }
    }
}

impl PartialEq for Discriminator {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Discriminator {}

impl Hash for Discriminator {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// As ASCII text, with escapes for other bytes.
impl fmt::Display for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

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
    use alloc::{format, string::ToString, vec};

    #[test]
    fn discriminator_equality_ignores_unused_bytes() {
        let of = |bytes: &[u8]| Discriminator::new(bytes).unwrap();
        let mut odd = of(b"");
        odd.bytes[43] = 1;
        assert_eq!(odd, Discriminator::default());
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_ne!(of(b""), of(b"\0"));
        assert_eq!(Discriminator::new(&[0; 45]), None);
        assert!(Discriminator::try_from(vec![0; 1000]).is_err());
        assert_eq!(Vec::from(of(b"a\0")), b"a\0");
    }

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
