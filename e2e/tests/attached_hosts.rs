//! Two hosts with a datapath process each, and different kinds of programs attached to both at the same time.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use e2e::capture::{Occurrence, read_file_with};
use e2e::confined::Confinement;
use e2e::datapath::{DatapathProcess, fcvi_pmd_path};
use e2e::installation::{Installation, built};
use e2e::metrics::{self, Metrics};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, succeed};
use e2e::resource_usage::ResourceUsage;
use e2e::scratch::Scratch;
use e2e::wire::Wire;
use serde_json::Value;

const STRESS: &str = env!("CARGO_BIN_EXE_vi-stress");
/// Runtime of the `vi-stress` pair.
const STRESS_SECONDS: &str = "8";
/// Programs that run until the test ends them; the others end earlier.
const STEADY_COMMANDS: [&str; 2] = ["mesh", "vibench"];
/// Their number on a host: two of the mesh, and `vibench`.
const STEADY_PROGRAMS: usize = 3;
/// Their VIs that stay connected: three of each mesh program, and the control connection of `vibench`.
const STEADY_VIS: usize = 7;
/// Runtime of `vibench`, which the test ends earlier.
const BENCH_SECONDS: &str = "3600";
/// The host of each process of the mesh.
const MESH: [End; 4] = [End::Left, End::Left, End::Right, End::Right];
/// Messages of each size from the echo client.
const ITERATIONS: &str = "50";
const MTU_BYTES: u32 = 2500;

/// A host with its datapath process.
struct Host {
    end: End,
    files: Scratch,
    process: DatapathProcess,
    /// The usage of the process without applications.
    baseline: ResourceUsage,
}

impl Host {
    fn new(wire: &Wire, end: End, nic: &NicText, confinement: &Confinement) -> Self {
        let files = Scratch::new(end.interface());
        // For the metrics endpoint, at the loopback address of the host.
        wire.end(end).ip("link set lo up");
        let run = |program: &Path| confinement.confine(wire.end(end).program(program));
        let process = format!("idle = \"hybrid\"\nmetrics = {:?}", metrics::ADDRESS);
        let process = DatapathProcess::start(&files, &process, nic, run);
        Self {
            end,
            files,
            baseline: ResourceUsage::without_applications(&process),
            process,
        }
    }

    fn command(&self, wire: &Wire, program: impl AsRef<Path>) -> Command {
        let mut command = wire.end(self.end).program(program.as_ref());
        command.env("VIADUCT_CONFIG", self.process.config());
        command
    }

    /// Runs `fcvi-pmd` for the process; returns its output.
    fn fcvi_pmd(&self, wire: &Wire, words: &[&str]) -> String {
        let mut command = self.command(wire, fcvi_pmd_path());
        let output = succeed(command.args(words));
        String::from_utf8(output.stdout).expect("text")
    }

    fn stat(&self, wire: &Wire) -> Value {
        serde_json::from_str(&self.fcvi_pmd(wire, &["stat", "--json"])).expect("JSON")
    }

    fn stress(&self, wire: &Wire, side: &str, other: End) -> Running {
        let mut command = self.command(wire, STRESS);
        command.args(["run", "--side", side, "--seconds", STRESS_SECONDS]);
        command.args(["--slots", "8", "--threads", "2", "--seed", "5"]);
        command.args(["--host", other.host(), "--among-others"]);
        command.arg("--records").arg(self.files.file("records"));
        Running::start(side, &mut command)
    }

    /// Starts a process of the mesh (C89): one VI to each other process, memory on stack, heap and two kinds of shared
    /// memory.
    fn mesh(&self, wire: &Wire, program: &Path, rank: usize) -> Running {
        let mut command = self.command(wire, program);
        command.arg(rank.to_string()).arg(self.end.host());
        command.args(MESH.map(End::host));
        Running::start(&format!("rank {rank}"), &mut command)
    }

    /// Starts `fcvi-pmd top` on a terminal.
    fn top(&self, wire: &Wire) -> Running {
        let program = fcvi_pmd_path();
        let (program, config) = (program.display(), self.process.config().display());
        let shell = format!("stty rows 40 cols 120 && exec {program} top --config {config}");
        let mut command = self.command(wire, "script");
        command.args(["--quiet", "--return", "--command", &shell, "/dev/null"]);
        Running::start("top", &mut command)
    }

