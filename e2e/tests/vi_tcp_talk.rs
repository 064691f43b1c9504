//! A second implementation of VI/TCP's wire format (`programs/vitcp`) does with ours all that a connection is for, as
//! client and as server: sends, RDMA writes and reads, acknowledgements, credits, what is negotiated. Both look at every
//! byte.

use e2e::nics::End;
use e2e::process::TIMEOUT;
use e2e::strangers::talk::{Asks, Talk, does};

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";

/// Steps of the other side: messages 0 to 4 in all ways that there are, then those of ours; `reads` if it may read.
fn script(reads: bool) -> Vec<&'static str> {
    let mut script = vec!["fill:60:55000:3000", "advertise", "recv:1:16"];
    script.extend(["send:0", "send:1000", "send:40000:0x12345678"]);
    script.extend(["write:@:@:5000", "write:@+8192:@:40000:0x00000009"]);
    if reads {
        script.extend(["fetch:@+8192:@:40000:4", "fetch:@+60000:@:3000:77"]);
        script.extend(["fetch:@:@:0:0", "fetch:@+8193:@:1:5"]);
    }
    script.extend(["expect:7:0", "expect:8:1000:0xabc", "expect:9:50000"]);
    // A write with immediate data comes behind the one without.
    script.extend(["expect:11:40000:0x77", "memory:10:0:5000"]);
    script.extend(["memory:11:8192:40000", "recv:1:1", "acked", "close"]);
    script
}

/// Everything once, in both directions. `theirs` are options of the other side.
fn talk(asks: Asks, level: &str, their_level: &str, theirs: &[&str]) {
    let network = Talk::at(End::Left, PEER);
    let mut ours = network.ours(&["--level", level, "--receives", "12"]);
    let mut stranger = network.theirs(asks);
    stranger
        .args(["--level", their_level, "--mtu", MTU])
        .args(theirs);
    let reads = level != "ud";
    let (stranger, connected) = network.connect(asks, &mut ours, stranger.args(script(reads)));
    assert_eq!(
        connected,
        "connected mtu 65536 flow-control false security \"\""
    );
    ours.tell("fill 60000 77 3000");
    ours.wait_for("filled", TIMEOUT);
    ours.tell("advertise");
    ours.tell("learn");
    ours.wait_for("learned", TIMEOUT);
    does(&mut ours, "take", "took 0 bytes from 0");
    does(&mut ours, "take", "took 1000 bytes from 1");
    does(
        &mut ours,
        "take",
        "took 40000 bytes from 2 immediate 0x12345678",
    );
    does(
        &mut ours,
        "take",
        "took a write of 40000 bytes immediate 0x00000009",
    );
    does(&mut ours, "holds 0 5000", "holds 5000 bytes from 3");
    does(&mut ours, "holds 8192 40000", "holds 40000 bytes from 4");
    does(
        &mut ours,
        "holds 5000 3192",
        "holds 3192 bytes as they were",
    );
    does(&mut ours, "send 7 0", "sent done");
    does(&mut ours, "send 8 1000 0xabc", "sent done");
    does(&mut ours, "send 9 50000", "sent done");
    does(&mut ours, "write 0 10 5000", "wrote done");
    does(&mut ours, "write 8192 11 40000 0x77", "wrote done");
    if reads {
        does(&mut ours, "read 8192 40000", "read 40000 bytes from 11");
        does(&mut ours, "read 55000 3000", "read 3000 bytes from 60");
        does(&mut ours, "read 0 0", "read 0 bytes from 0");
    }
    does(&mut ours, "send 1 1", "sent done");
    ours.tell("attend");
    let ended = ours.wait_for("ended", TIMEOUT).text;
    let wanted =
        "ended received 5; receives: flushed; ConnLost; Error; written 0 to 62999; sends: done";
    assert_eq!(ended, wanted, "{asks:?} at {level}");
    ours.succeed(TIMEOUT);
    stranger.succeed(TIMEOUT);
}

#[test]
fn both_do_all_there_is_at_every_level() {
    for asks in [Asks::Theirs, Asks::Ours] {
        for (level, their_level) in [
            ("ud", "ud"),
            ("rd", "rd"),
            ("rr", "rr"),
            // Who knows only the draft does not say which of the two.
            ("rd", "reliable"),
            ("rr", "reliable"),
        ] {
            talk(asks, level, their_level, &[]);
        }
    }
}

#[test]
fn both_do_all_there_is_however_it_is_cut() {
    for asks in [Asks::Theirs, Asks::Ours] {
        for immediate in ["last", "first", "every"] {
            talk(
                asks,
                "rr",
                "rr",
                &["--immediate", immediate, "--segment", "100"],
            );
        }
        talk(asks, "rd", "rd", &["--segment", "65495", "--split", "1000"]);
        talk(asks, "rr", "rr", &["--segment", "333", "--split", "1"]);
        // Numbers wrap on the way.
        talk(asks, "rr", "rr", &["--number", "0xfffffffd"]);
    }
}

/// Who waits for acknowledgements learns why a message of its own failed, whoever of the two that is.
#[test]
fn errors_are_told_at_reliable_reception() {
    for asks in [Asks::Theirs, Asks::Ours] {
        for (step, operation, status) in [
            // Of a send that says nothing, since it has no such memory.
            ("tell-error:1:0", "send 0 100", "transport error"),
            ("tell-error:1:0", "write 0 0 100 7", "RDMA protection error"),
            ("tell-error:2:0", "send 0 100", "remote descriptor error"),
            (
                "tell-error:2:0",
                "write 0 0 100 7",
                "remote descriptor error",
            ),
            ("tell-error:3:0", "send 0 100", "transport error"),
            ("tell-error:0:1", "send 0 100", "transport error"),
        ] {
            let network = Talk::at(End::Left, PEER);
            let mut ours = network.ours(&["--level", "rr"]);
            let mut theirs = network.theirs(asks);
            theirs.args(["--level", "rr", "--mtu", MTU, "advertise"]);
            theirs.args([step, "wait-close:30"]);
            let (theirs, _) = network.connect(asks, &mut ours, &mut theirs);
            ours.tell("learn");
            let what = match operation.split(' ').next() {
                Some("send") => "sent",
                _ => "wrote",
            };
            does(&mut ours, operation, &format!("{what} {status}"));
            ours.tell("attend");
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
            let network = Talk::at(End::Left, PEER);
            let mut ours = network.ours(&["--level", "rr", "--receives", "0"]);
            let mut theirs = network.theirs(asks);
            theirs.args(["--level", "rr", "--mtu", MTU, "recv:1:16", step, error]);
            let (theirs, _) = network.connect(asks, &mut ours, &mut theirs);
            ours.tell("advertise");
            ours.tell("attend");
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
