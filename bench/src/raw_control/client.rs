//! The raw control at the client.

use std::net::SocketAddr;

use pmd::config::NicConfig;
use pmd_port::MacBytes;

use super::tcp::{RawTcpEnd, StreamRound};
use super::{RawAddress, RawPortEnd};
use crate::channel::{Channel, Message, RawRound, unexpected_message};
use crate::error::Result;
use crate::latency::RoundLimit;
use crate::nic;
use crate::plan::{Benchmark, Frames, Op, Test};
use crate::rendezvous::Rendezvous;
use crate::totals::{PING_PONG, Totals, new_histogram};

/// The client's end of the raw control.
pub(crate) enum RawClient {
    /// Frames of a port.
    Frames {
        end: Box<RawPortEnd>,
        peer: MacBytes,
        /// Maximum frame size in bytes that both ends support.
        max_frame_bytes: usize,
    },
    /// Bytes of a TCP connection.
    Stream(RawTcpEnd),
}

/// Returns whether a NIC with this configuration supports a raw control.
pub(crate) fn is_available(config: &NicConfig) -> bool {
    nic::is_vi_tcp(config) || nic::raw_control_config(config).is_some()
}

impl RawClient {
    /// Opens the raw control at both ends.
    pub(crate) fn open(
        config: &NicConfig,
        rendezvous: &Rendezvous,
        channel: &mut Channel,
    ) -> Result<Self> {
        let end = match nic::is_vi_tcp(config) {
            true => None,
            false => Some(Box::new(RawPortEnd::new(nic::open_raw_port(config, true)?))),
        };
        match (end, channel.request(&Message::RawOpen)?) {
            (
                Some(end),
                Message::RawOpened(RawAddress::Station {
                    mac,
                    max_frame_bytes,
                }),
            ) => Ok(Self::Frames {
                peer: mac,
                max_frame_bytes: max_frame_bytes.min(end.max_frame_bytes()),
                end,
            }),
            (None, Message::RawOpened(RawAddress::TcpPort(port))) => {
                let (from, to) = rendezvous.hosts();
                RawTcpEnd::connect(from, SocketAddr::new(to, port)).map(Self::Stream)
            }
            (_, message) => Err(unexpected_message(&message)),
        }
    }

    /// Returns the name of the control of a test.
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

    /// Runs one round of a test's traffic, and adds it to `totals`.
    pub(crate) fn round(
        &mut self,
        test: &Test,
        limit: &RoundLimit,
        channel: &mut Channel,
        totals: &mut Totals,
    ) -> Result<()> {
        let messages_each = match test.op {
            Op::Read => 1,
            Op::Send | Op::Write => PING_PONG,
        };
        let mut histogram = new_histogram()?;
        let (pinged, result) = match self {
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
                channel.command(&Message::RawRound(round))?;
                round.mac = *peer;
                let outgoing = match (test.op, test.benchmark) {
                    (Op::Read, Benchmark::Latency) => Frames::of_read_request(),
                    _ => frames,
                };
                end.begin(&round, outgoing)?;
                let pinged = match test.benchmark {
                    Benchmark::Latency => Some(end.ping(limit, &mut histogram)?),
                    Benchmark::Bandwidth | Benchmark::Rate => {
                        end.send(limit, test.batch)?;
                        None
                    }
                };
                (pinged, channel.request_result(&Message::RawStop)?)
            }
            Self::Stream(end) => {
                let round = StreamRound::of(test);
                channel.command(&Message::StreamRound(round))?;
                end.begin(&round)?;
                let (pinged, sent) = match test.benchmark {
                    Benchmark::Latency => (Some(end.ping(limit, &mut histogram)?), 0),
                    Benchmark::Bandwidth | Benchmark::Rate => (None, end.send(limit)?),
                };
                (pinged, channel.request_result(&Message::Stop { sent })?)
            }
        };
        match pinged {
            Some(pinged) => totals.add_pings(&histogram, pinged.elapsed, messages_each),
            None => totals.add_stream(&result),
        }
        Ok(())
    }
}
