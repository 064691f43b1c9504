//! All values on the wire that are our choice.
//!
//! The published material on FC-VI names the fields, twelve of the thirteen IUs and the kinds
//! of flags and reasons, but no numbers. The numbers here complete the protocol.
//! They are in this table and, of opcodes, in the one of [`iu`](crate::iu), each with the number of
//! its rule, so that they can be replaced as a whole; no other module defines such a number.

use crate::fc::FCtl;
use crate::fc::RCtl;

/// Returns DF_CTL of a frame whose device_header has 16 or 32 bytes, without other optional headers [P-1].
#[inline]
#[must_use]
pub const fn df_ctl(header_bytes: usize) -> u8 {
    match header_bytes {
        16 => 0x01,
        32 => 0x02,
        _ => 0x00,
    }
}

/// CS_CTL of every frame [P-1].
pub const CS_CTL: u8 = 0;

/// R_CTL of IUs with data for a prepared buffer [P-2].
pub const R_CTL_PLACED_DATA: RCtl = RCtl::SolicitedData;
/// R_CTL of FCVI_SEND_RQST [P-2].
pub const R_CTL_SEND: RCtl = RCtl::UnsolicitedData;
/// R_CTL of FCVI_READ_RQST [P-2].
pub const R_CTL_READ_REQUEST: RCtl = RCtl::UnsolicitedCommand;
/// R_CTL of FCVI_RENDEZVOUS_RQST [P-17].
pub const R_CTL_RENDEZVOUS: RCtl = RCtl::UnsolicitedCommand;
/// R_CTL of message responses without data [P-2].
pub const R_CTL_MESSAGE_RESPONSE: RCtl = RCtl::CommandStatus;
/// R_CTL of IUs that open a connection procedure [P-2].
pub const R_CTL_CONNECTION_REQUEST: RCtl = RCtl::UnsolicitedControl;
/// R_CTL of IUs that continue a connection procedure [P-2].
pub const R_CTL_CONNECTION_RESPONSE: RCtl = RCtl::SolicitedControl;

/// F_CTL of a one-way exchange, any frame but the last [P-3].
pub const F_CTL_ONE_WAY: FCtl = FCtl::FIRST_SEQUENCE.union(FCtl::LAST_SEQUENCE);
/// F_CTL of a one-way exchange, last frame [P-3].
pub const F_CTL_ONE_WAY_LAST: FCtl = F_CTL_ONE_WAY.union(FCtl::END_SEQUENCE);
/// F_CTL of a request with a response, any frame but the last [P-3].
pub const F_CTL_REQUEST_BEGUN: FCtl = FCtl::FIRST_SEQUENCE;
/// F_CTL of a request with a response, last frame [P-3].
pub const F_CTL_REQUEST: FCtl = FCtl::FIRST_SEQUENCE
    .union(FCtl::END_SEQUENCE)
    .union(FCtl::SEQUENCE_INITIATIVE);
/// F_CTL of the response that ends the exchange, any frame but the last [P-3].
pub const F_CTL_REPLY_BEGUN: FCtl = FCtl::EXCHANGE_RESPONDER.union(FCtl::LAST_SEQUENCE);
/// F_CTL of the response that ends the exchange, last frame [P-3].
pub const F_CTL_FINAL_REPLY: FCtl = F_CTL_REPLY_BEGUN.union(FCtl::END_SEQUENCE);
/// F_CTL of an FCVI_CONNECT_RESP1 that is followed by FCVI_CONNECT_RESP2 [P-3].
pub const F_CTL_CONNECT_RESPONSE1: FCtl = FCtl::EXCHANGE_RESPONDER
    .union(FCtl::END_SEQUENCE)
    .union(FCtl::SEQUENCE_INITIATIVE);
/// F_CTL of FCVI_CONNECT_RESP2 [P-3].
pub const F_CTL_CONNECT_RESPONSE2: FCtl = FCtl::END_SEQUENCE.union(FCtl::SEQUENCE_INITIATIVE);

