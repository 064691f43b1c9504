//! A NIC whose network's ports find each other: frames and time go to its VN_Port, and what
//! that learns goes to the engine and to the table of neighbours.

#[cfg(test)]
mod tests;

use core::time::Duration;

use fcvi_frame::connect::HostAddress;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use pmd_port::BURST;
use vi_engine::vn_port::{NeighbourView, VnPort, VnPortEvent, VnPortFrame};
use vi_engine::{Engine, Transmit};

use crate::control::ControlError;
use crate::datapath::Datapath;
use crate::device::Device;
use crate::driver::Driver;
use crate::open::OpenError;
use crate::poller::Poller;
use crate::progress::wait;
use crate::resource_error::ResourceError;
use crate::sleepers::Event;
use crate::transport::Transport;

/// For so long at most a NIC that goes down waits for room to tell whoever is logged in.
const FAREWELL_NS: u64 = 100_000_000;

/// The VN_Port of a NIC.
pub(crate) struct Discovery {
    port: VnPort,
    /// Nobody objects to our N_Port_ID.
    is_up: bool,
    /// There may be more to send than one turn does.
    has_more: bool,
    /// What the port had no room for.
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

    /// Takes a frame, unless it is one of the engine's.
    #[inline]
    pub(crate) fn takes(&mut self, now_ns: u64, bytes: &[u8]) -> bool {
        self.port.handle_frame(now_ns, bytes)
    }

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.port.poll_timeout()
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.has_more || self.poll_timeout().is_some_and(|at| at <= now_ns)
    }

    /// Nobody objects to our N_Port_ID.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(crate) fn neighbours(&self) -> impl Iterator<Item = NeighbourView> + '_ {
        self.port.neighbours()
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.port.counters()
    }

    /// Sends what the port has to say, a burst of it at most.
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

    /// Logs out of every port, a burst at a time while the port has room, and for
    /// [`FAREWELL_NS`] at most.
    fn leave(&mut self, path: &mut Datapath, mut now_ns: impl FnMut() -> u64) {
        let begun_ns = now_ns();
        let end_ns = begun_ns.saturating_add(FAREWELL_NS);
        self.port.close(begun_ns);
        loop {
            self.send(path);
            if !self.has_more && path.batch.is_empty() {
                return;
            }
            if now_ns() >= end_ns {
                log::warn!(
                    "{}: no room to tell all ports that it goes down",
                    path.port.capabilities().device
                );
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Poller {
    /// Has the VN_Port begin.
    pub(crate) fn start_discovery(&mut self) {
        let now_ns = self.clock.now_ns();
        if let Some(discovery) = &mut self.discovery {
            discovery.port.start(now_ns);
        }
    }

    /// Does what time wants done, and hands on what the VN_Port learned and wants to send.
    #[cold]
    pub(crate) fn serve_discovery(&mut self, now_ns: u64) {
        // Taken out and put back, so that engine, neighbours and port can be changed meanwhile.
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        let stranger = self.engine.fc_vi_mut().and_then(Engine::take_stranger);
        if let Some(id) = stranger {
            discovery.port.refuse_unlogged(now_ns, id);
        }
        discovery.port.handle_timeout(now_ns);
        while let Some(event) = discovery.port.poll_event(now_ns) {
            self.learn(now_ns, &mut discovery, event);
            self.path.happened |= Event::CONTROL;
        }
        discovery.send(&mut self.path);
        self.discovery = Some(discovery);
    }

    fn learn(&mut self, now_ns: u64, discovery: &mut Discovery, event: VnPortEvent) {
        match event {
            VnPortEvent::Claimed(id) => self.move_to(now_ns, id),
            VnPortEvent::Up(id) => {
                log::info!("{}: up as N_Port {id}", self.device());
                discovery.is_up = true;
            }
            VnPortEvent::Lost => {
                log::warn!("{}: lost its N_Port_ID to another port", self.device());
                discovery.is_up = false;
                // It would be said under an N_Port_ID that is not ours any more.
                discovery.unsent = None;
                self.move_to(now_ns, NPortId::default());
            }
            VnPortEvent::LoggedIn(login) => {
                log::debug!("{}: N_Port {} logged in", self.device(), login.id);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.logged_in(login.id, login.data_field_bytes);
                }
            }
            VnPortEvent::LoggedOut(id) => {
                log::debug!("{}: N_Port {id} logged out", self.device());
                self.neighbours.left(id);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.logged_out(now_ns, id, &mut self.path);
                }
            }
            VnPortEvent::Host { id, host } => {
                self.neighbours.found(id, host);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.port_joined(now_ns, host, id, &mut self.path);
                }
            }
            VnPortEvent::Resolved(_) | VnPortEvent::NeighboursChanged => {}
        }
    }

    /// We have this N_Port_ID from now on, 00.00.00 for none.
    fn move_to(&mut self, now_ns: u64, id: NPortId) {
        if let Some(engine) = self.engine.fc_vi_mut() {
            engine.change_n_port_id(now_ns, id, &mut self.path);
        }
        self.neighbours.moved(id);
        // What is in the batch has the old address.
        self.path.flush();
        if let Err(error) = self.path.port.change_address(MacAddress::vn2vn(id).0) {
            log::error!(
                "{}: receives nothing for N_Port {id}: {error}",
                self.device()
            );
        }
    }

    fn device(&self) -> &str {
        &self.path.port.capabilities().device
    }

    /// Says goodbye to whoever is logged in: the NIC goes down.
    pub(crate) fn leave_network(&mut self) {
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.leave_network();
        }
        let clock = &mut self.clock;
        if let Some(discovery) = &mut self.discovery {
            discovery.leave(&mut self.path, || clock.now_ns());
        }
    }

    /// Begins to look for the ports of a host, if they are not all known. True if it is
    /// worth waiting for [`Poller::is_looking_for`] to end.
    pub(crate) fn look_for(&mut self, host: HostAddress) -> Result<bool, ControlError> {
        let now_ns = self.clock.now_ns();
        let is_known = !self.neighbours.ports(&host).is_empty();
        let Some(discovery) = &mut self.discovery else {
            return Ok(false);
        };
        if is_known && !discovery.port.is_getting_to_know(now_ns) {
            return Ok(false);
        }
        let asked = discovery.port.resolve(now_ns, host);
        asked.map_err(|_| ResourceError::Lookups)?;
        self.serve_discovery(now_ns);
        Ok(true)
    }

    /// Whether more ports of this host may still turn up.
    pub(crate) fn is_looking_for(&self, host: HostAddress) -> bool {
        self.discovery
            .as_ref()
            .is_some_and(|discovery| discovery.port.is_resolving(host))
    }
}

/// Waits until the NIC has an N_Port_ID.
pub(crate) fn await_up(device: &'static Device) -> Result<(), OpenError> {
    if !device.config.discovers() {
        return Ok(());
    }
    let limit = Duration::from_millis(device.config.discovery_ms);
    let look = || {
        let held = device.hold();
        match held.as_ref().and_then(Driver::engine) {
            // Closed by another thread meanwhile; whoever uses it learns of that.
            None => Some(()),
            Some(poller) => {
                let is_up = poller.discovery.as_ref().is_none_or(|d| d.is_up);
                (is_up || poller.failure.is_some()).then_some(())
            }
        }
    };
    wait(device, Event::CONTROL, Some(limit), look).map_err(|_| {
        OpenError::new(format!(
            "no N_Port_ID on {} within discovery_ms = {}: other ports of the link take each one that is tried; \
             give it longer, or another port_name",
            device.config.wire_name().unwrap_or_default(), device.config.discovery_ms
        ))
    })
}
