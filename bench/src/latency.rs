//! Ping-pong: one message in flight, sent back by the server.
//!
//! Work that does not delay the message (posting the next receive descriptor, reaping the send) is done while the
//! message is in flight.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use vi_types::ReliabilityLevel;

use crate::channel::Channel;
use crate::endpoint::{
    Endpoint, EndpointLayout, Reaped, RemoteAddress, RemoteMemory, is_flushed, mark_of,
    status_text, sum_of,
};
use crate::error::{Error, Result};
use crate::idle_timer::IdleTimer;
use crate::nic::Nic;
use crate::plan::{Op, Test};
use crate::process::{self, StopFlag, mark_in_trace};

/// Unsuccessful polls per reading of the clock.
const POLLS_PER_CLOCK: u32 = 1024;

/// Unsuccessful polls before the server checks whether the round is over.
const POLLS_BEFORE_STOP_CHECK: u32 = 4096;

/// Looks at the memory that the peer writes for each call of the library.
const LOOKS_PER_CALL: u32 = 8;

/// The longest blocking call, which is followed by the checks that follow many polls.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Time after which a message counts as lost, at Unreliable Delivery.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// Timeout for a response or a send completion, at a reliable level.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

/// End of a round: a duration, or a number of messages if given; and the stop flag.
#[derive(Clone, Debug)]
pub(crate) struct RoundLimit {
    /// Maximum duration; ignored if `messages` is given.
    pub(crate) duration: Duration,
    /// Maximum number of messages.
    pub(crate) messages: Option<u64>,
    /// Stop flag of the run.
    pub(crate) stop: StopFlag,
}

impl RoundLimit {
    /// Returns whether the round is over after this time and this number of messages.
    #[inline]
    pub(crate) fn is_over(&self, elapsed: Duration, messages: u64) -> bool {
        let done = match self.messages {
            Some(limit) => messages >= limit,
            None => elapsed >= self.duration,
        };
        done || self.stop.is_set()
    }
}

/// Result of a round of ping-pong or of RDMA reads, at the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct PingResult {
    /// Number of round trips.
    pub(crate) round_trips: u64,
    /// Number of lost messages.
    pub(crate) lost: u64,
    /// Duration of the round.
    pub(crate) elapsed: Duration,
    /// Reason for which the round ended early.
    pub(crate) broken: Option<String>,
}

/// Result of one poll for a message.
enum Polled {
    Nothing,
    Arrived(u64),
    Broken(String),
}

/// One end of the ping-pong.
pub(crate) struct PingPong {
    endpoint: Endpoint,
    test: Test,
    peer: Option<RemoteMemory>,
    sequence: u64,
    next_send: u32,
    sends_pending: u32,
    to_repost: Option<u32>,
    last_mark: u64,
}

