//! Requests of a neighbour: its logins and logouts, and what only a logged-in port may request.

use fcvi_frame::els::{
    ACCEPT, Adisc, ElsCommand, Login, Logo, READ_TIMEOUT_VALUES, RejectExplanation, Rrq, RtvAccept,
};

use super::config::{LoginConfig, ms};
use super::context::Context;
use super::counters::LoginCounter;
use super::event::PortLogin;
use super::frames::{ElsOut, Received};
use super::login_verification::Doubt;
use super::port::RemotePort;
use super::process;
use super::refusal::{
    Answer, Refused, busy, in_progress, malformed, unsupported, wrong_parameters,
};
use super::state::{Event, PortState};
use super::synonym::{Check, skips};

impl RemotePort {
    /// Answers a request. Returns no answer if it is deferred until the login is verified.
    pub(super) fn answer(&mut self, context: &mut Context, request: &Received<'_>) -> Answer {
        match (request.command, self.login) {
            (ElsCommand::Flogi, _) => self.take_flogi(context, request),
            (ElsCommand::Plogi, _) => self.take_plogi(context, request),
            (ElsCommand::Logo, _) => self.take_logo(context, request),
            _ if !request.needs_login() => Err(unsupported()),
            (_, Some(login)) => serve(&context.config, &login, request).map(Some),
            (_, None) => Err(busy()),
        }
    }

    fn take_flogi(&mut self, context: &mut Context, request: &Received<'_>) -> Answer {
        let theirs = Login::parse(request.command, request.payload).map_err(|_| malformed())?;
        if theirs.port_name != self.neighbour.port_name {
            return Err(wrong_parameters(RejectExplanation::InvalidPortName));
        }
        if context.is_closing || self.state == PortState::LogoSent {
            return Err(busy());
        }
        if self.login.is_some() && !skips(Check::ConfirmedLogin) {
            self.defer(context, request, Event::FlogiReceived, None);
            return Ok(None);
        }
        self.apply(context, Event::FlogiReceived, None);
        Ok(Some(context.config.login_accept(request)))
    }

    fn take_plogi(&mut self, context: &mut Context, request: &Received<'_>) -> Answer {
        let theirs = Login::parse(request.command, request.payload).map_err(|_| malformed())?;
        let login = context
            .config
            .negotiate(&self.neighbour, &theirs)
            .map_err(wrong_parameters)?;
        if context.is_closing || self.state == PortState::LogoSent {
            return Err(busy());
        }
        // Simultaneous PLOGIs: that of the larger name prevails.
        let larger = context.config.port_name > self.neighbour.port_name;
        if self.state == PortState::PlogiSent && larger {
            return Err(in_progress());
        }
        let (now_ns, s_id, ox_id) = (context.now_ns, request.fc.s_id, request.fc.ox_id);
        let was_accepted =
            context.accepted.contains(now_ns, s_id, ox_id) && !skips(Check::AcceptedLogin);
        if was_accepted && self.login.is_none() {
            // A late copy. A port that restarted with the same OX_IDs retries in another exchange.
            return Err(busy());
        }
        // A port that logs in anew sends FLOGI first. A PLOGI without it, soon after the last one,
        // belongs to the same login: its answer was lost.
        let is_recent = |at_ns: u64| now_ns.saturating_sub(at_ns) < context.config.r_a_tov_ns;
        let is_same = self.login == Some(login) && self.plogi_ns.is_some_and(is_recent);
        let is_repeated = was_accepted || is_same;
        if self.login.is_some() && !is_repeated {
            self.defer(context, request, Event::PlogiReceived, Some(login));
            return Ok(None);
        }
        context.accepted.record(now_ns, s_id, ox_id);
        if is_repeated {
            context.counters.count(LoginCounter::Repeated);
        } else {
            self.plogi_ns = Some(now_ns);
            self.apply(context, Event::PlogiReceived, Some(login));
        }
        Ok(Some(context.config.login_accept(request)))
    }

    fn take_logo(&mut self, context: &mut Context, request: &Received<'_>) -> Answer {
        let logo = Logo::parse(request.payload).map_err(|_| malformed())?;
        if logo.port_name != self.neighbour.port_name {
            return Err(wrong_parameters(RejectExplanation::InvalidPortName));
        }
        if logo.n_port_id != request.fc.s_id {
            return Err(wrong_parameters(RejectExplanation::InvalidNPortId));
        }
        if self.login.is_some() {
            self.defer(context, request, Event::LogoReceived, None);
            return Ok(None);
        }
        self.apply(context, Event::LogoReceived, None);
        Ok(Some(context.config.login_accept(request)))
    }

    /// Defers a request of a logged-in port until its login was verified.
    fn defer(
        &mut self,
        context: &mut Context,
        request: &Received<'_>,
        event: Event,
        login: Option<PortLogin>,
    ) {
        let doubt = Doubt {
            event,
            request: Some(request.deferred()),
            login,
        };
        self.verify(context, doubt);
    }

    /// Applies what was verified: the port is not logged in any more.
    pub(super) fn confirm_logout(&mut self, context: &mut Context, doubt: &Doubt) {
        if let Some(request) = &doubt.request
            && request.command == ElsCommand::Plogi
        {
            let (now_ns, fc) = (context.now_ns, &request.fc);
            context.accepted.record(now_ns, fc.s_id, fc.ox_id);
            self.plogi_ns = Some(now_ns);
        }
        self.apply(context, doubt.event, doubt.login);
    }
}

/// Serves a request that only a logged-in port may send.
fn serve(
    config: &LoginConfig,
    login: &PortLogin,
    request: &Received<'_>,
) -> Result<ElsOut, Refused> {
    match request.command {
        ElsCommand::Adisc => match Adisc::parse_request(request.payload) {
            Ok(adisc) if adisc.n_port_id != login.id => {
                Err(wrong_parameters(RejectExplanation::InvalidNPortId))
            }
            Ok(adisc) if adisc.port_name != login.port_name => {
                Err(wrong_parameters(RejectExplanation::InvalidPortName))
            }
            Ok(_) => {
                let mut payload = [0; Adisc::BYTES];
                config.adisc(request.fc.d_id).emit_accept(&mut payload);
                Ok(request.answer(&payload))
            }
            Err(_) => Err(malformed()),
        },
        ElsCommand::Rtv if request.payload == READ_TIMEOUT_VALUES => {
            let mut payload = [0; RtvAccept::BYTES];
            RtvAccept {
                r_a_tov_ms: ms(config.r_a_tov_ns),
                e_d_tov: ms(config.e_d_tov_ns),
                qualifier: 0,
            }
            .emit(&mut payload);
            Ok(request.answer(&payload))
        }
        ElsCommand::Rrq => match Rrq::parse(request.payload) {
            // We quarantine no identifiers for other ports: there is nothing to reinstate.
            Ok(rrq) if [login.id, request.fc.d_id].contains(&rrq.s_id) => {
                Ok(request.answer(&ACCEPT))
            }
            Ok(_) => Err(wrong_parameters(RejectExplanation::InvalidSId)),
            Err(_) => Err(malformed()),
        },
        ElsCommand::Prli | ElsCommand::Prlo => process::answer(request, &config.fc4),
        _ => Err(malformed()),
    }
}
