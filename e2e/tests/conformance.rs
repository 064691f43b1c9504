//! The conformance suite between two hosts on a wire.

use std::path::Path;

use e2e::conformance_suite::{DAMAGED, LOSSY, UnknownHost, fragile, run_between_hosts, shm_named};
use e2e::nics::{End, NicText};
use e2e::wire::Wire;

/// Returns the NICs that the suite requires (vipl/capi/tests/common): the usual one; SMALL with small limits; LOSSY
/// and DAMAGED with faults and without recovery; FRAGILE, whose segment is truncated. SMALL and FRAGILE are used
/// within one process only.
fn nics(end: End, segments: &Path) -> NicText {
    let bad = |name: &str, number: u8, fault: &str| {
        NicText::additional_af_packet(end, name, number)
            .short_timeouts()
            .key("network.probe_interval_ms", 100)
            .key("recovery", false)
            .key("fc_vi.fault", fault)
    };
    let small = shm_named(segments, "SMALL").small_limits();
    NicText::af_packet(end)
        .key("name", "\"VINIC0\"")
        .key("network.probe_interval_ms", 100)
        .key("fc_vi.r_a_tov_ms", 1000)
        .key("ulp_timeout_ms", 4000)
        .and(small.key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(bad("LOSSY", 1, LOSSY))
        .and(bad("DAMAGED", 2, DAMAGED))
}

fn between_two_hosts(phase: &str) {
    run_between_hosts(
        phase,
        &Wire::new(2500),
        true,
        UnknownHost::Unreachable,
        nics,
    );
}

#[test]
fn early_adopter() {
    between_two_hosts("early_adopter");
}

#[test]
fn functional() {
    between_two_hosts("functional");
}

#[test]
fn full() {
    between_two_hosts("full");
}
