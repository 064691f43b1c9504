//! A process that has a port, uses it without a pause, and is killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

/// The device of the process that is to be killed; without it a test is not that process.
const DEVICE: &str = "DPDK_TEST_DEVICE";
/// Set if that process takes huge pages.
const HUGE_PAGES: &str = "DPDK_TEST_HUGE_PAGES";
/// As little memory as its port is opened with.
const MEMORY_MB: u32 = 128;
/// What its frames begin with before a frame came to it, and afterwards.
const ALONE: u16 = 1;
const HEARING: u16 = 2;

/// How far a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// EAL is about to start.
    Starting,
    /// EAL runs, and the port is about to be opened.
    Opening,
    /// The port is open.
    Open,
}

impl Stage {
    /// What the process says when it is there.
    fn line(self) -> &'static str {
        match self {
            Self::Starting => "EAL is about to start",
            Self::Opening => "the port is about to be opened",
            Self::Open => "the port is open",
        }
    }

    fn tell(self) {
        println!("\n{}", self.line());
    }
}

/// The process to be killed, if this is one: opens a port, and sends and receives for ever, as fast as it can. Its
/// frames tell whether it has received any.
pub(super) fn live_if_told() {
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
    Stage::Starting.tell();
    drop(open(with_eal(config("net_null99", THIRD))));
    Stage::Opening.tell();
    let mut port = open(with_eal(config(&device, LEFT)));
    Stage::Open.tell();
    let mut state = ALONE;
    loop {
        port.upkeep();
        for _ in 0..1000 {
            try_send(&mut port, &frame(RIGHT, LEFT, &[FCOE, state], 512));
            if !receive_some(&mut port).is_empty() {
                state = HEARING;
            }
        }
    }
}

/// True for a frame that shows that frames go both ways.
pub(super) fn is_of_hearing(bytes: &[u8]) -> bool {
    bytes.starts_with(&frame(RIGHT, LEFT, &[FCOE, HEARING], 16))
}

/// Sends a frame if there is room for it.
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

/// A process of ours that is killed when this is dropped.
pub(super) struct Victim {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Victim {
    /// This program once more, as this test, with this device.
    pub(super) fn start(test: &str, device: &str, huge_pages: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command
            .args(["--exact", test, "--nocapture"])
            .env(DEVICE, device)
            .stdout(Stdio::piped());
        if huge_pages {
            command.env(HUGE_PAGES, "1");
        }
        let mut child = command.spawn().expect("this program again");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, said }
    }

    /// Waits until it is there.
    pub(super) fn wait_for(&mut self, stage: Stage) {
        let mut lines = self.said.by_ref().lines();
        let found = lines.any(|line| line.expect("text") == stage.line());
        assert!(found, "the process ended before {stage:?}");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.child.kill().expect("a process of ours");
        self.child.wait().expect("a process of ours");
    }
}
