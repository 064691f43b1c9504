//! The first connection request after opening a NIC, to a server that was already listening.

use std::process::Command;

use crate::process::{Running, TIMEOUT};

/// Runs a `vi-peer` that rejects all requests, and the clients one after the other. Each client opens its NIC
/// `opens` times and requests one connection each time.
///
/// # Panics
/// If a request is not rejected.
pub fn request_once_each(
    mut server: Command,
    clients: impl IntoIterator<Item = Command>,
    host: &str,
    opens: u32,
) {
    const NAME: &str = "first";
    let mut server = Running::start("server", server.args(["reject-all", NAME]));
    server.wait_for("listening", TIMEOUT);
    for mut client in clients {
        client.args(["request-once-each", host, NAME, "--opens"]);
        let output = Running::start("client", client.arg(opens.to_string())).succeed(TIMEOUT);
        assert!(output.contains(&format!("rejected {opens}\n")), "{output}");
    }
    server.kill();
}
