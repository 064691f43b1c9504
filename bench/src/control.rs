//! The same traffic as frames of a raw port, with no protocol; beside VI/TCP, as bytes of a TCP connection.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `near`, `far` | the control at the end that measures, and at the end that answers |
//! | `stream` | one TCP connection |
//!
//! What the port and two copies cost, and nothing else: frames of the same
//! number and size as a message of the test, filled from a buffer on one side
//! and copied into a buffer on the other.
//!
//! Bytes of a frame: destination (6), source (6), EtherType (2), kind (1),
//! round (4), message (4), then as much of the message as the size leaves.

pub(crate) mod far;
pub(crate) mod near;
pub(crate) mod stream;

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Port};
use serde::{Deserialize, Serialize};

use crate::channel::{RawRound, Seen};
use crate::error::{Error, Result};
use crate::latency::{Limit, Pinged};
use crate::plan::{Frames, MAX_SIZE_BYTES};

/// EtherType for local experiments (IEEE Std 802): nobody else listens to it.
pub(crate) const ETHERTYPE: u16 = 0x88B5;

/// Ethernet header, kind, round, message.
pub(crate) const HEADER_BYTES: usize = 14 + 1 + 4 + 4;

/// Looks without a frame between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 1024;

/// An answer that is away for so long is lost.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// A round in which nothing comes for so long is over.
const SILENT: Duration = Duration::from_secs(2);

/// How often the end of a round is said on a port that may lose it.
const STOP_TRIES: u32 = 20;

/// Pauses of a receiver between two looks at an empty ring that the kernel fills.
const PAUSES: u32 = 64;

/// What a frame is in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not the last frame of its message.
    More,
    /// The last frame of its message.
    Last,
    /// The round is over.
    Stop,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::More, Self::Last, Self::Stop]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Where it stands in its message, or that there is no other one.
    pub(crate) kind: Kind,
    /// Frames of other rounds are nobody's.
    pub(crate) round: u32,
    /// Its message.
    pub(crate) message: u32,
}

impl Header {
    /// The first frame of a run, which no other run of this host mistakes for its own.
    pub(crate) fn first_of_run() -> Self {
        Self {
            kind: Kind::Last,
            round: std::process::id(),
            message: 0,
        }
    }

    /// `None` for a frame that is not ours.
    #[inline]
    pub(crate) fn parse(bytes: &[u8], ethertype: u16) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        if bytes[12..14] != ethertype.to_be_bytes() {
            return None;
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Self {
            kind: Kind::from_byte(bytes[14])?,
            round: word(15),
            message: word(19),
        })
    }

    /// Writes the head of a frame.
    #[inline]
    pub(crate) fn emit(
        &self,
        dst: MacBytes,
        src: MacBytes,
        ethertype: u16,
        out: &mut [u8; HEADER_BYTES],
    ) {
        out[..6].copy_from_slice(&dst);
        out[6..12].copy_from_slice(&src);
        out[12..14].copy_from_slice(&ethertype.to_be_bytes());
        out[14] = self.kind as u8;
        out[15..19].copy_from_slice(&self.round.to_le_bytes());
        out[19..23].copy_from_slice(&self.message.to_le_bytes());
    }
}

/// Where the measuring end finds the answering one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RawPlace {
    /// A station, and the longest frame that its port carries.
    Station {
        mac: MacBytes,
        max_frame_bytes: usize,
    },
    /// A TCP port of its host.
    TcpPort(u16),
}

/// One end of the raw traffic.
pub(crate) struct RawEnd {
    port: Box<dyn Port>,
    received: MbufBatch,
    unsent: MbufBatch,
    round: u32,
    frames: Frames,
    peer: MacBytes,
    buffer: Vec<u8>,
    /// A receiver that looks without pause takes the cache lines of an empty ring away from
    /// the sender's thread, which fills it inside the kernel; that would slow the control down.
    pauses: u32,
}

