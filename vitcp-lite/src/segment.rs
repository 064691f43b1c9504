//! The segment header, 24 bytes [VI/TCP 3.1].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Version |
//! | 1 | 1 | Type (bits 7 to 3), Flags (bits 2 to 0) |
//! | 2 | 2 | Segment Length: this header, the RDMA or CE header, the payload |
//! | 4 | 4 | Data Offset |
//! | 8 | 4 | Immediate Data |
//! | 12 | 4 | Message Number |
//! | 16 | 4 | Message ACK |
//! | 20 | 2 | Rx Descriptors Posted |
//! | 22 | 2 | Remote Error Code |

use core::fmt;

use crate::error::SegmentError;
use crate::profile::{
    CE_HEADER_BYTES, MAX_HEADERS_BYTES, RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES, TYPE_SHIFT,
    VERSION,
};
use crate::remote_error::RemoteError;
use crate::segment_type::{Flags, SegmentType};
use vi_types::fields::{Reader, Writer, tiles};

const VERSION_AT: usize = 0;
const TYPE_AND_FLAGS: usize = 1;
const SEGMENT_LENGTH: usize = 2;
const DATA_OFFSET: usize = 4;
const IMMEDIATE_DATA: usize = 8;
const MESSAGE_NUMBER: usize = 12;
const MESSAGE_ACK: usize = 16;
const RX_POSTED: usize = 20;
const REMOTE_ERROR: usize = 22;

const _: () = assert!(tiles(
    &[
        (VERSION_AT, 1),
        (TYPE_AND_FLAGS, 1),
        (SEGMENT_LENGTH, 2),
        (DATA_OFFSET, 4),
        (IMMEDIATE_DATA, 4),
        (MESSAGE_NUMBER, 4),
        (MESSAGE_ACK, 4),
        (RX_POSTED, 2),
        (REMOTE_ERROR, 2),
    ],
    SEGMENT_HEADER_BYTES
));

/// Header bytes of an RDMA segment.
const WITH_RDMA_BYTES: usize = SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES;
/// Header bytes of a segment with a CE header, without Security Information.
const WITH_CE_BYTES: usize = SEGMENT_HEADER_BYTES + CE_HEADER_BYTES;

/// The segment header, which begins every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Type.
    pub kind: SegmentType,
    /// Flags.
    pub flags: Flags,
    /// Segment Length in bytes: this header, the RDMA or CE header, the payload.
    pub segment_bytes: u16,
    /// Bytes of payload of the same message in the segments before this one.
    pub data_offset: u32,
    /// Immediate data; valid with [`Flags::IMMEDIATE`].
    pub immediate: u32,
    /// Message Number; of an RDMA Read Response, that of its request.
    pub message: u32,
    /// Message ACK: number of the last message of the other direction that was received
    /// without error, or of the one in error.
    pub ack: u32,
    /// Receive descriptors posted since the connection began, modulo 2^16.
    pub rx_posted: u16,
    /// The error of the message that `ack` names, or the reason why a connection is refused.
    pub remote_error: RemoteError,
}

impl SegmentHeader {
    /// Creates a header of `kind` with `segment_bytes`; all other fields are 0.
    #[inline]
    #[must_use]
    pub const fn new(kind: SegmentType, segment_bytes: u16) -> Self {
        Self {
            kind,
            flags: Flags::NONE,
            segment_bytes,
            data_offset: 0,
            immediate: 0,
            message: 0,
            ack: 0,
            rx_posted: 0,
            remote_error: RemoteError::NONE,
        }
    }

    /// Parses a header. Does not check that the flags are valid for the type.
    ///
    /// # Errors
    /// `Version`, `Type`; `Length` if `segment_bytes` is impossible for the type; `Security` if it
    /// implies more Security Information than the limit.
    #[inline]
    pub fn parse(bytes: &[u8; 24]) -> Result<Self, SegmentError> {
        let bytes = Reader(bytes);
        let version = bytes.u8::<VERSION_AT>();
        if version != VERSION {
            return Err(SegmentError::Version(version));
        }
        let type_and_flags = bytes.u8::<TYPE_AND_FLAGS>();
        let raw = type_and_flags >> TYPE_SHIFT;
        let kind = SegmentType::from_wire(raw).ok_or(SegmentError::Type(raw))?;
        let segment_bytes = bytes.u16::<SEGMENT_LENGTH>();
        check_length(kind, segment_bytes)?;
        Ok(Self {
            kind,
            flags: Flags::from_bits(type_and_flags),
            segment_bytes,
            data_offset: bytes.u32::<DATA_OFFSET>(),
            immediate: bytes.u32::<IMMEDIATE_DATA>(),
            message: bytes.u32::<MESSAGE_NUMBER>(),
            ack: bytes.u32::<MESSAGE_ACK>(),
            rx_posted: bytes.u16::<RX_POSTED>(),
            remote_error: RemoteError::from_bits(bytes.u16::<REMOTE_ERROR>()),
        })
    }

