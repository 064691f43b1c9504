//! The raw control at the end that answers.

use pmd::config::NicConfig;

use super::stream::{Listening, StreamEnd, StreamRound};
use super::{RawEnd, RawPlace};
use crate::channel::{Channel, Message, RawRound, Seen};
use crate::error::{Error, Result};
use crate::nic::{self, Nic};
use crate::plan::Benchmark;

/// What answers beside the NIC.
pub(crate) enum Far {
    /// Frames of a port.
    Frames {
        end: Box<RawEnd>,
        /// What it saw of a round that nobody has asked for yet.
        seen: Option<Result<Seen>>,
    },
    /// Bytes of a TCP connection.
    Stream {
        listening: Listening,
        end: Option<StreamEnd>,
    },
}

impl Far {
    /// Opens it beside a NIC.
    pub(crate) fn open(nic: &Nic, config: &NicConfig) -> Result<Self> {
        if nic::is_vi_tcp(config) {
            return Ok(Self::Stream {
                listening: Listening::open(nic.ip())?,
                end: None,
            });
        }
        Ok(Self::Frames {
            end: Box::new(RawEnd::new(nic::open_raw_port(config, false)?)),
            seen: None,
        })
    }

    /// Where the measuring end finds it.
    pub(crate) fn place(&self) -> Result<RawPlace> {
        Ok(match self {
            Self::Frames { end, .. } => RawPlace::Station {
                mac: end.mac(),
                max_frame_bytes: end.max_frame_bytes(),
            },
            Self::Stream { listening, .. } => RawPlace::TcpPort(listening.port()?),
        })
    }

    /// A round of frames; they tell its end themselves.
    pub(crate) fn frames(&mut self, round: &RawRound, channel: &mut Channel) -> Result<()> {
        let Self::Frames { end, seen } = self else {
            return Err(Error::Peer("wants frames where none are".into()));
        };
        end.begin(round, round.frames)?;
        channel.answer(&Message::Ready)?;
        *seen = Some(match round.benchmark {
            Benchmark::Latency => end.echo().map(|()| Seen::default()),
            Benchmark::Bandwidth | Benchmark::Rate => end.receive(),
        });
        Ok(())
    }

    /// What it saw of the last round of frames.
    pub(crate) fn take_seen(&mut self) -> Result<Seen> {
        match self {
            Self::Frames { seen, .. } => seen.take(),
            Self::Stream { .. } => None,
        }
        .unwrap_or_else(|| Err(Error::Peer("has no round on the raw port".into())))
    }

    /// A round of a stream.
    pub(crate) fn stream(&mut self, round: &StreamRound, channel: &mut Channel) -> Result<()> {
        let Self::Stream { listening, end } = self else {
            return Err(Error::Peer("wants a stream where none is".into()));
        };
        let end = match end {
            Some(end) => end,
            None => end.insert(listening.accept()?),
        };
        end.begin(round)?;
        channel.answer(&Message::Ready)?;
        let outcome = answer(end, round.benchmark, channel);
        if outcome.is_err() && !channel.owes_answer() {
            // The reason is told when it is asked for.
            channel.wait_for_stop()?;
        }
        channel.answer(&Message::Finished(outcome?))
    }
}

fn answer(end: &mut StreamEnd, benchmark: Benchmark, channel: &mut Channel) -> Result<Seen> {
    match benchmark {
        Benchmark::Latency => {
            end.echo(|| channel.has_message())?;
            channel.wait_for_stop()?;
            Ok(Seen::default())
        }
        Benchmark::Bandwidth | Benchmark::Rate => end.receive(|| match channel.has_message()? {
            true => channel.take_stop().map(Some),
            false => Ok(None),
        }),
    }
}
