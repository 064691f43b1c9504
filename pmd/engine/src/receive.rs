//! Frames checked, matched to endpoints, and put together.
//!
//! The order of the checks is that of the wire profile 7.8: CRC, SOF/EOF and
//! addresses; header size against opcode; handle and peer; then the identifiers
//! of the message. A frame that fails one is dropped and counted and changes
//! nothing. Only what passed them all may break a connection.

mod damaged;
mod failure;
mod follows;
mod misses;
mod read_request;
mod response;

pub(crate) use self::failure::Failure;
use self::failure::{complete_error, reason_of_fault};
use self::follows::{Follows, follows};
pub(crate) use self::misses::PeerKey;
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcType};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use crate::counters::Counter;
use crate::endpoint::{Endpoint, Level, Phase, RxKind, RxMessage};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Claim, Completion, Host, Status};
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;

impl Engine {
    /// Takes one received frame, from destination address to the last byte before the FCS.
    pub fn handle_frame<H: Host>(&mut self, now_ns: u64, bytes: &[u8], host: &mut H) {
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
                Ok(iu) => self.handle_iu(now_ns, &frame, &iu, host),
                Err(_) => self.counters.count(Counter::DropBadIu),
            },
            FcType::Els => self.handle_els(now_ns, &frame, host),
            _ => self.counters.count(Counter::DropUnknownType),
        }
    }

    #[inline(always)]
    fn handle_iu<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        match iu.header.opcode {
            Opcode::SendRequest | Opcode::WriteRequest => {
                self.handle_message_frame(now_ns, frame, iu, host);
            }
            Opcode::ConnectRequest
            | Opcode::ConnectResponse1
            | Opcode::ConnectResponse2
            | Opcode::ConnectResponse3
            | Opcode::DisconnectRequest
            | Opcode::DisconnectResponse => self.handle_connection_iu(now_ns, frame, iu, host),
            Opcode::SendResponse | Opcode::WriteResponse => {
                self.handle_response(now_ns, frame, iu, host);
            }
            Opcode::ReadRequest => self.handle_read_request(now_ns, frame, iu, host),
            Opcode::ReadResponse => self.handle_read_response(now_ns, frame, iu, host),
        }
    }

    /// The endpoint that a frame's handle and S_ID name, if a message may reach it.
    #[inline(always)]
    fn message_endpoint(&mut self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = self.place_of(iu.header.handle);
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
    fn handle_message_frame<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Some(vi) = self.message_endpoint(frame, iu) else {
            self.tell_again(now_ns, frame, iu, host);
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
        self.heard(peer_index, now_ns);
        if recovers {
            self.take_recovered(now_ns, vi, frame, iu, host);
        } else if frame.sof == Sof::I3 {
            if self.start_message(now_ns, vi, frame, iu, host) {
                self.take_fragment(now_ns, vi, frame, iu, host);
            }
        } else if self.continues(vi, frame, iu, now_ns, host) {
            self.take_fragment(now_ns, vi, frame, iu, host);
        }
    }

    /// Opens the message of a SOFi3 frame; false if the frame is dropped.
    #[inline(always)]
    pub(crate) fn start_message<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) -> bool {
        if frame.fc.parameter != 0 {
            self.counters.count(Counter::DropBadIu);
            return false;
        }
        if !self.is_next_message(now_ns, vi, iu, host) {
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
            self.open_write(now_ns, vi, &iu.header, host)
        } else {
            self.open_receive(now_ns, vi, host)
        }
    }

    /// Is this the message that is expected? Ends the one before it if that lacks frames, and
    /// notices those that never came. False if the frame is dropped, or the VI broke.
    #[inline(always)]
    fn is_next_message<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        host: &mut H,
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
            self.client_connected(vi, host);
        }
        if incomplete && !self.fail_message(now_ns, vi, Failure::Incomplete, host) {
            return false;
        }
        if ahead > 0 && !self.messages_lost(now_ns, vi, ahead, iu, host) {
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

    /// Claims the receive descriptor of a send. False if the VI broke.
    #[inline(always)]
    pub(crate) fn open_receive<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> bool {
        match host.claim_receive(vi) {
            Claim::Ready { capacity_bytes } => {
                self.set_kind(vi, RxKind::Receive { capacity_bytes });
                true
            }
            Claim::Empty => {
                self.counters.count(Counter::DropNoDescriptor);
                host.report(vi, AsyncError::ReceiveQueueEmpty);
                self.break_reliable(now_ns, vi, MessageReason::NoDescriptor, host)
            }
            Claim::Fault(status) => {
                complete_error(vi, status, false, host);
                self.break_reliable(now_ns, vi, reason_of_fault(status), host)
            }
        }
    }

    /// Checks the target of an RDMA write, whole, before a byte is placed, and
    /// claims a receive descriptor if it carries immediate data.
    pub(crate) fn open_write<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        host: &mut H,
    ) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let params = ep.params;
        let limited = ep.rx.misses.is_watched() && self.is_limited(now_ns, vi);
        if limited && params.level == Level::UnreliableDelivery {
            return self.drop_limited(now_ns, vi, host);
        }
        let immediate = header.flags & message_request::IMMEDIATE != 0;
        let fits = params.rdma_write && header.tot_len <= params.max_transfer_bytes;
        let allowed = fits && !limited && self.check_write(now_ns, vi, header, host);
        let refused = if params.rdma_write {
            MessageReason::WriteProtection
        } else {
            MessageReason::WriteNotEnabled
        };
        if immediate {
            match host.claim_receive(vi) {
                Claim::Ready { .. } if allowed => {}
                Claim::Ready { .. } => {
                    self.counters.count(Counter::DropRdmaProtection);
                    complete_error(vi, Status::PROTECTION, true, host);
                    return self.break_refused(now_ns, vi, refused, host);
                }
                Claim::Empty => {
                    self.counters.count(Counter::DropNoDescriptor);
                    host.report(vi, AsyncError::ReceiveQueueEmpty);
                    return self.break_reliable(now_ns, vi, MessageReason::NoDescriptor, host);
                }
                Claim::Fault(status) => {
                    complete_error(vi, status, true, host);
                    return self.break_reliable(now_ns, vi, reason_of_fault(status), host);
                }
            }
        } else if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            host.report(vi, AsyncError::RdmaWriteProtection);
            return self.break_refused(now_ns, vi, refused, host);
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

    /// Does a SOFn3 frame continue the open message? [FCVI P-10, rule 5]
    fn continues<H: Host>(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        now_ns: u64,
        host: &mut H,
    ) -> bool {
        let Some(ep) = self.endpoint_mut(vi) else {
            return false;
        };
        let Some(message) = ep.rx.message else {
            self.counters.count(Counter::DropNoContext);
            self.begin_lost(now_ns, vi, iu, host);
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
        match follows(fc, message.next_seq_cnt, message.placed_bytes) {
            Follows::Duplicate => {
                self.counters.count(Counter::DropDuplicate);
                return false;
            }
            Follows::Next => return true,
            Follows::Gap => {}
        }
        // In range and ours, but not the next one: frames between are gone.
        self.fail_message(now_ns, vi, Failure::Incomplete, host);
        false
    }

    /// Places the bytes of an accepted frame and, with the last one, completes the message.
    #[inline(always)]
    pub(crate) fn take_fragment<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
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
                    Err(Failure::TooLong)
                } else if host.place_receive(vi, 0, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(Failure::Protection)
                }
            }
            RxKind::Write {
                target,
                total_bytes,
                ..
            } => {
                if end > u64::from(total_bytes) || (last && end != u64::from(total_bytes)) {
                    Err(Failure::Incomplete)
                } else if host.place_rdma_write(vi, target, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(Failure::Protection)
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
            self.fail_message(now_ns, vi, failure, host);
            return;
        }
        message.placed_bytes = end as u32;
        message.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
        let done = *message;
        self.counters.count(Counter::RxFrames);
        if last {
            self.finish_message(now_ns, vi, &done, host);
        } else {
            self.watch_message(now_ns, vi);
        }
    }

    #[inline(always)]
    pub(crate) fn finish_message<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        done: &RxMessage,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.rx.message = None;
        let mut reception = ep.params.level == Level::ReliableReception;
        if let Some(recovery) = ep.rx.recovery.as_mut() {
            recovery.finished(done.msg_id);
            reception = false;
        }
        self.deliver(vi, done, host);
        if reception {
            self.owe_response(now_ns, vi, done, host);
        }
    }

    /// All bytes of a message are placed: its receive descriptor completes, if it took one.
    #[inline(always)]
    pub(crate) fn deliver<H: Host>(&mut self, vi: ViIndex, done: &RxMessage, host: &mut H) {
        self.counters.count(Counter::RxMessages);
        let (claimed, remote_write) = match done.kind {
            RxKind::Receive { .. } => (true, false),
            RxKind::Write { claimed, .. } => (claimed, true),
            RxKind::Discard => (false, false),
        };
        if claimed {
            host.complete_receive(
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

    /// An incomplete message must get its next frame within E_D_TOV; with recovery it has
    /// FCVI_ULP_TIMEOUT for that.
    pub(crate) fn watch_message(&mut self, now_ns: u64, vi: ViIndex) {
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

    pub(crate) fn receive_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
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
            self.fail_message(now_ns, vi, Failure::Incomplete, host);
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

/// Do the flags of a request say the level of the connection [FCVI P-6]?
#[inline]
fn fits_level(flags: u8, level: Level) -> bool {
    const LEVEL: u8 = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
    flags & LEVEL == level.request_flags()
}
