//! Options of a VI's connections beyond the VIPL guide [VI/TCP 2.2.1].

use alloc::vec::Vec;
use core::fmt;

use crate::{CallError, Outcome};

/// Options that a VI requests for its connections, beyond the VIPL guide.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectionOptions {
    /// Messages wait until the peer has posted a receive, instead of breaking the connection. In force
    /// if both VIs request it.
    pub flow_control: bool,
    /// A different maximum transfer size of the peer is no conflict: the lesser of both applies to the
    /// connection. In force if both VIs request it, or the server alone if its own is the larger.
    pub negotiate_mtu: bool,
    /// Bytes sent to the peer with the request or its acceptance, up to
    /// [`ConnectionOptions::MAX_SECURITY_BYTES`], on a NIC with `key_file`
    /// [`ConnectionOptions::MAX_KEYED_SECURITY_BYTES`]; their meaning is up to the consumers.
    pub security: Vec<u8>,
}

impl ConnectionOptions {
    /// Maximum length of `security` in bytes.
    pub const MAX_SECURITY_BYTES: usize = 256;
    /// Maximum length of `security` in bytes on a NIC with `key_file`: the key proofs need the remainder.
    pub const MAX_KEYED_SECURITY_BYTES: usize = 191;

    /// Validates the options for a NIC with this maximum length of `security`.
    ///
    /// # Errors
    /// `InvalidParameter` if `security` is longer.
    pub fn check(&self, max_security_bytes: usize) -> Outcome<()> {
        match self.security.len() <= max_security_bytes {
            true => Ok(()),
            false => Err(CallError::InvalidParameter),
        }
    }
}

/// Options that two VIs have negotiated for their connection.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NegotiatedOptions {
    /// Messages wait for receives.
    pub flow_control: bool,
    /// The longest message in bytes.
    pub max_transfer_bytes: u32,
    /// Security information received from the peer.
    pub security: Vec<u8>,
}

// Security information may be secret: only its length is printed.

impl fmt::Debug for ConnectionOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ConnectionOptions")
            .field("flow_control", &self.flow_control)
            .field("negotiate_mtu", &self.negotiate_mtu)
            .field("security_bytes", &self.security.len())
            .finish()
    }
}

impl fmt::Debug for NegotiatedOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("NegotiatedOptions")
            .field("flow_control", &self.flow_control)
            .field("max_transfer_bytes", &self.max_transfer_bytes)
            .field("security_bytes", &self.security.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    #[test]
    fn security_information_is_not_printed_and_its_length_is_limited() {
        let mut options = ConnectionOptions {
            security: b"secret".into(),
            ..ConnectionOptions::default()
        };
        let negotiated = NegotiatedOptions {
            security: b"secret".into(),
            ..NegotiatedOptions::default()
        };
        assert!(format!("{options:?}").contains("security_bytes: 6"));
        assert!(format!("{negotiated:?}").contains("security_bytes: 6"));
        for max_bytes in [
            ConnectionOptions::MAX_SECURITY_BYTES,
            ConnectionOptions::MAX_KEYED_SECURITY_BYTES,
        ] {
            options.security = vec![0; max_bytes];
            assert_eq!(options.check(max_bytes), Ok(()));
            options.security.push(0);
            assert_eq!(options.check(max_bytes), Err(CallError::InvalidParameter));
        }
    }
}
