//! Responses to the peer: those of Reliable Reception, and the data of RDMA reads.
//!
//! A response is sent when its message is placed. If the port has no room then, it is queued, as
//! all reads are: [`Engine::pump`] sends responses first, in the order of their messages, and
//! alternates between frames of the oldest read and frames of own messages. A read returns the
//! memory as it is when its frames are gathered; the peer's right to read it is checked for each
//! frame.
//!
//! All of it is dropped when the connection ends.

use std::collections::VecDeque;

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_response;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, PerFrame};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use crate::config::{EngineConfig, MAX_UNANSWERED};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Connection, RxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{AsyncError, EngineIo, Transmit};
use crate::transmit::{Step, message_template};

/// A response to a message, or the end of a failed read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) opcode: Opcode,
    pub(crate) msg_id: u32,
    /// Its sequence on the exchange of the request.
    pub(crate) at: Sequence,
}

impl Response {
    /// Returns the response to this message, of which no further frame is expected.
    pub(crate) fn to(message: &RxMessage) -> Self {
        Self {
            opcode: match message.opcode {
                Opcode::WriteRequest => Opcode::WriteResponse,
                _ => Opcode::SendResponse,
            },
            msg_id: message.msg_id,
            at: Sequence {
                ox_id: message.ox_id,
                rx_id: message.ox_id,
                seq_id: message.seq_id.wrapping_add(1),
                seq_cnt: message.next_seq_cnt,
            },
        }
    }
}

/// An accepted RDMA read of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadJob {
    /// Sequence of the first frame of the response.
    pub(crate) at: Sequence,
    pub(crate) msg_id: u32,
    /// Address and memory handle.
    pub(crate) source: (u64, u32),
    pub(crate) length_bytes: u32,
    sent_bytes: u32,
    next_seq_cnt: u16,
    /// The read was answered before: its initiator may have all data, and the memory may be
    /// deregistered.
    is_repeat: bool,
}

impl ReadJob {
    pub(crate) fn new(at: Sequence, request: &DeviceHeader) -> Self {
        Self {
            at,
            msg_id: request.msg_id,
            source: (request.rmt_va, request.rmt_va_handle),
            length_bytes: request.tot_len,
            sent_bytes: 0,
            next_seq_cnt: at.seq_cnt,
            is_repeat: false,
        }
    }

    fn has_begun(&self) -> bool {
        self.next_seq_cnt != self.at.seq_cnt || self.sent_bytes > 0
    }
}

/// What one VI still has to send to its peer. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct Responses {
    queued: VecDeque<Response>,
    response_limit: usize,
    reads: VecDeque<ReadJob>,
    read_limit: usize,
    /// Header of the oldest read's frames, once its first frame is being sent.
    template: Option<HeaderTemplate>,
    /// The last frame that was sent was one of our own messages.
    read_is_next: bool,
    /// Message recovery has something to send.
    pub(crate) recovering: bool,
    /// With recovery: the most recently accepted reads, as many as a peer can have in flight.
    accepted: VecDeque<ReadJob>,
}

impl Responses {
    pub(crate) fn new(level: ReliabilityLevel, config: &EngineConfig) -> Self {
        let reads = usize::from(config.reads_accepted());
        let (responses, reads) = match level {
            ReliabilityLevel::UnreliableDelivery => (0, 0),
            ReliabilityLevel::ReliableDelivery => (0, reads),
            ReliabilityLevel::ReliableReception => (MAX_UNANSWERED as usize, reads),
        };
        Self {
            queued: VecDeque::with_capacity(responses),
            response_limit: responses,
            reads: VecDeque::with_capacity(reads),
            read_limit: reads,
            template: None,
            read_is_next: true,
            recovering: false,
            accepted: VecDeque::with_capacity(match config.recovery {
                Some(_) if reads > 0 => MAX_UNANSWERED as usize,
                Some(_) | None => 0,
            }),
        }
    }

    /// Reports whether the next frame is a response: always for queued responses and recovery,
    /// alternately for reads.
    pub(crate) fn are_due(&self) -> bool {
        self.read_is_next || self.recovering || !self.queued.is_empty()
    }

    /// Notes whether the frame that was sent was a response or one of our own messages.
    pub(crate) fn sent(&mut self, response: bool) {
        self.read_is_next = !response;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.reads.is_empty() && !self.recovering
    }

    /// Queues a read. Returns false if the peer exceeds the advertised number of reads.
    pub(crate) fn add_read(&mut self, job: ReadJob) -> bool {
        let room = self.reads.len() < self.read_limit;
        if room {
            self.reads.push_back(job);
        }
        room
    }

    /// Records an accepted read, which the peer may request again.
    pub(crate) fn record_read(&mut self, job: ReadJob) {
        if self.accepted.len() >= MAX_UNANSWERED as usize {
            self.accepted.pop_front();
        }
        self.accepted.push_back(job);
    }

