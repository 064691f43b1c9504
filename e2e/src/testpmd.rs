//! `dpdk-testpmd`, a program of DPDK's that forwards frames between its ports or makes them: a stranger to us.

use std::process::Command;

use crate::process::{Running, TIMEOUT};

/// Holds a frame that is longer than any of ours in one buffer.
const BUFFER_BYTES: u32 = 4224;

/// One that runs; killed when it is dropped.
pub struct Testpmd(Running);

impl Testpmd {
    /// Starts it with these devices, and waits until they are started. `run` makes the command of a program, in
    /// whatever namespace.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(run: impl Fn(&str) -> Command, devices: &[String]) -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores: Vec<String> = cores.iter().map(|core| core.id.to_string()).collect();
        let any = cores.join(",");
        // Its lines come when they are written, not when there are many.
        let mut command = run("stdbuf");
        command.args(["-oL", "dpdk-testpmd", "--no-huge", "-m", "256"]);
        command.args(["--no-shconf", "--no-pci", "--no-telemetry"]);
        command.args(["--lcores", &format!("0@({any}),1@({any})")]);
        let devices = devices.iter().map(|device| format!("--vdev={device}"));
        command.args(devices);
        command.args(["--", "--interactive", "--total-num-mbufs=8192"]);
        command.arg(format!("--mbuf-size={BUFFER_BYTES}"));
        let mut running = Running::start("dpdk-testpmd", &mut command);
        running.wait_until("its ports are started", TIMEOUT, |line| line == "Done");
        Self(running)
    }

    /// Says these words to it, and has it forward in this mode.
    ///
    /// # Panics
    /// It does not.
    pub fn forward(&mut self, mode: &str, words: &[&str]) {
        self.0.tell(&format!("set fwd {mode}"));
        for line in words {
            self.0.tell(line);
        }
        self.0.tell("start");
        let begun = format!("{mode} packet forwarding - ports=");
        self.0
            .wait_until(&begun, TIMEOUT, |line| line.contains(&begun));
    }

    /// Says something to it while it forwards.
    ///
    /// # Panics
    /// It does not read.
    pub fn tell(&mut self, line: &str) {
        self.0.tell(line);
    }

    /// Has it forward no more.
    ///
    /// # Panics
    /// It does not stop.
    pub fn stop(&mut self) {
        self.0.skip();
        self.0.tell("stop");
        self.0
            .wait_until("it has stopped", TIMEOUT, |line| line == "Done.");
    }

    /// Ends it in order, of its own order: how well it does so is its business, and with a memif whose other end goes on
    /// it faults now and then (DPDK 22.11).
    ///
    /// # Panics
    /// It does not end.
    pub fn quit(mut self) {
        self.0.tell("quit");
        self.0.finish(TIMEOUT);
    }
}
