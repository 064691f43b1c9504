//! Interoperability of `vi-peer` and the independent Python implementation of VI/TCP (`programs/vitcp`): client,
//! server, and malformed responses to connect requests. Other malformed messages: `vi_tcp_malformed.rs`; all
//! operations: `vi_tcp_operations.rs`.

use std::process::Command;

use e2e::interop::{
    assert_no_growth, connect_results, malformed_cases, python_peer, python_peer_in, resident_kib,
};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const VI_PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
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
            files: Scratch::new("vi-tcp-interop"),
        }
    }

    /// Returns the command of `vi-peer` at this end.
    fn ours(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(VI_PEER);
        let config = NicText::vi_tcp(end)
            .key("ulp_timeout_ms", 3000)
            .write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours(End::Left).args(["serve", "echo"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// Returns the command of a Python program at the right end.
    fn theirs(&self, name: &str) -> Command {
        python_peer_in(&self.wire.right, name)
    }
}

#[test]
fn python_selftest_succeeds() {
    let output = Running::start("selftest", &mut python_peer("selftest.py")).succeed(TIMEOUT);
    assert!(output.contains("OK"), "{output}");
}

#[test]
fn python_client_is_served_for_all_segmentations() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "7", "24", "1000"] {
        for segment in ["16", "1000", "60000"] {
            let mut client = network.theirs("peer.py");
            client.args(["client", "--host", End::Left.host(), "--called", "echo"]);
            client.args(["--calling", "python", "--level", "rd", "--mtu", MTU]);
            client.args(["--split", split, "--segment", segment]);
            client.args(["echo:5:0", "echo:5:1", "echo:5:64", "echo:2:4000"]);
            let output = Running::start("python peer", &mut client).succeed(TIMEOUT);
            assert!(
                output.contains("echoed 2 messages of 4000 bytes"),
                "{output}"
            );
        }
    }
    server.succeed(TIMEOUT);
}

#[test]
fn python_server_serves_vi_peer() {
    let network = Network::new();
    let mut peer = network.theirs("peer.py");
    peer.args(["server", "--host", End::Right.host(), "--port", "8420"]);
    peer.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    peer.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut peer = Running::start("python peer", &mut peer);
    peer.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours(End::Left);
    client.args([
        "ping",
        End::Right.host(),
        "there",
        "--client-name",
        "vi-peer",
    ]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    // The server closes the connection after 200 echoes.
    client.wait_for("lost server", TIMEOUT);
    let output = client.succeed(TIMEOUT);
    assert!(output.contains("count round_trips 200"), "{output}");
    peer.succeed(TIMEOUT);
}

/// Results of malformed answers that are not `VIP_REJECT`.
const ANSWERS: [(&str, &str); 13] = [
    ("answer-mtu-0", "InvalidMtu"),
    ("answer-mtu-larger", "InvalidMtu"),
    ("answer-reliable-other", "InvalidReliabilityLevel"),
    ("answer-no-match-open", "NoMatch"),
    // These are accepted.
    ("answer-attribute-bits", "connected"),
    ("answer-calling-other", "connected"),
    ("answer-called-other", "connected"),
    ("answer-level-3", "connected"),
    ("answer-immediate", "connected"),
    ("answer-transmit-error", "connected"),
    ("answer-vi-error-1", "connected"),
    ("answer-is-error-16", "connected"),
    // Accepted, and lost with the second accept.
    ("answer-twice", "connected"),
];

/// Answers with each field wrong in turn, and other data: each is rejected immediately with its status, and other
/// connections of the host are unaffected.
#[test]
fn malformed_answers_of_a_server_are_rejected() {
    let network = Network::new();
    let server = network.server();
    let mut honest = network.ours(End::Left);
    honest.args(["ping", End::Left.host(), "echo", "--client-name", "honest"]);
    let mut honest = Running::start("honest", &mut honest);
    honest.wait_for("connected", TIMEOUT);
    let mut explorer = Running::start("explorer", network.ours(End::Left).arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    let before = resident_kib(&explorer);
    let mut names = malformed_cases(&["--answers"]);
    names.retain(|name| !name.starts_with("answer-keyed"));
    let mut malformed = network.theirs("malformed.py");
    malformed.args(["--host", End::Right.host(), "--timeout", "20"]);
    malformed.args(["--silent-timeout", "2"]);
    let results = connect_results(&names, End::Right.host(), &mut malformed, &mut explorer);
    assert!(results.len() > 20, "{results:?}");
    for (name, result) in &results {
        let other = ANSWERS.iter().find(|(case, _)| case == name);
        let expected = other.map_or("Reject", |(_, result)| *result);
        assert_eq!(result, expected, "{name}");
    }
    assert_no_growth(&explorer, before);
    explorer.send_line(&format!("connect {} echo", End::Left.host()));
    let result = explorer.wait_for("result", TIMEOUT).text;
    assert!(result.ends_with("connected"), "{result}");
    explorer.succeed(TIMEOUT);
    honest.discard_output();
    honest.wait_for("alive", TIMEOUT);
    let output = honest.succeed(TIMEOUT);
    assert!(!output.lines().any(|l| l.starts_with("lost ")), "{output}");
    server.succeed(TIMEOUT);
}
