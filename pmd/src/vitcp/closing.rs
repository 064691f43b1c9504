//! Connections ended: by the consumer, by the other end, by an error (docs/spec/vitcp.md).

use std::io;
use std::time::{Duration, Instant};

use vi_engine::{AsyncError, ConnectError, EndpointState, Host, Status, ViIndex, Waiter};
use vitcp_lite::machine::passive::{PassiveEvent, PassiveState};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{Flags, IsCode, RemoteError, SegmentHeader, SegmentType, ViErrorType};

use super::ViTcp;
use super::connection::{Connection, Phase, Stage};
use super::counters::Counter;
use super::guests::Guest;
use super::in_flight::Kind;
use super::look::READS_AT_ONCE;
use super::secure::{is_breach, is_cut};
use super::timers::Key;
use super::transmit::said;
use crate::datapath::Datapath;

/// So often a NIC that goes down looks what has arrived of that which it sent.
const LINGERING_LOOKS: Duration = Duration::from_millis(5);

/// Why a connection of a VI is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The other end closed the TCP connection.
    Left,
    /// TCP lost the other end.
    Lost,
    /// The other end does not keep to the protocol; counted so.
    Protocol(Counter),
    /// An error of our own consumer's.
    Local,
    /// The memory of a message that is half sent is gone.
    MemoryGone,
    /// A message of the peer's failed here, which its sender is told if it wants to hear.
    Told { number: u32, error: RemoteError },
    /// A read of the peer's is refused, which the answer says.
    RefusedRead,
    /// A message of ours failed there.
    Refused { number: u32, error: RemoteError },
    /// What we read failed, there or here.
    Failed { number: u32, status: Status },
    /// An answer is late.
    Late,
}

impl Ending {
    pub(super) fn of_error(error: &io::Error) -> Self {
        log::debug!("a TCP connection: {error}");
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self::MemoryGone,
            _ if is_breach(error) => Self::Protocol(Counter::DropTls),
            _ if is_cut(error) => Self::Protocol(Counter::TlsCut),
            _ => Self::Lost,
        }
    }
}

impl ViTcp {
    /// The connection of a VI is over: the VI goes to Error.
    #[cold]
    pub(super) fn end(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        ending: Ending,
        path: &mut Datapath,
    ) {
        let Some(mut connection) = self.take(number) else {
            return;
        };
        match ending {
            Ending::Protocol(counter) => self.counters.count(counter),
            Ending::Told { number, error } => {
                end_segment(vi, &mut connection, path);
                tell(vi, &mut connection, number, error, path);
            }
            Ending::RefusedRead => {
                end_segment(vi, &mut connection, path);
                tell_refused_read(vi, &mut connection, path);
            }
            Ending::Refused { number, error } => {
                fail_in_flight(
                    vi,
                    &mut connection,
                    path,
                    |_, at| at == number,
                    |kind| status_of(error, kind),
                );
            }
            Ending::Failed { number, status } => {
                fail_in_flight(vi, &mut connection, path, |_, at| at == number, |_| status);
            }
            Ending::Late => {
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
            Ending::Local => tell_placed(vi, &mut connection, path),
            Ending::Left | Ending::Lost | Ending::MemoryGone => {}
        }
        fail_held(vi, &mut connection, path);
        if ending == Ending::Left && connection.tx.unfinished.is_none() {
            connection.stream.part();
        }
        let at_once = matches!(ending, Ending::Left | Ending::Lost);
        self.counters.count(Counter::Breaks);
        self.timers.clear(Key::Answer(vi.0));
        let refused = connection.rx.misses.refused();
        self.put(number, connection);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Error;
            ep.refused_accesses = refused;
        }
        path.set_state(vi, EndpointState::Error);
        path.flush_sends(vi);
        path.flush_receives(vi);
        let loss = if ending == Ending::Left {
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

    /// Ends a TCP connection in order: what waits is written, the other end hears that nothing
    /// more comes, and has a while to read it.
    pub(super) fn close(&mut self, now_ns: u64, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let was_ours = connection.guest.is_none();
        connection.stage = Stage::Closing;
        self.watch_again(number);
        if was_ours {
            let _always = self.make_room(Guest::Leaving);
            self.admit(Guest::Leaving, number);
        }
        self.timers
            .set(now_ns + self.settings.answer_ns, Key::Connection(number));
        self.finish(number);
    }

    /// Writes what waits of the procedure, and says that nothing more comes once it is written.
    pub(super) fn finish(&mut self, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if connection.finished {
            return;
        }
        let finished = match connection.tx.unfinished {
            // The other end waits for the rest of a segment that there is not: it hears of no end but TCP's.
            Some(_) => connection.stream.cut(),
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
        if !finished {
            connection.may_write = false;
            return;
        }
        connection.finished = true;
        connection.may_read = true;
        self.queue(number);
    }

    /// A connection that is no VI's has had its time.
    pub(super) fn connection_timeout(&mut self, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            let silent = match *state {
                PassiveState::Challenged => Counter::DropUnansweredChallenge,
                _ => Counter::DropSilentIncoming,
            };
            (*state, _) = state.on(PassiveEvent::Timeout);
            if *state == PassiveState::Disconnected {
                self.counters.count(silent);
            }
        }
        self.remove(number);
    }

    /// The consumer disconnects (VIPL 3.3.5): legal in every state; both queues are flushed and
    /// the VI is Idle when this returns. A connection call that waits on this VI ends with
    /// `InvalidState`.
    pub(crate) fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.leave(now_ns, vi, path);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.peer_request = None;
        }
    }

