//! What one test is: benchmark, operation, level, size, batch, window.

use core::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// One message in flight, there and back; half of the round trip.
    Latency,
    /// Large messages one way; bytes delivered in a second.
    Bandwidth,
    /// Small messages one way; messages delivered in a second.
    Rate,
}

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Send and receive descriptors.
    Send,
    /// RDMA writes, seen by polling memory.
    Write,
    /// RDMA reads: the other end takes no part.
    Read,
}

/// The reliability level of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Unreliable Delivery.
    Ud,
    /// Reliable Delivery.
    Rd,
    /// Reliable Reception.
    Rr,
}

impl Level {
    /// The level's bit in attributes.
    pub fn bits(self) -> u16 {
        match self {
            Self::Ud => 1,
            Self::Rd => 2,
            Self::Rr => 4,
        }
    }

    /// Whether nothing is lost without an end of the connection.
    pub fn is_reliable(self) -> bool {
        self != Self::Ud
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ud => "ud",
            Self::Rd => "rd",
            Self::Rr => "rr",
        })
    }
}

/// Descriptors of each queue of a latency test: one is in flight, the rest let
/// reposting wait until the message is on its way.
const LATENCY_DESCRIPTORS: u32 = 8;

/// Buffers of one queue take at most this much memory: about a quarter of a
/// core's second cache, as in the tools of other stacks, which use one buffer.
pub(crate) const BUFFERS_BYTES: u64 = 512 * 1024;

/// Without a window of the user's choice, at most about so much is in flight.
const IN_FLIGHT_BYTES: u64 = 2 * 1024 * 1024;

/// Messages in flight that a stream needs, at least.
const MIN_WINDOW: u32 = 4;

/// Messages in flight, at most, that a test may ask for.
const MAX_WINDOW: u32 = 1024;

/// The longest message that a test may ask for.
pub const MAX_SIZE_BYTES: u32 = 1 << 30;

/// One test, as both ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// What is measured.
    pub benchmark: Benchmark,
    /// How a message travels.
    pub op: Op,
    /// The level of the connection.
    pub level: Level,
    /// Bytes of one message.
    pub size_bytes: u32,
    /// Messages that are posted, and then reaped, in one go.
    pub batch: u32,
    /// Messages in flight, at most: descriptors of each queue.
    pub window: u32,
}

impl Test {
    /// A test with the window that was asked for, or else the usual one: four
    /// batches, 32 messages at least, but no more of large messages than fits
    /// well; the batch then is half of the window, at most.
    ///
    /// # Errors
    /// [`Error::Usage`] for what cannot be measured.
    pub fn new(
        benchmark: Benchmark,
        op: Op,
        level: Level,
        size_bytes: u32,
        batch: u32,
        window: Option<u32>,
    ) -> Result<Self> {
        let (batch, window) = match (benchmark, window) {
            (Benchmark::Latency, _) => (1, LATENCY_DESCRIPTORS),
            (_, Some(window)) => (batch, window),
            (_, None) => {
                let fit = IN_FLIGHT_BYTES / u64::from(size_bytes.max(1));
                let fit = fit.clamp(u64::from(MIN_WINDOW), u64::from(MAX_WINDOW)) as u32;
                let window = batch.saturating_mul(4).max(32).min(fit);
                (batch.min(window / 2), window)
            }
        };
        let test = Self {
            benchmark,
            op,
            level,
            size_bytes,
            batch,
            window,
        };
        test.check()?;
        Ok(test)
    }

