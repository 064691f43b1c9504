//! The second implementation of VI/TCP's wire format, in Python (`programs/vitcp`).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::process::{Running, TIMEOUT, program, succeed};
use crate::usage::Usage;
use crate::wire::Namespace;

pub use endings::{end_of_read, is_ending};

mod endings;
pub mod talk;

/// Lies of a server behind which ours asks again: it ends the connection without an answer.
const ASKED_AGAIN: [&str; 3] = ["answer-nothing", "answer-half", "answer-close-half"];

/// By how much a process may grow at most while it is lied to, also for a moment.
const GROWTH_KIB: u64 = 16 * 1024;

/// One of its programs.
pub fn stranger(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/vitcp");
    let mut command = program("python3");
    command
        .arg(path.join(name))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// One of its programs inside a namespace.
pub fn stranger_in(namespace: &Namespace, name: &str) -> Command {
    let mut inside = namespace.enter(stranger(name));
    inside.env("PYTHONDONTWRITEBYTECODE", "1");
    inside
}

/// The lies that it knows as a client, or as a server with `--answers`.
///
/// # Panics
/// If it cannot tell them.
pub fn lies(of: &[&str]) -> Vec<String> {
    let mut list = stranger("liar.py");
    let said = succeed(list.arg("list").args(of));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.lines().map(str::to_owned).collect()
}

/// What a liar said that each lie came to.
pub fn outcomes(said: &str) -> BTreeMap<String, String> {
    let lines = said.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
        .collect()
}

/// How many lies a liar has told, one a line.
pub fn told(said: &str) -> usize {
    said.lines().filter(|line| line.contains(": ")).count()
}

/// What the other end's program made of each lie of a server: what its call returned, in the liar's order.
///
/// `liar` is the liar at `host`; `explorer` is a `vi-peer explore`, which asks it for connections.
///
/// # Panics
/// If a lie comes to something else than the liar expects, or either of them to nothing.
pub fn made_of_answers(
    names: &[String],
    host: &str,
    liar: &mut Command,
    explorer: &mut Running,
) -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    let mut asking = false;
    let mut liar = Running::start("liar", liar.arg("serve").args(names).arg("--check"));
    for name in names {
        liar.wait_for("listening", TIMEOUT);
        if !asking {
            explorer.tell(&format!("ask {host} there"));
        }
        liar.wait_for(&format!("{name}: "), TIMEOUT);
        asking = ASKED_AGAIN.contains(&name.as_str());
        if !asking {
            let asked = explorer.wait_for("asked", TIMEOUT).text;
            let (_, outcome) = asked.rsplit_once(' ').expect("an outcome");
            made.insert(name.clone(), outcome.to_owned());
        }
    }
    liar.succeed(TIMEOUT);
    made
}

/// The lines `ended NAME ...` of a `vi-peer`, without what is said of its sends: by name, each as often as it was told.
pub fn endings_of(said: &str) -> Vec<(String, String)> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("ended "));
    lines
        .filter_map(|line| {
            let (name, ending) = line.split_once(' ')?;
            let (ending, _sends) = ending.split_once("; sends: ")?;
            Some((name.to_owned(), ending.to_owned()))
        })
        .collect()
}

/// Resident memory of a process; its peak begins there.
///
/// # Panics
/// If there is none any more.
pub fn resident_kib(process: &Running) -> u64 {
    Usage::forget_peak(process.id()).expect("it runs");
    Usage::of(process.id()).expect("it runs").resident_kib
}

/// It has not had much more memory than `before` at any time since then.
///
/// # Panics
/// If it had.
pub fn has_not_grown(process: &Running, before: u64) {
    let peak = Usage::peak_kib(process.id()).expect("it runs");
    println!("\nnote: {before} KiB before all lies, {peak} KiB at most");
    assert!(peak > 0 && before > 0, "no numbers");
    assert!(
        peak < before + GROWTH_KIB,
        "{before} KiB, then {peak} KiB at most"
    );
}

/// An honest client is still there, and lost nothing.
///
/// # Panics
/// If not.
pub fn is_untouched(mut honest: Running) {
    honest.skip();
    honest.wait_for("alive", TIMEOUT);
    let said = honest.succeed(TIMEOUT);
    assert!(!said.lines().any(|l| l.starts_with("lost ")), "{said}");
}
