//! Whole frames, from the destination address to the last reserved byte.
//!
//! | Offset | Bytes | Part |
//! | --- | --- | --- |
//! | 0 | 14 | Ethernet header (18 when it was received with a tag) |
//! | 14 | 14 | FCoE header |
//! | 28 | 24 | FC header |
//! | 52 | 0 to 2112 | data field: device_header, payload, fill |
//! | 52 + n | 8 | FCoE trailer |
//!
//! Parsing: [`FrameView`] and [`IuView`]. Emitting: whole frames by [`FrameToEmit`] or
//! [`FrameHeader::emit_frame`]; or a header by [`FrameHeader::emit`], payload and fill by the
//! caller, then [`seal`].

#[expect(
    unsafe_code,
    reason = "writes each byte of a frame once, in a certain order"
)]
mod emit;
mod template;

pub(crate) use emit::emit_frame_at;
pub use emit::{FrameToEmit, Payload};
pub use template::{HeaderTemplate, PerFrame};

use crate::crc::fc_crc;
use crate::device_header::{self, DeviceHeader};
use crate::error::{EmitError, Field, ParseError, Reason};
use crate::ethernet::{self, ETHERTYPE_FCOE, EthernetHeader, MacAddress};
use crate::fc::{FCtl, FcHeader, FcType};
use crate::fcoe::{
    Eof, FCOE_HEADER_BYTES, FCOE_TRAILER_BYTES, FcoeHeader, FcoeTrailer, MAX_DATA_FIELD_BYTES,
    MAX_FRAME_BYTES, MIN_FRAME_BYTES, Sof,
};
use crate::profile;
use vi_types::fields::{Reader, Writer, tiles};

const ETHERNET: usize = 0;
const FCOE: usize = 14;
const FC: usize = 28;
const DEVICE: usize = 52;

/// Bytes of the longest header: up to and including a device_header of 32 bytes.
pub const MAX_HEADER_BYTES: usize = 84;

const _: () = assert!(tiles(
    &[
        (ETHERNET, ethernet::HEADER_BYTES),
        (FCOE, FCOE_HEADER_BYTES),
        (FC, FcHeader::BYTES),
        (DEVICE, device_header::LONG_BYTES),
    ],
    MAX_HEADER_BYTES
));

/// A received frame that passed all stateless checks.
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    /// Its Ethernet header.
    pub ethernet: EthernetHeader,
    /// Start of frame: `I3` or `N3`.
    pub sof: Sof,
    /// End of frame: `N` or `T`.
    pub eof: Eof,
    /// Its FC header.
    pub fc: FcHeader,
    data_field: &'a [u8],
}

impl<'a> FrameView<'a> {
    /// Reads a frame, from the destination address to the last byte before the
    /// Ethernet FCS. FCoE has no length field: `bytes` must have exactly the
    /// length of the frame.
    ///
    /// # Errors
    /// The first invalid field; `Crc` `BadCrc` if all fields before it are valid.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_with(bytes, |covered, crc| fc_crc(covered) == crc)
    }

    /// As [`FrameView::parse`], but does not check the CRC: for diagnostics of damaged frames.
    ///
    /// # Errors
    /// As for [`FrameView::parse`] but `BadCrc`.
    #[cold]
    pub fn parse_damaged(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_with(bytes, |_, _| true)
    }

    #[inline(always)]
    fn parse_with(
        bytes: &'a [u8],
        is_crc_of: impl FnOnce(&[u8], u32) -> bool,
    ) -> Result<Self, ParseError> {
        const TOO_SHORT: ParseError = ParseError::new(Field::Frame, Reason::TooShort);
        let (ethernet, ethernet_bytes) = EthernetHeader::parse(bytes)?;
        if ethernet.ethertype != ETHERTYPE_FCOE {
            return Err(ParseError::new(Field::EtherType, Reason::Unknown));
        }
        let pdu = bytes.get(ethernet_bytes..).ok_or(TOO_SHORT)?;
        let (fcoe, rest) = pdu
            .split_first_chunk::<FCOE_HEADER_BYTES>()
            .ok_or(TOO_SHORT)?;
        let (covered, trailer) = rest
            .split_last_chunk::<FCOE_TRAILER_BYTES>()
            .ok_or(TOO_SHORT)?;
        let (fc, data_field) = covered
            .split_first_chunk::<{ FcHeader::BYTES }>()
            .ok_or(TOO_SHORT)?;
        if data_field.len() > MAX_DATA_FIELD_BYTES {
            return Err(ParseError::new(Field::Frame, Reason::TooLong));
        }
        if data_field.len() & 3 != 0 {
            return Err(ParseError::new(Field::Frame, Reason::NotMultipleOf4));
        }
        let FcoeHeader { sof } = FcoeHeader::parse(fcoe)?;
        if !matches!(sof, Sof::I3 | Sof::N3) {
            return Err(ParseError::new(Field::Sof, Reason::Unknown));
        }
        let FcoeTrailer { crc, eof } = FcoeTrailer::parse(trailer);
        if !matches!(eof, Eof::N | Eof::T) {
            return Err(ParseError::new(Field::Eof, Reason::Unknown));
        }
        if !is_crc_of(covered, crc) {
            return Err(ParseError::new(Field::Crc, Reason::BadCrc));
        }
        let fc = FcHeader::parse(fc);
        Ok(Self {
            ethernet,
            sof,
            eof,
            data_field: without_fill(fc.f_ctl, data_field)?,
            fc,
        })
    }

    /// Returns the data field without its fill.
    #[inline]
    #[must_use]
    pub fn data_field(&self) -> &'a [u8] {
        self.data_field
    }

    /// Reads the frame as part of an FC-VI IU, whose opcode determines R_CTL and
    /// DF_CTL.
    ///
    /// # Errors
    /// `FcType` `Unknown`; those of [`DeviceHeader::parse`]; `DfCtl` or `RCtl`
    /// `Mismatch`.
    #[inline]
    pub fn iu(&self) -> Result<IuView<'a>, ParseError> {
        if self.fc.fc_type != FcType::Vi {
            return Err(ParseError::new(Field::FcType, Reason::Unknown));
        }
        let (header, header_bytes) = DeviceHeader::parse(self.data_field)?;
        if self.fc.df_ctl != profile::df_ctl(header_bytes) {
            return Err(ParseError::new(Field::DfCtl, Reason::Mismatch));
        }
        if self.fc.r_ctl != header.opcode.r_ctl() {
            return Err(ParseError::new(Field::RCtl, Reason::Mismatch));
        }
        let payload = self
            .data_field
            .get(header_bytes..)
            .ok_or(ParseError::new(Field::DeviceHeader, Reason::TooShort))?;
        Ok(IuView { header, payload })
    }
}

