//! Transmission: from the descriptors of a send queue to frames given to the port.

mod completion;
mod deferred;
mod in_flight;

pub(crate) use completion::SendFailure;
pub(crate) use in_flight::{InFlight, InFlightSend, OperationKind};

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use vi_types::{ReliabilityLevel, ViState};

use crate::config::EngineConfig;
use crate::counters::Counter;
use crate::endpoint::{
    Connection, Endpoint, Framing, Phase, RxStream, TxMessage, TxStream, request_flags,
};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, Operation, SendWork, Status, Transmit};
use crate::exchange::Exchange;
use crate::recovery::{RecoveryConfig, TxRecovery};
use crate::responses::Responses;

/// Why [`Engine::pump`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing is left to send.
    Idle,
    /// The budget is used up; there is more to send.
    More,
    /// The port or the OX_ID pool has no room; there is more to send.
    Blocked,
}

/// Result of one step.
pub(crate) enum Step {
    /// A frame was sent, or a descriptor completed.
    Next,
    /// There is nothing to do.
    Nothing,
    Blocked,
    Broken,
}

impl TxStream {
    /// Creates the send stream of a connection whose first message ID is `first_msg_id`.
    pub(crate) fn new(
        config: &EngineConfig,
        connection: &Connection,
        level: ReliabilityLevel,
        first_msg_id: u32,
        recovery: Option<&RecoveryConfig>,
    ) -> Self {
        let own = config.n_port_id;
        let data_field_bytes = connection.data_field_bytes(config);
        let payload = |opcode: Opcode| payload_room(data_field_bytes, opcode);
        let template = |opcode| message_template(own, connection, opcode, RX_ID_UNASSIGNED);
        Self {
            next_msg_id: first_msg_id,
            message: None,
            send: template(Opcode::SendRequest),
            write: template(Opcode::WriteRequest),
            read: template(Opcode::ReadRequest),
            send_payload_bytes: payload(Opcode::SendRequest),
            write_payload_bytes: payload(Opcode::WriteRequest),
            framing: Framing::of(level),
            tracked: level == ReliabilityLevel::ReliableReception || recovery.is_some(),
            responding: false,
            in_flight: InFlight::new(level, config, connection.remote.max_reads),
            responses: Responses::new(level, config),
            recovery: recovery.map(|recovery| {
                let ulp_timeout_ns = config.ulp_timeout_ns;
                Box::new(TxRecovery::new(recovery, ulp_timeout_ns, first_msg_id))
            }),
        }
    }
}

/// Returns the length in bytes of the longest message in frames of this size: no two frames of a
/// sequence have the same SEQ_CNT [FC-FS].
pub fn max_message_bytes(data_field_bytes: u16) -> u32 {
    const FRAMES: u32 = 1 << u16::BITS;
    payload_room(data_field_bytes, Opcode::WriteRequest).saturating_mul(FRAMES)
}

/// Returns the payload bytes of each frame of a message, unless it is the last one.
pub(crate) fn payload_room(data_field_bytes: u16, opcode: Opcode) -> u32 {
    (u32::from(data_field_bytes) & !3).saturating_sub(opcode.header_bytes() as u32)
}

impl Framing {
    fn of(level: ReliabilityLevel) -> Self {
        let (f_ctl, last_f_ctl) = match level {
            ReliabilityLevel::UnreliableDelivery | ReliabilityLevel::ReliableDelivery => {
                (profile::F_CTL_ONE_WAY, profile::F_CTL_ONE_WAY_LAST)
            }
            ReliabilityLevel::ReliableReception => {
                (profile::F_CTL_REQUEST_BEGUN, profile::F_CTL_REQUEST)
            }
        };
        Self {
            f_ctl: f_ctl.union(FCtl::RELATIVE_OFFSET),
            last_f_ctl: last_f_ctl.union(FCtl::RELATIVE_OFFSET),
            flags: request_flags(level),
        }
    }
}

