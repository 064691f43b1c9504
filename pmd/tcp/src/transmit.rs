//! Transmission to the sockets.
//!
//! Segments are planned for one system call, and only those that TCP took change the state. So a
//! descriptor that waits for space in TCP is not begun, except for the one partly written segment.

use vi_types::{Pumped, ViIndex};

use super::ViTcp;
use super::connection::Connection;
use super::context::Context;
use super::counters::Counter;
use super::endpoint::Phase;
use super::socket::close_reason;
use super::stream_error::is_would_block;
use super::timers::TimerKey;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::transfer::{CloseReason, Plan, Stop, StreamIo};

/// Maximum system calls for one VI before the next VI is served.
const MAX_CALLS: u32 = 4;

/// Result of one send system call.
enum SendResult {
    /// TCP took all bytes: there may be more to send.
    All,
    /// There is nothing to send.
    Nothing,
    /// The send buffer of TCP is full.
    WouldBlock,
    /// The connection breaks.
    Break(CloseReason),
}

impl From<Result<bool, CloseReason>> for SendResult {
    /// Converts the result of a descriptor that was not sent: whether the next one may be.
    fn from(result: Result<bool, CloseReason>) -> Self {
        match result {
            Ok(true) => Self::All,
            Ok(false) => Self::Nothing,
            Err(reason) => Self::Break(reason),
        }
    }
}

