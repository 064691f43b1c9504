//! Programs that are attached to datapath processes, and these processes, killed in the middle of whatever they do.
//!
//! `ci/kills` has many more of them die than a plain run: `KILLS_APPS` and `KILLS_PROCESSES`, by the choices of
//! `KILLS_SEED`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use e2e::datapath::DatapathProcess;
use e2e::delays::Delays;
use e2e::holdings::{Holdings, Own};
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::usage::Usage;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const STRESS: &str = env!("CARGO_BIN_EXE_vi-stress");
/// The NIC on shared memory.
const ON_MEMORY: &str = "VINIC1";
/// Programs that die together, and those of them that are clients.
const BATCH: u64 = 8;
const CLIENTS: u64 = BATCH - 2;
/// Whoever is to learn of a death learns of it within so long on any machine, however busy: a peer of a dead program,
/// whose process says so, a program of a dead process, and its peers, who learn of it from three probes, 500 ms apart,
/// at the latest. How long it took is printed.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// Resident memory that any number of deaths may add: what the heap keeps.
const KEPT_KIB: u64 = 16 * 1024;

/// A number that the environment may name.
fn asked<T: FromStr>(name: &str, otherwise: T) -> T {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} = {text}: no number"))
    })
}

/// Numbers that follow from a seed.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let seed = asked("KILLS_SEED", u64::from(std::process::id()));
        println!("seed {seed}");
        Self(seed)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
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

/// Lets time go by up to a moment that was chosen at random.
fn pass_time_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Files of a segment: of what kind, and how long. Each station has a number of its own in the name of its file.
fn files_of(directory: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return found,
        Err(error) => panic!("{}: {error}", directory.display()),
    };
    for entry in entries {
        let entry = entry.expect("an entry");
        let facts = match entry.metadata() {
            Ok(facts) => facts,
            // Its station leaves just now.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", entry.path().display()),
        };
        if facts.is_dir() {
            found.extend(files_of(&entry.path()));
        } else {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = name.split('-').next().unwrap_or_default();
            found.push((kind.to_owned(), facts.len()));
        }
    }
    found.sort();
    found
}

/// A host with a datapath process, which may be dead at times: a NIC on the wire, and one on shared memory whose frames
/// go through its rings.
struct Host {
    end: End,
    files: Scratch,
    /// Where the segment lies.
    memory: Scratch,
    process: Option<DatapathProcess>,
}

