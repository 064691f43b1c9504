//! VI/TCP with a shared key: the Python implementation (`programs/vitcp`) as client and server with the key, without
//! it, and with malformed proofs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use e2e::interop::{
    assert_no_growth, assert_unaffected, case_count, connect_results, malformed_cases,
    python_peer_in, resident_kib,
};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const VI_PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
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
        wire.assign_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-keys"),
        }
    }

    /// Returns the command of `vi-peer` at the left end, with the key.
    fn ours(&self) -> Command {
        let keys = self.files.write("keys", &format!("\"*\" = \"{KEY}\"\n"));
        fs::set_permissions(&keys, Permissions::from_mode(0o600)).expect("a file of the test");
        let nic = NicText::vi_tcp(End::Left).key("ulp_timeout_ms", 3000);
        let nic = nic.key("key_file", format!("{keys:?}"));
        let mut command = self.wire.left.program(VI_PEER);
        command.env("VIADUCT_CONFIG", nic.write(&self.files, "left.toml"));
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours().args(["serve", "echo"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// Starts an honest client of that server on the same host.
    fn honest(&self) -> Running {
        let mut honest = self.ours();
        honest.args(["ping", End::Left.host(), "echo", "--client-name", "honest"]);
        let mut honest = Running::start("honest", &mut honest);
        honest.wait_for("connected", TIMEOUT);
        honest
    }

    /// Returns the command of the Python implementation at the right end, as a client of that server.
    fn client(&self) -> Command {
        let mut client = python_peer_in(&self.wire.right, "peer.py");
        client.args(["client", "--host", End::Left.host(), "--called", "echo"]);
        client.args(["--calling", "python", "--level", "rd", "--mtu", MTU]);
        client
    }
}

#[test]
fn python_client_with_the_key_is_served() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "1000"] {
        let mut client = network.client();
        client.args(["--key", KEY, "--split", split]);
        client.args(["echo:5:0", "echo:5:64", "echo:2:4000"]);
        let output = Running::start("python peer", &mut client).succeed(TIMEOUT);
        assert!(
            output.contains("echoed 2 messages of 4000 bytes"),
            "{output}"
        );
    }
    server.succeed(TIMEOUT);
}

#[test]
fn python_server_with_the_key_serves_vi_peer() {
    let network = Network::new();
    let mut peer = python_peer_in(&network.wire.right, "peer.py");
    peer.args(["server", "--host", End::Right.host(), "--port", "8420"]);
    peer.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    peer.args(["--key", KEY, "--posted", "1000", "--repost", "reflect:200"]);
    let mut peer = Running::start("python peer", &mut peer);
    peer.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours();
    client.args([
        "ping",
        End::Right.host(),
        "there",
        "--client-name",
        "vi-peer",
    ]);
    let mut client = Running::start("client", &mut client);
    // The server closes the connection after 200 echoes.
    client.wait_for("lost server", TIMEOUT);
    let output = client.succeed(TIMEOUT);
    assert!(output.contains("count round_trips 200"), "{output}");
    peer.succeed(TIMEOUT);
}

#[test]
fn python_peer_without_the_key_is_rejected_as_client_and_server() {
    let network = Network::new();
    let server = network.server();
    for (key, expected) in [
        (None, "failed: challenged"),
        (Some(OTHER_KEY), "failed: reject 20, not accept"),
    ] {
        let mut client = network.client();
        if let Some(key) = key {
            client.args(["--key", key]);
        }
        let ended = Running::start("python peer", &mut client).finish(TIMEOUT);
        assert!(ended.text.contains(expected), "{}", ended.text);
        assert!(!ended.status.success());
    }
    let output = server.succeed(TIMEOUT);
    assert!(!output.contains("connected"), "{output}");
    let mut explorer = Running::start("explorer", network.ours().arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    for key in [None, Some(OTHER_KEY)] {
        let mut peer = python_peer_in(&network.wire.right, "peer.py");
        peer.args(["server", "--host", End::Right.host(), "--port", "8420"]);
        peer.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
        if let Some(key) = key {
            peer.args(["--key", key]);
        }
        let mut peer = Running::start("python peer", &mut peer);
        peer.wait_for("listening 8420", TIMEOUT);
        explorer.send_line(&format!("request {} there", End::Right.host()));
        let result = explorer.wait_for("result", TIMEOUT).text;
        assert!(result.ends_with("Reject"), "{result}");
        peer.finish(TIMEOUT);
    }
    explorer.succeed(TIMEOUT);
}

/// Proofs that are wrong, of other data, replayed, truncated, early or late: no request reaches the listener, and other
/// connections are unaffected.
#[test]
fn malformed_proofs_of_a_client_are_rejected() {
    let network = Network::new();
    let server = network.server();
    let honest = network.honest();
    let before = resident_kib(&server);
    let mut names = malformed_cases(&[]);
    names.retain(|name| name.starts_with("keyed"));
    let mut malformed = python_peer_in(&network.wire.right, "malformed.py");
    malformed.args(["--host", End::Left.host(), "--called", "echo"]);
    // Longer than the server's timeout of silent clients.
    malformed.args(["--calling", "malformed", "--mtu", MTU, "--timeout", "20"]);
    malformed
        .args(["--key", KEY, "run"])
        .args(&names)
        .arg("--check");
    let output = Running::start("malformed", &mut malformed).succeed(TIMEOUT);
    println!("\nnote: {} malformed proofs", case_count(&output));
    assert!(
        case_count(&output) == names.len() && names.len() > 20,
        "{output}"
    );
    assert_no_growth(&server, before);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}

#[test]
fn malformed_proofs_of_a_server_are_rejected() {
    let network = Network::new();
    let server = network.server();
    let honest = network.honest();
    let mut explorer = Running::start("explorer", network.ours().arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    let mut names = malformed_cases(&["--answers"]);
    names.retain(|name| name.starts_with("answer-keyed"));
    let before = resident_kib(&explorer);
    let mut malformed = python_peer_in(&network.wire.right, "malformed.py");
    malformed.args(["--host", End::Right.host(), "--timeout", "20", "--key", KEY]);
    let results = connect_results(&names, End::Right.host(), &mut malformed, &mut explorer);
    assert_no_growth(&explorer, before);
    assert!(
        results.len() == names.len() && results.len() > 15,
        "{results:?}"
    );
    for (name, outcome) in &results {
        assert_eq!(outcome, "Reject", "{name}");
    }
    explorer.succeed(TIMEOUT);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}
