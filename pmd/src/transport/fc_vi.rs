//! FC-VI as the transport of a poller: the engine, discovery, and the frames of a port.

use fcvi_frame::fc::NPortId;
use pmd_port::{BURST, MacBytes, MbufBatch, PortFailure};
use vi_core::posted_descriptor::OneSegmentSend;
use vi_core::queue::IdleSlot;
use vi_engine::{ConnectCommand, Engine};
use vi_types::{
    CallError, ConnId, ConnectRequest, Discriminator, HostAddress, Indication, Outcome, Pumped,
    ResourceError, ViIndex, ViParams, ViState,
};

use super::{Peer, Polled, Transport};
use crate::datapath::Datapath;
use crate::discovery::Discovery;
use crate::neighbours::Neighbours;
use crate::network_view::{NeighbourPort, NetworkView, OwnPort, OwnState};
use crate::poller::Poller;

/// The most frames that one VI may send before the next VI is served.
const VI_BUDGET_FRAMES: u32 = 32;
/// Receive attempts in a poll that finds no frame.
const RX_ATTEMPTS: u32 = 4;

/// The FC-VI protocol of a NIC.
pub(crate) struct FcVi {
    pub(crate) engine: Engine,
    pub(crate) neighbours: Neighbours,
    /// `None` where the network is configured.
    pub(crate) discovery: Option<Box<Discovery>>,
    /// The frames of the last burst, whose buffers are returned to the port in the next poll.
    rx: MbufBatch,
    /// The engine's recovery is on, which needs the time in every poll.
    has_recovery: bool,
}

/// Returns the N_Port_ID of a station of a segment.
fn id_of(mac: MacBytes) -> Option<NPortId> {
    NPortId::new(u32::from_be_bytes([0, mac[3], mac[4], mac[5]]))
}

impl FcVi {
    pub(crate) fn new(
        engine: Engine,
        neighbours: Neighbours,
        discovery: Option<Box<Discovery>>,
    ) -> Self {
        Self {
            has_recovery: engine.config().recovery.is_some(),
            engine,
            neighbours,
            discovery,
            rx: MbufBatch::new(),
        }
    }

    fn with_targets<R>(
        &mut self,
        request: &ConnectRequest<'_>,
        connect: impl FnOnce(&mut Engine, &ConnectCommand<'_>) -> R,
    ) -> R {
        let targets = self.neighbours.ports(&request.remote.host);
        let command = ConnectCommand {
            local: *request.local,
            remote: *request.remote,
            targets: &targets,
            timeout_ns: request.timeout_ns,
        };
        connect(&mut self.engine, &command)
    }
}

impl Transport for FcVi {
    fn native_mtu_bytes(&self) -> u32 {
        u32::from(self.engine.config().data_field_bytes).saturating_sub(16)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.counters().iter().collect()
    }

    fn discovery_counters(&self) -> Vec<(&'static str, u64)> {
        let discovery = self.discovery.iter();
        discovery
            .flat_map(|discovery| discovery.counters())
            .collect()
    }

    fn exchange_usage(&self) -> (usize, usize) {
        self.engine.exchange_usage()
    }

    fn network_view(&self, now_ns: u64, failure: Option<PortFailure>) -> NetworkView {
        let config = self.engine.config();
        let own = OwnPort {
            n_port_id: Some(config.n_port_id).filter(|id| *id != NPortId::default()),
            port_name: config.port_name,
            node_name: config.node_name,
            host: self.neighbours.own_host(),
            state: match (failure, self.is_up()) {
                (Some(_), _) => OwnState::Failed,
                (None, true) => OwnState::Up,
                (None, false) => OwnState::Probing,
            },
            discovers: self.discovery.is_some(),
        };
        let mut ports: Vec<NeighbourPort> = match &self.discovery {
            Some(discovery) => {
                let seen = discovery.neighbours();
                seen.map(|view| NeighbourPort::seen(now_ns, &view))
                    .collect()
            }
            None => {
                let known = self.neighbours.others();
                known
                    .map(|(n_port_id, host)| NeighbourPort {
                        n_port_id,
                        host: Some(host),
                        found: None,
                    })
                    .collect()
            }
        };
        ports.sort_by_key(|port| port.n_port_id.get());
        NetworkView { own, ports }
    }

