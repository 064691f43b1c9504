//! Ranks of a parallel program (the C example Peers), each connected peer to peer with all others at the same time, on
//! the same host and on two hosts.

use e2e::capture::{Capture, check_frames};
use e2e::echo::all_connect;
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::unprivileged;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Two ranks on each of two hosts; all frames are checked.
#[test]
fn two_hosts_with_two_programs_each() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("peers");
    let left = NicText::af_packet(End::Left).write(&scratch, "left.toml");
    let right = NicText::af_packet(End::Right).write(&scratch, "right.toml");
    let capture = Capture::start(&wire.right, "right");
    let part = |end: End| {
        let (namespace, config) = match end {
            End::Left => (&wire.left, &left),
            End::Right => (&wire.right, &right),
        };
        let mut part = namespace.program(installation.program("Peers"));
        part.env("VIADUCT_CONFIG", config);
        part
    };
    let ends = [End::Left, End::Right, End::Left, End::Right];
    let hosts = ends.map(End::host);
    all_connect(ends.map(part).into(), &hosts);
    check_frames(&capture.finish());
}

#[test]
fn six_programs_of_an_ordinary_user_on_shared_memory() {
    let installation = Installation::new();
    let runtime = Scratch::of_unprivileged_user("runtime");
    let part = |_| {
        let mut part = unprivileged(installation.program("Peers"));
        part.env("XDG_RUNTIME_DIR", runtime.path());
        part
    };
    all_connect((0..6).map(part).collect(), &[] as &[&str]);
}
