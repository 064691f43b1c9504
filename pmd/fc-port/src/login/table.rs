//! The table of remote ports, and the events applied to it.

use fcvi_frame::fc::NPortId;

use super::LoginMachine;
use super::counters::LoginCounter;
use super::exchanges::{ExchangeIds, Share};
use super::port::{HostQuery, LoginFailure, LogoutReason, PortLogin, RemotePort};
use super::state::{Event, Next, PortState, next};
use crate::Neighbour;

impl LoginMachine {
    pub(super) fn find(&self, wanted: impl Fn(&RemotePort) -> bool) -> Option<usize> {
        let wanted =
            |port: &Option<RemotePort>| port.as_ref().is_some_and(|p| !p.removed && wanted(p));
        self.ports.iter().position(wanted)
    }

    pub(super) fn by_id(&self, id: NPortId) -> Option<usize> {
        let none = NPortId::default();
        let known = |known: &NPortId| *known == id && id != none;
        self.ids.iter().position(known)
    }

    /// Adds or updates a neighbour and returns its slot; `None` if the table is full, or if it
    /// would be this port.
    pub(super) fn add_or_update(&mut self, now_ns: u64, neighbour: &Neighbour) -> Option<usize> {
        let Some(id) = self.id else {
            self.counters.count(LoginCounter::DropNoId);
            return None;
        };
        let invalid = [id, NPortId::default(), NPortId::BROADCAST];
        if neighbour.port_name == self.config.port_name || invalid.contains(&neighbour.id) {
            self.counters.count(LoginCounter::DropBadSource);
            return None;
        }
        // A port has one N_Port_ID, and an N_Port_ID has one port: contradicting entries end.
        while let Some(at) = self.find(|port| {
            let (same_name, same_id) = (
                port.neighbour.port_name == neighbour.port_name,
                port.neighbour.id == neighbour.id,
            );
            same_name != same_id
        }) {
            self.remove(now_ns, at, LogoutReason::Gone);
        }
        let mut is_reduced = false;
        if let Some(at) = self.by_id(neighbour.id)
            && let Some(port) = self.ports[at].as_mut()
        {
            port.neighbour = *neighbour;
            let bytes = neighbour.data_field_bytes();
            is_reduced = port
                .login
                .is_some_and(|login| login.data_field_bytes > bytes);
            if !is_reduced {
                return Some(at);
            }
            self.remove(now_ns, at, LogoutReason::SizeReduced);
        }
        let Some(at) = self.ports.iter().position(Option::is_none) else {
            self.counters.count(LoginCounter::DropTableFull);
            return None;
        };
        self.ports[at] = Some(RemotePort::new(now_ns, *neighbour));
        self.ids[at] = neighbour.id;
        if is_reduced && !self.is_closing {
            self.apply(now_ns, at, Event::Ready, None);
        }
        Some(at)
    }

