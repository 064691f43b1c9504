//! The conformance suite with programs attached to a datapath process; standard streams and threads of both.

use std::path::Path;
use std::time::Duration;

use e2e::confined::Confinement;
use e2e::conformance_suite::{
    DAMAGED, LOSSY, Settings, UnknownHost, fragile, run_phase, shm_named,
};
use e2e::datapath::{DatapathProcess, local_command, polling_core};
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{Running, program};
use e2e::resource_usage::ResourceUsage;
use e2e::scratch::Scratch;

/// Upper limit for one program of the suite on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the NICs that the conformance suite requires (vipl/capi/tests/common); `usual` is `VINIC0`.
fn suite_nics(usual: NicText, segments: &Path) -> NicText {
    let named = |name: &str| shm_named(segments, name);
    usual
        .and(named("SMALL").long_timeouts().small_limits())
        .and(fragile(segments).long_timeouts())
        .and(
            named("LOSSY")
                .short_timeouts()
                .key("fc_vi.shortcut", false)
                .key("fc_vi.fault", LOSSY),
        )
        .and(
            named("DAMAGED")
                .short_timeouts()
                .key("fc_vi.shortcut", false)
                .key("fc_vi.fault", DAMAGED),
        )
}

/// Runs a phase with all processes attached to one datapath process, whose `VINIC0` is `usual`, of this kind. Its poll
/// threads may make only the listed system calls.
fn run_phase_attached(phase: &str, kind: &str, usual: impl Fn(&Path) -> NicText) {
    let installation = Installation::new();
    let segments = Scratch::in_memory("attached");
    let files = Scratch::new("attached");
    let nics = suite_nics(usual(segments.path()), segments.path());
    let confinement = Confinement::of(&["shm", kind]);
    let confined = |program: &Path| confinement.confine(local_command(program));
    let process = DatapathProcess::start(&files, "", &nics, confined);
    let settings = Settings {
        config: process.config(),
        files: files.path(),
        segments: segments.path(),
        remote_command: "env",
        has_recovery: false,
        unknown_host: match kind {
            "vi-tcp" => UnknownHost::Refuses,
            _ => UnknownHost::Unreachable,
        },
    };
    let tests = run_phase(&installation, phase, &settings, |path| program(path));
    confinement.check(&process.stop());
    println!("\nnote: {phase}: {tests} tests through a datapath process");
}

fn shm(segments: &Path) -> NicText {
    NicText::shm(segments)
        .key("name", "\"VINIC0\"")
        .long_timeouts()
}

/// A NIC at a loopback address that no other test uses.
fn vi_tcp(_: &Path) -> NicText {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    NicText::vi_tcp_at(&format!("127.32.{high}.{low}")).key("ulp_timeout_ms", 240_000)
}

#[test]
fn early_adopter() {
    run_phase_attached("early_adopter", "shm", shm);
}

#[test]
fn functional() {
    run_phase_attached("functional", "shm", shm);
}

#[test]
fn full() {
    run_phase_attached("full", "shm", shm);
}

#[test]
fn early_adopter_over_vi_tcp() {
    run_phase_attached("early_adopter", "vi-tcp", vi_tcp);
}

#[test]
fn functional_over_vi_tcp() {
    run_phase_attached("functional", "vi-tcp", vi_tcp);
}

#[test]
fn full_over_vi_tcp() {
    run_phase_attached("full", "vi-tcp", vi_tcp);
}

#[test]
fn attached_program_does_not_reuse_closed_standard_streams() {
    let installation = Installation::new();
    let segments = Scratch::in_memory("streams");
    let files = Scratch::new("streams");
    let nic = NicText::shm(segments.path()).long_timeouts();
    let process = DatapathProcess::local(&files, &nic);
    let mut command = program(installation.test_program("vipl/capi/tests/c", "standard_streams"));
    command.env("VIADUCT_CONFIG", process.config());
    let output = Running::start("standard_streams", &mut command).succeed(TIMEOUT);
    assert!(output.ends_with(" passed, 0 failed\n"), "{output}");
    process.stop_and_check();
}

/// `ready` is reported after the start of all threads, so that a failed start is reported instead.
#[test]
fn ready_process_has_started_all_threads() {
    let segments = Scratch::in_memory("threads");
    let files = Scratch::new("threads");
    let nic = |name: &str| NicText::shm(segments.path()).key("name", format!("{name:?}"));
    let nics = ["A", "B", "C", "D", "E", "F", "G"].map(nic);
    let nics = nics.into_iter().fold(nic("H"), NicText::and);
    // Another program uses the core, so that its NICs are polled late.
    let mut other = program("taskset");
    other.arg("-c").arg(polling_core().to_string());
    other.args(["sh", "-c", "while :; do :; done"]);
    let _other = Running::start("busy", &mut other);
    for _ in 0..5 {
        let process = DatapathProcess::local(&files, &nics);
        let baseline = ResourceUsage::without_applications(&process);
        let stat = process.await_stat("a turn", |stat| stat["cores"][0]["turns"] != 0);
        assert_eq!(stat["cores"][0]["core"], polling_core(), "{stat}");
        baseline.wait_until_restored(&process, &[]);
        process.stop_and_check();
    }
}
