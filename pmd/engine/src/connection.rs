//! A connection: its identifiers on both sides, and why it ends.

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::reason::MessageReason;

use crate::config::EngineConfig;
use crate::connection_iu::Sequence;
use crate::pending_disconnects::DisconnectInfo;

/// The connection breaks for this reason, which the peer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break(pub(crate) MessageReason);

/// A connection that this side ended. The peer may not know it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousConnection {
    /// Our handle.
    pub(crate) handle: u32,
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// What was placed of the peer's messages, as in [`DisconnectInfo`].
    pub(crate) placed: Option<u32>,
}

/// A connection: its identifiers on both sides, and the attributes of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// Sequence of the next IU on the exchange of the connect procedure: RESP1 or RESP2.
    pub(crate) at: Sequence,
    /// This side sent the request.
    pub(crate) originator: bool,
    pub(crate) mode: ConnectMode,
    /// The connect exchange is ours and still open.
    pub(crate) exchange_open: bool,
    pub(crate) remote: Attributes,
}

impl Connection {
    /// Returns the N_Port_ID and the handle of the peer.
    pub(crate) fn address(&self) -> (NPortId, u32) {
        (self.peer, self.peer_handle)
    }

    /// Returns the largest data field that both sides support, in bytes.
    pub(crate) fn data_field_bytes(&self, config: &EngineConfig) -> u16 {
        let theirs = self.remote.receive_data_field_bytes;
        config.data_field_bytes.min(theirs)
    }

    /// Returns the DISCONNECT_RQST of this connection.
    pub(crate) fn disconnect_info(&self, reason: MessageReason, error: bool) -> DisconnectInfo {
        DisconnectInfo {
            peer: self.peer,
            peer_handle: self.peer_handle,
            connection_id: self.connection_id,
            reason,
            error,
            placed: None,
        }
    }
}
