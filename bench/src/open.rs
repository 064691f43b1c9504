//! A test that is connected, at either end.

use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::{Error, Result};
use crate::latency::PingPong;
use crate::nic::Nic;
use crate::plan::{Benchmark, Op, Test};
use crate::read::{Reader, Source};
use crate::stream::{Receiver, Sender};

/// One end of a test.
pub(crate) trait TestEnd: Sized {
    fn new(nic: &Nic, test: &Test) -> Result<Self>;
    fn endpoint(&self) -> &Endpoint;
    fn set_peer(&mut self, memory: RemoteMemory);
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
            fn set_peer(&mut self, memory: RemoteMemory) {
                self.set_peer(memory);
            }
        }
    };
}

test_end!(Sender);
test_end!(Receiver);
test_end!(Reader);
test_end!(Source);

/// An end that can have several connections.
pub(crate) trait Joins {
    /// Takes the connections of another one.
    fn join(&mut self, other: Self);
}

impl Joins for Sender {
    fn join(&mut self, other: Self) {
        self.join(other);
    }
}

impl Joins for Receiver {
    fn join(&mut self, other: Self) {
        self.join(other);
    }
}

/// Which ends of the tests that have two different ones.
pub(crate) trait Side {
    /// Of a stream.
    type Stream: TestEnd + Joins;
    /// Of RDMA reads.
    type Read: TestEnd;
}

/// The end that measures.
pub(crate) struct Near;

/// The end that answers.
pub(crate) struct Far;

impl Side for Near {
    type Stream = Sender;
    type Read = Reader;
}

impl Side for Far {
    type Stream = Receiver;
    type Read = Source;
}

/// A test that is connected, at this side.
pub(crate) enum Open<S: Side> {
    PingPong(Box<PingPong>),
    Stream(Box<S::Stream>),
    Read(Box<S::Read>),
}

impl<S: Side> Open<S> {
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(match (test.op, test.benchmark) {
            (Op::Read, _) => Self::Read(Box::new(S::Read::new(nic, test)?)),
            (_, Benchmark::Latency) => Self::PingPong(Box::new(PingPong::new(nic, test)?)),
            (_, Benchmark::Bandwidth | Benchmark::Rate) => {
                Self::Stream(Box::new(S::Stream::new(nic, test)?))
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

    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        match self {
            Self::PingPong(end) => end.set_peer(memory),
            Self::Stream(end) => end.set_peer(memory),
            Self::Read(end) => end.set_peer(memory),
        }
    }

    /// Takes the connection of another end of the same test.
    pub(crate) fn join(&mut self, other: Self) -> Result<()> {
        match (self, other) {
            (Self::Stream(all), Self::Stream(one)) => {
                all.join(*one);
                Ok(())
            }
            _ => Err(Error::Usage(
                "only streams of sends and writes have several connections".into(),
            )),
        }
    }
}
