//! The same traffic over one TCP connection, with no protocol: beside VI/TCP, which has no port.
//!
//! What the kernel's TCP and two copies cost between two threads that never sleep, and nothing else:
//! as many bytes as a message of the test with its headers, a batch of messages in one call.
//! The bytes say nothing; both ends know how long a message is, and the channel tells the end of a round.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::Idle;
use crate::channel::{ANSWER_TIMEOUT, Seen};
use crate::error::{Error, Result};
use crate::latency::{Limit, Pinged};
use crate::plan::{BUFFERS_BYTES, Benchmark, MAX_SIZE_BYTES, Op, Test};
use crate::process;
use crate::stream::Clock;

/// The header of a segment, and what an RDMA operation has behind it.
const HEADER_BYTES: u32 = 24;
const RDMA_BYTES: u32 = 16;

/// An end that can neither send nor receive for so long has lost the other one.
const STUCK: Duration = Duration::from_secs(5);

/// Looks without a byte after which the answering end asks whether the round is over.
const LOOKS_BEFORE_STOP: u32 = 1024;

/// What goes over the connection in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamRound {
    /// What is measured.
    pub(crate) benchmark: Benchmark,
    /// Bytes of a message of the measuring end.
    pub(crate) there_bytes: u32,
    /// Bytes of the answer to it, of a latency test.
    pub(crate) back_bytes: u32,
    /// Messages of one call.
    pub(crate) batch: u32,
}

impl StreamRound {
    /// What goes over it in the place of a test's messages.
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

    /// Bytes of the longest call, if there can be such a round.
    fn call_bytes(&self) -> Result<usize> {
        let longest_bytes = self.there_bytes.max(self.back_bytes);
        let call_bytes = u64::from(longest_bytes) * u64::from(self.batch);
        let least_bytes = self.there_bytes.min(self.back_bytes);
        if least_bytes == 0 || self.batch == 0 || call_bytes > 2 * u64::from(MAX_SIZE_BYTES) {
            return Err(Error::Port(format!(
                "no round: {} messages of {least_bytes} to {longest_bytes} bytes in a call",
                self.batch
            )));
        }
        Ok(call_bytes as usize)
    }
}

/// Where the answering end waits for the connection.
pub(crate) struct Listening(TcpListener);

