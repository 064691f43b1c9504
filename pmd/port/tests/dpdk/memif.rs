//! Two processes joined by memif, of which one is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// The device of the process that is to be killed.
const DEVICE: &str = "DPDK_TEST_DEVICE";
const OPEN: &str = "the port is open";
const KILLS: u32 = 100;

/// The process to be killed: opens a port, and sends and receives for ever, as fast as it can.
fn live(device: &str) {
    let mut port = open(config(device, LEFT));
    println!("\n{OPEN}");
    let bytes = frame(RIGHT, LEFT, &[FCOE, 1], 512);
    loop {
        port.upkeep();
        for _ in 0..1000 {
            try_send(&mut port, &bytes);
            receive_some(&mut port);
        }
    }
}

/// Sends a frame if there is room for it.
fn try_send(port: &mut DpdkPort, bytes: &[u8]) {
    let Some(mut mbuf) = port.alloc(RIGHT) else {
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
struct Victim(Child);

impl Victim {
    /// This program once more, with this device, until its port is open.
    fn start(test: &str, device: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--exact", test, "--nocapture"])
            .env(DEVICE, device)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let output = child.stdout.take().expect("a pipe");
        let victim = Self(child);
        let mut lines = BufReader::new(output).lines();
        let found = lines.any(|line| line.expect("text") == OPEN);
        assert!(found, "the process ended before its port was open");
        victim
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().expect("a process of ours");
        self.0.wait().expect("a process of ours");
    }
}

/// Runs a port, with this number for its device, against processes one after the other, each of which is killed while frames go both ways.
fn outlive(test: &str, number: u32, ours: &str, theirs: &str) {
    if let Ok(device) = std::env::var(DEVICE) {
        return live(&device);
    }
    let socket = format!("viaduct-{test}-{}", std::process::id());
    let device = |number: u32, role| format!("net_memif{number},role={role},id=0,socket={socket}");
    let mut port = open(config(&device(number, ours), RIGHT));
    let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
    for kill in 0..KILLS {
        let victim = Victim::start(test, &device(0, theirs));
        let mut seen = 0;
        wait_for("frames of the other process", || {
            port.upkeep();
            for _ in 0..1000 {
                try_send(&mut port, &bytes);
                seen += receive_some(&mut port).len();
            }
            (seen > 1000).then_some(())
        });
        // The end comes in the middle of a burst as often as anywhere else.
        let killer = std::thread::spawn(move || drop(victim));
        while !killer.is_finished() {
            try_send(&mut port, &bytes);
            receive_some(&mut port);
        }
        killer.join().expect("killed");
        wait_for("the link to go down", || {
            port.upkeep();
            try_send(&mut port, &bytes);
            receive_some(&mut port);
            (!port.link_up()).then_some(())
        });
        assert_eq!(counter(&port, "drop_rx_foreign_buffer"), 0, "kill {kill}");
    }
    // Whatever was lost with them was found again.
    port.upkeep();
    let mut lent = Vec::new();
    while let Some(mbuf) = port.alloc(LEFT) {
        lent.push(mbuf);
    }
    assert_eq!(lent.len(), 512, "all that may be lent at a time");
    lent.into_iter().for_each(|mbuf| port.free(mbuf));
    eprintln!(
        "{KILLS} kills: {} bursts given up, {} buffers recovered, {} restarts",
        counter(&port, "bursts_given_up"),
        counter(&port, "buffers_recovered"),
        counter(&port, "restarts")
    );
}

#[test]
fn a_server_outlives_its_clients() {
    outlive(
        "memif::a_server_outlives_its_clients",
        100,
        "server",
        "client",
    );
}

#[test]
fn a_client_outlives_its_servers() {
    outlive(
        "memif::a_client_outlives_its_servers",
        100,
        "client",
        "server",
    );
}
