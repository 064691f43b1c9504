//! Streams between two `vi-peer`s, also with injected faults (loss, duplication, reordering, corruption), and their
//! checks.

use std::process::Command;
use std::time::Duration;

use crate::process::{Running, TIMEOUT};
use crate::report::Report;

/// One percent of the frames, for each kind of fault, in parts per million.
pub const ONE_PERCENT: [u32; 4] = [10_000; 4];
/// E_D_TOV and FCVI_ULP_TIMEOUT of runs with breaks, plus a margin for busy machines.
const BREAK_LIMIT: Duration = Duration::from_millis(200 + 400 + 20_000);

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Messages of an unreliable run.
    pub messages: u64,
    /// Connections of a reliable run.
    pub rounds: usize,
    /// Maximum number of messages on each.
    pub round_messages: u64,
}

/// The commands of two `vi-peer`s without arguments, and the host of the sink.
#[derive(Debug)]
pub struct Pair {
    /// The receiver.
    pub sink: Command,
    /// The sender.
    pub source: Command,
    /// The sink's host.
    pub host: &'static str,
}

impl Pair {
    /// Runs sink and source until both end; returns their output.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn run(mut self, kind: &str, sink: &[&str], source: &[&str]) -> (String, String) {
        self.sink
            .args([&format!("{kind}-sink"), "faults"])
            .args(sink);
        let mut sink = Running::start("sink", &mut self.sink);
        sink.wait_for("listening", TIMEOUT);
        self.source
            .args([&format!("{kind}-source"), self.host, "faults"]);
        let source = Running::start("source", self.source.args(source));
        let (source, sink) = (source.finish(2 * TIMEOUT), sink.finish(2 * TIMEOUT));
        assert!(
            source.status.success() && sink.status.success(),
            "source: {}\n{}\nsink: {}\n{}",
            source.status,
            source.text,
            sink.status,
            sink.text
        );
        (sink.text, source.text)
    }
}

/// Checks that a program has released all resources of its NIC.
///
/// # Panics
/// If not.
pub fn assert_nothing_leaked(name: &str, report: &Report) {
    for counter in [
        "exchanges_open",
        "regions",
        "registered_bytes",
        "lost_descriptors",
    ] {
        assert_eq!(report.get(counter), 0, "{name}: {counter} in {report:?}");
    }
}

/// Checks that the source injected each kind of fault and that the sink dropped frames.
///
/// # Panics
/// If not.
pub fn assert_faults_happened(sink: &Report, source: &Report) {
    for counter in [
        "port_drop_fault_tx_loss",
        "port_fault_tx_duplicated",
        "port_fault_tx_reordered",
        "port_fault_tx_corrupted",
    ] {
        assert!(source.get(counter) > 0, "{counter} in {source:?}");
    }
    assert!(
        sink.get("drop_bad_crc") + sink.get("drop_malformed") > 0,
        "{sink:?}"
    );
}

/// Checks Unreliable Delivery under faults: each message arrives at most once, and undamaged.
///
/// # Panics
/// If not.
pub fn unreliable(pair: Pair, size: Size, what: &str) {
    let messages = size.messages;
    let count = messages.to_string();
    let (sink, source) = pair.run("ud", &[], &["--messages", &count]);
    let (sink, source) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source.get("sent"), messages);
    for count in ["duplicated", "damaged"] {
        assert_eq!(sink.get(count), 0, "{count}: {sink:?}");
    }
    let delivered = sink.get("delivered");
    // A message has 2.7 frames on average, each subject to four kinds of faults, of which duplication is harmless.
    assert!(
        (messages * 3 / 4..messages).contains(&delivered),
        "{delivered} of {messages} messages arrived: {sink:?}\n{source:?}"
    );
    assert_eq!(
        sink.get("losses"),
        1,
        "the source's disconnect is reported once"
    );
    assert_eq!(
        sink.get("events"),
        1,
        "no other event is reported: {sink:?}"
    );
    assert_eq!(source.get("events"), 0, "{source:?}");
    assert_eq!(sink.get("flushed"), 256, "each posted receive is flushed");
    assert_eq!(source.get("flushed"), 32, "each posted receive is flushed");
    assert_faults_happened(&sink, &source);
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
    println!(
        "\nnote: UD under faults, {what}: {delivered} of {messages} messages arrived, each once and undamaged, in {} ms",
        source.get("send_ms")
    );
}

