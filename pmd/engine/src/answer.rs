//! What a peer is owed: responses of Reliable Reception, and the data of its reads.
//!
//! A response is sent when its message is placed. If the port has no room then,
//! it waits here, and so do all reads: [`Engine::pump`] sends responses first, in
//! the order of their messages, and takes turns between frames of the oldest read
//! and frames of our own. A read sees the memory as it is when its frames are
//! gathered, and each frame asks anew whether the peer may read there.
//!
//! A connection that ends forgets all of it.

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

use crate::config::{EngineConfig, MAX_UNANSWERED};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Level, Link, RxMessage, TxStream};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Host, Transmit};
use crate::transmit::{Step, message_template};

/// A response to a message, or the end of a read that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) opcode: Opcode,
    pub(crate) msg_id: u32,
    /// Its place on the exchange of the request.
    pub(crate) at: Sequence,
}

impl Response {
    /// To this message, whose last frame has come, or will not be waited for.
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

/// A read of the peer's that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadJob {
    /// The answer's first frame.
    pub(crate) at: Sequence,
    pub(crate) msg_id: u32,
    /// Address and memory handle.
    pub(crate) source: (u64, u32),
    pub(crate) length_bytes: u32,
    sent_bytes: u32,
    next_seq_cnt: u16,
    /// It was answered before: its reader may have everything, and its memory may be gone.
    again: bool,
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
            again: false,
        }
    }

    fn is_begun(&self) -> bool {
        self.next_seq_cnt != self.at.seq_cnt || self.sent_bytes > 0
    }
}

/// What one VI owes its peer. Allocates nothing after it was made.
#[derive(Debug)]
pub(crate) struct Answers {
    responses: VecDeque<Response>,
    response_limit: usize,
    reads: VecDeque<ReadJob>,
    read_limit: usize,
    /// The header of the oldest read's frames, once it has begun.
    template: Option<HeaderTemplate>,
    /// The last frame that was sent was one of our own.
    read_is_next: bool,
    /// Recovery wants something sent.
    pub(crate) recovering: bool,
    /// With recovery: the reads that were accepted last, as many as a peer can have in flight.
    accepted: VecDeque<ReadJob>,
}

