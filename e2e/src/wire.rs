//! Two network namespaces with a veth pair between them, removed on drop.
//!
//! Namespaces have no names: each exists as long as a holder process, which ends when the pipe to it closes. So nothing
//! remains, however a test ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::nics::End;
use crate::process::{command, program, require_root, succeed};

/// Maximum number of `ip` calls that wait for a link to come up.
const LINK_POLLS: u32 = 1000;
/// The nftables table that forwards frames in the middle namespace.
const FORWARDING: &str = "forwarding";
/// The nftables table that counts frames of other protocols.
const OTHER_PROTOCOLS: &str = "other_protocols";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut input = holder.stdin.take().expect("piped");
        let mut output = BufReader::new(holder.stdout.take().expect("piped"));
        let mut echo = String::new();
        // The echo proves that the process is in the namespace.
        let echoed = writeln!(input, "inside").and_then(|()| output.read_line(&mut echo));
        assert!(
            echoed.is_ok() && echo == "inside\n",
            "cannot create a network namespace: run as root, or in a user namespace"
        );
        holder.stdin = Some(input);
        Self { holder }
    }

    /// Returns the process ID by which `ip` addresses the namespace from outside.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Returns the command of a program in the namespace.
    pub fn program(&self, name: impl AsRef<OsStr>) -> Command {
        self.enter(program(name))
    }

    /// Returns the command of a Python program of `e2e/programs` in the namespace.
    pub fn python(&self, name: &str) -> Command {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut command = self.program("python3");
        command.arg(programs.join(name));
        command
    }

    /// Returns the same command in the namespace, without its environment variables.
    pub fn enter(&self, outside: Command) -> Command {
        let [nsenter, arguments @ ..] = self.command_prefix();
        let mut inside = command(&nsenter);
        inside
            .args(arguments)
            .arg(outside.get_program())
            .args(outside.get_args());
        inside
    }

    /// Returns the prefix of a command line that runs it in the namespace.
    pub fn command_prefix(&self) -> [String; 3] {
        [
            "nsenter".to_owned(),
            format!("--net=/proc/{}/ns/net", self.holder.id()),
            "--".to_owned(),
        ]
    }

    /// Runs `ip` with these arguments in the namespace; returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, arguments: &str) -> String {
        let mut command = self.program("ip");
        let output = succeed(command.args(arguments.split(' ')));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts to count received frames at an interface that are neither FCoE nor FIP. Requires nftables.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn count_other_protocols(&self, interface: &str) {
        succeed(self.program("nft").arg(format!(
            "table netdev {OTHER_PROTOCOLS} {{\nchain {interface} {{\n\
             type filter hook ingress device {interface} priority 0;\n\
             ether type != {{ 0x8906, 0x8914 }} counter\n}}\n}}\n"
        )));
    }

    /// Returns the number of frames that [`Self::count_other_protocols`] has counted.
    ///
    /// # Panics
    /// If it was not called.
    pub fn other_protocol_frames(&self) -> u64 {
        let counts = self.rule_counts(OTHER_PROTOCOLS);
        *counts.first().expect("a counter")
    }

    /// Returns the number of frames that each rule of a table has counted.
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
        // Without a link-local address, IPv6 sends no frames.
        self.ip(&format!(
            "link set {interface} mtu {mtu_bytes} addrgenmode none"
        ));
        self.ip(&format!("link set {interface} up"));
    }

    /// Returns the JSON of `ip -s link show` for an interface.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn link(&self, interface: &str) -> Value {
        let text = self.ip(&format!("-s -j link show {interface}"));
        let links: Value = serde_json::from_str(&text).expect("JSON of ip");
        links.get(0).expect("one link").clone()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Errors mean that the process has already ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Two namespaces with a wire between their interfaces `left` and `right`.
#[derive(Debug)]
pub struct Wire {
    /// The namespace of interface `left`.
    pub left: Namespace,
    /// The namespace of interface `right`.
    pub right: Namespace,
    /// The namespace between them, for wires that are forwarded by one.
    middle: Option<Namespace>,
}

impl Wire {
    /// Creates the wire, without other traffic.
    ///
    /// # Panics
    /// If it cannot be created.
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

    /// Returns the namespace at one end.
    pub fn end(&self, end: End) -> &Namespace {
        match end {
            End::Left => &self.left,
            End::Right => &self.right,
        }
    }

