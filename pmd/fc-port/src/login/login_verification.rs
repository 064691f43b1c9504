//! Verification that a port is still logged in.
//!
//! An FLOGI, PLOGI or LOGO from a logged-in port means that it restarted or logs out, that the
//! network delayed a frame, or that another station forged it; nothing in the frame distinguishes
//! these. The same is true of a claim of another port with its name or N_Port_ID. Believing it would
//! end all exchanges with that port. So the port is sent an ADISC, at the address that its login
//! established, in an exchange that no late frame can answer and no other station can guess, and the
//! request is deferred: a port that restarted or logs out refuses, one that did not accepts. A port
//! that does not reply is logged out.
//!
//! A station that does not see the ADISC may try OX_IDs. Replies with a wrong one, and a login that was
//! doubted in vain before, are signs of that: then several refusals in a row are needed.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ACCEPT, Adisc, ElsCommand, Login};
use fcvi_frame::fc::{FcHeader, NPortId};

use super::LoginMachine;
use super::counters::LoginCounter;
use super::exchanges::{ExchangeIds, Share};
use super::frames::{Carrier, ElsOut, Received, request_header};
use super::parameters::for_flogi;
use super::port::{PortLogin, RemotePort};
use super::state::Event;

/// Refusals that end a login if another station seems to forge frames.
const CAUTIOUS_REFUSALS: u8 = 4;
/// Time for which a login that was doubted in vain needs that many, in units of the interval between
/// verifications.
const CAUTIOUS_INTERVALS: u64 = 60;

/// A request whose answer is deferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredRequest {
    carrier: Carrier,
    source: MacAddress,
    fc: FcHeader,
    command: ElsCommand,
}

impl DeferredRequest {
    pub(super) fn new(request: &Received<'_>) -> Self {
        Self {
            carrier: request.carrier,
            source: request.source,
            fc: *request.fc,
            command: request.command,
        }
    }

    /// Returns the request without its payload, which its answer does not need.
    fn received(&self) -> Received<'_> {
        Received {
            carrier: self.carrier,
            source: self.source,
            fc: &self.fc,
            command: self.command,
            payload: &[],
        }
    }
}

/// Why a login is verified, and what is done if the port is not logged in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doubt {
    /// Discovery found another port with its name or N_Port_ID.
    Discovery,
    /// A LOGO.
    Logo(DeferredRequest),
    /// An FLOGI.
    Flogi(DeferredRequest),
    /// A PLOGI with these negotiated parameters.
    Plogi(DeferredRequest, PortLogin),
}

impl Doubt {
    /// A doubt replaces earlier ones of the same or a lower rank: a login is wanted more than its end.
    fn rank(&self) -> u8 {
        match self {
            Self::Discovery => 0,
            Self::Logo(_) => 1,
            Self::Flogi(_) | Self::Plogi(..) => 2,
        }
    }
}

/// A verification in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginVerification {
    /// Exchange of the last ADISC; `None` if it is delayed, or all OX_IDs were in use.
    ox_id: Option<u16>,
    unsent: bool,
    /// Number of retries.
    tries: u8,
    /// Number of refusals.
    refusals: u8,
    /// A reply with a wrong OX_ID arrived.
    has_strays: bool,
    pub(super) deadline_ns: u64,
    doubt: Doubt,
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

    /// Notes a reply of this port in an exchange that is not open.
    pub(super) fn note_stray_reply(&mut self) {
        if let Some(verification) = &mut self.verification {
            verification.has_strays = true;
        }
    }
}

impl LoginMachine {
    /// Verifies the login with a port: discovery found another port with its name or N_Port_ID. If it
    /// ends, the reason is [`LogoutReason::NotConfirmed`](super::LogoutReason::NotConfirmed).
    pub fn neighbour_doubted(&mut self, now_ns: u64, port_name: u64) {
        if let Some(at) = self.find(|port| port.neighbour.port_name == port_name) {
            self.verify_login(now_ns, at, Doubt::Discovery);
        }
        self.update_deadline();
    }

    /// Starts the verification of a logged-in port, at once or when the interval since the last one is
    /// over.
    pub(super) fn verify_login(&mut self, now_ns: u64, at: usize, doubt: Doubt) {
        let interval_ns = self.config.verification_interval_ns;
        let Some(port) = self.ports[at]
            .as_mut()
            .filter(|port| port.login.is_some() && !port.removed)
        else {
            return;
        };
        if let Some(verification) = &mut port.verification {
            if doubt.rank() >= verification.doubt.rank() {
                verification.doubt = doubt;
            }
            return;
        }
        self.counters.count(LoginCounter::Doubts);
        let next_ns = port
            .confirmed_ns
            .map_or(now_ns, |at_ns| at_ns.saturating_add(interval_ns));
        port.verification = Some(LoginVerification {
            ox_id: None,
            unsent: false,
            tries: 0,
            refusals: 0,
            has_strays: false,
            deadline_ns: next_ns,
            doubt,
        });
        self.changed = true;
        if next_ns <= now_ns {
            self.send_verification(now_ns, at);
        }
    }

