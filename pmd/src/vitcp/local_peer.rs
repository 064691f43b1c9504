//! Lookup of the remote VI of a request or connection within the same NIC.

use vi_engine::ConnId;
use vi_types::{CallError, ViIndex};

use super::ViTcp;
use super::connection::{Connection, Phase, Stage};
use super::source::Source;

impl ViTcp {
    /// Returns the VI of this NIC that makes a request, or `None` if another program makes it.
    ///
    /// # Errors
    /// `Timeout`: the request is not pending any more.
    pub(crate) fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        match self.connection_of(conn) {
            Some(connection) if matches!(connection.stage, Stage::RequestReceived(_)) => {
                Ok(self.local_peer_of(connection))
            }
            _ => Err(CallError::Timeout),
        }
    }

    /// Returns the VI of this NIC that a connected VI is connected to, or `None` if it is another
    /// program's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub(crate) fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        match self.endpoint(vi).map(|ep| &ep.phase) {
            Some(Phase::Connected(number)) => {
                let connection = self.connection(*number);
                Ok(connection.and_then(|connection| self.local_peer_of(connection)))
            }
            _ => Err(CallError::InvalidState),
        }
    }

    /// Returns to which peer the RDMA misses on a connection of this VI count: a user of this NIC, or else an
    /// address; `None` if the peer is of the same user on this NIC.
    pub(super) fn miss_key(&self, vi: ViIndex, number: u32) -> Option<Source> {
        let connection = self.connection(number)?;
        let peer = self.local_peer_of(connection);
        let Some(peer) = peer.and_then(|peer| self.endpoint(peer)) else {
            return Some(Source::address(connection.remote));
        };
        let own = self.endpoint(vi).map(|ep| ep.user);
        (own != Some(peer.user)).then_some(Source::User(peer.user))
    }

    /// Finds the remote side's connection by the swapped addresses, which are unique on this host.
    fn local_peer_of(&self, connection: &Connection) -> Option<ViIndex> {
        let addresses = (connection.remote, connection.local);
        let mut all = self.connections.iter().flatten();
        match all
            .find(|other| (other.local, other.remote) == addresses)?
            .stage
        {
            Stage::Requesting(vi) | Stage::Connected(vi) => Some(vi),
            Stage::Incoming(_) | Stage::RequestReceived(_) | Stage::PeerGone | Stage::Closing => {
                None
            }
        }
    }
}
