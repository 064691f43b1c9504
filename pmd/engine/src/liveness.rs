//! Are the N_Ports of our connections still there?
//!
//! On a network that cannot tell that a station went, a port with connections
//! to a peer that was silent for a while asks it with an ADISC ELS, as Fibre
//! Channel does to verify an address: the answer names the port. No answer to
//! three of them, or another Port_Name than before, and the peer is lost.

use fcvi_frame::els::{Adisc, ElsCommand};
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FcHeader, FcType, NPortId, RCtl, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::{FrameHeader, FrameView};
use fcvi_frame::profile;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::host::{Host, Transmit};
use crate::timer::TimerKey;

/// Unanswered probes before a peer is given up.
const PROBES: u8 = 3;

/// Another N_Port with connections to us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    id: NPortId,
    connections: u32,
    last_heard_ns: u64,
    port_name: Option<u64>,
    probes: u8,
    exchange: Option<(u16, u16)>,
}

impl Engine {
    /// Counts a connection to this port; returns its place for [`Engine::heard`].
    pub(crate) fn adopt_peer(&mut self, id: NPortId) -> u32 {
        let now_ns = self.last_now_ns;
        let at = self.peers.iter().position(|p| p.id == id);
        let at = at.unwrap_or_else(|| {
            let fresh = Peer {
                id,
                connections: 0,
                last_heard_ns: now_ns,
                port_name: None,
                probes: 0,
                exchange: None,
            };
            match self.peers.iter().position(|p| p.connections == 0) {
                Some(at) => {
                    self.peers[at] = fresh;
                    at
                }
                None => {
                    self.peers.push(fresh);
                    self.peers.len() - 1
                }
            }
        });
        self.peers[at].connections += 1;
        self.peers[at].last_heard_ns = now_ns;
        if self.config.probe_interval_ns > 0 && !self.probing {
            self.probing = true;
            self.timers.set(
                now_ns + self.config.probe_interval_ns,
                TimerKey::Liveness,
            );
        }
        at as u32
    }

