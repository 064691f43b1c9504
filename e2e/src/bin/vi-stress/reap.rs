//! The task that takes completions of a send queue and checks data of reads.

use std::sync::Arc;
use std::time::Duration;

use e2e::sync::Ordering;
use vipl::{Completed, CompletedOperation, ReliabilityLevel, Timeout, Vi, VipError};

use crate::accounting::Wire;
use crate::pattern::Rng;
use crate::slot::{Expected, NicContext, PostedEntry, Slot, Work, lock};
use e2e::failure::Failure;

/// Counts of the completed sends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Messages that completed without error.
    pub(crate) messages: u32,
    /// Writes without immediate data, completed without error.
    pub(crate) plain_writes: u32,
    /// Reads completed without error.
    pub(crate) reads: u32,
    pub(crate) read_bytes: u64,
    /// Unexpected operations completed as refused.
    pub(crate) refused_reads: u32,
    pub(crate) refused_writes: u32,
    /// Operations completed with a transport error, since their response was lost.
    pub(crate) without_response: u32,
    pub(crate) flushed: u32,
    /// Flushed reads, which `flushed` includes.
    flushed_reads: u32,
}

/// Takes completions of sends.
pub(crate) struct SendReap {
    pub(crate) vi: Arc<Vi>,
    pub(crate) outcome: Outcome,
}

impl Outcome {
    fn failed(&self) -> u32 {
        self.flushed + self.without_response + self.refused_reads + self.refused_writes
    }
}

impl SendReap {
    pub(crate) fn new(vi: Arc<Vi>) -> Self {
        Self {
            vi,
            outcome: Outcome::default(),
        }
    }

    /// Takes one completed send. Returns false if there is none within `wait`.
    pub(crate) fn step(
        &mut self,
        slot: &Slot,
        context: &NicContext,
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
            Err(error) => return Err(format!("send queue: {error}").into()),
        };
        let entry = slot.sends.take(&completed)?;
        self.check(slot, context, &entry, &completed)?;
        let mut descriptor = completed.descriptor;
        if rng.chance(4) {
            context.attach_memory(&mut descriptor, &slot.config, rng)?;
        }
        lock(&slot.idle_sends).push(descriptor);
        slot.shared.count_progress();
        Ok(true)
    }

    fn check(
        &mut self,
        slot: &Slot,
        context: &NicContext,
        entry: &PostedEntry,
        completed: &Completed,
    ) -> Result<(), Failure> {
        let status = completed.status;
        let outcome = &mut self.outcome;
        let is_read = matches!(entry.work, Work::Read(_));
        let is_unexpected = entry.expected == Expected::Refusal;
        // A refusal ends the connection while earlier operations are in flight, and its report may be dropped by a full
        // port.
        let is_before_refusal = is_unexpected || slot.sends.has_unexpected();
        let may_lack_responses = is_before_refusal || context.wire == Wire::Lossy;
        let is_refusal = status.is_rdma_protection_error() && is_unexpected;
        if status.is_ok() {
            let is_in_order = outcome.failed() == 0
                || (outcome.failed() == outcome.flushed_reads && may_lack_responses);
            if !is_in_order {
                return Err(format!(
                    "{entry:?} of {:?} completed after a failed one: {outcome:?}",
                    slot.config
                )
                .into());
            }
            self.check_done(slot, entry, completed)?;
        } else if status.is_flushed() {
            outcome.flushed += 1;
            outcome.flushed_reads += u32::from(is_read);
        } else if is_refusal && is_read {
            outcome.refused_reads += 1;
        } else if is_refusal {
            outcome.refused_writes += 1;
        } else if status.is_transport_error() && slot.config.needs_responses() && may_lack_responses
        {
            outcome.without_response += 1;
        } else {
            return Err(format!(
                "a send of {:?} failed: {status}, {entry:?}; posted after it: {:?}",
                slot.config, slot.sends
            )
            .into());
        }
        if !status.is_ok() {
            slot.shared.is_broken.store(true, Ordering::SeqCst);
        }
        if let Work::Read(read) = &entry.work {
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
        entry: &PostedEntry,
        completed: &Completed,
    ) -> Result<(), Failure> {
        let outcome = &mut self.outcome;
        let expected = match entry.work {
            Work::Receive => return Err("a receive on a send queue".into()),
            Work::Send => CompletedOperation::Send,
            Work::Write { .. } => CompletedOperation::RdmaWrite,
            Work::Read(_) => CompletedOperation::RdmaRead,
        };
        let found = (completed.length_bytes(), completed.status.operation());
        if found != (entry.length_bytes, expected) {
            return Err(format!("{entry:?} completed as {completed:?}").into());
        }
        match &entry.work {
            Work::Write { immediate: false } => outcome.plain_writes += 1,
            Work::Read(read) => {
                read.check(&completed.descriptor)?;
                outcome.reads += 1;
                outcome.read_bytes += entry.length_bytes as u64;
            }
            Work::Receive | Work::Send | Work::Write { immediate: true } => outcome.messages += 1,
        }
        // At Reliable Delivery, writes complete without a response.
        let has_response = matches!(entry.work, Work::Read(_))
            || slot.config.level == ReliabilityLevel::ReliableReception;
        if entry.expected == Expected::Refusal && has_response {
            return Err(format!("{entry:?} was not refused").into());
        }
        Ok(())
    }
}
