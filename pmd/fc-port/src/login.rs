//! Login between the VN_Ports of a segment: FLOGI, PLOGI, LOGO and the other link services of
//! N_Ports; and FARP, which resolves host addresses to N_Ports [FCVI P-14, P-15].
//!
//! Sans-IO. Discovery reports the neighbours; this machine logs in with each of them, answers their
//! requests, and reports with which of them the FC-4 protocol may be used, and the frame size.
//!
//! ```text
//! neighbour_found, neighbour_ready, neighbour_gone --> +---------+
//! handle_els, handle_bls, handle_timeout ------------> | machine | --> poll_outbound: ElsOut
//! resolve, close ------------------------------------> +---------+ --> poll_event: LoginEvent
//! ```
//!
//! Received frames do not make it grow: its tables have the size of its configuration, requests and
//! events are derived from the state of a port when they are polled, and the queue of answers is
//! bounded.
//!
//! | module | contents |
//! | --- | --- |
//! | `receive` | received frames: their checks, and the parts that handle them |
//! | `context` | what all parts use: time, configuration, exchanges, counters |
//! | `table`, `port` | the table of remote ports; one of them: its state, timer and login |
//! | `state` | the states of a remote port |
//! | `own_request` | a request of ours to a port, and its exchange |
//! | `request`, `process` | requests of a port |
//! | `reply` | replies of a port |
//! | `login_verification` | verification that a port is still logged in |
//! | `query` | the query for the host of a port |
//! | `responder`, `refusal` | the queue of answers; refusals |
//! | `abort` | exchanges that other ports abort |
//! | `hosts`, `farp` | resolution of host addresses to N_Ports; its frames |
//! | `parameters` | login parameters and their negotiation |
//! | `accepted` | accepted requests, against duplicates |
//! | `exchanges` | the OX_IDs of our requests |
//! | `frames` | frames to send, and received ones |
//! | `event` | what is reported |
//! | `synonym` | the checks that detect stale frames, by name |

mod abort;
mod accepted;
mod config;
mod context;
mod counters;
mod event;
mod exchanges;
mod farp;
mod frames;
mod hosts;
mod login_verification;
mod own_request;
mod parameters;
mod port;
mod process;
mod query;
mod receive;
mod refusal;
mod reply;
mod request;
mod responder;
mod state;
mod synonym;
mod table;
#[cfg(test)]
mod tests;

use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

pub use config::LoginConfig;
pub use counters::{LoginCounter, LoginCounters};
pub use event::{LoginEvent, LoginFailure, LogoutReason, PortLogin, PortView};
pub use frames::{Carrier, ElsOut, FipService};
pub use hosts::TooManyHosts;
pub use state::PortState;

use crate::Neighbour;
use context::Context;
use hosts::Hosts;
use login_verification::Doubt;
use port::RemotePort;
use responder::Responder;
use state::Event;
use table::PortTable;

/// Logins of one N_Port, and the N_Ports of other hosts.
#[derive(Debug)]
pub struct LoginMachine {
    context: Context,
    ports: PortTable,
    hosts: Hosts,
    responder: Responder,
    next_ns: Option<u64>,
    /// A request may be due.
    may_send: bool,
    /// An event may be due.
    may_have_event: bool,
}

impl LoginMachine {
    /// Creates a machine without N_Port_ID and neighbours. `seed`: 64 random bits.
    #[must_use]
    pub fn new(config: LoginConfig, seed: u64) -> Self {
        Self {
            ports: PortTable::new(config.max_neighbours),
            hosts: Hosts::new(&config),
            responder: Responder::new(config.max_answers),
            context: Context::new(config, seed),
            next_ns: None,
            may_send: false,
            may_have_event: false,
        }
    }

    /// Sets the N_Port_ID that discovery claimed or lost. A change ends all logins and removes the
    /// neighbours, which discovery reports again; pending resolutions of host addresses are
    /// restarted.
    pub fn set_id(&mut self, now_ns: u64, id: Option<NPortId>) {
        let context = &mut self.context;
        if context.id == id {
            return;
        }
        context.now_ns = now_ns;
        context.id = id;
        context.changed = true;
        let (hosts, reason) = (&mut self.hosts, LogoutReason::IdLost);
        self.ports.remove(context, hosts, reason, |_| true);
        self.responder.answers.clear();
        self.hosts.restart(context);
        self.update_deadline();
    }

    /// Returns our N_Port_ID.
    #[must_use]
    pub fn id(&self) -> Option<NPortId> {
        self.context.id
    }

    /// Adds a neighbour that discovery found, or updates it. Ignored without an N_Port_ID of our
    /// own.
    pub fn neighbour_found(&mut self, now_ns: u64, neighbour: &Neighbour) {
        self.context.now_ns = now_ns;
        self.ports
            .add_or_update(&mut self.context, &mut self.hosts, neighbour);
        self.update_deadline();
    }

    /// Starts the login with a neighbour, whose first beacon was received.
    pub fn neighbour_ready(&mut self, now_ns: u64, neighbour: &Neighbour) {
        self.context.now_ns = now_ns;
        let context = &mut self.context;
        let port = self
            .ports
            .add_or_update(context, &mut self.hosts, neighbour);
        if let Some(port) = port.filter(|_| !context.is_closing) {
            port.apply(context, Event::Ready, None);
        }
        self.update_deadline();
    }

