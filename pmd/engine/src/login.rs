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
//! | `port` | a remote port: its state, timer, exchange and login |
//! | `request`, `process` | what others ask, and the answers |
//! | `reply` | what others answer |
//! | `abort` | exchanges that others abort |
//! | `farp`, `hosts` | host addresses to N_Ports |
//! | `query` | the host of a port |
//! | `frames` | what is sent |
//! | `exchanges` | the OX_IDs of our requests |

mod abort;
mod config;
mod counters;
mod exchanges;
mod farp;
mod frames;
mod hosts;
mod limit;
mod port;
mod process;
mod query;
mod random;
mod reply;
mod request;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use fcvi_frame::MacAddress;
use fcvi_frame::connect::HostAddress;
use fcvi_frame::els::{
    Class3Parameters, ElsCommand, Login, LoginFeatures, Logo, RejectExplanation,
};
use fcvi_frame::fc::NPortId;

pub use config::{FIRST_OX_ID, LoginConfig};
pub use counters::{LoginCounter, LoginCounters};
pub use frames::{Carrier, ElsOut, FipService};
pub use port::{LoginFailure, LogoutReason, Neighbour, PortLogin, PortView};
pub use state::PortState;

use exchanges::ExchangeIds;
use frames::request_header;
use hosts::Hosts;
use limit::PerSecond;
use port::{HostQuery, RemotePort};
use random::Random;
use state::{Event, Next, next};

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
    /// A port that is logged in aborted an exchange that is none of this machine's. It was told
    /// that the exchange is aborted.
    Aborted {
        /// The other port.
        id: NPortId,
        /// True if the other port originated the exchange, false if we did.
        is_originator: bool,
        /// The originator's name for the exchange.
        ox_id: u16,
        /// The responder's name for the exchange.
        rx_id: u16,
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
    hosts: Hosts,
    exchanges: ExchangeIds,
    random: Random,
    answers: VecDeque<ElsOut>,
    aborts: VecDeque<LoginEvent>,
    /// There may be a request to send.
    may_send: bool,
    /// There may be news to tell.
    may_tell: bool,
    next_ns: Option<u64>,
    /// The time of the last call that told it.
    now_ns: u64,
    generation: u64,
    strangers: PerSecond,
    counters: LoginCounters,
}

