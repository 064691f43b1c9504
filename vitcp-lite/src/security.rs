//! Security Information, the variable part of the CE header [VI/TCP 3.2].

use core::fmt;

use vi_types::BoundedBytes;

use crate::profile::MAX_SECURITY_BYTES;

/// Security Information of a consumer, an additional basis for accepting its request: 0 to 256 bytes,
/// opaque to the stack.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Security(BoundedBytes<MAX_SECURITY_BYTES>);

impl Security {
    /// Empty.
    pub const EMPTY: Security = Security(BoundedBytes::EMPTY);

    /// Copies `bytes`; `None` if longer than [`MAX_SECURITY_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        BoundedBytes::new(bytes).map(Self)
    }

    /// Concatenates `parts`; `None` if longer than [`MAX_SECURITY_BYTES`].
    pub(crate) fn of_parts(parts: &[&[u8]]) -> Option<Self> {
        let mut whole = [0; MAX_SECURITY_BYTES];
        let mut end = 0;
        for part in parts {
            let begin = end;
            end = part.len().checked_add(begin)?;
            whole.get_mut(begin..end)?.copy_from_slice(part);
        }
        Self::new(whole.get(..end)?)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Checks whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

/// Prints the length only: the bytes may be secret.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Security({} bytes)", self.as_bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::Security;
    use std::format;

    #[test]
    fn new_takes_up_to_256_bytes() {
        for bytes in 0..=256 {
            let security = Security::new(&[0xA5; 256][..bytes]).unwrap();
            assert_eq!(security.as_bytes().len(), bytes);
            assert!(security.as_bytes().iter().all(|b| *b == 0xA5));
            assert_eq!(security.is_empty(), bytes == 0);
        }
        assert_eq!(Security::new(&[0; 257]), None);
        assert_eq!(Security::new(&[0; 70000]), None);
    }

    #[test]
    fn of_parts_concatenates_up_to_256_bytes() {
        let whole = Security::of_parts(&[b"a", b"", b"bcd"]).unwrap();
        assert_eq!(whole.as_bytes(), b"abcd");
        assert!(Security::of_parts(&[&[1; 200], &[2; 56]]).is_some());
        assert_eq!(Security::of_parts(&[&[1; 200], &[2; 57]]), None);
        assert_eq!(Security::of_parts(&[]), Some(Security::EMPTY));
    }

    #[test]
    fn debug_output_has_no_bytes() {
        let security = Security::new(b"secret").unwrap();
        assert_eq!(format!("{security:?}"), "Security(6 bytes)");
        assert_ne!(security, Security::EMPTY);
        assert_eq!(Security::default(), Security::EMPTY);
    }
}
