//! Basic link services: the abort of an exchange (ABTS), and its two responses.
//!
//! TYPE 0x00. ABTS, R_CTL 0x81, has no payload: its header names the exchange.
//! BA_ACC, R_CTL 0x84, 12 bytes:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x80 if the next byte is valid |
//! | 1 | 1 | SEQ_ID of the last sequence that was delivered |
//! | 2 | 2 | reserved |
//! | 4 | 2 | OX_ID |
//! | 6 | 2 | RX_ID |
//! | 8 | 2 | lowest SEQ_CNT that is aborted |
//! | 10 | 2 | highest SEQ_CNT that is aborted |
//!
//! BA_RJT, R_CTL 0x85, 4 bytes:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | reserved |
//! | 1 | 1 | reason |
//! | 2 | 1 | explanation |
//! | 3 | 1 | vendor specific |

use crate::error::{Field, ParseError, Reason};
use vi_types::fields::{Reader, Writer, tiles};

const SEQ_ID_VALID: usize = 0;
const SEQ_ID: usize = 1;
const RESERVED: usize = 2;
const OX_ID: usize = 4;
const RX_ID: usize = 6;
const LOW_SEQ_CNT: usize = 8;
const HIGH_SEQ_CNT: usize = 10;

const RJT_RESERVED: usize = 0;
const REASON: usize = 1;
const EXPLANATION: usize = 2;
const VENDOR: usize = 3;

const _: () = assert!(tiles(
    &[
        (SEQ_ID_VALID, 1),
        (SEQ_ID, 1),
        (RESERVED, 2),
        (OX_ID, 2),
        (RX_ID, 2),
        (LOW_SEQ_CNT, 2),
        (HIGH_SEQ_CNT, 2),
    ],
    BaAcc::BYTES
));
const _: () = assert!(tiles(
    &[
        (RJT_RESERVED, 1),
        (REASON, 1),
        (EXPLANATION, 1),
        (VENDOR, 1),
    ],
    BaRjt::BYTES
));

const VALID: u8 = 0x80;

/// Returns the payload as an array if it has exactly this length.
fn exactly<const N: usize>(payload: &[u8]) -> Result<&[u8; N], ParseError> {
    match payload.split_first_chunk() {
        Some((bytes, [])) => Ok(bytes),
        Some(_) => Err(ParseError::new(Field::Payload, Reason::TooLong)),
        None => Err(ParseError::new(Field::Payload, Reason::TooShort)),
    }
}

/// BA_ACC: the exchange is aborted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BaAcc {
    /// SEQ_ID of the last sequence that was delivered, if one is named.
    pub last_seq_id: Option<u8>,
    /// The originator's identifier of the exchange.
    pub ox_id: u16,
    /// The responder's identifier of the exchange.
    pub rx_id: u16,
    /// Lowest SEQ_CNT that is aborted.
    pub low_seq_cnt: u16,
    /// Highest SEQ_CNT that is aborted.
    pub high_seq_cnt: u16,
}

impl BaAcc {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// Reads an accept.
    ///
    /// # Errors
    /// `BlsPayload` `TooShort` or `TooLong`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload)?);
        let valid = bytes.u8::<SEQ_ID_VALID>() & VALID != 0;
        Ok(Self {
            last_seq_id: valid.then_some(bytes.u8::<SEQ_ID>()),
            ox_id: bytes.u16::<OX_ID>(),
            rx_id: bytes.u16::<RX_ID>(),
            low_seq_cnt: bytes.u16::<LOW_SEQ_CNT>(),
            high_seq_cnt: bytes.u16::<HIGH_SEQ_CNT>(),
        })
    }

    /// Writes an accept.
    pub fn emit(&self, out: &mut [u8; 12]) {
        let mut out = Writer(out);
        out.u8::<SEQ_ID_VALID>(if self.last_seq_id.is_some() { VALID } else { 0 });
        out.u8::<SEQ_ID>(self.last_seq_id.unwrap_or(0));
        out.u16::<RESERVED>(0);
        out.u16::<OX_ID>(self.ox_id);
        out.u16::<RX_ID>(self.rx_id);
        out.u16::<LOW_SEQ_CNT>(self.low_seq_cnt);
        out.u16::<HIGH_SEQ_CNT>(self.high_seq_cnt);
    }
}

/// BA_RJT: the exchange is not aborted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BaRjt {
    /// The reason; see [`BaRjt::LOGICAL_ERROR`].
    pub reason: u8,
    /// The explanation; see [`BaRjt::INVALID_EXCHANGE`].
    pub explanation: u8,
}

impl BaRjt {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;
    /// Reason: the request is invalid in the current state.
    pub const LOGICAL_ERROR: u8 = 0x03;
    /// Reason: the request cannot be carried out.
    pub const UNABLE_TO_PERFORM: u8 = 0x09;
    /// Explanation: none.
    pub const NO_EXPLANATION: u8 = 0x00;
    /// Explanation: no exchange has these identifiers.
    pub const INVALID_EXCHANGE: u8 = 0x03;

    /// Reads a reject.
    ///
    /// # Errors
    /// `BlsPayload` `TooShort` or `TooLong`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload)?);
        Ok(Self {
            reason: bytes.u8::<REASON>(),
            explanation: bytes.u8::<EXPLANATION>(),
        })
    }

    /// Writes a reject.
    pub fn emit(&self, out: &mut [u8; 4]) {
        let mut out = Writer(out);
        out.u8::<RJT_RESERVED>(0);
        out.u8::<REASON>(self.reason);
        out.u8::<EXPLANATION>(self.explanation);
        out.u8::<VENDOR>(0);
    }
}

#[cfg(test)]
mod tests {
    use super::{BaAcc, BaRjt};
    use crate::error::{Field, ParseError, Reason};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn payloads_round_trip(
            last_seq_id: Option<u8>,
            ids: [u16; 4],
            (reason, explanation) in any::<(u8, u8)>(),
        ) {
            let [ox_id, rx_id, low_seq_cnt, high_seq_cnt] = ids;
            let accept = BaAcc { last_seq_id, ox_id, rx_id, low_seq_cnt, high_seq_cnt };
            let mut bytes = [0xEE; 12];
            accept.emit(&mut bytes);
            prop_assert_eq!(BaAcc::parse(&bytes), Ok(accept));

            let reject = BaRjt { reason, explanation };
            let mut bytes = [0xEE; 4];
            reject.emit(&mut bytes);
            prop_assert_eq!(BaRjt::parse(&bytes), Ok(reject));
        }
    }

    #[test]
    fn parse_rejects_other_lengths() {
        for length in 0..20 {
            let bytes = [0; 20];
            let payload = &bytes[..length];
            let of = |exact: usize| match length.cmp(&exact) {
                core::cmp::Ordering::Less => Some(Reason::TooShort),
                core::cmp::Ordering::Equal => None,
                core::cmp::Ordering::Greater => Some(Reason::TooLong),
            };
            let error = |reason| ParseError::new(Field::Payload, reason);
            assert_eq!(BaAcc::parse(payload).err(), of(12).map(error));
            assert_eq!(BaRjt::parse(payload).err(), of(4).map(error));
        }
    }
}
