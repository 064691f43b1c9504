//! Responses to the peer: those of Reliable Reception and of messages that are copied from its memory, and the data of
//! RDMA reads.
//!
//! A response is sent when its message is placed. If the port has no room then, it is queued, as
//! all reads are: [`Engine::pump`](crate::Engine::pump) sends responses first, in the order of their messages, and
//! alternates between frames of the oldest read and frames of own messages. A read returns the
//! memory as it is when its frames are gathered; the peer's right to read it is checked for each
//! frame.
//!
//! All of it is dropped when the connection ends.

use std::collections::VecDeque;

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::message_response;
use fcvi_frame::frame::{FrameHeader, HeaderTemplate, Payload, PerFrame};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, ReliabilityLevel};

use crate::config::{EngineConfig, MAX_UNANSWERED};
use crate::connection::Break;
use crate::connection_iu::Sequence;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DataFrame, EngineIo, Transmit};
use crate::n_port::NPort;
use crate::reassembly::RxMessage;
use crate::transmit::{Step, message_template};

/// A response to a message, or the end of a failed read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) opcode: Opcode,
    pub(crate) msg_id: u32,
    /// Its sequence on the exchange of the request.
    pub(crate) at: Sequence,
    /// FCVI_FLAGS, unless it refuses the message.
    pub(crate) flags: u8,
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
            flags: 0,
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

/// What one VI still has to send to its peer, or to copy from it. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct Responses {
    /// N_Port_ID and handle of the peer.
    peer: (NPortId, u32),
    /// Headers of the responses to sends and to writes.
    send_response: HeaderTemplate,
    write_response: HeaderTemplate,
    /// Payload bytes of each frame of a read's data, unless it is the last one.
    payload_bytes: u32,
    /// There is something to send.
    pub(crate) pending: bool,
    queued: VecDeque<Response>,
    response_limit: usize,
    reads: VecDeque<ReadJob>,
    read_limit: usize,
    /// Header of the oldest read's frames, once its first frame is being sent.
    template: Option<HeaderTemplate>,
    /// The last frame that was sent was one of our own messages.
    read_is_next: bool,
    /// Message recovery has something to send.
    recovering: bool,
    /// Parts of a message are to be copied from the peer's memory.
    pub(crate) copying: bool,
    /// With recovery: the most recently accepted reads, as many as a peer can have in flight.
    accepted: VecDeque<ReadJob>,
}

impl Responses {
    /// Creates an empty queue for a connection with this VI of a peer.
    pub(crate) fn new(
        level: ReliabilityLevel,
        config: &EngineConfig,
        peer: (NPortId, u32),
        payload_bytes: u32,
    ) -> Self {
        let reads = usize::from(config.reads_accepted());
        let (responses, reads) = match level {
            ReliabilityLevel::UnreliableDelivery => (0, 0),
            // To a message that is copied from the peer's memory.
            ReliabilityLevel::ReliableDelivery => (1, reads),
            ReliabilityLevel::ReliableReception => (MAX_UNANSWERED as usize, reads),
        };
        let template = |opcode| message_template(config.n_port_id, peer, opcode, RX_ID_UNASSIGNED);
        Self {
            peer,
            send_response: template(Opcode::SendResponse),
            write_response: template(Opcode::WriteResponse),
            payload_bytes,
            pending: false,
            queued: VecDeque::with_capacity(responses),
            response_limit: responses,
            reads: VecDeque::with_capacity(reads),
            read_limit: reads,
            template: None,
            read_is_next: true,
            recovering: false,
            copying: false,
            accepted: VecDeque::with_capacity(match config.recovery {
                Some(_) if reads > 0 => MAX_UNANSWERED as usize,
                Some(_) | None => 0,
            }),
        }
    }

    /// Reports whether the next step is a response: always for queued responses and recovery, alternately for reads and for
    /// a message that is copied.
    pub(crate) fn are_due(&self) -> bool {
        self.read_is_next || self.recovering || !self.queued.is_empty()
    }

    /// Notes whether the frame that was sent was a response or one of our own messages.
    pub(crate) fn sent(&mut self, response: bool) {
        self.read_is_next = !response;
    }

    /// Notes whether anything is left to send.
    fn update_pending(&mut self) {
        let has_none = self.queued.is_empty() && self.reads.is_empty();
        self.pending = !has_none || self.recovering || self.copying;
    }

