//! Benchmarks of `vibench` between two hosts.

use e2e::installation::vibench;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;
use serde_json::Value;

/// The name of the listening host in the hosts file of the other host.
const LISTENER: &str = "bench-host.example";

struct TwoHosts {
    wire: Wire,
    scratch: Scratch,
    listener: Option<Running>,
}

impl TwoHosts {
    fn new() -> Self {
        Self::with(Wire::new(2500), NicText::af_packet)
    }

    fn over_vi_tcp() -> Self {
        let wire = Wire::new(1500);
        wire.assign_addresses();
        Self::with(wire, NicText::vi_tcp)
    }

    fn with(wire: Wire, nic: fn(End) -> NicText) -> Self {
        let scratch = Scratch::new("bench");
        let hosts = scratch.write("hosts", &format!("{} {LISTENER}\n", End::Left.host()));
        nic(End::Left).write(&scratch, "left.toml");
        nic(End::Right)
            .key("hosts_file", format!("{hosts:?}"))
            .write(&scratch, "right.toml");
        let mut command = wire.left.program(vibench());
        command.args(["rate", "--listen", "--cores", "0,1", "--config"]);
        let mut listener = Running::start("listener", command.arg(scratch.file("left.toml")));
        listener.wait_for("vibench: listening", TIMEOUT);
        Self {
            wire,
            scratch,
            listener: Some(listener),
        }
    }

    fn measure(&self, words: &str) -> Vec<Value> {
        let json = self.scratch.file("results.json");
        let mut command = self.wire.right.program(vibench());
        command
            .args(words.split(' '))
            .args(["--cores", "0,1", "--connect", LISTENER]);
        command.arg("--config").arg(self.scratch.file("right.toml"));
        let run = Running::start("vibench", command.arg("--json").arg(&json));
        let output = run.succeed(TIMEOUT);
        let text = std::fs::read_to_string(&json).unwrap_or_else(|e| panic!("{e}\n{output}"));
        let results: Value = serde_json::from_str(&text).expect("JSON");
        results.as_array().expect("an array").clone()
    }

    fn finish(mut self) {
        let listener = self.listener.take().expect("a listener");
        listener.signal("INT");
        let output = listener.succeed(TIMEOUT);
        assert!(!output.contains("panicked"), "{output}");
    }
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn latency_and_unreliable_rate_between_two_hosts() {
    let hosts = TwoHosts::new();
    for result in hosts.measure("latency --op send --size 8,4096 --seconds 1 --rounds 2") {
        assert_eq!(result["port"], "af_packet");
        assert!(result["ended_early"].is_null(), "{result}");
        let half = &result["half_round_trip_ns"];
        assert!(number(&half["p50"]) > 0.0 && number(&half["p50"]) <= number(&half["p99"]));
        println!(
            "\nnote: veth, {} bytes, half round trip: {:.1} us p50, {:.2} of the raw port",
            result["size_bytes"],
            number(&half["p50"]) / 1000.0,
            number(&result["ratio"])
        );
    }
    let result = &hosts.measure("latency --wait 100 --size 8 --seconds 1 --rounds 2")[0];
    assert!(result["ended_early"].is_null(), "{result}");
    assert!(
        number(&result["half_round_trip_ns"]["p50"]) > 0.0,
        "{result}"
    );
    assert_eq!(
        (&result["pause_us"], &result["control"]),
        (&100.into(), &Value::Null)
    );
    let results = hosts.measure("rate --op send --level ud --size 64 --seconds 2");
    let result = &results[0];
    assert!(result["ended_early"].is_null(), "{result}");
    let [delivered, frames] = [result, &result["control"]].map(|of| number(&of["messages_per_s"]));
    assert!(delivered > 0.0 && frames > 0.0, "{result}");
    println!(
        "\nnote: veth, 64-byte UD sends: {delivered:.0} delivered/s, {frames:.0} raw frames/s, ratio {:.2}",
        number(&result["ratio"])
    );
    hosts.finish();
}

/// On a port that loses frames, a reliable stream completes or reports why it broke; the listener then serves the next
/// one.
#[test]
fn reliable_stream_completes_or_reports_why_it_broke() {
    let hosts = TwoHosts::new();
    for words in [
        "bandwidth --op send --level rd --size 64K --seconds 1 --rounds 2 --window 256 --no-control",
        "rate --op send --level rd --size 64 --seconds 1 --rounds 2 --no-control",
    ] {
        for result in hosts.measure(words) {
            match result["ended_early"].as_str() {
                None => {
                    assert!(number(&result["delivered"]) > 0.0, "{result}");
                    assert_eq!(result["lost"], 0, "{result}");
                }
                // It may break before the first measured round.
                Some(reason) => assert!(
                    [
                        "flushed",
                        "transport error",
                        "connection lost",
                        "FLUSHED",
                        "TRANSPORT"
                    ]
                    .iter()
                    .any(|word| reason.contains(word)),
                    "{result}"
                ),
            }
            println!(
                "\nnote: veth, RD {} of {} bytes: {:.0} messages/s, ended early: {}",
                result["benchmark"],
                result["size_bytes"],
                number(&result["messages_per_s"]),
                result["ended_early"]
            );
        }
    }
    hosts.finish();
}

/// The control is a plain TCP connection between the same hosts.
#[test]
fn all_benchmarks_run_over_vi_tcp_between_two_hosts() {
    let hosts = TwoHosts::over_vi_tcp();
    for words in [
        "latency --op send --size 8,4096 --seconds 1 --rounds 2",
        "latency --op read --size 64 --seconds 1 --rounds 2",
        "rate --op send --size 64 --active 4 --idle 20 --seconds 1 --rounds 2",
        "bandwidth --op write --size 64K --seconds 1 --rounds 2",
    ] {
        for result in hosts.measure(words) {
            assert_eq!(result["port"], "vi-tcp");
            assert!(result["ended_early"].is_null(), "{result}");
            assert_eq!(result["lost"], 0);
            let name = result["control"]["name"].as_str().expect("a control");
            assert!(name.starts_with("raw TCP, messages of "), "{name}");
            println!(
                "\nnote: VI/TCP over veth, {} {} of {} bytes: {:.0} messages/s, {:.2} of raw TCP",
                result["benchmark"],
                result["op"],
                result["size_bytes"],
                number(&result["messages_per_s"]),
                number(&result["ratio"])
            );
        }
    }
    let connections = &hosts.measure("connect --connections 500 --peers 20")[0];
    assert_eq!(connections["port"], "vi-tcp");
    assert_eq!(
        (&connections["connections"], &connections["half_made"]),
        (&500.into(), &0.into())
    );
    hosts.finish();
}