    fn known_ports(&self) -> Vec<(NPortId, HostAddress)> {
        let own = (self.engine.config().n_port_id, self.neighbours.own_host());
        [own].into_iter().chain(self.neighbours.others()).collect()
    }

    fn discovered_hosts(&self) -> Vec<HostAddress> {
        self.neighbours.discovered()
    }

    fn is_up(&self) -> bool {
        self.discovery
            .as_ref()
            .is_none_or(|discovery| discovery.is_up())
    }

    fn resolve_host(
        &mut self,
        now_ns: u64,
        host: HostAddress,
        path: &mut Datapath,
    ) -> Outcome<bool> {
        let is_known = self.knows_host(host);
        let Some(discovery) = &mut self.discovery else {
            return Ok(false);
        };
        if is_known && !discovery.port.is_discovering(now_ns) {
            return Ok(false);
        }
        let resolving = discovery.port.resolve(now_ns, host);
        resolving.map_err(|_| ResourceError::Lookups)?;
        self.serve_discovery(now_ns, path);
        Ok(true)
    }

    fn is_resolving_host(&self, host: HostAddress) -> bool {
        self.discovery
            .as_ref()
            .is_some_and(|discovery| discovery.port.is_resolving(host))
    }

    fn knows_host(&self, host: HostAddress) -> bool {
        !self.neighbours.ports(&host).is_empty()
    }

    fn station_joined(&mut self, now_ns: u64, mac: MacBytes, path: &mut Datapath) {
        if let Some(id) = id_of(mac) {
            self.neighbours.add_sibling(id);
            let host = self.neighbours.own_host();
            self.engine.port_joined(now_ns, host, id, path);
        }
    }

    fn station_left(&mut self, now_ns: u64, mac: MacBytes, path: &mut Datapath) {
        if let Some(id) = id_of(mac) {
            self.neighbours.remove(id);
            self.engine.peer_lost(now_ns, id, path);
        }
    }

    fn station_unreachable(&mut self, now_ns: u64, mac: MacBytes, path: &mut Datapath) {
        if let Some(id) = id_of(mac) {
            self.engine.peer_lost(now_ns, id, path);
        }
    }

    fn port_lost(&mut self, now_ns: u64, path: &mut Datapath) {
        self.engine.port_lost(now_ns, path);
    }

    fn peer(&self, vi: ViIndex) -> Option<Peer> {
        self.engine.peer(vi).map(Peer::Port)
    }

    fn refused_accesses(&self, vi: ViIndex) -> u32 {
        self.engine.refused_accesses(vi)
    }

    fn set_user(&mut self, vi: ViIndex, user: u32) {
        self.engine.set_user(vi, user);
    }

    fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        self.engine.create_vi(params)
    }

    fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        self.engine.destroy_vi(vi)
    }

    fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        self.engine.set_params(vi, params)
    }

    fn state(&self, vi: ViIndex) -> Option<ViState> {
        self.engine.state(vi)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        self.engine.poll_timeout()
    }

    fn discovery_timeout(&self) -> Option<u64> {
        self.discovery.as_ref()?.poll_timeout()
    }

    fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        self.engine.handle_timeout(now_ns, budget, path);
    }

    #[inline]
    fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) -> Pumped {
        self.engine.pump(now_ns, vi, VI_BUDGET_FRAMES, path)
    }

    fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.engine.fail_vi(now_ns, vi, path);
    }

    fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.engine.disconnect(now_ns, vi, path);
    }

    fn listen(&mut self, _now_ns: u64, discriminator: Discriminator) -> u64 {
        self.engine.listen(discriminator)
    }

    fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        self.engine.take_indication(listener)
    }

    fn unlisten(&mut self, _now_ns: u64, listener: u64, path: &mut Datapath) {
        self.engine.unlisten(listener, path);
    }

    fn accept(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.engine.accept(now_ns, conn, vi, path)
    }

    fn reject(&mut self, now_ns: u64, conn: ConnId, path: &mut Datapath) -> Result<(), CallError> {
        self.engine.reject(now_ns, conn, path)
    }

    fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        self.engine.requester(conn)
    }

    fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        self.engine.connected_to(vi)
    }

    fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.with_targets(request, |engine, command| {
            engine.connect(now_ns, vi, command, path)
        })
    }

    fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.with_targets(request, |engine, command| {
            engine.connect_peer(now_ns, vi, command, path)
        })
    }

    fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<ViParams, CallError>> {
        let outcome = self.engine.take_outcome(vi)?;
        Some(outcome.map(|remote| remote.attributes))
    }

    fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        self.engine.peer_request(vi)
    }

    fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<ViParams, CallError>> {
        let outcome = self.engine.take_peer_outcome(vi, number)?;
        Some(outcome.map(|remote| remote.attributes))
    }
}