    /// Schedules an ADISC in a new exchange.
    fn send_verification(&mut self, now_ns: u64, at: usize) {
        self.changed = true;
        let ox_id = self.exchanges.open(now_ns, Share::Neighbour(at));
        if ox_id.is_none() {
            self.counters.count(LoginCounter::NoExchange);
        }
        let wait_ns = self.random.with_jitter(self.config.verification_timeout_ns);
        let port = self.ports[at].as_mut();
        if let Some(verification) = port.and_then(|port| port.verification.as_mut()) {
            verification.ox_id = ox_id;
            verification.unsent = ox_id.is_some();
            verification.has_strays = false;
            verification.deadline_ns = now_ns.saturating_add(wait_ns);
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
            port.confirmed_ns = Some(now_ns);
            self.counters.count(LoginCounter::Repeated);
            self.changed = true;
        } else {
            self.login_refused(now_ns, at);
        }
        Ok(())
    }

    /// Handles a refusal of the ADISC: ends the login, or sends another ADISC.
    fn login_refused(&mut self, now_ns: u64, at: usize) {
        let cautious_ns = self
            .config
            .verification_interval_ns
            .saturating_mul(CAUTIOUS_INTERVALS);
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        let is_recent = |at_ns: u64| now_ns.saturating_sub(at_ns) < cautious_ns;
        let was_confirmed = port.confirmed_ns.is_some_and(is_recent);
        let Some(verification) = &mut port.verification else {
            return;
        };
        verification.refusals += 1;
        let is_cautious = was_confirmed || verification.has_strays || verification.refusals > 1;
        if is_cautious && verification.refusals < CAUTIOUS_REFUSALS {
            verification.end(&mut self.exchanges, now_ns);
            self.send_verification(now_ns, at);
        } else {
            self.confirm_logout(now_ns, at);
        }
    }

    /// Applies what was verified: the port is not logged in any more. If the queue of answers is full,
    /// the other port retries.
    fn confirm_logout(&mut self, now_ns: u64, at: usize) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        let Some(verification) = port.verification else {
            return;
        };
        let (deferred, event, login) = match verification.doubt {
            Doubt::Discovery => (None, Event::NotConfirmed, None),
            Doubt::Logo(request) => (Some(request), Event::LogoReceived, None),
            Doubt::Flogi(request) => (Some(request), Event::FlogiReceived, None),
            Doubt::Plogi(request, login) => {
                port.plogi_ns = Some(now_ns);
                (Some(request), Event::PlogiReceived, Some(login))
            }
        };
        if let Some(request) = deferred {
            let request = request.received();
            if event == Event::PlogiReceived {
                self.record_accepted(now_ns, &request);
            }
            match self.has_room_for(request.fc.s_id) {
                true => self.answers.push_back(self.login_accept(&request)),
                false => self.counters.count(LoginCounter::DropNoRoom),
            }
        }
        self.apply(now_ns, at, event, login);
    }

    /// Returns the accept of an FLOGI, PLOGI or LOGO.
    pub(super) fn login_accept(&self, request: &Received<'_>) -> ElsOut {
        let own = self.own_parameters();
        let parameters = match request.command {
            ElsCommand::Flogi => for_flogi(&own),
            ElsCommand::Plogi => own,
            _ => return request.answer(&ACCEPT),
        };
        let mut payload = [0; Login::BYTES];
        parameters.emit(ElsCommand::LsAcc, &mut payload);
        request.answer(&payload)
    }

    pub(super) fn verifications_timeout(&mut self, now_ns: u64) {
        for at in 0..self.ports.len() {
            let Some(verification) = self.ports[at]
                .as_mut()
                .and_then(|port| port.verification.as_mut())
                .filter(|verification| verification.deadline_ns <= now_ns)
            else {
                continue;
            };
            let was_sent = verification.ox_id.is_some() && !verification.unsent;
            if was_sent && verification.tries >= self.config.retries {
                self.confirm_logout(now_ns, at);
                continue;
            }
            verification.end(&mut self.exchanges, now_ns);
            if was_sent {
                verification.tries += 1;
                self.counters.count(LoginCounter::Retries);
            }
            self.send_verification(now_ns, at);
        }
    }
}
