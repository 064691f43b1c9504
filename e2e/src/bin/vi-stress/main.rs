//! One side of a stress run: many VIs, several threads, every byte checked.
//!
//! Two processes of it, `run --side left` and `run --side right`, connect all slots to each other and send, write, read,
//! disconnect and connect again until their time is over; `judge` then compares the books of both. The NIC is
//! one of the configuration that `VIADUCT_CONFIG` names. `ci/stress` does all of it.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `plan` | what each side sends, as both sides know it beforehand |
//! | `pattern`, `header`, `window`, `source` | bytes: how they are made and checked |
//! | `slot`, `transmit`, `reap`, `receive` | one VI and the four duties on its queues, each with a lock of its own |
//! | `stray` | what the other side must refuse |
//! | `control` | who connects, who ends a connection and how |
//! | `worker`, `side` | the threads, and the whole run |
//! | `books`, `events`, `census` | what is counted, told and left over |

#![forbid(unsafe_code)]

mod books;
mod census;
mod control;
mod events;
mod header;
mod pattern;
mod plan;
mod reap;
mod receive;
mod side;
mod slot;
mod source;
mod stray;
mod transmit;
mod window;
mod worker;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::books::Wire;
use crate::plan::Side;

/// What can go wrong, in words.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Runs one side.
    Run(Run),
    /// Compares the books of both sides.
    Judge {
        /// Of the left side.
        left: PathBuf,
        /// Of the right side.
        right: PathBuf,
        /// Frames may be lost between the sides.
        #[arg(long)]
        lossy: bool,
        /// Other programs had most of the time: not everything that there is needs to have happened.
        #[arg(long)]
        among_others: bool,
    },
}

#[derive(Args)]
struct Run {
    /// Which side.
    #[arg(long, value_enum)]
    side: Side,
    /// Where to write the books.
    #[arg(long)]
    books: PathBuf,
    /// How long, in seconds.
    #[arg(long)]
    seconds: u64,
    /// What everything random follows from; the same at both sides.
    #[arg(long)]
    seed: u64,
    /// Slots: VIs at each side.
    #[arg(long, default_value_t = 64)]
    slots: u16,
    /// Threads.
    #[arg(long, default_value_t = 4)]
    threads: u16,
    /// Other programs use the NIC, too: it is a datapath process's.
    #[arg(long)]
    among_others: bool,
    /// The NIC.
    #[arg(long, default_value = "VINIC0")]
    nic: String,
    /// The host of the other side; without it, this host.
    #[arg(long)]
    host: Option<IpAddr>,
}

fn main() -> ExitCode {
    let (name, outcome) = match Cli::parse().role {
        Role::Run(run) => (run.side.name(), side::run(&run)),
        Role::Judge {
            left,
            right,
            lossy,
            among_others,
        } => {
            let wire = if lossy { Wire::Lossy } else { Wire::Lossless };
            let needed = if among_others {
                books::LEAST
            } else {
                books::EVERYTHING
            };
            ("judge", books::judge(&left, &right, wire, needed))
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