    /// Makes recovery send first, as soon as the port has room.
    pub(crate) fn start_recovering<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        self.recovering = true;
        self.resume(cx);
    }

    /// Notes that recovery has nothing left to send.
    pub(crate) fn recovered(&mut self) {
        self.recovering = false;
        self.update_pending();
    }

    /// Requests calls that copy the remaining parts of a message from the peer's memory.
    pub(crate) fn start_copying<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        self.copying = true;
        self.resume(cx);
    }

    /// Notes that no message is copied any more.
    pub(crate) fn stop_copying(&mut self) {
        self.copying = false;
        self.update_pending();
    }

    /// Requests the call that sends what is queued.
    fn resume<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        self.pending = true;
        cx.io.resume(cx.vi);
    }

    /// Queues a read. Returns false if the peer exceeds the advertised number of reads.
    fn add_read(&mut self, job: ReadJob) -> bool {
        let room = self.reads.len() < self.read_limit;
        if room {
            self.reads.push_back(job);
        }
        room
    }

    /// Records an accepted read, which the peer may request again.
    fn record_read(&mut self, job: ReadJob) {
        if self.accepted.len() >= MAX_UNANSWERED as usize {
            self.accepted.pop_front();
        }
        self.accepted.push_back(job);
    }

    /// Returns the accepted read that this request repeats, if it is still recorded.
    fn accepted(&self, request: &DeviceHeader, ox_id: u16) -> Option<ReadJob> {
        let same = |job: &&ReadJob| {
            job.msg_id == request.msg_id
                && job.source == (request.rmt_va, request.rmt_va_handle)
                && (job.length_bytes, job.at.ox_id) == (request.tot_len, ox_id)
        };
        self.accepted.iter().find(same).copied()
    }

    /// Restarts an accepted read at byte `from_bytes`, `room` bytes per frame, unless its data has
    /// not reached that byte yet. Returns false if the read queue is full.
    fn restart_read(&mut self, job: ReadJob, from_bytes: u32, room: u32) -> bool {
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

    /// Responds to a placed message, at once or as soon as the port has room.
    pub(crate) fn respond_placed<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        message: &RxMessage,
    ) -> Result<(), Break> {
        self.respond(cx, Response::to(message))
    }

    /// Declines to copy a message from the peer's memory; as [`Self::respond_placed`].
    pub(crate) fn decline<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        message: &RxMessage,
    ) -> Result<(), Break> {
        let response = Response {
            flags: message_response::DECLINED,
            ..Response::to(message)
        };
        self.respond(cx, response)
    }

    fn respond<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        response: Response,
    ) -> Result<(), Break> {
        if self.queued.is_empty() && self.send(cx, &response, None) {
            return Ok(());
        }
        if !self.add_response(response) {
            cx.count(Counter::ResponseOverflows);
            return Err(Break(MessageReason::NoResources));
        }
        self.resume(cx);
        Ok(())
    }

    /// Responds with an error to a message or read that failed here. Returns the reason for which
    /// the connection breaks: if earlier responses had no room, the peer cannot tell which message
    /// failed, and it is `NoResources`.
    pub(crate) fn refuse<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        response: &Response,
        reason: MessageReason,
    ) -> MessageReason {
        while let Some(queued) = self.queued.front().copied() {
            if !self.send(cx, &queued, None) {
                return MessageReason::NoResources;
            }
            self.queued.pop_front();
            self.update_pending();
        }
        // If it has no room, the reason of the disconnect reports it.
        self.send(cx, response, Some(reason));
        reason
    }

    /// Sends a response. Returns false if the port had no room.
    fn send<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        response: &Response,
        refused: Option<MessageReason>,
    ) -> bool {
        let transmit = match (response.opcode, refused) {
            (Opcode::SendResponse, None) => send_by_template(cx, &mut self.send_response, response),
            (Opcode::WriteResponse, None) => {
                send_by_template(cx, &mut self.write_response, response)
            }
            _ => {
                let mut header = self.header(cx.port, response);
                if let (Some(device), Some(reason)) = (header.device.as_mut(), refused) {
                    device.flags = message_response::ERROR;
                    device.parameter = reason.to_parameter();
                }
                cx.io.transmit_control(&header, &[])
            }
        };
        let sent = transmit == Transmit::Sent;
        if sent {
            cx.count(Counter::TxResponses);
        }
        sent
    }

    /// Returns the header of a response without error.
    pub(crate) fn header(&self, port: &NPort, response: &Response) -> FrameHeader {
        let at = response.at;
        let (peer, handle) = self.peer;
        FrameHeader {
            dst: MacAddress::vn2vn(peer),
            src: port.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: response.opcode.r_ctl(),
                d_id: peer,
                cs_ctl: profile::CS_CTL,
                s_id: port.config.n_port_id,
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
                handle,
                opcode: response.opcode,
                flags: response.flags,
                msg_id: response.msg_id,
                parameter: 0,
                rmt_va: 0,
                rmt_va_handle: 0,
                tot_len: 0,
            }),
        }
    }

    /// Sends one frame of what is queued; `None` if recovery is next.
    pub(crate) fn send_frame<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> Option<Step> {
        let Some(response) = self.queued.front().copied() else {
            return (!self.recovering).then(|| self.send_read_data(cx));
        };
        if !self.send(cx, &response, None) {
            return Some(Step::Blocked);
        }
        self.queued.pop_front();
        self.update_pending();
        Some(Step::Next)
    }

    /// Sends the next frame of the oldest read.
    fn send_read_data<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> Step {
        let own = cx.port.config.n_port_id;
        let Some(job) = self.reads.front_mut() else {
            // Nothing is pending: own messages are next.
            self.pending = false;
            return Step::Next;
        };
        let template = self.template.get_or_insert_with(|| {
            message_template(own, self.peer, Opcode::ReadResponse, job.at.rx_id)
        });
        let left = job.length_bytes - job.sent_bytes;
        let payload_bytes = left.min(self.payload_bytes);
        let last = payload_bytes == left;
        let per_frame = read_frame(job, payload_bytes, last);
        let frame = DataFrame {
            template,
            per_frame: &per_frame,
            last,
        };
        match cx.io.transmit_read(cx.vi, frame, job.source, payload_bytes) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.read_source_invalid(cx),
        }
        job.sent_bytes += payload_bytes;
        job.next_seq_cnt = job.next_seq_cnt.wrapping_add(1);
        cx.count(Counter::TxFrames);
        if last {
            self.pop_read();
            self.update_pending();
            cx.count(Counter::TxResponses);
        }
        Step::Next
    }

    /// Handles a read source that is no longer accessible: refused as at first access, unless the
    /// read was answered before.
    #[cold]
    fn read_source_invalid<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> Step {
        let Some(job) = self.pop_read() else {
            return Step::Next;
        };
        let mut at = job.at;
        if job.has_begun() {
            // Not a frame of the open sequence, which this aborts.
            at.seq_id = at.seq_id.wrapping_add(1);
            at.seq_cnt = job.next_seq_cnt;
        }
        if job.is_repeat {
            self.refuse_repeated_read(cx, at, job.msg_id);
            return Step::Next;
        }
        let Break(reason) = self.refuse_read(cx, at, job.msg_id, MessageReason::ReadProtection);
        Step::Break(reason)
    }

    /// Queues a read that the peer may make. `records`: it may be requested again.
    pub(crate) fn accept_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        job: ReadJob,
        records: bool,
    ) -> Result<(), Break> {
        if !self.add_read(job) {
            cx.count(Counter::DropTooManyReads);
            return Err(Break(MessageReason::ProtocolError));
        }
        if records {
            self.record_read(job);
        }
        self.resume(cx);
        Ok(())
    }

    /// Answers a recorded read again, from the byte that its initiator requests.
    pub(crate) fn repeat_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        header: &DeviceHeader,
        reply_at: Sequence,
    ) {
        let room = self.payload_bytes.max(1);
        let Some(job) = self.accepted(header, reply_at.ox_id) else {
            return;
        };
        let from = header.parameter;
        let inside = from < job.length_bytes || from == 0;
        if !inside || !from.is_multiple_of(room) {
            cx.count(Counter::DropBadIu);
        } else if !cx.io.check_rdma_read(cx.vi, header) {
            self.refuse_repeated_read(cx, reply_at, header.msg_id);
        } else if self.restart_read(job, from, room) {
            cx.count(Counter::ReadsRepeated);
            self.resume(cx);
        } else {
            cx.count(Counter::DropTooManyReads);
        }
    }

    /// Refuses a read that was answered before and cannot be answered again. Only its initiator
    /// knows whether this is an error: one that still waits for data fails the read and breaks the
    /// connection; one that has all data drops this as a response to nothing.
    #[cold]
    fn refuse_repeated_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        at: Sequence,
        msg_id: u32,
    ) {
        cx.count(Counter::DropReadAgain);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
            flags: 0,
        };
        // If it has no room it is lost like any other frame, and the peer requests the read again.
        self.send(cx, &response, Some(MessageReason::ReadProtection));
        self.update_pending();
    }

    /// Refuses a read (VIPL 3.8.1): reports it to both consumers. The connection breaks.
    pub(crate) fn refuse_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        at: Sequence,
        msg_id: u32,
        reason: MessageReason,
    ) -> Break {
        cx.count(Counter::DropRdmaProtection);
        cx.io.report(cx.vi, AsyncError::RdmaReadProtection);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
            flags: 0,
        };
        Break(self.refuse(cx, &response, reason))
    }
}

/// Sends a response without error, with the header of its kind.
fn send_by_template<I: EngineIo>(
    cx: &mut Context<'_, I>,
    template: &mut HeaderTemplate,
    response: &Response,
) -> Transmit {
    template.set_rx_id(response.at.rx_id);
    let frame = DataFrame {
        template,
        per_frame: &reply_frame(response.at, response.msg_id, response.flags),
        last: true,
    };
    cx.io.transmit_payload(frame, Payload::EMPTY)
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
        seq_cnt: job.next_seq_cnt,
        relative_offset: job.sent_bytes,
        ..reply_frame(job.at, job.msg_id, flags)
    }
}

/// Returns the per-frame fields of a reply in one frame.
fn reply_frame(at: Sequence, msg_id: u32, flags: u8) -> PerFrame {
    PerFrame {
        sof: Sof::I3,
        f_ctl: profile::F_CTL_FINAL_REPLY,
        seq_id: at.seq_id,
        seq_cnt: at.seq_cnt,
        ox_id: at.ox_id,
        relative_offset: 0,
        flags,
        msg_id,
        fcvi_parameter: 0,
        rmt_va: 0,
        rmt_va_handle: 0,
        tot_len: 0,
    }
}
