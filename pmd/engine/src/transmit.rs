//! Transmission: from the descriptors of a send queue to frames given to the port.

mod completion;
mod deferred;
mod direct;
mod in_flight;
mod one_step;
mod send_failure;

pub(crate) use in_flight::{InFlight, InFlightSend};
pub(crate) use one_step::{one_step_limits, send_in_one_step};
pub(crate) use send_failure::SendFailure;

use direct::{DirectProgress, access_directly};
use in_flight::{RENDEZVOUS_MIN_BYTES, Rendezvous};

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::{message_request, reliability_flags};
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{Operation, ReliabilityLevel, SendWork, Status};

use crate::config::EngineConfig;
use crate::connection::{Connection, payload_room};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DataFrame, EngineIo, Transmit};
use crate::exchange::{Exchange, ExchangePool};
use crate::receive::RxStream;
use crate::recovery::{RecoveryConfig, TxRecovery};
use crate::responses::Responses;

/// Result of one step.
pub(crate) enum Step {
    /// A frame was sent, or a descriptor completed.
    Next,
    /// There is nothing to do.
    Nothing,
    Blocked,
    /// As many bytes were copied as a burst of frames carries.
    Enough,
    /// The same, of a message of the peer: own messages are next.
    Copied,
    /// The connection breaks for this reason.
    Break(MessageReason),
}

/// A message that is being sent in frames, or whose request to be copied was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxMessage {
    pub(crate) work: SendWork,
    pub(crate) exchange: Exchange,
    pub(crate) msg_id: u32,
    pub(crate) sent_bytes: u32,
    pub(crate) next_seq_cnt: u16,
}

/// Per-level fields of every frame of a send or write [FCVI P-3, P-6].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// F_CTL of any frame but the last.
    f_ctl: FCtl,
    /// F_CTL of the last frame, without fill.
    last_f_ctl: FCtl,
    flags: u8,
}

/// The send stream of a connection.
pub(crate) struct TxStream {
    pub(crate) level: ReliabilityLevel,
    pub(crate) next_msg_id: u32,
    pub(crate) message: Option<TxMessage>,
    pub(crate) send: HeaderTemplate,
    pub(crate) write: HeaderTemplate,
    pub(crate) read: HeaderTemplate,
    rendezvous_request: HeaderTemplate,
    /// Also that of a read's data, whose header has the same length.
    pub(crate) send_payload_bytes: u32,
    pub(crate) write_payload_bytes: u32,
    pub(crate) framing: Framing,
    direct: DirectProgress,
    rendezvous: Rendezvous,
    /// Sends and writes do not complete when they are sent: the level is Reliable Reception,
    /// recovery is used, or something is in flight.
    tracked: bool,
    pub(crate) in_flight: InFlight,
    pub(crate) responses: Responses,
    /// Present if message recovery is used.
    pub(crate) recovery: Option<Box<TxRecovery>>,
}