/// FCVI_FLAGS bits [P-6]; the bits of one class of IU have no meaning in another.
pub(crate) mod flag {
    pub(crate) const MESSAGE_REQUEST_IMMEDIATE: u8 = 0x80;
    pub(crate) const MESSAGE_REQUEST_RESPONSE_REQUESTED: u8 = 0x40;
    pub(crate) const MESSAGE_REQUEST_RELIABILITY_SHIFT: u32 = 4;
    pub(crate) const MESSAGE_REQUEST_FENCE: u8 = 0x08;
    pub(crate) const MESSAGE_REQUEST_ACKNOWLEDGES: u8 = 0x04;
    pub(crate) const MESSAGE_RESPONSE_ERROR: u8 = 0x80;
    pub(crate) const MESSAGE_RESPONSE_LAST: u8 = 0x40;
    /// [P-16]
    pub(crate) const MESSAGE_RESPONSE_CUMULATIVE: u8 = 0x20;
    /// [P-17]
    pub(crate) const MESSAGE_RESPONSE_DECLINED: u8 = 0x10;
    pub(crate) const CONNECT_MODE_SHIFT: u32 = 6;
    pub(crate) const CONNECT_RETRY: u8 = 0x20;
    pub(crate) const CONNECT_RESPONSE_ERROR: u8 = 0x10;
    pub(crate) const DISCONNECT_ERROR: u8 = 0x80;
    pub(crate) const DISCONNECT_REPLY_EXPECTED: u8 = 0x40;
    pub(crate) const DISCONNECT_ACKNOWLEDGES: u8 = 0x20;
}

/// Reason codes of message responses and disconnects [P-8].
pub(crate) mod message_reason {
    pub(crate) const NONE: u8 = 0x00;
    pub(crate) const NO_DESCRIPTOR: u8 = 0x01;
    pub(crate) const DESCRIPTOR_FORMAT: u8 = 0x02;
    pub(crate) const DESCRIPTOR_PROTECTION: u8 = 0x03;
    pub(crate) const DESCRIPTOR_TOO_SHORT: u8 = 0x04;
    pub(crate) const WRITE_PROTECTION: u8 = 0x40;
    pub(crate) const READ_PROTECTION: u8 = 0x41;
    pub(crate) const WRITE_NOT_ENABLED: u8 = 0x42;
    pub(crate) const READ_NOT_ENABLED: u8 = 0x43;
    pub(crate) const MESSAGE_LOST: u8 = 0x44;
    pub(crate) const MESSAGE_INCOMPLETE: u8 = 0x45;
    pub(crate) const UNKNOWN_HANDLE: u8 = 0x46;
    pub(crate) const PROTOCOL_ERROR: u8 = 0x47;
    pub(crate) const NO_RESOURCES: u8 = 0x48;
    pub(crate) const DISCONNECTED: u8 = 0x49;
    pub(crate) const ULP_TIMEOUT: u8 = 0x4A;
    pub(crate) const NIC_CLOSING: u8 = 0x4B;
    /// [P-16]
    pub(crate) const GAPS: u8 = 0xC0;
}

/// CONN_STS values [P-7].
pub(crate) mod connect_status {
    pub(crate) const CONTINUE: u8 = 0x00;
    pub(crate) const PENDING: u8 = 0x01;
    pub(crate) const SUPERSEDED: u8 = 0x02;
    pub(crate) const FAILED: u8 = 0x80;
}

