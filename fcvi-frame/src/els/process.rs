//! PRLI and PRLO, process login and logout, and their accepts.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x20 PRLI, 0x21 PRLO, 0x02 in the accept |
//! | 1 | 1 | bytes of a page, 16 |
//! | 2 | 2 | bytes of the payload |
//! | 4 | 16 n | one page per protocol |
//!
//! A page:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | TYPE |
//! | 1 | 1 | TYPE extension |
//! | 2 | 1 | flags; response code in the low half |
//! | 3 | 1 | reserved |
//! | 4 | 8 | originator's and responder's process associator |
//! | 12 | 4 | service parameters |

use super::{ElsCommand, MAX_PAYLOAD_BYTES};
use crate::error::{Field, ParseError, Reason};
use crate::fc::FcType;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const PAGE_LENGTH: usize = 1;
const LENGTH: usize = 2;
const HEADER_BYTES: usize = 4;

const TYPE: usize = 0;
const TYPE_EXTENSION: usize = 1;
const FLAGS: usize = 2;
const RESERVED: usize = 3;
const ORIGINATOR: usize = 4;
const RESPONDER: usize = 8;
const PARAMETERS: usize = 12;

const _: () = assert!(tiles(
    &[(COMMAND, 1), (PAGE_LENGTH, 1), (LENGTH, 2)],
    HEADER_BYTES
));
const _: () = assert!(tiles(
    &[
        (TYPE, 1),
        (TYPE_EXTENSION, 1),
        (FLAGS, 1),
        (RESERVED, 1),
        (ORIGINATOR, 4),
        (RESPONDER, 4),
        (PARAMETERS, 4),
    ],
    ServiceParameterPage::BYTES
));
const _: () = assert!(
    HEADER_BYTES + ProcessLogin::MAX_PAGES * ServiceParameterPage::BYTES == MAX_PAYLOAD_BYTES
);

/// Response to one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResponseCode {
    /// None: the page is part of a request.
    #[default]
    None,
    /// Request executed.
    Executed,
    /// No image pair with this image can be established.
    NotPossible,
    /// The service parameters are invalid, the TYPE among them.
    InvalidParameters,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl ResponseCode {
    /// Converts the low half of a byte on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw & 0x0F {
            0 => Self::None,
            1 => Self::Executed,
            5 => Self::NotPossible,
            8 => Self::InvalidParameters,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire, 0 to 15.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Executed => 1,
            Self::NotPossible => 5,
            Self::InvalidParameters => 8,
            Self::Unknown(other) => other & 0x0F,
        }
    }
}

/// The upper half of a page's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageFlags(pub u8);

impl PageFlags {
    /// The originator's process associator is valid.
    pub const ORIGINATOR_VALID: Self = Self(0x80);
    /// The responder's process associator is valid.
    pub const RESPONDER_VALID: Self = Self(0x40);
    /// An image pair is to be established, or was.
    pub const IMAGE_PAIR: Self = Self(0x20);

    /// Returns the bits that are set in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A page of a process login, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceParameterPage {
    /// The protocol.
    pub fc_type: FcType,
    /// Type extension, used by some protocols.
    pub type_extension: u8,
    /// The upper half of the flags; the lower half is not written.
    pub flags: PageFlags,
    /// The response code, in an accept.
    pub response: ResponseCode,
    /// The originator's process associator.
    pub originator: u32,
    /// The responder's process associator.
    pub responder: u32,
    /// Protocol-specific service parameters.
    pub parameters: u32,
}

impl ServiceParameterPage {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// Creates a page for this protocol, with all other fields 0.
    #[must_use]
    pub const fn new(fc_type: FcType) -> Self {
        Self {
            fc_type,
            type_extension: 0,
            flags: PageFlags(0),
            response: ResponseCode::None,
            originator: 0,
            responder: 0,
            parameters: 0,
        }
    }

