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

use fcvi_frame::els::{Adisc, ElsCommand};
use fcvi_frame::fc::NPortId;

use super::config::LoginConfig;
use super::context::Context;
use super::counters::LoginCounter;
use super::event::PortLogin;
use super::frames::{ElsOut, Received, fcoe_request};
use super::own_request::OwnRequest;
use super::state::Event;
use crate::Neighbour;

/// Refusals that end a login if another station seems to forge frames.
const CAUTIOUS_REFUSALS: u8 = 4;
/// Time for which a login that was doubted in vain needs that many, in units of the interval between
/// verifications.
const CAUTIOUS_INTERVALS: u64 = 60;

/// Why a login is verified, and what is done if the port is not logged in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// The event of a port that is not logged in.
    pub(super) event: Event,
    /// The request whose answer is deferred; `None` if discovery found another port with the name or
    /// N_Port_ID of this one.
    pub(super) request: Option<Received<'static>>,
    /// The negotiated parameters of a PLOGI.
    pub(super) login: Option<PortLogin>,
}

impl Doubt {
    /// A claim of another port with the name or N_Port_ID of this one.
    pub(super) const DISCOVERY: Self = Self {
        event: Event::NotConfirmed,
        request: None,
        login: None,
    };

    /// A doubt replaces earlier ones of the same or a lower rank: a login is wanted more than its end.
    fn rank(&self) -> u8 {
        match self.event {
            Event::NotConfirmed => 0,
            Event::LogoReceived => 1,
            _ => 2,
        }
    }
}

/// A verification in progress.
#[derive(Clone, Copy, Debug)]
struct Pending {
    doubt: Doubt,
    /// The last ADISC; none if it is delayed, or all OX_IDs were in use.
    adisc: OwnRequest,
    /// Number of retries.
    tries: u8,
    /// Number of refusals.
    refusals: u8,
    /// A reply with a wrong OX_ID arrived.
    has_strays: bool,
    deadline_ns: u64,
}

impl Pending {
    /// Schedules an ADISC in a new exchange.
    fn send(&mut self, context: &mut Context, slot: usize) {
        context.changed = true;
        self.adisc.end(context);
        self.adisc = OwnRequest::open(context, slot);
        self.has_strays = false;
        self.deadline_ns = context.after_jitter(context.config.verification_timeout_ns);
    }
}

/// Verification of the login with one port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoginVerification {
    /// Present while it is verified whether the port is still logged in.
    pending: Option<Pending>,
    /// When it last confirmed the login.
    confirmed_ns: Option<u64>,
}

impl LoginVerification {
    /// Starts the verification of a logged-in port, at once or when the interval since the last one is
    /// over.
    pub(super) fn start(&mut self, context: &mut Context, slot: usize, doubt: Doubt) {
        if let Some(pending) = &mut self.pending {
            if doubt.rank() >= pending.doubt.rank() {
                pending.doubt = doubt;
            }
            return;
        }
        context.counters.count(LoginCounter::Doubts);
        context.changed = true;
        let interval_ns = context.config.verification_interval_ns;
        let next_ns = |at_ns: u64| at_ns.saturating_add(interval_ns);
        let pending = self.pending.insert(Pending {
            doubt,
            adisc: OwnRequest::None,
            tries: 0,
            refusals: 0,
            has_strays: false,
            deadline_ns: self.confirmed_ns.map_or(context.now_ns, next_ns),
        });
        if pending.deadline_ns <= context.now_ns {
            pending.send(context, slot);
        }
    }

    /// Ends the verification, if one is in progress: the login has ended.
    pub(super) fn end(&mut self, context: &mut Context) {
        if let Some(pending) = &mut self.pending {
            pending.adisc.end(context);
        }
        *self = Self::default();
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.pending.map(|pending| pending.deadline_ns)
    }

    /// Reports whether this is the exchange of the verification.
    pub(super) fn is_in(&self, ox_id: u16) -> bool {
        let sent = OwnRequest::Sent(ox_id);
        self.pending.is_some_and(|pending| pending.adisc == sent)
    }

    /// Notes a reply of the port in an exchange that is not open.
    pub(super) fn note_stray_reply(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.has_strays = true;
        }
    }

    /// Returns the ADISC if it was not handed out. `id`: our N_Port_ID.
    pub(super) fn unsent_adisc(
        &mut self,
        config: &LoginConfig,
        id: NPortId,
        peer: NPortId,
    ) -> Option<ElsOut> {
        let ox_id = self.pending.as_mut()?.adisc.take_unsent()?;
        let mut payload = [0; Adisc::BYTES];
        config.adisc(id).emit_request(&mut payload);
        Some(fcoe_request(id, peer, ox_id, &payload))
    }

    /// Handles the reply to the ADISC. Returns the doubt if the port is not logged in any more.
    pub(super) fn take_reply(
        &mut self,
        context: &mut Context,
        slot: usize,
        neighbour: &Neighbour,
        reply: &Received<'_>,
    ) -> Result<Option<Doubt>, LoginCounter> {
        let is_logged_in = match reply.command {
            ElsCommand::LsAcc => {
                let adisc = Adisc::parse_accept(reply.payload);
                let adisc = adisc.map_err(|_| LoginCounter::DropMalformedReply)?;
                let identity = (adisc.n_port_id, adisc.port_name);
                identity == (neighbour.id, neighbour.port_name)
            }
            _ => false,
        };
        if !is_logged_in {
            return Ok(self.take_refusal(context, slot));
        }
        self.end(context);
        self.confirmed_ns = Some(context.now_ns);
        context.counters.count(LoginCounter::Repeated);
        context.changed = true;
        Ok(None)
    }

    /// Handles a refusal of the ADISC: returns the doubt, or sends another ADISC.
    fn take_refusal(&mut self, context: &mut Context, slot: usize) -> Option<Doubt> {
        let interval_ns = context.config.verification_interval_ns;
        let cautious_ns = interval_ns.saturating_mul(CAUTIOUS_INTERVALS);
        let is_recent = |at_ns: u64| context.now_ns.saturating_sub(at_ns) < cautious_ns;
        let was_confirmed = self.confirmed_ns.is_some_and(is_recent);
        let pending = self.pending.as_mut()?;
        pending.refusals += 1;
        let is_cautious = was_confirmed || pending.has_strays || pending.refusals > 1;
        if is_cautious && pending.refusals < CAUTIOUS_REFUSALS {
            pending.send(context, slot);
            return None;
        }
        Some(pending.doubt)
    }

    /// Handles the timeout. Returns the doubt if the port did not reply after all retries.
    pub(super) fn timeout(&mut self, context: &mut Context, slot: usize) -> Option<Doubt> {
        let pending = self.pending.as_mut();
        let pending = pending.filter(|pending| pending.deadline_ns <= context.now_ns)?;
        if pending.adisc.is_sent() {
            if pending.tries >= context.config.retries {
                return Some(pending.doubt);
            }
            pending.tries += 1;
            context.counters.count(LoginCounter::Retries);
        }
        pending.send(context, slot);
        None
    }
}