/// Reason codes of connect responses [P-8].
pub(crate) mod connect_reason {
    pub(crate) const ACCEPTED: u8 = 0x00;
    pub(crate) const WAITING_FOR_CONSUMER: u8 = 0x01;
    pub(crate) const NOT_YET_POSTED: u8 = 0x02;
    pub(crate) const YOURS_WINS: u8 = 0x03;
    pub(crate) const MINE_WINS: u8 = 0x04;
    pub(crate) const DUPLICATE_OF_ESTABLISHED: u8 = 0x05;
    pub(crate) const NO_MATCH: u8 = 0x10;
    pub(crate) const REJECTED: u8 = 0x11;
    pub(crate) const RELIABILITY_LEVEL: u8 = 0x12;
    pub(crate) const MAX_TRANSFER_SIZE: u8 = 0x13;
    pub(crate) const QOS: u8 = 0x14;
    pub(crate) const NO_RESOURCES: u8 = 0x15;
    pub(crate) const TIMED_OUT: u8 = 0x16;
    pub(crate) const NOT_MY_ADDRESS: u8 = 0x17;
    pub(crate) const MALFORMED: u8 = 0x18;
    pub(crate) const UNKNOWN_CONNECTION: u8 = 0x19;
    pub(crate) const WRONG_STATE: u8 = 0x1A;
}

/// FCVI_ATTRIBUTES.ATTR_FLAGS bits [P-9]; the reliability bits are VIPL's level numbers.
pub(crate) mod attribute {
    pub(crate) const UNRELIABLE_DELIVERY: u32 = 1 << 0;
    pub(crate) const RELIABLE_DELIVERY: u32 = 1 << 1;
    pub(crate) const RELIABLE_RECEPTION: u32 = 1 << 2;
    pub(crate) const RDMA_WRITE: u32 = 1 << 8;
    pub(crate) const RDMA_READ: u32 = 1 << 9;
    pub(crate) const IN_ORDER: u32 = 1 << 10;
    /// [P-16]
    pub(crate) const RECOVERY: u32 = 1 << 16;
}

/// First OX_ID of the FLOGI, PLOGI and other link services of a port's logins. An FC-4 protocol of
/// the port uses those below, also for link services of its own [P-10].
pub const FIRST_LOGIN_OX_ID: u16 = 0xF800;

/// The offered quality of service: FC class 3 [P-9].
pub const QOS_CLASS_3: u8 = 3;
/// Bytes of the longest discriminator of an FCVI_NET_ADDRESS [P-9].
pub const MAX_DISCRIMINATOR_BYTES: usize = vi_types::Discriminator::MAX_BYTES;
/// FCVI_HANDLE of an FCVI_CONNECT_RQST: its receiver has no handle yet [P-9].
pub const HANDLE_NONE: u32 = 0xFFFF_FFFF;

/// E_D_TOV: timeout of the next frame of a sequence. The usual default of FC.
pub const E_D_TOV_MS: u32 = 2_000;
/// R_A_TOV: maximum lifetime of a frame in the network. The usual default of FC.
pub const R_A_TOV_MS: u32 = 10_000;
/// FCVI_ULP_TIMEOUT: timeout of a response, twice R_A_TOV [P-11].
pub const ULP_TIMEOUT_MS: u32 = 2 * R_A_TOV_MS;

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the values with the table in docs/spec/fcvi-frame.md.
    #[test]
    fn f_ctl_values_match_the_documented_table() {
        let words = [
            (F_CTL_ONE_WAY, 0x30_0000),
            (F_CTL_ONE_WAY_LAST, 0x38_0000),
            (F_CTL_REQUEST_BEGUN, 0x20_0000),
            (F_CTL_REQUEST, 0x29_0000),
            (F_CTL_REPLY_BEGUN, 0x90_0000),
            (F_CTL_FINAL_REPLY, 0x98_0000),
            (F_CTL_CONNECT_RESPONSE1, 0x89_0000),
            (F_CTL_CONNECT_RESPONSE2, 0x09_0000),
        ];
        for (f_ctl, word) in words {
            assert_eq!(f_ctl, FCtl(word));
        }
    }

    #[test]
    fn df_ctl_encodes_the_device_header_length() {
        for bytes in [0, 16, 32] {
            assert_eq!(crate::fc::DfCtl(df_ctl(bytes)).device_header_bytes(), bytes);
        }
        assert_eq!(df_ctl(64), 0);
    }
}
