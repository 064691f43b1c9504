//! The conformance suite between two hosts on a wire.

use std::path::{Path, PathBuf};

use e2e::conformance_suite::{DAMAGED, LOSSY, Settings, UnknownHost, fragile, run_phase};
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::program;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Returns the NICs that the suite requires (vipl/capi/tests/common): the usual one; SMALL with small limits; LOSSY
/// and DAMAGED with faults and without recovery; FRAGILE, whose segment is truncated. SMALL and FRAGILE are used
/// within one process only.
fn nics(end: End, segments: &Path) -> NicText {
    let bad = |name: &str, number: u8, fault: &str| {
        NicText::additional_af_packet(end, name, number)
            .short_timeouts()
            .key("probe_interval_ms", 100)
            .key("recovery", false)
            .key("fault", fault)
    };
    NicText::af_packet(end)
        .key("name", "\"VINIC0\"")
        .key("probe_interval_ms", 100)
        .key("r_a_tov_ms", 1000)
        .key("ulp_timeout_ms", 4000)
        .and(small(segments))
        .and(fragile(segments))
        .and(bad("LOSSY", 1, LOSSY))
        .and(bad("DAMAGED", 2, DAMAGED))
}

fn small(segments: &Path) -> NicText {
    NicText::shm(segments)
        .key("name", "\"SMALL\"")
        .small_limits()
        .key("ulp_timeout_ms", 240_000)
}

struct Hosts {
    segments: Scratch,
    files: Scratch,
    left: PathBuf,
    right: PathBuf,
}

fn hosts() -> Hosts {
    let segments = Scratch::in_memory("conformance");
    let files = Scratch::new("conformance");
    Hosts {
        left: nics(End::Left, segments.path()).write(&files, "left.toml"),
        right: nics(End::Right, segments.path()).write(&files, "right.toml"),
        segments,
        files,
    }
}

/// Returns the command prefix that starts a process on the right host.
fn remote_command(wire: &Wire, config: &Path) -> String {
    let mut words: Vec<String> = wire.right.command_prefix().into();
    let outside = program("env");
    words.extend([&outside].into_iter().flat_map(|command| {
        let name = std::iter::once(command.get_program());
        name.chain(command.get_args())
            .map(|word| word.to_str().expect("text").to_owned())
    }));
    words.push(format!("VIADUCT_CONFIG={}", config.display()));
    words.join(" ")
}

fn between_two_hosts(phase: &str) {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let hosts = hosts();
    let remote_command = remote_command(&wire, &hosts.right);
    let settings = Settings {
        config: &hosts.left,
        files: hosts.files.path(),
        segments: hosts.segments.path(),
        remote_command: &remote_command,
        has_recovery: true,
        unknown_host: UnknownHost::Unreachable,
    };
    let run = |path: &Path| wire.left.program(path);
    let tests = run_phase(&installation, phase, &settings, run);
    println!("\nnote: {phase}: {tests} tests between two hosts");
}

#[test]
fn early_adopter() {
    between_two_hosts("early_adopter");
}

#[test]
fn functional() {
    between_two_hosts("functional");
}

#[test]
fn full() {
    between_two_hosts("full");
}
