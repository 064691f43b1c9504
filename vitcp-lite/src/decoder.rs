//! Incremental decoder of segments from a byte stream [VI/TCP 3].
//!
//! TCP keeps no boundaries: a segment may arrive in any number of fragments. The decoder buffers
//! incomplete headers only; payload is passed through as it arrives.
//!
//! ```text
//!            24 bytes               RDMA or CE header
//!  Header ------------> Extension ----------------------> Payload
//!    ^                    | no payload                      | its last byte
//!    +--------------------+---------------------------------+
//! ```
//!
//! A header that is complete in the input is parsed in place; the fragments of any other are
//! assembled in a buffer.

use crate::ce::CeHeader;
use crate::error::SegmentError;
use crate::profile::{MAX_HEADERS_BYTES, SEGMENT_HEADER_BYTES};
use crate::rdma::RdmaHeader;
use crate::segment::SegmentHeader;

/// Bytes of the header buffer, which holds the segment header, and then the RDMA or CE header.
const HEADER_BUFFER_BYTES: usize = MAX_HEADERS_BYTES - SEGMENT_HEADER_BYTES;
const _: () = assert!(HEADER_BUFFER_BYTES >= SEGMENT_HEADER_BYTES);

/// The header that follows the segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing here allocates, and a CE header occurs once per connection"
)]
pub enum Headers {
    /// None: Send, NOP, Connect No Match, Connect Reject that is not a challenge.
    Plain,
    /// RDMA Read Request, RDMA Read Response, RDMA Write.
    Rdma(RdmaHeader),
    /// Connect Request, Connect Accept, Connect Reject that is a challenge.
    Connect(CeHeader),
}

/// The headers of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Segment header.
    pub header: SegmentHeader,
    /// The header that follows it.
    pub headers: Headers,
    /// Bytes of payload that follow.
    pub payload_bytes: u16,
}

/// An item of the decoded stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing here allocates, and a CE header occurs once per connection"
)]
pub enum Item<'a> {
    /// The headers of a segment are complete.
    Segment(Segment),
    /// The next bytes of the payload of the current segment.
    Payload {
        /// Never empty.
        bytes: &'a [u8],
        /// Bytes of the payload that are still missing after these.
        left: u16,
    },
}

/// Position of the stream within a segment.
#[derive(Clone, Copy, Debug)]
enum State {
    /// In the segment header, or before it.
    Header,
    /// In the RDMA or CE header that follows this segment header.
    Extension(SegmentHeader),
    /// In the payload, with `left` bytes missing; never 0.
    Payload { left: u16 },
    /// Failed permanently.
    Failed(SegmentError),
}

/// Decodes the received bytes of one TCP connection into segments.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    header_buffer: HeaderBuffer,
}

