//! VI/TCP over a wire that takes its time, which no kernel makes: a program of its own hands on every frame some
//! milliseconds later (`programs/delayer.py`). Nothing but speed changes.

use std::process::Command;
use std::time::Duration;

use e2e::bulk::Bulk;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const MTU_BYTES: u32 = 1500;
/// Each way.
const DELAY: Duration = Duration::from_millis(5);
/// One of so many frames is dropped, each way.
const DROP_EACH: u32 = 50;
/// Messages there and back.
const ROUND_TRIPS: u64 = 200;
const BULK: Bulk = Bulk {
    rounds: 2,
    messages: 500,
};

/// What became of the frames of one direction.
#[derive(Clone, Copy, Debug)]
struct Fate {
    forwarded: u64,
    dropped: u64,
    /// There was no room for them.
    full: u64,
}

impl Fate {
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
        let wire = Wire::parted(MTU_BYTES, 1);
        wire.give_addresses();
        wire.make_plain();
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

    /// `vi-peer` at one end.
    fn peer(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(PEER);
        let config = NicText::vi_tcp(end).write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    /// Messages there and back, every byte of which is looked at; gives how long the quickest was under way.
    fn echo(&self) -> Duration {
        let mut server = Running::start("server", self.peer(End::Left).args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        let mut client = self.peer(End::Right);
        client.args(["ping", End::Left.host(), "here", "--own", "client"]);
        let mut client = Running::start("client", &mut client);
        let is_enough = |line: &str| {
            let told = line.strip_prefix("alive ").map(str::parse::<u64>);
            told.is_some_and(|told| told.is_ok_and(|told| told >= ROUND_TRIPS))
        };
        client.wait_until("many round trips", 2 * TIMEOUT, is_enough);
        let client = Report::read(&client.succeed(TIMEOUT));
        assert_eq!(client.get("events"), 0, "{client:?}");
        let trips = client.get("round_trips");
        let left = server.wait_for("left client", TIMEOUT).text;
        assert_eq!(left, format!("left client after {trips}"));
        let server = Report::read(&server.succeed(TIMEOUT));
        assert_eq!(server.get("events"), 1, "the good-bye: {server:?}");
        Duration::from_micros(client.get("shortest_us"))
    }

    fn bulk(&self) {
        let mut sink = self.peer(End::Left);
        let mut source = self.peer(End::Right);
        let host = End::Left.host();
        let [sink, source] = BULK.send("delayed", &mut sink, &mut source, host);
        assert_eq!(sink.get("events"), BULK.rounds, "good-byes: {sink:?}");
        assert_eq!(source.get("events"), 0, "{source:?}");
    }

    /// What became of the frames from left and from right.
    fn end(self) -> [Fate; 2] {
        let said = self.delayer.succeed(TIMEOUT);
        ["to-left: ", "to-right: "].map(|interface| Fate::read(&said, interface))
    }
}

fn only_later(delay: Duration, drop_each: u32) -> Duration {
    let network = Network::new(delay, drop_each);
    let shortest = network.echo();
    network.bulk();
    let fates = network.end();
    println!("\nnote: {delay:?} each way: the quickest round trip took {shortest:?}; {fates:?}");
    for fate in fates {
        assert!(fate.forwarded > ROUND_TRIPS && fate.full == 0, "{fate:?}");
        assert_eq!(fate.dropped > 0, drop_each > 0, "{fate:?}");
    }
    shortest
}

#[test]
fn nothing_but_time_is_lost_where_frames_take_long() {
    let shortest = only_later(DELAY, 0);
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
}

#[test]
fn nothing_but_time_is_lost_where_frames_take_long_or_are_lost() {
    let shortest = only_later(DELAY, DROP_EACH);
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
}

/// The time is the delayer's, and not that of a wire with a program in its middle.
#[test]
fn the_wire_itself_takes_no_time() {
    let shortest = only_later(Duration::ZERO, 0);
    assert!(shortest < 2 * DELAY, "{shortest:?}");
}
