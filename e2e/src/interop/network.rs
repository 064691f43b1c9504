//! Two hosts: `vi-peer` ("ours") and the Python implementation ("theirs"), both controlled by commands of the test.

use std::process::Command;
use std::time::Duration;

use super::python_peer_in;
use crate::nics::{End, NicText};
use crate::process::{Running, TIMEOUT};
use crate::scratch::Scratch;
use crate::wire::Wire;

/// The timeout of responses (`ulp_timeout_ms`) of `vi-peer`.
pub const ULP_TIMEOUT: Duration = Duration::from_millis(2000);

/// The side that requests the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// The Python implementation.
    Theirs,
    /// `vi-peer`.
    Ours,
}

/// Two hosts on a wire, one for each implementation.
pub struct InteropNetwork {
    wire: Wire,
    files: Scratch,
    our_end: End,
    vi_peer: &'static str,
}

impl InteropNetwork {
    /// Creates the hosts; `our_end` is that of `vi-peer`, whose path is `vi_peer`.
    pub fn new(our_end: End, vi_peer: &'static str) -> Self {
        let wire = Wire::new(1500);
        wire.assign_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-interop"),
            our_end,
            vi_peer,
        }
    }

    /// Returns the end of the Python implementation.
    pub fn their_end(&self) -> End {
        match self.our_end {
            End::Left => End::Right,
            End::Right => End::Left,
        }
    }

    /// Returns the command of one of the Python programs.
    pub fn their(&self, name: &str) -> Command {
        python_peer_in(self.wire.end(self.their_end()), name)
    }

    /// Starts `vi-peer commands` with these options.
    pub fn ours(&self, options: &[&str]) -> Running {
        let mut command = self.wire.end(self.our_end).program(self.vi_peer);
        let config = NicText::vi_tcp(self.our_end)
            .key("ulp_timeout_ms", ULP_TIMEOUT.as_millis())
            .write(&self.files, "nic.toml");
        command.env("VIADUCT_CONFIG", config).arg("commands");
        let mut ours = Running::start("ours", command.args(options));
        ours.wait_for("ready", TIMEOUT);
        ours
    }

    /// Returns the command of `peer.py` as client or server, without the steps of its script.
    pub fn theirs(&self, initiator: Initiator) -> Command {
        let mut theirs = self.their("peer.py");
        match initiator {
            Initiator::Theirs => theirs
                .args(["client", "--host", End::Left.host(), "--called", "here"])
                .args(["--calling", "python", "--retry", "30"]),
            Initiator::Ours => {
                theirs.args(["server", "--host", End::Right.host(), "--disc", "there"])
            }
        };
        theirs.args(["--timeout", "30"]);
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
