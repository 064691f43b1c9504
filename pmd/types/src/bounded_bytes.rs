//! Byte strings of a bounded length.

use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};

/// A byte string of up to `MAX` bytes (at most 65535), without allocation.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<u8>", into = "Vec<u8>"))]
pub struct BoundedBytes<const MAX: usize> {
    len: u16,
    /// Zero from `len` on.
    bytes: [u8; MAX],
}

impl<const MAX: usize> BoundedBytes<MAX> {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = MAX;

    /// No bytes.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; MAX],
    };

    /// Copies `bytes`; `None` if they are more than `MAX`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u16::try_from(bytes.len()).ok()?;
        let mut all = [0; MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len, bytes: all })
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let (used, _) = self
            .bytes
            .split_at_checked(usize::from(self.len))
            .unwrap_or((&self.bytes, &[]));
        used
    }

    /// Returns the bytes in use, followed by zeros.
    #[must_use]
    pub const fn padded(&self) -> &[u8; MAX] {
        &self.bytes
    }
}

impl<const MAX: usize> TryFrom<Vec<u8>> for BoundedBytes<MAX> {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, &'static str> {
        Self::new(&bytes).ok_or("too many bytes")
    }
}

impl<const MAX: usize> From<BoundedBytes<MAX>> for Vec<u8> {
    fn from(bytes: BoundedBytes<MAX>) -> Self {
        bytes.as_bytes().to_vec()
    }
}

impl<const MAX: usize> Default for BoundedBytes<MAX> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const MAX: usize> PartialEq for BoundedBytes<MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const MAX: usize> Eq for BoundedBytes<MAX> {}

impl<const MAX: usize> Hash for BoundedBytes<MAX> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// As ASCII text, with escapes for other bytes.
impl<const MAX: usize> fmt::Display for BoundedBytes<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl<const MAX: usize> fmt::Debug for BoundedBytes<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::BoundedBytes;
    use alloc::{format, vec, vec::Vec};

    fn of(bytes: &[u8]) -> BoundedBytes<16> {
        BoundedBytes::new(bytes).unwrap()
    }

    #[test]
    fn equality_ignores_unused_bytes() {
        let mut odd = of(b"");
        odd.bytes[15] = 1;
        assert_eq!(odd, BoundedBytes::default());
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_ne!(of(b""), of(b"\0"));
    }

    #[test]
    fn more_than_the_maximum_is_refused() {
        assert_eq!(of(&[7; 16]).as_bytes(), [7; 16]);
        for bytes in [17, 1000, 65536 + 1] {
            assert_eq!(BoundedBytes::<16>::new(&vec![0; bytes]), None);
            assert!(BoundedBytes::<16>::try_from(vec![0; bytes]).is_err());
        }
        assert_eq!(Vec::from(of(b"a\0")), b"a\0");
    }

    #[test]
    fn text_escapes_bytes_that_are_not_ascii_text() {
        assert_eq!(format!("{}", of(b"echo\x01")), "echo\\x01");
        assert_eq!(format!("{:?}", of(b"echo\x01")), "\"echo\\x01\"");
    }
}
