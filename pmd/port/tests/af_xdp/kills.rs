//! Processes that are killed while they have a port.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// Set for the process that has the port.
const CHILD: &str = "AF_XDP_TEST_CHILD";
const OPENING: &str = "the port is being opened";
const OPEN: &str = "the port is open";
const NAME: &str = "kills::nothing_stays_of_a_process_that_was_killed";
const KILLS: usize = 100;

/// The process to be killed: opens a port, and sends and receives for ever.
fn live() {
    println!("\n{OPENING}");
    let mut left = AfXdpPort::open(left_config()).unwrap_or_else(|error| panic!("{error}"));
    println!("\n{OPEN}");
    loop {
        send(&mut left, &frame(RIGHT, LEFT, &[FCOE], 60));
        receive_some(&mut left);
    }
}

/// This program once more, inside of the namespace, until it says so.
fn child(namespace: &Namespace, until: &str) -> Child {
    let mut child = namespace.run(|| {
        Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again")
    });
    let output = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines();
    let found = lines.any(|line| line.expect("text") == until);
    assert!(found, "the child ended before it said {until:?}");
    child
}

#[test]
fn nothing_stays_of_a_process_that_was_killed() {
    if std::env::var_os(CHILD).is_some() {
        return live();
    }
    let wire = wire(1500);
    let mut right = open(&wire.right, right_config());
    for kill in 0..KILLS {
        let until = if kill % 4 == 0 { OPENING } else { OPEN };
        let mut child = child(&wire.left, until);
        if until == OPEN {
            wait_for("frames of the child", || {
                (!receive_some(&mut right).is_empty()).then_some(())
            });
        }
        child.kill().expect("a child of ours");
        child.wait().expect("a child of ours");
    }
    wait_for("the program to be gone from the interface", || {
        (!wire.left.ip("-d link show left").contains("xdp")).then_some(())
    });
    // The last one's queue is free at once, or soon enough for a port to wait for it.
    let mut left = open(&wire.left, left_config());
    assert!(wire.left.ip("-d link show left").contains("xdp"));
    settle(&mut left, &mut right);
    drop(left);
    assert!(!wire.left.ip("-d link show left").contains("xdp"));
}
