//! One poll of the sockets: reads, and epoll at intervals.

use std::io;

use vi_types::ViIndex;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use super::budget::Budget;
use super::connection::{Connection, Stage};
use super::counters::Counter;
use super::socket::SEND_BUFFER_BYTES;
use super::socket::close_reason;
use super::stream_error::{is_budget_spent, is_would_block};
use super::{BUFFER_BYTES, EPOLL_INTERVAL, ViTcp};
use vitcp_lite::transfer::Receiver;
use vitcp_lite::transfer::{CloseReason, Counter as TransferCounter, MemoryRanges, StreamIo};

/// Bytes read into the buffer after a direct read: the next headers.
const READ_AHEAD_BYTES: usize = 4 << 10;
/// Maximum connections served by one poll.
const MAX_SERVED: usize = 32;
/// Maximum reads of a connection in one poll.
pub(super) const MAX_READS: u32 = 4;
/// Units of a TLS record.
const RECORD_UNITS: u32 = 4;
/// Units of a connection without a VI: a few system calls, or a lookup of its request.
const UNBOUND_UNITS: u32 = 128;
/// Units of a connection that breaks: its descriptors are flushed.
const BREAK_UNITS: u32 = 512;
/// Attempts of a read that would block.
const READ_ATTEMPTS: u32 = 3;
/// Maximum consecutive polls skipped after corked writes.
const MAX_SKIPPED_POLLS: u32 = 2;
/// If the hot connection had data within this many polls, the epoll interval doubles as long as the other
/// connections are idle; otherwise it is the minimum.
const BUSY_POLLS: u32 = 16;

impl ViTcp {
    /// Polls the sockets and processes received data. Returns true if there was any.
    pub fn poll_sockets(&mut self, now_ns: u64, path: &mut impl StreamIo) -> bool {
        let just_written = self.connector.connections.corked.was_just_written();
        if just_written && self.skipped_polls < MAX_SKIPPED_POLLS {
            // More is about to be posted, or else the next poll follows soon.
            self.skipped_polls += 1;
            return false;
        }
        self.skipped_polls = 0;
        self.connector.budget = Budget::new();
        let hot = self.connector.connections.begin_hot_turn();
        let mut worked = hot.is_some_and(|number| self.serve(now_ns, number, path));
        worked |= self.poll_epoll_at_intervals(now_ns, worked, path);
        // What the hot connection took does not count: it is served in every poll.
        self.connector.budget = Budget::new();
        for _ in 0..self.connector.connections.ready().min(MAX_SERVED) {
            if self.connector.budget.is_spent() {
                break;
            }
            let Some(number) = self.connector.connections.next_ready() else {
                break;
            };
            if hot == Some(number) {
                // It has had its turn in this poll, and has more.
                self.connector.connections.requeue(number);
                continue;
            }
            worked |= self.serve(now_ns, number, path);
        }
        let connector = &mut self.connector;
        if connector.connections.handshakes.is_due() {
            worked |= connector.serve_handshake(now_ns, path);
        }
        if !connector.deferred_peers.is_empty() {
            worked |= connector.retry_deferred_peers(now_ns, path);
        }
        if connector.shared_listener.returned() > 0 {
            worked |= connector.take_returned(now_ns, path);
        }
        worked
    }

    /// Polls epoll if its interval has passed, which adapts to the activity; `worked`: the hot connection had data.
    /// Returns true if the listener had an event.
    fn poll_epoll_at_intervals(
        &mut self,
        now_ns: u64,
        worked: bool,
        path: &mut impl StreamIo,
    ) -> bool {
        let connections = &self.connector.connections;
        self.polls_since_epoll = self.polls_since_epoll.saturating_add(1);
        let interval = match connections.was_hot_within(BUSY_POLLS) {
            true => self.epoll_interval,
            false => *EPOLL_INTERVAL.start(),
        };
        // Received data has priority, for up to twice the interval.
        let limit = match worked {
            true => 2 * interval,
            false => interval,
        };
        if connections.hot().is_some() && self.polls_since_epoll < limit {
            return false;
        }
        self.polls_since_epoll = 0;
        let listener_served = self.connector.poll_epoll(now_ns, path);
        self.epoll_interval = match self.connector.connections.has_other_ready() {
            true => *EPOLL_INTERVAL.start(),
            false => (2 * self.epoll_interval).min(*EPOLL_INTERVAL.end()),
        };
        listener_served
    }

    /// Reads a connection. If it would block and nothing else is active on it, it is retried a few times:
    /// that finds new data sooner than whole poll iterations.
    fn receive(connection: &mut Connection, iovecs: &MemoryRanges) -> io::Result<usize> {
        let tx = &connection.transfer.tx;
        let mut tries = match tx.streaming || !connection.may_write {
            true => 1,
            false => READ_ATTEMPTS,
        };
        loop {
            tries -= 1;
            // SAFETY: the first ranges were found writable under the backend lock, held since; the last
            // one is of our buffer, to which there is no other reference.
            match unsafe { connection.stream.receive(iovecs) } {
                Err(error) if tries > 0 && is_would_block(&error) => {}
                result => return result,
            }
        }
    }

