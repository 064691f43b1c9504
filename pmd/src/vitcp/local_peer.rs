//! Which VI of this NIC is at the other end of a request or connection, if one is.

use vi_engine::{ConnId, ConnectError, ViIndex};

use super::ViTcp;
use super::connection::{Connection, Phase, Stage};

impl ViTcp {
    /// Returns the VI of this NIC that makes a request, or `None` if another program makes it.
    ///
    /// # Errors
    /// `Timeout`: the request is not held for its consumer any more.
    pub(crate) fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, ConnectError> {
        match self.of_conn(conn) {
            Some(connection) if matches!(connection.stage, Stage::Held(_)) => {
                Ok(self.other_end(connection))
            }
            _ => Err(ConnectError::Timeout),
        }
    }

    /// Returns the VI of this NIC that a connected VI is connected to, or `None` if it is another
    /// program's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub(crate) fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, ConnectError> {
        match self.endpoint(vi).map(|ep| &ep.phase) {
            Some(Phase::Connected(number)) => {
                let connection = self.connection(*number);
                Ok(connection.and_then(|connection| self.other_end(connection)))
            }
            _ => Err(ConnectError::InvalidState),
        }
    }

    /// Finds the other end by its two addresses: our socket has them, so no other one can.
    fn other_end(&self, connection: &Connection) -> Option<ViIndex> {
        let ends = (connection.far, connection.near);
        let mut all = self.connections.iter().flatten();
        match all.find(|other| (other.near, other.far) == ends)?.stage {
            Stage::Asking(vi) | Stage::Connected(vi) => Some(vi),
            Stage::Incoming(_) | Stage::Held(_) | Stage::Void | Stage::Closing => None,
        }
    }
}
