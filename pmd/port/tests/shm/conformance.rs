//! The suite that every port must pass.

use pmd_port::conformance::run_all;
use pmd_port::shm::ShmConfig;

use crate::support::{fresh, open};

fn run(name: &str, change: fn(&mut ShmConfig)) {
    let mut segments = Vec::new();
    run_all(name, &mut || {
        let mut config = fresh("conformance");
        change(&mut config);
        let pair = (Box::new(open(&config)), Box::new(open(&config)));
        segments.push(config.segment_directory());
        (pair.0, pair.1)
    });
    // A port that is dropped while its caller holds buffers keeps its slot, and so its segment, until the process ends.
    for segment in segments.iter().filter(|segment| segment.exists()) {
        std::fs::remove_dir_all(segment).expect("the test's own segment");
    }
}

#[test]
fn conforms_with_defaults() {
    run("shm", |_| {});
}

#[test]
fn conforms_with_the_minimum_of_slots() {
    run("shm with 128 slots", |config| config.slots_per_ring = 128);
}

#[test]
fn conforms_with_huge_pages_and_the_maximum_of_stations() {
    run("shm with 255 stations", |config| {
        config.hugepages = true;
        config.max_stations = 255;
    });
}
