//! FARP: resolves a host address to its N_Ports [FCVI P-15].
//!
//! A FARP-REQ is sent to all VN_Ports of the segment; every port whose host address it names
//! answers with a FARP-REPLY of its own. Requests are answered for neighbours only, and replies are
//! accepted from neighbours only, for hosts being resolved and ports that were queried.

use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::NPortId;

use super::config::LoginConfig;
use super::context::Context;
use super::counters::LoginCounter;
use super::exchanges::ExchangeIds;
use super::frames::{ElsOut, Received, fcoe_request};
use super::hosts::{FarpResult, Hosts};
use super::port::RemotePort;
use super::state::Event;
use super::table::PortTable;

impl Hosts {
    /// Returns the next FARP-REQ that is due, to all ports. `id`: our N_Port_ID.
    pub(super) fn unsent_request(&mut self, context: &mut Context, id: NPortId) -> Option<ElsOut> {
        let wanted = Farp {
            match_code: FarpMatch::HOST,
            responder_host: self.take_unsent()?,
            ..Farp::default()
        };
        own_request(context, id, NPortId::BROADCAST, &wanted)
    }

    /// Handles a FARP-REPLY: of a port of a host being resolved, or that was queried for its host.
    pub(super) fn take_reply(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        reply: &Received<'_>,
    ) -> Result<(), LoginCounter> {
        let farp = Farp::parse(reply.command, reply.payload)
            .ok()
            .filter(|farp| farp.responder == reply.fc.s_id && Some(farp.requester) == context.id)
            .ok_or(LoginCounter::DropFarpMalformed)?;
        let port = neighbour(ports, reply, farp.responder_port_name)?;
        let was_queried = port.host.record(context, farp.responder_host);
        match self.add_port(context, farp.responder_host, farp.responder) {
            FarpResult::Added => context.changed = true,
            FarpResult::Full => return Err(LoginCounter::DropFarpFull),
            FarpResult::NotRequested if was_queried => {}
            FarpResult::NotRequested => return Err(LoginCounter::DropFarpNotAsked),
        }
        context.counters.count(LoginCounter::Resolved);
        Ok(())
    }
}

/// Returns the next query for the host of a port, by its name. `id`: our N_Port_ID.
pub(super) fn unsent_query(
    context: &mut Context,
    ports: &mut PortTable,
    id: NPortId,
) -> Option<ElsOut> {
    let port = ports.unsent_query()?;
    let wanted = Farp {
        match_code: FarpMatch::PORT_NAME,
        responder: port.id,
        responder_port_name: port.port_name,
        ..Farp::default()
    };
    own_request(context, id, port.id, &wanted)
}

/// Handles a FARP-REQ, and returns the reply if one is requested.
pub(super) fn take_request(
    context: &mut Context,
    ports: &mut PortTable,
    request: &Received<'_>,
) -> Result<Option<ElsOut>, LoginCounter> {
    let farp = Farp::parse(request.command, request.payload)
        .ok()
        .filter(|farp| farp.requester == request.fc.s_id && farp.match_code.is_valid())
        .ok_or(LoginCounter::DropFarpMalformed)?;
    let id = context.id.ok_or(LoginCounter::DropNoId)?;
    let config = &context.config;
    if !matches_us(config, &farp) {
        return Err(LoginCounter::DropFarpNoMatch);
    }
    let port = neighbour(ports, request, farp.requester_port_name)?;
    let reply = Farp {
        responder: id,
        responder_port_name: config.port_name,
        responder_node_name: config.node_name,
        responder_host: config.host.unwrap_or_default(),
        ..farp
    };
    let (exchanges, command) = (&mut context.exchanges, ElsCommand::FarpReply);
    let is_reply_wanted = farp.action.contains(FarpAction::REPLY);
    let reply = is_reply_wanted
        .then(|| frame(exchanges, id, request.fc.s_id, command, &reply))
        .transpose()?;
    if farp.action.contains(FarpAction::LOGIN) && !context.is_closing {
        port.apply(context, Event::Ready, None);
    }
    Ok(reply)
}

/// Returns a FARP-REQ of ours for the fields of `wanted`.
fn own_request(context: &mut Context, id: NPortId, to: NPortId, wanted: &Farp) -> Option<ElsOut> {
    let config = &context.config;
    let farp = Farp {
        action: FarpAction::REPLY,
        requester: id,
        requester_port_name: config.port_name,
        requester_node_name: config.node_name,
        requester_host: config.host.unwrap_or_default(),
        ..*wanted
    };
    let exchanges = &mut context.exchanges;
    let request = frame(exchanges, id, to, ElsCommand::FarpRequest, &farp);
    context.count_error(request)
}

/// Returns a FARP frame. Its exchange ends when it is sent: a reply is in an exchange of its own.
fn frame(
    exchanges: &mut ExchangeIds,
    s_id: NPortId,
    d_id: NPortId,
    command: ElsCommand,
    farp: &Farp,
) -> Result<ElsOut, LoginCounter> {
    let ox_id = exchanges.one_way().ok_or(LoginCounter::NoExchange)?;
    let mut payload = [0; Farp::BYTES];
    farp.emit(command, &mut payload);
    Ok(fcoe_request(s_id, d_id, ox_id, &payload))
}

/// Reports whether every field that the request names is ours.
fn matches_us(config: &LoginConfig, farp: &Farp) -> bool {
    let fields = [
        (
            FarpMatch::PORT_NAME,
            farp.responder_port_name == config.port_name,
        ),
        (
            FarpMatch::NODE_NAME,
            farp.responder_node_name == config.node_name,
        ),
        (FarpMatch::HOST, Some(farp.responder_host) == config.host),
    ];
    let named = |field| farp.match_code.contains(field);
    fields
        .into_iter()
        .all(|(field, same)| same || !named(field))
}

/// Returns the neighbour that sent a FARP frame, in which it gives this name.
fn neighbour<'a>(
    ports: &'a mut PortTable,
    received: &Received<'_>,
    port_name: u64,
) -> Result<&'a mut RemotePort, LoginCounter> {
    let port = ports.by_id_mut(received.fc.s_id);
    port.filter(|port| port.neighbour.port_name == port_name)
        .ok_or(LoginCounter::DropFarpStranger)
}
