//! Reliable connections over a wire on which the kernel loses frames.

use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{PATIENCE, Running};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Connections of a run, and messages of each.
const ROUNDS: u64 = 3;
const MESSAGES: u64 = 500;

/// Sends over the wire from right to left; every message must arrive once, in order and byte for byte, which the sink
/// checks itself. Gives the reports of sink and source.
fn run(wire: &Wire, what: &str) -> (Report, Report) {
    let files = Scratch::new("recovery");
    let configured = |mut command: Command, end: End, name: &str| {
        // A connect request that is lost is repeated after a fourth of twice that.
        let text = NicText::af_packet(end).key("r_a_tov_ms", 1000);
        command.env("VIADUCT_CONFIG", text.write(&files, name));
        command
    };
    let mut sink = configured(wire.left.program(PEER), End::Left, "sink");
    let (rounds, messages) = (ROUNDS.to_string(), MESSAGES.to_string());
    sink.args(["rd-sink", "recovery", "--rounds", &rounds]);
    let mut sink = Running::start("sink", &mut sink);
    sink.wait_for("listening", PATIENCE);
    let mut source = configured(wire.right.program(PEER), End::Right, "source");
    source.args(["rd-source", End::Left.host(), "recovery"]);
    source.args(["--rounds", &rounds, "--messages", &messages]);
    let source = Running::start("source", &mut source);
    let (source, sink) = (source.finish(2 * PATIENCE), sink.finish(2 * PATIENCE));
    let both = format!("{what}\n{}\n{}", source.text, sink.text);
    assert!(source.status.success() && sink.status.success(), "{both}");
    let whole = format!(" messages {MESSAGES} losses 1 ");
    let complete = sink.text.lines().filter(|line| line.contains(&whole));
    assert_eq!(complete.count() as u64, ROUNDS, "{both}");
    let reports = (Report::read(&sink.text), Report::read(&source.text));
    assert_eq!(reports.1.get("unbroken"), ROUNDS, "{both}");
    reports
}

#[test]
fn no_connection_breaks_however_many_frames_are_lost() {
    for (mtu_bytes, of_ten_thousand) in [(2500, 10), (2500, 100), (1500, 500), (2500, 2000)] {
        let what = format!("MTU {mtu_bytes}, {of_ten_thousand} of 10000 lost");
        let wire = Wire::lossy(mtu_bytes, of_ten_thousand);
        let (sink, source) = run(&wire, &what);
        let lost = wire.lost();
        println!(
            "\nnote: {what}: {lost:?} frames lost, {} sent again",
            source.get("frames_resent")
        );
        if of_ten_thousand >= 100 {
            assert!(lost.iter().all(|frames| *frames > 0), "{what}: {lost:?}");
            assert!(source.get("frames_resent") > 0, "{what}: {source:?}");
            assert!(sink.get("tx_gap_reports") > 0, "{what}: {sink:?}");
        }
        assert_eq!(source.get("give_ups"), 0, "{what}");
        assert_eq!(source.get("exchanges_open"), 0, "{what}");
    }
}
