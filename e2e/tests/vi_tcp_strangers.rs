//! A second implementation of VI/TCP's wire format, in Python (`programs/vitcp`), talks with ours: as client, as server,
//! and as a liar.

use std::path::Path;
use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{PATIENCE, Running, program};
use e2e::scratch::Scratch;
use e2e::usage::Usage;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
/// What a server may have grown by, all lies told.
const GROWTH_KIB: u64 = 32 * 1024;

fn resident_kib(process: &Running) -> u64 {
    Usage::of(process.id()).expect("it runs").resident_kib
}

/// A program of the second implementation.
fn python(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/vitcp");
    let mut command = program("python3");
    command
        .arg(path.join(name))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

struct Network {
    wire: Wire,
    files: Scratch,
}

impl Network {
    fn new() -> Self {
        let wire = Wire::new(1500);
        wire.give_addresses();
        Self {
            wire,
            files: Scratch::new("strangers"),
        }
    }

    /// One of ours at this end.
    fn ours(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(PEER);
        let config = NicText::vi_tcp(end)
            .key("ulp_timeout_ms", 3000)
            .write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours(End::Left).args(["serve", "here"]));
        server.wait_for("listening", PATIENCE);
        server
    }

    /// The other implementation at the right end.
    fn theirs(&self, name: &str) -> Command {
        let outside = python(name);
        let mut inside = self.wire.right.enter(outside);
        inside.env("PYTHONDONTWRITEBYTECODE", "1");
        inside
    }
}

#[test]
fn it_agrees_with_itself() {
    let said = Running::start("selftest", &mut python("selftest.py")).succeed(PATIENCE);
    assert!(said.contains("OK"), "{said}");
}

#[test]
fn as_a_client_it_is_served_however_its_bytes_are_cut() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "7", "24", "1000"] {
        for segment in ["16", "1000", "60000"] {
            let mut client = network.theirs("peer.py");
            client.args(["client", "--host", End::Left.host(), "--called", "here"]);
            client.args(["--calling", "stranger", "--level", "rd", "--mtu", MTU]);
            client.args(["--split", split, "--segment", segment]);
            client.args(["echo:5:0", "echo:5:1", "echo:5:64", "echo:2:4000"]);
            let said = Running::start("stranger", &mut client).succeed(PATIENCE);
            assert!(said.contains("echoed 2 messages of 4000 bytes"), "{said}");
        }
    }
    server.succeed(PATIENCE);
}

#[test]
fn as_a_server_it_serves_ours() {
    let network = Network::new();
    let mut stranger = network.theirs("peer.py");
    stranger.args(["server", "--host", End::Right.host(), "--port", "8420"]);
    stranger.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    stranger.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut stranger = Running::start("stranger", &mut stranger);
    stranger.wait_for("listening 8420", PATIENCE);
    let mut client = network.ours(End::Left);
    client.args(["ping", End::Right.host(), "there", "--own", "ours"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", PATIENCE);
    // It reflects so many, and leaves.
    client.wait_for("lost server", PATIENCE);
    let said = client.succeed(PATIENCE);
    assert!(said.contains("count round_trips 200"), "{said}");
    stranger.succeed(PATIENCE);
}

/// Every field wrong in turn, requests cut short at every byte, garbage, silence, floods: each lie comes to what is
/// written beside it; who is connected meanwhile notices nothing, and the server does not grow.
#[test]
fn as_a_liar_it_harms_nobody_but_itself() {
    let network = Network::new();
    let server = network.server();
    let mut honest = network.ours(End::Right);
    honest.args(["ping", End::Left.host(), "here", "--own", "honest"]);
    let mut honest = Running::start("honest", &mut honest);
    honest.wait_for("connected", PATIENCE);
    let before = resident_kib(&server);
    let mut liar = network.theirs("liar.py");
    liar.args(["--host", End::Left.host(), "--called", "here"]);
    liar.args(["--calling", "liar", "--mtu", MTU, "--patience", "2"]);
    liar.args(["run", "all", "--check"]);
    let told = Running::start("liar", &mut liar).finish(6 * PATIENCE);
    assert!(told.status.success(), "{}", told.text);
    let lies = told.text.lines().filter(|line| line.contains(": ")).count();
    let after = resident_kib(&server);
    println!("\nnote: {lies} lies; the server had {before} KiB before, {after} KiB after");
    assert!(lies > 100, "{}", told.text);
    assert!(
        after < before + GROWTH_KIB,
        "{before} KiB, then {after} KiB"
    );
    honest.skip();
    honest.wait_for("alive", PATIENCE);
    let said = honest.succeed(PATIENCE);
    assert!(!said.lines().any(|l| l.starts_with("lost ")), "{said}");
    server.succeed(PATIENCE);
}