    pub(crate) fn release_peer(&mut self, id: NPortId) {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.id == id) {
            peer.connections = peer.connections.saturating_sub(1);
        }
    }

    /// The peer gave a sign of life.
    #[inline]
    pub(crate) fn heard(&mut self, peer_index: u32, now_ns: u64) {
        if let Some(peer) = self.peers.get_mut(peer_index as usize) {
            peer.last_heard_ns = now_ns;
            peer.probes = 0;
        }
    }

    pub(crate) fn liveness_timeout<H: Host>(&mut self, now_ns: u64, host: &mut H) {
        let interval = self.config.probe_interval_ns;
        let mut any = false;
        for at in 0..self.peers.len() {
            let peer = self.peers[at];
            if peer.connections == 0 {
                continue;
            }
            any = true;
            if now_ns < peer.last_heard_ns + interval {
                continue;
            }
            if let Some((ox_id, seq_cnt)) = self.peers[at].exchange.take() {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            if peer.probes == PROBES {
                self.peer_lost(now_ns, peer.id, host);
                continue;
            }
            self.peers[at].probes += 1;
            self.probe(now_ns, at, host);
        }
        self.probing = any;
        if any {
            self.timers.set(now_ns + interval, TimerKey::Liveness);
        }
    }

    fn probe<H: Host>(&mut self, now_ns: u64, at: usize, host: &mut H) {
        let Some(exchange) = self.exchanges.open(now_ns) else {
            self.counters.count(Counter::ControlNoRoom);
            return;
        };
        let mut payload = [0u8; Adisc::BYTES];
        self.own_adisc().emit_request(&mut payload);
        let id = self.peers[at].id;
        let mut header = self.els_header(id, RCtl::ElsRequest);
        header.fc.f_ctl = profile::F_CTL_REQUEST;
        header.fc.seq_id = exchange.seq_id;
        header.fc.seq_cnt = exchange.seq_cnt;
        header.fc.ox_id = exchange.ox_id;
        if host.transmit_control(&header, &payload) == Transmit::Sent {
            self.peers[at].exchange = Some((exchange.ox_id, exchange.seq_cnt.wrapping_add(1)));
        } else {
            self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    fn own_adisc(&self) -> Adisc {
        Adisc {
            hard_address: NPortId::default(),
            port_name: self.config.port_name,
            node_name: self.config.node_name,
            n_port_id: self.config.n_port_id,
        }
    }

    fn els_header(&self, to: NPortId, r_ctl: RCtl) -> FrameHeader {
        FrameHeader {
            dst: MacAddress::vn2vn(to),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl,
                d_id: to,
                cs_ctl: 0,
                s_id: self.config.n_port_id,
                fc_type: FcType::Els,
                f_ctl: profile::F_CTL_REQUEST,
                seq_id: 0,
                df_ctl: 0,
                seq_cnt: 0,
                ox_id: 0,
                rx_id: RX_ID_UNASSIGNED,
                parameter: 0,
            },
            device: None,
        }
    }

    pub(crate) fn handle_els<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        host: &mut H,
    ) {
        let payload = frame.data_field();
        match (frame.fc.r_ctl, ElsCommand::parse(payload)) {
            (RCtl::ElsRequest, Ok(ElsCommand::Adisc)) => match Adisc::parse_request(payload) {
                Ok(adisc) => self.answer_adisc(now_ns, frame, &adisc, host),
                Err(_) => self.counters.count(Counter::DropMalformed),
            },
            (RCtl::ElsReply, Ok(ElsCommand::LsAcc)) => match Adisc::parse_accept(payload) {
                Ok(adisc) => self.probe_answered(now_ns, frame, &adisc, host),
                Err(_) => self.counters.count(Counter::DropMalformed),
            },
            _ => self.counters.count(Counter::DropUnsupportedIu),
        }
    }

    fn answer_adisc<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        adisc: &Adisc,
        host: &mut H,
    ) {
        if adisc.n_port_id != frame.fc.s_id {
            self.counters.count(Counter::DropMalformed);
            return;
        }
        let mut payload = [0u8; Adisc::BYTES];
        self.own_adisc().emit_accept(&mut payload);
        let mut header = self.els_header(frame.fc.s_id, RCtl::ElsReply);
        header.fc.f_ctl = profile::F_CTL_FINAL_REPLY;
        header.fc.seq_id = frame.fc.seq_id.wrapping_add(1);
        header.fc.seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
        header.fc.ox_id = frame.fc.ox_id;
        header.fc.rx_id = frame.fc.ox_id;
        if host.transmit_control(&header, &payload) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
        self.named(now_ns, frame.fc.s_id, adisc.port_name, host);
    }

    fn probe_answered<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        adisc: &Adisc,
        host: &mut H,
    ) {
        let s_id = frame.fc.s_id;
        let at = self.peers.iter().position(|p| {
            p.id == s_id && p.exchange.is_some_and(|(ox_id, _)| ox_id == frame.fc.ox_id)
        });
        let Some(at) = at else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        if let Some((ox_id, seq_cnt)) = self.peers[at].exchange.take() {
            self.exchanges.close(ox_id, seq_cnt);
        }
        self.heard(at as u32, now_ns);
        self.named(now_ns, s_id, adisc.port_name, host);
    }

    /// A peer said its Port_Name: another one than before means another port.
    fn named<H: Host>(&mut self, now_ns: u64, id: NPortId, port_name: u64, host: &mut H) {
        let Some(peer) = self
            .peers
            .iter_mut()
            .find(|p| p.id == id && p.connections > 0)
        else {
            return;
        };
        let before = peer.port_name.replace(port_name);
        if before.is_some_and(|name| name != port_name) {
            self.peer_lost(now_ns, id, host);
        }
    }
}
