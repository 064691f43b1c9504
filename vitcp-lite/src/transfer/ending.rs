//! The end of a connection: the last segments to the peer, and the descriptors that complete with an error
//! (docs/spec/vitcp.md).

use crate::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::{Flags, IsCode, RemoteError, SegmentError, SegmentHeader, SegmentType, ViErrorType};
use vi_types::{OperationKind, Status, ViIndex};

use super::transmit::rdma;
use super::{Counter, Counters, StreamIo, Transfer, Tx};

/// Why a connection of a VI breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed the TCP connection.
    PeerClosed,
    /// TCP lost the connection.
    ConnectionLost,
    /// The peer violated the protocol; with its counter.
    Protocol(Counter),
    /// A segment of the peer is malformed.
    Malformed(SegmentError),
    /// The peer violated TLS, or one side refused the other.
    Tls,
    /// A local error of the consumer.
    Local,
    /// The memory of a partly sent segment became invalid.
    MemoryInvalid,
    /// A message of the peer failed here; the error is reported to the peer if it uses acknowledgements.
    ReportedToPeer {
        /// Number of the message.
        number: u32,
        /// Its error.
        error: RemoteError,
    },
    /// A read of the peer is refused; the response reports it.
    RefusedRead,
    /// A message of ours failed at the peer.
    FailedAtPeer {
        /// Number of the message.
        number: u32,
        /// Its error.
        error: RemoteError,
    },
    /// A read of ours failed, at the peer or here.
    Failed {
        /// Number of the read.
        number: u32,
        /// Its status.
        status: Status,
    },
    /// A response did not arrive before its timeout.
    TimedOut,
}

impl Transfer {
    /// Completes the descriptors that failed for this reason, and those before them, and adds the last segments for
    /// the peer to the pending control segments.
    pub fn end(
        &mut self,
        vi: ViIndex,
        reason: CloseReason,
        counters: &mut Counters,
        path: &mut impl StreamIo,
    ) {
        match reason {
            CloseReason::Protocol(violation) => counters.count(violation),
            CloseReason::Malformed(_) => counters.count(Counter::DropMalformed),
            CloseReason::ReportedToPeer { number, error } => {
                self.tx.finish_segment(vi, path);
                self.put_ack(vi, number, error, path);
            }
            CloseReason::RefusedRead => {
                self.tx.finish_segment(vi, path);
                self.put_read_refusal(vi, path);
            }
            CloseReason::FailedAtPeer { number, error } => {
                let status = |kind| status_of(error, kind);
                self.tx
                    .fail_in_flight(vi, path, |_, at| at == number, status);
            }
            CloseReason::Failed { number, status } => {
                self.tx
                    .fail_in_flight(vi, path, |_, at| at == number, |_| status);
            }
            CloseReason::TimedOut => {
                counters.count(Counter::ResponseTimeouts);
                let first = self.tx.in_flight.first_unanswered();
                let is_first = |at, _| Some(at) == first;
                self.tx
                    .fail_in_flight(vi, path, is_first, |_| Status::TRANSPORT);
            }
            CloseReason::Local => self.acknowledge_placed(vi, path),
            CloseReason::PeerClosed
            | CloseReason::ConnectionLost
            | CloseReason::MemoryInvalid
            | CloseReason::Tls => {}
        }
        self.tx.complete_fault(vi, path);
    }

    /// As [`Transfer::end`], for a VI that its consumer disconnects.
    pub fn disconnect(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        self.acknowledge_placed(vi, path);
        self.tx.complete_fault(vi, path);
    }

    /// Adds the due acknowledgement of placed messages to the pending control segments.
    fn acknowledge_placed(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        if self.rx.ack_pending {
            self.tx.finish_segment(vi, path);
            self.put_ack(vi, self.rx.ack_number, RemoteError::NONE, path);
        }
    }

