//! Descriptors cut into segments: from a send queue to TCP.
//!
//! Segments are planned for one system call, and what TCP took of them is done. So a descriptor
//! that waits for room is not begun, but for the one segment of which TCP took a part.

mod lone;
mod plan;

use vi_engine::{Host, Operation, Pumped, SendWork, Status, ViIndex};
use vitcp_lite::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{Flags, RdmaHeader, RemoteError, SegmentHeader, SegmentType};

use super::ViTcp;
use super::closing::Ending;
use super::connection::{Connection, Endpoint, Open, Phase, Stage, Tx};
use super::counters::{Counter, Counters};
use super::gather::{Gather, KEPT_BACK_LOOKS, KEPT_BACK_NS, Part};
use super::in_flight::{Entry, Kind};
use super::socket::is_for_later;
use crate::datapath::Datapath;

use plan::{Plan, Stop};

/// System calls that one VI may make before the next one has its turn.
const CALLS: u32 = 4;

/// What one system call came to.
enum Call {
    /// TCP took all of it: there may be more.
    All,
    /// There is nothing to send now.
    Nothing,
    /// TCP has no room.
    NoRoom,
    /// The connection is over, in this way.
    Over(Ending),
}

impl ViTcp {
    /// Sends what this VI has posted, and what its peer is owed.
    ///
    /// A VI that is not connected completes its descriptors as flushed instead (VIPL 3.3.5, 6.2).
    pub(crate) fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) -> Pumped {
        let Some(ep) = self.endpoint(vi) else {
            return Pumped::Idle;
        };
        let Phase::Connected(number) = ep.phase else {
            path.flush_sends(vi);
            return Pumped::Idle;
        };
        let Some(mut connection) = self.take(number) else {
            return Pumped::Idle;
        };
        let (ending, pumped) = self.pump_connection(now_ns, vi, (number, &mut *connection), path);
        let (has_room, lost) = (connection.may_write, connection.lost);
        self.put(number, connection);
        if !has_room {
            self.watch_again(number);
        }
        if lost {
            self.queue(number);
        }
        if let Some(ending) = ending {
            self.end(now_ns, vi, number, ending, path);
            return Pumped::Idle;
        }
        pumped
    }

    fn pump_connection(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        (number, connection): (u32, &mut Connection),
        path: &mut Datapath,
    ) -> (Option<Ending>, Pumped) {
        for _ in 0..CALLS {
            if !connection.may_write {
                return (None, Pumped::Idle);
            }
            let lone = self.send_lone(now_ns, vi, connection, path);
            let call =
                lone.unwrap_or_else(|| self.call(now_ns, vi, (number, &mut *connection), path));
            match call {
                // The poller fails it next.
                Call::All if path.is_failing(vi) => return (None, Pumped::Idle),
                Call::All => {}
                Call::Nothing | Call::NoRoom => return (None, Pumped::Idle),
                Call::Over(ending) => return (Some(ending), Pumped::Idle),
            }
        }
        (None, Pumped::More)
    }

    /// Does TCP keep something back that nobody pushed yet?
    #[inline]
    pub(crate) fn has_corked(&self) -> bool {
        !self.corked.is_empty()
    }

    /// Pushes what TCP has kept back for long enough; `all`: whatever it keeps back.
    pub(crate) fn push(&mut self, now_ns: u64, all: bool) {
        let Self {
            corked,
            corked_looks,
            connections,
            ..
        } = self;
        *corked_looks += 1;
        let all = all || *corked_looks >= KEPT_BACK_LOOKS;
        corked.retain(|number| {
            let connection = connections.get_mut(*number as usize);
            let Some(connection) = connection.and_then(Option::as_mut) else {
                return false;
            };
            let tx = &mut connection.tx;
            if !all && tx.corked && now_ns < tx.pushed_ns + KEPT_BACK_NS {
                return true;
            }
            if core::mem::take(&mut tx.corked) {
                connection.stream.push();
            }
            false
        });
    }

    /// Plans segments for one system call, makes it, and does what became of it.
    fn call(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        (number, connection): (u32, &mut Connection),
        path: &mut Datapath,
    ) -> Call {
        let slot = vi.0 as usize;
        let Some(ep) = self.endpoints.get_mut(slot).and_then(Option::as_mut) else {
            return Call::Nothing;
        };
        complete_answered(vi, &mut connection.tx, path);
        if path.is_failing(vi) {
            return Call::Nothing;
        }
        self.gather.clear();
        let mut plan = Plan {
            vi,
            ep,
            connection,
            gather: &mut self.gather,
            path,
            rx_posted: 0,
        };
        let stop = match plan.all() {
            Ok(stop) => stop,
            Err(ending) => return Call::Over(ending),
        };
        note_starving(stop, connection, &mut self.counters);
        if self.gather.is_empty() {
            return match stop {
                Stop::Fault(status) => refuse(vi, ep, connection, status, path),
                Stop::Gone => gone(vi, ep, connection, path),
                Stop::Empty | Stop::Wait | Stop::Starved | Stop::Full => Call::Nothing,
            };
        }
        // Who waits for the peer sends it all that there is.
        let may_follow = !matches!(stop, Stop::Wait | Stop::Starved);
        let more = self
            .gather
            .keeps_back(now_ns, may_follow, &mut connection.tx);
        // SAFETY: pieces of registered memory were found readable in this turn, which we run
        // under; the others are of our buffer.
        let written = match unsafe { connection.stream.send(self.gather.pieces(), more) } {
            Ok(written) => written,
            Err(error) if is_for_later(&error) => {
                self.counters.count(Counter::TxNoRoom);
                connection.may_write = false;
                return Call::NoRoom;
            }
            Err(error) => return unwritable(connection, &error),
        };
        self.corked_looks = 0;
        let uncorked = more && !core::mem::replace(&mut connection.tx.corked, true);
        if uncorked && !self.corked.contains(&number) {
            self.corked.push(number);
        }
        self.counters.count(Counter::TxCalls);
        self.counters.add(Counter::TxBytes, written as u64);
        let all = written == self.gather.bytes() && !connection.stream.is_waiting();
        settle(
            vi,
            connection,
            written,
            (&self.gather, &mut self.counters),
            path,
        );
        if let Some(due_ns) = answer_due(now_ns, self.settings.answer_ns, connection) {
            self.timers.set(due_ns, super::timers::Key::Answer(vi.0));
        }
        if all {
            return Call::All;
        }
        self.counters.count(Counter::TxNoRoom);
        // What there was no room for is told of when there is.
        connection.may_write = false;
        Call::NoRoom
    }
}

