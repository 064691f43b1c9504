//! Fast path for a single small send, as of an application that waits for the response: sent without a
//! plan.

use vi_engine::{EngineIo, Status};
use vi_types::ViIndex;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{Flags, SegmentHeader, SegmentType};

use super::{SendResult, apply_written, handle_write_error, posted_word};
use crate::datapath::Datapath;
use crate::vitcp::ViTcp;
use crate::vitcp::connection::{Connection, Tx};
use crate::vitcp::counters::Counter;
use crate::vitcp::socket::is_would_block;

impl ViTcp {
    /// Sends the only posted descriptor if it is a small send and nothing else is pending; otherwise `None`,
    /// without effect.
    #[inline]
    pub(super) fn send_single(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        connection: &mut Connection,
        path: &mut Datapath,
    ) -> Option<SendResult> {
        if !connection.tx.is_clear() {
            return None;
        }
        let limit_bytes = (connection.tx.segment_bytes)
            .saturating_sub(SEGMENT_HEADER_BYTES as u32)
            .min(connection.max_transfer_bytes);
        let (to, payload) = self.batch.single()?;
        let limit = payload.len().min(limit_bytes as usize);
        let work = path.copy_lone_send(vi, payload.get_mut(..limit)?)?;
        let bytes = work.length_bytes;
        let segment_bytes = SEGMENT_HEADER_BYTES as u16 + bytes as u16;
        let mut header = SegmentHeader::new(SegmentType::Send, segment_bytes);
        header.flags = Flags::END_OF_MESSAGE;
        if let Some(immediate) = work.immediate {
            header.flags = header.flags.with(Flags::IMMEDIATE);
            header.immediate = immediate;
        }
        header.message = connection.tx.number.wrapping_add(1);
        header.ack = connection.rx.ack_number;
        header.rx_posted = posted_word(vi, connection, path);
        header.emit(to);
        let all = self.batch.single_bytes(bytes);
        let written = match connection.stream.send_bytes(all) {
            Ok(written) => written,
            Err(error) if is_would_block(&error) => 0,
            Err(error) => return Some(handle_write_error(connection, &error)),
        };
        self.polls_since_write = 0;
        connection.tx.note_single_send(now_ns);
        if written < all.len() || connection.stream.has_unsent() {
            return Some(self.partial_single(vi, connection, (bytes, written), path));
        }
        self.counters.count(Counter::TxCalls);
        self.counters.add(Counter::TxBytes, written as u64);
        self.counters.count(Counter::TxSegments);
        self.counters.count(Counter::TxMessages);
        connection.rx.note_advertised();
        let tx = &mut connection.tx;
        tx.number = header.message;
        tx.response_next = true;
        if let Some(credits) = &mut tx.credits {
            // `is_clear` has checked that one is available.
            let _used = credits.use_one();
        }
        path.complete_send(vi, Status::OK, bytes);
        Some(SendResult::Nothing)
    }

    /// Handles a single send of which TCP took only a part, or nothing.
    #[cold]
    fn partial_single(
        &mut self,
        vi: ViIndex,
        connection: &mut Connection,
        (payload_bytes, written): (u32, usize),
        path: &mut Datapath,
    ) -> SendResult {
        self.counters.count(Counter::TxNoRoom);
        connection.may_write = false;
        if written > 0 {
            self.counters.count(Counter::TxCalls);
            self.counters.add(Counter::TxBytes, written as u64);
            self.batch.plan_single(payload_bytes);
            let planned = (&self.batch, &mut self.counters);
            apply_written(vi, connection, written, planned, path);
        }
        SendResult::WouldBlock
    }
}

impl Tx {
    /// Checks that nothing is pending, open or in flight before the next message, that a credit is available,
    /// and that its descriptor completes when it is sent.
    #[inline]
    fn is_clear(&self) -> bool {
        self.open.is_none()
            && self.unfinished.is_none()
            && self.control.is_empty()
            && self.read_responses.is_empty()
            && self.in_flight.is_empty()
            && self.in_flight.fault.is_none()
            && !self.awaits_ack
            && !self.corked
            && self.credits.is_none_or(|credits| credits.available() > 0)
    }

    /// Notes a single send, which ends a stream.
    fn note_single_send(&mut self, now_ns: u64) {
        (self.streaming, self.starved) = (false, false);
        self.pushed_ns = now_ns;
    }
}
