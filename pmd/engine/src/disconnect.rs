//! Ends of connections: by the consumer, by the peer, by an error, by the loss of a port [FCVI P-13].

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, CallError, ViIndex, ViState, Waiter};

use crate::connect::Attempt;
use crate::connection::{Break, Connection};
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::logged_in_ports::LoggedInPorts;

impl Engine {
    /// Disconnects a VI (VIPL 3.3.5), which is legal in every state: flushes both queues and leaves
    /// the VI Idle. A pending connection call on this VI ends with `InvalidState`.
    pub fn disconnect<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
            ep.return_to_idle(&mut cx);
            // The peer request is withdrawn: it gets no outcome.
            ep.peer_request = None;
        }
    }

    /// Moves a VI to Error after a fatal error of its consumer (VIPL 6.3.1), at every level and in
    /// every state. A concluded peer request keeps its outcome; any other one is withdrawn.
    pub fn fail_vi<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            return;
        };
        match ep.state() {
            ViState::Connected => ep.break_local(&mut cx, Break(MessageReason::ProtocolError)),
            ViState::Idle | ViState::ConnectPending => {
                ep.return_to_idle(&mut cx);
                ep.phase = Phase::Error;
                ep.peer_request.take_if(|request| !request.is_concluded());
                cx.io.set_state(vi, ViState::Error);
            }
            ViState::Error => {}
        }
    }

    /// Handles DISCONNECT_RQST.
    pub(crate) fn handle_disconnect_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let s_id = frame.fc.s_id;
        let connection_id = iu.header.connection_id();
        let request = (s_id, connection_id);
        let mut known = self.port.cancel_incoming(s_id, connection_id);
        if iu.header.handle == profile::HANDLE_NONE {
            // Only a requester that cancels its request does not know our handle. It may not have
            // been received yet.
            if self.port.has_received(s_id, connection_id) {
                self.port.quarantine.add_received(now_ns, request);
            } else {
                self.port.quarantine.add_announced(now_ns, request);
            }
        }
        let vi = self.disconnected_vi(s_id, iu);
        if let Some((ep, mut cx)) = vi.and_then(|vi| self.split(now_ns, vi, io)) {
            known = true;
            if ep
                .connection
                .is_some_and(|connection| !connection.originator)
            {
                cx.port.quarantine.add_received(now_ns, request);
            }
            ep.disconnected(&mut cx, iu);
        }
        let reason = if known {
            MessageReason::None
        } else {
            self.port.counters.count(Counter::UnknownDisconnects);
            MessageReason::UnknownHandle
        };
        let answer = ConnectionIu {
            to: s_id,
            at: Sequence::reply_to(&frame.fc),
            opcode: Opcode::DisconnectResponse,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            handle: iu.header.handle,
            flags: 0,
            msg_id: 0,
            parameter: reason.to_parameter(),
            port_name: 0,
            connection_id,
        };
        // If the port has no room, the peer repeats the request.
        self.port.send_connection_iu(&answer, &[], io);
    }

    /// Returns the VI whose connection a DISCONNECT_RQST ends: by handle, or by connection ID while
    /// the peer does not know our handle yet.
    fn disconnected_vi(&self, s_id: NPortId, iu: &IuView<'_>) -> Option<ViIndex> {
        let connection_id = iu.header.connection_id();
        let fits = |connection: &Connection| {
            (connection.peer, connection.connection_id) == (s_id, connection_id)
        };
        if iu.header.handle != profile::HANDLE_NONE {
            let vi = self.port.slot_of(iu.header.handle);
            let ep = self.endpoint(vi)?;
            return (ep.is_addressed(iu) && ep.connection.as_ref().is_some_and(fits)).then_some(vi);
        }
        let vi = *self.port.accepted.get(&(s_id, connection_id))?;
        let waits = matches!(self.endpoint(vi)?.phase, Phase::AwaitResponse2(_));
        waits.then_some(vi)
    }

    /// Ends all connections and requests with a station that was lost or replaced.
    pub fn peer_lost<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        self.port.counters.count(Counter::PeersLost);
        self.ports_lost(now_ns, |port| port == id, io);
    }

    /// Ends all connections and requests with all of these ports, in one pass.
    fn ports_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        is_lost: impl Fn(NPortId) -> bool + Copy,
        io: &mut I,
    ) {
        self.remove_targets(now_ns, is_lost, io);
        self.port.cancel_incoming_from(is_lost);
        for slot in 0..self.endpoints.len() {
            let Some((ep, mut cx)) = self.split(now_ns, ViIndex(slot as u32), io) else {
                continue;
            };
            if ep.connection.is_some_and(|c| is_lost(c.peer)) {
                let error = if matches!(ep.phase, Phase::AwaitResponse3(_)) {
                    CallError::NotReachable
                } else {
                    CallError::Timeout
                };
                ep.ended_by_peer(&mut cx, AsyncError::ConnectionLost, error);
            }
        }
        for ep in self.endpoints.iter_mut().flatten() {
            ep.previous = ep.previous.filter(|f| !is_lost(f.peer));
        }
        self.port.remove_disconnects_to(now_ns, is_lost);
        io.control_event(Waiter::All);
    }

    /// Ends everything after the port failed (VIPL 6.3.1): every connection and every half of one,
    /// pending requests and disconnects. A pending peer request fails with `NotReachable`, and
    /// every VI moves to Error with both queues flushed. `disconnect` returns each to Idle.
    pub fn port_lost<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        self.all_ports_lost(now_ns, io);
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            // A peer request otherwise outlives the ports that it was sent to.
            if let Some(ep) = self.endpoint_mut(vi)
                && ep.state() == ViState::ConnectPending
                && ep.peer_request.is_some()
            {
                ep.conclude(Err(CallError::NotReachable));
            }
            self.fail_vi(now_ns, vi, io);
        }
        self.port.remove_disconnects_to(now_ns, |_| true);
    }

    /// Ends all connections, requests and disconnects.
    fn all_ports_lost<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        let ports = self.known_ports().len() as u64;
        self.port.counters.add(Counter::PeersLost, ports);
        self.ports_lost(now_ns, |_| true, io);
    }

    /// Returns every port with which there is a connection or half a one.
    fn known_ports(&self) -> Vec<NPortId> {
        let mut ports = Vec::new();
        for ep in self.endpoints.iter().flatten() {
            ports.extend(ep.connection.as_ref().map(|connection| connection.peer));
            ports.extend(ep.attempt().into_iter().flat_map(Attempt::ports));
        }
        ports.extend(
            self.port
                .incoming
                .iter()
                .flatten()
                .map(|incoming| incoming.s_id),
        );
        ports.sort_unstable_by_key(|id| id.get());
        ports.dedup();
        ports
    }

    /// Restricts connections to logged-in ports and this port itself.
    pub fn require_login(&mut self) {
        self.port.logged_in_ports.get_or_insert_default();
    }

    /// Adds a logged-in port. `data_field_bytes`: the negotiated maximum data field.
    pub fn logged_in(&mut self, id: NPortId, data_field_bytes: u16) {
        if let Some(logged_in) = &mut self.port.logged_in_ports {
            logged_in.add(id, data_field_bytes);
        }
    }

    /// Removes a port that logged out: its connections are lost.
    pub fn logged_out<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        if let Some(logged_in) = &mut self.port.logged_in_ports
            && logged_in.remove(id)
        {
            self.peer_lost(now_ns, id, io);
        }
    }

    /// Reports whether [`Engine::take_unlogged_port`] returns a port.
    pub fn has_unlogged_port(&self) -> bool {
        self.port
            .logged_in_ports
            .as_ref()
            .is_some_and(|logged_in| logged_in.unlogged.is_some())
    }

    /// Takes the last port that sent a connection IU without being logged in. It is to be sent a
    /// LOGO, because it uses a login that has ended.
    pub fn take_unlogged_port(&mut self) -> Option<NPortId> {
        self.port.logged_in_ports.as_mut()?.unlogged.take()
    }

    /// Changes our N_Port_ID: ends every login and every connection of the old one.
    pub fn change_n_port_id<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        if id == self.port.config.n_port_id {
            return;
        }
        self.all_ports_lost(now_ns, io);
        if let Some(logged_in) = &mut self.port.logged_in_ports {
            *logged_in = LoggedInPorts::default();
        }
        self.port.config.n_port_id = id;
        self.port.mac = MacAddress::vn2vn(id);
    }

    /// Probes idle peers, and ends connections with one that does not reply.
    pub(crate) fn liveness_timeout<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        if let Some(id) = self.port.probe_idle_peers(now_ns, io) {
            self.peer_lost(now_ns, id, io);
        }
        self.port.schedule_probes(now_ns);
    }
}
