//! Header templates, of which only a few fields change from frame to frame.

use super::{DEVICE, FC, FCOE, FrameHeader, MAX_HEADER_BYTES, Reader, Writer};
use crate::device_header;
use crate::error::EmitError;
use crate::ethernet::MacAddress;
use crate::fc::{self, FCtl};
use crate::fcoe::{self, Sof};

/// Header bytes with a device_header of 16 bytes.
pub(super) const SHORT: usize = DEVICE + device_header::SHORT_BYTES;
/// Header bytes with a device_header of 32 bytes.
pub(super) const LONG: usize = DEVICE + device_header::LONG_BYTES;

const _: () = assert!(LONG == MAX_HEADER_BYTES);

const SOF: usize = FCOE + fcoe::SOF;
const F_CTL: usize = FC + fc::F_CTL;
const SEQ_ID: usize = FC + fc::SEQ_ID;
const SEQ_CNT: usize = FC + fc::SEQ_CNT;
const OX_ID: usize = FC + fc::OX_ID;
const RELATIVE_OFFSET: usize = FC + fc::PARAMETER;
const FLAGS: usize = DEVICE + device_header::FLAGS;
const MSG_ID: usize = DEVICE + device_header::MSG_ID;
const PARAMETER: usize = DEVICE + device_header::PARAMETER;
const RMT_VA: usize = DEVICE + device_header::RMT_VA;
const RMT_VA_HANDLE: usize = DEVICE + device_header::RMT_VA_HANDLE;
const TOT_LEN: usize = DEVICE + device_header::TOT_LEN;

/// Fields that change from frame to frame of one connection and IU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerFrame {
    /// Start of frame.
    pub sof: Sof,
    /// F_CTL, with fill.
    pub f_ctl: FCtl,
    /// SEQ_ID.
    pub seq_id: u8,
    /// SEQ_CNT.
    pub seq_cnt: u16,
    /// OX_ID.
    pub ox_id: u16,
    /// Parameter of the FC header.
    pub relative_offset: u32,
    /// FCVI_FLAGS.
    pub flags: u8,
    /// FCVI_MSG_ID.
    pub msg_id: u32,
    /// FCVI_PARAMETER.
    pub fcvi_parameter: u32,
    /// FCVI_RMT_VA; only a header of 32 bytes has it.
    pub rmt_va: u64,
    /// FCVI_RMT_VA_HANDLE; only a header of 32 bytes has it.
    pub rmt_va_handle: u32,
    /// FCVI_TOT_LEN; only a header of 32 bytes has it.
    pub tot_len: u32,
}

/// A header that is encoded once, and copied and patched for every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    image: [u8; MAX_HEADER_BYTES],
    bytes: usize,
}

impl HeaderTemplate {
    /// Encodes the constant fields.
    #[inline]
    #[must_use]
    pub fn new(header: &FrameHeader) -> Self {
        Self {
            image: header.image(),
            bytes: header.bytes(),
        }
    }

    /// Returns the number of bytes that [`HeaderTemplate::emit`] writes: 52, 68 or 84.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the destination address.
    #[inline]
    #[must_use]
    pub fn dst(&self) -> MacAddress {
        MacAddress(Reader(&self.image).array::<0, 6>())
    }

    /// Writes the header of one frame to the front of `out` and returns its
    /// length. Fields of `per_frame` that the header does not have are ignored.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn emit(&self, per_frame: &PerFrame, out: &mut [u8]) -> Result<usize, EmitError> {
        let too_short = self.too_short();
        match self.bytes {
            LONG => {
                let out = out.first_chunk_mut::<LONG>().ok_or(too_short)?;
                *out = self.image;
                let mut out = Writer(out);
                patch_fc(&mut out, per_frame);
                patch_device(&mut out, per_frame);
                out.u64::<RMT_VA>(per_frame.rmt_va);
                out.u32::<RMT_VA_HANDLE>(per_frame.rmt_va_handle);
                out.u32::<TOT_LEN>(per_frame.tot_len);
            }
            SHORT => {
                let out = out.first_chunk_mut::<SHORT>().ok_or(too_short)?;
                *out = Reader(&self.image).array::<0, SHORT>();
                let mut out = Writer(out);
                patch_fc(&mut out, per_frame);
                patch_device(&mut out, per_frame);
            }
            _ => {
                let out = out.first_chunk_mut::<DEVICE>().ok_or(too_short)?;
                *out = Reader(&self.image).array::<0, DEVICE>();
                patch_fc(&mut Writer(out), per_frame);
            }
        }
        Ok(self.bytes)
    }

    /// Writes the header as it was given.
    #[inline]
    pub(super) fn copy_to(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let too_short = self.too_short();
        let source = self.image.get(..self.bytes).ok_or(too_short)?;
        out.get_mut(..self.bytes)
            .ok_or(too_short)?
            .copy_from_slice(source);
        Ok(self.bytes)
    }

    #[inline]
    fn too_short(&self) -> EmitError {
        EmitError::BufferTooShort {
            needed_bytes: self.bytes,
        }
    }
}

#[inline]
fn patch_fc<const N: usize>(out: &mut Writer<'_, N>, per_frame: &PerFrame) {
    out.u8::<SOF>(per_frame.sof.raw());
    out.u24::<F_CTL>(per_frame.f_ctl.0);
    out.u8::<SEQ_ID>(per_frame.seq_id);
    out.u16::<SEQ_CNT>(per_frame.seq_cnt);
    out.u16::<OX_ID>(per_frame.ox_id);
    out.u32::<RELATIVE_OFFSET>(per_frame.relative_offset);
}

#[inline]
fn patch_device<const N: usize>(out: &mut Writer<'_, N>, per_frame: &PerFrame) {
    out.u8::<FLAGS>(per_frame.flags);
    out.u32::<MSG_ID>(per_frame.msg_id);
    out.u32::<PARAMETER>(per_frame.fcvi_parameter);
}
