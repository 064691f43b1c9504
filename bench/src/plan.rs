//! Parameters of one test: benchmark, operation, level, size, batch, window.

use core::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vi_types::ReliabilityLevel;

use crate::error::{Error, Result};

/// A benchmark of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// Half of the round trip with one message in flight.
    Latency,
    /// Bytes delivered per second, with large one-way messages.
    Bandwidth,
    /// Messages delivered per second, with small one-way messages.
    Rate,
}

/// Operation that transfers a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Send and receive descriptors.
    Send,
    /// RDMA writes, detected by polling memory.
    Write,
    /// RDMA reads.
    Read,
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

/// Descriptors of each queue of a latency test: one is in flight; the others allow reposting after the send.
const LATENCY_DESCRIPTORS: u32 = 8;

/// Maximum size of the buffers of one queue in bytes: about a quarter of a core's L2 cache, comparable with the tools
/// of other stacks, which use one buffer.
pub(crate) const BUFFERS_BYTES: u64 = 512 * 1024;

/// Approximate maximum of bytes in flight with the default window.
const IN_FLIGHT_BYTES: u64 = 2 * 1024 * 1024;

/// Minimum window of a stream, in messages.
const MIN_WINDOW: u32 = 4;

/// Maximum window, in messages.
const MAX_WINDOW: u32 = 1024;

/// Maximum message size in bytes.
pub const MAX_SIZE_BYTES: u32 = 1 << 30;

/// Parameters of one test, sent to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Operation that transfers a message.
    pub op: Op,
    /// Reliability level of the connection.
    pub level: ReliabilityLevel,
    /// Message size in bytes.
    pub size_bytes: u32,
    /// Messages posted, and then reaped, together.
    pub batch: u32,
    /// Maximum number of messages in flight, and descriptors of each queue.
    pub window: u32,
    /// Messages are awaited by blocking calls, and the client pauses for this time before each; `None`: they are polled
    /// for, without pauses.
    pub pause_us: Option<u32>,
    /// The sender writes all bytes of a message before it posts it, and the receiver reads all of them.
    pub touches: bool,
}

impl Test {
    /// Creates a test with the given window or the default one: four batches, at least 32 messages, limited to
    /// `IN_FLIGHT_BYTES`; the batch is then limited to half of the window.
    ///
    /// # Errors
    /// [`Error::Usage`] for invalid parameters.
    pub fn new(
        benchmark: Benchmark,
        op: Op,
        level: ReliabilityLevel,
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
            pause_us: None,
            touches: false,
        };
        test.check()?;
        Ok(test)
    }

    /// Returns the test with messages that are awaited by blocking calls, with this pause before each.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no latency test of sends.
    pub fn with_pause(self, pause_us: u32) -> Result<Self> {
        let test = Self {
            pause_us: Some(pause_us),
            ..self
        };
        test.check()?;
        Ok(test)
    }

    /// Returns the test with messages whose bytes are all written by the sender and read by the receiver.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is one of reads, or of unreliable writes.
    pub fn with_touch(self) -> Result<Self> {
        let test = Self {
            touches: true,
            ..self
        };
        test.check()?;
        Ok(test)
    }

    /// Validates the parameters, also those received by the server.
    ///
    /// # Errors
    /// [`Error::Usage`] with the invalid parameter.
    pub fn check(&self) -> Result<()> {
        let usage_error = |text: String| Err(Error::Usage(text));
        if self.batch == 0 || self.batch > self.window {
            return usage_error(format!(
                "a batch of {} is not between 1 and the window of {}",
                self.batch, self.window
            ));
        }
        if self.window < MIN_WINDOW || self.window > MAX_WINDOW {
            return usage_error(format!(
                "a window of {} messages is not between {MIN_WINDOW} and {MAX_WINDOW}",
                self.window
            ));
        }
        if self.size_bytes > MAX_SIZE_BYTES {
            return usage_error(format!("the message size exceeds {MAX_SIZE_BYTES} bytes"));
        }
        let is_ping_pong_of_sends = self.benchmark == Benchmark::Latency && self.op == Op::Send;
        if self.pause_us.is_some() && !is_ping_pong_of_sends {
            return usage_error("--wait: blocking calls need latency with --op send".into());
        }
        // Unreliable writes arrive in buffers that the receiver may still be reading.
        let is_unreliable_write = self.op == Op::Write && !self.level.is_reliable();
        if self.touches && (self.op == Op::Read || is_unreliable_write) {
            return usage_error("--touch: needs --op send, or write at a reliable level".into());
        }
        if self.size_bytes == 0 && self.op == Op::Write {
            return usage_error("the target cannot detect an RDMA write of 0 bytes".into());
        }
        if self.op == Op::Read && !self.level.is_reliable() {
            return usage_error(
                "Unreliable Delivery has no RDMA reads: use --level rd or rr".into(),
            );
        }
        Ok(())
    }

    /// Returns whether messages consume receive descriptors: sends do, and streams of writes at Unreliable Delivery,
    /// where only the immediate data distinguishes delivered from lost messages.
    pub fn consumes_receives(&self) -> bool {
        self.op == Op::Send || self.writes_immediate()
    }

    /// Returns whether each write carries immediate data.
    pub fn writes_immediate(&self) -> bool {
        self.op == Op::Write && !self.level.is_reliable() && self.benchmark != Benchmark::Latency
    }

    /// Returns the number of buffers of one queue; descriptors share buffers if messages are large.
    pub fn buffers(&self) -> u32 {
        if self.op == Op::Write && !self.consumes_receives() {
            return self.window;
        }
        let fit = BUFFERS_BYTES / u64::from(self.size_bytes.max(1));
        fit.clamp(1, u64::from(self.window)) as u32
    }
}