/// Writing failed. If the other end is gone, what it sent before still counts.
#[cold]
fn unwritable(connection: &mut Connection, error: &std::io::Error) -> Call {
    match Ending::of_error(error) {
        Ending::Lost => {
            (connection.may_write, connection.may_read, connection.lost) = (false, true, true);
            Call::NoRoom
        }
        other => Call::Over(other),
    }
}

fn rdma((address, handle): (u64, u32), total_bytes: u32) -> RdmaHeader {
    RdmaHeader {
        address,
        handle,
        total_bytes,
    }
}

/// Does this message take a receive descriptor at the other end?
fn takes_descriptor(work: &SendWork) -> bool {
    match work.operation {
        Operation::Send => true,
        Operation::Write { .. } => work.immediate.is_some(),
        Operation::Read { .. } => false,
    }
}

/// Rx Descriptors Posted as it stands now; [`Rx::say`] when a segment with it is on its way.
///
/// [`Rx::say`]: super::connection::Rx::say
pub(super) fn posted_word(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) -> u16 {
    let unclaimed = path.unclaimed(vi);
    let rx = &mut connection.rx;
    let total = rx.used.wrapping_add(unclaimed);
    match &mut rx.posted {
        Some(posted) => {
            posted.note(total);
            posted.word()
        }
        None => total as u16,
    }
}

