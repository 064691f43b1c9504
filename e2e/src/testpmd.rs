//! `dpdk-testpmd`, DPDK's program that forwards frames between ports or generates them.

use std::process::Command;

use crate::process::{Running, TIMEOUT};

/// Size of an mbuf; larger than Viaduct's longest frame.
const BUFFER_BYTES: u32 = 4224;

/// A running testpmd; killed on drop.
pub struct Testpmd(Running);

impl Testpmd {
    /// Starts testpmd with these devices and waits until they are started. `run` returns the command for a program,
    /// e.g. in a namespace.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(run: impl Fn(&str) -> Command, devices: &[String]) -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores: Vec<String> = cores.iter().map(|core| core.id.to_string()).collect();
        let any = cores.join(",");
        // Line buffering.
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

    /// Sends commands, then starts forwarding in this mode.
    ///
    /// # Panics
    /// After the timeout.
    pub fn forward(&mut self, mode: &str, commands: &[&str]) {
        self.0.send_line(&format!("set fwd {mode}"));
        for line in commands {
            self.0.send_line(line);
        }
        self.0.send_line("start");
        let begun = format!("{mode} packet forwarding - ports=");
        self.0
            .wait_until(&begun, TIMEOUT, |line| line.contains(&begun));
    }

    /// Sends a command.
    ///
    /// # Panics
    /// If the program has closed its input.
    pub fn send_line(&mut self, line: &str) {
        self.0.send_line(line);
    }

    /// Stops forwarding.
    ///
    /// # Panics
    /// After the timeout.
    pub fn stop(&mut self) {
        self.0.discard_output();
        self.0.send_line("stop");
        self.0
            .wait_until("it has stopped", TIMEOUT, |line| line == "Done.");
    }

    /// Quits the program. Its exit status is ignored: with a memif whose remote side is still running, it sometimes
    /// crashes (DPDK 22.11).
    ///
    /// # Panics
    /// After the timeout.
    pub fn quit(mut self) {
        self.0.send_line("quit");
        self.0.finish(TIMEOUT);
    }
}
