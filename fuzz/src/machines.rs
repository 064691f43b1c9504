//! The connection state machines: any events in any order.
//!
//! An event is valid or not according to the state of the [`Environment`] (TCP connection, waiting
//! consumer). An invalid event must change nothing; after a valid one, the machine's state must
//! match the environment.

use vitcp_lite::machine::{
    Failure, InitiatorAction, InitiatorEvent, InitiatorState, PeerAction, PeerEvent, PeerState,
    Precedence, ResponderAction, ResponderEvent, ResponderState,
};

use crate::environment::{Environment, Tcp};
use crate::input::Input;
use crate::peers;

/// Checks one machine with any events, or two peers and the network between them.
///
/// # Panics
/// If a machine takes an invalid action, or omits a required one.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => initiator(input),
        1 => responder(input),
        2 => peer(input),
        _ => peers::check(input),
    }
}

fn choose<T: Copy>(input: &mut Input<'_>, all: &[T]) -> T {
    all[usize::from(input.byte()) % all.len()]
}

fn initiator(mut input: Input<'_>) {
    let (mut state, mut environment) = (InitiatorState::default(), Environment::default());
    while !input.is_empty() {
        let event = choose(&mut input, &InitiatorEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let is_valid = is_initiator_event_valid(&environment, event);
        assert_eq!(
            action != InitiatorAction::Unexpected,
            is_valid,
            "{before:?} {event:?}"
        );
        if is_valid {
            apply_initiator_event(&mut environment, event);
            apply_initiator_action(&mut environment, event, action);
        } else {
            assert_eq!(state, before);
        }
        let expected = match state {
            InitiatorState::Disconnected => (None, false, false),
            InitiatorState::Connecting => (Some(Tcp::Connecting), true, false),
            InitiatorState::PendingAccept => (Some(Tcp::RequestSent), true, false),
            InitiatorState::Connected => (Some(Tcp::RequestSent), false, true),
        };
        let actual = (environment.tcp, environment.waiting, environment.connected);
        assert_eq!(actual, expected, "{before:?} {event:?}");
    }
}

fn is_initiator_event_valid(environment: &Environment, event: InitiatorEvent) -> bool {
    match event {
        InitiatorEvent::Request => *environment == Environment::default(),
        InitiatorEvent::TcpFailed | InitiatorEvent::TcpNotYet | InitiatorEvent::TcpEstablished => {
            environment.tcp == Some(Tcp::Connecting)
        }
        InitiatorEvent::TcpClosed => true,
        InitiatorEvent::Accept
        | InitiatorEvent::Reject
        | InitiatorEvent::Challenge
        | InitiatorEvent::NoMatch => environment.is_request_pending(),
        InitiatorEvent::Timeout => environment.waiting,
        InitiatorEvent::Disconnect => environment.waiting || environment.connected,
    }
}

fn apply_initiator_event(environment: &mut Environment, event: InitiatorEvent) {
    match event {
        InitiatorEvent::Request => environment.waiting = true,
        InitiatorEvent::TcpEstablished => environment.tcp = Some(Tcp::Established),
        InitiatorEvent::TcpFailed | InitiatorEvent::TcpNotYet | InitiatorEvent::TcpClosed => {
            environment.lose_tcp()
        }
        InitiatorEvent::Disconnect => environment.disconnect(),
        InitiatorEvent::Accept
        | InitiatorEvent::Reject
        | InitiatorEvent::Challenge
        | InitiatorEvent::NoMatch
        | InitiatorEvent::Timeout => {}
    }
}

fn apply_initiator_action(
    environment: &mut Environment,
    event: InitiatorEvent,
    action: InitiatorAction,
) {
    match action {
        InitiatorAction::None => {}
        InitiatorAction::SetUpTcp => environment.start_tcp(),
        InitiatorAction::SendRequest => environment.send_request(),
        InitiatorAction::AnswerChallenge => {
            assert_eq!(event, InitiatorEvent::Challenge);
            environment.answer_challenge();
        }
        InitiatorAction::CloseTcp => {
            assert!(!environment.waiting, "a pending request is lost");
            environment.close_tcp();
        }
        InitiatorAction::Connected => {
            assert_eq!(event, InitiatorEvent::Accept);
            environment.notify_connected();
        }
        InitiatorAction::Failed(failure) => {
            let cause = match failure {
                Failure::Tcp => [InitiatorEvent::TcpFailed, InitiatorEvent::TcpClosed],
                Failure::Rejected => [InitiatorEvent::Reject; 2],
                Failure::NoMatch => [InitiatorEvent::NoMatch; 2],
                Failure::Timeout => [InitiatorEvent::Timeout; 2],
            };
            assert!(
                cause.contains(&event),
                "{event:?} is reported as {failure:?}"
            );
            environment.notify_failed();
        }
        InitiatorAction::Unexpected => unreachable!("the event is valid"),
    }
}

/// The next event that an incoming TCP connection expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Request,
    /// The next request, which responds to a challenge.
    Proof,
    /// The result of matching.
    Match,
    /// The consumer's decision.
    Decision,
    Nothing,
}

