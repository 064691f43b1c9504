//! Raw control of VI/TCP, which has no port: the traffic of a test over one TCP connection, with no protocol.
//!
//! It measures the cost of the kernel's TCP and of two copies between two threads that never sleep: as many bytes as a
//! message of the test with its headers, a batch of messages per call. The bytes have no meaning; both ends know the
//! size of a message, and the control channel ends a round.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::PollTimer;
use crate::channel::{RESPONSE_TIMEOUT, RoundResult};
use crate::error::{Error, Result};
use crate::latency::{PingResult, RoundLimit};
use crate::plan::{BUFFERS_BYTES, Benchmark, MAX_SIZE_BYTES, Op, Test};
use crate::process;
use crate::stream::DeliveryClock;

/// Sizes in bytes of the header of a VI/TCP segment and of the RDMA header behind it.
const HEADER_BYTES: u32 = 24;
const RDMA_BYTES: u32 = 16;

/// Time without progress after which the connection fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Unsuccessful polls before the server checks whether the round is over.
const POLLS_BEFORE_STOP_CHECK: u32 = 1024;

/// Parameters of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamRound {
    /// The benchmark.
    pub(crate) benchmark: Benchmark,
    /// Size of a message of the client in bytes.
    pub(crate) there_bytes: u32,
    /// Size of the server's response in bytes, in a latency test.
    pub(crate) back_bytes: u32,
    /// Messages sent per call.
    pub(crate) batch: u32,
}

impl StreamRound {
    /// Returns the round that corresponds to the messages of a test.
    pub(crate) fn of(test: &Test) -> Self {
        let message_bytes = test.size_bytes
            + match test.op {
                Op::Send => HEADER_BYTES,
                Op::Write | Op::Read => HEADER_BYTES + RDMA_BYTES,
            };
        let there_bytes = match (test.op, test.benchmark) {
            (Op::Read, Benchmark::Latency) => HEADER_BYTES + RDMA_BYTES,
            _ => message_bytes,
        };
        let fit = (BUFFERS_BYTES / u64::from(message_bytes)).max(1);
        Self {
            benchmark: test.benchmark,
            there_bytes,
            back_bytes: message_bytes,
            batch: u64::from(test.batch).min(fit) as u32,
        }
    }

    /// Returns the maximum bytes per call, if the parameters are valid.
    fn call_bytes(&self) -> Result<usize> {
        let longest_bytes = self.there_bytes.max(self.back_bytes);
        let call_bytes = u64::from(longest_bytes) * u64::from(self.batch);
        let least_bytes = self.there_bytes.min(self.back_bytes);
        if least_bytes == 0 || self.batch == 0 || call_bytes > 2 * u64::from(MAX_SIZE_BYTES) {
            return Err(Error::Port(format!(
                "invalid round: {} messages of {least_bytes} to {longest_bytes} bytes per call",
                self.batch
            )));
        }
        Ok(call_bytes as usize)
    }
}

/// Listener of the server for the raw TCP connection.
pub(crate) struct RawTcpListener(TcpListener);

impl RawTcpListener {
    /// Listens at this address, on an ephemeral port.
    pub(crate) fn open(host: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((host, 0)).map_err(io_error)?;
        listener.set_nonblocking(true).map_err(io_error)?;
        Ok(Self(listener))
    }

