//! A hostile application ("intruder") attached to a datapath process, beside an honest pair of programs.
//!
//! The test measures how much the rate of the pair drops by work that the intruder causes in the process. The
//! intruder's own CPU time is excluded: its threads have the lowest priority, and the controls include runs beside two
//! loops of that priority. The pair is paced and does not catch up. Its rate beside the intruder is compared with the
//! minimum of the rates directly before and after, alone and beside the loops, since these measure how busy the machine
//! is. CPU time stolen by the machine's host is subtracted.
//!
//! `INTRUDER_ROUNDS` and `INTRUDER_SEED` set the number of rounds and the seed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::datapath::{DatapathProcess, local_command};
use e2e::installation::workspace;
use e2e::nics::NicText;
use e2e::process::{Line, Running, TIMEOUT, program, succeed, unprivileged, unprivileged_user};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::vi_peer;

/// Default number of rounds.
const ROUNDS: u64 = 4000;
/// One of 20 rounds is run under valgrind and as another user.
const SLOW_SHARE: u64 = 20;
/// Maximum number of rounds under valgrind.
const VALGRIND_ROUNDS: u64 = 2000;
/// Rounds between two measurements without the intruder.
const PART_ROUNDS: u64 = 500;
/// Minimum ratio of the pair's rate beside the intruder to that without it.
const MIN_RATIO: f64 = 0.9;
/// Round trips per second of the honest pair.
const ROUND_TRIPS_PER_S: u32 = 1000;
/// Duration of a measurement without the intruder.
const MEASUREMENT_TIME: Duration = Duration::from_millis(500);
/// Additional timeout for the intruder, which has the lowest priority.
const LOW_PRIORITY_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of control loops; as many as the intruder has threads.
const LOOPS: usize = 2;
/// Maximum growth of the resident memory of the process in the second half of the rounds, in KiB.
const MAX_GROWTH_KIB: u64 = 16 * 1024;
/// Options of valgrind, which exits with a status of its own if it finds an error.
const VALGRIND_OPTIONS: [&str; 6] = [
    "--quiet",
    "--fair-sched=yes",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=97",
];

/// Keys of the process, with the quota of each application.
const PROCESS: &str = "idle = \"hybrid\"\n[process.quota]\nmax_vi = 64\nmax_regions = 64\n\
                       max_descriptors = 4096\nmax_calls = 16\n";

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: must be a number"))
    })
}

fn seed() -> u64 {
    let seed = from_environment("INTRUDER_SEED", u64::from(std::process::id()));
    println!("\nseed {seed}");
    seed
}

/// Builds the intruder.
fn intruder(scratch: &Scratch) -> PathBuf {
    let program = scratch.file("intruder");
    let mut names: Vec<_> = fs::read_dir(workspace().join("e2e/programs/intruder"))
        .expect("the sources")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    names.sort();
    succeed(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g"])
            .args(["-pthread", "-o"])
            .arg(&program)
            .args(names),
    );
    program
}

/// Returns a command with the lowest priority.
fn low_priority(name: impl AsRef<OsStr>) -> Command {
    with_low_priority(program("nice"), name)
}

/// Returns the command `nice` for a program. Not `SCHED_IDLE`: beside other load that gets too little time to end.
fn with_low_priority(mut nice: Command, name: impl AsRef<OsStr>) -> Command {
    nice.args(["-n", "19"]).arg(name);
    nice
}

/// Returns a field of `/proc/PID/status`.
fn status_of(process: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("a running process");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.and_then(|text| text.parse().ok()).expect("a number")
}

/// Resources that must be released after an intruder has ended: descriptors, threads, mappings of memfds.
#[derive(Debug, PartialEq, Eq)]
struct LeakCheck {
    descriptors: usize,
    threads: u64,
    shared_mappings: usize,
}

impl LeakCheck {
    fn of(process: u32) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("a process");
        Self {
            descriptors: descriptors.count(),
            threads: status_of(process, "Threads:"),
            shared_mappings: maps.lines().filter(|l| l.contains("/memfd:")).count(),
        }
    }
}

/// A datapath process and an honest pair of programs attached to it.
struct Target {
    files: Scratch,
    _segment: Scratch,
    process: DatapathProcess,
    server: Running,
    client: Running,
}

impl Target {
    fn new(run: impl Fn(&Path) -> Command) -> Self {
        let (files, segment) = (Scratch::new("intruder"), Scratch::in_memory("segment"));
        let nics = NicText::shm(segment.path()).long_timeouts();
        let own = fs::metadata(files.path()).expect("a directory").uid();
        let users = format!("users = [{own}, {}]\n{PROCESS}", unprivileged_user());
        let process = DatapathProcess::start(&files, &users, &nics, run);
        let peer = || vi_peer::local(process.config());
        let server = vi_peer::serve(peer(), "honest");
        let rate = ["--per-second", &ROUND_TRIPS_PER_S.to_string()];
        let client = vi_peer::ping_with(peer(), "localhost", "honest", "honest", &rate);
        Self {
            files,
            _segment: segment,
            process,
            server,
            client,
        }
    }

