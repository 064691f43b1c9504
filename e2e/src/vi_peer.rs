//! `vi-peer`, the test program that counts messages, losses and events: an echo server, its client, and a program that
//! requests connections by command.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installation::built;
use crate::process::{Line, Running, TIMEOUT, program};
use crate::report::Report;
use crate::wire::Namespace;

/// Returns its path.
pub fn path() -> PathBuf {
    built().join("vi-peer")
}

/// Returns its command on this host, with a configuration.
pub fn local(config: &Path) -> Command {
    let mut command = program(path());
    command.env("VIADUCT_CONFIG", config);
    command
}

/// Returns its command in a namespace, with a configuration.
pub fn within(namespace: &Namespace, config: &Path) -> Command {
    let mut command = namespace.program(path());
    command.env("VIADUCT_CONFIG", config);
    command
}

/// Starts an echo server with this discriminator and waits until it listens.
pub fn serve(mut command: Command, discriminator: &str) -> Running {
    let mut server = Running::start("server", command.args(["serve", discriminator]));
    server.wait_for("listening", TIMEOUT);
    server
}

/// Starts a client of an echo server and waits until it is connected.
pub fn ping(command: Command, host: &str, discriminator: &str, name: &str) -> Running {
    ping_with(command, host, discriminator, name, &[])
}

/// As [`ping`], with further options.
pub fn ping_with(
    mut command: Command,
    host: &str,
    discriminator: &str,
    name: &str,
    options: &[&str],
) -> Running {
    command.args(["ping", host, discriminator, "--client-name", name]);
    let mut client = Running::start(name, command.args(options));
    client.wait_for("connected", TIMEOUT);
    client
}

/// Waits until an echo server has ended the connection of a client that disconnected, and its asynchronous error has been
/// reported; returns the line about the end.
pub fn await_disconnect(server: &mut Running, client: &str) -> Line {
    let line = server.wait_for(&format!("disconnected {client}"), TIMEOUT);
    server.wait_for(&format!("lost {client}"), TIMEOUT);
    line
}

/// Starts a program that requests connections by command.
pub fn explore(mut command: Command) -> Running {
    let mut explorer = Running::start("explorer", command.arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    explorer
}

/// Waits for this number of progress reports of a client.
pub fn await_progress(client: &mut Running, reports: u32) {
    client.discard_output();
    for _ in 0..reports {
        client.wait_for("alive", TIMEOUT);
    }
}

/// Stops a client and checks that it had round trips and no events.
///
/// # Panics
/// If not.
pub fn stop_client(client: Running) -> Report {
    let report = Report::read(&client.succeed(TIMEOUT));
    assert!(report.get("round_trips") > 0, "{report:?}");
    assert_eq!(report.get("events"), 0, "{report:?}");
    report
}
