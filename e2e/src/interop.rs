//! The independent Python implementation of the VI/TCP wire format (`programs/vitcp`).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::process::{Running, TIMEOUT, program, succeed};
use crate::procfs::ProcessUsage;
use crate::wire::Namespace;

pub use endings::{assert_ending, expected_read_status};

mod endings;
pub mod network;

/// Malformed answers after which vi-peer repeats its request: the server closes the connection without an answer.
const RETRIED_ANSWERS: [&str; 3] = ["answer-nothing", "answer-half", "answer-close-half"];

/// Maximum growth of the peak resident memory of a process that receives malformed messages.
const MAX_GROWTH_KIB: u64 = 16 * 1024;

/// Returns the command of one of the Python programs.
pub fn python_peer(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/vitcp");
    let mut command = program("python3");
    command
        .arg(path.join(name))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Returns the command of one of the Python programs in a namespace.
pub fn python_peer_in(namespace: &Namespace, name: &str) -> Command {
    let mut inside = namespace.enter(python_peer(name));
    inside.env("PYTHONDONTWRITEBYTECODE", "1");
    inside
}

/// Lists the names of the cases of `malformed.py`: those of clients, or with `--answers` those of servers.
///
/// # Panics
/// If the program fails.
pub fn malformed_cases(options: &[&str]) -> Vec<String> {
    let mut list = python_peer("malformed.py");
    let output = succeed(list.arg("list").args(options));
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    output.lines().map(str::to_owned).collect()
}

/// Parses the lines `NAME: OUTCOME` of `malformed.py`.
pub fn outcomes(output: &str) -> BTreeMap<String, String> {
    let lines = output.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
        .collect()
}

/// Returns the number of cases in the output of `malformed.py`.
pub fn case_count(output: &str) -> usize {
    output.lines().filter(|line| line.contains(": ")).count()
}

/// Returns the result of the client's connect call for each malformed answer of a server.
///
/// `server` is `malformed.py` at `host`; `explorer` is a `vi-peer explore`, which requests the connections.
///
/// # Panics
/// If the server sees another outcome than its case expects, or after the timeout.
pub fn connect_results(
    names: &[String],
    host: &str,
    server: &mut Command,
    explorer: &mut Running,
) -> BTreeMap<String, String> {
    let mut results = BTreeMap::new();
    let mut is_pending = false;
    let mut server = Running::start(
        "malformed server",
        server.arg("serve").args(names).arg("--check"),
    );
    for name in names {
        server.wait_for("listening", TIMEOUT);
        if !is_pending {
            explorer.send_line(&format!("request {host} there"));
        }
        server.wait_for(&format!("{name}: "), TIMEOUT);
        is_pending = RETRIED_ANSWERS.contains(&name.as_str());
        if !is_pending {
            let result = explorer.wait_for("result", TIMEOUT).text;
            let (_, outcome) = result.rsplit_once(' ').expect("an outcome");
            results.insert(name.clone(), outcome.to_owned());
        }
    }
    server.succeed(TIMEOUT);
    results
}

/// Parses the lines `ended NAME ...` of a `vi-peer` into names and endings, without the part about sends.
pub fn endings_of(output: &str) -> Vec<(String, String)> {
    let lines = output
        .lines()
        .filter_map(|line| line.strip_prefix("ended "));
    lines
        .filter_map(|line| {
            let (name, ending) = line.split_once(' ')?;
            let (ending, _sends) = ending.split_once("; sends: ")?;
            Some((name.to_owned(), ending.to_owned()))
        })
        .collect()
}

/// Resets the peak of the resident memory of a process; returns its current resident memory.
///
/// # Panics
/// If the process has ended.
pub fn resident_kib(process: &Running) -> u64 {
    ProcessUsage::reset_peak(process.id()).expect("a running process");
    let usage = ProcessUsage::of(process.id()).expect("a running process");
    usage.resident_kib
}

/// Checks that the peak resident memory since [`resident_kib`] is below `before` + `MAX_GROWTH_KIB`.
///
/// # Panics
/// If not.
pub fn assert_no_growth(process: &Running, before: u64) {
    let peak = ProcessUsage::peak_kib(process.id()).expect("a running process");
    println!(
        "\nnote: resident memory: {before} KiB before all malformed messages, peak {peak} KiB"
    );
    assert!(peak > 0 && before > 0, "no numbers in procfs");
    assert!(
        peak < before + MAX_GROWTH_KIB,
        "{before} KiB before, peak {peak} KiB"
    );
}

/// Checks that the connection of an honest client (`vi-peer ping`) still works, and stops the client.
///
/// # Panics
/// If it was lost.
pub fn assert_unaffected(mut honest: Running) {
    honest.discard_output();
    honest.wait_for("alive", TIMEOUT);
    let output = honest.succeed(TIMEOUT);
    assert!(!output.lines().any(|l| l.starts_with("lost ")), "{output}");
}
