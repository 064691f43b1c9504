//! FCVI_NET_ADDRESS [P-9].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 2 | bytes of the host part, 16 |
//! | 2 | 2 | bytes of the discriminator, 0 to 44 |
//! | 4 | 16 | host part, an IPv6 address |
//! | 20 | 44 | discriminator; unused bytes are sent as 0 and ignored |

use vi_types::{Discriminator, HostAddress, NetAddress};

use crate::error::{Field, ParseError, Reason};
use crate::profile::MAX_DISCRIMINATOR_BYTES;
use vi_types::fields::{Reader, Writer, tiles};

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
    BYTES
));

/// Bytes on the wire.
pub(super) const BYTES: usize = 64;

/// Reads an address.
///
/// # Errors
/// `HostAddress` `Mismatch` if its length is not 16; `Discriminator` `TooLong`.
pub(super) fn parse(bytes: &[u8; BYTES]) -> Result<NetAddress, ParseError> {
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
    Ok(NetAddress {
        host: HostAddress(bytes.array::<HOST, HOST_BYTES>()),
        discriminator,
    })
}

/// Returns the bytes of an address.
pub(super) fn to_bytes(address: &NetAddress) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut out = Writer(&mut bytes);
    out.u16::<HOST_LENGTH>(HOST_BYTES as u16);
    out.u16::<DISCRIMINATOR_LENGTH>(address.discriminator.as_bytes().len() as u16);
    out.array::<HOST, HOST_BYTES>(address.host.0);
    out.array::<DISCRIMINATOR, MAX_DISCRIMINATOR_BYTES>(*address.discriminator.padded());
    bytes
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let bytes = to_bytes(&address);
            prop_assert_eq!(parse(&bytes), Ok(address));
            let used = address.discriminator.as_bytes().len();
            prop_assert!(bytes[20 + used..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn parse_rejects_every_invalid_length() {
        let bytes = to_bytes(&NetAddress::default());
        for length in 0..=u16::MAX {
            let mut host = bytes;
            host[..2].copy_from_slice(&length.to_be_bytes());
            let mut discriminator = bytes;
            discriminator[2..4].copy_from_slice(&length.to_be_bytes());
            if length != 16 {
                assert_eq!(
                    parse(&host),
                    Err(ParseError::new(Field::HostAddress, Reason::Mismatch))
                );
            }
            let parsed = parse(&discriminator);
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
    fn parse_ignores_unused_bytes() {
        let mut bytes = to_bytes(&NetAddress::default());
        bytes[63] = 1;
        assert_eq!(parse(&bytes), Ok(NetAddress::default()));
    }
}
