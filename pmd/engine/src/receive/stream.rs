//! The receive stream of a connection: messages opened, placed and delivered.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, Claim, MessageDestination, ReliabilityLevel, Status, ViParams};

use super::failure::{ReceiveFailure, complete_error, reason_of_fault};

use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::n_port::PeerKey;
use crate::reassembly::{Accepted, Reassembly, RxMessage};
use crate::recovery::AckState;
use crate::timer::TimerKey;
use crate::transmit::TxStream;
use vi_types::misses::ConnectionMisses;

/// The memory of the peer from which the open message is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSource {
    /// Address and memory handle.
    pub(super) source: (u64, u32),
    pub(super) length_bytes: u32,
}

/// The receive stream of a connection.
#[derive(Debug)]
pub(crate) struct RxStream {
    /// Attributes of the VI on this connection.
    pub(crate) params: ViParams,
    pub(crate) reassembly: Reassembly,
    /// Refused RDMA accesses of the peer.
    pub(crate) misses: ConnectionMisses,
    /// Key of the peer's misses; `None` if it is a VI of this engine and of the same user.
    pub(crate) peer_key: Option<PeerKey>,
    /// Messages are answered by responses: Reliable Reception, in frames.
    pub(crate) responds: bool,
    /// Present if message recovery is used.
    pub(crate) ack: Option<Box<AckState>>,
    /// Present while the open message is copied from the peer's memory.
    pub(crate) peer_source: Option<PeerSource>,
    /// MSG_ID of the last RDMA write without immediate data that had a frame with a bad CRC.
    pub(crate) damaged_write: Option<u32>,
    pub(crate) deadline_ns: u64,
    pub(crate) timer_set: bool,
}

impl RxStream {
    /// Creates the stream of a VI of these attributes.
    pub(crate) fn new(params: ViParams) -> Self {
        Self {
            params,
            reassembly: Reassembly::default(),
            misses: ConnectionMisses::default(),
            peer_key: None,
            responds: params.level == ReliabilityLevel::ReliableReception,
            ack: None,
            peer_source: None,
            damaged_write: None,
            deadline_ns: 0,
            timer_set: false,
        }
    }

    /// Drops everything incomplete: the connection ended.
    pub(crate) fn clear(&mut self) {
        self.reassembly.clear();
        self.ack = None;
        self.peer_source = None;
    }

    /// Ends responses, acknowledgements and recovery: messages are moved without frames.
    pub(crate) fn stop_responding(&mut self) {
        self.responds = false;
        self.reassembly.ahead = None;
        self.ack = None;
    }