/// The frames that carry one message, and that the raw control sends instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Frames per message.
    pub count: u32,
    /// Bytes of each frame except for the last, from destination address to EOF.
    pub full_bytes: u32,
    /// Bytes of the last frame.
    pub last_bytes: u32,
}

impl Frames {
    /// Bytes around the data field: Ethernet and FCoE headers, FC header, CRC and EOF.
    const OVERHEAD_BYTES: u32 = 14 + 14 + 24 + 8;

    /// Maximum data field of an FC frame in bytes.
    const DATA_FIELD_BYTES: u32 = 2112;

    /// Computes the frames of a message on a port with frames of up to `max_frame_bytes`.
    ///
    /// # Errors
    /// [`Error::Port`] if such a frame has no room for payload.
    pub fn for_port(op: Op, size_bytes: u32, max_frame_bytes: usize) -> Result<Self> {
        let header_bytes = match op {
            // Read responses have the shorter header.
            Op::Send | Op::Read => 16,
            Op::Write => 32,
        };
        let data_field_bytes = u32::try_from(max_frame_bytes)
            .unwrap_or(u32::MAX)
            .saturating_sub(Self::OVERHEAD_BYTES)
            .min(Self::DATA_FIELD_BYTES)
            / 4
            * 4;
        if data_field_bytes <= header_bytes {
            return Err(Error::Port(format!(
                "frames of {max_frame_bytes} bytes have no room for payload"
            )));
        }
        let room = data_field_bytes - header_bytes;
        let count = size_bytes.div_ceil(room).max(1);
        let last = size_bytes - (count - 1) * room;
        Ok(Self {
            count,
            full_bytes: Self::OVERHEAD_BYTES + data_field_bytes,
            last_bytes: Self::OVERHEAD_BYTES + header_bytes + last.next_multiple_of(4),
        })
    }

    /// Returns the frame of an RDMA read request: the longer header and no data.
    pub fn of_read_request() -> Self {
        let bytes = Self::OVERHEAD_BYTES + 32;
        Self {
            count: 1,
            full_bytes: bytes,
            last_bytes: bytes,
        }
    }

