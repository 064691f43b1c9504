//! One-way messages: rate and bandwidth, counted at the receiver.
//!
//! At a reliable level a message that finds the receive queue empty breaks the connection. So the receiver returns
//! credit: it writes the number of consumed messages, whose descriptors are posted again, to the sender's memory, by
//! one small RDMA write per quarter of the window; the sender never has more than a window in flight. At Unreliable
//! Delivery there is no flow control, and lost messages are counted.
//!
//! Several connections carry the batches in turn.

mod incoming;
mod outgoing;

use std::time::{Duration, Instant};

use crate::channel::{Channel, RoundResult};
use crate::endpoint::{Endpoint, RemoteMemory, status_text};
use crate::error::Result;
use crate::idle_timer::IdleTimer;
use crate::latency::RoundLimit;
use crate::nic::Nic;
use crate::plan::Test;
use crate::process::{self, mark_in_trace};
use incoming::Incoming;
use outgoing::Outgoing;
use vi_types::ReliabilityLevel;

/// Iterations of the sender per reading of the clock.
const ITERATIONS_PER_CLOCK: u32 = 32;

/// Unsuccessful polls before the receiver checks whether the round is over.
const POLLS_BEFORE_STOP_CHECK: u32 = 1024;

/// Time without a message after the end of sending; messages that are missing then are lost.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// Timeout for credit and for the completion of sends.
const CREDIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The sending end of a stream, at the client.
pub(crate) struct Sender {
    connections: Vec<Outgoing>,
    sent: u64,
}

/// Result of a round at the sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendResult {
    /// Messages sent in this round.
    pub(crate) messages: u64,
    /// Reason for which the round ended early.
    pub(crate) broken: Option<String>,
}

impl Sender {
    /// Creates an unconnected end.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            connections: vec![Outgoing::new(nic, test)?],
            sent: 0,
        })
    }

    /// Returns the endpoint of the first connection, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.connections[0].endpoint
    }

    /// Sets the peer's memory of the first connection, for RDMA.
    pub(crate) fn set_remote_memory(&mut self, memory: RemoteMemory) {
        self.connections[0].peer = Some(memory);
    }

    /// Moves the connections of `other` to this end.
    pub(crate) fn merge(&mut self, other: Self) {
        self.connections.extend(other.connections);
    }

    /// Returns the number of messages sent since the connections were established.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends until the limit, then waits for the completion of all sends.
    pub(crate) fn run(&mut self, limit: &RoundLimit) -> Result<SendResult> {
        mark_in_trace();
        let first = self.sent;
        let start = Instant::now();
        let mut idle = IdleTimer::default();
        let mut iterations_to_clock = ITERATIONS_PER_CLOCK;
        let mut progressed = false;
        let broken = loop {
            let in_round = self.sent - first;
            let wanted = limit.messages.map_or(u64::MAX, |limit| limit - in_round);
            let posted = match self.post_and_reap(wanted)? {
                Ok((0, 0)) => {
                    process::pause_if_shared();
                    0
                }
                Ok((posted, _)) => {
                    progressed = true;
                    posted
                }
                Err(status) => break Some(status_text(status)),
            };
            iterations_to_clock -= 1;
            if iterations_to_clock == 0 || wanted == posted {
                iterations_to_clock = ITERATIONS_PER_CLOCK;
                let now = Instant::now();
                if limit.is_over(now - start, self.sent - first) {
                    break None;
                }
                if progressed {
                    idle = IdleTimer::default();
                    progressed = false;
                } else if let Some(reason) = self.stalled(idle.idle_time(now) > CREDIT_TIMEOUT)? {
                    break Some(reason);
                }
            }
        };
        let broken = match broken {
            None => self.finish()?,
            Some(reason) => Some(reason),
        };
        mark_in_trace();
        Ok(SendResult {
            messages: self.sent - first,
            broken,
        })
    }

    /// Posts a batch to each connection with room for it, up to `wanted` messages in total, and reaps completions.
    ///
    /// Returns the numbers of posted and reaped messages; the inner error is the status of a failed descriptor.
    #[inline]
    fn post_and_reap(&mut self, wanted: u64) -> Result<core::result::Result<(u64, u32), u32>> {
        let (mut posted, mut reaped) = (0, 0);
        for connection in &mut self.connections {
            let batch = u64::from(connection.post_batch(wanted - posted)?);
            posted += batch;
            self.sent += batch;
            match connection.reap()? {
                Ok(count) => reaped += count,
                Err(status) => return Ok(Err(status)),
            }
        }
        Ok(Ok((posted, reaped)))
    }

    /// Returns the reason if a connection is lost, or if there was no progress for too long.
    #[cold]
    fn stalled(&self, is_late: bool) -> Result<Option<String>> {
        for connection in &self.connections {
            if !connection.endpoint.may_be_connected()? {
                return Ok(Some("connection lost".into()));
            }
        }
        Ok(is_late.then(|| "timed out: no credit, VI is connected".into()))
    }

    /// Waits for the completion of all sends; returns the reason if one fails.
    fn finish(&mut self) -> Result<Option<String>> {
        let mut idle = IdleTimer::default();
        for connection in &mut self.connections {
            while !connection.is_done() {
                if let Err(status) = connection.reap()? {
                    return Ok(Some(status_text(status)));
                }
                if idle.idle_time(Instant::now()) > CREDIT_TIMEOUT {
                    return Ok(Some(
                        "timed out: sends are not complete, VI is connected".into(),
                    ));
                }
            }
        }
        Ok(None)
    }
}

