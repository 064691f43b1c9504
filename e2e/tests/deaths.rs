//! Programs killed in the middle of whatever they do.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::delays::Delays;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Deaths of a client in one test.
const DEATHS: u64 = 6;
/// How soon a death must be known. On shared memory the port tells of it, on a wire three questions without an answer;
/// the rest is for a machine that takes the cores away.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// What lies between the programs.
enum Between {
    Memory(Scratch),
    Wire(Wire),
}

/// Where the programs meet.
struct Place {
    between: Between,
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
            between: Between::Memory(segment),
            files,
        }
    }

    fn wire() -> Self {
        Self::wire_with(NicText::af_packet)
    }

    fn wire_with(nic: fn(End) -> NicText) -> Self {
        let files = Scratch::new("deaths");
        for (name, end) in [("left", End::Left), ("right", End::Right)] {
            let text = nic(end).steady().key("probe_interval_ms", 500);
            text.write(&files, name);
        }
        Self {
            between: Between::Wire(Wire::new(2500)),
            files,
        }
    }

    /// What is in the directory of the segment.
    fn left_in_memory(&self) -> Vec<OsString> {
        let Between::Memory(segment) = &self.between else {
            panic!("a wire has no segment");
        };
        let entries = std::fs::read_dir(segment.path()).expect("the segment's place");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect()
    }

    fn peer(&self, end: End) -> Command {
        let mut command = match &self.between {
            Between::Memory(_) => program(PEER),
            Between::Wire(wire) => wire.end(end).program(PEER),
        };
        command.env("VIADUCT_CONFIG", self.files.file(end.interface()));
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.peer(End::Left).args(["serve", "deaths"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    fn client(&self, name: &str) -> Running {
        let host = match self.between {
            Between::Memory(_) => "localhost",
            Between::Wire(_) => End::Left.host(),
        };
        let mut command = self.peer(End::Right);
        command.args(["ping", host, "deaths", "--own", name]);
        let mut client = Running::start(name, &mut command);
        client.wait_for("connected", TIMEOUT);
        client
    }
}

/// Waits for the loss of a connection.
fn note_loss(delays: &mut Delays, survivor: &mut Running, name: &str, death: Instant) {
    let lost = survivor.wait_for(&format!("lost {name}"), TIMEOUT);
    delays.note(name, death, &lost, KNOWN_WITHIN);
}

/// Waits for so many more words of a client that runs.
fn runs_on(client: &mut Running, words: u32) {
    for _ in 0..words {
        client.wait_for("alive", TIMEOUT);
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
        server.wait_for(&format!("left {name}"), TIMEOUT);
        runs_on(&mut bystander, 3);
    }
    let bystander = Report::read(&bystander.succeed(TIMEOUT));
    assert!(bystander.get("round_trips") > 0);
    assert_eq!(
        bystander.get("events"),
        0,
        "nothing happened to it: {bystander:?}"
    );
    assert_clean(&bystander);
    let text = server.succeed(TIMEOUT);
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
            let report = Report::read(&client.succeed(TIMEOUT));
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

/// Everybody dies at once, a few times.
fn all_die(place: &Place) {
    for _ in 0..4 {
        let server = place.server();
        let mut client = place.client("one");
        runs_on(&mut client, 1);
        server.kill();
        client.kill();
    }
}

/// A run after such deaths is like any other.
fn run_is_clean(place: &Place) {
    let mut server = place.server();
    let mut client = place.client("one");
    runs_on(&mut client, 2);
    let report = Report::read(&client.succeed(TIMEOUT));
    assert_eq!(report.get("events"), 0, "{report:?}");
    server.wait_for("left one", TIMEOUT);
    let report = Report::read(&server.succeed(TIMEOUT));
    assert_eq!(report.get("events"), 1, "the client's good-bye: {report:?}");
    assert_clean(&report);
}

#[test]
fn all_die_on_shared_memory() {
    let place = Place::memory();
    all_die(&place);
    assert!(!place.left_in_memory().is_empty(), "the dead left nothing");
    run_is_clean(&place);
    let left = place.left_in_memory();
    assert!(left.is_empty(), "files of the dead: {left:?}");
}

/// Each end has one N_Port_ID: if a dead program still had it, the next one could not start.
#[test]
fn all_die_on_a_wire() {
    let place = Place::wire_with(NicText::af_packet_of_one);
    all_die(&place);
    run_is_clean(&place);
}