impl Host {
    fn new(wire: &Wire, end: End) -> Self {
        let files = Scratch::new(end.interface());
        let memory = Scratch::in_memory(end.interface());
        let on_wire = NicText::af_packet(end)
            .steady()
            .key("probe_interval_ms", 500);
        let on_memory = NicText::shm(memory.path())
            .steady()
            .key("name", format!("{ON_MEMORY:?}"))
            .key("shortcut", false);
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

    /// What the process has before anybody comes.
    fn alone(&mut self) -> Holdings {
        Holdings::alone(self.process())
    }

    /// Ends the process in order: nothing of it is left.
    fn stop(&mut self) {
        let ended = self.process.take().expect("a process that lives").stop();
        assert!(ended.status.success(), "{}", ended.text);
        let socket = self.files.file("pmd.sock");
        assert!(!socket.exists(), "the socket is left");
        let left = files_of(self.memory.path());
        assert!(left.is_empty(), "files of segments: {left:?}");
    }

    fn process(&mut self) -> &mut DatapathProcess {
        self.process.as_mut().expect("a process that lives")
    }

    fn kill(&mut self) -> Instant {
        self.process.take().expect("a process that lives").kill()
    }

    /// A program attached to its process.
    fn command(&self, wire: &Wire, program: &str) -> Command {
        let mut command = wire.end(self.end).program(program);
        command.env("VIADUCT_CONFIG", self.files.file("pmd.toml"));
        command
    }

    fn server(&self, wire: &Wire) -> Running {
        let mut command = self.command(wire, PEER);
        let mut server = Running::start("server", command.args(["serve", "deaths"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    fn client(&self, wire: &Wire, of: End, name: &str) -> Running {
        let mut command = self.command(wire, PEER);
        Running::start(
            name,
            command.args(["ping", of.host(), "deaths", "--own", name]),
        )
    }

    /// One side of a pair that connects, writes, reads, registers and disconnects all the time.
    fn stress(&self, wire: &Wire, side: &str, way: Way, seed: u64) -> Running {
        self.stress_for("60", wire, side, way, seed)
    }

    /// For so many seconds.
    fn stress_for(&self, seconds: &str, wire: &Wire, side: &str, way: Way, seed: u64) -> Running {
        let mut command = self.command(wire, STRESS);
        command.args(["run", "--side", side, "--seconds", seconds]);
        command.args(["--slots", "8", "--threads", "2", "--among-others"]);
        command.args(["--seed", &seed.to_string()]);
        let books = match way {
            Way::Wire(other) => {
                command.args(["--host", other.host()]);
                side.to_owned()
            }
            Way::Memory => {
                command.args(["--nic", ON_MEMORY]);
                format!("{side}-{ON_MEMORY}")
            }
        };
        command.arg("--books").arg(self.files.file(&books));
        Running::start(side, &mut command)
    }
}

/// By which NIC one side of a pair reaches the other.
#[derive(Clone, Copy)]
enum Way {
    /// That on the wire, to this end of it.
    Wire(End),
    /// That on shared memory.
    Memory,
}

/// A program that is to die, and when.
struct Victim {
    name: String,
    running: Running,
    dies_at: Instant,
    /// Its server; none for one of a pair that dies together.
    server: Option<End>,
}

/// Two processes, and the programs that outlive all others.
struct Scene {
    wire: Wire,
    left: Host,
    right: Host,
    chance: Chance,
    /// How long those waited for the news who were connected to a program that died, or attached to a process.
    known: Delays,
    /// Programs that died.
    deaths: u64,
}

impl Scene {
    fn new() -> Self {
        let wire = Wire::new(2500);
        Self {
            left: Host::new(&wire, End::Left),
            right: Host::new(&wire, End::Right),
            wire,
            chance: Chance::new(),
            known: Delays::default(),
            deaths: 0,
        }
    }

    /// A pair in the left process's shared memory comes and goes: the port maps its rings for the first of them.
    fn pair_comes_and_goes(&self) {
        let sides = ["left", "right"];
        let pair = sides.map(|side| self.left.stress_for("1", &self.wire, side, Way::Memory, 1));
        for side in pair {
            side.succeed(TIMEOUT);
        }
    }

    /// A client that comes and goes: what whoever is first has the process make is there then.
    fn come_and_go(&self, of: End, server: &mut Running) {
        let mut first = self.left.client(&self.wire, of, "first");
        first.wait_for("alive", TIMEOUT);
        first.succeed(TIMEOUT);
        server.wait_for("left first", TIMEOUT);
    }

    /// Programs of the left process: clients of both servers, and a pair that does all kinds of things, within the
    /// process or over the wire.
    fn batch(&mut self, number: u64) -> Vec<Victim> {
        let mut victims = Vec::new();
        for place in 0..CLIENTS {
            let name = format!("victim-{number}-{place}");
            let server = [End::Left, End::Right][usize::from(place % 2 == 1)];
            let mut running = self.left.client(&self.wire, server, &name);
            // One of them when it is connected, to either server in turn, so that one at least is missed.
            if place == number % 2 {
                running.wait_for("connected", TIMEOUT);
            }
            // Half of the others before or while they attach and connect.
            let limit = if place < BATCH / 2 { 80 } else { 600 };
            let life = self.chance.milliseconds_below(limit);
            victims.push(Victim {
                running,
                name,
                dies_at: Instant::now() + life,
                server: Some(server),
            });
        }
        let seed = self.chance.below(1 << 30);
        let (host, there, back) = match number % 3 {
            0 => (&self.left, Way::Wire(End::Left), Way::Wire(End::Left)),
            1 => (&self.right, Way::Wire(End::Right), Way::Wire(End::Left)),
            _ => (&self.left, Way::Memory, Way::Memory),
        };
        let pair = [
            self.left.stress(&self.wire, "left", there, seed),
            host.stress(&self.wire, "right", back, seed),
        ];
        for (running, side) in pair.into_iter().zip(["left", "right"]) {
            let life = self.chance.milliseconds_below(600);
            victims.push(Victim {
                name: format!("stress-{side}"),
                running,
                dies_at: Instant::now() + life,
                server: None,
            });
        }
        victims.sort_by_key(|victim| victim.dies_at);
        victims
    }

    /// Pairs that keep the left process busy, over the wire and in shared memory, until they are dropped.
    fn load(&mut self) -> [Running; 4] {
        let seed = self.chance.below(1 << 30);
        let (wire, left, right) = (&self.wire, &self.left, &self.right);
        [
            left.stress(wire, "left", Way::Wire(End::Right), seed),
            right.stress(wire, "right", Way::Wire(End::Left), seed),
            left.stress(wire, "left", Way::Memory, seed),
            left.stress(wire, "right", Way::Memory, seed),
        ]
    }

    /// They die, each at its time; those who were connected to them learn of it.
    fn kill(&mut self, victims: Vec<Victim>, servers: &mut [Running; 2]) {
        let mut mourned = Vec::new();
        for mut victim in victims {
            pass_time_until(victim.dies_at);
            let was_connected = victim.running.has_said("connected");
            let death = victim.running.kill();
            self.deaths += 1;
            if let Some(server) = victim.server.filter(|_| was_connected) {
                mourned.push((victim.name, server, death));
            }
        }
        for (name, server, death) in mourned {
            let server = &mut servers[usize::from(server == End::Right)];
            let lost = server.wait_for(&format!("lost {name}"), TIMEOUT);
            self.known.note(&name, death, &lost, KNOWN_WITHIN);
            server.wait_for(&format!("left {name}"), TIMEOUT);
        }
    }
}

fn assert_clean(report: &Report) {
    for counter in ["exchanges_open", "regions", "lost_descriptors"] {
        assert_eq!(report.get(counter), 0, "{counter}: {report:?}");
    }
}

/// What each death must leave as it was: what both processes have, and the files of the segments.
struct Before {
    left: Holdings,
    right: Holdings,
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
        pass_time_until(Instant::now() + Duration::from_millis(1));
    }
}

fn resident_kib(id: u32) -> u64 {
    Usage::of(id).expect("a process that lives").resident_kib
}

fn assert_kept(before_kib: u64, id: u32) {
    let after_kib = resident_kib(id);
    assert!(
        after_kib < before_kib + KEPT_KIB,
        "{before_kib} KiB, then {after_kib} KiB"
    );
}

#[test]
fn applications_die() {
    let deaths = asked("KILLS_APPS", 40u64);
    let mut scene = Scene::new();
    let ready = scene.left.alone();
    scene.pair_comes_and_goes();
    let alone = [
        Holdings::settled(scene.left.process(), &[], ready),
        scene.right.alone(),
    ];
    let mut servers = [&scene.left, &scene.right].map(|host| host.server(&scene.wire));
    for (of, server) in [End::Left, End::Right].into_iter().zip(&mut servers) {
        scene.come_and_go(of, server);
    }
    let mut bystanders = [End::Left, End::Right].map(|of| {
        let name = format!("bystander-{}", of.interface());
        let mut client = scene.left.client(&scene.wire, of, &name);
        client.wait_for("alive", TIMEOUT);
        client
    });
    let survivors = [&servers[0], &bystanders[0], &bystanders[1]];
    let before = Before {
        left: Holdings::settled(scene.left.process(), &survivors, alone[0]),
        right: Holdings::settled(scene.right.process(), &[&servers[1]], alone[1]),
        segments: segments_of(&scene),
    };
    // What the first deaths leave is the heap's.
    let victims = scene.batch(0);
    scene.kill(victims, &mut servers);
    let ids = [scene.left.process().id(), scene.right.process().id()];
    let resident = ids.map(resident_kib);
    for number in 1..=deaths.div_ceil(BATCH) {
        let victims = scene.batch(number);
        scene.kill(victims, &mut servers);
        let survivors = [&servers[0], &bystanders[0], &bystanders[1]];
        before.left.await_again(scene.left.process(), &survivors);
        before
            .right
            .await_again(scene.right.process(), &[&servers[1]]);
        await_segments(&scene, &before.segments);
        for client in &mut bystanders {
            client.skip();
            client.wait_for("alive", TIMEOUT);
        }
    }
    for (id, before) in ids.into_iter().zip(resident) {
        assert_kept(before, id);
    }
    for client in bystanders {
        let report = Report::read(&client.succeed(TIMEOUT));
        assert!(report.get("round_trips") > 0);
        assert_eq!(
            report.get("events"),
            0,
            "nothing happened to it: {report:?}"
        );
    }
    for server in servers {
        assert_clean(&Report::read(&server.succeed(TIMEOUT)));
    }
    for (host, alone) in [&mut scene.left, &mut scene.right].into_iter().zip(alone) {
        alone.await_again(host.process(), &[]);
        host.stop();
    }
    let (killed, known) = (scene.deaths, &scene.known);
    let connected = known.count() as u64;
    assert!(connected >= killed / BATCH, "{connected} of {killed}");
    println!(
        "\nnote: SIGKILL of {killed} attached programs: {connected} of them connected, known after {known}"
    );
}

/// The datapath process of three programs dies again and again, and another takes its place.
#[test]
fn processes_die() {
    let deaths = asked("KILLS_PROCESSES", 3u32);
    let mut scene = Scene::new();
    let alone = [scene.left.alone(), scene.right.alone()];
    let segments = segments_of(&scene);
    let mut server = scene.right.server(&scene.wire);
    scene.come_and_go(End::Right, &mut server);
    // While no client is there: what it has of each of them ends with it.
    let before = Holdings::settled(scene.right.process(), &[&server], alone[1]);
    let names = ["one", "two", "three"];
    let mut clients = names.map(|name| {
        let mut command = scene.left.command(&scene.wire, PEER);
        command.args(["outlive", End::Right.host(), "deaths", "--own", name]);
        command.args(["--busy", "--failures", &deaths.to_string()]);
        Running::start(name, &mut command)
    });
    for client in &mut clients {
        client.wait_for("alive 0", TIMEOUT);
    }
    let survivor = scene.right.process().id();
    let resident = resident_kib(survivor);
    let mut missed = Delays::default();
    for round in 0..deaths {
        let load = scene.load();
        let life = scene.chance.milliseconds_below(400);
        pass_time_until(Instant::now() + life);
        let death = scene.left.kill();
        for client in &mut clients {
            for news in ["failed Nic", "lost server"] {
                let told = client.wait_for(news, TIMEOUT);
                scene.known.note(news, death, &told, KNOWN_WITHIN);
            }
            client.wait_for(&format!("closed {round}"), TIMEOUT);
        }
        for name in names {
            let lost = server.wait_for(&format!("lost {name}"), TIMEOUT);
            missed.note(name, death, &lost, KNOWN_WITHIN);
            server.wait_for(&format!("left {name}"), TIMEOUT);
        }
        drop(load);
        before.await_again(scene.right.process(), &[&server]);
        scene.left.start(&scene.wire);
        alone[0].await_again(scene.left.process(), &[]);
        await_segments(&scene, &segments);
        for client in &mut clients {
            client.tell("again");
            client.wait_for(&format!("alive {}", round + 1), TIMEOUT);
        }
    }
    assert_kept(resident, survivor);
    for client in clients {
        client.succeed(TIMEOUT);
    }
    assert_clean(&Report::read(&server.succeed(TIMEOUT)));
    for (host, alone) in [&mut scene.left, &mut scene.right].into_iter().zip(alone) {
        alone.await_again(host.process(), &[]);
        host.stop();
    }
    println!(
        "\nnote: SIGKILL of {deaths} datapath processes: their programs knew after {}, their peers after {missed}",
        scene.known
    );
}

/// What a killed process leaves on shared memory, the next one puts away.
#[test]
fn the_next_process_cleans_up() {
    let segments = Scratch::in_memory("attached-deaths");
    let files = Scratch::new("attached-deaths");
    let nic = NicText::shm(segments.path()).steady();
    let here = e2e::datapath::here;
    let idle = "idle = \"hybrid\"";
    for _ in 0..3 {
        let process = DatapathProcess::start(&files, idle, &nic, here);
        let peer = |words: &[&str]| {
            let mut command = e2e::process::program(PEER);
            command.args(words).env("VIADUCT_CONFIG", process.config());
            Running::start("peer", &mut command)
        };
        let mut server = peer(&["serve", "deaths"]);
        server.wait_for("listening", TIMEOUT);
        let mut client = peer(&["ping", "localhost", "deaths", "--own", "client"]);
        client.wait_for("alive", TIMEOUT);
        process.kill();
        client.wait_for("lost server", TIMEOUT);
        server.wait_for("lost client", TIMEOUT);
    }
    let process = DatapathProcess::start(&files, idle, &nic, here);
    let ended = process.stop();
    assert!(ended.status.success(), "{}", ended.text);
    let left: Vec<_> = fs::read_dir(segments.path())
        .expect("a directory")
        .collect();
    assert!(left.is_empty(), "files of the dead: {left:?}");
    assert!(!files.file("pmd.sock").exists(), "the socket is left");
}

/// A child has all the descriptors of a program that dies, and lives on: the process notices all the same.
#[test]
fn a_program_dies_whose_child_keeps_its_sockets() {
    let segments = Scratch::in_memory("attached-forks");
    let files = Scratch::new("attached-forks");
    let installation = Installation::new();
    let program = installation.old_program("forks", &["forks.c", "old.c"]);
    let nic = NicText::shm(segments.path());
    let here = e2e::datapath::here;
    let mut process = DatapathProcess::start(&files, "idle = \"hybrid\"", &nic, here);
    let alone = Holdings::alone(&process);
    let mut command = e2e::process::program(&program);
    command.env("VIADUCT_CONFIG", process.config());
    let mut parent = Running::start("forks", &mut command);
    parent.wait_for("forked", TIMEOUT);
    assert_ne!(Own::of(&process, &[]), alone.own, "it is attached");
    // The child's input stays open.
    parent.signal("KILL");
    let gone = format!("process {} is gone", parent.id());
    let says = process.says();
    says.wait_until(&gone, TIMEOUT, |line| line.contains(&gone));
    alone.await_again(&process, &[]);
    let ended = process.stop();
    assert!(ended.status.success(), "{}", ended.text);
}
