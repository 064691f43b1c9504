//! Every state of every machine against every event. A `.` is [`Unexpected`], which leaves
//! the state as it is.
//!
//! [`Unexpected`]: super::ActiveAction::Unexpected

use std::fmt::Debug;
use std::format;
use std::string::{String, ToString};

use super::{
    ActiveAction, ActiveEvent, ActiveState, Failure, PassiveAction, PassiveEvent, PassiveState,
    PeerAction, PeerEvent, PeerName, PeerState, Standing, standing,
};
use crate::Discriminator;

const ACTIVE: &str = "\
Disconnected
    Request                   Connecting: SetUpTcp
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Disconnected: None
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   .
    Disconnect                .
Connecting
    Request                   .
    TcpFailed                 Disconnected: Failed(Tcp)
    TcpNotYet                 Connecting: SetUpTcp
    TcpEstablished            PendingAccept: SendRequest
    TcpClosed                 Disconnected: Failed(Tcp)
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   Disconnected: Failed(Timeout)
    Disconnect                Disconnected: CloseTcp
PendingAccept
    Request                   .
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Connecting: SetUpTcp
    Accept                    Connected: Connected
    Reject                    Disconnected: Failed(Rejected)
    Challenge                 PendingAccept: AnswerChallenge
    NoMatch                   Disconnected: Failed(NoMatch)
    Timeout                   Disconnected: Failed(Timeout)
    Disconnect                Disconnected: CloseTcp
Connected
    Request                   .
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Disconnected: CloseTcp
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   .
    Disconnect                Disconnected: CloseTcp
";

const PASSIVE: &str = "\
Incoming
    Request                   Matching: Match
    Unproven                  Challenged: SendChallenge
    Disproved                 Disconnected: SendRejectAndClose
    NoMatch                   .
    Match                     .
    Accept                    .
    Reject                    .
    Timeout                   Disconnected: CloseTcp
    TcpClosed                 Disconnected: CloseTcp
    Disconnect                .
Challenged
    Request                   Matching: Match
    Unproven                  .
    Disproved                 Disconnected: SendRejectAndClose
    NoMatch                   .
    Match                     .
    Accept                    .
    Reject                    .
    Timeout                   Disconnected: CloseTcp
    TcpClosed                 Disconnected: CloseTcp
    Disconnect                .
Matching
    Request                   .
    Unproven                  .
    Disproved                 .
    NoMatch                   Disconnected: SendNoMatchAndClose
    Match                     PendingAccept: Indicate
    Accept                    .
    Reject                    .
    Timeout                   .
    TcpClosed                 Disconnected: CloseTcp
    Disconnect                .
PendingAccept
    Request                   .
    Unproven                  .
    Disproved                 .
    NoMatch                   .
    Match                     .
    Accept                    Connected: SendAccept
    Reject                    Disconnected: SendRejectAndClose
    Timeout                   .
    TcpClosed                 Disconnected: CloseTcp
    Disconnect                .
Connected
    Request                   .
    Unproven                  .
    Disproved                 .
    NoMatch                   .
    Match                     .
    Accept                    .
    Reject                    .
    Timeout                   .
    TcpClosed                 Disconnected: CloseTcp
    Disconnect                Disconnected: CloseTcp
Disconnected
    Request                   .
    Unproven                  .
    Disproved                 .
    NoMatch                   .
    Match                     .
    Accept                    .
    Reject                    .
    Timeout                   .
    TcpClosed                 Disconnected: None
    Disconnect                .
";

const PEER: &str = "\
Disconnected
    Request                   Connecting: SetUpTcp
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Disconnected: None
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   .
    Disconnect                .
    Retry                     .
    Crossed(Concede)          .
    Crossed(Stand)            .
Connecting
    Request                   .
    TcpFailed                 Disconnected: Failed(Tcp)
    TcpNotYet                 Waiting: None
    TcpEstablished            PendingAccept: SendRequest
    TcpClosed                 Disconnected: Failed(Tcp)
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   Disconnected: Failed(Timeout)
    Disconnect                Disconnected: CloseTcp
    Retry                     .
    Crossed(Concede)          Connected: AcceptTheirs
    Crossed(Stand)            Connecting: RefuseTheirs
PendingAccept
    Request                   .
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Waiting: CloseTcp
    Accept                    Connected: Connected
    Reject                    Disconnected: Failed(Rejected)
    Challenge                 PendingAccept: AnswerChallenge
    NoMatch                   Waiting: CloseTcp
    Timeout                   Disconnected: Failed(Timeout)
    Disconnect                Disconnected: CloseTcp
    Retry                     .
    Crossed(Concede)          Connected: AcceptTheirs
    Crossed(Stand)            PendingAccept: RefuseTheirs
