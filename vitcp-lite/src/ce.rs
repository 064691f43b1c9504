//! The CE header: connection establishment [VI/TCP 3.2]. Part of every Connect Request and
//! Connect Accept, and of a Connect Reject that is a challenge.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 2 | Calling Attributes |
//! | 2 | 2 | Calling Discriminator Length, 0 to 16 |
//! | 4 | 4 | MTU Size: MaxTransferSize in bytes |
//! | 8 | 16 | Calling Discriminator, padded with 0 |
//! | 24 | 2 | Calling RDMA Read Window |
//! | 26 | 2 | Called Discriminator Length, 0 to 16 |
//! | 28 | 16 | Called Discriminator, padded with 0 |
//! | 44 | 0 to 256 | Security Information: the rest of the segment |
//!
//! The padding of a discriminator is ignored when received.

use core::fmt;

use vi_types::BoundedBytes;

use crate::attributes::Attributes;
use crate::error::SegmentError;
use crate::profile::{CE_HEADER_BYTES, MAX_DISCRIMINATOR_BYTES};
use crate::security::Security;
use vi_types::fields::{Reader, Writer, tiles};

const ATTRIBUTES: usize = 0;
const CALLING_LENGTH: usize = 2;
const MTU: usize = 4;
const CALLING: usize = 8;
const READ_WINDOW: usize = 24;
const CALLED_LENGTH: usize = 26;
const CALLED: usize = 28;

const _: () = assert!(tiles(
    &[
        (ATTRIBUTES, 2),
        (CALLING_LENGTH, 2),
        (MTU, 4),
        (CALLING, MAX_DISCRIMINATOR_BYTES),
        (READ_WINDOW, 2),
        (CALLED_LENGTH, 2),
        (CALLED, MAX_DISCRIMINATOR_BYTES),
    ],
    CE_HEADER_BYTES
));

/// A discriminator, which names a VI of a host in a Connect Request: up to 16 bytes.
pub type Discriminator = BoundedBytes<MAX_DISCRIMINATOR_BYTES>;

/// The CE header: parameters of one side for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CeHeader {
    /// Of the sender's VI.
    pub attributes: Attributes,
    /// Maximum message size in bytes: proposed in a request, agreed in an accept.
    pub mtu_bytes: u32,
    /// The sender's VI.
    pub calling: Discriminator,
    /// The receiver's VI.
    pub called: Discriminator,
    /// Limit of outstanding RDMA reads of the peer.
    pub read_window: u16,
    /// Security Information of the consumer.
    pub security: Security,
}

impl CeHeader {
    /// Parses a header: `bytes` is all of the segment after the segment header.
    ///
    /// # Errors
    /// `CeHeader` if they are fewer than 44; `CallingDiscriminator` and
    /// `CalledDiscriminator` if one is longer than 16 bytes; `Security` if more than 256
    /// bytes remain.
    pub fn parse(bytes: &[u8]) -> Result<Self, SegmentError> {
        let Some((fixed, security)) = bytes.split_first_chunk::<CE_HEADER_BYTES>() else {
            return Err(SegmentError::CeHeader {
                bytes: clamped(bytes.len()),
            });
        };
        let fixed = Reader(fixed);
        let calling_bytes = fixed.u16::<CALLING_LENGTH>();
        let calling = used(&fixed.array::<CALLING, 16>(), calling_bytes).ok_or(
            SegmentError::CallingDiscriminator {
                bytes: calling_bytes,
            },
        )?;
        let called_bytes = fixed.u16::<CALLED_LENGTH>();
        let called = used(&fixed.array::<CALLED, 16>(), called_bytes).ok_or(
            SegmentError::CalledDiscriminator {
                bytes: called_bytes,
            },
        )?;
        Ok(Self {
            attributes: Attributes::from_bits(fixed.u16::<ATTRIBUTES>()),
            mtu_bytes: fixed.u32::<MTU>(),
            calling,
            called,
            read_window: fixed.u16::<READ_WINDOW>(),
            security: Security::new(security).ok_or(SegmentError::Security {
                bytes: clamped(security.len()),
            })?,
        })
    }

    /// Writes the header and the Security Information to the front of `out`; returns the number of
    /// bytes, or `None` if `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let security = self.security.as_bytes();
        let (fixed, rest) = out.split_first_chunk_mut::<CE_HEADER_BYTES>()?;
        rest.get_mut(..security.len())?.copy_from_slice(security);
        self.emit_fixed(fixed);
        Some(self.bytes())
    }

    /// Writes the header without the Security Information. Bits that a receiver ignores are 0.
    pub fn emit_fixed(&self, out: &mut [u8; 44]) {
        let mut fixed = Writer(out);
        fixed.u16::<ATTRIBUTES>(self.attributes.to_bits());
        fixed.u16::<CALLING_LENGTH>(clamped(self.calling.as_bytes().len()));
        fixed.u32::<MTU>(self.mtu_bytes);
        fixed.array::<CALLING, 16>(*self.calling.padded());
        fixed.u16::<READ_WINDOW>(self.read_window);
        fixed.u16::<CALLED_LENGTH>(clamped(self.called.as_bytes().len()));
        fixed.array::<CALLED, 16>(*self.called.padded());
    }

    /// Returns the bytes on the wire: 44 and the Security Information.
    #[must_use]
    pub fn bytes(&self) -> usize {
        CE_HEADER_BYTES.saturating_add(self.security.as_bytes().len())
    }
}

/// Reads a discriminator from its padded field; `None` if `length` exceeds it.
fn used(field: &[u8; MAX_DISCRIMINATOR_BYTES], length: u16) -> Option<Discriminator> {
    field
        .get(..usize::from(length))
        .and_then(Discriminator::new)
}

fn clamped(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

impl fmt::Display for CeHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" to \"{}\" attributes {:04x} MTU {} bytes {} reads {} bytes of security",
            self.calling,
            self.called,
            self.attributes.to_bits(),
            self.mtu_bytes,
            self.read_window,
            self.security.as_bytes().len()
        )
    }
}

#[cfg(test)]
mod tests;
