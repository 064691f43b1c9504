//! Calling and Called Discriminator of the CE header [VI/TCP 3.2].

use core::fmt;
use core::hash::{Hash, Hasher};

use crate::profile::MAX_DISCRIMINATOR_BYTES;

const _: () = assert!(MAX_DISCRIMINATOR_BYTES <= u8::MAX as usize);

/// A discriminator, which names a VI of a host in a Connect Request: up to 16 bytes.
#[derive(Clone, Copy)]
pub struct Discriminator {
    len: u8,
    bytes: [u8; MAX_DISCRIMINATOR_BYTES],
}

impl Discriminator {
    /// Copies `bytes`; `None` if longer than [`MAX_DISCRIMINATOR_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut all = [0; MAX_DISCRIMINATOR_BYTES];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len, bytes: all })
    }

    /// Returns the bytes, without padding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let (used, _) = self
            .bytes
            .split_at_checked(usize::from(self.len))
            .unwrap_or((&self.bytes, &[]));
        used
    }

    /// Returns the wire field, padded with 0.
    pub(crate) const fn padded(self) -> [u8; MAX_DISCRIMINATOR_BYTES] {
        self.bytes
    }

    /// Returns the wire length field.
    pub(crate) fn wire_length(self) -> u16 {
        u16::from(self.len)
    }
}

impl Default for Discriminator {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: [0; MAX_DISCRIMINATOR_BYTES],
        }
    }
}

impl PartialEq for Discriminator {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Discriminator {}

impl Hash for Discriminator {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// ASCII text; other bytes escaped.
impl fmt::Display for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::Discriminator;
    use std::format;

    #[test]
    fn discriminators_compare_without_padding() {
        let of = |bytes: &[u8]| Discriminator::new(bytes).unwrap();
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_ne!(of(b""), of(b"\0"));
        assert_eq!(of(b""), Discriminator::default());
        assert_eq!(of(&[7; 16]).as_bytes(), [7; 16]);
        assert_eq!(Discriminator::new(&[0; 17]), None);
        assert_eq!(Discriminator::new(&[0; 1000]), None);
    }

    #[test]
    fn discriminator_display_escapes_bytes() {
        let echo = Discriminator::new(b"echo\x01").unwrap();
        assert_eq!(format!("{echo}"), "echo\\x01");
        assert_eq!(format!("{echo:?}"), "\"echo\\x01\"");
    }
}