impl RawEnd {
    /// An end on a port that nobody else uses.
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        let is_kernels = port.capabilities().driver == "af_packet";
        Self {
            pauses: if is_kernels { PAUSES } else { 0 },
            port,
            received: MbufBatch::new(),
            unsent: MbufBatch::new(),
            round: 0,
            frames: Frames {
                count: 1,
                full_bytes: 0,
                last_bytes: 0,
            },
            peer: [0; 6],
            buffer: Vec::new(),
        }
    }

    /// Its station address.
    pub(crate) fn mac(&self) -> MacBytes {
        self.port.capabilities().mac
    }

    /// The longest frame that it carries.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.port.capabilities().max_frame_bytes
    }

    /// The driver's name.
    pub(crate) fn driver(&self) -> &'static str {
        self.port.capabilities().driver
    }

    /// Prepares a round, in which this end's own messages are of the frames `ours`; both ends
    /// do so the same number of times.
    pub(crate) fn begin(&mut self, round: &RawRound, ours: Frames) -> Result<()> {
        let longest_bytes = self.message_bytes(&round.frames)?;
        let longest_bytes = longest_bytes.max(self.message_bytes(&ours)?);
        self.buffer.resize(longest_bytes, 0);
        self.frames = ours;
        self.round += 1;
        self.peer = round.mac;
        self.port.upkeep();
        self.port.events(&mut Vec::new());
        Ok(())
    }

    /// Room for a message of such frames, if they can be sent.
    fn message_bytes(&self, frames: &Frames) -> Result<usize> {
        let longest = frames.full_bytes.max(frames.last_bytes) as usize;
        let shortest = frames.full_bytes.min(frames.last_bytes) as usize;
        let message_bytes = u64::from(frames.count) * longest as u64;
        let fits = HEADER_BYTES..=self.max_frame_bytes();
        if frames.count == 0
            || !fits.contains(&shortest)
            || !fits.contains(&longest)
            || message_bytes > 2 * u64::from(MAX_SIZE_BYTES)
        {
            return Err(Error::Port(format!(
                "{} frames of {shortest} to {longest} bytes cannot be sent: {} to {} bytes fit",
                frames.count,
                fits.start(),
                fits.end()
            )));
        }
        Ok(message_bytes as usize)
    }

    /// Sends messages and measures how long each takes to come back.
    pub(crate) fn ping(
        &mut self,
        limit: &Limit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<Pinged> {
        let start = Instant::now();
        let mut before = start;
        let mut pinged = Pinged::default();
        let mut message = 0;
        while !limit.is_over(before - start, pinged.round_trips + pinged.lost) {
            message += 1;
            self.send_message(message)?;
            let is_back = self.wait_for(message);
            let now = Instant::now();
            if is_back {
                round_trips_ns.saturating_record((now - before).as_nanos() as u64);
                pinged.round_trips += 1;
            } else {
                pinged.lost += 1;
            }
            before = now;
        }
        pinged.elapsed = before - start;
        self.stop()?;
        Ok(pinged)
    }

    /// Sends every message back until the other end stops.
    pub(crate) fn echo(&mut self) -> Result<()> {
        let mut idle = Idle::default();
        loop {
            match self.take_frame() {
                Some(header) => {
                    idle = Idle::default();
                    match header.kind {
                        Kind::More => {}
                        Kind::Last => self.send_message(header.message)?,
                        Kind::Stop => return self.confirm_stop(),
                    }
                }
                None if idle.is_longer_than(SILENT) => return Ok(()),
                None => {}
            }
        }
    }

    /// Sends messages one way until the limit.
    pub(crate) fn send(&mut self, limit: &Limit, batch: u32) -> Result<()> {
        let start = Instant::now();
        let mut messages = 0_u64;
        while !limit.is_over(start.elapsed(), messages) {
            for _ in 0..batch.max(1) {
                messages += 1;
                self.put_message(messages as u32)?;
            }
            self.flush()?;
        }
        self.stop()
    }

    /// Receives until the other end stops.
    pub(crate) fn receive(&mut self) -> Result<Seen> {
        let mut frames = 0_u64;
        let mut first: Option<(Instant, u64)> = None;
        let mut last = None;
        let mut idle = Idle::default();
        loop {
            let mut is_over = false;
            let mut taken = 0;
            while taken < BURST as u64 {
                match self.take_frame() {
                    None => break,
                    Some(header) if header.kind == Kind::Stop => {
                        is_over = true;
                        break;
                    }
                    Some(_) => taken += 1,
                }
            }
            if taken > 0 {
                let now = Instant::now();
                frames += taken;
                last = Some(now);
                first.get_or_insert((now, frames));
                idle = Idle::default();
            }
            if is_over {
                self.confirm_stop()?;
                break;
            }
            if taken == 0 {
                if idle.is_longer_than(SILENT) {
                    break;
                }
                for _ in 0..self.pauses {
                    core::hint::spin_loop();
                }
            }
        }
        let per_message = u64::from(self.frames.count);
        let (timed, elapsed) = match (first, last) {
            (Some((first, untimed)), Some(last)) => (frames - untimed, last - first),
            _ => (0, Duration::ZERO),
        };
        Ok(Seen {
            delivered: frames / per_message,
            timed: timed / per_message,
            elapsed_ns: elapsed.as_nanos() as u64,
            broken: None,
        })
    }

    #[inline]
    fn send_message(&mut self, message: u32) -> Result<()> {
        self.put_message(message)?;
        self.flush()
    }

    /// Puts all frames of a message on their way; some may wait for `flush`.
    #[inline]
    fn put_message(&mut self, message: u32) -> Result<()> {
        for index in 0..self.frames.count {
            let is_last = index + 1 == self.frames.count;
            let header = Header {
                kind: if is_last { Kind::Last } else { Kind::More },
                round: self.round,
                message,
            };
            let bytes = self.frames.bytes_of(index);
            let mut mbuf = self.wait_for_buffer()?;
            let begin = (index * self.frames.full_bytes) as usize;
            let out = mbuf.buffer_mut();
            let Some((head, rest)) = out.split_first_chunk_mut::<HEADER_BYTES>() else {
                return Err(Error::Port("a buffer shorter than a header".into()));
            };
            header.emit(self.peer, self.port.capabilities().mac, ETHERTYPE, head);
            let payload_bytes = bytes - HEADER_BYTES;
            rest[..payload_bytes].copy_from_slice(&self.buffer[begin..begin + payload_bytes]);
            mbuf.set_len(bytes);
            self.put(mbuf)?;
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, mbuf: Mbuf) -> Result<()> {
        if self.unsent.room() == 0 {
            self.flush()?;
        }
        self.unsent
            .push(mbuf)
            .map_err(|_| Error::Port("a flushed batch has no room".into()))
    }

    /// A buffer towards the peer, however long the port is full.
    #[inline]
    fn wait_for_buffer(&mut self) -> Result<Mbuf> {
        let mut idle = Idle::default();
        loop {
            if let Some(mbuf) = self.port.alloc(self.peer) {
                return Ok(mbuf);
            }
            self.port.tx_burst(&mut self.unsent);
            if idle.is_longer_than(SILENT) {
                return Err(Error::Port("full, and the other end takes nothing".into()));
            }
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        let mut idle = Idle::default();
        while !self.unsent.is_empty() {
            if self.port.tx_burst(&mut self.unsent) == 0 && idle.is_longer_than(SILENT) {
                return Err(Error::Port("takes no frames".into()));
            }
        }
        Ok(())
    }

    /// The next frame of this round, copied out.
    #[inline]
    fn take_frame(&mut self) -> Option<Header> {
        loop {
            if self.received.is_empty() {
                self.port.rx_burst(&mut self.received, BURST);
            }
            let mbuf = self.received.pop()?;
            let header = Header::parse(mbuf.bytes(), ETHERTYPE);
            if let Some(payload) = mbuf.bytes().get(HEADER_BYTES..) {
                let length = payload.len().min(self.buffer.len());
                self.buffer[..length].copy_from_slice(&payload[..length]);
            }
            self.port.free(mbuf);
            if let Some(header) = header.filter(|header| header.round == self.round) {
                return Some(header);
            }
        }
    }

    /// Whether the message came back before it counts as lost.
    #[inline]
    fn wait_for(&mut self, message: u32) -> bool {
        let mut idle = Idle::default();
        loop {
            match self.take_frame() {
                Some(header) if header.kind == Kind::Last && header.message == message => {
                    return true;
                }
                Some(_) => {}
                None if idle.is_longer_than(LOST_AFTER) => return false,
                None => {}
            }
        }
    }

    /// Says that the round is over until the other end says so too.
    fn stop(&mut self) -> Result<()> {
        for _ in 0..STOP_TRIES {
            self.put_stop()?;
            let mut idle = Idle::default();
            loop {
                match self.take_frame() {
                    Some(header) if header.kind == Kind::Stop => return Ok(()),
                    Some(_) => {}
                    None if idle.is_longer_than(LOST_AFTER) => break,
                    None => {}
                }
            }
        }
        // The other end is gone or its word is lost: the channel tells which.
        Ok(())
    }

    fn confirm_stop(&mut self) -> Result<()> {
        self.put_stop()
    }

    fn put_stop(&mut self) -> Result<()> {
        let header = Header {
            kind: Kind::Stop,
            round: self.round,
            message: 0,
        };
        let mut mbuf = self.wait_for_buffer()?;
        let bytes = (self.frames.last_bytes as usize).max(60);
        let Some((head, _)) = mbuf.buffer_mut().split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(Error::Port("a buffer shorter than a header".into()));
        };
        header.emit(self.peer, self.port.capabilities().mac, ETHERTYPE, head);
        mbuf.set_len(bytes);
        self.put(mbuf)?;
        self.flush()
    }
}

/// How long nothing came, with few readings of the clock.
#[derive(Default)]
pub(crate) struct Idle {
    looks: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Whether it lasts for so long already; called once a look that found nothing.
    #[inline]
    pub(crate) fn is_longer_than(&mut self, limit: Duration) -> bool {
        self.looks += 1;
        if self.looks < LOOKS_PER_CLOCK {
            return false;
        }
        self.looks = 0;
        self.since.get_or_insert_with(Instant::now).elapsed() > limit
    }
}

#[cfg(test)]
mod tests;
