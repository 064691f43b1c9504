//! One remote port: its state, and the requests and events that follow from it.

use fcvi_frame::els::ElsCommand;
use fcvi_frame::fc::NPortId;

use super::config::LoginConfig;
use super::context::Context;
use super::counters::LoginCounter;
use super::event::{LoginEvent, LoginFailure, LogoutReason, PortLogin, PortView};
use super::frames::{Carrier, ElsOut, FipService, fcoe_request, request_header};
use super::login_verification::{Doubt, LoginVerification};
use super::own_request::OwnRequest;
use super::query::HostQuery;
use super::state::{Event, Next, PortState, next};
use crate::Neighbour;
use crate::rate_limiter::RateLimiter;

/// A neighbour, and the login with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePort {
    pub(super) neighbour: Neighbour,
    /// Its slot in the table, which has a share of the OX_IDs.
    pub(super) slot: usize,
    /// Time at which it was found, or last sent a frame that caused an event.
    last_rx_ns: u64,
    pub(super) state: PortState,
    /// Deadline of the state.
    deadline_ns: Option<u64>,
    /// Retries of the state's request.
    tries: u8,
    /// The state's request.
    pub(super) request: OwnRequest,
    /// When the other port's last PLOGI was accepted.
    pub(super) plogi_ns: Option<u64>,
    pub(super) login: Option<PortLogin>,
    pub(super) verification: LoginVerification,
    /// Distinguishes logins with the same parameters.
    generation: u64,
    /// The login that was reported to the caller, and its generation.
    reported: Option<(PortLogin, u64)>,
    /// Why the reported login ended.
    logout_reason: LogoutReason,
    /// The last refusal or invalid reply since the state changed.
    pub(super) last_failure: LoginFailure,
    /// A failure that was not reported yet.
    failure_pending: bool,
    /// No neighbour any more; kept until its end was reported.
    pub(super) removed: bool,
    /// LOGOs that it was sent because it is not logged in.
    pub(super) logos: RateLimiter,
    pub(super) host: HostQuery,
}

impl RemotePort {
    pub(super) fn new(now_ns: u64, slot: usize, neighbour: Neighbour) -> Self {
        Self {
            neighbour,
            slot,
            last_rx_ns: now_ns,
            state: PortState::Known,
            deadline_ns: None,
            tries: 0,
            request: OwnRequest::None,
            plogi_ns: None,
            login: None,
            verification: LoginVerification::default(),
            generation: 0,
            reported: None,
            logout_reason: LogoutReason::Gone,
            last_failure: LoginFailure::Timeout,
            failure_pending: false,
            removed: false,
            logos: RateLimiter::default(),
            host: HostQuery::default(),
        }
    }