/// The receiving end of a stream, at the server, which counts.
pub(crate) struct Receiver {
    connections: Vec<Incoming>,
    level: ReliabilityLevel,
    consumed: u64,
}

/// Counter of delivered messages, with the time from the first batch to the last one.
#[derive(Default)]
pub(crate) struct DeliveryClock {
    delivered: u64,
    untimed: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl DeliveryClock {
    #[inline]
    pub(crate) fn count(&mut self, messages: u32) {
        let now = Instant::now();
        self.delivered += u64::from(messages);
        self.last = Some(now);
        if self.first.is_none() {
            self.first = Some(now);
            self.untimed = self.delivered;
        }
    }

    pub(crate) fn result(&self, broken: Option<String>) -> RoundResult {
        let elapsed = match (self.first, self.last) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        RoundResult {
            delivered: self.delivered,
            timed: self.delivered - self.untimed,
            elapsed_ns: elapsed.as_nanos() as u64,
            broken,
        }
    }
}

impl Receiver {
    /// Creates an unconnected end with posted receive descriptors.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            connections: vec![Incoming::new(nic, test)?],
            level: test.level,
            consumed: 0,
        })
    }

    /// Returns the endpoint of the first connection, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.connections[0].endpoint
    }

    /// Sets the peer's memory of the first connection, for RDMA.
    pub(crate) fn set_remote_memory(&mut self, memory: RemoteMemory) {
        self.connections[0].peer = Some(memory);
    }

    /// Moves the connections of `other` to this end.
    pub(crate) fn merge(&mut self, other: Self) {
        self.connections.extend(other.connections);
    }

    /// Receives until the sender has stopped and no more messages arrive.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<RoundResult> {
        mark_in_trace();
        let mut clock = DeliveryClock::default();
        let mut idle_polls = 0_u32;
        let mut done: Option<(u64, Instant)> = None;
        let broken = loop {
            match self.take_batch()? {
                Ok(0) => {
                    process::pause_if_shared();
                    idle_polls = idle_polls.saturating_add(1);
                }
                Ok(taken) => {
                    clock.count(taken);
                    idle_polls = 0;
                    if let Some((_, since)) = &mut done {
                        *since = Instant::now();
                    }
                }
                Err(status) => break Some(status_text(status)),
            }
            if let Some(status) = self.return_credit(idle_polls)? {
                break Some(status_text(status));
            }
            if idle_polls < POLLS_BEFORE_STOP_CHECK {
                continue;
            }
            match done {
                Some((sent, since)) if self.is_quiet(sent, since) => break None,
                Some(_) => {}
                None if channel.has_message()? => {
                    mark_in_trace();
                    done = Some((channel.take_stop()?, Instant::now()));
                }
                None => {}
            }
            if idle_polls.is_multiple_of(POLLS_BEFORE_STOP_CHECK) && !self.may_be_connected()? {
                break Some("connection lost".into());
            }
        };
        if done.is_none() {
            mark_in_trace();
            channel.wait_for_stop()?;
        }
        Ok(clock.result(broken))
    }

    fn is_quiet(&self, sent: u64, since: Instant) -> bool {
        (self.level.is_reliable() && self.consumed >= sent) || since.elapsed() > DRAIN_TIMEOUT
    }

    /// Receives up to a batch on each connection, and returns the number of messages; the inner error is the status of
    /// a failed descriptor.
    #[inline]
    fn take_batch(&mut self) -> Result<core::result::Result<u32, u32>> {
        let mut taken = 0;
        for connection in &mut self.connections {
            match connection.take_batch()? {
                Ok(count) => taken += count,
                Err(status) => return Ok(Err(status)),
            }
        }
        self.consumed += u64::from(taken);
        Ok(Ok(taken))
    }

    /// Returns credit on the connections where it is due; returns the status of a failed descriptor.
    #[inline]
    fn return_credit(&mut self, idle_polls: u32) -> Result<Option<u32>> {
        for connection in &mut self.connections {
            if let Some(status) = connection.return_credit(idle_polls)? {
                return Ok(Some(status));
            }
        }
        Ok(None)
    }

    fn may_be_connected(&self) -> Result<bool> {
        for connection in &self.connections {
            if !connection.endpoint.may_be_connected()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
