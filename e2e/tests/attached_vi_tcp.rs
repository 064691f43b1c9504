//! Programs attached to a datapath process with a VI/TCP NIC, and programs with their own NIC: connections between all
//! of them, and SIGKILL of programs and processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::confined::Confinement;
use e2e::datapath::DatapathProcess;
use e2e::faults::{Pair, complete};
use e2e::latencies::Latencies;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::resource_usage::ResourceUsage;
use e2e::scratch::Scratch;
use e2e::vi_peer::{self, await_progress, serve, stop_client};
use e2e::wire::Wire;

/// Upper limit for the report of a kill on a busy machine; the kernel closes the connections immediately.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of kills of each kind.
const KILLS: usize = 3;

/// Sockets of a process with one connected VI: the TCP listener, the listener for other programs of the host, and the
/// connection of the VI.
const SOCKETS: usize = 3;

/// Two hosts; the left one has a datapath process.
struct Scene {
    wire: Wire,
    files: Scratch,
    /// Its poll threads may make only the listed system calls.
    confinement: Confinement,
    /// `None` while it is killed.
    process: Option<DatapathProcess>,
}

impl Scene {
    fn new() -> Self {
        let wire = Wire::new(1500);
        wire.assign_addresses();
        let files = Scratch::new("attached-vi-tcp");
        let text = DatapathProcess::text(&files, "idle = \"hybrid\"", &NicText::vi_tcp(End::Left));
        files.write("pmd.toml", &text);
        let mut scene = Self {
            wire,
            files,
            confinement: Confinement::of(&["vi-tcp"]),
            process: None,
        };
        scene.start();
        scene
    }

    fn start(&mut self) {
        let run = |program: &Path| self.confinement.confine(self.wire.left.program(program));
        self.process = Some(DatapathProcess::start_from(&self.config(), run));
    }

    fn config(&self) -> PathBuf {
        self.files.file("pmd.toml")
    }

    fn process(&self) -> &DatapathProcess {
        self.process.as_ref().expect("a running process")
    }

    fn kill(&mut self) -> Instant {
        self.process.take().expect("a running process").kill()
    }

    /// Stops the process.
    fn stop(self) {
        let process = self.process.expect("a running process");
        self.confinement.check(&process.stop());
    }

    /// Returns the command of a `vi-peer` that attaches to the process.
    fn attached(&self) -> Command {
        vi_peer::within(&self.wire.left, &self.config())
    }

    /// Returns the command of a `vi-peer` with its own NIC.
    fn with_own_nic(&self, end: End) -> Command {
        let config = NicText::vi_tcp(end).write(&self.files, end.interface());
        vi_peer::within(self.wire.end(end), &config)
    }
}

fn ping(command: Command, of: End, server: &str, name: &str) -> Running {
    vi_peer::ping(command, of.host(), server, name)
}

/// Starts a client at the right end of the attached server.
fn ping_attached(scene: &Scene, name: &str) -> Running {
    ping(scene.with_own_nic(End::Right), End::Left, "attached", name)
}

/// The kinds of programs.
#[derive(Clone, Copy)]
enum ProgramKind {
    Attached,
    /// With its own NIC, on the host of the process; both share one TCP port.
    SameHost,
    /// With its own NIC, on the other host.
    OtherHost,
}

const KINDS: [ProgramKind; 3] = [
    ProgramKind::Attached,
    ProgramKind::SameHost,
    ProgramKind::OtherHost,
];

impl ProgramKind {
    fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::SameHost => "same-host",
            Self::OtherHost => "other-host",
        }
    }

    fn end(self) -> End {
        match self {
            Self::Attached | Self::SameHost => End::Left,
            Self::OtherHost => End::Right,
        }
    }

    fn command(self, scene: &Scene) -> Command {
        match self {
            Self::Attached => scene.attached(),
            Self::SameHost | Self::OtherHost => scene.with_own_nic(self.end()),
        }
    }
}

/// Servers and clients of all kinds at the same time.
#[test]
fn attached_programs_connect_with_all_kinds_of_programs() {
    let scene = Scene::new();
    let servers = KINDS.map(|kind| serve(kind.command(&scene), kind.name()));
    let mut clients = Vec::new();
    for server in KINDS {
        for client in KINDS {
            let name = format!("by-{}", client.name());
            let command = client.command(&scene);
            clients.push(ping(command, server.end(), server.name(), &name));
        }
    }
    for client in &mut clients {
        await_progress(client, 3);
    }
    for client in clients {
        stop_client(client);
    }
    for mut server in servers {
        for _ in KINDS {
            server.wait_for("disconnected ", TIMEOUT);
        }
        server.succeed(TIMEOUT);
    }
    scene.stop();
}

#[test]
fn bulk_transfers_to_and_from_attached_programs_complete() {
    let scene = Scene::new();
    let routes = [
        (ProgramKind::Attached, ProgramKind::Attached),
        (ProgramKind::OtherHost, ProgramKind::Attached),
        (ProgramKind::Attached, ProgramKind::OtherHost),
    ];
    for (from, to) in routes {
        let what = format!("{} to {}", from.name(), to.name());
        let pair = Pair {
            sink: to.command(&scene),
            source: from.command(&scene),
            host: to.end().host(),
        };
        let reports = complete(&what, pair, 2, 500);
        let events = reports.map(|report| report.get("events"));
        assert_eq!(events, [2, 0], "{what}: disconnects at the sink");
    }
    scene.stop();
}

