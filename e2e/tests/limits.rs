//! Resource limits and failing system calls of attached programs, and resource limits of the datapath process.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use e2e::datapath::{DatapathProcess, local_command};
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT, as_user, has_user, program, succeed};
use e2e::scratch::Scratch;

const IDLE: &str = "idle = \"hybrid\"";
/// A user ID that no package uses.
const PROCESS_USER: u32 = 64001;
/// Timeout for all steps of one limit, with up to 200 processes.
const STEPS_TIMEOUT: Duration = Duration::from_secs(600);

/// A datapath process, and a program that makes all calls.
struct Scene {
    process: DatapathProcess,
    /// The user of the process; `None`: that of the test.
    user: Option<u32>,
    /// Threads of the process without applications.
    baseline_threads: u64,
    calls: PathBuf,
    _installation: Installation,
    _files: Scratch,
    _segment: Scratch,
}

impl Scene {
    fn new(name: &str, user: Option<u32>) -> Self {
        let installation = Installation::new();
        let (files, segment) = (Scratch::new(name), Scratch::in_memory(name));
        let nics = NicText::shm(segment.path());
        let process = match user {
            Some(user) => {
                let keys = format!("{IDLE}\nusers = [0]");
                DatapathProcess::start_as(user, (&files, &segment), &keys, &nics)
            }
            None => DatapathProcess::start(&files, IDLE, &nics, local_command),
        };
        Self {
            baseline_threads: threads(process.id()),
            process,
            user,
            calls: installation.test_program("vipl/capi/tests/c", "limits"),
            _installation: installation,
            _files: files,
            _segment: segment,
        }
    }

    /// Makes all calls under a limit of the program that is lowered in steps; returns the report line.
    fn make_calls(&self, limit: &str) -> String {
        let mut calls = program(&self.calls);
        calls.env("VIADUCT_CONFIG", self.process.config());
        let output = Running::start("limits", calls.arg(limit)).succeed(STEPS_TIMEOUT);
        let report = output.lines().find(|line| line.starts_with(limit));
        report.unwrap_or_else(|| panic!("{output}")).to_owned()
    }

    /// Makes all calls without a limit of the program; returns the number of failed calls.
    fn failed_calls(&self) -> usize {
        let report = self.make_calls("none");
        let number = report.split(' ').nth(1).and_then(|n| n.parse().ok());
        number.unwrap_or_else(|| panic!("{report}"))
    }

    /// Waits until the process has ended the threads of all applications.
    fn await_idle(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while threads(self.process.id()) > self.baseline_threads {
            assert!(Instant::now() < deadline, "threads of programs are left");
            thread::yield_now();
        }
    }

    /// Lowers a limit of the process in steps and makes all calls in each; returns the number of steps with failed
    /// calls.
    fn lower(&self, limit: &ProcessLimit) -> u64 {
        let before = self.prlimit(&[
            &format!("--{}", limit.name),
            "--raw",
            "--noheadings",
            "--output=SOFT",
        ]);
        let set = |value: &str| self.prlimit(&[&format!("--{}={value}:", limit.name)]);
        self.await_idle();
        let in_use = (limit.in_use)(self.process.id());
        let mut failed = 0;
        for step in 0..limit.steps {
            self.await_idle();
            set(&(in_use + step * limit.step).to_string());
            failed += u64::from(self.failed_calls() > 0);
        }
        set(&before);
        failed
    }

    /// Runs prlimit(1) on the process; returns its output.
    fn prlimit(&self, arguments: &[&str]) -> String {
        let mut prlimit = match self.user {
            Some(user) => as_user(user, "prlimit"),
            None => program("prlimit"),
        };
        prlimit.arg(format!("--pid={}", self.process.id()));
        let output = succeed(prlimit.args(arguments));
        let output = String::from_utf8(output.stdout).expect("text");
        output.trim().to_owned()
    }
}

#[test]
fn attached_programs_survive_each_limit_and_each_failing_system_call() {
    let scene = Scene::new("attached", None);
    for limit in ["AS", "FSIZE", "NOFILE", "max_map_count", "EPERM", "ENOSYS"] {
        println!("\nnote: attached: {}", scene.make_calls(limit));
    }
    assert_eq!(
        scene.failed_calls(),
        0,
        "the process serves the next program"
    );
    scene.process.stop_and_check();
}

/// A resource limit of a running process.
struct ProcessLimit {
    /// The option of prlimit(1).
    name: &'static str,
    /// Returns the current use.
    in_use: fn(u32) -> u64,
    /// The increment of the limit per step.
    step: u64,
    steps: u64,
}

const PROCESS_LIMITS: [ProcessLimit; 4] = [
    ProcessLimit {
        name: "nofile",
        in_use: next_descriptor,
        step: 1,
        steps: 16,
    },
    ProcessLimit {
        name: "as",
        in_use: address_space_bytes,
        step: 512 * 1024,
        steps: 40,
    },
    ProcessLimit {
        name: "fsize",
        in_use: |_| 0,
        step: 256 * 1024,
        steps: 4,
    },
    ProcessLimit {
        name: "nproc",
        in_use: threads,
        step: 1,
        steps: 6,
    },
];

/// Returns the number of the next descriptor that a process opens.
fn next_descriptor(process: u32) -> u64 {
    let is_free = |number: &u64| {
        let entry = format!("/proc/{process}/fd/{number}");
        fs::symlink_metadata(entry).is_err()
    };
    (0..).find(is_free).expect("a free number")
}

fn address_space_bytes(process: u32) -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let sizes = fs::read_to_string(format!("/proc/{process}/statm")).expect("a running process");
    let pages = sizes.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    pages.expect("pages") * PAGE_BYTES
}

fn threads(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a running process");
    tasks.count() as u64
}

#[test]
fn datapath_process_survives_each_of_its_limits() {
    // RLIMIT_NPROC does not apply to root.
    let user = has_user(PROCESS_USER).then_some(PROCESS_USER);
    let scene = Scene::new("process", user);
    for limit in &PROCESS_LIMITS {
        if limit.name == "nproc" && user.is_none() {
            println!("\nnote: skipped: a limit on threads needs another user");
            continue;
        }
        let (name, steps, failed) = (limit.name, limit.steps, scene.lower(limit));
        println!("\nnote: fcvi-pmd: {name}: {failed} of {steps} steps reached the limit");
        assert!(
            failed > 0 && failed < steps,
            "{name}: {failed} of {steps} steps reached the limit"
        );
        assert_eq!(
            scene.failed_calls(),
            0,
            "{name}: the next program is served"
        );
    }
    let output = scene.process.stop_and_check();
    assert!(
        output.contains("no file descriptor left: RLIMIT_NOFILE = "),
        "{output}"
    );
}
