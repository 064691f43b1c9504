//! The first connection request after a NIC was opened, at a server that has waited since before.

use std::process::Command;

use crate::process::{Running, TIMEOUT};

/// Runs a `vi-peer` that rejects all requests, and the clients one after the other. Each client opens its NIC `openings`
/// times and requests one connection each time.
///
/// # Panics
/// If a request ends otherwise.
pub fn request_once_each(
    mut server: Command,
    clients: impl IntoIterator<Item = Command>,
    host: &str,
    openings: u32,
) {
    const NAME: &str = "first";
    let mut server = Running::start("server", server.args(["reject-all", NAME]));
    server.wait_for("listening", TIMEOUT);
    for mut client in clients {
        client.args(["request-once-each", host, NAME, "--openings"]);
        let said = Running::start("client", client.arg(openings.to_string())).succeed(TIMEOUT);
        assert!(said.contains(&format!("rejected {openings}\n")), "{said}");
    }
    server.kill();
}
