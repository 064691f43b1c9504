//! One poll of the sockets: reads, and epoll at intervals.

use std::io;

use vi_engine::{EngineIo, ViParams};
use vi_types::ViIndex;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use super::budget::Budget;
use super::closing::CloseReason;
use super::connection::{Connection, Stage};
use super::counters::Counter;
use super::hot_connection::HOT_POLLS;
use super::receive::Receiver;
use super::shared_listener::LISTENER_GENERATION;
use super::socket::is_would_block;
use super::tls::{SEND_BUFFER_BYTES, is_budget_spent};
use super::{BUFFER_BYTES, EPOLL_INTERVAL, ViTcp};
use crate::datapath::Datapath;
use crate::datapath::stream::IoVecs;

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
    pub(crate) fn poll_sockets(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let just_written = self.has_corked() && self.polls_since_write == 1;
        if just_written && self.skipped_polls < MAX_SKIPPED_POLLS {
            // More is about to be posted, or else the next poll follows soon.
            self.skipped_polls += 1;
            return false;
        }
        self.skipped_polls = 0;
        self.budget = Budget::new();
        let hot_turn = self.poll_hot(now_ns, path);
        let mut worked = hot_turn.is_some_and(|(_, had_data)| had_data);
        self.polls_since_epoll = self.polls_since_epoll.saturating_add(1);
        let busy = (self.hot).is_some_and(|(_, left)| left > HOT_POLLS - BUSY_POLLS);
        let interval = match busy {
            true => self.epoll_interval,
            false => *EPOLL_INTERVAL.start(),
        };
        // Received data has priority, for up to twice the interval.
        let limit = match worked {
            true => 2 * interval,
            false => interval,
        };
        if self.hot.is_none() || self.polls_since_epoll >= limit {
            self.polls_since_epoll = 0;
            worked |= self.poll_epoll(now_ns, path);
            let hot = self.hot.map(|(number, _)| number);
            let others = self.ready.iter().any(|number| Some(*number) != hot);
            self.epoll_interval = match others {
                true => *EPOLL_INTERVAL.start(),
                false => (2 * self.epoll_interval).min(*EPOLL_INTERVAL.end()),
            };
        }
        // What the hot connection took does not count: it is served in every poll.
        self.budget = Budget::new();
        for _ in 0..self.ready.len().min(MAX_SERVED) {
            if self.budget.is_spent() {
                break;
            }
            let Some(number) = self.ready.pop_front() else {
                break;
            };
            if hot_turn.is_some_and(|(hot, _)| hot == number) {
                // It has had its turn in this poll, and has more.
                self.ready.push_back(number);
                continue;
            }
            worked |= self.serve(now_ns, number, path);
        }
        if self.handshakes.is_due() {
            worked |= self.serve_handshake(now_ns, path);
        }
        if !self.deferred_peers.is_empty() {
            worked |= self.retry_deferred_peers(now_ns, path);
        }
        if self.shared_listener.has_returned() {
            worked |= self.take_returned(now_ns, path);
        }
        worked
    }

    /// Reads a connection. If it would block and nothing else is active on it, it is retried a few times:
    /// that finds new data sooner than whole poll iterations.
    fn receive(receiver: &mut Receiver<'_>, iovecs: &IoVecs) -> io::Result<usize> {
        let tx = &receiver.connection.tx;
        let mut tries = match tx.streaming || !receiver.connection.may_write {
            true => 1,
            false => READ_ATTEMPTS,
        };
        loop {
            tries -= 1;
            // SAFETY: the first ranges were found writable under the backend lock, held since; the last
            // one is of our buffer, to which there is no other reference.
            match unsafe { receiver.connection.stream.receive(iovecs) } {
                Err(error) if tries > 0 && is_would_block(&error) => {}
                result => return result,
            }
        }
    }

    /// Polls epoll and queues the connections with events. Returns true if the listener had one.
    pub(crate) fn poll_epoll(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        self.poll_unregistered(path);
        let mut listener_served = false;
        for at in 0..self.epoll.poll() {
            let Some(readiness) = self.epoll.readiness(at) else {
                break;
            };
            let number = readiness.data as u32;
            let generation = (readiness.data >> 32) as u32;
            if generation == LISTENER_GENERATION {
                self.serve_listener(now_ns, number, path);
                listener_served = true;
                continue;
            }
            let Some(connection) = self.connection_mut(number) else {
                continue;
            };
            if connection.generation != generation {
                continue;
            }
            connection.may_read |= readiness.readable;
            connection.peer_closed |= readiness.peer_closed;
            // Writing waiting TLS data counts towards the limits of a poll.
            let unsent = readiness.writable && connection.stream.has_unsent();
            connection.must_flush |= unsent;
            let writable_again = readiness.writable
                && !unsent
                && !core::mem::replace(&mut connection.may_write, true);
            if writable_again && let Some(vi) = connection.vi() {
                path.resume(vi);
            }
            let is_unbound = !matches!(connection.stage, Stage::Connected(_));
            if readiness.readable || unsent || (writable_again && is_unbound) {
                self.queue(number);
            }
        }
        listener_served
    }

    /// Serves one connection. Returns true if it received data or made progress.
    pub(super) fn serve(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let Some(mut connection) = self.take(number) else {
            return false;
        };
        connection.queued = false;
        if core::mem::take(&mut connection.must_flush) {
            self.flush(&mut connection, path);
        }
        let Stage::Connected(vi) = connection.stage else {
            self.put(number, connection);
            self.budget.spend_units(UNBOUND_UNITS);
            return self.serve_unbound(now_ns, number, path);
        };
        let Some(mut params) = self.endpoint(vi).map(|ep| ep.params) else {
            self.put(number, connection);
            return false;
        };
        params.max_transfer_bytes = connection.max_transfer_bytes;
        let mut received = false;
        let mut reason = None;
        self.budget.begin_turn();
        for _ in 0..MAX_READS {
            if !connection.may_read || self.budget.turn_units == 0 {
                break;
            }
            match self.read(now_ns, (vi, params), &mut connection, path) {
                Ok(any) => received |= any,
                Err(error) => {
                    reason = Some(error);
                    break;
                }
            }
        }
        let more = connection.may_read;
        self.put(number, connection);
        if let Some(reason) = reason {
            self.budget.spend_units(BREAK_UNITS);
            self.break_connection(now_ns, vi, number, reason, path);
            return true;
        }
        if more {
            self.queue(number);
        }
        if received {
            self.note_activity(number);
        }
        received
    }

    /// Writes TLS data that waits, now that TCP may have space again.
    #[cold]
    fn flush(&mut self, connection: &mut Connection, path: &mut Datapath) {
        self.budget.spend_bytes(SEND_BUFFER_BYTES);
        let flushed = connection.stream.flush();
        let writable_again = flushed && !core::mem::replace(&mut connection.may_write, true);
        if writable_again && let Some(vi) = connection.vi() {
            path.resume(vi);
        }
    }

    /// Reads and processes the data of one system call for a VI. Returns true if there was any.
    ///
    /// # Errors
    /// Why the connection breaks.
    fn read(
        &mut self,
        now_ns: u64,
        (vi, params): (ViIndex, ViParams),
        connection: &mut Connection,
        path: &mut Datapath,
    ) -> Result<bool, CloseReason> {
        let mut receiver = Receiver {
            now_ns,
            vi,
            params,
            connection,
            path,
            misses: &mut self.misses,
            counters: &mut self.counters,
        };
        self.iovecs.clear();
        let direct = receiver.add_direct(&mut self.iovecs);
        // No more than the headers of as many segments as the turn has left, after the current payload.
        let headers_bytes = self.budget.turn_units as usize * SEGMENT_HEADER_BYTES;
        let buffer_bytes = match direct {
            0 => {
                let left = receiver.connection.rx.decoder.payload_left();
                BUFFER_BYTES.min(usize::from(left) + headers_bytes)
            }
            _ => READ_AHEAD_BYTES.min(headers_bytes),
        };
        let buffer = self.buffer.as_mut_ptr().expose_provenance() as u64;
        self.iovecs.push(buffer, buffer_bytes);
        let result = Self::receive(&mut receiver, &self.iovecs);
        let records = receiver.connection.stream.take_records();
        self.budget.spend_units(records * RECORD_UNITS);
        let got = match result {
            Ok(0) => return Err(CloseReason::PeerClosed),
            Ok(got) => got,
            Err(error) if is_would_block(&error) => {
                receiver.connection.may_read = false;
                return match receiver.connection.write_failed {
                    true => Err(CloseReason::ConnectionLost),
                    false => Ok(false),
                };
            }
            Err(error) if is_budget_spent(&error) => return Ok(false),
            Err(error) => return Err(CloseReason::of_error(&error)),
        };
        receiver.counters.count(Counter::RxCalls);
        receiver.counters.add(Counter::RxBytes, got as u64);
        self.budget.spend_bytes(got);
        let segments_before = receiver.counters.get(Counter::RxSegments);
        let wanted = direct as usize + buffer_bytes;
        // A short read drained the socket, and epoll reports new data; but it does not report again an
        // end of the stream that it has reported.
        let connection = &mut *receiver.connection;
        let ends = connection.peer_closed || connection.write_failed;
        connection.may_read = got == wanted || ends || connection.stream.has_more();
        let placed = got.min(direct as usize);
        if placed > 0 {
            receiver.placed(placed as u32)?;
        }
        match self.buffer.get(..got - placed) {
            Some(bytes) => receiver.feed(bytes)?,
            None => return Err(CloseReason::Protocol(Counter::DropMalformed)),
        }
        let segments = self.counters.get(Counter::RxSegments) - segments_before;
        self.budget.spend_units(segments as u32);
        Ok(true)
    }
}
