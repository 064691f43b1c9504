//! Ranks of a parallel program (the C example Peers), each connected peer to peer with all others at the same time, on
//! the same host and on two hosts.

use std::process::Command;

use e2e::capture::{Capture, check_frames};
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Runs all ranks at the same time; each must connect to all others.
fn all_connect(parts: Vec<Command>, hosts: &[&str]) {
    let count = parts.len().to_string();
    let running: Vec<Running> = parts
        .into_iter()
        .enumerate()
        .map(|(rank, mut part)| {
            let rank = rank.to_string();
            part.args(["-r", &rank, "-n", &count, "-t", "50000"]);
            Running::start("Peers", part.args(hosts))
        })
        .collect();
    let ranks = running.len();
    let sum = ranks * (ranks - 1) / 2;
    for (rank, part) in running.into_iter().enumerate() {
        let output = part.succeed(TIMEOUT);
        let expected = format!("Peers: part {rank} of {ranks}: the sum is {sum}");
        assert!(
            output.contains(&expected),
            "{expected:?} is not in {output:?}"
        );
    }
}

/// Two ranks on each of two hosts; all frames are checked.
#[test]
fn two_hosts_with_two_programs_each() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("peers");
    let left = NicText::af_packet(End::Left).write(&scratch, "left.toml");
    let right = NicText::af_packet(End::Right).write(&scratch, "right.toml");
    let capture = Capture::start(&wire.right, "right");
    let part = |end: End| {
        let (namespace, config) = match end {
            End::Left => (&wire.left, &left),
            End::Right => (&wire.right, &right),
        };
        let mut part = namespace.program(installation.program("Peers"));
        part.env("VIADUCT_CONFIG", config);
        part
    };
    let ends = [End::Left, End::Right, End::Left, End::Right];
    let hosts = ends.map(End::host);
    all_connect(ends.map(part).into(), &hosts);
    check_frames(&capture.finish());
}

#[test]
fn six_programs_of_an_ordinary_user_on_shared_memory() {
    let installation = Installation::new();
    let runtime = Scratch::in_memory("runtime");
    let user = unprivileged_user();
    std::os::unix::fs::chown(runtime.path(), Some(user), Some(user)).expect("root may do that");
    let part = |_| {
        let mut part = unprivileged(installation.program("Peers"));
        part.env("XDG_RUNTIME_DIR", runtime.path());
        part
    };
    all_connect((0..6).map(part).collect(), &[]);
}
