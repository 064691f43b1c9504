//! Transition tables of the state machines, for every state and event. A `.` is [`Unexpected`], which
//! leaves the state unchanged.
//!
//! [`Unexpected`]: super::InitiatorAction::Unexpected

use std::fmt::Debug;
use std::format;
use std::string::{String, ToString};

use super::{
    Failure, InitiatorAction, InitiatorEvent, InitiatorState, PeerAction, PeerEvent, PeerName,
    PeerState, Precedence, ResponderAction, ResponderEvent, ResponderState, precedence,
};
use crate::Discriminator;

const INITIATOR: &str = "\
Disconnected
    Request                         Connecting: SetUpTcp
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Disconnected: None
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         .
    Disconnect                      .
Connecting
    Request                         .
    TcpFailed                       Disconnected: Failed(Tcp)
    TcpNotYet                       Connecting: SetUpTcp
    TcpEstablished                  PendingAccept: SendRequest
    TcpClosed                       Disconnected: Failed(Tcp)
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         Disconnected: Failed(Timeout)
    Disconnect                      Disconnected: CloseTcp
PendingAccept
    Request                         .
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Connecting: SetUpTcp
    Accept                          Connected: Connected
    Reject                          Disconnected: Failed(Rejected)
    Challenge                       PendingAccept: AnswerChallenge
    NoMatch                         Disconnected: Failed(NoMatch)
    Timeout                         Disconnected: Failed(Timeout)
    Disconnect                      Disconnected: CloseTcp
Connected
    Request                         .
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Disconnected: CloseTcp
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         .
    Disconnect                      Disconnected: CloseTcp
";

const RESPONDER: &str = "\
Incoming
    Request                         Matching: Match
    ProofRequired                   Challenged: SendChallenge
    ProofFailed                     Disconnected: SendRejectAndClose
    NoMatch                         .
    Match                           .
    Accept                          .
    Reject                          .
    Timeout                         Disconnected: CloseTcp
    TcpClosed                       Disconnected: CloseTcp
    Disconnect                      .
Challenged
    Request                         Matching: Match
    ProofRequired                   .
    ProofFailed                     Disconnected: SendRejectAndClose
    NoMatch                         .
    Match                           .
    Accept                          .
    Reject                          .
    Timeout                         Disconnected: CloseTcp
    TcpClosed                       Disconnected: CloseTcp
    Disconnect                      .
Matching
    Request                         .
    ProofRequired                   .
    ProofFailed                     .
    NoMatch                         Disconnected: SendNoMatchAndClose
    Match                           PendingAccept: Indicate
    Accept                          .
    Reject                          .
    Timeout                         .
    TcpClosed                       Disconnected: CloseTcp
    Disconnect                      .
PendingAccept
    Request                         .
    ProofRequired                   .
    ProofFailed                     .
    NoMatch                         .
    Match                           .
    Accept                          Connected: SendAccept
    Reject                          Disconnected: SendRejectAndClose
    Timeout                         .
    TcpClosed                       Disconnected: CloseTcp
    Disconnect                      .
Connected
    Request                         .
    ProofRequired                   .
    ProofFailed                     .
    NoMatch                         .
    Match                           .
    Accept                          .
    Reject                          .
    Timeout                         .
    TcpClosed                       Disconnected: CloseTcp
    Disconnect                      Disconnected: CloseTcp
Disconnected
    Request                         .
    ProofRequired                   .
    ProofFailed                     .
    NoMatch                         .
    Match                           .
    Accept                          .
    Reject                          .
    Timeout                         .
    TcpClosed                       Disconnected: None
    Disconnect                      .
";

const PEER: &str = "\
Disconnected
    Request                         Connecting: SetUpTcp
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Disconnected: None
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         .
    Disconnect                      .
    Retry                           .
    SimultaneousOpen(YieldToPeer)   .
    SimultaneousOpen(KeepOwn)       .
Connecting
    Request                         .
    TcpFailed                       Disconnected: Failed(Tcp)
    TcpNotYet                       Waiting: None
    TcpEstablished                  PendingAccept: SendRequest
    TcpClosed                       Disconnected: Failed(Tcp)
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         Disconnected: Failed(Timeout)
    Disconnect                      Disconnected: CloseTcp
    Retry                           .
    SimultaneousOpen(YieldToPeer)   Connected: AcceptTheirs
    SimultaneousOpen(KeepOwn)       Connecting: RefuseTheirs
