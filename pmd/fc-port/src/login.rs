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
//! | `state` | the states of a remote port |
//! | `port`, `table` | a remote port: its state, timer, exchange and login; the table of them |
//! | `parameters` | login parameters and their negotiation |
//! | `port_output` | requests and events due, derived from the states |
//! | `request`, `process` | requests of other ports, and the answers |
//! | `reply` | replies to our requests |
//! | `accepted` | accepted requests, against duplicates |
//! | `login_verification` | verification that a port is still logged in |
//! | `abort` | exchanges that other ports abort |
//! | `farp`, `hosts` | resolution of host addresses to N_Ports |
//! | `query` | the host address of a port |
//! | `frames` | frames to send |
//! | `exchanges` | the OX_IDs of our requests |
//! | `synonym` | the checks that detect stale frames, by name |

mod abort;
mod accepted;
mod config;
mod counters;
mod exchanges;
mod farp;
mod frames;
mod hosts;
mod login_verification;
mod parameters;
mod port;
mod port_output;
mod process;
mod query;
mod reply;
mod request;
mod state;
mod synonym;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

pub use config::LoginConfig;
pub use counters::{LoginCounter, LoginCounters};
pub use frames::{Carrier, ElsOut, FipService};
pub use port::{LoginFailure, LogoutReason, PortLogin, PortView};
pub use state::PortState;

use crate::Neighbour;
use crate::random::Random;
use crate::rate_limiter::RateLimiter;
use accepted::AcceptedRequests;
use exchanges::ExchangeIds;
use hosts::Hosts;
use port::RemotePort;
use state::Event;

/// An event of the login machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEvent {
    /// The port is logged in: the FC-4 protocol may be used with it.
    LoggedIn(PortLogin),
    /// The port is not logged in any more: its exchanges with us have ended.
    LoggedOut {
        /// Its Port_Name.
        port_name: u64,
        /// The N_Port_ID that it had.
        id: NPortId,
        /// Why.
        reason: LogoutReason,
    },
    /// A login failed. Another one is tried later.
    LoginFailed {
        /// Its Port_Name.
        port_name: u64,
        /// Its N_Port_ID.
        id: NPortId,
        /// Why.
        reason: LoginFailure,
    },
    /// The host that a logged-in port belongs to.
    Host {
        /// The port.
        id: NPortId,
        /// Its host.
        host: HostAddress,
    },
    /// An answer to [`LoginMachine::resolve`].
    Resolved {
        /// The resolved host address.
        host: HostAddress,
        /// One of the host's N_Ports, each reported once; `None` at the end of the resolution,
        /// after which no further port follows.
        id: Option<NPortId>,
    },
}

/// The table of host addresses that are being resolved is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHosts;

impl std::fmt::Display for TooManyHosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many host addresses are being resolved")
    }
}

impl std::error::Error for TooManyHosts {}

/// Logins of one N_Port, and the N_Ports of other hosts.
#[derive(Debug)]
pub struct LoginMachine {
    config: LoginConfig,
    id: Option<NPortId>,
    is_closing: bool,
    ports: Vec<Option<RemotePort>>,
    /// The N_Port_ID of each slot of `ports`, so that a flood is looked up in few cache lines; 0 in
    /// free slots.
    ids: Vec<NPortId>,
    hosts: Hosts,
    exchanges: ExchangeIds,
    accepted: AcceptedRequests,
    random: Random,
    answers: VecDeque<ElsOut>,
    /// A port or a host changed since `next_ns` was found.
    changed: bool,
    /// A request may be due.
    may_send: bool,
    /// An event may be due.
    may_have_event: bool,
    next_ns: Option<u64>,
    generation: u64,
    unlogged_answers: RateLimiter,
    counters: LoginCounters,
}

