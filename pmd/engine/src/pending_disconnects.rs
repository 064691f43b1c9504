//! Disconnects that wait for their response [FCVI P-13].
//!
//! A VI leaves its connection at once; DISCONNECT_RQST is retransmitted from this table until the
//! response arrives or FCVI_ULP_TIMEOUT expires. If the peer still does not know, its next message
//! names a handle that the VI remembers, and the disconnect is sent again.

use fcvi_frame::connect::ConnectResponse;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectStatus, MessageReason};

use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::counters::Counter;

use crate::engine_io::EngineIo;
use crate::n_port::NPort;
use crate::timer::TimerKey;

/// Contents of a DISCONNECT_RQST.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisconnectInfo {
    pub(crate) peer: NPortId,
    /// Handle of the peer, or HANDLE_NONE if it is not known.
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    pub(crate) reason: MessageReason,
    pub(crate) error: bool,
    /// With recovery: the last message of the peer up to which everything is placed.
    pub(crate) placed: Option<u32>,
}

/// A DISCONNECT_RQST that waits for its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingDisconnect {
    info: DisconnectInfo,
    sent: bool,
    deadline_ns: u64,
    /// OX_ID and next SEQ_CNT of the last request's open exchange.
    exchange: Option<(u16, u16)>,
}

impl DisconnectInfo {
    /// Returns the DISCONNECT_RQST that answers an acceptance which is not needed any more.
    pub(crate) fn of_acceptance(
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        payload: &ConnectResponse,
    ) -> Self {
        Self {
            peer: frame.fc.s_id,
            peer_handle: payload.vi_handle,
            connection_id: iu.header.connection_id(),
            reason: MessageReason::Disconnected,
            error: false,
            placed: None,
        }
    }
}

impl NPort {
    /// Handles RESP1 that answers no pending request. If it accepts one that is over, the peer is
    /// sent a disconnect, so that it does not wait for RESP2. Acceptances of requests that this port
    /// did not make have no effect: each would use a disconnect and an OX_ID.
    pub(crate) fn stray_response1<I: EngineIo>(
        &mut self,
        now_ns: u64,
        iu: &IuView<'_>,
        status: ConnectStatus,
        ended: DisconnectInfo,
        io: &mut I,
    ) {
        self.counters.count(Counter::DropStrayConnect);
        let request = (iu.header.handle, ended.connection_id);
        // Half of the table is reserved for connections that existed.
        if status == ConnectStatus::Continue
            && self.has_spare_disconnect_slots()
            && self.quarantine.has_own(now_ns, request)
        {
            self.start_disconnect(now_ns, ended, io);
        }
    }

