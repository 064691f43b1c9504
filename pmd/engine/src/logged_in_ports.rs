//! Ports that are logged in with this one, on networks with discovery; and changes of the own
//! N_Port_ID.
//!
//! Where a login is required, connection IUs of a port without one are dropped and counted [FCVI
//! P-14]; the login machine reports logins and logouts. Messages need no such check: a VI accepts
//! them from its peer only.

use fcvi_frame::fc::NPortId;

/// A logged-in port.
#[derive(Clone, Copy, Debug)]
struct LoggedInPort {
    id: NPortId,
    data_field_bytes: u16,
}

/// The logged-in ports, in the order of their N_Port_IDs.
#[derive(Debug, Default)]
pub(crate) struct LoggedInPorts {
    ports: Vec<LoggedInPort>,
    /// The last port without login that sent a connection IU, until it is sent a LOGO.
    pub(crate) unlogged: Option<NPortId>,
}

impl LoggedInPorts {
    /// Returns the index of the port, or where it would be inserted.
    fn index_of(&self, id: NPortId) -> Result<usize, usize> {
        self.ports.binary_search_by_key(&id, |login| login.id)
    }

    /// Adds a port, or replaces it.
    pub(crate) fn add(&mut self, id: NPortId, data_field_bytes: u16) {
        let login = LoggedInPort {
            id,
            data_field_bytes,
        };
        match self.index_of(id) {
            Ok(index) => self.ports[index] = login,
            Err(index) => self.ports.insert(index, login),
        }
    }

    /// Removes a port. Returns false if it was not logged in.
    pub(crate) fn remove(&mut self, id: NPortId) -> bool {
        let found = self.index_of(id);
        if let Ok(index) = found {
            self.ports.remove(index);
        }
        found.is_ok()
    }

    /// Returns the maximum data field of frames to and from a port; `None` if it is not logged in.
    pub(crate) fn data_field_bytes(&self, id: NPortId) -> Option<u16> {
        Some(self.ports[self.index_of(id).ok()?].data_field_bytes)
    }
}
