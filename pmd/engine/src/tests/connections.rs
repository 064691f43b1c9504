//! Simulation of very many connections on a faulty wire; compares what both sides of each connection observe.
//!
//! Twelve VIs of four ports on two hosts act independently, as a seed decides: request as a client, listen, request
//! as a peer, accept, reject, decide too late, cancel a request, disconnect at the same time as the peer. The wire
//! loses 10 %, duplicates 10 % and delays 10 % of all frames, by up to R_A_TOV, which is twice the retry interval of a
//! request. Frames of earlier connections of a VI arrive during later ones.
//!
//! * Every call has an outcome within its timeout.
//! * A connected VI has exactly one peer VI, which is connected with it or gets an error; both requested
//!   each other. A closed connection does not reappear.
//! * After a disconnect the peer breaks within FCVI_ULP_TIMEOUT plus R_A_TOV or, if every disconnect IU was lost,
//!   when it sends.
//! * A message is delivered on the connection on which it was sent.
//! * At the end no state remains: see [`world`].
//!
//! | module | contents |
//! | --- | --- |
//! | [`world`] | ports, VIs and the clock; checks for leftover state |
//! | [`actor`] | the application of one VI |
//! | [`connected`] | its actions while connected |
//! | [`accounting`] | records of both sides of each connection |
//!
//! `CONNECTIONS=n` sets the number of connections and `FIRST_SEED=n` the seed of the first world; `VIADUCT_SEED=n`
//! runs one world and logs its events. `ci/connections` makes a million connections.

mod accounting;
mod actor;
mod connected;
mod world;

use std::collections::BTreeMap;

use world::World;

/// Connections of a run without `CONNECTIONS`.
const DEFAULT_CONNECTIONS: u64 = 50_000;
/// Connections of one world.
const PER_WORLD: u64 = 2_000;

/// Number of occurrences of each event.
pub(super) type Totals = BTreeMap<&'static str, u64>;

/// Events that every run of `DEFAULT_CONNECTIONS` or more must cause.
const REQUIRED_EVENTS: [&str; 22] = [
    "client-server connections",
    "peer-to-peer connections",
    "connections of UnreliableDelivery",
    "connections of ReliableDelivery",
    "connections of ReliableReception",
    "both sides disconnected at once",
    "only one side was connected",
    "broken connections",
    "messages",
    "client: Timeout",
    "client: NoMatch",
    "client: Rejected",
    "server: Timeout",
    "server: no request",
    "server: request cancelled",
    "server: attributes differ",
    "peer: Timeout",
    "peer: ReliabilityLevel",
    "requests cancelled",
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

/// Prints how to replay a failed world.
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

fn run_world(seed: u64, connections: u64, verbose: bool, total: &mut Totals) {
    let _replay = Replay(seed);
    let mut world = World::new(seed, verbose);
    world.run(connections);
    for (what, times) in world.totals() {
        *total.entry(what).or_default() += times;
    }
}

#[test]
fn both_sides_of_a_million_connections_agree_and_no_state_remains() {
    let mut total = Totals::new();
    if let Some(seed) = number("VIADUCT_SEED") {
        run_world(seed, PER_WORLD, true, &mut total);
        return;
    }
    let all = number("CONNECTIONS").unwrap_or(DEFAULT_CONNECTIONS);
    let first = number("FIRST_SEED").unwrap_or(1);
    let (mut made, mut seed) = (0, first);
    while made < all {
        let wanted = PER_WORLD.min(all - made);
        run_world(seed, wanted, false, &mut total);
        made += wanted;
        seed += 1;
    }
    for (what, times) in &total {
        println!("{times:10} {what}");
    }
    println!("{made} connections, seeds {first} to {}", seed - 1);
    if made >= DEFAULT_CONNECTIONS {
        for what in REQUIRED_EVENTS {
            assert!(total.contains_key(what), "never reached: {what}");
        }
    }
}