    /// Checks a test; one that came from the other end is checked too.
    ///
    /// # Errors
    /// [`Error::Usage`] with what is wrong.
    pub fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Usage(text));
        if self.batch == 0 || self.batch > self.window {
            return wrong(format!(
                "a batch of {} does not fit a window of {}",
                self.batch, self.window
            ));
        }
        if self.window < MIN_WINDOW || self.window > MAX_WINDOW {
            return wrong(format!(
                "the window is {MIN_WINDOW} to {MAX_WINDOW} messages, not {}",
                self.window
            ));
        }
        if self.size_bytes > MAX_SIZE_BYTES {
            return wrong(format!("a message has at most {MAX_SIZE_BYTES} bytes"));
        }
        if self.size_bytes == 0 && self.op == Op::Write {
            return wrong("a write of 0 bytes cannot be seen by its target".into());
        }
        if self.op == Op::Read && !self.level.is_reliable() {
            return wrong("there are no reads at Unreliable Delivery: add --level rd or rr".into());
        }
        Ok(())
    }

    /// Whether messages take receive descriptors: sends do, and streams of
    /// writes at Unreliable Delivery, whose immediate data is all that tells
    /// the delivered ones from the lost.
    pub fn consumes_receives(&self) -> bool {
        self.op == Op::Send || self.writes_immediate()
    }

    /// Whether each write carries immediate data.
    pub fn writes_immediate(&self) -> bool {
        self.op == Op::Write && self.level == Level::Ud && self.benchmark != Benchmark::Latency
    }

    /// Buffers of one queue; several descriptors share one when the messages are large.
    pub fn buffers(&self) -> u32 {
        if self.op == Op::Write && !self.consumes_receives() {
            return self.window;
        }
        let fit = BUFFERS_BYTES / u64::from(self.size_bytes.max(1));
        fit.clamp(1, u64::from(self.window)) as u32
    }
}

/// The frames that carry one message: what the raw control sends in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Frames of one message.
    pub count: u32,
    /// Bytes of each but the last, from destination address to end of frame.
    pub full_bytes: u32,
    /// Bytes of the last one.
    pub last_bytes: u32,
}

impl Frames {
    /// What stands around the data field: Ethernet and FCoE headers, FC header, CRC and EOF.
    const AROUND_BYTES: u32 = 14 + 14 + 24 + 8;

    /// The largest data field of a frame.
    const DATA_FIELD_BYTES: u32 = 2112;

    /// The frames of a message on a port that carries frames of so many bytes.
    ///
    /// # Errors
    /// [`Error::Port`] when no message fits such frames.
    pub fn for_port(op: Op, size_bytes: u32, max_frame_bytes: usize) -> Result<Self> {
        let header_bytes = match op {
            // What is read comes back behind the shorter header.
            Op::Send | Op::Read => 16,
            Op::Write => 32,
        };
        let data_field_bytes = u32::try_from(max_frame_bytes)
            .unwrap_or(u32::MAX)
            .saturating_sub(Self::AROUND_BYTES)
            .min(Self::DATA_FIELD_BYTES)
            / 4
            * 4;
        if data_field_bytes <= header_bytes {
            return Err(Error::Port(format!(
                "no message fits frames of {max_frame_bytes} bytes"
            )));
        }
        let room = data_field_bytes - header_bytes;
        let count = size_bytes.div_ceil(room).max(1);
        let last = size_bytes - (count - 1) * room;
        Ok(Self {
            count,
            full_bytes: Self::AROUND_BYTES + data_field_bytes,
            last_bytes: Self::AROUND_BYTES + header_bytes + last.next_multiple_of(4),
        })
    }

    /// The frame that asks for an RDMA read: the longer header and no data.
    pub fn of_read_request() -> Self {
        let bytes = Self::AROUND_BYTES + 32;
        Self {
            count: 1,
            full_bytes: bytes,
            last_bytes: bytes,
        }
    }

