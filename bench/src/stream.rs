//! Messages one way: rate and bandwidth, counted where they arrive.
//!
//! At a reliable level a message must never find the receive queue empty, for
//! that breaks the connection. So the receiver writes how many messages it has
//! consumed (and made room for again) into the sender's memory, by small RDMA
//! writes, one for a quarter of the window; the sender never has more than a
//! window on the way. At Unreliable Delivery nobody holds the sender back, and
//! what is lost is counted.
//!
//! Several connections carry a batch each in turn.

mod incoming;
mod outgoing;

use std::time::{Duration, Instant};

use crate::channel::{Channel, Seen};
use crate::endpoint::{Endpoint, RemoteMemory, status_text};
use crate::error::Result;
use crate::latency::Limit;
use crate::nic::Nic;
use crate::patience::Patience;
use crate::plan::{Level, Test};
use crate::process::{self, mark_in_trace};
use incoming::Incoming;
use outgoing::Outgoing;

/// Turns between two readings of the sender's clock.
const TURNS_PER_CLOCK: u32 = 32;

/// Looks without a message after which the receiver asks whether the round is over.
const LOOKS_BEFORE_STOP: u32 = 1024;

/// Messages that have not come so long after the sender's last word are lost.
const QUIET: Duration = Duration::from_millis(50);

/// A sender that gets no credit for so long will get none.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The end that sends.
pub(crate) struct Sender {
    connections: Vec<Outgoing>,
    sent: u64,
}

/// What the sender saw of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    /// Messages of this round.
    pub(crate) messages: u64,
    /// Why it ended early, if it did.
    pub(crate) broken: Option<String>,
}

impl Sender {
    /// An unconnected end.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            connections: vec![Outgoing::new(nic, test)?],
            sent: 0,
        })
    }

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.connections[0].endpoint
    }

    /// Tells where the peer's memory is.
    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        self.connections[0].peer = Some(memory);
    }

    /// Takes the connections of another one.
    pub(crate) fn join(&mut self, other: Self) {
        self.connections.extend(other.connections);
    }

    /// Messages sent since the connections began.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends until the limit, then until every descriptor is back.
    pub(crate) fn run(&mut self, limit: &Limit) -> Result<Sent> {
        mark_in_trace();
        let first = self.sent;
        let start = Instant::now();
        let mut patience = Patience::default();
        let mut turns_to_clock = TURNS_PER_CLOCK;
        let mut moved = false;
        let broken = loop {
            let in_round = self.sent - first;
            let wanted = limit.messages.map_or(u64::MAX, |limit| limit - in_round);
            let posted = match self.turn(wanted)? {
                Ok((0, 0)) => {
                    process::pause();
                    0
                }
                Ok((posted, _)) => {
                    moved = true;
                    posted
                }
                Err(status) => break Some(status_text(status)),
            };
            turns_to_clock -= 1;
            if turns_to_clock == 0 || wanted == posted {
                turns_to_clock = TURNS_PER_CLOCK;
                let now = Instant::now();
                if limit.is_over(now - start, self.sent - first) {
                    break None;
                }
                if moved {
                    patience = Patience::default();
                    moved = false;
                } else if let Some(reason) = self.stalled(patience.after(now) > STALLED_AFTER)? {
                    break Some(reason);
                }
            }
        };
        let broken = match broken {
            None => self.finish()?,
            Some(reason) => Some(reason),
        };
        mark_in_trace();
        Ok(Sent {
            messages: self.sent - first,
            broken,
        })
    }

    /// Posts a batch to each connection that has room for it, up to so many messages, and reaps; says
    /// how many of both. The inner error is the status of a failed descriptor.
    #[inline]
    fn turn(&mut self, wanted: u64) -> Result<core::result::Result<(u64, u32), u32>> {
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

    #[cold]
    fn stalled(&self, is_late: bool) -> Result<Option<String>> {
        for connection in &self.connections {
            if !connection.endpoint.may_be_connected()? {
                return Ok(Some("connection lost".into()));
            }
        }
        Ok(is_late.then(|| "no credit on a connection that stands".into()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let mut patience = Patience::default();
        for connection in &mut self.connections {
            while !connection.is_done() {
                if let Err(status) = connection.reap()? {
                    return Ok(Some(status_text(status)));
                }
                if patience.after(Instant::now()) > STALLED_AFTER {
                    return Ok(Some("sends do not end on a connection that stands".into()));
                }
            }
        }
        Ok(None)
    }
}

/// The end that receives and counts.
pub(crate) struct Receiver {
    connections: Vec<Incoming>,
    level: Level,
    consumed: u64,
}

/// The clock of a round: runs from the first messages to the last.
#[derive(Default)]
pub(crate) struct Clock {
    delivered: u64,
    untimed: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Clock {
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

    pub(crate) fn seen(&self, broken: Option<String>) -> Seen {
        let elapsed = match (self.first, self.last) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        Seen {
            delivered: self.delivered,
            timed: self.delivered - self.untimed,
            elapsed_ns: elapsed.as_nanos() as u64,
            broken,
        }
    }
}

impl Receiver {
    /// An unconnected end whose receive descriptors wait already.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            connections: vec![Incoming::new(nic, test)?],
            level: test.level,
            consumed: 0,
        })
    }

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.connections[0].endpoint
    }

    /// Tells where the peer's memory is.
    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        self.connections[0].peer = Some(memory);
    }

    /// Takes the connections of another one.
    pub(crate) fn join(&mut self, other: Self) {
        self.connections.extend(other.connections);
    }

    /// Receives until the sender is done and nothing more comes.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<Seen> {
        mark_in_trace();
        let mut clock = Clock::default();
        let mut idle_looks = 0_u32;
        let mut done: Option<(u64, Instant)> = None;
        let broken = loop {
            match self.take_batch()? {
                Ok(0) => {
                    process::pause();
                    idle_looks = idle_looks.saturating_add(1);
                }
                Ok(taken) => {
                    clock.count(taken);
                    idle_looks = 0;
                    if let Some((_, since)) = &mut done {
                        *since = Instant::now();
                    }
                }
                Err(status) => break Some(status_text(status)),
            }
            if let Some(status) = self.return_credit(idle_looks)? {
                break Some(status_text(status));
            }
            if idle_looks < LOOKS_BEFORE_STOP {
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
            if idle_looks.is_multiple_of(LOOKS_BEFORE_STOP) && !self.may_be_connected()? {
                break Some("connection lost".into());
            }
        };
        if done.is_none() {
            mark_in_trace();
            channel.wait_for_stop()?;
        }
        Ok(clock.seen(broken))
    }

    fn is_quiet(&self, sent: u64, since: Instant) -> bool {
        (self.level.is_reliable() && self.consumed >= sent) || since.elapsed() > QUIET
    }

    /// Takes up to a batch of each connection; the inner error is the status of a failed descriptor.
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

    /// Tells the sender how much was consumed, where that is worth a message now.
    #[inline]
    fn return_credit(&mut self, idle_looks: u32) -> Result<Option<u32>> {
        for connection in &mut self.connections {
            if let Some(status) = connection.return_credit(idle_looks)? {
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
