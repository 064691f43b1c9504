//! One side of a stress run: many VIs, several threads, all bytes checked.
//!
//! Two processes, `run --side left` and `run --side right`, connect all slots to each other and send, write, read,
//! disconnect and reconnect until the end of the run; `compare` then compares the records of both. The NIC is in the
//! configuration file of `VIADUCT_CONFIG`. `ci/stress` runs all of it.
//!
//! | module | contents |
//! | --- | --- |
//! | `plan` | the messages of each side, known to both sides in advance |
//! | `pattern`, `header`, `window`, `source` | generation and checks of message content |
//! | `slot`, `transmit`, `reap`, `receive` | one VI and the four tasks on its queues, each with its own lock |
//! | `unexpected` | operations that the remote side must refuse |
//! | `control` | setup and end of connections |
//! | `worker`, `runner` | the threads, and the whole run |
//! | `accounting`, `events`, `thread_check` | records, asynchronous errors, and leaks |

#![forbid(unsafe_code)]

mod accounting;
mod control;
mod events;
mod header;
mod pattern;
mod plan;
mod reap;
mod receive;
mod runner;
mod slot;
mod source;
mod thread_check;
mod transmit;
mod unexpected;
mod window;
mod worker;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::accounting::Wire;
use crate::plan::Side;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs one side.
    Run(Run),
    /// Compares the records of both sides.
    Compare {
        /// The records of the left side.
        left: PathBuf,
        /// The records of the right side.
        right: PathBuf,
        /// The network between the sides may lose frames.
        #[arg(long)]
        lossy: bool,
        /// Other programs ran at the same time: fewer kinds of operations are required.
        #[arg(long)]
        among_others: bool,
    },
}

#[derive(Args)]
struct Run {
    /// The side of this process.
    #[arg(long, value_enum)]
    side: Side,
    /// The output file for the records.
    #[arg(long)]
    records: PathBuf,
    /// The runtime in seconds.
    #[arg(long)]
    seconds: u64,
    /// Seed of the random number generators; the same on both sides.
    #[arg(long)]
    seed: u64,
    /// Number of slots: VIs on each side.
    #[arg(long, default_value_t = 64)]
    slots: u16,
    /// Number of threads.
    #[arg(long, default_value_t = 4)]
    threads: u16,
    /// Other programs use the NIC at the same time, through a datapath process.
    #[arg(long)]
    among_others: bool,
    /// The name of the NIC.
    #[arg(long, default_value = "VINIC0")]
    nic: String,
    /// The host of the remote side; the local host by default.
    #[arg(long)]
    host: Option<IpAddr>,
}

fn main() -> ExitCode {
    let (name, outcome) = match Cli::parse().command {
        Subcommands::Run(run) => (run.side.name(), runner::run(&run)),
        Subcommands::Compare {
            left,
            right,
            lossy,
            among_others,
        } => {
            let wire = if lossy { Wire::Lossy } else { Wire::Lossless };
            let required = if among_others {
                accounting::MIN_REQUIRED
            } else {
                accounting::ALL_REQUIRED
            };
            (
                "compare",
                accounting::compare(&left, &right, wire, required),
            )
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
