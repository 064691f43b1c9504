//! Frames lost, doubled, overtaken and damaged on purpose between two `vi-peer`s: what is judged, whatever is between
//! them.

use std::process::Command;
use std::time::Duration;

use crate::process::{Running, TIMEOUT};
use crate::report::Report;

/// One hundredth of the frames, for each fault.
pub const ONE_PERCENT: [u32; 4] = [10_000; 4];
/// E_D_TOV and FCVI_ULP_TIMEOUT of the runs that break, and what a machine may add that takes the cores away.
const BREAK_LIMIT: Duration = Duration::from_millis(200 + 400 + 20_000);

/// How much a run does.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Messages of an unreliable run.
    pub messages: u64,
    /// Connections of a reliable run.
    pub rounds: usize,
    /// Messages of each, at most.
    pub round_messages: u64,
}

/// Two `vi-peer`s, still without words, and the host of the first one.
#[derive(Debug)]
pub struct Pair {
    /// It receives.
    pub sink: Command,
    /// It sends.
    pub source: Command,
    /// The sink's host.
    pub host: &'static str,
}

impl Pair {
    /// Runs a sink and a source to their ends and gives what both have printed.
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

/// Nothing that a program took from the NIC is still taken at its end.
///
/// # Panics
/// If something is.
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

/// The injector did what it was told, and the NIC noticed.
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

/// Unreliable Delivery under faults: each message arrives once or never, and whole.
///
/// # Panics
/// If not.
pub fn unreliable(pair: Pair, size: Size, what: &str) {
    let messages = size.messages;
    let words = messages.to_string();
    let (sink, source) = pair.run("ud", &[], &["--messages", &words]);
    let (sink, source) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source.get("sent"), messages);
    for count in ["doubled", "damaged"] {
        assert_eq!(sink.get(count), 0, "{count}: {sink:?}");
    }
    let delivered = sink.get("delivered");
    // A message is 2.7 frames on average, each with four chances of a fault, of which duplication harms nothing.
    assert!(
        (messages * 3 / 4..messages).contains(&delivered),
        "{delivered} of {messages} messages arrived: {sink:?}\n{source:?}"
    );
    assert_eq!(
        sink.get("losses"),
        1,
        "the source's good-bye is reported once"
    );
    assert_eq!(sink.get("events"), 1, "nothing else is: {sink:?}");
    assert_eq!(source.get("events"), 0, "{source:?}");
    assert_eq!(sink.get("flushed"), 256, "every posted receive comes back");
    assert_eq!(source.get("flushed"), 32, "every posted receive comes back");
    assert_faults_happened(&sink, &source);
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
    println!(
        "\nnote: UD under faults, {what}: {delivered} of {messages} messages arrived, each once and whole, in {} ms",
        source.get("send_ms")
    );
}

/// The end of one connection, as one side has told it.
#[derive(Debug)]
struct Round {
    number: u32,
    messages: u64,
    losses: u64,
    flushed: u64,
    silence: Duration,
}

/// The lines `round N messages M losses L flushed F silence_ms S`.
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

/// Reliable Delivery under faults, without recovery: connections break, each once, and nothing is out of order before.
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
    assert!(
        unbroken <= 2,
        "too few breaks to prove anything: {source_text}"
    );
    for end in sink.iter().chain(&source) {
        assert_eq!(end.losses, 1, "a break is reported once: {end:?}");
        assert!(end.silence < BREAK_LIMIT, "in {BREAK_LIMIT:?}: {end:?}");
    }
    for end in &source {
        let other = &sink[end.number as usize];
        assert_eq!(other.number, end.number, "{sink:?}");
        assert!(other.messages <= end.messages, "{other:?} of {end:?}");
        // The receives that nobody used, at least.
        assert!(end.flushed >= 8, "{end:?}");
    }
    let delivered: u64 = sink.iter().map(|end| end.messages).sum();
    assert!(delivered > 0, "{sink_text}");
    let losses = |ends: &[Round]| ends.iter().map(|end| end.losses).sum::<u64>();
    let lost_events = |text: &str| text.lines().filter(|l| *l == "event ConnLost").count() as u64;
    // None came late, after its connection had been judged.
    assert_eq!(lost_events(&sink_text), losses(&sink));
    assert_eq!(lost_events(&source_text), losses(&source));
    assert_faults_happened(&sink_report, &source_report);
    assert_nothing_leaked("sink", &sink_report);
    assert_nothing_leaked("source", &source_report);
    let longest = sink.iter().chain(&source).map(|end| end.silence).max();
    println!(
        "\nnote: RD under faults, {what}: {} breaks, each reported once at both ends, after {} ms at most; {delivered} messages in order",
        source.len(),
        longest.unwrap_or_default().as_millis(),
    );
}

/// Reliable Delivery under faults, with recovery: what is lost, overtaken or damaged is sent again, and nothing of it
/// shows.
///
/// # Panics
/// If something shows.
pub fn recovered(pair: Pair, size: Size) {
    let (count, messages) = (size.rounds.to_string(), size.round_messages.to_string());
    let (sink_text, source_text) = pair.run(
        "rd",
        &["--rounds", &count],
        &["--rounds", &count, "--messages", &messages],
    );
    let (sink, source) = (Report::read(&sink_text), Report::read(&source_text));
    assert_eq!(source.get("unbroken"), size.rounds as u64, "{source_text}");
    assert_whole_rounds(&sink_text, size.rounds, size.round_messages);
    assert!(source.get("frames_resent") > 0, "{source:?}");
    assert!(sink.get("ahead_placed") > 0, "{sink:?}");
    assert_faults_happened(&sink, &source);
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
}

/// So many connections brought so many messages each, and ended once.
///
/// # Panics
/// If not.
pub fn assert_whole_rounds(sink: &str, count: usize, messages: u64) {
    let rounds = rounds(sink);
    assert_eq!(rounds.len(), count, "{sink}");
    for end in rounds {
        assert_eq!((end.messages, end.losses), (messages, 1), "{sink}");
    }
}
