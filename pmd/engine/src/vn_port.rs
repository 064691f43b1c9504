//! A VN_Port: discovery and logins together, as the owner of a NIC sees them.
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
//! FC-VI frames are not its business: [`VnPort::handle_frame`] leaves them, and answers to
//! link services of the [`Engine`](crate::Engine), to the caller.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::error::Reason;
use fcvi_frame::fc::{FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, FCOE_HEADER_BYTES, FCOE_TRAILER_BYTES, Sof};
use fcvi_frame::fip::{FipOpcode, FipView, LinkService, LinkServiceKind};
use fcvi_frame::frame::{FrameHeader, FrameView, seal};
use fcvi_frame::{EmitError, MacAddress, ethernet, profile};

use crate::login::{
    Carrier, ElsOut, FipService, LoginConfig, LoginEvent, LoginMachine, Neighbour, PortLogin,
    PortState, PortView, TooManyHosts,
};
use crate::vn2vn::{self, Vn2vn, Vn2vnConfig, Vn2vnEvent, Vn2vnState};

/// Where the EtherType of an untagged frame stands.
const ETHERTYPE: usize = 12;
/// Where TYPE of an untagged FCoE frame stands.
const FC_TYPE: usize = ethernet::HEADER_BYTES + FCOE_HEADER_BYTES + 8;

/// How long a neighbour may take for its next answer: E_D_TOV.
const PATIENCE_NS: u64 = profile::E_D_TOV_MS as u64 * 1_000_000;

/// What the owner of a VN_Port learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnPortEvent {
    /// We have this N_Port_ID: FCoE frames go out, and come in, under the address that goes with
    /// it from now on.
    Claimed(NPortId),
    /// Nobody objected.
    Up(NPortId),
    /// We have no N_Port_ID any more. Logins that end with it are told after this.
    Lost,
    /// FC-VI may be spoken with this port.
    LoggedIn(PortLogin),
    /// It may no more.
    LoggedOut(NPortId),
    /// The host that a port which is logged in belongs to.
    Host {
        /// The port.
        id: NPortId,
        /// Its host.
        host: HostAddress,
    },
    /// The question for this host is over: those told before are its ports.
    Resolved(HostAddress),
    /// Something else of what [`VnPort::neighbours`] tells has changed: a neighbour was found,
    /// heard for the first time, or is gone; or a login with it failed.
    NeighboursChanged,
}

/// What [`VnPort`] counts by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnPortCounters {
    /// FIP link services that cannot be read.
    pub drop_malformed_fip: u64,
    /// ELS and BLS frames that cannot be read.
    pub drop_malformed: u64,
    /// Those of them whose CRC is wrong.
    pub drop_bad_crc: u64,
    /// FIP frames of other kinds: those of switches.
    pub drop_other_fip: u64,
}

/// A frame that a VN_Port wants to send.
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
    /// Where it goes.
    #[must_use]
    pub fn dst(&self) -> MacAddress {
        match &self.kind {
            FrameKind::Vn2vn(frame) => frame.dst,
            FrameKind::Els(frame) => frame.destination,
        }
    }

    /// Writes it to the front of `out` and returns its length, from the destination address to
    /// the last byte before the Ethernet check sum.
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

/// A neighbour as a person would like to see it.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourView {
    /// Discovery's view.
    pub neighbour: vn2vn::Neighbour,
    /// When something was heard of it last.
    pub heard_ns: u64,
    /// The login's view; `None` before it is known there, and if there is no room for it.
    pub port: Option<PortView>,
}

impl NeighbourView {
    /// It speaks FC-VI, and a login with it, or the name of its host, is on its way. One that
    /// says nothing for [`PATIENCE_NS`] is not waited for until it does.
    fn is_pending(&self, now_ns: u64) -> bool {
        let is_mute = |port: &PortView| now_ns.saturating_sub(port.heard_ns) >= PATIENCE_NS;
        let under_way = |port: &PortView| match port.state {
            PortState::Known
            | PortState::FlogiSent
            | PortState::PlogiWait
            | PortState::PlogiSent => true,
            PortState::LoggedIn => port.asks_for_host,
            PortState::LogoSent | PortState::LoggedOut => false,
        };
        let is_awaited = |port: &PortView| under_way(port) && !is_mute(port);
        self.neighbour.supports_fc_vi && self.port.as_ref().is_some_and(is_awaited)
    }
}

