//! Login between the VN_Ports of a segment: FLOGI, PLOGI, LOGO and the other link
//! services by which N_Ports speak about themselves; and FARP, from host addresses to
//! N_Ports [FCVI P-14, P-15].
//!
//! Sans-IO like the engine, and independent of it. Discovery says who the neighbours
//! are; this machine logs in with each of them, answers what they ask, and tells which
//! of them FC-VI may be spoken with, in frames of which size.
//!
//! ```text
//! neighbour_found, neighbour_heard, neighbour_gone --> +---------+
//! handle_els, handle_bls, handle_timeout ------------> | machine | --> poll_outbound: ElsOut
//! resolve, close ------------------------------------> +---------+ --> poll_event: LoginEvent
//! ```
//!
//! Nothing that others send makes it grow: its tables are as large as its configuration
//! says, requests and news are derived from the state of a port when they are asked for,
//! and the answers that wait are bounded.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `state` | the states of a remote port |
//! | `port`, `table` | a remote port: its state, timer, exchange and login; all of them |
//! | `parameters` | what a login says and agrees on |
//! | `outcome` | requests and news, as the states have them |
//! | `request`, `process` | what others ask, and the answers |
//! | `reply` | what others answer |
//! | `accepted` | requests of others that were believed |
//! | `doubt` | is that port still logged in? |
//! | `abort` | exchanges that others abort |
//! | `farp`, `hosts` | host addresses to N_Ports |
//! | `query` | the host of a port |
//! | `frames` | what is sent |
//! | `exchanges` | the OX_IDs of our requests |

mod abort;
mod accepted;
mod config;
mod counters;
mod doubt;
mod exchanges;
mod farp;
mod frames;
mod hosts;
mod limit;
mod outcome;
mod parameters;
mod port;
mod process;
mod query;
mod random;
mod reply;
mod request;
mod state;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;

pub use config::{FIRST_OX_ID, LoginConfig};
pub use counters::{LoginCounter, LoginCounters};
pub use frames::{Carrier, ElsOut, FipService};
pub use port::{LoginFailure, LogoutReason, Neighbour, PortLogin, PortView};
pub use state::PortState;

use accepted::Accepted;
use exchanges::ExchangeIds;
use hosts::Hosts;
use limit::PerSecond;
use port::RemotePort;
use random::Random;
use state::Event;

/// What the machine tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEvent {
    /// FC-VI may be spoken with this port.
    LoggedIn(PortLogin),
    /// It may no more: connections to this port are lost.
    LoggedOut {
        /// Its Port_Name.
        port_name: u64,
        /// The N_Port_ID that it had.
        id: NPortId,
        /// Why.
        reason: LogoutReason,
    },
    /// No login came about. Another one is tried later.
    LoginFailed {
        /// Its Port_Name.
        port_name: u64,
        /// Its N_Port_ID.
        id: NPortId,
        /// Why.
        reason: LoginFailure,
    },
    /// The host that a port which is logged in belongs to.
    Host {
        /// The port.
        id: NPortId,
        /// Its host.
        host: HostAddress,
    },
    /// An answer to [`LoginMachine::resolve`].
    Resolved {
        /// The host address that was asked for.
        host: HostAddress,
        /// One of the host's N_Ports, each told once; `None` when the question is over: those
        /// told before are all.
        id: Option<NPortId>,
    },
}

/// There is no room to ask for another host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHosts;

impl std::fmt::Display for TooManyHosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many host addresses are being resolved")
    }
}

impl std::error::Error for TooManyHosts {}

/// The logins of one N_Port, and the N_Ports of other hosts.
#[derive(Debug)]
pub struct LoginMachine {
    config: LoginConfig,
    id: Option<NPortId>,
    is_closing: bool,
    ports: Vec<Option<RemotePort>>,
    /// The N_Port_ID of each place of `ports`, so that a flood is looked up in few cache lines;
    /// 0 where there is no neighbour.
    ids: Vec<NPortId>,
    hosts: Hosts,
    exchanges: ExchangeIds,
    accepted: Accepted,
    random: Random,
    answers: VecDeque<ElsOut>,
    /// A port or a host changed since `next_ns` was found.
    changed: bool,
    /// There may be a request to send.
    may_send: bool,
    /// There may be news to tell.
    may_tell: bool,
    next_ns: Option<u64>,
    generation: u64,
    strangers: PerSecond,
    counters: LoginCounters,
}

