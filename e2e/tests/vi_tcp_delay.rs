//! VI/TCP over a wire with a delay of some milliseconds, made by `programs/delayer.py`: only the speed changes.

use std::process::Command;
use std::time::Duration;

use e2e::faults::{Pair, complete};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

const MTU_BYTES: u32 = 1500;
/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(5);
/// One of this number of frames is dropped in each direction.
const DROP_EACH: u32 = 50;
/// Minimum number of round trips.
const ROUND_TRIPS: u64 = 200;

/// Frame counts of one direction.
#[derive(Clone, Copy, Debug)]
struct FrameCounts {
    forwarded: u64,
    dropped: u64,
    /// Dropped by a full queue.
    full: u64,
}

impl FrameCounts {
    fn read(text: &str, interface: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix(interface));
        let words: Vec<&str> = line.expect("its direction").split(' ').collect();
        let number = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            let word = at.and_then(|at| words.get(at + 1)).expect("a number");
            word.parse().expect("a number")
        };
        Self {
            forwarded: number("forwarded"),
            dropped: number("dropped"),
            full: number("full"),
        }
    }
}

/// Two hosts and the delayer between them.
struct Network {
    wire: Wire,
    delayer: Running,
    files: Scratch,
}

impl Network {
    fn new(delay: Duration, drop_each: u32) -> Self {
        let wire = Wire::with_middle(MTU_BYTES, 1);
        wire.assign_addresses();
        wire.disable_offloads();
        let mut delayer = wire.middle().0.python("delayer.py");
        delayer.args(["to-left", "to-right"]);
        delayer.args(["--delay-ms", &delay.as_millis().to_string()]);
        delayer.args(["--drop-each", &drop_each.to_string()]);
        let mut delayer = Running::start("delayer", &mut delayer);
        delayer.wait_for("forwarding", TIMEOUT);
        Self {
            wire,
            delayer,
            files: Scratch::new("vi-tcp-delay"),
        }
    }

    /// Returns the command of `vi-peer` at one end.
    fn peer(&self, end: End) -> Command {
        let config = NicText::vi_tcp(end).write(&self.files, end.interface());
        vi_peer::within(self.wire.end(end), &config)
    }

    /// Runs an echo with checked messages; returns the shortest round trip time.
    fn echo(&self) -> Duration {
        let mut server = vi_peer::serve(self.peer(End::Left), "echo");
        let client = self.peer(End::Right);
        let mut client = vi_peer::ping(client, End::Left.host(), "echo", "client");
        let is_enough = |line: &str| {
            let count = line.strip_prefix("alive ").map(str::parse::<u64>);
            count.is_some_and(|count| count.is_ok_and(|count| count >= ROUND_TRIPS))
        };
        client.wait_until("many round trips", 2 * TIMEOUT, is_enough);
        let client = vi_peer::stop_client(client);
        let trips = client.get("round_trips");
        let line = vi_peer::await_disconnect(&mut server, "client").text;
        assert_eq!(line, format!("disconnected client after {trips}"));
        let server = Report::read(&server.succeed(TIMEOUT));
        // The client's disconnect.
        assert_eq!(server.get("events"), 1, "{server:?}");
        Duration::from_micros(client.get("shortest_us"))
    }

    fn bulk(&self) {
        let pair = Pair {
            sink: self.peer(End::Left),
            source: self.peer(End::Right),
            host: End::Left.host(),
        };
        let [sink, source] = complete("delayed", pair, 2, 500);
        assert_eq!(sink.get("events"), 2, "the disconnects: {sink:?}");
        assert_eq!(source.get("events"), 0, "{source:?}");
    }

    /// Stops the delayer; returns the counts of frames from left and from right.
    fn end(self) -> [FrameCounts; 2] {
        let output = self.delayer.succeed(TIMEOUT);
        ["to-left: ", "to-right: "].map(|interface| FrameCounts::read(&output, interface))
    }
}

/// Runs echo and bulk transfer with these settings; returns the shortest round trip time.
fn run(delay: Duration, drop_each: u32) -> Duration {
    let network = Network::new(delay, drop_each);
    let shortest = network.echo();
    network.bulk();
    let counts = network.end();
    println!("\nnote: {delay:?} in each direction: shortest round trip {shortest:?}; {counts:?}");
    for direction in counts {
        assert!(
            direction.forwarded > ROUND_TRIPS && direction.full == 0,
            "{direction:?}"
        );
        assert_eq!(direction.dropped > 0, drop_each > 0, "{direction:?}");
    }
    shortest
}

#[test]
fn messages_survive_delay() {
    let shortest = run(DELAY, 0);
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
}

#[test]
fn messages_survive_delay_and_loss() {
    let shortest = run(DELAY, DROP_EACH);
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
}

/// The control: without a configured delay, the delayer adds less.
#[test]
fn delayer_without_delay_is_fast() {
    let shortest = run(Duration::ZERO, 0);
    assert!(shortest < 2 * DELAY, "{shortest:?}");
}