impl Decoder {
    /// Creates a decoder at the start of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Header,
            header_buffer: HeaderBuffer {
                bytes: [0; HEADER_BUFFER_BYTES],
                filled: 0,
            },
        }
    }

    /// Consumes bytes at the front of `input` and returns the next item. `None` if more input is
    /// needed; `input` is empty then.
    ///
    /// # Errors
    /// As for [`SegmentHeader::parse`] and [`CeHeader::parse`]. Every further call returns the same
    /// error.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, SegmentError> {
        match self.state {
            State::Header | State::Extension(_) => match self.headers(input) {
                Err(error) => {
                    self.state = State::Failed(error);
                    Err(error)
                }
                item => item,
            },
            State::Payload { left } => Ok(self.payload(left, input)),
            State::Failed(error) => Err(error),
        }
    }

    /// Consumes a whole Send at the front of `input`: a message of one segment, complete in the input.
    /// Fast path for small messages, which take two calls of [`next`](Self::next). `None`, and nothing
    /// is consumed, for anything else.
    #[inline]
    pub fn whole_send<'a>(&self, input: &mut &'a [u8]) -> Option<(SegmentHeader, &'a [u8])> {
        let (headers, rest) = input.split_first_chunk::<SEGMENT_HEADER_BYTES>()?;
        if !self.is_between_segments() {
            return None;
        }
        let header = SegmentHeader::parse_whole_send(headers)?;
        let (payload, rest) = rest.split_at_checked(usize::from(header.payload_bytes()))?;
        *input = rest;
        Some((header, payload))
    }

    /// Returns the missing bytes of the current segment's payload; 0 if its headers are incomplete.
    #[inline]
    #[must_use]
    pub const fn payload_left(&self) -> u16 {
        match self.state {
            State::Payload { left } => left,
            State::Header | State::Extension(_) | State::Failed(_) => 0,
        }
    }

    /// Skips `bytes` of payload that the caller received directly into their destination. `false`,
    /// without effect, if that is more than [`payload_left`](Self::payload_left).
    #[inline]
    pub fn skip_payload(&mut self, bytes: u16) -> bool {
        match (self.state, self.payload_left().checked_sub(bytes)) {
            (State::Payload { .. }, Some(left)) => {
                self.expect_payload(left);
                true
            }
            (_, left) => left.is_some(),
        }
    }

    /// Returns the bytes that are missing for the next item, at least 1; 1 after an error. A caller
    /// that reads no more than these reads nothing beyond the headers of a segment.
    #[must_use]
    pub fn missing_bytes(&self) -> usize {
        let wanted = match self.state {
            State::Header => SEGMENT_HEADER_BYTES,
            State::Extension(header) => header.extension_bytes(),
            State::Payload { left } => return usize::from(left),
            State::Failed(_) => 1,
        };
        wanted.saturating_sub(self.header_buffer.filled).max(1)
    }

    /// Checks whether the stream is at a segment boundary: no byte of the next segment was consumed.
    #[inline]
    #[must_use]
    pub const fn is_between_segments(&self) -> bool {
        matches!(self.state, State::Header) && self.header_buffer.filled == 0
    }

    fn expect_payload(&mut self, left: u16) {
        self.state = if left == 0 {
            State::Header
        } else {
            State::Payload { left }
        };
    }

    #[inline]
    fn headers<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, SegmentError> {
        let header = match self.state {
            State::Extension(header) => header,
            _ => {
                let whole = self.header_buffer.take(SEGMENT_HEADER_BYTES, input);
                let Some(bytes) = whole.and_then(|bytes| bytes.first_chunk()) else {
                    return Ok(None);
                };
                let header = SegmentHeader::parse(bytes)?;
                self.state = State::Extension(header);
                header
            }
        };
        let Some(bytes) = self.header_buffer.take(header.extension_bytes(), input) else {
            return Ok(None);
        };
        let headers = if bytes.is_empty() {
            Headers::Plain
        } else if header.kind.is_connection() {
            Headers::Connect(CeHeader::parse(bytes)?)
        } else {
            bytes.first_chunk().map_or(Headers::Plain, |bytes| {
                Headers::Rdma(RdmaHeader::parse(bytes))
            })
        };
        let payload_bytes = header.payload_bytes();
        self.expect_payload(payload_bytes);
        Ok(Some(Item::Segment(Segment {
            header,
            headers,
            payload_bytes,
        })))
    }

    #[inline]
    fn payload<'a>(&mut self, left: u16, input: &mut &'a [u8]) -> Option<Item<'a>> {
        if input.is_empty() {
            return None;
        }
        let taken = u16::try_from(input.len()).unwrap_or(u16::MAX).min(left);
        let (bytes, rest) = input.split_at_checked(usize::from(taken))?;
        *input = rest;
        let left = left.saturating_sub(taken);
        self.expect_payload(left);
        Some(Item::Payload { bytes, left })
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The received part of an incomplete header.
#[derive(Clone, Debug)]
struct HeaderBuffer {
    bytes: [u8; HEADER_BUFFER_BYTES],
    filled: usize,
}

impl HeaderBuffer {
    /// Returns the next `wanted` bytes of the stream once they are complete, at most
    /// [`HEADER_BUFFER_BYTES`]; `wanted` must not change until then.
    #[inline]
    fn take<'b, 'a: 'b>(&'b mut self, wanted: usize, input: &mut &'a [u8]) -> Option<&'b [u8]> {
        if self.filled == 0
            && let Some((header, rest)) = input.split_at_checked(wanted)
        {
            *input = rest;
            return Some(header);
        }
        self.assemble(wanted, input)
    }

    #[cold]
    fn assemble(&mut self, wanted: usize, input: &mut &[u8]) -> Option<&[u8]> {
        let taken = wanted.saturating_sub(self.filled).min(input.len());
        let (part, rest) = input.split_at_checked(taken)?;
        let end = self.filled.saturating_add(taken);
        self.bytes.get_mut(self.filled..end)?.copy_from_slice(part);
        *input = rest;
        self.filled = end;
        if end < wanted {
            return None;
        }
        self.filled = 0;
        self.bytes.get(..wanted)
    }
}

#[cfg(test)]
mod tests;
