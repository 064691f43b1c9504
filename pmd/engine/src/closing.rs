//! Disconnects that wait for their response [FCVI P-13].
//!
//! A VI leaves its connection at once; the DISCONNECT_RQST that tells the other
//! end is repeated from this table until the response comes or FCVI_ULP_TIMEOUT
//! is over. Should the other end still not know, its next message names a handle
//! that a VI remembers, and it is told again.

use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::counters::Counter;
use crate::engine::Engine;
use crate::host::Host;
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;

/// What ends a connection at its other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Farewell {
    pub(crate) peer: NPortId,
    /// Its handle, or HANDLE_NONE if it is not known.
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    pub(crate) reason: MessageReason,
    pub(crate) error: bool,
    /// With recovery: the last message of the other end up to which everything is placed.
    pub(crate) placed: Option<u32>,
}

/// A DISCONNECT_RQST that waits for its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    farewell: Farewell,
    sent: bool,
    deadline_ns: u64,
    /// The open exchange of the last request and its next SEQ_CNT.
    exchange: Option<(u16, u16)>,
}

impl Engine {
    /// Sends a DISCONNECT_RQST and repeats it until it is answered.
    pub(crate) fn close_connection<H: Host>(
        &mut self,
        now_ns: u64,
        farewell: Farewell,
        host: &mut H,
    ) {
        if self
            .closing_index(farewell.peer, farewell.connection_id)
            .is_some()
        {
            return;
        }
        let index = match self.closing.iter().position(Option::is_none) {
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
            farewell,
            sent: false,
            deadline_ns: now_ns + self.config.ulp_timeout_ns,
            exchange: None,
        });
        self.send_disconnect(now_ns, index, host);
    }

    /// True while less than half of the table is in use.
    pub(crate) fn closing_has_room_to_spare(&self) -> bool {
        self.closing.iter().flatten().count() < self.config.max_closing as usize / 2
    }

    fn closing_index(&self, peer: NPortId, connection_id: u32) -> Option<usize> {
        self.closing.iter().position(|closing| {
            closing.as_ref().is_some_and(|c| {
                c.farewell.peer == peer && c.farewell.connection_id == connection_id
            })
        })
    }

    fn send_disconnect<H: Host>(&mut self, now_ns: u64, index: usize, host: &mut H) {
        let Some(Some(mut closing)) = self.closing.get(index).copied() else {
            return;
        };
        let exchange = self.send_disconnect_request(now_ns, &closing.farewell, host);
        let retry_in_ns = match exchange {
            Some(open) => {
                if let Some((ox_id, seq_cnt)) = closing.exchange.replace(open) {
                    self.exchanges.abandon(now_ns, ox_id, seq_cnt);
                }
                if closing.sent {
                    self.counters.count(Counter::Retries);
                }
                closing.sent = true;
                self.retry_interval_ns()
            }
            None => NO_ROOM_RETRY_NS,
        };
        self.closing[index] = Some(closing);
        self.timers.set(
            closing.deadline_ns.min(now_ns + retry_in_ns),
            TimerKey::Closing(index as u32),
        );
    }

    /// The exchange that it opened and its next SEQ_CNT; `None` if there was no room.
    fn send_disconnect_request<H: Host>(
        &mut self,
        now_ns: u64,
        farewell: &Farewell,
        host: &mut H,
    ) -> Option<(u16, u16)> {
        let Some(exchange) = self.exchanges.open_control(now_ns) else {
            self.counters.count(Counter::ControlNoRoom);
            return None;
        };
        let at = Sequence::first_of(exchange);
        let mut flags = disconnect::REPLY_EXPECTED;
        if farewell.error {
            flags |= disconnect::ERROR;
        }
        if farewell.placed.is_some() {
            flags |= disconnect::ACKNOWLEDGES;
        }
        let iu = ConnectionIu {
            to: farewell.peer,
            at,
            opcode: Opcode::DisconnectRequest,
            f_ctl: profile::F_CTL_REQUEST,
            handle: farewell.peer_handle,
            flags,
            msg_id: farewell.placed.unwrap_or(0),
            parameter: farewell.reason.to_parameter(),
            port_name: 0,
            connection_id: farewell.connection_id,
        };
        if self.send_connection_iu(&iu, &[], host) {
            return Some((at.ox_id, at.next_seq_cnt()));
        }
        self.exchanges.close(at.ox_id, at.seq_cnt);
        None
    }

    pub(crate) fn closing_timeout<H: Host>(&mut self, now_ns: u64, index: u32, host: &mut H) {
        let index = index as usize;
        let Some(Some(closing)) = self.closing.get(index) else {
            return;
        };
        if closing.deadline_ns <= now_ns {
            self.counters.count(Counter::CloseTimeouts);
            self.forget_closing(now_ns, index);
        } else {
            self.send_disconnect(now_ns, index, host);
        }
    }

    /// Whatever waits for a response of this port waits for nothing.
    pub(crate) fn closing_gone(&mut self, now_ns: u64, peer: NPortId) {
        for index in 0..self.closing.len() {
            if self.closing[index].is_some_and(|c| c.farewell.peer == peer) {
                self.forget_closing(now_ns, index);
            }
        }
    }

    /// Nobody can be told anything any more.
    pub(crate) fn forget_all_closing(&mut self, now_ns: u64) {
        for index in 0..self.closing.len() {
            self.forget_closing(now_ns, index);
        }
    }

    fn forget_closing(&mut self, now_ns: u64, index: usize) {
        self.timers.clear(TimerKey::Closing(index as u32));
        let closing = self.closing.get_mut(index).and_then(Option::take);
        if let Some((ox_id, seq_cnt)) = closing.and_then(|c| c.exchange) {
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
        let fits = |farewell: &Farewell| {
            (farewell.peer == s_id || skips(Check::ConnectionPeer))
                && (farewell.connection_id == connection_id || skips(Check::ConnectionId))
        };
        let waits = |closing: &Option<Closing>| closing.as_ref().is_some_and(|c| fits(&c.farewell));
        let index = self.closing.iter().position(waits);
        let Some((index, closing)) = index.and_then(|at| Some((at, self.closing[at].as_mut()?)))
        else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        if let Some((ox_id, seq_cnt)) = closing
            .exchange
            .take_if(|(ox_id, _)| *ox_id == frame.fc.ox_id)
        {
            self.exchanges.close(ox_id, seq_cnt);
        }
        self.forget_closing(now_ns, index);
    }
}