    /// Returns the accepted read that this request repeats, if it is still recorded.
    pub(crate) fn accepted(&self, request: &DeviceHeader, ox_id: u16) -> Option<ReadJob> {
        let same = |job: &&ReadJob| {
            job.msg_id == request.msg_id
                && job.source == (request.rmt_va, request.rmt_va_handle)
                && (job.length_bytes, job.at.ox_id) == (request.tot_len, ox_id)
        };
        self.accepted.iter().find(same).copied()
    }

    /// Restarts an accepted read at byte `from_bytes`, `room` bytes per frame, unless its data has
    /// not reached that byte yet. Returns false if the read queue is full.
    pub(crate) fn restart_read(&mut self, job: ReadJob, from_bytes: u32, room: u32) -> bool {
        let restarted = ReadJob {
            sent_bytes: from_bytes,
            next_seq_cnt: job.at.seq_cnt.wrapping_add((from_bytes / room) as u16),
            is_repeat: true,
            ..job
        };
        match self.reads.iter_mut().find(|r| r.msg_id == job.msg_id) {
            Some(read) if read.sent_bytes <= from_bytes => true,
            Some(read) => {
                *read = restarted;
                true
            }
            None => self.add_read(restarted),
        }
    }

    /// Removes the oldest read.
    fn pop_read(&mut self) -> Option<ReadJob> {
        self.template = None;
        self.reads.pop_front()
    }

    /// Queues a response. Returns false if the queue is full: the peer exceeds the messages in
    /// flight.
    fn add_response(&mut self, response: Response) -> bool {
        let room = self.queued.len() < self.response_limit;
        if room {
            self.queued.push_back(response);
        }
        room
    }
}

