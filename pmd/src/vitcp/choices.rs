//! What VIs want of their connections beyond the guide, and what came of it [VI/TCP 2.2.1].

use vi_engine::{ConnId, ConnectError, ViIndex};
use vitcp_lite::CeHeader;

use super::ViTcp;
use super::connection::{Endpoint, Phase, Stage};
use super::establish::attributes_of;
use crate::choices::{Agreement, ViChoices};

/// Whose Connect header is compared with a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// A request: its MTU is proposed.
    Asker,
    /// An acceptance: its MTU is agreed.
    Accepter,
}

impl ViTcp {
    /// What this VI wants.
    pub(crate) fn choices(&self, vi: ViIndex) -> Option<&ViChoices> {
        self.endpoint(vi).map(|ep| &ep.choices)
    }

    /// Changes what a VI wants; only an Idle one can. False if it stays.
    pub(crate) fn set_choices(&mut self, vi: ViIndex, choices: &ViChoices) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.choices.clone_from(choices);
                true
            }
            Some(_) | None => false,
        }
    }

    /// What the VI and its peer have agreed on; `None` if it is not connected.
    pub(crate) fn agreement(&self, vi: ViIndex) -> Option<Agreement> {
        let Phase::Connected(number) = self.endpoint(vi)?.phase else {
            return None;
        };
        let connection = self.connection(number)?;
        Some(Agreement {
            flow_control: connection.tx.credits.is_some(),
            max_transfer_bytes: connection.max_transfer_bytes,
            security: connection.security.clone(),
        })
    }

    /// What a client told with its request; `None` if it has gone, or there is no such request.
    pub(crate) fn security_of(&self, conn: ConnId) -> Option<Vec<u8>> {
        match &self.of_conn(conn)?.stage {
            Stage::Held(asked) => Some(asked.ce.security.as_bytes().to_vec()),
            _ => None,
        }
    }
}

/// The attributes that must match, or be agreed on (VIPL 3.3.2, VI/TCP 3.2).
pub(super) fn compare(ep: &Endpoint, theirs: &CeHeader, says: Says) -> Result<(), ConnectError> {
    let params = &ep.params;
    if attributes_of(theirs, params.level).reliability != params.level.wire() {
        return Err(ConnectError::ReliabilityLevel);
    }
    let ours = params.max_transfer_bytes;
    let fits = match says {
        // The lesser of both is agreed.
        Says::Asker => ep.choices.negotiates || theirs.mtu_bytes == ours,
        Says::Accepter if ep.choices.negotiates => theirs.mtu_bytes <= ours,
        Says::Accepter => theirs.mtu_bytes == ours,
    };
    if fits {
        Ok(())
    } else {
        Err(ConnectError::MaxTransferSize)
    }
}
