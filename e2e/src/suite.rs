//! The conformance suite: its programs, the NICs that it wants, and how it is run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::installation::Installation;
use crate::nics::NicText;
use crate::process::Running;

/// The folders of the suite: the phases of the guide.
pub const PHASES: [&str; 3] = ["early_adopter", "functional", "full"];
/// Longer than any program of the suite takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What the NICs with bad wires do to frames, as the value of `fault`.
pub const LOSSY: &str = "{ seed = 3, loss_ppm = 20000 }";
/// The same for the other one.
pub const DAMAGED: &str = "{ seed = 5, corruption_ppm = 20000 }";

/// The NIC to be damaged, which is of one host: its segment is of its own, below this directory.
///
/// # Panics
/// If there is no room for a directory.
pub fn fragile(segments: &Path) -> NicText {
    let directory = segments.join("fragile");
    fs::create_dir_all(&directory).expect("a directory");
    NicText::shm(&directory).key("name", "\"FRAGILE\"")
}

/// The file of [`fragile`] that the test of a failing NIC cuts short.
///
/// # Panics
/// If there is no such directory.
pub fn fragile_segment(segments: &Path) -> PathBuf {
    let directory = segments.join("fragile");
    let user = fs::metadata(&directory).expect("our own directory").uid();
    directory.join(format!("viaduct-{user}-e2e/segment"))
}

/// What the programs of the suite find in their environment.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The configuration, and where files may be made.
    pub config: &'a Path,
    /// A directory for files.
    pub files: &'a Path,
    /// Where the segment of [`fragile`] is.
    pub segments: &'a Path,
    /// The words that start the far process.
    pub far: &'a str,
    /// Does the usual NIC send again what its wire loses?
    pub recovers: bool,
    /// How the network of the usual NIC answers for a host that does not exist.
    pub unknown_host: UnknownHost,
}

/// How a network answers for a host that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownHost {
    /// The configuration names all hosts.
    Unreachable,
    /// There is no answer.
    Silent,
    /// The connection is refused.
    Refuses,
}

/// Runs every program of a phase, which `run` makes a command; gives the number of tests.
///
/// # Panics
/// If one fails, with what all that failed have said.
pub fn conforms(
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
            .env("VIPL_TEST_PEER", settings.far);
        if settings.recovers {
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
        if !passed || lines("elsewhere ") > 0 {
            failed.push(format!("{name}: {}\n{}", ended.status, ended.text));
        }
        tests += lines("run ");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(tests > 0, "no test of {phase}");
    tests
}
