//! Invalid command lines: exit code and error text.

use std::process::{Command, Output};

fn vibench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vibench"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn invalid_arguments_fail_with_error_text() {
    for (arguments, expected) in [
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
            "--cores 0: client and server both run on this host: give two cores, A,B",
        ),
        // Fails before the measurement, which would take an hour.
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
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}