impl ViTcp {
    /// Sends the posted descriptors of a VI, and pending read responses and acknowledgements.
    ///
    /// A VI that is not connected completes its descriptors as flushed instead (VIPL 3.3.5, 6.2).
    pub fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) -> Pumped {
        let connector = &mut self.connector;
        let Some(endpoint) = connector.endpoints.get(vi) else {
            return Pumped::Idle;
        };
        let Phase::Connected(number) = endpoint.phase else {
            path.flush_sends(vi);
            return Pumped::Idle;
        };
        let Some(mut connection) = connector.connections.take(number) else {
            return Pumped::Idle;
        };
        let (reason, pumped) = self.pump_connection(now_ns, vi, (number, &mut connection), path);
        let (has_space, write_failed) = (connection.may_write, connection.write_failed);
        let connector = &mut self.connector;
        connector.connections.put(number, connection);
        if !has_space {
            connector.connections.reregister(number);
        }
        if write_failed {
            connector.connections.queue(number);
        }
        if let Some(reason) = reason {
            connector.break_connection(now_ns, vi, number, reason, path);
            return Pumped::Idle;
        }
        pumped
    }

    fn pump_connection(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        (number, connection): (u32, &mut Connection),
        path: &mut impl StreamIo,
    ) -> (Option<CloseReason>, Pumped) {
        for _ in 0..MAX_CALLS {
            if !connection.may_write {
                return (None, Pumped::Idle);
            }
            let single = self.send_single(now_ns, vi, connection, path);
            let call =
                single.unwrap_or_else(|| self.send(now_ns, vi, (number, &mut *connection), path));
            match call {
                // The poller fails the VI next.
                SendResult::All if path.is_failing(vi) => return (None, Pumped::Idle),
                SendResult::All => {}
                SendResult::Nothing | SendResult::WouldBlock => return (None, Pumped::Idle),
                SendResult::Break(reason) => return (Some(reason), Pumped::Idle),
            }
        }
        (None, Pumped::More)
    }

    /// Plans the segments of one system call, sends them, and applies the result.
    fn send(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        (number, connection): (u32, &mut Connection),
        path: &mut impl StreamIo,
    ) -> SendResult {
        let context = &mut self.connector.context;
        let transfer = &mut connection.transfer;
        transfer.tx.complete_answered(vi, path);
        if path.is_failing(vi) {
            return SendResult::Nothing;
        }
        let stop = match Plan::new(vi, transfer, &mut self.batch, path).all() {
            Ok(stop) => stop,
            Err(reason) => return SendResult::Break(reason),
        };
        transfer.note_starving(stop, &mut context.transfer_counters);
        if self.batch.is_empty() {
            return match stop {
                Stop::Fault(status) => transfer.complete_with_fault(vi, status, path).into(),
                Stop::MemoryInvalid => transfer.abort_message(vi, path).into(),
                Stop::Empty | Stop::Wait | Stop::Starved | Stop::Full => SendResult::Nothing,
            };
        }
        // If nothing can follow before the peer responds, the data must not be held back.
        let may_follow = !matches!(stop, Stop::Wait | Stop::Starved);
        let more = self.batch.may_cork(now_ns, may_follow, &mut transfer.tx);
        // SAFETY: ranges of registered memory were found readable under the backend lock, held since;
        // the others are of our buffer.
        let written = match unsafe { connection.stream.send(self.batch.ranges(), more) } {
            Ok(written) => written,
            Err(error) if is_would_block(&error) => {
                context.count(Counter::TxNoRoom);
                connection.may_write = false;
                return SendResult::WouldBlock;
            }
            Err(error) => return handle_write_error(connection, &error, context),
        };
        let uncorked = more && !core::mem::replace(&mut connection.transfer.tx.corked, true);
        self.connector
            .connections
            .corked
            .note_write(uncorked.then_some(number));
        context.count(Counter::TxCalls);
        context.counters.add(Counter::TxBytes, written as u64);
        let all = written == self.batch.bytes() && !connection.stream.has_unsent();
        let planned = (&self.batch, &mut context.transfer_counters);
        connection
            .transfer
            .apply_written(vi, written, planned, path);
        let timeout_ns = context.settings.response_timeout_ns;
        let tx = &mut connection.transfer.tx;
        if let Some(deadline_ns) = tx.response_deadline(now_ns, timeout_ns) {
            context.timers.set(deadline_ns, TimerKey::Response(vi.0));
        }
        if all {
            return SendResult::All;
        }
        context.count(Counter::TxNoRoom);
        // Epoll reports when TCP has space again.
        connection.may_write = false;
        SendResult::WouldBlock
    }

    /// Fast path for a single small send, as of an application that waits for the response: sent without a plan.
    /// `None`, without effect, for anything else.
    #[inline]
    fn send_single(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        connection: &mut Connection,
        path: &mut impl StreamIo,
    ) -> Option<SendResult> {
        let bytes = connection.transfer.plan_single(vi, &mut self.batch, path)?;
        let all = self.batch.buffered(SEGMENT_HEADER_BYTES + bytes as usize);
        let written = match connection.stream.send_bytes(all) {
            Ok(written) => written,
            Err(error) if is_would_block(&error) => 0,
            Err(error) => {
                let context = &mut self.connector.context;
                return Some(handle_write_error(connection, &error, context));
            }
        };
        self.connector.connections.corked.note_write(None);
        connection.transfer.tx.note_single_send(now_ns);
        if written < all.len() || connection.stream.has_unsent() {
            return Some(self.partial_single(vi, connection, (bytes, written), path));
        }
        let context = &mut self.connector.context;
        context.count(Counter::TxCalls);
        context.counters.add(Counter::TxBytes, written as u64);
        let counters = &mut context.transfer_counters;
        connection.transfer.single_sent(vi, bytes, counters, path);
        Some(SendResult::Nothing)
    }

    /// Handles a single send of which TCP took only a part, or nothing.
    #[cold]
    fn partial_single(
        &mut self,
        vi: ViIndex,
        connection: &mut Connection,
        (payload_bytes, written): (u32, usize),
        path: &mut impl StreamIo,
    ) -> SendResult {
        let context = &mut self.connector.context;
        context.count(Counter::TxNoRoom);
        connection.may_write = false;
        if written > 0 {
            context.count(Counter::TxCalls);
            context.counters.add(Counter::TxBytes, written as u64);
            self.batch.plan_single(payload_bytes);
            let planned = (&self.batch, &mut context.transfer_counters);
            connection
                .transfer
                .apply_written(vi, written, planned, path);
        }
        SendResult::WouldBlock
    }
}

/// Handles a failed write. If the connection is lost, data that the peer sent before is still read.
#[cold]
fn handle_write_error(
    connection: &mut Connection,
    error: &std::io::Error,
    context: &mut Context,
) -> SendResult {
    match close_reason(error, context) {
        CloseReason::ConnectionLost => {
            (connection.may_write, connection.may_read) = (false, true);
            connection.write_failed = true;
            SendResult::WouldBlock
        }
        other => SendResult::Break(other),
    }
}
