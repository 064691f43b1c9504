//! Traffic of one connected test, at the client or at the server.

use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::{Error, Result};
use crate::latency::PingPong;
use crate::nic::Nic;
use crate::plan::{Benchmark, Op, Test};
use crate::read::{Reader, Source};
use crate::stream::{Receiver, Sender};

/// One end of a stream or of RDMA reads.
pub(crate) trait TestEnd: Sized {
    fn new(nic: &Nic, test: &Test) -> Result<Self>;
    fn endpoint(&self) -> &Endpoint;
    fn set_remote_memory(&mut self, memory: RemoteMemory);
}

macro_rules! test_end {
    ($end:ty) => {
        impl TestEnd for $end {
            fn new(nic: &Nic, test: &Test) -> Result<Self> {
                Self::new(nic, test)
            }
            fn endpoint(&self) -> &Endpoint {
                self.endpoint()
            }
            fn set_remote_memory(&mut self, memory: RemoteMemory) {
                self.set_remote_memory(memory);
            }
        }
    };
}

test_end!(Sender);
test_end!(Receiver);
test_end!(Reader);
test_end!(Source);

/// An end that can use several connections.
pub(crate) trait MultiConnection {
    /// Moves the connections of `other` to this end.
    fn merge(&mut self, other: Self);
}

impl MultiConnection for Sender {
    fn merge(&mut self, other: Self) {
        self.merge(other);
    }
}

impl MultiConnection for Receiver {
    fn merge(&mut self, other: Self) {
        self.merge(other);
    }
}

/// Role of a program in a run: selects the ends of tests whose two ends differ.
pub(crate) trait RunRole {
    /// End of a stream.
    type Stream: TestEnd + MultiConnection;
    /// End of RDMA reads.
    type Read: TestEnd;
}

/// The client: measures and reports.
pub(crate) struct Client;

/// The server: responds to the client's requests.
pub(crate) struct Server;

impl RunRole for Client {
    type Stream = Sender;
    type Read = Reader;
}

impl RunRole for Server {
    type Stream = Receiver;
    type Read = Source;
}

/// Traffic of a test in role `R`.
pub(crate) enum Workload<R: RunRole> {
    PingPong(Box<PingPong>),
    Stream(Box<R::Stream>),
    Read(Box<R::Read>),
}

impl<R: RunRole> Workload<R> {
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(match (test.op, test.benchmark) {
            (Op::Read, _) => Self::Read(Box::new(R::Read::new(nic, test)?)),
            (_, Benchmark::Latency) => Self::PingPong(Box::new(PingPong::new(nic, test)?)),
            (_, Benchmark::Bandwidth | Benchmark::Rate) => {
                Self::Stream(Box::new(R::Stream::new(nic, test)?))
            }
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        match self {
            Self::PingPong(end) => end.endpoint(),
            Self::Stream(end) => end.endpoint(),
            Self::Read(end) => end.endpoint(),
        }
    }

    pub(crate) fn set_remote_memory(&mut self, memory: RemoteMemory) {
        match self {
            Self::PingPong(end) => end.set_remote_memory(memory),
            Self::Stream(end) => end.set_remote_memory(memory),
            Self::Read(end) => end.set_remote_memory(memory),
        }
    }

    /// Moves the connection of another end of the same test to this one.
    ///
    /// # Errors
    /// [`Error::Usage`] for ping-pong and RDMA reads, which use one connection.
    pub(crate) fn merge(&mut self, other: Self) -> Result<()> {
        match (self, other) {
            (Self::Stream(all), Self::Stream(one)) => {
                all.merge(*one);
                Ok(())
            }
            _ => Err(Error::Usage(
                "only streams of sends and writes support several connections".into(),
            )),
        }
    }
}
