//! VI/TCP between two hosts: the conformance suite, lost frames, a wire that is cut.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::bulk::Bulk;
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::suite::{DAMAGED, LOSSY, Settings, UnknownHost, conforms, fragile};
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const MTU_BYTES: u32 = 1500;
/// Four intervals of silence end a connection; the kernel counts in seconds, and starts them late.
const LOST_WITHIN: Duration = Duration::from_secs(4 + 20);

/// The NICs that the suite wants: only the usual one is of VI/TCP, since TCP loses and damages nothing for good, and
/// what the others are for does not leave a process.
fn nics(usual: NicText, segments: &Path) -> NicText {
    let shm = |name: &str| {
        let directory = segments.join(name.to_lowercase());
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    usual
        .key("ulp_timeout_ms", 240_000)
        .and(shm("SMALL").with_little().key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(shm("LOSSY").quick().key("fault", LOSSY))
        .and(shm("DAMAGED").quick().key("fault", DAMAGED))
}

fn far_words(wire: &Wire, config: &Path) -> String {
    let mut words: Vec<String> = wire.right.words().into();
    let outside = program("env");
    words.extend([&outside].into_iter().flat_map(|command| {
        let name = std::iter::once(command.get_program());
        name.chain(command.get_args())
            .map(|word| word.to_str().expect("text").to_owned())
    }));
    words.push(format!("VIADUCT_CONFIG={}", config.display()));
    words.join(" ")
}

/// `usual` is the NIC of one end, which has its address on the wire.
fn conforms_between_two_hosts(phase: &str, wire: &Wire, usual: fn(End) -> NicText) {
    let installation = Installation::new();
    let segments = Scratch::in_memory("vi-tcp");
    let files = Scratch::new("vi-tcp");
    let [here, there] = [(End::Left, "here.toml"), (End::Right, "there.toml")]
        .map(|(end, name)| nics(usual(end), segments.path()).write(&files, name));
    let settings = Settings {
        config: &here,
        files: files.path(),
        segments: segments.path(),
        far: &far_words(wire, &there),
        recovers: false,
        unknown_host: UnknownHost::Silent,
    };
    let run = |path: &Path| wire.left.program(path);
    let tests = conforms(&installation, phase, &settings, run);
    println!("\nnote: {phase}: {tests} tests between two hosts over VI/TCP");
}

fn conforms_over_v4(phase: &str) {
    let wire = Wire::new(MTU_BYTES);
    wire.give_addresses();
    conforms_between_two_hosts(phase, &wire, NicText::vi_tcp);
}

#[test]
fn early_adopter() {
    conforms_over_v4("early_adopter");
}

#[test]
fn functional() {
    conforms_over_v4("functional");
}

#[test]
fn full() {
    conforms_over_v4("full");
}

/// Both ends have no other address: what is not of IPv6 would come nowhere.
#[test]
fn full_over_v6() {
    let wire = Wire::new(MTU_BYTES);
    wire.give_v6_addresses();
    let usual = |end: End| NicText::vi_tcp_at(end.host_v6());
    conforms_between_two_hosts("full", &wire, usual);
}

/// Two programs of one host, at its loopback address.
#[test]
fn v6_within_a_host() {
    const HOST: &str = "::1";
    let wire = Wire::new(MTU_BYTES);
    wire.left.ip("link set lo up");
    let files = Scratch::new("vi-tcp-v6");
    let config = NicText::vi_tcp_at(HOST).write(&files, "nic.toml");
    let peer = |name: &str, words: &[&str]| {
        let mut command = wire.left.program(PEER);
        command.env("VIADUCT_CONFIG", &config).args(words);
        Running::start(name, &mut command)
    };
    let mut server = peer("server", &["serve", "here"]);
    server.wait_for("listening", TIMEOUT);
    let mut client = peer("client", &["ping", HOST, "here", "--own", "client"]);
    for _ in 0..3 {
        client.wait_for("alive", TIMEOUT);
    }
    let report = Report::read(&client.succeed(TIMEOUT));
    assert!(report.get("round_trips") > 0, "{report:?}");
    assert_eq!(report.get("events"), 0, "{report:?}");
    server.wait_for("left client", TIMEOUT);
    server.succeed(TIMEOUT);
}

/// A command of one end's host, with that end's configuration.
fn configured(wire: &Wire, files: &Scratch, end: End) -> Command {
    let mut command = wire.end(end).program(PEER);
    let config = NicText::vi_tcp(end).write(files, end.interface());
    command.env("VIADUCT_CONFIG", config);
    command
}

/// The kernel loses a part of all frames: every message arrives once, in order and byte for byte, which the sink
/// checks itself.
#[test]
fn nothing_but_time_is_lost_where_frames_are() {
    let bulk = Bulk {
        rounds: 3,
        messages: 500,
    };
    for of_ten_thousand in [200, 500] {
        let wire = Wire::lossy(MTU_BYTES, of_ten_thousand);
        wire.give_addresses();
        // Else what is lost were a few long segments.
        wire.make_plain();
        let files = Scratch::new("vi-tcp-loss");
        let [mut sink, mut source] =
            [End::Left, End::Right].map(|end| configured(&wire, &files, end));
        let what = format!("{of_ten_thousand} of 10000 lost");
        bulk.send(&what, &mut sink, &mut source, End::Left.host());
        let lost = wire.lost();
        println!("\nnote: {of_ten_thousand} of 10000 frames: {lost:?} were lost");
        assert!(lost.iter().all(|frames| *frames > 0), "{lost:?}");
    }
}

/// Neither end hears anything any more: both lose the connection within the time that silence has.
#[test]
fn a_wire_that_is_cut_loses_the_connection_at_both_ends() {
    let wire = Wire::lanes(MTU_BYTES, 1);
    wire.give_addresses();
    let files = Scratch::new("vi-tcp-cut");
    let mut server = configured(&wire, &files, End::Left);
    let mut server = Running::start("server", server.args(["serve", "here"]));
    server.wait_for("listening", TIMEOUT);
    let mut client = configured(&wire, &files, End::Right);
    client.args(["ping", End::Left.host(), "here", "--own", "client"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    server.wait_for("connected client", TIMEOUT);
    let begun = Instant::now();
    wire.cut();
    let times = [
        client.wait_for("lost server", 2 * LOST_WITHIN).at - begun,
        server.wait_for("lost client", 2 * LOST_WITHIN).at - begun,
    ];
    // What was posted comes back, too.
    server.wait_for("left client", TIMEOUT);
    println!(
        "\nnote: cut: the client noticed after {:.2?}, the server after {:.2?}",
        times[0], times[1]
    );
    assert!(times.iter().all(|time| *time < LOST_WITHIN), "{times:?}");
    for end in [client, server] {
        let said = end.succeed(TIMEOUT);
        assert_eq!(Report::read(&said).get("events"), 1, "{said}");
        assert!(said.contains("event ConnLost"), "{said}");
    }
}

/// The other end is killed, also while its kernel still has something of ours: that is known at once.
#[test]
fn a_killed_peer_is_noticed_at_once() {
    let wire = Wire::new(MTU_BYTES);
    wire.give_addresses();
    let files = Scratch::new("vi-tcp-kill");
    let mut server = configured(&wire, &files, End::Left);
    let mut server = Running::start("server", server.args(["serve", "here"]));
    server.wait_for("listening", TIMEOUT);
    let mut client = configured(&wire, &files, End::Right);
    client.args(["ping", End::Left.host(), "here", "--own", "client"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    let death = server.kill();
    let noticed = client.wait_for("lost server", TIMEOUT).at - death;
    println!("\nnote: killed: noticed after {noticed:.2?}");
    assert!(noticed < Duration::from_secs(20), "{noticed:?}");
    client.succeed(TIMEOUT);
}
