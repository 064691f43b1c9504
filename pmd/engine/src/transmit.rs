//! Descriptors cut into frames: from the head of a send queue to the port.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;

use crate::counters::Counter;
use crate::endpoint::{Endpoint, Level, Link, Phase, TxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::exchange::Exchange;
use crate::host::{Host, Operation, SendWork, Status, Transmit};

/// Why a pump stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing is left to send.
    Idle,
    /// The budget is used up; there is more.
    More,
    /// The port or the OX_IDs have no room; there is more.
    Blocked,
}

/// What one step of a message came to.
enum Step {
    Next,
    Blocked,
    Broken,
}

impl TxStream {
    /// The sending side of a connection that starts with `first_msg_id`.
    pub(crate) fn new(
        own: fcvi_frame::fc::NPortId,
        link: &Link,
        first_msg_id: u32,
        data_field_bytes: u16,
    ) -> Self {
        let payload = |opcode: Opcode| {
            (u32::from(data_field_bytes) & !3).saturating_sub(opcode.header_bytes() as u32)
        };
        Self {
            next_msg_id: first_msg_id,
            message: None,
            send: template(own, link, Opcode::SendRequest),
            write: template(own, link, Opcode::WriteRequest),
            send_payload_bytes: payload(Opcode::SendRequest),
            write_payload_bytes: payload(Opcode::WriteRequest),
        }
    }
}

fn template(own: fcvi_frame::fc::NPortId, link: &Link, opcode: Opcode) -> HeaderTemplate {
    HeaderTemplate::new(&FrameHeader {
        dst: MacAddress::vn2vn(link.peer),
        src: MacAddress::vn2vn(own),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl: opcode.r_ctl(),
            d_id: link.peer,
            cs_ctl: 0,
            s_id: own,
            fc_type: FcType::Vi,
            f_ctl: FCtl(0),
            seq_id: 0,
            df_ctl: profile::df_ctl(opcode.header_bytes()),
            seq_cnt: 0,
            ox_id: 0,
            rx_id: RX_ID_UNASSIGNED,
            parameter: 0,
        },
        device: Some(DeviceHeader {
            handle: link.peer_handle,
            opcode,
            flags: 0,
            msg_id: 0,
            parameter: 0,
            rmt_va: 0,
            rmt_va_handle: 0,
            tot_len: 0,
        }),
    })
}

