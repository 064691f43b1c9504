//! One message in flight, there and back.
//!
//! Whatever is not on the way of the message (posting the next receive
//! descriptor, reaping the send) is done while the message flies.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::channel::Channel;
use crate::endpoint::{
    Endpoint, Reaped, RemoteMemory, Shape, Target, is_flushed, mark_of, status_text,
};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::patience::Patience;
use crate::plan::{Level, Op, Test};
use crate::process::{self, Stop, mark_in_trace};

/// Looks without a message between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 1024;

/// Looks without a message after which the answering end asks whether the round is over.
const LOOKS_BEFORE_STOP: u32 = 4096;

/// A message that is away for so long is lost, at Unreliable Delivery.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// An answer that is away for so long will not come, at a reliable level.
const BROKEN_AFTER: Duration = Duration::from_secs(5);

/// When a round ends.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// After this time,
    pub(crate) duration: Duration,
    /// or so many messages if that is given (the time counts no more then),
    pub(crate) messages: Option<u64>,
    /// or when somebody asks.
    pub(crate) stop: Stop,
}

impl Limit {
    /// Whether the round is over after this time and so many messages.
    #[inline]
    pub(crate) fn is_over(&self, elapsed: Duration, messages: u64) -> bool {
        let done = match self.messages {
            Some(limit) => messages >= limit,
            None => elapsed >= self.duration,
        };
        done || self.stop.is_asked()
    }
}

/// What a round gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pinged {
    /// Round trips.
    pub(crate) round_trips: u64,
    /// Messages that did not come back.
    pub(crate) lost: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Why it ended early, if it did.
    pub(crate) broken: Option<String>,
}

enum Look {
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
    /// An unconnected end whose receive descriptors wait already.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let mut endpoint = Endpoint::new(
            nic,
            &Shape {
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

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Tells where the peer's memory is.
    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        self.peer = Some(memory);
    }