impl Poller<FcVi> {
    /// Sends a descriptor whose send queue is idle without a place on it, and completes it. Returns false if it has to
    /// be posted on the queue; then nothing was sent.
    #[inline]
    pub(crate) fn send_in_one_step(
        &mut self,
        vi: ViIndex,
        send: &OneSegmentSend,
        slot: IdleSlot<'_>,
        context: usize,
    ) -> bool {
        let Self { transport, state } = self;
        if transport.has_recovery {
            return false;
        }
        let now_ns = state.time_of_send(state.path.batch.len(), false);
        let engine = &mut transport.engine;
        let sent = (state.path).send_in_one_step(vi, send, (slot, context), |path, payload| {
            engine.send_in_one_step(now_ns, vi, &send.work, payload, path)
        });
        if sent {
            state.flush_burst(now_ns);
        }
        sent
    }
}

impl Polled for FcVi {
    /// Receives and handles frames.
    #[inline]
    fn receive(poller: &mut Poller<Self>, now_ns: u64) -> bool {
        let Poller { transport, state } = poller;
        // Several attempts in a row find an arriving frame sooner than whole poll iterations would.
        let mut attempts = RX_ATTEMPTS;
        while state.path.port.rx_burst(&mut transport.rx, BURST) == 0 {
            attempts -= 1;
            if attempts == 0 {
                return false;
            }
        }
        if let Some(tap) = &mut state.path.tap {
            tap.received(&transport.rx);
        }
        let waiting = state.path.run.len();
        let mut discovered = false;
        for mbuf in transport.rx.iter() {
            if let Some(discovery) = &mut transport.discovery
                && discovery.handle_frame(now_ns, mbuf.bytes())
            {
                discovered = true;
                continue;
            }
            let engine = &mut transport.engine;
            engine.handle_frame(now_ns, mbuf.bytes(), &mut state.path);
            // So later frames of the burst find the VI in the Error state.
            while let Some(vi) = state.path.failed.pop() {
                engine.fail_vi(now_ns, vi, &mut state.path);
            }
        }
        if discovered {
            transport.serve_discovery(now_ns, &mut state.path);
        }
        if state.path.run.len() > waiting {
            // A peer waits for an RDMA read, or a descriptor for an earlier one.
            poller.serve(now_ns);
        }
        poller.fail_and_flush(now_ns);
        true
    }

    #[inline]
    fn kick(poller: &mut Poller<Self>, vi: ViIndex) {
        match poller.state.path.vi(vi) {
            None => return,
            Some(path) if path.queued => {
                poller.enqueue_posted(vi);
                return;
            }
            Some(_) => {}
        }
        let state = &mut poller.state;
        let waiting = state.path.batch.len();
        let needs_time = poller.transport.has_recovery && waiting == 0;
        let now_ns = state.time_of_send(waiting, needs_time);
        if poller.pump(now_ns, vi) != Pumped::Idle {
            poller.state.path.enqueue(vi);
        }
        let limits = poller.transport.engine.one_step_limits(vi);
        poller.state.path.hint_one_step(vi, limits);
        poller.state.flush_burst(now_ns);
    }

    #[inline]
    fn release_received(&mut self, path: &mut Datapath) {
        if !self.rx.is_empty() {
            path.port.free_burst(&mut self.rx);
        }
    }

    fn housekeeping(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let has_unlogged_port = self.engine.has_unlogged_port();
        let discovery = self.discovery.as_ref();
        let is_due = discovery.is_some_and(|d| has_unlogged_port || d.is_due(now_ns));
        if is_due {
            self.serve_discovery(now_ns, path);
        }
        is_due
    }

    #[inline]
    fn needs_time(&self) -> bool {
        self.has_recovery
    }

    fn leave_network(&mut self, now_ns: impl FnMut() -> u64, path: &mut Datapath) {
        if let Some(discovery) = &mut self.discovery {
            discovery.log_out_all(path, now_ns);
        }
    }
}