/// One VN_Port.
#[derive(Debug)]
pub struct VnPort {
    discovery: Vn2vn,
    logins: LoginMachine,
    counters: VnPortCounters,
}

impl VnPort {
    /// A stopped port. `seed`: 64 random bits.
    #[must_use]
    pub fn new(discovery: Vn2vnConfig, login: LoginConfig, seed: u64) -> Self {
        Self {
            discovery: Vn2vn::new(discovery, seed),
            logins: LoginMachine::new(login, seed.rotate_left(32)),
            counters: VnPortCounters::default(),
        }
    }

    /// The link is up.
    pub fn start(&mut self, now_ns: u64) {
        self.discovery.start(now_ns);
    }

    /// Where it is on its way to an N_Port_ID.
    #[must_use]
    pub fn state(&self) -> Vn2vnState {
        self.discovery.state()
    }

    /// Our N_Port_ID, if we have one.
    #[must_use]
    pub fn id(&self) -> Option<NPortId> {
        self.discovery.id()
    }

    /// What is known of the neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourView> + '_ {
        self.discovery
            .neighbours_heard()
            .map(|(neighbour, heard_ns)| {
                let same = |port: &PortView| port.neighbour.port_name == neighbour.port_name;
                NeighbourView {
                    neighbour: *neighbour,
                    heard_ns,
                    port: self.logins.ports().find(same),
                }
            })
    }

    /// True while a neighbour that speaks FC-VI may still turn out to be of some host, and says
    /// something now and then.
    #[must_use]
    pub fn is_getting_to_know(&self, now_ns: u64) -> bool {
        let mut neighbours = self.neighbours();
        self.state() != Vn2vnState::Up || neighbours.any(|view| view.is_pending(now_ns))
    }

    /// Names and numbers of everything that is counted, in a fixed order.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let own = [
            ("drop_malformed_fip", self.counters.drop_malformed_fip),
            ("drop_malformed", self.counters.drop_malformed),
            ("drop_bad_crc", self.counters.drop_bad_crc),
            ("drop_other_fip", self.counters.drop_other_fip),
        ];
        let discovery = self.discovery.counters().iter();
        own.into_iter()
            .chain(discovery)
            .chain(self.logins.counters().iter())
    }

    /// Takes a frame, from the destination address to the last byte before the Ethernet check
    /// sum, unless it is one of the engine's: then it returns false and nothing has happened.
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
                self.counters.drop_malformed_fip += 1;
                return;
            }
        };
        match view.opcode {
            FipOpcode::Vn2vn => self.discovery.handle_frame(now_ns, bytes),
            FipOpcode::LinkService => match view.link_service() {
                Ok(service) => self.handle_fip_service(now_ns, view.ethernet.src, &service),
                Err(_) => self.counters.drop_malformed_fip += 1,
            },
            _ => self.counters.drop_other_fip += 1,
        }
    }

    fn handle_fip_service(&mut self, now_ns: u64, source: MacAddress, service: &LinkService<'_>) {
        let kind = match service.kind {
            LinkServiceKind::Flogi => FipService::Flogi,
            LinkServiceKind::Logo => FipService::Logo,
            LinkServiceKind::Fdisc | LinkServiceKind::Elp => {
                self.counters.drop_other_fip += 1;
                return;
            }
        };
        // Whose it is: the interface's address may be that of other ports too.
        if Some(service.fc.d_id) != self.id() {
            self.counters.drop_other_fip += 1;
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
                    self.counters.drop_bad_crc += 1;
                } else {
                    self.counters.drop_malformed += 1;
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
            self.logins.handle_bls(now_ns, source, &frame.fc, payload);
        } else {
            self.logins
                .handle_els(now_ns, Carrier::Fcoe, source, &frame.fc, payload);
        }
        true
    }

    /// Asks all ports whether they are of this host.
    ///
    /// # Errors
    /// [`TooManyHosts`] if there is no room for one question more.
    pub fn resolve(&mut self, now_ns: u64, host: HostAddress) -> Result<(), TooManyHosts> {
        self.logins.resolve(now_ns, host)
    }

    /// True from [`VnPort::resolve`] until the question is over.
    #[must_use]
    pub fn is_resolving(&self, host: HostAddress) -> bool {
        self.logins.is_resolving(host)
    }

    /// Logs out of every port, and accepts no login any more: the NIC goes down.
    pub fn close(&mut self, now_ns: u64) {
        self.logins.close(now_ns);
    }

    /// A port that is not logged in sent an FC-VI frame: it is told so, now and then.
    pub fn refuse_unlogged(&mut self, now_ns: u64, s_id: NPortId) {
        self.logins.refuse_unlogged(now_ns, s_id);
    }

    /// When [`VnPort::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let both = [self.discovery.poll_timeout(), self.logins.poll_timeout()];
        both.into_iter().flatten().min()
    }

    /// Does what time wants done.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.discovery.handle_timeout(now_ns);
        self.logins.handle_timeout(now_ns);
    }

    /// The next thing to know. To be asked until there is nothing, before
    /// [`VnPort::poll_outbound`]: what discovery knows reaches the logins here.
    pub fn poll_event(&mut self, now_ns: u64) -> Option<VnPortEvent> {
        if let Some(event) = self.discovery.poll_event() {
            return Some(self.discovered(now_ns, event));
        }
        Some(match self.logins.poll_event()? {
            LoginEvent::LoggedIn(login) => {
                self.discovery.keep(login.id, true);
                VnPortEvent::LoggedIn(login)
            }
            LoginEvent::LoggedOut { id, .. } => {
                self.discovery.keep(id, false);
                VnPortEvent::LoggedOut(id)
            }
            LoginEvent::Host { id, host } => VnPortEvent::Host { id, host },
            // What fails is tried again, and counted.
            LoginEvent::LoginFailed { .. } => VnPortEvent::NeighboursChanged,
            LoginEvent::Resolved { host, id: Some(id) } => VnPortEvent::Host { id, host },
            LoginEvent::Resolved { host, id: None } => VnPortEvent::Resolved(host),
        })
    }

    fn discovered(&mut self, now_ns: u64, event: Vn2vnEvent) -> VnPortEvent {
        match event {
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
                self.logins.neighbour_found(now_ns, &for_login(&neighbour));
                VnPortEvent::NeighboursChanged
            }
            Vn2vnEvent::NeighbourHeard(neighbour) => {
                self.logins.neighbour_heard(now_ns, &for_login(&neighbour));
                VnPortEvent::NeighboursChanged
            }
            Vn2vnEvent::NeighbourGone { port_name, .. } => {
                self.logins.neighbour_gone(now_ns, port_name);
                VnPortEvent::NeighboursChanged
            }
        }
    }

    /// The next frame to send. It counts as sent; what the port has no room for is lost on the
    /// way, and sent again by its timer.
    pub fn poll_outbound(&mut self) -> Option<VnPortFrame> {
        let discovery = self.discovery.poll_outbound().map(FrameKind::Vn2vn);
        let kind = discovery.or_else(|| self.logins.poll_outbound().map(FrameKind::Els))?;
        Some(VnPortFrame {
            kind,
            enode_mac: self.discovery.config().enode_mac,
        })
    }
}

fn for_login(neighbour: &vn2vn::Neighbour) -> Neighbour {
    Neighbour {
        id: neighbour.id,
        port_name: neighbour.port_name,
        node_name: neighbour.node_name,
        enode_mac: neighbour.enode_mac,
        max_fcoe_bytes: neighbour
            .path_fcoe_bytes
            .unwrap_or(neighbour.max_fcoe_bytes),
        speaks_fc_vi: neighbour.supports_fc_vi,
    }
}
