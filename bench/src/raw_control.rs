//! Raw control: the traffic of a test as frames of a raw port, with no protocol; for VI/TCP, as bytes of a raw TCP
//! connection.
//!
//! | module | contents |
//! | --- | --- |
//! | `client`, `server` | the control at the client and at the server |
//! | `tcp` | one raw TCP connection |
//!
//! It measures the cost of the port and of two copies only: frames of the same number and size as a message of the
//! test, filled from a buffer on one side and copied to a buffer on the other.
//!
//! Bytes of a frame: destination (6), source (6), EtherType (2), kind (1), round (4), message (4), then payload up to
//! the frame size.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod tcp;

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Port};
use serde::{Deserialize, Serialize};

use crate::channel::{RawRound, RoundResult};
use crate::error::{Error, Result};
use crate::latency::{PingResult, RoundLimit};
use crate::nic::ETHERTYPE;
use crate::plan::{Frames, MAX_SIZE_BYTES};

/// Size of Ethernet header, kind, round and message number in bytes.
pub(crate) const HEADER_BYTES: usize = 14 + 1 + 4 + 4;

/// Unsuccessful polls per reading of the clock.
const POLLS_PER_CLOCK: u32 = 1024;

/// Time after which a message or a frame counts as lost.
pub(crate) const LOST_AFTER: Duration = Duration::from_millis(50);

/// Time without a frame after which a round is over, or without a free transmit buffer after which it fails.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of stop frames sent: the port may lose them.
const STOP_TRIES: u32 = 20;

/// Pause instructions between two polls of an empty ring that the kernel fills.
const PAUSES: u32 = 64;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Not the last frame of its message.
    More,
    /// The last frame of its message.
    Last,
    /// The round is over.
    Stop,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::More, Self::Last, Self::Stop]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// Header of a raw frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Kind of the frame.
    pub(crate) kind: FrameKind,
    /// Number of the round; frames of other rounds are ignored.
    pub(crate) round: u32,
    /// Number of the message.
    pub(crate) message: u32,
}

impl FrameHeader {
    /// Returns the header of the first frame of a run; the process ID distinguishes it from other runs of this host.
    pub(crate) fn first_of_run() -> Self {
        Self {
            kind: FrameKind::Last,
            round: std::process::id(),
            message: 0,
        }
    }

    /// Parses the header of a frame; returns `None` for other frames.
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
            kind: FrameKind::from_byte(bytes[14])?,
            round: word(15),
            message: word(19),
        })
    }

    /// Writes the header of a frame.
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

/// Address at which the client reaches the raw control of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RawAddress {
    /// MAC address of a station, and the maximum frame size of its port in bytes.
    Station {
        mac: MacBytes,
        max_frame_bytes: usize,
    },
    /// TCP port on the server's host.
    TcpPort(u16),
}

/// One end of the raw traffic, on a raw port.
pub(crate) struct RawPortEnd {
    port: Box<dyn Port>,
    received: MbufBatch,
    unsent: MbufBatch,
    round: u32,
    frames: Frames,
    peer: MacBytes,
    buffer: Vec<u8>,
    /// Pauses per unsuccessful poll. Polling without pauses takes the cache lines of an empty ring away from the
    /// sender's thread, which fills the ring in the kernel, and would slow the control down.
    pauses: u32,
    /// Time after which a message counts as lost.
    lost_after: Duration,
}