impl Listening {
    /// Waits at this address, at a port that the system chooses.
    pub(crate) fn open(host: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((host, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self(listener))
    }

    /// The port.
    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr().map_err(failed)?.port())
    }

    /// Takes the connection, which the other end has made already.
    pub(crate) fn accept(&self) -> Result<StreamEnd> {
        let start = Instant::now();
        loop {
            match self.0.accept() {
                Ok((stream, _)) => return StreamEnd::new(stream),
                Err(error) if !is_for_later(error.kind()) => return Err(failed(error)),
                Err(_) if start.elapsed() > ANSWER_TIMEOUT => {
                    return Err(Error::Peer("makes no raw connection".into()));
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// One end of the connection.
pub(crate) struct StreamEnd {
    stream: TcpStream,
    buffer: Vec<u8>,
    round: StreamRound,
}

impl StreamEnd {
    /// Connects one address of this host with another one.
    pub(crate) fn connect(from: IpAddr, to: SocketAddr) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))
            .map_err(failed)?;
        socket
            .bind(&SocketAddr::new(from, 0).into())
            .map_err(failed)?;
        socket
            .connect_timeout(&to.into(), ANSWER_TIMEOUT)
            .map_err(failed)?;
        Self::new(socket.into())
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
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

    /// Sends messages and measures how long each takes to come back.
    pub(crate) fn ping(
        &mut self,
        limit: &Limit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<Pinged> {
        let (there_bytes, back_bytes) = self.message_bytes();
        let start = Instant::now();
        let mut before = start;
        let mut pinged = Pinged::default();
        while !limit.is_over(before - start, pinged.round_trips) {
            self.put(there_bytes)?;
            let mut idle = Idle::default();
            let mut came = 0;
            while came < back_bytes {
                match self.take(came, back_bytes)? {
                    0 if idle.is_longer_than(STUCK) => return Err(silent()),
                    0 => process::pause(),
                    bytes => came += bytes,
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

    /// Answers every message until the round is over.
    pub(crate) fn echo(&mut self, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
        let (there_bytes, back_bytes) = self.message_bytes();
        let mut came = 0;
        let mut idle_looks = 0_u32;
        loop {
            match self.take(came, there_bytes)? {
                0 => {
                    process::pause();
                    idle_looks += 1;
                    if idle_looks.is_multiple_of(LOOKS_BEFORE_STOP) && is_over()? {
                        return Ok(());
                    }
                }
                bytes => {
                    came += bytes;
                    idle_looks = 0;
                }
            }
            if came == there_bytes {
                self.put(back_bytes)?;
                came = 0;
            }
        }
    }

    /// Sends messages one way until the limit; how many.
    pub(crate) fn send(&mut self, limit: &Limit) -> Result<u64> {
        let (there_bytes, _) = self.message_bytes();
        let start = Instant::now();
        let mut messages = 0;
        while !limit.is_over(start.elapsed(), messages) {
            self.put(there_bytes * self.round.batch as usize)?;
            messages += u64::from(self.round.batch);
        }
        Ok(messages)
    }

    /// Receives until `sent` tells how many messages there were, and all of them are here.
    pub(crate) fn receive(
        &mut self,
        mut sent: impl FnMut() -> Result<Option<u64>>,
    ) -> Result<Seen> {
        let (there_bytes, _) = self.message_bytes();
        let mut clock = Clock::default();
        let (mut came, mut counted) = (0_u64, 0_u64);
        let mut expected = None;
        let mut idle_looks = 0_u32;
        let mut idle = Idle::default();
        while expected.is_none_or(|expected| counted < expected) {
            match self.take(0, self.buffer.len())? {
                0 => {
                    process::pause();
                    idle_looks += 1;
                    if expected.is_none() && idle_looks.is_multiple_of(LOOKS_BEFORE_STOP) {
                        expected = sent()?;
                    }
                    if expected.is_some() && idle.is_longer_than(STUCK) {
                        return Err(silent());
                    }
                }
                bytes => {
                    came += bytes as u64;
                    idle_looks = 0;
                    idle = Idle::default();
                    let whole = came / there_bytes as u64;
                    if whole > counted {
                        clock.count((whole - counted) as u32);
                        counted = whole;
                    }
                }
            }
        }
        Ok(clock.seen(None))
    }

    fn message_bytes(&self) -> (usize, usize) {
        let round = self.round;
        (round.there_bytes as usize, round.back_bytes as usize)
    }

    /// Sends so many bytes, however long the connection is full.
    #[inline]
    fn put(&mut self, bytes: usize) -> Result<()> {
        let mut gone = 0;
        let mut idle = Idle::default();
        while gone < bytes {
            match self.stream.write(&self.buffer[gone..bytes]) {
                Ok(taken) => {
                    gone += taken;
                    idle = Idle::default();
                }
                Err(error) if !is_for_later(error.kind()) => return Err(failed(error)),
                Err(_) if idle.is_longer_than(STUCK) => {
                    return Err(Error::Port("full, and the other end takes nothing".into()));
                }
                Err(_) => process::pause(),
            }
        }
        Ok(())
    }

    /// Takes what is there, up to so many bytes of the buffer; how many.
    #[inline]
    fn take(&mut self, from: usize, to: usize) -> Result<usize> {
        match self.stream.read(&mut self.buffer[from..to]) {
            Ok(0) => Err(Error::Port(
                "the other end has closed the connection".into(),
            )),
            Ok(bytes) => Ok(bytes),
            Err(error) if is_for_later(error.kind()) => Ok(0),
            Err(error) => Err(failed(error)),
        }
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cold]
fn failed(error: std::io::Error) -> Error {
    Error::Port(error.to_string())
}

#[cold]
fn silent() -> Error {
    Error::Port("the other end sends nothing more".into())
}

#[cfg(test)]
mod tests;
