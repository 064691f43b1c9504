//! FC-4 attributes: the protocols above FC that a port supports.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 32 | one bit for each TYPE: bit n of word w (most significant byte first) is TYPE 32 w + n |
//! | 32 | 128 | four bits for each TYPE: nibble n of word w, from the lowest, is TYPE 8 w + n |

use crate::fc::FcType;

/// Bytes of the TYPE bits.
pub(super) const TYPE_BYTES: usize = 32;
/// Bytes of the feature nibbles.
pub(super) const FEATURE_BYTES: usize = 128;

/// The protocols above FC that a port supports, and four bits of features for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fc4Attributes {
    /// One bit for each TYPE.
    pub types: [u8; 32],
    /// Four bits for each TYPE.
    pub features: [u8; 128],
}

impl Default for Fc4Attributes {
    fn default() -> Self {
        Self {
            types: [0; TYPE_BYTES],
            features: [0; FEATURE_BYTES],
        }
    }
}

/// Returns the byte index of a TYPE's bit, and its mask. The words are most significant byte first.
const fn bit(fc_type: u8) -> (usize, u8) {
    (((fc_type >> 3) ^ 3) as usize, 1 << (fc_type & 7))
}

/// Returns the byte index of a TYPE's features, and their shift.
const fn nibble(fc_type: u8) -> (usize, u32) {
    (((fc_type >> 1) ^ 3) as usize, (fc_type as u32 & 1) << 2)
}

impl Fc4Attributes {
    /// Adds a protocol, with the low four bits of `features`.
    #[must_use]
    pub fn with(mut self, fc_type: FcType, features: u8) -> Self {
        let raw = fc_type.raw();
        let (at, mask) = bit(raw);
        if let Some(byte) = self.types.get_mut(at) {
            *byte |= mask;
        }
        let (at, shift) = nibble(raw);
        if let Some(byte) = self.features.get_mut(at) {
            *byte = (*byte & !(0xF << shift)) | ((features & 0xF) << shift);
        }
        self
    }

    /// True if the port supports this protocol.
    #[must_use]
    pub fn supports(&self, fc_type: FcType) -> bool {
        let (at, mask) = bit(fc_type.raw());
        self.types.get(at).is_some_and(|byte| byte & mask != 0)
    }

    /// Returns the features of a protocol, 0 to 15, whose meaning depends on the protocol.
    #[must_use]
    pub fn features(&self, fc_type: FcType) -> u8 {
        let (at, shift) = nibble(fc_type.raw());
        self.features
            .get(at)
            .map_or(0, |byte| (byte >> shift) & 0xF)
    }
}

/// The protocols, by their numbers, with their features.
impl core::fmt::Debug for Fc4Attributes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let types = (0..=u8::MAX).map(FcType::from_raw);
        let supported = types.filter(|fc_type| self.supports(*fc_type));
        f.debug_map()
            .entries(supported.map(|fc_type| (fc_type, self.features(fc_type))))
            .finish()
    }
}
