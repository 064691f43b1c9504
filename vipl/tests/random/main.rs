//! Random programs on both sides of connections, checked against an oracle of the guide's rules.
//!
//! A seed determines a program: several hundred valid and invalid calls on two NICs of one segment. The oracle has a
//! model of the rules. It checks the result of each call, and at each quiescent point all states, descriptors,
//! asynchronous errors and bytes of memory.
//!
//! | file | content |
//! | --- | --- |
//! | `program` | steps of a program |
//! | `generator` | generation of a program from a seed |
//! | `player` | execution of the steps |
//! | `arena` | memory of one endpoint, and its expected content |
//! | `oracle` | all possible states after the observed results |
//! | `model` | the rules |
//! | `shrink` | reduction of a failing program |
//! | `rng` | pseudo-random numbers |
//!
//! `VIADUCT_SEED=n` runs only the program of that seed, `STEPS=n` with this number of steps. Without a seed, programs
//! are run from `FIRST_SEED=n` on: `STEPS=n` steps in total, or for `SECONDS_TO_PLAY=n` seconds. `ci/random-programs`
//! runs many. `VIPL_TEST_TRANSPORT=vi-tcp` runs them over VI/TCP, which has the same rules with two exceptions: no
//! hosts are discovered, and an interrupted RDMA write of any length may be partially placed. The endpoints use memory that
//! the other one accesses directly; `VIPL_TEST_MEMORY=private` has all RDMA operations go in frames.

mod arena;
#[path = "../common/mod.rs"]
mod common;
mod generator;
mod model;
mod oracle;
mod player;
mod program;
mod rng;
mod shrink;

use std::time::{Duration, Instant};

use generator::Generator;
use oracle::Violation;
use player::{DIRECT, EventCounts, Player, RENDEZVOUS};
use program::Step;

/// Steps of one program.
const PROGRAM_STEPS: usize = 250;
/// Steps of a run, unless set in the environment.
const RUN_STEPS: usize = 10_000;

/// Returns whether endpoints access each other's memory without frames.
fn can_be_direct() -> bool {
    let is_elsewhere = common::is_over_tcp() || common::is_in_frames();
    !is_elsewhere && !arena::is_private()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={text}: must be a number")))
}

/// Runs a program with a new player. Returns the event counts, or the violation and the trace up to it.
fn play(program: &[Step]) -> Result<EventCounts, (Violation, Vec<String>)> {
    let mut player = Player::new();
    match player.play(program) {
        Ok(()) => Ok(player.event_counts().clone()),
        Err(violation) => Err((violation, player.trace().to_vec())),
    }
}

/// Runs the program of a seed; reduces and prints a failing one.
fn play_seed(seed: u64, steps: usize) -> EventCounts {
    let program = Generator::new(seed).program(steps);
    let (violation, trace) = match play(&program) {
        Ok(counts) => return counts,
        Err(failure) => failure,
    };
    eprintln!("seed {seed} fails: {}", violation.0);
    eprintln!("reducing the program ...");
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

/// Events that each run of at least [`RUN_STEPS`] must reach.
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
    "peers: timeout",
    "peers: unreachable host",
    "handler: descriptor",
    "handler: NULL",
    "handler: entry",
    "entry of a collected descriptor",
    "completion queue full",
    "resized to less than is queued",
    "VI set",
    "memory set",
];

#[test]
fn random_programs_conform_to_the_rules() {
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
    let (mut played, mut seed, mut reached) = (0, first, EventCounts::new());
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
        // VI/TCP discovers no hosts that are not configured.
        let found = if common::is_over_tcp() {
            "found: 0"
        } else {
            "found: 1"
        };
        for what in REACHED.into_iter().chain([found]) {
            assert!(reached.contains_key(what), "never reached: {what}");
        }
        for what in [DIRECT, RENDEZVOUS] {
            assert_eq!(reached.contains_key(what), can_be_direct(), "{what}");
        }
    }
}
