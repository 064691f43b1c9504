//! Header templates, of which only a few fields change from frame to frame.

use super::{DEVICE, FC, FCOE, FrameHeader, MAX_HEADER_BYTES, Reader, Writer};
use crate::crc::CoveredHeader;
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
const _: () = assert!(SOF + 1 == FC, "SOF is the last byte before the words");

/// A field of [`HeaderTemplate::words`].
#[derive(Clone, Copy)]
struct WordField {
    word: usize,
    shift: u32,
    mask: u64,
}

/// Returns where the field at this offset of the frame is in the words.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "evaluated by the compiler, which checks it"
)]
const fn field(at: usize, bytes: usize) -> WordField {
    let (word, in_word) = ((at - FC) / WORD_BYTES, (at - FC) % WORD_BYTES);
    assert!(in_word + bytes <= WORD_BYTES, "a field within one word");
    let shift = 8 * (WORD_BYTES - in_word - bytes) as u32;
    let mask = u64::MAX >> (64 - 8 * bytes as u32) << shift;
    WordField { word, shift, mask }
}

impl WordField {
    #[inline(always)]
    fn bits(self, value: impl Into<u64>) -> u64 {
        value.into().wrapping_shl(self.shift) & self.mask
    }
}

const WORD_BYTES: usize = 8;
const F_CTL: WordField = field(FC + fc::F_CTL, 3);
const SEQ_ID: WordField = field(FC + fc::SEQ_ID, 1);
const SEQ_CNT: WordField = field(FC + fc::SEQ_CNT, 2);
const OX_ID: WordField = field(FC + fc::OX_ID, 2);
const RX_ID: WordField = field(FC + fc::RX_ID, 2);
const RELATIVE_OFFSET: WordField = field(FC + fc::PARAMETER, 4);
const FLAGS: WordField = field(DEVICE + device_header::FLAGS, 1);
const MSG_ID: WordField = field(DEVICE + device_header::MSG_ID, 4);
const PARAMETER: WordField = field(DEVICE + device_header::PARAMETER, 4);
const RMT_VA: WordField = field(DEVICE + device_header::RMT_VA, 8);
const RMT_VA_HANDLE: WordField = field(DEVICE + device_header::RMT_VA_HANDLE, 4);
const TOT_LEN: WordField = field(DEVICE + device_header::TOT_LEN, 4);

/// The fields of [`PerFrame`] that are in the words.
const PER_FRAME: [WordField; 11] = [
    F_CTL,
    SEQ_ID,
    SEQ_CNT,
    OX_ID,
    RELATIVE_OFFSET,
    FLAGS,
    MSG_ID,
    PARAMETER,
    RMT_VA,
    RMT_VA_HANDLE,
    TOT_LEN,
];

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

impl PerFrame {
    /// Returns the fields of one header.
    #[inline]
    pub(crate) fn of(header: &FrameHeader) -> Self {
        let device = header.device;
        Self {
            sof: header.sof,
            f_ctl: header.fc.f_ctl,
            seq_id: header.fc.seq_id,
            seq_cnt: header.fc.seq_cnt,
            ox_id: header.fc.ox_id,
            relative_offset: header.fc.parameter,
            flags: device.map_or(0, |device| device.flags),
            msg_id: device.map_or(0, |device| device.msg_id),
            fcvi_parameter: device.map_or(0, |device| device.parameter),
            rmt_va: device.map_or(0, |device| device.rmt_va),
            rmt_va_handle: device.map_or(0, |device| device.rmt_va_handle),
            tot_len: device.map_or(0, |device| device.tot_len),
        }
    }
}

/// A header that is encoded once, and completed for every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    /// Ethernet and FCoE header.
    start: [u8; FC],
    /// FC header and device_header as big-endian numbers; fields of [`PerFrame`] are zero.
    words: [u64; 7],
    bytes: usize,
}

impl HeaderTemplate {
    /// Encodes the constant fields.
    #[inline]
    #[must_use]
    pub fn new(header: &FrameHeader) -> Self {
        let image = header.image();
        let (start, rest) = (Reader(&image).array::<0, FC>(), Reader(&image));
        let mut words = [
            rest.u64::<FC>(),
            rest.u64::<{ FC + WORD_BYTES }>(),
            rest.u64::<{ FC + 2 * WORD_BYTES }>(),
            rest.u64::<{ FC + 3 * WORD_BYTES }>(),
            rest.u64::<{ FC + 4 * WORD_BYTES }>(),
            rest.u64::<{ FC + 5 * WORD_BYTES }>(),
            rest.u64::<{ FC + 6 * WORD_BYTES }>(),
        ];
        for field in PER_FRAME {
            if let Some(word) = words.get_mut(field.word) {
                *word &= !field.mask;
            }
        }
        Self {
            start,
            words,
            bytes: header.bytes(),
        }
    }

    /// Replaces RX_ID.
    #[inline]
    pub fn set_rx_id(&mut self, rx_id: u16) {
        if let Some(word) = self.words.get_mut(RX_ID.word) {
            *word = *word & !RX_ID.mask | RX_ID.bits(rx_id);
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
        MacAddress(Reader(&self.start).array::<0, 6>())
    }

    /// Returns the Ethernet and FCoE header of one frame.
    #[inline(always)]
    pub(super) fn start(&self, per_frame: &PerFrame) -> [u8; FC] {
        let mut start = self.start;
        Writer(&mut start).u8::<SOF>(per_frame.sof.raw());
        start
    }

    /// Returns what follows the FCoE header of one frame. Fields that the header does not have are
    /// in words that are not used.
    #[inline(always)]
    pub(super) fn covered(&self, per_frame: &PerFrame) -> CoveredHeader {
        let [fc0, fc1, fc2, device0, device1, device2, device3] = self.words;
        let words = [
            fc0,
            fc1 | F_CTL.bits(per_frame.f_ctl.0)
                | SEQ_ID.bits(per_frame.seq_id)
                | SEQ_CNT.bits(per_frame.seq_cnt),
            fc2 | OX_ID.bits(per_frame.ox_id) | RELATIVE_OFFSET.bits(per_frame.relative_offset),
            device0 | FLAGS.bits(per_frame.flags),
            device1 | MSG_ID.bits(per_frame.msg_id) | PARAMETER.bits(per_frame.fcvi_parameter),
            device2 | RMT_VA.bits(per_frame.rmt_va),
            device3 | RMT_VA_HANDLE.bits(per_frame.rmt_va_handle) | TOT_LEN.bits(per_frame.tot_len),
        ];
        let count = match self.bytes {
            LONG => 7,
            SHORT => 5,
            _ => 3,
        };
        CoveredHeader { words, count }
    }

    /// Writes the header of one frame to the front of `out` and returns its
    /// length. Fields of `per_frame` that the header does not have are ignored.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn emit(&self, per_frame: &PerFrame, out: &mut [u8]) -> Result<usize, EmitError> {
        let covered = self.covered(per_frame);
        let words = covered.words.iter().take(covered.count);
        let bytes = words.flat_map(|word| word.to_be_bytes());
        let out = out.get_mut(..self.bytes).ok_or(EmitError::BufferTooShort {
            needed_bytes: self.bytes,
        })?;
        for (out, byte) in out
            .iter_mut()
            .zip(self.start(per_frame).into_iter().chain(bytes))
        {
            *out = byte;
        }
        Ok(self.bytes)
    }
}
