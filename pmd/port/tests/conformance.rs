//! The conformance suite over the ports that connect stations of one process.

use pmd_port::conformance::{Pair, run_all};
use pmd_port::layer::{FaultConfig, FaultInjector, FaultRates, PcapngTee};
use pmd_port::loopback::{LoopbackConfig, LoopbackPort};

fn loopback(config: &LoopbackConfig) -> Pair {
    let (a, b) = LoopbackPort::pair(config).expect("a pair");
    (Box::new(a), Box::new(b))
}

#[test]
fn loopback_conforms() {
    let config = LoopbackConfig::default();
    run_all("loopback", &mut || loopback(&config));
}

#[test]
fn loopback_with_short_rings_conforms() {
    let config = LoopbackConfig {
        frames_per_ring: 128,
        huge_pages: true,
        ..LoopbackConfig::default()
    };
    run_all("loopback, short rings", &mut || loopback(&config));
}

#[test]
fn fault_injector_without_faults_conforms() {
    let config = LoopbackConfig::default();
    run_all("fault injector without faults", &mut || {
        let (a, b) = loopback(&config);
        let wrap = |port| FaultInjector::new(port, FaultConfig::default()).expect("no faults");
        (Box::new(wrap(a)), Box::new(wrap(b)))
    });
}

#[test]
fn capture_conforms() {
    let config = LoopbackConfig::default();
    run_all("capture", &mut || {
        let (a, b) = loopback(&config);
        let wrap = |port| PcapngTee::new(port, std::io::sink()).expect("a sink takes all");
        (Box::new(wrap(a)), Box::new(wrap(b)))
    });
}

/// Verifies that the suite detects faults.
#[test]
fn faulty_port_does_not_conform() {
    const SOMETIMES_PPM: u32 = 200_000;
    let faults = [
        FaultRates {
            duplicate_ppm: SOMETIMES_PPM,
            ..FaultRates::default()
        },
        FaultRates {
            corrupt_ppm: SOMETIMES_PPM,
            ..FaultRates::default()
        },
        FaultRates {
            reorder_ppm: SOMETIMES_PPM,
            ..FaultRates::default()
        },
    ];
    let config = LoopbackConfig::default();
    for rx in faults {
        let conformed = std::panic::catch_unwind(|| {
            run_all("a port with faults", &mut || {
                let (a, b) = loopback(&config);
                let faults = FaultConfig {
                    rx,
                    ..FaultConfig::default()
                };
                let a = FaultInjector::new(a, faults).expect("a good configuration");
                (Box::new(a), b)
            });
        });
        assert!(conformed.is_err(), "the suite did not detect {rx:?}");
    }
}