impl RawPortEnd {
    /// Creates an end on a port that has no other user.
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        let kernel_fills_ring = port.capabilities().driver == "af_packet";
        Self {
            pauses: if kernel_fills_ring { PAUSES } else { 0 },
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
            lost_after: LOST_AFTER,
        }
    }

    /// Returns the MAC address.
    pub(crate) fn mac(&self) -> MacBytes {
        self.port.capabilities().mac
    }

    /// Returns the maximum frame size in bytes.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.port.capabilities().max_frame_bytes
    }

    /// Returns the name of the driver.
    pub(crate) fn driver(&self) -> &'static str {
        self.port.capabilities().driver
    }

    /// Prepares a round in which this end sends messages of the frames `outgoing`. Both ends must call this equally
    /// often, since calls count rounds.
    pub(crate) fn begin(&mut self, round: &RawRound, outgoing: Frames) -> Result<()> {
        let longest_bytes = self.message_bytes(&round.frames)?;
        let longest_bytes = longest_bytes.max(self.message_bytes(&outgoing)?);
        self.buffer.resize(longest_bytes, 0);
        self.frames = outgoing;
        self.round += 1;
        self.peer = round.mac;
        self.port.upkeep();
        self.port.events(&mut Vec::new());
        Ok(())
    }

    /// Returns the size in bytes of a message of such frames, if they can be sent.
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
                "cannot send {} frames of {shortest} to {longest} bytes: the limits are {} and {} bytes",
                frames.count,
                fits.start(),
                fits.end()
            )));
        }
        Ok(message_bytes as usize)
    }

    /// Sends messages and records the round trip of each.
    pub(crate) fn ping(
        &mut self,
        limit: &RoundLimit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<PingResult> {
        let start = Instant::now();
        let mut before = start;
        let mut pinged = PingResult::default();
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

    /// Sends every message back until the client stops.
    pub(crate) fn echo(&mut self) -> Result<()> {
        let mut idle = PollTimer::default();
        loop {
            match self.take_frame() {
                Some(header) => {
                    idle = PollTimer::default();
                    match header.kind {
                        FrameKind::More => {}
                        FrameKind::Last => self.send_message(header.message)?,
                        FrameKind::Stop => return self.confirm_stop(),
                    }
                }
                None if idle.exceeds(SILENCE_TIMEOUT) => return Ok(()),
                None => {}
            }
        }
    }

    /// Sends one-way messages until the limit.
    pub(crate) fn send(&mut self, limit: &RoundLimit, batch: u32) -> Result<()> {
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

    /// Receives until the client stops.
    pub(crate) fn receive(&mut self) -> Result<RoundResult> {
        let mut frames = 0_u64;
        let mut first: Option<(Instant, u64)> = None;
        let mut last = None;
        let mut idle = PollTimer::default();
        loop {
            let mut is_over = false;
            let mut taken = 0;
            while taken < BURST as u64 {
                match self.take_frame() {
                    None => break,
                    Some(header) if header.kind == FrameKind::Stop => {
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
                idle = PollTimer::default();
            }
            if is_over {
                self.confirm_stop()?;
                break;
            }
            if taken == 0 {
                if idle.exceeds(SILENCE_TIMEOUT) {
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
        Ok(RoundResult {
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

    /// Sends all frames of a message; some may be pending until `flush`.
    #[inline]
    fn put_message(&mut self, message: u32) -> Result<()> {
        for index in 0..self.frames.count {
            let is_last = index + 1 == self.frames.count;
            let header = FrameHeader {
                kind: if is_last {
                    FrameKind::Last
                } else {
                    FrameKind::More
                },
                round: self.round,
                message,
            };
            let bytes = self.frames.bytes_of(index);
            let mut mbuf = self.wait_for_buffer()?;
            let begin = (index * self.frames.full_bytes) as usize;
            let out = mbuf.buffer_mut();
            let Some((head, rest)) = out.split_first_chunk_mut::<HEADER_BYTES>() else {
                return Err(Error::Port(
                    "transmit buffer is shorter than the frame header".into(),
                ));
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
            .map_err(|_| Error::Port("transmit batch is full after a flush".into()))
    }

    /// Allocates a transmit buffer; waits while the port is full.
    #[inline]
    fn wait_for_buffer(&mut self) -> Result<Mbuf> {
        let mut idle = PollTimer::default();
        loop {
            if let Some(mbuf) = self.port.alloc(self.peer) {
                return Ok(mbuf);
            }
            self.port.tx_burst(&mut self.unsent);
            if idle.exceeds(SILENCE_TIMEOUT) {
                return Err(Error::Port("timed out: no free transmit buffer".into()));
            }
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        let mut idle = PollTimer::default();
        while !self.unsent.is_empty() {
            if self.port.tx_burst(&mut self.unsent) == 0 && idle.exceeds(SILENCE_TIMEOUT) {
                return Err(Error::Port("timed out: no frame transmitted".into()));
            }
        }
        Ok(())
    }

    /// Takes the next frame of this round; copies its payload to the buffer.
    #[inline]
    fn take_frame(&mut self) -> Option<FrameHeader> {
        loop {
            if self.received.is_empty() {
                self.port.rx_burst(&mut self.received, BURST);
            }
            let mbuf = self.received.pop()?;
            let header = FrameHeader::parse(mbuf.bytes(), ETHERTYPE);
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

    /// Waits for the message; returns false if it is lost.
    #[inline]
    fn wait_for(&mut self, message: u32) -> bool {
        let mut idle = PollTimer::default();
        loop {
            match self.take_frame() {
                Some(header) if header.kind == FrameKind::Last && header.message == message => {
                    return true;
                }
                Some(_) => {}
                None if idle.exceeds(self.lost_after) => return false,
                None => {}
            }
        }
    }

    /// Sends stop frames until the peer confirms the end of the round.
    fn stop(&mut self) -> Result<()> {
        for _ in 0..STOP_TRIES {
            self.put_stop()?;
            let mut idle = PollTimer::default();
            loop {
                match self.take_frame() {
                    Some(header) if header.kind == FrameKind::Stop => return Ok(()),
                    Some(_) => {}
                    None if idle.exceeds(self.lost_after) => break,
                    None => {}
                }
            }
        }
        // Not confirmed: if the peer has failed, the control channel reports it.
        Ok(())
    }

    fn confirm_stop(&mut self) -> Result<()> {
        self.put_stop()
    }

    fn put_stop(&mut self) -> Result<()> {
        let header = FrameHeader {
            kind: FrameKind::Stop,
            round: self.round,
            message: 0,
        };
        let mut mbuf = self.wait_for_buffer()?;
        let bytes = (self.frames.last_bytes as usize).max(60);
        let Some((head, _)) = mbuf.buffer_mut().split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(Error::Port(
                "transmit buffer is shorter than the frame header".into(),
            ));
        };
        header.emit(self.peer, self.port.capabilities().mac, ETHERTYPE, head);
        mbuf.set_len(bytes);
        self.put(mbuf)?;
        self.flush()
    }
}

/// Time without progress of a polling loop, with one reading of the clock per `POLLS_PER_CLOCK` polls.
#[derive(Default)]
pub(crate) struct PollTimer {
    polls: u32,
    since: Option<Instant>,
}

impl PollTimer {
    /// Records an unsuccessful poll; returns whether there was no progress for longer than `limit`.
    #[inline]
    pub(crate) fn exceeds(&mut self, limit: Duration) -> bool {
        self.polls += 1;
        if self.polls < POLLS_PER_CLOCK {
            return false;
        }
        self.polls = 0;
        self.since.get_or_insert_with(Instant::now).elapsed() > limit
    }
}

#[cfg(test)]
mod tests;
