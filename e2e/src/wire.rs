//! Two network namespaces and a wire between them, gone with their last user.
//!
//! A namespace here has no name: it lives as long as the process that keeps it, and that one ends when
//! the pipe to it closes. Nothing is left behind however a test ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::nics::End;
use crate::process::{command, program, require_root, succeed};

/// Looks at a link until it carries frames; each look is a process.
const LINK_LOOKS: u32 = 1000;
/// Name of the table that forwards frames on a lossy wire.
const FORWARDS: &str = "forwards";
/// Name of the table that counts frames of other protocols.
const OTHERS: &str = "others";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    keeper: Child,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut input = keeper.stdin.take().expect("piped");
        let mut output = BufReader::new(keeper.stdout.take().expect("piped"));
        let mut echo = String::new();
        // The echo shows that the process is inside.
        let answered = writeln!(input, "inside").and_then(|()| output.read_line(&mut echo));
        assert!(
            answered.is_ok() && echo == "inside\n",
            "no new network namespace: this needs root, or a user namespace"
        );
        keeper.stdin = Some(input);
        Self { keeper }
    }

    /// How `ip` names it from outside.
    pub(crate) fn id(&self) -> u32 {
        self.keeper.id()
    }

    /// A program inside the namespace.
    pub fn program(&self, name: impl AsRef<OsStr>) -> Command {
        self.enter(program(name))
    }

    /// A program of `e2e/programs` in Python, inside the namespace.
    pub fn python(&self, name: &str) -> Command {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut command = self.program("python3");
        command.arg(programs.join(name));
        command
    }

    /// The same words inside the namespace; the environment is still to be set.
    pub fn enter(&self, outside: Command) -> Command {
        let [nsenter, words @ ..] = self.words();
        let mut inside = command(&nsenter);
        inside
            .args(words)
            .arg(outside.get_program())
            .args(outside.get_args());
        inside
    }

    /// The words that have a program run inside the namespace when they stand in front of its own.
    pub fn words(&self) -> [String; 3] {
        [
            "nsenter".to_owned(),
            format!("--net=/proc/{}/ns/net", self.keeper.id()),
            "--".to_owned(),
        ]
    }

    /// Runs `ip` with these words inside the namespace; returns what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, words: &str) -> String {
        let mut command = self.program("ip");
        let output = succeed(command.args(words.split(' ')));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// From now on counts the frames that come in at an interface and are neither FCoE nor FIP. Needs nftables.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn count_others(&self, interface: &str) {
        succeed(self.program("nft").arg(format!(
            "table netdev {OTHERS} {{\nchain {interface} {{\n\
             type filter hook ingress device {interface} priority 0;\n\
             ether type != {{ 0x8906, 0x8914 }} counter\n}}\n}}\n"
        )));
    }

    /// How many have come.
    ///
    /// # Panics
    /// If they are not counted.
    pub fn others(&self) -> u64 {
        let counts = self.rule_counts(OTHERS);
        *counts.first().expect("frames that are counted")
    }

    /// The frames that each rule of a table has counted.
    fn rule_counts(&self, table: &str) -> Vec<u64> {
        let mut command = self.program("nft");
        let output = succeed(command.args(["-j", "list", "table", "netdev", table]));
        let listing: Value = serde_json::from_slice(&output.stdout).expect("JSON of nft");
        let objects = listing["nftables"].as_array().expect("a list");
        let rules = objects
            .iter()
            .filter_map(|object| object["rule"]["expr"].as_array());
        let counts = rules
            .flatten()
            .filter_map(|part| part["counter"]["packets"].as_u64());
        counts.collect()
    }

    fn up(&self, interface: &str, mtu_bytes: u32) {
        // Without an address of its own IPv6 is silent.
        self.ip(&format!(
            "link set {interface} mtu {mtu_bytes} addrgenmode none"
        ));
        self.ip(&format!("link set {interface} up"));
    }

    /// What `ip` tells of an interface.
    ///
    /// # Panics
    /// If there is none.
    pub fn link(&self, interface: &str) -> Value {
        let text = self.ip(&format!("-s -j link show {interface}"));
        let links: Value = serde_json::from_str(&text).expect("JSON of ip");
        links.get(0).expect("one link").clone()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Both fail only when the process has ended, which is what they are for.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Two namespaces with a wire between their interfaces `left` and `right`, both up.
#[derive(Debug)]
pub struct Wire {
    /// The namespace of interface `left`.
    pub left: Namespace,
    /// The namespace of interface `right`.
    pub right: Namespace,
    /// The namespace between them, if their wire goes through one.
    middle: Option<Namespace>,
}

impl Wire {
    /// Makes the wire; nothing but the test's own frames is on it.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(mtu_bytes: u32) -> Self {
        require_root();
        let wire = Self {
            left: Namespace::new(),
            right: Namespace::new(),
            middle: None,
        };
        wire.join(mtu_bytes);
        wire
    }

    /// The namespace at one end.
    pub fn end(&self, end: End) -> &Namespace {
        match end {
            End::Left => &self.left,
            End::Right => &self.right,
        }
    }

    /// Gives both ends the addresses of [`End::host`], for protocols of IP. The network says at once of other hosts that
    /// they are not there.
    ///
    /// # Panics
    /// If they have them already.
    pub fn give_addresses(&self) {
        for end in [End::Left, End::Right] {
            let (namespace, interface) = (self.end(end), end.interface());
            namespace.ip("link set lo up");
            namespace.ip(&format!("addr add {}/29 dev {interface}", end.host()));
            namespace.ip("route add unreachable default");
        }
    }

    /// As [`Self::give_addresses`], those of [`End::host_v6`].
    ///
    /// # Panics
    /// If they have them already.
    pub fn give_v6_addresses(&self) {
        for end in [End::Left, End::Right] {
            let (namespace, interface) = (self.end(end), end.interface());
            namespace.ip("link set lo up");
            let host = end.host_v6();
            // Nobody else has it, and whoever asks for that cannot be reached meanwhile.
            namespace.ip(&format!("addr add {host}/64 dev {interface} nodad"));
            namespace.ip("-6 route add unreachable default");
        }
    }

    /// From now on the kernels of both ends send frames as they are on a wire, none longer than the MTU and each with its
    /// checksums, on the first of the wires.
    ///
    /// # Panics
    /// If they go on sending what a veth takes.
    pub fn make_plain(&self) {
        for (namespace, interface) in self.ends() {
            succeed(namespace.python("plain.py").arg(interface));
        }
    }

    /// From now on nothing comes through, and neither end hears of that but by silence.
    ///
    /// # Panics
    /// If the wire has no middle.
    pub fn cut(&self) {
        let (middle, _) = self.middle();
        succeed(
            middle
                .program("nft")
                .args(["delete", "table", "netdev", FORWARDS]),
        );
    }

    /// Removes both interfaces, as whoever owns them may at any time.
    pub fn remove(&self) {
        self.left.ip("link del left");
    }

    /// Makes the interfaces, or makes them again.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn join(&self, mtu_bytes: u32) {
        self.left.ip(&format!(
            "link add left type veth peer name right netns {}",
            self.right.keeper.id()
        ));
        for (namespace, interface) in self.ends() {
            namespace.up(interface, mtu_bytes);
        }
        self.wait_for_carrier();
    }

    /// Waits until both interfaces carry frames.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_for_carrier(&self) {
        for (namespace, interface) in self.ends() {
            let is_up = || namespace.link(interface)["operstate"] == "UP";
            assert!(
                (0..LINK_LOOKS).any(|_| is_up()),
                "{interface} does not come up"
            );
        }
    }

    /// A wire on which the kernel loses so many of 10,000 frames at random, each way: it forwards them in a namespace
    /// between the two. Needs nftables.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn lossy(mtu_bytes: u32, of_ten_thousand: u32) -> Self {
        let loses = format!("numgen random mod 10000 < {of_ten_thousand} counter drop");
        Self::forwarded(mtu_bytes, 1, &loses)
    }

    /// So many wires between the two, each through a namespace that sees all of its frames, also those that go past the
    /// kernel at both ends. Needs nftables.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn lanes(mtu_bytes: u32, count: usize) -> Self {
        Self::forwarded(mtu_bytes, count, "")
    }

    /// The kernel forwards what `rule` leaves over.
    fn forwarded(mtu_bytes: u32, lanes: usize, rule: &str) -> Self {
        let wire = Self::parted(mtu_bytes, lanes);
        let mut chains = String::new();
        for lane in 0..lanes {
            let [left, right] = [End::Left, End::Right].map(|end| end.lane_interface(lane));
            for (from, to) in [(&left, &right), (&right, &left)] {
                chains += &format!(
                    "chain {from} {{\ntype filter hook ingress device to-{from} priority 0;\n\
                     {rule}\nfwd to \"to-{to}\"\n}}\n"
                );
            }
        }
        let rules = format!("table netdev {FORWARDS} {{\n{chains}}}\n");
        succeed(wire.middle().0.program("nft").arg(rules));
        wire
    }

    /// So many wires between the two which end in a namespace between them, the first one at its interfaces `to-left` and
    /// `to-right`: what comes in there goes no further, unless a program forwards it.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn parted(mtu_bytes: u32, lanes: usize) -> Self {
        require_root();
        let middle = Namespace::new();
        let wire = Self {
            left: Namespace::new(),
            right: Namespace::new(),
            middle: None,
        };
        for lane in 0..lanes {
            for end in [End::Left, End::Right] {
                let (namespace, interface) = (wire.end(end), end.lane_interface(lane));
                middle.ip(&format!(
                    "link add to-{interface} type veth peer name {interface} netns {}",
                    namespace.keeper.id()
                ));
                middle.up(&format!("to-{interface}"), mtu_bytes);
                namespace.up(&interface, mtu_bytes);
            }
        }
        wire.wait_for_carrier();
        Self {
            middle: Some(middle),
            ..wire
        }
    }

    /// The namespace between the two, and the interface in it at which every frame of the first wire passes.
    ///
    /// # Panics
    /// If there is none.
    pub fn middle(&self) -> (&Namespace, &'static str) {
        (
            self.middle.as_ref().expect("a wire with a middle"),
            "to-right",
        )
    }

    /// Frames that were lost on their way from `left` and from `right`.
    ///
    /// # Panics
    /// If the wire is not a lossy one.
    pub fn lost(&self) -> Vec<u64> {
        let middle = self.middle.as_ref().expect("a lossy wire");
        middle.rule_counts(FORWARDS)
    }

    fn ends(&self) -> [(&Namespace, &str); 2] {
        [(&self.left, "left"), (&self.right, "right")]
    }
}
