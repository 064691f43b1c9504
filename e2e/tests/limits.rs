//! Resource limits and refused system calls of programs that are attached to a datapath process, and of the process.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use e2e::datapath::{DatapathProcess, here};
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT, as_user, has_user, program, succeed};
use e2e::scratch::Scratch;

const IDLE: &str = "idle = \"hybrid\"";
/// A user ID that no package uses.
const PROCESS_USER: u32 = 64001;
/// A limit of a program is lowered in up to 200 processes.
const STEPS_TIMEOUT: Duration = Duration::from_secs(600);

/// A process, and the program that makes every call.
struct Scene {
    process: DatapathProcess,
    /// The user that the process runs as; `None`: that of the test.
    user: Option<u32>,
    /// Threads of the process without any program.
    own_threads: u64,
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
            None => DatapathProcess::start(&files, IDLE, &nics, here),
        };
        Self {
            own_threads: threads(process.id()),
            process,
            user,
            calls: installation.test_program("vipl/capi/tests/c", "limits"),
            _installation: installation,
            _files: files,
            _segment: segment,
        }
    }

    /// Makes every call under a limit of the program's, in steps; gives what it reports.
    fn make_calls(&self, limit: &str) -> String {
        let mut calls = program(&self.calls);
        calls.env("VIADUCT_CONFIG", self.process.config());
        let said = Running::start("limits", calls.arg(limit)).succeed(STEPS_TIMEOUT);
        let report = said.lines().find(|line| line.starts_with(limit));
        report.unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    /// How many calls are refused that are made without a limit of the program's.
    fn refused(&self) -> usize {
        let report = self.make_calls("none");
        let number = report.split(' ').nth(1).and_then(|n| n.parse().ok());
        number.unwrap_or_else(|| panic!("{report}"))
    }

    /// Waits until the process has ended the threads of all programs.
    fn await_idle(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while threads(self.process.id()) > self.own_threads {
            assert!(Instant::now() < deadline, "threads of programs are left");
            thread::yield_now();
        }
    }

    /// Lowers a limit of the process step by step, with every call in each; how many steps met it.
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
        let mut met = 0;
        for step in 0..limit.steps {
            self.await_idle();
            set(&(in_use + step * limit.step).to_string());
            met += u64::from(self.refused() > 0);
        }
        set(&before);
        met
    }

    /// Runs prlimit(1) on the process; gives what it says.
    fn prlimit(&self, arguments: &[&str]) -> String {
        let mut prlimit = match self.user {
            Some(user) => as_user(user, "prlimit"),
            None => program("prlimit"),
        };
        prlimit.arg(format!("--pid={}", self.process.id()));
        let output = succeed(prlimit.args(arguments));
        let said = String::from_utf8(output.stdout).expect("text");
        said.trim().to_owned()
    }

    /// Ends the process; gives what it said.
    fn end(self) -> String {
        let ended = self.process.stop();
        assert!(ended.status.success(), "{}", ended.text);
        ended.text
    }
}

#[test]
fn attached_programs_survive_each_limit_and_each_refused_system_call() {
    let scene = Scene::new("attached", None);
    for limit in ["AS", "FSIZE", "NOFILE", "max_map_count", "EPERM", "ENOSYS"] {
        println!("\nnote: attached: {}", scene.make_calls(limit));
    }
    assert_eq!(scene.refused(), 0, "the process serves the next program");
    scene.end();
}

/// A limit of a process that runs.
struct ProcessLimit {
    /// The option of prlimit(1).
    name: &'static str,
    /// What the process uses of it.
    in_use: fn(u32) -> u64,
    /// What each step leaves more than the one before.
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
        step: 64 * 1024,
        steps: 4,
    },
    ProcessLimit {
        name: "nproc",
        in_use: threads,
        step: 1,
        steps: 6,
    },
];

/// The number that the next descriptor of a process gets.
fn next_descriptor(process: u32) -> u64 {
    let is_free = |number: &u64| {
        let entry = format!("/proc/{process}/fd/{number}");
        fs::symlink_metadata(entry).is_err()
    };
    (0..).find(is_free).expect("a free number")
}

fn address_space_bytes(process: u32) -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let sizes = fs::read_to_string(format!("/proc/{process}/statm")).expect("a process of ours");
    let pages = sizes.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    pages.expect("pages") * PAGE_BYTES
}

fn threads(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a process of ours");
    tasks.count() as u64
}

#[test]
fn datapath_process_survives_each_of_its_limits() {
    // Root may have any number of threads.
    let user = has_user(PROCESS_USER).then_some(PROCESS_USER);
    let scene = Scene::new("process", user);
    for limit in &PROCESS_LIMITS {
        if limit.name == "nproc" && user.is_none() {
            println!("\nnote: no other users here: a limit on threads is not tried");
            continue;
        }
        let (name, steps, met) = (limit.name, limit.steps, scene.lower(limit));
        println!("\nnote: fcvi-pmd: {name}: {met} of {steps} steps met the limit");
        assert!(
            met > 0 && met < steps,
            "{name}: {met} of {steps} steps met it"
        );
        assert_eq!(scene.refused(), 0, "{name}: the next program is served");
    }
    let said = scene.end();
    assert!(
        said.contains("no file descriptor left: RLIMIT_NOFILE = "),
        "{said}"
    );
}
