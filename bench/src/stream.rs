//! Messages one way: rate and bandwidth, counted where they arrive.
//!
//! At a reliable level a message must never find the receive queue empty, for
//! that breaks the connection. So the receiver writes how many messages it has
//! consumed (and made room for again) into the sender's memory, by small RDMA
//! writes, one for a quarter of the window; the sender never has more than a
//! window on the way. At Unreliable Delivery nobody holds the sender back, and
//! what is lost is counted.

use std::time::{Duration, Instant};

use crate::channel::{Channel, Seen};
use crate::endpoint::{
    Endpoint, Reaped, RemoteMemory, Shape, Target, is_flushed, mark_of, status_text,
};
use crate::error::{Error, Result};
use crate::latency::Limit;
use crate::nic::Nic;
use crate::patience::Patience;
use crate::plan::{Level, Op, Test};
use crate::process::{self, mark_in_trace};

/// Send descriptors of the receiver, for credit.
const CREDIT_DESCRIPTORS: u32 = 16;

/// Bytes of a credit message.
const CREDIT_BYTES: u32 = 8;

/// Turns between two readings of the sender's clock.
const TURNS_PER_CLOCK: u32 = 32;

/// Looks without a message after which the receiver returns the credit that it
/// owes, though it is less than a quarter of the window.
const LOOKS_BEFORE_CREDIT: u32 = 64;

/// Looks without a message after which the receiver asks whether the round is over.
const LOOKS_BEFORE_STOP: u32 = 1024;

/// Messages that have not come so long after the sender's last word are lost.
const QUIET: Duration = Duration::from_millis(50);

/// A sender that gets no credit for so long will get none.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The end that sends.
pub(crate) struct Sender {
    endpoint: Endpoint,
    test: Test,
    peer: Option<RemoteMemory>,
    sent: u64,
    /// The descriptor of the next message: its number modulo the window.
    next: u32,
    sends_pending: u32,
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

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Tells where the peer's memory is.
    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        self.peer = Some(memory);
    }

    /// Messages sent since the connection began.
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
            let posted = self.post_batch(wanted)?;
            match self.reap()? {
                Ok(0) if posted == 0 => process::pause(),
                Ok(_) => moved = true,
                Err(status) => break Some(status_text(status)),
            }
            turns_to_clock -= 1;
            if turns_to_clock == 0 || wanted == u64::from(posted) {
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

    /// Posts a batch if there is room and credit for all of it, and says how many.
    #[inline]
    fn post_batch(&mut self, wanted: u64) -> Result<u32> {
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
    fn reap(&mut self) -> Result<core::result::Result<u32, u32>> {
        for reaped in 0..self.test.batch {
            match self.endpoint.reap_send()? {
                Reaped::Nothing => return Ok(Ok(reaped)),
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Ok(Err(status)),
            }
        }
        Ok(Ok(self.test.batch))
    }

    #[cold]
    fn stalled(&self, is_late: bool) -> Result<Option<String>> {
        if !self.endpoint.may_be_connected()? {
            return Ok(Some("connection lost".into()));
        }
        Ok(is_late.then(|| "no credit on a connection that stands".into()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let mut patience = Patience::default();
        while self.sends_pending > 0 {
            if let Err(status) = self.reap()? {
                return Ok(Some(status_text(status)));
            }
            if patience.after(Instant::now()) > STALLED_AFTER {
                return Ok(Some("sends do not end on a connection that stands".into()));
            }
        }
        Ok(None)
    }
}

/// The end that receives and counts.
pub(crate) struct Receiver {
    endpoint: Endpoint,
    test: Test,
    peer: Option<RemoteMemory>,
    consumed: u64,
    returned: u64,
    next_credit: u32,
    credits_pending: u32,
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
        let mut endpoint = Endpoint::new(
            nic,
            &Shape {
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

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Tells where the peer's memory is.
    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        self.peer = Some(memory);
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
            if idle_looks.is_multiple_of(LOOKS_BEFORE_STOP) && !self.endpoint.may_be_connected()? {
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
        (self.test.level.is_reliable() && self.consumed >= sent) || since.elapsed() > QUIET
    }

    /// Takes up to a batch; the inner error is the status of a failed descriptor.
    #[inline]
    fn take_batch(&mut self) -> Result<core::result::Result<u32, u32>> {
        if self.test.consumes_receives() {
            self.take_received()
        } else {
            self.take_written()
        }
    }

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
                            "sent {length_bytes} bytes where {} were expected",
                            self.test.size_bytes
                        )));
                    }
                    self.endpoint.post_recv(index)?;
                    taken += 1;
                }
                Reaped::Failed { index, status }
                    if self.test.level == Level::Ud && !is_flushed(status) =>
                {
                    self.endpoint.post_recv(index)?;
                }
                Reaped::Failed { status, .. } => return Ok(Err(status)),
            }
        }
        self.consumed += u64::from(taken);
        Ok(Ok(taken))
    }

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
            self.consumed += 1;
            taken += 1;
        }
        if taken == 0 {
            // Nothing is posted here: the call only moves the NIC on.
            if let Reaped::Failed { status, .. } = self.endpoint.reap_recv()? {
                return Ok(Err(status));
            }
        }
        Ok(Ok(taken))
    }

    /// Tells the sender how much was consumed, if that is worth a message now.
    #[inline]
    fn return_credit(&mut self, idle_looks: u32) -> Result<Option<u32>> {
        if self.test.level == Level::Ud {
            return Ok(None);
        }
        let owed = self.consumed - self.returned;
        let is_due = owed >= u64::from(self.test.window / 4)
            || (owed > 0 && idle_looks >= LOOKS_BEFORE_CREDIT);
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
            return Err(Error::Peer("did not tell where credit goes".into()));
        };
        let target = Target {
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