/// As [`posted_word`], for a segment that waits with those of the procedure, whatever comes.
pub(super) fn said(vi: ViIndex, connection: &mut Connection, path: &mut Datapath) -> u16 {
    let word = posted_word(vi, connection, path);
    connection.rx.say();
    word
}

fn note_starving(stop: Stop, connection: &mut Connection, counters: &mut Counters) {
    let starved = stop == Stop::Starved;
    if starved && !connection.tx.starved {
        counters.count(Counter::FlowControlWaits);
    }
    connection.tx.starved = starved;
}

/// Does what became of the planned segments when TCP took so many bytes.
fn settle(
    vi: ViIndex,
    connection: &mut Connection,
    written: usize,
    (gather, counters): (&Gather, &mut Counters),
    path: &mut Datapath,
) {
    let Connection { tx, rx, .. } = connection;
    let before = tx.unfinished.take();
    // The rest of a segment says what it said when it was planned.
    let mut rest = before.is_some();
    let mut says = false;
    let unfinished = gather.settle(written, before.as_ref(), |part| {
        let part = match part {
            Part::Rest => {
                rest = false;
                before.map_or(Part::Nop, |before| before.part)
            }
            Part::Control(bytes) => {
                tx.control.drain(..bytes as usize);
                return;
            }
            part => {
                says = true;
                part
            }
        };
        counters.count(Counter::TxSegments);
        match part {
            Part::Own {
                payload_bytes,
                begins,
                ends,
            } => own_sent(vi, tx, (payload_bytes, begins, ends), counters, path),
            Part::Read => read_sent(vi, tx, counters, path),
            Part::Answer {
                payload_bytes,
                ends,
            } => {
                tx.answer_next = false;
                if let Some(job) = tx.answers.front_mut() {
                    job.sent_bytes += payload_bytes;
                }
                if ends {
                    tx.answers.pop_front();
                }
            }
            Part::Nop => {
                tx.number = tx.number.wrapping_add(1);
                counters.count(Counter::TxNops);
            }
            Part::Control(_) | Part::Rest => {}
        }
    });
    says |= unfinished.is_some() && !rest;
    if says {
        rx.say();
    }
    tx.unfinished = unfinished;
}

/// A segment of the message of the next descriptor is with TCP.
fn own_sent(
    vi: ViIndex,
    tx: &mut Tx,
    (payload_bytes, begins, ends): (u32, bool, bool),
    counters: &mut Counters,
    path: &mut Datapath,
) {
    if begins {
        let Some(work) = path.work_ahead(vi, 0) else {
            return;
        };
        tx.number = tx.number.wrapping_add(1);
        tx.open = Some(Open {
            work,
            number: tx.number,
            sent_bytes: 0,
        });
        if takes_descriptor(&work)
            && let Some(credits) = &mut tx.credits
        {
            // One was there when it was planned.
            let _used = credits.use_one();
        }
    }
    tx.answer_next = true;
    let Some(open) = &mut tx.open else {
        return;
    };
    open.sent_bytes += payload_bytes;
    if !ends {
        return;
    }
    let open = *open;
    tx.open = None;
    counters.count(Counter::TxMessages);
    if !tx.awaits_ack && tx.in_flight.is_empty() {
        path.complete_send(vi, Status::OK, open.work.length_bytes);
        return;
    }
    tx.in_flight.push(Entry {
        kind: Kind::of(&open.work),
        answered: !tx.awaits_ack,
        number: open.number,
        source: (0, 0),
        length_bytes: open.work.length_bytes,
        placed_bytes: 0,
    });
    path.keep_in_flight(vi);
}

