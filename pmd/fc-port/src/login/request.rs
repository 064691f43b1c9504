//! Requests of other ports, and the answers.
//!
//! A port that is not logged in and behaves as if it were is sent a LOGO; while a login is in
//! progress its requests are answered with "busy". Answers are bounded: one per request, and a
//! limit of LOGOs per second.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{
    ACCEPT, Adisc, ElsCommand, Login, Logo, LsRjt, READ_TIMEOUT_VALUES, RejectExplanation,
    RejectReason, Rrq, RtvAccept,
};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};

use super::config::ms;
use super::counters::LoginCounter;
use super::exchanges::Share;
use super::frames::{Carrier, ElsOut, FipService, Received, request_header};
use super::login_verification::{DeferredRequest, Doubt};
use super::port::{PortLogin, RemotePort};
use super::state::{Event, PortState};
use super::synonym::{Check, skips};
use super::{LoginMachine, process};

/// A refusal, and the counter for it.
pub(super) struct Refused(pub(super) LoginCounter, pub(super) LsRjt);

/// Returns a refusal with this reason.
fn refused(counter: LoginCounter, reason: RejectReason, explanation: RejectExplanation) -> Refused {
    Refused(
        counter,
        LsRjt {
            reason,
            explanation,
        },
    )
}

pub(super) fn malformed() -> Refused {
    refused(
        LoginCounter::RefusedMalformed,
        RejectReason::ProtocolError,
        RejectExplanation::InvalidLength,
    )
}

pub(super) fn wrong_parameters(explanation: RejectExplanation) -> Refused {
    refused(
        LoginCounter::RefusedParameters,
        RejectReason::LogicalError,
        explanation,
    )
}

fn busy() -> Refused {
    refused(
        LoginCounter::RefusedBusy,
        RejectReason::LogicalBusy,
        RejectExplanation::None,
    )
}

fn unsupported() -> Refused {
    refused(
        LoginCounter::RefusedCommand,
        RejectReason::NotSupported,
        RejectExplanation::NotSupported,
    )
}

fn not_a_neighbour() -> Refused {
    refused(
        LoginCounter::RefusedStranger,
        RejectReason::FipError,
        RejectExplanation::NotNeighbour,
    )
}

impl LoginMachine {
    /// Handles a frame of TYPE 0x01 for us or for all ports.
    ///
    /// `carrier` and `source`: the kind of frame, and its source Ethernet address. `payload`: its
    /// data field. The caller has checked the frame as such, including its CRC if it has one.
    pub fn handle_els(
        &mut self,
        now_ns: u64,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        payload: &[u8],
    ) {
        if let Err(reason) = self.take_els(now_ns, carrier, source, fc, payload) {
            self.counters.count(reason);
        }
        self.update_deadline();
    }

    /// Sends a LOGO to a port that is not logged in and sent a frame other than a link service,
    /// which was dropped [FCVI P-14].
    pub fn refuse_unlogged(&mut self, now_ns: u64, s_id: NPortId) {
        let is_us = self.id == Some(s_id);
        if self.id.is_some() && !is_us && self.login(s_id).is_none() {
            self.counters.count(LoginCounter::DropNotLoggedIn);
            if let Err(reason) = self.send_logo(now_ns, s_id) {
                self.counters.count(reason);
            }
        }
        self.update_deadline();
    }

    fn take_els(
        &mut self,
        now_ns: u64,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        let command = ElsCommand::parse(payload).map_err(|_| LoginCounter::DropBadHeader)?;
        let to_all = fc.d_id == NPortId::BROADCAST && command == ElsCommand::FarpRequest;
        self.check_addresses(carrier, source, fc, to_all)?;
        let is_els = fc.fc_type == FcType::Els && fc.df_ctl == 0;
        if !is_els || !fc.f_ctl.contains(FCtl::END_SEQUENCE) {
            return Err(LoginCounter::DropBadHeader);
        }
        let from_responder = fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        match (fc.r_ctl, from_responder) {
            (RCtl::ElsReply, true) => self.take_reply(now_ns, carrier, fc, command, payload),
            (RCtl::ElsRequest, false) => {
                let received = Received {
                    carrier,
                    source,
                    fc,
                    command,
                    payload,
                };
                self.take_request(now_ns, &received)
            }
            _ => Err(LoginCounter::DropBadHeader),
        }
    }

