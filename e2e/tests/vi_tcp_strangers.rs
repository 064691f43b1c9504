//! A second implementation of VI/TCP's wire format, in Python (`programs/vitcp`), talks with ours: as client, as server,
//! and as a server that lies about its answer. Other lies: `vi_tcp_lies.rs`; more than messages: `vi_tcp_talk.rs`.

use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::strangers::{has_not_grown, lies, made_of_answers, resident_kib, stranger, stranger_in};
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
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
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// The other implementation at the right end.
    fn theirs(&self, name: &str) -> Command {
        stranger_in(&self.wire.right, name)
    }
}

#[test]
fn it_agrees_with_itself() {
    let said = Running::start("selftest", &mut stranger("selftest.py")).succeed(TIMEOUT);
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
            let said = Running::start("stranger", &mut client).succeed(TIMEOUT);
            assert!(said.contains("echoed 2 messages of 4000 bytes"), "{said}");
        }
    }
    server.succeed(TIMEOUT);
}

#[test]
fn as_a_server_it_serves_ours() {
    let network = Network::new();
    let mut stranger = network.theirs("peer.py");
    stranger.args(["server", "--host", End::Right.host(), "--port", "8420"]);
    stranger.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    stranger.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut stranger = Running::start("stranger", &mut stranger);
    stranger.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours(End::Left);
    client.args(["ping", End::Right.host(), "there", "--own", "ours"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    // It reflects so many, and leaves.
    client.wait_for("lost server", TIMEOUT);
    let said = client.succeed(TIMEOUT);
    assert!(said.contains("count round_trips 200"), "{said}");
    stranger.succeed(TIMEOUT);
}

/// What ours makes of the lies of a server that are not refused by `VIP_REJECT`.
const ANSWERS: [(&str, &str); 13] = [
    ("answer-mtu-0", "InvalidMtu"),
    ("answer-mtu-larger", "InvalidMtu"),
    ("answer-reliable-other", "InvalidReliabilityLevel"),
    ("answer-no-match-open", "NoMatch"),
    // Nothing is wrong with these, as ours reads them.
    ("answer-attribute-bits", "connected"),
    ("answer-calling-other", "connected"),
    ("answer-called-other", "connected"),
    ("answer-level-3", "connected"),
    ("answer-immediate", "connected"),
    ("answer-transmit-error", "connected"),
    ("answer-vi-error-1", "connected"),
    ("answer-is-error-16", "connected"),
    // It is accepted, and lost when it is accepted again.
    ("answer-twice", "connected"),
];

/// Every field of an answer wrong in turn, and answers that are none: each is refused at once with its status, and who
/// is connected at the same host notices nothing.
#[test]
fn as_a_lying_server_it_is_found_out() {
    let network = Network::new();
    let server = network.server();
    let mut honest = network.ours(End::Left);
    honest.args(["ping", End::Left.host(), "here", "--own", "honest"]);
    let mut honest = Running::start("honest", &mut honest);
    honest.wait_for("connected", TIMEOUT);
    let mut explorer = Running::start("explorer", network.ours(End::Left).arg("explore"));
    explorer.wait_for("ready", TIMEOUT);
    let before = resident_kib(&explorer);
    let mut names = lies(&["--answers"]);
    names.retain(|name| !name.starts_with("answer-keyed"));
    let mut liar = network.theirs("liar.py");
    liar.args(["--host", End::Right.host(), "--patience", "20"]);
    liar.args(["--quiet", "2"]);
    let made = made_of_answers(&names, End::Right.host(), &mut liar, &mut explorer);
    assert!(made.len() > 20, "{made:?}");
    for (name, outcome) in &made {
        let other = ANSWERS.iter().find(|(lie, _)| lie == name);
        let wanted = other.map_or("Reject", |(_, outcome)| *outcome);
        assert_eq!(outcome, wanted, "{name}");
    }
    has_not_grown(&explorer, before);
    explorer.tell(&format!("connect {} here", End::Left.host()));
    let asked = explorer.wait_for("asked", TIMEOUT).text;
    assert!(asked.ends_with("connected"), "{asked}");
    explorer.succeed(TIMEOUT);
    honest.skip();
    honest.wait_for("alive", TIMEOUT);
    let said = honest.succeed(TIMEOUT);
    assert!(!said.lines().any(|l| l.starts_with("lost ")), "{said}");
    server.succeed(TIMEOUT);
}
