//! Many consecutive connections between two hosts: none fails, and memory does not grow.
//!
//! `CONNECTIONS` sets their number; `ci/connections` sets 100,000.

use std::time::Duration;

use e2e::installation::vibench;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;
use serde_json::Value;

/// Default number of connections.
const DEFAULT_CONNECTIONS: u64 = 3_000;
/// Maximum growth of the resident memory of a process after the first tenth of its connections. Pages of tables with
/// round-robin use become resident at their first use: those of the OX_IDs and of their quarantine (1.4 MiB), and the
/// slots of four receive queues (0.5 MiB, after some thousand connections). A leak of 12 bytes per connection exceeds
/// the limit in the long run.
const MAX_GROWTH_KIB: &str = "1024";
/// Minimum rate of connections per second, for the timeout: low enough for slow machines.
const MIN_RATE: u64 = 50;

fn connections() -> u64 {
    match std::env::var("CONNECTIONS") {
        Ok(text) => text.parse().expect("CONNECTIONS must be a number"),
        Err(_) => DEFAULT_CONNECTIONS,
    }
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn thousands_of_connections_do_not_grow_memory() {
    let wire = Wire::new(2500);
    let scratch = Scratch::new("connections");
    let config =
        |end: End, name| NicText::discovering(end.interface(), end.host()).write(&scratch, name);
    let (left, right) = (
        config(End::Left, "left.toml"),
        config(End::Right, "right.toml"),
    );
    let json = scratch.file("result.json");
    let count = connections();

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
    connect.args(["--connections", &count.to_string()]);
    connect.arg("--config").arg(right).arg("--json").arg(&json);
    let timeout = TIMEOUT + Duration::from_secs(count / MIN_RATE);
    let output = Running::start("vibench", &mut connect).succeed(timeout);
    println!("\n{output}");
    listener.signal("INT");
    let listener_output = listener.succeed(TIMEOUT);
    assert_eq!(listener_output, "vibench: listening; end with Ctrl-C\n");

    let text = std::fs::read_to_string(&json).expect("the result");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let result = &results[0];
    assert_eq!(number(&result["connections"]), count, "{text}");
    assert_eq!(number(&result["half_made"]), 0, "{text}");
    assert_eq!(result["port"], "af_packet");
    assert!(result["ended_early"].is_null(), "{text}");
    assert_eq!(result["steps"].as_array().map(Vec::len), Some(10));
    println!(
        "\nnote: veth, {count} connections: {:.0}/s, set up in {:.0} us (p50); memory grew by {} and {} KiB",
        result["connections_per_s"].as_f64().expect("a rate"),
        result["setup_ns"]["p50"].as_f64().expect("a time") / 1000.0,
        number(&result["growth_kib"]),
        number(&result["far_growth_kib"]),
    );
}
