//! RDMA reads: asked for again where their data stopped, and answered again from there.
//!
//! The reader takes data in order only. Behind a gap, or when nothing comes any more, it sends
//! its request again; FCVI_PARAMETER says from which byte on it wants the rest. The target
//! remembers as many reads as a peer may have under way, and checks each again: memory that is
//! gone meanwhile may be gone because the reader is done, so the target breaks nothing for it.

use fcvi_frame::fc::FCtl;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::MessageReason;

use super::islands::Run;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Status};
use crate::synonym::{Check, skips};

impl Engine {
    /// Is this request the next message? If not, it is seen to: a stale one may be a repetition.
    pub(crate) fn read_is_in_order<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) -> bool {
        let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        if again {
            self.repeat_read(vi, frame, iu, host);
        }
        let run = Run {
            msg_id: iu.header.msg_id,
            begin: 0,
            end: 0,
            last: true,
        };
        let Some(gap) = self.order(now_ns, vi, run, frame, host) else {
            return false;
        };
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let next = ep.rx.message.is_none() && ep.rx.expected == iu.header.msg_id;
        if !next {
            self.counters.count(Counter::DropAheadRead);
            self.owe_acknowledgement(now_ns, vi, 0, gap || again, host);
        }
        next
    }

    /// A read was accepted: it is a message that is whole.
    pub(crate) fn read_accepted<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        if let Some(recovery) = recovery {
            recovery.telling.messages += 1;
            self.owe_acknowledgement(now_ns, vi, 0, false, host);
        }
    }

    /// Answers a read again, from where its reader wants it, if it is one of those that were
    /// accepted last.
    fn repeat_read<H: Host>(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let header = &iu.header;
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        let room = tx.send_payload_bytes.max(1);
        let Some(job) = tx.answers.accepted(header, frame.fc.ox_id) else {
            return;
        };
        let from = header.parameter;
        let inside = from < job.length_bytes || from == 0;
        if !inside || !from.is_multiple_of(room) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        if !host.check_rdma_read(vi, header) {
            self.drop_read_again(vi, Sequence::answering(&frame.fc), header.msg_id, host);
            return;
        }
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if tx.answers.answer_again(job, from, room) {
            tx.answering = true;
            self.counters.count(Counter::ReadsRepeated);
            host.resume(vi);
        } else {
            self.counters.count(Counter::DropTooManyReads);
        }
    }

    /// Data of a read of ours.
    pub(crate) fn take_recovered_read_data<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let msg_id = iu.header.msg_id;
        // The target has everything up to the read.
        self.acknowledged_before(now_ns, vi, msg_id.wrapping_add(1), host);
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        let room = tx.send_payload_bytes.max(1);
        let Some(at) = tx.in_flight.find(msg_id) else {
            return;
        };
        let Some(entry) = tx.in_flight.get(at).copied() else {
            return;
        };
        let fc = &frame.fc;
        let number = (fc.parameter / room) as u16;
        let seq_cnt = entry.first_seq_cnt.wrapping_add(1).wrapping_add(number);
        let counts = fc.seq_cnt == seq_cnt || skips(Check::SequenceCount);
        if !fc.parameter.is_multiple_of(room) || !counts {
            self.counters.count(Counter::DropSynonym);
            return;
        }
        if fc.parameter < entry.placed_bytes && !skips(Check::RelativeOffset) {
            self.counters.count(Counter::DropDuplicate);
            return;
        }
        if fc.parameter > entry.placed_bytes {
            if let Some(recovery) = tx.recovery.as_mut() {
                recovery.ask_read(now_ns, msg_id);
            }
            self.counters.count(Counter::DropAheadRead);
            self.recover_soon(vi, host);
            return;
        }
        let last = fc.f_ctl.contains(FCtl::END_SEQUENCE);
        // Both below 2^32: the sum is checked, never wrapped.
        let end = u64::from(entry.placed_bytes) + iu.payload.len() as u64;
        let whole = end == u64::from(entry.length_bytes);
        if end > u64::from(entry.length_bytes) || last != whole {
            self.counters.count(Counter::IncompleteMessages);
            self.fail_in_flight(now_ns, vi, at, Status::TRANSPORT, host);
            self.break_local(now_ns, vi, MessageReason::MessageIncomplete, host);
            return;
        }
        self.place_read_data(now_ns, vi, at, (fc.seq_cnt, end as u32, last), iu, host);
        self.heard_of(now_ns, vi, true);
    }
}
