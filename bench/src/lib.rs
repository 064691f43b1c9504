//! `vibench`: latency, bandwidth and message rate between a client and a server. Each result is compared with
//! the raw port below it, measured in the same run; with VI/TCP, which has no port, with a raw TCP connection.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cli`] | the command line |
//! | [`plan`] | parameters of one test: benchmark, operation, level, size, batch, window |
//! | [`nic`] | the NIC of a run, and the raw port for its control |
//! | [`endpoint`] | a VI with its descriptors and buffers in registered memory; the only module with `unsafe` |
//! | `channel` | control channel between client and server, over a VI of its own |
//! | `latency` | ping-pong: one message in flight |
//! | `stream` | one-way messages: rate and bandwidth |
//! | `read` | RDMA reads: latency, rate and bandwidth |
//! | `workload` | traffic of one connected test, in either role |
//! | `raw_control` | raw control (baseline): the same traffic on a raw port or over raw TCP, with no protocol |
//! | `core_latency` | cache line round trip between two cores |
//! | `baseline` | control of a datapath process: its work done by plain threads on the same cores |
//! | `client`, `server` | the client measures and reports; the server responds |
//! | `totals` | rounds of one measurement, added up |
//! | [`connections`] | connection setup and teardown instead of messages |
//! | [`port`] | the raw port alone, one side per process |
//! | `rendezvous` | how the client finds the server |
//! | [`report`] | the table and the JSON file |
//! | `idle_timer` | time without progress, excluding pauses of the machine |
//! | `output` | standard output and standard error |
//! | `process` | the server process of a local run, cores, signals |
//! | `sync` | atomics, imported in one place |

pub mod cli;
pub mod connections;
pub mod endpoint;
pub mod error;
pub mod nic;
pub mod plan;
pub mod port;
pub mod report;

mod baseline;
mod channel;
mod client;
mod core_latency;
mod idle_timer;
mod latency;
mod output;
mod process;
mod raw_control;
mod read;
mod rendezvous;
mod server;
mod stream;
mod sync;
mod totals;
mod workload;

use std::process::ExitCode;

pub use error::{Error, Result};
pub use output::report_parse_error;

/// Runs a command, and reports an error on standard error.
///
/// A connection that broke on a port that loses frames is a result, not a failure: the table and the JSON file
/// contain it.
pub fn run(cli: cli::Cli) -> ExitCode {
    let outcome = match cli.command {
        cli::Command::Latency(options) => client::run(plan::Benchmark::Latency, &options),
        cli::Command::Bandwidth(options) => client::run(plan::Benchmark::Bandwidth, &options),
        cli::Command::Rate(options) => client::run(plan::Benchmark::Rate, &options),
        cli::Command::Connect(options) => connections::run(&options),
        cli::Command::CoreLatency(options) => core_latency::run(&options),
        cli::Command::Port { role } => port::run(&role),
        cli::Command::Answer(options) => server::serve_parent(&options),
    };
    output::exit_code(outcome)
}