/// The request of a read is with TCP.
fn read_sent(vi: ViIndex, tx: &mut Tx, counters: &mut Counters, path: &mut Datapath) {
    let Some(work) = path.work_ahead(vi, 0) else {
        return;
    };
    let Operation::Read { remote } = work.operation else {
        return;
    };
    tx.number = tx.number.wrapping_add(1);
    counters.count(Counter::TxMessages);
    tx.in_flight.push(Entry {
        kind: Kind::Read,
        answered: false,
        number: tx.number,
        source: remote,
        length_bytes: work.length_bytes,
        placed_bytes: 0,
    });
    path.keep_in_flight(vi);
}

/// Completes what waits for nothing any more.
pub(super) fn complete_answered(vi: ViIndex, tx: &mut Tx, path: &mut Datapath) {
    while !path.is_failing(vi)
        && let Some(entry) = tx.in_flight.pop_answered()
    {
        path.complete_send(vi, Status::OK, entry.length_bytes);
    }
}

/// From when on an answer is late, if that is not watched yet.
fn answer_due(now_ns: u64, answer_ns: u64, connection: &mut Connection) -> Option<u64> {
    let flight = &mut connection.tx.in_flight;
    if flight.unanswered() == 0 || flight.timer_set {
        return None;
    }
    flight.timer_set = true;
    flight.moved = false;
    Some(now_ns + answer_ns)
}

/// A descriptor that must not be sent: completed with its fault; a reliable VI breaks.
#[cold]
fn refuse(
    vi: ViIndex,
    ep: &Endpoint,
    connection: &mut Connection,
    status: Status,
    path: &mut Datapath,
) -> Call {
    if !connection.tx.in_flight.is_empty() {
        connection.tx.in_flight.fault = Some(status);
        return Call::Nothing;
    }
    connection.tx.in_flight.fault = None;
    path.complete_send(vi, status, 0);
    if ep.is_reliable() {
        return Call::Over(Ending::Local);
    }
    Call::All
}

/// The memory of a message went that was sent in part: it ends with Transmit Error.
#[cold]
fn gone(vi: ViIndex, ep: &Endpoint, connection: &mut Connection, path: &mut Datapath) -> Call {
    let tx = &mut connection.tx;
    let Some(open) = tx.open.take() else {
        return Call::Nothing;
    };
    let (kind, remote) = match open.work.operation {
        Operation::Send => (SegmentType::Send, None),
        Operation::Write { remote } | Operation::Read { remote } => {
            (SegmentType::Write, Some(remote))
        }
    };
    let mut header = SegmentHeader::new(kind, SEGMENT_HEADER_BYTES as u16);
    header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
    header.message = open.number;
    header.data_offset = open.sent_bytes;
    header.ack = connection.rx.good;
    header.remote_error = RemoteError::NONE;
    header.rx_posted = said(vi, connection, path);
    let tx = &mut connection.tx;
    let mut bytes = [0; SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES];
    let mut used = SEGMENT_HEADER_BYTES;
    if remote.is_some() {
        used += RDMA_HEADER_BYTES;
        header.segment_bytes = used as u16;
    }
    if let Some((first, rest)) = bytes.split_first_chunk_mut::<SEGMENT_HEADER_BYTES>() {
        header.emit(first);
        if let (Some(remote), Some(second)) = (remote, rest.first_chunk_mut()) {
            rdma(remote, open.work.length_bytes).emit(second);
        }
    }
    tx.control.extend(bytes.iter().take(used));
    let status = if open.sent_bytes > 0 {
        Status::PROTECTION.with(Status::PARTIAL)
    } else {
        Status::PROTECTION
    };
    refuse(vi, ep, connection, status, path)
}

impl Connection {
    /// Whose connection it is.
    pub(super) fn vi(&self) -> Option<ViIndex> {
        match self.stage {
            Stage::Connected(vi) => Some(vi),
            Stage::Asking(_)
            | Stage::Incoming(_)
            | Stage::Held(_)
            | Stage::Void
            | Stage::Closing => None,
        }
    }
}