    /// Assigns the addresses of [`End::host`] to both ends. Other destinations are unreachable at once.
    ///
    /// # Panics
    /// If they are assigned already.
    pub fn assign_addresses(&self) {
        for end in [End::Left, End::Right] {
            let (namespace, interface) = (self.end(end), end.interface());
            namespace.ip("link set lo up");
            namespace.ip(&format!("addr add {}/29 dev {interface}", end.host()));
            namespace.ip("route add unreachable default");
        }
    }

    /// Like [`Self::assign_addresses`], with those of [`End::host_v6`].
    ///
    /// # Panics
    /// If they are assigned already.
    pub fn assign_v6_addresses(&self) {
        for end in [End::Left, End::Right] {
            let (namespace, interface) = (self.end(end), end.interface());
            namespace.ip("link set lo up");
            let host = end.host_v6();
            // Duplicate address detection would delay the use of the address.
            namespace.ip(&format!("addr add {host}/64 dev {interface} nodad"));
            namespace.ip("-6 route add unreachable default");
        }
    }

    /// Disables segmentation and checksum offload on the first wire, so that frames are no longer than the MTU and have
    /// checksums.
    ///
    /// # Panics
    /// If the kernel rejects it.
    pub fn disable_offloads(&self) {
        for (namespace, interface) in self.ends() {
            succeed(namespace.python("disable_offloads.py").arg(interface));
        }
    }

    /// Stops forwarding, while both interfaces stay up.
    ///
    /// # Panics
    /// If the wire is not forwarded by a namespace.
    pub fn cut(&self) {
        let (middle, _) = self.middle();
        succeed(
            middle
                .program("nft")
                .args(["delete", "table", "netdev", FORWARDING]),
        );
    }

    /// Removes both interfaces.
    pub fn remove(&self) {
        self.left.ip("link del left");
    }

    /// Creates the interfaces, also after [`Self::remove`].
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn join(&self, mtu_bytes: u32) {
        self.left.ip(&format!(
            "link add left type veth peer name right netns {}",
            self.right.holder.id()
        ));
        for (namespace, interface) in self.ends() {
            namespace.up(interface, mtu_bytes);
        }
        self.wait_for_carrier();
    }

    /// Waits until both interfaces have carrier.
    ///
    /// # Panics
    /// If they do not get it.
    pub fn wait_for_carrier(&self) {
        for (namespace, interface) in self.ends() {
            let is_up = || namespace.link(interface)["operstate"] == "UP";
            assert!(
                (0..LINK_POLLS).any(|_| is_up()),
                "{interface} does not come up"
            );
        }
    }

    /// Creates a wire on which the kernel drops `of_ten_thousand` of 10,000 frames in each direction at random, in a
    /// namespace between the ends. Requires nftables.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn lossy(mtu_bytes: u32, of_ten_thousand: u32) -> Self {
        let rule = format!("numgen random mod 10000 < {of_ten_thousand} counter drop");
        Self::forwarded(mtu_bytes, 1, &rule)
    }

    /// Creates `count` wires through a namespace in which all frames can be captured, also those that bypass the kernel
    /// at both ends. Requires nftables.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn lanes(mtu_bytes: u32, count: usize) -> Self {
        Self::forwarded(mtu_bytes, count, "")
    }

    /// Creates wires on which the kernel forwards the frames that `rule` does not drop.
    fn forwarded(mtu_bytes: u32, lanes: usize, rule: &str) -> Self {
        let wire = Self::with_middle(mtu_bytes, lanes);
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
        let rules = format!("table netdev {FORWARDING} {{\n{chains}}}\n");
        succeed(wire.middle().0.program("nft").arg(rules));
        wire
    }

    /// Creates wires that end in a namespace between the ends, the first one at its interfaces `to-left` and
    /// `to-right`. A program must forward the frames there.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn with_middle(mtu_bytes: u32, lanes: usize) -> Self {
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
                    namespace.holder.id()
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

    /// Returns the namespace between the ends, and its interface that carries all frames of the first wire.
    ///
    /// # Panics
    /// If there is none.
    pub fn middle(&self) -> (&Namespace, &'static str) {
        (
            self.middle
                .as_ref()
                .expect("a wire with a middle namespace"),
            "to-right",
        )
    }

    /// Returns the number of frames dropped from `left` and from `right`.
    ///
    /// # Panics
    /// If the wire is not lossy.
    pub fn lost(&self) -> Vec<u64> {
        let middle = self.middle.as_ref().expect("a lossy wire");
        middle.rule_counts(FORWARDING)
    }

    fn ends(&self) -> [(&Namespace, &str); 2] {
        [(&self.left, "left"), (&self.right, "right")]
    }
}