    /// Sends messages and measures how long each takes to come back.
    pub(crate) fn ping(
        &mut self,
        limit: &Limit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<Pinged> {
        mark_in_trace();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = Pinged::default();
        while !limit.is_over(before - start, pinged.round_trips + pinged.lost) {
            let mark = mark_of(self.sequence, 1, self.test.size_bytes);
            self.sequence += 1;
            self.send(mark)?;
            let back = match self.tidy()? {
                Some(reason) => Look::Broken(reason),
                None => self.wait_for(mark)?,
            };
            let back = match back {
                // At this level a message has arrived when its descriptor is back.
                Look::Arrived(_) if self.test.level == Level::Rr => self.wait_for_sends(back)?,
                back => back,
            };
            let now = Instant::now();
            match back {
                Look::Arrived(_) => {
                    round_trips_ns.saturating_record((now - before).as_nanos() as u64);
                    pinged.round_trips += 1;
                }
                Look::Nothing => pinged.lost += 1,
                Look::Broken(reason) => {
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

    /// Sends every message back until the other end speaks on the channel.
    ///
    /// Returns why it ended early, if it did.
    pub(crate) fn echo(&mut self, channel: &mut Channel) -> Result<Option<String>> {
        mark_in_trace();
        let mut idle_looks = 0;
        let broken = loop {
            match self.look_for_new()? {
                Look::Arrived(mark) => {
                    self.send(mark)?;
                    if let Some(reason) = self.tidy()? {
                        break Some(reason);
                    }
                    idle_looks = 0;
                }
                Look::Broken(reason) => break Some(reason),
                Look::Nothing => {
                    process::pause();
                    idle_looks += 1;
                    if idle_looks >= LOOKS_BEFORE_STOP && channel.has_message()? {
                        break None;
                    }
                    if idle_looks.is_multiple_of(LOOKS_BEFORE_STOP)
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
        self.endpoint.stamp(index, self.test.size_bytes, mark);
        match (self.test.op, &self.peer) {
            (Op::Send, _) => self.endpoint.post_send(index, self.test.size_bytes),
            (Op::Write, Some(peer)) => {
                let target = Target {
                    handle: peer.handle,
                    address: peer.buffer(0),
                };
                self.endpoint
                    .post_write(index, self.test.size_bytes, target, None)
            }
            (Op::Write, None) => Err(Error::Peer("did not tell where to write".into())),
            (Op::Read, _) => Err(Error::Usage("reads are measured by their reader".into())),
        }
    }

    /// What need not delay a message; says why if the connection is gone.
    #[inline]
    fn tidy(&mut self) -> Result<Option<String>> {
        if let Some(index) = self.to_repost.take() {
            self.endpoint.post_recv(index)?;
        }
        loop {
            match self.endpoint.reap_send()? {
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Ok(Some(status_text(status))),
                // A descriptor must be free for the next message.
                Reaped::Nothing if self.sends_pending < self.test.window => return Ok(None),
                Reaped::Nothing => {}
            }
        }
    }

    /// Looks until the message with this mark is there; `Nothing` means that it is lost.
    #[inline]
    fn wait_for(&mut self, mark: u64) -> Result<Look> {
        let mut patience = Patience::default();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                match self.look_for_new()? {
                    Look::Nothing => process::pause(),
                    Look::Arrived(seen) if seen == mark || self.test.size_bytes == 0 => {
                        return Ok(Look::Arrived(seen));
                    }
                    // Late, after it was given up.
                    Look::Arrived(_) if self.test.level == Level::Ud => {
                        self.tidy()?;
                    }
                    Look::Arrived(seen) => {
                        return Err(Error::Peer(format!(
                            "sent message {seen} where {mark} was expected"
                        )));
                    }
                    Look::Broken(reason) => return Ok(Look::Broken(reason)),
                }
            }
            let since = patience.after(Instant::now());
            if !self.endpoint.may_be_connected()? {
                return Ok(Look::Broken("connection lost".into()));
            }
            match self.test.level {
                Level::Ud if since > LOST_AFTER => return Ok(Look::Nothing),
                Level::Rd | Level::Rr if since > BROKEN_AFTER => {
                    return Ok(Look::Broken("no answer on a connection that stands".into()));
                }
                Level::Ud | Level::Rd | Level::Rr => {}
            }
        }
    }

    /// Looks until every send is complete; gives `back` then.
    #[inline]
    fn wait_for_sends(&mut self, back: Look) -> Result<Look> {
        let mut patience = Patience::default();
        while self.sends_pending > 0 {
            for _ in 0..LOOKS_PER_CLOCK {
                match self.endpoint.reap_send()? {
                    Reaped::Done { .. } => self.sends_pending -= 1,
                    Reaped::Failed { status, .. } => return Ok(Look::Broken(status_text(status))),
                    Reaped::Nothing => {}
                }
                if self.sends_pending == 0 {
                    return Ok(back);
                }
            }
            if patience.after(Instant::now()) > BROKEN_AFTER {
                return Ok(Look::Broken(
                    "a send does not end on a connection that stands".into(),
                ));
            }
        }
        Ok(back)
    }

    #[inline]
    fn look_for_new(&mut self) -> Result<Look> {
        if self.test.op == Op::Write {
            let mark = self.endpoint.mark(0, self.test.size_bytes);
            if mark != self.last_mark {
                self.last_mark = mark;
                return Ok(Look::Arrived(mark));
            }
        }
        Ok(match self.endpoint.reap_recv()? {
            Reaped::Nothing => Look::Nothing,
            Reaped::Done { index, .. } => {
                self.to_repost = Some(index);
                Look::Arrived(self.endpoint.mark(index, self.test.size_bytes))
            }
            Reaped::Failed { index, status }
                if self.test.level == Level::Ud && !is_flushed(status) =>
            {
                self.endpoint.post_recv(index)?;
                Look::Nothing
            }
            Reaped::Failed { status, .. } => Look::Broken(status_text(status)),
        })
    }
}
