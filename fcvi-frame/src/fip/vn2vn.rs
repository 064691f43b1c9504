//! FIP VN2VN: N_Port_ID assignment and discovery between ports of a link without a switch.
//!
//! | Subcode | Frame | Descriptors, in this order |
//! | --- | --- | --- |
//! | 1 | probe request | MAC address, name, VN_Port ID |
//! | 2 | probe reply | the same |
//! | 3 | claim notification | the same, FC-4 attributes, maximum FCoE size |
//! | 4 | claim response | those of the notification, then padding |
//! | 5 | beacon | those of the probe |
//!
//! An untagged frame has 64 bytes, a claim 232 and its padding:
//!
//! | Offset | Bytes | Part |
//! | --- | --- | --- |
//! | 0 | 24 | Ethernet and FIP headers |
//! | 24 | 8 | MAC address: the ENode's |
//! | 32 | 12 | name: the node's |
//! | 44 | 20 | VN_Port ID |
//! | 64 | 164 | FC-4 attributes |
//! | 228 | 4 | maximum FCoE size |

use core::fmt;

use super::descriptor::{
    self, DescriptorType, FC4_BYTES, ID_BYTES, MAC_BYTES, NAME_BYTES, SIZE_BYTES, VnPortId,
};
use super::fc4::Fc4Attributes;
use super::{
    FipFlags, FipOpcode, FipView, HEADERS_BYTES, MISSING, OTHER_OPERATION, headers, set_once,
};
use crate::error::{EmitError, ParseError};
use crate::ethernet::MacAddress;
use vi_types::fields::{Writer, tiles};

const HEADERS: usize = 0;
const MAC: usize = 24;
const NAME: usize = 32;
const ID: usize = 44;
const SHORT_BYTES: usize = 64;

const FC4: usize = 0;
const SIZE: usize = 164;
const CLAIM_BYTES: usize = 168;

const SHORT_WORDS: u16 = 10;
const CLAIM_WORDS: u16 = 52;

const _: () = assert!(tiles(
    &[
        (HEADERS, HEADERS_BYTES),
        (MAC, MAC_BYTES),
        (NAME, NAME_BYTES),
        (ID, ID_BYTES),
    ],
    SHORT_BYTES
));
const _: () = assert!(tiles(&[(FC4, FC4_BYTES), (SIZE, SIZE_BYTES)], CLAIM_BYTES));
const _: () = assert!(
    HEADERS_BYTES + 4 * SHORT_WORDS as usize == SHORT_BYTES
        && HEADERS_BYTES + 4 * CLAIM_WORDS as usize == SHORT_BYTES + CLAIM_BYTES
);

/// The sender of a VN2VN frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VnPort {
    /// The address of its interface, to which FIP frames go.
    pub enode_mac: MacAddress,
    /// Its Node_Name.
    pub node_name: u64,
    /// Its VN_Port: MAC address, N_Port_ID and Port_Name.
    pub id: VnPortId,
}

/// Additional content of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The protocols that the port supports.
    pub fc4: Fc4Attributes,
    /// The largest FCoE PDU that the port accepts: the Ethernet payload, in bytes.
    pub max_fcoe_bytes: u16,
}

/// Message of a VN2VN frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vn2vnMessage {
    /// The sender requests this N_Port_ID.
    ProbeRequest,
    /// The sender has this N_Port_ID, or requests it with higher precedence.
    ProbeReply,
    /// The sender has claimed this N_Port_ID.
    ClaimNotification(Claim),
    /// Response to the claim of another port; the sender has this N_Port_ID.
    ClaimResponse(Claim),
    /// The sender is still active.
    Beacon,
}

impl Vn2vnMessage {
    /// Returns the subcode.
    #[must_use]
    pub const fn subcode(&self) -> u8 {
        match self {
            Self::ProbeRequest => 1,
            Self::ProbeReply => 2,
            Self::ClaimNotification(_) => 3,
            Self::ClaimResponse(_) => 4,
            Self::Beacon => 5,
        }
    }

    /// Returns the content of a claim; `None` for other messages.
    #[must_use]
    pub const fn claim(&self) -> Option<&Claim> {
        match self {
            Self::ClaimNotification(claim) | Self::ClaimResponse(claim) => Some(claim),
            Self::ProbeRequest | Self::ProbeReply | Self::Beacon => None,
        }
    }
}

/// A VN2VN frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vn2vnFrame {
    /// REC: the N_Port_ID is one that the sender had recorded.
    pub recorded: bool,
    /// The sender.
    pub port: VnPort,
    /// The message.
    pub message: Vn2vnMessage,
}