    /// Reports whether a login or a LOGO is in progress.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            self.state,
            PortState::FlogiSent
                | PortState::PlogiWait
                | PortState::PlogiSent
                | PortState::LogoSent
        )
    }

    pub(super) fn view(&self) -> PortView {
        PortView {
            neighbour: self.neighbour,
            state: self.state,
            login: self.login,
            last_rx_ns: self.last_rx_ns,
            host: self.host.host,
            host_query_pending: self.host.is_open(),
        }
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> {
        let verification_ns = self.verification.deadline_ns();
        [self.deadline_ns, self.host.deadline_ns, verification_ns]
            .into_iter()
            .flatten()
    }

    /// Handles the timeout of the state.
    pub(super) fn timeout(&mut self, context: &mut Context) {
        if self.deadline_ns.is_some_and(|at| at <= context.now_ns) {
            self.apply(context, Event::Timeout, None);
        }
    }

    /// Logs out, and ends the wait for another login.
    pub(super) fn close(&mut self, context: &mut Context) {
        self.apply(context, Event::Logout, None);
        if self.state == PortState::LoggedOut {
            self.deadline_ns = None;
        }
    }

    /// Removes the neighbour. Returns true if no end of a login is to be reported.
    pub(super) fn remove(&mut self, context: &mut Context, reason: LogoutReason) -> bool {
        self.end_login(context, reason);
        self.removed = true;
        self.failure_pending = false;
        self.deadline_ns = None;
        self.reported.is_none()
    }

    /// Verifies the login, if there is one.
    pub(super) fn verify(&mut self, context: &mut Context, doubt: Doubt) {
        if self.login.is_some() {
            self.verification.start(context, self.slot, doubt);
        }
    }

    /// Ends all that is in progress in the current state.
    fn end_login(&mut self, context: &mut Context, reason: LogoutReason) {
        context.changed = true;
        self.request.end(context);
        self.verification.end(context);
        self.host = HostQuery::default();
        if self.login.take().is_some() {
            context.counters.count(LoginCounter::Logouts);
            self.logout_reason = reason;
        }
    }

    /// Applies an event. `login`: the negotiated parameters, for events that lead to
    /// [`PortState::LoggedIn`].
    pub(super) fn apply(&mut self, context: &mut Context, event: Event, login: Option<PortLogin>) {
        if !matches!(event, Event::Ready | Event::Logout | Event::Timeout) {
            self.last_rx_ns = context.now_ns;
        }
        let larger = context.config.port_name > self.neighbour.port_name;
        let last = self.tries >= context.config.retries;
        let from = self.state;
        let Next::Enter(to) = next(from, event, larger, last) else {
            return;
        };
        let reason = match event {
            Event::LogoReceived => LogoutReason::Logo,
            Event::NotConfirmed => LogoutReason::NotConfirmed,
            Event::Logout => LogoutReason::Closed,
            _ => LogoutReason::LoggedInAgain,
        };
        self.end_login(context, reason);
        let gave_up = to == PortState::LoggedOut && event == Event::Timeout;
        if (gave_up && from != PortState::LogoSent) || event == Event::Unusable {
            context.counters.count(LoginCounter::LoginFailures);
            self.failure_pending = true;
        }
        let again = event == Event::Timeout && from != PortState::LoggedOut && !gave_up;
        self.tries = match to {
            _ if again => self.tries + 1,
            // The wait for a PLOGI is part of the same attempt.
            PortState::PlogiWait if from == PortState::FlogiSent => self.tries,
            _ => 0,
        };
        self.state = to;
        self.enter(context, event, again, login);
    }

    /// Starts the timer and the request of the state that was just entered.
    fn enter(
        &mut self,
        context: &mut Context,
        event: Event,
        again: bool,
        login: Option<PortLogin>,
    ) {
        let config = &context.config;
        let wait_ns = match self.state {
            PortState::Known | PortState::LoggedIn => None,
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                Some(config.request_timeout_ns)
            }
            PortState::PlogiWait => Some(config.request_timeout_ns.saturating_mul(2)),
            PortState::LoggedOut if context.is_closing => None,
            PortState::LoggedOut if matches!(event, Event::LogoReceived | Event::NotConfirmed) => {
                Some(config.relogin_ns)
            }
            PortState::LoggedOut => Some(config.give_up_ns),
        };
        self.deadline_ns = wait_ns.map(|ns| context.after_jitter(ns));
        match self.state {
            PortState::FlogiSent | PortState::PlogiSent | PortState::LogoSent => {
                if event != Event::Unusable {
                    self.last_failure = LoginFailure::Timeout;
                }
                if again {
                    context.counters.count(LoginCounter::Retries);
                }
                self.request = OwnRequest::open(context, self.slot);
            }
            PortState::LoggedIn => {
                if self.neighbour.supports_fc4 && context.config.host.is_some() {
                    self.host = HostQuery::begin(context);
                }
                self.generation += 1;
                self.login = login;
                self.failure_pending = false;
                context.counters.count(LoginCounter::Logins);
            }
            PortState::Known | PortState::PlogiWait | PortState::LoggedOut => {}
        }
    }

    /// Returns the request of the state if it was not handed out. `id`: our N_Port_ID.
    pub(super) fn unsent_request(&mut self, config: &LoginConfig, id: NPortId) -> Option<ElsOut> {
        let ox_id = self.request.take_unsent()?;
        let Neighbour {
            id: to, enode_mac, ..
        } = self.neighbour;
        let in_fip = |service, payload: &[u8]| {
            let header = request_header(id, to, ox_id);
            ElsOut::new(Carrier::Fip(service), enode_mac, header, payload)
        };
        let login = |command| config.login_payload(command, command);
        match self.state {
            PortState::FlogiSent => Some(in_fip(FipService::Flogi, &login(ElsCommand::Flogi))),
            PortState::PlogiSent => Some(fcoe_request(id, to, ox_id, &login(ElsCommand::Plogi))),
            PortState::LogoSent => Some(in_fip(FipService::Logo, &config.logo_payload(id))),
            PortState::Known
            | PortState::PlogiWait
            | PortState::LoggedIn
            | PortState::LoggedOut => None,
        }
    }

    /// Returns the next event: what of the state was not reported.
    pub(super) fn event(&mut self) -> Option<LoginEvent> {
        let Neighbour { id, port_name, .. } = self.neighbour;
        let generation = self.login.map(|_| self.generation);
        let changed = self.reported.map(|(_, reported)| reported) != generation;
        if changed && let Some((reported, _)) = self.reported.take() {
            return Some(LoginEvent::LoggedOut {
                port_name: reported.port_name,
                id: reported.id,
                reason: self.logout_reason,
            });
        }
        if std::mem::take(&mut self.failure_pending) {
            let reason = self.last_failure;
            return Some(LoginEvent::LoginFailed {
                port_name,
                id,
                reason,
            });
        }
        let login = self.login?;
        if changed {
            self.reported = Some((login, self.generation));
            return Some(LoginEvent::LoggedIn(login));
        }
        let host = self.host.event()?;
        Some(LoginEvent::Host { id, host })
    }
}
