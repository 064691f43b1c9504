//! A child process that opens a port, uses it continuously, and is killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use super::*;

/// Environment variable with the device of the process that is to be killed; not set in the test itself.
const DEVICE: &str = "DPDK_TEST_DEVICE";
/// Environment variable that is set if that process uses huge pages.
const HUGE_PAGES: &str = "DPDK_TEST_HUGE_PAGES";
/// Minimum memory with which its port can be opened.
const MEMORY_MB: u32 = 128;
/// First word of its frames before it received a frame, and afterwards.
const NOT_RECEIVED: u16 = 1;
const RECEIVED: u16 = 2;

/// Progress of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// EAL is about to start.
    Starting,
    /// EAL is initialised, and the port is about to be opened.
    Opening,
    /// The port is open.
    Open,
}

impl Stage {
    /// Returns the line that the process reports at this stage.
    fn line(self) -> &'static str {
        match self {
            Self::Starting => "EAL is about to start",
            Self::Opening => "the port is about to be opened",
            Self::Open => "the port is open",
        }
    }

    fn report(self) {
        println!("\n{}", self.line());
    }
}

/// Runs the process to be killed, if this is one: opens a port, and sends and receives continuously. Its frames show
/// whether it has received any.
pub(super) fn run_if_victim() {
    let Ok(device) = std::env::var(DEVICE) else {
        return;
    };
    let eal = EalConfig {
        huge_pages: std::env::var_os(HUGE_PAGES).is_some(),
        memory_mb: MEMORY_MB,
        ..EalConfig::default()
    };
    let with_eal = |config| DpdkConfig {
        eal: eal.clone(),
        rx_frames: 512,
        ..config
    };
    Stage::Starting.report();
    drop(open(with_eal(config("net_null99", THIRD))));
    Stage::Opening.report();
    let mut port = open(with_eal(config(&device, LEFT)));
    Stage::Open.report();
    let mut state = NOT_RECEIVED;
    loop {
        port.upkeep();
        for _ in 0..1000 {
            try_send(&mut port, &frame(RIGHT, LEFT, &[FCOE, state], 512));
            if !receive_some(&mut port).is_empty() {
                state = RECEIVED;
            }
        }
    }
}

/// Returns whether the frame shows that the victim has received frames.
pub(super) fn shows_reception(bytes: &[u8]) -> bool {
    bytes.starts_with(&frame(RIGHT, LEFT, &[FCOE, RECEIVED], 16))
}

/// Sends a frame if a buffer is free.
pub(super) fn try_send(port: &mut dyn Port, bytes: &[u8]) {
    let dst = *bytes.first_chunk().expect("a destination");
    let Some(mut mbuf) = port.alloc(dst) else {
        return;
    };
    mbuf.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
    mbuf.set_len(bytes.len());
    let mut batch = MbufBatch::new();
    batch.push(mbuf).expect("an empty batch");
    port.tx_burst(&mut batch);
    while let Some(mbuf) = batch.pop() {
        port.free(mbuf);
    }
}

/// A child process that is killed on drop.
pub(super) struct VictimProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl VictimProcess {
    /// Starts this program again, with this test and this device.
    pub(super) fn start(test: &str, device: &str, huge_pages: bool) -> Self {
        let mut command = command(std::env::current_exe().expect("the path of this program"));
        command
            .args(["--exact", test, "--nocapture"])
            .env(DEVICE, device)
            .stdout(Stdio::piped());
        if huge_pages {
            command.env(HUGE_PAGES, "1");
        }
        let mut child = command.spawn().expect("this program again");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    /// Waits until the process reaches this stage.
    pub(super) fn wait_for(&mut self, stage: Stage) {
        let mut lines = self.output.by_ref().lines();
        let found = lines.any(|line| line.expect("text") == stage.line());
        assert!(found, "the process ended before {stage:?}");
    }
}

impl Drop for VictimProcess {
    fn drop(&mut self) {
        self.child.kill().expect("a process of ours");
        self.child.wait().expect("a process of ours");
    }
}
