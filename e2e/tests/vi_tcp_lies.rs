//! A second implementation of VI/TCP's wire format (`programs/vitcp`) lies to ours: to a server, and to a client.
//!
//! Each lie comes to what is written beside it, at each reliability level, for both ends: the liar tells what it saw, and
//! ours what its VI did. Who is connected meanwhile notices nothing, and ours does not grow.

use std::process::Command;
use std::time::Duration;

use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::strangers::{
    end_of_read, endings_of, has_not_grown, is_ending, is_untouched, lies, outcomes, resident_kib,
    stranger_in,
};
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
/// The time-out that some lies run into.
const SHORT: Duration = Duration::from_millis(1000);

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
            files: Scratch::new("vi-tcp-lies"),
        }
    }

    /// One of ours at this end.
    fn ours(&self, end: End, ulp_timeout: Duration) -> Command {
        let mut command = self.wire.end(end).program(PEER);
        let config = NicText::vi_tcp(end)
            .key("ulp_timeout_ms", ulp_timeout.as_millis())
            .write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    /// An honest client of the server at the left end.
    fn honest(&self) -> Running {
        let mut honest = self.ours(End::Right, TIMEOUT);
        honest.args(["ping", End::Left.host(), "here", "--own", "honest"]);
        let mut honest = Running::start("honest", &mut honest);
        honest.wait_for("connected", TIMEOUT);
        honest
    }

    /// The liar at the right end: with the place of the memory of ours, and a message there and back behind what is to
    /// be kept.
    fn liar(&self, level: &str) -> Command {
        let mut liar = stranger_in(&self.wire.right, "liar.py");
        liar.args(["--level", level, "--mtu", MTU, "--patience", "20"]);
        liar.args(["--quiet", &(2 * SHORT).as_secs_f32().to_string()]);
        liar.args(["--region", "--probe", "--numbered"]);
        liar
    }
}

/// A server of ours hears all lies of a client, who says that its level is `theirs`. In pieces, each byte comes by itself.
fn a_server_is_lied_to(level: &str, theirs: &str, options: &[&str], in_pieces: bool) {
    let network = Network::new();
    let mut server = network.ours(End::Left, Duration::from_secs(3));
    server
        .args(["witness", "here", "--level", level])
        .args(options);
    let mut server = Running::start("server", &mut server);
    server.wait_for("listening", TIMEOUT);
    let honest = network.honest();
    let names = lies(&["--all"]);
    let connected = lies(&["--all", "--told-by-both"]);
    let before = resident_kib(&server);
    let mut liar = network.liar(theirs);
    liar.args(options)
        .args(["--split", if in_pieces { "1" } else { "0" }]);
    liar.args(["--host", End::Left.host(), "--called", "here", "run"]);
    let liar = Running::start("liar", liar.args(&names).arg("--check"));
    // Of those that are told on a connection ours tells how it ended.
    for (number, name) in names.iter().enumerate() {
        if connected.contains(name) {
            server.wait_for(&format!("ended lie-{number} "), 2 * TIMEOUT);
        }
    }
    let said = outcomes(&liar.succeed(TIMEOUT));
    has_not_grown(&server, before);
    is_untouched(honest);
    let mut heard = 0;
    for (name, found) in endings_of(&server.succeed(TIMEOUT)) {
        let number = name.strip_prefix("lie-").map(str::parse::<usize>);
        let Some(Ok(number)) = number else { continue };
        let lie = &names[number];
        is_ending(&found, lie, level, &said[lie], in_pieces);
        heard += usize::from(connected.contains(lie));
    }
    println!(
        "\nnote: {} lies at {level}, {heard} of them on a connection",
        said.len()
    );
    assert_eq!((said.len(), heard), (names.len(), connected.len()));
    assert!(heard > 100);
}

#[test]
fn a_server_is_lied_to_at_unreliable_delivery() {
    a_server_is_lied_to("ud", "ud", &[], false);
}

#[test]
fn a_server_is_lied_to_at_reliable_delivery() {
    a_server_is_lied_to("rd", "rd", &[], false);
}

#[test]
fn a_server_is_lied_to_at_reliable_reception() {
    a_server_is_lied_to("rr", "rr", &[], false);
}

/// Of the two reliable levels the liar does not say which it has.
#[test]
fn a_server_is_lied_to_by_who_knows_only_the_draft() {
    a_server_is_lied_to("rd", "reliable", &[], false);
}

/// Credits are wrong where they count.
#[test]
fn a_server_with_flow_control_is_lied_to_in_pieces() {
    a_server_is_lied_to("rr", "rr", &["--flow-control"], true);
}

