//! A test that is connected, at either end.

use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::Result;
use crate::latency::PingPong;
use crate::nic::Nic;
use crate::plan::{Benchmark, Test};
use crate::stream::{Receiver, Sender};

/// One end of a stream.
pub(crate) trait StreamEnd: Sized {
    fn new(nic: &Nic, test: &Test) -> Result<Self>;
    fn endpoint(&self) -> &Endpoint;
    fn set_peer(&mut self, memory: RemoteMemory);
}

macro_rules! stream_end {
    ($end:ty) => {
        impl StreamEnd for $end {
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

stream_end!(Sender);
stream_end!(Receiver);

/// A test that is connected; `S` is this end of its stream.
pub(crate) enum Open<S> {
    PingPong(Box<PingPong>),
    Stream(Box<S>),
}

impl<S: StreamEnd> Open<S> {
    pub(crate) fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(match test.benchmark {
            Benchmark::Latency => Self::PingPong(Box::new(PingPong::new(nic, test)?)),
            Benchmark::Bandwidth | Benchmark::Rate => Self::Stream(Box::new(S::new(nic, test)?)),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        match self {
            Self::PingPong(end) => end.endpoint(),
            Self::Stream(end) => end.endpoint(),
        }
    }

    pub(crate) fn set_peer(&mut self, memory: RemoteMemory) {
        match self {
            Self::PingPong(end) => end.set_peer(memory),
            Self::Stream(end) => end.set_peer(memory),
        }
    }
}
