//! No stale frame is accepted. Each of these tests fails without some check: the table names them.

use vi_types::ReliabilityLevel;

use super::scenarios::Scenario;

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;

/// Runs a scenario with all of its seeds.
fn assert_rejected(scenario: Scenario) {
    for seed in scenario.seeds() {
        assert_eq!(scenario.run(seed), Ok(()), "{scenario:?}, seed {seed}");
    }
}

#[test]
fn no_stale_frame_of_one_connection_is_accepted() {
    for level in [UD, RD, RR] {
        assert_rejected(Scenario::Repeated(level));
    }
}

#[test]
fn no_stale_frame_is_accepted_with_recovery() {
    for level in [RD, RR] {
        assert_rejected(Scenario::Recovering(level));
    }
}

#[test]
fn no_stale_frame_is_accepted_when_frames_are_withheld() {
    for level in [UD, RD, RR] {
        assert_rejected(Scenario::Lossy(level));
    }
}

#[test]
fn no_stale_frame_is_accepted_when_identifiers_wrap() {
    for scenario in [Scenario::SameIdentity, Scenario::FewExchanges] {
        assert_rejected(scenario);
    }
}

#[test]
fn no_stale_frame_of_other_connections_is_accepted() {
    for scenario in [
        Scenario::Successive,
        Scenario::SimilarHandles,
        Scenario::SimilarHandlesFarMessages,
        Scenario::SimilarHandlesRecovering,
        Scenario::OtherPeer,
        Scenario::Flooded,
    ] {
        assert_rejected(scenario);
    }
}

#[test]
fn no_stale_connection_iu_is_accepted() {
    for scenario in [Scenario::Requests, Scenario::SimilarRequests] {
        assert_rejected(scenario);
    }
}

#[test]
fn late_probe_response_does_not_keep_a_lost_port() {
    assert_rejected(Scenario::Probes);
}
