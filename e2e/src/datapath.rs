//! A datapath process, `fcvi-pmd run`, and the configuration by which programs find it.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::installation::built;
use crate::nics::NicText;
use crate::process::{Ended, Running, TIMEOUT, as_user, command, succeed};
use crate::scratch::Scratch;

/// Longer than a process takes to its end under valgrind, on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);

/// A process that serves NICs. It is killed when it is dropped.
pub struct DatapathProcess {
    running: Running,
    config: PathBuf,
}

impl DatapathProcess {
    /// The text of its configuration: `process` are further keys of `[process]`.
    pub fn text(scratch: &Scratch, process: &str, nics: &NicText) -> String {
        let socket = scratch.file("pmd.sock");
        format!("[process]\nsocket = {socket:?}\n{process}\n{}", nics.text())
    }

    /// Starts it and waits until it is ready; `run` makes the command of a program, in whatever
    /// namespace.
    pub fn start(
        scratch: &Scratch,
        process: &str,
        nics: &NicText,
        run: impl Fn(&Path) -> Command,
    ) -> Self {
        let config = scratch.write("pmd.toml", &Self::text(scratch, process, nics));
        Self::start_from(&config, run)
    }

    /// Starts it as another user, to whom the directories of the test are given: that of its configuration and socket,
    /// and that of shared memory.
    ///
    /// # Panics
    /// The files cannot be prepared, or it does not start.
    pub fn start_as(
        user: u32,
        (files, segment): (&Scratch, &Scratch),
        process: &str,
        nics: &NicText,
    ) -> Self {
        for directory in [files, segment] {
            chown(directory.path(), Some(user), Some(user)).expect("a directory of the test");
        }
        Self::start(files, process, nics, |program| {
            // Where this user may run it.
            let copy = files.file("fcvi-pmd");
            fs::copy(program, &copy).expect("room for a program");
            as_user(user, &copy)
        })
    }

    /// Starts it from a configuration that is there.
    pub fn start_from(config: &Path, run: impl Fn(&Path) -> Command) -> Self {
        let program = built().join("fcvi-pmd");
        assert!(
            program.exists(),
            "{} is missing: cargo build -p fcvi-pmd",
            program.display()
        );
        let mut command = run(&program);
        command.arg("run").arg("--config").arg(config);
        let mut running = Running::start("fcvi-pmd", &mut command);
        running.wait_until("ready", TIMEOUT, |line| line.ends_with("ready"));
        Self {
            running,
            config: config.to_owned(),
        }
    }

    /// The file that `VIADUCT_CONFIG` of its applications names.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// What `fcvi-pmd stat --json` tells of it.
    ///
    /// # Panics
    /// It tells nothing, or no JSON.
    pub fn stat(&self) -> Value {
        let mut command = here(&built().join("fcvi-pmd"));
        command.args(["stat", "--json", "--config"]);
        let output = succeed(command.arg(&self.config));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What it says.
    pub fn says(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Ends it in order.
    pub fn stop(self) -> Ended {
        self.running.signal("TERM");
        self.running.finish(STOP_TIMEOUT)
    }

    /// Kills it in the middle of whatever it does; gives the time of the deed.
    pub fn kill(self) -> Instant {
        self.running.kill()
    }
}

/// The core by which a process polls NICs without `core`: the last one that it may use.
///
/// # Panics
/// The kernel names none.
pub fn polling_core() -> usize {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.last().expect("a core to run on").id
}

/// A program here, without a namespace.
pub fn here(program: &Path) -> Command {
    let mut made = command("setpriv");
    made.args(["--pdeathsig", "KILL", "--"]).arg(program);
    made
}
