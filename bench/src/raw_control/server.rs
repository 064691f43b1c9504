//! The raw control at the server.

use pmd::config::NicConfig;

use super::tcp::{RawTcpEnd, RawTcpListener, StreamRound};
use super::{RawAddress, RawPortEnd};
use crate::channel::{Channel, Message, RawRound, RoundResult};
use crate::error::{Error, Result};
use crate::nic::{self, Nic};
use crate::plan::Benchmark;

/// The server's end of the raw control.
pub(crate) enum RawServer {
    /// Frames of a port.
    Frames {
        end: Box<RawPortEnd>,
        /// Result of the last round, until the client requests it.
        result: Option<Result<RoundResult>>,
    },
    /// Bytes of a TCP connection.
    Stream {
        listener: RawTcpListener,
        end: Option<RawTcpEnd>,
    },
}

impl RawServer {
    /// Opens the raw control of a NIC.
    pub(crate) fn open(nic: &Nic, config: &NicConfig) -> Result<Self> {
        if nic::is_vi_tcp(config) {
            return Ok(Self::Stream {
                listener: RawTcpListener::open(nic.ip())?,
                end: None,
            });
        }
        Ok(Self::Frames {
            end: Box::new(RawPortEnd::new(nic::open_raw_port(config, false)?)),
            result: None,
        })
    }

    /// Returns the address for the client.
    pub(crate) fn address(&self) -> Result<RawAddress> {
        Ok(match self {
            Self::Frames { end, .. } => RawAddress::Station {
                mac: end.mac(),
                max_frame_bytes: end.max_frame_bytes(),
            },
            Self::Stream { listener, .. } => RawAddress::TcpPort(listener.port()?),
        })
    }

    /// Runs a round of frames; a stop frame ends it.
    pub(crate) fn frames(&mut self, round: &RawRound, channel: &mut Channel) -> Result<()> {
        let Self::Frames { end, result } = self else {
            return Err(Error::Peer(
                "round of frames requested, but the raw control uses TCP".into(),
            ));
        };
        end.begin(round, round.frames)?;
        channel.respond(&Message::Ready)?;
        *result = Some(match round.benchmark {
            Benchmark::Latency => end.echo().map(|()| RoundResult::default()),
            Benchmark::Bandwidth | Benchmark::Rate => end.receive(),
        });
        Ok(())
    }

    /// Takes the result of the last round of frames.
    pub(crate) fn take_result(&mut self) -> Result<RoundResult> {
        match self {
            Self::Frames { result, .. } => result.take(),
            Self::Stream { .. } => None,
        }
        .unwrap_or_else(|| Err(Error::Peer("no result of a round on the raw port".into())))
    }

    /// Runs a round over TCP; a request on the control channel ends it.
    pub(crate) fn stream(&mut self, round: &StreamRound, channel: &mut Channel) -> Result<()> {
        let Self::Stream { listener, end } = self else {
            return Err(Error::Peer(
                "TCP round requested, but the raw control uses frames".into(),
            ));
        };
        let end = match end {
            Some(end) => end,
            None => end.insert(listener.accept()?),
        };
        end.begin(round)?;
        channel.respond(&Message::Ready)?;
        let outcome = run_round(end, round.benchmark, channel);
        if outcome.is_err() && !channel.has_pending_request() {
            // The error is reported in response to the stop request.
            channel.wait_for_stop()?;
        }
        channel.respond(&Message::Finished(outcome?))
    }
}

fn run_round(
    end: &mut RawTcpEnd,
    benchmark: Benchmark,
    channel: &mut Channel,
) -> Result<RoundResult> {
    match benchmark {
        Benchmark::Latency => {
            end.echo(|| channel.has_message())?;
            channel.wait_for_stop()?;
            Ok(RoundResult::default())
        }
        Benchmark::Bandwidth | Benchmark::Rate => end.receive(|| match channel.has_message()? {
            true => channel.take_stop().map(Some),
            false => Ok(None),
        }),
    }
}
