//! Programs attached to a datapath process that speaks VI/TCP, beside others with a NIC of their own: they talk with
//! each other, and each is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::bulk::Bulk;
use e2e::confined::Confinement;
use e2e::datapath::DatapathProcess;
use e2e::delays::Delays;
use e2e::holdings::Holdings;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// The kernel of a program or process that is killed says so; the rest is for a machine that takes the cores away.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// Deaths of each kind.
const DEATHS: usize = 3;

/// Sockets of a process one VI of which is connected, and that waits for others: for TCP connections, for other programs
/// of its host, and that of the VI.
const SOCKETS: usize = 3;

/// Two hosts; on the left one is a datapath process.
struct Scene {
    wire: Wire,
    files: Scratch,
    /// Its poll threads make only the listed system calls.
    confinement: Confinement,
    /// Dead at times.
    process: Option<DatapathProcess>,
}

impl Scene {
    fn new() -> Self {
        let wire = Wire::new(1500);
        wire.give_addresses();
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
        self.process.as_ref().expect("a process that lives")
    }

    fn kill(&mut self) -> Instant {
        self.process.take().expect("a process that lives").kill()
    }

    /// Ends the process in order.
    fn stop(self) {
        let process = self.process.expect("a process that lives");
        self.confinement.judge(&process.stop());
    }

    /// `vi-peer`, attached to the process.
    fn attached(&self) -> Command {
        let mut command = self.wire.left.program(PEER);
        command.env("VIADUCT_CONFIG", self.config());
        command
    }

    /// `vi-peer` with a NIC of its own.
    fn alone(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(PEER);
        let config = NicText::vi_tcp(end).write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }
}

/// A server that is called by its name.
fn serve(mut command: Command, name: &str) -> Running {
    let mut server = Running::start(name, command.args(["serve", name]));
    server.wait_for("listening", TIMEOUT);
    server
}

fn ping(mut command: Command, of: End, server: &str, name: &str) -> Running {
    let words = ["ping", of.host(), server, "--own", name];
    let mut client = Running::start(name, command.args(words));
    client.wait_for("connected", TIMEOUT);
    client
}

/// What a client has told so far is not enough: it goes on.
fn goes_on(client: &mut Running) {
    client.skip();
    for _ in 0..3 {
        client.wait_for("alive", TIMEOUT);
    }
}

/// Every byte came back, and nothing else happened.
fn end_well(client: Running) {
    let report = Report::read(&client.succeed(TIMEOUT));
    assert!(report.get("round_trips") > 0, "{report:?}");
    assert_eq!(report.get("events"), 0, "{report:?}");
}

/// How a program comes to its NIC, and the end where its messages come out.
#[derive(Clone, Copy)]
enum Kind {
    Attached,
    /// Of its own, on the host of the process: both are reached at one TCP port.
    Beside,
    Far,
}

const KINDS: [Kind; 3] = [Kind::Attached, Kind::Beside, Kind::Far];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Beside => "beside",
            Self::Far => "far",
        }
    }

    fn end(self) -> End {
        match self {
            Self::Attached | Self::Beside => End::Left,
            Self::Far => End::Right,
        }
    }

    fn command(self, scene: &Scene) -> Command {
        match self {
            Self::Attached => scene.attached(),
            Self::Beside | Self::Far => scene.alone(self.end()),
        }
    }
}

/// Servers and clients of all kinds, all at once.
#[test]
fn attached_programs_talk_with_all_others() {
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
        goes_on(client);
    }
    for client in clients {
        end_well(client);
    }
    for mut server in servers {
        for _ in KINDS {
            server.wait_for("left ", TIMEOUT);
        }
        server.succeed(TIMEOUT);
    }
    scene.stop();
}

#[test]
fn many_messages_go_to_attached_programs_and_from_them() {
    let scene = Scene::new();
    let bulk = Bulk {
        rounds: 2,
        messages: 500,
    };
    let ways = [
        (Kind::Attached, Kind::Attached),
        (Kind::Far, Kind::Attached),
        (Kind::Attached, Kind::Far),
    ];
    for (from, to) in ways {
        let what = format!("{} to {}", from.name(), to.name());
        let [mut source, mut sink] = [from, to].map(|kind| kind.command(&scene));
        let reports = bulk.send(&what, &mut sink, &mut source, to.end().host());
        let events = reports.map(|report| report.get("events"));
        assert_eq!(events, [bulk.rounds, 0], "{what}: good-byes at the sink");
    }
    scene.stop();
}

