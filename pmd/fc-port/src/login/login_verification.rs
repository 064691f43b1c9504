//! Verification that a port is still logged in.
//!
//! An FLOGI from a logged-in port means that it restarted, or that the network delayed a frame; no
//! name in the frame distinguishes the two. Accepting it would end all exchanges with that port.
//! So the port is sent an ADISC, in an exchange that no late frame can answer, and its FLOGI is
//! deferred: a port that restarted refuses, one that did not accepts. A LOGO that was accepted
//! before is verified as well. A port that does not reply is logged out.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{Adisc, ElsCommand, Login};
use fcvi_frame::fc::{FcHeader, NPortId};

use super::LoginMachine;
use super::counters::LoginCounter;
use super::exchanges::{ExchangeIds, Share};
use super::frames::{Carrier, ElsOut, FipService, Received, request_header};
use super::parameters::for_flogi;
use super::port::RemotePort;
use super::state::Event;

/// An FLOGI whose answer is deferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredFlogi {
    source: MacAddress,
    fc: FcHeader,
}

impl DeferredFlogi {
    pub(super) fn new(request: &Received<'_>) -> Self {
        Self {
            source: request.source,
            fc: *request.fc,
        }
    }
}

/// A verification in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginVerification {
    /// Exchange of the last ADISC; `None` if all OX_IDs were in use.
    ox_id: Option<u16>,
    unsent: bool,
    /// Number of retries.
    tries: u8,
    pub(super) deadline_ns: u64,
    /// The newest FLOGI; `None` if a LOGO is verified.
    flogi: Option<DeferredFlogi>,
}

impl LoginVerification {
    /// Ends the exchange. That of an ADISC that was not handed out is free at once.
    fn end(&mut self, exchanges: &mut ExchangeIds, now_ns: u64) {
        match self.ox_id.take() {
            Some(ox_id) if self.unsent => exchanges.cancel(ox_id),
            Some(ox_id) => exchanges.end(now_ns, ox_id),
            None => {}
        }
    }
}

impl RemotePort {
    /// Ends the verification of this port, if one is in progress.
    pub(super) fn end_verification(&mut self, exchanges: &mut ExchangeIds, now_ns: u64) {
        if let Some(mut verification) = self.verification.take() {
            verification.end(exchanges, now_ns);
        }
    }

    /// Reports whether this is the exchange of the verification.
    pub(super) fn is_verifying_in(&self, ox_id: u16) -> bool {
        let is_exchange = |verification: &LoginVerification| {
            verification.ox_id == Some(ox_id) && !verification.unsent
        };
        self.verification.as_ref().is_some_and(is_exchange)
    }
}

impl LoginMachine {
    /// Starts the verification of a logged-in port that sent this FLOGI, or a LOGO that was
    /// accepted before.
    pub(super) fn verify_login(&mut self, now_ns: u64, at: usize, flogi: Option<DeferredFlogi>) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        if let Some(verification) = &mut port.verification {
            verification.flogi = flogi.or(verification.flogi);
            return;
        }
        self.counters.count(LoginCounter::Doubts);
        self.send_verification(now_ns, at, 0, flogi);
    }

    /// Schedules an ADISC.
    fn send_verification(
        &mut self,
        now_ns: u64,
        at: usize,
        tries: u8,
        flogi: Option<DeferredFlogi>,
    ) {
        self.changed = true;
        let ox_id = self.exchanges.open(now_ns, Share::Neighbour(at));
        if ox_id.is_none() {
            self.counters.count(LoginCounter::NoExchange);
        }
        let wait_ns = self.random.with_jitter(self.config.request_timeout_ns);
        if let Some(port) = self.ports[at].as_mut() {
            port.verification = Some(LoginVerification {
                ox_id,
                unsent: ox_id.is_some(),
                tries,
                deadline_ns: now_ns.saturating_add(wait_ns),
                flogi,
            });
        }
    }

    pub(super) fn unsent_verification(&mut self, id: NPortId) -> Option<ElsOut> {
        let mut ports = self.ports.iter_mut().flatten();
        let (peer, ox_id) = ports.find_map(|port| {
            let verification = port
                .verification
                .as_mut()
                .filter(|verification| verification.unsent)?;
            verification.unsent = false;
            Some((port.neighbour.id, verification.ox_id?))
        })?;
        let mut payload = [0; Adisc::BYTES];
        self.adisc(id).emit_request(&mut payload);
        let destination = MacAddress::vn2vn(peer);
        let header = request_header(id, peer, ox_id);
        Some(ElsOut::new(Carrier::Fcoe, destination, header, &payload))
    }

    /// Handles the reply to the ADISC.
    pub(super) fn take_verification_reply(
        &mut self,
        now_ns: u64,
        at: usize,
        command: ElsCommand,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        let port = self.ports[at]
            .as_mut()
            .ok_or(LoginCounter::DropStrayReply)?;
        let is_logged_in = match command {
            ElsCommand::LsAcc => {
                let adisc = Adisc::parse_accept(payload);
                let adisc = adisc.map_err(|_| LoginCounter::DropMalformedReply)?;
                let identity = (adisc.n_port_id, adisc.port_name);
                identity == (port.neighbour.id, port.neighbour.port_name)
            }
            _ => false,
        };
        if is_logged_in {
            port.end_verification(&mut self.exchanges, now_ns);
            self.counters.count(LoginCounter::Repeated);
            self.changed = true;
        } else {
            self.confirm_logout(now_ns, at);
        }
        Ok(())
    }

    /// Applies the FLOGI or LOGO that was verified: the port is not logged in any more.
    fn confirm_logout(&mut self, now_ns: u64, at: usize) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        let flogi = port
            .verification
            .and_then(|verification| verification.flogi);
        let event = match flogi {
            Some(deferred) => {
                self.accept_flogi(&deferred);
                Event::FlogiReceived
            }
            None => Event::LogoReceived,
        };
        self.apply(now_ns, at, event, None);
    }

    /// Answers an FLOGI. If the queue of answers is full, the other port retries.
    fn accept_flogi(&mut self, deferred: &DeferredFlogi) {
        if !self.has_room() {
            self.counters.count(LoginCounter::DropNoRoom);
            return;
        }
        let request = Received {
            carrier: Carrier::Fip(FipService::Flogi),
            source: deferred.source,
            fc: &deferred.fc,
            command: ElsCommand::Flogi,
            payload: &[],
        };
        let answer = self.flogi_accept(&request);
        self.answers.push_back(answer);
    }

    /// Returns the accept of an FLOGI.
    pub(super) fn flogi_accept(&self, request: &Received<'_>) -> ElsOut {
        let mut payload = [0; Login::BYTES];
        for_flogi(&self.own_parameters()).emit(ElsCommand::LsAcc, &mut payload);
        request.answer(&payload)
    }

    pub(super) fn verifications_timeout(&mut self, now_ns: u64) {
        for at in 0..self.ports.len() {
            let verification = self.ports[at].as_ref().and_then(|port| port.verification);
            let Some(mut verification) =
                verification.filter(|verification| verification.deadline_ns <= now_ns)
            else {
                continue;
            };
            let was_sent = verification.ox_id.is_some() && !verification.unsent;
            if was_sent && verification.tries >= self.config.retries {
                self.confirm_logout(now_ns, at);
                continue;
            }
            verification.end(&mut self.exchanges, now_ns);
            self.counters.count(LoginCounter::Retries);
            let tries = verification.tries + u8::from(was_sent);
            self.send_verification(now_ns, at, tries, verification.flogi);
        }
    }
}
