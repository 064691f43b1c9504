//! Queries for the host of a port: sent to every logged-in port that supports the FC-4 protocol, by
//! its name [FCVI P-15], so that the ports of a host are known.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::config::LoginConfig;
use super::counters::LoginCounter;
use super::frames::{Carrier, ElsOut, request_header};
use super::port::{HostQuery, RemotePort};
use super::{LoginEvent, LoginMachine};

impl HostQuery {
    /// Starts the query after a login.
    pub(super) fn begin(now_ns: u64, config: &LoginConfig) -> Self {
        Self {
            unsent: true,
            deadline_ns: Some(now_ns.saturating_add(config.farp_timeout_ns)),
            ..Self::default()
        }
    }

    fn timeout(&mut self, now_ns: u64, config: &LoginConfig) {
        self.failed |= self.tries >= config.farp_retries;
        self.tries = self.tries.saturating_add(1);
        self.unsent = true;
        let wait_ns = if self.failed {
            config.farp_lifetime_ns
        } else {
            config.farp_timeout_ns
        };
        self.deadline_ns = Some(now_ns.saturating_add(wait_ns));
    }

    /// Reports whether a reply is expected soon.
    pub(super) fn is_open(&self) -> bool {
        self.deadline_ns.is_some() && !self.failed
    }
}

impl RemotePort {
    /// Returns the query of this port, if it is in progress.
    fn open_query(&mut self) -> Option<&mut HostQuery> {
        let is_open = !self.removed && self.login.is_some() && self.host.deadline_ns.is_some();
        is_open.then_some(&mut self.host)
    }
}

impl LoginMachine {
    pub(super) fn queries_timeout(&mut self, now_ns: u64) {
        let due = |query: &&mut HostQuery| query.deadline_ns.is_some_and(|at| at <= now_ns);
        let ports = self.ports.iter_mut().flatten();
        for query in ports.filter_map(RemotePort::open_query).filter(due) {
            self.counters.count(LoginCounter::Retries);
            self.changed = true;
            query.timeout(now_ns, &self.config);
        }
    }

    pub(super) fn unsent_query(&mut self, id: NPortId) -> Option<ElsOut> {
        let mut unsent = self.ports.iter_mut().flatten();
        let port = unsent.find_map(|port| {
            let neighbour = port.neighbour;
            let query = port.open_query()?;
            core::mem::take(&mut query.unsent).then_some(neighbour)
        })?;
        // The reply arrives in an exchange of its own.
        let Some(ox_id) = self.exchanges.one_way() else {
            self.counters.count(LoginCounter::NoExchange);
            return None;
        };
        let mut payload = [0; Farp::BYTES];
        Farp {
            match_code: FarpMatch::PORT_NAME,
            action: FarpAction::REPLY,
            requester: id,
            requester_port_name: self.config.port_name,
            requester_node_name: self.config.node_name,
            requester_host: self.config.host.unwrap_or_default(),
            responder: port.id,
            responder_port_name: port.port_name,
            ..Farp::default()
        }
        .emit(ElsCommand::FarpRequest, &mut payload);
        let header = request_header(id, port.id, ox_id);
        let destination = MacAddress::vn2vn(port.id);
        Some(ElsOut::new(Carrier::Fcoe, destination, header, &payload))
    }

    /// Records the host of a port. Returns true if it was queried, or if the host is the same as
    /// before.
    pub(super) fn record_host(&mut self, at: usize, host: HostAddress) -> bool {
        let Some(port) = self.ports[at].as_mut().filter(|port| port.login.is_some()) else {
            return false;
        };
        let query = &mut port.host;
        if query.host.is_none() && query.deadline_ns.is_some() {
            query.host = Some(host);
            query.deadline_ns = None;
            query.unsent = false;
            self.changed = true;
        }
        query.host == Some(host)
    }

    pub(super) fn host_event(&mut self, at: usize) -> Option<LoginEvent> {
        let port = self.ports[at].as_mut()?;
        let host = port.host.host.filter(|_| !port.host.reported)?;
        port.host.reported = true;
        let id = port.neighbour.id;
        Some(LoginEvent::Host { id, host })
    }
}
