//! What a second implementation of VI/TCP's wire format (`programs/vitcp`) agrees on with ours when they are connected:
//! flow control, the MTU, security information, and which of two requests that cross stands.

use std::process::Command;

use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};
use e2e::strangers::talk::{Asks, Talk, ULP_TIMEOUT, does};

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";

/// A sender that is ahead waits for receives, and goes on when there are some: ours, and the other one, whose credits
/// come in NOPs.
#[test]
fn who_is_ahead_waits_for_receives() {
    for asks in [Asks::Theirs, Asks::Ours] {
        for level in ["ud", "rd", "rr"] {
            let network = Talk::at(End::Left, PEER);
            let mut ours = network.ours(&["--level", level, "--flow-control", "--receives", "2"]);
            let mut theirs = network.theirs(asks);
            theirs.args([
                "--level",
                level,
                "--mtu",
                MTU,
                "--flow-control",
                "--posted",
                "3",
            ]);
            theirs.args([
                "sends:10:9",
                "recv:3",
                "post:2",
                "recv:2",
                "post:1",
                "recv:1",
            ]);
            let (mut theirs, connected) = network.connect(asks, &mut ours, &mut theirs);
            assert!(connected.contains("flow-control true"), "{connected}");
            theirs.wait_until("flow control", TIMEOUT, |line| {
                line.contains("flow-control on posted 2")
            });
            for serial in 0..10 {
                does(&mut ours, "take", &format!("took 9 bytes from {serial}"));
                let ahead = 8 - serial.min(8);
                assert!(ahead == 0 || !theirs.has_said("sent 10"), "without credits");
                ours.tell("post 1");
            }
            theirs.wait_for("sent 10 messages of 9 bytes", TIMEOUT);
            ours.tell("sends 6 50");
            ours.tell("sent 6");
            for _ in 0..6 {
                assert_eq!(ours.wait_for("sent ", TIMEOUT).text, "sent done");
            }
            for _ in 0..6 {
                theirs.wait_for("received 50 bytes", TIMEOUT);
            }
            ours.tell("attend");
            let ended = ours.wait_for("ended", TIMEOUT).text;
            let wanted = "ended received 10; receives: flushed; ConnLost; Error; nothing written; sends: done";
            assert_eq!(ended, wanted, "{asks:?} at {level}");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Flow control is in force where both want it only.
#[test]
fn one_end_alone_has_no_flow_control() {
    for (asks, option) in [
        (Asks::Theirs, true),
        (Asks::Ours, true),
        (Asks::Theirs, false),
        (Asks::Ours, false),
    ] {
        let network = Talk::at(End::Left, PEER);
        let mut ours = network.ours(if option { &["--flow-control"] } else { &[] });
        let mut theirs = network.theirs(asks);
        if !option {
            theirs.arg("--flow-control");
        }
        theirs.args(["--mtu", MTU, "send:5", "wait-close:30"]);
        let (mut theirs, connected) = network.connect(asks, &mut ours, &mut theirs);
        assert!(connected.contains("flow-control false"), "{connected}");
        theirs.wait_until("no flow control", TIMEOUT, |line| {
            line.contains("flow-control off")
        });
        does(&mut ours, "take", "took 5 bytes from 0");
        ours.tell("end");
        ours.succeed(TIMEOUT);
        theirs.succeed(TIMEOUT);
    }
}

/// The lesser MTU counts for both ends where the larger one negotiates; elsewhere another one is refused. The other side knows only the draft.
#[test]
fn the_mtu_is_the_lesser_one() {
    for asks in [Asks::Theirs, Asks::Ours] {
        for (ours_mtu, their_mtu) in [("65536", "5000"), ("5000", "65536")] {
            let network = Talk::at(End::Left, PEER);
            let mut ours = network.ours(&["--level", "rr", "--negotiate", "--mtu", ours_mtu]);
            let mut theirs = network.theirs(asks);
            theirs.args([
                "--level",
                "rr",
                "--mtu",
                their_mtu,
                "send:5000",
                "expect:1:5000",
            ]);
            theirs.arg("wait-close:30");
            let (mut theirs, connected) = network.connect(asks, &mut ours, &mut theirs);
            assert!(connected.starts_with("connected mtu 5000 "), "{connected}");
            theirs.wait_for("connected mtu 5000 ", TIMEOUT);
            does(&mut ours, "take", "took 5000 bytes from 0");
            does(&mut ours, "send 1 5000", "sent done");
            does(&mut ours, "send 2 5001", "sent local length error");
            ours.tell("attend");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

#[test]
fn another_mtu_is_refused_where_it_is_not_negotiated() {
    let network = Talk::at(End::Left, PEER);
    let mut ours = network.ours(&[]);
    let mut theirs = network.theirs(Asks::Theirs);
    theirs.args(["--mtu", "5000", "--expect", "reject"]);
    let (theirs, connected) = network.connect(Asks::Theirs, &mut ours, &mut theirs);
    assert_eq!(connected, "connected InvalidMtu");
    // Its program lets go of the request.
    let said = theirs.succeed(TIMEOUT);
    assert!(said.contains("reject 16"), "{said}");
    ours.succeed(TIMEOUT);
}

/// Each end hears what the other one says of itself, the server before it answers.
#[test]
fn security_information_goes_both_ways() {
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let long = "s".repeat(256);
    for asks in [Asks::Theirs, Asks::Ours] {
        for (mine, other) in [
            ("ours", "theirs"),
            ("", "theirs"),
            ("ours", ""),
            (long.as_str(), long.as_str()),
        ] {
            let network = Talk::at(End::Left, PEER);
            let mut ours = network.ours(&["--security", mine]);
            let mut theirs = network.theirs(asks);
            theirs.args(["--mtu", MTU, "--security", &hex(other)]);
            theirs.args(["send:1", "wait-close:30"]);
            let (mut theirs, connected) = network.connect(asks, &mut ours, &mut theirs);
            assert!(
                connected.ends_with(&format!("security {other:?}")),
                "{connected}"
            );
            let wanted = match mine {
                "" => "-".to_owned(),
                mine => hex(mine),
            };
            theirs.wait_until(mine, TIMEOUT, |line| {
                line.starts_with("connected") && line.ends_with(&format!("security {wanted}"))
            });
            if asks == Asks::Theirs {
                let asked = ours.wait_for("asked by stranger", TIMEOUT).text;
                assert_eq!(asked, format!("asked by stranger security {other:?}"));
            }
            does(&mut ours, "take", "took 1 bytes from 0");
            ours.tell("end");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Of two peers that ask each other the one with the lower address concedes, whichever of the two that is.
#[test]
fn of_requests_that_cross_that_of_the_higher_address_stands() {
    for ours_at in [End::Left, End::Right] {
        for level in ["ud", "rd", "rr"] {
            let network = Talk::at(ours_at, PEER);
            let mut theirs = network.their("meet.py");
            theirs.args(["--host", network.their_end().host()]);
            theirs.args([
                "--other",
                ours_at.host(),
                "--called",
                "table",
                "--calling",
                "stranger",
            ]);
            theirs.args(["--level", level, "--mtu", MTU, "send:1000", "expect:5:2000"]);
            let mut theirs = Running::start("theirs", theirs.arg("wait-close:30"));
            theirs.wait_for("listening", TIMEOUT);
            let mut ours = network.ours(&["--level", level]);
            ours.tell(&format!("meet {} table", network.their_end().host()));
            theirs.wait_for("asked by obedient", TIMEOUT);
            let fate = match ours_at {
                End::Left => "stands",
                End::Right => "concedes",
            };
            theirs.wait_for(fate, TIMEOUT);
            ours.wait_for("connected mtu 65536 ", TIMEOUT);
            theirs.wait_for("connected mtu 65536 ", TIMEOUT);
            does(&mut ours, "take", "took 1000 bytes from 0");
            does(&mut ours, "send 5 2000", "sent done");
            ours.tell("end");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Theirs listens with a message for ours, which begins to meet it.
fn begin_to_meet(network: &Talk, mut theirs: Command) -> (Running, Running) {
    theirs.args(["--timeout", "30", "--mtu", MTU]);
    let mut theirs = Running::start("theirs", theirs.args(["send:1000", "wait-close:30"]));
    theirs.wait_for("listening", TIMEOUT);
    let mut ours = network.ours(&[]);
    ours.tell(&format!("meet {} table", network.their_end().host()));
    (ours, theirs)
}

/// That message comes, and both end.
fn hears_and_leaves(mut ours: Running, theirs: Running) {
    does(&mut ours, "take", "took 1000 bytes from 0");
    ours.tell("end");
    ours.succeed(TIMEOUT);
    theirs.succeed(TIMEOUT);
}

/// A peer that does not answer is waited for only so long; then its own request is accepted, if it is the higher end.
#[test]
fn a_peer_that_asks_and_does_not_answer_is_accepted_in_time() {
    let network = Talk::at(End::Left, PEER);
    let mut theirs = network.their("meet.py");
    theirs.args(["--host", End::Right.host(), "--other", End::Left.host()]);
    theirs.args(["--called", "table", "--calling", "stranger", "--silent"]);
    let (mut ours, mut theirs) = begin_to_meet(&network, theirs);
    let asks = theirs.wait_for("asks, too", TIMEOUT).at;
    let took = ours.wait_for("connected mtu 65536 ", TIMEOUT).at - asks;
    assert!(took >= ULP_TIMEOUT.mul_f32(0.9), "{took:?}");
    hears_and_leaves(ours, theirs);
}

/// Who is asked by a peer, and asks nobody, may accept as a server does.
#[test]
fn a_server_accepts_a_peer() {
    for ours_at in [End::Left, End::Right] {
        let network = Talk::at(ours_at, PEER);
        let mut theirs = network.their("peer.py");
        theirs.args([
            "server",
            "--host",
            network.their_end().host(),
            "--disc",
            "table",
        ]);
        let (mut ours, theirs) = begin_to_meet(&network, theirs);
        ours.wait_for("connected mtu 65536 ", TIMEOUT);
        hears_and_leaves(ours, theirs);
    }
}
