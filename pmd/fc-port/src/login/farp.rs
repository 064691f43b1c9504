//! FARP: resolves a host address to its N_Ports [FCVI P-15].
//!
//! A FARP-REQ is sent to all VN_Ports of the segment; every port whose host address it names
//! answers with a FARP-REPLY of its own. Requests are answered for neighbours only, and replies are
//! accepted from neighbours only, for hosts being resolved.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::counters::LoginCounter;
use super::frames::{Carrier, ElsOut, Received, request_header};
use super::hosts::FarpResult;
use super::state::Event;
use super::{LoginEvent, LoginMachine, TooManyHosts};

impl LoginMachine {
    /// Resolves a host address. Each N_Port that answers, or is known already, is reported by an
    /// event; a last event reports the end of the resolution, after the first FARP-REQ that was
    /// answered or after the last retry. Without an N_Port_ID of our own it waits for one.
    ///
    /// # Errors
    /// [`TooManyHosts`] if the table is full.
    pub fn resolve(&mut self, now_ns: u64, host: HostAddress) -> Result<(), TooManyHosts> {
        let own = self.id.filter(|_| Some(host) == self.config.host);
        let has_room = self.hosts.resolve(now_ns, host, self.id.is_some(), own);
        self.changed = true;
        self.update_deadline();
        if has_room { Ok(()) } else { Err(TooManyHosts) }
    }

    /// Reports whether a resolution started by [`LoginMachine::resolve`] is in progress.
    #[must_use]
    pub fn is_resolving(&self, host: HostAddress) -> bool {
        self.hosts.is_resolving(host)
    }

    /// Returns the known N_Ports of a host.
    #[must_use]
    pub fn resolved(&self, host: HostAddress) -> &[NPortId] {
        self.hosts.ports(host)
    }

    pub(super) fn hosts_timeout(&mut self, now_ns: u64) {
        let (retried, unanswered) = self.hosts.timeout(now_ns);
        self.changed = true;
        for _ in 0..retried {
            self.counters.count(LoginCounter::Retries);
        }
        for _ in 0..unanswered {
            self.counters.count(LoginCounter::Unresolved);
        }
    }

    pub(super) fn resolution_event(&mut self) -> Option<LoginEvent> {
        let (host, id) = self.hosts.next_event()?;
        Some(LoginEvent::Resolved { host, id })
    }

    pub(super) fn unsent_farp(&mut self, id: NPortId) -> Option<ElsOut> {
        let host = self.hosts.unsent()?;
        self.hosts.sent(host);
        let Some(ox_id) = self.exchanges.one_way() else {
            self.counters.count(LoginCounter::NoExchange);
            return None;
        };
        let mut payload = [0; Farp::BYTES];
        Farp {
            match_code: FarpMatch::HOST,
            action: FarpAction::REPLY,
            requester: id,
            requester_port_name: self.config.port_name,
            requester_node_name: self.config.node_name,
            requester_host: self.config.host.unwrap_or_default(),
            responder_host: host,
            ..Farp::default()
        }
        .emit(ElsCommand::FarpRequest, &mut payload);
        let header = request_header(id, NPortId::BROADCAST, ox_id);
        let to_all = MacAddress::ALL_VN2VN;
        Some(ElsOut::new(Carrier::Fcoe, to_all, header, &payload))
    }

    pub(super) fn take_farp_request(
        &mut self,
        now_ns: u64,
        request: &Received<'_>,
    ) -> Result<(), LoginCounter> {
        let farp = Farp::parse(request.command, request.payload)
            .ok()
            .filter(|farp| farp.requester == request.fc.s_id && farp.match_code.is_valid())
            .ok_or(LoginCounter::DropFarpMalformed)?;
        let id = self.id.ok_or(LoginCounter::DropNoId)?;
        if !self.matches_us(&farp) {
            return Err(LoginCounter::DropFarpNoMatch);
        }
        let at = self.neighbour_of_farp(request.fc.s_id, farp.requester_port_name)?;
        if farp.action.contains(FarpAction::REPLY) {
            let ox_id = self.exchanges.one_way();
            let ox_id = ox_id.ok_or(LoginCounter::NoExchange)?;
            let mut payload = [0; Farp::BYTES];
            Farp {
                responder: id,
                responder_port_name: self.config.port_name,
                responder_node_name: self.config.node_name,
                responder_host: self.config.host.unwrap_or_default(),
                ..farp
            }
            .emit(ElsCommand::FarpReply, &mut payload);
            let header = request_header(id, request.fc.s_id, ox_id);
            let destination = MacAddress::vn2vn(request.fc.s_id);
            let reply = ElsOut::new(Carrier::Fcoe, destination, header, &payload);
            self.answers.push_back(reply);
        }
        if farp.action.contains(FarpAction::LOGIN) && !self.is_closing {
            self.apply(now_ns, at, Event::Ready, None);
        }
        Ok(())
    }

    pub(super) fn take_farp_reply(&mut self, request: &Received<'_>) -> Result<(), LoginCounter> {
        let farp = Farp::parse(request.command, request.payload)
            .ok()
            .filter(|farp| farp.responder == request.fc.s_id && Some(farp.requester) == self.id)
            .ok_or(LoginCounter::DropFarpMalformed)?;
        let at = self.neighbour_of_farp(request.fc.s_id, farp.responder_port_name)?;
        let was_queried = self.record_host(at, farp.responder_host);
        match self.hosts.add_port(farp.responder_host, farp.responder) {
            FarpResult::Added => {
                self.changed = true;
                self.counters.count(LoginCounter::Resolved);
                Ok(())
            }
            FarpResult::Full => Err(LoginCounter::DropFarpFull),
            FarpResult::NotRequested if was_queried => {
                self.counters.count(LoginCounter::Resolved);
                Ok(())
            }
            FarpResult::NotRequested => Err(LoginCounter::DropFarpNotAsked),
        }
    }

    /// Reports whether every field that the request names is ours.
    fn matches_us(&self, farp: &Farp) -> bool {
        let fields = [
            (
                FarpMatch::PORT_NAME,
                farp.responder_port_name == self.config.port_name,
            ),
            (
                FarpMatch::NODE_NAME,
                farp.responder_node_name == self.config.node_name,
            ),
            (
                FarpMatch::HOST,
                Some(farp.responder_host) == self.config.host,
            ),
        ];
        let named = |field| farp.match_code.contains(field);
        fields
            .into_iter()
            .all(|(field, same)| same || !named(field))
    }

    fn neighbour_of_farp(&self, id: NPortId, port_name: u64) -> Result<usize, LoginCounter> {
        let port =
            self.find(|port| port.neighbour.id == id && port.neighbour.port_name == port_name);
        port.ok_or(LoginCounter::DropFarpStranger)
    }
}
