//! Are the N_Ports of our connections still there?
//!
//! On a network that cannot tell that a station went, a port with connections
//! to a peer that was silent for a while asks it with an ADISC ELS, as Fibre
//! Channel does to verify an address: the answer names the port. A new peer is
//! asked at once, so that its name is known. No answer to three of
//! them, or another Port_Name than before, and the peer is lost.

use fcvi_frame::els::{Adisc, ElsCommand};
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::{FrameHeader, FrameView};
use fcvi_frame::profile;

use crate::connection_iu::Sequence;
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

impl Peer {
    #[cfg(test)]
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }
}

impl Engine {
    /// Counts a connection to this port; returns its place for [`Engine::heard`].
    pub(crate) fn adopt_peer(&mut self, now_ns: u64, id: NPortId) -> u32 {
        let known = |p: &Peer| p.id == id && p.connections > 0;
        let place = self.peers.iter().position(known);
        let at = place.unwrap_or_else(|| self.new_peer(id));
        self.peers[at].connections += 1;
        self.heard(at as u32, now_ns);
        // A new peer is asked for its name at once: a program that takes its place before that
        // could not be told from it.
        let asks = self.config.probe_interval_ns > 0 && id != self.config.n_port_id;
        if asks && place.is_none() {
            self.probing = true;
            self.timers.set(now_ns, TimerKey::Liveness);
        }
        at as u32
    }

    fn new_peer(&mut self, id: NPortId) -> usize {
        let fresh = Peer {
            id,
            connections: 0,
            last_heard_ns: 0,
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
    }

    /// One connection to this port less; with the last one it is forgotten.
    pub(crate) fn release_peer(&mut self, now_ns: u64, id: NPortId) {
        let known = |p: &&mut Peer| p.id == id && p.connections > 0;
        let Some(peer) = self.peers.iter_mut().find(known) else {
            return;
        };
        peer.connections -= 1;
        if peer.connections == 0
            && let Some((ox_id, seq_cnt)) = peer.exchange.take()
        {
            self.exchanges.end_question(now_ns, ox_id, seq_cnt);
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
        for at in 0..self.peers.len() {
            let peer = self.peers[at];
            if !self.is_probed(&peer) {
                continue;
            }
            // Whose name is not known yet is asked for it, silent or not.
            if peer.port_name.is_some() && now_ns < peer.last_heard_ns + interval {
                continue;
            }
            if peer.probes == PROBES && now_ns >= peer.last_heard_ns + interval {
                self.peer_lost(now_ns, peer.id, host);
            } else {
                self.probe(now_ns, at, host);
            }
        }
        self.probing = self.peers.iter().any(|peer| self.is_probed(peer));
        if self.probing {
            self.timers.set(now_ns + interval, TimerKey::Liveness);
        }
    }

    /// Connections to our own port end with it, and a link that carries no frame back to its sender answers no probe.
    fn is_probed(&self, peer: &Peer) -> bool {
        peer.connections > 0 && peer.id != self.config.n_port_id
    }

    /// Asks a peer who it is. Only what the port took counts as asked.
    fn probe<H: Host>(&mut self, now_ns: u64, at: usize, host: &mut H) {
        let Some(exchange) = self.exchanges.open_control(now_ns) else {
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
        if host.transmit_control(&header, &payload) != Transmit::Sent {
            self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
            self.counters.count(Counter::ControlNoRoom);
            return;
        }
        let peer = &mut self.peers[at];
        peer.probes = PROBES.min(peer.probes + 1);
        let open = (exchange.ox_id, exchange.seq_cnt.wrapping_add(1));
        if let Some((ox_id, seq_cnt)) = peer.exchange.replace(open) {
            self.exchanges.end_question(now_ns, ox_id, seq_cnt);
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

    pub(crate) fn handle_els<H: Host>(&mut self, now_ns: u64, frame: &FrameView<'_>, host: &mut H) {
        let payload = frame.data_field();
        let from_responder = frame.fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        match (frame.fc.r_ctl, ElsCommand::parse(payload), from_responder) {
            (RCtl::ElsRequest, Ok(ElsCommand::Adisc), false) => {
                match Adisc::parse_request(payload) {
                    Ok(adisc) if adisc.n_port_id == frame.fc.s_id => {
                        self.answer_adisc(now_ns, frame, &adisc, host);
                    }
                    Ok(_) | Err(_) => self.counters.count(Counter::DropMalformed),
                }
            }
            (RCtl::ElsReply, Ok(ElsCommand::LsAcc), true) => match Adisc::parse_accept(payload) {
                Ok(adisc) if adisc.n_port_id == frame.fc.s_id => {
                    self.probe_answered(now_ns, frame, &adisc, host);
                }
                Ok(_) | Err(_) => self.counters.count(Counter::DropMalformed),
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
        let mut payload = [0u8; Adisc::BYTES];
        self.own_adisc().emit_accept(&mut payload);
        let mut header = self.els_header(frame.fc.s_id, RCtl::ElsReply);
        let at = Sequence::answering(&frame.fc);
        header.fc.f_ctl = profile::F_CTL_FINAL_REPLY;
        header.fc.seq_id = at.seq_id;
        header.fc.seq_cnt = at.seq_cnt;
        header.fc.ox_id = at.ox_id;
        header.fc.rx_id = at.rx_id;
        if host.transmit_control(&header, &payload) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
        // Anybody can say this unasked, so another name than before is only a
        // reason to ask: the answer to a probe counts.
        let doubtful = self.peers.iter().position(|p| {
            p.id == frame.fc.s_id
                && p.connections > 0
                && p.exchange.is_none()
                && p.port_name.is_some_and(|name| name != adisc.port_name)
        });
        if let Some(at) = doubtful {
            self.probe(now_ns, at, host);
        }
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
        let peer = &mut self.peers[at];
        let before = peer.port_name.replace(adisc.port_name);
        if let Some((ox_id, seq_cnt)) = peer.exchange.take() {
            // Nothing but the OX_ID says what an answer is to: none may find it in use again.
            self.exchanges.end_question(now_ns, ox_id, seq_cnt);
        }
        self.heard(at as u32, now_ns);
        if before.is_some_and(|name| name != adisc.port_name) {
            // The same address, another port.
            self.peer_lost(now_ns, s_id, host);
        }
    }
}
