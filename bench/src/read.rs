//! RDMA reads: the client reads memory of the server, whose program is not involved.
//!
//! A read is a round trip: its latency is half of the time from post to completion. A stream of reads is counted at the
//! client, where they complete. Every read is checked: its buffer is cleared before the read, and must end with the
//! mark of the server's memory afterwards.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::channel::{Channel, RoundResult};
use crate::endpoint::{
    Endpoint, EndpointLayout, Reaped, RemoteAddress, RemoteMemory, mark_of, status_text,
};
use crate::error::{Error, Result};
use crate::idle_timer::IdleTimer;
use crate::latency::{PingResult, RoundLimit};
use crate::nic::Nic;
use crate::plan::Test;
use crate::process::mark_in_trace;
use crate::stream::DeliveryClock;

/// Unsuccessful polls of the queue per reading of the clock.
const POLLS_PER_CLOCK: u32 = 1024;

/// Iterations of a stream per check of its limit.
const ITERATIONS_PER_CLOCK: u32 = 32;

/// Polls before the server checks whether the round is over.
const POLLS_BEFORE_STOP_CHECK: u32 = 1024;

/// Timeout for the completion of a read.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the mark at the end of each buffer that is read.
fn source_mark(test: &Test) -> u64 {
    mark_of(0, 1, test.size_bytes)
}

fn endpoint(nic: &Nic, test: &Test) -> Result<Endpoint> {
    Endpoint::new(
        nic,
        &EndpointLayout {
            level: test.level,
            send_descriptors: test.window,
            send_buffers: test.buffers(),
            send_bytes: test.size_bytes,
            recv_descriptors: 1,
            recv_buffers: test.buffers(),
            recv_bytes: test.size_bytes,
        },
    )
}

/// Result of one poll of the send queue.
enum ReadPoll {
    Nothing,
    Completed,
    Broken(String),
}

/// The end that reads, at the client.
pub(crate) struct Reader {
    endpoint: Endpoint,
    test: Test,
    peer: Option<RemoteMemory>,
    posted: u64,
    pending: u32,
}

