//! FIP link services: a login or logout as an FC frame inside a descriptor, without SOF, CRC and EOF.
//!
//! | Offset | Bytes | Part of an untagged frame |
//! | --- | --- | --- |
//! | 0 | 24 | Ethernet and FIP headers; subcode 1 for a request, 2 for a reply |
//! | 24 | 4 | type, length and reserved bytes of the FLOGI, FDISC, LOGO or ELP descriptor |
//! | 28 | 24 | FC header |
//! | 52 | n | ELS payload, a multiple of 4 bytes |
//! | 52 + n | 8 | MAC address: that of the sender's VN_Port; an LS_RJT has none |

use super::descriptor::{self, DescriptorType, FRAME_PREFIX_BYTES, MAC_BYTES};
use super::{
    FipFlags, FipOpcode, FipView, HEADERS_BYTES, MISSING, OTHER_OPERATION, WORD_BYTES, headers,
    set_once,
};
use crate::els::ElsCommand;
use crate::error::{EmitError, Field, ParseError, Reason};
use crate::ethernet::MacAddress;
use crate::fc::{FcHeader, FcType, RCtl};
use crate::frame::without_fill;

const PAYLOAD: usize = HEADERS_BYTES + FRAME_PREFIX_BYTES + FcHeader::BYTES;
/// Bytes of the longest payload in a descriptor of 255 words.
const MAX_PAYLOAD_BYTES: usize = 255 * WORD_BYTES - FRAME_PREFIX_BYTES - FcHeader::BYTES;

/// Kind of a link service; the same for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkServiceKind {
    /// Fabric login, in VN2VN the login with a neighbour.
    Flogi,
    /// Login of a further port.
    Fdisc,
    /// Logout.
    Logo,
    /// Exchange of link parameters between switches.
    Elp,
}

impl LinkServiceKind {
    const fn from_descriptor(kind: DescriptorType) -> Option<Self> {
        match kind {
            DescriptorType::Flogi => Some(Self::Flogi),
            DescriptorType::Fdisc => Some(Self::Fdisc),
            DescriptorType::Logo => Some(Self::Logo),
            DescriptorType::Elp => Some(Self::Elp),
            _ => None,
        }
    }

    const fn descriptor(self) -> DescriptorType {
        match self {
            Self::Flogi => DescriptorType::Flogi,
            Self::Fdisc => DescriptorType::Fdisc,
            Self::Logo => DescriptorType::Logo,
            Self::Elp => DescriptorType::Elp,
        }
    }
}

/// A login or logout, or the reply to one, carried by FIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkService<'a> {
    /// The kind of service.
    pub kind: LinkServiceKind,
    /// True for a reply; consistent with R_CTL.
    pub is_reply: bool,
    /// The FC header of the contained frame.
    pub fc: FcHeader,
    /// Its ELS payload.
    pub payload: &'a [u8],
    /// The MAC address of the sender's VN_Port; `None` only in an LS_RJT.
    pub vn_port_mac: Option<MacAddress>,
}

impl<'a> FipView<'a> {
    /// Reads the frame as a link service.
    ///
    /// # Errors
    /// `FipOperation` `Unknown`; `FipDescriptor` with `TooShort` or `TooLong` (its length), `Unknown`,
    /// `Mismatch` (not allowed in this frame), `Repeated` or `Missing`; of the contained frame
    /// `FcType` `Unknown`, `RCtl` `Mismatch`, `FillBytes`, or `ElsPayload` `TooShort`.
    pub fn link_service(&self) -> Result<LinkService<'a>, ParseError> {
        if self.opcode != FipOpcode::LinkService || !matches!(self.subcode, 1 | 2) {
            return Err(OTHER_OPERATION);
        }
        let is_reply = self.subcode == 2;
        let (mut frame, mut vn_port_mac) = (None, None);
        for descriptor in self.descriptors() {
            let descriptor = descriptor?;
            match LinkServiceKind::from_descriptor(descriptor.kind) {
                Some(kind) => set_once(&mut frame, (kind, descriptor.fc_frame()?))?,
                None if descriptor.kind == DescriptorType::MacAddress => {
                    set_once(&mut vn_port_mac, descriptor.mac_address()?)?;
                }
                None => descriptor.kind.reject_if_critical()?,
            }
        }
        let (kind, frame) = frame.ok_or(MISSING)?;
        let (fc, payload) = frame
            .split_first_chunk::<{ FcHeader::BYTES }>()
            .ok_or(ParseError::new(Field::FipDescriptor, Reason::TooShort))?;
        let fc = FcHeader::parse(fc);
        if fc.fc_type != FcType::Els {
            return Err(ParseError::new(Field::FcType, Reason::Unknown));
        }
        let r_ctl = if is_reply {
            RCtl::ElsReply
        } else {
            RCtl::ElsRequest
        };
        if fc.r_ctl != r_ctl {
            return Err(ParseError::new(Field::RCtl, Reason::Mismatch));
        }
        let payload = without_fill(fc.f_ctl, payload)?;
        let command = ElsCommand::parse(payload)?;
        if vn_port_mac.is_none() && command != ElsCommand::LsRjt {
            return Err(MISSING);
        }
        Ok(LinkService {
            kind,
            is_reply,
            fc,
            payload,
            vn_port_mac,
        })
    }
}

impl LinkService<'_> {
    /// Returns the length of the untagged frame in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let mac_bytes = match self.vn_port_mac {
            None => 0,
            Some(_) => MAC_BYTES,
        };
        PAYLOAD
            .saturating_add(self.payload.len())
            .saturating_add(mac_bytes)
    }

    /// Writes the untagged frame to the front of `out` and returns its length. Source and
    /// destination are the addresses of the two interfaces.
    ///
    /// # Errors
    /// [`EmitError::FrameLength`] unless the payload has 4 to 992 bytes, a multiple of 4;
    /// [`EmitError::BufferTooShort`].
    pub fn emit(
        &self,
        dst: MacAddress,
        src: MacAddress,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        let frame_bytes = self.bytes();
        let payload_bytes = self.payload.len();
        if !(WORD_BYTES..=MAX_PAYLOAD_BYTES).contains(&payload_bytes)
            || !payload_bytes.is_multiple_of(WORD_BYTES)
        {
            return Err(EmitError::FrameLength { frame_bytes });
        }
        let too_short = EmitError::BufferTooShort {
            needed_bytes: frame_bytes,
        };
        let words = |bytes: usize| bytes / WORD_BYTES;
        let list_words = words(frame_bytes.saturating_sub(HEADERS_BYTES)) as u16;
        let fixed_bytes = FRAME_PREFIX_BYTES + FcHeader::BYTES;
        let frame_words = words(fixed_bytes.saturating_add(payload_bytes)) as u8;
        let subcode = if self.is_reply { 2 } else { 1 };
        let headers = headers(
            (dst, src),
            FipOpcode::LinkService,
            subcode,
            list_words,
            FipFlags::default(),
        );
        let mut fc = [0; FcHeader::BYTES];
        self.fc.emit(&mut fc);
        let mac = self.vn_port_mac.map(descriptor::emit_mac);
        let mut rest = out.get_mut(..frame_bytes).ok_or(too_short)?;
        for part in [
            &headers[..],
            &descriptor::emit_frame_prefix(self.kind.descriptor(), frame_words),
            &fc,
            self.payload,
            mac.as_ref().map_or(&[], |mac| &mac[..]),
        ] {
            let (target, tail) = rest.split_at_mut_checked(part.len()).ok_or(too_short)?;
            target.copy_from_slice(part);
            rest = tail;
        }
        Ok(frame_bytes)
    }
}
