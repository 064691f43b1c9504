//! Simulation of many stations on faulty links.
//!
//! Stations, most of which request the same N_Port_ID, start, stop and are partitioned at random while the link loses,
//! duplicates, delays and corrupts frames. Then the faults stop, and finally:
//!
//! * Every running station is up, and no two have the same N_Port_ID.
//! * Every station knows exactly the other running ones, with their N_Port_IDs, and has reported each.
//! * Restarts are few; only beacons are sent; no table has grown.

use std::collections::BTreeMap;

use fcvi_frame::fc::NPortId;

use super::segment::{ALL, Faults, MS, S, Segment, config, enode};
use crate::Neighbour;
use crate::vn2vn::{Vn2vnConfig, Vn2vnCounter, Vn2vnEvent, Vn2vnState};
use protocol_testkit::rng::Rng;

/// Maximum number of restarts of a station.
const MAX_RESTARTS: u64 = 20;

#[derive(Debug, Default)]
struct Totals {
    stations: u64,
    restarts: u64,
    defended: u64,
    gone: u64,
    reduced: u64,
}

/// The owner of a port: the state that follows from the events.
#[derive(Debug, Default)]
struct Owner {
    id: Option<NPortId>,
    is_up: bool,
    found: BTreeMap<u64, NPortId>,
    ready: BTreeMap<u64, Neighbour>,
}

impl Owner {
    /// Applies an event; asserts that it is consistent with the events before.
    fn handle(&mut self, event: Vn2vnEvent, what: &str) {
        match event {
            Vn2vnEvent::Claimed(id) => {
                assert!(self.id.is_none(), "{what}: claimed twice");
                self.id = Some(id);
            }
            Vn2vnEvent::Up(id) => {
                assert_eq!((self.id, self.is_up), (Some(id), false), "{what}");
                self.is_up = true;
            }
            Vn2vnEvent::Lost => {
                assert!(self.id.is_some(), "{what}: lost without an N_Port_ID");
                *self = Self::default();
            }
            Vn2vnEvent::NeighbourFound(n) => {
                assert!(self.id.is_some() && Some(n.id) != self.id, "{what}");
                assert!(!self.found.values().any(|id| *id == n.id), "{what}: {n:?}");
                let before = self.found.insert(n.port_name, n.id);
                assert_eq!(before, None, "{what}: found twice");
            }
            Vn2vnEvent::NeighbourReady(n) => {
                assert!(self.is_up, "{what}: ready before up");
                assert_eq!(self.found.get(&n.port_name), Some(&n.id), "{what}");
                let is_tested = n.path_fcoe_bytes.is_some_and(|bytes| bytes >= 302);
                assert!(is_tested, "{what}: {n:?}");
                assert_eq!(self.ready.insert(n.port_name, n), None, "{what}");
            }
            Vn2vnEvent::NeighbourDoubted { .. } => panic!("{what}: no neighbour is pinned"),
            Vn2vnEvent::NeighbourGone { port_name, id, .. } => {
                assert_eq!(self.found.remove(&port_name), Some(id), "{what}");
                self.ready.remove(&port_name);
            }
        }
    }
}

struct Simulation {
    segment: Segment,
    owners: Vec<Owner>,
    rng: Rng,
    what: String,
}

