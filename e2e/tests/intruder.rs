//! A datapath process with an intruder in it, and an honest pair of programs beside.
//!
//! What the pair keeps of its rate is to be the process's merit. So the intruder's own threads run
//! where nobody else wants a core (`SCHED_IDLE`), and what they take by running shows beside two
//! loops of the same kind that have nothing to do with the process. What the intruder makes the
//! process do counts in full. The pair is paced and makes up for nothing. What it does beside the
//! intruder is compared with what it does directly before and after, alone and beside the loops:
//! with the least of it, since what a machine is short of then it is short of in between. Time in which
//! the machine's host took a core away is no time.
//!
//! `INTRUDER_ROUNDS` and `INTRUDER_SEED` choose how much is played, and what.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::datapath::{DatapathProcess, here};
use e2e::installation::workspace;
use e2e::nics::NicText;
use e2e::process::{Line, Running, TIMEOUT, program, succeed, unprivileged, unprivileged_user};
use e2e::report::Report;
use e2e::scratch::Scratch;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Rounds of a test, where nobody says more.
const ROUNDS: u64 = 4000;
/// Of so many, one is played again under valgrind; of these so many at most.
const WATCHED_SHARE: u64 = 20;
const WATCHED_ROUNDS: u64 = 2000;
/// In parts of so many, with the honest pair without an intruder before and after each.
const PART_ROUNDS: u64 = 500;
/// Of what it does without the intruder, the pair does so much beside it.
const KEPT: f64 = 0.9;
/// Round trips in a second that the honest pair makes.
const PACE: u32 = 1000;
/// How long it is alone between two parts, and how long beside the loops.
const ALONE: Duration = Duration::from_millis(500);
/// What others on the machine may take of the intruder's time: it runs where they want no core.
const SLOWEST: Duration = Duration::from_secs(600);
/// Loops that have nothing to do with the process: as many as the intruder has threads.
const LOOPS: usize = 2;
/// What the process may have more after all rounds than after half of them, in KiB.
const GROWTH_KIB: u64 = 16 * 1024;
/// What valgrind looks for; it says by its status whether it found something.
const WATCH: [&str; 6] = [
    "--quiet",
    "--fair-sched=yes",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=97",
];

/// What every application may have.
const PROCESS: &str = "idle = \"hybrid\"\n[process.quota]\nmax_vi = 64\nmax_regions = 64\n\
                       max_descriptors = 4096\nmax_calls = 16\n";

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: must be a number"))
    })
}

fn seed() -> u64 {
    let seed = from_environment("INTRUDER_SEED", u64::from(std::process::id()));
    println!("\nseed {seed}");
    seed
}

/// Builds the program.
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

/// A program that runs where nobody else wants the core.
fn idle(name: impl AsRef<OsStr>) -> Command {
    on_idle_core(program("chrt"), name)
}

fn on_idle_core(mut chrt: Command, name: impl AsRef<OsStr>) -> Command {
    chrt.args(["--idle", "0"]).arg(name);
    chrt
}

/// The number behind a name in what the kernel says of a process.
fn status_of(process: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("a process that lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.and_then(|text| text.parse().ok()).expect("a number")
}

/// What an intruder must not leave behind: descriptors, threads, and mapped memory by name.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    descriptors: usize,
    threads: u64,
    shared_mappings: usize,
}

impl Belongings {
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

/// A process, and an honest pair that is attached to it.
struct House {
    files: Scratch,
    _segment: Scratch,
    process: DatapathProcess,
    server: Running,
    client: Running,
}

impl House {
    fn new(run: impl Fn(&Path) -> Command) -> Self {
        let (files, segment) = (Scratch::new("intruder"), Scratch::in_memory("segment"));
        let nics = NicText::shm(segment.path()).steady();
        let own = fs::metadata(files.path()).expect("a directory").uid();
        let users = format!("users = [{own}, {}]\n{PROCESS}", unprivileged_user());
        let process = DatapathProcess::start(&files, &users, &nics, run);
        let peer = || {
            let mut command = program(PEER);
            command.env("VIADUCT_CONFIG", process.config());
            command
        };
        let mut server = Running::start("server", peer().args(["serve", "honest"]));
        server.wait_for("listening", TIMEOUT);
        let pace = PACE.to_string();
        let mut ping = peer();
        ping.args(["ping", "localhost", "honest", "--own", "honest"]);
        let mut client = Running::start("client", ping.args(["--per-second", &pace]));
        client.wait_for("connected", TIMEOUT);
        Self {
            files,
            _segment: segment,
            process,
            server,
            client,
        }
    }

