//! Programs killed in the middle of whatever they do.

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::delays::Delays;
use e2e::nics::{End, NicText};
use e2e::process::{PATIENCE, Running, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Deaths of a client in one test.
const DEATHS: u64 = 6;
/// How soon a death must be known. On shared memory the port tells of it, on a wire four questions without an answer;
/// the rest is for a machine that takes the cores away.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// Where the programs meet.
struct Place {
    wire: Option<Wire>,
    segment: Scratch,
    files: Scratch,
}

impl Place {
    fn memory() -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("deaths");
        for end in ["left", "right"] {
            NicText::shm(segment.path()).steady().write(&files, end);
        }
        Self {
            wire: None,
            segment,
            files,
        }
    }

    fn wire() -> Self {
        let files = Scratch::new("deaths");
        for (name, end) in [("left", End::Left), ("right", End::Right)] {
            let text = NicText::af_packet(end)
                .steady()
                .key("probe_interval_ms", 500);
            text.write(&files, name);
        }
        Self {
            wire: Some(Wire::new(2500)),
            segment: Scratch::in_memory("segment"),
            files,
        }
    }

    fn peer(&self, end: End) -> Command {
        let mut command = match (&self.wire, end) {
            (None, _) => program(PEER),
            (Some(wire), End::Left) => wire.left.program(PEER),
            (Some(wire), End::Right) => wire.right.program(PEER),
        };
        command.env("VIADUCT_CONFIG", self.files.file(end.interface()));
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.peer(End::Left).args(["serve", "deaths"]));
        server.wait_for("listening", PATIENCE);
        server
    }

    fn client(&self, name: &str) -> Running {
        let host = match self.wire {
            None => "localhost",
            Some(_) => End::Left.host(),
        };
        let mut command = self.peer(End::Right);
        command.args(["ping", host, "deaths", "--own", name]);
        let mut client = Running::start(name, &mut command);
        client.wait_for("connected", PATIENCE);
        client
    }
}

/// Waits for the loss of a connection.
fn note_loss(delays: &mut Delays, survivor: &mut Running, name: &str, death: Instant) {
    let lost = survivor.wait_for(&format!("lost {name}"), PATIENCE);
    delays.note(name, death, &lost, KNOWN_WITHIN);
}

/// Waits for so many more words of a client that runs.
fn runs_on(client: &mut Running, words: u32) {
    for _ in 0..words {
        client.wait_for("alive", PATIENCE);
    }
}

fn assert_clean(report: &Report) {
    for counter in ["exchanges_open", "regions", "lost_descriptors"] {
        assert_eq!(report.get(counter), 0, "{counter}: {report:?}");
    }
}

/// Clients die one after the other; the server and its other client go on.
fn clients_die(place: &Place, what: &str) {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut server = place.server();
    let mut bystander = place.client("bystander");
    let mut delays = Delays::default();
    for number in 0..DEATHS {
        let name = format!("victim-{number}");
        let mut victim = place.client(&name);
        // Some moments, no two alike, in the middle of its traffic.
        runs_on(&mut victim, 1 + ((seed + number * 7) % 4) as u32);
        bystander.skip();
        let death = victim.kill();
        note_loss(&mut delays, &mut server, &name, death);
        server.wait_for(&format!("left {name}"), PATIENCE);
        runs_on(&mut bystander, 3);
    }
    let bystander = Report::read(&bystander.succeed(PATIENCE));
    assert!(bystander.get("round_trips") > 0);
    assert_eq!(
        bystander.get("events"),
        0,
        "nothing happened to it: {bystander:?}"
    );
    assert_clean(&bystander);
    let text = server.succeed(PATIENCE);
    let losses = text
        .lines()
        .filter(|line| line.starts_with("lost "))
        .count();
    // The bystander's good-bye is one more.
    assert_eq!(losses as u64, DEATHS + 1, "each once: {text}");
    assert_clean(&Report::read(&text));
    println!("\nnote: SIGKILL of clients, {what}: {DEATHS} deaths known after {delays}");
}

#[test]
fn clients_die_on_shared_memory() {
    clients_die(&Place::memory(), "shm");
}

#[test]
fn clients_die_on_a_wire() {
    clients_die(&Place::wire(), "veth");
}

/// The server dies; every client learns of it, and a new server serves them in the same place.
fn servers_die(place: &Place, what: &str) {
    let mut delays = Delays::default();
    for _ in 0..3 {
        let server = place.server();
        let mut clients: Vec<Running> = ["one", "two", "three"]
            .map(|name| place.client(name))
            .into();
        for client in &mut clients {
            runs_on(client, 2);
        }
        let death = server.kill();
        for client in &mut clients {
            note_loss(&mut delays, client, "server", death);
        }
        for client in clients {
            let report = Report::read(&client.succeed(PATIENCE));
            assert_eq!(report.get("losses"), 1, "{report:?}");
            assert_eq!(report.get("events"), 1, "{report:?}");
            assert_clean(&report);
        }
    }
    println!("\nnote: SIGKILL of servers, {what}: known after {delays}");
}

#[test]
fn servers_die_on_shared_memory() {
    servers_die(&Place::memory(), "shm");
}

#[test]
fn servers_die_on_a_wire() {
    servers_die(&Place::wire(), "veth");
}

/// Everybody dies at once; the next run finds a clean house.
fn all_die(place: &Place) {
    for _ in 0..4 {
        let server = place.server();
        let mut client = place.client("one");
        runs_on(&mut client, 1);
        server.kill();
        client.kill();
    }
    let mut server = place.server();
    let mut client = place.client("one");
    runs_on(&mut client, 2);
    let report = Report::read(&client.succeed(PATIENCE));
    assert_eq!(report.get("events"), 0, "{report:?}");
    server.wait_for("left one", PATIENCE);
    let report = Report::read(&server.succeed(PATIENCE));
    assert_eq!(report.get("events"), 1, "the client's good-bye: {report:?}");
    assert_clean(&report);
    let left: Vec<_> = std::fs::read_dir(place.segment.path())
        .expect("the segment's place")
        .collect();
    assert!(left.is_empty(), "files of the dead: {left:?}");
}

#[test]
fn all_die_on_shared_memory() {
    all_die(&Place::memory());
}

#[test]
fn all_die_on_a_wire() {
    all_die(&Place::wire());
}