impl Simulation {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let stations = 2 + rng.below(9) as u8;
        let configs = (0..stations).map(|number| {
            // Most request 00.00.07, some share an interface, some accept only smaller frames.
            let low = if rng.below(4) == 0 {
                rng.next_u64() as u16
            } else {
                7
            };
            let interface = if rng.below(4) == 0 { 0 } else { number };
            Vn2vnConfig {
                enode_mac: enode(interface),
                max_fcoe_bytes: [2158, 2158, 1500, 1000][rng.below(4) as usize],
                ..config(number + 1, low)
            }
        });
        let configs: Vec<_> = configs.collect();
        let owners = configs.iter().map(|_| Owner::default()).collect();
        let mut segment = Segment::new(configs, seed);
        segment.faults = faults;
        segment.echoes = rng.below(2) == 0;
        Self {
            segment,
            owners,
            rng,
            what: format!("seed {seed:#x}, {faults:?}"),
        }
    }

    fn advance(&mut self, ns: u64) {
        self.segment.advance(ns);
        for (station, owner) in self.owners.iter_mut().enumerate() {
            for event in self.segment.events(station) {
                owner.handle(event, &self.what);
            }
        }
    }

    fn disturb(&mut self) {
        let station = self.rng.below(self.owners.len() as u64) as usize;
        match self.rng.below(8) {
            0 => self.segment.stop(station),
            1 => self.segment.stations[station].partition = self.rng.below(2) as u8,
            _ => self.segment.start(station),
        }
        let pause_ns = match self.rng.below(4) {
            0 => self.rng.below(30 * S),
            1 => self.rng.below(S),
            _ => self.rng.below(100 * MS),
        };
        self.advance(pause_ns);
    }

    fn stop_faults(&mut self) {
        self.segment.faults = Faults::default();
        for station in &mut self.segment.stations {
            station.partition = 0;
        }
        self.advance(90 * S);
    }

    fn check(&mut self, totals: &mut Totals) {
        let what = self.what.clone();
        let stations = 0..self.owners.len();
        let is_running = |station: &usize| self.segment.state(*station) != Vn2vnState::Stopped;
        let running: Vec<usize> = stations.clone().filter(is_running).collect();
        let ids: BTreeMap<u64, NPortId> = running
            .iter()
            .map(|station| {
                assert_eq!(self.segment.state(*station), Vn2vnState::Up, "{what}");
                let machine = &self.segment.stations[*station].machine;
                (machine.config().port_name, self.segment.id(*station))
            })
            .collect();
        let mut unique: Vec<_> = ids.values().collect();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), running.len(), "{what}: {ids:?}");
        for station in &running {
            self.check_station(*station, &ids);
        }
        for station in stations {
            let count = |counter| self.segment.count(station, counter);
            totals.stations += 1;
            totals.restarts += count(Vn2vnCounter::Restarts);
            totals.defended += count(Vn2vnCounter::Defended);
            totals.gone += count(Vn2vnCounter::Gone);
            totals.reduced += count(Vn2vnCounter::PathReduced);
            let restarts = count(Vn2vnCounter::Restarts);
            assert!(restarts <= MAX_RESTARTS, "{what}: {restarts} restarts");
        }
        // Within a minute only beacons are sent.
        self.segment.sent.clear();
        self.advance(60 * S);
        let beacons = self.segment.sent.iter().filter(|s| s.dst == ALL);
        let beacons = beacons.filter(|s| s.frame.message.subcode() == 5).count();
        assert_eq!(
            beacons,
            self.segment.sent.len(),
            "{what}: {:?}",
            self.segment.sent
        );
        assert!(beacons <= 8 * running.len(), "{what}");
    }

    fn check_station(&self, station: usize, ids: &BTreeMap<u64, NPortId>) {
        let what = &self.what;
        let machine = &self.segment.stations[station].machine;
        let own = machine.config().port_name;
        let others: BTreeMap<u64, NPortId> = ids
            .iter()
            .filter(|(name, _)| **name != own)
            .map(|(name, id)| (*name, *id))
            .collect();
        let known: BTreeMap<u64, NPortId> =
            machine.neighbours().map(|n| (n.port_name, n.id)).collect();
        assert_eq!(known, others, "{what}: station {station}");
        let owner = &self.owners[station];
        assert_eq!(owner.id, Some(self.segment.id(station)), "{what}");
        assert!(owner.is_up, "{what}");
        assert_eq!(owner.found, others, "{what}: reported");
        let ready: BTreeMap<u64, Neighbour> =
            machine.neighbours().map(|n| (n.port_name, *n)).collect();
        assert_eq!(owner.ready, ready, "{what}: reported");
        for neighbour in ready.values() {
            let full = neighbour
                .max_fcoe_bytes
                .min(machine.config().max_fcoe_bytes);
            let path = neighbour.path_fcoe_bytes.expect("a tested path");
            assert!(
                path == full || path == full.min(1_500),
                "{what}: {neighbour:?}"
            );
        }
        assert_eq!(machine.capacities(), (512, 64), "{what}");
    }
}

fn simulate(seeds: u64, faults: Faults) -> Totals {
    let mut totals = Totals::default();
    for seed in 0..seeds {
        let mut simulation = Simulation::new(0x0D15_C000 + seed, faults);
        for _ in 0..40 {
            simulation.disturb();
        }
        simulation.stop_faults();
        simulation.check(&mut totals);
    }
    println!("{faults:?}: {totals:?}");
    totals
}

#[test]
fn stations_converge_on_reliable_and_faulty_links() {
    let none = Faults::default();
    let links = [
        none,
        Faults {
            loss: 100_000,
            ..none
        },
        Faults {
            duplicate: 300_000,
            late: 300_000,
            ..none
        },
        Faults {
            loss: 300_000,
            duplicate: 100_000,
            late: 200_000,
            corrupt: 50_000,
        },
    ];
    for faults in links {
        let totals = simulate(100, faults);
        assert!(totals.restarts > 100 && totals.defended > 0, "{totals:?}");
        assert!(totals.gone > 100, "{totals:?}");
    }
}

/// All stations start at once and request the same N_Port_ID.
#[test]
fn sixty_four_stations_with_the_same_preferred_id_are_up_within_seconds() {
    let configs = (0..64).map(|number| config(number + 1, 7)).collect();
    let mut segment = Segment::new(configs, 15);
    for station in 0..64 {
        segment.start(station);
    }
    segment.advance(5 * S);
    let mut ids: Vec<_> = (0..64).map(|station| segment.id(station)).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 64);
    for station in 0..64 {
        assert_eq!(segment.neighbours(station).len(), 63);
        assert!(segment.count(station, Vn2vnCounter::Restarts) <= 3);
    }
}
