//! RDMA read requests of the peer.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::{message_request, reliability_flags};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::MessageReason;

use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::EngineIo;
use crate::responses::ReadJob;

impl Engine {
    /// Handles FCVI_READ_RQST, which has its place in the order of messages. Its data is sent by
    /// [`Engine::pump`].
    pub(super) fn handle_read_request<I: EngineIo>(
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
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let level = ep.params.level;
        let expected = reliability_flags(level) | message_request::RESPONSE_REQUESTED;
        let flags = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
        if !level.is_reliable() || iu.header.flags & flags != expected {
            self.counters.count(Counter::DropWrongLevel);
            return;
        }
        if !well_formed(frame, iu) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let (peer_index, recovers) = (ep.peer_index, ep.rx.recovery.is_some());
        self.note_received(peer_index, now_ns);
        if recovers && !self.read_is_in_order(now_ns, vi, frame, iu, io) {
            return;
        }
        if self.is_next_message(now_ns, vi, iu, io) {
            self.accept_read(now_ns, vi, frame, iu, io);
            self.read_accepted(now_ns, vi, io);
        }
    }

    /// Returns why the peer may not read there, or `None` if it may.
    pub(crate) fn refuses_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        io: &mut I,
    ) -> Option<MessageReason> {
        let ep = self.endpoint(vi)?;
        let params = ep.params;
        if !params.rdma_read {
            return Some(MessageReason::ReadNotEnabled);
        }
        let limited = ep.rx.misses.is_watched() && self.is_limited(now_ns, vi);
        if limited || header.tot_len > params.max_transfer_bytes {
            return Some(MessageReason::ReadProtection);
        }
        if io.check_rdma_read(vi, header) {
            return None;
        }
        self.miss(now_ns, vi, header.rmt_va_handle, io);
        Some(MessageReason::ReadProtection)
    }

    /// Queues a read of the peer, or refuses it.
    fn accept_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let header = &iu.header;
        let at = Sequence::reply_to(&frame.fc);
        if let Some(reason) = self.refuses_read(now_ns, vi, header, io) {
            self.refuse_read(now_ns, vi, at, header.msg_id, reason, io);
            return;
        }
        self.counters.count(Counter::RxFrames);
        self.counters.count(Counter::RxMessages);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        let job = ReadJob::new(at, header);
        if tx.responses.add_read(job) {
            tx.responding = true;
            if tx.recovery.is_some() {
                tx.responses.record_read(job);
            }
            io.resume(vi);
        } else {
            self.counters.count(Counter::DropTooManyReads);
            self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
        }
    }
}

/// Reports whether this is a whole request in one frame that transfers the sequence initiative.
fn well_formed(frame: &FrameView<'_>, iu: &IuView<'_>) -> bool {
    let f_ctl = frame.fc.f_ctl;
    frame.sof == Sof::I3
        && frame.eof == Eof::T
        && f_ctl.contains(FCtl::FIRST_SEQUENCE)
        && f_ctl.contains(FCtl::END_SEQUENCE)
        && f_ctl.contains(FCtl::SEQUENCE_INITIATIVE)
        && !f_ctl.contains(FCtl::EXCHANGE_RESPONDER)
        && iu.payload.is_empty()
}
