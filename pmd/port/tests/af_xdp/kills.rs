//! Processes that are killed while they have a port.

use super::again::{Again, say, task};
use super::*;

const OPENING: &str = "the port is being opened";
const OPEN: &str = "the port is open";
const NAME: &str = "kills::nothing_stays_of_a_process_that_was_killed";
const KILLS: usize = 100;

fn config() -> AfXdpConfig {
    AfXdpConfig {
        multicast: vec![ALL_VN2VN],
        promiscuous: Promiscuous::Always,
        ..left_config()
    }
}

/// The process to be killed: opens a port, and sends and receives for ever.
fn live() {
    say(OPENING);
    let mut left = AfXdpPort::open(config()).unwrap_or_else(|error| panic!("{error}"));
    say(OPEN);
    loop {
        send(&mut left, &frame(RIGHT, LEFT, &[FCOE], 60));
        receive_some(&mut left);
    }
}

#[test]
fn nothing_stays_of_a_process_that_was_killed() {
    if task().is_some() {
        return live();
    }
    let wire = wire(1500);
    let mut right = open(&wire.right, right_config());
    for kill in 0..KILLS {
        let until = if kill % 4 == 0 { OPENING } else { OPEN };
        let mut process = Again::start(&wire.left, NAME, "live");
        process.until(until);
        if until == OPEN {
            assert!(is_promiscuous(&wire.left) && has_program(&wire.left));
            wait_for("frames of the process", || {
                (!receive_some(&mut right).is_empty()).then_some(())
            });
        }
        drop(process);
    }
    wait_until_plain(&wire.left);
    // The last one's queue is free at once, or soon enough for a port to wait for it.
    let mut left = open(&wire.left, left_config());
    assert!(has_program(&wire.left));
    settle(&mut left, &mut right);
    drop(left);
    wait_until_plain(&wire.left);
}
