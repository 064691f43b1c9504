//! One end of a connection that counts: what arrived, how often, how whole, and how it ended.
//!
//! Everything that the tests judge is printed: events at once, numbers at the end.

#![forbid(unsafe_code)]

mod breaks;
mod echo;
mod events;
mod explore;
mod failure;
mod first_request;
mod flood;
mod message;
mod obey;
mod party;
mod queue;
mod station;
mod witness;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use party::Shape;

/// What can go wrong, in words.
type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Cli {
    /// The NIC, in the configuration that `VIADUCT_CONFIG` names.
    #[arg(long, global = true, default_value = "VINIC0")]
    nic: String,
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Sends everything back to any number of clients; ends with its input. The line `counters` there has the NIC's
    /// counters told.
    Serve {
        /// The discriminator to listen on.
        name: String,
    },
    /// Sends, and checks what comes back, until its input or the connection ends. The line `counters` in the input has
    /// the NIC's counters told; any other is its end.
    Ping {
        #[command(flatten)]
        server: Server,
        /// What the client calls itself.
        #[arg(long)]
        own: String,
        /// Round trips in a second; no more than some milliseconds are made up for. As fast as it goes without.
        #[arg(long)]
        per_second: Option<u32>,
    },
    /// Does what its input says, a line each, and tells what comes of it.
    Explore,
    /// Serves any number of clients, each of which may write and read memory, and tells how their connections ended.
    Witness {
        /// The discriminator to listen on.
        name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Talks as its input says, over one connection after the other.
    Obey {
        #[command(flatten)]
        shape: Shape,
    },
    /// Connects, sees its NIC fail, takes it down and, told so by its input, opens it again.
    Outlive {
        #[command(flatten)]
        server: Server,
        /// What the client calls itself.
        #[arg(long)]
        own: String,
        /// How often the NIC fails.
        #[arg(long)]
        failures: u32,
        /// It sends, receives and registers memory until the NIC fails.
        #[arg(long)]
        busy: bool,
    },
    /// Waits for connection requests with many threads, and rejects all.
    RejectAll {
        /// The discriminator to listen on.
        name: String,
    },
    /// Opens the NIC again and again, and requests a connection once each time.
    RequestOnceEach {
        #[command(flatten)]
        server: Server,
        /// How often.
        #[arg(long)]
        openings: u32,
    },
    /// Counts the messages of an unreliable connection.
    UdSink {
        /// The discriminator to listen on.
        name: String,
    },
    /// Sends messages on an unreliable connection.
    UdSource {
        #[command(flatten)]
        server: Server,
        /// How many.
        #[arg(long)]
        messages: u64,
    },
    /// Receives on one reliable connection after the other, each until it breaks.
    RdSink {
        /// The discriminator to listen on.
        name: String,
        /// How many connections.
        #[arg(long)]
        rounds: u32,
    },
    /// Sends on one reliable connection after the other, each until it breaks.
    RdSource {
        #[command(flatten)]
        server: Server,
        /// How many connections.
        #[arg(long)]
        rounds: u32,
        /// Messages of each, at most.
        #[arg(long)]
        messages: u64,
    },
}

/// Where the other end listens.
#[derive(Args)]
struct Server {
    /// Its host.
    host: String,
    /// Its discriminator.
    name: String,
}

fn main() -> ExitCode {
    let Cli { nic, role } = Cli::parse();
    let outcome = match role {
        Role::Serve { name } => echo::serve(&nic, &name),
        Role::Ping {
            server,
            own,
            per_second,
        } => echo::ping(&nic, &server, &own, per_second),
        Role::Witness { name, shape } => witness::witness(&nic, &name, &shape),
        Role::Obey { shape } => obey::obey(&nic, &shape),
        Role::Explore => explore::explore(&nic),
        Role::Outlive {
            server,
            own,
            failures,
            busy,
        } => failure::outlive(&nic, &server, &own, failures, busy),
        Role::RejectAll { name } => first_request::reject_all(&nic, &name),
        Role::RequestOnceEach { server, openings } => {
            first_request::request_once_each(&nic, &server, openings)
        }
        Role::UdSink { name } => flood::sink(&nic, &name),
        Role::UdSource { server, messages } => flood::source(&nic, &server, messages),
        Role::RdSink { name, rounds } => breaks::sink(&nic, &name, rounds),
        Role::RdSource {
            server,
            rounds,
            messages,
        } => breaks::source(&nic, &server, rounds, messages),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vi-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