    /// Checks source and destination addresses on every layer.
    pub(super) fn check_addresses(
        &self,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        to_all: bool,
    ) -> Result<(), LoginCounter> {
        let id = self.id.ok_or(LoginCounter::DropNoId)?;
        if fc.d_id != id && !to_all {
            return Err(LoginCounter::DropNotOurs);
        }
        let invalid = [NPortId::default(), NPortId::BROADCAST, id];
        if invalid.contains(&fc.s_id) || source.is_multicast() {
            return Err(LoginCounter::DropBadSource);
        }
        let port = self.by_id(fc.s_id).and_then(|at| self.ports[at].as_ref());
        let expected = match carrier {
            Carrier::Fcoe => Some(MacAddress::vn2vn(fc.s_id)),
            Carrier::Fip(_) => port.map(|port| port.neighbour.enode_mac),
        };
        if expected.is_some_and(|expected| expected != source) {
            return Err(LoginCounter::DropWrongMac);
        }
        Ok(())
    }

    fn take_request(&mut self, now_ns: u64, request: &Received<'_>) -> Result<(), LoginCounter> {
        match (request.carrier, request.command) {
            (Carrier::Fip(FipService::Flogi), ElsCommand::Flogi)
            | (Carrier::Fip(FipService::Logo), ElsCommand::Logo) => {}
            (Carrier::Fip(_), _) | (Carrier::Fcoe, ElsCommand::Flogi) => {
                return Err(LoginCounter::DropWrongCarrier);
            }
            (Carrier::Fcoe, ElsCommand::LsAcc | ElsCommand::LsRjt) => {
                return Err(LoginCounter::DropBadHeader);
            }
            (Carrier::Fcoe, _) => {}
        }
        if !self.has_room_for(request.fc.s_id) {
            return Err(LoginCounter::DropNoRoom);
        }
        let answer = match request.command {
            ElsCommand::FarpRequest => return self.take_farp_request(now_ns, request),
            ElsCommand::FarpReply => return self.take_farp_reply(request),
            ElsCommand::Flogi | ElsCommand::Plogi | ElsCommand::Logo => {
                self.take_login_request(now_ns, request)?
            }
            ElsCommand::Adisc
            | ElsCommand::Prli
            | ElsCommand::Prlo
            | ElsCommand::Rtv
            | ElsCommand::Rrq => {
                let port = self.by_id(request.fc.s_id).and_then(|at| self.ports[at]);
                let is_busy =
                    |port: RemotePort| port.is_logging_in() || port.state == PortState::LogoSent;
                match port.map(|port| (port.login, is_busy(port))) {
                    Some((Some(login), _)) => self.serve(&login, request).map(Some),
                    Some((None, true)) => Err(busy()),
                    Some((None, false)) | None => return self.refuse_request(now_ns, request),
                }
            }
            ElsCommand::LsAcc | ElsCommand::LsRjt | ElsCommand::Unknown(_) => {
                if self.by_id(request.fc.s_id).is_none() {
                    self.limit_unlogged_answer(now_ns)?;
                }
                Err(unsupported())
            }
        };
        let answer = answer.unwrap_or_else(|Refused(counter, refusal)| {
            self.counters.count(counter);
            Some(request.refusal(refusal))
        });
        self.answers.extend(answer);
        Ok(())
    }

