//! One of ours, and the second implementation as client or server: both do what they are told.

use std::process::Command;
use std::time::Duration;

use super::stranger_in;
use crate::nics::{End, NicText};
use crate::process::{Running, TIMEOUT};
use crate::scratch::Scratch;
use crate::wire::Wire;

/// The time that an answer has.
pub const ULP_TIMEOUT: Duration = Duration::from_millis(2000);

/// Who asks for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// The second implementation.
    Theirs,
    /// Ours.
    Ours,
}

/// Two hosts, ours and that of the second implementation.
pub struct Talk {
    wire: Wire,
    files: Scratch,
    ours_at: End,
    peer: &'static str,
}

impl Talk {
    /// Ours is at this end, the other implementation at the other one; `peer` is the program `vi-peer`.
    pub fn at(ours_at: End, peer: &'static str) -> Self {
        let wire = Wire::new(1500);
        wire.give_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-talk"),
            ours_at,
            peer,
        }
    }

    /// Where the other implementation is.
    pub fn their_end(&self) -> End {
        match self.ours_at {
            End::Left => End::Right,
            End::Right => End::Left,
        }
    }

    /// One of the other implementation's programs.
    pub fn their(&self, name: &str) -> Command {
        stranger_in(self.wire.end(self.their_end()), name)
    }

    /// One of ours, which obeys.
    pub fn ours(&self, options: &[&str]) -> Running {
        let mut command = self.wire.end(self.ours_at).program(self.peer);
        let config = NicText::vi_tcp(self.ours_at)
            .key("ulp_timeout_ms", ULP_TIMEOUT.as_millis())
            .write(&self.files, "nic.toml");
        command.env("VIADUCT_CONFIG", config).arg("obey");
        let mut ours = Running::start("ours", command.args(options));
        ours.wait_for("ready", TIMEOUT);
        ours
    }

    /// The other implementation as client or server; its script is still to come.
    pub fn theirs(&self, asks: Asks) -> Command {
        let mut theirs = self.their("peer.py");
        match asks {
            Asks::Theirs => theirs
                .args(["client", "--host", End::Left.host(), "--called", "here"])
                .args(["--calling", "stranger", "--retry", "30"]),
            Asks::Ours => theirs.args(["server", "--host", End::Right.host(), "--disc", "there"]),
        };
        theirs.args(["--timeout", "30"]);
        theirs
    }

    /// Both are connected, `theirs` with its script; gives what ours tells of that.
    pub fn connect(
        &self,
        asks: Asks,
        ours: &mut Running,
        theirs: &mut Command,
    ) -> (Running, String) {
        let theirs = match asks {
            Asks::Theirs => {
                ours.tell("accept here");
                Running::start("theirs", theirs)
            }
            Asks::Ours => {
                let mut theirs = Running::start("theirs", theirs);
                theirs.wait_for("listening", TIMEOUT);
                ours.tell(&format!("connect {} there", End::Right.host()));
                theirs
            }
        };
        let connected = ours.wait_for("connected", TIMEOUT).text;
        (theirs, connected)
    }
}

/// Tells ours to do something, and what it must say of it.
///
/// # Panics
/// If it says something else, or nothing.
pub fn does(ours: &mut Running, what: &str, says: &str) {
    ours.tell(what);
    let first = says.split(' ').next().expect("a word");
    let said = ours.wait_for(&format!("{first} "), TIMEOUT).text;
    assert_eq!(said, says, "{what}");
}
