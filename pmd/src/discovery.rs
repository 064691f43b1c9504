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
use vi_engine::Transmit;

use crate::datapath::Datapath;
use crate::transport::FcVi;

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
    pub(crate) port: VnPort,
    /// The N_Port_ID is claimed without a conflict.
    is_up: bool,
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
    pub(crate) fn log_out_all(&mut self, path: &mut Datapath, mut now_ns: impl FnMut() -> u64) {
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

impl FcVi {
    /// Starts the VN_Port.
    pub(crate) fn start_discovery(&mut self, now_ns: u64) {
        if let Some(discovery) = &mut self.discovery {
            discovery.port.start(now_ns);
        }
    }

    /// Handles timeouts, events and pending frames of the VN_Port.
    #[cold]
    pub(crate) fn serve_discovery(&mut self, now_ns: u64, path: &mut Datapath) {
        // Taken out and put back, so that engine and neighbours can be borrowed mutably.
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        if let Some(id) = self.engine.take_unlogged_port() {
            discovery.port.refuse_unlogged(now_ns, id);
        }
        discovery.port.handle_timeout(now_ns);
        let mut has_changed = false;
        while let Some(event) = discovery.port.poll_event(now_ns) {
            self.handle_vn_port_event(now_ns, &mut discovery, event, path);
            has_changed = true;
        }
        if has_changed {
            path.pending_events |= Event::CONTROL;
            let is_known = |host| !discovery.port.is_resolving(host);
            path.calls.notify_hosts(is_known);
        }
        discovery.send(path);
        self.discovery = Some(discovery);
    }

    fn handle_vn_port_event(
        &mut self,
        now_ns: u64,
        discovery: &mut Discovery,
        event: VnPortEvent,
        path: &mut Datapath,
    ) {
        match event {
            VnPortEvent::Claimed(id) => self.change_n_port_id(now_ns, id, path),
            VnPortEvent::Up(id) => {
                log::info!("{}: up as N_Port {id}", device_of(path));
                discovery.is_up = true;
            }
            VnPortEvent::Lost => {
                log::warn!("{}: N_Port_ID lost to another port", device_of(path));
                discovery.is_up = false;
                // Its source would be the lost N_Port_ID.
                discovery.unsent = None;
                self.change_n_port_id(now_ns, NPortId::default(), path);
            }
            VnPortEvent::LoggedIn(login) => {
                log::debug!("{}: N_Port {} logged in", device_of(path), login.id);
                self.engine.logged_in(login.id, login.data_field_bytes);
            }
            VnPortEvent::LoggedOut(id) => {
                log::debug!("{}: N_Port {id} logged out", device_of(path));
                self.neighbours.remove(id);
                self.engine.logged_out(now_ns, id, path);
            }
            VnPortEvent::Host { id, host } => {
                self.neighbours.add_discovered(id, host);
                self.engine.port_joined(now_ns, host, id, path);
            }
            VnPortEvent::Resolved(_) | VnPortEvent::NeighboursChanged => {}
        }
    }

    /// Changes the N_Port_ID of this NIC; 00.00.00 for none.
    fn change_n_port_id(&mut self, now_ns: u64, id: NPortId, path: &mut Datapath) {
        self.engine.change_n_port_id(now_ns, id, path);
        self.neighbours.set_own_id(id);
        // Frames in the batch have the old address.
        path.flush();
        if let Err(error) = path.port.change_address(MacAddress::vn2vn(id).0) {
            log::error!(
                "{}: N_Port {id}: receive address not set: {error}",
                device_of(path)
            );
        }
    }
}

fn device_of(path: &Datapath) -> &str {
    &path.port.capabilities().device
}