    /// Captures `count` frames of the running NIC with `fcvi-pmd capture` and checks with tshark that most are FC-VI
    /// frames, and all others link services or FIP.
    fn capture(&self, wire: &Wire, count: usize) {
        let file = self.files.file("running.pcapng");
        let mut command = self.command(wire, fcvi_pmd_path());
        command.args(["capture", "--count", &count.to_string()]);
        command.arg("--config").arg(self.process.config());
        succeed(command.arg("-w").arg(&file));
        let fields = ["eth.type", "fcoe.crc.status", "fc.type"];
        let frames = read_file_with(&file, &fields, Occurrence::First);
        assert_eq!(frames.len(), count);
        let vi = frames.iter().filter(|frame| frame[2] == "0x58").count();
        assert!(vi > count / 2, "{vi} of {count}");
        for frame in frames.iter().filter(|frame| frame[0] != "0x8914") {
            assert_eq!(frame[..2], ["0x8906", "1"]);
            assert!(
                ["0x58", "0x01", "0x00"].contains(&frame[2].as_str()),
                "{frame:?}"
            );
        }
    }

    /// Waits until the steady programs are connected.
    fn await_steady(&self, wire: &Wire) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let stat = self.stat(wire);
            if owners(&stat, "vis") >= STEADY_PROGRAMS && connected(&stat) >= STEADY_VIS {
                return;
            }
            assert!(Instant::now() < deadline, "{stat}");
        }
    }

    /// Checks the tools of operators while all programs run: `stat`, `top`, `capture`, metrics.
    fn check_tools(&self, wire: &Wire) {
        let mut top = self.top(wire);
        self.capture(wire, 2000);
        let before = self.stat(wire);
        let metrics = Metrics::fetch(wire.end(self.end));
        let after = self.stat(wire);
        let totals = metrics.assert_between(&before, &after);
        assert!(totals > 50, "{totals} totals of a NIC");
        for stat in [&before, &after] {
            let [vis, regions] = ["vis", "regions"].map(|what| owners(stat, what));
            assert!(vis >= STEADY_PROGRAMS, "{stat}");
            assert!(regions >= STEADY_PROGRAMS, "{stat}");
            assert!(connected(stat) >= STEADY_VIS, "{stat}");
            let level = |name: &str| stat["nics"][0]["counters"][name].as_u64();
            assert!(level("vis") >= Some(STEADY_VIS as u64), "{stat}");
            assert!(level("regions") >= Some(STEADY_PROGRAMS as u64), "{stat}");
        }
        let connected = "viaduct_vis{nic=\"VINIC0\",state=\"Connected\"}";
        assert!(metrics.get(connected) >= STEADY_VIS as f64, "{metrics:?}");
        let applications = metrics.get("viaduct_applications");
        assert!(applications >= STEADY_PROGRAMS as f64, "{metrics:?}");
        let shown = self.fcvi_pmd(wire, &["top", "--once"]);
        assert!(shown.contains("VINIC0"), "{shown}");
        top.send_line("q");
        let shown = top.succeed(TIMEOUT);
        for word in ["VINIC0", "BUSY%", "vibench", "mesh"] {
            assert!(shown.contains(word), "no {word} in {shown:?}");
        }
    }

    fn bench(&self, wire: &Wire, words: &[&str]) -> Running {
        // The debug build: results are not checked.
        let mut command = self.command(wire, built().join("vibench"));
        command.args(["rate", "--memory", "private"]).args(words);
        command.arg("--config").arg(self.process.config());
        Running::start("vibench", &mut command)
    }
}

/// Iterates over the steady programs among the applications.
fn steady(stat: &Value) -> impl Iterator<Item = &Value> {
    let applications = stat["applications"].as_array().expect("a list");
    let is_steady = |command: &str| STEADY_COMMANDS.contains(&command);
    applications
        .iter()
        .filter(move |one| one["command"].as_str().is_some_and(is_steady))
}

/// Returns the number of steady programs with at least one resource of this kind.
fn owners(stat: &Value, what: &str) -> usize {
    steady(stat)
        .filter(|one| one[what].as_u64() > Some(0))
        .count()
}

/// Returns the number of connected VIs of steady programs.
fn connected(stat: &Value) -> usize {
    let pids: Vec<&Value> = steady(stat).map(|one| &one["pid"]).collect();
    let vis = stat["vis"].as_array().expect("a list");
    let is_it = |vi: &&Value| vi["state"] == "Connected" && pids.contains(&&vi["application"]);
    vis.iter().filter(is_it).count()
}

/// Six programs on each host: an echo and an RDMA write on heap memory, a `vi-stress` pair on memory of the library's
/// allocator, messages at full rate from private memory, and two mesh processes on all other kinds of memory.
struct Programs {
    echo: [Running; 2],
    write: [Running; 2],
    stress: [Running; 2],
    /// The server, and the client, which runs until SIGINT.
    bench: [Running; 2],
    mesh: Vec<Running>,
}

