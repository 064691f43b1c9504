//! Connection teardown: by the consumer, by the peer, by an error (docs/spec/vitcp.md).

use std::io;
use std::time::{Duration, Instant};

use vi_engine::{EngineIo, Status, Waiter};
use vi_types::{AsyncError, CallError, ViIndex, ViState};
use vitcp_lite::machine::responder::{ResponderEvent, ResponderState};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{Flags, IsCode, RemoteError, SegmentHeader, SegmentType, ViErrorType};

use super::ViTcp;
use super::connection::{Connection, Phase, Stage};
use super::counters::Counter;
use super::in_flight::OperationKind;
use super::poll_sockets::MAX_READS;
use super::timers::TimerKey;
use super::tls::{is_tls_error, is_truncated};
use super::transmit::advertise_posted;
use super::unbound::Unbound;
use crate::datapath::Datapath;

/// Interval at which a NIC that shuts down checks for acknowledgements of TCP.
const LINGER_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why a connection of a VI breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The peer closed the TCP connection.
    PeerClosed,
    /// TCP lost the connection.
    ConnectionLost,
    /// The peer violated the protocol; with its counter.
    Protocol(Counter),
    /// A local error of the consumer.
    Local,
    /// The memory of a partly sent segment became invalid.
    MemoryInvalid,
    /// A message of the peer failed here; the error is reported to the peer if it uses acknowledgements.
    ReportedToPeer { number: u32, error: RemoteError },
    /// A read of the peer is refused; the response reports it.
    RefusedRead,
    /// A message of ours failed at the peer.
    FailedAtPeer { number: u32, error: RemoteError },
    /// A read of ours failed, at the peer or here.
    Failed { number: u32, status: Status },
    /// A response did not arrive before its timeout.
    TimedOut,
}

impl CloseReason {
    pub(super) fn of_error(error: &io::Error) -> Self {
        log::debug!("vi-tcp: connection failed: {error}");
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self::MemoryInvalid,
            _ if is_tls_error(error) => Self::Protocol(Counter::DropTls),
            _ if is_truncated(error) => Self::Protocol(Counter::TlsCut),
            _ => Self::ConnectionLost,
        }
    }
}