Waiting
    Request                   .
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Waiting: None
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   Disconnected: Failed(Timeout)
    Disconnect                Disconnected: CloseTcp
    Retry                     Connecting: SetUpTcp
    Crossed(Concede)          Connected: AcceptTheirs
    Crossed(Stand)            Connected: AcceptTheirs
Connected
    Request                   .
    TcpFailed                 .
    TcpNotYet                 .
    TcpEstablished            .
    TcpClosed                 Disconnected: CloseTcp
    Accept                    .
    Reject                    .
    Challenge                 .
    NoMatch                   .
    Timeout                   .
    Disconnect                Disconnected: CloseTcp
    Retry                     .
    Crossed(Concede)          .
    Crossed(Stand)            .
";

/// The whole table of a machine; `.` where the state stays and the action is `unexpected`.
fn table<S, E, A>(states: &[S], events: &[E], on: impl Fn(S, E) -> (S, A), unexpected: A) -> String
where
    S: Copy + Debug + PartialEq,
    E: Copy + Debug,
    A: Copy + Debug + PartialEq,
{
    let mut table = String::new();
    for &state in states {
        table += &format!("{state:?}\n");
        for &event in events {
            let (next, action) = on(state, event);
            let outcome = if action == unexpected {
                assert_eq!(next, state);
                ".".to_string()
            } else {
                format!("{next:?}: {action:?}")
            };
            table += &format!("    {:<26}{outcome}\n", format!("{event:?}"));
        }
    }
    table
}

#[test]
fn every_state_and_event_of_the_active_end() {
    let table = table(
        &ActiveState::ALL,
        &ActiveEvent::ALL,
        ActiveState::on,
        ActiveAction::Unexpected,
    );
    assert!(table == ACTIVE, "{table}");
}

#[test]
fn every_state_and_event_of_the_passive_end() {
    let table = table(
        &PassiveState::ALL,
        &PassiveEvent::ALL,
        PassiveState::on,
        PassiveAction::Unexpected,
    );
    assert!(table == PASSIVE, "{table}");
}

#[test]
fn every_state_and_event_of_a_peer() {
    let table = table(
        &PeerState::ALL,
        &PeerEvent::ALL,
        PeerState::on,
        PeerAction::Unexpected,
    );
    assert!(table == PEER, "{table}");
}

fn name(host: [u8; 4], port: u16) -> PeerName {
    let mut mapped = [0; 16];
    mapped[12..].copy_from_slice(&host);
    PeerName {
        host: mapped,
        port,
        discriminator: Discriminator::default(),
    }
}

#[test]
fn the_lower_address_concedes_and_then_the_lower_port() {
    let low = name([10, 0, 0, 9], 60000);
    let high = name([10, 0, 1, 0], 1);
    let beside = name([10, 0, 1, 0], 2);
    for (ours, theirs) in [(low, high), (high, beside), (low, beside)] {
        assert_eq!(standing(ours, theirs), Standing::Concede);
        assert_eq!(standing(theirs, ours), Standing::Stand);
    }
    assert_eq!(standing(low, low), Standing::Stand);
}

#[test]
fn of_two_peers_that_cross_one_connection_is_left() {
    let asked = PeerState::default().on(PeerEvent::Request).0;
    let asked = asked.on(PeerEvent::TcpEstablished).0;
    let (low, high) = (name([10, 0, 0, 1], 5), name([10, 0, 0, 2], 4));
    // Whichever request comes in first.
    let conceded = asked.on(PeerEvent::Crossed(standing(low, high)));
    assert_eq!(conceded, (PeerState::Connected, PeerAction::AcceptTheirs));
    let stood = asked.on(PeerEvent::Crossed(standing(high, low)));
    assert_eq!(stood, (PeerState::PendingAccept, PeerAction::RefuseTheirs));
    let accepted = stood.0.on(PeerEvent::Accept);
    assert_eq!(accepted, (PeerState::Connected, PeerAction::Connected));
    // The lower one sees the refusal first, and waits for the higher one's request.
    let refused = asked.on(PeerEvent::NoMatch).0;
    let accepted = refused.on(PeerEvent::Crossed(standing(low, high)));
    assert_eq!(accepted, (PeerState::Connected, PeerAction::AcceptTheirs));
}

#[test]
fn failures_read_well() {
    let failures = [
        Failure::Tcp,
        Failure::Rejected,
        Failure::NoMatch,
        Failure::Timeout,
    ];
    let expected = [
        "no TCP connection",
        "rejected",
        "nobody waits for it",
        "timed out",
    ];
    assert_eq!(failures.map(|failure| failure.to_string()), expected);
}
