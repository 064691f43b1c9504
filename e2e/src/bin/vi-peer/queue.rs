//! A work queue that knows in which order its descriptors must come back.

use std::collections::VecDeque;

use vipl::{Completed, Descriptor, Timeout, Vi, VipError};

use crate::Failure;
use crate::message::LONGEST_BYTES;
use crate::station::TIMEOUT;

/// Which queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// What is posted on one queue of a VI.
pub(crate) struct Queue<'a> {
    vi: &'a Vi,
    side: Side,
    /// The buffers' addresses, oldest first.
    posted: VecDeque<usize>,
    flushed: u64,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(vi: &'a Vi, side: Side) -> Self {
        Self {
            vi,
            side,
            posted: VecDeque::new(),
            flushed: 0,
        }
    }

    /// Descriptors on the queue.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Descriptors that came back flushed.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Posts a descriptor; a receive takes messages of any length.
    pub(crate) fn post(&mut self, mut descriptor: Descriptor) -> Result<(), Failure> {
        self.posted.push_back(address(&descriptor));
        match self.side {
            Side::Send => self.vi.post_send(descriptor)?,
            Side::Receive => {
                descriptor.set_used_bytes(0, LONGEST_BYTES);
                self.vi.post_recv(descriptor)?;
            }
        }
        Ok(())
    }

    /// The oldest descriptor when it is complete, `None` when it is not in time.
    pub(crate) fn take(&mut self, timeout: Timeout) -> Result<Option<Completed>, Failure> {
        let found = match (self.side, timeout) {
            (Side::Send, Timeout::Immediate) => self.vi.send_done(),
            (Side::Send, _) => self.vi.send_wait(timeout),
            (Side::Receive, Timeout::Immediate) => self.vi.recv_done(),
            (Side::Receive, _) => self.vi.recv_wait(timeout),
        };
        let completed = match found {
            Ok(Some(completed)) => completed,
            Ok(None) => return Err(format!("the {:?} queue is empty", self.side).into()),
            Err(VipError::NotDone | VipError::Timeout) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let expected = self.posted.pop_front();
        if expected != Some(address(&completed.descriptor)) {
            return Err(format!("the {:?} queue is out of order", self.side).into());
        }
        if completed.status.is_flushed() {
            self.flushed += 1;
        } else if self.flushed > 0 {
            return Err(format!("{} after a flushed descriptor", completed.status).into());
        }
        Ok(Some(completed))
    }

    /// Takes everything back from a queue that is flushed, which another thread may still be busy with.
    pub(crate) fn drain(&mut self) -> Result<Vec<Descriptor>, Failure> {
        let mut descriptors = Vec::new();
        while !self.posted.is_empty() {
            let completed = self
                .take(Timeout::After(TIMEOUT))?
                .ok_or("a descriptor stays on a queue that was flushed")?;
            descriptors.push(completed.descriptor);
        }
        Ok(descriptors)
    }
}

fn address(descriptor: &Descriptor) -> usize {
    descriptor.buffer(0).as_ptr().addr()
}