impl LoginMachine {
    /// Creates a machine without N_Port_ID and neighbours. `seed`: 64 random bits.
    #[must_use]
    pub fn new(config: LoginConfig, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            id: None,
            is_closing: false,
            ports: vec![None; usize::from(config.max_neighbours)],
            ids: vec![NPortId::default(); usize::from(config.max_neighbours)],
            hosts: Hosts::new(&config),
            exchanges: ExchangeIds::new(
                config.first_ox_id,
                config.ox_ids,
                config.max_neighbours,
                random.next(),
                config.r_a_tov_ns,
            ),
            accepted: AcceptedRequests::new(config.max_neighbours, config.r_a_tov_ns),
            random,
            answers: VecDeque::with_capacity(usize::from(config.max_answers)),
            changed: false,
            may_send: false,
            may_have_event: false,
            next_ns: None,
            generation: 0,
            unlogged_answers: RateLimiter::default(),
            counters: LoginCounters::default(),
            config,
        }
    }

    /// Sets the N_Port_ID that discovery claimed or lost. A change ends all logins and removes the
    /// neighbours, which discovery reports again; pending resolutions of host addresses are
    /// restarted.
    pub fn set_id(&mut self, now_ns: u64, id: Option<NPortId>) {
        if self.id == id {
            return;
        }
        self.id = id;
        for at in 0..self.ports.len() {
            self.remove(now_ns, at, LogoutReason::IdLost);
        }
        self.answers.clear();
        self.changed = true;
        self.hosts.restart(now_ns, id.is_some());
        if let (Some(id), Some(host)) = (id, self.config.host) {
            self.hosts.add_port(host, id);
        }
        self.update_deadline();
    }

    /// Returns our N_Port_ID.
    #[must_use]
    pub fn id(&self) -> Option<NPortId> {
        self.id
    }

    /// Adds a neighbour that discovery found, or updates it. Ignored without an N_Port_ID of our
    /// own.
    pub fn neighbour_found(&mut self, now_ns: u64, neighbour: &Neighbour) {
        self.add_or_update(now_ns, neighbour);
        self.update_deadline();
    }

    /// Starts the login with a neighbour, whose first beacon was received.
    pub fn neighbour_ready(&mut self, now_ns: u64, neighbour: &Neighbour) {
        if let Some(at) = self.add_or_update(now_ns, neighbour)
            && !self.is_closing
        {
            self.apply(now_ns, at, Event::Ready, None);
        }
        self.update_deadline();
    }

    /// Removes a neighbour that discovery lost.
    pub fn neighbour_gone(&mut self, now_ns: u64, port_name: u64) {
        if let Some(at) = self.find(|port| port.neighbour.port_name == port_name) {
            self.remove(now_ns, at, LogoutReason::Gone);
        }
        self.update_deadline();
    }

    /// Logs out of every port, and accepts no login any more. [`LoginMachine::is_closed`] reports
    /// when all ports have answered or timed out.
    pub fn close(&mut self, now_ns: u64) {
        self.is_closing = true;
        for at in 0..self.ports.len() {
            self.apply(now_ns, at, Event::Logout, None);
            if let Some(port) = self.ports[at].as_mut()
                && port.state == PortState::LoggedOut
            {
                port.deadline_ns = None;
            }
        }
        self.changed = true;
        self.update_deadline();
    }

    /// Reports whether the machine was closed and no LOGO is unanswered.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let leaving = |port: &RemotePort| port.state == PortState::LogoSent && !port.removed;
        self.is_closing && !self.ports.iter().flatten().any(leaving)
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
        for at in 0..self.ports.len() {
            let due =
                self.ports[at].is_some_and(|port| port.deadline_ns.is_some_and(|d| d <= now_ns));
            if due {
                self.apply(now_ns, at, Event::Timeout, None);
            }
        }
        self.verifications_timeout(now_ns);
        self.queries_timeout(now_ns);
        self.hosts_timeout(now_ns);
        self.update_deadline();
    }

    /// Returns the next frame to send. A frame that the port has no room for may be dropped: it
    /// counts as lost in the network.
    pub fn poll_outbound(&mut self) -> Option<ElsOut> {
        let id = self.id?;
        if let Some(answer) = self.answers.pop_front() {
            self.counters.count(LoginCounter::Answers);
            return Some(answer);
        }
        if !self.may_send {
            return None;
        }
        let request = self
            .unsent_request(id)
            .or_else(|| self.unsent_verification(id))
            .or_else(|| self.unsent_query(id))
            .or_else(|| self.unsent_farp(id));
        match request {
            Some(_) => self.counters.count(LoginCounter::Requests),
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
        // Ends of logins first: the port may be back already, in another slot.
        let event = (0..self.ports.len()).find_map(|at| self.removed_port_event(at));
        let event = event.or_else(|| (0..self.ports.len()).find_map(|at| self.port_event(at)));
        let event = event.or_else(|| self.resolution_event());
        self.may_have_event = event.is_some();
        event
    }

    /// Returns the login with the port of this N_Port_ID.
    #[must_use]
    pub fn login(&self, id: NPortId) -> Option<&PortLogin> {
        let at = self.by_id(id)?;
        self.ports[at].as_ref()?.login.as_ref()
    }

    /// Returns all neighbours and their logins.
    pub fn ports(&self) -> impl Iterator<Item = PortView> + '_ {
        let known = self.ports.iter().flatten().filter(|port| !port.removed);
        known.map(|port| PortView {
            neighbour: port.neighbour,
            state: port.state,
            login: port.login,
            last_rx_ns: port.last_rx_ns,
            host: port.host.host,
            host_query_pending: port.host.is_open(),
        })
    }

    /// Reports whether a reply with this OX_ID is for this machine.
    #[must_use]
    pub fn owns_ox_id(&self, ox_id: u16) -> bool {
        self.exchanges.contains(ox_id)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &LoginCounters {
        &self.counters
    }
}