    /// Parses the header of a Send that is a whole message and reports no error; `None` for any
    /// other. Cheaper than [`parse`](Self::parse).
    #[inline]
    #[must_use]
    pub fn parse_whole_send(bytes: &[u8; 24]) -> Option<Self> {
        const WHOLE: u8 =
            (SegmentType::Send.to_wire() << TYPE_SHIFT) | Flags::END_OF_MESSAGE.bits();
        let bytes = Reader(bytes);
        let type_and_flags = bytes.u8::<TYPE_AND_FLAGS>();
        let segment_bytes = bytes.u16::<SEGMENT_LENGTH>();
        let is_whole = bytes.u8::<VERSION_AT>() == VERSION
            && type_and_flags & !Flags::IMMEDIATE.bits() == WHOLE
            && usize::from(segment_bytes) >= SEGMENT_HEADER_BYTES
            && bytes.u32::<DATA_OFFSET>() == 0
            && bytes.u16::<REMOTE_ERROR>() == 0;
        is_whole.then(|| Self {
            flags: Flags::from_bits(type_and_flags),
            immediate: bytes.u32::<IMMEDIATE_DATA>(),
            message: bytes.u32::<MESSAGE_NUMBER>(),
            ack: bytes.u32::<MESSAGE_ACK>(),
            rx_posted: bytes.u16::<RX_POSTED>(),
            ..Self::new(SegmentType::Send, segment_bytes)
        })
    }

    /// Writes the header unchecked: the caller sets `segment_bytes`.
    #[inline]
    pub fn emit(&self, out: &mut [u8; 24]) {
        let mut out = Writer(out);
        out.u8::<VERSION_AT>(VERSION);
        out.u8::<TYPE_AND_FLAGS>((self.kind.to_wire() << TYPE_SHIFT) | self.flags.bits());
        out.u16::<SEGMENT_LENGTH>(self.segment_bytes);
        out.u32::<DATA_OFFSET>(self.data_offset);
        out.u32::<IMMEDIATE_DATA>(self.immediate);
        out.u32::<MESSAGE_NUMBER>(self.message);
        out.u32::<MESSAGE_ACK>(self.ack);
        out.u16::<RX_POSTED>(self.rx_posted);
        out.u16::<REMOTE_ERROR>(self.remote_error.to_bits());
    }

    /// Returns the bytes between this header and the payload: of an RDMA header, of a CE header with
    /// its Security Information, or 0.
    #[inline]
    #[must_use]
    pub fn extension_bytes(&self) -> usize {
        if self.kind.has_rdma_header() {
            RDMA_HEADER_BYTES
        } else if self.kind.is_connection() {
            usize::from(self.segment_bytes).saturating_sub(SEGMENT_HEADER_BYTES)
        } else {
            0
        }
    }

    /// Returns the bytes of payload.
    #[inline]
    #[must_use]
    pub fn payload_bytes(&self) -> u16 {
        let headers_bytes = match self.kind {
            SegmentType::Send => SEGMENT_HEADER_BYTES as u16,
            SegmentType::ReadResponse | SegmentType::Write => WITH_RDMA_BYTES as u16,
            _ => return 0,
        };
        self.segment_bytes.saturating_sub(headers_bytes)
    }
}

#[inline]
fn check_length(kind: SegmentType, segment_bytes: u16) -> Result<(), SegmentError> {
    let bytes = usize::from(segment_bytes);
    let is_possible = match kind {
        SegmentType::Send => bytes >= SEGMENT_HEADER_BYTES,
        SegmentType::ReadResponse | SegmentType::Write => bytes >= WITH_RDMA_BYTES,
        SegmentType::ReadRequest => bytes == WITH_RDMA_BYTES,
        SegmentType::Nop | SegmentType::ConnectNoMatch => bytes == SEGMENT_HEADER_BYTES,
        SegmentType::ConnectRequest | SegmentType::ConnectAccept => bytes >= WITH_CE_BYTES,
        SegmentType::ConnectReject => bytes == SEGMENT_HEADER_BYTES || bytes >= WITH_CE_BYTES,
    };
    if !is_possible {
        return Err(SegmentError::Length {
            kind,
            segment_bytes,
        });
    }
    if kind.is_connection() && bytes > MAX_HEADERS_BYTES {
        return Err(SegmentError::Security {
            bytes: segment_bytes.saturating_sub(WITH_CE_BYTES as u16),
        });
    }
    Ok(())
}

impl fmt::Display for SegmentHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} bytes offset {} immediate {:08x} message {:08x} ack {:08x} posted {} {}",
            self.kind,
            self.flags,
            self.segment_bytes,
            self.data_offset,
            self.immediate,
            self.message,
            self.ack,
            self.rx_posted,
            self.remote_error
        )
    }
}

#[cfg(test)]
mod tests;
