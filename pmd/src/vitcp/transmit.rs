//! Transmission: segmentation of descriptors from a send queue to TCP.
//!
//! Segments are planned for one system call, and only those that TCP took change the state. So a
//! descriptor that waits for space in TCP is not begun, except for the one partly written segment.

mod plan;
mod single_send;

use vi_engine::{EngineIo, Operation, Pumped, SendWork, Status};
use vi_types::ViIndex;
use vitcp_lite::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{Flags, RdmaHeader, RemoteError, SegmentHeader, SegmentType};

use super::ViTcp;
use super::closing::CloseReason;
use super::connection::{Connection, Endpoint, OpenMessage, Phase, Stage, Tx};
use super::counters::{Counter, Counters};
use super::in_flight::{OperationKind, SentDescriptor};
use super::send_batch::{CORK_NS, CORK_POLLS, Part, SendBatch};
use super::socket::is_would_block;
use super::timers::TimerKey;
use crate::datapath::Datapath;

use plan::{Plan, Stop};

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

impl ViTcp {
    /// Sends the posted descriptors of a VI, and pending read responses and acknowledgements.
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
        let (reason, pumped) = self.pump_connection(now_ns, vi, (number, &mut *connection), path);
        let (has_space, write_failed) = (connection.may_write, connection.write_failed);
        self.put(number, connection);
        if !has_space {
            self.reregister(number);
        }
        if write_failed {
            self.queue(number);
        }
        if let Some(reason) = reason {
            self.break_connection(now_ns, vi, number, reason, path);
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
    ) -> (Option<CloseReason>, Pumped) {
        for _ in 0..MAX_CALLS {
            if !connection.may_write {
                return (None, Pumped::Idle);
            }
            let single = self.send_single(now_ns, vi, connection, path);
            let call =
                single.unwrap_or_else(|| self.call(now_ns, vi, (number, &mut *connection), path));
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

    /// Checks whether TCP holds data back that was not pushed.
    #[inline]
    pub(crate) fn has_corked(&self) -> bool {
        !self.corked.is_empty()
    }

    /// Pushes the data that TCP has held back for [`CORK_NS`]; with `all` any.
    pub(crate) fn push(&mut self, now_ns: u64, all: bool) {
        let Self {
            corked,
            polls_since_write,
            connections,
            ..
        } = self;
        *polls_since_write += 1;
        let all = all || *polls_since_write >= CORK_POLLS;
        corked.retain(|number| {
            let connection = connections.get_mut(*number as usize);
            let Some(connection) = connection.and_then(Option::as_mut) else {
                return false;
            };
            let tx = &mut connection.tx;
            if !all && tx.corked && now_ns < tx.pushed_ns + CORK_NS {
                return true;
            }
            if core::mem::take(&mut tx.corked) {
                connection.stream.push();
            }
            false
        });
    }

    /// Plans the segments of one system call, sends them, and applies the result.
    fn call(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        (number, connection): (u32, &mut Connection),
        path: &mut Datapath,
    ) -> SendResult {
        let slot = vi.0 as usize;
        let Some(ep) = self.endpoints.get_mut(slot).and_then(Option::as_mut) else {
            return SendResult::Nothing;
        };
        complete_answered(vi, &mut connection.tx, path);
        if path.is_failing(vi) {
            return SendResult::Nothing;
        }
        self.batch.clear();
        let mut plan = Plan {
            vi,
            ep,
            connection,
            batch: &mut self.batch,
            path,
            rx_posted: 0,
        };
        let stop = match plan.all() {
            Ok(stop) => stop,
            Err(reason) => return SendResult::Break(reason),
        };
        note_starving(stop, connection, &mut self.counters);
        if self.batch.is_empty() {
            return match stop {
                Stop::Fault(status) => complete_with_fault(vi, ep, connection, status, path),
                Stop::MemoryInvalid => abort_message(vi, ep, connection, path),
                Stop::Empty | Stop::Wait | Stop::Starved | Stop::Full => SendResult::Nothing,
            };
        }
        // If nothing can follow before the peer responds, the data must not be held back.
        let may_follow = !matches!(stop, Stop::Wait | Stop::Starved);
        let more = self.batch.may_cork(now_ns, may_follow, &mut connection.tx);
        // SAFETY: ranges of registered memory were found readable under the backend lock, held since;
        // the others are of our buffer.
        let written = match unsafe { connection.stream.send(self.batch.iovecs(), more) } {
            Ok(written) => written,
            Err(error) if is_would_block(&error) => {
                self.counters.count(Counter::TxNoRoom);
                connection.may_write = false;
                return SendResult::WouldBlock;
            }
            Err(error) => return handle_write_error(connection, &error),
        };
        self.polls_since_write = 0;
        let uncorked = more && !core::mem::replace(&mut connection.tx.corked, true);
        if uncorked && !self.corked.contains(&number) {
            self.corked.push(number);
        }
        self.counters.count(Counter::TxCalls);
        self.counters.add(Counter::TxBytes, written as u64);
        let all = written == self.batch.bytes() && !connection.stream.has_unsent();
        apply_written(
            vi,
            connection,
            written,
            (&self.batch, &mut self.counters),
            path,
        );
        let timeout_ns = self.settings.response_timeout_ns;
        if let Some(deadline_ns) = response_deadline(now_ns, timeout_ns, connection) {
            self.timers.set(deadline_ns, TimerKey::Response(vi.0));
        }
        if all {
            return SendResult::All;
        }
        self.counters.count(Counter::TxNoRoom);
        // Epoll reports when TCP has space again.
        connection.may_write = false;
        SendResult::WouldBlock
    }
}

/// Handles a failed write. If the connection is lost, data that the peer sent before is still read.
#[cold]
fn handle_write_error(connection: &mut Connection, error: &std::io::Error) -> SendResult {
    match CloseReason::of_error(error) {
        CloseReason::ConnectionLost => {
            (connection.may_write, connection.may_read) = (false, true);
            connection.write_failed = true;
            SendResult::WouldBlock
        }
        other => SendResult::Break(other),
    }
}

fn rdma((address, handle): (u64, u32), total_bytes: u32) -> RdmaHeader {
    RdmaHeader {
        address,
        handle,
        total_bytes,
    }
}

/// Checks whether a message consumes a receive descriptor of the peer.
fn takes_descriptor(work: &SendWork) -> bool {
    match work.operation {
        Operation::Send => true,
        Operation::Write { .. } => work.immediate.is_some(),
        Operation::Read { .. } => false,
    }
}

/// Returns the current Rx Descriptors Posted; call [`Rx::note_advertised`] when a segment with it is sent.
///
/// [`Rx::note_advertised`]: super::connection::Rx::note_advertised
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

/// As [`posted_word`], for a control segment, which is sent in any case: marks the value as advertised.
pub(super) fn advertise_posted(
    vi: ViIndex,
    connection: &mut Connection,
    path: &mut Datapath,
) -> u16 {
    let word = posted_word(vi, connection, path);
    connection.rx.note_advertised();
    word
}

fn note_starving(stop: Stop, connection: &mut Connection, counters: &mut Counters) {
    let starved = stop == Stop::Starved;
    if starved && !connection.tx.starved {
        counters.count(Counter::FlowControlWaits);
    }
    connection.tx.starved = starved;
}

/// Applies a send of the planned segments of which TCP took `written` bytes.
fn apply_written(
    vi: ViIndex,
    connection: &mut Connection,
    written: usize,
    (batch, counters): (&SendBatch, &mut Counters),
    path: &mut Datapath,
) {
    let Connection { tx, rx, .. } = connection;
    let before = tx.unfinished.take();
    // The remainder of a segment has the header values of an earlier call.
    let mut has_remainder = before.is_some();
    let mut advertises = false;
    let unfinished = batch.apply_written(written, before.as_ref(), |part| {
        let part = match part {
            Part::Remainder => {
                has_remainder = false;
                before.map_or(Part::Nop, |before| before.part)
            }
            Part::Control(bytes) => {
                tx.control.drain(..bytes as usize);
                return;
            }
            part => {
                advertises = true;
                part
            }
        };
        counters.count(Counter::TxSegments);
        match part {
            Part::Message {
                payload_bytes,
                begins,
                ends,
            } => message_sent(vi, tx, (payload_bytes, begins, ends), counters, path),
            Part::ReadRequest => read_sent(vi, tx, counters, path),
            Part::ReadResponse {
                payload_bytes,
                ends,
            } => {
                tx.response_next = false;
                if let Some(job) = tx.read_responses.front_mut() {
                    job.sent_bytes += payload_bytes;
                }
                if ends {
                    tx.read_responses.pop_front();
                }
            }
            Part::Nop => {
                tx.number = tx.number.wrapping_add(1);
                counters.count(Counter::TxNops);
            }
            Part::Control(_) | Part::Remainder => {}
        }
    });
    advertises |= unfinished.is_some() && !has_remainder;
    if advertises {
        rx.note_advertised();
    }
    tx.unfinished = unfinished;
}

/// Applies the send of a segment of the next descriptor's message.
fn message_sent(
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
        tx.open = Some(OpenMessage {
            work,
            number: tx.number,
            sent_bytes: 0,
        });
        if takes_descriptor(&work)
            && let Some(credits) = &mut tx.credits
        {
            // It was available when the message was planned.
            let _used = credits.use_one();
        }
    }
    tx.response_next = true;
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
    tx.in_flight.push(SentDescriptor {
        kind: OperationKind::of(&open.work),
        answered: !tx.awaits_ack,
        number: open.number,
        source: (0, 0),
        length_bytes: open.work.length_bytes,
        placed_bytes: 0,
    });
    path.keep_in_flight(vi);
}

/// Applies the send of a Read Request.
fn read_sent(vi: ViIndex, tx: &mut Tx, counters: &mut Counters, path: &mut Datapath) {
    let Some(work) = path.work_ahead(vi, 0) else {
        return;
    };
    let Operation::Read { remote } = work.operation else {
        return;
    };
    tx.number = tx.number.wrapping_add(1);
    counters.count(Counter::TxMessages);
    tx.in_flight.push(SentDescriptor {
        kind: OperationKind::Read,
        answered: false,
        number: tx.number,
        source: remote,
        length_bytes: work.length_bytes,
        placed_bytes: 0,
    });
    path.keep_in_flight(vi);
}

/// Completes the oldest descriptors in flight that are answered.
pub(super) fn complete_answered(vi: ViIndex, tx: &mut Tx, path: &mut Datapath) {
    while !path.is_failing(vi)
        && let Some(entry) = tx.in_flight.pop_answered()
    {
        path.complete_send(vi, Status::OK, entry.length_bytes);
    }
}

/// Returns the deadline for the next response if its timer must be set.
fn response_deadline(now_ns: u64, timeout_ns: u64, connection: &mut Connection) -> Option<u64> {
    let flight = &mut connection.tx.in_flight;
    if flight.unanswered() == 0 || flight.timer_set {
        return None;
    }
    flight.timer_set = true;
    flight.progressed = false;
    Some(now_ns + timeout_ns)
}

/// Completes a descriptor that must not be sent with its fault; a reliable VI breaks.
#[cold]
fn complete_with_fault(
    vi: ViIndex,
    ep: &Endpoint,
    connection: &mut Connection,
    status: Status,
    path: &mut Datapath,
) -> SendResult {
    if !connection.tx.in_flight.is_empty() {
        connection.tx.in_flight.fault = Some(status);
        return SendResult::Nothing;
    }
    connection.tx.in_flight.fault = None;
    path.complete_send(vi, status, 0);
    if ep.is_reliable() {
        return SendResult::Break(CloseReason::Local);
    }
    SendResult::All
}

/// Ends a partly sent message whose memory became invalid, with Transmit Error.
#[cold]
fn abort_message(
    vi: ViIndex,
    ep: &Endpoint,
    connection: &mut Connection,
    path: &mut Datapath,
) -> SendResult {
    let tx = &mut connection.tx;
    let Some(open) = tx.open.take() else {
        return SendResult::Nothing;
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
    header.ack = connection.rx.ack_number;
    header.remote_error = RemoteError::NONE;
    header.rx_posted = advertise_posted(vi, connection, path);
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
    complete_with_fault(vi, ep, connection, status, path)
}

impl Connection {
    /// Returns the VI that the connection is bound to.
    pub(super) fn vi(&self) -> Option<ViIndex> {
        match self.stage {
            Stage::Connected(vi) => Some(vi),
            Stage::Requesting(_)
            | Stage::Incoming(_)
            | Stage::RequestReceived(_)
            | Stage::PeerGone
            | Stage::Closing => None,
        }
    }
}
