//! RDMA: targets of writes, reads of the peer, and answers to our own.

use vi_engine::{AsyncError, Claim, Host, Level, Status, ViIndex};
use vitcp_lite::{Flags, RdmaHeader, SegmentHeader, ViErrorType};

use super::Receiver;
use crate::datapath::Datapath;
use crate::memory::Access;
use crate::memory::copy::WORD_BYTES;
use crate::vitcp::closing::Ending;
use crate::vitcp::connection::{ReadJob, RxKind, RxMessage};
use crate::vitcp::counters::Counter;
use crate::vitcp::in_flight::{Entry, Kind};

/// Longer copies may be made by string instructions of the processor, which keep no words whole.
const COPY_BYTES: usize = 2048;

/// Places payload of an RDMA write to `target`, of so many bytes, behind what came before. Aligned
/// words are written whole and the last bytes last, however the stream is cut: the beginning of a
/// word is held until its end has come (docs/spec/vipl-rules.md, rule 6). False if the memory is not
/// valid any more.
pub(super) fn place_write(
    path: &mut Datapath,
    vi: ViIndex,
    (target, total_bytes): ((u64, u32), u32),
    message: &mut RxMessage,
    mut bytes: &[u8],
) -> bool {
    let (address, _) = target;
    let held = message.held.as_slice().len();
    let is_last = message.placed_bytes as usize + held + bytes.len() == total_bytes as usize;
    let in_word =
        |placed_bytes: u32| address.wrapping_add(placed_bytes.into()) as usize % WORD_BYTES;
    if held > 0 {
        let missing = WORD_BYTES - in_word(message.placed_bytes) - held;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        message.held.add(first);
        bytes = rest;
        if first.len() < missing && !is_last {
            return true;
        }
        let word = core::mem::take(&mut message.held);
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
        let most = COPY_BYTES - in_word(message.placed_bytes);
        let (part, rest) = now.split_at(most.min(now.len()));
        if !path.place_rdma_write(vi, target, message.placed_bytes, part) {
            return false;
        }
        message.placed_bytes += part.len() as u32;
        now = rest;
    }
    message.held.add(later);
    true
}

impl Receiver<'_> {
    /// Checks the target of an RDMA write, whole, before a byte is placed, and claims a receive
    /// descriptor if it carries immediate data.
    pub(super) fn open_write(&mut self, rdma: &RdmaHeader, immediate: bool) -> Result<(), Ending> {
        let target = (rdma.address, rdma.handle);
        let bytes = rdma.total_bytes;
        let limited = self.connection.rx.misses.is_watched() && self.is_limited();
        if limited && self.params.level == Level::UnreliableDelivery {
            return self.drop_limited();
        }
        let allowed = self.params.rdma_write
            && bytes <= self.params.max_transfer_bytes
            && !limited
            && self.may_access(target, bytes, Access::RemoteWrite);
        if immediate {
            if !self.claim_for_write()? {
                return Ok(());
            }
            if !allowed {
                self.counters.count(Counter::DropRdmaProtection);
                self.complete_error(Status::PROTECTION, true);
                return self.refused();
            }
        } else if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            self.path.report(self.vi, AsyncError::RdmaWriteProtection);
            return self.refused();
        }
        self.set_kind(RxKind::Write {
            target,
            total_bytes: bytes,
            claimed: immediate,
        });
        Ok(())
    }

    /// Claims the receive descriptor of a write with immediate data. If there is none, nothing more of it is placed.
    pub(super) fn claim_for_write(&mut self) -> Result<bool, Ending> {
        let claim = self.claim();
        if !matches!(claim, Claim::Ready { .. }) {
            self.set_kind(RxKind::Discard);
        }
        match claim {
            Claim::Ready { .. } => return Ok(true),
            Claim::Empty => self.no_descriptor()?,
            Claim::Fault(status) => {
                self.complete_error(status, true);
                self.broken(ViErrorType::Descriptor)?;
            }
        }
        Ok(false)
    }

    pub(super) fn read_request(
        &mut self,
        header: &SegmentHeader,
        rdma: &RdmaHeader,
    ) -> Result<(), Ending> {
        self.next_number(header)?;
        if self.params.level == Level::UnreliableDelivery {
            return Err(Ending::Protocol(Counter::DropOutOfOrder));
        }
        let source = (rdma.address, rdma.handle);
        let bytes = rdma.total_bytes;
        let allowed = self.params.rdma_read
            && bytes <= self.params.max_transfer_bytes
            && !(self.connection.rx.misses.is_watched() && self.is_limited())
            && self.may_access(source, bytes, Access::RemoteRead);
        let answers = &mut self.connection.tx.answers;
        if answers.len() >= usize::from(self.connection.rx.reads_accepted.max(1)) {
            return Err(Ending::Protocol(Counter::DropTooManyReads));
        }
        answers.push_back(ReadJob {
            number: header.message,
            source,
            total_bytes: bytes,
            sent_bytes: 0,
            refused: !allowed,
        });
        if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            self.path.report(self.vi, AsyncError::RdmaReadProtection);
            return Err(Ending::RefusedRead);
        }
        self.path.resume(self.vi);
        Ok(())
    }

    /// Data of a read of ours: those are answered in the order in which they were asked for.
    pub(super) fn read_response(
        &mut self,
        header: &SegmentHeader,
        rdma: &RdmaHeader,
    ) -> Result<(), Ending> {
        let flight = &self.connection.tx.in_flight;
        let at = flight.find(header.message);
        let waits = |entry: &&Entry| entry.kind == Kind::Read && !entry.answered;
        let first = (0..flight.len()).find(|at| flight.get(*at).as_ref().is_some_and(waits));
        let refused = header.flags.contains(Flags::TRANSMIT_ERROR);
        // A refusal comes at once, whatever was asked for before it.
        let in_turn = |at: &usize| refused || Some(*at) == first;
        let entry = at.filter(in_turn).and_then(|at| flight.get(at));
        let entry = entry.filter(waits);
        let (Some(at), Some(entry)) = (at, entry) else {
            return Err(Ending::Protocol(Counter::DropOutOfOrder));
        };
        let payload = header.payload_bytes();
        let end = u64::from(entry.placed_bytes) + u64::from(payload);
        let fits = header.data_offset == entry.placed_bytes
            && end <= u64::from(entry.length_bytes)
            && (rdma.address, rdma.handle) == entry.source
            && rdma.total_bytes == entry.length_bytes;
        if refused {
            return Err(Ending::Failed {
                number: header.message,
                status: Status::RDMA_PROTECTION,
            });
        }
        let ends = header.flags.contains(Flags::END_OF_MESSAGE);
        if !fits || (ends && end != u64::from(entry.length_bytes)) {
            return Err(Ending::Failed {
                number: header.message,
                status: Status::TRANSPORT,
            });
        }
        if let Some(segment) = &mut self.connection.rx.segment {
            segment.read = at as u32;
        }
        Ok(())
    }
}
