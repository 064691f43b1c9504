//! What a VI may want of its connections beyond the guide [VI/TCP 2.2.1].

use core::fmt;

use serde::{Deserialize, Serialize};
use vitcp_lite::profile::{MAX_KEYED_SECURITY_BYTES, MAX_SECURITY_BYTES};

use crate::config::NicConfig;
use crate::control::ControlError;

/// What a VI may want of its connections beyond the guide.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViChoices {
    /// Messages wait until the peer has posted a receive, instead of breaking the connection. In force
    /// if both ends want it.
    pub flow_control: bool,
    /// A peer with another maximum transfer size is no conflict: the lesser of both counts for the
    /// connection. In force if both ends want it, or the server alone if its own is the larger.
    pub negotiates: bool,
    /// What the peer is told with the request or its acceptance, up to
    /// [`ViChoices::MAX_SECURITY_BYTES`], on a NIC with `key_file`
    /// [`ViChoices::MAX_KEYED_SECURITY_BYTES`]; what it means is the consumers' own.
    pub security: Vec<u8>,
}

impl ViChoices {
    /// Bytes of `security`, at most.
    pub const MAX_SECURITY_BYTES: usize = MAX_SECURITY_BYTES;
    /// Bytes of `security`, at most, on a NIC with `key_file`: its proofs need the others.
    pub const MAX_KEYED_SECURITY_BYTES: usize = MAX_KEYED_SECURITY_BYTES;

    /// Can they be?
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        self.check_length(Self::MAX_SECURITY_BYTES)
    }

    /// Can they be on this NIC?
    pub(crate) fn check_for(&self, nic: &NicConfig) -> Result<(), ControlError> {
        self.check_length(match nic.key_file {
            Some(_) => Self::MAX_KEYED_SECURITY_BYTES,
            None => Self::MAX_SECURITY_BYTES,
        })
    }

    fn check_length(&self, most: usize) -> Result<(), ControlError> {
        match self.security.len() <= most {
            true => Ok(()),
            false => Err(ControlError::InvalidParameter),
        }
    }
}

/// What two VIs have agreed on for their connection.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Messages wait for receives.
    pub flow_control: bool,
    /// The longest message in bytes.
    pub max_transfer_bytes: u32,
    /// What the peer told.
    pub security: Vec<u8>,
}

// Of security information only how much there is: it may be a secret.

impl fmt::Debug for ViChoices {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ViChoices")
            .field("flow_control", &self.flow_control)
            .field("negotiates", &self.negotiates)
            .field("security_bytes", &self.security.len())
            .finish()
    }
}

impl fmt::Debug for Agreement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Agreement")
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
    fn a_secret_is_not_printed_and_has_its_limit() {
        let mut choices = ViChoices {
            security: b"secret".into(),
            ..ViChoices::default()
        };
        let agreement = Agreement {
            security: b"secret".into(),
            ..Agreement::default()
        };
        assert!(format!("{choices:?}").contains("security_bytes: 6"));
        assert!(format!("{agreement:?}").contains("security_bytes: 6"));
        choices.security = vec![0; ViChoices::MAX_SECURITY_BYTES];
        assert_eq!(choices.check(), Ok(()));
        choices.security.push(0);
        let invalid = Err(ControlError::InvalidParameter);
        assert_eq!(choices.check(), invalid);
        let mut nic = NicConfig::default();
        choices.security.truncate(192);
        assert_eq!(choices.check_for(&nic), Ok(()));
        nic.key_file = Some("keys".into());
        assert_eq!(choices.check_for(&nic), invalid);
        choices.security.truncate(191);
        assert_eq!(choices.check_for(&nic), Ok(()));
    }
}
