//! What the program refuses, and how.

use std::process::{Command, Output};

fn vibench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vibench"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn mistakes_are_told_and_fail() {
    for (arguments, said) in [
        (
            &["rate", "--config", "no-such-file.toml"][..],
            "no-such-file.toml",
        ),
        (&["rate", "--batch", "64", "--window", "32"], "batch"),
        (&["latency", "--op", "write", "--size", "0"], "0 bytes"),
        (&["latency", "--cores", "0,99999"], "99999"),
        (&["latency", "--connect", "there"], "--config"),
        (
            &["latency", "--cores", "0"],
            "--cores 0: both ends are here: name two cores, A,B",
        ),
        // Before anything is measured, which would take an hour here.
        (
            &["latency", "--seconds", "3600", "--json", "/nowhere/x.json"],
            "/nowhere/x.json",
        ),
        (
            &[
                "connect",
                "--connections",
                "1000000000",
                "--json",
                "/nowhere/x.json",
            ],
            "/nowhere/x.json",
        ),
        (
            &["port", "receive", "--json", "/nowhere/x.json"],
            "/nowhere/x.json",
        ),
    ] {
        let output = vibench(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}
