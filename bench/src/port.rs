//! The raw port alone, one end at a time: what a driver carries on this machine.
//!
//! Each end is started by itself, on the same host or on another one, and no end needs to be this
//! program: frames of any other sender are counted by `receive` and sent back by `echo`, and any
//! station that swaps the addresses of a frame answers `ping`. So a figure of ours stands beside
//! that of another program (such as `dpdk-testpmd`) on the same wire.
//!
//! A frame is header and room: addresses, EtherType, kind, run and serial number as in `control`;
//! what is behind is sent as it lies in the buffer, and nobody copies it; but with `--filled` it is
//! copied from memory, sealed with a CRC, checked and copied to memory: the least that two ends do
//! whose frames carry messages.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `cli` | the options |
//! | `station` | an open port, whom it talks to, frames in and out |
//! | `contents` | what is in a filled frame |
//! | `stream` | `send` and `receive`: frames one way |
//! | `ping` | `ping` and `echo`: one frame there and back |
//! | `report` | what was seen, as text and as a JSON object |

pub mod cli;
pub mod report;

mod contents;
mod ping;
mod station;
mod stream;

use cli::Role;
use contents::Contents;
use report::PortReport;
use station::Station;

use crate::error::Result;
use crate::latency::Limit;
use crate::output;
use crate::process::{self, Stop};
use crate::report::JsonFile;

/// Runs one end.
pub(crate) fn run(role: &Role) -> Result<()> {
    let options = role.options();
    let stop = Stop::on_signals()?;
    if let Some(core) = options.core {
        process::pin(core)?;
    }
    let json = JsonFile::open(options.json.as_deref())?;
    let mut station = Station::open(options)?;
    output::line(format_args!(
        "{} {}: station {}",
        station.driver(),
        station.device(),
        cli::MacText(station.mac())
    ))?;
    let mut report = measure(role, &mut station, &role.limit(stop))?;
    report.add_counters(&station.stats());
    output::line(format_args!("{}", report.to_string().trim_end()))?;
    match json {
        Some(json) => json.write(&[report]),
        None => Ok(()),
    }
}

fn measure(role: &Role, station: &mut Station, limit: &Limit) -> Result<PortReport> {
    let begin = match role {
        Role::Send(options) => Some(&options.begin),
        Role::Ping(begin) => Some(begin),
        Role::Receive(_) | Role::Echo(_) => None,
    };
    if let Some(begin) = begin {
        station.find_peer(begin.to.map(|to| to.0), &limit.stop)?;
    }
    match role {
        Role::Send(options) => {
            let contents = options.filled.then(Contents::new);
            stream::send(station, options.begin.size_bytes(), contents, limit)
        }
        Role::Receive(options) => {
            let contents = options.filled.then(Contents::new);
            stream::receive(station, contents, limit)
        }
        Role::Ping(begin) => ping::ping(station, begin.size_bytes(), limit),
        Role::Echo(_) => ping::echo(station, limit),
    }
}