    /// What the honest pair does now.
    fn measure(&mut self) -> f64 {
        let from = self.reading();
        let mut to = self.reading();
        while to.at - from.at < ALONE {
            to = self.reading();
        }
        rate(&from, &to)
    }

    /// What it does without an intruder.
    fn measure_controls(&mut self) -> Controls {
        let alone = self.measure();
        let mut busy = idle("sh");
        busy.args(["-c", "while :; do :; done"]);
        let _busy = [(); LOOPS].map(|()| Running::start("a loop", &mut busy));
        let beside_loops = self.measure();
        Controls {
            alone,
            beside_loops,
        }
    }

    /// How far the honest pair is, and when that was.
    fn reading(&mut self) -> Reading {
        self.client.skip();
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

    /// Waits until the process has no more than it had; its threads end by themselves.
    fn await_belongings(&mut self, before: &Belongings) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let now = Belongings::of(self.process.id());
            if now == *before {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "left behind: {now:?}, before {before:?}"
            );
            self.reading();
        }
    }

    /// Plays so many rounds; gives what the intruder says of them.
    fn suffer(&self, intruder: &Path, rounds: u64, seed: u64) -> String {
        self.suffer_from(idle(intruder), rounds, seed)
    }

    fn suffer_from(&self, mut command: Command, rounds: u64, seed: u64) -> String {
        command.arg(self.files.file("pmd.sock")).args([
            "VINIC0",
            &rounds.to_string(),
            &seed.to_string(),
        ]);
        let limit = SLOWEST + Duration::from_millis(200) * rounds as u32;
        Running::start("intruder", &mut command).succeed(limit)
    }

    /// The honest pair has lost nothing, and the process ends in order; gives what that said.
    fn finish(self) -> String {
        let client = Report::read(&self.client.succeed(TIMEOUT));
        assert!(client.get("round_trips") > 0, "{client:?}");
        assert_eq!(
            client.get("events"),
            0,
            "nothing happened to it: {client:?}"
        );
        let mut server = self.server;
        server.wait_for("left honest", TIMEOUT);
        let server = Report::read(&server.succeed(TIMEOUT));
        assert_eq!(server.get("events"), 1, "the good-bye: {server:?}");
        let ended = self.process.stop();
        assert!(ended.status.success(), "{}: {}", ended.status, ended.text);
        assert!(!ended.text.contains("panicked"), "{}", ended.text);
        ended.text
    }
}

/// How far the honest pair was, and when that was.
struct Reading {
    at: Instant,
    serial: u64,
    /// Round trips so far that took more than 50 ms.
    stalls: u64,
    /// What the machine's host had taken of each core.
    stolen: Vec<Duration>,
}

/// Round trips in a second, without the time that was taken of the core of which most was taken.
fn rate(from: &Reading, to: &Reading) -> f64 {
    let cores = from.stolen.iter().zip(&to.stolen);
    let stolen = cores.map(|(from, to)| to.saturating_sub(*from)).max();
    let passed = (to.at - from.at).saturating_sub(stolen.unwrap_or_default());
    let trips = (to.serial - from.serial) as f64;
    // A core may be taken away while nobody wants it.
    (trips / passed.as_secs_f64()).min(f64::from(PACE))
}

