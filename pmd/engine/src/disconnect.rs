//! Connections ended: by the consumer, by the other end, by an error [FCVI P-13].
//!
//! A VI leaves its connection at once; the DISCONNECT_RQST that tells the other
//! end is repeated from a table of its own until the response comes or three
//! retries went unanswered.

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameHeader, FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use crate::connect::{ConnectError, NO_HANDLE, connect_header};
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Host, Transmit};
use crate::timer::TimerKey;

/// How often a DISCONNECT_RQST is repeated.
const RETRIES: u8 = 3;

/// A DISCONNECT_RQST that waits for its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    peer: NPortId,
    peer_handle: u32,
    connection_id: u32,
    reason: MessageReason,
    error: bool,
    retries: u8,
    next_retry_ns: u64,
    exchange: Option<(u16, u16)>,
}

impl Engine {
    /// The consumer disconnects (VIPL 3.3.5): legal in every state; both queues are
    /// flushed and the VI is Idle when this returns.
    pub fn disconnect<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let waiting = matches!(
            ep.phase,
            Phase::Requesting(_) | Phase::AwaitResponse3 { .. } | Phase::AwaitResponse2 { .. }
        );
        let tell = waiting || matches!(ep.phase, Phase::Connected);
        if waiting {
            ep.outcome = Some(Err(ConnectError::InvalidState));
        }
        self.cancel_request(now_ns, vi, None, host);
        self.abandon_sending(now_ns, vi.slot());
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let link = ep.link.take();
        ep.phase = Phase::Idle;
        ep.handle = 0;
        ep.tx = None;
        ep.rx.message = None;
        self.forget_accepting(vi);
        if let Some(link) = link {
            self.release_link(now_ns, &link);
            if tell {
                self.close_connection(
                    now_ns,
                    link.peer,
                    link.peer_handle,
                    link.connection_id,
                    MessageReason::Disconnected,
                    false,
                    host,
                );
            }
        }
        host.set_state(vi, EndpointState::Idle);
        host.flush_sends(vi);
        host.flush_receives(vi);
        if waiting {
            host.control_event();
        }
    }

    /// The connection breaks for a reason found here; the other end is told.
    pub(crate) fn break_local<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        host: &mut H,
    ) {
        let Some(link) = self.endpoint(vi).and_then(|ep| ep.link) else {
            return;
        };
        self.enter_error(now_ns, vi, host);
        self.close_connection(
            now_ns,
            link.peer,
            link.peer_handle,
            link.connection_id,
            reason,
            true,
            host,
        );
    }

    /// A fatal error of the consumer's own making on this VI (VIPL 6.3.1): the VI goes to
    /// Error at every level and in every state.
    pub fn fail_vi<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        match self.endpoint(vi).map(|ep| ep.state()) {
            Some(EndpointState::Connected) => {
                self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
            }
            Some(EndpointState::Idle | EndpointState::ConnectPending) => {
                self.disconnect(now_ns, vi, host);
                if let Some(ep) = self.endpoint_mut(vi) {
                    ep.phase = Phase::Error;
                }
                host.set_state(vi, EndpointState::Error);
            }
            Some(EndpointState::Error) | None => {}
        }
    }

    /// To the Error state: both queues flushed, the loss reported, nothing processed any more.
    pub(crate) fn enter_error<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        self.abandon_sending(now_ns, vi.slot());
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.phase = Phase::Error;
        ep.rx.message = None;
        ep.tx = None;
        ep.handle = 0;
        let link = ep.link.take();
        if let Some(link) = link {
            self.release_link(now_ns, &link);
        }
        self.counters.count(Counter::Breaks);
        host.set_state(vi, EndpointState::Error);
        host.flush_sends(vi);
        host.flush_receives(vi);
        host.report(vi, AsyncError::ConnectionLost);
    }

    /// Gives back what a connection holds beside its endpoint.
    pub(crate) fn release_link(&mut self, now_ns: u64, link: &Link) {
        self.release_peer(link.peer);
        if link.exchange_open {
            self.exchanges
                .abandon(now_ns, link.ox_id, link.seq_cnt.wrapping_add(1));
        }
    }

    /// Sends a DISCONNECT_RQST and repeats it until it is answered.
    #[allow(clippy::too_many_arguments, reason = "the fields of one IU")]
    pub(crate) fn close_connection<H: Host>(
        &mut self,
        now_ns: u64,
        peer: NPortId,
        peer_handle: u32,
        connection_id: u32,
        reason: MessageReason,
        error: bool,
        host: &mut H,
    ) {
        let known = self
            .closing
            .iter()
            .flatten()
            .any(|c| c.peer == peer && c.connection_id == connection_id);
        if known {
            return;
        }
        let free = self.closing.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if self.closing.len() < self.config.max_closing as usize => {
                self.closing.push(None);
                self.closing.len() - 1
            }
            None => {
                self.counters.count(Counter::CloseOverflows);
                return;
            }
        };
        self.closing[index] = Some(Closing {
            peer,
            peer_handle,
            connection_id,
            reason,
            error,
            retries: 0,
            next_retry_ns: now_ns + self.config.ulp_timeout_ns / 4,
            exchange: None,
        });
        self.send_disconnect(now_ns, index, host);
        self.timers.set(
            now_ns + self.config.ulp_timeout_ns / 4,
            TimerKey::Closing(index as u32),
        );
    }

    fn send_disconnect<H: Host>(&mut self, now_ns: u64, index: usize, host: &mut H) {
        let Some(Some(mut closing)) = self.closing.get(index).copied() else {
            return;
        };
        if let Some((ox_id, seq_cnt)) = closing.exchange.take() {
            self.exchanges.abandon(now_ns, ox_id, seq_cnt);
        }
        if let Some(exchange) = self.exchanges.open(now_ns) {
            let opcode = Opcode::DisconnectRequest;
            let mut flags = disconnect::REPLY_EXPECTED;
            if closing.error {
                flags |= disconnect::ERROR;
            }
            let header = FrameHeader {
                dst: MacAddress::vn2vn(closing.peer),
                src: self.mac,
                sof: Sof::I3,
                fc: FcHeader {
                    r_ctl: opcode.r_ctl(),
                    d_id: closing.peer,
                    cs_ctl: 0,
                    s_id: self.config.n_port_id,
                    fc_type: FcType::Vi,
                    f_ctl: profile::F_CTL_REQUEST,
                    seq_id: exchange.seq_id,
                    df_ctl: profile::df_ctl(opcode.header_bytes()),
                    seq_cnt: exchange.seq_cnt,
                    ox_id: exchange.ox_id,
                    rx_id: RX_ID_UNASSIGNED,
                    parameter: 0,
                },
                device: Some(connect_header(
                    opcode,
                    closing.peer_handle,
                    flags,
                    0,
                    closing.reason.to_parameter(),
                    closing.connection_id,
                )),
            };
            if host.transmit_control(&header, &[]) == Transmit::Sent {
                closing.exchange = Some((exchange.ox_id, exchange.seq_cnt.wrapping_add(1)));
            } else {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                self.counters.count(Counter::ControlNoRoom);
            }
        } else {
            self.counters.count(Counter::ControlNoRoom);
        }
        self.closing[index] = Some(closing);
    }

    pub(crate) fn closing_timeout<H: Host>(&mut self, now_ns: u64, index: u32, host: &mut H) {
        let interval = self.config.ulp_timeout_ns / 4;
        let Some(Some(closing)) = self.closing.get_mut(index as usize) else {
            return;
        };
        if closing.next_retry_ns > now_ns {
            return;
        }
        if closing.retries == RETRIES {
            self.counters.count(Counter::CloseTimeouts);
            self.forget_closing(now_ns, index as usize);
            return;
        }
        closing.retries += 1;
        closing.next_retry_ns = now_ns + interval;
        self.counters.count(Counter::Retries);
        self.send_disconnect(now_ns, index as usize, host);
        self.timers
            .set(now_ns + interval, TimerKey::Closing(index));
    }

    fn forget_closing(&mut self, now_ns: u64, index: usize) {
        if let Some(closing) = self.closing.get_mut(index).and_then(Option::take) {
            if let Some((ox_id, seq_cnt)) = closing.exchange {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
        }
    }

    pub(crate) fn handle_disconnect_request<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        if !Self::from_originator(frame.fc.f_ctl) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let s_id = frame.fc.s_id;
        let connection_id = iu.header.connection_id();
        let mut known = self.cancel_incoming(s_id, connection_id);
        if let Some(vi) = self.disconnected_vi(s_id, iu) {
            known = true;
            match self.endpoint(vi).map(|ep| ep.state()) {
                Some(EndpointState::Connected) => self.enter_error(now_ns, vi, host),
                Some(EndpointState::ConnectPending) => self.gave_up(now_ns, vi, host),
                _ => {}
            }
        }
        let reason = if known {
            MessageReason::None
        } else {
            MessageReason::UnknownHandle
        };
        self.answer_disconnect(frame, iu, reason, host);
    }

    /// The VI whose connection a DISCONNECT_RQST ends: by handle, or by connection ID
    /// while the other end does not know our handle yet.
    fn disconnected_vi(&self, s_id: NPortId, iu: &IuView<'_>) -> Option<ViIndex> {
        let connection_id = iu.header.connection_id();
        let fits = |link: &Link| link.peer == s_id && link.connection_id == connection_id;
        if iu.header.handle != NO_HANDLE {
            let vi = ViIndex(iu.header.handle & 0xFFFF);
            let ep = self.endpoint(vi)?;
            return (ep.handle == iu.header.handle && ep.link.as_ref().is_some_and(fits))
                .then_some(vi);
        }
        let at = self.endpoints.iter().position(|ep| {
            ep.as_ref().is_some_and(|ep| {
                matches!(ep.phase, Phase::AwaitResponse2 { .. })
                    && ep.link.as_ref().is_some_and(fits)
            })
        })?;
        Some(ViIndex(at as u32))
    }

    /// The other end ended a connection that was half made.
    fn gave_up<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let link = ep.link.take();
        ep.phase = Phase::Idle;
        ep.handle = 0;
        ep.tx = None;
        ep.outcome = Some(Err(ConnectError::Timeout));
        self.forget_accepting(vi);
        if let Some(link) = link {
            self.release_link(now_ns, &link);
        }
        host.set_state(vi, EndpointState::Idle);
        host.control_event();
    }

    fn answer_disconnect<H: Host>(
        &mut self,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        reason: MessageReason,
        host: &mut H,
    ) {
        let opcode = Opcode::DisconnectResponse;
        let header = FrameHeader {
            dst: MacAddress::vn2vn(frame.fc.s_id),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: opcode.r_ctl(),
                d_id: frame.fc.s_id,
                cs_ctl: 0,
                s_id: self.config.n_port_id,
                fc_type: FcType::Vi,
                f_ctl: profile::F_CTL_FINAL_REPLY,
                seq_id: frame.fc.seq_id.wrapping_add(1),
                df_ctl: profile::df_ctl(opcode.header_bytes()),
                seq_cnt: frame.fc.seq_cnt.wrapping_add(1),
                ox_id: frame.fc.ox_id,
                rx_id: frame.fc.ox_id,
                parameter: 0,
            },
            device: Some(connect_header(
                opcode,
                iu.header.handle,
                0,
                0,
                reason.to_parameter(),
                iu.header.connection_id(),
            )),
        };
        if host.transmit_control(&header, &[]) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    pub(crate) fn handle_disconnect_response(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) {
        let connection_id = iu.header.connection_id();
        let at = self.closing.iter().position(|c| {
            c.as_ref().is_some_and(|c| {
                c.peer == frame.fc.s_id
                    && c.connection_id == connection_id
                    && frame.fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
            })
        });
        let Some(at) = at else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        if let Some(closing) = self.closing[at].take() {
            if let Some((ox_id, seq_cnt)) = closing.exchange {
                if ox_id == frame.fc.ox_id {
                    self.exchanges.close(ox_id, seq_cnt);
                } else {
                    self.exchanges.abandon(self.last_now_ns, ox_id, seq_cnt);
                }
            }
        }
    }

    /// A station went, or was replaced: everything with it ends here and now.
    pub fn peer_lost<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        self.counters.count(Counter::PeersLost);
        self.targets_gone(now_ns, id, host);
        self.incoming_gone(id);
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let linked = self
                .endpoint(vi)
                .is_some_and(|ep| ep.link.as_ref().is_some_and(|link| link.peer == id));
            if !linked {
                continue;
            }
            match self.endpoint(vi).map(|ep| ep.state()) {
                Some(EndpointState::Connected) => self.enter_error(now_ns, vi, host),
                Some(EndpointState::ConnectPending) => self.gave_up(now_ns, vi, host),
                _ => {}
            }
        }
        for index in 0..self.closing.len() {
            if self.closing[index].is_some_and(|c| c.peer == id) {
                self.forget_closing(now_ns, index);
            }
        }
        host.control_event();
    }
}