    /// Removes a neighbour; its slot is freed when its end has been reported.
    pub(super) fn remove(&mut self, now_ns: u64, at: usize, reason: LogoutReason) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        if port.removed {
            return;
        }
        end_exchange(&mut self.exchanges, now_ns, port);
        port.end_verification(&mut self.exchanges, now_ns);
        if port.login.take().is_some() {
            self.counters.count(LoginCounter::Logouts);
            port.logout_reason = reason;
        }
        self.ids[at] = NPortId::default();
        self.changed = true;
        port.removed = true;
        port.failure_pending = false;
        port.unsent = false;
        port.deadline_ns = None;
        let (id, was_reported) = (port.neighbour.id, port.reported.is_some());
        if !was_reported {
            self.ports[at] = None;
        }
        if reason != LogoutReason::SizeReduced {
            self.hosts.port_gone(id);
        }
    }

    /// Applies an event to a port. `login`: the negotiated parameters, for events that lead to
    /// [`PortState::LoggedIn`].
    pub(super) fn apply(&mut self, now_ns: u64, at: usize, event: Event, login: Option<PortLogin>) {
        let Some(port) = self.ports[at].as_mut().filter(|port| !port.removed) else {
            return;
        };
        if !matches!(event, Event::Ready | Event::Logout | Event::Timeout) {
            port.last_rx_ns = now_ns;
        }
        let larger = self.config.port_name > port.neighbour.port_name;
        let last = port.tries >= self.config.retries;
        let from = port.state;
        let Next::Enter(to) = next(from, event, larger, last) else {
            return;
        };
        self.changed = true;
        end_exchange(&mut self.exchanges, now_ns, port);
        port.end_verification(&mut self.exchanges, now_ns);
        port.confirmed_ns = None;
        port.host = HostQuery::default();
        if port.login.take().is_some() {
            self.counters.count(LoginCounter::Logouts);
            port.logout_reason = match event {
                Event::LogoReceived => LogoutReason::Logo,
                Event::NotConfirmed => LogoutReason::NotConfirmed,
                Event::Logout => LogoutReason::Closed,
                _ => LogoutReason::LoggedInAgain,
            };
        }
        let gave_up = to == PortState::LoggedOut && event == Event::Timeout;
        if (gave_up && from != PortState::LogoSent) || event == Event::Unusable {
            self.counters.count(LoginCounter::LoginFailures);
            port.failure_pending = true;
        }
        let again = event == Event::Timeout && from != PortState::LoggedOut && !gave_up;
        port.tries = match to {
            _ if again => port.tries + 1,
            // The wait for a PLOGI is part of the same attempt.
            PortState::PlogiWait if from == PortState::FlogiSent => port.tries,
            _ => 0,
        };
        port.state = to;
        self.enter(now_ns, at, event, again, login);
    }

    /// Starts the timer and the request of the state that a port just entered.
    fn enter(
        &mut self,
        now_ns: u64,
        at: usize,
        event: Event,
        again: bool,
        login: Option<PortLogin>,
    ) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        let to = port.state;
        let config = &self.config;
        let wait_ns = match to {
            PortState::Known | PortState::LoggedIn => None,
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                Some(config.request_timeout_ns)
            }
            PortState::PlogiWait => Some(config.request_timeout_ns.saturating_mul(2)),
            PortState::LoggedOut if self.is_closing => None,
            PortState::LoggedOut if matches!(event, Event::LogoReceived | Event::NotConfirmed) => {
                Some(config.relogin_ns)
            }
            PortState::LoggedOut => Some(config.give_up_ns),
        };
        port.deadline_ns = wait_ns.map(|ns| now_ns.saturating_add(self.random.with_jitter(ns)));
        match to {
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                if event != Event::Unusable {
                    port.last_failure = LoginFailure::Timeout;
                }
                if again {
                    self.counters.count(LoginCounter::Retries);
                }
                port.ox_id = self.exchanges.open(now_ns, Share::Neighbour(at));
                port.unsent = port.ox_id.is_some();
                if port.ox_id.is_none() {
                    self.counters.count(LoginCounter::NoExchange);
                }
            }
            PortState::LoggedIn => {
                if port.neighbour.supports_fc4 && config.host.is_some() {
                    port.host = HostQuery::begin(now_ns, config);
                }
                self.generation += 1;
                port.generation = self.generation;
                port.login = login;
                port.failure_pending = false;
                self.counters.count(LoginCounter::Logins);
            }
            PortState::Known | PortState::PlogiWait | PortState::LoggedOut => {}
        }
    }

    /// Updates the next deadline, at the end of each call.
    pub(super) fn update_deadline(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let ports = self.ports.iter().flatten().filter(|port| !port.removed);
        let ports = ports.flat_map(|port| {
            let verification_ns = port
                .verification
                .map(|verification| verification.deadline_ns);
            [port.deadline_ns, port.host.deadline_ns, verification_ns]
        });
        let ports = ports.flatten();
        self.next_ns = ports.chain(self.hosts.deadlines()).min();
        self.may_send = true;
        self.may_have_event = true;
    }
}

/// Ends the exchange of a port's request; that of a request that was not handed out is free at
/// once.
fn end_exchange(exchanges: &mut ExchangeIds, now_ns: u64, port: &mut RemotePort) {
    let unsent = std::mem::take(&mut port.unsent);
    match port.ox_id.take() {
        Some(ox_id) if unsent => exchanges.cancel(ox_id),
        Some(ox_id) => exchanges.end(now_ns, ox_id),
        None => {}
    }
}
