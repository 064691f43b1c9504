//! SIGKILL of attached programs and of datapath processes at random times.
//!
//! `ci/kills` increases the numbers of kills: `KILLS_APPS` and `KILLS_PROCESSES`. `KILLS_SEED` is the seed.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use e2e::datapath::DatapathProcess;
use e2e::installation::Installation;
use e2e::latencies::Latencies;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::procfs::ProcessUsage;
use e2e::report::Report;
use e2e::resource_usage::{ResourceUsage, SystemUsage};
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

const STRESS: &str = env!("CARGO_BIN_EXE_vi-stress");
/// The NIC on shared memory.
const ON_MEMORY: &str = "VINIC1";
/// Programs that are killed together, and the clients among them.
const BATCH: u64 = 8;
const CLIENTS: u64 = BATCH - 2;
/// Upper limit, on a busy machine, for the report of a kill to peers of a killed program, to programs of a killed
/// process, and to its peers, which detect it by three probes 500 ms apart at the latest. The times are printed.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum growth of the resident memory by any number of kills: memory that the heap retains.
const MAX_GROWTH_KIB: u64 = 16 * 1024;

/// Returns the number in an environment variable, or a default.
fn from_environment<T: FromStr>(name: &str, default: T) -> T {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: must be a number"))
    })
}

/// A random number generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn new() -> Self {
        let seed = from_environment("KILLS_SEED", u64::from(std::process::id()));
        println!("seed {seed}");
        Self(seed)
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % limit
    }

    fn milliseconds_below(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit * 1000))
    }
}

/// Sleeps until a random time. This is no wait for a condition.
fn sleep_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Lists the files of a segment by kind and length. The name of a station's file has a unique number after its kind.
fn files_of(directory: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return found,
        Err(error) => panic!("{}: {error}", directory.display()),
    };
    for entry in entries {
        let entry = entry.expect("an entry");
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // The station has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", entry.path().display()),
        };
        if metadata.is_dir() {
            found.extend(files_of(&entry.path()));
        } else {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = name.split('-').next().unwrap_or_default();
            found.push((kind.to_owned(), metadata.len()));
        }
    }
    found.sort();
    found
}

/// A host with a datapath process that may be killed. It has a NIC on the wire, and one on shared memory without the
/// shortcut, so that its frames use rings.
struct Host {
    end: End,
    files: Scratch,
    /// The directory of the segment.
    memory: Scratch,
    process: Option<DatapathProcess>,
}

impl Host {
    fn new(wire: &Wire, end: End) -> Self {
        let files = Scratch::new(end.interface());
        let memory = Scratch::in_memory(end.interface());
        let on_wire = NicText::af_packet(end)
            .long_timeouts()
            .key("network.probe_interval_ms", 500);
        let on_memory = NicText::shm(memory.path())
            .long_timeouts()
            .key("name", format!("{ON_MEMORY:?}"))
            .key("fc_vi.shortcut", false);
        let mut host = Self {
            end,
            process: None,
            files,
            memory,
        };
        let nics = on_wire.and(on_memory);
        let text = DatapathProcess::text(&host.files, "idle = \"hybrid\"", &nics);
        host.files.write("pmd.toml", &text);
        host.start(wire);
        host
    }

    fn start(&mut self, wire: &Wire) {
        let run = |program: &Path| wire.end(self.end).program(program);
        let config = self.files.file("pmd.toml");
        self.process = Some(DatapathProcess::start_from(&config, run));
    }

    /// Returns the usage of the process without applications.
    fn baseline(&mut self) -> ResourceUsage {
        ResourceUsage::without_applications(self.process())
    }

    /// Stops the process and checks that it leaves no files.
    fn stop(&mut self) {
        let process = self.process.take().expect("a running process");
        process.stop_and_check();
        let socket = self.files.file("pmd.sock");
        assert!(!socket.exists(), "the socket is left");
        let left = files_of(self.memory.path());
        assert!(left.is_empty(), "files of segments: {left:?}");
    }