impl Reader {
    /// Creates an unconnected end.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint(nic, test)?,
            test: *test,
            peer: None,
            posted: 0,
            pending: 0,
        })
    }

    /// Returns the endpoint, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sets the memory to read.
    pub(crate) fn set_remote_memory(&mut self, memory: RemoteMemory) {
        self.peer = Some(memory);
    }

    /// Makes one read after the other and records the time of each.
    pub(crate) fn ping(
        &mut self,
        limit: &RoundLimit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<PingResult> {
        mark_in_trace();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = PingResult::default();
        while !limit.is_over(before - start, pinged.round_trips) {
            self.post_one()?;
            if let Some(reason) = self.wait_for_one()? {
                pinged.broken = Some(reason);
                break;
            }
            let now = Instant::now();
            round_trips_ns.saturating_record((now - before).as_nanos() as u64);
            pinged.round_trips += 1;
            before = now;
        }
        pinged.elapsed = before - start;
        mark_in_trace();
        Ok(pinged)
    }

    /// Keeps a window of reads in flight until the limit, then waits for their completion.
    pub(crate) fn run(&mut self, limit: &RoundLimit) -> Result<RoundResult> {
        mark_in_trace();
        let first = self.posted;
        let start = Instant::now();
        let mut clock = DeliveryClock::default();
        let mut iterations_to_clock = ITERATIONS_PER_CLOCK;
        let mut broken = loop {
            let in_round = self.posted - first;
            let wanted = limit.messages.map_or(u64::MAX, |limit| limit - in_round);
            let posted = self.post_batch(wanted)?;
            if let Some(reason) = self.poll_batch(&mut clock)? {
                break Some(reason);
            }
            iterations_to_clock -= 1;
            if iterations_to_clock == 0 || wanted == u64::from(posted) {
                iterations_to_clock = ITERATIONS_PER_CLOCK;
                if limit.is_over(start.elapsed(), self.posted - first) {
                    break None;
                }
                if !self.endpoint.may_be_connected()? {
                    break Some("connection lost".into());
                }
            }
        };
        while broken.is_none() && self.pending > 0 {
            broken = self.wait_for_one()?;
            if broken.is_none() {
                clock.count(1);
            }
        }
        mark_in_trace();
        Ok(clock.result(broken))
    }

    /// Posts a batch if the window has room for all of it; returns the number of reads posted.
    #[inline]
    fn post_batch(&mut self, wanted: u64) -> Result<u32> {
        let batch = u64::from(self.test.batch).min(wanted) as u32;
        if self.test.window - self.pending < batch {
            return Ok(0);
        }
        for _ in 0..batch {
            self.post_one()?;
        }
        Ok(batch)
    }

    #[inline]
    fn post_one(&mut self) -> Result<()> {
        let Some(peer) = &self.peer else {
            return Err(Error::Peer("address for RDMA reads is missing".into()));
        };
        let size_bytes = self.test.size_bytes;
        let index = (self.posted % u64::from(self.test.window)) as u32;
        let source = RemoteAddress {
            handle: peer.handle,
            address: peer.source(index % self.test.buffers()),
        };
        self.endpoint.wipe(index, size_bytes);
        self.endpoint.post_read(index, size_bytes, source)?;
        self.posted += 1;
        self.pending += 1;
        Ok(())
    }

    /// Polls for the completion of a read, and checks its data.
    #[inline]
    fn poll_read(&mut self) -> Result<ReadPoll> {
        let (index, length_bytes) = match self.endpoint.reap_send()? {
            Reaped::Nothing => return Ok(ReadPoll::Nothing),
            Reaped::Failed { status, .. } => return Ok(ReadPoll::Broken(status_text(status))),
            Reaped::Done {
                index,
                length_bytes,
            } => (index, length_bytes),
        };
        let size_bytes = self.test.size_bytes;
        // A shared buffer may have been cleared again for a later read.
        let is_exclusive = self.test.buffers() == self.test.window && size_bytes > 0;
        let is_valid =
            !is_exclusive || self.endpoint.mark(index, size_bytes) == source_mark(&self.test);
        if length_bytes != size_bytes || !is_valid {
            return Err(Error::Peer("an RDMA read returned wrong data".into()));
        }
        self.pending -= 1;
        Ok(ReadPoll::Completed)
    }

    /// Polls for up to a batch of completions; returns the reason if the connection is broken.
    #[inline]
    fn poll_batch(&mut self, clock: &mut DeliveryClock) -> Result<Option<String>> {
        let mut taken = 0;
        while taken < self.test.batch {
            match self.poll_read()? {
                ReadPoll::Completed => taken += 1,
                ReadPoll::Nothing => break,
                ReadPoll::Broken(reason) => return Ok(Some(reason)),
            }
        }
        if taken > 0 {
            clock.count(taken);
        }
        Ok(None)
    }

    /// Polls until a read completes; returns the reason if the connection is broken.
    #[inline]
    fn wait_for_one(&mut self) -> Result<Option<String>> {
        let mut idle = IdleTimer::default();
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                match self.poll_read()? {
                    ReadPoll::Nothing => {}
                    ReadPoll::Completed => return Ok(None),
                    ReadPoll::Broken(reason) => return Ok(Some(reason)),
                }
            }
            if idle.idle_time(Instant::now()) > COMPLETION_TIMEOUT {
                return Ok(Some(
                    "timed out: a read is not complete, VI is connected".into(),
                ));
            }
        }
    }
}

/// The end that is read, at the server: it only runs its NIC's poller.
pub(crate) struct Source {
    endpoint: Endpoint,
}

impl Source {
    /// Creates an unconnected end with marks in its memory.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let mut endpoint = endpoint(nic, test)?;
        for index in 0..test.buffers() {
            endpoint.stamp(index, test.size_bytes, source_mark(test));
        }
        Ok(Self { endpoint })
    }

    /// Returns the endpoint, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Does nothing: this end does not access its peer's memory.
    pub(crate) fn set_remote_memory(&mut self, _memory: RemoteMemory) {}

    /// Runs the poller until a request arrives on the control channel; the result only contains the reason of an early
    /// end.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<RoundResult> {
        mark_in_trace();
        let mut polls = 0_u32;
        let broken = loop {
            // No receives are posted: the call only runs the NIC's poller.
            if let Reaped::Failed { status, .. } = self.endpoint.reap_recv()? {
                break Some(status_text(status));
            }
            polls = polls.wrapping_add(1);
            if !polls.is_multiple_of(POLLS_BEFORE_STOP_CHECK) {
                continue;
            }
            if channel.has_message()? {
                break None;
            }
            if !self.endpoint.may_be_connected()? {
                break Some("connection lost".into());
            }
        };
        mark_in_trace();
        channel.wait_for_stop()?;
        Ok(RoundResult {
            broken,
            ..RoundResult::default()
        })
    }
}
