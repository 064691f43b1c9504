//! The conformance suite: its programs, the NICs that it requires, and its environment.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::installation::Installation;
use crate::nics::{End, NicText};
use crate::process::{Running, program};
use crate::scratch::Scratch;
use crate::wire::Wire;

/// Directories of the suite: the phases of the guide.
pub const PHASES: [&str; 3] = ["early_adopter", "functional", "full"];
/// Upper limit for one program of the suite on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Value of the key `fault` of the NIC that loses frames.
pub const LOSSY: &str = "{ seed = 3, loss_ppm = 20000 }";
/// Value of the key `fault` of the NIC that damages frames.
pub const DAMAGED: &str = "{ seed = 5, corruption_ppm = 20000 }";

/// Returns the NIC `FRAGILE`, whose segment the suite truncates; the segment is in a directory below `segments`.
///
/// # Panics
/// If the directory cannot be created.
pub fn fragile(segments: &Path) -> NicText {
    let directory = segments.join("fragile");
    fs::create_dir_all(&directory).expect("a directory");
    NicText::shm(&directory).key("name", "\"FRAGILE\"")
}

/// Returns the file of [`fragile`] that the suite truncates.
///
/// # Panics
/// If there is no such directory.
pub fn fragile_segment(segments: &Path) -> PathBuf {
    let directory = segments.join("fragile");
    let user = fs::metadata(&directory).expect("our own directory").uid();
    directory.join(format!("viaduct-{user}-e2e/segment"))
}

/// The environment of the programs of the suite.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The configuration file.
    pub config: &'a Path,
    /// A directory for temporary files.
    pub files: &'a Path,
    /// The parent directory of the segment of [`fragile`].
    pub segments: &'a Path,
    /// The command prefix that starts a remote process.
    pub remote_command: &'a str,
    /// Whether the usual NIC retransmits lost frames.
    pub has_recovery: bool,
    /// The reaction of the usual NIC's network to a host that does not exist.
    pub unknown_host: UnknownHost,
}

/// Reactions of a network to a host that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownHost {
    /// The host is not in the configuration.
    Unreachable,
    /// There is no response.
    Silent,
    /// The connection is refused.
    Refuses,
}

/// Runs all programs of a phase, by the commands that `run` returns; returns the number of tests.
///
/// # Panics
/// If one fails, with the output of all that failed.
pub fn run_phase(
    installation: &Installation,
    phase: &str,
    settings: &Settings<'_>,
    run: impl Fn(&Path) -> Command,
) -> usize {
    let (mut tests, mut failed) = (0, Vec::new());
    for path in installation.conformance(phase) {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("text");
        let mut command = run(&path);
        command
            .arg(settings.files)
            .env("VIADUCT_CONFIG", settings.config)
            .env("FRAGILE_SEGMENT", fragile_segment(settings.segments))
            .env("VIPL_TEST_PEER", settings.remote_command);
        if settings.has_recovery {
            command.env("VIPL_TEST_RECOVERY", "1");
        }
        match settings.unknown_host {
            UnknownHost::Unreachable => {}
            UnknownHost::Silent => {
                command.env("VIPL_TEST_UNKNOWN_HOST", "silent");
            }
            UnknownHost::Refuses => {
                command.env("VIPL_TEST_UNKNOWN_HOST", "refuses");
            }
        }
        let ended = Running::start(name, &mut command).finish(TIMEOUT);
        let lines = |start: &str| ended.text.lines().filter(|l| l.starts_with(start)).count();
        let passed = ended.status.success() && ended.text.contains(" passed, 0 failed\n");
        if !passed || lines("skipped ") > 0 {
            failed.push(format!("{name}: {}\n{}", ended.status, ended.text));
        }
        tests += lines("run ");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(tests > 0, "no test of {phase}");
    tests
}

/// Returns a NIC of this name on a shared memory segment in a directory of its own below `segments`.
///
/// # Panics
/// If the directory cannot be created.
pub fn shm_named(segments: &Path, name: &str) -> NicText {
    let directory = segments.join(name.to_lowercase());
    fs::create_dir_all(&directory).expect("a directory");
    NicText::shm(&directory).key("name", format!("{name:?}"))
}

/// Returns the NICs that the suite requires besides `usual`, on segments of their own.
pub fn with_shm_nics(usual: NicText, segments: &Path) -> NicText {
    let shm = |name| shm_named(segments, name);
    usual
        .and(shm("SMALL").small_limits().key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(shm("LOSSY").short_timeouts().key("fc_vi.fault", LOSSY))
        .and(shm("DAMAGED").short_timeouts().key("fc_vi.fault", DAMAGED))
}

/// Runs a phase between the two ends of a wire; `nics` returns the NICs of an end, with segments below a directory.
///
/// # Panics
/// If a test fails.
pub fn run_between_hosts(
    phase: &str,
    wire: &Wire,
    has_recovery: bool,
    unknown_host: UnknownHost,
    nics: impl Fn(End, &Path) -> NicText,
) {
    let installation = Installation::new();
    let (segments, files) = (
        Scratch::in_memory("conformance"),
        Scratch::new("conformance"),
    );
    let [left, right] = [End::Left, End::Right]
        .map(|end| nics(end, segments.path()).write(&files, end.interface()));
    let mut words: Vec<String> = wire.right.command_prefix().into();
    let outside = program("env");
    let outside = std::iter::once(outside.get_program()).chain(outside.get_args());
    words.extend(outside.map(|word| word.to_str().expect("text").to_owned()));
    words.push(format!("VIADUCT_CONFIG={}", right.display()));
    let settings = Settings {
        config: &left,
        files: files.path(),
        segments: segments.path(),
        remote_command: &words.join(" "),
        has_recovery,
        unknown_host,
    };
    let run = |path: &Path| wire.left.program(path);
    let tests = run_phase(&installation, phase, &settings, run);
    println!("\nnote: {phase}: {tests} tests between two hosts");
}
