//! A datapath process (`fcvi-pmd run`) and its configuration file.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::installation::built;
use crate::nics::NicText;
use crate::process::{Ended, Running, TIMEOUT, as_user, program, succeed};
use crate::scratch::Scratch;

/// Upper limit for the shutdown of a process under valgrind on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns the path of `fcvi-pmd`.
pub fn fcvi_pmd_path() -> PathBuf {
    built().join("fcvi-pmd")
}

/// Returns its command on this host.
pub fn fcvi_pmd() -> Command {
    program(fcvi_pmd_path())
}

/// A running datapath process; killed on drop.
pub struct DatapathProcess {
    running: Running,
    config: PathBuf,
}

impl DatapathProcess {
    /// Returns the text of a configuration; `process` has further keys of `[process]`.
    pub fn text(scratch: &Scratch, process: &str, nics: &NicText) -> String {
        let socket = scratch.file("pmd.sock");
        format!("[process]\nsocket = {socket:?}\n{process}\n{}", nics.text())
    }

    /// Starts a process and waits until it is ready; `run` returns the command for a program, e.g. in a namespace.
    pub fn start(
        scratch: &Scratch,
        process: &str,
        nics: &NicText,
        run: impl Fn(&Path) -> Command,
    ) -> Self {
        let config = scratch.write("pmd.toml", &Self::text(scratch, process, nics));
        Self::start_from(&config, run)
    }

    /// Starts a process on this host whose poll threads sleep when idle.
    pub fn local(scratch: &Scratch, nics: &NicText) -> Self {
        Self::start(scratch, "idle = \"hybrid\"", nics, local_command)
    }

    /// Starts a process as another user, after chown of its two directories: that of configuration and socket, and that
    /// of shared memory.
    ///
    /// # Panics
    /// The files cannot be prepared, or the process does not start.
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
            // The user may have no access to the build directory.
            let copy = files.file("fcvi-pmd");
            fs::copy(program, &copy).expect("the program is copied");
            as_user(user, &copy)
        })
    }

    /// Starts a process with an existing configuration file.
    pub fn start_from(config: &Path, run: impl Fn(&Path) -> Command) -> Self {
        let program = fcvi_pmd_path();
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

    /// Returns the configuration file, for `VIADUCT_CONFIG` of its applications.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the output of `fcvi-pmd stat --json`.
    ///
    /// # Panics
    /// The command fails, or prints no JSON.
    pub fn stat(&self) -> Value {
        let mut command = local_command(&fcvi_pmd_path());
        command.args(["stat", "--json", "--config"]);
        let output = succeed(command.arg(&self.config));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Waits until [`Self::stat`] fits, and returns it.
    ///
    /// # Panics
    /// After the timeout.
    pub fn await_stat(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let stat = self.stat();
            if fits(&stat) {
                return stat;
            }
            assert!(Instant::now() < deadline, "no {what}: {stat}");
        }
    }

    /// Returns the child process, to wait for log lines.
    pub fn output(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Stops the process with SIGTERM.
    pub fn stop(self) -> Ended {
        self.running.signal("TERM");
        self.running.finish(STOP_TIMEOUT)
    }

    /// Like [`Self::stop`], of a process that must succeed; returns its log.
    ///
    /// # Panics
    /// If it fails.
    pub fn stop_and_check(self) -> String {
        self.stop().expect_success("fcvi-pmd")
    }

    /// Kills the process with SIGKILL; returns the time of the kill.
    pub fn kill(self) -> Instant {
        self.running.kill()
    }
}

/// Returns the core that polls NICs without `core`: the last one of the affinity mask.
///
/// # Panics
/// The affinity mask is empty.
pub fn polling_core() -> usize {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.last().expect("a core to run on").id
}

/// Returns the command of a program in the network namespace of the test.
pub fn local_command(program: &Path) -> Command {
    crate::process::program(program)
}
