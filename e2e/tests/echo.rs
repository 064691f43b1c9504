//! The C examples EchoServer and EchoClient, with eight clients, and poll threads without work.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::capture::{Capture, Frame, check_frames};
use e2e::echo::{FCOE_OVERHEAD_BYTES, echo, frames_of_sends, listen};
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::preload;
use e2e::process::{Running, TIMEOUT, program, unprivileged};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const CLIENTS: usize = 8;
/// The name of the server's host in the hosts file of the clients.
const SERVER_NAME: &str = "echo-host.example";

struct Hosts {
    _scratch: Scratch,
    server: PathBuf,
    clients: PathBuf,
}

/// Writes the configurations of the two hosts; only that of the clients resolves the name of the server.
fn hosts() -> Hosts {
    let scratch = Scratch::new("hosts");
    let names = format!("# the server\n{} {SERVER_NAME}\n", End::Left.host());
    let names = scratch.write("hosts", &names);
    let server = NicText::af_packet(End::Left).key("network.probe_interval_ms", 100);
    let clients = NicText::af_packet(End::Right)
        .key("network.probe_interval_ms", 100)
        .key("hosts_file", format!("{names:?}"));
    Hosts {
        server: server.write(&scratch, "server.toml"),
        clients: clients.write(&scratch, "clients.toml"),
        _scratch: scratch,
    }
}

/// Runs the programs on two hosts; checks and returns all frames of the wire.
fn on_the_wire(mtu_bytes: u32) -> Vec<Frame> {
    let wire = Wire::new(mtu_bytes);
    let installation = Installation::new();
    let hosts = hosts();
    let mut capture = Capture::start(&wire.right, "right");
    let mut server = wire.left.program(installation.program("EchoServer"));
    server.env("VIADUCT_CONFIG", &hosts.server);
    let clients = || {
        let mut client = wire.right.program(installation.program("EchoClient"));
        client.env("VIADUCT_CONFIG", &hosts.clients);
        client
    };
    echo(&mut server, clients, CLIENTS, SERVER_NAME, || {
        capture.wait_for_senders(CLIENTS);
    });
    let frames = capture.finish();
    check_frames(&frames);
    let data = frames_of_sends(mtu_bytes, CLIENTS);
    let sends = frames.iter().filter(|frame| frame.is_of_send()).count();
    assert_eq!(sends, data, "frames of sends");
    let probes = frames.iter().filter(|frame| !frame.is_vi()).count();
    let stations: std::collections::BTreeSet<&str> =
        frames.iter().map(|frame| frame.s_id()).collect();
    assert_eq!(stations.len(), CLIENTS + 1, "{stations:?}");
    println!(
        "\nnote: veth, MTU {mtu_bytes}: {} frames checked, {data} of sends, {probes} of probes, no duplicate identity",
        frames.len()
    );
    frames
}

#[test]
fn eight_clients_on_a_wire_with_baby_jumbo_frames() {
    let frames = on_the_wire(2500);
    let longest = frames.iter().map(Frame::wire_bytes).max();
    assert_eq!(longest, Some(2112 + FCOE_OVERHEAD_BYTES));
}

#[test]
fn eight_clients_on_a_wire_with_standard_frames() {
    let frames = on_the_wire(1500);
    let longest = frames.iter().map(Frame::wire_bytes).max().unwrap_or(0);
    assert!((1500..=1514).contains(&longest), "{longest}");
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    // The directory may have been removed meanwhile.
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                files_in(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Waits until `count` programs are stations of a segment below a directory.
fn wait_for_stations(directory: &Path, count: usize) {
    let deadline = Instant::now() + TIMEOUT;
    let is_station = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("station-"))
    };
    loop {
        let files = files_in(directory);
        if files.iter().filter(is_station).count() >= count {
            return;
        }
        assert!(Instant::now() < deadline, "fewer than {count}: {files:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn eight_clients_of_an_ordinary_user_on_shared_memory() {
    let installation = Installation::new();
    let runtime = Scratch::of_unprivileged_user("runtime");
    // Without configuration and privileges.
    let ordinary = |name: &str| {
        let mut command = unprivileged(installation.program(name));
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command
    };
    for _ in 0..2 {
        echo(
            &mut ordinary("EchoServer"),
            || ordinary("EchoClient"),
            CLIENTS,
            "localhost",
            || wait_for_stations(runtime.path(), CLIENTS + 1),
        );
        let left = files_in(runtime.path());
        assert!(left.is_empty(), "programs left files: {left:?}");
    }
}

#[test]
fn client_of_another_user_cannot_connect() {
    let installation = Installation::new();
    let runtime = Scratch::of_unprivileged_user("runtime");
    let others = Scratch::in_memory("others");
    let mut server = unprivileged(installation.program("EchoServer"));
    let server = server.env("XDG_RUNTIME_DIR", runtime.path());
    let server = listen(server);
    let mut client = program(installation.program("EchoClient"));
    client.env("XDG_RUNTIME_DIR", others.path());
    client.args(["-t", "300", "localhost"]);
    let ended = Running::start("EchoClient", &mut client).finish(TIMEOUT);
    assert!(!ended.status.success(), "{}", ended.text);
    assert!(ended.text.contains("VIP_NO_MATCH"), "{}", ended.text);
    server.signal("TERM");
    server.succeed(TIMEOUT);
}

/// Two poll threads may be pinned to one core: each must yield it while it waits for the other.
#[test]
fn pinned_poll_thread_without_work_yields_its_core() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("pinned");
    let scratch = Scratch::new("pinned");
    let nic = NicText::shm(segment.path()).key("progress.pinned", "{}");
    let mut idle = program(installation.test_program("e2e/programs/yields", "idle"));
    idle.env("VIADUCT_CONFIG", nic.write(&scratch, "pinned.toml"));
    idle.env("LD_PRELOAD", preload::build(&scratch, "yields/yields.c"));
    let mut idle = Running::start("idle", &mut idle);
    idle.wait_for("open", TIMEOUT);
    idle.wait_for("yields: often", TIMEOUT);
    idle.succeed(TIMEOUT);
}