/// Who does not go on loses the connection when its time is over, and not before.
#[test]
fn a_server_does_not_wait_for_ever() {
    let network = Network::new();
    let mut server = network.ours(End::Left, SHORT);
    let mut server = Running::start("server", server.args(["witness", "here"]));
    server.wait_for("listening", TIMEOUT);
    let honest = network.honest();
    let mut liar = network.liar("rd");
    liar.args(["--host", End::Left.host(), "--called", "here"]);
    let names = ["request-never-sent", "slow-half"];
    let mut liar = Running::start("liar", liar.arg("run").args(names).arg("--check"));
    let told = names.map(|name| liar.wait_for(&format!("{name}: closed"), TIMEOUT).at);
    let took = told[1] - told[0];
    // The liar tells of both a little later, not equally so.
    assert!(took >= SHORT.mul_f32(0.9) && took < 5 * SHORT, "{took:?}");
    liar.succeed(TIMEOUT);
    let said = server.has_said("ended");
    assert!(!said, "nobody was connected");
    // Who is connected may take as long as it likes.
    let mut liar = network.liar("rd");
    liar.args(["--host", End::Left.host(), "--called", "here"]);
    let mut liar = Running::start("liar", liar.args(["run", "segment-never-sent", "--check"]));
    liar.wait_for("segment-never-sent: kept", TIMEOUT);
    liar.succeed(TIMEOUT);
    is_untouched(honest);
    server.wait_for("ended lie-0", TIMEOUT);
    server.succeed(TIMEOUT);
}

/// A client of ours hears all lies of a server that can be told on a connection, and those about the answer to its read;
/// its connection with an honest server goes on. In pieces, each byte comes by itself.
fn a_client_is_lied_to(level: &str, options: &[&str], in_pieces: bool) {
    let network = Network::new();
    let mut friend = network.ours(End::Left, TIMEOUT);
    let mut friend = Running::start("friend", friend.args(["serve", "here"]));
    friend.wait_for("listening", TIMEOUT);
    let mut client = network.ours(End::Left, SHORT);
    let mut client = Running::start(
        "client",
        client.args(["obey", "--level", level]).args(options),
    );
    client.tell(&format!("befriend {} here", End::Left.host()));
    client.wait_for("befriended", TIMEOUT);
    let mut names = lies(&["--all", "--told-by-both"]);
    let is_answer =
        |name: &String| name.starts_with("response-") || name.starts_with("control-response");
    names.retain(|name| !is_answer(name));
    if level != "ud" {
        names.extend(lies(&["--told-by-both"]).into_iter().filter(is_answer));
    }
    let mut liar = network.liar(level);
    liar.args([
        "--host",
        End::Right.host(),
        "--split",
        if in_pieces { "1" } else { "0" },
    ]);
    let mut liar = Running::start("liar", liar.arg("serve").args(&names).arg("--check"));
    let mut before = 0;
    for (number, name) in names.iter().enumerate() {
        liar.wait_for("listening", TIMEOUT);
        client.tell(&format!("connect {} there", End::Right.host()));
        client.tell("advertise");
        if is_answer(name) && name != "response-unasked" {
            client.tell("read 0 64");
            let read = client.wait_for("read ", TIMEOUT).text;
            let read = read.strip_prefix("read ").expect("what came of it");
            assert_eq!(read, end_of_read(name), "{name} at {level}");
        }
        client.tell("attend");
        let ended = client.wait_for("ended", TIMEOUT).text;
        let saw = liar.wait_for(&format!("{name}: "), TIMEOUT).text;
        let (_, saw) = saw.split_once(": ").expect("what came of it");
        let ended = ended.replace("ended ", "ended client ");
        let (_, found) = endings_of(&ended).pop().expect("an ending");
        is_ending(&found, name, level, saw, in_pieces);
        client.tell("greet");
        client.wait_for(&format!("greeted {}", number + 1), TIMEOUT);
        // The first lie is there for what is there once.
        if number == 0 {
            before = resident_kib(&client);
        }
    }
    liar.succeed(TIMEOUT);
    println!("\nnote: {} lies of a server at {level}", names.len());
    assert!(names.len() > 100);
    has_not_grown(&client, before);
    let said = client.succeed(TIMEOUT);
    assert!(!said.contains("lost friend"), "{said}");
    friend.succeed(TIMEOUT);
}

#[test]
fn a_client_is_lied_to_at_unreliable_delivery() {
    a_client_is_lied_to("ud", &[], false);
}

#[test]
fn a_client_is_lied_to_at_reliable_delivery() {
    a_client_is_lied_to("rd", &[], false);
}

#[test]
fn a_client_is_lied_to_at_reliable_reception() {
    a_client_is_lied_to("rr", &[], false);
}

#[test]
fn a_client_with_flow_control_is_lied_to_in_pieces() {
    a_client_is_lied_to("rr", &["--flow-control"], true);
}
