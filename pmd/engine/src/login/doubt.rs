//! Is that port still logged in?
//!
//! A port that is logged in with us and says FLOGI started anew, or the network held one of
//! its frames; no name in the frame tells which. To believe it would end all connections with
//! that port. So it is asked by ADISC, in an exchange that no late frame can answer, and its
//! FLOGI waits: a port that started anew refuses, one that did not accepts. A LOGO that came
//! before is asked about as well. Who does not answer is not there any more.

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

/// An FLOGI that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    source: MacAddress,
    fc: FcHeader,
}

impl Waiting {
    pub(super) fn new(request: &Received<'_>) -> Self {
        Self {
            source: request.source,
            fc: *request.fc,
        }
    }
}

/// The question to a port that is logged in, as long as it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// The exchange of the last ADISC; none if all OX_IDs were in use.
    ox_id: Option<u16>,
    unsent: bool,
    /// How often it was asked again.
    tries: u8,
    pub(super) deadline_ns: u64,
    /// The newest FLOGI; none if it is a LOGO that is doubted.
    flogi: Option<Waiting>,
}

impl Doubt {
    /// The question is over. One that was not even handed out leaves no trace.
    fn end(&mut self, exchanges: &mut ExchangeIds, now_ns: u64) {
        match self.ox_id.take() {
            Some(ox_id) if self.unsent => exchanges.cancel(ox_id),
            Some(ox_id) => exchanges.end(now_ns, ox_id),
            None => {}
        }
    }
}

impl RemotePort {
    /// No question is open any more.
    pub(super) fn end_doubt(&mut self, exchanges: &mut ExchangeIds, now_ns: u64) {
        if let Some(mut doubt) = self.doubt.take() {
            doubt.end(exchanges, now_ns);
        }
    }

    /// Whether this is the exchange of the question.
    pub(super) fn doubts_in(&self, ox_id: u16) -> bool {
        let asked = |doubt: &Doubt| doubt.ox_id == Some(ox_id) && !doubt.unsent;
        self.doubt.as_ref().is_some_and(asked)
    }
}

impl LoginMachine {
    /// A port that is logged in sent this FLOGI, or a LOGO that was accepted before.
    pub(super) fn doubt(&mut self, now_ns: u64, at: usize, flogi: Option<Waiting>) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        if let Some(doubt) = &mut port.doubt {
            doubt.flogi = flogi.or(doubt.flogi);
            return;
        }
        self.counters.count(LoginCounter::Doubts);
        self.ask(now_ns, at, 0, flogi);
    }

    /// Asks, or asks again.
    fn ask(&mut self, now_ns: u64, at: usize, tries: u8, flogi: Option<Waiting>) {
        self.changed = true;
        let ox_id = self.exchanges.open(now_ns, Share::Neighbour(at));
        if ox_id.is_none() {
            self.counters.count(LoginCounter::NoExchange);
        }
        let wait_ns = self.random.spread(self.config.request_timeout_ns);
        if let Some(port) = self.ports[at].as_mut() {
            port.doubt = Some(Doubt {
                ox_id,
                unsent: ox_id.is_some(),
                tries,
                deadline_ns: now_ns.saturating_add(wait_ns),
                flogi,
            });
        }
    }

    pub(super) fn unsent_doubt(&mut self, id: NPortId) -> Option<ElsOut> {
        let mut ports = self.ports.iter_mut().flatten();
        let (peer, ox_id) = ports.find_map(|port| {
            let doubt = port.doubt.as_mut().filter(|doubt| doubt.unsent)?;
            doubt.unsent = false;
            Some((port.neighbour.id, doubt.ox_id?))
        })?;
        let mut payload = [0; Adisc::BYTES];
        self.adisc(id).emit_request(&mut payload);
        let destination = MacAddress::vn2vn(peer);
        let header = request_header(id, peer, ox_id);
        Some(ElsOut::new(Carrier::Fcoe, destination, header, &payload))
    }

    /// The answer to the question.
    pub(super) fn take_doubt_reply(
        &mut self,
        now_ns: u64,
        at: usize,
        command: ElsCommand,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        let port = self.ports[at]
            .as_mut()
            .ok_or(LoginCounter::DropStrayReply)?;
        let holds = match command {
            ElsCommand::LsAcc => {
                let adisc = Adisc::parse_accept(payload);
                let adisc = adisc.map_err(|_| LoginCounter::DropMalformedReply)?;
                let said = (adisc.n_port_id, adisc.port_name);
                said == (port.neighbour.id, port.neighbour.port_name)
            }
            _ => false,
        };
        if holds {
            port.end_doubt(&mut self.exchanges, now_ns);
            self.counters.count(LoginCounter::Repeated);
            self.changed = true;
        } else {
            self.believe(now_ns, at);
        }
        Ok(())
    }

    /// The other port is not logged in any more: what was doubted happens now.
    fn believe(&mut self, now_ns: u64, at: usize) {
        let Some(port) = self.ports[at].as_mut() else {
            return;
        };
        let flogi = port.doubt.and_then(|doubt| doubt.flogi);
        let event = match flogi {
            Some(waiting) => {
                self.accept_flogi(&waiting);
                Event::FlogiReceived
            }
            None => Event::LogoReceived,
        };
        self.apply(now_ns, at, event, None);
    }

    /// Answers an FLOGI. Without room for the answer it is sent again.
    fn accept_flogi(&mut self, waiting: &Waiting) {
        if !self.has_room() {
            self.counters.count(LoginCounter::DropNoRoom);
            return;
        }
        let request = Received {
            carrier: Carrier::Fip(FipService::Flogi),
            source: waiting.source,
            fc: &waiting.fc,
            command: ElsCommand::Flogi,
            payload: &[],
        };
        let answer = self.flogi_accept(&request);
        self.answers.push_back(answer);
    }

    /// What we say to an FLOGI.
    pub(super) fn flogi_accept(&self, request: &Received<'_>) -> ElsOut {
        let mut payload = [0; Login::BYTES];
        for_flogi(&self.own_parameters()).emit(ElsCommand::LsAcc, &mut payload);
        request.answer(&payload)
    }

    pub(super) fn doubts_timeout(&mut self, now_ns: u64) {
        for at in 0..self.ports.len() {
            let doubt = self.ports[at].as_ref().and_then(|port| port.doubt);
            let Some(mut doubt) = doubt.filter(|doubt| doubt.deadline_ns <= now_ns) else {
                continue;
            };
            let was_asked = doubt.ox_id.is_some() && !doubt.unsent;
            if was_asked && doubt.tries >= self.config.retries {
                self.believe(now_ns, at);
                continue;
            }
            doubt.end(&mut self.exchanges, now_ns);
            self.counters.count(LoginCounter::Retries);
            let tries = doubt.tries + u8::from(was_asked);
            self.ask(now_ns, at, tries, doubt.flogi);
        }
    }
}