    /// Measures the current rate of the honest pair.
    fn measure(&mut self) -> f64 {
        let from = self.reading();
        let mut to = self.reading();
        while to.at - from.at < MEASUREMENT_TIME {
            to = self.reading();
        }
        rate(&from, &to)
    }

    /// Measures the rate of the honest pair without an intruder.
    fn measure_controls(&mut self) -> Controls {
        let alone = self.measure();
        let mut busy = low_priority("sh");
        busy.args(["-c", "while :; do :; done"]);
        let _busy = [(); LOOPS].map(|()| Running::start("a loop", &mut busy));
        let beside_loops = self.measure();
        Controls {
            alone,
            beside_loops,
        }
    }

    /// Reads the progress of the honest pair.
    fn reading(&mut self) -> Reading {
        self.client.discard_output();
        let number = |line: &Line| line.text.rsplit(' ').next().and_then(|n| n.parse().ok());
        let stalls = self.client.wait_for("stalls ", TIMEOUT);
        let alive = self.client.wait_for("alive ", TIMEOUT);
        Reading {
            at: alive.at,
            serial: number(&alive).expect("a number"),
            stalls: number(&stalls).expect("a number"),
            stolen: stolen(),
        }
    }

    /// Waits until the process has released all resources of the intruder.
    fn await_release(&mut self, before: &LeakCheck) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let now = LeakCheck::of(self.process.id());
            if now == *before {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "not released: {now:?}, before: {before:?}"
            );
            self.reading();
        }
    }

    /// Runs the intruder for `rounds`; returns its output.
    fn run_intruder(&self, intruder: &Path, rounds: u64, seed: u64) -> String {
        self.run_intruder_command(low_priority(intruder), rounds, seed)
    }

    fn run_intruder_command(&self, mut command: Command, rounds: u64, seed: u64) -> String {
        command.arg(self.files.file("pmd.sock")).args([
            "VINIC0",
            &rounds.to_string(),
            &seed.to_string(),
        ]);
        let limit = LOW_PRIORITY_TIMEOUT + Duration::from_millis(200) * rounds as u32;
        Running::start("intruder", &mut command).succeed(limit)
    }

    /// Checks that the honest pair had no events, and stops the process; returns its log.
    fn finish(self) -> String {
        let client = Report::read(&self.client.succeed(TIMEOUT));
        assert!(client.get("round_trips") > 0, "{client:?}");
        assert_eq!(
            client.get("events"),
            0,
            "an event at the honest client: {client:?}"
        );
        let mut server = self.server;
        vi_peer::await_disconnect(&mut server, "honest");
        let server = Report::read(&server.succeed(TIMEOUT));
        assert_eq!(
            server.get("events"),
            1,
            "the client's disconnect: {server:?}"
        );
        let log = self.process.stop_and_check();
        assert!(!log.contains("panicked"), "{log}");
        log
    }
}

/// The progress of the honest pair at a time.
struct Reading {
    at: Instant,
    serial: u64,
    /// Round trips so far that took more than 50 ms.
    stalls: u64,
    /// CPU time stolen by the machine's host, per core.
    stolen: Vec<Duration>,
}

/// Returns the round trips per second, without the stolen time of the core with the most stolen time.
fn rate(from: &Reading, to: &Reading) -> f64 {
    let cores = from.stolen.iter().zip(&to.stolen);
    let stolen = cores.map(|(from, to)| to.saturating_sub(*from)).max();
    let passed = (to.at - from.at).saturating_sub(stolen.unwrap_or_default());
    let trips = (to.serial - from.serial) as f64;
    // A core may be stolen while it is idle.
    (trips / passed.as_secs_f64()).min(f64::from(ROUND_TRIPS_PER_S))
}

