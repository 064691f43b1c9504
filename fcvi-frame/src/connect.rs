//! Payloads of the connect IUs [P-9].
//!
//! FCVI_CONNECT_RQST, 160 bytes:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 4 | the originator's VI handle |
//! | 4 | 4 | timeout in ms |
//! | 8 | 64 | local FCVI_NET_ADDRESS |
//! | 72 | 64 | remote FCVI_NET_ADDRESS |
//! | 136 | 24 | FCVI_ATTRIBUTES |
//!
//! FCVI_CONNECT_RESP1, 96 bytes:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 4 | the responder's VI handle, 0 if it rejects |
//! | 4 | 4 | reserved |
//! | 8 | 64 | the responder's FCVI_NET_ADDRESS |
//! | 72 | 24 | FCVI_ATTRIBUTES |

mod address;
mod attributes;

pub use attributes::Attributes;

use vi_types::NetAddress;

use crate::error::{Field, ParseError, Reason};
use vi_types::fields::{Reader, Writer, tiles};

const VI_HANDLE: usize = 0;

const TIMEOUT: usize = 4;
const LOCAL: usize = 8;
const REMOTE: usize = 72;
const REQUEST_ATTRIBUTES: usize = 136;

const RESERVED: usize = 4;
const RESPONDER: usize = 8;
const RESPONSE_ATTRIBUTES: usize = 72;

const _: () = assert!(tiles(
    &[
        (VI_HANDLE, 4),
        (TIMEOUT, 4),
        (LOCAL, address::BYTES),
        (REMOTE, address::BYTES),
        (REQUEST_ATTRIBUTES, Attributes::BYTES),
    ],
    ConnectRequest::BYTES
));
const _: () = assert!(tiles(
    &[
        (VI_HANDLE, 4),
        (RESERVED, 4),
        (RESPONDER, address::BYTES),
        (RESPONSE_ATTRIBUTES, Attributes::BYTES),
    ],
    ConnectResponse::BYTES
));

/// Returns the payload as an array if it has exactly this length.
fn exactly<const N: usize>(payload: &[u8]) -> Result<&[u8; N], ParseError> {
    match payload.split_first_chunk() {
        Some((bytes, [])) => Ok(bytes),
        Some(_) => Err(ParseError::new(Field::Payload, Reason::TooLong)),
        None => Err(ParseError::new(Field::Payload, Reason::TooShort)),
    }
}

/// Payload of FCVI_CONNECT_RQST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectRequest {
    /// The originator's handle of its VI.
    pub vi_handle: u32,
    /// The originator's timeout.
    pub timeout_ms: u32,
    /// The originator's address.
    pub local: NetAddress,
    /// The address to connect to.
    pub remote: NetAddress,
    /// Attributes of the originator's VI.
    pub attributes: Attributes,
}

impl ConnectRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 160;

    /// Reads a payload of exactly [`ConnectRequest::BYTES`].
    ///
    /// # Errors
    /// `ConnectPayload` `TooShort` or `TooLong`; `HostAddress` `Mismatch`; `Discriminator` `TooLong`; those of
    /// [`Attributes::parse`].
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload)?);
        Ok(Self {
            vi_handle: bytes.u32::<VI_HANDLE>(),
            timeout_ms: bytes.u32::<TIMEOUT>(),
            local: address::parse(&bytes.array::<LOCAL, { address::BYTES }>())?,
            remote: address::parse(&bytes.array::<REMOTE, { address::BYTES }>())?,
            attributes: Attributes::parse(
                &bytes.array::<REQUEST_ATTRIBUTES, { Attributes::BYTES }>(),
            )?,
        })
    }

    /// Writes the payload.
    pub fn emit(&self, out: &mut [u8; 160]) {
        let mut out = Writer(out);
        out.u32::<VI_HANDLE>(self.vi_handle);
        out.u32::<TIMEOUT>(self.timeout_ms);
        out.array::<LOCAL, { address::BYTES }>(address::to_bytes(&self.local));
        out.array::<REMOTE, { address::BYTES }>(address::to_bytes(&self.remote));
        out.array::<REQUEST_ATTRIBUTES, { Attributes::BYTES }>(self.attributes.to_bytes());
    }
}