impl ViTcp {
    /// Breaks the connection of a VI: completes its descriptors and moves the VI to Error.
    #[cold]
    pub(super) fn break_connection(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        reason: CloseReason,
        path: &mut Datapath,
    ) {
        let Some(mut connection) = self.take(number) else {
            return;
        };
        match reason {
            CloseReason::Protocol(counter) => self.counters.count(counter),
            CloseReason::ReportedToPeer { number, error } => {
                finish_segment(vi, &mut connection, path);
                put_ack(vi, &mut connection, number, error, path);
            }
            CloseReason::RefusedRead => {
                finish_segment(vi, &mut connection, path);
                put_read_refusal(vi, &mut connection, path);
            }
            CloseReason::FailedAtPeer { number, error } => {
                fail_in_flight(
                    vi,
                    &mut connection,
                    path,
                    |_, at| at == number,
                    |kind| status_of(error, kind),
                );
            }
            CloseReason::Failed { number, status } => {
                fail_in_flight(vi, &mut connection, path, |_, at| at == number, |_| status);
            }
            CloseReason::TimedOut => {
                self.counters.count(Counter::ResponseTimeouts);
                let first = connection.tx.in_flight.first_unanswered();
                fail_in_flight(
                    vi,
                    &mut connection,
                    path,
                    |at, _| Some(at) == first,
                    |_| Status::TRANSPORT,
                );
            }
            CloseReason::Local => acknowledge_placed(vi, &mut connection, path),
            CloseReason::PeerClosed | CloseReason::ConnectionLost | CloseReason::MemoryInvalid => {}
        }
        complete_fault(vi, &mut connection, path);
        if reason == CloseReason::PeerClosed && connection.tx.unfinished.is_none() {
            connection.stream.send_close_notify();
        }
        let at_once = matches!(
            reason,
            CloseReason::PeerClosed | CloseReason::ConnectionLost
        );
        self.counters.count(Counter::Breaks);
        self.timers.clear(TimerKey::Response(vi.0));
        let refused = connection.rx.misses.refused();
        self.put(number, connection);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Error;
            ep.refused_accesses = refused;
        }
        path.set_state(vi, ViState::Error);
        path.flush_sends(vi);
        path.flush_receives(vi);
        let loss = if reason == CloseReason::PeerClosed {
            AsyncError::Disconnected
        } else {
            AsyncError::ConnectionLost
        };
        path.report(vi, loss);
        if at_once {
            self.remove(number);
        } else {
            self.close(now_ns, number);
        }
    }

    /// Closes a TCP connection gracefully: writes pending control segments, then FIN; the peer has the response
    /// timeout to read them.
    pub(super) fn close(&mut self, now_ns: u64, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let was_bound = connection.unbound.is_none();
        connection.stage = Stage::Closing;
        self.reregister(number);
        if was_bound {
            let _ensured = self.ensure_space(Unbound::Draining);
            self.admit(Unbound::Draining, number);
        }
        let deadline_ns = now_ns + self.settings.response_timeout_ns;
        self.timers.set(deadline_ns, TimerKey::Connection(number));
        self.finish(number);
    }

    /// Writes pending control segments, and closes the sending direction once they are written.
    pub(super) fn finish(&mut self, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if connection.send_closed {
            return;
        }
        let send_closed = match connection.tx.unfinished {
            // A segment is incomplete, and its remainder does not exist: nothing can follow it but the FIN.
            Some(_) => connection.stream.finish_without_notify(),
            None => {
                if !write_control(connection) {
                    self.remove(number);
                    return;
                }
                if !connection.tx.control.is_empty() {
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

    /// Handles the timeout of a connection without a VI.
    pub(super) fn connection_timeout(&mut self, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
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
                self.counters.count(counter);
            }
        }
        self.remove(number);
    }

    /// Disconnects a VI for the consumer (VIPL 3.3.5): legal in every state; both queues are flushed and
    /// the VI is Idle when this returns. A pending connection call on this VI ends with `InvalidState`.
    pub(crate) fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.move_to_idle(now_ns, vi, path);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.peer_request = None;
        }
    }

    /// Moves a VI from any state to Idle, with both queues flushed.
    fn move_to_idle(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let waiting = ep.state() == ViState::ConnectPending;
        let phase = core::mem::replace(&mut ep.phase, Phase::Idle);
        if waiting && ep.peer_request.is_none() {
            ep.outcome = Some(Err(CallError::InvalidState));
        }
        match phase {
            Phase::Connected(number) => self.close_bound(now_ns, vi, number, path),
            Phase::Requesting(request) => {
                self.timers.clear(TimerKey::Request(vi.0));
                self.deferred_peers.extend(request.deferred_peer);
                self.shared_listener.listens_changed = true;
                if let Some(number) = request.connection {
                    self.remove(number);
                }
            }
            Phase::Idle | Phase::Error => {}
        }
        path.set_state(vi, ViState::Idle);
        path.flush_sends(vi);
        path.flush_receives(vi);
        if waiting {
            self.notify_owner(now_ns);
            path.control_event(Waiter::Outcome(vi));
        }
    }

    /// Closes the connection of a VI that disconnects: acknowledges what is placed, then closes.
    fn close_bound(&mut self, now_ns: u64, vi: ViIndex, number: u32, path: &mut Datapath) {
        self.timers.clear(TimerKey::Response(vi.0));
        if let Some(mut connection) = self.take(number) {
            acknowledge_placed(vi, &mut connection, path);
            complete_fault(vi, &mut connection, path);
            self.put(number, connection);
        }
        self.close(now_ns, number);
    }

    /// Moves a VI to Error after a fatal local error of the consumer (VIPL 6.3.1), at every level and in every
    /// state.
    pub(crate) fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        match ep.phase {
            Phase::Connected(number) => {
                self.break_connection(now_ns, vi, number, CloseReason::Local, path);
            }
            Phase::Idle | Phase::Requesting(_) => {
                self.move_to_idle(now_ns, vi, path);
                if let Some(ep) = self.endpoint_mut(vi) {
                    ep.phase = Phase::Error;
                    ep.peer_request.take_if(|request| request.outcome.is_none());
                }
                path.set_state(vi, ViState::Error);
            }
            Phase::Error => {}
        }
    }

    /// Handles the response timer of a VI.
    pub(super) fn response_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(Phase::Connected(number)) = self.endpoint(vi).map(|ep| &ep.phase) else {
            return;
        };
        let number = *number;
        let response_timeout_ns = self.settings.response_timeout_ns;
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let flight = &mut connection.tx.in_flight;
        flight.timer_set = false;
        if flight.unanswered() == 0 {
            return;
        }
        if core::mem::take(&mut flight.progressed) {
            // There was progress meanwhile: the timeout starts anew.
            flight.timer_set = true;
            self.timers
                .set(now_ns + response_timeout_ns, TimerKey::Response(vi.0));
        } else {
            self.break_connection(now_ns, vi, number, CloseReason::TimedOut, path);
        }
    }

    /// Closes every connection of a NIC that shuts down, after writing what can be written at once. Waits up to
    /// `ulp_timeout_ms` until TCP has delivered the sent data: a socket that is closed earlier drops it as soon as
    /// the peer sends anything. Takes no longer than that and one drain of a connection, whatever peers send.
    pub(crate) fn leave_network(&mut self) {
        let started = Instant::now();
        let timeout = Duration::from_nanos(self.settings.response_timeout_ns);
        self.close_listener();
        let mut lingering = Vec::new();
        for number in 0..self.connections.len() as u32 {
            let Some(connection) = self.connection_mut(number) else {
                continue;
            };
            if connection.tx.unfinished.is_none() {
                let _written = write_control(connection);
                connection.stream.send_close_notify();
            }
            if connection.stream.has_unacknowledged() || connection.stream.has_unsent() {
                self.reregister(number);
                lingering.push(number);
            } else {
                self.remove(number);
            }
        }
        loop {
            lingering.retain(|number| started.elapsed() >= timeout || self.lingers(*number));
            let left = timeout.saturating_sub(started.elapsed());
            if lingering.is_empty() || left.is_zero() {
                break;
            }
            // Epoll does not report acknowledgements.
            self.epoll.wait(left.min(LINGER_POLL_INTERVAL));
        }
        for number in lingering {
            self.remove(number);
        }
    }

    /// Checks whether a closing connection has undelivered data; removes it if not.
    fn lingers(&mut self, number: u32) -> bool {
        let Some(connection) = self
            .connections
            .get_mut(number as usize)
            .and_then(Option::as_mut)
        else {
            return false;
        };
        connection.send_closed =
            connection.send_closed || connection.stream.finish_without_notify();
        let peer_closed = has_peer_closed(|| connection.stream.drain(&mut self.buffer));
        let lingers =
            !peer_closed && (!connection.send_closed || connection.stream.has_unacknowledged());
        if !lingers {
            self.remove(number);
        }
        lingers
    }
}

