//! FCVI_FLAGS: one byte whose bits depend on the class of the IU [P-6].
//!
//! | Class | 7 | 6 | 5 | 4 | 3 | 2 |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | message request | immediate data | response requested | reliability | reliability | queue fence | acknowledges |
//! | message response | error | last | cumulative | declined | | |
//! | connect request | mode | mode | retry | | | |
//! | connect response | mode | mode | retry | error | | |
//! | disconnect | error | reply expected | acknowledges | | | |
//!
//! All other bits are sent as 0 and ignored.

use vi_types::ReliabilityLevel;

use crate::profile::flag;

const RELIABILITY_MASK: u8 = 3;

/// Returns the reliability level of a message as flag bits.
#[inline]
#[must_use]
pub const fn reliability_flags(level: ReliabilityLevel) -> u8 {
    let value = match level {
        ReliabilityLevel::UnreliableDelivery => 0,
        ReliabilityLevel::ReliableDelivery => 1,
        ReliabilityLevel::ReliableReception => 2,
    };
    value << flag::MESSAGE_REQUEST_RELIABILITY_SHIFT
}

/// Returns the reliability level in the flags of a message request; `None` for the undefined value.
#[inline]
#[must_use]
pub const fn reliability_of(flags: u8) -> Option<ReliabilityLevel> {
    match (flags >> flag::MESSAGE_REQUEST_RELIABILITY_SHIFT) & RELIABILITY_MASK {
        0 => Some(ReliabilityLevel::UnreliableDelivery),
        1 => Some(ReliabilityLevel::ReliableDelivery),
        2 => Some(ReliabilityLevel::ReliableReception),
        _ => None,
    }
}

/// Connection model, bits 7:6 of connect IUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectMode {
    /// A server waits for a client's request.
    #[default]
    ClientServer = 0,
    /// Both sides send requests.
    PeerToPeer = 1,
}

impl ConnectMode {
    /// Returns the mode as flag bits.
    #[inline]
    #[must_use]
    pub const fn to_flags(self) -> u8 {
        (self as u8) << flag::CONNECT_MODE_SHIFT
    }

    /// Returns the mode in the flags of a connect IU; `None` for the undefined values.
    #[inline]
    #[must_use]
    pub const fn from_flags(flags: u8) -> Option<Self> {
        match flags >> flag::CONNECT_MODE_SHIFT {
            0 => Some(Self::ClientServer),
            1 => Some(Self::PeerToPeer),
            _ => None,
        }
    }
}

/// FCVI_SEND_RQST, FCVI_WRITE_RQST, FCVI_READ_RQST, FCVI_RENDEZVOUS_RQST.
pub mod message_request {
    use super::flag;

    /// FCVI_PARAMETER is immediate data.
    pub const IMMEDIATE: u8 = flag::MESSAGE_REQUEST_IMMEDIATE;
    /// The sender waits for a response IU.
    pub const RESPONSE_REQUESTED: u8 = flag::MESSAGE_REQUEST_RESPONSE_REQUESTED;
    /// The bits of [`reliability_flags`](super::reliability_flags).
    pub const RELIABILITY: u8 = super::RELIABILITY_MASK << flag::MESSAGE_REQUEST_RELIABILITY_SHIFT;
    /// The descriptor had its queue fence set; for information.
    pub const FENCE: u8 = flag::MESSAGE_REQUEST_FENCE;
    /// FCVI_PARAMETER, which is not immediate data then, acknowledges every message of the other
    /// direction up to it [P-16].
    pub const ACKNOWLEDGES: u8 = flag::MESSAGE_REQUEST_ACKNOWLEDGES;
}

/// FCVI_SEND_RESP, FCVI_WRITE_RESP, FCVI_READ_RESP.
pub mod message_response {
    use super::flag;

    /// FCVI_PARAMETER is a reason.
    pub const ERROR: u8 = flag::MESSAGE_RESPONSE_ERROR;
    /// The last data of a read.
    pub const LAST: u8 = flag::MESSAGE_RESPONSE_LAST;
    /// FCVI_MSG_ID acknowledges every message up to it [P-16].
    pub const CUMULATIVE: u8 = flag::MESSAGE_RESPONSE_CUMULATIVE;
    /// The message of an FCVI_RENDEZVOUS_RQST was not received: it is to be sent as FCVI_SEND_RQST [P-17].
    pub const DECLINED: u8 = flag::MESSAGE_RESPONSE_DECLINED;
}