impl Engine {
    /// Responds to a placed message of Reliable Reception, at once or as soon as the port has room.
    pub(crate) fn respond_placed<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &RxMessage,
        io: &mut I,
    ) {
        let response = Response::to(message);
        let first = self
            .tx_mut(vi)
            .is_some_and(|tx| tx.responses.queued.is_empty());
        if first && self.send_response(vi, &response, None, io) {
            return;
        }
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if tx.responses.add_response(response) {
            tx.responding = true;
            io.resume(vi);
        } else {
            self.counters.count(Counter::ResponseOverflows);
            self.break_local(now_ns, vi, MessageReason::NoResources, io);
        }
    }

    /// Responds with an error to a message or read that failed here; the caller breaks the
    /// connection with the returned reason. If earlier responses had no room, the peer cannot tell
    /// which message failed, and the reason is `NoResources`.
    pub(crate) fn refuse_message<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        response: &Response,
        reason: MessageReason,
        io: &mut I,
    ) -> MessageReason {
        while let Some(queued) = self.first_response(vi) {
            if !self.send_response(vi, &queued, None, io) {
                return MessageReason::NoResources;
            }
            self.response_sent(vi);
        }
        // If it has no room, the reason of the disconnect reports it.
        self.send_response(vi, response, Some(reason), io);
        reason
    }

    fn first_response(&mut self, vi: ViIndex) -> Option<Response> {
        self.tx_mut(vi)?.responses.queued.front().copied()
    }

    fn response_sent(&mut self, vi: ViIndex) {
        if let Some(tx) = self.tx_mut(vi) {
            tx.responses.queued.pop_front();
            tx.responding = !tx.responses.is_empty();
        }
    }

    /// Sends a response. Returns false if the port had no room.
    fn send_response<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        response: &Response,
        refused: Option<MessageReason>,
        io: &mut I,
    ) -> bool {
        let Some(connection) = self.endpoint(vi).and_then(|ep| ep.connection) else {
            return false;
        };
        let mut header = self.response_header(&connection, response);
        if let (Some(device), Some(reason)) = (header.device.as_mut(), refused) {
            device.flags = message_response::ERROR;
            device.parameter = reason.to_parameter();
        }
        let sent = io.transmit_control(&header, &[]) == Transmit::Sent;
        if sent {
            self.counters.count(Counter::TxResponses);
        }
        sent
    }

    /// Returns the header of a response without error.
    pub(crate) fn response_header(
        &self,
        connection: &Connection,
        response: &Response,
    ) -> FrameHeader {
        let at = response.at;
        FrameHeader {
            dst: MacAddress::vn2vn(connection.peer),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: response.opcode.r_ctl(),
                d_id: connection.peer,
                cs_ctl: profile::CS_CTL,
                s_id: self.config.n_port_id,
                fc_type: FcType::Vi,
                f_ctl: profile::F_CTL_FINAL_REPLY,
                seq_id: at.seq_id,
                df_ctl: profile::df_ctl(response.opcode.header_bytes()),
                seq_cnt: at.seq_cnt,
                ox_id: at.ox_id,
                rx_id: at.rx_id,
                parameter: 0,
            },
            device: Some(DeviceHeader {
                handle: connection.peer_handle,
                opcode: response.opcode,
                flags: 0,
                msg_id: response.msg_id,
                parameter: 0,
                rmt_va: 0,
                rmt_va_handle: 0,
                tot_len: 0,
            }),
        }
    }

    /// Sends one frame of what is pending for the peer.
    pub(crate) fn send_response_frame<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> Step {
        let Some(response) = self.first_response(vi) else {
            let recovering = |tx: &mut TxStream| tx.responses.recovering;
            if self.tx_mut(vi).is_some_and(recovering) {
                return self.send_recovery(now_ns, vi, io);
            }
            return self.send_read_data(now_ns, vi, io);
        };
        if !self.send_response(vi, &response, None, io) {
            return Step::Blocked;
        }
        self.response_sent(vi);
        Step::Next
    }

    /// Sends the next frame of the oldest read.
    fn send_read_data<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) -> Step {
        let own = self.config.n_port_id;
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let (Some(tx), Some(connection)) = (ep.tx.as_mut(), ep.connection.as_ref()) else {
            return Step::Broken;
        };
        let room = tx.send_payload_bytes;
        let Responses {
            reads, template, ..
        } = &mut tx.responses;
        let Some(job) = reads.front_mut() else {
            // Nothing is pending: own messages are next.
            tx.responding = false;
            return Step::Next;
        };
        let template = template.get_or_insert_with(|| {
            message_template(own, connection, Opcode::ReadResponse, job.at.rx_id)
        });
        let left = job.length_bytes - job.sent_bytes;
        let payload_bytes = left.min(room);
        let last = payload_bytes == left;
        let per_frame = read_frame(job, payload_bytes, last);
        match io.transmit_read(vi, template, &per_frame, job.source, payload_bytes, last) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.read_source_invalid(now_ns, vi, io),
        }
        job.sent_bytes += payload_bytes;
        job.next_seq_cnt = job.next_seq_cnt.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        if last {
            tx.responses.pop_read();
            tx.responding = !tx.responses.is_empty();
            self.counters.count(Counter::TxResponses);
        }
        Step::Next
    }

    /// Handles a read source that is no longer accessible: refused as at first access, unless the
    /// read was answered before.
    #[cold]
    fn read_source_invalid<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) -> Step {
        let job = self.tx_mut(vi).and_then(|tx| tx.responses.pop_read());
        let Some(job) = job else {
            return Step::Broken;
        };
        let mut at = job.at;
        if job.has_begun() {
            // Not a frame of the open sequence, which this aborts.
            at.seq_id = at.seq_id.wrapping_add(1);
            at.seq_cnt = job.next_seq_cnt;
        }
        if job.is_repeat {
            self.refuse_repeated_read(vi, at, job.msg_id, io);
            return Step::Next;
        }
        self.refuse_read(
            now_ns,
            vi,
            at,
            job.msg_id,
            MessageReason::ReadProtection,
            io,
        );
        Step::Broken
    }

    /// Refuses a read that was answered before and cannot be answered again. Only its initiator
    /// knows whether this is an error: one that still waits for data fails the read and breaks the
    /// connection; one that has all data drops this as a response to nothing.
    #[cold]
    pub(crate) fn refuse_repeated_read<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        at: Sequence,
        msg_id: u32,
        io: &mut I,
    ) {
        self.counters.count(Counter::DropReadAgain);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
        };
        // If it has no room it is lost like any other frame, and the peer requests the read again.
        self.send_response(vi, &response, Some(MessageReason::ReadProtection), io);
        if let Some(tx) = self.tx_mut(vi) {
            tx.responding = !tx.responses.is_empty();
        }
    }

    /// Refuses a read (VIPL 3.8.1): reports it to both consumers and breaks the connection.
    pub(crate) fn refuse_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: Sequence,
        msg_id: u32,
        reason: MessageReason,
        io: &mut I,
    ) {
        self.counters.count(Counter::DropRdmaProtection);
        io.report(vi, AsyncError::RdmaReadProtection);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
        };
        let reason = self.refuse_message(vi, &response, reason, io);
        self.break_local(now_ns, vi, reason, io);
    }
}

/// Returns the per-frame fields of one frame of a read's data [FCVI P-3].
fn read_frame(job: &ReadJob, payload_bytes: u32, last: bool) -> PerFrame {
    let (f_ctl, flags) = if last {
        let fill_bytes = (payload_bytes.wrapping_neg() & 3) as u8;
        let f_ctl = profile::F_CTL_FINAL_REPLY.with_fill(fill_bytes);
        (f_ctl, message_response::LAST)
    } else {
        (profile::F_CTL_REPLY_BEGUN, 0)
    };
    PerFrame {
        sof: if job.has_begun() { Sof::N3 } else { Sof::I3 },
        f_ctl: f_ctl.union(FCtl::RELATIVE_OFFSET),
        seq_id: job.at.seq_id,
        seq_cnt: job.next_seq_cnt,
        ox_id: job.at.ox_id,
        relative_offset: job.sent_bytes,
        flags,
        msg_id: job.msg_id,
        fcvi_parameter: 0,
        rmt_va: 0,
        rmt_va_handle: 0,
        tot_len: 0,
    }
}
