//! Networks where ports find each other: who is logged in with us, and our own address.
//!
//! Where a login is required, connection IUs of a port without one are dropped and counted
//! [FCVI P-14]; the login machine says who came and went. Messages need no such check: they
//! reach a VI only from its peer.

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::host::Host;

/// A port that is logged in.
#[derive(Clone, Copy, Debug)]
struct LoggedIn {
    id: NPortId,
    data_field_bytes: u16,
}

/// The ports that are logged in with us, in the order of their N_Port_IDs.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    ports: Vec<LoggedIn>,
    /// A port without login that sent a connection IU, until it is told to log out.
    stranger: Option<NPortId>,
}

impl Logins {
    /// Where the port stands, or would.
    fn place(&self, id: NPortId) -> Result<usize, usize> {
        self.ports.binary_search_by_key(&id, |login| login.id)
    }
}

impl Engine {
    /// From now on only ports that are logged in, and we ourselves, may connect.
    pub fn require_login(&mut self) {
        self.logins.get_or_insert_default();
    }

    /// A port logged in with us, and frames between us may have data fields so long.
    pub fn logged_in(&mut self, id: NPortId, data_field_bytes: u16) {
        let Some(logins) = &mut self.logins else {
            return;
        };
        let login = LoggedIn {
            id,
            data_field_bytes,
        };
        match logins.place(id) {
            Ok(place) => logins.ports[place] = login,
            Err(place) => logins.ports.insert(place, login),
        }
    }

    /// A port is not logged in with us any more: its connections are lost.
    pub fn logged_out<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        if let Some(logins) = &mut self.logins
            && let Ok(place) = logins.place(id)
        {
            logins.ports.remove(place);
            self.peer_lost(now_ns, id, host);
        }
    }

    /// Whether there is something for [`Engine::take_stranger`].
    pub fn has_stranger(&self) -> bool {
        self.logins
            .as_ref()
            .is_some_and(|logins| logins.stranger.is_some())
    }

    /// The last port that sent a connection IU without being logged in, told once: it believes
    /// in a login that is over, and a LOGO tells it.
    pub fn take_stranger(&mut self) -> Option<NPortId> {
        self.logins.as_mut()?.stranger.take()
    }

    /// May this port send us connection IUs? If not, that is counted.
    pub(crate) fn may_connect(&mut self, id: NPortId) -> bool {
        let Some(logins) = &mut self.logins else {
            return true;
        };
        if id == self.config.n_port_id || logins.place(id).is_ok() {
            return true;
        }
        logins.stranger = Some(id);
        self.counters.count(Counter::DropNotLoggedIn);
        false
    }

    /// The longest data field of a frame to or from this port.
    pub(crate) fn data_field_bytes(&self, id: NPortId) -> u16 {
        let own = self.config.data_field_bytes;
        let logins = self.logins.as_ref();
        let login = logins.and_then(|logins| Some(logins.ports[logins.place(id).ok()?]));
        login.map_or(own, |login| own.min(login.data_field_bytes))
    }

    /// We have another N_Port_ID: every login and every connection of the old one is over.
    pub fn change_n_port_id<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        if id == self.config.n_port_id {
            return;
        }
        for id in self.known_ports() {
            self.peer_lost(now_ns, id, host);
        }
        self.forget_all_closing(now_ns);
        if let Some(logins) = &mut self.logins {
            *logins = Logins::default();
        }
        self.config.n_port_id = id;
        self.mac = MacAddress::vn2vn(id);
    }
}