/// Payload of FCVI_CONNECT_RESP1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectResponse {
    /// The responder's handle of its VI; 0 if it rejects.
    pub vi_handle: u32,
    /// The responder's address.
    pub responder: NetAddress,
    /// Attributes of the responder's VI.
    pub attributes: Attributes,
}

impl ConnectResponse {
    /// Bytes on the wire.
    pub const BYTES: usize = 96;

    /// Reads a payload of exactly [`ConnectResponse::BYTES`].
    ///
    /// # Errors
    /// `ConnectPayload` `TooShort` or `TooLong`; `HostAddress` `Mismatch`; `Discriminator` `TooLong`; those of
    /// [`Attributes::parse`].
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload)?);
        Ok(Self {
            vi_handle: bytes.u32::<VI_HANDLE>(),
            responder: address::parse(&bytes.array::<RESPONDER, { address::BYTES }>())?,
            attributes: Attributes::parse(
                &bytes.array::<RESPONSE_ATTRIBUTES, { Attributes::BYTES }>(),
            )?,
        })
    }

    /// Writes the payload.
    pub fn emit(&self, out: &mut [u8; 96]) {
        let mut out = Writer(out);
        out.u32::<VI_HANDLE>(self.vi_handle);
        out.u32::<RESERVED>(0);
        out.array::<RESPONDER, { address::BYTES }>(address::to_bytes(&self.responder));
        out.array::<RESPONSE_ATTRIBUTES, { Attributes::BYTES }>(self.attributes.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::address::tests::any_net_address;
    use super::attributes::tests::any_attributes;
    use super::{ConnectRequest, ConnectResponse};
    use crate::error::{Field, ParseError, Reason};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn requests_round_trip(
            vi_handle: u32,
            timeout_ms: u32,
            local in any_net_address(),
            remote in any_net_address(),
            attributes in any_attributes(),
        ) {
            let request = ConnectRequest { vi_handle, timeout_ms, local, remote, attributes };
            let mut bytes = [0xEE; ConnectRequest::BYTES];
            request.emit(&mut bytes);
            prop_assert_eq!(ConnectRequest::parse(&bytes), Ok(request));
        }

        #[test]
        fn responses_round_trip(
            vi_handle: u32,
            responder in any_net_address(),
            attributes in any_attributes(),
        ) {
            let response = ConnectResponse { vi_handle, responder, attributes };
            let mut bytes = [0xEE; ConnectResponse::BYTES];
            response.emit(&mut bytes);
            prop_assert_eq!(&bytes[4..8], &[0; 4]);
            prop_assert_eq!(ConnectResponse::parse(&bytes), Ok(response));
        }

        #[test]
        fn parse_accepts_or_rejects_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..170),
        ) {
            // The length fields of random payloads are almost surely invalid.
            prop_assert!(bytes.len() == ConnectRequest::BYTES || ConnectRequest::parse(&bytes).is_err());
            prop_assert!(bytes.len() == ConnectResponse::BYTES || ConnectResponse::parse(&bytes).is_err());
        }
    }

    #[test]
    fn parse_rejects_other_lengths() {
        let bytes = [0; 200];
        let error = |reason| ParseError::new(Field::Payload, reason);
        for length in 0..bytes.len() {
            let request = ConnectRequest::parse(&bytes[..length]).unwrap_err();
            let response = ConnectResponse::parse(&bytes[..length]).unwrap_err();
            let expected = |exact: usize| match length.cmp(&exact) {
                core::cmp::Ordering::Less => error(Reason::TooShort),
                core::cmp::Ordering::Greater => error(Reason::TooLong),
                core::cmp::Ordering::Equal => ParseError::new(Field::HostAddress, Reason::Mismatch),
            };
            assert_eq!(request, expected(ConnectRequest::BYTES));
            assert_eq!(response, expected(ConnectResponse::BYTES));
        }
    }
}
