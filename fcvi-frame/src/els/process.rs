//! PRLI and PRLO, process login and logout, and their accepts.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x20 PRLI, 0x21 PRLO, 0x02 in the accept |
//! | 1 | 1 | bytes of a page, 16 |
//! | 2 | 2 | bytes of the payload |
//! | 4 | 16 n | one page for each protocol |
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
use crate::wire::{Reader, Writer, tiles};

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

/// What became of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResponseCode {
    /// Nothing: the page is part of a request.
    #[default]
    None,
    /// Carried out.
    Executed,
    /// No image pair with this image can be established.
    NotPossible,
    /// The service parameters are invalid, the TYPE among them.
    InvalidParameters,
    /// Any other code. One of the codes above never stands here when it was read from a frame.
    Unknown(u8),
}

impl ResponseCode {
    /// The meaning of the low half of a byte.
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

    /// The code, 0 to 15.
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

    /// The bits that both have.
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

/// What is asked or said of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceParameterPage {
    /// The protocol.
    pub fc_type: FcType,
    /// Part of the protocol's name for some.
    pub type_extension: u8,
    /// The upper half of the flags; the lower half is not written.
    pub flags: PageFlags,
    /// What became of the page, in an accept.
    pub response: ResponseCode,
    /// The originator's process associator.
    pub originator: u32,
    /// The responder's process associator.
    pub responder: u32,
    /// The protocol's own.
    pub parameters: u32,
}

impl ServiceParameterPage {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// A page for this protocol that says nothing else.
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
    /// The most pages that are read and written.
    pub const MAX_PAGES: usize = 7;

    /// Reads a request or an accept, as `command` says.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong` if there is no page or more than
    /// [`ProcessLogin::MAX_PAGES`], `Mismatch` if the lengths that it states are not its own;
    /// `ElsCommand` `Mismatch`.
    pub fn parse(command: ElsCommand, payload: &'a [u8]) -> Result<Self, ParseError> {
        const fn wrong(reason: Reason) -> ParseError {
            ParseError::new(Field::ElsPayload, reason)
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
        let stated = usize::from(header.u16::<LENGTH>());
        let page_bytes = usize::from(header.u8::<PAGE_LENGTH>());
        let whole_pages = pages.len().is_multiple_of(ServiceParameterPage::BYTES);
        if page_bytes != ServiceParameterPage::BYTES || stated != payload.len() || !whole_pages {
            return Err(wrong(Reason::Mismatch));
        }
        Ok(Self { pages })
    }

    /// The pages, at least one.
    #[must_use]
    pub fn pages(&self) -> Pages<'a> {
        Pages { rest: self.pages }
    }

    /// Writes a request or an accept with these pages, of which it takes the first
    /// [`ProcessLogin::MAX_PAGES`]. Returns the bytes that it has.
    pub fn emit(
        command: ElsCommand,
        pages: impl Iterator<Item = ServiceParameterPage>,
        out: &mut [u8; MAX_PAYLOAD_BYTES],
    ) -> usize {
        let mut bytes = HEADER_BYTES;
        let (header, places) = out.split_at_mut(HEADER_BYTES);
        let (places, _) = places.as_chunks_mut::<{ ServiceParameterPage::BYTES }>();
        for (place, page) in places.iter_mut().zip(pages) {
            page.write(place);
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

/// The pages of a [`ProcessLogin`], one after the other.
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