/// Attached clients and servers die: their peers, attached or not, learn of it, and for all others the process goes on.
#[test]
fn attached_programs_die() {
    let scene = Scene::new();
    let mut alone = Holdings::alone(scene.process());
    let mut servers = [Kind::Attached, Kind::Far].map(|kind| {
        let server = serve(kind.command(&scene), kind.name());
        (kind, server)
    });
    let mut bystander = ping(scene.attached(), End::Right, "far", "bystander");
    let [(_, attached), _] = &servers;
    alone.own.sockets += SOCKETS;
    let before = Holdings::settled(scene.process(), &[attached, &bystander], alone);
    let mut known = Delays::default();
    for _ in 0..DEATHS {
        for (kind, server) in &mut servers {
            let mut victim = ping(scene.attached(), kind.end(), kind.name(), "victim");
            goes_on(&mut victim);
            let death = victim.kill();
            let lost = server.wait_for("lost victim", TIMEOUT);
            known.note("a client", death, &lost, KNOWN_WITHIN);
            server.wait_for("left victim", TIMEOUT);
        }
        let victim = serve(scene.attached(), "victim");
        let clients = [Kind::Attached, Kind::Far];
        let mut clients =
            clients.map(|kind| ping(kind.command(&scene), End::Left, "victim", "orphan"));
        for client in &mut clients {
            goes_on(client);
        }
        let death = victim.kill();
        for mut client in clients {
            let lost = client.wait_for("lost server", TIMEOUT);
            known.note("a server", death, &lost, KNOWN_WITHIN);
            let report = Report::read(&client.succeed(TIMEOUT));
            assert_eq!(
                (report.get("losses"), report.get("events")),
                (1, 1),
                "{report:?}"
            );
        }
        goes_on(&mut bystander);
        before.await_again(scene.process(), &[&servers[0].1, &bystander]);
    }
    end_well(bystander);
    for (_, server) in servers {
        server.succeed(TIMEOUT);
    }
    scene.stop();
    println!("\nnote: SIGKILL of attached programs over VI/TCP: known after {known}");
}

/// The program that accepts for all at the port of the host dies: the process accepts in its place.
#[test]
fn process_accepts_where_a_program_died() {
    let scene = Scene::new();
    let beside = serve(scene.alone(End::Left), "beside");
    let mut attached = serve(scene.attached(), "attached");
    let mut before = ping(scene.alone(End::Right), End::Left, "attached", "before");
    goes_on(&mut before);
    beside.kill();
    let mut after = ping(scene.alone(End::Right), End::Left, "attached", "after");
    goes_on(&mut after);
    goes_on(&mut before);
    for client in [before, after] {
        end_well(client);
    }
    for name in ["before", "after"] {
        attached.wait_for(&format!("left {name}"), TIMEOUT);
    }
    attached.succeed(TIMEOUT);
    scene.stop();
}

/// The process dies: its programs learn of it, and so do the peers of these; another process takes its place.
#[test]
fn processes_die() {
    let mut scene = Scene::new();
    let mut far = serve(scene.alone(End::Right), "far");
    let mut client = scene.attached();
    client.args(["outlive", End::Right.host(), "far", "--own", "client"]);
    client.args(["--busy", "--failures", &DEATHS.to_string()]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("alive 0", TIMEOUT);
    let (mut attached, mut known) = (Delays::default(), Delays::default());
    for round in 0..DEATHS {
        let mut server = serve(scene.attached(), "attached");
        let mut orphan = ping(scene.alone(End::Right), End::Left, "attached", "orphan");
        goes_on(&mut orphan);
        let death = scene.kill();
        for news in ["failed Nic", "lost server"] {
            let told = client.wait_for(news, TIMEOUT);
            attached.note(news, death, &told, KNOWN_WITHIN);
        }
        let told = server.wait_for("failed Nic", TIMEOUT);
        attached.note("the server", death, &told, KNOWN_WITHIN);
        let told = far.wait_for("lost client", TIMEOUT);
        known.note("a client", death, &told, KNOWN_WITHIN);
        let told = orphan.wait_for("lost server", TIMEOUT);
        known.note("a server", death, &told, KNOWN_WITHIN);
        orphan.succeed(TIMEOUT);
        client.wait_for(&format!("closed {round}"), TIMEOUT);
        scene.start();
        client.tell("again");
        client.wait_for(&format!("alive {}", round + 1), TIMEOUT);
    }
    client.succeed(TIMEOUT);
    far.succeed(TIMEOUT);
    scene.stop();
    println!(
        "\nnote: SIGKILL of datapath processes that speak VI/TCP: their programs knew after {attached}, their peers after {known}"
    );
}
