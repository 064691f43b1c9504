//! Two hosts: `vi-peer` ("ours") and the Python implementation ("theirs").

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use super::{malformed_cases, python_peer_in};
use crate::certificates::Certificates;
use crate::nics::{End, NicText};
use crate::process::{Running, TIMEOUT};
use crate::scratch::Scratch;
use crate::vi_peer;
use crate::wire::Wire;

/// The timeout of responses (`ulp_timeout_ms`) of `vi-peer`.
pub const ULP_TIMEOUT: Duration = Duration::from_millis(2000);
/// MaxTransferSize of the VIs of `vi-peer`.
pub const MTU: &str = "65536";
/// The shared key of both implementations.
pub const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// Protection of the connections.
#[derive(Debug)]
pub enum Security {
    /// None.
    Plain,
    /// Proof of possession of [`KEY`].
    Key,
    /// TLS with certificates of one authority.
    Tls(Box<Certificates>),
}

impl Security {
    /// TLS with a new authority.
    pub fn tls() -> Self {
        Self::Tls(Box::default())
    }
}

/// The side that requests the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// The Python implementation.
    Theirs,
    /// `vi-peer`.
    Ours,
}

/// Two hosts on a wire, one for each implementation.
#[derive(Debug)]
pub struct InteropNetwork {
    /// The wire between them.
    pub wire: Wire,
    /// Files of the test.
    pub files: Scratch,
    our_end: End,
    security: Security,
}

