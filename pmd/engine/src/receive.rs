//! Received frames: checked, matched to endpoints, and reassembled.
//!
//! The order of the checks is that of the wire profile 7.8: CRC, SOF/EOF and addresses; header size
//! against opcode; handle and peer; then the identifiers of the message. A frame that fails one is
//! dropped and counted and changes nothing. Only a frame that passes all of them can break a
//! connection.

mod damaged;
mod failure;
mod frame_order;
mod misses;
mod read_request;
mod response;

pub(crate) use self::failure::ReceiveFailure;
use self::failure::{complete_error, reason_of_fault};
use self::frame_order::{FrameOrder, frame_order};
pub(crate) use self::misses::PeerKey;
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcType};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use crate::counters::Counter;
use crate::endpoint::{Endpoint, Phase, RxKind, RxMessage, request_flags};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{AsyncError, Claim, Completion, EngineIo, Status};
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;

impl Engine {
    /// Handles one received frame, from destination address to the last byte before the FCS.
    pub fn handle_frame<I: EngineIo>(&mut self, now_ns: u64, bytes: &[u8], io: &mut I) {
        let frame = match FrameView::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                if error.reason == fcvi_frame::error::Reason::BadCrc {
                    self.counters.count(Counter::DropBadCrc);
                    self.note_damaged(bytes);
                } else {
                    self.counters.count(Counter::DropMalformed);
                }
                return;
            }
        };
        let ours = frame.fc.d_id == self.config.n_port_id
            && frame.ethernet.dst == self.mac
            && frame.ethernet.src == MacAddress::vn2vn(frame.fc.s_id);
        if !(ours || skips(Check::Addresses)) {
            self.counters.count(Counter::DropBadAddress);
            return;
        }
        match frame.fc.fc_type {
            FcType::Vi => match frame.iu() {
                Ok(iu) => self.handle_iu(now_ns, &frame, &iu, io),
                Err(_) => self.counters.count(Counter::DropBadIu),
            },
            FcType::Els => self.handle_els(now_ns, &frame, io),
            _ => self.counters.count(Counter::DropUnknownType),
        }
    }

    #[inline(always)]
    fn handle_iu<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        match iu.header.opcode {
            Opcode::SendRequest | Opcode::WriteRequest => {
                self.handle_message_frame(now_ns, frame, iu, io);
            }
            Opcode::ConnectRequest
            | Opcode::ConnectResponse1
            | Opcode::ConnectResponse2
            | Opcode::ConnectResponse3
            | Opcode::DisconnectRequest
            | Opcode::DisconnectResponse => self.handle_connection_iu(now_ns, frame, iu, io),
            Opcode::SendResponse | Opcode::WriteResponse => {
                self.handle_response(now_ns, frame, iu, io);
            }
            Opcode::ReadRequest => self.handle_read_request(now_ns, frame, iu, io),
            Opcode::ReadResponse => self.handle_read_response(now_ns, frame, iu, io),
        }
    }

    /// Returns the endpoint that a frame's handle and S_ID name, if it can receive messages.
    #[inline(always)]
    fn message_endpoint(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = self.slot_of(iu.header.handle);
        let ep = self.endpoints.get(vi.slot()).and_then(Option::as_ref);
        match ep {
            Some(ep)
                if (ep.handle == iu.header.handle || skips(Check::Handle))
                    && (ep.peer == frame.fc.s_id || skips(Check::Peer))
                    && matches!(ep.phase, Phase::Connected | Phase::AwaitResponse3(_)) =>
            {
                Some(vi)
            }
            _ => {
                let names = |ep: &Endpoint| ep.handle != 0 && ep.handle == iu.header.handle;
                let wrong_peer = ep.is_some_and(|ep| names(ep) && ep.peer != frame.fc.s_id);
                self.counters.count(if wrong_peer {
                    Counter::DropWrongPeer
                } else {
                    Counter::DropUnknownHandle
                });
                None
            }
        }
    }

    #[inline(always)]
    fn handle_message_frame<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(vi) = self.message_endpoint(frame, iu) else {
            self.repeat_disconnect(now_ns, frame, iu, io);
            return;
        };
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if !fits_level(iu.header.flags, ep.params.level) {
            self.counters.count(Counter::DropWrongLevel);
            return;
        }
        let fc = &frame.fc;
        if !fc.f_ctl.contains(FCtl::RELATIVE_OFFSET)
            || fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
            || !fc.f_ctl.contains(FCtl::FIRST_SEQUENCE)
        {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let (peer_index, recovers) = (ep.peer_index, ep.rx.recovery.is_some());
        self.note_received(peer_index, now_ns);
        if recovers {
            self.take_recovered(now_ns, vi, frame, iu, io);
        } else if frame.sof == Sof::I3 {
            if self.start_message(now_ns, vi, frame, iu, io) {
                self.take_fragment(now_ns, vi, frame, iu, io);
            }
        } else if self.continues(vi, frame, iu, now_ns, io) {
            self.take_fragment(now_ns, vi, frame, iu, io);
        }
    }

    /// Opens the message of a SOFi3 frame. Returns false if the frame is dropped.
    #[inline(always)]
    pub(crate) fn start_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> bool {
        if frame.fc.parameter != 0 {
            self.counters.count(Counter::DropBadIu);
            return false;
        }
        if !self.is_next_message(now_ns, vi, iu, io) {
            return false;
        }
        let Some(ep) = self.endpoint_mut(vi) else {
            return false;
        };
        ep.rx.message = Some(RxMessage {
            msg_id: iu.header.msg_id,
            ox_id: frame.fc.ox_id,
            seq_id: frame.fc.seq_id,
            next_seq_cnt: frame.fc.seq_cnt,
            placed_bytes: 0,
            immediate: (iu.header.flags & message_request::IMMEDIATE != 0)
                .then_some(iu.header.parameter),
            kind: RxKind::Discard,
            opcode: iu.header.opcode,
        });
        if iu.header.opcode == Opcode::WriteRequest {
            self.open_write(now_ns, vi, &iu.header, io)
        } else {
            self.open_receive(now_ns, vi, io)
        }
    }

    /// Checks whether this is the expected message. Ends the one before it if that is incomplete,
    /// and handles those that never arrived. Returns false if the frame is dropped, or the VI
    /// broke.
    #[inline(always)]
    fn is_next_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> bool {
        let window = self.config.message_window;
        let Some(ep) = self.endpoint_mut(vi) else {
            return false;
        };
        let ahead = iu.header.msg_id.wrapping_sub(ep.rx.expected);
        if ahead > i32::MAX as u32 {
            if !skips(Check::OlderMessage) {
                self.counters.count(Counter::DropStaleMessage);
                return false;
            }
        } else if ahead > window && !skips(Check::MessageWindow) {
            self.counters.count(Counter::DropOutOfWindow);
            return false;
        }
        let incomplete = ep.rx.message.is_some();
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(vi, io);
        }
        if incomplete && !self.fail_message(now_ns, vi, ReceiveFailure::Incomplete, io) {
            return false;
        }
        if ahead > 0 && !self.messages_lost(now_ns, vi, ahead, iu, io) {
            return false;
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.rx.expected = iu.header.msg_id.wrapping_add(1);
        }
        true
    }

    fn set_kind(&mut self, vi: ViIndex, kind: RxKind) {
        if let Some(message) = self.endpoint_mut(vi).and_then(|ep| ep.rx.message.as_mut()) {
            message.kind = kind;
        }
    }

    /// Claims the receive descriptor of a send. Returns false if the VI broke.
    #[inline(always)]
    pub(crate) fn open_receive<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> bool {
        match io.claim_receive(vi) {
            Claim::Ready { capacity_bytes } => {
                self.set_kind(vi, RxKind::Receive { capacity_bytes });
                true
            }
            Claim::Empty => {
                self.counters.count(Counter::DropNoDescriptor);
                io.report(vi, AsyncError::ReceiveQueueEmpty);
                self.break_reliable(now_ns, vi, MessageReason::NoDescriptor, io)
            }
            Claim::Fault(status) => {
                complete_error(vi, status, false, io);
                self.break_reliable(now_ns, vi, reason_of_fault(status), io)
            }
        }
    }

    /// Checks the whole target of an RDMA write before a byte is placed, and claims a receive
    /// descriptor if it carries immediate data. Returns false if the VI broke or the write is
    /// dropped.
    pub(crate) fn open_write<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        io: &mut I,
    ) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let params = ep.params;
        let limited = ep.rx.misses.is_watched() && self.is_limited(now_ns, vi);
        if limited && !params.level.is_reliable() {
            return self.drop_limited(now_ns, vi, io);
        }
        let immediate = header.flags & message_request::IMMEDIATE != 0;
        let fits = params.rdma_write && header.tot_len <= params.max_transfer_bytes;
        let allowed = fits && !limited && self.check_write(now_ns, vi, header, io);
        let refused = if params.rdma_write {
            MessageReason::WriteProtection
        } else {
            MessageReason::WriteNotEnabled
        };
        if immediate {
            match io.claim_receive(vi) {
                Claim::Ready { .. } if allowed => {}
                Claim::Ready { .. } => {
                    self.counters.count(Counter::DropRdmaProtection);
                    complete_error(vi, Status::PROTECTION, true, io);
                    return self.break_refused(now_ns, vi, refused, io);
                }
                Claim::Empty => {
                    self.counters.count(Counter::DropNoDescriptor);
                    io.report(vi, AsyncError::ReceiveQueueEmpty);
                    return self.break_reliable(now_ns, vi, MessageReason::NoDescriptor, io);
                }
                Claim::Fault(status) => {
                    complete_error(vi, status, true, io);
                    return self.break_reliable(now_ns, vi, reason_of_fault(status), io);
                }
            }
        } else if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            io.report(vi, AsyncError::RdmaWriteProtection);
            return self.break_refused(now_ns, vi, refused, io);
        }
        self.set_kind(
            vi,
            RxKind::Write {
                target: (header.rmt_va, header.rmt_va_handle),
                total_bytes: header.tot_len,
                claimed: immediate,
            },
        );
        true
    }

    /// Reports whether a SOFn3 frame continues the open message [FCVI P-10, rule 5].
    fn continues<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        now_ns: u64,
        io: &mut I,
    ) -> bool {
        let Some(ep) = self.endpoint_mut(vi) else {
            return false;
        };
        let Some(message) = ep.rx.message else {
            self.counters.count(Counter::DropNoContext);
            self.first_frame_lost(now_ns, vi, iu, io);
            return false;
        };
        let fc = &frame.fc;
        if message.msg_id != iu.header.msg_id && !skips(Check::OpenMessage) {
            self.counters.count(Counter::DropOtherMessage);
            return false;
        }
        let same_exchange = (message.ox_id, message.seq_id) == (fc.ox_id, fc.seq_id);
        if !(same_exchange || skips(Check::OpenExchange)) {
            self.counters.count(Counter::DropSynonym);
            return false;
        }
        if message.kind == RxKind::Discard {
            return true;
        }
        match frame_order(fc, message.next_seq_cnt, message.placed_bytes) {
            FrameOrder::Duplicate => {
                self.counters.count(Counter::DropDuplicate);
                return false;
            }
            FrameOrder::Next => return true,
            FrameOrder::Gap => {}
        }
        // In range and of this message, but not the next one: frames in between are missing.
        self.fail_message(now_ns, vi, ReceiveFailure::Incomplete, io);
        false
    }

    /// Places the bytes of an accepted frame and completes the message with the last one.
    #[inline(always)]
    pub(crate) fn take_fragment<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let max_transfer_bytes = ep.params.max_transfer_bytes;
        let Some(message) = ep.rx.message.as_mut() else {
            return;
        };
        let offset = message.placed_bytes;
        let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
        // Both at most 2^32 - 1 and 2112: the sum is checked, never wrapped.
        let end = u64::from(offset) + iu.payload.len() as u64;
        let placed = match message.kind {
            RxKind::Receive { capacity_bytes } => {
                if end > u64::from(capacity_bytes.min(max_transfer_bytes)) {
                    Err(ReceiveFailure::TooLong)
                } else if io.place_receive(vi, 0, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(ReceiveFailure::Protection)
                }
            }
            RxKind::Write {
                target,
                total_bytes,
                ..
            } => {
                if end > u64::from(total_bytes) || (last && end != u64::from(total_bytes)) {
                    Err(ReceiveFailure::Incomplete)
                } else if io.place_rdma_write(vi, target, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(ReceiveFailure::Protection)
                }
            }
            RxKind::Discard => {
                message.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
                if last {
                    ep.rx.message = None;
                }
                self.counters.count(Counter::DropDiscarded);
                return;
            }
        };
        if let Err(failure) = placed {
            self.fail_message(now_ns, vi, failure, io);
            return;
        }
        message.placed_bytes = end as u32;
        message.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
        let done = *message;
        self.counters.count(Counter::RxFrames);
        if last {
            self.finish_message(now_ns, vi, &done, io);
        } else {
            self.start_receive_timer(now_ns, vi);
        }
    }

    #[inline(always)]
    pub(crate) fn finish_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        done: &RxMessage,
        io: &mut I,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.rx.message = None;
        let mut reception = ep.params.level == ReliabilityLevel::ReliableReception;
        if let Some(recovery) = ep.rx.recovery.as_mut() {
            recovery.finished(done.msg_id);
            reception = false;
        }
        self.deliver(vi, done, io);
        if reception {
            self.respond_placed(now_ns, vi, done, io);
        }
    }

    /// Delivers a completely placed message: completes its receive descriptor, if it took one.
    #[inline(always)]
    pub(crate) fn deliver<I: EngineIo>(&mut self, vi: ViIndex, done: &RxMessage, io: &mut I) {
        self.counters.count(Counter::RxMessages);
        let (claimed, remote_write) = match done.kind {
            RxKind::Receive { .. } => (true, false),
            RxKind::Write { claimed, .. } => (claimed, true),
            RxKind::Discard => (false, false),
        };
        if claimed {
            io.complete_receive(
                vi,
                Completion {
                    status: Status::OK,
                    length_bytes: done.placed_bytes,
                    immediate: done.immediate,
                    remote_write,
                },
            );
        }
    }

    /// Starts the timeout of an incomplete message: its next frame must arrive within E_D_TOV, with
    /// recovery within FCVI_ULP_TIMEOUT.
    pub(crate) fn start_receive_timer(&mut self, now_ns: u64, vi: ViIndex) {
        let (strict_ns, recovering_ns) = (self.config.e_d_tov_ns, self.config.ulp_timeout_ns);
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let deadline = now_ns
            + match ep.rx.recovery {
                None => strict_ns,
                Some(_) => recovering_ns,
            };
        ep.rx.deadline_ns = deadline;
        if !ep.rx.timer_set {
            ep.rx.timer_set = true;
            self.timers.set(deadline, TimerKey::Receive(vi.0));
        }
    }

    pub(crate) fn receive_timeout<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.rx.timer_set = false;
        if ep.rx.message.is_none() || !matches!(ep.phase, Phase::Connected) {
            return;
        }
        let deadline = ep.rx.deadline_ns;
        if deadline > now_ns {
            ep.rx.timer_set = true;
            self.timers.set(deadline, TimerKey::Receive(vi.0));
        } else {
            self.fail_message(now_ns, vi, ReceiveFailure::Incomplete, io);
        }
    }

    pub(crate) fn endpoint(&self, vi: ViIndex) -> Option<&Endpoint> {
        self.endpoints.get(vi.slot()).and_then(Option::as_ref)
    }

    #[inline]
    pub(crate) fn endpoint_mut(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut)
    }
}

/// Reports whether the flags of a request match the level of the connection [FCVI P-6].
#[inline]
fn fits_level(flags: u8, level: ReliabilityLevel) -> bool {
    const LEVEL: u8 = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
    flags & LEVEL == request_flags(level)
}
