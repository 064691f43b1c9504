//! Acknowledgements to the peer: when they are sent, and their contents.
//!
//! An acknowledgement is the response IU of the newest received frame [FCVI P-16]: FCVI_MSG_ID is
//! the last complete message, and the relative offset is how much of the next one is placed, so
//! that messages longer than a window make progress. Gaps are listed. A send or write to the peer
//! can carry the acknowledgement instead, if it consists of a message ID only.

use fcvi_frame::fc::FCtl;
use fcvi_frame::flags::{message_request, message_response};
use fcvi_frame::frame::PerFrame;
use fcvi_frame::gaps::{self, MAX_BYTES, MAX_RANGES, MissingRange};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use super::RecoveryConfig;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::RxStream;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, Transmit};
use crate::responses::Response;
use crate::timer::TimerKey;

/// Acknowledgement state of a receive stream: what the peer has not been sent yet.
#[derive(Debug)]
pub(crate) struct AckState {
    max_messages: u32,
    max_bytes: u32,
    delay_ns: u64,
    /// Messages since the last acknowledgement.
    pub(super) messages: u32,
    bytes: u32,
    pending: bool,
    /// When it must be sent; valid only if one is pending.
    deadline_ns: u64,
    timer_set: bool,
    /// Sequence of the response to the newest frame.
    pub(super) at: Sequence,
    /// When the last one was sent.
    last_sent_ns: Option<u64>,
    /// The port had no room for it.
    pub(super) unsent: bool,
}

impl AckState {
    pub(super) fn new(config: &RecoveryConfig) -> Self {
        Self {
            max_messages: config.ack_messages.max(1),
            max_bytes: config.ack_bytes.max(1),
            delay_ns: config.ack_delay_ns,
            messages: 0,
            bytes: 0,
            pending: false,
            deadline_ns: 0,
            timer_set: false,
            at: Sequence {
                ox_id: 0,
                rx_id: 0,
                seq_id: 0,
                seq_cnt: 0,
            },
            last_sent_ns: None,
            unsent: false,
        }
    }

    /// Notes that an acknowledgement of everything received was sent.
    fn sent(&mut self, now_ns: u64) {
        self.unsent = false;
        self.pending = false;
        (self.messages, self.bytes) = (0, 0);
        self.last_sent_ns = Some(now_ns);
    }
}

impl RxStream {
    /// Adds a pending acknowledgement to a frame for the peer. Returns false if it cannot: the
    /// frame has immediate data, there is a gap, or a message is partially placed.
    #[inline]
    pub(crate) fn add_acknowledgement(&self, frame: &mut PerFrame) -> bool {
        let Some(recovery) = self.recovery.as_ref().filter(|r| r.ack.pending) else {
            return false;
        };
        let carries = self.message.is_none()
            && frame.flags & message_request::IMMEDIATE == 0
            && !recovery.received_ranges.has_seen_beyond(self.position());
        if carries {
            frame.flags |= message_request::ACKNOWLEDGES;
            frame.fcvi_parameter = self.expected.wrapping_sub(1);
        }
        carries
    }

    /// Returns the last message up to which everything is placed; `None` without recovery.
    /// DISCONNECT_RQST carries it, in every retry.
    pub(crate) fn last_placed(&self) -> Option<u32> {
        let position = self.recovery.as_ref().map(|_| self.position());
        position.map(|position| position.msg_id.wrapping_sub(1))
    }

    /// Notes that the port accepted the frame with the acknowledgement.
    pub(crate) fn acknowledgement_sent(&mut self, now_ns: u64) {
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.ack.sent(now_ns);
        }
    }
}

impl Engine {
    /// Schedules an acknowledgement of `bytes` received bytes. It is sent at once if `at_once`, but
    /// then at most once per poll, or if the limits are reached; otherwise after the delay.
    pub(super) fn schedule_acknowledgement<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        bytes: u32,
        at_once: bool,
        io: &mut I,
    ) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        let Some(ack) = recovery.map(|recovery| &mut recovery.ack) else {
            return;
        };
        ack.bytes = ack.bytes.saturating_add(bytes);
        if !core::mem::replace(&mut ack.pending, true) {
            ack.deadline_ns = now_ns + ack.delay_ns;
        }
        let enough = ack.messages >= ack.max_messages || ack.bytes >= ack.max_bytes;
        if enough || (at_once && ack.last_sent_ns != Some(now_ns)) {
            self.acknowledge(now_ns, vi, io);
        } else if !core::mem::replace(&mut ack.timer_set, true) {
            let at_ns = ack.deadline_ns;
            self.timers.set(at_ns, TimerKey::Acknowledge(vi.0));
        }
    }

    /// Sends a pending acknowledgement before the connection ends: placed messages must not count
    /// as lost.
    pub(crate) fn flush_acknowledgement<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) {
        let recovery = self.endpoint(vi).and_then(|ep| ep.rx.recovery.as_ref());
        if recovery.is_some_and(|recovery| recovery.ack.pending) {
            self.send_acknowledgement(now_ns, vi, io);
        }
    }

    pub(crate) fn acknowledge_timeout<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        let Some(ack) = recovery.map(|recovery| &mut recovery.ack) else {
            return;
        };
        ack.timer_set = false;
        if !ack.pending || ack.unsent {
            return;
        }
        if ack.deadline_ns > now_ns {
            ack.timer_set = true;
            let at_ns = ack.deadline_ns;
            self.timers.set(at_ns, TimerKey::Acknowledge(vi.0));
        } else {
            self.acknowledge(now_ns, vi, io);
        }
    }

    /// Sends an acknowledgement now, or as soon as the port has room.
    fn acknowledge<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        if !self.send_acknowledgement(now_ns, vi, io) {
            self.queue_recovery(vi, io);
        }
    }

    /// Sends an acknowledgement. Returns false if the port had no room.
    pub(super) fn send_acknowledgement<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return true;
        };
        let (Some(connection), Some(recovery)) = (ep.connection.as_ref(), ep.rx.recovery.as_ref())
        else {
            return true;
        };
        let at = ep.rx.position();
        let response = Response {
            opcode: Opcode::SendResponse,
            msg_id: at.msg_id.wrapping_sub(1),
            at: recovery.ack.at,
        };
        let mut ranges = [MissingRange::default(); MAX_RANGES];
        let missing = recovery.received_ranges.missing(at, &mut ranges);
        let mut payload = [0; MAX_BYTES];
        let bytes = gaps::emit(&ranges[..missing], &mut payload);
        let mut header = self.response_header(connection, &response);
        header.fc.f_ctl = header.fc.f_ctl.union(FCtl::RELATIVE_OFFSET);
        header.fc.parameter = at.placed_bytes;
        if let Some(device) = header.device.as_mut() {
            device.flags = message_response::CUMULATIVE;
            if missing > 0 {
                device.parameter = MessageReason::Gaps.to_parameter();
            }
        }
        let sent = io.transmit_control(&header, &payload[..bytes]) == Transmit::Sent;
        if sent {
            self.counters.count(Counter::TxAcknowledgements);
            if missing > 0 {
                self.counters.count(Counter::TxGapReports);
            }
        }
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        if let Some(ack) = recovery.map(|recovery| &mut recovery.ack) {
            ack.unsent = !sent;
            if sent {
                ack.sent(now_ns);
                // A repetition is another sequence.
                ack.at = ack.at.next_sequence();
            }
        }
        sent
    }
}
