//! Very many connections made and ended on a bad wire, judged by what both ends see.
//!
//! Twelve VIs of four ports on two hosts do one thing after the other, each by itself, as seeds
//! decide: ask as a client, listen, ask as a peer, accept, reject, think too long, take a
//! request back, disconnect at once with the other end. Of all frames the wire loses 10 %,
//! repeats 10 % and delays 10 %, by up to R_A_TOV, which is twice the time after which a request
//! is repeated. What was sent of earlier connections of a VI arrives in later ones.
//!
//! * Every call has its outcome within its time-out.
//! * Who is connected is connected with exactly one VI, which is connected with it or is told,
//!   and both asked for each other. A connection that is over does not come back.
//! * Whose other end left breaks within FCVI_ULP_TIMEOUT and a frame's life; or, if every
//!   disconnect was lost, as soon as it talks.
//! * A message arrives in the connection in which it was sent.
//! * When all is over nothing is left: see [`world`].
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`world`] | ports, VIs and the clock; what must be left when all is over |
//! | [`actor`] | what the program of one VI does |
//! | [`connected`] | what it does while it is connected |
//! | [`books`] | both ends of each connection |
//!
//! `CONNECTIONS=n` makes so many, of worlds from `FIRST_SEED=n` on; `VIADUCT_SEED=n` plays one
//! world and tells what happens in it. `ci/connections` makes a million.

mod actor;
mod books;
mod connected;
mod world;

use std::collections::BTreeMap;

use world::World;

/// Connections of a run, unless the environment says otherwise.
const USUAL: u64 = 50_000;
/// Connections of one world.
const PER_WORLD: u64 = 2_000;

/// How often what happened.
pub(super) type Tally = BTreeMap<&'static str, u64>;

/// What every run of some thousand connections reaches, or it is not what it should be.
const REACHED: [&str; 22] = [
    "client-server connections",
    "peer-to-peer connections",
    "connections of UnreliableDelivery",
    "connections of ReliableDelivery",
    "connections of ReliableReception",
    "both ends left at once",
    "one end alone was connected",
    "broke",
    "messages",
    "client: Timeout",
    "client: NoMatch",
    "client: Rejected",
    "server: Timeout",
    "server: nobody came",
    "server: void",
    "server: attributes differ",
    "peer: Timeout",
    "peer: ReliabilityLevel",
    "requests taken back",
    "retries",
    "peer_crossed",
    "drop_stray_connect",
];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={text}: must be a number")))
}

/// Says how a world that failed is played again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay: VIADUCT_SEED={} cargo test --locked -p vi-engine connections -- --nocapture",
                self.0
            );
        }
    }
}

fn play(seed: u64, connections: u64, told: bool, total: &mut Tally) {
    let _replay = Replay(seed);
    let mut world = World::new(seed, told);
    world.play(connections);
    for (what, times) in world.tally() {
        *total.entry(what).or_default() += times;
    }
}

#[test]
fn both_ends_of_a_million_connections_agree_and_nothing_is_left() {
    let mut total = Tally::new();
    if let Some(seed) = number("VIADUCT_SEED") {
        play(seed, PER_WORLD, true, &mut total);
        return;
    }
    let all = number("CONNECTIONS").unwrap_or(USUAL);
    let first = number("FIRST_SEED").unwrap_or(1);
    let (mut made, mut seed) = (0, first);
    while made < all {
        let wanted = PER_WORLD.min(all - made);
        play(seed, wanted, false, &mut total);
        made += wanted;
        seed += 1;
    }
    for (what, times) in &total {
        println!("{times:10} {what}");
    }
    println!("{made} connections, seeds {first} to {}", seed - 1);
    if made >= USUAL {
        for what in REACHED {
            assert!(total.contains_key(what), "never reached: {what}");
        }
    }
}