    /// Verifies the login with a port: discovery found another port with its name or N_Port_ID. If it
    /// ends, the reason is [`LogoutReason::NotConfirmed`].
    pub fn neighbour_doubted(&mut self, now_ns: u64, port_name: u64) {
        self.context.now_ns = now_ns;
        let is_doubted = |port: &&mut RemotePort| port.neighbour.port_name == port_name;
        if let Some(port) = self.ports.iter_mut().find(is_doubted) {
            port.verify(&mut self.context, Doubt::DISCOVERY);
        }
        self.update_deadline();
    }

    /// Removes a neighbour that discovery lost.
    pub fn neighbour_gone(&mut self, now_ns: u64, port_name: u64) {
        self.context.now_ns = now_ns;
        let (context, hosts) = (&mut self.context, &mut self.hosts);
        let is_gone = |known: &Neighbour| known.port_name == port_name;
        self.ports
            .remove(context, hosts, LogoutReason::Gone, is_gone);
        self.update_deadline();
    }

    /// Logs out of every port, and accepts no login any more. [`LoginMachine::is_closed`] reports
    /// when all ports have answered or timed out.
    pub fn close(&mut self, now_ns: u64) {
        self.context.now_ns = now_ns;
        self.context.is_closing = true;
        self.context.changed = true;
        for port in self.ports.iter_mut() {
            port.close(&mut self.context);
        }
        self.update_deadline();
    }

    /// Reports whether the machine was closed and no LOGO is unanswered.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let leaving = |port: &RemotePort| port.state == PortState::LogoSent;
        self.context.is_closing && !self.ports.iter().any(leaving)
    }

    /// Returns the time at which [`LoginMachine::handle_timeout`] is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.next_ns
    }

    /// Handles expired timers; does nothing before [`LoginMachine::poll_timeout`].
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.next_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        let context = &mut self.context;
        context.now_ns = now_ns;
        context.changed = true;
        for port in self.ports.iter_mut() {
            port.timeout(context);
        }
        for slot in self.ports.slots() {
            if let Some((id, doubt)) = self.ports.verification_timeout(context, slot) {
                self.responder
                    .confirm_logout(context, &mut self.ports, id, &doubt);
            }
        }
        for port in self.ports.iter_mut() {
            port.host.timeout(context);
        }
        self.hosts.timeout(context);
        self.update_deadline();
    }

    /// Updates the next deadline, at the end of each call.
    fn update_deadline(&mut self) {
        if !std::mem::take(&mut self.context.changed) {
            return;
        }
        let ports = self.ports.iter().flat_map(RemotePort::deadlines);
        self.next_ns = ports.chain(self.hosts.deadlines()).min();
        self.may_send = true;
        self.may_have_event = true;
    }

    /// Returns the next frame to send. A frame that the port has no room for may be dropped: it
    /// counts as lost in the network.
    pub fn poll_outbound(&mut self) -> Option<ElsOut> {
        let (context, ports) = (&mut self.context, &mut self.ports);
        let id = context.id?;
        if let Some(answer) = self.responder.answers.pop_front() {
            context.counters.count(LoginCounter::Answers);
            return Some(answer);
        }
        if !self.may_send {
            return None;
        }
        let request = ports
            .unsent_request(context, id)
            .or_else(|| farp::unsent_query(context, ports, id))
            .or_else(|| self.hosts.unsent_request(context, id));
        match request {
            Some(_) => context.counters.count(LoginCounter::Requests),
            None => self.may_send = false,
        }
        request
    }

    /// Returns the next event. Changes of one port that were not polled in time are combined: a
    /// login that began and ended in between is not reported.
    pub fn poll_event(&mut self) -> Option<LoginEvent> {
        if !self.may_have_event {
            return None;
        }
        let event = self.ports.event().or_else(|| self.hosts.event());
        self.may_have_event = event.is_some();
        event
    }

    /// Returns the login with the port of this N_Port_ID.
    #[must_use]
    pub fn login(&self, id: NPortId) -> Option<&PortLogin> {
        self.ports.login(id)
    }

    /// Returns all neighbours and their logins.
    pub fn ports(&self) -> impl Iterator<Item = PortView> + '_ {
        self.ports.iter().map(RemotePort::view)
    }

    /// Resolves a host address. Each N_Port that answers, or is known already, is reported by an
    /// event; a last event reports the end of the resolution, after the first FARP-REQ that was
    /// answered or after the last retry. Without an N_Port_ID of our own it waits for one.
    ///
    /// # Errors
    /// [`TooManyHosts`] if the table is full.
    pub fn resolve(&mut self, now_ns: u64, host: HostAddress) -> Result<(), TooManyHosts> {
        self.context.now_ns = now_ns;
        self.context.changed = true;
        let result = self.hosts.resolve(&self.context, host);
        self.update_deadline();
        result
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

    /// Reports whether a reply with this OX_ID is for this machine.
    #[must_use]
    pub fn owns_ox_id(&self, ox_id: u16) -> bool {
        self.context.exchanges.contains(ox_id)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &LoginCounters {
        &self.context.counters
    }
}