/// Removes the fill bytes. Only the last frame of a sequence may have fill, at most its data field.
#[inline]
pub(crate) fn without_fill(f_ctl: FCtl, data_field: &[u8]) -> Result<&[u8], ParseError> {
    let fill_bytes = f_ctl.fill_bytes();
    if fill_bytes == 0 {
        return Ok(data_field);
    }
    if !f_ctl.contains(FCtl::END_SEQUENCE) {
        return Err(ParseError::new(Field::FillBytes, Reason::Mismatch));
    }
    data_field
        .len()
        .checked_sub(fill_bytes)
        .and_then(|data_bytes| data_field.get(..data_bytes))
        .ok_or(ParseError::new(Field::FillBytes, Reason::TooLong))
}

/// The FC-VI part of a frame.
#[derive(Clone, Copy, Debug)]
pub struct IuView<'a> {
    /// Its device_header.
    pub header: DeviceHeader,
    /// The payload, without fill.
    pub payload: &'a [u8],
}

/// All headers of an untagged frame to be sent.
///
/// Written as given: the caller ensures that DF_CTL and R_CTL match the
/// device_header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// Destination.
    pub dst: MacAddress,
    /// Source.
    pub src: MacAddress,
    /// Start of frame.
    pub sof: Sof,
    /// FC header.
    pub fc: FcHeader,
    /// device_header; `None` for frames of other types.
    pub device: Option<DeviceHeader>,
}

impl FrameHeader {
    /// Returns the number of bytes that [`FrameHeader::emit`] writes: 52, 68 or 84.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.device {
            None => DEVICE,
            Some(device) => match device.opcode.header_bytes() {
                device_header::SHORT_BYTES => template::SHORT,
                _ => template::LONG,
            },
        }
    }

    /// Writes the header to the front of `out` and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        HeaderTemplate::new(self).emit(&PerFrame::of(self), out)
    }

    /// Returns the header, followed by zeros if it is not the longest.
    #[inline]
    fn image(&self) -> [u8; MAX_HEADER_BYTES] {
        let mut ethernet = [0; ethernet::HEADER_BYTES];
        EthernetHeader {
            dst: self.dst,
            src: self.src,
            vlan_tci: None,
            ethertype: ETHERTYPE_FCOE,
        }
        .emit_untagged(&mut ethernet);
        let mut fcoe = [0; FCOE_HEADER_BYTES];
        FcoeHeader { sof: self.sof }.emit(&mut fcoe);
        let mut fc = [0; FcHeader::BYTES];
        self.fc.emit(&mut fc);
        let device = self
            .device
            .map_or([0; device_header::LONG_BYTES], |d| d.image());

        let mut image = [0; MAX_HEADER_BYTES];
        let mut out = Writer(&mut image);
        out.array::<ETHERNET, { ethernet::HEADER_BYTES }>(ethernet);
        out.array::<FCOE, FCOE_HEADER_BYTES>(fcoe);
        out.array::<FC, { FcHeader::BYTES }>(fc);
        out.array::<DEVICE, { device_header::LONG_BYTES }>(device);
        image
    }
}

/// Completes an untagged frame at the front of `buf`: computes the CRC and writes it,
/// `eof` and three zeros into the last eight bytes. `frame_bytes` is the length of
/// header, payload, fill and trailer.
///
/// # Errors
/// [`EmitError::FrameLength`] unless the length is a multiple of 4 from 60 to 2172;
/// [`EmitError::BufferTooShort`].
#[inline]
pub fn seal(buf: &mut [u8], frame_bytes: usize, eof: Eof) -> Result<(), EmitError> {
    if !(MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&frame_bytes) || frame_bytes & 3 != 0 {
        return Err(EmitError::FrameLength { frame_bytes });
    }
    let too_short = EmitError::BufferTooShort {
        needed_bytes: frame_bytes,
    };
    let frame = buf.get_mut(..frame_bytes).ok_or(too_short)?;
    let (body, trailer) = frame
        .split_last_chunk_mut::<FCOE_TRAILER_BYTES>()
        .ok_or(too_short)?;
    let covered = body.get(FC..).ok_or(too_short)?;
    let crc = fc_crc(covered);
    FcoeTrailer { crc, eof }.emit(trailer);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
