//! Runs of the C examples EchoServer, EchoClient and Peers.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::{Running, TIMEOUT, assert_contains};

/// Messages of each size that each client sends.
pub const ITERATIONS: usize = 10;
/// Message sizes in bytes.
const SIZES: [usize; 5] = [0, 1, 64, 4096, 65536];
/// Bytes of an FCoE frame around the data field, without the frame check sequence.
pub const FCOE_OVERHEAD_BYTES: usize = 14 + 14 + 24 + 8;

/// Starts a server and waits until it listens.
///
/// # Panics
/// If it does not.
pub fn listen(server: &mut Command) -> Running {
    let mut server = Running::start("EchoServer", server);
    server.wait_for("EchoServer: listening", TIMEOUT);
    server
}

/// Runs a server and `client_count` concurrent clients, which check each byte. The server is stopped (SIGSTOP) until
/// `wait_for_clients` returns.
///
/// # Panics
/// A byte is wrong, or a program fails or prints other text than expected.
pub fn echo(
    server: &mut Command,
    clients: impl Fn() -> Command,
    client_count: usize,
    server_name: &str,
    wait_for_clients: impl FnOnce(),
) {
    let clients_to_serve = client_count.to_string();
    let server = listen(server.args(["-c", &clients_to_serve]));
    server.signal("STOP");
    let iterations = ITERATIONS.to_string();
    let running: Vec<Running> = (0..client_count)
        .map(|_| {
            let mut client = clients();
            client.args(["-t", "50000", "-i", &iterations, server_name]);
            Running::start("EchoClient", &mut client)
        })
        .collect();
    wait_for_clients();
    server.signal("CONT");
    for client in running {
        let output = client.succeed(TIMEOUT);
        let (messages, bytes) = (
            SIZES.len() * ITERATIONS,
            SIZES.iter().sum::<usize>() * ITERATIONS,
        );
        let expected = format!("EchoClient: {messages} messages, {bytes} bytes, 0 errors");
        assert_contains(&output, &[&expected]);
        assert!(!output.contains("not complete"), "{output}");
    }
    let output = server.succeed(TIMEOUT);
    let disconnects = output
        .lines()
        .filter(|line| line.contains(" left after "))
        .count();
    assert_eq!(disconnects, client_count, "{output}");
    assert!(!output.contains("asynchronous error"), "{output}");
}

/// Runs all ranks of Peers at the same time, on these hosts; each must connect to all others.
///
/// # Panics
/// If one fails.
pub fn all_connect(parts: Vec<Command>, hosts: &[impl AsRef<OsStr>]) {
    let ranks = parts.len();
    let start = |(rank, mut part): (usize, Command)| {
        part.args(["-r", &rank.to_string(), "-n", &ranks.to_string()]);
        Running::start("Peers", part.args(["-t", "50000"]).args(hosts))
    };
    let running: Vec<Running> = parts.into_iter().enumerate().map(start).collect();
    let sum = ranks * (ranks - 1) / 2;
    for (rank, part) in running.into_iter().enumerate() {
        let expected = format!("Peers: part {rank} of {ranks}: the sum is {sum}");
        assert_contains(&part.succeed(TIMEOUT), &[&expected]);
    }
}

/// Returns the number of frames of sends in both directions at this MTU. Each message crosses the network twice.
pub fn frames_of_sends(mtu_bytes: u32, client_count: usize) -> usize {
    let user_bytes = mtu_bytes.min(2158) as usize + 14 - FCOE_OVERHEAD_BYTES - 16;
    let of = |bytes: &usize| bytes.div_ceil(user_bytes & !3).max(1);
    2 * client_count * ITERATIONS * SIZES.iter().map(of).sum::<usize>()
}
