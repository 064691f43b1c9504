//! Options of a VI's connections beyond the VIPL guide [VI/TCP 2.2.1].

use core::fmt;

use serde::{Deserialize, Serialize};
use vitcp_lite::profile::{MAX_KEYED_SECURITY_BYTES, MAX_SECURITY_BYTES};

use crate::config::NicConfig;
use crate::control::ControlError;

/// Options that a VI requests for its connections, beyond the VIPL guide.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    pub const MAX_SECURITY_BYTES: usize = MAX_SECURITY_BYTES;
    /// Maximum length of `security` in bytes on a NIC with `key_file`: the key proofs need the remainder.
    pub const MAX_KEYED_SECURITY_BYTES: usize = MAX_KEYED_SECURITY_BYTES;

    /// Validates the options.
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        self.check_length(Self::MAX_SECURITY_BYTES)
    }

    /// Validates the options for a VI of this NIC.
    pub(crate) fn check_for(&self, nic: &NicConfig) -> Result<(), ControlError> {
        self.check_length(match nic.key_file {
            Some(_) => Self::MAX_KEYED_SECURITY_BYTES,
            None => Self::MAX_SECURITY_BYTES,
        })
    }

    fn check_length(&self, max_bytes: usize) -> Result<(), ControlError> {
        match self.security.len() <= max_bytes {
            true => Ok(()),
            false => Err(ControlError::InvalidParameter),
        }
    }
}

/// Options that two VIs have negotiated for their connection.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
        options.security = vec![0; ConnectionOptions::MAX_SECURITY_BYTES];
        assert_eq!(options.check(), Ok(()));
        options.security.push(0);
        let invalid = Err(ControlError::InvalidParameter);
        assert_eq!(options.check(), invalid);
        let mut nic = NicConfig::default();
        options.security.truncate(192);
        assert_eq!(options.check_for(&nic), Ok(()));
        nic.key_file = Some("keys".into());
        assert_eq!(options.check_for(&nic), invalid);
        options.security.truncate(191);
        assert_eq!(options.check_for(&nic), Ok(()));
    }
}