    /// To the Idle state, from any: both queues flushed.
    fn leave(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let waiting = ep.state() == EndpointState::ConnectPending;
        let phase = core::mem::replace(&mut ep.phase, Phase::Idle);
        if waiting && ep.peer_request.is_none() {
            ep.outcome = Some(Err(ConnectError::InvalidState));
        }
        match phase {
            Phase::Connected(number) => self.part(now_ns, vi, number, path),
            Phase::Asking(request) => {
                self.timers.clear(Key::Request(vi.0));
                self.ask_again.extend(request.theirs);
                self.door.news = true;
                if let Some(number) = request.connection {
                    self.remove(number);
                }
            }
            Phase::Idle | Phase::Error => {}
        }
        path.set_state(vi, EndpointState::Idle);
        path.flush_sends(vi);
        path.flush_receives(vi);
        if waiting {
            self.tell_keeper(now_ns);
            path.control_event(Waiter::Outcome(vi));
        }
    }

    /// A VI leaves its connection: the other end learns what was placed, and that this is all.
    fn part(&mut self, now_ns: u64, vi: ViIndex, number: u32, path: &mut Datapath) {
        self.timers.clear(Key::Answer(vi.0));
        if let Some(mut connection) = self.take(number) {
            tell_placed(vi, &mut connection, path);
            fail_held(vi, &mut connection, path);
            self.put(number, connection);
        }
        self.close(now_ns, number);
    }

    /// A fatal error of the consumer's own making on this VI (VIPL 6.3.1): the VI goes to Error at
    /// every level and in every state.
    pub(crate) fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        match ep.phase {
            Phase::Connected(number) => self.end(now_ns, vi, number, Ending::Local, path),
            Phase::Idle | Phase::Asking(_) => {
                self.leave(now_ns, vi, path);
                if let Some(ep) = self.endpoint_mut(vi) {
                    ep.phase = Phase::Error;
                    ep.peer_request.take_if(|request| request.outcome.is_none());
                }
                path.set_state(vi, EndpointState::Error);
            }
            Phase::Error => {}
        }
    }

    /// The oldest answer that a VI waits for may be late.
    pub(super) fn answer_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(Phase::Connected(number)) = self.endpoint(vi).map(|ep| &ep.phase) else {
            return;
        };
        let number = *number;
        let answer_ns = self.settings.answer_ns;
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let flight = &mut connection.tx.in_flight;
        flight.timer_set = false;
        if flight.unanswered() == 0 {
            return;
        }
        if core::mem::take(&mut flight.moved) {
            // Something came meanwhile: what is out now has its time from here on.
            flight.timer_set = true;
            self.timers.set(now_ns + answer_ns, Key::Answer(vi.0));
        } else {
            self.end(now_ns, vi, number, Ending::Late, path);
        }
    }

    /// The NIC goes down: every connection is closed, and what can be written at once is. What TCP
    /// has taken has `ulp_timeout_ms` to arrive: closed before, it is lost as soon as the other end says
    /// anything. Takes no longer than that and one visit of a connection, whatever and however much peers send.
    pub(crate) fn leave_network(&mut self) {
        let begun = Instant::now();
        let most = Duration::from_nanos(self.settings.answer_ns);
        self.close_door();
        let mut lingering = Vec::new();
        for number in 0..self.connections.len() as u32 {
            let Some(connection) = self.connection_mut(number) else {
                continue;
            };
            if connection.tx.unfinished.is_none() {
                let _gone = write_control(connection);
                connection.stream.part();
            }
            if connection.stream.has_unheard() || connection.stream.is_waiting() {
                self.watch_again(number);
                lingering.push(number);
            } else {
                self.remove(number);
            }
        }
        loop {
            lingering.retain(|number| begun.elapsed() >= most || self.lingers(*number));
            let left = most.saturating_sub(begun.elapsed());
            if lingering.is_empty() || left.is_zero() {
                break;
            }
            // Of what is acknowledged nobody tells.
            self.watch.wait(left.min(LINGERING_LOOKS));
        }
        for number in lingering {
            self.remove(number);
        }
    }

    /// Has the other end not heard all of a connection that ends? If it has, that is closed.
    fn lingers(&mut self, number: u32) -> bool {
        let Some(connection) = self
            .connections
            .get_mut(number as usize)
            .and_then(Option::as_mut)
        else {
            return false;
        };
        connection.finished = connection.finished || connection.stream.cut();
        let over = is_over(|| connection.stream.drain(&mut self.buffer));
        let lingers = !over && (!connection.finished || connection.stream.has_unheard());
        if !lingers {
            self.remove(number);
        }
        lingers
    }
}

