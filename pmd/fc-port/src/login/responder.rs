//! The queue of answers to other ports, and of LOGOs to those that are not logged in.
//!
//! A port that is not logged in and behaves as if it were is sent a LOGO; while a login is in
//! progress its requests are answered with "busy". Answers are bounded: one per request, and a
//! limit of LOGOs per second.

use std::collections::VecDeque;

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, LsRjt, RejectExplanation, RejectReason};
use fcvi_frame::fc::NPortId;

use super::context::Context;
use super::counters::LoginCounter;
use super::exchanges::Share;
use super::farp;
use super::frames::{Carrier, ElsOut, FipService, Received, request_header};
use super::login_verification::Doubt;
use super::refusal::{Refused, not_a_neighbour, unsupported};
use super::table::PortTable;
use crate::rate_limiter::RateLimiter;

/// Answers requests of other ports.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) answers: VecDeque<ElsOut>,
    /// Answers to ports that are no neighbours.
    non_neighbour_answers: RateLimiter,
}

impl Responder {
    pub(super) fn new(max_answers: u16) -> Self {
        Self {
            answers: VecDeque::with_capacity(usize::from(max_answers)),
            non_neighbour_answers: RateLimiter::default(),
        }
    }

    /// Checks that one more answer to this port can be queued. One port, and all that are not logged
    /// in together, have half of the queue, so that a flood in the name of some leaves room for the
    /// others.
    pub(super) fn check_room(
        &self,
        context: &Context,
        ports: &PortTable,
        id: NPortId,
    ) -> Result<(), LoginCounter> {
        let max = usize::from(context.config.max_answers);
        let is_logged_in = |id| ports.login(id).is_some();
        let shares_with =
            |out: &&ElsOut| out.fc.d_id == id || !(is_logged_in(id) || is_logged_in(out.fc.d_id));
        let has_share = || self.answers.iter().filter(shares_with).count() < max.div_ceil(2);
        let has_room = self.answers.len() < max && has_share();
        has_room.then_some(()).ok_or(LoginCounter::DropNoRoom)
    }

    /// Allows one more answer to a port that is no neighbour, within the limit per second.
    fn limit_non_neighbour_answer(&mut self, context: &Context) -> Result<(), LoginCounter> {
        let limit = context.config.max_non_neighbour_answers_per_second;
        let allowed = self.non_neighbour_answers.take(context.now_ns, limit);
        allowed.then_some(()).ok_or(LoginCounter::DropLimit)
    }

    /// Handles a request, but no FARP-REPLY. The room for its answer was checked.
    pub(super) fn take_request(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        request: &Received<'_>,
    ) -> Result<(), LoginCounter> {
        if request.command == ElsCommand::FarpRequest {
            let reply = farp::take_request(context, ports, request)?;
            self.answers.extend(reply);
            return Ok(());
        }
        let needs_login = request.needs_login();
        let answer = match ports.by_id_mut(request.fc.s_id) {
            Some(port) if !needs_login || port.login.is_some() || port.is_busy() => {
                port.answer(context, request)
            }
            None if !needs_login => {
                self.limit_non_neighbour_answer(context)?;
                match request.command {
                    ElsCommand::Logo => Ok(Some(context.config.login_accept(request))),
                    ElsCommand::Flogi | ElsCommand::Plogi => Err(not_a_neighbour()),
                    _ => Err(unsupported()),
                }
            }
            _ => return self.refuse_request(context, ports, request),
        };
        let answer = answer.unwrap_or_else(|Refused(counter, refusal)| {
            context.counters.count(counter);
            Some(request.refusal(refusal))
        });
        self.answers.extend(answer);
        Ok(())
    }

    /// Handles a request that only a logged-in port may send, of one that is not. An ADISC is refused
    /// in its exchange as well: the other port may verify its login by it.
    fn refuse_request(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        request: &Received<'_>,
    ) -> Result<(), LoginCounter> {
        let s_id = request.fc.s_id;
        if request.command == ElsCommand::Adisc {
            if ports.by_id(s_id).is_none() {
                self.limit_non_neighbour_answer(context)?;
            }
            context.counters.count(LoginCounter::RefusedNotLoggedIn);
            self.answers.push_back(request.refusal(LsRjt {
                reason: RejectReason::UnableToPerform,
                explanation: RejectExplanation::LoginRequired,
            }));
        }
        self.send_logo(context, ports, s_id)
    }

    /// Sends a LOGO to a port that behaves as if it were logged in.
    pub(super) fn send_logo(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        s_id: NPortId,
    ) -> Result<(), LoginCounter> {
        context.counters.count(LoginCounter::DropNotLoggedIn);
        let id = context.id.ok_or(LoginCounter::DropNoId)?;
        self.check_room(context, ports, s_id)?;
        let (carrier, destination) = match ports.by_id_mut(s_id) {
            // A login or a LOGO is in progress already.
            Some(port) if port.is_busy() => return Ok(()),
            Some(port) => {
                let limit = context.config.max_logos_per_second;
                if !port.logos.take(context.now_ns, limit) {
                    return Err(LoginCounter::DropLimit);
                }
                let service = Carrier::Fip(FipService::Logo);
                (service, port.neighbour.enode_mac)
            }
            None => {
                self.limit_non_neighbour_answer(context)?;
                (Carrier::Fcoe, MacAddress::vn2vn(s_id))
            }
        };
        let exchanges = &mut context.exchanges;
        let ox_id = exchanges.open(context.now_ns, Share::NotLoggedIn);
        let ox_id = ox_id.ok_or(LoginCounter::NoExchange)?;
        // No reply is expected.
        exchanges.end(context.now_ns, ox_id);
        let header = request_header(id, s_id, ox_id);
        let payload = context.config.logo_payload(id);
        self.answers
            .push_back(ElsOut::new(carrier, destination, header, &payload));
        context.counters.count(LoginCounter::LogosToStrangers);
        Ok(())
    }

    /// Accepts the deferred request of a port that is verified not to be logged in any more, and
    /// applies it. If the queue of answers is full, the other port retries.
    pub(super) fn confirm_logout(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        id: NPortId,
        doubt: &Doubt,
    ) {
        if let Some(request) = &doubt.request {
            let room = self.check_room(context, ports, id);
            if context.count_error(room).is_some() {
                let accept = context.config.login_accept(request);
                self.answers.push_back(accept);
            }
        }
        if let Some(port) = ports.by_id_mut(id) {
            port.confirm_logout(context, doubt);
        }
    }
}
