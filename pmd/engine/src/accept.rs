//! The server's half of connection set-up [FCVI P-12].
//!
//! A request that finds a waiting consumer is held until the consumer accepts
//! or rejects it; one that finds none is answered with NO_MATCH at once.
//!
//! ```text
//!   Held --accept--> Accepting --RESP2--> (the VI is Connected)
//!    |  |                |
//!    |  +--reject-->     +-- no RESP2 in FCVI_ULP_TIMEOUT, client gave up --> void
//!    +-- client gave up, its port went --> Void (kept until the consumer lets go)
//! ```

use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse, Discriminator, NetAddress};
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::{ConnectMode, connect_request, connect_response};
use fcvi_frame::frame::{FrameHeader, FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};

use crate::connect::{ConnectError, RemoteVi, compare, connect_header};
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Transmit};
use crate::timer::TimerKey;

/// A connection request of another port that waits for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A consumer that waits for a request.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: u64,
    discriminator: Discriminator,
    matched: Option<ConnId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncomingState {
    Held,
    Accepting(ViIndex),
    Void,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    generation: u32,
    state: IncomingState,
    s_id: NPortId,
    connection_id: u32,
    originator_handle: u32,
    first_msg_id: u32,
    ox_id: u16,
    seq_id: u8,
    seq_cnt: u16,
    local: NetAddress,
    remote: NetAddress,
    attributes: Attributes,
    void_at_ns: u64,
}

/// A request that was matched, for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indication {
    /// To accept or reject it.
    pub conn: ConnId,
    /// The client's name for the connection.
    pub remote: NetAddress,
    /// Attributes of the client's VI.
    pub attributes: Attributes,
}

impl Engine {
    /// A consumer waits for one request with this discriminator (VIPL 3.3.1).
    /// Returns a number for [`Engine::take_indication`] and [`Engine::unlisten`].
    pub fn listen(&mut self, discriminator: Discriminator) -> u64 {
        self.next_listener += 1;
        self.listeners.push(Listener {
            id: self.next_listener,
            discriminator,
            matched: None,
        });
        self.next_listener
    }

