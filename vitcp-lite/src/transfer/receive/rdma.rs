//! RDMA: targets of writes, reads of the peer, and responses to our reads.

use crate::{Flags, RdmaHeader, SegmentHeader, ViErrorType};
use vi_types::{AsyncError, Claim, MessageDestination, OperationKind, Status, ViIndex};

use super::Receiver;
use crate::transfer::Counter;
use crate::transfer::in_flight::SentDescriptor;
use crate::transfer::stream_io::RemoteAccess;
use crate::transfer::{CloseReason, ReadJob, RxMessage, StreamIo};

/// Bytes of an aligned word, which is written whole.
pub const WORD_BYTES: usize = 8;
/// Maximum bytes of one copy: longer ones may use string instructions, which can split aligned words.
const COPY_BYTES: usize = 2048;

/// Places the next payload of an RDMA write to `target`, of `total_bytes`. Aligned words are written whole
/// and the last bytes last, for any fragmentation of the stream: the beginning of a word is buffered until
/// its end is received (docs/spec/vipl-rules.md, rule 6). Returns false if the memory is not valid any more.
pub(super) fn place_write(
    path: &mut impl StreamIo,
    vi: ViIndex,
    (target, total_bytes): ((u64, u32), u32),
    message: &mut RxMessage,
    mut bytes: &[u8],
) -> bool {
    let (address, _) = target;
    let partial = message.partial_word.as_slice().len();
    let is_last = message.placed_bytes as usize + partial + bytes.len() == total_bytes as usize;
    let in_word =
        |placed_bytes: u32| address.wrapping_add(placed_bytes.into()) as usize % WORD_BYTES;
    if partial > 0 {
        let missing = WORD_BYTES - in_word(message.placed_bytes) - partial;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        message.partial_word.add(first);
        bytes = rest;
        if first.len() < missing && !is_last {
            return true;
        }
        let word = core::mem::take(&mut message.partial_word);
        if !path.place_rdma_write(vi, target, message.placed_bytes, word.as_slice()) {
            return false;
        }
        message.placed_bytes += word.as_slice().len() as u32;
    }
    let end_in_word = in_word(message.placed_bytes + bytes.len() as u32);
    let kept = if is_last {
        0
    } else {
        end_in_word.min(bytes.len())
    };
    let (mut now, later) = bytes.split_at(bytes.len() - kept);
    while !now.is_empty() {
        let limit = COPY_BYTES - in_word(message.placed_bytes);
        let (part, rest) = now.split_at(limit.min(now.len()));
        if !path.place_rdma_write(vi, target, message.placed_bytes, part) {
            return false;
        }
        message.placed_bytes += part.len() as u32;
        now = rest;
    }
    message.partial_word.add(later);
    true
}

