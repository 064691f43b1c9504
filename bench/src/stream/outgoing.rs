//! Sending end of one connection of a stream.

use vi_types::ReliabilityLevel;

use crate::endpoint::{Endpoint, EndpointLayout, Reaped, RemoteAddress, RemoteMemory, mark_of};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::plan::{Op, Test};

/// The sending end of one connection of a stream.
pub(super) struct Outgoing {
    pub(super) endpoint: Endpoint,
    test: Test,
    /// The peer's memory, for RDMA writes.
    pub(super) peer: Option<RemoteMemory>,
    sent: u64,
    /// Descriptor of the next message: the number of the message modulo the window.
    next: u32,
    sends_pending: u32,
}

impl Outgoing {
    /// Creates an unconnected end.
    pub(super) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let endpoint = Endpoint::new(
            nic,
            &EndpointLayout {
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

    /// Returns whether all sends are complete.
    pub(super) fn is_done(&self) -> bool {
        self.sends_pending == 0
    }

    /// Posts a batch of up to `wanted` messages if there is room and credit for all of it; returns the number posted.
    #[inline]
    pub(super) fn post_batch(&mut self, wanted: u64) -> Result<u32> {
        let batch = u64::from(self.test.batch).min(wanted) as u32;
        let room = self.test.window - self.sends_pending;
        let allowed = match self.test.level {
            ReliabilityLevel::UnreliableDelivery => room,
            ReliabilityLevel::ReliableDelivery | ReliabilityLevel::ReliableReception => {
                let in_flight = self.sent - self.endpoint.credit();
                room.min(self.test.window.saturating_sub(in_flight as u32))
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
        if self.test.touches {
            self.endpoint.write_all(index, size_bytes, self.sent as u8);
        }
        match self.test.op {
            Op::Send => self.endpoint.post_send(index, size_bytes)?,
            Op::Read => {
                return Err(Error::Usage(
                    "RDMA reads are not supported by streams of sends".into(),
                ));
            }
            Op::Write => {
                let Some(peer) = &self.peer else {
                    return Err(Error::Peer("address for RDMA writes is missing".into()));
                };
                let buffers = self.test.buffers();
                let target = RemoteAddress {
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

    /// Reaps up to a batch, and returns the number of sends; the inner error is the status of a failed descriptor.
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
