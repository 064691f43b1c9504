//! Segments out of a stream of bytes [VI/TCP 3].
//!
//! TCP keeps no boundaries: a segment may come in any number of pieces. The decoder keeps
//! what it needs of the headers and nothing of the payload, which it hands on as it comes.
//!
//! ```text
//!            24 bytes            the header behind it
//!  Header ------------> Behind ------------------------> Payload
//!    ^                    | no payload                      | its last byte
//!    +--------------------+---------------------------------+
//! ```
//!
//! A header that lies whole in the input is read where it is; one that was cut is put
//! together in the carry.

use crate::ce::CeHeader;
use crate::error::SegmentError;
use crate::profile::{MAX_HEADERS_BYTES, SEGMENT_HEADER_BYTES};
use crate::rdma::RdmaHeader;
use crate::segment::SegmentHeader;

/// Segment header and what is behind it are carried one after the other.
const CARRY_BYTES: usize = MAX_HEADERS_BYTES - SEGMENT_HEADER_BYTES;
const _: () = assert!(CARRY_BYTES >= SEGMENT_HEADER_BYTES);

/// What stands behind the segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing here allocates, and a CE header comes once a connection"
)]
pub enum Headers {
    /// Nothing: Send, NOP, Connect No Match, Connect Reject that is no challenge.
    Plain,
    /// RDMA Read Request, RDMA Read Response, RDMA Write.
    Rdma(RdmaHeader),
    /// Connect Request, Connect Accept, Connect Reject that is a challenge.
    Connect(CeHeader),
}

/// A segment up to its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its segment header.
    pub header: SegmentHeader,
    /// What stands behind it.
    pub headers: Headers,
    /// Bytes of payload that follow.
    pub payload_bytes: u16,
}

/// What the decoder found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing here allocates, and a CE header comes once a connection"
)]
pub enum Item<'a> {
    /// The headers of a segment are complete.
    Segment(Segment),
    /// The next bytes of the payload of the segment that was begun last.
    Payload {
        /// Never empty.
        bytes: &'a [u8],
        /// Bytes of the payload that are still to come behind these.
        left: u16,
    },
}

/// Where in a segment the stream is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// In the segment header, or in front of it.
    Header,
    /// In what stands behind this segment header.
    Behind(SegmentHeader),
    /// In the payload, of which so many bytes are to come; never 0.
    Payload { left: u16 },
    /// For good.
    Failed(SegmentError),
}

/// Cuts one TCP connection's incoming bytes into segments.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    carry: Carry,
}

impl Decoder {
    /// A decoder in front of the first segment.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Header,
            carry: Carry {
                bytes: [0; CARRY_BYTES],
                filled: 0,
            },
        }
    }

    /// Takes bytes off the front of `input` and says what they are. `None` if more input
    /// is needed; `input` is empty then.
    ///
    /// # Errors
    /// What is wrong with the segment, see [`SegmentHeader::parse`] and
    /// [`CeHeader::parse`]. Every further call gives the same error.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, SegmentError> {
        match self.state {
            State::Header | State::Behind(_) => match self.headers(input) {
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

    /// Takes a Send off the front of `input` that is whole: one segment, all of it there. Most
    /// small messages come so, and [`next`](Self::next) would take two calls for them. `None`,
    /// and nothing is taken, if anything else is next.
    #[inline]
    pub fn whole_send<'a>(&self, input: &mut &'a [u8]) -> Option<(SegmentHeader, &'a [u8])> {
        let (headers, behind) = input.split_first_chunk::<SEGMENT_HEADER_BYTES>()?;
        if !self.is_between_segments() {
            return None;
        }
        let header = SegmentHeader::parse_whole_send(headers)?;
        let (payload, rest) = behind.split_at_checked(usize::from(header.payload_bytes()))?;
        *input = rest;
        Some((header, payload))
    }

    /// Bytes of the current segment's payload that are still to come; 0 if its headers
    /// are not complete.
    #[inline]
    #[must_use]
    pub const fn payload_left(&self) -> u16 {
        match self.state {
            State::Payload { left } => left,
            State::Header | State::Behind(_) | State::Failed(_) => 0,
        }
    }

    /// So many bytes of the payload were received past the decoder, straight to their
    /// place. `false`, and nothing happens, if that is more than
    /// [`payload_left`](Self::payload_left).
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

    /// How many more bytes it takes until there is a next thing to say, at least 1; 1 after an
    /// error. Whoever reads no more than these reads nothing behind the headers of a segment.
    #[must_use]
    pub fn missing_bytes(&self) -> usize {
        let wanted = match self.state {
            State::Header => SEGMENT_HEADER_BYTES,
            State::Behind(header) => header.behind_bytes(),
            State::Payload { left } => return usize::from(left),
            State::Failed(_) => 1,
        };
        wanted.saturating_sub(self.carry.filled).max(1)
    }

    /// Is the stream between two segments, and nothing of a next one was taken?
    #[inline]
    #[must_use]
    pub const fn is_between_segments(&self) -> bool {
        matches!(self.state, State::Header) && self.carry.filled == 0
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
            State::Behind(header) => header,
            _ => {
                let whole = self.carry.piece(SEGMENT_HEADER_BYTES, input);
                let Some(bytes) = whole.and_then(|bytes| bytes.first_chunk()) else {
                    return Ok(None);
                };
                let header = SegmentHeader::parse(bytes)?;
                self.state = State::Behind(header);
                header
            }
        };
        let Some(bytes) = self.carry.piece(header.behind_bytes(), input) else {
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

/// The front of a header whose end has not come yet.
#[derive(Clone, Debug)]
struct Carry {
    bytes: [u8; CARRY_BYTES],
    filled: usize,
}

impl Carry {
    /// The next `wanted` bytes of the stream as soon as they are there, at most
    /// [`CARRY_BYTES`]; the same `wanted` until then.
    #[inline]
    fn piece<'b, 'a: 'b>(&'b mut self, wanted: usize, input: &mut &'a [u8]) -> Option<&'b [u8]> {
        if self.filled == 0
            && let Some((piece, rest)) = input.split_at_checked(wanted)
        {
            *input = rest;
            return Some(piece);
        }
        self.put_together(wanted, input)
    }

    #[cold]
    fn put_together(&mut self, wanted: usize, input: &mut &[u8]) -> Option<&[u8]> {
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
