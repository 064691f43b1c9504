//! The conformance suite between two hosts: each program here, and its far process on the other side of a wire.

use std::path::{Path, PathBuf};

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::program;
use e2e::scratch::Scratch;
use e2e::suite::{DAMAGED, LOSSY, Settings, UnknownHost, conforms, fragile};
use e2e::wire::Wire;

/// The NICs that the suite wants (vipl/capi/tests/common): one as usual, one that has little of everything,
/// two on bad wires, whose frames are lost for good, and one to be damaged. What the second and the last one are for stays within a process.
fn nics(end: End, segments: &Path) -> NicText {
    let bad = |name: &str, number: u8, fault: &str| {
        NicText::further_af_packet(end, name, number)
            .quick()
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
        .with_little()
        .key("ulp_timeout_ms", 240_000)
}

struct Hosts {
    segments: Scratch,
    files: Scratch,
    here: PathBuf,
    there: PathBuf,
}

fn hosts() -> Hosts {
    let segments = Scratch::in_memory("conformance");
    let files = Scratch::new("conformance");
    Hosts {
        here: nics(End::Left, segments.path()).write(&files, "here.toml"),
        there: nics(End::Right, segments.path()).write(&files, "there.toml"),
        segments,
        files,
    }
}

/// The words that start a far process on the other host.
fn far_words(wire: &Wire, config: &Path) -> String {
    let mut words: Vec<String> = wire.right.words().into();
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
    let far = far_words(&wire, &hosts.there);
    let settings = Settings {
        config: &hosts.here,
        files: hosts.files.path(),
        segments: hosts.segments.path(),
        far: &far,
        recovers: true,
        unknown_host: UnknownHost::Unreachable,
    };
    let run = |path: &Path| wire.left.program(path);
    let tests = conforms(&installation, phase, &settings, run);
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
