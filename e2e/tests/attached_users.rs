//! Programs of two users attached to one datapath process: discriminators of one user are reserved for that user, and the
//! programs of a user have its share of a NIC.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use e2e::datapath::{DatapathProcess, local_command};
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::vi_peer;

/// Number of client names that the other user tries to use.
const CLIENTS: usize = 12;

/// A process that admits root and an ordinary user, and a copy of `vi-peer` that the latter can execute.
struct Scene {
    process: DatapathProcess,
    host: String,
    vi_peer: PathBuf,
    _files: Scratch,
}

impl Scene {
    fn new(nic: &NicText, host: &str) -> Self {
        Self::with_keys(nic, host, "")
    }

    /// `keys` follow those of the table `[process]`.
    fn with_keys(nic: &NicText, host: &str, keys: &str) -> Self {
        let files = Scratch::new("users");
        let vi_peer = files.file("vi-peer");
        fs::copy(vi_peer::path(), &vi_peer).expect("the program is copied");
        let users = unprivileged_user();
        let keys = format!("idle = \"hybrid\"\nusers = [0, {users}]\n{keys}");
        Self {
            process: DatapathProcess::start(&files, &keys, nic, local_command),
            host: host.to_owned(),
            vi_peer,
            _files: files,
        }
    }

    /// Starts a `vi-peer explore` of root.
    fn root_explorer(&self) -> Running {
        vi_peer::explore(vi_peer::local(self.process.config()))
    }

    /// Starts a `vi-peer explore` of the ordinary user.
    fn user_explorer(&self) -> Running {
        let mut command = unprivileged(&self.vi_peer);
        command.env("VIADUCT_CONFIG", self.process.config());
        vi_peer::explore(command)
    }

    /// Requests a connection once, with the client discriminator `name`; returns the result.
    fn request(&self, client: &mut Running, server: &str, name: &str) -> String {
        self.result(client, &format!("request {} {server} {name}", self.host))
    }

    /// Like [`Self::request`], repeatedly until a program listens.
    fn connect(&self, client: &mut Running, server: &str, name: &str) -> String {
        self.result(client, &format!("connect {} {server} {name}", self.host))
    }

    /// Creates up to `count` VIs; returns how many it got.
    fn create_vis(&self, program: &mut Running, count: u32) -> u32 {
        program.send_line(&format!("vis {count}"));
        let line = program.wait_for("created", TIMEOUT).text;
        let created = line.strip_prefix("created ").expect("a number");
        created.parse().expect("a number")
    }

    fn result(&self, client: &mut Running, command: &str) -> String {
        client.send_line(command);
        let line = client.wait_for("result", TIMEOUT).text;
        let start = format!("result {} ", self.host);
        line.strip_prefix(&start).expect("this host").to_owned()
    }
}

fn is_only_user() -> bool {
    if unprivileged_user() == 0 {
        println!("\nnote: skipped: the user namespace has no other user");
        return true;
    }
    false
}

fn check_reservations(nic: &NicText, host: &str) {
    if is_only_user() {
        return;
    }
    let mut scene = Scene::new(nic, host);
    let server = vi_peer::serve(vi_peer::local(scene.process.config()), "service");
    let [mut intruder, mut client] = [scene.user_explorer(), scene.root_explorer()];
    intruder.send_line("hold service");
    intruder.wait_for("hold failed: ErrorResource", TIMEOUT);
    for number in 0..CLIENTS {
        let name = format!("client-{number}");
        assert_eq!(scene.connect(&mut client, "service", &name), "connected");
        assert_eq!(
            scene.request(&mut intruder, "service", &name),
            "ErrorResource"
        );
    }
    assert_eq!(
        scene.connect(&mut intruder, "service", "intruder"),
        "connected"
    );
    let line = scene
        .process
        .output()
        .wait_until("the reason", TIMEOUT, |line| {
            line.contains("discriminator refused: reserved for user 0")
        });
    let user = format!("uid={}", unprivileged_user());
    assert!(
        line.text.contains("discriminator=\"service\" owner=0") && line.text.contains(&user),
        "{}",
        line.text
    );

    // A server can query the user of a client.
    let mut holder = scene.root_explorer();
    for (client, user) in [(&mut intruder, unprivileged_user()), (&mut client, 0)] {
        holder.send_line("hold holder");
        holder.send_line("release");
        let name = format!("user-{user}");
        assert_eq!(scene.connect(client, "holder", &name), "Reject");
        holder.wait_for(&format!("held user-{user} user {user}"), TIMEOUT);
    }
    holder.succeed(TIMEOUT);

    // A reservation ends when the last NIC handle that used the name is closed, also when its program is killed.
    client.succeed(TIMEOUT);
    assert_eq!(
        scene.connect(&mut intruder, "service", "client-0"),
        "connected"
    );
    assert_eq!(
        scene.request(&mut intruder, "unknown", "service"),
        "ErrorResource"
    );
    server.kill();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match scene.request(&mut intruder, "unknown", "service").as_str() {
            "NoMatch" => break,
            "ErrorResource" => assert!(Instant::now() < deadline, "the name stays reserved"),
            other => panic!("{other}"),
        }
    }
    intruder.succeed(TIMEOUT);
    scene.process.stop_and_check();
}

#[test]
fn discriminators_are_reserved_per_user_over_fc_vi() {
    let segment = Scratch::in_memory("users");
    check_reservations(&NicText::shm(segment.path()), "::1");
}

#[test]
fn discriminators_are_reserved_per_user_over_vi_tcp() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = format!("127.33.{high}.{low}");
    check_reservations(&NicText::vi_tcp_at(&host), &host);
}

#[test]
fn programs_of_a_user_have_no_more_than_its_share_of_the_nic() {
    if is_only_user() {
        return;
    }
    let segment = Scratch::in_memory("users-share");
    let nic = NicText::shm(segment.path());
    let mut scene = Scene::with_keys(&nic, "::1", "[process.quota]\nmax_vi = 300");
    let [mut first, mut second, mut third] = [(); 3].map(|()| scene.user_explorer());
    let created =
        [&mut first, &mut second, &mut third].map(|program| scene.create_vis(program, 400));
    // Half of 1024 together.
    assert_eq!(created, [300, 212, 0]);
    let reason = "call refused: max_vi = 512: 512 in use by programs of this user";
    let lines = scene.process.output();
    lines.wait_until("the reason", TIMEOUT, |line| line.contains(reason));
    let mut other = scene.root_explorer();
    assert_eq!(scene.create_vis(&mut other, 400), 300);
    first.succeed(TIMEOUT);
    assert_eq!(scene.create_vis(&mut second, 400), 88, "its own quota");
    assert_eq!(scene.create_vis(&mut third, 100), 100);
    for program in [second, third, other] {
        program.succeed(TIMEOUT);
    }
    scene.process.stop_and_check();
}