    /// Sends a DISCONNECT_RQST and retransmits it until it is answered.
    pub(crate) fn start_disconnect<I: EngineIo>(
        &mut self,
        now_ns: u64,
        info: DisconnectInfo,
        io: &mut I,
    ) {
        if self
            .pending_disconnect_index(info.peer, info.connection_id)
            .is_some()
        {
            return;
        }
        let index = match self.pending_disconnects.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.pending_disconnects.len()
                < self.config.max_pending_disconnects as usize =>
            {
                self.pending_disconnects.push(None);
                self.pending_disconnects.len() - 1
            }
            None => {
                self.counters.count(Counter::CloseOverflows);
                return;
            }
        };
        self.pending_disconnects[index] = Some(PendingDisconnect {
            info,
            sent: false,
            deadline_ns: now_ns + self.config.ulp_timeout_ns,
            exchange: None,
        });
        self.send_disconnect(now_ns, index, io);
    }

    /// Reports whether less than half of the table is in use.
    pub(crate) fn has_spare_disconnect_slots(&self) -> bool {
        self.pending_disconnects.iter().flatten().count()
            < self.config.max_pending_disconnects as usize / 2
    }

    fn pending_disconnect_index(&self, peer: NPortId, connection_id: u32) -> Option<usize> {
        self.pending_disconnects.iter().position(|pending| {
            pending
                .as_ref()
                .is_some_and(|c| c.info.peer == peer && c.info.connection_id == connection_id)
        })
    }

    fn send_disconnect<I: EngineIo>(&mut self, now_ns: u64, index: usize, io: &mut I) {
        let Some(Some(mut pending)) = self.pending_disconnects.get(index).copied() else {
            return;
        };
        let exchange = self.send_disconnect_request(now_ns, &pending.info, io);
        let retry_in_ns = match exchange {
            Some(open) => {
                if let Some((ox_id, seq_cnt)) = pending.exchange.replace(open) {
                    self.exchanges.abandon(now_ns, ox_id, seq_cnt);
                }
                if pending.sent {
                    self.counters.count(Counter::Retries);
                }
                pending.sent = true;
                self.config.retry_interval_ns()
            }
            None => NO_ROOM_RETRY_NS,
        };
        self.pending_disconnects[index] = Some(pending);
        self.timers.set(
            pending.deadline_ns.min(now_ns + retry_in_ns),
            TimerKey::Disconnect(index as u32),
        );
    }

    /// Returns the OX_ID and next SEQ_CNT of the exchange that was opened; `None` if there was no
    /// room.
    fn send_disconnect_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        info: &DisconnectInfo,
        io: &mut I,
    ) -> Option<(u16, u16)> {
        let Some(exchange) = self.exchanges.open_control(now_ns) else {
            self.counters.count(Counter::ControlNoRoom);
            return None;
        };
        let at = Sequence::first_of(exchange);
        let mut flags = disconnect::REPLY_EXPECTED;
        if info.error {
            flags |= disconnect::ERROR;
        }
        if info.placed.is_some() {
            flags |= disconnect::ACKNOWLEDGES;
        }
        let iu = ConnectionIu {
            to: info.peer,
            at,
            opcode: Opcode::DisconnectRequest,
            f_ctl: profile::F_CTL_REQUEST,
            handle: info.peer_handle,
            flags,
            msg_id: info.placed.unwrap_or(0),
            parameter: info.reason.to_parameter(),
            port_name: 0,
            connection_id: info.connection_id,
        };
        if self.send_connection_iu(&iu, &[], io) {
            return Some((at.ox_id, at.next_seq_cnt()));
        }
        self.exchanges.close(at.ox_id, at.seq_cnt);
        None
    }

    pub(crate) fn disconnect_timeout<I: EngineIo>(&mut self, now_ns: u64, index: u32, io: &mut I) {
        let index = index as usize;
        let Some(Some(pending)) = self.pending_disconnects.get(index) else {
            return;
        };
        if pending.deadline_ns <= now_ns {
            self.counters.count(Counter::CloseTimeouts);
            self.remove_disconnect(now_ns, index);
        } else {
            self.send_disconnect(now_ns, index, io);
        }
    }

    /// Removes all disconnects that wait for a response of a lost port.
    pub(crate) fn remove_disconnects_to(&mut self, now_ns: u64, is_lost: impl Fn(NPortId) -> bool) {
        for index in 0..self.pending_disconnects.len() {
            if self.pending_disconnects[index].is_some_and(|c| is_lost(c.info.peer)) {
                self.remove_disconnect(now_ns, index);
            }
        }
    }

    fn remove_disconnect(&mut self, now_ns: u64, index: usize) {
        self.timers.clear(TimerKey::Disconnect(index as u32));
        let pending = self
            .pending_disconnects
            .get_mut(index)
            .and_then(Option::take);
        if let Some((ox_id, seq_cnt)) = pending.and_then(|c| c.exchange) {
            self.exchanges.abandon(now_ns, ox_id, seq_cnt);
        }
    }

    pub(crate) fn handle_disconnect_response(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) {
        let (s_id, connection_id) = (frame.fc.s_id, iu.header.connection_id());
        let index = self.pending_disconnect_index(s_id, connection_id);
        let Some((index, pending)) =
            index.and_then(|at| Some((at, self.pending_disconnects[at].as_mut()?)))
        else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        if let Some((ox_id, seq_cnt)) = pending
            .exchange
            .take_if(|(ox_id, _)| *ox_id == frame.fc.ox_id)
        {
            self.exchanges.close(ox_id, seq_cnt);
        }
        self.remove_disconnect(now_ns, index);
    }
}
