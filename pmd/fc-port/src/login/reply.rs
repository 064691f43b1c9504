//! Replies of a port to our requests, matched by OX_ID, and its aborts of them.

use fcvi_frame::els::{ElsCommand, Login, LsRjt};

use super::config::LoginConfig;
use super::context::Context;
use super::counters::LoginCounter;
use super::event::{LoginFailure, PortLogin};
use super::frames::{Carrier, Received};
use super::login_verification::Doubt;
use super::own_request::OwnRequest;
use super::port::RemotePort;
use super::state::{Event, PortState};

/// Effect of a reply on the state: event, negotiated login, failure.
type ReplyEffect = (Event, Option<PortLogin>, Option<LoginFailure>);

impl RemotePort {
    /// Handles a reply. Returns the doubt if it shows that the port is not logged in any more.
    pub(super) fn take_reply(
        &mut self,
        context: &mut Context,
        reply: &Received<'_>,
    ) -> Result<Option<Doubt>, LoginCounter> {
        if self.verification.is_in(reply.fc.ox_id) {
            if reply.carrier != Carrier::Fcoe {
                return Err(LoginCounter::DropWrongCarrier);
            }
            let verification = &mut self.verification;
            return verification.take_reply(context, self.slot, &self.neighbour, reply);
        }
        let (event, login, failure) = self
            .read_reply(&context.config, reply)
            .inspect_err(|_| self.verification.note_stray_reply())?;
        if let Some(failure) = failure {
            context.counters.count(LoginCounter::Rejected);
            self.last_failure = failure;
        }
        // After a refusal the exchange stays open until the timer repeats the request: an accept
        // counts more than a refusal, which may be forged.
        if event != Event::Rejected {
            self.request.end(context);
        }
        self.apply(context, event, login);
        Ok(None)
    }

    fn read_reply(
        &self,
        config: &LoginConfig,
        reply: &Received<'_>,
    ) -> Result<ReplyEffect, LoginCounter> {
        match self.request {
            OwnRequest::Sent(ox_id) if ox_id == reply.fc.ox_id => {}
            OwnRequest::Unsent(ox_id) if ox_id == reply.fc.ox_id => {
                return Err(LoginCounter::DropStrayReply);
            }
            _ => return Err(LoginCounter::DropLateReply),
        }
        if self.state.request_carrier() != Some(reply.carrier) {
            return Err(LoginCounter::DropWrongCarrier);
        }
        let malformed = |_| LoginCounter::DropMalformedReply;
        match (self.state, reply.command) {
            (PortState::LogoSent, ElsCommand::LsAcc | ElsCommand::LsRjt) => {
                Ok((Event::LogoAnswered, None, None))
            }
            (PortState::FlogiSent | PortState::PlogiSent, ElsCommand::LsRjt) => {
                let refusal = LsRjt::parse(reply.payload).map_err(malformed)?;
                Ok((Event::Rejected, None, Some(LoginFailure::Rejected(refusal))))
            }
            (PortState::FlogiSent, ElsCommand::LsAcc) => {
                let theirs = Login::parse(reply.command, reply.payload).map_err(malformed)?;
                if theirs.port_name == self.neighbour.port_name {
                    Ok((Event::FlogiAccepted, None, None))
                } else {
                    Ok((Event::Rejected, None, Some(LoginFailure::Unusable)))
                }
            }
            (PortState::PlogiSent, ElsCommand::LsAcc) => {
                let theirs = Login::parse(reply.command, reply.payload).map_err(malformed)?;
                match config.negotiate(&self.neighbour, &theirs) {
                    Ok(login) => Ok((Event::PlogiAccepted, Some(login), None)),
                    Err(_) => Ok((Event::Unusable, None, Some(LoginFailure::Unusable))),
                }
            }
            _ => Err(LoginCounter::DropMalformedReply),
        }
    }

    /// Aborts our request in this exchange, which counts as refused. Returns false if it is not open.
    pub(super) fn abort(&mut self, context: &mut Context, ox_id: u16) -> bool {
        let is_open = self.request == OwnRequest::Sent(ox_id);
        if is_open {
            self.request.end(context);
            self.last_failure = LoginFailure::Timeout;
            self.apply(context, Event::Rejected, None);
        }
        is_open
    }
}