impl Engine {
    /// Sends up to `budget` frames of this VI's posted descriptors.
    ///
    /// A VI that is not connected completes them as flushed instead
    /// (VIPL 3.3.5, 6.2).
    pub fn pump<H: Host>(&mut self, now_ns: u64, vi: ViIndex, budget: u32, host: &mut H) -> Pumped {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Pumped::Idle;
        };
        if !matches!(ep.phase, Phase::Connected) {
            host.flush_sends(vi);
            return Pumped::Idle;
        }
        for _ in 0..budget {
            let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
                return Pumped::Idle;
            };
            let Some(tx) = ep.tx.as_mut() else {
                return Pumped::Idle;
            };
            if tx.message.is_none() {
                let Some(mut work) = host.next_send(vi) else {
                    return Pumped::Idle;
                };
                if matches!(work.operation, Operation::Read { .. }) && work.fault.is_ok() {
                    work.fault = Status::FORMAT;
                }
                if !work.fault.is_ok() {
                    if self.refuse_local(now_ns, vi, work, host) {
                        continue;
                    }
                    return Pumped::Idle;
                }
                let Some(exchange) = self.exchanges.open(now_ns) else {
                    return Pumped::Blocked;
                };
                let room = match work.operation {
                    Operation::Send => tx.send_payload_bytes,
                    Operation::Write { .. } | Operation::Read { .. } => tx.write_payload_bytes,
                };
                if work.length_bytes <= room {
                    match self.send_whole(now_ns, vi, &work, exchange, host) {
                        Step::Next => continue,
                        Step::Blocked => return Pumped::Blocked,
                        Step::Broken => return Pumped::Idle,
                    }
                }
                tx.message = Some(TxMessage {
                    work,
                    exchange,
                    msg_id: tx.next_msg_id,
                    sent_bytes: 0,
                    next_seq_cnt: exchange.seq_cnt,
                });
                tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
            }
            match self.send_fragment(now_ns, vi, host) {
                Step::Next => {}
                Step::Blocked => return Pumped::Blocked,
                Step::Broken => return Pumped::Idle,
            }
        }
        Pumped::More
    }

    /// A descriptor that must not be sent: completed with its fault; a reliable
    /// VI breaks. True if the VI goes on.
    #[cold]
    fn refuse_local<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: SendWork,
        host: &mut H,
    ) -> bool {
        host.complete_send(vi, work.fault, 0);
        if self.level_of(vi) == Some(Level::UnreliableDelivery) {
            return true;
        }
        self.break_local(
            now_ns,
            vi,
            fcvi_frame::reason::MessageReason::ProtocolError,
            host,
        );
        false
    }

    /// Sends a message that fits into one frame. Nothing of it is remembered: if the port
    /// has no room it starts anew.
    #[inline(always)]
    fn send_whole<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        exchange: Exchange,
        host: &mut H,
    ) -> Step {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let level = ep.params.level;
        let Some(tx) = ep.tx.as_mut() else {
            return Step::Broken;
        };
        let template = match work.operation {
            Operation::Send => &tx.send,
            Operation::Write { .. } | Operation::Read { .. } => &tx.write,
        };
        let message = TxMessage {
            work: *work,
            exchange,
            msg_id: tx.next_msg_id,
            sent_bytes: 0,
            next_seq_cnt: exchange.seq_cnt,
        };
        let per_frame = per_frame(&message, level, work.length_bytes, true);
        match host.transmit_data(vi, template, &per_frame, work.length_bytes, true) {
            Transmit::Sent => {}
            Transmit::NoRoom => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return Step::Blocked;
            }
            Transmit::Fault => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return self.sending_fault(now_ns, vi, host);
            }
        }
        tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        self.counters.count(Counter::TxMessages);
        self.exchanges
            .close(exchange.ox_id, exchange.seq_cnt.wrapping_add(1));
        host.complete_send(vi, Status::OK, work.length_bytes);
        Step::Next
    }

    /// Sends the next frame of the open message.
    #[inline]
    fn send_fragment<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> Step {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let level = ep.params.level;
        let Some(tx) = ep.tx.as_mut() else {
            return Step::Broken;
        };
        let Some(message) = tx.message.as_mut() else {
            return Step::Next;
        };
        let (template, room) = match message.work.operation {
            Operation::Send => (&tx.send, tx.send_payload_bytes),
            Operation::Write { .. } | Operation::Read { .. } => (&tx.write, tx.write_payload_bytes),
        };
        let left = message.work.length_bytes - message.sent_bytes;
        let payload_bytes = left.min(room);
        let last = payload_bytes == left;
        let per_frame = per_frame(message, level, payload_bytes, last);
        match host.transmit_data(vi, template, &per_frame, payload_bytes, last) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.sending_fault(now_ns, vi, host),
        }
        self.counters.count(Counter::TxFrames);
        message.next_seq_cnt = message.next_seq_cnt.wrapping_add(1);
        message.sent_bytes += payload_bytes;
        if last {
            let done = *message;
            tx.message = None;
            self.exchanges.close(done.exchange.ox_id, done.next_seq_cnt);
            self.counters.count(Counter::TxMessages);
            host.complete_send(vi, Status::OK, done.work.length_bytes);
        }
        Step::Next
    }

    /// The descriptor's memory went away under a message that was partly sent.
    #[cold]
    fn sending_fault<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> Step {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let mut status = Status::PROTECTION;
        if let Some(message) = ep.tx.as_mut().and_then(|tx| tx.message.take()) {
            if message.sent_bytes > 0 {
                status = status.with(Status::PARTIAL);
            }
            self.give_up_exchange(now_ns, &message);
        }
        host.complete_send(vi, status, 0);
        if self.level_of(vi) == Some(Level::UnreliableDelivery) {
            return Step::Next;
        }
        self.break_local(
            now_ns,
            vi,
            fcvi_frame::reason::MessageReason::ProtocolError,
            host,
        );
        Step::Broken
    }

    /// Gives up the exchange of a message that will not be finished.
    pub(crate) fn abandon_sending(&mut self, now_ns: u64, slot: usize) {
        let Some(ep) = self.endpoints.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        if let Some(message) = ep.tx.as_mut().and_then(|tx| tx.message.take()) {
            self.give_up_exchange(now_ns, &message);
        }
    }

    /// Frames of a message that is not finished may be on their way, if any was sent.
    fn give_up_exchange(&mut self, now_ns: u64, message: &TxMessage) {
        let (ox_id, next_seq_cnt) = (message.exchange.ox_id, message.next_seq_cnt);
        if next_seq_cnt == message.exchange.seq_cnt {
            self.exchanges.close(ox_id, next_seq_cnt);
        } else {
            self.exchanges.abandon(now_ns, ox_id, next_seq_cnt);
        }
    }

    pub(crate) fn level_of(&self, vi: ViIndex) -> Option<Level> {
        self.endpoint(vi).map(|ep: &Endpoint| ep.params.level)
    }
}

/// What changes from frame to frame [FCVI P-3, P-6].
#[inline(always)]
fn per_frame(message: &TxMessage, level: Level, payload_bytes: u32, last: bool) -> PerFrame {
    let mut f_ctl = if last {
        profile::F_CTL_ONE_WAY_LAST
    } else {
        profile::F_CTL_ONE_WAY
    };
    f_ctl = f_ctl.union(FCtl::RELATIVE_OFFSET);
    if last {
        f_ctl = f_ctl.with_fill((payload_bytes.wrapping_neg() & 3) as u8);
    }
    let mut flags = level.wire().to_flags();
    if message.work.immediate.is_some() {
        flags |= message_request::IMMEDIATE;
    }
    if message.work.fence {
        flags |= message_request::FENCE;
    }
    let (rmt_va, rmt_va_handle) = match message.work.operation {
        Operation::Send => (0, 0),
        Operation::Write { remote } | Operation::Read { remote } => remote,
    };
    PerFrame {
        sof: if message.sent_bytes == 0 && message.next_seq_cnt == message.exchange.seq_cnt {
            Sof::I3
        } else {
            Sof::N3
        },
        f_ctl,
        seq_id: message.exchange.seq_id,
        seq_cnt: message.next_seq_cnt,
        ox_id: message.exchange.ox_id,
        relative_offset: message.sent_bytes,
        flags,
        msg_id: message.msg_id,
        fcvi_parameter: message.work.immediate.unwrap_or(0),
        rmt_va,
        rmt_va_handle,
        tot_len: message.work.length_bytes,
    }
}