/// The report of one side about the end of one connection.
#[derive(Debug)]
struct Round {
    number: u32,
    messages: u64,
    losses: u64,
    flushed: u64,
    silence: Duration,
}

/// Parses the lines `round N messages M losses L flushed F silence_ms S`.
fn rounds(text: &str) -> Vec<Round> {
    text.lines()
        .filter(|line| line.starts_with("round "))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            Round {
                number: number(1) as u32,
                messages: number(3),
                losses: number(5),
                flushed: number(7),
                silence: Duration::from_millis(number(9)),
            }
        })
        .collect()
}

/// Checks Reliable Delivery under faults without recovery: each connection breaks once, with all messages before the
/// break in order.
///
/// # Panics
/// If not.
pub fn reliable(pair: Pair, size: Size, what: &str) {
    let (count, messages) = (size.rounds.to_string(), size.round_messages.to_string());
    let (sink_text, source_text) = pair.run(
        "rd",
        &["--rounds", &count],
        &["--rounds", &count, "--messages", &messages],
    );
    let (sink, source) = (rounds(&sink_text), rounds(&source_text));
    let (sink_report, source_report) = (Report::read(&sink_text), Report::read(&source_text));
    let unbroken = source_report.get("unbroken");
    assert_eq!(sink.len(), size.rounds, "{sink_text}");
    assert_eq!(
        source.len() as u64 + unbroken,
        size.rounds as u64,
        "{source_text}"
    );
    assert!(unbroken <= 2, "too few connections break: {source_text}");
    for end in sink.iter().chain(&source) {
        assert_eq!(end.losses, 1, "a break is reported once: {end:?}");
        assert!(end.silence < BREAK_LIMIT, "in {BREAK_LIMIT:?}: {end:?}");
    }
    for end in &source {
        let other = &sink[end.number as usize];
        assert_eq!(other.number, end.number, "{sink:?}");
        assert!(other.messages <= end.messages, "{other:?} of {end:?}");
        // At least the unused receives.
        assert!(end.flushed >= 8, "{end:?}");
    }
    let delivered: u64 = sink.iter().map(|end| end.messages).sum();
    assert!(delivered > 0, "{sink_text}");
    let losses = |ends: &[Round]| ends.iter().map(|end| end.losses).sum::<u64>();
    let lost_events = |text: &str| text.lines().filter(|l| *l == "event ConnLost").count() as u64;
    // No event was reported after the check of its connection.
    assert_eq!(lost_events(&sink_text), losses(&sink));
    assert_eq!(lost_events(&source_text), losses(&source));
    assert_faults_happened(&sink_report, &source_report);
    assert_nothing_leaked("sink", &sink_report);
    assert_nothing_leaked("source", &source_report);
    let longest = sink.iter().chain(&source).map(|end| end.silence).max();
    println!(
        "\nnote: RD under faults, {what}: {} breaks, each reported once on both sides, after at most {} ms; {delivered} messages in order",
        source.len(),
        longest.unwrap_or_default().as_millis(),
    );
}

/// Checks Reliable Delivery under faults with recovery: lost, reordered and damaged frames are retransmitted, and no
/// connection breaks.
///
/// # Panics
/// If not.
pub fn recovered(pair: Pair, size: Size) {
    let [sink, source] = complete("recovered", pair, size.rounds, size.round_messages);
    assert!(source.get("frames_resent") > 0, "{source:?}");
    assert!(sink.get("ahead_placed") > 0, "{sink:?}");
    assert_faults_happened(&sink, &source);
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
}

/// Sends `messages` messages on each of `count` consecutive reliable connections; returns the reports of sink and
/// source.
///
/// # Panics
/// A message is lost, duplicated, reordered or damaged (the sink checks each byte), or a connection breaks. The text
/// begins with `what`.
pub fn complete(what: &str, pair: Pair, count: usize, messages: u64) -> [Report; 2] {
    let (number, most) = (count.to_string(), messages.to_string());
    let (sink, source) = pair.run(
        "rd",
        &["--rounds", &number],
        &["--rounds", &number, "--messages", &most],
    );
    let rounds = rounds(&sink);
    assert_eq!(rounds.len(), count, "{what}\n{sink}");
    for end in rounds {
        let found = (end.messages, end.losses);
        assert_eq!(found, (messages, 1), "{what}\n{sink}");
    }
    let reports = [&sink, &source].map(|text| Report::read(text));
    let unbroken = reports[1].get("unbroken");
    assert_eq!(unbroken, count as u64, "{what}\n{source}");
    reports
}
