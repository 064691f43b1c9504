//! Sleeping and wakeups across processes.

use std::time::Duration;

use pmd_port::wake::{Slept, monotonic_ns};
use pmd_port::{MacBytes, Port, WakeSource};

use crate::support::{
    Neighbours, Process, Random, assert_gone, counter, fresh, open, receive, role, send,
};

/// No wakeup takes as long; a sleep that times out has lost one.
const LONG: Duration = Duration::from_secs(60);

/// Arms and polls, and sleeps while there are no frames; returns the frames.
fn receive_asleep(port: &mut dyn Port) -> Vec<(MacBytes, u64)> {
    loop {
        let source = port.arm();
        assert!(matches!(source, WakeSource::Futex { .. }), "{source:?}");
        let frames = receive(port);
        if !frames.is_empty() {
            port.disarm();
            return frames;
        }
        let slept = source.sleep(LONG).expect("a sleep");
        assert_eq!(slept, Slept::Woken, "a wake was lost");
        port.disarm();
    }
}

#[test]
fn no_wakeup_is_lost_between_two_processes() {
    const TEST: &str = "wake::no_wakeup_is_lost_between_two_processes";
    const ROUNDS: u64 = 5_000;
    if let Some((_, config)) = role() {
        let mut port = open(&config);
        for expected in 0..ROUNDS {
            let frames = receive_asleep(&mut port);
            assert_eq!(frames.len(), 1);
            let (src, serial) = frames[0];
            assert_eq!(serial, expected);
            send(&mut port, src, serial);
        }
        return;
    }
    let config = fresh("wake");
    let mut random = Random::new(0xa1a2_3000);
    let mut port = open(&config);
    let child = Process::start(TEST, "echo", &config);
    let mut neighbours = Neighbours::default();
    neighbours.wait_for(&mut port, 1);
    let dst = neighbours.present[0].mac;
    for serial in 0..ROUNDS {
        // Varies whether a frame arrives before, while or after the other side prepares to sleep.
        for _ in 0..random.below(5_000) {
            std::hint::spin_loop();
        }
        send(&mut port, dst, serial);
        assert_eq!(receive_asleep(&mut port), [(dst, serial)]);
    }
    child.assert_success();
    assert!(counter(&port, "wakes_sent") > 0, "the other side slept");
    assert!(counter(&port, "arms") >= ROUNDS);
    drop(port);
    assert_gone(&config);
}

#[test]
fn join_and_leave_wake_a_sleeping_station() {
    let config = fresh("wake-events");
    let mut port = open(&config);
    let mut neighbours = Neighbours::default();
    for _ in 0..10 {
        let source = port.arm();
        neighbours.update(&mut port);
        std::thread::scope(|scope| {
            let (stay, until_dropped) = std::sync::mpsc::channel::<()>();
            let config = &config;
            let other = scope.spawn(move || {
                let port = open(config);
                assert!(until_dropped.recv().is_err(), "nothing is ever sent");
                drop(port);
            });
            assert_eq!(source.sleep(LONG).expect("a sleep"), Slept::Woken);
            neighbours.update(&mut port);
            assert_eq!(neighbours.present.len(), 1);
            let source = port.arm();
            drop(stay);
            assert_eq!(source.sleep(LONG).expect("a sleep"), Slept::Woken);
            other.join().expect("the other station");
        });
        neighbours.update(&mut port);
        assert!(neighbours.present.is_empty());
    }
    assert_eq!(neighbours.left.len(), 10);
}

#[test]
fn frames_wake_once_per_arm() {
    let config = fresh("wake-once");
    let (mut a, mut b) = (open(&config), open(&config));
    let dst = b.capabilities().mac;
    send(&mut a, dst, 0);
    assert_eq!(counter(&a, "wakes_sent"), 0, "not armed");
    let (source, armed_at_ns) = (b.arm(), monotonic_ns());
    send(&mut a, dst, 1);
    send(&mut a, dst, 2);
    assert_eq!(counter(&a, "wakes_sent"), 1);
    assert_eq!(source.sleep(LONG).expect("a sleep"), Slept::Woken);
    let WakeSource::Futex { word, .. } = &source else {
        panic!("no futex: {source:?}");
    };
    let woken_at_ns = word.woken_at_ns().expect("recorded");
    assert!((armed_at_ns..=monotonic_ns()).contains(&woken_at_ns));
    b.arm();
    b.disarm();
    send(&mut a, dst, 3);
    assert_eq!(counter(&a, "wakes_sent"), 1, "disarmed");
}
