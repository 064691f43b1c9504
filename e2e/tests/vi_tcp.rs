//! VI/TCP between two hosts: the conformance suite, lost frames, a cut wire, a killed peer.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::bulk::Bulk;
use e2e::conformance_suite::{DAMAGED, LOSSY, Settings, UnknownHost, fragile, run_phase};
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const VI_PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const MTU_BYTES: u32 = 1500;
/// Timeout of the loss of a connection: four probe intervals, plus a margin since the kernel's keepalive timers have a
/// resolution of seconds.
const CONNECTION_LOSS_TIMEOUT: Duration = Duration::from_secs(4 + 20);

/// Returns the NICs that the suite requires. Only the usual one is VI/TCP: TCP hides lost and damaged frames, and SMALL
/// and FRAGILE are used within one process.
fn nics(usual: NicText, segments: &Path) -> NicText {
    let shm = |name: &str| {
        let directory = segments.join(name.to_lowercase());
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    usual
        .key("ulp_timeout_ms", 240_000)
        .and(shm("SMALL").small_limits().key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(shm("LOSSY").short_timeouts().key("fault", LOSSY))
        .and(shm("DAMAGED").short_timeouts().key("fault", DAMAGED))
}

/// Returns the command prefix that starts a process on the right host.
fn remote_command(wire: &Wire, config: &Path) -> String {
    let mut words: Vec<String> = wire.right.command_prefix().into();
    let outside = program("env");
    words.extend([&outside].into_iter().flat_map(|command| {
        let name = std::iter::once(command.get_program());
        name.chain(command.get_args())
            .map(|word| word.to_str().expect("text").to_owned())
    }));
    words.push(format!("VIADUCT_CONFIG={}", config.display()));
    words.join(" ")
}

/// Runs a phase on two hosts; `usual` returns the usual NIC of an end.
fn run_phase_on_two_hosts(phase: &str, wire: &Wire, usual: fn(End) -> NicText) {
    let installation = Installation::new();
    let segments = Scratch::in_memory("vi-tcp");
    let files = Scratch::new("vi-tcp");
    let [left, right] = [(End::Left, "left.toml"), (End::Right, "right.toml")]
        .map(|(end, name)| nics(usual(end), segments.path()).write(&files, name));
    let settings = Settings {
        config: &left,
        files: files.path(),
        segments: segments.path(),
        remote_command: &remote_command(wire, &right),
        has_recovery: false,
        unknown_host: UnknownHost::Silent,
    };
    let run = |path: &Path| wire.left.program(path);
    let tests = run_phase(&installation, phase, &settings, run);
    println!("\nnote: {phase}: {tests} tests between two hosts over VI/TCP");
}

fn run_phase_over_v4(phase: &str) {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_addresses();
    run_phase_on_two_hosts(phase, &wire, NicText::vi_tcp);
}

#[test]
fn early_adopter() {
    run_phase_over_v4("early_adopter");
}

#[test]
fn functional() {
    run_phase_over_v4("functional");
}

#[test]
fn full() {
    run_phase_over_v4("full");
}

/// Both hosts have IPv6 addresses only.
#[test]
fn full_over_v6() {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_v6_addresses();
    let usual = |end: End| NicText::vi_tcp_at(end.host_v6());
    run_phase_on_two_hosts("full", &wire, usual);
}

/// Two programs on one host use its loopback address.
#[test]
fn v6_loopback_carries_messages() {
    const HOST: &str = "::1";
    let wire = Wire::new(MTU_BYTES);
    wire.left.ip("link set lo up");
    let files = Scratch::new("vi-tcp-v6");
    let config = NicText::vi_tcp_at(HOST).write(&files, "nic.toml");
    let peer = |name: &str, words: &[&str]| {
        let mut command = wire.left.program(VI_PEER);
        command.env("VIADUCT_CONFIG", &config).args(words);
        Running::start(name, &mut command)
    };
    let mut server = peer("server", &["serve", "echo"]);
    server.wait_for("listening", TIMEOUT);
    let mut client = peer("client", &["ping", HOST, "echo", "--client-name", "client"]);
    for _ in 0..3 {
        client.wait_for("alive", TIMEOUT);
    }
    let report = Report::read(&client.succeed(TIMEOUT));
    assert!(report.get("round_trips") > 0, "{report:?}");
    assert_eq!(report.get("events"), 0, "{report:?}");
    server.wait_for("disconnected client", TIMEOUT);
    server.succeed(TIMEOUT);
}

/// Returns the command of `vi-peer` on the host of an end.
fn vi_peer(wire: &Wire, files: &Scratch, end: End) -> Command {
    let mut command = wire.end(end).program(VI_PEER);
    let config = NicText::vi_tcp(end).write(files, end.interface());
    command.env("VIADUCT_CONFIG", config);
    command
}

/// The kernel drops some frames; the sink checks order and content of all messages.
#[test]
fn bulk_transfer_survives_lost_frames() {
    let bulk = Bulk {
        rounds: 3,
        messages: 500,
    };
    for of_ten_thousand in [200, 500] {
        let wire = Wire::lossy(MTU_BYTES, of_ten_thousand);
        wire.assign_addresses();
        // With offloads, only a few long segments would be dropped.
        wire.disable_offloads();
        let files = Scratch::new("vi-tcp-loss");
        let [mut sink, mut source] = [End::Left, End::Right].map(|end| vi_peer(&wire, &files, end));
        let what = format!("{of_ten_thousand} of 10000 lost");
        bulk.send(&what, &mut sink, &mut source, End::Left.host());
        let lost = wire.lost();
        println!("\nnote: {of_ten_thousand} of 10000 frames: {lost:?} were lost");
        assert!(lost.iter().all(|frames| *frames > 0), "{lost:?}");
    }
}

/// No frames arrive any more: both sides detect the loss within the timeout.
#[test]
fn cut_wire_ends_the_connection_on_both_sides() {
    let wire = Wire::lanes(MTU_BYTES, 1);
    wire.assign_addresses();
    let files = Scratch::new("vi-tcp-cut");
    let mut server = vi_peer(&wire, &files, End::Left);
    let mut server = Running::start("server", server.args(["serve", "echo"]));
    server.wait_for("listening", TIMEOUT);
    let mut client = vi_peer(&wire, &files, End::Right);
    client.args(["ping", End::Left.host(), "echo", "--client-name", "client"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    server.wait_for("connected client", TIMEOUT);
    let cut_at = Instant::now();
    wire.cut();
    let times = [
        client
            .wait_for("lost server", 2 * CONNECTION_LOSS_TIMEOUT)
            .at
            - cut_at,
        server
            .wait_for("lost client", 2 * CONNECTION_LOSS_TIMEOUT)
            .at
            - cut_at,
    ];
    // Posted descriptors are flushed as well.
    server.wait_for("disconnected client", TIMEOUT);
    println!(
        "\nnote: cut: the client noticed after {:.2?}, the server after {:.2?}",
        times[0], times[1]
    );
    assert!(
        times.iter().all(|time| *time < CONNECTION_LOSS_TIMEOUT),
        "{times:?}"
    );
    for end in [client, server] {
        let output = end.succeed(TIMEOUT);
        assert_eq!(Report::read(&output).get("events"), 1, "{output}");
        assert!(output.contains("event ConnLost"), "{output}");
    }
}

/// A kill is detected immediately, also if the kernel of the killed peer has unread data.
#[test]
fn killed_peer_is_detected_immediately() {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_addresses();
    let files = Scratch::new("vi-tcp-kill");
    let mut server = vi_peer(&wire, &files, End::Left);
    let mut server = Running::start("server", server.args(["serve", "echo"]));
    server.wait_for("listening", TIMEOUT);
    let mut client = vi_peer(&wire, &files, End::Right);
    client.args(["ping", End::Left.host(), "echo", "--client-name", "client"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    let killed_at = server.kill();
    let detected_after = client.wait_for("lost server", TIMEOUT).at - killed_at;
    println!("\nnote: killed: detected after {detected_after:.2?}");
    assert!(
        detected_after < Duration::from_secs(20),
        "{detected_after:?}"
    );
    client.succeed(TIMEOUT);
}
