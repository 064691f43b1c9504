//! Probes of idle peers.
//!
//! On a network that does not report lost stations, a port with connections to a peer that was
//! silent for a while sends it an ADISC ELS, as Fibre Channel does to verify an address: the reply
//! contains the Port_Name. A new peer is probed at once, so that its name is known. After three
//! unanswered probes, or three replies in a row with the same other Port_Name, the peer is lost.
//!
//! Any station can forge a reply, but not know the OX_ID that it must have: each probe has a random
//! one. One guess may be right, three in a row are not. A forged ADISC causes a probe only if there
//! was none for a while, because each uses an OX_ID for twice R_A_TOV.

use fcvi_frame::els::{Adisc, ElsCommand};
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::{FrameHeader, FrameView};
use fcvi_frame::profile;

use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::engine_io::{EngineIo, Transmit};
use crate::n_port::NPort;
use crate::timer::TimerKey;

/// Unanswered probes after which a peer is lost.
const PROBES: u8 = 3;
/// Probes within an interval that ADISCs with another Port_Name can cause.
const PROBES_PER_INTERVAL: u64 = 4;
/// Replies in a row with another Port_Name after which a peer is lost.
const REPLIES_OF_ANOTHER: u8 = 3;
/// Peers that one timeout checks. The next poll continues with the others.
const CHECKS_PER_TIMEOUT: usize = 64;

/// Another N_Port with connections to this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    id: NPortId,
    connections: u32,
    last_received_ns: u64,
    port_name: Option<u64>,
    /// Another name of the last replies, and their number.
    other_name: (u64, u8),
    probes: u8,
    last_probe_ns: u64,
    exchange: Option<(u16, u16)>,
}

impl Peer {
    #[cfg(test)]
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }
}

impl NPort {
    /// Counts a connection to this port. Returns the peer's index for [`NPort::note_received`].
    pub(crate) fn add_peer_connection(&mut self, now_ns: u64, id: NPortId) -> u32 {
        let known = |p: &Peer| p.id == id && p.connections > 0;
        let known_at = self.peers.iter().position(known);
        let at = known_at.unwrap_or_else(|| self.new_peer(id));
        self.peers[at].connections += 1;
        self.note_received(at as u32, now_ns);
        // A new peer is probed for its name at once: a process that replaces it before that could
        // not be distinguished from it.
        let probes_now = self.config.probe_interval_ns > 0 && id != self.config.n_port_id;
        if probes_now && known_at.is_none() {
            self.probing = true;
            self.next_check = self.next_check.min(at);
            self.timers.set(now_ns, TimerKey::Liveness);
        }
        at as u32
    }

    fn new_peer(&mut self, id: NPortId) -> usize {
        let new_peer = Peer {
            id,
            connections: 0,
            last_received_ns: 0,
            port_name: None,
            other_name: (0, 0),
            probes: 0,
            last_probe_ns: 0,
            exchange: None,
        };
        match self.peers.iter().position(|p| p.connections == 0) {
            Some(at) => {
                self.peers[at] = new_peer;
                at
            }
            None => {
                self.peers.push(new_peer);
                self.peers.len() - 1
            }
        }
    }

    /// Counts a connection to this port less; after the last one the peer is forgotten.
    pub(crate) fn remove_peer_connection(&mut self, now_ns: u64, id: NPortId) {
        let known = |p: &&mut Peer| p.id == id && p.connections > 0;
        let Some(peer) = self.peers.iter_mut().find(known) else {
            return;
        };
        peer.connections -= 1;
        if peer.connections == 0
            && let Some((ox_id, seq_cnt)) = peer.exchange.take()
        {
            self.exchanges.end_request(now_ns, ox_id, seq_cnt);
        }
    }

    /// Notes that a frame of the peer was received.
    #[inline]
    pub(crate) fn note_received(&mut self, peer_index: u32, now_ns: u64) {
        if let Some(peer) = self.peers.get_mut(peer_index as usize) {
            peer.last_received_ns = now_ns;
            peer.probes = 0;
        }
    }

    /// Probes idle peers, up to one that is lost because it does not reply, and returns that one: one
    /// at a time, because many can become silent together.
    pub(crate) fn probe_idle_peers<I: EngineIo>(
        &mut self,
        now_ns: u64,
        io: &mut I,
    ) -> Option<NPortId> {
        let interval = self.config.probe_interval_ns;
        let end = self.peers.len().min(self.next_check + CHECKS_PER_TIMEOUT);
        while self.next_check < end {
            let at = self.next_check;
            self.next_check += 1;
            let peer = self.peers[at];
            if !self.is_probed(&peer) {
                continue;
            }
            // A peer whose name is not known yet is probed whether it was silent or not.
            if peer.port_name.is_some() && now_ns < peer.last_received_ns + interval {
                continue;
            }
            if peer.probes == PROBES && now_ns >= peer.last_received_ns + interval {
                return Some(peer.id);
            }
            self.probe(now_ns, at, io);
        }
        None
    }

