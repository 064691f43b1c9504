//! EchoServer and EchoClients, the C programs, as users run them.

use std::process::Command;

use crate::process::{Running, TIMEOUT};

/// Messages of each size from each client.
pub const ITERATIONS: usize = 10;
/// The sizes of a client's messages, in bytes.
const SIZES: [usize; 5] = [0, 1, 64, 4096, 65536];
/// Bytes of an FCoE frame around the data field, without the frame check sequence.
pub const FCOE_OVERHEAD_BYTES: usize = 14 + 14 + 24 + 8;

/// Runs the server and so many clients at once; every one of them checks every byte. The server stands still until
/// `all_there` has seen every client.
///
/// # Panics
/// If a byte is wrong, or a program does not do what it is to.
pub fn echo(
    server: &mut Command,
    clients: impl Fn() -> Command,
    client_count: usize,
    server_name: &str,
    all_there: impl FnOnce(),
) {
    let clients_to_serve = client_count.to_string();
    let mut server = Running::start("EchoServer", server.args(["-c", &clients_to_serve]));
    server.wait_for("EchoServer: listening", TIMEOUT);
    server.signal("STOP");
    let iterations = ITERATIONS.to_string();
    let running: Vec<Running> = (0..client_count)
        .map(|_| {
            let mut client = clients();
            client.args(["-t", "50000", "-i", &iterations, server_name]);
            Running::start("EchoClient", &mut client)
        })
        .collect();
    all_there();
    server.signal("CONT");
    for client in running {
        let said = client.succeed(TIMEOUT);
        let (messages, bytes) = (
            SIZES.len() * ITERATIONS,
            SIZES.iter().sum::<usize>() * ITERATIONS,
        );
        let expected = format!("EchoClient: {messages} messages, {bytes} bytes, 0 errors");
        assert!(said.contains(&expected), "{expected:?} is not in {said:?}");
        assert!(!said.contains("not complete"), "{said}");
    }
    let said = server.succeed(TIMEOUT);
    let left = said
        .lines()
        .filter(|line| line.contains(" left after "))
        .count();
    assert_eq!(left, client_count, "{said}");
    assert!(!said.contains("asynchronous error"), "{said}");
}

/// Frames of sends on a network with this MTU, both ways: each message crosses twice, in as many frames as its bytes
/// need.
pub fn frames_of_sends(mtu_bytes: u32, client_count: usize) -> usize {
    let user_bytes = mtu_bytes.min(2158) as usize + 14 - FCOE_OVERHEAD_BYTES - 16;
    let of = |bytes: &usize| bytes.div_ceil(user_bytes & !3).max(1);
    2 * client_count * ITERATIONS * SIZES.iter().map(of).sum::<usize>()
}
