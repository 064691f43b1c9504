//! Very many connections between two hosts, one after the other: none fails, and memory stays as it is.
//!
//! `CONNECTIONS=n` makes so many; `ci/connections` makes 100,000.

use std::time::Duration;

use e2e::installation::vibench;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;
use serde_json::Value;

/// Connections of a run, unless the environment says otherwise.
const USUAL: u64 = 3_000;
/// What the resident memory of a process may grow by after the first tenth of its connections. Tables whose places are
/// used in turn are taken from the system as they are used: those of the OX_IDs and of the dead ones among them (1.4 MiB
/// when each was used), and the slots of four receive queues (0.5 MiB, after some thousand connections). A leak of 12
/// bytes for each connection of the long run is more.
const MAX_GROWTH_KIB: &str = "1024";
/// Connections in a second, at least: far below what any machine makes, far above what a lost frame costs.
const SLOWEST: u64 = 50;

fn connections() -> u64 {
    match std::env::var("CONNECTIONS") {
        Ok(text) => text.parse().expect("CONNECTIONS must be a number"),
        Err(_) => USUAL,
    }
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn thousands_of_connections_between_two_hosts_leave_memory_as_it_is() {
    let wire = Wire::new(2500);
    let scratch = Scratch::new("connections");
    let config =
        |end: End, name| NicText::discovering(end.interface(), end.host()).write(&scratch, name);
    let (left, right) = (
        config(End::Left, "left.toml"),
        config(End::Right, "right.toml"),
    );
    let json = scratch.file("result.json");
    let wanted = connections();

    let mut listen = wire.left.program(vibench());
    listen.args(["connect", "--listen", "--cores", "0,1", "--config"]);
    let mut listener = Running::start("listener", listen.arg(left));
    listener.wait_for("vibench: listening", TIMEOUT);
    let mut connect = wire.right.program(vibench());
    connect.args(["connect", "--level", "rd,ud,rr", "--cores", "0,1"]);
    connect.args([
        "--connect",
        End::Left.host(),
        "--max-growth",
        MAX_GROWTH_KIB,
    ]);
    connect.args(["--connections", &wanted.to_string()]);
    connect.arg("--config").arg(right).arg("--json").arg(&json);
    let timeout = TIMEOUT + Duration::from_secs(wanted / SLOWEST);
    let said = Running::start("vibench", &mut connect).succeed(timeout);
    println!("\n{said}");
    listener.signal("INT");
    let heard = listener.succeed(TIMEOUT);
    assert_eq!(heard, "vibench: listening; end with Ctrl-C\n");

    let text = std::fs::read_to_string(&json).expect("the result");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let result = &results[0];
    assert_eq!(number(&result["connections"]), wanted, "{text}");
    assert_eq!(number(&result["half_made"]), 0, "{text}");
    assert_eq!(result["port"], "af_packet");
    assert!(result["ended_early"].is_null(), "{text}");
    assert_eq!(result["steps"].as_array().map(Vec::len), Some(10));
    println!(
        "\nnote: veth, {wanted} connections: {:.0}/s, set up in {:.0} us (p50); memory grew by {} and {} KiB",
        result["connections_per_s"].as_f64().expect("a rate"),
        result["setup_ns"]["p50"].as_f64().expect("a time") / 1000.0,
        number(&result["growth_kib"]),
        number(&result["far_growth_kib"]),
    );
}