    /// Sets the timer of the next probes, after [`NPort::probe_idle_peers`].
    pub(crate) fn schedule_probes(&mut self, now_ns: u64) {
        if self.next_check < self.peers.len() {
            // Not in this call of `handle_timeout`.
            self.timers.set(now_ns + 1, TimerKey::Liveness);
            return;
        }
        self.next_check = 0;
        self.probing = self.peers.iter().any(|peer| self.is_probed(peer));
        if self.probing {
            let interval = self.config.probe_interval_ns;
            self.timers.set(now_ns + interval, TimerKey::Liveness);
        }
    }

    /// Reports whether a peer is probed. Connections to the own port end with it, and a link that
    /// does not loop frames back to their sender would answer no probe.
    fn is_probed(&self, peer: &Peer) -> bool {
        peer.connections > 0 && peer.id != self.config.n_port_id
    }

    /// Sends ADISC to a peer. Counts as a probe only if the port accepted it.
    fn probe<I: EngineIo>(&mut self, now_ns: u64, at: usize, io: &mut I) {
        let start = io.random();
        let Some(exchange) = self.exchanges.open_control_from(now_ns, start) else {
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
        if io.transmit_control(&header, &payload) != Transmit::Sent {
            self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
            self.counters.count(Counter::ControlNoRoom);
            return;
        }
        let peer = &mut self.peers[at];
        peer.probes = PROBES.min(peer.probes + 1);
        peer.last_probe_ns = now_ns;
        let open = (exchange.ox_id, exchange.seq_cnt.wrapping_add(1));
        if let Some((ox_id, seq_cnt)) = peer.exchange.replace(open) {
            self.exchanges.end_request(now_ns, ox_id, seq_cnt);
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

    /// Handles an ELS frame: ADISC, or its reply. Returns a peer that was replaced by another port.
    pub(crate) fn handle_els<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        io: &mut I,
    ) -> Option<NPortId> {
        let payload = frame.data_field();
        let from_responder = frame.fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        match (frame.fc.r_ctl, ElsCommand::parse(payload), from_responder) {
            (RCtl::ElsRequest, Ok(ElsCommand::Adisc), false) => {
                match Adisc::parse_request(payload) {
                    Ok(adisc) if adisc.n_port_id == frame.fc.s_id => {
                        self.answer_adisc(now_ns, frame, &adisc, io);
                    }
                    Ok(_) | Err(_) => self.counters.count(Counter::DropMalformed),
                }
            }
            (RCtl::ElsReply, Ok(ElsCommand::LsAcc), true) => match Adisc::parse_accept(payload) {
                Ok(adisc) if adisc.n_port_id == frame.fc.s_id => {
                    return self.probe_answered(now_ns, frame, &adisc, io);
                }
                Ok(_) | Err(_) => self.counters.count(Counter::DropMalformed),
            },
            _ => self.counters.count(Counter::DropUnsupportedIu),
        }
        None
    }

    fn answer_adisc<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        adisc: &Adisc,
        io: &mut I,
    ) {
        let mut payload = [0u8; Adisc::BYTES];
        self.own_adisc().emit_accept(&mut payload);
        let mut header = self.els_header(frame.fc.s_id, RCtl::ElsReply);
        let at = Sequence::reply_to(&frame.fc);
        header.fc.f_ctl = profile::F_CTL_FINAL_REPLY;
        header.fc.seq_id = at.seq_id;
        header.fc.seq_cnt = at.seq_cnt;
        header.fc.ox_id = at.ox_id;
        header.fc.rx_id = at.rx_id;
        if io.transmit_control(&header, &payload) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
        // Any station can send this unasked, so a changed name is only a reason to probe: the reply
        // to a probe counts.
        let pause_ns = self.config.probe_interval_ns / PROBES_PER_INTERVAL;
        let renamed = self.peers.iter().position(|p| {
            p.id == frame.fc.s_id
                && p.connections > 0
                && p.exchange.is_none()
                && now_ns >= p.last_probe_ns + pause_ns
                && p.port_name.is_some_and(|name| name != adisc.port_name)
        });
        if let Some(at) = renamed {
            self.probe(now_ns, at, io);
        }
    }

    fn probe_answered<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        adisc: &Adisc,
        io: &mut I,
    ) -> Option<NPortId> {
        let s_id = frame.fc.s_id;
        let at = self.peers.iter().position(|p| {
            p.id == s_id && p.exchange.is_some_and(|(ox_id, _)| ox_id == frame.fc.ox_id)
        });
        let Some(at) = at else {
            self.counters.count(Counter::DropStrayConnect);
            return None;
        };
        let peer = &mut self.peers[at];
        if let Some((ox_id, seq_cnt)) = peer.exchange.take() {
            // Only the OX_ID identifies the request of a reply: it must not be in use again.
            self.exchanges.end_request(now_ns, ox_id, seq_cnt);
        }
        let name = adisc.port_name;
        if *peer.port_name.get_or_insert(name) == name {
            peer.other_name = (name, 0);
            self.note_received(at as u32, now_ns);
            return None;
        }
        let (other, replies) = peer.other_name;
        peer.other_name = (name, if other == name { replies + 1 } else { 1 });
        if peer.other_name.1 >= REPLIES_OF_ANOTHER {
            // The same address, another port.
            return Some(s_id);
        }
        self.probe(now_ns, at, io);
        None
    }
}