impl<P: StreamIo> Receiver<'_, P> {
    /// Checks the whole target of an RDMA write before any byte is placed, and claims a receive descriptor if
    /// the write carries immediate data.
    pub(super) fn open_write(
        &mut self,
        rdma: &RdmaHeader,
        immediate: bool,
    ) -> Result<(), CloseReason> {
        let target = (rdma.address, rdma.handle);
        let bytes = rdma.total_bytes;
        let limited = self.transfer.rx.misses.is_watched() && self.is_limited();
        if limited && !self.transfer.params.level.is_reliable() {
            return self.drop_limited();
        }
        let allowed = self.transfer.params.rdma_write
            && bytes <= self.transfer.params.max_transfer_bytes
            && !limited
            && self.may_access(target, bytes, RemoteAccess::Write);
        if immediate {
            if !self.claim_for_write()? {
                return Ok(());
            }
            if !allowed {
                self.counters.count(Counter::DropRdmaProtection);
                self.complete_error(Status::PROTECTION, true);
                return self.refuse_access();
            }
        } else if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            self.path.report(self.vi, AsyncError::RdmaWriteProtection);
            return self.refuse_access();
        }
        self.set_kind(MessageDestination::Write {
            target,
            total_bytes: bytes,
            claimed: immediate,
        });
        Ok(())
    }

    /// Claims the receive descriptor of a write with immediate data. Returns false if there is none: the rest of the
    /// write is discarded.
    pub(super) fn claim_for_write(&mut self) -> Result<bool, CloseReason> {
        let claim = self.claim();
        if !matches!(claim, Claim::Ready { .. }) {
            self.set_kind(MessageDestination::Discard);
        }
        match claim {
            Claim::Ready { .. } => return Ok(true),
            Claim::Empty => self.no_descriptor()?,
            Claim::Fault(status) => {
                self.complete_error(status, true);
                self.break_if_reliable(ViErrorType::Descriptor)?;
            }
        }
        Ok(false)
    }

    pub(super) fn read_request(
        &mut self,
        header: &SegmentHeader,
        rdma: &RdmaHeader,
    ) -> Result<(), CloseReason> {
        self.next_number(header)?;
        if !self.transfer.params.level.is_reliable() {
            return Err(CloseReason::Protocol(Counter::DropOutOfOrder));
        }
        let source = (rdma.address, rdma.handle);
        let bytes = rdma.total_bytes;
        let allowed = self.transfer.params.rdma_read
            && bytes <= self.transfer.params.max_transfer_bytes
            && !(self.transfer.rx.misses.is_watched() && self.is_limited())
            && self.may_access(source, bytes, RemoteAccess::Read);
        let responses = &mut self.transfer.tx.read_responses;
        if responses.len() >= usize::from(self.transfer.rx.reads_accepted.max(1)) {
            return Err(CloseReason::Protocol(Counter::DropTooManyReads));
        }
        responses.push_back(ReadJob {
            number: header.message,
            source,
            total_bytes: bytes,
            sent_bytes: 0,
            refused: !allowed,
        });
        if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            self.path.report(self.vi, AsyncError::RdmaReadProtection);
            return Err(CloseReason::RefusedRead);
        }
        self.path.resume(self.vi);
        Ok(())
    }

    /// Processes a response to a read of ours. Responses arrive in the order of the requests.
    pub(super) fn read_response(
        &mut self,
        header: &SegmentHeader,
        rdma: &RdmaHeader,
    ) -> Result<(), CloseReason> {
        let flight = &self.transfer.tx.in_flight;
        let at = flight.find(header.message);
        let is_pending =
            |entry: &&SentDescriptor| entry.kind == OperationKind::Read && !entry.answered;
        let first = (0..flight.len()).find(|at| flight.get(*at).as_ref().is_some_and(is_pending));
        let refused = header.flags.contains(Flags::TRANSMIT_ERROR);
        // A refusal is sent at once, before earlier responses.
        let is_in_order = |at: &usize| refused || Some(*at) == first;
        let entry = at.filter(is_in_order).and_then(|at| flight.get(at));
        let entry = entry.filter(is_pending);
        let (Some(at), Some(entry)) = (at, entry) else {
            return Err(CloseReason::Protocol(Counter::DropOutOfOrder));
        };
        let payload = header.payload_bytes();
        let end = u64::from(entry.placed_bytes) + u64::from(payload);
        let fits = header.data_offset == entry.placed_bytes
            && end <= u64::from(entry.length_bytes)
            && (rdma.address, rdma.handle) == entry.source
            && rdma.total_bytes == entry.length_bytes;
        if refused {
            return Err(CloseReason::Failed {
                number: header.message,
                status: Status::RDMA_PROTECTION,
            });
        }
        let ends = header.flags.contains(Flags::END_OF_MESSAGE);
        if !fits || (ends && end != u64::from(entry.length_bytes)) {
            return Err(CloseReason::Failed {
                number: header.message,
                status: Status::TRANSPORT,
            });
        }
        if let Some(segment) = &mut self.transfer.rx.segment {
            segment.read = at as u32;
        }
        Ok(())
    }
}
