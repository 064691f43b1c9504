//! VI/TCP between hosts that share a key: a second implementation (`programs/vitcp`) with the key as client and as server,
//! without it, and as a liar.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::strangers::{
    has_not_grown, is_untouched, lies, made_of_answers, resident_kib, stranger_in, told,
};
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
const KEY: &str = "000102030405060708090a0b0c0d0e0f";
const OTHER_KEY: &str = "100102030405060708090a0b0c0d0e0f";

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
            files: Scratch::new("vi-tcp-keys"),
        }
    }

    /// One of ours at the left end, with the key.
    fn ours(&self) -> Command {
        let keys = self.files.write("keys", &format!("\"*\" = \"{KEY}\"\n"));
        fs::set_permissions(&keys, Permissions::from_mode(0o600)).expect("it is ours");
        let nic = NicText::vi_tcp(End::Left).key("ulp_timeout_ms", 3000);
        let nic = nic.key("key_file", format!("{keys:?}"));
        let mut command = self.wire.left.program(PEER);
        command.env("VIADUCT_CONFIG", nic.write(&self.files, "left.toml"));
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours().args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// An honest client of that server, at the same host.
    fn honest(&self) -> Running {
        let mut honest = self.ours();
        honest.args(["ping", End::Left.host(), "here", "--own", "honest"]);
        let mut honest = Running::start("honest", &mut honest);
        honest.wait_for("connected", TIMEOUT);
        honest
    }

    /// The other implementation at the right end, as a client of our server.
    fn client(&self) -> Command {
        let mut client = stranger_in(&self.wire.right, "peer.py");
        client.args(["client", "--host", End::Left.host(), "--called", "here"]);
        client.args(["--calling", "stranger", "--level", "rd", "--mtu", MTU]);
        client
    }
}

#[test]
fn a_stranger_with_the_key_is_served() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "1000"] {
        let mut client = network.client();
        client.args(["--key", KEY, "--split", split]);
        client.args(["echo:5:0", "echo:5:64", "echo:2:4000"]);
        let said = Running::start("stranger", &mut client).succeed(TIMEOUT);
        assert!(said.contains("echoed 2 messages of 4000 bytes"), "{said}");
    }
    server.succeed(TIMEOUT);
}

#[test]
fn a_stranger_with_the_key_serves_ours() {
    let network = Network::new();
    let mut stranger = stranger_in(&network.wire.right, "peer.py");
    stranger.args(["server", "--host", End::Right.host(), "--port", "8420"]);
    stranger.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    stranger.args(["--key", KEY, "--posted", "1000", "--repost", "reflect:200"]);
    let mut stranger = Running::start("stranger", &mut stranger);
    stranger.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours();
    client.args(["ping", End::Right.host(), "there", "--own", "ours"]);
    let mut client = Running::start("client", &mut client);
    // It reflects so many, and leaves.
    client.wait_for("lost server", TIMEOUT);
    let said = client.succeed(TIMEOUT);
    assert!(said.contains("count round_trips 200"), "{said}");
    stranger.succeed(TIMEOUT);
}

#[test]
fn a_stranger_without_the_key_is_refused_at_either_end() {
    let network = Network::new();
    let server = network.server();
    for (key, says) in [
        (None, "failed: challenged"),
        (Some(OTHER_KEY), "failed: reject 20, not accept"),
    ] {
        let mut client = network.client();
        if let Some(key) = key {
            client.args(["--key", key]);
        }
        let ended = Running::start("stranger", &mut client).finish(TIMEOUT);
        assert!(ended.text.contains(says), "{}", ended.text);
        assert!(!ended.status.success());
    }
    let said = server.succeed(TIMEOUT);
    assert!(!said.contains("connected"), "{said}");
    let mut explorer = Running::start("explorer", network.ours().arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    for key in [None, Some(OTHER_KEY)] {
        let mut stranger = stranger_in(&network.wire.right, "peer.py");
        stranger.args(["server", "--host", End::Right.host(), "--port", "8420"]);
        stranger.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
        if let Some(key) = key {
            stranger.args(["--key", key]);
        }
        let mut stranger = Running::start("stranger", &mut stranger);
        stranger.wait_for("listening 8420", TIMEOUT);
        explorer.tell(&format!("ask {} there", End::Right.host()));
        let asked = explorer.wait_for("asked", TIMEOUT).text;
        assert!(asked.ends_with("Reject"), "{asked}");
        stranger.finish(TIMEOUT);
    }
    explorer.succeed(TIMEOUT);
}

/// Proofs that are none, of something else, of another connection, cut, early and late: nobody hears of one, and who is
/// connected notices nothing.
#[test]
fn a_liar_with_the_key_is_found_out() {
    let network = Network::new();
    let server = network.server();
    let honest = network.honest();
    let before = resident_kib(&server);
    let mut names = lies(&[]);
    names.retain(|name| name.starts_with("keyed"));
    let mut liar = stranger_in(&network.wire.right, "liar.py");
    liar.args(["--host", End::Left.host(), "--called", "here"]);
    // Longer than who is silent is waited for.
    liar.args(["--calling", "liar", "--mtu", MTU, "--patience", "20"]);
    liar.args(["--key", KEY, "run"]).args(&names).arg("--check");
    let said = Running::start("liar", &mut liar).succeed(TIMEOUT);
    println!("\nnote: {} lies about keys", told(&said));
    assert!(told(&said) == names.len() && names.len() > 20, "{said}");
    has_not_grown(&server, before);
    is_untouched(honest);
    server.succeed(TIMEOUT);
}

#[test]
fn a_lying_server_with_the_key_is_found_out() {
    let network = Network::new();
    let server = network.server();
    let honest = network.honest();
    let mut explorer = Running::start("explorer", network.ours().arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    let mut names = lies(&["--answers"]);
    names.retain(|name| name.starts_with("answer-keyed"));
    let before = resident_kib(&explorer);
    let mut liar = stranger_in(&network.wire.right, "liar.py");
    liar.args([
        "--host",
        End::Right.host(),
        "--patience",
        "20",
        "--key",
        KEY,
    ]);
    let made = made_of_answers(&names, End::Right.host(), &mut liar, &mut explorer);
    has_not_grown(&explorer, before);
    assert!(made.len() == names.len() && made.len() > 15, "{made:?}");
    for (name, outcome) in &made {
        assert_eq!(outcome, "Reject", "{name}");
    }
    explorer.succeed(TIMEOUT);
    is_untouched(honest);
    server.succeed(TIMEOUT);
}
