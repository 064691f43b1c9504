//! The second implementation of VI/TCP's wire format, in Python (`programs/vitcp`).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::process::{PATIENCE, Running, program, succeed};
use crate::wire::Namespace;

/// Lies of a server behind which ours asks again: it ends the connection without an answer.
const ASKED_AGAIN: [&str; 3] = ["answer-nothing", "answer-half", "answer-close-half"];

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

/// How many lies a liar has told, one a line.
pub fn told(said: &str) -> usize {
    said.lines().filter(|line| line.contains(": ")).count()
}

/// What the other end's program made of each lie of a server: what its call returned, in the liar's order.
///
/// `liar` makes the liar at `host`; `explorer` is a `vi-peer explore`, which asks it for connections.
///
/// # Panics
/// If a lie comes to something else than the liar expects, or either of them to nothing.
pub fn made_of_answers(
    names: &[String],
    host: &str,
    liar: impl Fn() -> Command,
    explorer: &mut Running,
) -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    let mut asking = false;
    for name in names {
        let mut liar = liar();
        liar.args(["serve", name, "--check"]);
        let mut liar = Running::start("liar", &mut liar);
        liar.wait_for("listening", PATIENCE);
        if !asking {
            explorer.tell(&format!("ask {host} there"));
        }
        liar.succeed(PATIENCE);
        asking = ASKED_AGAIN.contains(&name.as_str());
        if !asking {
            let asked = explorer.wait_for("asked", PATIENCE).text;
            let (_, outcome) = asked.rsplit_once(' ').expect("an outcome");
            made.insert(name.clone(), outcome.to_owned());
        }
    }
    made
}
