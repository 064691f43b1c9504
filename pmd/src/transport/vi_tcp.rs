//! VI/TCP as the transport of a poller: it polls sockets, and delays messages so that one system call sends several.

use pmd_port::{PortFailure, PortStats};
use vi_types::{
    CallError, ConnId, ConnectRequest, ConnectionOptions, Discriminator, Indication,
    NegotiatedOptions, Outcome, Pumped, ViIndex, ViParams, ViState,
};

use super::{ListenState, Peer, Polled, Transport};
use crate::datapath::Datapath;
use crate::network_view::{NetworkView, OwnPort, OwnState};
use crate::poller::Poller;
use vi_tcp::ViTcp;

impl Transport for ViTcp {
    fn native_mtu_bytes(&self) -> u32 {
        vi_tcp::NATIVE_MTU_BYTES
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        ViTcp::counters(self)
    }

    fn add_traffic(&self, stats: &mut PortStats) {
        ViTcp::add_traffic(self, stats);
    }

    fn network_view(&self, _now_ns: u64, failure: Option<PortFailure>) -> NetworkView {
        let own = OwnPort {
            n_port_id: None,
            port_name: 0,
            node_name: 0,
            host: self.host(),
            state: match failure {
                Some(_) => OwnState::Failed,
                None => OwnState::Up,
            },
            discovers: false,
        };
        NetworkView {
            own,
            ports: Vec::new(),
        }
    }

    fn peer(&self, vi: ViIndex) -> Option<Peer> {
        ViTcp::peer(self, vi).map(Peer::Host)
    }

    fn refused_accesses(&self, vi: ViIndex) -> u32 {
        ViTcp::refused_accesses(self, vi)
    }

    fn set_user(&mut self, vi: ViIndex, user: u32) {
        ViTcp::set_user(self, vi, user);
    }

    fn start_listening(&mut self, is_last_try: bool) -> ListenState {
        self.connector.start_listening(is_last_try)
    }

    fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        ViTcp::create_vi(self, params)
    }

    fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        ViTcp::destroy_vi(self, vi)
    }

    fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        ViTcp::set_params(self, vi, params)
    }

    fn state(&self, vi: ViIndex) -> Option<ViState> {
        ViTcp::state(self, vi)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        ViTcp::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        ViTcp::handle_timeout(self, now_ns, budget, path);
    }

    #[inline]
    fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) -> Pumped {
        ViTcp::pump(self, now_ns, vi, path)
    }

    fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.connector.fail_vi(now_ns, vi, path);
    }

    fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.connector.disconnect(now_ns, vi, path);
    }

    fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64 {
        self.connector.listen(now_ns, discriminator)
    }

    fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        self.connector.take_indication(listener)
    }

    fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut Datapath) {
        self.connector.unlisten(now_ns, listener, path);
    }

    fn accept(
        &mut self,
        _now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.connector.accept(conn, vi, path)
    }

    fn reject(&mut self, now_ns: u64, conn: ConnId, _path: &mut Datapath) -> Result<(), CallError> {
        self.connector.reject(now_ns, conn)
    }

    fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        self.connector.requester(conn)
    }

    fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        self.connector.connected_to(vi)
    }

    fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.connector.connect(now_ns, vi, request, path)
    }

    fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.connector.connect_peer(now_ns, vi, request, path)
    }

    fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<ViParams, CallError>> {
        self.connector.take_outcome(vi)
    }

    fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        ViTcp::peer_request(self, vi)
    }

    fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<ViParams, CallError>> {
        self.connector.take_peer_outcome(vi, number)
    }

    fn connection_options(&self, vi: ViIndex) -> Option<&ConnectionOptions> {
        ViTcp::connection_options(self, vi)
    }

    fn set_connection_options(&mut self, vi: ViIndex, options: &ConnectionOptions) -> Outcome<()> {
        match ViTcp::set_connection_options(self, vi, options) {
            true => Ok(()),
            false => Err(CallError::InvalidState),
        }
    }

    fn negotiated_options(&self, vi: ViIndex) -> Outcome<NegotiatedOptions> {
        let options = self.connector.negotiated_options(vi);
        options.ok_or(CallError::InvalidState)
    }

    fn security_of(&self, conn: ConnId) -> Outcome<Vec<u8>> {
        let security = self.connector.security_of(conn);
        security.ok_or(CallError::Timeout)
    }
}

impl Polled for ViTcp {
    /// Receives and handles segments of the sockets.
    #[inline(never)]
    fn receive(poller: &mut Poller<Self>, now_ns: u64) -> bool {
        poller.state.coalescer.on_idle();
        if poller.transport.has_corked() {
            let now_ns = poller.state.read_clock();
            poller.transport.push(now_ns, false);
        }
        let worked = poller
            .transport
            .poll_sockets(now_ns, &mut poller.state.path);
        if !poller.state.path.run.is_empty() {
            // A peer waits for an acknowledgement or for an RDMA read.
            poller.serve(now_ns);
        }
        poller.fail_and_flush(now_ns);
        worked
    }

    fn kick(poller: &mut Poller<Self>, vi: ViIndex) {
        if !poller.state.path.has_unsent(vi) {
            notify_receive(poller, vi);
            return;
        }
        let Some(now_ns) = poller.state.delay_message() else {
            poller.enqueue_posted(vi);
            return;
        };
        // No other VI is queued before it.
        let alone = poller.state.path.run.is_empty();
        if !alone || poller.pump(now_ns, vi) != Pumped::Idle {
            poller.state.path.enqueue(vi);
        }
        if !alone {
            poller.serve(now_ns);
        }
        poller.fail_and_flush(now_ns);
    }

    fn look_everywhere(&mut self) {
        self.poll_epoll_next();
    }

    fn has_more(&self) -> bool {
        ViTcp::has_more(self)
    }

    #[inline]
    fn has_corked(&self) -> bool {
        ViTcp::has_corked(self)
    }

    fn uncork(&mut self) {
        self.push(0, true);
    }

    fn leave_network(&mut self, _now_ns: impl FnMut() -> u64, _path: &mut Datapath) {
        self.connector.leave_network();
    }
}

/// Handles a posted receive that may have to be advertised to the peer: it is not delayed, and does not count as a send.
fn notify_receive(poller: &mut Poller<ViTcp>, vi: ViIndex) {
    let now_ns = poller.state.clock.last_ns();
    // Delayed messages are sent first, and carry the advertisement.
    let alone = !poller.state.has_delayed_messages() && poller.state.path.run.is_empty();
    if !alone || poller.pump(now_ns, vi) != Pumped::Idle {
        poller.state.path.enqueue(vi);
    }
    poller.fail_and_flush(now_ns);
}