    fn process(&mut self) -> &mut DatapathProcess {
        self.process.as_mut().expect("a running process")
    }

    fn kill(&mut self) -> Instant {
        self.process.take().expect("a running process").kill()
    }

    /// Returns the command of a program that attaches to the process.
    fn command(&self, wire: &Wire, program: impl AsRef<OsStr>) -> Command {
        let mut command = wire.end(self.end).program(program);
        command.env("VIADUCT_CONFIG", self.files.file("pmd.toml"));
        command
    }

    fn server(&self, wire: &Wire) -> Running {
        vi_peer::serve(self.command(wire, vi_peer::path()), "kills")
    }

    fn client(&self, wire: &Wire, of: End, name: &str) -> Running {
        let mut command = self.command(wire, vi_peer::path());
        command.args(["ping", of.host(), "kills", "--client-name", name]);
        Running::start(name, &mut command)
    }

    /// Starts one side of `vi-stress`, which connects, writes, reads, registers and disconnects continuously.
    fn stress(&self, wire: &Wire, side: &str, nic: Route, seed: u64) -> Running {
        self.stress_for("60", wire, side, nic, seed)
    }

    /// Like [`Self::stress`], for `seconds`.
    fn stress_for(&self, seconds: &str, wire: &Wire, side: &str, nic: Route, seed: u64) -> Running {
        let mut command = self.command(wire, STRESS);
        command.args(["run", "--side", side, "--seconds", seconds]);
        command.args(["--slots", "8", "--threads", "2", "--among-others"]);
        command.args(["--seed", &seed.to_string()]);
        let records = match nic {
            Route::Wire(other) => {
                command.args(["--host", other.host()]);
                side.to_owned()
            }
            Route::Memory => {
                command.args(["--nic", ON_MEMORY]);
                format!("{side}-{ON_MEMORY}")
            }
        };
        command.arg("--records").arg(self.files.file(&records));
        Running::start(side, &mut command)
    }
}

/// The NIC between the two sides of `vi-stress`.
#[derive(Clone, Copy)]
enum Route {
    /// The NIC on the wire, to a host at this end.
    Wire(End),
    /// The NIC on shared memory.
    Memory,
}

/// A program that will be killed.
struct Victim {
    name: String,
    running: Running,
    kill_at: Instant,
    /// The server of a client; `None` for `vi-stress`.
    server: Option<End>,
}

/// Two datapath processes, and the statistics of the kills.
struct Scene {
    wire: Wire,
    left: Host,
    right: Host,
    rng: Rng,
    /// Times from kills to reports at connected peers, or at attached programs.
    reports: Latencies,
    /// Number of killed programs.
    kills: u64,
}

impl Scene {
    fn new() -> Self {
        let wire = Wire::new(2500);
        Self {
            left: Host::new(&wire, End::Left),
            right: Host::new(&wire, End::Right),
            wire,
            rng: Rng::new(),
            reports: Latencies::default(),
            kills: 0,
        }
    }

    /// Runs a `vi-stress` pair in shared memory of the left process, which maps the rings of its port.
    fn run_pair(&self) {
        let stress = |side| {
            self.left
                .stress_for("1", &self.wire, side, Route::Memory, 1)
        };
        for running in ["left", "right"].map(stress) {
            running.succeed(TIMEOUT);
        }
    }

    /// Runs one client, which causes the one-time allocations of the process.
    fn run_client(&self, of: End, server: &mut Running) {
        let mut first = self.left.client(&self.wire, of, "first");
        first.wait_for("alive", TIMEOUT);
        first.succeed(TIMEOUT);
        server.wait_for("disconnected first", TIMEOUT);
    }

