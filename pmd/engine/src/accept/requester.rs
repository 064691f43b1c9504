//! Finds the VI of this engine that is the remote side of a request or connection.
//!
//! Both sides must name each other, because a frame from the wire can claim our N_Port_ID.

use vi_types::{CallError, ViIndex, ViState};

use crate::accept::ConnId;
use crate::accept::incoming::IncomingState;
use crate::endpoint::{Endpoint, Phase};
use crate::engine::Engine;

impl Engine {
    /// Returns the VI of this engine that made a request, or `None` if another port made it.
    ///
    /// # Errors
    /// `Timeout`: the request is not pending any more.
    pub fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        let incoming = self.port.incoming.get(conn.index as usize);
        let incoming = incoming
            .and_then(Option::as_ref)
            .filter(|i| i.generation == conn.generation && i.state == IncomingState::Pending)
            .ok_or(CallError::Timeout)?;
        if incoming.s_id != self.port.config.n_port_id {
            return Ok(None);
        }
        let vi = self.port.slot_of(incoming.originator_handle);
        let is_requester = self.endpoint(vi).is_some_and(|ep| match &ep.phase {
            Phase::Requesting(attempt) => {
                ep.handle == incoming.originator_handle
                    && attempt.matches(incoming.connection_id, &incoming.local, &incoming.remote)
            }
            _ => false,
        });
        Ok(is_requester.then_some(vi))
    }

    /// Returns the VI of this engine that a connected VI is connected to, or `None` if the peer is
    /// a VI of another port.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        match self.state(vi) {
            Some(ViState::Connected) => Ok(self.local_peer(vi)),
            _ => Err(CallError::InvalidState),
        }
    }

    /// Returns the VI of this engine that is the peer of `vi`.
    pub(crate) fn local_peer(&self, vi: ViIndex) -> Option<ViIndex> {
        let own = self.port.config.n_port_id;
        let ep = self.endpoint(vi)?;
        let connection = ep
            .connection
            .as_ref()
            .filter(|connection| connection.peer == own)?;
        let other = self.port.slot_of(connection.peer_handle);
        let theirs = self.endpoint(other)?;
        let back = theirs.connection.as_ref().filter(|back| back.peer == own)?;
        let fits = (theirs.handle, ep.handle) == (connection.peer_handle, back.peer_handle)
            && connection.connection_id == back.connection_id;
        fits.then_some(other)
    }

    /// Enables the shortcut after the server's half of a connection was made, if the client is a VI
    /// of this engine. Both sides must name each other, because another port can claim our address.
    pub(crate) fn enable_shortcut(&mut self, server: ViIndex) {
        let client = self
            .local_peer(server)
            .filter(|_| self.port.config.shortcut);
        let Some(client) = client else {
            return;
        };
        let waits = |ep: &Endpoint| matches!(ep.phase, Phase::AwaitResponse3(_));
        if !self.endpoint(client).is_some_and(waits) {
            return;
        }
        for (vi, other) in [(server, client), (client, server)] {
            if let Some(ep) = self.endpoint_mut(vi) {
                ep.start_shortcut(other);
            }
        }
    }
}