    /// Reports whether one more answer can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.answers.len() < usize::from(self.config.max_answers)
    }

    /// Reports whether one more answer to this port can be queued. One port, and all that are not
    /// logged in together, have half of the queue, so that a flood in the name of some leaves room for
    /// the others.
    pub(super) fn has_room_for(&self, id: NPortId) -> bool {
        let half = usize::from(self.config.max_answers).div_ceil(2);
        let is_logged_in = |id| self.login(id).is_some();
        let shares_with =
            |out: &&ElsOut| out.fc.d_id == id || !(is_logged_in(id) || is_logged_in(out.fc.d_id));
        self.has_room() && self.answers.iter().filter(shares_with).count() < half
    }

    /// Allows one more answer to a port that is no neighbour, within the limit per second.
    fn limit_unlogged_answer(&mut self, now_ns: u64) -> Result<(), LoginCounter> {
        let limit = self.config.max_non_neighbour_answers_per_second;
        let allowed = self.unlogged_answers.take(now_ns, limit);
        allowed.then_some(()).ok_or(LoginCounter::DropLimit)
    }

    /// Handles FLOGI, PLOGI and LOGO. Returns no answer if it is deferred.
    fn take_login_request(
        &mut self,
        now_ns: u64,
        request: &Received<'_>,
    ) -> Result<Result<Option<ElsOut>, Refused>, LoginCounter> {
        let Some(at) = self.by_id(request.fc.s_id) else {
            self.limit_unlogged_answer(now_ns)?;
            return Ok(match request.command {
                ElsCommand::Logo => Ok(Some(self.login_accept(request))),
                _ => Err(not_a_neighbour()),
            });
        };
        Ok(match request.command {
            ElsCommand::Flogi => self.take_flogi(now_ns, at, request),
            ElsCommand::Plogi => self.take_plogi(now_ns, at, request),
            _ => self.take_logo(now_ns, at, request),
        })
    }

    fn take_flogi(
        &mut self,
        now_ns: u64,
        at: usize,
        request: &Received<'_>,
    ) -> Result<Option<ElsOut>, Refused> {
        let theirs = Login::parse(request.command, request.payload).map_err(|_| malformed())?;
        let port = self.ports[at].as_ref().ok_or_else(not_a_neighbour)?;
        if theirs.port_name != port.neighbour.port_name {
            return Err(wrong_parameters(RejectExplanation::InvalidPortName));
        }
        if self.is_closing || port.state == PortState::LogoSent {
            return Err(busy());
        }
        if port.login.is_some() && !skips(Check::ConfirmedLogin) {
            let doubt = Doubt::Flogi(DeferredRequest::new(request));
            self.verify_login(now_ns, at, doubt);
            return Ok(None);
        }
        self.apply(now_ns, at, Event::FlogiReceived, None);
        Ok(Some(self.login_accept(request)))
    }

    fn take_plogi(
        &mut self,
        now_ns: u64,
        at: usize,
        request: &Received<'_>,
    ) -> Result<Option<ElsOut>, Refused> {
        let theirs = Login::parse(request.command, request.payload).map_err(|_| malformed())?;
        let port = self.ports[at].ok_or_else(not_a_neighbour)?;
        let login = self
            .negotiate(&port.neighbour, &theirs)
            .map_err(wrong_parameters)?;
        if self.is_closing || port.state == PortState::LogoSent {
            return Err(busy());
        }
        // Simultaneous PLOGIs: that of the larger name prevails.
        let larger = self.config.port_name > port.neighbour.port_name;
        if port.state == PortState::PlogiSent && larger {
            return Err(refused(
                LoginCounter::RefusedBusy,
                RejectReason::InProgress,
                RejectExplanation::InProgress,
            ));
        }
        let was_accepted = self.was_accepted(now_ns, request);
        if was_accepted && port.login.is_none() {
            // A late copy. A port that restarted with the same OX_IDs retries in another exchange.
            return Err(busy());
        }
        // A port that logs in anew sends FLOGI first. A PLOGI without it, soon after the last one,
        // belongs to the same login: its answer was lost.
        let is_same = port.login == Some(login)
            && port
                .plogi_ns
                .is_some_and(|then_ns| now_ns.saturating_sub(then_ns) < self.config.r_a_tov_ns);
        let is_repeated = was_accepted || is_same;
        if port.login.is_some() && !is_repeated {
            let doubt = Doubt::Plogi(DeferredRequest::new(request), login);
            self.verify_login(now_ns, at, doubt);
            return Ok(None);
        }
        self.record_accepted(now_ns, request);
        if is_repeated {
            self.counters.count(LoginCounter::Repeated);
        } else {
            if let Some(port) = self.ports[at].as_mut() {
                port.plogi_ns = Some(now_ns);
            }
            self.apply(now_ns, at, Event::PlogiReceived, Some(login));
        }
        Ok(Some(self.login_accept(request)))
    }

    fn take_logo(
        &mut self,
        now_ns: u64,
        at: usize,
        request: &Received<'_>,
    ) -> Result<Option<ElsOut>, Refused> {
        let logo = Logo::parse(request.payload).map_err(|_| malformed())?;
        let port = self.ports[at].as_ref().ok_or_else(not_a_neighbour)?;
        if logo.port_name != port.neighbour.port_name {
            return Err(wrong_parameters(RejectExplanation::InvalidPortName));
        }
        if logo.n_port_id != request.fc.s_id {
            return Err(wrong_parameters(RejectExplanation::InvalidNPortId));
        }
        if port.login.is_some() {
            let doubt = Doubt::Logo(DeferredRequest::new(request));
            self.verify_login(now_ns, at, doubt);
            return Ok(None);
        }
        self.apply(now_ns, at, Event::LogoReceived, None);
        Ok(Some(self.login_accept(request)))
    }

    /// Reports whether this PLOGI was accepted before.
    fn was_accepted(&self, now_ns: u64, request: &Received<'_>) -> bool {
        let FcHeader { s_id, ox_id, .. } = *request.fc;
        let known = self.accepted.contains(now_ns, s_id, ox_id);
        known && !skips(Check::AcceptedLogin)
    }

    /// Records this PLOGI as accepted.
    pub(super) fn record_accepted(&mut self, now_ns: u64, request: &Received<'_>) {
        let FcHeader { s_id, ox_id, .. } = *request.fc;
        self.accepted.record(now_ns, s_id, ox_id);
    }

    /// Serves a request that only a logged-in port may send.
    fn serve(&self, login: &PortLogin, request: &Received<'_>) -> Result<ElsOut, Refused> {
        match request.command {
            ElsCommand::Adisc => match Adisc::parse_request(request.payload) {
                Ok(adisc) if adisc.n_port_id != login.id => {
                    Err(wrong_parameters(RejectExplanation::InvalidNPortId))
                }
                Ok(adisc) if adisc.port_name != login.port_name => {
                    Err(wrong_parameters(RejectExplanation::InvalidPortName))
                }
                Ok(_) => Ok(self.adisc_accept(request)),
                Err(_) => Err(malformed()),
            },
            ElsCommand::Rtv if request.payload == READ_TIMEOUT_VALUES => {
                let mut payload = [0; RtvAccept::BYTES];
                RtvAccept {
                    r_a_tov_ms: ms(self.config.r_a_tov_ns),
                    e_d_tov: ms(self.config.e_d_tov_ns),
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
            ElsCommand::Prli | ElsCommand::Prlo => process::answer(request, &self.config.fc4),
            _ => Err(malformed()),
        }
    }

    fn adisc_accept(&self, request: &Received<'_>) -> ElsOut {
        let mut payload = [0; Adisc::BYTES];
        self.adisc(request.fc.d_id).emit_accept(&mut payload);
        request.answer(&payload)
    }

    /// Returns the ADISC payload of this port.
    pub(super) fn adisc(&self, id: NPortId) -> Adisc {
        Adisc {
            hard_address: NPortId::default(),
            port_name: self.config.port_name,
            node_name: self.config.node_name,
            n_port_id: id,
        }
    }

    /// Handles a request that only a logged-in port may send, of one that is not. An ADISC is refused
    /// in its exchange as well: the other port may verify its login by it.
    fn refuse_request(&mut self, now_ns: u64, request: &Received<'_>) -> Result<(), LoginCounter> {
        let s_id = request.fc.s_id;
        if request.command == ElsCommand::Adisc {
            if self.by_id(s_id).is_none() {
                self.limit_unlogged_answer(now_ns)?;
            }
            self.counters.count(LoginCounter::RefusedNotLoggedIn);
            self.answers.push_back(request.refusal(LsRjt {
                reason: RejectReason::UnableToPerform,
                explanation: RejectExplanation::LoginRequired,
            }));
        }
        self.counters.count(LoginCounter::DropNotLoggedIn);
        self.send_logo(now_ns, s_id)
    }

    /// Sends a LOGO to a port that behaves as if it were logged in.
    pub(super) fn send_logo(&mut self, now_ns: u64, s_id: NPortId) -> Result<(), LoginCounter> {
        let id = self.id.ok_or(LoginCounter::DropNoId)?;
        if !self.has_room_for(s_id) {
            return Err(LoginCounter::DropNoRoom);
        }
        let at = self.by_id(s_id);
        let (carrier, destination) = match at.and_then(|at| self.ports[at].as_mut()) {
            // A login or a LOGO is in progress already.
            Some(port) if port.is_logging_in() || port.state == PortState::LogoSent => {
                return Ok(());
            }
            Some(port) => {
                if !port.logos.take(now_ns, self.config.max_logos_per_second) {
                    return Err(LoginCounter::DropLimit);
                }
                let service = Carrier::Fip(FipService::Logo);
                (service, port.neighbour.enode_mac)
            }
            None => {
                self.limit_unlogged_answer(now_ns)?;
                (Carrier::Fcoe, MacAddress::vn2vn(s_id))
            }
        };
        let ox_id = self
            .exchanges
            .open(now_ns, Share::NotLoggedIn)
            .ok_or(LoginCounter::NoExchange)?;
        // No reply is expected.
        self.exchanges.end(now_ns, ox_id);
        let mut payload = [0; Logo::BYTES];
        Logo {
            n_port_id: id,
            port_name: self.config.port_name,
        }
        .emit(&mut payload);
        let header = request_header(id, s_id, ox_id);
        self.answers
            .push_back(ElsOut::new(carrier, destination, header, &payload));
        self.counters.count(LoginCounter::LogosToStrangers);
        Ok(())
    }
}
