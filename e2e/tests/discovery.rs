//! Hosts that know nothing of each other: ports get their N_Port_IDs and find each other by FIP VN2VN, log in, and learn
//! by FARP which hosts they are.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{PATIENCE, Running};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// From the start of a client until it has all its answers.
const FOUND_WITHIN: Duration = Duration::from_secs(3);
/// Known to the hosts files only.
const SERVER_NAME: &str = "echo-host.example";

fn hosts(scratch: &Scratch) -> [PathBuf; 2] {
    let names = scratch.write("hosts", &format!("{} {SERVER_NAME}\n", End::Left.host()));
    [End::Left, End::Right].map(|end| {
        NicText::discovering(end.interface(), end.host())
            .key("hosts_file", format!("{names:?}"))
            .write(scratch, &format!("{}.toml", end.interface()))
    })
}

#[test]
fn a_client_finds_its_server_by_name() {
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let scratch = Scratch::new("discovery");
    let [left, right] = hosts(&scratch);
    let mut server = wire.left.program(installation.program("EchoServer"));
    server.env("VIADUCT_CONFIG", &left).args(["-c", "1"]);
    let mut server = Running::start("EchoServer", &mut server);
    server.wait_for("EchoServer: listening", PATIENCE);

    let start = Instant::now();
    let mut client = wire.right.program(installation.program("EchoClient"));
    client
        .env("VIADUCT_CONFIG", &right)
        .args(["-t", "50000", SERVER_NAME]);
    let said = Running::start("EchoClient", &mut client).succeed(PATIENCE);
    let took = start.elapsed();
    assert!(said.contains(" 0 errors"), "{said}");
    assert!(took < FOUND_WITHIN, "{took:?}");
    println!("\nnote: found, and served, after {took:.2?}");
    server.succeed(PATIENCE);
}

/// Two parts of a parallel program on each of two hosts, each connected with each other one.
#[test]
fn peers_of_two_hosts_find_each_other() {
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let scratch = Scratch::new("discovery");
    let [left, right] = hosts(&scratch);
    let ends = [End::Left, End::Right, End::Left, End::Right];
    let running: Vec<Running> = ends
        .iter()
        .enumerate()
        .map(|(rank, end)| {
            let (namespace, config) = match end {
                End::Left => (&wire.left, &left),
                End::Right => (&wire.right, &right),
            };
            let mut part: Command = namespace.program(installation.program("Peers"));
            part.env("VIADUCT_CONFIG", config)
                .args(["-r", &rank.to_string(), "-n", "4", "-t", "50000"])
                .args(ends.map(End::host));
            Running::start("Peers", &mut part)
        })
        .collect();
    for (rank, part) in running.into_iter().enumerate() {
        let said = part.succeed(PATIENCE);
        let expected = format!("Peers: part {rank} of 4: the sum is 6");
        assert!(said.contains(&expected), "{expected:?} is not in {said:?}");
    }
}
