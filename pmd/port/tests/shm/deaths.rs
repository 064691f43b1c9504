//! Processes that are killed at any moment, while others go on.

use pmd_port::shm::ShmConfig;
use pmd_port::{MacBytes, Neighbour, Port};

use crate::support::{
    Neighbours, PATIENCE, Patience, Process, Random, assert_gone, counter, files, fresh, open,
    receive, role, try_send,
};

/// Sends to everyone who is there and reads what comes, until killed.
fn live_until_killed(config: &ShmConfig) {
    let mut port = open(config);
    let mut neighbours = Neighbours::default();
    let mut serial = 0;
    let patience = Patience::new("being killed");
    loop {
        neighbours.update(&mut port);
        for neighbour in &neighbours.present {
            serial += u64::from(try_send(&mut port, neighbour.mac, serial));
        }
        receive(&mut port);
        patience.turn();
    }
}

/// Sends its frames in order to the other survivor until that one leaves, while
/// stations around come and die.
fn survive(config: &ShmConfig) {
    let mut port = open(config);
    let mut neighbours = Neighbours::default();
    neighbours.update(&mut port);
    let first = neighbours.present[0];
    let patience = Patience::new("the test to end");
    let mut echoed = 0;
    while !neighbours.left.contains(&first) {
        for (src, serial) in receive(&mut port) {
            if src == first.mac {
                assert_eq!(serial, echoed, "lost or out of order");
                while !try_send(&mut port, src, serial) {
                    patience.turn();
                }
                echoed += 1;
            }
        }
        neighbours.update(&mut port);
        patience.turn();
    }
    assert!(echoed > 0);
}

/// The first station: exchanges serial numbers with the survivor all the time.
struct Witness<'a> {
    port: &'a mut dyn Port,
    survivor: MacBytes,
    sent: u64,
    answered: u64,
    from_victims: u64,
}

impl Witness<'_> {
    fn turn(&mut self) {
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
fn twenty_processes_are_killed_while_others_go_on() {
    const TEST: &str = "deaths::twenty_processes_are_killed_while_others_go_on";
    if let Some((role, config)) = role() {
        return match role.as_str() {
            "victim" => live_until_killed(&config),
            _ => survive(&config),
        };
    }
    let config = fresh("killed");
    let mut random = Random::new(0x5eed_dead);
    let mut port = open(&config);
    let survivor = Process::start(TEST, "survivor", &config);
    let mut neighbours = Neighbours::default();
    neighbours.wait_for(&mut port, 1);
    let survivor_mac = neighbours.present[0].mac;
    let mut witness = Witness {
        port: &mut port,
        survivor: survivor_mac,
        sent: 0,
        answered: 0,
        from_victims: 0,
    };
    let mut dead: Vec<Neighbour> = Vec::new();
    for round in 1..=20 {
        let victim = Process::start(TEST, "victim", &config);
        let patience = Patience::new("a victim to join");
        while neighbours.present.len() < 2 {
            witness.turn();
            neighbours.update(witness.port);
            patience.turn();
        }
        let victim_at = neighbours.present[1];
        assert!(!dead.contains(&victim_at), "an address was used twice");
        assert_eq!(victim_at.mac[5], 3, "its slot is the one of the dead");
        for _ in 0..random.below(20_000) {
            witness.turn();
        }
        victim.kill();
        let patience = Patience::new("a death to be told");
        while neighbours.left.len() < round {
            witness.turn();
            witness.port.upkeep();
            neighbours.update(witness.port);
            patience.turn();
        }
        assert_eq!(neighbours.left[round - 1], victim_at);
        assert_eq!(
            files(&config),
            ["lock", "segment", "station-0.1", "station-1.1"]
        );
        dead.push(victim_at);
    }
    assert!(witness.answered > 1_000, "the survivors went on");
    assert!(witness.from_victims > 0, "the victims did something");
    assert_eq!(counter(&port, "stations_reaped"), 20);
    assert_eq!(counter(&port, "drop_bad_length"), 0);
    drop(port);
    survivor.assert_success();
    assert_gone(&config);
}

#[test]
fn a_segment_whose_last_process_was_killed_is_reclaimed_by_the_next() {
    const TEST: &str = "deaths::a_segment_whose_last_process_was_killed_is_reclaimed_by_the_next";
    if let Some((_, config)) = role() {
        return live_until_killed(&config);
    }
    let config = fresh("last");
    for _ in 0..3 {
        let victim = Process::start(TEST, "victim", &config);
        let patience = Patience::new("a victim to join");
        while files(&config).len() < 3 {
            patience.turn();
        }
        victim.kill();
        assert!(config.segment_directory().exists(), "nobody cleaned up yet");
        let port = open(&config);
        assert_eq!(files(&config).len(), 3);
        drop(port);
        assert_gone(&config);
    }
}

#[test]
fn processes_killed_while_joining_and_leaving_hold_up_nobody() {
    const TEST: &str = "deaths::processes_killed_while_joining_and_leaving_hold_up_nobody";
    if let Some((_, config)) = role() {
        let patience = Patience::new("being killed");
        loop {
            drop(open(&config));
            patience.turn();
        }
    }
    let config = fresh("joining");
    let mut random = Random::new(0x0dd_ba11);
    for _ in 0..20 {
        let victim = Process::start(TEST, "victim", &config);
        let patience = Patience::new("a victim to start");
        while files(&config).is_empty() {
            patience.turn();
        }
        for _ in 0..random.below(200) {
            drop(open(&config));
        }
        victim.kill();
        let started = std::time::Instant::now();
        drop(open(&config));
        assert!(started.elapsed() < PATIENCE / 10);
        assert_gone(&config);
    }
}
