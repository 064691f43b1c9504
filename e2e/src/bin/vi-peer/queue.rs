//! A work queue that checks the order of its completions.

use std::collections::VecDeque;

use vi_types::QueueKind;
use vipl::{Completed, Descriptor, Timeout, Vi, VipError};

use crate::message::LONGEST_BYTES;
use crate::nic_context::TIMEOUT;
use e2e::failure::Failure;

/// The posted descriptors of one queue of a VI.
pub(crate) struct Queue<'a> {
    vi: &'a Vi,
    kind: QueueKind,
    /// Addresses of the buffers, oldest first.
    posted: VecDeque<usize>,
    flushed: u64,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(vi: &'a Vi, kind: QueueKind) -> Self {
        Self {
            vi,
            kind,
            posted: VecDeque::new(),
            flushed: 0,
        }
    }

    /// Returns the number of posted descriptors.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the number of flushed descriptors.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Posts a descriptor; a receive has space for the longest message.
    pub(crate) fn post(&mut self, mut descriptor: Descriptor) -> Result<(), Failure> {
        self.posted.push_back(address(&descriptor));
        match self.kind {
            QueueKind::Send => self.vi.post_send(descriptor)?,
            QueueKind::Receive => {
                descriptor.set_used_bytes(0, LONGEST_BYTES);
                self.vi.post_recv(descriptor)?;
            }
        }
        Ok(())
    }

    /// Waits for the completion of the oldest descriptor. Returns `None` after the timeout.
    pub(crate) fn take(&mut self, timeout: Timeout) -> Result<Option<Completed>, Failure> {
        let found = match (self.kind, timeout) {
            (QueueKind::Send, Timeout::Immediate) => self.vi.send_done(),
            (QueueKind::Send, _) => self.vi.send_wait(timeout),
            (QueueKind::Receive, Timeout::Immediate) => self.vi.recv_done(),
            (QueueKind::Receive, _) => self.vi.recv_wait(timeout),
        };
        let completed = match found {
            Ok(Some(completed)) => completed,
            Ok(None) => return Err(format!("the {:?} queue is empty", self.kind).into()),
            Err(VipError::NotDone | VipError::Timeout) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let expected = self.posted.pop_front();
        if expected != Some(address(&completed.descriptor)) {
            return Err(format!("the {:?} queue is out of order", self.kind).into());
        }
        if completed.status.is_flushed() {
            self.flushed += 1;
        } else if self.flushed > 0 {
            return Err(format!("{} after a flushed descriptor", completed.status).into());
        }
        Ok(Some(completed))
    }

    /// Takes all descriptors from a queue that is being flushed, also if another thread is still flushing it.
    pub(crate) fn drain(&mut self) -> Result<Vec<Descriptor>, Failure> {
        let mut descriptors = Vec::new();
        while !self.posted.is_empty() {
            let completed = self
                .take(Timeout::After(TIMEOUT))?
                .ok_or("timed out waiting for a flushed descriptor")?;
            descriptors.push(completed.descriptor);
        }
        Ok(descriptors)
    }
}

fn address(descriptor: &Descriptor) -> usize {
    descriptor.buffer(0).as_ptr().addr()
}