/// Returns the header of the frames of a message IU to the peer of this connection.
pub(crate) fn message_template(
    own: NPortId,
    connection: &Connection,
    opcode: Opcode,
    rx_id: u16,
) -> HeaderTemplate {
    HeaderTemplate::new(&FrameHeader {
        dst: MacAddress::vn2vn(connection.peer),
        src: MacAddress::vn2vn(own),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl: opcode.r_ctl(),
            d_id: connection.peer,
            cs_ctl: 0,
            s_id: own,
            fc_type: FcType::Vi,
            f_ctl: FCtl(0),
            seq_id: 0,
            df_ctl: profile::df_ctl(opcode.header_bytes()),
            seq_cnt: 0,
            ox_id: 0,
            rx_id,
            parameter: 0,
        },
        device: Some(DeviceHeader {
            handle: connection.peer_handle,
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
    /// Between two VIs of this engine the start of a message and each part that is moved count as a
    /// frame, and [`EngineConfig::shortcut_bytes`] may end the call earlier.
    ///
    /// Descriptors of a VI that is not connected are completed as flushed instead (VIPL 3.3.5,
    /// 6.2).
    pub fn pump<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        budget: u32,
        io: &mut I,
    ) -> Pumped {
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Pumped::Idle;
        };
        if !matches!(ep.phase, Phase::Connected) || ep.shortcut.is_some() {
            return self.pump_without_frames(now_ns, vi, budget, io);
        }
        let mut own_blocked = false;
        for _ in 0..budget {
            let Some(tx) = self.tx_mut(vi) else {
                return Pumped::Idle;
            };
            let responding = tx.responding;
            let responds = responding && (own_blocked || tx.responses.are_due());
            let step = if responds {
                self.send_response_frame(now_ns, vi, io)
            } else if tx.message.is_some() {
                if !tx.tracked {
                    self.send_fragment::<I, false>(now_ns, vi, io)
                } else if self.defers_for_window(now_ns, vi) {
                    Step::Nothing
                } else {
                    self.send_fragment::<I, true>(now_ns, vi, io)
                }
            } else {
                self.send_next(now_ns, vi, io)
            };
            match step {
                Step::Next if io.is_failing(vi) => return Pumped::Idle,
                Step::Next if responding => {
                    if let Some(tx) = self.tx_mut(vi) {
                        tx.responses.sent(responds);
                    }
                }
                Step::Next => {}
                // Our own messages have to wait, perhaps for an OX_ID; responses do not.
                Step::Nothing | Step::Blocked if responding && !responds => own_blocked = true,
                Step::Nothing | Step::Broken => return Pumped::Idle,
                Step::Blocked => return Pumped::Blocked,
            }
        }
        Pumped::More
    }

    /// Handles VIs that send no frames. A separate function, so that frames do not pay for it.
    #[cold]
    #[inline(never)]
    fn pump_without_frames<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        budget: u32,
        io: &mut I,
    ) -> Pumped {
        if self.state(vi) == Some(ViState::Connected) {
            return self.pump_shortcut(now_ns, vi, budget, io);
        }
        io.flush_sends(vi);
        Pumped::Idle
    }

    /// Starts the next descriptor: sends it whole, or its first frame.
    #[inline(always)]
    fn send_next<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) -> Step {
        let Some(tx) = self.tx_mut(vi) else {
            return Step::Broken;
        };
        let Some(work) = io.next_send(vi) else {
            return Step::Nothing;
        };
        let room = match work.operation {
            Operation::Send => tx.send_payload_bytes,
            Operation::Write { .. } => tx.write_payload_bytes,
            Operation::Read { remote } => return self.send_read(now_ns, vi, work, remote, io),
        };
        let tracked = tx.tracked;
        if (tracked || !work.fault.is_ok())
            && let Some(step) = self.defer(now_ns, vi, &work, io)
        {
            return step;
        }
        let Some(exchange) = self.exchanges.open(now_ns) else {
            return Step::Blocked;
        };
        if work.length_bytes <= room {
            return if tracked {
                self.send_whole_tracked(now_ns, vi, &work, exchange, io)
            } else {
                self.send_whole::<I, false>(now_ns, vi, &work, exchange, io)
            };
        }
        let Some(tx) = self.tx_mut(vi) else {
            return Step::Broken;
        };
        tx.message = Some(TxMessage {
            work,
            exchange,
            msg_id: tx.next_msg_id,
            sent_bytes: 0,
            next_seq_cnt: exchange.seq_cnt,
        });
        tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
        if tracked {
            self.send_fragment::<I, true>(now_ns, vi, io)
        } else {
            self.send_fragment::<I, false>(now_ns, vi, io)
        }
    }

    /// A separate function, so that untracked messages do not pay for tracked ones.
    #[inline(never)]
    fn send_whole_tracked<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        exchange: Exchange,
        io: &mut I,
    ) -> Step {
        self.send_whole::<I, true>(now_ns, vi, work, exchange, io)
    }

    /// Sends a message that fits into one frame. Keeps no state of it: if the port has no room it
    /// is started again.
    #[inline(always)]
    fn send_whole<I: EngineIo, const TRACKED: bool>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        work: &SendWork,
        exchange: Exchange,
        io: &mut I,
    ) -> Step {
        let Some((tx, rx)) = self.endpoints.get_mut(vi.slot()).and_then(streams_of) else {
            return Step::Broken;
        };
        let template = match work.operation {
            Operation::Send => &tx.send,
            Operation::Write { .. } | Operation::Read { .. } => &tx.write,
        };
        let mut message = TxMessage {
            work: *work,
            exchange,
            msg_id: tx.next_msg_id,
            sent_bytes: 0,
            next_seq_cnt: exchange.seq_cnt,
        };
        let mut per_frame = per_frame(&message, tx.framing, work.length_bytes, true);
        let acknowledges = TRACKED && rx.add_acknowledgement(&mut per_frame);
        match io.transmit_data(vi, template, &per_frame, work.length_bytes, true) {
            Transmit::Sent if acknowledges => {
                self.counters.count(Counter::TxAcknowledgementsCarried);
                rx.acknowledgement_sent(now_ns);
            }
            Transmit::Sent => {}
            Transmit::NoRoom => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return Step::Blocked;
            }
            Transmit::Fault => {
                self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                return self.sending_fault(now_ns, vi, io);
            }
        }
        tx.next_msg_id = tx.next_msg_id.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        self.counters.count(Counter::TxMessages);
        message.next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
        self.sent::<I, TRACKED>(now_ns, vi, &message, io);
        Step::Next
    }

    /// Sends the next frame of the open message.
    #[inline]
    fn send_fragment<I: EngineIo, const TRACKED: bool>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> Step {
        let Some((tx, rx)) = self.endpoints.get_mut(vi.slot()).and_then(streams_of) else {
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
        let mut per_frame = per_frame(message, tx.framing, payload_bytes, last);
        let acknowledges = TRACKED && rx.add_acknowledgement(&mut per_frame);
        match io.transmit_data(vi, template, &per_frame, payload_bytes, last) {
            Transmit::Sent if acknowledges => {
                self.counters.count(Counter::TxAcknowledgementsCarried);
                rx.acknowledgement_sent(now_ns);
            }
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.sending_fault(now_ns, vi, io),
        }
        self.counters.count(Counter::TxFrames);
        message.next_seq_cnt = message.next_seq_cnt.wrapping_add(1);
        message.sent_bytes += payload_bytes;
        if last {
            let done = *message;
            tx.message = None;
            self.counters.count(Counter::TxMessages);
            self.sent::<I, TRACKED>(now_ns, vi, &done, io);
        }
        Step::Next
    }

    /// Completes or tracks a send or write whose last frame the port has accepted.
    #[inline(always)]
    fn sent<I: EngineIo, const TRACKED: bool>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &TxMessage,
        io: &mut I,
    ) {
        if TRACKED {
            self.sent_tracked(now_ns, vi, message, io);
            return;
        }
        let ox_id = message.exchange.ox_id;
        self.exchanges.close(ox_id, message.next_seq_cnt);
        io.complete_send(vi, Status::OK, message.work.length_bytes);
    }

    /// Abandons the exchange of an unfinished message, and those of everything in flight.
    pub(crate) fn abandon_sending(&mut self, now_ns: u64, vi: ViIndex) {
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if let Some(message) = tx.message.take() {
            self.give_up_exchange(now_ns, &message);
        }
        self.abandon_in_flight(now_ns, vi);
    }

    /// Abandons the exchange of an unfinished message, or closes it if no frame was sent.
    fn give_up_exchange(&mut self, now_ns: u64, message: &TxMessage) {
        let (ox_id, next_seq_cnt) = (message.exchange.ox_id, message.next_seq_cnt);
        if next_seq_cnt == message.exchange.seq_cnt {
            self.exchanges.close(ox_id, next_seq_cnt);
        } else {
            self.exchanges.abandon(now_ns, ox_id, next_seq_cnt);
        }
    }

    /// Returns the send stream of this VI's connection.
    #[inline]
    pub(crate) fn tx_mut(&mut self, vi: ViIndex) -> Option<&mut TxStream> {
        self.endpoints.get_mut(vi.slot()).and_then(tx_of)
    }

    pub(crate) fn level_of(&self, vi: ViIndex) -> Option<ReliabilityLevel> {
        self.endpoint(vi).map(|ep: &Endpoint| ep.params.level)
    }
}

#[inline]
pub(crate) fn tx_of(ep: &mut Option<Endpoint>) -> Option<&mut TxStream> {
    ep.as_mut()?.tx.as_deref_mut()
}

#[inline]
fn streams_of(ep: &mut Option<Endpoint>) -> Option<(&mut TxStream, &mut RxStream)> {
    let Endpoint { tx, rx, .. } = ep.as_mut()?;
    Some((tx.as_deref_mut()?, rx))
}

/// Returns the fields that differ between the frames of a message [FCVI P-3, P-6].
#[inline(always)]
pub(crate) fn per_frame(
    message: &TxMessage,
    framing: Framing,
    payload_bytes: u32,
    last: bool,
) -> PerFrame {
    let f_ctl = if last {
        framing
            .last_f_ctl
            .with_fill((payload_bytes.wrapping_neg() & 3) as u8)
    } else {
        framing.f_ctl
    };
    let mut flags = framing.flags;
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
