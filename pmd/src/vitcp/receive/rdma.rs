//! RDMA: targets of writes, reads of the peer, and answers to our own.

use vi_engine::{AsyncError, Claim, Host, Level, Status};
use vitcp_lite::{Flags, RdmaHeader, SegmentHeader, ViErrorType};

use super::Receiver;
use crate::memory::Access;
use crate::vitcp::closing::Ending;
use crate::vitcp::connection::{ReadJob, RxKind};
use crate::vitcp::counters::Counter;
use crate::vitcp::in_flight::{Entry, Kind};

impl Receiver<'_> {
    /// Checks the target of an RDMA write, whole, before a byte is placed, and claims a receive
    /// descriptor if it carries immediate data.
    pub(super) fn open_write(&mut self, rdma: &RdmaHeader, immediate: bool) -> Result<(), Ending> {
        let target = (rdma.address, rdma.handle);
        let bytes = rdma.total_bytes;
        let allowed = self.params.rdma_write
            && bytes <= self.params.max_transfer_bytes
            && (self.path).may_access(self.vi, target, bytes, Access::RemoteWrite);
        if immediate {
            if !self.claim_for_write()? {
                return Ok(());
            }
            if !allowed {
                self.counters.count(Counter::DropRdmaProtection);
                self.complete_error(Status::PROTECTION, true);
                return self.broken(ViErrorType::RdmaProtection);
            }
        } else if !allowed {
            self.counters.count(Counter::DropRdmaProtection);
            self.path.report(self.vi, AsyncError::RdmaWriteProtection);
            return self.broken(ViErrorType::RdmaProtection);
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
            && (self.path).may_access(self.vi, source, bytes, Access::RemoteRead);
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
