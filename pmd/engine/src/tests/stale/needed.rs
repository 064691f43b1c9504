//! No stale frame is taken; and what each check is for: without it one is.

use super::scenes::{Scene, taken};
use crate::Level;
use crate::synonym::Check;

const UD: Level = Level::UnreliableDelivery;
const RD: Level = Level::ReliableDelivery;
const RR: Level = Level::ReliableReception;

/// With all checks nothing stale is taken.
fn holds(scene: Scene) {
    holds_without(&[], scene);
}

fn holds_without(checks: &[Check], scene: Scene) {
    for seed in scene.seeds() {
        let found = taken(scene, seed, checks);
        assert_eq!(found, None, "{scene:?}, seed {seed}, without {checks:?}");
    }
}

/// Without these checks something stale is taken with some seed.
fn finds_without(checks: &[Check], scene: Scene) {
    let found = scene.seeds().find_map(|seed| taken(scene, seed, checks));
    let found = found.unwrap_or_else(|| panic!("{scene:?} without {checks:?}: nothing is found"));
    println!("{scene:?} without {checks:?}: {found}");
}

/// Is needed: it alone left out, a stale frame is taken.
fn needed(check: Check, scene: Scene) {
    finds_without(&[check], scene);
}

/// Is a second line: left out alone, the other one tells; both left out, a stale frame is taken
/// that either of them tells.
fn covered(check: Check, by: Check, scene: Scene) {
    holds_without(&[check], scene);
    holds_without(&[by], scene);
    finds_without(&[check, by], scene);
}

#[test]
fn nothing_stale_is_taken_of_one_connection() {
    for level in [UD, RD, RR] {
        holds(Scene::Repeated(level));
    }
}

#[test]
fn nothing_stale_is_taken_with_recovery() {
    for level in [RD, RR] {
        holds(Scene::Recovering(level));
    }
}

#[test]
fn nothing_stale_is_taken_when_frames_are_held() {
    for level in [UD, RD, RR] {
        holds(Scene::Lossy(level));
    }
}

#[test]
fn nothing_stale_is_taken_when_identifiers_come_round() {
    for scene in [Scene::SameIdentity, Scene::FewExchanges] {
        holds(scene);
    }
}

#[test]
fn nothing_stale_is_taken_of_other_connections() {
    for scene in [
        Scene::Successive,
        Scene::AlikeHandles,
        Scene::AlikeHandlesFarMessages,
        Scene::AlikeHandlesRecovering,
        Scene::OtherPeer,
        Scene::Flooded,
    ] {
        holds(scene);
    }
}

#[test]
fn nothing_stale_is_taken_in_connection_procedures() {
    for scene in [Scene::Requests, Scene::AlikeRequests] {
        holds(scene);
    }
}

#[test]
fn no_late_answer_is_a_sign_of_life() {
    holds(Scene::Probes);
}

#[test]
fn nothing_stale_is_taken_of_logins() {
    holds(Scene::Logins);
    holds(Scene::FewLoginExchanges);
}

#[test]
fn confirmed_login_is_needed() {
    needed(Check::ConfirmedLogin, Scene::Logins);
}

#[test]
fn accepted_login_is_needed() {
    needed(Check::AcceptedLogin, Scene::Logins);
}

#[test]
fn dead_login_exchange_is_needed() {
    needed(Check::DeadLoginExchange, Scene::FewLoginExchanges);
}

#[test]
fn dead_exchange_is_needed() {
    needed(Check::DeadExchange, Scene::Probes);
}

#[test]
fn addresses_are_needed() {
    needed(Check::Addresses, Scene::Flooded);
}

#[test]
fn handle_is_needed() {
    needed(Check::Handle, Scene::Successive);
}

#[test]
fn peer_is_covered_by_dead_handle() {
    covered(Check::Peer, Check::DeadHandle, Scene::OtherPeer);
}

#[test]
fn older_message_is_needed() {
    for level in [UD, RD, RR] {
        needed(Check::OlderMessage, Scene::Repeated(level));
    }
}

#[test]
fn message_window_is_covered_by_dead_handle() {
    covered(
        Check::MessageWindow,
        Check::DeadHandle,
        Scene::AlikeHandlesFarMessages,
    );
}

#[test]
fn open_message_is_needed() {
    needed(Check::OpenMessage, Scene::SameIdentity);
}

#[test]
fn open_exchange_is_covered_by_open_message() {
    for level in [UD, RD, RR] {
        covered(
            Check::OpenExchange,
            Check::OpenMessage,
            Scene::Repeated(level),
        );
    }
    holds_without(&[Check::OpenExchange], Scene::SameIdentity);
}

#[test]
fn sequence_count_is_covered_by_relative_offset() {
    for level in [UD, RD, RR] {
        covered(
            Check::SequenceCount,
            Check::RelativeOffset,
            Scene::Repeated(level),
        );
    }
}

#[test]
fn relative_offset_is_needed() {
    for level in [RD, RR] {
        needed(Check::RelativeOffset, Scene::Recovering(level));
    }
}

#[test]
fn placed_ahead_is_needed() {
    for level in [RD, RR] {
        needed(Check::PlacedAhead, Scene::Recovering(level));
    }
}

#[test]
fn answered_message_is_needed() {
    needed(Check::AnsweredMessage, Scene::FewExchanges);
}

#[test]
fn answered_exchange_is_covered_by_answered_message() {
    covered(
        Check::AnsweredExchange,
        Check::AnsweredMessage,
        Scene::Repeated(RR),
    );
    holds_without(&[Check::AnsweredExchange], Scene::FewExchanges);
}

#[test]
fn older_acknowledgement_is_needed() {
    for level in [RD, RR] {
        needed(Check::OlderAcknowledgement, Scene::Recovering(level));
    }
}

#[test]
fn acknowledged_message_is_covered_by_dead_handle() {
    covered(
        Check::AcknowledgedMessage,
        Check::DeadHandle,
        Scene::AlikeHandlesRecovering,
    );
    for level in [RD, RR] {
        holds_without(&[Check::AcknowledgedMessage], Scene::Recovering(level));
    }
}

#[test]
fn dead_handle_is_needed() {
    needed(Check::DeadHandle, Scene::AlikeHandles);
}

#[test]
fn known_request_is_needed() {
    needed(Check::KnownRequest, Scene::Requests);
}

#[test]
fn dead_request_is_needed() {
    needed(Check::DeadRequest, Scene::Requests);
}

#[test]
fn connection_id_is_needed() {
    needed(Check::ConnectionId, Scene::Requests);
}

#[test]
fn connection_peer_is_needed() {
    needed(Check::ConnectionPeer, Scene::AlikeRequests);
}

#[test]
fn connection_handle_is_covered_by_connection_id() {
    holds_without(&[Check::ConnectionHandle], Scene::Requests);
    holds_without(&[Check::ConnectionHandle], Scene::AlikeRequests);
    finds_without(
        &[Check::ConnectionHandle, Check::ConnectionId],
        Scene::Requests,
    );
}