/// Reads the stolen CPU time of each core.
fn stolen() -> Vec<Duration> {
    /// The unit of /proc/stat (USER_HZ).
    const TICK: Duration = Duration::from_millis(10);
    /// The index of the steal time in the line of a core.
    const STEAL: usize = 8;
    let text = fs::read_to_string("/proc/stat").expect("procfs");
    let of_cores = text.lines().filter(|line| {
        let rest = line.strip_prefix("cpu");
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    let ticks = of_cores.map(|line| line.split_ascii_whitespace().nth(STEAL));
    ticks
        .map(|ticks| TICK * ticks.and_then(|n| n.parse().ok()).unwrap_or(0))
        .collect()
}

/// Round trips per second of the honest pair without an intruder.
#[derive(Clone, Copy)]
struct Controls {
    alone: f64,
    beside_loops: f64,
}

impl Controls {
    fn min(self) -> f64 {
        self.alone.min(self.beside_loops)
    }
}

/// Rates beside the intruder, and directly before and after.
struct Part {
    before: Controls,
    beside: f64,
    /// Stalls of the honest pair beside the intruder.
    stalls: u64,
    after: Controls,
}

impl Part {
    fn ratio(&self) -> f64 {
        self.beside / self.before.min().min(self.after.min())
    }
}

/// Returns the median, which is robust against temporary load of the machine.
fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<_> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Counts of the intruder that must not be 0 in a full run.
const REQUIRED_COUNTS: [&str; 6] = [
    "killed",
    "connections_closed",
    "pairs",
    "regions",
    "completions",
    "captures",
];

#[test]
fn intruder_slows_no_other_program_and_leaves_no_resources() {
    let (rounds, seed) = (from_environment("INTRUDER_ROUNDS", ROUNDS), seed());
    assert!(rounds > 0, "INTRUDER_ROUNDS=0: must be at least 1");
    let mut target = Target::new(local_command);
    let intruder = intruder(&target.files);
    let id = target.process.id();
    let initially = LeakCheck::of(id);
    let (mut counts, mut longest_ms, mut resident) = ([0; REQUIRED_COUNTS.len()], 0, None);
    let count = rounds.div_ceil(PART_ROUNDS);
    let mut parts = Vec::new();
    let mut controls = target.measure_controls();
    for part in 0..count {
        let start = target.reading();
        let left = rounds - part * PART_ROUNDS;
        let output = target.run_intruder(&intruder, PART_ROUNDS.min(left), seed.wrapping_add(part));
        let now = target.reading();
        target.await_release(&initially);
        let before = std::mem::replace(&mut controls, target.measure_controls());
        parts.push(Part {
            before,
            beside: rate(&start, &now),
            stalls: now.stalls - start.stalls,
            after: controls,
        });
        let report = Report::read(&output);
        for (count, name) in counts.iter_mut().zip(REQUIRED_COUNTS) {
            *count += report.get(name);
        }
        longest_ms = longest_ms.max(report.get("longest_ms"));
        if part == count / 2 {
            resident = Some(status_of(id, "VmRSS:"));
        }
    }
    let (half, last) = (resident.unwrap_or(0), status_of(id, "VmRSS:"));
    assert!(last <= half + MAX_GROWTH_KIB, "from {half} to {last} KiB");
    let stalls_in_all = target.reading().stalls;
    target.finish();
    let ratio = median(parts.iter().map(Part::ratio));
    let stalls: u64 = parts.iter().map(|part| part.stalls).sum();
    let parts_without_stalls = parts.iter().filter(|part| part.stalls == 0).count();
    let beside = median(parts.iter().map(|part| part.beside));
    let alone = median(parts.iter().map(|part| part.after.alone));
    let loops = median(parts.iter().map(|part| part.after.beside_loops));
    let counts: Vec<_> = REQUIRED_COUNTS.iter().zip(counts).collect();
    println!(
        "\nnote: {rounds} rounds of an intruder: {beside:.0} round trips a second beside it, {alone:.0} alone, \
         {loops:.0} beside loops, {ratio:.2} of the minimum; {stalls} stalls of more than 50 ms beside it, {} without it; \
         at most {longest_ms} ms until an honest application was served; \
         {half} KiB resident after half of them, {last} after all; {counts:?}",
        stalls_in_all - stalls
    );
    assert!(
        rounds < ROUNDS || counts.iter().all(|(_, count)| *count > 0),
        "{counts:?}"
    );
    assert!(
        ratio >= MIN_RATIO,
        "{ratio:.2} of the rate without an intruder"
    );
    // Temporary load of the machine may cause stalls at any time.
    assert!(
        2 * parts_without_stalls > parts.len(),
        "{stalls} stalls, none in {parts_without_stalls} of {} parts only",
        parts.len()
    );
}

#[test]
fn intruder_of_another_user_takes_no_pages_and_leaves_no_resources() {
    let rounds = from_environment("INTRUDER_ROUNDS", ROUNDS).div_ceil(SLOW_SHARE);
    let seed = seed();
    let mut target = Target::new(local_command);
    let intruder = intruder(&target.files);
    let initially = LeakCheck::of(target.process.id());
    let unprivileged = with_low_priority(unprivileged("nice"), &intruder);
    // It fails if it could remove a page.
    let report = Report::read(&target.run_intruder_command(unprivileged, rounds, seed));
    target.await_release(&initially);
    target.finish();
    println!("\nnote: an intruder of another user: {report:?}");
    assert!(report.get("attached") > 0, "{report:?}");
    assert!(rounds < 100 || report.get("regions") > 0, "{report:?}");
}

#[test]
fn valgrind_finds_no_errors_in_a_process_with_an_intruder() {
    let rounds = from_environment("INTRUDER_ROUNDS", ROUNDS).div_ceil(SLOW_SHARE);
    let seed = seed();
    let target = Target::new(|program| {
        let mut command = local_command(Path::new("valgrind"));
        command.args(VALGRIND_OPTIONS).arg(program);
        command
    });
    let intruder = intruder(&target.files);
    let output = target.run_intruder(&intruder, rounds.min(VALGRIND_ROUNDS), seed);
    let text = target.finish();
    assert!(!text.lines().any(|line| line.starts_with("==")), "{text}");
    println!("\nnote: under valgrind: {:?}", Report::read(&output));
}