    /// Returns the TCP port.
    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr().map_err(io_error)?.port())
    }

    /// Accepts the connection, which the client has requested already.
    pub(crate) fn accept(&self) -> Result<RawTcpEnd> {
        let start = Instant::now();
        loop {
            match self.0.accept() {
                Ok((stream, _)) => return RawTcpEnd::new(stream),
                Err(error) if !is_retryable(error.kind()) => return Err(io_error(error)),
                Err(_) if start.elapsed() > RESPONSE_TIMEOUT => {
                    return Err(Error::Peer("timed out: no raw TCP connection".into()));
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// One end of the raw TCP connection.
pub(crate) struct RawTcpEnd {
    stream: TcpStream,
    buffer: Vec<u8>,
    round: StreamRound,
}

impl RawTcpEnd {
    /// Connects from an address of this host to the server.
    pub(crate) fn connect(from: IpAddr, to: SocketAddr) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))
            .map_err(io_error)?;
        socket
            .bind(&SocketAddr::new(from, 0).into())
            .map_err(io_error)?;
        socket
            .connect_timeout(&to.into(), RESPONSE_TIMEOUT)
            .map_err(io_error)?;
        Self::new(socket.into())
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).map_err(io_error)?;
        stream.set_nonblocking(true).map_err(io_error)?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            round: StreamRound {
                benchmark: Benchmark::Latency,
                there_bytes: 1,
                back_bytes: 1,
                batch: 1,
            },
        })
    }

    /// Prepares a round.
    pub(crate) fn begin(&mut self, round: &StreamRound) -> Result<()> {
        self.buffer.resize(round.call_bytes()?, 0);
        self.round = *round;
        Ok(())
    }

    /// Sends messages and records the round trip of each.
    pub(crate) fn ping(
        &mut self,
        limit: &RoundLimit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<PingResult> {
        let (there_bytes, back_bytes) = self.message_bytes();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = PingResult::default();
        while !limit.is_over(before - start, pinged.round_trips) {
            self.put(there_bytes)?;
            let mut idle = PollTimer::default();
            let mut received = 0;
            while received < back_bytes {
                match self.take(received, back_bytes)? {
                    0 if idle.exceeds(STALL_TIMEOUT) => return Err(silence_error()),
                    0 => process::pause_if_shared(),
                    bytes => received += bytes,
                }
            }
            let now = Instant::now();
            round_trips_ns.saturating_record((now - before).as_nanos() as u64);
            pinged.round_trips += 1;
            before = now;
        }
        pinged.elapsed = before - start;
        Ok(pinged)
    }

    /// Responds to every message until the round is over.
    pub(crate) fn echo(&mut self, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
        let (there_bytes, back_bytes) = self.message_bytes();
        let mut received = 0;
        let mut idle_polls = 0_u32;
        loop {
            match self.take(received, there_bytes)? {
                0 => {
                    process::pause_if_shared();
                    idle_polls += 1;
                    if idle_polls.is_multiple_of(POLLS_BEFORE_STOP_CHECK) && is_over()? {
                        return Ok(());
                    }
                }
                bytes => {
                    received += bytes;
                    idle_polls = 0;
                }
            }
            if received == there_bytes {
                self.put(back_bytes)?;
                received = 0;
            }
        }
    }

    /// Sends one-way messages until the limit, and returns their number.
    pub(crate) fn send(&mut self, limit: &RoundLimit) -> Result<u64> {
        let (there_bytes, _) = self.message_bytes();
        let start = Instant::now();
        let mut messages = 0;
        while !limit.is_over(start.elapsed(), messages) {
            self.put(there_bytes * self.round.batch as usize)?;
            messages += u64::from(self.round.batch);
        }
        Ok(messages)
    }

    /// Receives until `sent` returns the number of messages, and all of them have arrived.
    pub(crate) fn receive(
        &mut self,
        mut sent: impl FnMut() -> Result<Option<u64>>,
    ) -> Result<RoundResult> {
        let (there_bytes, _) = self.message_bytes();
        let mut clock = DeliveryClock::default();
        let (mut received, mut counted) = (0_u64, 0_u64);
        let mut expected = None;
        let mut idle_polls = 0_u32;
        let mut idle = PollTimer::default();
        while expected.is_none_or(|expected| counted < expected) {
            match self.take(0, self.buffer.len())? {
                0 => {
                    process::pause_if_shared();
                    idle_polls += 1;
                    if expected.is_none() && idle_polls.is_multiple_of(POLLS_BEFORE_STOP_CHECK) {
                        expected = sent()?;
                    }
                    if expected.is_some() && idle.exceeds(STALL_TIMEOUT) {
                        return Err(silence_error());
                    }
                }
                bytes => {
                    received += bytes as u64;
                    idle_polls = 0;
                    idle = PollTimer::default();
                    let whole = received / there_bytes as u64;
                    if whole > counted {
                        clock.count((whole - counted) as u32);
                        counted = whole;
                    }
                }
            }
        }
        Ok(clock.result(None))
    }

    fn message_bytes(&self) -> (usize, usize) {
        let round = self.round;
        (round.there_bytes as usize, round.back_bytes as usize)
    }

    /// Sends this number of bytes; waits while the socket buffer is full.
    #[inline]
    fn put(&mut self, bytes: usize) -> Result<()> {
        let mut written = 0;
        let mut idle = PollTimer::default();
        while written < bytes {
            match self.stream.write(&self.buffer[written..bytes]) {
                Ok(taken) => {
                    written += taken;
                    idle = PollTimer::default();
                }
                Err(error) if !is_retryable(error.kind()) => return Err(io_error(error)),
                Err(_) if idle.exceeds(STALL_TIMEOUT) => {
                    return Err(Error::Port("timed out: TCP socket buffer is full".into()));
                }
                Err(_) => process::pause_if_shared(),
            }
        }
        Ok(())
    }

    /// Receives available bytes into `buffer[from..to]`, and returns their number.
    #[inline]
    fn take(&mut self, from: usize, to: usize) -> Result<usize> {
        match self.stream.read(&mut self.buffer[from..to]) {
            Ok(0) => Err(Error::Port("raw TCP connection closed by the peer".into())),
            Ok(bytes) => Ok(bytes),
            Err(error) if is_retryable(error.kind()) => Ok(0),
            Err(error) => Err(io_error(error)),
        }
    }
}

fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cold]
fn io_error(error: std::io::Error) -> Error {
    Error::Port(error.to_string())
}

#[cold]
fn silence_error() -> Error {
    Error::Port("timed out: no data on the raw TCP connection".into())
}

#[cfg(test)]
mod tests;
