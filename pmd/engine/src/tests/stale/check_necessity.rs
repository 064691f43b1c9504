//! Necessity of each check for stale frames: with all checks no stale frame is accepted, without one of them one is.

use vi_types::ReliabilityLevel;

use super::scenarios::Scenario;
use crate::synonym::Check;
use crate::testkit::necessity::{
    assert_accepted_without, assert_covered, assert_needed, assert_rejected,
    assert_rejected_without,
};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;

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

#[test]
fn quarantined_exchange_is_needed() {
    assert_needed(Check::QuarantinedExchange, Scenario::Probes);
}

#[test]
fn addresses_are_needed() {
    assert_needed(Check::Addresses, Scenario::Flooded);
}

#[test]
fn handle_is_needed() {
    assert_needed(Check::Handle, Scenario::Successive);
}

#[test]
fn peer_is_covered_by_quarantined_handle() {
    assert_covered(Check::Peer, Check::QuarantinedHandle, Scenario::OtherPeer);
}

#[test]
fn older_message_is_needed() {
    for level in [UD, RD, RR] {
        assert_needed(Check::OlderMessage, Scenario::Repeated(level));
    }
}

#[test]
fn message_window_is_covered_by_quarantined_handle() {
    assert_covered(
        Check::MessageWindow,
        Check::QuarantinedHandle,
        Scenario::SimilarHandlesFarMessages,
    );
}

#[test]
fn open_message_is_needed() {
    assert_needed(Check::OpenMessage, Scenario::SameIdentity);
}

#[test]
fn open_exchange_is_covered_by_open_message() {
    for level in [UD, RD, RR] {
        assert_covered(
            Check::OpenExchange,
            Check::OpenMessage,
            Scenario::Repeated(level),
        );
    }
    assert_rejected_without(&[Check::OpenExchange], Scenario::SameIdentity);
}

#[test]
fn sequence_count_is_covered_by_relative_offset() {
    for level in [UD, RD, RR] {
        assert_covered(
            Check::SequenceCount,
            Check::RelativeOffset,
            Scenario::Repeated(level),
        );
    }
}

#[test]
fn relative_offset_is_needed() {
    for level in [RD, RR] {
        assert_needed(Check::RelativeOffset, Scenario::Recovering(level));
    }
}

#[test]
fn placed_ahead_is_needed() {
    for level in [RD, RR] {
        assert_needed(Check::PlacedAhead, Scenario::Recovering(level));
    }
}

#[test]
fn answered_message_is_needed() {
    assert_needed(Check::AnsweredMessage, Scenario::FewExchanges);
}

#[test]
fn answered_exchange_is_covered_by_answered_message() {
    assert_covered(
        Check::AnsweredExchange,
        Check::AnsweredMessage,
        Scenario::Repeated(RR),
    );
    assert_rejected_without(&[Check::AnsweredExchange], Scenario::FewExchanges);
}

#[test]
fn older_acknowledgement_is_needed() {
    for level in [RD, RR] {
        assert_needed(Check::OlderAcknowledgement, Scenario::Recovering(level));
    }
}

#[test]
fn acknowledged_message_is_covered_by_quarantined_handle() {
    assert_covered(
        Check::AcknowledgedMessage,
        Check::QuarantinedHandle,
        Scenario::SimilarHandlesRecovering,
    );
    for level in [RD, RR] {
        assert_rejected_without(&[Check::AcknowledgedMessage], Scenario::Recovering(level));
    }
}

#[test]
fn quarantined_handle_is_needed() {
    assert_needed(Check::QuarantinedHandle, Scenario::SimilarHandles);
}

#[test]
fn known_request_is_needed() {
    assert_needed(Check::KnownRequest, Scenario::Requests);
}

#[test]
fn quarantined_request_is_needed() {
    assert_needed(Check::QuarantinedRequest, Scenario::Requests);
}

#[test]
fn connection_id_is_needed() {
    assert_needed(Check::ConnectionId, Scenario::Requests);
}

#[test]
fn connection_peer_is_needed() {
    assert_needed(Check::ConnectionPeer, Scenario::SimilarRequests);
}

#[test]
fn connection_handle_is_covered_by_connection_id() {
    assert_rejected_without(&[Check::ConnectionHandle], Scenario::Requests);
    assert_rejected_without(&[Check::ConnectionHandle], Scenario::SimilarRequests);
    assert_accepted_without(
        &[Check::ConnectionHandle, Check::ConnectionId],
        Scenario::Requests,
    );
}
