//! `vibench`: latency, bandwidth and message rate between two ends, and beside
//! each figure the raw port that carried it, measured in the same run; beside VI/TCP,
//! which has no port, a raw TCP connection.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`cli`] | the command line |
//! | [`plan`] | what one test is: benchmark, operation, level, size, batch, window |
//! | [`nic`] | which NIC is opened, and which raw port stands beside it, if it has one |
//! | [`endpoint`] | a VI with its descriptors and buffers in registered memory; the one room with `unsafe` |
//! | `channel` | the messages by which the two ends agree, over a VI of their own |
//! | `latency` | one message in flight, there and back |
//! | `stream` | messages one way: rate and bandwidth |
//! | `read` | RDMA reads: all three of them |
//! | `open` | a test that is connected, at either end |
//! | `control` | the same traffic as frames of a raw port, or over a TCP connection, with no protocol |
//! | `distance` | how far two cores are from each other |
//! | `floor` | the work of a datapath process by bare threads on the same cores |
//! | `driver`, `server` | the end that measures and reports; the end that answers |
//! | `tally` | the rounds of one side, added up |
//! | [`connections`] | connections made and ended, in place of messages |
//! | [`port`] | the raw port alone, one end at a time |
//! | `reach` | how the measuring end finds the answering one |
//! | [`report`] | the table and the JSON file |
//! | `patience` | how long one looks for something in vain |
//! | `output` | what is printed |
//! | `process` | the second process, cores, signals |
//! | `sync` | the crate's one door to atomics |

pub mod cli;
pub mod connections;
pub mod endpoint;
pub mod error;
pub mod nic;
pub mod plan;
pub mod port;
pub mod report;

mod channel;
mod control;
mod distance;
mod driver;
mod floor;
mod latency;
mod open;
mod output;
mod patience;
mod process;
mod reach;
mod read;
mod server;
mod stream;
mod sync;
mod tally;

use std::process::ExitCode;

pub use error::{Error, Result};
pub use output::explain;

/// Runs the program, and reports an error on standard error.
///
/// A connection that broke on a port that loses frames is a result, not a
/// failure: it stands in the table and in the JSON file.
pub fn run(cli: cli::Cli) -> ExitCode {
    let outcome = match cli.command {
        cli::Command::Latency(options) => driver::run(plan::Benchmark::Latency, &options),
        cli::Command::Bandwidth(options) => driver::run(plan::Benchmark::Bandwidth, &options),
        cli::Command::Rate(options) => driver::run(plan::Benchmark::Rate, &options),
        cli::Command::Connect(options) => connections::run(&options),
        cli::Command::Distance(options) => distance::run(&options),
        cli::Command::Port { role } => port::run(&role),
        cli::Command::Answer(options) => server::answer_parent(&options),
    };
    output::exit_code(outcome)
}
