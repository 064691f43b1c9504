//! Ports that are logged in with this one, on networks with discovery; and changes of the own
//! N_Port_ID.
//!
//! Where a login is required, connection IUs of a port without one are dropped and counted [FCVI
//! P-14]; the login machine reports logins and logouts. Messages need no such check: a VI accepts
//! them from its peer only.

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::n_port::NPort;

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
    unlogged: Option<NPortId>,
}

impl LoggedInPorts {
    /// Returns the index of the port, or where it would be inserted.
    fn index_of(&self, id: NPortId) -> Result<usize, usize> {
        self.ports.binary_search_by_key(&id, |login| login.id)
    }
}

impl Engine {
    /// Restricts connections to logged-in ports and this port itself.
    pub fn require_login(&mut self) {
        self.port.logged_in_ports.get_or_insert_default();
    }

    /// Adds a logged-in port. `data_field_bytes`: the negotiated maximum data field.
    pub fn logged_in(&mut self, id: NPortId, data_field_bytes: u16) {
        let Some(logged_in) = &mut self.port.logged_in_ports else {
            return;
        };
        let login = LoggedInPort {
            id,
            data_field_bytes,
        };
        match logged_in.index_of(id) {
            Ok(index) => logged_in.ports[index] = login,
            Err(index) => logged_in.ports.insert(index, login),
        }
    }

    /// Removes a port that logged out: its connections are lost.
    pub fn logged_out<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        if let Some(logged_in) = &mut self.port.logged_in_ports
            && let Ok(index) = logged_in.index_of(id)
        {
            logged_in.ports.remove(index);
            self.peer_lost(now_ns, id, io);
        }
    }

    /// Reports whether [`Engine::take_unlogged_port`] returns a port.
    pub fn has_unlogged_port(&self) -> bool {
        self.port
            .logged_in_ports
            .as_ref()
            .is_some_and(|logged_in| logged_in.unlogged.is_some())
    }

    /// Takes the last port that sent a connection IU without being logged in. It is to be sent a
    /// LOGO, because it uses a login that has ended.
    pub fn take_unlogged_port(&mut self) -> Option<NPortId> {
        self.port.logged_in_ports.as_mut()?.unlogged.take()
    }

    /// Changes our N_Port_ID: ends every login and every connection of the old one.
    pub fn change_n_port_id<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        if id == self.port.config.n_port_id {
            return;
        }
        self.all_ports_lost(now_ns, io);
        if let Some(logged_in) = &mut self.port.logged_in_ports {
            *logged_in = LoggedInPorts::default();
        }
        self.port.config.n_port_id = id;
        self.port.mac = MacAddress::vn2vn(id);
    }
}

impl NPort {
    /// Reports whether this port may send us connection IUs; counts a refusal.
    pub(crate) fn may_connect(&mut self, id: NPortId) -> bool {
        let Some(logged_in) = &mut self.logged_in_ports else {
            return true;
        };
        if id == self.config.n_port_id || logged_in.index_of(id).is_ok() {
            return true;
        }
        logged_in.unlogged = Some(id);
        self.counters.count(Counter::DropNotLoggedIn);
        false
    }

    /// Returns the maximum data field of frames to and from this port, in bytes.
    pub(crate) fn data_field_bytes(&self, id: NPortId) -> u16 {
        let own = self.config.data_field_bytes;
        let logged_in = self.logged_in_ports.as_ref();
        let login =
            logged_in.and_then(|logged_in| Some(logged_in.ports[logged_in.index_of(id).ok()?]));
        login.map_or(own, |login| own.min(login.data_field_bytes))
    }
}
