//! End of TCP connections without a VI: graceful close, timeouts, and the shutdown of a NIC (docs/spec/vitcp.md).

use std::time::{Duration, Instant};

use vitcp_lite::machine::responder::{ResponderEvent, ResponderState};

use super::connection::Stage;
use super::connection_table::ConnectionTable;
use super::context::Context;
use super::counters::Counter;
use super::poll_sockets::MAX_READS;
use super::stream_error::is_would_block;

use super::timers::TimerKey;
use super::unbound::Unbound;

/// Interval at which a NIC that shuts down checks for acknowledgements of TCP.
const LINGER_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl ConnectionTable {
    /// Closes a TCP connection gracefully: writes pending control segments, then FIN; the peer has the response
    /// timeout to read them.
    pub(super) fn close(&mut self, now_ns: u64, number: u32, context: &mut Context) {
        let Some(connection) = self.get_mut(number) else {
            return;
        };
        let was_bound = connection.unbound.is_none();
        connection.stage = Stage::Closing;
        self.reregister(number);
        if was_bound {
            let _ensured = self.ensure_space(Unbound::Draining, context);
            self.admit(Unbound::Draining, number);
        }
        let deadline_ns = now_ns + context.settings.response_timeout_ns;
        let timer = TimerKey::Connection(number);
        context.timers.set(deadline_ns, timer);
        self.finish(number, context);
    }

    /// Writes pending control segments, and closes the sending direction once they are written.
    fn finish(&mut self, number: u32, context: &mut Context) {
        let Some(connection) = self.get_mut(number) else {
            return;
        };
        if connection.send_closed {
            return;
        }
        let send_closed = match connection.transfer.tx.is_mid_segment() {
            // A segment is incomplete, and its remainder does not exist: nothing can follow it but the FIN.
            true => connection.stream.finish_without_notify(),
            false => {
                if !connection.write_control() {
                    self.remove(number, context);
                    return;
                }
                if !connection.transfer.tx.control.is_empty() {
                    return;
                }
                connection.stream.finish()
            }
        };
        if !send_closed {
            connection.may_write = false;
            return;
        }
        connection.send_closed = true;
        connection.may_read = true;
        self.queue(number);
    }

    /// Discards what the peer sends on a closing connection, until it closes, too. Returns the number of discarded
    /// bytes.
    pub(super) fn serve_closing(&mut self, number: u32, context: &mut Context) -> usize {
        let Some(connection) = self.get_mut(number) else {
            return 0;
        };
        match connection.stream.discard() {
            Ok(0) => self.remove(number, context),
            Ok(got) => {
                self.queue(number);
                return got;
            }
            Err(error) if is_would_block(&error) => {
                connection.may_read = false;
                if connection.may_write && !connection.send_closed {
                    self.finish(number, context);
                }
            }
            Err(_) => self.remove(number, context),
        }
        0
    }

    /// Handles the timeout of a connection without a VI.
    pub(super) fn on_timeout(&mut self, number: u32, context: &mut Context) {
        let Some(connection) = self.get_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            let counter = match *state {
                ResponderState::Challenged => Counter::DropUnansweredChallenge,
                _ => Counter::DropSilentIncoming,
            };
            let counter = match connection.handshake_waits {
                true => Counter::DropTlsHandshakeDelayed,
                false => counter,
            };
            (*state, _) = state.on(ResponderEvent::Timeout);
            if *state == ResponderState::Disconnected {
                context.count(counter);
            }
        }
        self.remove(number, context);
    }

    /// Closes every connection of a NIC that shuts down, after writing what can be written at once. Waits up to
    /// `ulp_timeout_ms` until TCP has delivered the sent data: a socket that is closed earlier drops it as soon as
    /// the peer sends anything. Takes no longer than that and one discard of a connection, whatever peers send.
    pub(super) fn close_all(&mut self, context: &mut Context) {
        let started = Instant::now();
        let timeout = Duration::from_nanos(context.settings.response_timeout_ns);
        let mut lingering = Vec::new();
        for number in self.numbers() {
            let Some(connection) = self.get_mut(number) else {
                continue;
            };
            if !connection.transfer.tx.is_mid_segment() {
                let _written = connection.write_control();
                connection.stream.send_close_notify();
            }
            if connection.stream.has_unacknowledged() || connection.stream.has_unsent() {
                self.reregister(number);
                lingering.push(number);
            } else {
                self.remove(number, context);
            }
        }
        loop {
            lingering
                .retain(|number| started.elapsed() >= timeout || self.lingers(*number, context));
            let left = timeout.saturating_sub(started.elapsed());
            if lingering.is_empty() || left.is_zero() {
                break;
            }
            // Epoll does not report acknowledgements.
            self.epoll.wait(left.min(LINGER_POLL_INTERVAL));
        }
        for number in lingering {
            self.remove(number, context);
        }
    }

    /// Checks whether a closing connection has undelivered data; removes it if not.
    fn lingers(&mut self, number: u32, context: &mut Context) -> bool {
        let Some(connection) = self.get_mut(number) else {
            return false;
        };
        connection.send_closed =
            connection.send_closed || connection.stream.finish_without_notify();
        let peer_closed = connection.discard_received(MAX_READS);
        let lingers =
            !peer_closed && (!connection.send_closed || connection.stream.has_unacknowledged());
        if !lingers {
            self.remove(number, context);
        }
        lingers
    }
}
