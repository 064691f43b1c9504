//! RDMA reads of the other end.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::message_request;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::MessageReason;

use crate::answer::ReadJob;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::Level;
use crate::engine::{Engine, ViIndex};
use crate::host::Host;

impl Engine {
    /// FCVI_READ_RQST: a message like any other in the order of messages. Its data is sent by
    /// [`Engine::pump`].
    pub(super) fn handle_read_request<H: Host>(
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
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let level = ep.params.level;
        let expected = level.wire().to_flags() | message_request::RESPONSE_REQUESTED;
        let flags = message_request::RELIABILITY | message_request::RESPONSE_REQUESTED;
        if level == Level::UnreliableDelivery || iu.header.flags & flags != expected {
            self.counters.count(Counter::DropWrongLevel);
            return;
        }
        if !well_formed(frame, iu) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        let (peer_index, recovers) = (ep.peer_index, ep.rx.recovery.is_some());
        self.heard(peer_index, now_ns);
        if recovers && !self.read_is_in_order(now_ns, vi, frame, iu, host) {
            return;
        }
        if self.is_next_message(now_ns, vi, iu, host) {
            self.accept_read(now_ns, vi, frame, iu, host);
            self.read_accepted(now_ns, vi, host);
        }
    }

    /// Why the peer may not read there, if it may not: asked before a byte is read.
    pub(crate) fn refuses_read<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        host: &mut H,
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
        if host.check_rdma_read(vi, header) {
            return None;
        }
        self.miss(now_ns, vi, header.rmt_va_handle, host);
        Some(MessageReason::ReadProtection)
    }

    fn accept_read<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let header = &iu.header;
        let at = Sequence::answering(&frame.fc);
        if let Some(reason) = self.refuses_read(now_ns, vi, header, host) {
            self.refuse_read(now_ns, vi, at, header.msg_id, reason, host);
            return;
        }
        self.counters.count(Counter::RxFrames);
        self.counters.count(Counter::RxMessages);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        let job = ReadJob::new(at, header);
        if tx.answers.add_read(job) {
            tx.answering = true;
            if tx.recovery.is_some() {
                tx.answers.remember_read(job);
            }
            host.resume(vi);
        } else {
            self.counters.count(Counter::DropTooManyReads);
            self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
        }
    }
}

/// A whole request in one frame that gives us the initiative.
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
