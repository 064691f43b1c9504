//! Networks where ports find each other: who is logged in with us, and our own address.
//!
//! Where a login is required, connection IUs of a port without one are dropped and counted
//! [FCVI P-14]; the login machine says who came and went. Messages need no such check: they
//! reach a VI only from its peer.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::host::Host;

/// The ports that are logged in with us, in the order of their N_Port_IDs.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    ids: Vec<NPortId>,
    /// A port without login that sent a connection IU, until it is told to log out.
    stranger: Option<NPortId>,
}

impl Engine {
    /// From now on only ports that are logged in, and we ourselves, may connect.
    pub fn require_login(&mut self) {
        self.logins.get_or_insert_default();
    }

    /// A port of this host logged in with us.
    pub fn logged_in<H: Host>(
        &mut self,
        now_ns: u64,
        address: HostAddress,
        id: NPortId,
        host: &mut H,
    ) {
        if let Some(logins) = &mut self.logins
            && let Err(place) = logins.ids.binary_search(&id)
        {
            logins.ids.insert(place, id);
        }
        self.port_joined(now_ns, address, id, host);
    }

    /// A port is not logged in with us any more: its connections are lost.
    pub fn logged_out<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        if let Some(logins) = &mut self.logins
            && let Ok(place) = logins.ids.binary_search(&id)
        {
            logins.ids.remove(place);
            self.peer_lost(now_ns, id, host);
        }
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
        if id == self.config.n_port_id || logins.ids.binary_search(&id).is_ok() {
            return true;
        }
        logins.stranger = Some(id);
        self.counters.count(Counter::DropNotLoggedIn);
        false
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