PendingAccept
    Request                         .
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Waiting: CloseTcp
    Accept                          Connected: Connected
    Reject                          Disconnected: Failed(Rejected)
    Challenge                       PendingAccept: AnswerChallenge
    NoMatch                         Waiting: CloseTcp
    Timeout                         Disconnected: Failed(Timeout)
    Disconnect                      Disconnected: CloseTcp
    Retry                           .
    SimultaneousOpen(YieldToPeer)   Connected: AcceptTheirs
    SimultaneousOpen(KeepOwn)       PendingAccept: RefuseTheirs
Waiting
    Request                         .
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Waiting: None
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         Disconnected: Failed(Timeout)
    Disconnect                      Disconnected: CloseTcp
    Retry                           Connecting: SetUpTcp
    SimultaneousOpen(YieldToPeer)   Connected: AcceptTheirs
    SimultaneousOpen(KeepOwn)       Connected: AcceptTheirs
Connected
    Request                         .
    TcpFailed                       .
    TcpNotYet                       .
    TcpEstablished                  .
    TcpClosed                       Disconnected: CloseTcp
    Accept                          .
    Reject                          .
    Challenge                       .
    NoMatch                         .
    Timeout                         .
    Disconnect                      Disconnected: CloseTcp
    Retry                           .
    SimultaneousOpen(YieldToPeer)   .
    SimultaneousOpen(KeepOwn)       .
";

/// Returns the transition table of a machine; `.` where the state stays and the action is `unexpected`.
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
            table += &format!("    {:<32}{outcome}\n", format!("{event:?}"));
        }
    }
    table
}

#[test]
fn initiator_transitions_match_table() {
    let table = table(
        &InitiatorState::ALL,
        &InitiatorEvent::ALL,
        InitiatorState::on,
        InitiatorAction::Unexpected,
    );
    assert!(table == INITIATOR, "{table}");
}

#[test]
fn responder_transitions_match_table() {
    let table = table(
        &ResponderState::ALL,
        &ResponderEvent::ALL,
        ResponderState::on,
        ResponderAction::Unexpected,
    );
    assert!(table == RESPONDER, "{table}");
}

#[test]
fn peer_transitions_match_table() {
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
fn precedence_lower_address_then_lower_port_yields() {
    let low = name([10, 0, 0, 9], 60000);
    let high = name([10, 0, 1, 0], 1);
    let beside = name([10, 0, 1, 0], 2);
    for (ours, theirs) in [(low, high), (high, beside), (low, beside)] {
        assert_eq!(precedence(ours, theirs), Precedence::YieldToPeer);
        assert_eq!(precedence(theirs, ours), Precedence::KeepOwn);
    }
    assert_eq!(precedence(low, low), Precedence::KeepOwn);
}

#[test]
fn simultaneous_open_leaves_one_connection() {
    let requested = PeerState::default().on(PeerEvent::Request).0;
    let requested = requested.on(PeerEvent::TcpEstablished).0;
    let (low, high) = (name([10, 0, 0, 1], 5), name([10, 0, 0, 2], 4));
    // For either order of the two requests.
    let yielded = requested.on(PeerEvent::SimultaneousOpen(precedence(low, high)));
    assert_eq!(yielded, (PeerState::Connected, PeerAction::AcceptTheirs));
    let kept = requested.on(PeerEvent::SimultaneousOpen(precedence(high, low)));
    assert_eq!(kept, (PeerState::PendingAccept, PeerAction::RefuseTheirs));
    let accepted = kept.0.on(PeerEvent::Accept);
    assert_eq!(accepted, (PeerState::Connected, PeerAction::Connected));
    // The lower peer receives the No Match first, and waits for the higher peer's request.
    let refused = requested.on(PeerEvent::NoMatch).0;
    let accepted = refused.on(PeerEvent::SimultaneousOpen(precedence(low, high)));
    assert_eq!(accepted, (PeerState::Connected, PeerAction::AcceptTheirs));
}

#[test]
fn failure_display_texts() {
    let failures = [
        Failure::Tcp,
        Failure::Rejected,
        Failure::NoMatch,
        Failure::Timeout,
    ];
    let expected = ["no TCP connection", "rejected", "no listener", "timed out"];
    assert_eq!(failures.map(|failure| failure.to_string()), expected);
}
