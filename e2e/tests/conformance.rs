//! The conformance suite between two hosts: each program here, and its far process on the other side of a wire.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, program};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Longer than any program of the suite takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The NICs that the suite wants (vipl/capi/tests/common): one as usual, one that has little of everything,
/// two on bad wires, whose frames are lost for good, and one to be damaged. What the second and the last one are for stays within a process.
fn nics(end: End, segments: &Path) -> NicText {
    let bad = |name: &str, number: u8, fault: &str| {
        NicText::further_af_packet(end, name, number)
            .quick()
            .key("probe_interval_ms", 100)
            .key("recovery", false)
            .key("fault", format!("{{ {fault} }}"))
    };
    NicText::af_packet(end)
        .key("name", "\"VINIC0\"")
        .key("probe_interval_ms", 100)
        .key("r_a_tov_ms", 1000)
        .key("ulp_timeout_ms", 4000)
        .and(small(segments))
        .and(NicText::shm(&fragile_directory(segments)).key("name", "\"FRAGILE\""))
        .and(bad("LOSSY", 1, "seed = 3, loss_ppm = 20000"))
        .and(bad("DAMAGED", 2, "seed = 5, corruption_ppm = 20000"))
}

fn small(segments: &Path) -> NicText {
    NicText::shm(segments)
        .key("name", "\"SMALL\"")
        .with_little()
        .key("ulp_timeout_ms", 240_000)
}

/// Where the NIC to be damaged has its segment.
fn fragile_directory(segments: &Path) -> PathBuf {
    segments.join("fragile")
}

struct Hosts {
    segments: Scratch,
    files: Scratch,
    here: PathBuf,
    there: PathBuf,
}

fn hosts() -> Hosts {
    let segments = Scratch::in_memory("conformance");
    fs::create_dir(fragile_directory(segments.path())).expect("a directory");
    let files = Scratch::new("conformance");
    Hosts {
        here: nics(End::Left, segments.path()).write(&files, "here.toml"),
        there: nics(End::Right, segments.path()).write(&files, "there.toml"),
        segments,
        files,
    }
}

impl Hosts {
    /// The file that the test of a failing NIC cuts short.
    fn fragile_segment(&self) -> PathBuf {
        let directory = fragile_directory(self.segments.path());
        let user = fs::metadata(&directory).expect("our own directory").uid();
        directory.join(format!("viaduct-{user}-e2e/segment"))
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
    let mut tests = 0;
    for path in installation.conformance(phase) {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("text");
        let mut command = wire.left.program(&path);
        command
            .arg(hosts.files.path())
            .env("VIADUCT_CONFIG", &hosts.here)
            .env("FRAGILE_SEGMENT", hosts.fragile_segment())
            .env("VIPL_TEST_PEER", &far)
            .env("VIPL_TEST_RECOVERY", "1");
        let said = Running::start(name, &mut command).succeed(PATIENCE);
        assert!(said.contains(" passed, 0 failed\n"), "{name}: {said}");
        let ran = said.lines().filter(|line| line.starts_with("run ")).count();
        let waits = said
            .lines()
            .filter(|line| line.starts_with("elsewhere "))
            .count();
        assert_eq!(waits, 0, "{name}: {said}");
        tests += ran;
    }
    assert!(tests > 0, "no test of {phase}");
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
