//! RDMA reads: requested again where their data stopped, and answered again from there.
//!
//! The initiator takes data in order only. After a gap, or a timeout, it sends its request again;
//! FCVI_PARAMETER is the byte from which it needs the data. The target records as many reads as a
//! peer can have in flight, and checks each again: memory that is not accessible any more may have
//! been released by a completed read, so the target does not break the connection for it.

use fcvi_frame::fc::FCtl;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::MessageReason;

use super::received_ranges::ReceivedRange;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{EngineIo, Status};
use crate::synonym::{Check, skips};

impl Engine {
    /// Reports whether this request is the next message. If not, it is handled here: a stale one
    /// may be a repetition.
    pub(crate) fn read_is_in_order<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> bool {
        let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        if again {
            self.repeat_read(vi, frame, iu, io);
        }
        let range = ReceivedRange {
            msg_id: iu.header.msg_id,
            begin: 0,
            end: 0,
            last: true,
        };
        let Some(gap) = self.order(now_ns, vi, range, frame, io) else {
            return false;
        };
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let next = ep.rx.message.is_none() && ep.rx.expected == iu.header.msg_id;
        if !next {
            self.counters.count(Counter::DropAheadRead);
            self.schedule_acknowledgement(now_ns, vi, 0, gap || again, io);
        }
        next
    }

    /// Counts an accepted read as a complete message.
    pub(crate) fn read_accepted<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let recovery = self.endpoint_mut(vi).and_then(|ep| ep.rx.recovery.as_mut());
        if let Some(recovery) = recovery {
            recovery.ack.messages += 1;
            self.schedule_acknowledgement(now_ns, vi, 0, false, io);
        }
    }

    /// Answers a recorded read again, from the byte that its initiator requests.
    fn repeat_read<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let header = &iu.header;
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        let room = tx.send_payload_bytes.max(1);
        let Some(job) = tx.responses.accepted(header, frame.fc.ox_id) else {
            return;
        };
        let from = header.parameter;
        let inside = from < job.length_bytes || from == 0;
        if !inside || !from.is_multiple_of(room) {
            self.counters.count(Counter::DropBadIu);
            return;
        }
        if !io.check_rdma_read(vi, header) {
            self.refuse_repeated_read(vi, Sequence::reply_to(&frame.fc), header.msg_id, io);
            return;
        }
        let Some(tx) = self.tx_mut(vi) else {
            return;
        };
        if tx.responses.restart_read(job, from, room) {
            tx.responding = true;
            self.counters.count(Counter::ReadsRepeated);
            io.resume(vi);
        } else {
            self.counters.count(Counter::DropTooManyReads);
        }
    }

    /// Handles data of a read of ours.
    pub(crate) fn take_recovered_read_data<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let msg_id = iu.header.msg_id;
        // The target has everything up to the read.
        self.acknowledged_before(now_ns, vi, msg_id.wrapping_add(1), io);
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
                recovery.request_read_again(now_ns, msg_id);
            }
            self.counters.count(Counter::DropAheadRead);
            self.queue_recovery(vi, io);
            return;
        }
        let last = fc.f_ctl.contains(FCtl::END_SEQUENCE);
        // Both below 2^32: the sum is checked, never wrapped.
        let end = u64::from(entry.placed_bytes) + iu.payload.len() as u64;
        let whole = end == u64::from(entry.length_bytes);
        if end > u64::from(entry.length_bytes) || last != whole {
            self.counters.count(Counter::IncompleteMessages);
            self.fail_in_flight(now_ns, vi, at, Status::TRANSPORT, io);
            self.break_local(now_ns, vi, MessageReason::MessageIncomplete, io);
            return;
        }
        self.place_read_data(now_ns, vi, at, (fc.seq_cnt, end as u32, last), iu, io);
        self.restart_recovery_timer(now_ns, vi, true);
    }
}
