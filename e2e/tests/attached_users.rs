//! Programs of two users attached to one datapath process: neither takes the other's connections or names.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use e2e::datapath::{DatapathProcess, here};
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT, program, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Clients of the server that the other user wants.
const CLIENTS: usize = 12;

/// A process for root and an ordinary user, and a copy of `vi-peer` that the latter can run.
struct Scene {
    process: DatapathProcess,
    host: String,
    peer: PathBuf,
    _files: Scratch,
}

impl Scene {
    fn new(nic: &NicText, host: &str) -> Self {
        let files = Scratch::new("users");
        let peer = files.file("vi-peer");
        fs::copy(PEER, &peer).expect("room for a program");
        let keys = format!("idle = \"hybrid\"\nusers = [0, {}]", unprivileged_user());
        Self {
            process: DatapathProcess::start(&files, &keys, nic, here),
            host: host.to_owned(),
            peer,
            _files: files,
        }
    }

    fn start(&self, name: &str, mut command: Command, words: &[&str]) -> Running {
        command.env("VIADUCT_CONFIG", self.process.config());
        Running::start(name, command.args(words))
    }

    /// A program of root's that does what its input says.
    fn of_root(&self, name: &str) -> Running {
        let mut explorer = self.start(name, program(&self.peer), &["explore"]);
        explorer.wait_for("ready", TIMEOUT);
        explorer
    }

    /// The same of the ordinary user.
    fn of_other(&self, name: &str) -> Running {
        let mut explorer = self.start(name, unprivileged(&self.peer), &["explore"]);
        explorer.wait_for("ready", TIMEOUT);
        explorer
    }

    /// What one request under the name `own` comes to.
    fn ask(&self, client: &mut Running, server: &str, own: &str) -> String {
        self.outcome(client, &format!("ask {} {server} {own}", self.host))
    }

    /// The same once a program waits for requests.
    fn connect(&self, client: &mut Running, server: &str, own: &str) -> String {
        self.outcome(client, &format!("connect {} {server} {own}", self.host))
    }

    fn outcome(&self, client: &mut Running, command: &str) -> String {
        client.tell(command);
        let told = client.wait_for("asked", TIMEOUT).text;
        let start = format!("asked {} ", self.host);
        told.strip_prefix(&start).expect("this host").to_owned()
    }
}

fn is_alone() -> bool {
    if unprivileged_user() == 0 {
        println!("\nnote: no other user here: that users are kept apart is not tried");
        return true;
    }
    false
}

fn users_are_kept_apart(nic: &NicText, host: &str) {
    if is_alone() {
        return;
    }
    let mut scene = Scene::new(nic, host);
    let mut server = scene.start("server", program(PEER), &["serve", "service"]);
    server.wait_for("listening", TIMEOUT);
    let [mut thief, mut client] = [scene.of_other("thief"), scene.of_root("client")];

    thief.tell("hold service");
    thief.wait_for("holds nothing: ErrorResource", TIMEOUT);
    for number in 0..CLIENTS {
        let own = format!("client-{number}");
        assert_eq!(scene.connect(&mut client, "service", &own), "connected");
        assert_eq!(scene.ask(&mut thief, "service", &own), "ErrorResource");
    }
    assert_eq!(scene.connect(&mut thief, "service", "thief"), "connected");
    let line = scene.process.says().wait_until("why", TIMEOUT, |line| {
        line.contains("discriminator refused: reserved for user 0")
    });
    let user = format!("uid={}", unprivileged_user());
    assert!(
        line.text.contains("discriminator=\"service\" owner=0") && line.text.contains(&user),
        "{}",
        line.text
    );

    // A server learns the user of a client.
    let mut desk = scene.of_root("desk");
    for (client, user) in [(&mut thief, unprivileged_user()), (&mut client, 0)] {
        desk.tell("hold desk");
        desk.tell("release");
        let own = format!("user-{user}");
        assert_eq!(scene.connect(client, "desk", &own), "Reject");
        desk.wait_for(&format!("holds user-{user} of user {user}"), TIMEOUT);
    }
    desk.succeed(TIMEOUT);

    // The last opening that used it is closed, or its program is killed.
    client.succeed(TIMEOUT);
    assert_eq!(
        scene.connect(&mut thief, "service", "client-0"),
        "connected"
    );
    assert_eq!(scene.ask(&mut thief, "nobody", "service"), "ErrorResource");
    server.kill();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match scene.ask(&mut thief, "nobody", "service").as_str() {
            "NoMatch" => break,
            "ErrorResource" => assert!(Instant::now() < deadline, "its name stays reserved"),
            other => panic!("{other}"),
        }
    }
    thief.succeed(TIMEOUT);
    let ended = scene.process.stop();
    assert!(ended.status.success(), "{}", ended.text);
}

#[test]
fn users_of_a_nic_are_kept_apart_over_fc_vi() {
    let segment = Scratch::in_memory("users");
    users_are_kept_apart(&NicText::shm(segment.path()), "::1");
}

#[test]
fn users_of_a_nic_are_kept_apart_over_vi_tcp() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = format!("127.33.{high}.{low}");
    users_are_kept_apart(&NicText::vi_tcp_at(&host), &host);
}