    /// Bytes of frame number `index` of a message.
    #[inline]
    pub fn bytes_of(&self, index: u32) -> usize {
        if index + 1 == self.count {
            self.last_bytes as usize
        } else {
            self.full_bytes as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(size_bytes: u32) -> Test {
        Test::new(Benchmark::Rate, Op::Send, Level::Rd, size_bytes, 16, None).unwrap()
    }

    fn frames(op: Op, size_bytes: u32) -> Frames {
        Frames::for_port(op, size_bytes, 2172).unwrap()
    }

    #[test]
    fn frames_have_the_sizes_of_the_wire() {
        let expected = Frames {
            count: 1,
            full_bytes: 2172,
            last_bytes: 84,
        };
        assert_eq!(frames(Op::Send, 8), expected);
        assert_eq!(frames(Op::Write, 8).last_bytes, 100);
        assert_eq!(frames(Op::Read, 8).last_bytes, 84);
        assert_eq!(Frames::of_read_request().bytes_of(0), 92);
        assert_eq!(frames(Op::Send, 0).last_bytes, 76);
        assert_eq!(frames(Op::Send, 1).last_bytes, 80);
        assert_eq!(frames(Op::Send, 2096).count, 1);
        assert_eq!(frames(Op::Send, 2097).count, 2);
        let large = frames(Op::Send, 65536);
        assert_eq!(large.count, 32);
        let total: usize = (0..large.count).map(|i| large.bytes_of(i) - 76).sum();
        assert_eq!(total, 65536);
    }

    #[test]
    fn frames_follow_the_port() {
        let ethernet = Frames::for_port(Op::Send, 65536, 1514).unwrap();
        assert_eq!((ethernet.count, ethernet.full_bytes), (46, 1512));
        let wide = Frames::for_port(Op::Send, 65536, 9014).unwrap();
        assert_eq!(wide, frames(Op::Send, 65536));
        assert!(Frames::for_port(Op::Send, 8, 76).is_err());
        assert!(Frames::for_port(Op::Send, 8, 0).is_err());
    }

    #[test]
    fn a_latency_test_has_one_message_in_flight() {
        let test = Test::new(Benchmark::Latency, Op::Send, Level::Rd, 8, 16, Some(256)).unwrap();
        assert_eq!((test.batch, test.window), (1, LATENCY_DESCRIPTORS));
    }

    #[test]
    fn the_window_follows_the_batch() {
        assert_eq!(rate(64).window, 64);
        let one = Test::new(Benchmark::Rate, Op::Send, Level::Rd, 64, 1, None).unwrap();
        assert_eq!(one.window, 32);
        assert_eq!((rate(65536).batch, rate(65536).window), (16, 32));
        assert_eq!((rate(1 << 20).batch, rate(1 << 20).window), (2, 4));
    }

    #[test]
    fn large_messages_share_buffers() {
        assert_eq!(rate(64).buffers(), 64);
        assert_eq!(rate(65536).buffers(), 8);
        assert_eq!(rate(1 << 20).buffers(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |op, size, batch, window| {
            Test::new(Benchmark::Rate, op, Level::Rd, size, batch, window).is_err()
        };
        assert!(refused(Op::Send, 8, 0, None));
        assert!(refused(Op::Send, 8, 32, Some(16)));
        assert!(refused(Op::Send, 8, 16, Some(MAX_WINDOW + 1)));
        assert!(refused(Op::Write, 0, 16, None));
        assert!(!refused(Op::Send, 0, 16, None));
        assert!(!refused(Op::Read, 0, 16, None));
        for (level, is_refused) in [(Level::Ud, true), (Level::Rd, false), (Level::Rr, false)] {
            let test = Test::new(Benchmark::Rate, Op::Read, level, 64, 16, None);
            assert_eq!(test.is_err(), is_refused, "reads at {level}");
        }
    }

    #[test]
    fn only_unreliable_streams_of_writes_need_immediate_data() {
        let test = |benchmark, level| {
            Test::new(benchmark, Op::Write, level, 64, 16, None)
                .unwrap()
                .writes_immediate()
        };
        assert!(test(Benchmark::Rate, Level::Ud));
        assert!(!test(Benchmark::Rate, Level::Rd));
        assert!(!test(Benchmark::Latency, Level::Ud));
    }
}
