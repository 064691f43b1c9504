//! Receiving end of one connection of a stream.

use core::hint::black_box;

use crate::endpoint::{
    Endpoint, EndpointLayout, Reaped, RemoteAddress, RemoteMemory, is_flushed, mark_of,
};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::plan::Test;

/// Number of send descriptors for credit.
const CREDIT_DESCRIPTORS: u32 = 16;

/// Size of a credit message in bytes.
const CREDIT_BYTES: u32 = 8;

/// Unsuccessful polls before the receiver returns credit of less than a quarter of the window.
const POLLS_BEFORE_CREDIT: u32 = 64;

/// The receiving end of one connection of a stream.
pub(super) struct Incoming {
    pub(super) endpoint: Endpoint,
    test: Test,
    /// The peer's memory, for credit.
    pub(super) peer: Option<RemoteMemory>,
    consumed: u64,
    returned: u64,
    next_credit: u32,
    credits_pending: u32,
}

impl Incoming {
    /// Creates an unconnected end with posted receive descriptors.
    pub(super) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let mut endpoint = Endpoint::new(
            nic,
            &EndpointLayout {
                level: test.level,
                send_descriptors: CREDIT_DESCRIPTORS,
                send_buffers: CREDIT_DESCRIPTORS,
                send_bytes: CREDIT_BYTES,
                recv_descriptors: test.window,
                recv_buffers: test.buffers(),
                recv_bytes: test.size_bytes,
            },
        )?;
        if test.consumes_receives() {
            for index in 0..test.window {
                endpoint.post_recv(index)?;
            }
        }
        Ok(Self {
            endpoint,
            test: *test,
            peer: None,
            consumed: 0,
            returned: 0,
            next_credit: 0,
            credits_pending: 0,
        })
    }

    /// Receives up to a batch, and returns the number of messages; the inner error is the status of a failed
    /// descriptor.
    #[inline]
    pub(super) fn take_batch(&mut self) -> Result<core::result::Result<u32, u32>> {
        if self.test.consumes_receives() {
            self.take_received()
        } else {
            self.take_written()
        }
    }

    /// Reaps receive descriptors and posts them again.
    #[inline]
    fn take_received(&mut self) -> Result<core::result::Result<u32, u32>> {
        let mut taken = 0;
        while taken < self.test.batch {
            match self.endpoint.reap_recv()? {
                Reaped::Nothing => break,
                Reaped::Done {
                    index,
                    length_bytes,
                } => {
                    if length_bytes != self.test.size_bytes {
                        return Err(Error::Peer(format!(
                            "a message of {length_bytes} bytes arrived, expected {}",
                            self.test.size_bytes
                        )));
                    }
                    if self.test.touches {
                        black_box(self.endpoint.read_all(index, length_bytes));
                    }
                    self.endpoint.post_recv(index)?;
                    taken += 1;
                }
                Reaped::Failed { index, status }
                    if !self.test.level.is_reliable() && !is_flushed(status) =>
                {
                    self.endpoint.post_recv(index)?;
                }
                Reaped::Failed { status, .. } => return Ok(Err(status)),
            }
        }
        self.consumed += u64::from(taken);
        Ok(Ok(taken))
    }

    /// Detects RDMA writes by their marks.
    #[inline]
    fn take_written(&mut self) -> Result<core::result::Result<u32, u32>> {
        let buffers = self.test.buffers();
        let mut taken = 0;
        while taken < self.test.batch {
            let index = (self.consumed % u64::from(buffers)) as u32;
            let expected = mark_of(self.consumed, buffers, self.test.size_bytes);
            if self.endpoint.mark(index, self.test.size_bytes) != expected {
                break;
            }
            if self.test.touches {
                black_box(self.endpoint.read_all(index, self.test.size_bytes));
            }
            self.consumed += 1;
            taken += 1;
        }
        if taken == 0 {
            // No receives are posted: the call only runs the NIC's poller.
            if let Reaped::Failed { status, .. } = self.endpoint.reap_recv()? {
                return Ok(Err(status));
            }
        }
        Ok(Ok(taken))
    }

    /// Returns credit to the sender if it is due; returns the status of a failed descriptor.
    #[inline]
    pub(super) fn return_credit(&mut self, idle_polls: u32) -> Result<Option<u32>> {
        if !self.test.level.is_reliable() {
            return Ok(None);
        }
        let unreturned = self.consumed - self.returned;
        let is_due = unreturned >= u64::from(self.test.window / 4)
            || (unreturned > 0 && idle_polls >= POLLS_BEFORE_CREDIT);
        if !is_due {
            return Ok(None);
        }
        while self.credits_pending > 0 {
            match self.endpoint.reap_send()? {
                Reaped::Done { .. } => self.credits_pending -= 1,
                Reaped::Nothing => break,
                Reaped::Failed { status, .. } => return Ok(Some(status)),
            }
        }
        if self.credits_pending == CREDIT_DESCRIPTORS {
            return Ok(None);
        }
        let Some(peer) = &self.peer else {
            return Err(Error::Peer("address for credit is missing".into()));
        };
        let target = RemoteAddress {
            handle: peer.handle,
            address: peer.credit_address,
        };
        let index = self.next_credit;
        self.endpoint.stamp(index, CREDIT_BYTES, self.consumed);
        self.endpoint
            .post_write(index, CREDIT_BYTES, target, None)?;
        self.next_credit = (index + 1) % CREDIT_DESCRIPTORS;
        self.credits_pending += 1;
        self.returned = self.consumed;
        Ok(None)
    }
}