/// Discards data that a peer sends on a closing connection, with at most [`MAX_READS`] reads. Returns true if the
/// peer has closed, or the connection broke.
fn has_peer_closed(mut read: impl FnMut() -> io::Result<usize>) -> bool {
    for _ in 0..MAX_READS {
        match read() {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !super::is_would_block(&error),
        }
    }
    false
}

/// Writes pending control segments as far as TCP takes them. Returns false if the connection is broken.
pub(super) fn write_control(connection: &mut Connection) -> bool {
    while !connection.tx.control.is_empty() {
        let control = &mut connection.tx.control;
        match connection.stream.send_bytes(control) {
            Ok(written) => drop(control.drain(..written)),
            Err(error) if super::is_would_block(&error) => {
                connection.may_write = false;
                return true;
            }
            Err(_) => return false,
        }
    }
    true
}

/// Moves the remainder of a partly written segment to the pending control segments, so that others can follow.
/// If its memory is invalid, nothing changes: nothing can follow.
fn finish_segment(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    let tx = &mut connection.tx;
    let Some(unfinished) = &tx.unfinished else {
        return;
    };
    let Some(mut bytes) = unfinished.remainder(vi, path) else {
        return;
    };
    tx.number = tx.begun_number().unwrap_or(tx.number);
    bytes.append(&mut tx.control);
    tx.control = bytes;
    tx.unfinished = None;
}

/// Adds the due acknowledgement of placed messages to the pending control segments.
fn acknowledge_placed(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    if connection.rx.ack_pending {
        finish_segment(vi, connection, path);
        let ack_number = connection.rx.ack_number;
        put_ack(vi, connection, ack_number, RemoteError::NONE, path);
    }
}

/// Adds a NOP with the acknowledgement or error of a message, if the peer uses acknowledgements.
fn put_ack(
    vi: ViIndex,
    connection: &mut Connection,
    number: u32,
    error: RemoteError,
    path: &mut Datapath,
) {
    if !connection.rx.sends_acks {
        return;
    }
    let tx = &mut connection.tx;
    tx.number = tx.number.wrapping_add(1);
    let mut header = SegmentHeader::new(SegmentType::Nop, SEGMENT_HEADER_BYTES as u16);
    header.flags = Flags::END_OF_MESSAGE;
    header.message = tx.number;
    header.ack = number;
    header.remote_error = error;
    header.rx_posted = advertise_posted(vi, connection, path);
    put_control(connection, &header);
}

