//! Which VI of this engine is at the other end of a request or connection, if one is.
//!
//! Each end must name the other: a frame from the wire can claim our N_Port_ID.

use crate::accept::ConnId;
use crate::accept::incoming::IncomingState;
use crate::connect::ConnectError;
use crate::endpoint::{EndpointState, Phase};
use crate::engine::{Engine, ViIndex};

impl Engine {
    /// Returns the VI of this engine that makes a request, or `None` if another port makes it.
    ///
    /// # Errors
    /// `Timeout`: the request is not held for its consumer any more.
    pub fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, ConnectError> {
        let incoming = self.incoming.get(conn.index as usize);
        let incoming = incoming
            .and_then(Option::as_ref)
            .filter(|i| i.generation == conn.generation && i.state == IncomingState::Held)
            .ok_or(ConnectError::Timeout)?;
        if incoming.s_id != self.config.n_port_id {
            return Ok(None);
        }
        let vi = self.place_of(incoming.originator_handle);
        let makes_it = self.endpoint(vi).is_some_and(|ep| match &ep.phase {
            Phase::Requesting(attempt) => {
                ep.handle == incoming.originator_handle
                    && attempt.is_for(incoming.connection_id, &incoming.local, &incoming.remote)
            }
            _ => false,
        });
        Ok(makes_it.then_some(vi))
    }

    /// Returns the VI of this engine that a connected VI is connected to, or `None` if it is
    /// another port's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, ConnectError> {
        match self.state(vi) {
            Some(EndpointState::Connected) => Ok(self.own_peer(vi)),
            _ => Err(ConnectError::InvalidState),
        }
    }

    /// Returns the VI of this engine whose connection is that of `vi`.
    pub(crate) fn own_peer(&self, vi: ViIndex) -> Option<ViIndex> {
        let own = self.config.n_port_id;
        let ep = self.endpoint(vi)?;
        let link = ep.link.as_ref().filter(|link| link.peer == own)?;
        let other = self.place_of(link.peer_handle);
        let theirs = self.endpoint(other)?;
        let back = theirs.link.as_ref().filter(|back| back.peer == own)?;
        let fits = (theirs.handle, ep.handle) == (link.peer_handle, back.peer_handle)
            && link.connection_id == back.connection_id;
        fits.then_some(other)
    }
}
