//! The sending end of one connection.

use crate::endpoint::{Endpoint, Reaped, RemoteMemory, Shape, Target, mark_of};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::plan::{Level, Op, Test};

/// The sending end of one connection.
pub(super) struct Outgoing {
    pub(super) endpoint: Endpoint,
    test: Test,
    /// Where the peer's memory is.
    pub(super) peer: Option<RemoteMemory>,
    sent: u64,
    /// The descriptor of the next message: its number modulo the window.
    next: u32,
    sends_pending: u32,
}

impl Outgoing {
    /// An unconnected end.
    pub(super) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let endpoint = Endpoint::new(
            nic,
            &Shape {
                level: test.level,
                send_descriptors: test.window,
                send_buffers: test.buffers(),
                send_bytes: test.size_bytes,
                recv_descriptors: 1,
                recv_buffers: 1,
                recv_bytes: 0,
            },
        )?;
        Ok(Self {
            endpoint,
            test: *test,
            peer: None,
            sent: 0,
            next: 0,
            sends_pending: 0,
        })
    }

    /// Whether every descriptor is back.
    pub(super) fn is_done(&self) -> bool {
        self.sends_pending == 0
    }

    /// Posts a batch if there is room and credit for all of it, and says how many.
    #[inline]
    pub(super) fn post_batch(&mut self, wanted: u64) -> Result<u32> {
        let batch = u64::from(self.test.batch).min(wanted) as u32;
        let room = self.test.window - self.sends_pending;
        let allowed = match self.test.level {
            Level::Ud => room,
            Level::Rd | Level::Rr => {
                let on_the_way = self.sent - self.endpoint.credit();
                room.min(self.test.window.saturating_sub(on_the_way as u32))
            }
        };
        if allowed < batch {
            return Ok(0);
        }
        for _ in 0..batch {
            self.post_one()?;
        }
        Ok(batch)
    }

    #[inline]
    fn post_one(&mut self) -> Result<()> {
        let size_bytes = self.test.size_bytes;
        let index = self.next;
        match self.test.op {
            Op::Send => self.endpoint.post_send(index, size_bytes)?,
            Op::Read => return Err(Error::Usage("a stream of reads has a reader".into())),
            Op::Write => {
                let Some(peer) = &self.peer else {
                    return Err(Error::Peer("did not tell where to write".into()));
                };
                let buffers = self.test.buffers();
                let target = Target {
                    handle: peer.handle,
                    address: peer.buffer(index % buffers),
                };
                let immediate = self.test.writes_immediate().then_some(self.sent as u32);
                if immediate.is_none() {
                    let mark = mark_of(self.sent, buffers, size_bytes);
                    self.endpoint.stamp(index, size_bytes, mark);
                }
                self.endpoint
                    .post_write(index, size_bytes, target, immediate)?;
            }
        }
        self.sent += 1;
        self.next = if index + 1 == self.test.window {
            0
        } else {
            index + 1
        };
        self.sends_pending += 1;
        Ok(())
    }

    /// Reaps up to a batch; the inner error is the status of a failed descriptor.
    #[inline]
    pub(super) fn reap(&mut self) -> Result<core::result::Result<u32, u32>> {
        for reaped in 0..self.test.batch {
            match self.endpoint.reap_send()? {
                Reaped::Nothing => return Ok(Ok(reaped)),
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Ok(Err(status)),
            }
        }
        Ok(Ok(self.test.batch))
    }
}
