//! When and how the other end is told how far its messages are here.
//!
//! An acknowledgement is the response IU of the newest frame that came [FCVI P-16]: FCVI_MSG_ID
//! is the last message that is whole, and the relative offset says how much of the next one is
//! there, so that messages longer than a window go on. If anything is missing, it lists that.
//! A send or write to the other end can carry one instead, if there is no more to it than a
//! message ID.

use fcvi_frame::fc::FCtl;
use fcvi_frame::flags::{message_request, message_response};
use fcvi_frame::frame::PerFrame;
use fcvi_frame::gaps::{self, MAX_BYTES, MAX_RANGES, MissingRange};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use super::RecoveryConfig;
use crate::answer::Response;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::RxStream;
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Transmit};
use crate::timer::TimerKey;

/// What the other end has not been told yet.
#[derive(Debug)]
pub(crate) struct Telling {
    max_messages: u32,
    max_bytes: u32,
    delay_ns: u64,
    /// Since the last acknowledgement.
    pub(super) messages: u32,
    bytes: u32,
    owed: bool,
    /// When it must be told; only if something is owed.
    deadline_ns: u64,
    timer_set: bool,
    /// The answer to the newest frame.
    pub(super) at: Sequence,
    /// When it was told the last time.
    told_ns: Option<u64>,
    /// The port had no room for it.
    pub(super) unsent: bool,
}

impl Telling {
    pub(super) fn new(config: &RecoveryConfig) -> Self {
        Self {
            max_messages: config.ack_messages.max(1),
            max_bytes: config.ack_bytes.max(1),
            delay_ns: config.ack_delay_ns,
            messages: 0,
            bytes: 0,
            owed: false,
            deadline_ns: 0,
            timer_set: false,
            at: Sequence {
                ox_id: 0,
                rx_id: 0,
                seq_id: 0,
                seq_cnt: 0,
            },
            told_ns: None,
            unsent: false,
        }
    }

    /// The other end was told all that it was owed.
    fn told(&mut self, now_ns: u64) {
        self.unsent = false;
        self.owed = false;
        (self.messages, self.bytes) = (0, 0);
        self.told_ns = Some(now_ns);
    }
}

impl RxStream {
    /// Has a frame to the other end carry what is owed, if it can: without immediate data,
    /// while nothing is missing and no message is there in part.
    #[inline]
    pub(crate) fn acknowledge_in(&self, frame: &mut PerFrame) -> bool {
        let Some(recovery) = self.recovery.as_ref().filter(|r| r.telling.owed) else {
            return false;
        };
        let carries = self.message.is_none()
            && frame.flags & message_request::IMMEDIATE == 0
            && !recovery.islands.saw_beyond(self.position());
        if carries {
            frame.flags |= message_request::ACKNOWLEDGES;
            frame.fcvi_parameter = self.expected.wrapping_sub(1);
        }
        carries
    }

    /// With recovery: the last message up to which everything is placed. Who ends the connection
    /// says it for the last time, and as often as it takes.
    pub(crate) fn last_placed(&self) -> Option<u32> {
        let position = self.recovery.as_ref().map(|_| self.position());
        position.map(|position| position.msg_id.wrapping_sub(1))
    }

    /// That frame is with the port.
    pub(crate) fn acknowledged_in(&mut self, now_ns: u64) {
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.telling.told(now_ns);
        }
    }
}

impl Engine {
    /// So many bytes came. The other end is told `at_once`, but for that only once a turn; or
    /// when enough has come, or after the delay.
    pub(super) fn owe_acknowledgement<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        bytes: u32,
        at_once: bool,
        host: &mut H,
    ) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        let Some(telling) = recovery.map(|recovery| &mut recovery.telling) else {
            return;
        };
        telling.bytes = telling.bytes.saturating_add(bytes);
        if !core::mem::replace(&mut telling.owed, true) {
            telling.deadline_ns = now_ns + telling.delay_ns;
        }
        let enough = telling.messages >= telling.max_messages || telling.bytes >= telling.max_bytes;
        if enough || (at_once && telling.told_ns != Some(now_ns)) {
            self.acknowledge(now_ns, vi, host);
        } else if !core::mem::replace(&mut telling.timer_set, true) {
            let at_ns = telling.deadline_ns;
            self.timers.set(at_ns, TimerKey::Acknowledge(vi.0));
        }
    }

    /// Tells what is owed before the connection ends: what is placed must not be taken for lost.
    pub(crate) fn acknowledge_owed<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let recovery = self.endpoint(vi).and_then(|ep| ep.rx.recovery.as_ref());
        if recovery.is_some_and(|recovery| recovery.telling.owed) {
            self.send_acknowledgement(now_ns, vi, host);
        }
    }

    pub(crate) fn acknowledge_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        let Some(telling) = recovery.map(|recovery| &mut recovery.telling) else {
            return;
        };
        telling.timer_set = false;
        if !telling.owed || telling.unsent {
            return;
        }
        if telling.deadline_ns > now_ns {
            telling.timer_set = true;
            let at_ns = telling.deadline_ns;
            self.timers.set(at_ns, TimerKey::Acknowledge(vi.0));
        } else {
            self.acknowledge(now_ns, vi, host);
        }
    }

    /// Tells the other end now, or as soon as the port has room.
    fn acknowledge<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        if !self.send_acknowledgement(now_ns, vi, host) {
            self.recover_soon(vi, host);
        }
    }

    /// False if there was no room for it.
    pub(super) fn send_acknowledgement<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        host: &mut H,
    ) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return true;
        };
        let (Some(link), Some(recovery)) = (ep.link.as_ref(), ep.rx.recovery.as_ref()) else {
            return true;
        };
        let at = ep.rx.position();
        let response = Response {
            opcode: Opcode::SendResponse,
            msg_id: at.msg_id.wrapping_sub(1),
            at: recovery.telling.at,
        };
        let mut ranges = [MissingRange::default(); MAX_RANGES];
        let missing = recovery.islands.missing(at, &mut ranges);
        let mut payload = [0; MAX_BYTES];
        let bytes = gaps::emit(&ranges[..missing], &mut payload);
        let mut header = self.response_header(link, &response);
        header.fc.f_ctl = header.fc.f_ctl.union(FCtl::RELATIVE_OFFSET);
        header.fc.parameter = at.placed_bytes;
        if let Some(device) = header.device.as_mut() {
            device.flags = message_response::CUMULATIVE;
            if missing > 0 {
                device.parameter = MessageReason::Gaps.to_parameter();
            }
        }
        let sent = host.transmit_control(&header, &payload[..bytes]) == Transmit::Sent;
        if sent {
            self.counters.count(Counter::TxAcknowledgements);
            if missing > 0 {
                self.counters.count(Counter::TxGapReports);
            }
        }
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        if let Some(telling) = recovery.map(|recovery| &mut recovery.telling) {
            telling.unsent = !sent;
            if sent {
                telling.told(now_ns);
                // Told again, it is another sequence.
                telling.at = telling.at.following();
            }
        }
        sent
    }
}
