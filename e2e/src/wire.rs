//! Two network namespaces and a wire between them, gone with their last user.
//!
//! A namespace here has no name: it lives as long as the process that keeps it, and that one ends when
//! the pipe to it closes. Nothing is left behind however a test ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::process::{command, program, require_root, succeed};

/// Looks at a link until it carries frames; each look is a process.
const LINK_LOOKS: u32 = 1000;

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
        };
        wire.join(mtu_bytes);
        wire
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
            // Without an address of its own IPv6 is silent.
            namespace.ip(&format!(
                "link set {interface} mtu {mtu_bytes} addrgenmode none"
            ));
            namespace.ip(&format!("link set {interface} up"));
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

    fn ends(&self) -> [(&Namespace, &str); 2] {
        [(&self.left, "left"), (&self.right, "right")]
    }
}