/// Killed attached clients and servers are reported to their peers, attached or not; other programs are unaffected.
#[test]
fn killed_attached_programs_are_reported_to_peers() {
    let scene = Scene::new();
    let mut baseline = ResourceUsage::without_applications(scene.process());
    let mut servers = [ProgramKind::Attached, ProgramKind::OtherHost].map(|kind| {
        let server = serve(kind.command(&scene), kind.name());
        (kind, server)
    });
    let mut bystander = ping(scene.attached(), End::Right, "other-host", "bystander");
    let [(_, attached), _] = &servers;
    baseline.system.sockets += SOCKETS;
    let before =
        ResourceUsage::wait_until_stable(scene.process(), &[attached, &bystander], baseline);
    let mut reports = Latencies::default();
    for _ in 0..KILLS {
        for (kind, server) in &mut servers {
            let mut victim = ping(scene.attached(), kind.end(), kind.name(), "victim");
            await_progress(&mut victim, 3);
            let killed_at = victim.kill();
            let lost = server.wait_for("lost victim", TIMEOUT);
            reports.record("a client", killed_at, &lost, REPORT_TIMEOUT);
            server.wait_for("disconnected victim", TIMEOUT);
        }
        let victim = serve(scene.attached(), "victim");
        let clients = [ProgramKind::Attached, ProgramKind::OtherHost];
        let mut clients =
            clients.map(|kind| ping(kind.command(&scene), End::Left, "victim", "orphan"));
        for client in &mut clients {
            await_progress(client, 3);
        }
        let killed_at = victim.kill();
        for mut client in clients {
            let lost = client.wait_for("lost server", TIMEOUT);
            reports.record("a server", killed_at, &lost, REPORT_TIMEOUT);
            let report = Report::read(&client.succeed(TIMEOUT));
            assert_eq!(
                (report.get("losses"), report.get("events")),
                (1, 1),
                "{report:?}"
            );
        }
        await_progress(&mut bystander, 3);
        before.wait_until_restored(scene.process(), &[&servers[0].1, &bystander]);
    }
    stop_client(bystander);
    for (_, server) in servers {
        server.succeed(TIMEOUT);
    }
    scene.stop();
    println!("\nnote: SIGKILL of attached programs over VI/TCP: reported after {reports}");
}

/// The program that owns the shared listener of the host is killed: the process takes over the listener.
#[test]
fn process_takes_over_the_listener_of_a_killed_program() {
    let scene = Scene::new();
    let owner = serve(scene.with_own_nic(End::Left), "owner");
    let mut attached = serve(scene.attached(), "attached");
    let mut before = ping_attached(&scene, "before");
    await_progress(&mut before, 3);
    owner.kill();
    let mut after = ping_attached(&scene, "after");
    await_progress(&mut after, 3);
    await_progress(&mut before, 3);
    for client in [before, after] {
        stop_client(client);
    }
    for name in ["before", "after"] {
        attached.wait_for(&format!("disconnected {name}"), TIMEOUT);
    }
    attached.succeed(TIMEOUT);
    scene.stop();
}

/// A killed process is reported to its programs and to their peers; the programs attach to the next process.
#[test]
fn killed_processes_are_reported_to_programs_and_peers() {
    let mut scene = Scene::new();
    let mut remote = serve(scene.with_own_nic(End::Right), "remote");
    let mut client = scene.attached();
    client.args([
        "survive-failures",
        End::Right.host(),
        "remote",
        "--client-name",
        "client",
    ]);
    client.args(["--busy", "--failures", &KILLS.to_string()]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("alive 0", TIMEOUT);
    let (mut attached, mut reports) = (Latencies::default(), Latencies::default());
    for round in 0..KILLS {
        let mut server = serve(scene.attached(), "attached");
        let mut orphan = ping_attached(&scene, "orphan");
        await_progress(&mut orphan, 3);
        let killed_at = scene.kill();
        for event in ["failed Nic", "lost server"] {
            let line = client.wait_for(event, TIMEOUT);
            attached.record(event, killed_at, &line, REPORT_TIMEOUT);
        }
        let line = server.wait_for("failed Nic", TIMEOUT);
        attached.record("the server", killed_at, &line, REPORT_TIMEOUT);
        let line = remote.wait_for("lost client", TIMEOUT);
        reports.record("a client", killed_at, &line, REPORT_TIMEOUT);
        let line = orphan.wait_for("lost server", TIMEOUT);
        reports.record("a server", killed_at, &line, REPORT_TIMEOUT);
        orphan.succeed(TIMEOUT);
        client.wait_for(&format!("closed {round}"), TIMEOUT);
        scene.start();
        client.send_line("again");
        client.wait_for(&format!("alive {}", round + 1), TIMEOUT);
    }
    client.succeed(TIMEOUT);
    remote.succeed(TIMEOUT);
    scene.stop();
    println!(
        "\nnote: SIGKILL of datapath processes with VI/TCP: reported to their programs after {attached}, to peers after {reports}"
    );
}