impl Programs {
    fn start(wire: &Wire, [left, right]: [&Host; 2]) -> Self {
        let installation = Installation::new();
        let mesh_program = installation.old_program("mesh", &["mesh.c", "common.c"]);
        let c_program = |host: &Host, name: &str, words: &[&str]| {
            let mut command = host.command(wire, installation.program(name));
            Running::start(name, command.args(words))
        };
        let mut echo_server = c_program(left, "EchoServer", &["-c", "1"]);
        echo_server.wait_for("EchoServer: listening", TIMEOUT);
        let mut bench_server = left.bench(wire, &["--listen"]);
        bench_server.wait_for("vibench: listening", TIMEOUT);
        let write_server = c_program(left, "RdmaWrite", &["-S", "-t", "50000"]);
        let host = End::Left.host();
        let echo = ["-t", "50000", "-i", ITERATIONS, host];
        let bench = ["--connect", host, "--size", "4096"];
        let bench = [&bench[..], &["--seconds", BENCH_SECONDS]].concat();
        let mut programs = Self {
            echo: [echo_server, c_program(right, "EchoClient", &echo)],
            write: [
                write_server,
                c_program(right, "RdmaWrite", &["-t", "50000", host]),
            ],
            stress: [
                left.stress(wire, "left", End::Right),
                right.stress(wire, "right", End::Left),
            ],
            bench: [bench_server, right.bench(wire, &bench)],
            mesh: Vec::new(),
        };
        for (rank, end) in MESH.into_iter().enumerate() {
            let host = if end == End::Left { left } else { right };
            programs.mesh.push(host.mesh(wire, &mesh_program, rank));
        }
        for (rank, one) in programs.mesh.iter_mut().enumerate() {
            let line = format!("rank {rank}: 50 messages with each of 3 peers");
            one.wait_for(&line, TIMEOUT);
        }
        programs.stress[0].wait_for("thread 0", TIMEOUT);
        programs
    }

    /// Stops all programs and checks their results.
    fn end(self, hosts: [&Host; 2]) {
        let [echo_server, echo_client] = self.echo;
        let output = echo_client.succeed(TIMEOUT);
        assert!(output.contains(" 0 errors"), "{output}");
        echo_server.succeed(TIMEOUT);
        let [write_server, write_client] = self.write;
        let output = write_client.succeed(TIMEOUT);
        assert!(output.contains("verified all bytes"), "{output}");
        write_server.succeed(TIMEOUT);
        for one in self.mesh {
            one.succeed(TIMEOUT);
        }
        for side in self.stress {
            side.succeed(TIMEOUT);
        }
        let records = hosts.map(|host| host.files.file("records"));
        let mut compare = Command::new(STRESS);
        succeed(
            compare
                .arg("compare")
                .args(&records)
                .args(["--lossy", "--among-others"]),
        );
        let [bench_server, bench_client] = self.bench;
        for one in [bench_client, bench_server] {
            one.signal("INT");
            one.succeed(TIMEOUT);
        }
    }
}

/// Runs [`Programs`] on two hosts with these NICs. The poll threads may make only the listed system calls.
fn run_programs(left: &NicText, right: &NicText) {
    let wire = Wire::new(MTU_BYTES);
    let hosts = [(End::Left, left), (End::Right, right)];
    let confinement = Confinement::of(&["af_packet"]);
    let [left, right] = hosts.map(|(end, nic)| Host::new(&wire, end, nic, &confinement));
    let programs = Programs::start(&wire, [&left, &right]);
    for host in [&left, &right] {
        host.await_steady(&wire);
        host.check_tools(&wire);
    }
    programs.end([&left, &right]);
    for host in [left, right] {
        host.baseline.wait_until_restored(&host.process, &[]);
        let after = host.stat(&wire);
        assert!(
            after["nics"][0]["tx_frames"].as_u64() > Some(1000),
            "{after}"
        );
        confinement.check(&host.process.stop());
    }
}

#[test]
fn configured_ports_serve_six_programs_each() {
    let nic = |end| NicText::af_packet(end).key("fc_vi.r_a_tov_ms", 1000);
    run_programs(&nic(End::Left), &nic(End::Right));
}

#[test]
fn discovered_ports_serve_six_programs_each() {
    let nic = |end: End| NicText::discovering(end.interface(), end.host());
    run_programs(&nic(End::Left), &nic(End::Right));
}