impl FipView<'_> {
    /// Reads the frame as a VN2VN frame. All descriptors of its subcode must be present once, in any
    /// order; unknown descriptors that are not critical are skipped.
    ///
    /// # Errors
    /// `FipOperation` `Unknown`; `FipDescriptor` with `TooShort` or `TooLong` (its length), `Unknown`,
    /// `Mismatch` (not allowed in this frame), `Repeated` or `Missing`.
    pub fn vn2vn(&self) -> Result<Vn2vnFrame, ParseError> {
        if self.opcode != FipOpcode::Vn2vn || !matches!(self.subcode, 1..=5) {
            return Err(OTHER_OPERATION);
        }
        let is_claim = matches!(self.subcode, 3 | 4);
        let (mut enode_mac, mut node_name, mut id) = (None, None, None);
        let (mut fc4, mut max_fcoe_bytes) = (None, None);
        for descriptor in self.descriptors() {
            let descriptor = descriptor?;
            match descriptor.kind {
                DescriptorType::MacAddress => set_once(&mut enode_mac, descriptor.mac_address()?)?,
                DescriptorType::Name => set_once(&mut node_name, descriptor.name()?)?,
                DescriptorType::VnPortId => set_once(&mut id, descriptor.vn_port_id()?)?,
                DescriptorType::Fc4Attributes if is_claim => {
                    set_once(&mut fc4, descriptor.fc4_attributes()?)?;
                }
                DescriptorType::MaxFcoeSize if is_claim => {
                    set_once(&mut max_fcoe_bytes, descriptor.max_fcoe_bytes()?)?;
                }
                other => other.reject_if_critical()?,
            }
        }
        let claim = || -> Result<Claim, ParseError> {
            Ok(Claim {
                fc4: fc4.ok_or(MISSING)?,
                max_fcoe_bytes: max_fcoe_bytes.ok_or(MISSING)?,
            })
        };
        Ok(Vn2vnFrame {
            recorded: self.flags.contains(FipFlags::RECORDED),
            port: VnPort {
                enode_mac: enode_mac.ok_or(MISSING)?,
                node_name: node_name.ok_or(MISSING)?,
                id: id.ok_or(MISSING)?,
            },
            message: match self.subcode {
                1 => Vn2vnMessage::ProbeRequest,
                2 => Vn2vnMessage::ProbeReply,
                3 => Vn2vnMessage::ClaimNotification(claim()?),
                4 => Vn2vnMessage::ClaimResponse(claim()?),
                _ => Vn2vnMessage::Beacon,
            },
        })
    }
}

impl Vn2vnFrame {
    /// Bytes of the longest untagged frame without padding.
    pub const MAX_BYTES: usize = SHORT_BYTES + CLAIM_BYTES;

    /// Returns the length of the untagged frame without padding: 64 or 232 bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self.message.claim() {
            None => SHORT_BYTES,
            Some(_) => Self::MAX_BYTES,
        }
    }

    /// Returns the source address of the frame: the VN_Port's for a beacon, else the ENode's.
    #[must_use]
    pub const fn src(&self) -> MacAddress {
        match self.message {
            Vn2vnMessage::Beacon => self.port.id.mac,
            Vn2vnMessage::ProbeRequest
            | Vn2vnMessage::ProbeReply
            | Vn2vnMessage::ClaimNotification(_)
            | Vn2vnMessage::ClaimResponse(_) => self.port.enode_mac,
        }
    }

    /// Writes the untagged frame to the front of `out`, with zeros behind it up to
    /// `min_frame_bytes`, and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn emit(
        &self,
        dst: MacAddress,
        min_frame_bytes: usize,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        let frame_bytes = self.bytes().max(min_frame_bytes);
        let too_short = EmitError::BufferTooShort {
            needed_bytes: frame_bytes,
        };
        let frame = out.get_mut(..frame_bytes).ok_or(too_short)?;
        let (short, rest) = frame
            .split_first_chunk_mut::<SHORT_BYTES>()
            .ok_or(too_short)?;
        self.emit_short(dst, short);
        let padding = match self.message.claim() {
            None => rest,
            Some(claim) => {
                let (bytes, padding) = rest
                    .split_first_chunk_mut::<CLAIM_BYTES>()
                    .ok_or(too_short)?;
                let mut out = Writer(bytes);
                let fc4 = descriptor::emit_fc4_attributes(&claim.fc4);
                out.array::<FC4, FC4_BYTES>(fc4);
                let size = descriptor::emit_max_fcoe_bytes(claim.max_fcoe_bytes);
                out.array::<SIZE, SIZE_BYTES>(size);
                padding
            }
        };
        padding.fill(0);
        Ok(frame_bytes)
    }

    fn emit_short(&self, dst: MacAddress, out: &mut [u8; SHORT_BYTES]) {
        let words = match self.message.claim() {
            None => SHORT_WORDS,
            Some(_) => CLAIM_WORDS,
        };
        let flags = if self.recorded {
            FipFlags::RECORDED
        } else {
            FipFlags::default()
        };
        let addresses = (dst, self.src());
        let subcode = self.message.subcode();
        let headers = headers(addresses, FipOpcode::Vn2vn, subcode, words, flags);
        let mut out = Writer(out);
        out.array::<HEADERS, HEADERS_BYTES>(headers);
        out.array::<MAC, MAC_BYTES>(descriptor::emit_mac(self.port.enode_mac));
        out.array::<NAME, NAME_BYTES>(descriptor::emit_name(self.port.node_name));
        out.array::<ID, ID_BYTES>(descriptor::emit_vn_port_id(&self.port.id));
    }
}

impl fmt::Display for Vn2vnFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.message {
            Vn2vnMessage::ProbeRequest => "probe request",
            Vn2vnMessage::ProbeReply => "probe reply",
            Vn2vnMessage::ClaimNotification(_) => "claim notification",
            Vn2vnMessage::ClaimResponse(_) => "claim response",
            Vn2vnMessage::Beacon => "beacon",
        };
        let VnPort { enode_mac, id, .. } = &self.port;
        let (n_port_id, port_name) = (id.n_port_id, id.port_name);
        write!(f, "{name} {n_port_id} {port_name:016x} at {enode_mac}")?;
        if self.recorded {
            f.write_str(" recorded")?;
        }
        match self.message.claim() {
            None => Ok(()),
            Some(claim) => write!(f, " max {}", claim.max_fcoe_bytes),
        }
    }
}