impl InteropNetwork {
    /// Creates the hosts; `our_end` is that of `vi-peer`.
    pub fn new(our_end: End) -> Self {
        let wire = Wire::new(1500);
        wire.assign_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-interop"),
            our_end,
            security: Security::Plain,
        }
    }

    /// Creates the hosts with this protection, `vi-peer` at the left end.
    pub fn protected(security: Security) -> Self {
        Self {
            security,
            ..Self::new(End::Left)
        }
    }

    /// Returns the NIC of an end.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn nic(&self, end: End) -> NicText {
        let nic = NicText::vi_tcp(end);
        match &self.security {
            Security::Plain => nic,
            Security::Key => {
                let keys = self.files.write("keys", &format!("\"*\" = \"{KEY}\"\n"));
                let private = Permissions::from_mode(0o600);
                fs::set_permissions(&keys, private).expect("a file of the test");
                nic.key("vi_tcp.key_file", format!("{keys:?}"))
            }
            Security::Tls(certificates) => {
                nic.key("vi_tcp.tls", certificates.issue(end.host()).table())
            }
        }
    }

    /// Returns the command of `vi-peer` at an end.
    pub fn peer(&self, end: End, ulp_timeout: Duration) -> Command {
        let nic = self.nic(end).key("ulp_timeout_ms", ulp_timeout.as_millis());
        let config = nic.write(&self.files, end.interface());
        vi_peer::within(self.wire.end(end), &config)
    }

    /// Starts an echo server of `vi-peer` at the left end.
    pub fn echo_server(&self) -> Running {
        vi_peer::serve(self.peer(End::Left, Duration::from_secs(3)), "echo")
    }

    /// Starts a client of a server at the left end, whose connection no other program affects.
    pub fn honest(&self, end: End, discriminator: &str) -> Running {
        let peer = self.peer(end, TIMEOUT);
        vi_peer::ping(peer, End::Left.host(), discriminator, "honest")
    }

    /// Starts `vi-peer` at the left end, which requests connections by command.
    pub fn explorer(&self) -> Running {
        vi_peer::explore(self.peer(End::Left, Duration::from_secs(3)))
    }

    /// Returns the end of the Python implementation.
    pub fn their_end(&self) -> End {
        match self.our_end {
            End::Left => End::Right,
            End::Right => End::Left,
        }
    }

    /// Returns the command of one of the Python programs, without protection.
    pub fn their(&self, name: &str) -> Command {
        python_peer_in(self.wire.end(self.their_end()), name)
    }

    /// Returns the command of one of the Python programs with the protection of the network.
    pub fn their_protected(&self, name: &str, words: &[&str]) -> Command {
        let mut command = self.their(name);
        command.args(words);
        match &self.security {
            Security::Plain => {}
            Security::Key => {
                command.args(["--key", KEY]);
            }
            Security::Tls(certificates) => {
                let identity = certificates.issue(self.their_end().host());
                identity.add_options(&mut command);
            }
        }
        command
    }

    /// Returns the options of `peer.py` as a client of [`Self::echo_server`].
    pub fn client_words(&self) -> Vec<&'static str> {
        let mut words = vec!["client", "--host", End::Left.host(), "--called", "echo"];
        words.extend(["--calling", "python", "--level", "rd", "--mtu", MTU]);
        words
    }

    /// Returns the options of `peer.py` as a server with the discriminator `there`.
    pub fn server_words(&self) -> Vec<&'static str> {
        let mut words = vec!["server", "--host", End::Right.host(), "--port", "8420"];
        words.extend(["--disc", "there", "--level", "rd", "--mtu", MTU]);
        words
    }

    /// Returns the command of `malformed.py` as a client of the server `called` at the left end.
    pub fn malformed_client(&self, called: &str) -> Command {
        let words = ["--host", End::Left.host(), "--called", called];
        let mut malformed = self.their_protected("malformed.py", &words);
        // Longer than the server's timeout of silent clients.
        malformed.args(["--calling", "malformed", "--mtu", MTU, "--timeout", "20"]);
        malformed
    }

    /// Returns the command of `malformed.py` as a server, and the names of its cases.
    pub fn malformed_server(&self) -> (Command, Vec<String>) {
        let words = ["--host", End::Right.host(), "--timeout", "20"];
        let malformed = self.their_protected("malformed.py", &words);
        (malformed, malformed_cases(&["--answers"]))
    }

    /// Starts `vi-peer commands` at this level, with further options.
    pub fn ours(&self, level: &str, options: &[&str]) -> Running {
        let mut command = self.peer(self.our_end, ULP_TIMEOUT);
        command.args(["commands", "--level", level]).args(options);
        let mut ours = Running::start("ours", &mut command);
        ours.wait_for("ready", TIMEOUT);
        ours
    }

    /// Returns the command of `peer.py` as client or server at this level, without the steps of its script.
    pub fn theirs(&self, initiator: Initiator, level: &str) -> Command {
        let mut theirs = self.their("peer.py");
        match initiator {
            Initiator::Theirs => theirs
                .args(["client", "--host", End::Left.host(), "--called", "here"])
                .args(["--calling", "python", "--retry", "30"]),
            Initiator::Ours => {
                theirs.args(["server", "--host", End::Right.host(), "--disc", "there"])
            }
        };
        theirs.args(["--timeout", "30", "--level", level, "--mtu", MTU]);
        theirs
    }

    /// Connects both, `theirs` with its script; returns the Python process and the line `connected ...` of `vi-peer`.
    pub fn connect(
        &self,
        initiator: Initiator,
        ours: &mut Running,
        theirs: &mut Command,
    ) -> (Running, String) {
        let theirs = match initiator {
            Initiator::Theirs => {
                ours.send_line("accept here");
                Running::start("theirs", theirs)
            }
            Initiator::Ours => {
                let mut theirs = Running::start("theirs", theirs);
                theirs.wait_for("listening", TIMEOUT);
                ours.send_line(&format!("connect {} there", End::Right.host()));
                theirs
            }
        };
        let connected = ours.wait_for("connected", TIMEOUT).text;
        (theirs, connected)
    }
}

/// Sends a command to `vi-peer` and checks the line that it prints.
///
/// # Panics
/// If the line differs, or after the timeout.
pub fn run_command(ours: &mut Running, command: &str, expected: &str) {
    ours.send_line(command);
    let first = expected.split(' ').next().expect("a word");
    let line = ours.wait_for(&format!("{first} "), TIMEOUT).text;
    assert_eq!(line, expected, "{command}");
}