impl LoginMachine {
    /// A machine without N_Port_ID and neighbours. `seed`: 64 random bits.
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
            accepted: Accepted::new(config.max_neighbours, config.r_a_tov_ns),
            random,
            answers: VecDeque::with_capacity(usize::from(config.max_answers)),
            changed: false,
            may_send: false,
            may_tell: false,
            next_ns: None,
            generation: 0,
            strangers: PerSecond::default(),
            counters: LoginCounters::default(),
            config,
        }
    }

    /// Discovery claimed this N_Port_ID for us, or lost it. Another one than before ends all
    /// logins and forgets the neighbours, whom discovery is to report again; host addresses
    /// that are being resolved are asked for again.
    pub fn set_id(&mut self, now_ns: u64, id: Option<NPortId>) {
        if self.id == id {
            return;
        }
        self.id = id;
        for at in 0..self.ports.len() {
            self.forget(now_ns, at, LogoutReason::IdLost);
        }
        self.answers.clear();
        self.changed = true;
        self.hosts.restart(now_ns, id.is_some());
        if let Some(id) = id {
            self.hosts.learn(self.config.host, id);
        }
        self.settle();
    }

    /// Our N_Port_ID.
    #[must_use]
    pub fn id(&self) -> Option<NPortId> {
        self.id
    }

    /// Discovery found a neighbour, or knows something new of one. Without an N_Port_ID of our
    /// own there are no neighbours.
    pub fn neighbour_found(&mut self, now_ns: u64, neighbour: &Neighbour) {
        self.found(now_ns, neighbour);
        self.settle();
    }

    /// The first beacon of a neighbour was heard: login begins.
    pub fn neighbour_heard(&mut self, now_ns: u64, neighbour: &Neighbour) {
        if let Some(at) = self.found(now_ns, neighbour)
            && !self.is_closing
        {
            self.apply(now_ns, at, Event::Heard, None);
        }
        self.settle();
    }

    /// Discovery lost a neighbour.
    pub fn neighbour_gone(&mut self, now_ns: u64, port_name: u64) {
        if let Some(at) = self.find(|port| port.neighbour.port_name == port_name) {
            self.forget(now_ns, at, LogoutReason::Gone);
        }
        self.settle();
    }

    /// Logs out of every port, and accepts no login any more. [`LoginMachine::is_closed`]
    /// tells when everybody has answered, or was given up.
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
        self.settle();
    }

    /// True if no LOGO is unanswered.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let leaving = |port: &RemotePort| port.state == PortState::LogoSent && !port.gone;
        self.is_closing && !self.ports.iter().flatten().any(leaving)
    }

    /// When [`LoginMachine::handle_timeout`] is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.next_ns
    }

    /// Does what is due by now; nothing before [`LoginMachine::poll_timeout`].
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
        self.doubts_timeout(now_ns);
        self.queries_timeout(now_ns);
        self.hosts_timeout(now_ns);
        self.settle();
    }

    /// The next frame to be sent. What the port has no room for may be forgotten: it counts as
    /// lost on the way.
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
            .or_else(|| self.unsent_doubt(id))
            .or_else(|| self.unsent_query(id))
            .or_else(|| self.unsent_farp(id));
        match request {
            Some(_) => self.counters.count(LoginCounter::Requests),
            None => self.may_send = false,
        }
        request
    }

    /// The next thing to tell. News of one port that were not asked for in time are told as the
    /// outcome: a login that came and went between is not told at all.
    pub fn poll_event(&mut self) -> Option<LoginEvent> {
        if !self.may_tell {
            return None;
        }
        // The end of a port first: it may be back already, in another place.
        let news = (0..self.ports.len()).find_map(|at| self.news_of_gone(at));
        let news = news.or_else(|| (0..self.ports.len()).find_map(|at| self.news_of_port(at)));
        let news = news.or_else(|| self.news_of_hosts());
        self.may_tell = news.is_some();
        news
    }

    /// The login with the port of this N_Port_ID.
    #[must_use]
    pub fn login(&self, id: NPortId) -> Option<&PortLogin> {
        let at = self.by_id(id)?;
        self.ports[at].as_ref()?.login.as_ref()
    }

    /// Every neighbour and its login.
    pub fn ports(&self) -> impl Iterator<Item = PortView> + '_ {
        let known = self.ports.iter().flatten().filter(|port| !port.gone);
        known.map(|port| PortView {
            neighbour: port.neighbour,
            state: port.state,
            login: port.login,
            heard_ns: port.heard_ns,
            host: port.host.host,
            asks_for_host: port.host.is_open(),
        })
    }

    /// Whether a reply with this OX_ID is for this machine.
    #[must_use]
    pub fn owns_ox_id(&self, ox_id: u16) -> bool {
        self.exchanges.contains(ox_id)
    }

    /// What happened.
    #[must_use]
    pub fn counters(&self) -> &LoginCounters {
        &self.counters
    }
}