    /// Handles an accepted frame of a send or write, on a connection without recovery.
    #[inline(always)]
    pub(super) fn place<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        accepted: Accepted,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        let first = frame.sof == Sof::I3;
        if accepted == Accepted::Gap {
            self.skip_gap(tx, cx, first, iu)?;
        }
        if first {
            self.start_message(tx, cx, frame, iu)?;
        } else if accepted == Accepted::Gap {
            return Ok(());
        }
        self.take_fragment(tx, cx, frame, iu)
    }

    /// Fails what is missing before an accepted frame.
    #[cold]
    pub(super) fn skip_gap<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        first: bool,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if self.reassembly.message.is_some() {
            self.fail_message(tx, cx, ReceiveFailure::Incomplete)?;
        } else if !first {
            return self.first_frame_lost(tx, cx, iu);
        }
        let lost = self.reassembly.lost_before(iu.header.msg_id);
        if first && lost > 0 {
            self.messages_lost(tx, cx, lost, iu)?;
        }
        Ok(())
    }

    /// Opens the message of a SOFi3 frame.
    #[inline(always)]
    pub(crate) fn start_message<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        let message = RxMessage::of(frame, iu, frame.fc.seq_cnt, MessageDestination::Discard);
        self.reassembly.open(message);
        self.claim_destination(tx, cx, &iu.header)
    }

    /// Claims the destination of the open message.
    #[inline(always)]
    pub(crate) fn claim_destination<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        header: &DeviceHeader,
    ) -> Result<(), Break> {
        let kind = if header.opcode == Opcode::WriteRequest {
            self.open_write(tx, cx, header)?
        } else {
            self.open_receive(tx, cx)?
        };
        self.reassembly.set_kind(kind);
        Ok(())
    }

    /// Claims the receive descriptor of a send.
    #[inline(always)]
    fn open_receive<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<MessageDestination, Break> {
        match cx.io.claim_receive(cx.vi) {
            Claim::Ready { capacity_bytes } => Ok(MessageDestination::Receive { capacity_bytes }),
            Claim::Empty => self.no_descriptor(tx, cx),
            Claim::Fault(status) => {
                complete_error(cx, status, false);
                self.break_reliable(tx, cx, reason_of_fault(status))?;
                Ok(MessageDestination::Discard)
            }
        }
    }

    fn no_descriptor<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<MessageDestination, Break> {
        cx.count(Counter::DropNoDescriptor);
        cx.io.report(cx.vi, AsyncError::ReceiveQueueEmpty);
        self.break_reliable(tx, cx, MessageReason::NoDescriptor)?;
        Ok(MessageDestination::Discard)
    }

    /// Checks the whole target of an RDMA write before a byte is placed, and claims a receive
    /// descriptor if it carries immediate data.
    fn open_write<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        header: &DeviceHeader,
    ) -> Result<MessageDestination, Break> {
        let params = self.params;
        let limited = self.misses.is_watched() && self.is_limited(cx);
        if limited && !params.level.is_reliable() {
            self.drop_limited(tx, cx)?;
            return Ok(MessageDestination::Discard);
        }
        let immediate = header.flags & message_request::IMMEDIATE != 0;
        let fits = params.rdma_write && header.tot_len <= params.max_transfer_bytes;
        let allowed = fits && !limited && self.check_write(cx, header);
        let refused = if params.rdma_write {
            MessageReason::WriteProtection
        } else {
            MessageReason::WriteNotEnabled
        };
        if immediate {
            match cx.io.claim_receive(cx.vi) {
                Claim::Ready { .. } if allowed => {}
                Claim::Ready { .. } => {
                    cx.count(Counter::DropRdmaProtection);
                    complete_error(cx, Status::PROTECTION, true);
                    self.break_refused(tx, cx, refused)?;
                    return Ok(MessageDestination::Discard);
                }
                Claim::Empty => return self.no_descriptor(tx, cx),
                Claim::Fault(status) => {
                    complete_error(cx, status, true);
                    self.break_reliable(tx, cx, reason_of_fault(status))?;
                    return Ok(MessageDestination::Discard);
                }
            }
        } else if !allowed {
            cx.count(Counter::DropRdmaProtection);
            cx.io.report(cx.vi, AsyncError::RdmaWriteProtection);
            self.break_refused(tx, cx, refused)?;
            return Ok(MessageDestination::Discard);
        }
        Ok(MessageDestination::Write {
            target: (header.rmt_va, header.rmt_va_handle),
            total_bytes: header.tot_len,
            claimed: immediate,
        })
    }

    /// Places the bytes of a frame in order and completes the message with the last one.
    #[inline(always)]
    pub(crate) fn take_fragment<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        let Some(message) = self.reassembly.message.as_mut() else {
            return Ok(());
        };
        let offset = message.placed_bytes;
        let last = frame.fc.f_ctl.contains(FCtl::END_SEQUENCE);
        // Both at most 2^32 - 1 and 2112: the sum is checked, never wrapped.
        let end = u64::from(offset) + iu.payload.len() as u64;
        let placed = match message.kind {
            MessageDestination::Receive { capacity_bytes } => {
                if end > u64::from(capacity_bytes.min(self.params.max_transfer_bytes)) {
                    Err(ReceiveFailure::TooLong)
                } else if cx.io.place_receive(cx.vi, 0, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(ReceiveFailure::Protection)
                }
            }
            MessageDestination::Write {
                target,
                total_bytes,
                ..
            } => {
                if end > u64::from(total_bytes) || (last && end != u64::from(total_bytes)) {
                    Err(ReceiveFailure::Incomplete)
                } else if cx.io.place_rdma_write(cx.vi, target, offset, iu.payload) {
                    Ok(())
                } else {
                    Err(ReceiveFailure::Protection)
                }
            }
            MessageDestination::Discard => {
                message.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
                if last {
                    self.reassembly.message = None;
                }
                cx.count(Counter::DropDiscarded);
                return Ok(());
            }
        };
        if let Err(failure) = placed {
            return self.fail_message(tx, cx, failure);
        }
        message.placed_bytes = end as u32;
        message.next_seq_cnt = frame.fc.seq_cnt.wrapping_add(1);
        let done = *message;
        cx.count(Counter::RxFrames);
        if last {
            self.finish_message(tx, cx, &done)
        } else {
            self.start_receive_timer(cx);
            Ok(())
        }
    }

    #[inline(always)]
    pub(crate) fn finish_message<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        done: &RxMessage,
    ) -> Result<(), Break> {
        self.reassembly.finish(done.msg_id);
        deliver(cx, done);
        match &mut self.ack {
            Some(ack) => ack.messages += 1,
            None if self.responds => return tx.responses.respond_placed(cx, done),
            None => {}
        }
        Ok(())
    }

    /// Starts the timeout of an incomplete message: its next frame must arrive within E_D_TOV, with
    /// recovery within FCVI_ULP_TIMEOUT.
    pub(crate) fn start_receive_timer<I>(&mut self, cx: &mut Context<'_, I>) {
        let config = &cx.port.config;
        self.deadline_ns = cx.now_ns
            + match self.ack {
                None => config.e_d_tov_ns,
                Some(_) => config.ulp_timeout_ns,
            };
        if !core::mem::replace(&mut self.timer_set, true) {
            let timer = TimerKey::Receive(cx.vi.0);
            cx.port.timers.set(self.deadline_ns, timer);
        }
    }

    /// Handles the timer of an incomplete message.
    pub(crate) fn receive_timeout<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<(), Break> {
        // A message that is copied waits for no frame.
        if self.reassembly.message.is_none() || self.peer_source.is_some() {
            return Ok(());
        }
        if self.deadline_ns <= cx.now_ns {
            return self.fail_message(tx, cx, ReceiveFailure::Incomplete);
        }
        self.timer_set = true;
        let timer = TimerKey::Receive(cx.vi.0);
        cx.port.timers.set(self.deadline_ns, timer);
        Ok(())
    }
}

/// Delivers a completely placed message: completes its receive descriptor, if it took one.
#[inline(always)]
pub(crate) fn deliver<I: EngineIo>(cx: &mut Context<'_, I>, done: &RxMessage) {
    cx.count(Counter::RxMessages);
    if let Some(completion) = done.kind.completion(done.placed_bytes, done.immediate) {
        cx.io.complete_receive(cx.vi, completion);
    }
}