impl LoginMachine {
    /// A machine without N_Port_ID and neighbours. `seed`: 64 random bits.
    #[must_use]
    pub fn new(config: LoginConfig, seed: u64) -> Self {
        Self {
            id: None,
            is_closing: false,
            ports: vec![None; usize::from(config.max_neighbours)],
            hosts: Hosts::new(&config),
            exchanges: ExchangeIds::new(config.first_ox_id, config.ox_ids, config.r_a_tov_ns),
            random: Random::new(seed),
            answers: VecDeque::with_capacity(usize::from(config.max_answers)),
            aborts: VecDeque::with_capacity(usize::from(config.max_aborts)),
            may_send: false,
            may_tell: false,
            next_ns: None,
            now_ns: 0,
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
        self.hosts.restart(now_ns, id.is_some());
        if let Some(id) = id {
            self.hosts.learn(self.config.host, id);
        }
        self.settle(now_ns);
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
        self.settle(now_ns);
    }

    /// The first beacon of a neighbour was heard: login begins.
    pub fn neighbour_heard(&mut self, now_ns: u64, neighbour: &Neighbour) {
        if let Some(at) = self.found(now_ns, neighbour)
            && !self.is_closing
        {
            self.apply(now_ns, at, Event::Heard, None);
        }
        self.settle(now_ns);
    }

    /// Discovery lost a neighbour.
    pub fn neighbour_gone(&mut self, now_ns: u64, port_name: u64) {
        if let Some(at) = self.find(|port| port.neighbour.port_name == port_name) {
            self.forget(now_ns, at, LogoutReason::Gone);
        }
        self.settle(now_ns);
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
        self.settle(now_ns);
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

    /// Does what is due by now.
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
        self.queries_timeout(now_ns);
        self.hosts_timeout(now_ns);
        self.settle(now_ns);
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
        if let Some(abort) = self.aborts.pop_front() {
            return Some(abort);
        }
        if !self.may_tell {
            return None;
        }
        let news = (0..self.ports.len()).find_map(|at| self.news_of_port(at));
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

    fn find(&self, wanted: impl Fn(&RemotePort) -> bool) -> Option<usize> {
        let wanted =
            |port: &Option<RemotePort>| port.as_ref().is_some_and(|p| !p.gone && wanted(p));
        self.ports.iter().position(wanted)
    }

    fn by_id(&self, id: NPortId) -> Option<usize> {
        self.find(|port| port.neighbour.id == id)
    }

    /// The place of a neighbour, new or not; `None` if there is no room, or if it would be us.
    fn found(&mut self, now_ns: u64, neighbour: &Neighbour) -> Option<usize> {
        let Some(id) = self.id else {
            self.counters.count(LoginCounter::DropNoId);
            return None;
        };
        if neighbour.port_name == self.config.port_name || neighbour.id == id {
            self.counters.count(LoginCounter::DropBadSource);
            return None;
        }
        // One port has one N_Port_ID, and one N_Port_ID has one port: what contradicts is over.
        while let Some(at) = self.find(|port| {
            let (same_name, same_id) = (
                port.neighbour.port_name == neighbour.port_name,
                port.neighbour.id == neighbour.id,
            );
            same_name != same_id
        }) {
            self.forget(now_ns, at, LogoutReason::Gone);
        }
        if let Some(at) = self.by_id(neighbour.id) {
            if let Some(port) = self.ports[at].as_mut() {
                port.neighbour = *neighbour;
            }
            return Some(at);
        }
        let Some(at) = self.ports.iter().position(Option::is_none) else {
            self.counters.count(LoginCounter::DropTableFull);
            return None;
        };
        self.ports[at] = Some(RemotePort::new(*neighbour));
        Some(at)
    }

    /// Takes a neighbour out of the table; it leaves its place when its end has been told.
    fn forget(&mut self, now_ns: u64, at: usize, reason: LogoutReason) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        if port.gone {
            return;
        }
        if let Some(ox_id) = port.ox_id.take() {
            self.exchanges.abandon(now_ns, ox_id);
        }
        if port.login.take().is_some() {
            self.counters.count(LoginCounter::Logouts);
            port.ended = reason;
        }
        port.gone = true;
        port.failed = false;
        port.unsent = false;
        port.deadline_ns = None;
        let (id, has_news) = (port.neighbour.id, port.told.is_some());
        if !has_news {
            self.ports[at] = None;
        }
        self.hosts.port_gone(id);
        self.may_tell = true;
    }

    /// Lets an event happen to a port. `login`: what was agreed, for the events that lead to
    /// [`PortState::LoggedIn`].
    fn apply(&mut self, now_ns: u64, at: usize, event: Event, login: Option<PortLogin>) {
        let Some(port) = self.ports[at].as_mut().filter(|port| !port.gone) else {
            return;
        };
        let larger = self.config.port_name > port.neighbour.port_name;
        let last = port.tries >= self.config.retries;
        let from = port.state;
        let Next::Enter(to) = next(from, event, larger, last) else {
            return;
        };
        if let Some(ox_id) = port.ox_id.take() {
            self.exchanges.abandon(now_ns, ox_id);
        }
        port.host = HostQuery::default();
        if port.login.take().is_some() {
            self.counters.count(LoginCounter::Logouts);
            port.ended = match event {
                Event::LogoReceived => LogoutReason::Logo,
                Event::Logout => LogoutReason::Closed,
                _ => LogoutReason::LoggedInAgain,
            };
        }
        let gave_up = to == PortState::LoggedOut && event == Event::Timeout;
        if (gave_up && from != PortState::LogoSent) || event == Event::Unusable {
            self.counters.count(LoginCounter::LoginFailures);
            port.failed = true;
        }
        let again = event == Event::Timeout && from != PortState::LoggedOut && !gave_up;
        port.tries = match to {
            _ if again => port.tries + 1,
            // The wait for a PLOGI is part of the same attempt.
            PortState::PlogiWait if from == PortState::FlogiSent => port.tries,
            _ => 0,
        };
        port.state = to;
        port.unsent = false;
        let config = &self.config;
        let wait_ns = match to {
            PortState::Known | PortState::LoggedIn => None,
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                Some(config.request_timeout_ns)
            }
            PortState::PlogiWait => Some(config.request_timeout_ns.saturating_mul(2)),
            PortState::LoggedOut if self.is_closing => None,
            PortState::LoggedOut if event == Event::LogoReceived => Some(config.relogin_ns),
            PortState::LoggedOut => Some(config.give_up_ns),
        };
        port.deadline_ns = wait_ns.map(|ns| now_ns.saturating_add(self.random.spread(ns)));
        match to {
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                if event != Event::Unusable {
                    port.trouble = LoginFailure::Timeout;
                }
                if again {
                    self.counters.count(LoginCounter::Retries);
                }
                port.ox_id = self.exchanges.open(now_ns);
                port.unsent = port.ox_id.is_some();
                if port.ox_id.is_none() {
                    self.counters.count(LoginCounter::NoExchange);
                }
            }
            PortState::LoggedIn => {
                if port.neighbour.speaks_fc_vi {
                    port.host = HostQuery::begin(now_ns, config);
                }
                self.generation += 1;
                port.generation = self.generation;
                port.login = login;
                port.failed = false;
                self.counters.count(LoginCounter::Logins);
            }
            PortState::Known | PortState::PlogiWait | PortState::LoggedOut => {}
        }
    }

    /// After anything that changed a state: when is something due next?
    fn settle(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        let ports = self.ports.iter().flatten().filter(|port| !port.gone);
        let ports = ports.flat_map(|port| [port.deadline_ns, port.host.deadline_ns]);
        let ports = ports.flatten();
        self.next_ns = ports.chain(self.hosts.deadlines()).min();
        self.may_send = true;
        self.may_tell = true;
    }

    /// The request of a port's state that was not handed out.
    fn unsent_request(&mut self, id: NPortId) -> Option<ElsOut> {
        let own = self.own_parameters();
        let port = self.ports.iter_mut().flatten().find(|port| port.unsent)?;
        port.unsent = false;
        let header = request_header(id, port.neighbour.id, port.ox_id?);
        let in_fip = |service, payload: &[u8]| {
            ElsOut::new(
                Carrier::Fip(service),
                port.neighbour.enode_mac,
                header,
                payload,
            )
        };
        match port.state {
            PortState::FlogiSent => {
                let mut payload = [0; Login::BYTES];
                for_flogi(&own).emit(ElsCommand::Flogi, &mut payload);
                Some(in_fip(FipService::Flogi, &payload))
            }
            PortState::PlogiSent => {
                let mut payload = [0; Login::BYTES];
                own.emit(ElsCommand::Plogi, &mut payload);
                let destination = MacAddress::vn2vn(port.neighbour.id);
                Some(ElsOut::new(Carrier::Fcoe, destination, header, &payload))
            }
            PortState::LogoSent => {
                let mut payload = [0; Logo::BYTES];
                Logo {
                    n_port_id: id,
                    port_name: own.port_name,
                }
                .emit(&mut payload);
                Some(in_fip(FipService::Logo, &payload))
            }
            PortState::Known
            | PortState::PlogiWait
            | PortState::LoggedIn
            | PortState::LoggedOut => None,
        }
    }

    fn news_of_port(&mut self, at: usize) -> Option<LoginEvent> {
        let port = self.ports[at].as_mut()?;
        let (port_name, id) = (port.neighbour.port_name, port.neighbour.id);
        let current = port.login.map(|login| (login, port.generation));
        let changed = port.told.map(|(_, told)| told) != current.map(|(_, generation)| generation);
        if changed && let Some((told, _)) = port.told.take() {
            let event = LoginEvent::LoggedOut {
                port_name: told.port_name,
                id: told.id,
                reason: port.ended,
            };
            if port.gone {
                self.ports[at] = None;
            }
            return Some(event);
        }
        if std::mem::take(&mut port.failed) {
            let reason = port.trouble;
            return Some(LoginEvent::LoginFailed {
                port_name,
                id,
                reason,
            });
        }
        if changed {
            port.told = current;
        }
        match current {
            Some((login, _)) if changed => Some(LoginEvent::LoggedIn(login)),
            Some(_) => self.news_of_query(at),
            None => None,
        }
    }

    /// What we say of ourselves in PLOGI and its accept.
    fn own_parameters(&self) -> Login {
        let receive_bytes = self.config.own_data_field_bytes();
        Login {
            credit: 10,
            features: LoginFeatures::CONTINUOUS_OFFSET,
            receive_bytes,
            total_sequences: 255,
            relative_offset: 0x1F,
            e_d_tov: config::ms(self.config.e_d_tov_ns),
            port_name: self.config.port_name,
            node_name: self.config.node_name,
            class3: Class3Parameters {
                service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
                receive_bytes,
                concurrent_sequences: 255,
                open_sequences: 1,
            },
        }
    }

    /// What a login with these parameters of a neighbour agrees on, or what is wrong with them.
    fn agree(&self, neighbour: &Neighbour, theirs: &Login) -> Result<PortLogin, RejectExplanation> {
        if theirs.port_name != neighbour.port_name {
            return Err(RejectExplanation::InvalidPortName);
        }
        if !theirs.class3.is_valid() {
            return Err(RejectExplanation::Options);
        }
        let least = u16::try_from(fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES).unwrap_or(u16::MAX);
        let bytes = self
            .config
            .own_data_field_bytes()
            .min(theirs.receive_bytes)
            .min(theirs.class3.receive_bytes)
            .min(neighbour.data_field_bytes())
            & !3;
        if bytes < least {
            return Err(RejectExplanation::ReceiveSize);
        }
        Ok(PortLogin {
            id: neighbour.id,
            port_name: theirs.port_name,
            node_name: theirs.node_name,
            data_field_bytes: bytes,
            sequential: theirs.class3.is_sequential(),
            continuous_offset: theirs.features.contains(LoginFeatures::CONTINUOUS_OFFSET),
        })
    }
}

/// Of what a PLOGI says, the part that an FLOGI between VN_Ports says.
fn for_flogi(own: &Login) -> Login {
    Login {
        total_sequences: 0,
        relative_offset: 0,
        e_d_tov: 0,
        class3: Class3Parameters {
            service: own.class3.service,
            ..Class3Parameters::default()
        },
        ..*own
    }
}
