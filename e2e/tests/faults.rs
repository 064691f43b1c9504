//! Frames lost, doubled, overtaken and damaged on purpose, between two processes.

use std::process::Command;
use std::time::Duration;

use e2e::nics::{End, Faults, NicText};
use e2e::process::{PATIENCE, Running, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// One hundredth of the frames, for each fault.
const ONE_PERCENT: [u32; 4] = [10_000; 4];
/// Messages of an unreliable run.
const MESSAGES: u64 = 20_000;
/// Connections of a reliable run, and messages of each, at most.
const ROUNDS: usize = 25;
const ROUND_MESSAGES: u64 = 400;
/// E_D_TOV and FCVI_ULP_TIMEOUT of the runs that break, and what a machine may add that takes the cores away.
const BREAK_LIMIT: Duration = Duration::from_millis(200 + 400 + 20_000);
/// Sets the time-outs of a configuration.
type TimeOuts = fn(NicText) -> NicText;

/// Two processes and what lies between them.
enum Between {
    Memory { _segment: Scratch, files: Scratch },
    Wire { wire: Wire, files: Scratch },
}

impl Between {
    fn memory(faults: [u32; 4], time_outs: TimeOuts) -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("faults");
        for (seed, name) in [(11, "sink"), (12, "source")] {
            let text = time_outs(NicText::shm(segment.path()));
            let text = text.faults(Faults { seed, ppm: faults });
            text.write(&files, name);
        }
        Self::Memory {
            _segment: segment,
            files,
        }
    }

    fn wire(faults: [u32; 4], time_outs: TimeOuts, recovery: bool) -> Self {
        let files = Scratch::new("faults");
        for (seed, name, end) in [(21, "sink", End::Left), (22, "source", End::Right)] {
            let text = time_outs(NicText::af_packet(end)).key("recovery", recovery);
            let text = text.faults(Faults { seed, ppm: faults });
            text.write(&files, name);
        }
        Self::Wire {
            wire: Wire::new(2500),
            files,
        }
    }

    fn peer(&self, end: &str) -> Command {
        let (mut command, files) = match (self, end) {
            (Self::Memory { files, .. }, _) => (program(PEER), files),
            (Self::Wire { wire, files }, "sink") => (wire.left.program(PEER), files),
            (Self::Wire { wire, files }, _) => (wire.right.program(PEER), files),
        };
        command.env("VIADUCT_CONFIG", files.file(end));
        command
    }

    fn sinks_host(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "localhost",
            Self::Wire { .. } => End::Left.host(),
        }
    }

    /// Runs a sink and a source to their ends and gives what both have printed.
    fn run(&self, kind: &str, sink: &[&str], source: &[&str]) -> (String, String) {
        let mut command = self.peer("sink");
        command.args([&format!("{kind}-sink"), "faults"]).args(sink);
        let mut sink = Running::start("sink", &mut command);
        sink.wait_for("listening", PATIENCE);
        let mut command = self.peer("source");
        command.args([&format!("{kind}-source"), self.sinks_host(), "faults"]);
        let source = Running::start("source", command.args(source));
        let (source, sink) = (source.finish(2 * PATIENCE), sink.finish(2 * PATIENCE));
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
fn assert_nothing_leaked(name: &str, report: &Report) {
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
fn assert_faults_happened(sink: &Report, source: &Report) {
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

fn unreliable(between: &Between, what: &str) {
    let messages = MESSAGES.to_string();
    let (sink, source) = between.run("ud", &[], &["--messages", &messages]);
    let (sink, source) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source.get("sent"), MESSAGES);
    for count in ["doubled", "damaged"] {
        assert_eq!(sink.get(count), 0, "{count}: {sink:?}");
    }
    let delivered = sink.get("delivered");
    // A message is 2.7 frames on average, each with four chances of a fault, of which duplication harms nothing.
    assert!(
        (MESSAGES * 3 / 4..MESSAGES).contains(&delivered),
        "{delivered} of {MESSAGES} messages arrived: {sink:?}\n{source:?}"
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
        "\nnote: UD under faults, {what}: {delivered} of {MESSAGES} messages arrived, each once and whole, in {} ms",
        source.get("send_ms")
    );
}

#[test]
fn unreliable_delivery_under_faults_on_shared_memory() {
    unreliable(&Between::memory(ONE_PERCENT, NicText::quick), "shm");
}

#[test]
fn unreliable_delivery_under_faults_on_a_wire() {
    unreliable(&Between::wire(ONE_PERCENT, NicText::quick, true), "veth");
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

fn reliable(between: &Between, what: &str) {
    let (count, messages) = (ROUNDS.to_string(), ROUND_MESSAGES.to_string());
    let (sink_text, source_text) = between.run(
        "rd",
        &["--rounds", &count],
        &["--rounds", &count, "--messages", &messages],
    );
    let (sink, source) = (rounds(&sink_text), rounds(&source_text));
    let (sink_report, source_report) = (Report::read(&sink_text), Report::read(&source_text));
    let unbroken = source_report.get("unbroken");
    assert_eq!(sink.len(), ROUNDS, "{sink_text}");
    assert_eq!(
        source.len() as u64 + unbroken,
        ROUNDS as u64,
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

#[test]
fn reliable_delivery_under_faults_on_shared_memory() {
    reliable(&Between::memory(ONE_PERCENT, NicText::quick), "shm");
}

#[test]
fn reliable_delivery_under_faults_on_a_wire() {
    reliable(&Between::wire(ONE_PERCENT, NicText::quick, false), "veth");
}

/// What harms no message breaks no connection.
#[test]
fn reliable_delivery_survives_doubled_frames() {
    let between = Between::memory([0, 50_000, 0, 0], NicText::steady);
    let (sink, source) = between.run(
        "rd",
        &["--rounds", "3"],
        &["--rounds", "3", "--messages", "400"],
    );
    let (sink_report, source_report) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source_report.get("unbroken"), 3, "{source}");
    assert_whole_rounds(&sink, 3, 400);
    assert!(sink_report.get("drop_duplicate") > 0, "{sink}");
    assert_nothing_leaked("sink", &sink_report);
    assert_nothing_leaked("source", &source_report);
}

/// So many connections brought so many messages each, and ended once.
fn assert_whole_rounds(sink: &str, count: usize, messages: u64) {
    let rounds = rounds(sink);
    assert_eq!(rounds.len(), count, "{sink}");
    for end in rounds {
        assert_eq!((end.messages, end.losses), (messages, 1), "{sink}");
    }
}

/// What is lost, overtaken or damaged is sent again, and nothing of it shows.
#[test]
fn recovery_makes_good_what_a_wire_does() {
    let between = Between::wire(ONE_PERCENT, NicText::steady, true);
    let (sink_text, source_text) = between.run(
        "rd",
        &["--rounds", "5"],
        &["--rounds", "5", "--messages", "500"],
    );
    let (sink, source) = (Report::read(&sink_text), Report::read(&source_text));
    assert_eq!(source.get("unbroken"), 5, "{source_text}");
    assert_whole_rounds(&sink_text, 5, 500);
    assert!(source.get("frames_resent") > 0, "{source:?}");
    assert!(sink.get("ahead_placed") > 0, "{sink:?}");
    assert_faults_happened(&sink, &source);
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
}