/// Adds the refusal of the peer's last read, before the connection breaks.
fn put_read_refusal(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    let Some(job) = connection.tx.read_responses.back().copied() else {
        return;
    };
    let bytes = SEGMENT_HEADER_BYTES + vitcp_lite::profile::RDMA_HEADER_BYTES;
    let mut header = SegmentHeader::new(SegmentType::ReadResponse, bytes as u16);
    header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
    header.message = job.number;
    header.ack = connection.rx.ack_number;
    header.rx_posted = advertise_posted(vi, connection, path);
    put_control(connection, &header);
    let mut rdma = [0; vitcp_lite::profile::RDMA_HEADER_BYTES];
    vitcp_lite::RdmaHeader {
        address: job.source.0,
        handle: job.source.1,
        total_bytes: job.total_bytes,
    }
    .emit(&mut rdma);
    connection.tx.control.extend(rdma);
}

pub(super) fn put_control(connection: &mut Connection, header: &SegmentHeader) {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    header.emit(&mut bytes);
    connection.tx.control.extend(bytes);
}

/// Converts a Remote Error Code to the status of an operation.
fn status_of(error: RemoteError, kind: OperationKind) -> Status {
    match (error.vi_error, kind) {
        _ if error.is_code == IsCode::Transport => Status::TRANSPORT,
        (
            ViErrorType::Descriptor,
            OperationKind::Send | OperationKind::Write { immediate: true },
        ) => Status::REMOTE_DESCRIPTOR,
        (ViErrorType::RdmaProtection, OperationKind::Write { .. } | OperationKind::Read) => {
            Status::RDMA_PROTECTION
        }
        _ => Status::TRANSPORT,
    }
}

/// Completes the message for which `is_it` (index, number) returns true in error, and those before it. It may
/// also be a message that is partly sent.
fn fail_in_flight(
    vi: ViIndex,
    connection: &mut Connection,
    path: &mut Datapath,
    is_it: impl Fn(usize, u32) -> bool,
    status: impl Fn(OperationKind) -> Status,
) {
    let tx = &mut connection.tx;
    let begun = tx.begun_number();
    let flight = &mut tx.in_flight;
    let found = (0..flight.len()).find(|at| {
        flight
            .get(*at)
            .is_some_and(|entry| is_it(*at, entry.number))
    });
    let (at, kind) = match found.and_then(|at| Some((at, flight.get(at)?.kind))) {
        Some(found) => found,
        None => {
            let open = tx.open.map(|open| (open.number, open.work));
            let begun = begun.and_then(|number| Some((number, path.work_ahead(vi, 0)?)));
            match open.or(begun) {
                Some((number, work)) if is_it(flight.len(), number) => {
                    (flight.len(), OperationKind::of(&work))
                }
                Some(_) | None => return,
            }
        }
    };
    for _ in 0..at {
        if let Some(entry) = flight.pop() {
            match entry.answered {
                true => path.complete_send(vi, Status::OK, entry.length_bytes),
                false => path.complete_send(vi, Status::FLUSHED, 0),
            }
        }
        if path.is_failing(vi) {
            // The caller flushes the rest.
            flight.fault = None;
            return;
        }
    }
    let mut status = status(kind);
    // The stored fault is that of this message, or of a later one.
    flight.fault = None;
    if flight.pop().is_some_and(|entry| entry.placed_bytes > 0) {
        status = status.with(Status::PARTIAL);
    }
    path.complete_send(vi, status, 0);
}

/// Completes a descriptor that failed during its send, after those in flight, when the connection breaks for
/// another reason.
fn complete_fault(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    let flight = &mut connection.tx.in_flight;
    let Some(status) = flight.fault.take() else {
        return;
    };
    while let Some(entry) = flight.pop() {
        match entry.answered {
            true => path.complete_send(vi, Status::OK, entry.length_bytes),
            false => path.complete_send(vi, Status::FLUSHED, 0),
        }
        if path.is_failing(vi) {
            return;
        }
    }
    path.complete_send(vi, status, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_peer_closed_limits_reads_of_an_active_peer() {
        let mut reads = 0;
        let closed = has_peer_closed(|| {
            reads += 1;
            assert!(reads <= MAX_READS, "the peer controls the number of reads");
            Ok(1)
        });
        assert!(!closed);
        assert!(has_peer_closed(|| Ok(0)));
        assert!(!has_peer_closed(|| Err(io::ErrorKind::WouldBlock.into())));
        assert!(has_peer_closed(|| Err(
            io::ErrorKind::ConnectionReset.into()
        )));
    }
}