/// What the machine's host has taken of each core so far.
fn stolen() -> Vec<Duration> {
    /// Of the kernel's reports to programs.
    const TICK: Duration = Duration::from_millis(10);
    /// Where it stands behind the name of a core.
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

/// What the honest pair does without an intruder, in round trips a second.
#[derive(Clone, Copy)]
struct Controls {
    alone: f64,
    beside_loops: f64,
}

impl Controls {
    fn least(self) -> f64 {
        self.alone.min(self.beside_loops)
    }
}

/// What it did beside the intruder, and directly before and after.
struct Part {
    before: Controls,
    beside: f64,
    /// Of the honest pair beside the intruder.
    stalls: u64,
    after: Controls,
}

impl Part {
    fn ratio(&self) -> f64 {
        self.beside / self.before.least().min(self.after.least())
    }
}

/// The middle one: what a machine is short of now and then hits one or the other.
fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<_> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// What an intruder must have come to, all in all.
const DEEDS: [&str; 6] = [
    "killed",
    "cut_off",
    "pairs",
    "regions",
    "completions",
    "captures",
];

#[test]
fn an_intruder_harms_nobody_and_leaves_nothing() {
    let (rounds, seed) = (from_environment("INTRUDER_ROUNDS", ROUNDS), seed());
    assert!(rounds > 0, "INTRUDER_ROUNDS=0: must be at least 1");
    let mut house = House::new(here);
    let intruder = intruder(&house.files);
    let id = house.process.id();
    let at_first = Belongings::of(id);
    let (mut deeds, mut longest_ms, mut resident) = ([0; DEEDS.len()], 0, None);
    let count = rounds.div_ceil(PART_ROUNDS);
    let mut parts = Vec::new();
    let mut controls = house.measure_controls();
    for part in 0..count {
        let quiet = house.reading();
        let left = rounds - part * PART_ROUNDS;
        let said = house.suffer(&intruder, PART_ROUNDS.min(left), seed.wrapping_add(part));
        let now = house.reading();
        house.await_belongings(&at_first);
        let before = std::mem::replace(&mut controls, house.measure_controls());
        parts.push(Part {
            before,
            beside: rate(&quiet, &now),
            stalls: now.stalls - quiet.stalls,
            after: controls,
        });
        let report = Report::read(&said);
        for (deed, name) in deeds.iter_mut().zip(DEEDS) {
            *deed += report.get(name);
        }
        longest_ms = longest_ms.max(report.get("longest_ms"));
        if part == count / 2 {
            resident = Some(status_of(id, "VmRSS:"));
        }
    }
    let (half, last) = (resident.unwrap_or(0), status_of(id, "VmRSS:"));
    assert!(last <= half + GROWTH_KIB, "from {half} to {last} KiB");
    let stalls_in_all = house.reading().stalls;
    house.finish();
    let ratio = median(parts.iter().map(Part::ratio));
    let stalls: u64 = parts.iter().map(|part| part.stalls).sum();
    let quiet_parts = parts.iter().filter(|part| part.stalls == 0).count();
    let beside = median(parts.iter().map(|part| part.beside));
    let alone = median(parts.iter().map(|part| part.after.alone));
    let loops = median(parts.iter().map(|part| part.after.beside_loops));
    let deeds: Vec<_> = DEEDS.iter().zip(deeds).collect();
    println!(
        "\nnote: {rounds} rounds of an intruder: {beside:.0} round trips a second beside it, {alone:.0} alone, \
         {loops:.0} beside loops, {ratio:.2} of the least; {stalls} stalls of more than 50 ms beside it, {} without it; \
         {longest_ms} ms until an honest application was served, at most; \
         {half} KiB resident after half of them, {last} after all; {deeds:?}",
        stalls_in_all - stalls
    );
    assert!(
        rounds < ROUNDS || deeds.iter().all(|(_, count)| *count > 0),
        "{deeds:?}"
    );
    assert!(ratio >= KEPT, "{ratio:.2} of what it does without one");
    // What a machine is short of now and then makes one stall at any time.
    assert!(
        2 * quiet_parts > parts.len(),
        "{stalls} stalls, none in {quiet_parts} of {} parts only",
        parts.len()
    );
}

#[test]
fn intruder_of_another_user_takes_no_pages_and_leaves_nothing() {
    let rounds = from_environment("INTRUDER_ROUNDS", ROUNDS).div_ceil(WATCHED_SHARE);
    let seed = seed();
    let mut house = House::new(here);
    let intruder = intruder(&house.files);
    let at_first = Belongings::of(house.process.id());
    let unprivileged = on_idle_core(unprivileged("chrt"), &intruder);
    // It ends with an error where a page could be taken away.
    let report = Report::read(&house.suffer_from(unprivileged, rounds, seed));
    house.await_belongings(&at_first);
    house.finish();
    println!("\nnote: an intruder of another user: {report:?}");
    assert!(report.get("attached") > 0, "{report:?}");
    assert!(rounds < 100 || report.get("regions") > 0, "{report:?}");
}

#[test]
fn valgrind_finds_nothing_in_a_process_with_an_intruder() {
    let rounds = from_environment("INTRUDER_ROUNDS", ROUNDS).div_ceil(WATCHED_SHARE);
    let seed = seed();
    let house = House::new(|program| {
        let mut command = here(Path::new("valgrind"));
        command.args(WATCH).arg(program);
        command
    });
    let intruder = intruder(&house.files);
    let said = house.suffer(&intruder, rounds.min(WATCHED_ROUNDS), seed);
    let text = house.finish();
    assert!(!text.lines().any(|line| line.starts_with("==")), "{text}");
    println!("\nnote: under valgrind: {:?}", Report::read(&said));
}
