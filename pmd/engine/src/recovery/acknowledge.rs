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

use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{EngineIo, Transmit};
use crate::receive::RxStream;
use crate::responses::Response;
use crate::timer::TimerKey;
use crate::transmit::TxStream;

impl RxStream {
    /// Adds a pending acknowledgement to a frame for the peer. Returns false if it cannot: the
    /// frame has immediate data, there is a gap, or a message is partially placed.
    #[inline]
    pub(crate) fn add_acknowledgement(&self, frame: &mut PerFrame) -> bool {
        let pending = self.ack.as_ref().is_some_and(|ack| ack.pending);
        let carries = pending
            && self.reassembly.message.is_none()
            && frame.flags & message_request::IMMEDIATE == 0
            && !self.reassembly.has_gap();
        if carries {
            frame.flags |= message_request::ACKNOWLEDGES;
            frame.fcvi_parameter = self.reassembly.expected.wrapping_sub(1);
        }
        carries
    }

    /// Returns the last message up to which everything is placed; `None` without recovery.
    /// DISCONNECT_RQST carries it, in every retry.
    pub(crate) fn last_placed(&self) -> Option<u32> {
        let position = self.ack.as_ref().map(|_| self.reassembly.position());
        position.map(|position| position.msg_id.wrapping_sub(1))
    }

    /// Notes that the port accepted the frame with the acknowledgement.
    pub(crate) fn acknowledgement_sent(&mut self, now_ns: u64) {
        if let Some(ack) = &mut self.ack {
            ack.sent(now_ns);
        }
    }

    /// Schedules an acknowledgement of `bytes` received bytes. It is sent at once if `at_once`, but
    /// then at most once per poll, or if the limits are reached; otherwise after the delay.
    pub(crate) fn schedule_acknowledgement<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        bytes: u32,
        at_once: bool,
    ) {
        let Some(ack) = &mut self.ack else {
            return;
        };
        ack.bytes = ack.bytes.saturating_add(bytes);
        if !core::mem::replace(&mut ack.pending, true) {
            ack.deadline_ns = cx.now_ns + ack.delay_ns;
        }
        let enough = ack.messages >= ack.max_messages || ack.bytes >= ack.max_bytes;
        if enough || (at_once && ack.last_sent_ns != Some(cx.now_ns)) {
            self.acknowledge(tx, cx);
        } else if !core::mem::replace(&mut ack.timer_set, true) {
            let timer = TimerKey::Acknowledge(cx.vi.0);
            cx.port.timers.set(ack.deadline_ns, timer);
        }
    }

    /// Sends a pending acknowledgement before the connection ends: placed messages must not count
    /// as lost.
    pub(crate) fn flush_acknowledgement<I: EngineIo>(
        &mut self,
        tx: &TxStream,
        cx: &mut Context<'_, I>,
    ) {
        if self.ack.as_ref().is_some_and(|ack| ack.pending) {
            self.send_acknowledgement(tx, cx);
        }
    }

    /// Handles the timer of a delayed acknowledgement.
    pub(crate) fn acknowledge_timeout<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) {
        let Some(ack) = &mut self.ack else {
            return;
        };
        ack.timer_set = false;
        if !ack.pending || ack.unsent {
            return;
        }
        if ack.deadline_ns > cx.now_ns {
            ack.timer_set = true;
            let timer = TimerKey::Acknowledge(cx.vi.0);
            cx.port.timers.set(ack.deadline_ns, timer);
        } else {
            self.acknowledge(tx, cx);
        }
    }

    /// Sends an acknowledgement now, or as soon as the port has room.
    fn acknowledge<I: EngineIo>(&mut self, tx: &mut TxStream, cx: &mut Context<'_, I>) {
        if !self.send_acknowledgement(tx, cx) {
            tx.queue_recovery(self, cx);
        }
    }

    /// Sends an acknowledgement. Returns false if the port had no room.
    pub(super) fn send_acknowledgement<I: EngineIo>(
        &mut self,
        tx: &TxStream,
        cx: &mut Context<'_, I>,
    ) -> bool {
        let (Some(ack), Some(ahead)) = (&mut self.ack, &self.reassembly.ahead) else {
            return true;
        };
        let at = self.reassembly.position();
        let response = Response {
            flags: 0,
            opcode: Opcode::SendResponse,
            msg_id: at.msg_id.wrapping_sub(1),
            at: ack.at,
        };
        let mut ranges = [MissingRange::default(); MAX_RANGES];
        let missing = ahead.received_ranges.missing(at, &mut ranges);
        let mut payload = [0; MAX_BYTES];
        let bytes = gaps::emit(&ranges[..missing], &mut payload);
        let mut header = tx.responses.header(cx.port, &response);
        header.fc.f_ctl = header.fc.f_ctl.union(FCtl::RELATIVE_OFFSET);
        header.fc.parameter = at.placed_bytes;
        if let Some(device) = header.device.as_mut() {
            device.flags = message_response::CUMULATIVE;
            if missing > 0 {
                device.parameter = MessageReason::Gaps.to_parameter();
            }
        }
        let sent = cx.io.transmit_control(&header, &payload[..bytes]) == Transmit::Sent;
        ack.unsent = !sent;
        if sent {
            cx.count(Counter::TxAcknowledgements);
            if missing > 0 {
                cx.count(Counter::TxGapReports);
            }
            ack.sent(cx.now_ns);
            // A repetition is another sequence.
            ack.at = ack.at.next_sequence();
        }
        sent
    }
}
