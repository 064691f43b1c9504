//! Programs attached to a datapath process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::datapath::{DatapathProcess, here, polling_core};
use e2e::holdings::Holdings;
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{Running, program};
use e2e::scratch::Scratch;

/// Longer than any program of the suite takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The NICs that the conformance suite wants (vipl/capi/tests/common).
fn suite_nics(segments: &Path) -> NicText {
    let shm = |name: &str| NicText::shm(segments).key("name", format!("{name:?}"));
    let named = |name: &str| {
        let directory = segments.join(name);
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    shm("VINIC0")
        .steady()
        .and(named("SMALL").steady().with_little())
        .and(named("FRAGILE").steady())
        .and(
            named("LOSSY")
                .quick()
                .key("shortcut", false)
                .key("fault", "{ seed = 3, loss_ppm = 20000 }"),
        )
        .and(
            named("DAMAGED")
                .quick()
                .key("shortcut", false)
                .key("fault", "{ seed = 5, corruption_ppm = 20000 }"),
        )
}

/// The file that the test of a failing NIC cuts short.
fn fragile_segment(segments: &Path) -> PathBuf {
    let directory = segments.join("FRAGILE");
    let user = fs::metadata(&directory).expect("our own directory").uid();
    directory.join(format!("viaduct-{user}-e2e/segment"))
}

/// Every program of a phase, its two processes attached to one datapath process.
fn conforms(phase: &str) {
    let installation = Installation::new();
    let segments = Scratch::in_memory("attached");
    let files = Scratch::new("attached");
    let process = DatapathProcess::start(&files, "", &suite_nics(segments.path()), here);
    let (mut tests, mut failed) = (0, Vec::new());
    for path in installation.conformance(phase) {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("text");
        let mut command = program(&path);
        command
            .arg(files.path())
            .env("VIADUCT_CONFIG", process.config())
            .env("FRAGILE_SEGMENT", fragile_segment(segments.path()))
            .env("VIPL_TEST_PEER", "env");
        let ended = Running::start(name, &mut command).finish(PATIENCE);
        if !ended.status.success() || !ended.text.contains(" passed, 0 failed\n") {
            failed.push(format!("{name}: {}\n{}", ended.status, ended.text));
        }
        tests += ended
            .text
            .lines()
            .filter(|line| line.starts_with("run "))
            .count();
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(tests > 0, "no test of {phase}");
    let ended = process.stop();
    assert!(ended.status.success(), "{}", ended.text);
    println!("\nnote: {phase}: {tests} tests through a datapath process");
}

#[test]
fn early_adopter() {
    conforms("early_adopter");
}

#[test]
fn functional() {
    conforms("functional");
}

#[test]
fn full() {
    conforms("full");
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
        let deadline = Instant::now() + PATIENCE;
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