    /// Starts the programs of one batch: clients of both servers at the left process, and a `vi-stress` pair, within
    /// the process or over the wire.
    fn start_batch(&mut self, number: u64) -> Vec<Victim> {
        let mut victims = Vec::new();
        for index in 0..CLIENTS {
            let name = format!("victim-{number}-{index}");
            let server = [End::Left, End::Right][usize::from(index % 2 == 1)];
            let mut running = self.left.client(&self.wire, server, &name);
            // At least one client is connected when it is killed, to each server in turn.
            if index == number % 2 {
                running.wait_for("connected", TIMEOUT);
            }
            // Half of the others are killed before or while they attach and connect.
            let limit = if index < BATCH / 2 { 80 } else { 600 };
            let lifetime = self.rng.milliseconds_below(limit);
            victims.push(Victim {
                running,
                name,
                kill_at: Instant::now() + lifetime,
                server: Some(server),
            });
        }
        let seed = self.rng.below(1 << 30);
        let (host, to_right, to_left) = match number % 3 {
            0 => (&self.left, Route::Wire(End::Left), Route::Wire(End::Left)),
            1 => (&self.right, Route::Wire(End::Right), Route::Wire(End::Left)),
            _ => (&self.left, Route::Memory, Route::Memory),
        };
        let pair = [
            self.left.stress(&self.wire, "left", to_right, seed),
            host.stress(&self.wire, "right", to_left, seed),
        ];
        for (running, side) in pair.into_iter().zip(["left", "right"]) {
            let lifetime = self.rng.milliseconds_below(600);
            victims.push(Victim {
                name: format!("stress-{side}"),
                running,
                kill_at: Instant::now() + lifetime,
                server: None,
            });
        }
        victims.sort_by_key(|victim| victim.kill_at);
        victims
    }

    /// Starts two `vi-stress` pairs at the left process, over the wire and in shared memory; killed on drop.
    fn start_load(&mut self) -> [Running; 4] {
        let seed = self.rng.below(1 << 30);
        let (wire, left, right) = (&self.wire, &self.left, &self.right);
        [
            left.stress(wire, "left", Route::Wire(End::Right), seed),
            right.stress(wire, "right", Route::Wire(End::Left), seed),
            left.stress(wire, "left", Route::Memory, seed),
            left.stress(wire, "right", Route::Memory, seed),
        ]
    }

    /// Kills each program at its time, then waits until their servers have reported the losses.
    fn kill(&mut self, victims: Vec<Victim>, servers: &mut [Running; 2]) {
        let mut expected = Vec::new();
        for mut victim in victims {
            sleep_until(victim.kill_at);
            let was_connected = victim.running.has_printed("connected");
            let killed_at = victim.running.kill();
            self.kills += 1;
            if let Some(server) = victim.server.filter(|_| was_connected) {
                expected.push((victim.name, server, killed_at));
            }
        }
        for (name, server, killed_at) in expected {
            let server = &mut servers[usize::from(server == End::Right)];
            let lost = server.wait_for(&format!("lost {name}"), TIMEOUT);
            self.reports.record(&name, killed_at, &lost, REPORT_TIMEOUT);
            server.wait_for(&format!("disconnected {name}"), TIMEOUT);
        }
    }
}

fn assert_clean(report: &Report) {
    for counter in ["exchanges_open", "regions", "lost_descriptors"] {
        assert_eq!(report.get(counter), 0, "{counter}: {report:?}");
    }
}

/// The state that each kill must restore: the resources of both processes, and the files of the segments.
struct State {
    left: ResourceUsage,
    right: ResourceUsage,
    segments: [Vec<(String, u64)>; 2],
}

fn segments_of(scene: &Scene) -> [Vec<(String, u64)>; 2] {
    [&scene.left, &scene.right].map(|host| files_of(host.memory.path()))
}

/// Waits until the segments have these files again.
fn await_segments(scene: &Scene, before: &[Vec<(String, u64)>; 2]) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let now = segments_of(scene);
        if now == *before {
            return;
        }
        assert!(Instant::now() < deadline, "{now:?}, and before {before:?}");
        sleep_until(Instant::now() + Duration::from_millis(1));
    }
}

fn resident_kib(id: u32) -> u64 {
    ProcessUsage::of(id).expect("the process").resident_kib
}

fn assert_no_growth(before_kib: u64, id: u32) {
    let after_kib = resident_kib(id);
    assert!(
        after_kib < before_kib + MAX_GROWTH_KIB,
        "{before_kib} KiB, then {after_kib} KiB"
    );
}

