//! SIGKILL of programs with their own NIC at random times.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::latencies::Latencies;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::vi_peer::{self, await_disconnect, await_progress, stop_client};
use e2e::wire::Wire;

/// Number of killed clients in one test.
const KILLS: u64 = 6;
/// Upper limit for the report of a kill on a busy machine. On shared memory the port detects it, on a wire three
/// unanswered probes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// The port between the programs.
enum Medium {
    Memory(Scratch),
    Wire(Wire),
}

/// The network of the programs and their configurations.
struct Network {
    medium: Medium,
    files: Scratch,
}

impl Network {
    fn memory() -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("kills");
        for end in ["left", "right"] {
            NicText::shm(segment.path())
                .long_timeouts()
                .write(&files, end);
        }
        Self {
            medium: Medium::Memory(segment),
            files,
        }
    }

    fn wire() -> Self {
        Self::wire_with(NicText::af_packet)
    }

    fn wire_with(nic: fn(End) -> NicText) -> Self {
        let files = Scratch::new("kills");
        for (name, end) in [("left", End::Left), ("right", End::Right)] {
            let text = nic(end)
                .long_timeouts()
                .key("network.probe_interval_ms", 500);
            text.write(&files, name);
        }
        Self {
            medium: Medium::Wire(Wire::new(2500)),
            files,
        }
    }

    /// Lists the directory of the segment.
    fn segment_files(&self) -> Vec<OsString> {
        let Medium::Memory(segment) = &self.medium else {
            panic!("a wire has no segment");
        };
        let entries = std::fs::read_dir(segment.path()).expect("the directory of the segment");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect()
    }

    fn peer(&self, end: End) -> Command {
        let config = self.files.file(end.interface());
        match &self.medium {
            Medium::Memory(_) => vi_peer::local(&config),
            Medium::Wire(wire) => vi_peer::within(wire.end(end), &config),
        }
    }

    fn server(&self) -> Running {
        vi_peer::serve(self.peer(End::Left), "kills")
    }

    fn client(&self, name: &str) -> Running {
        let host = match self.medium {
            Medium::Memory(_) => "localhost",
            Medium::Wire(_) => End::Left.host(),
        };
        vi_peer::ping(self.peer(End::Right), host, "kills", name)
    }
}

/// Waits for the report of a connection loss and records its latency.
fn record_loss(reports: &mut Latencies, peer: &mut Running, name: &str, killed_at: Instant) {
    let lost = peer.wait_for(&format!("lost {name}"), TIMEOUT);
    reports.record(name, killed_at, &lost, REPORT_TIMEOUT);
}

fn assert_clean(report: &Report) {
    for counter in ["exchanges_open", "regions", "lost_descriptors"] {
        assert_eq!(report.get(counter), 0, "{counter}: {report:?}");
    }
}

/// Kills clients one after the other; the server and its other client are unaffected.
fn kill_clients(network: &Network, what: &str) {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut server = network.server();
    let mut bystander = network.client("bystander");
    let mut reports = Latencies::default();
    for number in 0..KILLS {
        let name = format!("victim-{number}");
        let mut victim = network.client(&name);
        // At different times during its traffic.
        await_progress(&mut victim, 1 + ((seed + number * 7) % 4) as u32);
        let killed_at = victim.kill();
        record_loss(&mut reports, &mut server, &name, killed_at);
        server.wait_for(&format!("disconnected {name}"), TIMEOUT);
        await_progress(&mut bystander, 3);
    }
    assert_clean(&stop_client(bystander));
    await_disconnect(&mut server, "bystander");
    let text = server.succeed(TIMEOUT);
    let losses = text.lines().filter(|line| line.starts_with("lost "));
    // Each is reported once; the bystander's disconnect is one more.
    assert_eq!(losses.count() as u64, KILLS + 1, "{text}");
    assert_clean(&Report::read(&text));
    println!("\nnote: SIGKILL of clients, {what}: {KILLS} kills reported after {reports}");
}

#[test]
fn killed_clients_are_reported_on_shared_memory() {
    kill_clients(&Network::memory(), "shm");
}

#[test]
fn killed_clients_are_reported_on_a_wire() {
    kill_clients(&Network::wire(), "veth");
}

/// Kills servers: the loss is reported to each client, and a new server takes their place.
fn kill_servers(network: &Network, what: &str) {
    let mut reports = Latencies::default();
    for _ in 0..3 {
        let server = network.server();
        let mut clients: Vec<Running> = ["one", "two", "three"]
            .map(|name| network.client(name))
            .into();
        for client in &mut clients {
            await_progress(client, 2);
        }
        let killed_at = server.kill();
        for client in &mut clients {
            record_loss(&mut reports, client, "server", killed_at);
        }
        for client in clients {
            let report = Report::read(&client.succeed(TIMEOUT));
            assert_eq!(report.get("losses"), 1, "{report:?}");
            assert_eq!(report.get("events"), 1, "{report:?}");
            assert_clean(&report);
        }
    }
    println!("\nnote: SIGKILL of servers, {what}: reported after {reports}");
}

#[test]
fn killed_servers_are_reported_on_shared_memory() {
    kill_servers(&Network::memory(), "shm");
}

#[test]
fn killed_servers_are_reported_on_a_wire() {
    kill_servers(&Network::wire(), "veth");
}

/// Kills a server and its client at the same time, repeatedly.
fn kill_all(network: &Network) {
    for _ in 0..4 {
        let server = network.server();
        let mut client = network.client("one");
        await_progress(&mut client, 1);
        server.kill();
        client.kill();
    }
}

/// Checks that a following run has no errors.
fn run_is_clean(network: &Network) {
    let mut server = network.server();
    let mut client = network.client("one");
    await_progress(&mut client, 2);
    stop_client(client);
    await_disconnect(&mut server, "one");
    let report = Report::read(&server.succeed(TIMEOUT));
    // The client's disconnect.
    assert_eq!(report.get("events"), 1, "{report:?}");
    assert_clean(&report);
}

#[test]
fn next_programs_remove_files_of_killed_ones_on_shared_memory() {
    let network = Network::memory();
    kill_all(&network);
    assert!(
        !network.segment_files().is_empty(),
        "the killed programs left no files"
    );
    run_is_clean(&network);
    let left = network.segment_files();
    assert!(left.is_empty(), "files of killed programs: {left:?}");
}

/// Each end has one N_Port_ID: if a killed program still occupied it, the next one could not start.
#[test]
fn n_port_ids_of_killed_programs_are_released_on_a_wire() {
    let network = Network::wire_with(NicText::af_packet_one_id);
    kill_all(&network);
    run_is_clean(&network);
}
