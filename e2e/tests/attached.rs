//! Programs attached to a datapath process.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::confined::Confinement;
use e2e::datapath::{DatapathProcess, here, polling_core};
use e2e::holdings::Holdings;
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{Running, program};
use e2e::scratch::Scratch;
use e2e::suite::{DAMAGED, LOSSY, Settings, UnknownHost, conforms, fragile};

/// Longer than any program of the suite takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The NICs that the conformance suite wants (vipl/capi/tests/common), the usual one of which is `VINIC0`.
fn suite_nics(usual: NicText, segments: &Path) -> NicText {
    let named = |name: &str| {
        let directory = segments.join(name);
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    usual
        .and(named("SMALL").steady().with_little())
        .and(fragile(segments).steady())
        .and(
            named("LOSSY")
                .quick()
                .key("shortcut", false)
                .key("fault", LOSSY),
        )
        .and(
            named("DAMAGED")
                .quick()
                .key("shortcut", false)
                .key("fault", DAMAGED),
        )
}

/// Every program of a phase, its two processes attached to one datapath process, which has the usual NIC of `usual`, of
/// this kind. Its poll threads make only the listed system calls.
fn conforms_attached(phase: &str, kind: &str, usual: impl Fn(&Path) -> NicText) {
    let installation = Installation::new();
    let segments = Scratch::in_memory("attached");
    let files = Scratch::new("attached");
    let nics = suite_nics(usual(segments.path()), segments.path());
    let confinement = Confinement::of(&["shm", kind]);
    let confined = |program: &Path| confinement.confine(here(program));
    let process = DatapathProcess::start(&files, "", &nics, confined);
    let settings = Settings {
        config: process.config(),
        files: files.path(),
        segments: segments.path(),
        far: "env",
        recovers: false,
        unknown_host: match kind {
            "vi-tcp" => UnknownHost::Refuses,
            _ => UnknownHost::Unreachable,
        },
    };
    let tests = conforms(&installation, phase, &settings, |path| program(path));
    confinement.judge(&process.stop());
    println!("\nnote: {phase}: {tests} tests through a datapath process");
}

fn shm(segments: &Path) -> NicText {
    NicText::shm(segments).key("name", "\"VINIC0\"").steady()
}

/// At an address of this host that no other test has.
fn vi_tcp(_: &Path) -> NicText {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    NicText::vi_tcp_at(&format!("127.32.{high}.{low}")).key("ulp_timeout_ms", 240_000)
}

#[test]
fn early_adopter() {
    conforms_attached("early_adopter", "shm", shm);
}

#[test]
fn functional() {
    conforms_attached("functional", "shm", shm);
}

#[test]
fn full() {
    conforms_attached("full", "shm", shm);
}

#[test]
fn early_adopter_over_vi_tcp() {
    conforms_attached("early_adopter", "vi-tcp", vi_tcp);
}

#[test]
fn functional_over_vi_tcp() {
    conforms_attached("functional", "vi-tcp", vi_tcp);
}

#[test]
fn full_over_vi_tcp() {
    conforms_attached("full", "vi-tcp", vi_tcp);
}

#[test]
fn attached_program_gives_no_descriptor_the_number_of_a_closed_standard_stream() {
    let installation = Installation::new();
    let segments = Scratch::in_memory("streams");
    let files = Scratch::new("streams");
    let nic = NicText::shm(segments.path()).steady();
    let process = DatapathProcess::start(&files, "idle = \"hybrid\"", &nic, here);
    let mut command = program(installation.test_program("vipl/capi/tests/c", "standard_streams"));
    command.env("VIADUCT_CONFIG", process.config());
    let said = Running::start("standard_streams", &mut command).succeed(TIMEOUT);
    assert!(said.ends_with(" passed, 0 failed\n"), "{said}");
    assert!(process.stop().status.success());
}

/// Whoever is told that it is ready can rely on all of its threads: one that could not be started would have been told.
#[test]
fn a_process_that_is_ready_has_all_its_threads() {
    let segments = Scratch::in_memory("threads");
    let files = Scratch::new("threads");
    let nic = |name: &str| NicText::shm(segments.path()).key("name", format!("{name:?}"));
    let nics = ["A", "B", "C", "D", "E", "F", "G"].map(nic);
    let nics = nics.into_iter().fold(nic("H"), NicText::and);
    // Its core has other things to do, too, so that it gets to its NICs late.
    let mut other = program("taskset");
    other.arg("-c").arg(polling_core().to_string());
    other.args(["sh", "-c", "while :; do :; done"]);
    let _other = Running::start("busy", &mut other);
    for _ in 0..5 {
        let process = DatapathProcess::start(&files, "idle = \"hybrid\"", &nics, here);
        let ready = Holdings::alone(&process);
        let deadline = Instant::now() + TIMEOUT;
        let mut stat = process.stat();
        assert_eq!(stat["cores"][0]["core"], polling_core(), "{stat}");
        while stat["cores"][0]["turns"] == 0 {
            assert!(Instant::now() < deadline, "no turn: {stat}");
            stat = process.stat();
        }
        ready.await_again(&process, &[]);
        assert!(process.stop().status.success());
    }
}