    /// Adds a NOP with the acknowledgement or error of a message, if the peer uses acknowledgements.
    fn put_ack(&mut self, vi: ViIndex, number: u32, error: RemoteError, path: &mut impl StreamIo) {
        if !self.rx.sends_acks {
            return;
        }
        self.tx.number = self.tx.number.wrapping_add(1);
        let mut header = SegmentHeader::new(SegmentType::Nop, SEGMENT_HEADER_BYTES as u16);
        header.flags = Flags::END_OF_MESSAGE;
        header.message = self.tx.number;
        header.ack = number;
        header.remote_error = error;
        header.rx_posted = self.advertise_posted(vi, path);
        self.tx.put_control(&header);
    }

    /// Adds the refusal of the peer's last read, before the connection breaks.
    fn put_read_refusal(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(job) = self.tx.read_responses.back().copied() else {
            return;
        };
        let bytes = SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES;
        let mut header = SegmentHeader::new(SegmentType::ReadResponse, bytes as u16);
        header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
        header.message = job.number;
        header.ack = self.rx.ack_number;
        header.rx_posted = self.advertise_posted(vi, path);
        self.tx.put_control(&header);
        self.tx.put_rdma(&rdma(job.source, job.total_bytes));
    }
}

impl Tx {
    /// Moves the remainder of a partly written segment to the pending control segments, so that others can follow.
    /// If its memory is invalid, nothing changes: nothing can follow.
    fn finish_segment(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(unfinished) = &self.unfinished else {
            return;
        };
        let Some(mut bytes) = unfinished.remainder(vi, path) else {
            return;
        };
        self.number = self.begun_number().unwrap_or(self.number);
        bytes.append(&mut self.control);
        self.control = bytes;
        self.unfinished = None;
    }

    /// Completes the message for which `is_it` (index, number) returns true in error, and those before it. It may
    /// also be a message that is partly sent.
    fn fail_in_flight(
        &mut self,
        vi: ViIndex,
        path: &mut impl StreamIo,
        is_it: impl Fn(usize, u32) -> bool,
        status: impl Fn(OperationKind) -> Status,
    ) {
        let begun = self.begun_number();
        let flight = &mut self.in_flight;
        let found = (0..flight.len()).find(|at| {
            flight
                .get(*at)
                .is_some_and(|entry| is_it(*at, entry.number))
        });
        let (at, kind) = match found.and_then(|at| Some((at, flight.get(at)?.kind))) {
            Some(found) => found,
            None => {
                let open = self.open.map(|open| (open.number, open.work));
                let begun = begun.and_then(|number| Some((number, path.work_ahead(vi, 0)?)));
                match open.or(begun) {
                    Some((number, work)) if is_it(flight.len(), number) => {
                        (flight.len(), OperationKind::of(&work))
                    }
                    Some(_) | None => return,
                }
            }
        };
        if !self.complete_before(vi, at, path) {
            return;
        }
        let mut status = status(kind);
        let flight = &mut self.in_flight;
        // The stored fault is that of this message, or of a later one.
        flight.fault = None;
        if flight.pop().is_some_and(|entry| entry.placed_bytes > 0) {
            status = status.with(Status::PARTIAL);
        }
        path.complete_send(vi, status, 0);
    }

    /// Completes a descriptor that failed during its send, after those in flight, when the connection breaks for
    /// another reason.
    fn complete_fault(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(status) = self.in_flight.fault.take() else {
            return;
        };
        if self.complete_before(vi, self.in_flight.len(), path) {
            path.complete_send(vi, status, 0);
        }
    }

    /// Completes the first `count` descriptors in flight: with success if they are answered, otherwise as flushed.
    /// Returns false if the VI is failing: the caller of the verb flushes the rest.
    fn complete_before(&mut self, vi: ViIndex, count: usize, path: &mut impl StreamIo) -> bool {
        for _ in 0..count {
            if let Some(entry) = self.in_flight.pop() {
                match entry.answered {
                    true => path.complete_send(vi, Status::OK, entry.length_bytes),
                    false => path.complete_send(vi, Status::FLUSHED, 0),
                }
            }
            if path.is_failing(vi) {
                self.in_flight.fault = None;
                return false;
            }
        }
        true
    }
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
