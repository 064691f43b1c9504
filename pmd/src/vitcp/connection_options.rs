//! Connection options beyond the VIPL guide: requested and negotiated [VI/TCP 2.2.1].

use vi_engine::ConnId;
use vi_types::{CallError, ConnectionOptions, NegotiatedOptions, ViIndex};
use vitcp_lite::CeHeader;

use super::ViTcp;
use super::connection::{Endpoint, Phase, Stage};
use super::establish::attributes_of;

/// The segment that advertised the attributes of the peer's VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advertised {
    /// Connect Request: its MTU is proposed.
    InRequest,
    /// Connect Accept: its MTU is agreed.
    InAccept,
}

impl ViTcp {
    /// Returns the connection options of a VI.
    pub(crate) fn connection_options(&self, vi: ViIndex) -> Option<&ConnectionOptions> {
        self.endpoint(vi).map(|ep| &ep.options)
    }

    /// Replaces the connection options of a VI; returns false unless the VI is Idle.
    pub(crate) fn set_connection_options(
        &mut self,
        vi: ViIndex,
        options: &ConnectionOptions,
    ) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.options.clone_from(options);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Returns the options that a VI and its peer have negotiated; `None` unless it is connected.
    pub(crate) fn negotiated_options(&self, vi: ViIndex) -> Option<NegotiatedOptions> {
        let Phase::Connected(number) = self.endpoint(vi)?.phase else {
            return None;
        };
        let connection = self.connection(number)?;
        Some(NegotiatedOptions {
            flow_control: connection.tx.credits.is_some(),
            max_transfer_bytes: connection.max_transfer_bytes,
            security: connection.security.clone(),
        })
    }

    /// Returns the security information of a pending request; `None` if there is no such request any more.
    pub(crate) fn security_of(&self, conn: ConnId) -> Option<Vec<u8>> {
        match &self.connection_of(conn)?.stage {
            Stage::RequestReceived(request) => Some(request.ce.security.as_bytes().to_vec()),
            _ => None,
        }
    }
}

/// Compares the attributes of a VI with those of its peer (VIPL 3.3.2, VI/TCP 3.2).
///
/// # Errors
/// `ReliabilityLevel`, `MaxTransferSize`: they conflict.
pub(super) fn compare(
    ep: &Endpoint,
    theirs: &CeHeader,
    advertised: Advertised,
) -> Result<(), CallError> {
    let params = &ep.params;
    if attributes_of(theirs, params.level).reliability != params.level {
        return Err(CallError::ReliabilityLevel);
    }
    let ours = params.max_transfer_bytes;
    let fits = match advertised {
        // The minimum of both becomes the agreed size.
        Advertised::InRequest => ep.options.negotiate_mtu || theirs.mtu_bytes == ours,
        Advertised::InAccept if ep.options.negotiate_mtu => theirs.mtu_bytes <= ours,
        Advertised::InAccept => theirs.mtu_bytes == ours,
    };
    if fits {
        Ok(())
    } else {
        Err(CallError::MaxTransferSize)
    }
}
