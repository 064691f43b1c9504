//! Replies of other ports: matched by port and OX_ID, or counted.

use fcvi_frame::els::{ElsCommand, Login, LsRjt};
use fcvi_frame::fc::FcHeader;

use super::LoginMachine;
use super::counters::LoginCounter;
use super::frames::Carrier;
use super::port::{LoginFailure, PortLogin};
use super::state::{Event, PortState};

/// Effect of a reply on the state: event, negotiated login, failure.
type ReplyEffect = (Event, Option<PortLogin>, Option<LoginFailure>);

impl LoginMachine {
    pub(super) fn take_reply(
        &mut self,
        now_ns: u64,
        carrier: Carrier,
        fc: &FcHeader,
        command: ElsCommand,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        if !self.exchanges.contains(fc.ox_id) {
            return Err(LoginCounter::DropStrayReply);
        }
        let at = self.by_id(fc.s_id).ok_or(LoginCounter::DropStrayReply)?;
        if self.ports[at].is_some_and(|port| port.is_verifying_in(fc.ox_id)) {
            if carrier != Carrier::Fcoe {
                return Err(LoginCounter::DropWrongCarrier);
            }
            return self.take_verification_reply(now_ns, at, command, payload);
        }
        let (event, login, last_failure) = match self.read_reply(at, carrier, fc, command, payload)
        {
            Ok(effect) => effect,
            Err(reason) => {
                if let Some(port) = self.ports[at].as_mut() {
                    port.note_stray_reply();
                }
                return Err(reason);
            }
        };
        if let Some(port) = self.ports[at].as_mut() {
            if let Some(last_failure) = last_failure {
                self.counters.count(LoginCounter::Rejected);
                port.last_failure = last_failure;
            }
            // After a refusal the exchange stays open until the timer repeats the request: an accept
            // counts more than a refusal, which may be forged.
            if event != Event::Rejected {
                port.ox_id = None;
                self.exchanges.end(now_ns, fc.ox_id);
            }
        }
        self.apply(now_ns, at, event, login);
        Ok(())
    }

    fn read_reply(
        &self,
        at: usize,
        carrier: Carrier,
        fc: &FcHeader,
        command: ElsCommand,
        payload: &[u8],
    ) -> Result<ReplyEffect, LoginCounter> {
        let port = self.ports[at].as_ref();
        let port = port.ok_or(LoginCounter::DropStrayReply)?;
        if port.ox_id != Some(fc.ox_id) {
            return Err(LoginCounter::DropLateReply);
        }
        if port.unsent {
            return Err(LoginCounter::DropStrayReply);
        }
        if port.state.request_carrier() != Some(carrier) {
            return Err(LoginCounter::DropWrongCarrier);
        }
        let malformed = |_| LoginCounter::DropMalformedReply;
        match (port.state, command) {
            (PortState::LogoSent, ElsCommand::LsAcc | ElsCommand::LsRjt) => {
                Ok((Event::LogoAnswered, None, None))
            }
            (PortState::FlogiSent | PortState::PlogiSent, ElsCommand::LsRjt) => {
                let refusal = LsRjt::parse(payload).map_err(malformed)?;
                let last_failure = LoginFailure::Rejected(refusal);
                Ok((Event::Rejected, None, Some(last_failure)))
            }
            (PortState::FlogiSent, ElsCommand::LsAcc) => {
                let theirs = Login::parse(command, payload).map_err(malformed)?;
                if theirs.port_name == port.neighbour.port_name {
                    Ok((Event::FlogiAccepted, None, None))
                } else {
                    Ok((Event::Rejected, None, Some(LoginFailure::Unusable)))
                }
            }
            (PortState::PlogiSent, ElsCommand::LsAcc) => {
                let theirs = Login::parse(command, payload).map_err(malformed)?;
                match self.negotiate(&port.neighbour, &theirs) {
                    Ok(login) => Ok((Event::PlogiAccepted, Some(login), None)),
                    Err(_) => Ok((Event::Unusable, None, Some(LoginFailure::Unusable))),
                }
            }
            _ => Err(LoginCounter::DropMalformedReply),
        }
    }
}
