//! Client and server programs of the tests: they check each message, and count messages, losses and events.
//!
//! Events are printed immediately, counters at the end.

#![forbid(unsafe_code)]

mod commands;
mod echo;
mod events;
mod explore;
mod first_request;
mod message;
mod nic_context;
mod nic_failure;
mod observer;
mod peer_session;
mod queue;
mod rd_stream;
mod server_address;
mod ud_stream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use peer_session::ViOptions;
use server_address::ServerAddress;

#[derive(Parser)]
struct Cli {
    /// The name of the NIC in the configuration file of `VIADUCT_CONFIG`.
    #[arg(long, global = true, default_value = "VINIC0")]
    nic: String,
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs an echo server for any number of clients until its input ends. The input line `counters` prints the NIC's
    /// counters.
    Serve {
        /// The discriminator to listen on.
        name: String,
    },
    /// Sends messages and checks their echoes until its input or the connection ends. The input line `counters` prints
    /// the NIC's counters; any other line ends the program.
    Ping {
        #[command(flatten)]
        server: ServerAddress,
        /// The discriminator of the client.
        #[arg(long)]
        client_name: String,
        /// Round trips per second, with a catch-up of some milliseconds at most; unlimited by default.
        #[arg(long)]
        per_second: Option<u32>,
    },
    /// Discovers hosts and requests connections, by commands of its input.
    Explore,
    /// Serves any number of clients with RDMA access to memory, and prints how their connections ended.
    Observe {
        /// The discriminator to listen on.
        name: String,
        #[command(flatten)]
        options: ViOptions,
    },
    /// Uses consecutive connections by commands of its input.
    Commands {
        #[command(flatten)]
        options: ViOptions,
    },
    /// Connects, waits for a NIC failure, closes the NIC, and reopens it after a line of its input.
    SurviveFailures {
        #[command(flatten)]
        server: ServerAddress,
        /// The discriminator of the client.
        #[arg(long)]
        client_name: String,
        /// Number of failures.
        #[arg(long)]
        failures: u32,
        /// Sends, receives and registers memory until the NIC fails.
        #[arg(long)]
        busy: bool,
    },
    /// Rejects all connection requests, with many listening threads.
    RejectAll {
        /// The discriminator to listen on.
        name: String,
    },
    /// Opens the NIC repeatedly and requests one connection each time.
    RequestOnceEach {
        #[command(flatten)]
        server: ServerAddress,
        /// Number of times that the NIC is opened.
        #[arg(long)]
        opens: u32,
    },
    /// Counts the messages of an unreliable connection.
    UdSink {
        /// The discriminator to listen on.
        name: String,
    },
    /// Sends messages on an unreliable connection.
    UdSource {
        #[command(flatten)]
        server: ServerAddress,
        /// Number of messages.
        #[arg(long)]
        messages: u64,
    },
    /// Receives on consecutive reliable connections, on each until it breaks.
    RdSink {
        /// The discriminator to listen on.
        name: String,
        /// Number of connections.
        #[arg(long)]
        rounds: u32,
    },
    /// Sends on consecutive reliable connections, on each until it breaks.
    RdSource {
        #[command(flatten)]
        server: ServerAddress,
        /// Number of connections.
        #[arg(long)]
        rounds: u32,
        /// Maximum number of messages on each.
        #[arg(long)]
        messages: u64,
    },
}

fn main() -> ExitCode {
    let Cli { nic, command } = Cli::parse();
    let outcome = match command {
        Subcommands::Serve { name } => echo::serve(&nic, &name),
        Subcommands::Ping {
            server,
            client_name,
            per_second,
        } => echo::ping(&nic, &server, &client_name, per_second),
        Subcommands::Observe { name, options } => observer::observe(&nic, &name, &options),
        Subcommands::Commands { options } => commands::run(&nic, &options),
        Subcommands::Explore => explore::explore(&nic),
        Subcommands::SurviveFailures {
            server,
            client_name,
            failures,
            busy,
        } => nic_failure::survive_failures(&nic, &server, &client_name, failures, busy),
        Subcommands::RejectAll { name } => first_request::reject_all(&nic, &name),
        Subcommands::RequestOnceEach { server, opens } => {
            first_request::request_once_each(&nic, &server, opens)
        }
        Subcommands::UdSink { name } => ud_stream::sink(&nic, &name),
        Subcommands::UdSource { server, messages } => ud_stream::source(&nic, &server, messages),
        Subcommands::RdSink { name, rounds } => rd_stream::sink(&nic, &name, rounds),
        Subcommands::RdSource {
            server,
            rounds,
            messages,
        } => rd_stream::source(&nic, &server, rounds, messages),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vi-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
