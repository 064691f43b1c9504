//! Discovery: passes frames and timeouts to the VN_Port of a NIC, and its events to the engine and to the table
//! of neighbours.

#[cfg(test)]
mod tests;

use fc_port::Fc4;
use fc_port::vn_port::{NeighbourView, VnPort, VnPortEvent, VnPortFrame};
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use pmd_port::{BURST, MbufBatch};
use vi_core::waiters::Event;
use vi_engine::{Engine, Transmit};
use vi_types::{CallError, HostAddress, ResourceError};

use crate::datapath::Datapath;
use crate::poller::Poller;
use crate::transport::Transport;

/// Timeout for the logouts, and for their answers, when a NIC is taken down.
const LOGOUT_TIMEOUT_NS: u64 = 100_000_000;

/// The FC-4 protocol of a NIC. It has no service parameters, and cannot undo an exchange [FCVI P-14].
pub(crate) const FC_VI: Fc4 = Fc4 {
    fc_type: FcType::Vi,
    features: 0,
    service_parameters: 0,
    handles_aborts: false,
};

/// The VN_Port of a NIC.
pub(crate) struct Discovery {
    port: VnPort,
    /// The N_Port_ID is claimed without a conflict.
    pub(crate) is_up: bool,
    /// More frames than one poll sends may be pending.
    has_more: bool,
    /// A frame that did not fit into the send ring.
    unsent: Option<VnPortFrame>,
}

impl Discovery {
    pub(crate) fn new(port: VnPort) -> Self {
        Self {
            port,
            is_up: false,
            has_more: false,
            unsent: None,
        }
    }

    /// Handles a frame; returns false if it is for the engine.
    #[inline]
    pub(crate) fn handle_frame(&mut self, now_ns: u64, bytes: &[u8]) -> bool {
        self.port.handle_frame(now_ns, bytes)
    }

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.port.poll_timeout()
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.has_more || self.poll_timeout().is_some_and(|at| at <= now_ns)
    }

    /// Returns whether the N_Port_ID is claimed without a conflict.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(crate) fn neighbours(&self) -> impl Iterator<Item = NeighbourView> + '_ {
        self.port.neighbours()
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.port.counters()
    }

    /// Sends pending frames, at most a burst.
    fn send(&mut self, path: &mut Datapath) {
        self.has_more = true;
        for _ in 0..BURST {
            let Some(frame) = self.unsent.take().or_else(|| self.port.poll_outbound()) else {
                self.has_more = false;
                break;
            };
            let sent = path.transmit_other(frame.dst(), |room| frame.emit(room).ok());
            if sent == Transmit::NoRoom {
                self.unsent = Some(frame);
                break;
            }
        }
        path.flush();
    }

    /// Logs out from all ports, a burst at a time as far as the send ring has room, and waits for their
    /// answers, within [`LOGOUT_TIMEOUT_NS`]. They verify the logout by ADISC first, which is refused
    /// here; a port that got no refusal would take longer to notice that this one is gone.
    fn log_out_all(&mut self, path: &mut Datapath, mut now_ns: impl FnMut() -> u64) {
        let start_ns = now_ns();
        let deadline_ns = start_ns.saturating_add(LOGOUT_TIMEOUT_NS);
        self.port.close(start_ns);
        let mut rx = MbufBatch::new();
        loop {
            self.send(path);
            let is_sent = !self.has_more && path.batch.is_empty();
            if is_sent && self.port.is_closed() {
                return;
            }
            let time_ns = now_ns();
            if time_ns >= deadline_ns {
                let device = &path.port.capabilities().device;
                if is_sent {
                    log::debug!("{device}: logout: timed out, not all ports answered");
                } else {
                    log::warn!("{device}: logout: timed out, not all ports are notified");
                }
                return;
            }
            // Frames of FC-VI are dropped: there are no VIs any more.
            if path.port.rx_burst(&mut rx, BURST) == 0 {
                std::thread::yield_now();
            }
            while let Some(mbuf) = rx.pop() {
                self.port.handle_frame(time_ns, mbuf.bytes());
                path.port.free(mbuf);
            }
        }
    }
}

impl Poller {
    /// Starts the VN_Port.
    pub(crate) fn start_discovery(&mut self) {
        let now_ns = self.clock.now_ns();
        if let Some(discovery) = &mut self.discovery {
            discovery.port.start(now_ns);
        }
    }

