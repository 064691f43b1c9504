//! RDMA reads: the measuring end reads the memory of the other one, which takes no part.
//!
//! A read goes there and comes back: its latency is half of the time from post to
//! completion. A stream is counted where the reads complete, at the measuring end.
//! Every read is looked at: its buffer was wiped before, and ends with the mark
//! that the other end has put into its memory.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::channel::{Channel, Seen};
use crate::endpoint::{Endpoint, Reaped, RemoteMemory, Shape, Target, mark_of, status_text};
use crate::error::{Error, Result};
use crate::latency::{Limit, Pinged};
use crate::nic::Nic;
use crate::patience::Patience;
use crate::plan::Test;
use crate::process::mark_in_trace;
use crate::stream::Clock;

/// Looks at the queue between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 1024;

/// Turns of a stream between two looks at its limit.
const TURNS_PER_CLOCK: u32 = 32;

/// Looks of the end that is read after which it asks whether the round is over.
const LOOKS_BEFORE_STOP: u32 = 1024;

/// A read that is away for so long will not come back.
const BROKEN_AFTER: Duration = Duration::from_secs(5);

/// What the memory that is read ends with.
fn source_mark(test: &Test) -> u64 {
    mark_of(0, 1, test.size_bytes)
}

fn endpoint(nic: &Nic, test: &Test) -> Result<Endpoint> {
    Endpoint::new(
        nic,
        &Shape {
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

/// What a look at the send queue found.
enum Taken {
    Nothing,
    One,
    Broken(String),
}

/// The end that reads.
pub(crate) struct Reader {
    endpoint: Endpoint,
    test: Test,
    peer: Option<RemoteMemory>,
    posted: u64,
    pending: u32,
}

impl Reader {
    /// An unconnected end.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint(nic, test)?,
            test: *test,
            peer: None,
            posted: 0,
            pending: 0,
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

    /// Reads one after the other and measures how long each takes.
    pub(crate) fn ping(
        &mut self,
        limit: &Limit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<Pinged> {
        mark_in_trace();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = Pinged::default();
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

    /// Reads with a window under way until the limit, then until every descriptor is back.
    pub(crate) fn run(&mut self, limit: &Limit) -> Result<Seen> {
        mark_in_trace();
        let first = self.posted;
        let start = Instant::now();
        let mut clock = Clock::default();
        let mut turns_to_clock = TURNS_PER_CLOCK;
        let mut broken = loop {
            let in_round = self.posted - first;
            let wanted = limit.messages.map_or(u64::MAX, |limit| limit - in_round);
            let posted = self.post_batch(wanted)?;
            if let Some(reason) = self.take_batch(&mut clock)? {
                break Some(reason);
            }
            turns_to_clock -= 1;
            if turns_to_clock == 0 || wanted == u64::from(posted) {
                turns_to_clock = TURNS_PER_CLOCK;
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
        Ok(clock.seen(broken))
    }

    /// Posts a batch if there is room for all of it, and says how many.
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
            return Err(Error::Peer("did not tell what to read".into()));
        };
        let size_bytes = self.test.size_bytes;
        let index = (self.posted % u64::from(self.test.window)) as u32;
        let source = Target {
            handle: peer.handle,
            address: peer.source(index % self.test.buffers()),
        };
        self.endpoint.wipe(index, size_bytes);
        self.endpoint.post_read(index, size_bytes, source)?;
        self.posted += 1;
        self.pending += 1;
        Ok(())
    }

    #[inline]
    fn take_one(&mut self) -> Result<Taken> {
        let (index, length_bytes) = match self.endpoint.reap_send()? {
            Reaped::Nothing => return Ok(Taken::Nothing),
            Reaped::Failed { status, .. } => return Ok(Taken::Broken(status_text(status))),
            Reaped::Done {
                index,
                length_bytes,
            } => (index, length_bytes),
        };
        let size_bytes = self.test.size_bytes;
        // Buffers that several reads share were wiped again for the later ones.
        let is_alone = self.test.buffers() == self.test.window && size_bytes > 0;
        let is_there =
            !is_alone || self.endpoint.mark(index, size_bytes) == source_mark(&self.test);
        if length_bytes != size_bytes || !is_there {
            return Err(Error::Peer("was read, but not what is there".into()));
        }
        self.pending -= 1;
        Ok(Taken::One)
    }

    /// Takes up to a batch; gives why the connection is gone, if it is.
    #[inline]
    fn take_batch(&mut self, clock: &mut Clock) -> Result<Option<String>> {
        let mut taken = 0;
        while taken < self.test.batch {
            match self.take_one()? {
                Taken::One => taken += 1,
                Taken::Nothing => break,
                Taken::Broken(reason) => return Ok(Some(reason)),
            }
        }
        if taken > 0 {
            clock.count(taken);
        }
        Ok(None)
    }

    /// Looks until a read is back; gives why none will be, if so.
    #[inline]
    fn wait_for_one(&mut self) -> Result<Option<String>> {
        let mut patience = Patience::default();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                match self.take_one()? {
                    Taken::Nothing => {}
                    Taken::One => return Ok(None),
                    Taken::Broken(reason) => return Ok(Some(reason)),
                }
            }
            if patience.after(Instant::now()) > BROKEN_AFTER {
                return Ok(Some("no data on a connection that stands".into()));
            }
        }
    }
}

/// The end that is read: it only moves its NIC on.
pub(crate) struct Source {
    endpoint: Endpoint,
}

impl Source {
    /// An unconnected end whose memory is marked.
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        let mut endpoint = endpoint(nic, test)?;
        for index in 0..test.buffers() {
            endpoint.stamp(index, test.size_bytes, source_mark(test));
        }
        Ok(Self { endpoint })
    }

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Its peer's memory is nothing to it.
    pub(crate) fn set_peer(&mut self, _memory: RemoteMemory) {}

    /// Is read until the other end speaks on the channel; what it saw is only how that ended.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<Seen> {
        mark_in_trace();
        let mut looks = 0_u32;
        let broken = loop {
            // Nothing is posted here: the call only moves the NIC on.
            if let Reaped::Failed { status, .. } = self.endpoint.reap_recv()? {
                break Some(status_text(status));
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(LOOKS_BEFORE_STOP) {
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
        Ok(Seen {
            broken,
            ..Seen::default()
        })
    }
}
