//! A VN_Port: discovery and logins together, for the owner of a NIC.
//!
//! ```text
//!                      handle_frame, handle_timeout
//!                                  |
//!              FIP VN2VN           v            FLOGI, LOGO in FIP; ELS, BLS, FARP in FCoE
//!   +---------+ <----------- +-----------+ -----------------> +--------------+
//!   | Vn2vn   | -----------> |  VnPort   | <----------------- | LoginMachine |
//!   +---------+  neighbours  +-----------+       logins       +--------------+
//!                                  |
//!                      poll_event, poll_outbound
//! ```
//!
//! Frames of the FC-4 protocol, and answers to its own link services, are left to the caller by
//! [`VnPort::handle_frame`].

#[cfg(test)]
mod tests;

use fcvi_frame::error::Reason;
use fcvi_frame::fc::{FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, FCOE_HEADER_BYTES, FCOE_TRAILER_BYTES, Sof};
use fcvi_frame::fip::{FipOpcode, FipView, LinkService, LinkServiceKind};
use fcvi_frame::frame::{FrameHeader, FrameView, seal};
use fcvi_frame::{EmitError, MacAddress, ethernet, profile};
use vi_types::HostAddress;

use crate::Neighbour;
use crate::login::{
    Carrier, ElsOut, FipService, LoginConfig, LoginEvent, LoginMachine, LogoutReason, PortLogin,
    PortState, PortView, TooManyHosts,
};
use crate::time::NS_PER_MS;
use crate::vn2vn::{self, Vn2vn, Vn2vnConfig, Vn2vnEvent, Vn2vnState};

/// Offset of the EtherType of an untagged frame.
const ETHERTYPE: usize = 12;
/// Offset of TYPE of an untagged FCoE frame.
const FC_TYPE: usize = ethernet::HEADER_BYTES + FCOE_HEADER_BYTES + 8;

/// Timeout of a neighbour's next reply: E_D_TOV.
const REPLY_TIMEOUT_NS: u64 = profile::E_D_TOV_MS as u64 * NS_PER_MS;

/// An event for the owner of a VN_Port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnPortEvent {
    /// This N_Port_ID is ours: FCoE frames use the address that belongs to it from now on.
    Claimed(NPortId),
    /// No port objected.
    Up(NPortId),
    /// The N_Port_ID is lost. Logins that end with it are reported afterwards.
    Lost,
    /// The port is logged in: the FC-4 protocol may be used with it.
    LoggedIn(PortLogin),
    /// The port is not logged in any more.
    LoggedOut(NPortId),
    /// The host that a logged-in port belongs to.
    Host {
        /// The port.
        id: NPortId,
        /// Its host.
        host: HostAddress,
    },
    /// The resolution of this host ended: all of its ports were reported.
    Resolved(HostAddress),
    /// Something else that [`VnPort::neighbours`] returns has changed: a neighbour was found, is
    /// ready, or is gone; or a login with it failed.
    NeighboursChanged,
}

vi_types::counters! {
    /// What [`VnPort`] itself counts.
    pub VnPortCounter, VnPortCounters:

    /// Malformed FIP link services.
    DropMalformedFip => "drop_malformed_fip",
    /// Malformed ELS and BLS frames.
    DropMalformed => "drop_malformed",
    /// ELS and BLS frames with a bad CRC.
    DropBadCrc => "drop_bad_crc",
    /// FIP frames of other kinds: those of switches.
    DropOtherFip => "drop_other_fip",
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct VnPortFrame {
    kind: FrameKind,
    enode_mac: MacAddress,
}

#[derive(Clone, Copy, Debug)]
enum FrameKind {
    Vn2vn(vn2vn::Outbound),
    Els(ElsOut),
}

impl VnPortFrame {
    /// Returns its destination.
    #[must_use]
    pub fn dst(&self) -> MacAddress {
        match &self.kind {
            FrameKind::Vn2vn(frame) => frame.dst,
            FrameKind::Els(frame) => frame.destination,
        }
    }

    /// Writes the frame to the start of `out` and returns its length, from the destination address
    /// to the last byte before the Ethernet checksum.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        match &self.kind {
            FrameKind::Vn2vn(frame) => frame.emit(out),
            FrameKind::Els(frame) => match frame.carrier {
                Carrier::Fcoe => emit_fcoe(frame, out),
                Carrier::Fip(service) => emit_fip(frame, service, self.enode_mac, out),
            },
        }
    }
}

