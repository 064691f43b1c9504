//! Numeric constants of VI/TCP. The draft names fields and values and leaves most numbers open:
//! each list is numbered from 0 in the draft's order. Extensions are marked "ours".

/// The TCP port on which connections are accepted [VI/TCP 2.2.2.2.1].
pub const TCP_PORT: u16 = 8420;
/// Version of every segment [VI/TCP 3.1].
pub const VERSION: u8 = 1;

/// Bytes of the segment header [VI/TCP 3.1].
pub const SEGMENT_HEADER_BYTES: usize = 24;
/// Bytes of the CE header, without Security Information [VI/TCP 3.2].
pub const CE_HEADER_BYTES: usize = 44;
/// Bytes of the RDMA header [VI/TCP 3.2.1].
pub const RDMA_HEADER_BYTES: usize = 16;
/// Most bytes of a discriminator [VI/TCP 3.2].
pub const MAX_DISCRIMINATOR_BYTES: usize = 16;
/// Most bytes of Security Information; ours, as the draft has no bound.
pub const MAX_SECURITY_BYTES: usize = 256;
/// Format number of keyed Security Information, which is ours.
pub const KEYED_FORMAT: u8 = 1;
/// Bytes of a random nonce of keyed Security Information.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof: HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;
/// Most bytes of the consumer's Security Information within keyed Security Information.
pub const MAX_KEYED_SECURITY_BYTES: usize = MAX_SECURITY_BYTES - 1 - NONCE_BYTES - PROOF_BYTES;
/// Label at the start of the statement that a Connect Request proves.
pub const LABEL_REQUEST: &[u8; 16] = b"VI/TCP request 1";
/// Label at the start of the statement that a Connect Accept proves.
pub const LABEL_ACCEPT: &[u8; 16] = b"VI/TCP accept  1";
/// Most bytes of a segment, headers included: the maximum of Segment Length.
pub const MAX_SEGMENT_BYTES: usize = 65535;
/// Most bytes of a segment before its payload.
pub const MAX_HEADERS_BYTES: usize = SEGMENT_HEADER_BYTES + CE_HEADER_BYTES + MAX_SECURITY_BYTES;

/// Type: Send.
pub const TYPE_SEND: u8 = 0;
/// Type: RDMA Read Request.
pub const TYPE_READ_REQUEST: u8 = 1;
/// Type: RDMA Read Response.
pub const TYPE_READ_RESPONSE: u8 = 2;
/// Type: RDMA Write.
pub const TYPE_WRITE: u8 = 3;
/// Type: NOP.
pub const TYPE_NOP: u8 = 4;
/// Type: Connect Request.
pub const TYPE_CONNECT_REQUEST: u8 = 5;
/// Type: Connect Accept.
pub const TYPE_CONNECT_ACCEPT: u8 = 6;
/// Type: Connect Reject.
pub const TYPE_CONNECT_REJECT: u8 = 7;
/// Type: Connect No Match.
pub const TYPE_CONNECT_NO_MATCH: u8 = 8;
/// Bit position of Type in the byte that it shares with the flags.
pub const TYPE_SHIFT: u32 = 3;

/// Flag BIT 1: Immediate Data Valid.
pub const FLAG_IMMEDIATE: u8 = 0x01;
/// Flag BIT 2: End of Message.
pub const FLAG_END_OF_MESSAGE: u8 = 0x02;
/// Flag BIT 3: Transmit Error.
pub const FLAG_TRANSMIT_ERROR: u8 = 0x04;

/// VI Error Type: No Error.
pub const VI_ERROR_NONE: u8 = 0;
/// VI Error Type: RDMA Memory Protection Error.
pub const VI_ERROR_RDMA_PROTECTION: u8 = 1;
/// VI Error Type: VI Descriptor Error.
pub const VI_ERROR_DESCRIPTOR: u8 = 2;

/// IS Error Code: none. All IS Error Codes are ours.
pub const IS_NONE: u8 = 0;
/// IS Error Code: the message had the Transmit Error flag.
pub const IS_TRANSPORT: u8 = 1;
/// IS Error Code of a Connect Reject: the consumer rejected the request.
pub const IS_REJECTED: u8 = 16;
/// IS Error Code of a Connect Reject: the reliability levels differ.
pub const IS_RELIABILITY_LEVEL: u8 = 17;
/// IS Error Code of a Connect Reject: the maximum transfer sizes differ.
pub const IS_MAX_TRANSFER_SIZE: u8 = 18;
/// IS Error Code of a Connect Reject: no resources.
pub const IS_NO_RESOURCES: u8 = 19;
/// IS Error Code of a Connect Reject: the security information is not accepted.
pub const IS_SECURITY: u8 = 20;
/// IS Error Code of a Connect Reject with a CE header: a challenge; the TCP connection stays open.
pub const IS_CHALLENGE: u8 = 21;

/// Calling Attributes: Reliable.
pub const ATTRIBUTE_RELIABLE: u16 = 1 << 0;
/// Calling Attributes: RDMA Write Enable.
pub const ATTRIBUTE_RDMA_WRITE: u16 = 1 << 1;
/// Calling Attributes: RDMA Read Enable.
pub const ATTRIBUTE_RDMA_READ: u16 = 1 << 2;
/// Calling Attributes: Descriptor Flow Control Enabled.
pub const ATTRIBUTE_FLOW_CONTROL: u16 = 1 << 3;
/// Calling Attributes: Peer-to-peer Connection Establishment.
pub const ATTRIBUTE_PEER_TO_PEER: u16 = 1 << 4;
/// Calling Attributes: bit position of the two bits of the exact level; ours.
pub const ATTRIBUTE_LEVEL_SHIFT: u32 = 5;

/// Exact level: unspecified; ours.
pub const LEVEL_UNSPECIFIED: u16 = 0;
/// Exact level: Reliable Delivery; ours.
pub const LEVEL_DELIVERY: u16 = 1;
/// Exact level: Reliable Reception; ours.
pub const LEVEL_RECEPTION: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_draft() {
        assert_eq!((SEGMENT_HEADER_BYTES, CE_HEADER_BYTES), (24, 44));
        assert_eq!((RDMA_HEADER_BYTES, MAX_HEADERS_BYTES), (16, 324));
        assert_eq!(MAX_SEGMENT_BYTES, usize::from(u16::MAX));
        assert_eq!((TCP_PORT, VERSION), (8420, 1));
        assert_eq!(MAX_KEYED_SECURITY_BYTES, 191);
    }
}