/// FCVI_CONNECT_RQST.
pub mod connect_request {
    use super::{ConnectMode, flag};

    /// An earlier request is repeated.
    pub const RETRY: u8 = flag::CONNECT_RETRY;

    /// Returns the connection mode; `None` for the undefined values.
    #[inline]
    #[must_use]
    pub const fn mode(flags: u8) -> Option<ConnectMode> {
        ConnectMode::from_flags(flags)
    }
}

/// FCVI_CONNECT_RESP1, FCVI_CONNECT_RESP2, FCVI_CONNECT_RESP3.
pub mod connect_response {
    use super::{ConnectMode, flag};

    /// Repeats an earlier response, or responds to a repeated request.
    pub const RETRY: u8 = flag::CONNECT_RETRY;
    /// The connection failed; FCVI_PARAMETER contains the reason.
    pub const ERROR: u8 = flag::CONNECT_RESPONSE_ERROR;

    /// Returns the connection mode of the request; `None` for the undefined values.
    #[inline]
    #[must_use]
    pub const fn mode(flags: u8) -> Option<ConnectMode> {
        ConnectMode::from_flags(flags)
    }
}

/// FCVI_DISCONNECT_RQST, FCVI_DISCONNECT_RESP.
pub mod disconnect {
    use super::flag;

    /// Caused by an error; FCVI_PARAMETER contains the reason.
    pub const ERROR: u8 = flag::DISCONNECT_ERROR;
    /// The sender waits for a response.
    pub const REPLY_EXPECTED: u8 = flag::DISCONNECT_REPLY_EXPECTED;
    /// FCVI_MSG_ID acknowledges every message of the other direction up to it; our extension of
    /// the profile's message recovery [P-16].
    pub const ACKNOWLEDGES: u8 = flag::DISCONNECT_ACKNOWLEDGES;
}

#[cfg(test)]
mod tests {
    use vi_types::ReliabilityLevel;

    use super::{
        ConnectMode, connect_request, connect_response, disconnect, message_request,
        message_response, reliability_flags, reliability_of,
    };

    #[test]
    fn levels_and_modes_round_trip_among_other_bits() {
        for level in ReliabilityLevel::ALL {
            for others in [0, 0xCF] {
                let flags = reliability_flags(level) | others;
                assert_eq!(reliability_of(flags), Some(level));
            }
        }
        assert_eq!(reliability_of(0x30), None);
        for mode in [ConnectMode::ClientServer, ConnectMode::PeerToPeer] {
            for others in [0, 0x3F] {
                let flags = mode.to_flags() | others;
                assert_eq!(connect_request::mode(flags), Some(mode));
                assert_eq!(connect_response::mode(flags), Some(mode));
            }
        }
        assert_eq!(connect_request::mode(0x80), None);
        assert_eq!(connect_response::mode(0xC0), None);
    }

    #[test]
    fn flags_of_a_class_do_not_overlap() {
        let classes: [&[u8]; 5] = [
            &[
                message_request::IMMEDIATE,
                message_request::RESPONSE_REQUESTED,
                message_request::RELIABILITY,
                message_request::FENCE,
                message_request::ACKNOWLEDGES,
            ],
            &[
                message_response::ERROR,
                message_response::LAST,
                message_response::CUMULATIVE,
                message_response::DECLINED,
            ],
            &[0xC0, connect_request::RETRY],
            &[0xC0, connect_response::RETRY, connect_response::ERROR],
            &[
                disconnect::ERROR,
                disconnect::REPLY_EXPECTED,
                disconnect::ACKNOWLEDGES,
            ],
        ];
        for flags in classes {
            let union = flags.iter().fold(0, |all, flag| all | flag);
            let bits: u32 = flags.iter().map(|flag| flag.count_ones()).sum();
            assert_eq!(u8::count_ones(union), bits);
        }
    }
}
