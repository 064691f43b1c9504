//! The protocol state of one N_Port, and the verbs that the poll loop calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView, Payload};
use fcvi_frame::iu::{IuClass, Opcode};
use vi_types::{OneStepLimits, Pumped, SendWork, ViIndex, ViParams, ViState};

use crate::accept::Listeners;
use crate::config::EngineConfig;
use crate::connection_iu::is_whole_iu;
use crate::context::Context;
use crate::counters::{Counter, Counters};
use crate::endpoint::{Endpoint, Phase};
use crate::engine_io::EngineIo;
use crate::n_port::NPort;
use crate::shortcut::Pair;
use crate::timer::TimerKey;
use crate::transmit::{one_step_limits, send_in_one_step};

/// The protocol state of one N_Port.
///
/// Verbs: [`Engine::handle_frame`], [`Engine::handle_timeout`], [`Engine::pump`], and the commands
/// `connect`, `connect_peer`, `accept`, `reject`, `disconnect`, `listen`. [`Engine::poll_timeout`]
/// returns the next deadline.
pub struct Engine {
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    /// Free slots of `endpoints`: the lowest one is used first.
    free: BinaryHeap<Reverse<u32>>,
    pub(crate) port: NPort,
    pub(crate) listeners: Listeners,
}

impl Engine {
    /// Creates an N_Port without VIs. `secret`: 64 random bits, from which connection IDs and the
    /// first OX_ID are derived.
    pub fn new(config: EngineConfig, secret: u64) -> Self {
        let max_vi = config.max_vi.min(0xFFFF) as usize;
        Self {
            endpoints: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi as u32).map(Reverse).collect(),
            port: NPort::new(config, max_vi, secret),
            listeners: Listeners::default(),
        }
    }

    /// Returns an endpoint and the rest of the engine; `None` if there is no such VI.
    #[inline(always)]
    pub(crate) fn split<'a, I>(
        &'a mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &'a mut I,
    ) -> Option<(&'a mut Endpoint, Context<'a, I>)> {
        Context::split(now_ns, vi, &mut self.endpoints, &mut self.port, io)
    }

    pub(crate) fn endpoint(&self, vi: ViIndex) -> Option<&Endpoint> {
        self.endpoints.get(vi.slot()).and_then(Option::as_ref)
    }

    #[inline]
    pub(crate) fn endpoint_mut(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut)
    }

    /// Returns the identity and limits of this N_Port.
    pub fn config(&self) -> &EngineConfig {
        &self.port.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.port.counters
    }

    /// Returns the numbers of OX_IDs in use and in quarantine.
    pub fn exchange_usage(&self) -> (usize, usize) {
        self.port.exchanges.usage()
    }

    /// Adds an Idle VI; `None` if all slots are used.
    pub fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        self.endpoints[slot as usize] = Some(Endpoint::new(params));
        Some(ViIndex(slot))
    }

    /// Replaces the attributes of an Idle VI. Returns false for any other VI.
    pub fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Sets the user that owns the VI. Misses between VIs of one user are limited per connection
    /// only: their processes can access each other's memory anyway.
    pub fn set_user(&mut self, vi: ViIndex, user: u32) {
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.user = user;
        }
    }

    /// Returns the number of refused RDMA accesses of the peer on this VI's current or last
    /// connection.
    #[must_use]
    pub fn refused_accesses(&self, vi: ViIndex) -> u32 {
        self.endpoint(vi).map_or(0, |ep| ep.rx.misses.refused())
    }

    /// Removes an Idle VI. Returns false for any other VI.
    pub fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::Idle));
        if idle {
            self.endpoints[vi.slot()] = None;
            self.free.push(Reverse(vi.0));
            self.port.timers.clear(TimerKey::Receive(vi.0));
            self.port.timers.clear(TimerKey::Connect(vi.0));
            self.port.timers.clear(TimerKey::Response(vi.0));
            self.port.timers.clear(TimerKey::Acknowledge(vi.0));
            self.port.timers.clear(TimerKey::Recover(vi.0));
        }
        idle
    }

    /// Returns the N_Port of a connected VI's peer; `None` without a connection.
    #[must_use]
    pub fn peer(&self, vi: ViIndex) -> Option<NPortId> {
        let endpoint = self.endpoints.get(vi.0 as usize)?.as_ref()?;
        let peer = match endpoint.shortcut {
            Some(_) => self.port.config.n_port_id,
            None => endpoint.peer,
        };
        (endpoint.state() == ViState::Connected).then_some(peer)
    }

    /// Returns the state of a VI.
    pub fn state(&self, vi: ViIndex) -> Option<ViState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// Returns the time at which [`Engine::handle_timeout`] is to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.port.timers.next()
    }

    /// Handles up to `budget` expired timers. Returns true if more have expired.
    pub fn handle_timeout<I: EngineIo>(&mut self, now_ns: u64, budget: u32, io: &mut I) -> bool {
        for _ in 0..budget {
            let Some(key) = self.port.timers.pop_due(now_ns) else {
                return false;
            };
            match key {
                TimerKey::Receive(slot)
                | TimerKey::Connect(slot)
                | TimerKey::Response(slot)
                | TimerKey::Acknowledge(slot)
                | TimerKey::Recover(slot) => {
                    if let Some((ep, mut cx)) = self.split(now_ns, ViIndex(slot), io) {
                        ep.on_timeout(&mut cx, key);
                    }
                }
                TimerKey::Incoming(index) => self.port.incoming_timeout(index),
                TimerKey::Disconnect(index) => self.port.disconnect_timeout(now_ns, index, io),
                TimerKey::Liveness => self.liveness_timeout(now_ns, io),
            }
        }
        self.port.timers.next().is_some_and(|at| at <= now_ns)
    }

    /// Sends up to `budget` frames of this VI's posted descriptors.
    ///
    /// Between two VIs of this engine the start of a message and each part that is moved count as a
    /// frame, and [`EngineConfig::shortcut_bytes`] may end the call earlier.
    ///
    /// Descriptors of a VI that is not connected are completed as flushed instead (VIPL 3.3.5,
    /// 6.2).
    pub fn pump<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        budget: u32,
        io: &mut I,
    ) -> Pumped {
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            return Pumped::Idle;
        };
        if ep.shortcut.is_none() {
            return ep.pump(&mut cx, budget);
        }
        Pair::of(now_ns, vi, &mut self.endpoints, &mut self.port, io)
            .map_or(Pumped::Idle, |pair| pair.pump(budget))
    }

    /// Returns the limits of what can be sent by [`Engine::send_in_one_step`] on this VI.
    #[inline]
    pub fn one_step_limits(&self, vi: ViIndex) -> OneStepLimits {
        match self
            .endpoint(vi)
            .map(|ep| (&ep.phase, &ep.shortcut, &ep.tx))
        {
            Some((Phase::Connected, None, Some(tx))) => one_step_limits(tx),
            _ => OneStepLimits::default(),
        }
    }

    /// Sends a message whose data is `payload`, or reads into that memory, and the caller completes the descriptor at
    /// once. Nothing waits on its send queue. Returns false if the message has to wait, needs an answer, or does not fit into one frame; then
    /// nothing was sent, and the caller posts it, for [`Engine::pump`].
    #[inline]
    pub fn send_in_one_step<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        payload: Payload<'_>,
        io: &mut I,
    ) -> bool {
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            return false;
        };
        match (&ep.phase, &ep.shortcut, &mut ep.tx) {
            (Phase::Connected, None, Some(tx)) => send_in_one_step(tx, &mut cx, work, payload),
            _ => false,
        }
    }

    /// Handles one received frame, from destination address to the last byte before the FCS.
    pub fn handle_frame<I: EngineIo>(&mut self, now_ns: u64, bytes: &[u8], io: &mut I) {
        let frame = match FrameView::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                if error.reason == fcvi_frame::error::Reason::BadCrc {
                    self.port.counters.count(Counter::DropBadCrc);
                    self.note_damaged(bytes);
                } else {
                    self.port.counters.count(Counter::DropMalformed);
                }
                return;
            }
        };
        let ours = frame.fc.d_id == self.port.config.n_port_id
            && frame.ethernet.dst == self.port.mac
            && frame.ethernet.src == MacAddress::vn2vn(frame.fc.s_id);
        if !ours {
            self.port.counters.count(Counter::DropBadAddress);
            return;
        }
        match frame.fc.fc_type {
            FcType::Vi => match frame.iu() {
                Ok(iu) => self.handle_iu(now_ns, &frame, &iu, io),
                Err(_) => self.port.counters.count(Counter::DropBadIu),
            },
            FcType::Els => {
                if let Some(replaced) = self.port.handle_els(now_ns, &frame, io) {
                    self.peer_lost(now_ns, replaced, io);
                }
            }
            _ => self.port.counters.count(Counter::DropUnknownType),
        }
    }

    /// Passes an IU to the function for its opcode.
    #[inline(always)]
    fn handle_iu<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let opcode = iu.header.opcode;
        if opcode.class() == IuClass::Connection && !self.accepts_connection_iu(frame, opcode) {
            return;
        }
        match opcode {
            Opcode::SendRequest
            | Opcode::SendResponse
            | Opcode::WriteRequest
            | Opcode::WriteResponse
            | Opcode::ReadRequest
            | Opcode::ReadResponse
            | Opcode::RendezvousRequest => self.handle_message(now_ns, frame, iu, io),
            Opcode::ConnectRequest => self.handle_connect_request(now_ns, frame, iu, io),
            Opcode::ConnectResponse1 => self.handle_response1(now_ns, frame, iu, io),
            Opcode::ConnectResponse2 => self.handle_response2(now_ns, frame, iu, io),
            Opcode::ConnectResponse3 => self.handle_response3(now_ns, frame, iu, io),
            Opcode::DisconnectRequest => self.handle_disconnect_request(now_ns, frame, iu, io),
            Opcode::DisconnectResponse => self.port.handle_disconnect_response(now_ns, frame, iu),
        }
    }

    /// Passes a message IU to the endpoint that its handle and S_ID name, if that can receive
    /// messages.
    #[inline(always)]
    fn handle_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let vi = self.port.slot_of(iu.header.handle);
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            self.port.counters.count(Counter::DropUnknownHandle);
            return;
        };
        let handle = iu.header.handle;
        if ep.handle == handle
            && ep.peer == frame.fc.s_id
            && matches!(ep.phase, Phase::Connected | Phase::AwaitResponse3(_))
        {
            ep.on_message(&mut cx, frame, iu);
        } else {
            let wrong_peer = ep.handle != 0 && ep.handle == handle && ep.peer != frame.fc.s_id;
            cx.count(if wrong_peer {
                Counter::DropWrongPeer
            } else {
                Counter::DropUnknownHandle
            });
            ep.repeat_disconnect(&mut cx, frame, iu);
        }
    }

    /// Checks a received connection IU: its frame, and that its sender may connect.
    fn accepts_connection_iu(&mut self, frame: &FrameView<'_>, opcode: Opcode) -> bool {
        if !is_whole_iu(frame, opcode) {
            self.port.counters.count(Counter::DropBadIu);
            return false;
        }
        self.port.may_connect(frame.fc.s_id)
    }

    /// Records the RDMA write that a frame with a bad CRC names: if it is then incomplete, the error
    /// is RDMAW_DATA instead of RDMAW_ABORT (VIPL 3.8.1).
    #[cold]
    fn note_damaged(&mut self, bytes: &[u8]) {
        let Ok(frame) = FrameView::parse_damaged(bytes) else {
            return;
        };
        let Ok(iu) = frame.iu() else { return };
        if iu.header.opcode != Opcode::WriteRequest
            || iu.header.flags & message_request::IMMEDIATE != 0
        {
            return;
        }
        let vi = self.port.slot_of(iu.header.handle);
        if let Some(ep) = self.endpoint_mut(vi)
            && ep.handle == iu.header.handle
            && ep.peer == frame.fc.s_id
        {
            ep.rx.damaged_write = Some(iu.header.msg_id);
        }
    }
}