fn responder(mut input: Input<'_>) {
    let mut state = ResponderState::default();
    let (mut is_open, mut expects) = (true, Expects::Request);
    while !input.is_empty() {
        let event = choose(&mut input, &ResponderEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let is_valid = match event {
            ResponderEvent::TcpClosed => true,
            _ if !is_open => false,
            ResponderEvent::Request | ResponderEvent::ProofFailed | ResponderEvent::Timeout => {
                matches!(expects, Expects::Request | Expects::Proof)
            }
            ResponderEvent::ProofRequired => expects == Expects::Request,
            ResponderEvent::NoMatch | ResponderEvent::Match => expects == Expects::Match,
            ResponderEvent::Accept | ResponderEvent::Reject => expects == Expects::Decision,
            ResponderEvent::Disconnect => expects == Expects::Nothing,
        };
        let expected_action = match (event, is_open) {
            _ if !is_valid => ResponderAction::Unexpected,
            (ResponderEvent::TcpClosed, false) => ResponderAction::None,
            (ResponderEvent::Request, _) => ResponderAction::Match,
            (ResponderEvent::ProofRequired, _) => ResponderAction::SendChallenge,
            (ResponderEvent::Match, _) => ResponderAction::Indicate,
            (ResponderEvent::NoMatch, _) => ResponderAction::SendNoMatchAndClose,
            (ResponderEvent::Accept, _) => ResponderAction::SendAccept,
            (ResponderEvent::Reject | ResponderEvent::ProofFailed, _) => {
                ResponderAction::SendRejectAndClose
            }
            (
                ResponderEvent::Timeout | ResponderEvent::TcpClosed | ResponderEvent::Disconnect,
                _,
            ) => ResponderAction::CloseTcp,
        };
        assert_eq!(action, expected_action, "{before:?} {event:?}");
        expects = match action {
            ResponderAction::SendChallenge => Expects::Proof,
            ResponderAction::Match => Expects::Match,
            ResponderAction::Indicate => Expects::Decision,
            ResponderAction::SendAccept => Expects::Nothing,
            _ => expects,
        };
        is_open &= matches!(
            action,
            ResponderAction::Unexpected
                | ResponderAction::SendChallenge
                | ResponderAction::Match
                | ResponderAction::Indicate
                | ResponderAction::SendAccept
        );
        let expected = match expects {
            _ if !is_open => ResponderState::Disconnected,
            Expects::Request => ResponderState::Incoming,
            Expects::Proof => ResponderState::Challenged,
            Expects::Match => ResponderState::Matching,
            Expects::Decision => ResponderState::PendingAccept,
            Expects::Nothing => ResponderState::Connected,
        };
        assert_eq!(state, expected, "{before:?} {event:?}");
    }
}

fn peer(mut input: Input<'_>) {
    let (mut state, mut environment) = (PeerState::default(), Environment::default());
    while !input.is_empty() {
        let event = choose(&mut input, &PeerEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let is_valid = is_peer_event_valid(&environment, event);
        assert_eq!(
            action != PeerAction::Unexpected,
            is_valid,
            "{before:?} {event:?}"
        );
        if is_valid {
            apply_peer_event(&mut environment, event);
            apply_peer_action(&mut environment, event, action);
        } else {
            assert_eq!(state, before);
        }
        let expected = match state {
            PeerState::Disconnected => (None, false, false),
            PeerState::Connecting => (Some(Tcp::Connecting), true, false),
            PeerState::PendingAccept => (Some(Tcp::RequestSent), true, false),
            PeerState::Waiting => (None, true, false),
            PeerState::Connected => (Some(Tcp::RequestSent), false, true),
        };
        let actual = (environment.tcp, environment.waiting, environment.connected);
        assert_eq!(actual, expected, "{before:?} {event:?}");
    }
}

fn is_peer_event_valid(environment: &Environment, event: PeerEvent) -> bool {
    match event {
        PeerEvent::Request => *environment == Environment::default(),
        PeerEvent::TcpFailed | PeerEvent::TcpNotYet | PeerEvent::TcpEstablished => {
            environment.tcp == Some(Tcp::Connecting)
        }
        PeerEvent::TcpClosed => true,
        PeerEvent::Accept | PeerEvent::Reject | PeerEvent::Challenge | PeerEvent::NoMatch => {
            environment.is_request_pending()
        }
        PeerEvent::Timeout | PeerEvent::SimultaneousOpen(_) => environment.waiting,
        PeerEvent::Disconnect => environment.waiting || environment.connected,
        PeerEvent::Retry => environment.waiting && environment.tcp.is_none(),
    }
}

fn apply_peer_event(environment: &mut Environment, event: PeerEvent) {
    match event {
        PeerEvent::Request => environment.waiting = true,
        PeerEvent::TcpEstablished => environment.tcp = Some(Tcp::Established),
        PeerEvent::TcpFailed | PeerEvent::TcpNotYet | PeerEvent::TcpClosed => {
            environment.lose_tcp()
        }
        PeerEvent::Disconnect => environment.disconnect(),
        PeerEvent::Accept
        | PeerEvent::Reject
        | PeerEvent::Challenge
        | PeerEvent::NoMatch
        | PeerEvent::Timeout
        | PeerEvent::Retry
        | PeerEvent::SimultaneousOpen(_) => {}
    }
}

fn apply_peer_action(environment: &mut Environment, event: PeerEvent, action: PeerAction) {
    match action {
        PeerAction::None => {}
        PeerAction::SetUpTcp => environment.start_tcp(),
        PeerAction::SendRequest => environment.send_request(),
        PeerAction::AnswerChallenge => {
            assert_eq!(event, PeerEvent::Challenge);
            environment.answer_challenge();
        }
        PeerAction::CloseTcp => environment.close_tcp(),
        PeerAction::Connected => {
            assert_eq!(event, PeerEvent::Accept);
            environment.notify_connected();
        }
        PeerAction::Failed(failure) => {
            let cause = match failure {
                Failure::Tcp => [PeerEvent::TcpFailed, PeerEvent::TcpClosed],
                Failure::Rejected => [PeerEvent::Reject; 2],
                Failure::NoMatch => [PeerEvent::NoMatch; 2],
                Failure::Timeout => [PeerEvent::Timeout; 2],
            };
            assert!(
                cause.contains(&event),
                "{event:?} is reported as {failure:?}"
            );
            environment.notify_failed();
        }
        PeerAction::AcceptTheirs => {
            let keeps_own = event == PeerEvent::SimultaneousOpen(Precedence::KeepOwn)
                && environment.tcp.is_some();
            assert!(matches!(event, PeerEvent::SimultaneousOpen(_)) && !keeps_own);
            // The peer's connection replaces ours; the peer has sent the request on it.
            environment.tcp = Some(Tcp::RequestSent);
            environment.notify_connected();
        }
        PeerAction::RefuseTheirs => {
            assert_eq!(event, PeerEvent::SimultaneousOpen(Precedence::KeepOwn));
            assert!(environment.tcp.is_some(), "neither connection would remain");
        }
        PeerAction::Unexpected => unreachable!("the event is valid"),
    }
}