/// Returns the FCVI_FLAGS of every send and write of a level [FCVI P-6].
pub(crate) const fn request_flags(level: ReliabilityLevel) -> u8 {
    let response = match level {
        ReliabilityLevel::UnreliableDelivery | ReliabilityLevel::ReliableDelivery => 0,
        ReliabilityLevel::ReliableReception => message_request::RESPONSE_REQUESTED,
    };
    reliability_flags(level) | response
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
        let peer = connection.address();
        let template = |opcode| message_template(own, peer, opcode, RX_ID_UNASSIGNED);
        let send_payload_bytes = payload(Opcode::SendRequest);
        Self {
            level,
            next_msg_id: first_msg_id,
            message: None,
            direct: DirectProgress::default(),
            rendezvous: Rendezvous::default(),
            send: template(Opcode::SendRequest),
            write: template(Opcode::WriteRequest),
            read: template(Opcode::ReadRequest),
            rendezvous_request: template(Opcode::RendezvousRequest),
            send_payload_bytes,
            write_payload_bytes: payload(Opcode::WriteRequest),
            framing: Framing::of(level),
            tracked: level == ReliabilityLevel::ReliableReception || recovery.is_some(),
            in_flight: InFlight::new(level, config, connection.remote.max_reads),
            responses: Responses::new(level, config, peer, send_payload_bytes),
            recovery: recovery.map(|recovery| {
                let ulp_timeout_ns = config.ulp_timeout_ns;
                Box::new(TxRecovery::new(recovery, ulp_timeout_ns, first_msg_id))
            }),
        }
    }
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
    (peer, peer_handle): (NPortId, u32),
    opcode: Opcode,
    rx_id: u16,
) -> HeaderTemplate {
    HeaderTemplate::new(&FrameHeader {
        dst: MacAddress::vn2vn(peer),
        src: MacAddress::vn2vn(own),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl: opcode.r_ctl(),
            d_id: peer,
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
            handle: peer_handle,
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

impl TxStream {
    /// Returns whether no send or write completes when it is sent.
    #[inline]
    fn tracks_all(&self) -> bool {
        self.level == ReliabilityLevel::ReliableReception || self.recovery.is_some()
    }

    /// Returns the header of the frames of an operation, which is no read, and the most payload bytes of a frame.
    #[inline(always)]
    fn template_and_room(&self, operation: Operation) -> (&HeaderTemplate, u32) {
        match operation {
            Operation::Send => (&self.send, self.send_payload_bytes),
            Operation::Write { .. } | Operation::Read { .. } => {
                (&self.write, self.write_payload_bytes)
            }
        }
    }

    /// Sends one frame of the descriptors on the send queue.
    #[inline(always)]
    pub(crate) fn send_message_frame<I: EngineIo>(
        &mut self,
        rx: &mut RxStream,
        cx: &mut Context<'_, I>,
    ) -> Step {
        if self.message.is_none() {
            self.send_next(rx, cx)
        } else if self.rendezvous.waits {
            Step::Nothing
        } else if !self.tracked {
            self.send_fragment::<I, false>(rx, cx)
        } else if self.defers_for_window(cx) {
            Step::Nothing
        } else {
            self.send_fragment::<I, true>(rx, cx)
        }
    }

    /// Starts the next descriptor: sends it whole, or its first frame.
    #[inline(always)]
    fn send_next<I: EngineIo>(&mut self, rx: &mut RxStream, cx: &mut Context<'_, I>) -> Step {
        let Some(work) = cx.io.next_send(cx.vi) else {
            return Step::Nothing;
        };
        if let Some(step) = access_directly(self, cx, &work) {
            return step;
        }
        if let Operation::Read { remote } = work.operation {
            return self.send_read(cx, work, remote);
        }
        if work.length_bytes >= RENDEZVOUS_MIN_BYTES
            && let Some(step) = self.request_rendezvous(cx, &work)
        {
            return step;
        }
        let (_, room) = self.template_and_room(work.operation);
        let tracked = self.tracked;
        if (tracked || !work.fault.is_ok())
            && let Some(step) = self.defer(cx, &work)
        {
            return step;
        }
        let Some(exchange) = cx.port.exchanges.open(cx.now_ns) else {
            return Step::Blocked;
        };
        if work.length_bytes <= room {
            return if tracked {
                self.send_whole_tracked(rx, cx, &work, exchange)
            } else {
                self.send_whole::<I, false>(rx, cx, &work, exchange)
            };
        }
        self.message = Some(TxMessage::new(&work, exchange, self.next_msg_id));
        self.next_msg_id = self.next_msg_id.wrapping_add(1);
        if tracked {
            self.send_fragment::<I, true>(rx, cx)
        } else {
            self.send_fragment::<I, false>(rx, cx)
        }
    }

    /// A separate function, so that untracked messages do not pay for tracked ones.
    #[inline(never)]
    fn send_whole_tracked<I: EngineIo>(
        &mut self,
        rx: &mut RxStream,
        cx: &mut Context<'_, I>,
        work: &SendWork,
        exchange: Exchange,
    ) -> Step {
        self.send_whole::<I, true>(rx, cx, work, exchange)
    }

    /// Sends a message that fits into one frame. Keeps no state of it: if the port has no room it
    /// is started again.
    #[inline(always)]
    fn send_whole<I: EngineIo, const TRACKED: bool>(
        &mut self,
        rx: &mut RxStream,
        cx: &mut Context<'_, I>,
        work: &SendWork,
        exchange: Exchange,
    ) -> Step {
        let (template, _) = self.template_and_room(work.operation);
        let mut message = TxMessage::new(work, exchange, self.next_msg_id);
        let mut per_frame = per_frame(&message, self.framing, work.length_bytes, true);
        let acknowledges = TRACKED && rx.add_acknowledgement(&mut per_frame);
        let frame = DataFrame {
            template,
            per_frame: &per_frame,
            last: true,
        };
        let transmit = cx.io.transmit_data(cx.vi, frame, work.length_bytes);
        match transmit {
            Transmit::Sent if acknowledges => {
                cx.count(Counter::TxAcknowledgementsCarried);
                rx.acknowledgement_sent(cx.now_ns);
            }
            Transmit::Sent => {}
            Transmit::NoRoom => {
                cx.port.exchanges.take_back(exchange);
                return Step::Blocked;
            }
            Transmit::Fault => {
                cx.port.exchanges.take_back(exchange);
                return self.sending_fault(cx);
            }
        }
        self.next_msg_id = self.next_msg_id.wrapping_add(1);
        cx.count(Counter::TxFrames);
        cx.count(Counter::TxMessages);
        message.next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
        self.sent::<I, TRACKED>(cx, &message);
        Step::Next
    }

    /// Sends the next frame of the open message.
    #[inline]
    fn send_fragment<I: EngineIo, const TRACKED: bool>(
        &mut self,
        rx: &mut RxStream,
        cx: &mut Context<'_, I>,
    ) -> Step {
        let Some(message) = self.message.as_mut() else {
            return Step::Next;
        };
        let (template, room) = match message.work.operation {
            Operation::Send => (&self.send, self.send_payload_bytes),
            Operation::Write { .. } | Operation::Read { .. } => {
                (&self.write, self.write_payload_bytes)
            }
        };
        let left = message.work.length_bytes - message.sent_bytes;
        let payload_bytes = left.min(room);
        let last = payload_bytes == left;
        let mut per_frame = per_frame(message, self.framing, payload_bytes, last);
        let acknowledges = TRACKED && rx.add_acknowledgement(&mut per_frame);
        let frame = DataFrame {
            template,
            per_frame: &per_frame,
            last,
        };
        let transmit = cx.io.transmit_data(cx.vi, frame, payload_bytes);
        match transmit {
            Transmit::Sent if acknowledges => {
                cx.count(Counter::TxAcknowledgementsCarried);
                rx.acknowledgement_sent(cx.now_ns);
            }
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.sending_fault(cx),
        }
        cx.count(Counter::TxFrames);
        message.next_seq_cnt = message.next_seq_cnt.wrapping_add(1);
        message.sent_bytes += payload_bytes;
        if last {
            let done = *message;
            self.message = None;
            cx.count(Counter::TxMessages);
            self.sent::<I, TRACKED>(cx, &done);
        }
        Step::Next
    }

    /// Completes or tracks a send or write whose last frame the port has accepted.
    #[inline(always)]
    fn sent<I: EngineIo, const TRACKED: bool>(
        &mut self,
        cx: &mut Context<'_, I>,
        message: &TxMessage,
    ) {
        if TRACKED {
            self.sent_tracked(cx, message);
            return;
        }
        let ox_id = message.exchange.ox_id;
        cx.port.exchanges.close(ox_id, message.next_seq_cnt);
        cx.io
            .complete_send(cx.vi, Status::OK, message.work.length_bytes);
    }

    /// Abandons the exchange of an unfinished message, and those of everything in flight.
    pub(crate) fn abandon<I>(&mut self, cx: &mut Context<'_, I>) {
        if let Some(message) = self.message.take() {
            message.give_up_exchange(cx.now_ns, &mut cx.port.exchanges);
        }
        self.abandon_in_flight(cx);
    }
}

impl TxMessage {
    /// Returns a message of which nothing is sent.
    #[inline(always)]
    fn new(work: &SendWork, exchange: Exchange, msg_id: u32) -> Self {
        Self {
            work: *work,
            exchange,
            msg_id,
            sent_bytes: 0,
            next_seq_cnt: exchange.seq_cnt,
        }
    }

    /// Abandons the exchange of an unfinished message, or closes it if no frame was sent.
    fn give_up_exchange(&self, now_ns: u64, exchanges: &mut ExchangePool) {
        let (ox_id, next_seq_cnt) = (self.exchange.ox_id, self.next_seq_cnt);
        if next_seq_cnt == self.exchange.seq_cnt {
            exchanges.close(ox_id, next_seq_cnt);
        } else {
            exchanges.abandon(now_ns, ox_id, next_seq_cnt);
        }
    }
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
