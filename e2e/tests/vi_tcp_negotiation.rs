//! Negotiation between `vi-peer` and the independent Python implementation of VI/TCP (`programs/vitcp`): flow control,
//! MTU, security information, and simultaneous peer-to-peer requests.

use std::process::Command;

use e2e::interop::network::{Initiator, InteropNetwork, MTU, ULP_TIMEOUT, run_command};
use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};

/// With flow control, both senders wait for posted receives; `vi-peer` gets its credits in NOPs.
#[test]
fn flow_control_delays_sends_until_receives_are_posted() {
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for level in ["ud", "rd", "rr"] {
            let network = InteropNetwork::new(End::Left);
            let mut ours = network.ours(level, &["--flow-control", "--receives", "2"]);
            let mut theirs = network.theirs(initiator, level);
            theirs.args(["--flow-control", "--posted", "3"]);
            theirs.args("sends:10:9 recv:3 post:2 recv:2 post:1 recv:1".split(' '));
            let (mut theirs, connected) = network.connect(initiator, &mut ours, &mut theirs);
            assert!(connected.contains("flow-control true"), "{connected}");
            theirs.wait_until("flow control", TIMEOUT, |line| {
                line.contains("flow-control on posted 2")
            });
            for serial in 0..10 {
                let expected = format!("received 9 bytes from {serial}");
                run_command(&mut ours, "receive", &expected);
                let ahead = 8 - serial.min(8);
                assert!(
                    ahead == 0 || !theirs.has_printed("sent 10"),
                    "without credits"
                );
                ours.send_line("post 1");
            }
            theirs.wait_for("sent 10 messages of 9 bytes", TIMEOUT);
            ours.send_line("post-sends 6 50");
            ours.send_line("wait-sends 6");
            for _ in 0..6 {
                assert_eq!(ours.wait_for("sent ", TIMEOUT).text, "sent done");
            }
            for _ in 0..6 {
                theirs.wait_for("received 50 bytes", TIMEOUT);
            }
            ours.send_line("answer-probes");
            let ended = ours.wait_for("ended", TIMEOUT).text;
            let wanted = "ended received 10; receives: flushed; ConnLost; Error; nothing written; sends: done";
            assert_eq!(ended, wanted, "{initiator:?} at {level}");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Flow control requires the option on both sides.
#[test]
fn flow_control_is_off_if_one_side_does_not_request_it() {
    for (initiator, option) in [
        (Initiator::Theirs, true),
        (Initiator::Ours, true),
        (Initiator::Theirs, false),
        (Initiator::Ours, false),
    ] {
        let network = InteropNetwork::new(End::Left);
        let mut ours = network.ours("rd", if option { &["--flow-control"] } else { &[] });
        let mut theirs = network.theirs(initiator, "rd");
        if !option {
            theirs.arg("--flow-control");
        }
        theirs.args(["send:5", "wait-close:30"]);
        let (mut theirs, connected) = network.connect(initiator, &mut ours, &mut theirs);
        assert!(connected.contains("flow-control false"), "{connected}");
        theirs.wait_until("no flow control", TIMEOUT, |line| {
            line.contains("flow-control off")
        });
        run_command(&mut ours, "receive", "received 5 bytes from 0");
        ours.send_line("disconnect");
        ours.succeed(TIMEOUT);
        theirs.succeed(TIMEOUT);
    }
}

/// With MTU negotiation, the smaller MTU applies to both sides. The Python implementation follows the draft only.
#[test]
fn negotiated_mtu_is_the_smaller_one() {
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for (ours_mtu, their_mtu) in [("65536", "5000"), ("5000", "65536")] {
            let network = InteropNetwork::new(End::Left);
            let mut ours = network.ours("rr", &["--negotiate", "--mtu", ours_mtu]);
            let mut theirs = network.theirs(initiator, "rr");
            theirs.args(["--mtu", their_mtu, "send:5000", "expect:1:5000"]);
            theirs.arg("wait-close:30");
            let (mut theirs, connected) = network.connect(initiator, &mut ours, &mut theirs);
            assert!(connected.starts_with("connected mtu 5000 "), "{connected}");
            theirs.wait_for("connected mtu 5000 ", TIMEOUT);
            run_command(&mut ours, "receive", "received 5000 bytes from 0");
            run_command(&mut ours, "send 1 5000", "sent done");
            run_command(&mut ours, "send 2 5001", "sent local length error");
            ours.send_line("answer-probes");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

#[test]
fn different_mtu_is_rejected_without_negotiation() {
    let network = InteropNetwork::new(End::Left);
    let mut ours = network.ours("rd", &[]);
    let mut theirs = network.theirs(Initiator::Theirs, "rd");
    theirs.args(["--mtu", "5000", "--expect", "reject"]);
    let (theirs, connected) = network.connect(Initiator::Theirs, &mut ours, &mut theirs);
    assert_eq!(connected, "connected InvalidMtu");
    // vi-peer drops the request, which rejects it.
    let output = theirs.succeed(TIMEOUT);
    assert!(output.contains("reject 16"), "{output}");
    ours.succeed(TIMEOUT);
}

/// Each side gets the security information of the other; the server before it accepts.
#[test]
fn security_information_is_exchanged_in_both_directions() {
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let long = "s".repeat(256);
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for (local, remote) in [
            ("ours", "theirs"),
            ("", "theirs"),
            ("ours", ""),
            (long.as_str(), long.as_str()),
        ] {
            let network = InteropNetwork::new(End::Left);
            let mut ours = network.ours("rd", &["--security", local]);
            let mut theirs = network.theirs(initiator, "rd");
            theirs.args(["--security", &hex(remote), "send:1", "wait-close:30"]);
            let (mut theirs, connected) = network.connect(initiator, &mut ours, &mut theirs);
            assert!(
                connected.ends_with(&format!("security {remote:?}")),
                "{connected}"
            );
            let wanted = match local {
                "" => "-".to_owned(),
                local => hex(local),
            };
            theirs.wait_until(local, TIMEOUT, |line| {
                line.starts_with("connected") && line.ends_with(&format!("security {wanted}"))
            });
            if initiator == Initiator::Theirs {
                let request = ours.wait_for("request from python", TIMEOUT).text;
                assert_eq!(request, format!("request from python security {remote:?}"));
            }
            run_command(&mut ours, "receive", "received 1 bytes from 0");
            ours.send_line("disconnect");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Returns the command of a Python program that requests a peer-to-peer connection with `vi-peer` at `our_end`.
fn their_peer(network: &InteropNetwork, our_end: End) -> Command {
    let mut theirs = network.their("peer_to_peer.py");
    theirs.args(["--called", "table", "--calling", "python"]);
    theirs.args(["--other", our_end.host(), "--host"]);
    theirs.arg(network.their_end().host());
    theirs
}

/// Of two simultaneous peer-to-peer requests, the side with the lower address yields, on either side.
#[test]
fn simultaneous_requests_keep_that_of_the_higher_address() {
    for our_end in [End::Left, End::Right] {
        for level in ["ud", "rd", "rr"] {
            let network = InteropNetwork::new(our_end);
            let mut theirs = their_peer(&network, our_end);
            theirs.args(["--level", level, "--mtu", MTU, "send:1000", "expect:5:2000"]);
            let mut theirs = Running::start("theirs", theirs.arg("wait-close:30"));
            theirs.wait_for("listening", TIMEOUT);
            let mut ours = network.ours(level, &[]);
            ours.send_line(&format!(
                "connect-peer {} table",
                network.their_end().host()
            ));
            theirs.wait_for("request from vi-peer", TIMEOUT);
            let decision = match our_end {
                End::Left => "request kept",
                End::Right => "yields to peer",
            };
            theirs.wait_for(decision, TIMEOUT);
            ours.wait_for("connected mtu 65536 ", TIMEOUT);
            theirs.wait_for("connected mtu 65536 ", TIMEOUT);
            run_command(&mut ours, "receive", "received 1000 bytes from 0");
            run_command(&mut ours, "send 5 2000", "sent done");
            ours.send_line("disconnect");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}

/// Starts the Python program, which listens and then sends a message, and a peer-to-peer request of `vi-peer`.
fn start_peers(network: &InteropNetwork, mut theirs: Command) -> (Running, Running) {
    theirs.args(["--timeout", "30", "--mtu", MTU]);
    let mut theirs = Running::start("theirs", theirs.args(["send:1000", "wait-close:30"]));
    theirs.wait_for("listening", TIMEOUT);
    let mut ours = network.ours("rd", &[]);
    ours.send_line(&format!(
        "connect-peer {} table",
        network.their_end().host()
    ));
    (ours, theirs)
}

/// Receives that message and stops both programs.
fn receive_and_stop(mut ours: Running, theirs: Running) {
    run_command(&mut ours, "receive", "received 1000 bytes from 0");
    ours.send_line("disconnect");
    ours.succeed(TIMEOUT);
    theirs.succeed(TIMEOUT);
}

/// If the peer with the higher address does not respond, its own request is accepted after `ulp_timeout_ms`.
#[test]
fn request_of_a_silent_peer_is_accepted_after_the_timeout() {
    let network = InteropNetwork::new(End::Left);
    let mut theirs = their_peer(&network, End::Left);
    theirs.arg("--silent");
    let (mut ours, mut theirs) = start_peers(&network, theirs);
    let requested_at = theirs.wait_for("request sent", TIMEOUT).at;
    let took = ours.wait_for("connected mtu 65536 ", TIMEOUT).at - requested_at;
    assert!(took >= ULP_TIMEOUT.mul_f32(0.9), "{took:?}");
    receive_and_stop(ours, theirs);
}

/// A program without its own request may accept a peer-to-peer request like a server.
#[test]
fn server_accepts_a_peer_to_peer_request() {
    for our_end in [End::Left, End::Right] {
        let network = InteropNetwork::new(our_end);
        let mut theirs = network.their("peer.py");
        theirs.args(["server", "--disc", "table", "--host"]);
        theirs.arg(network.their_end().host());
        let (mut ours, theirs) = start_peers(&network, theirs);
        ours.wait_for("connected mtu 65536 ", TIMEOUT);
        receive_and_stop(ours, theirs);
    }
}
