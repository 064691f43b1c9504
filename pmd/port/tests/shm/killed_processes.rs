//! Processes that are killed at random times, while others continue.

use pmd_port::shm::ShmConfig;
use pmd_port::{MacBytes, Neighbour, Port};

use crate::support::{
    Deadline, Neighbours, Process, Random, TIMEOUT, assert_gone, counter, files, fresh, open,
    receive, role, try_send,
};

/// Sends to all present stations and receives, until killed.
fn run_until_killed(config: &ShmConfig) {
    let mut port = open(config);
    let mut neighbours = Neighbours::default();
    let mut serial = 0;
    let deadline = Deadline::new("being killed");
    loop {
        neighbours.update(&mut port);
        for neighbour in &neighbours.present {
            serial += u64::from(try_send(&mut port, neighbour.mac, serial));
        }
        receive(&mut port);
        deadline.check();
    }
}

/// Echoes the frames of the first station in order until that one leaves, while other
/// stations join and are killed.
fn echo_until_first_leaves(config: &ShmConfig) {
    let mut port = open(config);
    let mut neighbours = Neighbours::default();
    neighbours.update(&mut port);
    let first = neighbours.present[0];
    let deadline = Deadline::new("the test to end");
    let mut echoed = 0;
    while !neighbours.left.contains(&first) {
        for (src, serial) in receive(&mut port) {
            if src == first.mac {
                assert_eq!(serial, echoed, "lost or out of order");
                while !try_send(&mut port, src, serial) {
                    deadline.check();
                }
                echoed += 1;
            }
        }
        neighbours.update(&mut port);
        deadline.check();
    }
    assert!(echoed > 0);
}

/// The first station: exchanges serial numbers with the survivor continuously.
struct Observer<'a> {
    port: &'a mut dyn Port,
    survivor: MacBytes,
    sent: u64,
    answered: u64,
    from_victims: u64,
}

impl Observer<'_> {
    fn exchange(&mut self) {
        for (src, serial) in receive(self.port) {
            if src == self.survivor {
                assert_eq!(serial, self.answered, "lost or out of order");
                self.answered += 1;
            } else {
                self.from_victims += 1;
            }
        }
        if self.sent - self.answered < 100 && try_send(self.port, self.survivor, self.sent) {
            self.sent += 1;
        }
    }
}

#[test]
fn survivors_continue_while_twenty_processes_are_killed() {
    const TEST: &str = "killed_processes::survivors_continue_while_twenty_processes_are_killed";
    if let Some((role, config)) = role() {
        return match role.as_str() {
            "victim" => run_until_killed(&config),
            _ => echo_until_first_leaves(&config),
        };
    }
    let config = fresh("killed");
    let mut random = Random::new(0x5eed_dead);
    let mut port = open(&config);
    let survivor = Process::start(TEST, "survivor", &config);
    let mut neighbours = Neighbours::default();
    neighbours.wait_for(&mut port, 1);
    let survivor_mac = neighbours.present[0].mac;
    let mut observer = Observer {
        port: &mut port,
        survivor: survivor_mac,
        sent: 0,
        answered: 0,
        from_victims: 0,
    };
    let mut dead: Vec<Neighbour> = Vec::new();
    for round in 1..=20 {
        let victim = Process::start(TEST, "victim", &config);
        let deadline = Deadline::new("a victim to join");
        while neighbours.present.len() < 2 {
            observer.exchange();
            neighbours.update(observer.port);
            deadline.check();
        }
        let victim_at = neighbours.present[1];
        assert!(!dead.contains(&victim_at), "an address was used twice");
        assert_eq!(
            victim_at.mac[5], 3,
            "it reuses the slot of the previous victim"
        );
        for _ in 0..random.below(20_000) {
            observer.exchange();
        }
        victim.kill();
        let deadline = Deadline::new("a death to be reported");
        while neighbours.left.len() < round {
            observer.exchange();
            observer.port.upkeep();
            neighbours.update(observer.port);
            deadline.check();
        }
        assert_eq!(neighbours.left[round - 1], victim_at);
        assert_eq!(
            files(&config),
            ["lock", "segment", "station-0.1", "station-1.1"]
        );
        dead.push(victim_at);
    }
    assert!(observer.answered > 1_000, "the survivors continued");
    assert!(observer.from_victims > 0, "the victims sent frames");
    assert_eq!(counter(&port, "stations_reaped"), 20);
    assert_eq!(counter(&port, "drop_bad_length"), 0);
    drop(port);
    survivor.assert_success();
    assert_gone(&config);
}

#[test]
fn segment_of_killed_processes_is_reclaimed_by_the_next() {
    const TEST: &str = "killed_processes::segment_of_killed_processes_is_reclaimed_by_the_next";
    if let Some((_, config)) = role() {
        return run_until_killed(&config);
    }
    let config = fresh("last");
    for _ in 0..3 {
        let victim = Process::start(TEST, "victim", &config);
        let deadline = Deadline::new("a victim to join");
        while files(&config).len() < 3 {
            deadline.check();
        }
        victim.kill();
        assert!(config.segment_directory().exists(), "not cleaned up yet");
        let port = open(&config);
        assert_eq!(files(&config).len(), 3);
        drop(port);
        assert_gone(&config);
    }
}

#[test]
fn processes_killed_while_joining_do_not_block_others() {
    const TEST: &str = "killed_processes::processes_killed_while_joining_do_not_block_others";
    if let Some((_, config)) = role() {
        let deadline = Deadline::new("being killed");
        loop {
            drop(open(&config));
            deadline.check();
        }
    }
    let config = fresh("joining");
    let mut random = Random::new(0x0dd_ba11);
    for _ in 0..20 {
        let victim = Process::start(TEST, "victim", &config);
        let deadline = Deadline::new("a victim to start");
        while files(&config).is_empty() {
            deadline.check();
        }
        for _ in 0..random.below(200) {
            drop(open(&config));
        }
        victim.kill();
        let started = std::time::Instant::now();
        drop(open(&config));
        assert!(started.elapsed() < TIMEOUT / 10);
        assert_gone(&config);
    }
}
