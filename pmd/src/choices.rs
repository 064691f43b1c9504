//! What a VI may want of its connections beyond the guide [VI/TCP 2.2.1].

use core::fmt;

use serde::{Deserialize, Serialize};
use vitcp_lite::profile::MAX_SECURITY_BYTES;

use crate::control::ControlError;

/// What a VI may want of its connections beyond the guide.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViChoices {
    /// Messages wait until the peer has posted a receive, instead of breaking the connection. In force
    /// if both ends want it.
    pub flow_control: bool,
    /// A peer with another maximum transfer size is no conflict: the lesser of both counts for the
    /// connection. In force if both ends want it.
    pub negotiates: bool,
    /// What the peer is told with the request or its acceptance, up to
    /// [`ViChoices::MAX_SECURITY_BYTES`]; what it means is the consumers' own.
    pub security: Vec<u8>,
}

impl ViChoices {
    /// Bytes of `security`, at most.
    pub const MAX_SECURITY_BYTES: usize = MAX_SECURITY_BYTES;

    /// Can they be?
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        match self.security.len() <= Self::MAX_SECURITY_BYTES {
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
        assert_eq!(choices.check(), Err(ControlError::InvalidParameter));
    }
}