/// Reads what a peer still sends to a connection that ends, as much as one visit may. True if it has ended, too.
fn is_over(mut read: impl FnMut() -> io::Result<usize>) -> bool {
    for _ in 0..READS_AT_ONCE {
        match read() {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !super::is_for_later(&error),
        }
    }
    false
}

/// Writes segments of the procedure as far as TCP takes them. False if it is gone.
pub(super) fn write_control(connection: &mut Connection) -> bool {
    while !connection.tx.control.is_empty() {
        let control = &mut connection.tx.control;
        match connection.stream.send_bytes(control) {
            Ok(written) => drop(control.drain(..written)),
            Err(error) if super::is_for_later(&error) => {
                connection.may_write = false;
                return true;
            }
            Err(_) => return false,
        }
    }
    true
}

/// Of a segment TCP has a part: what the other end is told must stand behind the rest. If the
/// memory of that is gone, it is told nothing.
fn end_segment(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    let tx = &mut connection.tx;
    let Some(unfinished) = &tx.unfinished else {
        return;
    };
    let Some(mut bytes) = unfinished.rest(vi, path) else {
        return;
    };
    tx.number = tx.begun_number().unwrap_or(tx.number);
    bytes.append(&mut tx.control);
    tx.control = bytes;
    tx.unfinished = None;
}

/// The peer hears what was placed, if it waits to hear of something.
fn tell_placed(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    if connection.rx.owes_ack {
        end_segment(vi, connection, path);
        let good = connection.rx.good;
        tell(vi, connection, good, RemoteError::NONE, path);
    }
}

/// Has a NOP say what became of a message of the peer's, if the peer wants to hear of that.
fn tell(
    vi: ViIndex,
    connection: &mut Connection,
    number: u32,
    error: RemoteError,
    path: &mut Datapath,
) {
    if !connection.rx.acknowledges {
        return;
    }
    let tx = &mut connection.tx;
    tx.number = tx.number.wrapping_add(1);
    let mut header = SegmentHeader::new(SegmentType::Nop, SEGMENT_HEADER_BYTES as u16);
    header.flags = Flags::END_OF_MESSAGE;
    header.message = tx.number;
    header.ack = number;
    header.remote_error = error;
    header.rx_posted = said(vi, connection, path);
    put_control(connection, &header);
}

/// A read of the peer's is refused, and the connection breaks: the answer must go before.
fn tell_refused_read(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
    let Some(job) = connection.tx.answers.back().copied() else {
        return;
    };
    let bytes = SEGMENT_HEADER_BYTES + vitcp_lite::profile::RDMA_HEADER_BYTES;
    let mut header = SegmentHeader::new(SegmentType::ReadResponse, bytes as u16);
    header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
    header.message = job.number;
    header.ack = connection.rx.good;
    header.rx_posted = said(vi, connection, path);
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

/// What an error at the other end means for a message of this kind.
fn status_of(error: RemoteError, kind: Kind) -> Status {
    match (error.vi_error, kind) {
        _ if error.is_code == IsCode::Transport => Status::TRANSPORT,
        (ViErrorType::Descriptor, Kind::Send | Kind::Write { immediate: true }) => {
            Status::REMOTE_DESCRIPTOR
        }
        (ViErrorType::RdmaProtection, Kind::Write { .. } | Kind::Read) => Status::RDMA_PROTECTION,
        _ => Status::TRANSPORT,
    }
}

/// Completes the message for which `is_it` (place, number) in error, and those before it; one
/// that is being sent, or only begun, may be it, too.
fn fail_in_flight(
    vi: ViIndex,
    connection: &mut Connection,
    path: &mut Datapath,
    is_it: impl Fn(usize, u32) -> bool,
    status: impl Fn(Kind) -> Status,
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
                    (flight.len(), Kind::of(&work))
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
    // It is behind the one that is named, or is that one.
    flight.fault = None;
    if flight.pop().is_some_and(|entry| entry.placed_bytes > 0) {
        status = status.with(Status::PARTIAL);
    }
    path.complete_send(vi, status, 0);
}

/// The connection breaks, and nothing in flight is to blame: a descriptor that failed while it was
/// sent, and waits behind what is in flight, did fail.
fn fail_held(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) {
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
    fn visit_of_a_connection_whose_peer_never_pauses_ends() {
        let mut reads = 0;
        let over = is_over(|| {
            reads += 1;
            assert!(reads <= READS_AT_ONCE, "the peer decides");
            Ok(1)
        });
        assert!(!over);
        assert!(is_over(|| Ok(0)));
        assert!(!is_over(|| Err(io::ErrorKind::WouldBlock.into())));
        assert!(is_over(|| Err(io::ErrorKind::ConnectionReset.into())));
    }
}