    /// Returns the size in bytes of frame `index` of a message.
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
        Test::new(
            Benchmark::Rate,
            Op::Send,
            ReliabilityLevel::ReliableDelivery,
            size_bytes,
            16,
            None,
        )
        .unwrap()
    }

    fn frames(op: Op, size_bytes: u32) -> Frames {
        Frames::for_port(op, size_bytes, 2172).unwrap()
    }

    #[test]
    fn frames_have_wire_sizes() {
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
    fn frame_size_is_limited_by_port() {
        let ethernet = Frames::for_port(Op::Send, 65536, 1514).unwrap();
        assert_eq!((ethernet.count, ethernet.full_bytes), (46, 1512));
        let wide = Frames::for_port(Op::Send, 65536, 9014).unwrap();
        assert_eq!(wide, frames(Op::Send, 65536));
        assert!(Frames::for_port(Op::Send, 8, 76).is_err());
        assert!(Frames::for_port(Op::Send, 8, 0).is_err());
    }

    #[test]
    fn only_latency_of_sends_can_be_awaited_by_blocking_calls() {
        let level = ReliabilityLevel::ReliableDelivery;
        for (benchmark, op, is_possible) in [
            (Benchmark::Latency, Op::Send, true),
            (Benchmark::Latency, Op::Write, false),
            (Benchmark::Latency, Op::Read, false),
            (Benchmark::Rate, Op::Send, false),
        ] {
            let test = Test::new(benchmark, op, level, 8, 16, None).unwrap();
            assert_eq!(test.with_pause(0).is_ok(), is_possible, "{benchmark} {op}");
        }
    }

    #[test]
    fn messages_that_may_be_overwritten_are_not_touched() {
        use ReliabilityLevel::{ReliableDelivery, UnreliableDelivery};
        for (op, level, is_possible) in [
            (Op::Send, ReliableDelivery, true),
            (Op::Send, UnreliableDelivery, true),
            (Op::Write, ReliableDelivery, true),
            (Op::Write, UnreliableDelivery, false),
            (Op::Read, ReliableDelivery, false),
        ] {
            for benchmark in [Benchmark::Latency, Benchmark::Rate] {
                let test = Test::new(benchmark, op, level, 8, 16, None).unwrap();
                assert_eq!(test.with_touch().is_ok(), is_possible, "{op} {level}");
            }
        }
    }

    #[test]
    fn latency_test_ignores_batch_and_window() {
        let test = Test::new(
            Benchmark::Latency,
            Op::Send,
            ReliabilityLevel::ReliableDelivery,
            8,
            16,
            Some(256),
        )
        .unwrap();
        assert_eq!((test.batch, test.window), (1, LATENCY_DESCRIPTORS));
    }

    #[test]
    fn default_window_follows_batch_and_size() {
        assert_eq!(rate(64).window, 64);
        let one = Test::new(
            Benchmark::Rate,
            Op::Send,
            ReliabilityLevel::ReliableDelivery,
            64,
            1,
            None,
        )
        .unwrap();
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
    fn invalid_parameters_are_rejected() {
        let rejected = |op, size, batch, window| {
            Test::new(
                Benchmark::Rate,
                op,
                ReliabilityLevel::ReliableDelivery,
                size,
                batch,
                window,
            )
            .is_err()
        };
        assert!(rejected(Op::Send, 8, 0, None));
        assert!(rejected(Op::Send, 8, 32, Some(16)));
        assert!(rejected(Op::Send, 8, 16, Some(MAX_WINDOW + 1)));
        assert!(rejected(Op::Write, 0, 16, None));
        assert!(!rejected(Op::Send, 0, 16, None));
        assert!(!rejected(Op::Read, 0, 16, None));
        for (level, is_rejected) in [
            (ReliabilityLevel::UnreliableDelivery, true),
            (ReliabilityLevel::ReliableDelivery, false),
            (ReliabilityLevel::ReliableReception, false),
        ] {
            let test = Test::new(Benchmark::Rate, Op::Read, level, 64, 16, None);
            assert_eq!(test.is_err(), is_rejected, "reads at {level}");
        }
    }

    #[test]
    fn only_unreliable_write_streams_use_immediate_data() {
        let test = |benchmark, level| {
            Test::new(benchmark, Op::Write, level, 64, 16, None)
                .unwrap()
                .writes_immediate()
        };
        assert!(test(Benchmark::Rate, ReliabilityLevel::UnreliableDelivery));
        assert!(!test(Benchmark::Rate, ReliabilityLevel::ReliableDelivery));
        assert!(!test(
            Benchmark::Latency,
            ReliabilityLevel::UnreliableDelivery
        ));
    }
}