impl PingPong {
    /// Creates an unconnected end with posted receive descriptors.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let mut endpoint = Endpoint::new(
            nic,
            &EndpointLayout {
                level: test.level,
                send_descriptors: test.window,
                send_buffers: test.buffers().min(test.window),
                send_bytes: test.size_bytes,
                recv_descriptors: test.window,
                recv_buffers: test.buffers().min(test.window),
                recv_bytes: test.size_bytes,
            },
        )?;
        if test.op == Op::Send {
            for index in 0..test.window {
                endpoint.post_recv(index)?;
            }
        }
        Ok(Self {
            endpoint,
            test: *test,
            peer: None,
            sequence: 0,
            next_send: 0,
            sends_pending: 0,
            to_repost: None,
            last_mark: 0,
        })
    }

    /// Returns the endpoint, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sets the peer's memory, for RDMA.
    pub(crate) fn set_remote_memory(&mut self, memory: RemoteMemory) {
        self.peer = Some(memory);
    }

    /// Sends messages and records the round trip of each.
    pub(crate) fn ping(
        &mut self,
        limit: &RoundLimit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<PingResult> {
        mark_in_trace();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = PingResult::default();
        while !limit.is_over(before - start, pinged.round_trips + pinged.lost) {
            if let Some(pause_us) = self.test.pause_us.filter(|us| *us > 0) {
                std::thread::sleep(Duration::from_micros(pause_us.into()));
                before = Instant::now();
            }
            let mark = mark_of(self.sequence, 1, self.test.size_bytes);
            self.sequence += 1;
            self.send(mark)?;
            let back = match self.repost_and_reap()? {
                Some(reason) => Polled::Broken(reason),
                None => self.wait_for(mark)?,
            };
            let back = match back {
                // At this level a round trip includes the completion of the send.
                Polled::Arrived(_) if self.test.level == ReliabilityLevel::ReliableReception => {
                    self.wait_for_sends(back)?
                }
                back => back,
            };
            let now = Instant::now();
            match back {
                Polled::Arrived(_) => {
                    round_trips_ns.saturating_record((now - before).as_nanos() as u64);
                    pinged.round_trips += 1;
                }
                Polled::Nothing => pinged.lost += 1,
                Polled::Broken(reason) => {
                    pinged.broken = Some(reason);
                    break;
                }
            }
            before = now;
        }
        pinged.elapsed = before - start;
        mark_in_trace();
        Ok(pinged)
    }

    /// Sends every message back until a request arrives on the control channel.
    ///
    /// Returns the reason if the round ended early.
    pub(crate) fn echo(&mut self, channel: &mut Channel) -> Result<Option<String>> {
        mark_in_trace();
        let polls_before_stop_check = self.polls_in_a_row(POLLS_BEFORE_STOP_CHECK);
        let mut idle_polls = 0;
        let broken = loop {
            match self.poll_message()? {
                Polled::Arrived(mark) => {
                    self.send(mark)?;
                    if let Some(reason) = self.repost_and_reap()? {
                        break Some(reason);
                    }
                    idle_polls = 0;
                }
                Polled::Broken(reason) => break Some(reason),
                Polled::Nothing => {
                    process::pause_if_shared();
                    idle_polls += 1;
                    if idle_polls >= polls_before_stop_check && channel.has_message()? {
                        break None;
                    }
                    if idle_polls.is_multiple_of(polls_before_stop_check)
                        && !self.endpoint.may_be_connected()?
                    {
                        break Some("connection lost".into());
                    }
                }
            }
        };
        mark_in_trace();
        channel.wait_for_stop()?;
        Ok(broken)
    }

    #[inline]
    fn send(&mut self, mark: u64) -> Result<()> {
        let index = self.next_send;
        self.next_send = (index + 1) % self.test.window;
        self.sends_pending += 1;
        if self.test.touches {
            self.endpoint
                .write_all(index, self.test.size_bytes, mark as u8);
        }
        self.endpoint.stamp(index, self.test.size_bytes, mark);
        match (self.test.op, &self.peer) {
            (Op::Send, _) => self.endpoint.post_send(index, self.test.size_bytes),
            (Op::Write, Some(peer)) => {
                let target = RemoteAddress {
                    handle: peer.handle,
                    address: peer.buffer(0),
                };
                self.endpoint
                    .post_write(index, self.test.size_bytes, target, None)
            }
            (Op::Write, None) => Err(Error::Peer("address for RDMA writes is missing".into())),
            (Op::Read, _) => Err(Error::Usage(
                "RDMA reads are not supported by ping-pong".into(),
            )),
        }
    }

    /// Reposts the received descriptor and reaps sends; returns the reason if the connection is broken.
    #[inline]
    fn repost_and_reap(&mut self) -> Result<Option<String>> {
        if let Some(index) = self.to_repost.take() {
            self.endpoint.post_recv(index)?;
        }
        loop {
            match self.endpoint.reap_send()? {
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Ok(Some(status_text(status))),
                // The next message needs a free descriptor.
                Reaped::Nothing if self.sends_pending < self.test.window => return Ok(None),
                Reaped::Nothing => {}
            }
        }
    }

    /// Polls until the message with this mark arrives; returns `Nothing` if it is lost.
    #[inline]
    fn wait_for(&mut self, mark: u64) -> Result<Polled> {
        let mut idle = IdleTimer::default();
        let polls_per_clock = self.polls_in_a_row(POLLS_PER_CLOCK);
        loop {
            for _ in 0..polls_per_clock {
                match self.poll_message()? {
                    Polled::Nothing => process::pause_if_shared(),
                    Polled::Arrived(arrived) if arrived == mark || self.test.size_bytes == 0 => {
                        return Ok(Polled::Arrived(arrived));
                    }
                    // A late message that was counted as lost.
                    Polled::Arrived(_) if !self.test.level.is_reliable() => {
                        self.repost_and_reap()?;
                    }
                    Polled::Arrived(arrived) => {
                        return Err(Error::Peer(format!(
                            "unexpected message {arrived}, expected {mark}"
                        )));
                    }
                    Polled::Broken(reason) => return Ok(Polled::Broken(reason)),
                }
            }
            let since = idle.idle_time(Instant::now());
            if !self.endpoint.may_be_connected()? {
                return Ok(Polled::Broken("connection lost".into()));
            }
            match self.test.level {
                ReliabilityLevel::UnreliableDelivery if since > LOST_AFTER => {
                    return Ok(Polled::Nothing);
                }
                ReliabilityLevel::ReliableDelivery | ReliabilityLevel::ReliableReception
                    if since > COMPLETION_TIMEOUT =>
                {
                    return Ok(Polled::Broken(
                        "timed out: no response, VI is connected".into(),
                    ));
                }
                ReliabilityLevel::UnreliableDelivery
                | ReliabilityLevel::ReliableDelivery
                | ReliabilityLevel::ReliableReception => {}
            }
        }
    }

    /// Polls until all sends are complete, and then returns `back`.
    #[inline]
    fn wait_for_sends(&mut self, back: Polled) -> Result<Polled> {
        let mut idle = IdleTimer::default();
        while self.sends_pending > 0 {
            for _ in 0..POLLS_PER_CLOCK {
                match self.endpoint.reap_send()? {
                    Reaped::Done { .. } => self.sends_pending -= 1,
                    Reaped::Failed { status, .. } => {
                        return Ok(Polled::Broken(status_text(status)));
                    }
                    Reaped::Nothing => {}
                }
                if self.sends_pending == 0 {
                    return Ok(back);
                }
            }
            if idle.idle_time(Instant::now()) > COMPLETION_TIMEOUT {
                return Ok(Polled::Broken(
                    "timed out: a send is not complete, VI is connected".into(),
                ));
            }
        }
        Ok(back)
    }

    /// Reads a message of a test that touches all bytes.
    ///
    /// # Errors
    /// [`Error::Peer`] if it is not filled as its sender does.
    #[inline]
    fn read_touched(&self, index: u32, mark: u64) -> Result<()> {
        let bytes = self.test.size_bytes;
        if !self.test.touches
            || bytes == 0
            || self.endpoint.read_all(index, bytes) == sum_of(mark, bytes)
        {
            return Ok(());
        }
        Err(Error::Peer(format!(
            "message {mark} has bytes that were not sent"
        )))
    }

    /// Returns the number of polls between two checks: `polls`, or 1 if each is a blocking call.
    fn polls_in_a_row(&self, polls: u32) -> u32 {
        self.test.pause_us.map_or(polls, |_| 1)
    }

    /// Polls for a message, or waits for one if messages are awaited by blocking calls.
    #[inline]
    fn poll_message(&mut self) -> Result<Polled> {
        if self.test.op == Op::Write {
            // Several looks for each call, which is needed by what arrives in frames only.
            for _ in 0..LOOKS_PER_CALL {
                let mark = self.endpoint.mark(0, self.test.size_bytes);
                if mark != self.last_mark {
                    self.last_mark = mark;
                    self.read_touched(0, mark)?;
                    return Ok(Polled::Arrived(mark));
                }
            }
        }
        let reaped = match self.test.pause_us {
            None => self.endpoint.reap_recv()?,
            Some(_) => self.endpoint.await_recv(LONGEST_WAIT)?,
        };
        Ok(match reaped {
            Reaped::Nothing => Polled::Nothing,
            Reaped::Done { index, .. } => {
                self.to_repost = Some(index);
                let mark = self.endpoint.mark(index, self.test.size_bytes);
                self.read_touched(index, mark)?;
                Polled::Arrived(mark)
            }
            Reaped::Failed { index, status }
                if !self.test.level.is_reliable() && !is_flushed(status) =>
            {
                self.endpoint.post_recv(index)?;
                Polled::Nothing
            }
            Reaped::Failed { status, .. } => Polled::Broken(status_text(status)),
        })
    }
}
