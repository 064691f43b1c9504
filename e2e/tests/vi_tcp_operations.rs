//! All operations between `vi-peer` and the independent Python implementation of VI/TCP (`programs/vitcp`), as client
//! and as server: sends, RDMA writes and reads, acknowledgements, errors. Both check all bytes.

use e2e::interop::network::{Initiator, InteropNetwork, run_command};
use e2e::nics::End;
use e2e::process::TIMEOUT;

/// Returns the steps of the Python program: it sends messages 0 to 4 by all operations, then checks those of `vi-peer`.
/// `reads`: reads are possible.
fn script(reads: bool) -> Vec<&'static str> {
    let mut script = vec!["fill:60:55000:3000", "advertise", "recv:1:16"];
    script.extend(["send:0", "send:1000", "send:40000:0x12345678"]);
    script.extend(["write:@:@:5000", "write:@+8192:@:40000:0x00000009"]);
    if reads {
        script.extend(["fetch:@+8192:@:40000:4", "fetch:@+60000:@:3000:77"]);
        script.extend(["fetch:@:@:0:0", "fetch:@+8193:@:1:5"]);
    }
    script.extend(["expect:7:0", "expect:8:1000:0xabc", "expect:9:50000"]);
    // The write without immediate data precedes the one with it.
    script.extend(["expect:11:40000:0x77", "memory:10:0:5000"]);
    script.extend(["memory:11:8192:40000", "recv:1:1", "acked", "close"]);
    script
}

/// Runs all operations in both directions. `theirs` has options of the Python program.
fn run_all_operations(initiator: Initiator, level: &str, their_level: &str, theirs: &[&str]) {
    let network = InteropNetwork::new(End::Left);
    let mut ours = network.ours(level, &["--receives", "12"]);
    let mut peer = network.theirs(initiator, their_level);
    peer.args(theirs);
    let reads = level != "ud";
    let (peer, connected) = network.connect(initiator, &mut ours, peer.args(script(reads)));
    assert_eq!(
        connected,
        "connected mtu 65536 flow-control false security \"\""
    );
    ours.send_line("fill 60000 77 3000");
    ours.wait_for("filled", TIMEOUT);
    ours.send_line("advertise");
    ours.send_line("learn");
    ours.wait_for("learned", TIMEOUT);
    run_command(&mut ours, "receive", "received 0 bytes from 0");
    run_command(&mut ours, "receive", "received 1000 bytes from 1");
    run_command(
        &mut ours,
        "receive",
        "received 40000 bytes from 2 immediate 0x12345678",
    );
    run_command(
        &mut ours,
        "receive",
        "received a write of 40000 bytes immediate 0x00000009",
    );
    run_command(&mut ours, "memory 0 5000", "memory 5000 bytes from 3");
    run_command(&mut ours, "memory 8192 40000", "memory 40000 bytes from 4");
    run_command(&mut ours, "memory 5000 3192", "memory 3192 bytes unchanged");
    run_command(&mut ours, "send 7 0", "sent done");
    run_command(&mut ours, "send 8 1000 0xabc", "sent done");
    run_command(&mut ours, "send 9 50000", "sent done");
    run_command(&mut ours, "write 0 10 5000", "wrote done");
    run_command(&mut ours, "write 8192 11 40000 0x77", "wrote done");
    if reads {
        run_command(&mut ours, "read 8192 40000", "read 40000 bytes from 11");
        run_command(&mut ours, "read 55000 3000", "read 3000 bytes from 60");
        run_command(&mut ours, "read 0 0", "read 0 bytes from 0");
    }
    run_command(&mut ours, "send 1 1", "sent done");
    ours.send_line("answer-probes");
    let ended = ours.wait_for("ended", TIMEOUT).text;
    let wanted =
        "ended received 5; receives: flushed; ConnLost; Error; written 0 to 62999; sends: done";
    assert_eq!(ended, wanted, "{initiator:?} at {level}");
    ours.succeed(TIMEOUT);
    peer.succeed(TIMEOUT);
}

#[test]
fn all_operations_succeed_at_all_levels() {
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for (level, their_level) in [
            ("ud", "ud"),
            ("rd", "rd"),
            ("rr", "rr"),
            // A draft client does not send the exact level.
            ("rd", "reliable"),
            ("rr", "reliable"),
        ] {
            run_all_operations(initiator, level, their_level, &[]);
        }
    }
}

#[test]
fn all_operations_succeed_for_all_segmentations() {
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for immediate in ["last", "first", "every"] {
            run_all_operations(
                initiator,
                "rr",
                "rr",
                &["--immediate", immediate, "--segment", "100"],
            );
        }
        run_all_operations(
            initiator,
            "rd",
            "rd",
            &["--segment", "65495", "--split", "1000"],
        );
        run_all_operations(initiator, "rr", "rr", &["--segment", "333", "--split", "1"]);
        // The message numbers wrap around.
        run_all_operations(initiator, "rr", "rr", &["--number", "0xfffffffd"]);
    }
}

/// At Reliable Reception, the sender of a failed message gets the error, in both directions.
#[test]
fn errors_are_reported_at_reliable_reception() {
    for initiator in [Initiator::Theirs, Initiator::Ours] {
        for (step, operation, status) in [
            // A protection error has no meaning for a send, which addresses no memory.
            ("report-error:1:0", "send 0 100", "transport error"),
            (
                "report-error:1:0",
                "write 0 0 100 7",
                "RDMA protection error",
            ),
            ("report-error:2:0", "send 0 100", "remote descriptor error"),
            (
                "report-error:2:0",
                "write 0 0 100 7",
                "remote descriptor error",
            ),
            ("report-error:3:0", "send 0 100", "transport error"),
            ("report-error:0:1", "send 0 100", "transport error"),
        ] {
            let network = InteropNetwork::new(End::Left);
            let mut ours = network.ours("rr", &[]);
            let mut theirs = network.theirs(initiator, "rr");
            theirs.args(["advertise", step, "wait-close:30"]);
            let (theirs, _) = network.connect(initiator, &mut ours, &mut theirs);
            ours.send_line("learn");
            let what = match operation.split(' ').next() {
                Some("send") => "sent",
                _ => "wrote",
            };
            run_command(&mut ours, operation, &format!("{what} {status}"));
            ours.send_line("answer-probes");
            let ended = ours.wait_for("ended", TIMEOUT).text;
            let wanted = format!("Error; nothing written; sends: {status}");
            assert!(ended.ends_with(&wanted), "{ended}");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
        for (step, error, event) in [
            ("send:100", "expect-error:2:30", "RecvqEmpty"),
            ("write:@:1:100", "expect-error:1:30", "RdmawProt"),
            ("write:0:@:100", "expect-error:1:30", "RdmawProt"),
        ] {
            let network = InteropNetwork::new(End::Left);
            let mut ours = network.ours("rr", &["--receives", "0"]);
            let mut theirs = network.theirs(initiator, "rr");
            theirs.args(["recv:1:16", step, error]);
            let (theirs, _) = network.connect(initiator, &mut ours, &mut theirs);
            ours.send_line("advertise");
            ours.send_line("answer-probes");
            let ended = ours.wait_for("ended", TIMEOUT).text;
            let wanted = format!(
                "ended received 0; receives: ; {event}, ConnLost; Error; nothing written; sends: done"
            );
            assert_eq!(ended, wanted, "{step}");
            ours.succeed(TIMEOUT);
            theirs.succeed(TIMEOUT);
        }
    }
}