    /// Serves one connection. Returns true if it received data or made progress.
    fn serve(&mut self, now_ns: u64, number: u32, path: &mut impl StreamIo) -> bool {
        let connector = &mut self.connector;
        let Some(mut connection) = connector.connections.take(number) else {
            return false;
        };
        connection.queued = false;
        if core::mem::take(&mut connection.must_flush) {
            flush(&mut connection, &mut connector.budget, path);
        }
        let Stage::Connected(vi) = connection.stage else {
            connector.connections.put(number, connection);
            connector.budget.spend_units(UNBOUND_UNITS);
            return connector.serve_unbound(now_ns, number, path);
        };
        let mut received = false;
        let mut reason = None;
        connector.budget.begin_turn();
        for _ in 0..MAX_READS {
            if !connection.may_read || self.connector.budget.turn_units == 0 {
                break;
            }
            match self.read(now_ns, vi, &mut connection, path) {
                Ok(any) => received |= any,
                Err(error) => {
                    reason = Some(error);
                    break;
                }
            }
        }
        let more = connection.may_read;
        let connector = &mut self.connector;
        connector.connections.put(number, connection);
        if let Some(reason) = reason {
            connector.budget.spend_units(BREAK_UNITS);
            connector.break_connection(now_ns, vi, number, reason, path);
            return true;
        }
        if more {
            connector.connections.queue(number);
        }
        if received {
            connector.connections.note_activity(number);
        }
        received
    }

    /// Reads and processes the data of one system call for a VI. Returns true if there was any.
    ///
    /// # Errors
    /// Why the connection breaks.
    fn read(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        connection: &mut Connection,
        path: &mut impl StreamIo,
    ) -> Result<bool, CloseReason> {
        let context = &mut self.connector.context;
        let budget = &mut self.connector.budget;
        self.iovecs.clear();
        let direct = connection.transfer.add_direct(vi, path, &mut self.iovecs);
        // No more than the headers of as many segments as the turn has left, after the current payload.
        let headers_bytes = budget.turn_units as usize * SEGMENT_HEADER_BYTES;
        let buffer_bytes = match direct {
            0 => {
                let left = connection.transfer.rx.decoder.payload_left();
                BUFFER_BYTES.min(usize::from(left) + headers_bytes)
            }
            _ => READ_AHEAD_BYTES.min(headers_bytes),
        };
        let buffer = self.buffer.as_mut_ptr().expose_provenance() as u64;
        self.iovecs.push(buffer, buffer_bytes);
        let result = Self::receive(connection, &self.iovecs);
        let records = connection.stream.take_records();
        budget.spend_units(records * RECORD_UNITS);
        let got = match result {
            Ok(0) => return Err(CloseReason::PeerClosed),
            Ok(got) => got,
            Err(error) if is_would_block(&error) => {
                connection.may_read = false;
                return match connection.write_failed {
                    true => Err(CloseReason::ConnectionLost),
                    false => Ok(false),
                };
            }
            Err(error) if is_budget_spent(&error) => return Ok(false),
            Err(error) => return Err(close_reason(&error, context)),
        };
        context.count(Counter::RxCalls);
        context.counters.add(Counter::RxBytes, got as u64);
        budget.spend_bytes(got);
        let segments_before = context.transfer_counters.get(TransferCounter::RxSegments);
        let wanted = direct as usize + buffer_bytes;
        // A short read drained the socket, and epoll reports new data; but it does not report again an
        // end of the stream that it has reported.
        let ends = connection.peer_closed || connection.write_failed;
        connection.may_read = got == wanted || ends || connection.stream.has_more();
        let mut receiver = Receiver {
            now_ns,
            vi,
            transfer: &mut connection.transfer,
            path,
            misses: &mut self.connector.misses,
            counters: &mut context.transfer_counters,
        };
        let placed = got.min(direct as usize);
        if placed > 0 {
            receiver.placed(placed as u32)?;
        }
        match self.buffer.get(..got - placed) {
            Some(bytes) => receiver.feed(bytes)?,
            None => return Err(CloseReason::Protocol(TransferCounter::DropMalformed)),
        }
        let segments = context.transfer_counters.get(TransferCounter::RxSegments) - segments_before;
        budget.spend_units(segments as u32);
        Ok(true)
    }
}

/// Writes TLS data that waits, now that TCP may have space again.
#[cold]
fn flush(connection: &mut Connection, budget: &mut Budget, path: &mut impl StreamIo) {
    budget.spend_bytes(SEND_BUFFER_BYTES);
    let flushed = connection.stream.flush();
    let writable_again = flushed && !core::mem::replace(&mut connection.may_write, true);
    if writable_again && let Some(vi) = connection.vi() {
        path.resume(vi);
    }
}