impl Answers {
    pub(crate) fn new(level: Level, config: &EngineConfig) -> Self {
        let reads = usize::from(config.reads_accepted());
        let (responses, reads) = match level {
            Level::UnreliableDelivery => (0, 0),
            Level::ReliableDelivery => (0, reads),
            Level::ReliableReception => (MAX_UNANSWERED as usize, reads),
        };
        Self {
            responses: VecDeque::with_capacity(responses),
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

    /// Is the next frame one of these? Responses always, and what recovery wants; reads in turn with our own frames.
    pub(crate) fn are_next(&self) -> bool {
        self.read_is_next || self.recovering || !self.responses.is_empty()
    }

    /// A frame was sent: one of these, or one of our own.
    pub(crate) fn sent(&mut self, answer: bool) {
        self.read_is_next = !answer;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.responses.is_empty() && self.reads.is_empty() && !self.recovering
    }

    /// False if there are as many as the peer was told.
    pub(crate) fn add_read(&mut self, job: ReadJob) -> bool {
        let room = self.reads.len() < self.read_limit;
        if room {
            self.reads.push_back(job);
        }
        room
    }

    /// A read was accepted that may be asked for again.
    pub(crate) fn remember_read(&mut self, job: ReadJob) {
        if self.accepted.len() >= MAX_UNANSWERED as usize {
            self.accepted.pop_front();
        }
        self.accepted.push_back(job);
    }

    /// The read that this repeats, if it is one of the last.
    pub(crate) fn accepted(&self, request: &DeviceHeader, ox_id: u16) -> Option<ReadJob> {
        let same = |job: &&ReadJob| {
            job.msg_id == request.msg_id
                && job.source == (request.rmt_va, request.rmt_va_handle)
                && (job.length_bytes, job.at.ox_id) == (request.tot_len, ox_id)
        };
        self.accepted.iter().find(same).copied()
    }

    /// Answers an accepted read from this byte on, `room` bytes a frame, unless its answer has
    /// yet to come there. False if there is no room for it.
    pub(crate) fn answer_again(&mut self, job: ReadJob, from_bytes: u32, room: u32) -> bool {
        let begun = ReadJob {
            sent_bytes: from_bytes,
            next_seq_cnt: job.at.seq_cnt.wrapping_add((from_bytes / room) as u16),
            again: true,
            ..job
        };
        match self.reads.iter_mut().find(|r| r.msg_id == job.msg_id) {
            Some(answer) if answer.sent_bytes <= from_bytes => true,
            Some(answer) => {
                *answer = begun;
                true
            }
            None => self.add_read(begun),
        }
    }

    /// Nothing more is to be sent of the oldest read.
    fn take_read(&mut self) -> Option<ReadJob> {
        self.template = None;
        self.reads.pop_front()
    }

    /// False if there is no room: the peer did not wait for its responses.
    fn add_response(&mut self, response: Response) -> bool {
        let room = self.responses.len() < self.response_limit;
        if room {
            self.responses.push_back(response);
        }
        room
    }
}

impl Engine {
    /// A message of Reliable Reception is placed: says so, at once or as soon as the port has
    /// room.
    pub(crate) fn owe_response<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        message: &RxMessage,
        host: &mut H,
    ) {
        let response = Response::to(message);
        let first = self
            .tx_mut(vi)
            .is_some_and(|tx| tx.answers.responses.is_empty());
        if first && self.send_response(vi, &response, None, host) {
            return;
        }
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if tx.answers.add_response(response) {
            tx.answering = true;
            host.resume(vi);
        } else {
            self.counters.count(Counter::ResponseOverflows);
            self.break_local(now_ns, vi, MessageReason::NoResources, host);
        }
    }

    /// Answers a message or read that failed here; the caller breaks the connection for the
    /// reason that is returned. If responses before it had no room, the other end cannot know
    /// which message failed: it learns that it was not told.
    pub(crate) fn refuse_message<H: Host>(
        &mut self,
        vi: ViIndex,
        response: &Response,
        reason: MessageReason,
        host: &mut H,
    ) -> MessageReason {
        while let Some(owed) = self.oldest_response(vi) {
            if !self.send_response(vi, &owed, None, host) {
                return MessageReason::NoResources;
            }
            self.response_sent(vi);
        }
        // Without room the reason of the disconnect tells it.
        self.send_response(vi, response, Some(reason), host);
        reason
    }

    fn oldest_response(&mut self, vi: ViIndex) -> Option<Response> {
        self.tx_mut(vi)?.answers.responses.front().copied()
    }

    fn response_sent(&mut self, vi: ViIndex) {
        if let Some(tx) = self.tx_mut(vi) {
            tx.answers.responses.pop_front();
            tx.answering = !tx.answers.is_empty();
        }
    }

    /// False if there was no room for it.
    fn send_response<H: Host>(
        &mut self,
        vi: ViIndex,
        response: &Response,
        refused: Option<MessageReason>,
        host: &mut H,
    ) -> bool {
        let Some(link) = self.endpoint(vi).and_then(|ep| ep.link) else {
            return false;
        };
        let mut header = self.response_header(&link, response);
        if let (Some(device), Some(reason)) = (header.device.as_mut(), refused) {
            device.flags = message_response::ERROR;
            device.parameter = reason.to_parameter();
        }
        let sent = host.transmit_control(&header, &[]) == Transmit::Sent;
        if sent {
            self.counters.count(Counter::TxResponses);
        }
        sent
    }

    /// The header of a response without error.
    pub(crate) fn response_header(&self, link: &Link, response: &Response) -> FrameHeader {
        let at = response.at;
        FrameHeader {
            dst: MacAddress::vn2vn(link.peer),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: response.opcode.r_ctl(),
                d_id: link.peer,
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
                handle: link.peer_handle,
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

    /// Sends one frame that the peer is owed.
    pub(crate) fn send_answer<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> Step {
        let Some(response) = self.oldest_response(vi) else {
            let recovering = |tx: &mut TxStream| tx.answers.recovering;
            if self.tx_mut(vi).is_some_and(recovering) {
                return self.send_recovery(now_ns, vi, host);
            }
            return self.send_read_data(now_ns, vi, host);
        };
        if !self.send_response(vi, &response, None, host) {
            return Step::Blocked;
        }
        self.response_sent(vi);
        Step::Next
    }

    /// Sends the next frame of the oldest read.
    fn send_read_data<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> Step {
        let own = self.config.n_port_id;
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return Step::Broken;
        };
        let (Some(tx), Some(link)) = (ep.tx.as_mut(), ep.link.as_ref()) else {
            return Step::Broken;
        };
        let room = tx.send_payload_bytes;
        let Answers {
            reads, template, ..
        } = &mut tx.answers;
        let Some(job) = reads.front_mut() else {
            // Nothing is owed: our own messages are next.
            tx.answering = false;
            return Step::Next;
        };
        let template = template
            .get_or_insert_with(|| message_template(own, link, Opcode::ReadResponse, job.at.rx_id));
        let left = job.length_bytes - job.sent_bytes;
        let payload_bytes = left.min(room);
        let last = payload_bytes == left;
        let per_frame = read_frame(job, payload_bytes, last);
        match host.transmit_read(vi, template, &per_frame, job.source, payload_bytes, last) {
            Transmit::Sent => {}
            Transmit::NoRoom => return Step::Blocked,
            Transmit::Fault => return self.read_source_gone(now_ns, vi, host),
        }
        job.sent_bytes += payload_bytes;
        job.next_seq_cnt = job.next_seq_cnt.wrapping_add(1);
        self.counters.count(Counter::TxFrames);
        if last {
            tx.answers.take_read();
            tx.answering = !tx.answers.is_empty();
            self.counters.count(Counter::TxResponses);
        }
        Step::Next
    }

    /// The peer may no longer read there: refused as if it never could, unless it has read there.
    #[cold]
    fn read_source_gone<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> Step {
        let job = self.tx_mut(vi).and_then(|tx| tx.answers.take_read());
        let Some(job) = job else {
            return Step::Broken;
        };
        let mut at = job.at;
        if job.is_begun() {
            // Not a frame of the sequence that is open, which is aborted by this.
            at.seq_id = at.seq_id.wrapping_add(1);
            at.seq_cnt = job.next_seq_cnt;
        }
        if job.again {
            self.drop_read_again(vi, at, job.msg_id, host);
            return Step::Next;
        }
        self.refuse_read(
            now_ns,
            vi,
            at,
            job.msg_id,
            MessageReason::ReadProtection,
            host,
        );
        Step::Broken
    }

    /// A read that was answered before cannot be answered again. Only its reader knows whether
    /// that is an error: one that still waits for data fails its read and breaks the connection;
    /// one that has everything drops this as a response to nothing.
    #[cold]
    pub(crate) fn drop_read_again<H: Host>(
        &mut self,
        vi: ViIndex,
        at: Sequence,
        msg_id: u32,
        host: &mut H,
    ) {
        self.counters.count(Counter::DropReadAgain);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
        };
        // Without room it is lost like any other answer, and asked for again.
        self.send_response(vi, &response, Some(MessageReason::ReadProtection), host);
        if let Some(tx) = self.tx_mut(vi) {
            tx.answering = !tx.answers.is_empty();
        }
    }

    /// Refuses a read (VIPL 3.8.1): both consumers are told and the connection breaks.
    pub(crate) fn refuse_read<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: Sequence,
        msg_id: u32,
        reason: MessageReason,
        host: &mut H,
    ) {
        self.counters.count(Counter::DropRdmaProtection);
        host.report(vi, AsyncError::RdmaReadProtection);
        let response = Response {
            opcode: Opcode::ReadResponse,
            msg_id,
            at,
        };
        let told = self.refuse_message(vi, &response, reason, host);
        self.break_local(now_ns, vi, told, host);
    }
}

/// One frame of the answer to a read [FCVI P-3].
fn read_frame(job: &ReadJob, payload_bytes: u32, last: bool) -> PerFrame {
    let (f_ctl, flags) = if last {
        let fill_bytes = (payload_bytes.wrapping_neg() & 3) as u8;
        let f_ctl = profile::F_CTL_FINAL_REPLY.with_fill(fill_bytes);
        (f_ctl, message_response::LAST)
    } else {
        (profile::F_CTL_REPLY_BEGUN, 0)
    };
    PerFrame {
        sof: if job.is_begun() { Sof::N3 } else { Sof::I3 },
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
