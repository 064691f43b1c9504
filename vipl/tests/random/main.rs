//! Random programs of both ends of connections, played against an oracle of the guide's rules.
//!
//! A seed decides a program: some hundred calls, legal and illegal ones, of two NICs on one segment. The oracle keeps
//! a model of the rules beside it and says after every call whether the provider may have answered so, and, whenever
//! the program waits for everything to come to rest, whether every state, descriptor, asynchronous error and byte of
//! memory is as it must be.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `program` | what a program is |
//! | `generator` | how a seed makes one |
//! | `player` | makes the calls of a program |
//! | `arena` | the memory of one end, and what must be in it |
//! | `oracle` | all states that there can be after what was seen |
//! | `model` | the rules |
//! | `shrink` | a failing program made short |
//!
//! `VIADUCT_SEED=n` plays the program of that seed alone, `STEPS=n` so many steps of it. Without a seed, programs are
//! played from `FIRST_SEED=n` on: `STEPS=n` steps in all, or for `SECONDS_TO_PLAY=n` seconds. `ci/random-programs` plays many.
//! `VIPL_TEST_TRANSPORT=vi-tcp` plays them over VI/TCP, where the rules are the same but for two: no hosts are found, and
//! an RDMA write that breaks off may have placed some of its bytes however short it is.

mod arena;
#[path = "../common/mod.rs"]
mod common;
mod generator;
mod model;
mod oracle;
mod player;
mod program;
mod seeded;
mod shrink;

use std::time::{Duration, Instant};

use generator::Generator;
use oracle::Violation;
use player::{Player, Tally};
use program::Step;

/// Steps of one program.
const PROGRAM_STEPS: usize = 250;
/// Steps of a run, unless the environment says otherwise.
const RUN_STEPS: usize = 10_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={text}: must be a number")))
}

/// Plays a program in a fresh world. The trace is what was done up to a violation.
fn play(program: &[Step]) -> Result<Tally, (Violation, Vec<String>)> {
    let mut player = Player::new();
    match player.play(program) {
        Ok(()) => Ok(player.tally().clone()),
        Err(violation) => Err((violation, player.trace().to_vec())),
    }
}

/// Plays the program of a seed; one that fails is made shorter and shown.
fn play_seed(seed: u64, steps: usize) -> Tally {
    let program = Generator::new(seed).program(steps);
    let (violation, trace) = match play(&program) {
        Ok(tally) => return tally,
        Err(failure) => failure,
    };
    eprintln!("seed {seed} fails: {}", violation.0);
    eprintln!("making it shorter ...");
    let (program, violation, trace) = if std::env::var("NOSHRINK").is_ok() {
        (program, violation, trace)
    } else {
        shrink::shorten(program, violation, trace)
    };
    for line in &trace {
        eprintln!("  {line}");
    }
    for (number, step) in program.iter().enumerate() {
        eprintln!("  {number}: {step:?}");
    }
    let transport = if common::is_over_tcp() {
        "VIPL_TEST_TRANSPORT=vi-tcp "
    } else {
        ""
    };
    panic!(
        "{}\nreplay: {transport}VIADUCT_SEED={seed} STEPS={steps} cargo test --locked -p vipl --test random",
        violation.0
    );
}

/// What every run of some thousand steps reaches, or it is not what it should be.
const REACHED: [&str; 28] = [
    "UD send: success",
    "RD send: success",
    "RR send: success",
    "UD write: success",
    "RD write: success",
    "RR write: success",
    "RD read: success",
    "RR read: success",
    "UD receive: success",
    "RD receive: success",
    "RR receive: success",
    "UD receive: success, immediate",
    "RD receive: errors 0x20",
    "RR send: errors 0x20",
    "asynchronous error 0",
    "asynchronous error 1",
    "peers: connected",
    "peers: conflict",
    "peers: time-out",
    "peers: no such host",
    "handler: descriptor",
    "handler: NULL",
    "handler: entry",
    "entry of a taken descriptor",
    "completion queue full",
    "resized to less than is queued",
    "VI set",
    "memory set",
];

#[test]
fn random_programs_of_both_ends_see_what_the_rules_allow() {
    let steps = number("STEPS").map(|steps| steps as usize);
    if let Some(seed) = number("VIADUCT_SEED") {
        play_seed(seed, steps.unwrap_or(PROGRAM_STEPS));
        return;
    }
    let limit = number("SECONDS_TO_PLAY").map(Duration::from_secs);
    let all = match (steps, limit) {
        (Some(steps), _) => steps,
        (None, Some(_)) => usize::MAX,
        (None, None) => RUN_STEPS,
    };
    let first = number("FIRST_SEED").unwrap_or(1);
    let start = Instant::now();
    let (mut played, mut seed, mut reached) = (0, first, Tally::new());
    while played < all && limit.is_none_or(|limit| start.elapsed() < limit) {
        for (what, times) in play_seed(seed, PROGRAM_STEPS) {
            *reached.entry(what).or_default() += times;
        }
        played += PROGRAM_STEPS;
        seed += 1;
    }
    for (what, times) in &reached {
        println!("{times:8} {what}");
    }
    println!(
        "{played} steps, seeds {first} to {}, {:?}",
        seed - 1,
        start.elapsed()
    );
    if played >= RUN_STEPS {
        // VI/TCP knows of no host that nobody named.
        let found = if common::is_over_tcp() {
            "found: 0"
        } else {
            "found: 1"
        };
        for what in REACHED.into_iter().chain([found]) {
            assert!(reached.contains_key(what), "never reached: {what}");
        }
    }
}
