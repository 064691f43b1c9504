//! FCVI_NET_ADDRESS [P-9].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 2 | bytes of the host part, 16 |
//! | 2 | 2 | bytes of the discriminator, 0 to 44 |
//! | 4 | 16 | host part, an IPv6 address |
//! | 20 | 44 | discriminator; unused bytes are sent as 0 and ignored |

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::Ipv6Addr;

use crate::error::{Field, ParseError, Reason};
use crate::profile::MAX_DISCRIMINATOR_BYTES;
use crate::wire::{Reader, Writer, tiles};

const HOST_LENGTH: usize = 0;
const DISCRIMINATOR_LENGTH: usize = 2;
const HOST: usize = 4;
const DISCRIMINATOR: usize = 20;

const HOST_BYTES: usize = 16;

const _: () = assert!(tiles(
    &[
        (HOST_LENGTH, 2),
        (DISCRIMINATOR_LENGTH, 2),
        (HOST, HOST_BYTES),
        (DISCRIMINATOR, MAX_DISCRIMINATOR_BYTES),
    ],
    NetAddress::BYTES
));
const _: () = assert!(MAX_DISCRIMINATOR_BYTES <= u8::MAX as usize);

/// The host part of a network address, in the form of an IPv6 address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
pub struct Discriminator {
    len: u8,
    bytes: [u8; MAX_DISCRIMINATOR_BYTES],
}

impl Discriminator {
    /// Creates a discriminator; `None` if it has more than [`MAX_DISCRIMINATOR_BYTES`] bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut all = [0; MAX_DISCRIMINATOR_BYTES];
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
}

impl Default for Discriminator {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: [0; MAX_DISCRIMINATOR_BYTES],
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

/// FCVI_NET_ADDRESS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetAddress {
    /// The host.
    pub host: HostAddress,
    /// The VI of the host.
    pub discriminator: Discriminator,
}

impl NetAddress {
    /// Bytes on the wire.
    pub const BYTES: usize = 64;

    /// Reads an address.
    ///
    /// # Errors
    /// `HostAddress` `Mismatch` if its length is not 16; `Discriminator` `TooLong`.
    pub fn parse(bytes: &[u8; 64]) -> Result<Self, ParseError> {
        let bytes = Reader(bytes);
        if usize::from(bytes.u16::<HOST_LENGTH>()) != HOST_BYTES {
            return Err(ParseError::new(Field::HostAddress, Reason::Mismatch));
        }
        let used = usize::from(bytes.u16::<DISCRIMINATOR_LENGTH>());
        let discriminator = bytes
            .array::<DISCRIMINATOR, MAX_DISCRIMINATOR_BYTES>()
            .get(..used)
            .and_then(Discriminator::new)
            .ok_or(ParseError::new(Field::Discriminator, Reason::TooLong))?;
        Ok(Self {
            host: HostAddress(bytes.array::<HOST, HOST_BYTES>()),
            discriminator,
        })
    }

    /// Writes the address.
    pub fn emit(&self, out: &mut [u8; 64]) {
        let mut out = Writer(out);
        out.u16::<HOST_LENGTH>(HOST_BYTES as u16);
        out.u16::<DISCRIMINATOR_LENGTH>(u16::from(self.discriminator.len));
        out.array::<HOST, HOST_BYTES>(self.host.0);
        out.array::<DISCRIMINATOR, MAX_DISCRIMINATOR_BYTES>(self.discriminator.bytes);
    }

    pub(super) fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        self.emit(&mut bytes);
        bytes
    }
}

impl fmt::Display for NetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.host, self.discriminator)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Discriminator, HostAddress, NetAddress};
    use crate::error::{Field, ParseError, Reason};
    use proptest::prelude::*;
    use std::format;
    use std::string::ToString;

    pub(crate) fn any_net_address() -> impl Strategy<Value = NetAddress> {
        let discriminator = proptest::collection::vec(any::<u8>(), 0..=44);
        (any::<[u8; 16]>(), discriminator).prop_map(|(host, discriminator)| NetAddress {
            host: HostAddress(host),
            discriminator: Discriminator::new(&discriminator).unwrap(),
        })
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn addresses_round_trip(address in any_net_address()) {
            let mut bytes = [0xEE; 64];
            address.emit(&mut bytes);
            prop_assert_eq!(NetAddress::parse(&bytes), Ok(address));
            let used = address.discriminator.as_bytes().len();
            prop_assert!(bytes[20 + used..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn parse_rejects_every_invalid_length() {
        let mut bytes = [0; 64];
        NetAddress::default().emit(&mut bytes);
        for length in 0..=u16::MAX {
            let mut host = bytes;
            host[..2].copy_from_slice(&length.to_be_bytes());
            let mut discriminator = bytes;
            discriminator[2..4].copy_from_slice(&length.to_be_bytes());
            if length != 16 {
                assert_eq!(
                    NetAddress::parse(&host),
                    Err(ParseError::new(Field::HostAddress, Reason::Mismatch))
                );
            }
            let parsed = NetAddress::parse(&discriminator);
            if length > 44 {
                assert_eq!(
                    parsed,
                    Err(ParseError::new(Field::Discriminator, Reason::TooLong))
                );
            } else {
                let used = parsed.unwrap().discriminator.as_bytes().len();
                assert_eq!(used, usize::from(length));
            }
        }
    }

    #[test]
    fn discriminator_equality_ignores_unused_bytes() {
        let mut bytes = [0; 64];
        NetAddress::default().emit(&mut bytes);
        bytes[63] = 1;
        assert_eq!(NetAddress::parse(&bytes), Ok(NetAddress::default()));
        let of = |bytes: &[u8]| Discriminator::new(bytes).unwrap();
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_ne!(of(b""), of(b"\0"));
        assert_eq!(Discriminator::new(&[0; 45]), None);
        assert_eq!(Discriminator::new(&[0; 1000]), None);
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
