//! The raw port alone (`vibench port`), one side per process: the limits of a driver on this machine.
//!
//! Each side is started separately, on the same host or on two hosts, and either side may be another program:
//! `receive` counts and `echo` returns frames of any sender, and any station that swaps the addresses of a frame can
//! respond to `ping`. So results are comparable with those of other programs (such as `dpdk-testpmd`) on the same wire.
//!
//! A frame has the header of the raw control (addresses, EtherType, kind, run and serial number) and a payload. The
//! payload is not written or copied, except with `--filled`: then it is copied from memory and protected by a CRC,
//! which the receiver checks before it copies the payload to memory. That is the minimum work of two ends that exchange
//! messages.
//!
//! | module | contents |
//! | --- | --- |
//! | `cli` | the options |
//! | `station` | an open port and its peer: sends and receives frames |
//! | `payload` | payload and CRC of filled frames |
//! | `stream` | `send` and `receive`: one-way frames |
//! | `ping` | `ping` and `echo`: one frame in flight |
//! | `report` | the result, as text and as a JSON object |

pub mod cli;
pub mod report;

mod payload;
mod ping;
mod station;
mod stream;

use cli::Role;
use fcvi_frame::MacAddress;
use payload::Payload;
use report::PortReport;
use station::Station;

use crate::error::Result;
use crate::latency::RoundLimit;
use crate::output;
use crate::process::{self, StopFlag};
use crate::report::JsonFile;

/// Runs one side.
pub(crate) fn run(role: &Role) -> Result<()> {
    let options = role.options();
    let stop = StopFlag::on_signals()?;
    if let Some(core) = options.core {
        process::pin(core)?;
    }
    let json = JsonFile::open(options.json.as_deref())?;
    let mut station = Station::open(options)?;
    output::line(format_args!(
        "{} {}: station {}",
        station.driver(),
        station.device(),
        MacAddress(station.mac())
    ))?;
    let mut report = measure(role, &mut station, &role.limit(stop))?;
    report.add_counters(&station.stats());
    output::line(format_args!("{}", report.to_string().trim_end()))?;
    match json {
        Some(json) => json.write(&[report]),
        None => Ok(()),
    }
}

fn measure(role: &Role, station: &mut Station, limit: &RoundLimit) -> Result<PortReport> {
    let transmit = match role {
        Role::Send(options) => Some(&options.transmit),
        Role::Ping(transmit) => Some(transmit),
        Role::Receive(_) | Role::Echo(_) => None,
    };
    if let Some(transmit) = transmit {
        station.find_peer(transmit.to.map(|to| to.0), &limit.stop)?;
    }
    match role {
        Role::Send(options) => {
            let payload = options.filled.then(Payload::new);
            stream::send(station, options.transmit.size_bytes(), payload, limit)
        }
        Role::Receive(options) => {
            let payload = options.filled.then(Payload::new);
            stream::receive(station, payload, limit)
        }
        Role::Ping(transmit) => ping::ping(station, transmit.size_bytes(), limit),
        Role::Echo(_) => ping::echo(station, limit),
    }
}