fn emit_fcoe(frame: &ElsOut, out: &mut [u8]) -> Result<usize, EmitError> {
    let header = FrameHeader {
        dst: frame.destination,
        src: MacAddress::vn2vn(frame.fc.s_id),
        sof: Sof::I3,
        fc: frame.fc,
        device: None,
    };
    let payload = frame.payload();
    let header_bytes = header.emit(out)?;
    let frame_bytes = header_bytes
        .saturating_add(payload.len())
        .saturating_add(FCOE_TRAILER_BYTES);
    let too_short = EmitError::BufferTooShort {
        needed_bytes: frame_bytes,
    };
    let room = out.get_mut(header_bytes..).ok_or(too_short)?;
    room.get_mut(..payload.len())
        .ok_or(too_short)?
        .copy_from_slice(payload);
    seal(out, frame_bytes, Eof::T)?;
    Ok(frame_bytes)
}

fn emit_fip(
    frame: &ElsOut,
    service: FipService,
    enode_mac: MacAddress,
    out: &mut [u8],
) -> Result<usize, EmitError> {
    let is_reply = frame.fc.r_ctl == RCtl::ElsReply;
    let is_refusal = frame.is_refusal();
    LinkService {
        kind: match service {
            FipService::Flogi => LinkServiceKind::Flogi,
            FipService::Logo => LinkServiceKind::Logo,
        },
        is_reply,
        fc: frame.fc,
        payload: frame.payload(),
        vn_port_mac: (!is_refusal).then(|| MacAddress::vn2vn(frame.fc.s_id)),
    }
    .emit(frame.destination, enode_mac, out)
}

/// A neighbour, as status output shows it.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourView {
    /// The view of discovery.
    pub neighbour: Neighbour,
    /// Time at which its last frame was received.
    pub last_rx_ns: u64,
    /// The view of the login machine; `None` before it is known there, and if that table is full.
    pub port: Option<PortView>,
}

impl NeighbourView {
    /// Reports whether the neighbour supports the FC-4 protocol, and a login with it, or the query
    /// for its host, is in progress. A neighbour that is silent for [`REPLY_TIMEOUT_NS`] does not count.
    fn is_pending(&self, now_ns: u64) -> bool {
        let is_silent =
            |port: &PortView| now_ns.saturating_sub(port.last_rx_ns) >= REPLY_TIMEOUT_NS;
        let is_in_progress = |port: &PortView| match port.state {
            PortState::Known
            | PortState::FlogiSent
            | PortState::PlogiWait
            | PortState::PlogiSent => true,
            PortState::LoggedIn => port.host_query_pending,
            PortState::LogoSent | PortState::LoggedOut => false,
        };
        let is_expected = |port: &PortView| is_in_progress(port) && !is_silent(port);
        self.neighbour.supports_fc4 && self.port.as_ref().is_some_and(is_expected)
    }
}

/// Discovery and logins of one VN_Port.
#[derive(Debug)]
pub struct VnPort {
    discovery: Vn2vn,
    logins: LoginMachine,
    counters: VnPortCounters,
}

impl VnPort {
    /// Creates a stopped port. `seed`: 64 random bits.
    #[must_use]
    pub fn new(discovery: Vn2vnConfig, login: LoginConfig, seed: u64) -> Self {
        Self {
            discovery: Vn2vn::new(discovery, seed),
            logins: LoginMachine::new(login, seed.rotate_left(32)),
            counters: VnPortCounters::default(),
        }
    }

    /// Starts discovery: the link is up.
    pub fn start(&mut self, now_ns: u64) {
        self.discovery.start(now_ns);
    }

    /// Returns the state of discovery.
    #[must_use]
    pub fn state(&self) -> Vn2vnState {
        self.discovery.state()
    }

    /// Returns our N_Port_ID, if one is claimed.
    #[must_use]
    pub fn id(&self) -> Option<NPortId> {
        self.discovery.id()
    }

