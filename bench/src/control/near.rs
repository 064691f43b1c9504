//! The raw control at the end that measures.

use std::net::SocketAddr;

use pmd::config::NicConfig;
use pmd_port::MacBytes;

use super::stream::{StreamEnd, StreamRound};
use super::{RawEnd, RawPlace};
use crate::channel::{Channel, Message, RawRound, out_of_place};
use crate::error::Result;
use crate::latency::Limit;
use crate::nic;
use crate::plan::{Benchmark, Frames, Op, Test};
use crate::reach::Reach;
use crate::tally::{PING_PONG, Tally, new_histogram};

/// What is measured beside the NIC.
pub(crate) enum Near {
    /// Frames of a port.
    Frames {
        end: Box<RawEnd>,
        peer: MacBytes,
        /// The longest that both ends carry.
        max_frame_bytes: usize,
    },
    /// Bytes of a TCP connection.
    Stream(StreamEnd),
}

/// Can there be one beside a NIC?
pub(crate) fn exists_beside(config: &NicConfig) -> bool {
    nic::is_vi_tcp(config) || nic::raw_beside(config).is_some()
}

impl Near {
    /// Opens it at both ends.
    pub(crate) fn open(config: &NicConfig, reach: &Reach, channel: &mut Channel) -> Result<Self> {
        let end = match nic::is_vi_tcp(config) {
            true => None,
            false => Some(Box::new(RawEnd::new(nic::open_raw_port(config, true)?))),
        };
        match (end, channel.ask(&Message::RawOpen)?) {
            (
                Some(end),
                Message::RawOpened(RawPlace::Station {
                    mac,
                    max_frame_bytes,
                }),
            ) => Ok(Self::Frames {
                peer: mac,
                max_frame_bytes: max_frame_bytes.min(end.max_frame_bytes()),
                end,
            }),
            (None, Message::RawOpened(RawPlace::TcpPort(port))) => {
                let (from, to) = reach.hosts();
                StreamEnd::connect(from, SocketAddr::new(to, port)).map(Self::Stream)
            }
            (_, message) => Err(out_of_place(&message)),
        }
    }

    /// What stands beside a test.
    pub(crate) fn name(&self, test: &Test) -> Result<String> {
        let (driver, frames) = match self {
            Self::Frames {
                end,
                max_frame_bytes,
                ..
            } => (
                end.driver(),
                Frames::for_port(test.op, test.size_bytes, *max_frame_bytes)?,
            ),
            Self::Stream(_) => {
                let bytes = StreamRound::of(test).back_bytes;
                return Ok(format!("raw TCP, messages of {bytes} bytes"));
            }
        };
        Ok(match frames.count {
            1 => format!("raw {driver}, a frame of {} bytes", frames.last_bytes),
            count => format!(
                "raw {driver}, {count} frames of {} bytes",
                frames.full_bytes
            ),
        })
    }

    /// One round of the traffic of a test.
    pub(crate) fn round(
        &mut self,
        test: &Test,
        limit: &Limit,
        channel: &mut Channel,
        tally: &mut Tally,
    ) -> Result<()> {
        let messages_each = match test.op {
            Op::Read => 1,
            Op::Send | Op::Write => PING_PONG,
        };
        let mut histogram = new_histogram()?;
        let (pinged, seen) = match self {
            Self::Frames {
                end,
                peer,
                max_frame_bytes,
            } => {
                let frames = Frames::for_port(test.op, test.size_bytes, *max_frame_bytes)?;
                let mut round = RawRound {
                    benchmark: test.benchmark,
                    frames,
                    mac: end.mac(),
                };
                channel.tell(&Message::RawRound(round))?;
                round.mac = *peer;
                let ours = match (test.op, test.benchmark) {
                    (Op::Read, Benchmark::Latency) => Frames::of_read_request(),
                    _ => frames,
                };
                end.begin(&round, ours)?;
                let pinged = match test.benchmark {
                    Benchmark::Latency => Some(end.ping(limit, &mut histogram)?),
                    Benchmark::Bandwidth | Benchmark::Rate => {
                        end.send(limit, test.batch)?;
                        None
                    }
                };
                (pinged, channel.ask_seen(&Message::RawStop)?)
            }
            Self::Stream(end) => {
                let round = StreamRound::of(test);
                channel.tell(&Message::StreamRound(round))?;
                end.begin(&round)?;
                let (pinged, sent) = match test.benchmark {
                    Benchmark::Latency => (Some(end.ping(limit, &mut histogram)?), 0),
                    Benchmark::Bandwidth | Benchmark::Rate => (None, end.send(limit)?),
                };
                (pinged, channel.ask_seen(&Message::Stop { sent })?)
            }
        };
        match pinged {
            Some(pinged) => tally.add_pings(&histogram, pinged.elapsed, messages_each),
            None => tally.add_stream(&seen),
        }
        Ok(())
    }
}