    /// Handles timeouts, events and pending frames of the VN_Port.
    #[cold]
    pub(crate) fn serve_discovery(&mut self, now_ns: u64) {
        // Taken out and put back, so that engine, neighbours and port can be borrowed mutably.
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        let unlogged_port = self.engine.fc_vi_mut().and_then(Engine::take_unlogged_port);
        if let Some(id) = unlogged_port {
            discovery.port.refuse_unlogged(now_ns, id);
        }
        discovery.port.handle_timeout(now_ns);
        let mut has_changed = false;
        while let Some(event) = discovery.port.poll_event(now_ns) {
            self.handle_vn_port_event(now_ns, &mut discovery, event);
            has_changed = true;
        }
        if has_changed {
            self.path.pending_events |= Event::CONTROL;
            let is_known = |host| !discovery.port.is_resolving(host);
            self.path.calls.notify_hosts(is_known);
        }
        discovery.send(&mut self.path);
        self.discovery = Some(discovery);
    }

    fn handle_vn_port_event(&mut self, now_ns: u64, discovery: &mut Discovery, event: VnPortEvent) {
        match event {
            VnPortEvent::Claimed(id) => self.change_n_port_id(now_ns, id),
            VnPortEvent::Up(id) => {
                log::info!("{}: up as N_Port {id}", self.device());
                discovery.is_up = true;
            }
            VnPortEvent::Lost => {
                log::warn!("{}: N_Port_ID lost to another port", self.device());
                discovery.is_up = false;
                // Its source would be the lost N_Port_ID.
                discovery.unsent = None;
                self.change_n_port_id(now_ns, NPortId::default());
            }
            VnPortEvent::LoggedIn(login) => {
                log::debug!("{}: N_Port {} logged in", self.device(), login.id);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.logged_in(login.id, login.data_field_bytes);
                }
            }
            VnPortEvent::LoggedOut(id) => {
                log::debug!("{}: N_Port {id} logged out", self.device());
                self.neighbours.remove(id);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.logged_out(now_ns, id, &mut self.path);
                }
            }
            VnPortEvent::Host { id, host } => {
                self.neighbours.add_discovered(id, host);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.port_joined(now_ns, host, id, &mut self.path);
                }
            }
            VnPortEvent::Resolved(_) | VnPortEvent::NeighboursChanged => {}
        }
    }

    /// Changes the N_Port_ID of this NIC; 00.00.00 for none.
    fn change_n_port_id(&mut self, now_ns: u64, id: NPortId) {
        if let Some(engine) = self.engine.fc_vi_mut() {
            engine.change_n_port_id(now_ns, id, &mut self.path);
        }
        self.neighbours.set_own_id(id);
        // Frames in the batch have the old address.
        self.path.flush();
        if let Err(error) = self.path.port.change_address(MacAddress::vn2vn(id).0) {
            log::error!(
                "{}: N_Port {id}: receive address not set: {error}",
                self.device()
            );
        }
    }

    fn device(&self) -> &str {
        &self.path.port.capabilities().device
    }

    /// Logs out from all ports, or disconnects VI/TCP connections, when the NIC is taken down.
    pub(crate) fn leave_network(&mut self) {
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.leave_network();
        }
        let clock = &mut self.clock;
        if let Some(discovery) = &mut self.discovery {
            discovery.log_out_all(&mut self.path, || clock.now_ns());
        }
    }

    /// Starts to resolve the N_Port_IDs of a host, unless all are known. Returns true if the caller should
    /// wait until [`Poller::is_resolving_host`] returns false.
    pub(crate) fn resolve_host(&mut self, host: HostAddress) -> Result<bool, CallError> {
        let now_ns = self.clock.now_ns();
        let is_known = !self.neighbours.ports(&host).is_empty();
        let Some(discovery) = &mut self.discovery else {
            return Ok(false);
        };
        if is_known && !discovery.port.is_discovering(now_ns) {
            return Ok(false);
        }
        let resolving = discovery.port.resolve(now_ns, host);
        resolving.map_err(|_| ResourceError::Lookups)?;
        self.serve_discovery(now_ns);
        Ok(true)
    }

    /// Returns whether more N_Port_IDs of this host may still be found.
    pub(crate) fn is_resolving_host(&self, host: HostAddress) -> bool {
        self.discovery
            .as_ref()
            .is_some_and(|discovery| discovery.port.is_resolving(host))
    }
}
