//! Processes that are killed while they have a port.

use super::child_process::{TestProcess, report, task};
use super::*;

const OPENING: &str = "the port is being opened";
const OPEN: &str = "the port is open";
const NAME: &str = "kills::killed_process_leaves_nothing_on_the_interface";
const KILLS: usize = 100;

fn config() -> AfXdpConfig {
    AfXdpConfig {
        multicast: vec![ALL_VN2VN],
        promiscuous: Promiscuous::Always,
        ..left_config()
    }
}

/// The process to be killed: opens a port, and sends and receives until killed.
fn run_until_killed() {
    report(OPENING);
    let mut left = AfXdpPort::open(config()).unwrap_or_else(|error| panic!("{error}"));
    report(OPEN);
    loop {
        send(&mut left, &frame(RIGHT, LEFT, &[FCOE], 60));
        receive_some(&mut left);
    }
}

#[test]
fn killed_process_leaves_nothing_on_the_interface() {
    if task().is_some() {
        return run_until_killed();
    }
    let wire = wire(1500);
    let mut right = open(&wire.right, right_config());
    for kill in 0..KILLS {
        let until = if kill % 4 == 0 { OPENING } else { OPEN };
        let mut process = TestProcess::start(&wire.left, NAME, "live");
        process.wait_for_line(until);
        if until == OPEN {
            assert!(is_promiscuous(&wire.left) && has_program(&wire.left));
            wait_for("frames of the process", || {
                (!receive_some(&mut right).is_empty()).then_some(())
            });
        }
        drop(process);
    }
    wait_until_detached(&wire.left);
    // The last process's queue is free at once, or before a port stops waiting for it.
    let mut left = open(&wire.left, left_config());
    assert!(has_program(&wire.left));
    wait_until_connected(&mut left, &mut right);
    drop(left);
    wait_until_detached(&wire.left);
}
