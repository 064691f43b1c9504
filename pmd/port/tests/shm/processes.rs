//! Processes that exchange frames in all directions.

use std::collections::BTreeMap;

use pmd_port::{MacBytes, Port};

use crate::support::{
    Deadline, Neighbours, Process, assert_gone, fresh, open, receive, role, try_send,
};

/// Sends `count` frames to each of `stations - 1` others and to itself, and receives as
/// many from each, all in order and undamaged. A station that is done may leave: it has
/// frames from all others, so all have seen it.
fn exchange(port: &mut dyn Port, stations: usize, count: u64) {
    let own = port.capabilities().mac;
    let mut neighbours = Neighbours::default();
    neighbours.wait_for(port, stations - 1);
    let mut unsent: BTreeMap<MacBytes, u64> = BTreeMap::from([(own, 0)]);
    unsent.extend(neighbours.present.iter().map(|other| (other.mac, 0)));
    let mut expected = unsent.clone();
    let deadline = Deadline::new("frames in all directions");
    let mut missing = count * stations as u64;
    while missing > 0 || unsent.values().any(|next| *next < count) {
        let mut idle = true;
        for (dst, next) in &mut unsent {
            for _ in 0..16 {
                if *next == count || !try_send(port, *dst, *next) {
                    break;
                }
                *next += 1;
                idle = false;
            }
        }
        for (src, serial) in receive(port) {
            let next = expected.get_mut(&src).expect("a known sender");
            assert_eq!(serial, *next, "lost or out of order");
            *next += 1;
            missing -= 1;
            idle = false;
        }
        if idle {
            deadline.check();
        }
    }
}

/// Runs the exchange in this number of processes, including this one.
fn exchange_in_processes(test: &str, stations: usize, count: u64) {
    if let Some((_, config)) = role() {
        return exchange(&mut open(&config), stations, count);
    }
    let config = fresh("exchange");
    // Opened before the children start, so that the segment outlives each of them.
    let mut port = open(&config);
    let children: Vec<_> = (1..stations)
        .map(|_| Process::start(test, "exchange", &config))
        .collect();
    exchange(&mut port, stations, count);
    for child in children {
        child.assert_success();
    }
    drop(port);
    assert_gone(&config);
}

#[test]
fn two_processes_exchange_100_000_frames_each_way() {
    exchange_in_processes(
        "processes::two_processes_exchange_100_000_frames_each_way",
        2,
        100_000,
    );
}

#[test]
fn eight_processes_exchange_frames_in_all_directions() {
    exchange_in_processes(
        "processes::eight_processes_exchange_frames_in_all_directions",
        8,
        3_000,
    );
}
