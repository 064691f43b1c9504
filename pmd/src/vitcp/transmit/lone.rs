//! One small message and nothing else, as of a program that waits for the answer: it needs no plan.

use vi_engine::{Host, Status, ViIndex};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{Flags, SegmentHeader, SegmentType};

use super::{Call, posted_word, settle, unwritable};
use crate::datapath::Datapath;
use crate::vitcp::ViTcp;
use crate::vitcp::connection::{Connection, Tx};
use crate::vitcp::counters::Counter;
use crate::vitcp::socket::is_for_later;

impl ViTcp {
    /// Sends the only descriptor that waits, if it is a small send and nothing else is to be said;
    /// `None`, and nothing is done, if there is more to it.
    #[inline]
    pub(super) fn send_lone(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        connection: &mut Connection,
        path: &mut Datapath,
    ) -> Option<Call> {
        if !connection.tx.is_clear() {
            return None;
        }
        let most_bytes = (connection.tx.segment_bytes)
            .saturating_sub(SEGMENT_HEADER_BYTES as u32)
            .min(connection.max_transfer_bytes);
        let (to, payload) = self.gather.alone()?;
        let most = payload.len().min(most_bytes as usize);
        let work = path.copy_lone_send(vi, payload.get_mut(..most)?)?;
        let bytes = work.length_bytes;
        let segment_bytes = SEGMENT_HEADER_BYTES as u16 + bytes as u16;
        let mut header = SegmentHeader::new(SegmentType::Send, segment_bytes);
        header.flags = Flags::END_OF_MESSAGE;
        if let Some(immediate) = work.immediate {
            header.flags = header.flags.with(Flags::IMMEDIATE);
            header.immediate = immediate;
        }
        header.message = connection.tx.number.wrapping_add(1);
        header.ack = connection.rx.good;
        header.rx_posted = posted_word(vi, connection, path);
        header.emit(to);
        let all = self.gather.lone_bytes(bytes);
        let written = match connection.stream.send_bytes(all) {
            Ok(written) => written,
            Err(error) if is_for_later(&error) => 0,
            Err(error) => return Some(unwritable(connection, &error)),
        };
        self.corked_looks = 0;
        connection.tx.sends_alone(now_ns);
        if written < all.len() || connection.stream.is_waiting() {
            return Some(self.cut_lone(vi, connection, (bytes, written), path));
        }
        self.counters.count(Counter::TxCalls);
        self.counters.add(Counter::TxBytes, written as u64);
        self.counters.count(Counter::TxSegments);
        self.counters.count(Counter::TxMessages);
        connection.rx.say();
        let tx = &mut connection.tx;
        tx.number = header.message;
        tx.answer_next = true;
        if let Some(credits) = &mut tx.credits {
            // One was there.
            let _used = credits.use_one();
        }
        path.complete_send(vi, Status::OK, bytes);
        Some(Call::Nothing)
    }

    /// TCP had no room for the whole of it.
    #[cold]
    fn cut_lone(
        &mut self,
        vi: ViIndex,
        connection: &mut Connection,
        (payload_bytes, written): (u32, usize),
        path: &mut Datapath,
    ) -> Call {
        self.counters.count(Counter::TxNoRoom);
        connection.may_write = false;
        if written > 0 {
            self.counters.count(Counter::TxCalls);
            self.counters.add(Counter::TxBytes, written as u64);
            self.gather.plan_alone(payload_bytes);
            let planned = (&self.gather, &mut self.counters);
            settle(vi, connection, written, planned, path);
        }
        Call::NoRoom
    }
}

impl Tx {
    /// Nothing waits, is open or in flight that the next message would stand behind, and it may
    /// be sent and forgotten.
    #[inline]
    fn is_clear(&self) -> bool {
        self.open.is_none()
            && self.unfinished.is_none()
            && self.control.is_empty()
            && self.answers.is_empty()
            && self.in_flight.is_empty()
            && self.in_flight.fault.is_none()
            && !self.awaits_ack
            && !self.corked
            && self.credits.is_none_or(|credits| credits.available() > 0)
    }

    /// A message goes alone: this is no stream.
    fn sends_alone(&mut self, now_ns: u64) {
        (self.streams, self.starved) = (false, false);
        self.pushed_ns = now_ns;
    }
}