#[test]
fn killed_applications_leave_no_resources() {
    let kills = from_environment("KILLS_APPS", 40u64);
    let mut scene = Scene::new();
    let ready = scene.left.baseline();
    scene.run_pair();
    let baselines = [
        ResourceUsage::wait_until_stable(scene.left.process(), &[], ready),
        scene.right.baseline(),
    ];
    let mut servers = [&scene.left, &scene.right].map(|host| host.server(&scene.wire));
    for (of, server) in [End::Left, End::Right].into_iter().zip(&mut servers) {
        scene.run_client(of, server);
    }
    let mut bystanders = [End::Left, End::Right].map(|of| {
        let name = format!("bystander-{}", of.interface());
        let mut client = scene.left.client(&scene.wire, of, &name);
        client.wait_for("alive", TIMEOUT);
        client
    });
    let attached = [&servers[0], &bystanders[0], &bystanders[1]];
    let stable = ResourceUsage::wait_until_stable;
    let before = State {
        left: stable(scene.left.process(), &attached, baselines[0]),
        right: stable(scene.right.process(), &[&servers[1]], baselines[1]),
        segments: segments_of(&scene),
    };
    // The heap grows with the first kills.
    let victims = scene.start_batch(0);
    scene.kill(victims, &mut servers);
    let ids = [scene.left.process().id(), scene.right.process().id()];
    let resident = ids.map(resident_kib);
    for number in 1..=kills.div_ceil(BATCH) {
        let victims = scene.start_batch(number);
        scene.kill(victims, &mut servers);
        let attached = [&servers[0], &bystanders[0], &bystanders[1]];
        let (left, right) = (scene.left.process(), scene.right.process());
        before.left.wait_until_restored(left, &attached);
        before.right.wait_until_restored(right, &[&servers[1]]);
        await_segments(&scene, &before.segments);
        for client in &mut bystanders {
            client.discard_output();
            client.wait_for("alive", TIMEOUT);
        }
    }
    for (id, before) in ids.into_iter().zip(resident) {
        assert_no_growth(before, id);
    }
    for client in bystanders {
        let report = Report::read(&client.succeed(TIMEOUT));
        assert!(report.get("round_trips") > 0);
        assert_eq!(
            report.get("events"),
            0,
            "an event at a surviving client: {report:?}"
        );
    }
    for server in servers {
        assert_clean(&Report::read(&server.succeed(TIMEOUT)));
    }
    let hosts = [&mut scene.left, &mut scene.right];
    for (host, baseline) in hosts.into_iter().zip(baselines) {
        baseline.wait_until_restored(host.process(), &[]);
        host.stop();
    }
    let (kills, reports) = (scene.kills, &scene.reports);
    let connected = reports.count() as u64;
    assert!(connected >= kills / BATCH, "{connected} of {kills}");
    println!(
        "\nnote: SIGKILL of {kills} attached programs: {connected} of them connected, reported after {reports}"
    );
}