    /// Returns the known neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourView> + '_ {
        self.discovery
            .neighbours_with_last_rx()
            .map(|(neighbour, last_rx_ns)| {
                let same = |port: &PortView| port.neighbour.port_name == neighbour.port_name;
                NeighbourView {
                    neighbour: *neighbour,
                    last_rx_ns,
                    port: self.logins.ports().find(same),
                }
            })
    }

    /// Reports whether discovery is in progress: the port is not up, or the login with a neighbour
    /// that supports the FC-4 protocol and is not silent, or the query for its host, is pending.
    #[must_use]
    pub fn is_discovering(&self, now_ns: u64) -> bool {
        let mut neighbours = self.neighbours();
        self.state() != Vn2vnState::Up || neighbours.any(|view| view.is_pending(now_ns))
    }

    /// Returns names and values of all counters, in a fixed order.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let discovery = self.discovery.counters().iter();
        let logins = self.logins.counters().iter();
        self.counters.iter().chain(discovery).chain(logins)
    }

    /// Handles a frame, from the destination address to the last byte before the Ethernet checksum.
    /// Returns false, without any effect, if it is for the FC-4 protocol.
    #[inline]
    pub fn handle_frame(&mut self, now_ns: u64, bytes: &[u8]) -> bool {
        let is_fip = bytes.get(ETHERTYPE..ETHERTYPE + 2)
            == Some(ethernet::ETHERTYPE_FIP.to_be_bytes().as_slice());
        let fc_type = bytes.get(FC_TYPE).copied();
        if is_fip {
            self.handle_fip(now_ns, bytes);
            true
        } else if fc_type == Some(FcType::Els.raw()) || fc_type == Some(FcType::Bls.raw()) {
            self.handle_link_service(now_ns, bytes)
        } else {
            false
        }
    }

    #[cold]
    fn handle_fip(&mut self, now_ns: u64, bytes: &[u8]) {
        let view = match FipView::parse(bytes) {
            Ok(view) => view,
            Err(_) => {
                self.counters.count(VnPortCounter::DropMalformedFip);
                return;
            }
        };
        match view.opcode {
            FipOpcode::Vn2vn => self.discovery.handle_frame(now_ns, bytes),
            FipOpcode::LinkService => match view.link_service() {
                Ok(service) => self.handle_fip_service(now_ns, view.ethernet.src, &service),
                Err(_) => self.counters.count(VnPortCounter::DropMalformedFip),
            },
            _ => self.counters.count(VnPortCounter::DropOtherFip),
        }
    }

    fn handle_fip_service(&mut self, now_ns: u64, source: MacAddress, service: &LinkService<'_>) {
        let kind = match service.kind {
            LinkServiceKind::Flogi => FipService::Flogi,
            LinkServiceKind::Logo => FipService::Logo,
            LinkServiceKind::Fdisc | LinkServiceKind::Elp => {
                self.counters.count(VnPortCounter::DropOtherFip);
                return;
            }
        };
        // The address of the interface may be shared with other ports.
        if Some(service.fc.d_id) != self.id() {
            self.counters.count(VnPortCounter::DropOtherFip);
            return;
        }
        let carrier = Carrier::Fip(kind);
        self.logins
            .handle_els(now_ns, carrier, source, &service.fc, service.payload);
    }

    #[cold]
    fn handle_link_service(&mut self, now_ns: u64, bytes: &[u8]) -> bool {
        let frame = match FrameView::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                if error.reason == Reason::BadCrc {
                    self.counters.count(VnPortCounter::DropBadCrc);
                } else {
                    self.counters.count(VnPortCounter::DropMalformed);
                }
                return true;
            }
        };
        let FcHeader { r_ctl, ox_id, .. } = frame.fc;
        if r_ctl == RCtl::ElsReply && !self.logins.owns_ox_id(ox_id) {
            return false;
        }
        let (source, payload) = (frame.ethernet.src, frame.data_field());
        if frame.fc.fc_type == FcType::Bls {
            if !self.logins.owns_bls(&frame.fc) {
                return false;
            }
            self.logins.handle_bls(now_ns, source, &frame.fc, payload);
        } else {
            self.logins
                .handle_els(now_ns, Carrier::Fcoe, source, &frame.fc, payload);
        }
        true
    }

    /// Resolves the ports of this host.
    ///
    /// # Errors
    /// [`TooManyHosts`] if the table is full.
    pub fn resolve(&mut self, now_ns: u64, host: HostAddress) -> Result<(), TooManyHosts> {
        self.logins.resolve(now_ns, host)
    }

    /// Reports whether a resolution started by [`VnPort::resolve`] is in progress.
    #[must_use]
    pub fn is_resolving(&self, host: HostAddress) -> bool {
        self.logins.is_resolving(host)
    }

    /// Logs out of every port, and accepts no login any more: the NIC is closed.
    pub fn close(&mut self, now_ns: u64) {
        self.logins.close(now_ns);
    }

    /// Reports whether the port was closed and no LOGO is unanswered.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.logins.is_closed()
    }

    /// Sends a LOGO, within the limit per second, to a port that is not logged in and sent a frame of
    /// the FC-4 protocol.
    pub fn refuse_unlogged(&mut self, now_ns: u64, s_id: NPortId) {
        self.logins.refuse_unlogged(now_ns, s_id);
    }

    /// Returns the time at which [`VnPort::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let both = [self.discovery.poll_timeout(), self.logins.poll_timeout()];
        both.into_iter().flatten().min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.discovery.handle_timeout(now_ns);
        self.logins.handle_timeout(now_ns);
    }

    /// Returns the next event. To be polled until `None`, before [`VnPort::poll_outbound`]: events
    /// of discovery are passed to the logins here.
    pub fn poll_event(&mut self, now_ns: u64) -> Option<VnPortEvent> {
        while let Some(event) = self.discovery.poll_event() {
            if let Some(event) = self.handle_discovery_event(now_ns, event) {
                return Some(event);
            }
        }
        Some(match self.logins.poll_event()? {
            LoginEvent::LoggedIn(login) => {
                self.discovery.set_pinned(login.id, true);
                VnPortEvent::LoggedIn(login)
            }
            LoginEvent::LoggedOut { id, reason, .. } => {
                self.discovery.set_pinned(id, false);
                if reason == LogoutReason::NotConfirmed {
                    self.discovery.neighbour_denied(now_ns, id);
                }
                VnPortEvent::LoggedOut(id)
            }
            LoginEvent::Host { id, host } => VnPortEvent::Host { id, host },
            // Failures are retried and counted.
            LoginEvent::LoginFailed { .. } => VnPortEvent::NeighboursChanged,
            LoginEvent::Resolved { host, id: Some(id) } => VnPortEvent::Host { id, host },
            LoginEvent::Resolved { host, id: None } => VnPortEvent::Resolved(host),
        })
    }

    fn handle_discovery_event(&mut self, now_ns: u64, event: Vn2vnEvent) -> Option<VnPortEvent> {
        Some(match event {
            Vn2vnEvent::Claimed(id) => {
                self.logins.set_id(now_ns, Some(id));
                VnPortEvent::Claimed(id)
            }
            Vn2vnEvent::Up(id) => VnPortEvent::Up(id),
            Vn2vnEvent::Lost => {
                self.logins.set_id(now_ns, None);
                VnPortEvent::Lost
            }
            Vn2vnEvent::NeighbourFound(neighbour) => {
                self.logins.neighbour_found(now_ns, &neighbour);
                VnPortEvent::NeighboursChanged
            }
            Vn2vnEvent::NeighbourReady(neighbour) => {
                self.logins.neighbour_ready(now_ns, &neighbour);
                VnPortEvent::NeighboursChanged
            }
            Vn2vnEvent::NeighbourDoubted { port_name } => {
                self.logins.neighbour_doubted(now_ns, port_name);
                return None;
            }
            Vn2vnEvent::NeighbourGone { port_name, .. } => {
                self.logins.neighbour_gone(now_ns, port_name);
                VnPortEvent::NeighboursChanged
            }
        })
    }

    /// Returns the next frame to send. It counts as sent; one that the port has no room for is
    /// lost, and retried by its timer.
    pub fn poll_outbound(&mut self) -> Option<VnPortFrame> {
        let discovery = self.discovery.poll_outbound().map(FrameKind::Vn2vn);
        let kind = discovery.or_else(|| self.logins.poll_outbound().map(FrameKind::Els))?;
        Some(VnPortFrame {
            kind,
            enode_mac: self.discovery.config().enode_mac,
        })
    }
}