    /// The request that this listener matched, once; the listener is gone then.
    pub fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let at = self.listeners.iter().position(|l| l.id == listener)?;
        let conn = self.listeners[at].matched?;
        self.listeners.swap_remove(at);
        let incoming = self.incoming_mut(conn)?;
        Some(Indication {
            conn,
            remote: incoming.local,
            attributes: incoming.attributes,
        })
    }

    /// The consumer waits no longer. A request that was matched meanwhile goes to
    /// another listener or is answered with NO_MATCH.
    pub fn unlisten<H: Host>(&mut self, now_ns: u64, listener: u64, host: &mut H) {
        let Some(at) = self.listeners.iter().position(|l| l.id == listener) else {
            return;
        };
        let gone = self.listeners.swap_remove(at);
        let Some(conn) = gone.matched else {
            return;
        };
        let next = self
            .listeners
            .iter_mut()
            .find(|l| l.matched.is_none() && l.discriminator == gone.discriminator);
        if let Some(next) = next {
            next.matched = Some(conn);
            host.control_event();
        } else {
            self.answer(now_ns, conn, ConnectReason::NoMatch, host);
        }
    }

    pub(crate) fn incoming_mut(&mut self, conn: ConnId) -> Option<&mut Incoming> {
        self.incoming
            .get_mut(conn.index as usize)
            .and_then(Option::as_mut)
            .filter(|i| i.generation == conn.generation)
    }

    /// Forgets a request. The consumer's handle of it is invalid from now on.
    pub fn forget(&mut self, conn: ConnId) {
        if self.incoming_mut(conn).is_some() {
            self.incoming[conn.index as usize] = None;
        }
    }

    pub(crate) fn handle_connect_request<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let connection_id = iu.header.connection_id();
        let refused = |engine: &mut Self, handle, reason, host: &mut H| {
            engine.refuse(frame, handle, connection_id, reason, host);
        };
        let Ok(request) = ConnectRequest::parse(iu.payload) else {
            refused(self, 0, ConnectReason::Malformed, host);
            self.counters.count(Counter::DropBadIu);
            return;
        };
        let handle = request.vi_handle;
        if connect_request::mode(iu.header.flags) != Some(ConnectMode::ClientServer) {
            refused(self, handle, ConnectReason::NoMatch, host);
            return;
        }
        if request.remote.host != self.config.host {
            refused(self, handle, ConnectReason::NotMyAddress, host);
            return;
        }
        if self.repeated_request(frame, &request, connection_id, host) {
            return;
        }
        let listener = self.listeners.iter().position(|l| {
            l.matched.is_none() && l.discriminator == request.remote.discriminator
        });
        let Some(listener) = listener else {
            self.counters.count(Counter::NoMatch);
            refused(self, handle, ConnectReason::NoMatch, host);
            return;
        };
        let Some(index) = self.free_incoming() else {
            self.counters.count(Counter::DropIncomingFull);
            refused(self, handle, ConnectReason::NoResources, host);
            return;
        };
        self.next_generation = self.next_generation.wrapping_add(1);
        let conn = ConnId {
            index,
            generation: self.next_generation,
        };
        let void_at_ns = if request.timeout_ms == u32::MAX {
            u64::MAX
        } else {
            now_ns + u64::from(request.timeout_ms) * 1_000_000
        };
        self.incoming[index as usize] = Some(Incoming {
            generation: conn.generation,
            state: IncomingState::Held,
            s_id: frame.fc.s_id,
            connection_id,
            originator_handle: request.vi_handle,
            first_msg_id: iu.header.msg_id,
            ox_id: frame.fc.ox_id,
            seq_id: frame.fc.seq_id,
            seq_cnt: frame.fc.seq_cnt,
            local: request.local,
            remote: request.remote,
            attributes: request.attributes,
            void_at_ns,
        });
        if void_at_ns != u64::MAX {
            self.timers.set(void_at_ns, TimerKey::Incoming(index));
        }
        self.listeners[listener].matched = Some(conn);
        host.control_event();
    }

    fn free_incoming(&mut self) -> Option<u32> {
        if let Some(at) = self.incoming.iter().position(Option::is_none) {
            return Some(at as u32);
        }
        if self.incoming.len() < self.config.max_incoming as usize {
            self.incoming.push(None);
            return Some(self.incoming.len() as u32 - 1);
        }
        None
    }

    /// A request that we know already: said again what was said before.
    fn repeated_request<H: Host>(
        &mut self,
        frame: &FrameView<'_>,
        request: &ConnectRequest,
        connection_id: u32,
        host: &mut H,
    ) -> bool {
        let known = self.incoming.iter_mut().flatten().find(|i| {
            i.s_id == frame.fc.s_id
                && i.connection_id == connection_id
                && i.originator_handle == request.vi_handle
        });
        if let Some(incoming) = known {
            let (old_ox, old_seq, old_cnt) = (incoming.ox_id, incoming.seq_id, incoming.seq_cnt);
            incoming.ox_id = frame.fc.ox_id;
            incoming.seq_id = frame.fc.seq_id;
            incoming.seq_cnt = frame.fc.seq_cnt;
            match incoming.state {
                IncomingState::Held => {
                    if old_ox != frame.fc.ox_id {
                        // Ends the superseded exchange: held for the consumer.
                        let parameter = connect_parameter::pack(
                            ConnectStatus::Pending,
                            ConnectReason::WaitingForConsumer,
                        );
                        let old = (old_ox, old_seq, old_cnt);
                        self.respond(frame.fc.s_id, request, connection_id, old, parameter, host);
                    }
                }
                IncomingState::Accepting(vi) => {
                    let at = (frame.fc.ox_id, frame.fc.seq_id, frame.fc.seq_cnt);
                    self.move_exchange(vi, at);
                    self.send_response1_accept(vi, host);
                }
                IncomingState::Void => {}
            }
            return true;
        }
        // Established already: its RESP1 crossed this retry, RESP2 came, nothing to say.
        let s_id = frame.fc.s_id;
        self.endpoints.iter().flatten().any(|ep| {
            ep.link.as_ref().is_some_and(|link| {
                !link.originator && link.peer == s_id && link.connection_id == connection_id
            })
        })
    }

    fn move_exchange(&mut self, vi: ViIndex, (ox_id, seq_id, seq_cnt): (u16, u8, u16)) {
        if let Some(link) = self.endpoint_mut(vi).and_then(|ep| ep.link.as_mut()) {
            link.ox_id = ox_id;
            link.seq_id = seq_id;
            link.seq_cnt = seq_cnt;
        }
    }

    /// A RESP1 that ends the exchange of this frame with a reason.
    fn refuse<H: Host>(
        &mut self,
        frame: &FrameView<'_>,
        originator_handle: u32,
        connection_id: u32,
        reason: ConnectReason,
        host: &mut H,
    ) {
        let request = ConnectRequest {
            vi_handle: originator_handle,
            timeout_ms: 0,
            local: NetAddress::default(),
            remote: NetAddress {
                host: self.config.host,
                ..NetAddress::default()
            },
            attributes: Attributes::default(),
        };
        let at = (frame.fc.ox_id, frame.fc.seq_id, frame.fc.seq_cnt);
        let parameter = connect_parameter::pack(ConnectStatus::Failed, reason);
        self.respond(
            frame.fc.s_id,
            &request,
            connection_id,
            at,
            parameter,
            host,
        );
    }

    /// A RESP1 without a VI, which ends its exchange.
    fn respond<H: Host>(
        &mut self,
        to: NPortId,
        request: &ConnectRequest,
        connection_id: u32,
        (ox_id, seq_id, seq_cnt): (u16, u8, u16),
        parameter: u32,
        host: &mut H,
    ) {
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: 0,
            responder: request.remote,
            attributes: request.attributes,
        }
        .emit(&mut payload);
        let (status, _) = connect_parameter::unpack(parameter);
        let flags = if status == ConnectStatus::Failed {
            connect_response::ERROR
        } else {
            0
        };
        let opcode = Opcode::ConnectResponse1;
        let header = FrameHeader {
            dst: MacAddress::vn2vn(to),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: opcode.r_ctl(),
                d_id: to,
                cs_ctl: 0,
                s_id: self.config.n_port_id,
                fc_type: FcType::Vi,
                f_ctl: profile::F_CTL_FINAL_REPLY,
                seq_id: seq_id.wrapping_add(1),
                df_ctl: profile::df_ctl(opcode.header_bytes()),
                seq_cnt: seq_cnt.wrapping_add(1),
                ox_id,
                rx_id: ox_id,
                parameter: 0,
            },
            device: Some(connect_header(
                opcode,
                request.vi_handle,
                flags,
                0,
                parameter,
                connection_id,
            )),
        };
        if host.transmit_control(&header, &payload) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    /// Answers a held request with a refusal and forgets it.
    fn answer<H: Host>(
        &mut self,
        _now_ns: u64,
        conn: ConnId,
        reason: ConnectReason,
        host: &mut H,
    ) {
        let Some(incoming) = self.incoming_mut(conn).map(|i| i.clone()) else {
            return;
        };
        if incoming.state == IncomingState::Held {
            let request = ConnectRequest {
                vi_handle: incoming.originator_handle,
                timeout_ms: 0,
                local: incoming.local,
                remote: incoming.remote,
                attributes: incoming.attributes,
            };
            let at = (incoming.ox_id, incoming.seq_id, incoming.seq_cnt);
            let parameter = connect_parameter::pack(ConnectStatus::Failed, reason);
            self.respond(
                incoming.s_id,
                &request,
                incoming.connection_id,
                at,
                parameter,
                host,
            );
        }
        self.forget(conn);
    }

    /// The consumer rejects a request (VIPL 3.3.3).
    pub fn reject<H: Host>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        self.incoming_mut(conn).ok_or(ConnectError::Invalid)?;
        self.answer(now_ns, conn, ConnectReason::Rejected, host);
        Ok(())
    }

    /// The consumer accepts a request with an Idle VI (VIPL 3.3.2). `Ok`: the outcome
    /// comes by [`Engine::take_outcome`]. An attribute conflict tells the client nothing
    /// and leaves the request for another try.
    pub fn accept<H: Host>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        let incoming = self
            .incoming_mut(conn)
            .ok_or(ConnectError::Invalid)?
            .clone();
        match incoming.state {
            IncomingState::Held => {}
            IncomingState::Accepting(_) => return Err(ConnectError::Invalid),
            IncomingState::Void => {
                self.forget(conn);
                return Err(ConnectError::Timeout);
            }
        }
        let ep = self.endpoint(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
        }
        compare(&self.attributes_of(&ep.params), &incoming.attributes)?;
        let handle = self.new_handle(vi, host);
        let link = Link {
            peer: incoming.s_id,
            peer_handle: incoming.originator_handle,
            connection_id: incoming.connection_id,
            ox_id: incoming.ox_id,
            rx_id: incoming.ox_id,
            seq_id: incoming.seq_id,
            seq_cnt: incoming.seq_cnt,
            originator: false,
            exchange_open: false,
            remote: incoming.attributes,
        };
        self.bind(vi, link, incoming.first_msg_id);
        let first = host.random();
        let retry_at = now_ns + self.config.ulp_timeout_ns / 4;
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.outcome = None;
            if let Some(tx) = ep.tx.as_mut() {
                tx.next_msg_id = first;
            }
            ep.phase = Phase::AwaitResponse2 {
                next_retry_ns: retry_at,
                retries: 0,
            };
        }
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Accepting(vi);
        }
        host.set_state(vi, EndpointState::ConnectPending);
        self.send_response1_accept(vi, host);
        self.arm_connect_timer(now_ns, vi);
        Ok(())
    }

    /// RESP1 "accepted" on the newest exchange of the request.
    pub(crate) fn send_response1_accept<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let (Some(link), Some(tx)) = (ep.link, ep.tx.as_ref()) else {
            return;
        };
        let first_msg_id = tx.next_msg_id;
        let remote = self
            .incoming
            .iter()
            .flatten()
            .find(|i| i.state == IncomingState::Accepting(vi))
            .map(|i| i.remote)
            .unwrap_or_default();
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: ep.handle,
            responder: remote,
            attributes: self.attributes_of(&ep.params),
        }
        .emit(&mut payload);
        let parameter = connect_parameter::pack(ConnectStatus::GoOn, ConnectReason::Accepted);
        let mut header = self.link_header(
            &link,
            Opcode::ConnectResponse1,
            profile::F_CTL_CONNECT_RESPONSE1,
            first_msg_id,
            parameter,
        );
        header.fc.seq_id = link.seq_id.wrapping_add(1);
        header.fc.seq_cnt = link.seq_cnt.wrapping_add(1);
        if host.transmit_control(&header, &payload) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    pub(crate) fn handle_response2<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Some(vi) = self.link_of(frame, iu) else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let Some(link) = ep.link else {
            return;
        };
        self.heard(ep.peer_index, now_ns);
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        if link.originator {
            self.counters.count(Counter::DropStrayConnect);
            return;
        }
        match ep.phase {
            Phase::AwaitResponse2 { .. } => self.server_connected(vi, &link, host),
            Phase::Connected => {}
            _ => return,
        }
        let mut header = self.link_header(
            &link,
            Opcode::ConnectResponse3,
            profile::F_CTL_FINAL_REPLY,
            0,
            0,
        );
        header.fc.ox_id = frame.fc.ox_id;
        header.fc.rx_id = frame.fc.rx_id;
        header.fc.seq_id = frame.fc.seq_id.wrapping_add(1);
        header.fc.seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
        if host.transmit_control(&header, &[]) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    fn server_connected<H: Host>(&mut self, vi: ViIndex, link: &Link, host: &mut H) {
        let remote = RemoteVi {
            attributes: link.remote,
            n_port_id: link.peer,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Connected;
            ep.outcome = Some(Ok(remote));
        }
        self.forget_accepting(vi);
        self.counters.count(Counter::Connects);
        host.set_state(vi, EndpointState::Connected);
        host.control_event();
    }

    /// The request that this VI was accepting is decided.
    pub(crate) fn forget_accepting(&mut self, vi: ViIndex) {
        for slot in &mut self.incoming {
            if slot
                .as_ref()
                .is_some_and(|i| i.state == IncomingState::Accepting(vi))
            {
                *slot = None;
            }
        }
    }

    /// The client takes its request back. True if there was one.
    pub(crate) fn cancel_incoming(&mut self, s_id: NPortId, connection_id: u32) -> bool {
        let found = self.incoming.iter_mut().flatten().find(|i| {
            i.s_id == s_id && i.connection_id == connection_id && i.state == IncomingState::Held
        });
        match found {
            Some(incoming) => {
                incoming.state = IncomingState::Void;
                true
            }
            None => false,
        }
    }

    /// Requests of a port that went are void.
    pub(crate) fn incoming_gone(&mut self, s_id: NPortId) {
        for incoming in self.incoming.iter_mut().flatten() {
            if incoming.s_id == s_id && incoming.state == IncomingState::Held {
                incoming.state = IncomingState::Void;
            }
        }
    }

    pub(crate) fn incoming_timeout(&mut self, now_ns: u64, index: u32) {
        if let Some(Some(incoming)) = self.incoming.get_mut(index as usize) {
            if incoming.void_at_ns <= now_ns && incoming.state == IncomingState::Held {
                incoming.state = IncomingState::Void;
            }
        }
    }

    /// True while F_CTL says that the sender originated the exchange.
    pub(crate) fn from_originator(f_ctl: FCtl) -> bool {
        !f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
    }
}