/// The datapath process of three programs is killed and restarted repeatedly.
#[test]
fn killed_processes_are_reported_and_leave_no_resources() {
    let kills = from_environment("KILLS_PROCESSES", 3u32);
    let mut scene = Scene::new();
    let baselines = [scene.left.baseline(), scene.right.baseline()];
    let segments = segments_of(&scene);
    let mut server = scene.right.server(&scene.wire);
    scene.run_client(End::Right, &mut server);
    // Without clients, whose resources are released with them.
    let before = ResourceUsage::wait_until_stable(scene.right.process(), &[&server], baselines[1]);
    let names = ["one", "two", "three"];
    let mut clients = names.map(|name| {
        let mut command = scene.left.command(&scene.wire, vi_peer::path());
        command.args(["survive-failures", End::Right.host(), "kills"]);
        command.args(["--client-name", name]);
        command.args(["--busy", "--failures", &kills.to_string()]);
        Running::start(name, &mut command)
    });
    for client in &mut clients {
        client.wait_for("alive 0", TIMEOUT);
    }
    let right = scene.right.process().id();
    let resident = resident_kib(right);
    let mut peer_reports = Latencies::default();
    for round in 0..kills {
        let load = scene.start_load();
        let lifetime = scene.rng.milliseconds_below(400);
        sleep_until(Instant::now() + lifetime);
        let killed_at = scene.left.kill();
        for client in &mut clients {
            for event in ["failed Nic", "lost server"] {
                let lost = client.wait_for(event, TIMEOUT);
                let reports = &mut scene.reports;
                reports.record(event, killed_at, &lost, REPORT_TIMEOUT);
            }
            client.wait_for(&format!("closed {round}"), TIMEOUT);
        }
        for name in names {
            let lost = server.wait_for(&format!("lost {name}"), TIMEOUT);
            peer_reports.record(name, killed_at, &lost, REPORT_TIMEOUT);
            server.wait_for(&format!("disconnected {name}"), TIMEOUT);
        }
        drop(load);
        before.wait_until_restored(scene.right.process(), &[&server]);
        scene.left.start(&scene.wire);
        baselines[0].wait_until_restored(scene.left.process(), &[]);
        await_segments(&scene, &segments);
        for client in &mut clients {
            client.send_line("again");
            client.wait_for(&format!("alive {}", round + 1), TIMEOUT);
        }
    }
    assert_no_growth(resident, right);
    for client in clients {
        client.succeed(TIMEOUT);
    }
    assert_clean(&Report::read(&server.succeed(TIMEOUT)));
    let hosts = [&mut scene.left, &mut scene.right];
    for (host, baseline) in hosts.into_iter().zip(baselines) {
        baseline.wait_until_restored(host.process(), &[]);
        host.stop();
    }
    println!(
        "\nnote: SIGKILL of {kills} datapath processes: reported to their programs after {}, to peers after {peer_reports}",
        scene.reports
    );
}

/// The next process removes the files of a killed one from the segment.
#[test]
fn next_process_removes_files_of_killed_process() {
    let segments = Scratch::in_memory("attached-kills");
    let files = Scratch::new("attached-kills");
    let nic = NicText::shm(segments.path()).long_timeouts();
    for _ in 0..3 {
        let process = DatapathProcess::local(&files, &nic);
        let peer = || vi_peer::local(process.config());
        let mut server = vi_peer::serve(peer(), "kills");
        let mut client = vi_peer::ping(peer(), "localhost", "kills", "client");
        client.wait_for("alive", TIMEOUT);
        process.kill();
        client.wait_for("lost server", TIMEOUT);
        server.wait_for("lost client", TIMEOUT);
    }
    DatapathProcess::local(&files, &nic).stop_and_check();
    let left = files_of(segments.path());
    assert!(left.is_empty(), "files of killed programs: {left:?}");
    assert!(!files.file("pmd.sock").exists(), "the socket is left");
}

/// A program is killed whose running child inherited its descriptors: the process detects it nevertheless.
#[test]
fn killed_program_is_detected_although_its_child_holds_its_sockets() {
    let segments = Scratch::in_memory("attached-forks");
    let files = Scratch::new("attached-forks");
    let installation = Installation::new();
    let program = installation.old_program("forks", &["forks.c", "common.c"]);
    let nic = NicText::shm(segments.path());
    let mut process = DatapathProcess::local(&files, &nic);
    let baseline = ResourceUsage::without_applications(&process);
    let mut command = e2e::process::program(&program);
    command.env("VIADUCT_CONFIG", process.config());
    let mut parent = Running::start("forks", &mut command);
    parent.wait_for("forked", TIMEOUT);
    let attached = SystemUsage::of(&process, &[]);
    assert_ne!(attached, baseline.system, "the program is attached");
    // A drop would also close the input of the child.
    parent.signal("KILL");
    let gone = format!("application detached pid={}", parent.id());
    let log = process.output();
    log.wait_until(&gone, TIMEOUT, |line| line.contains(&gone));
    baseline.wait_until_restored(&process, &[]);
    process.stop_and_check();
}
