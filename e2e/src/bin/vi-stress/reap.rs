//! The duty that takes back what is complete of a send queue, and checks what was read.

use std::sync::Arc;
use std::time::Duration;

use e2e::sync::Ordering;
use vipl::{Completed, CompletedOperation, ReliabilityLevel, Timeout, Vi, VipError};

use crate::Failure;
use crate::books::Wire;
use crate::pattern::Rng;
use crate::slot::{Manners, Place, Slot, Ticket, Work, lock};

/// What became of the sends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Messages that completed without error.
    pub(crate) messages: u32,
    /// Writes without immediate data that did.
    pub(crate) silent_writes: u32,
    /// Reads that did.
    pub(crate) reads: u32,
    pub(crate) read_bytes: u64,
    /// Strays that completed with the peer's refusal.
    pub(crate) refused_reads: u32,
    pub(crate) refused_writes: u32,
    /// What completed with the news that its answer is lost.
    pub(crate) unanswered: u32,
    pub(crate) flushed: u32,
    /// Reads among those.
    flushed_reads: u32,
}

/// Reaps sends.
pub(crate) struct SendReap {
    pub(crate) vi: Arc<Vi>,
    pub(crate) outcome: Outcome,
}

impl Outcome {
    fn failed(&self) -> u32 {
        self.flushed + self.unanswered + self.refused_reads + self.refused_writes
    }
}

impl SendReap {
    pub(crate) fn new(vi: Arc<Vi>) -> Self {
        Self {
            vi,
            outcome: Outcome::default(),
        }
    }

    /// Takes one completed send. False if there is none in time.
    pub(crate) fn step(
        &mut self,
        slot: &Slot,
        place: &Place,
        wait: Option<Duration>,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let found = match wait {
            Some(limit) => self.vi.send_wait(Timeout::After(limit)),
            None => self.vi.send_done(),
        };
        let completed = match found {
            Ok(Some(completed)) => completed,
            Ok(None) | Err(VipError::NotDone | VipError::Timeout) => return Ok(false),
            Err(error) => return Err(format!("a send queue: {error}").into()),
        };
        let ticket = slot.sends.take(&completed)?;
        self.check(slot, place, &ticket, &completed)?;
        let mut descriptor = completed.descriptor;
        if rng.chance(4) {
            place.furnish(&mut descriptor, &slot.shape, rng)?;
        }
        lock(&slot.idle_sends).push(descriptor);
        slot.shared.note_move();
        Ok(true)
    }

    fn check(
        &mut self,
        slot: &Slot,
        place: &Place,
        ticket: &Ticket,
        completed: &Completed,
    ) -> Result<(), Failure> {
        let status = completed.status;
        let outcome = &mut self.outcome;
        let is_read = matches!(ticket.work, Work::Read(_));
        let is_stray = ticket.manners == Manners::Stray;
        // A refusal finds what is in front of it under way, and the port may have no room to say what it is about.
        let is_refused_later = is_stray || slot.sends.has_stray();
        let may_lack_answers = is_refused_later || place.wire == Wire::Lossy;
        let is_refusal = status.is_rdma_protection_error() && is_stray;
        if status.is_ok() {
            let is_in_order = outcome.failed() == 0
                || (outcome.failed() == outcome.flushed_reads && may_lack_answers);
            if !is_in_order {
                return Err(format!(
                    "{ticket:?} of {:?} completed behind one that did not: {outcome:?}",
                    slot.shape
                )
                .into());
            }
            self.check_done(slot, ticket, completed)?;
        } else if status.is_flushed() {
            outcome.flushed += 1;
            outcome.flushed_reads += u32::from(is_read);
        } else if is_refusal && is_read {
            outcome.refused_reads += 1;
        } else if is_refusal {
            outcome.refused_writes += 1;
        } else if status.is_transport_error() && slot.shape.is_answered() && may_lack_answers {
            outcome.unanswered += 1;
        } else {
            return Err(format!(
                "a send of {:?} failed: {status}, {ticket:?}; behind it: {:?}",
                slot.shape, slot.sends
            )
            .into());
        }
        if !status.is_ok() {
            slot.shared.is_broken.store(true, Ordering::SeqCst);
        }
        if let Work::Read(read) = &ticket.work {
            if is_refusal {
                read.check_untouched(&completed.descriptor)?;
            }
            read.check_guards(&completed.descriptor)?;
        }
        Ok(())
    }

    fn check_done(
        &mut self,
        slot: &Slot,
        ticket: &Ticket,
        completed: &Completed,
    ) -> Result<(), Failure> {
        let outcome = &mut self.outcome;
        let expected = match ticket.work {
            Work::Receive => return Err("a receive was posted to a send queue".into()),
            Work::Send => CompletedOperation::Send,
            Work::Write { .. } => CompletedOperation::RdmaWrite,
            Work::Read(_) => CompletedOperation::RdmaRead,
        };
        let found = (completed.length_bytes(), completed.status.operation());
        if found != (ticket.length_bytes, expected) {
            return Err(format!("{ticket:?} completed as {completed:?}").into());
        }
        match &ticket.work {
            Work::Write { immediate: false } => outcome.silent_writes += 1,
            Work::Read(read) => {
                read.check(&completed.descriptor)?;
                outcome.reads += 1;
                outcome.read_bytes += ticket.length_bytes as u64;
            }
            Work::Receive | Work::Send | Work::Write { immediate: true } => outcome.messages += 1,
        }
        // Reliable Delivery does not hear what became of a write.
        let is_answered = matches!(ticket.work, Work::Read(_))
            || slot.shape.level == ReliabilityLevel::ReliableReception;
        if ticket.manners == Manners::Stray && is_answered {
            return Err(format!("{ticket:?} was not refused").into());
        }
        Ok(())
    }
}