    fn read(bytes: &[u8; 16]) -> Self {
        let bytes = Reader(bytes);
        let flags = bytes.u8::<FLAGS>();
        Self {
            fc_type: FcType::from_raw(bytes.u8::<TYPE>()),
            type_extension: bytes.u8::<TYPE_EXTENSION>(),
            flags: PageFlags(flags & 0xF0),
            response: ResponseCode::from_raw(flags),
            originator: bytes.u32::<ORIGINATOR>(),
            responder: bytes.u32::<RESPONDER>(),
            parameters: bytes.u32::<PARAMETERS>(),
        }
    }

    fn write(&self, out: &mut [u8; 16]) {
        let mut out = Writer(out);
        out.u8::<TYPE>(self.fc_type.raw());
        out.u8::<TYPE_EXTENSION>(self.type_extension);
        out.u8::<FLAGS>((self.flags.0 & 0xF0) | self.response.raw());
        out.u8::<RESERVED>(0);
        out.u32::<ORIGINATOR>(self.originator);
        out.u32::<RESPONDER>(self.responder);
        out.u32::<PARAMETERS>(self.parameters);
    }
}

/// A PRLI, a PRLO, or the accept of one.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLogin<'a> {
    pages: &'a [u8],
}

impl<'a> ProcessLogin<'a> {
    /// Maximum number of supported pages.
    pub const MAX_PAGES: usize = 7;

    /// Reads a request or an accept, according to `command`.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong` if there is no page or more than
    /// [`ProcessLogin::MAX_PAGES`], `Mismatch` if its length fields are wrong;
    /// `ElsCommand` `Mismatch`.
    pub fn parse(command: ElsCommand, payload: &'a [u8]) -> Result<Self, ParseError> {
        const fn wrong(reason: Reason) -> ParseError {
            ParseError::new(Field::Payload, reason)
        }
        if ElsCommand::parse(payload)? != command {
            return Err(ParseError::new(Field::ElsCommand, Reason::Mismatch));
        }
        let Some((header, pages)) = payload.split_first_chunk::<HEADER_BYTES>() else {
            return Err(wrong(Reason::TooShort));
        };
        let header = Reader(header);
        if pages.is_empty() {
            return Err(wrong(Reason::TooShort));
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(wrong(Reason::TooLong));
        }
        let payload_bytes = usize::from(header.u16::<LENGTH>());
        let page_bytes = usize::from(header.u8::<PAGE_LENGTH>());
        let whole_pages = pages.len().is_multiple_of(ServiceParameterPage::BYTES);
        if page_bytes != ServiceParameterPage::BYTES
            || payload_bytes != payload.len()
            || !whole_pages
        {
            return Err(wrong(Reason::Mismatch));
        }
        Ok(Self { pages })
    }

    /// Returns the pages, at least one.
    #[must_use]
    pub fn pages(&self) -> Pages<'a> {
        Pages { rest: self.pages }
    }

    /// Writes a request or an accept with these pages, at most the first
    /// [`ProcessLogin::MAX_PAGES`]. Returns its length in bytes.
    pub fn emit(
        command: ElsCommand,
        pages: impl Iterator<Item = ServiceParameterPage>,
        out: &mut [u8; MAX_PAYLOAD_BYTES],
    ) -> usize {
        let mut bytes = HEADER_BYTES;
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        let (chunks, _) = body.as_chunks_mut::<{ ServiceParameterPage::BYTES }>();
        for (chunk, page) in chunks.iter_mut().zip(pages) {
            page.write(chunk);
            bytes = bytes.saturating_add(ServiceParameterPage::BYTES);
        }
        if let Some(header) = header.first_chunk_mut::<HEADER_BYTES>() {
            let mut header = Writer(header);
            header.u8::<COMMAND>(command.raw());
            header.u8::<PAGE_LENGTH>(ServiceParameterPage::BYTES as u8);
            header.u16::<LENGTH>(bytes as u16);
        }
        bytes
    }
}

/// Iterator over the pages of a [`ProcessLogin`].
#[derive(Clone, Debug)]
pub struct Pages<'a> {
    rest: &'a [u8],
}

impl Iterator for Pages<'_> {
    type Item = ServiceParameterPage;

    fn next(&mut self) -> Option<ServiceParameterPage> {
        let (page, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(ServiceParameterPage::read(page))
    }
}
