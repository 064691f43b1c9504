//! The machines of connection establishment: any events in any order.
//!
//! An event makes sense or not by what is the case around the machine (a TCP connection, a
//! consumer that waits), which [`World`] knows and the machine has to have right. One that
//! makes no sense changes nothing; after every other one, state and world say the same.

use vitcp_lite::machine::{
    ActiveAction, ActiveEvent, ActiveState, Failure, PassiveAction, PassiveEvent, PassiveState,
    PeerAction, PeerEvent, PeerState, Standing,
};

use crate::input::Input;
use crate::peers;
use crate::world::{Tcp, World};

/// Events for one machine, or for two peers and the network between them.
///
/// # Panics
/// If a machine does what it cannot do, or forgets to do what it must.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => active(input),
        1 => passive(input),
        2 => peer(input),
        _ => peers::check(input),
    }
}

fn chosen<T: Copy>(input: &mut Input<'_>, all: &[T]) -> T {
    all[usize::from(input.byte()) % all.len()]
}

fn active(mut input: Input<'_>) {
    let (mut state, mut world) = (ActiveState::default(), World::default());
    while !input.is_empty() {
        let event = chosen(&mut input, &ActiveEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let makes_sense = active_makes_sense(&world, event);
        assert_eq!(
            action != ActiveAction::Unexpected,
            makes_sense,
            "{before:?} {event:?}"
        );
        if makes_sense {
            active_happens(&mut world, event);
            active_does(&mut world, event, action);
        } else {
            assert_eq!(state, before);
        }
        let told = match state {
            ActiveState::Disconnected => (None, false, false),
            ActiveState::Connecting => (Some(Tcp::SettingUp), true, false),
            ActiveState::PendingAccept => (Some(Tcp::Asked), true, false),
            ActiveState::Connected => (Some(Tcp::Asked), false, true),
        };
        let is = (world.tcp, world.waiting, world.connected);
        assert_eq!(is, told, "{before:?} {event:?}");
    }
}

fn active_makes_sense(world: &World, event: ActiveEvent) -> bool {
    match event {
        ActiveEvent::Request => *world == World::default(),
        ActiveEvent::TcpFailed | ActiveEvent::TcpNotYet | ActiveEvent::TcpEstablished => {
            world.tcp == Some(Tcp::SettingUp)
        }
        ActiveEvent::TcpClosed => true,
        ActiveEvent::Accept
        | ActiveEvent::Reject
        | ActiveEvent::Challenge
        | ActiveEvent::NoMatch => world.is_asked(),
        ActiveEvent::Timeout => world.waiting,
        ActiveEvent::Disconnect => world.waiting || world.connected,
    }
}

fn active_happens(world: &mut World, event: ActiveEvent) {
    match event {
        ActiveEvent::Request => world.waiting = true,
        ActiveEvent::TcpEstablished => world.tcp = Some(Tcp::Established),
        ActiveEvent::TcpFailed | ActiveEvent::TcpNotYet | ActiveEvent::TcpClosed => {
            world.lose_tcp()
        }
        ActiveEvent::Disconnect => world.give_up(),
        ActiveEvent::Accept
        | ActiveEvent::Reject
        | ActiveEvent::Challenge
        | ActiveEvent::NoMatch
        | ActiveEvent::Timeout => {}
    }
}

fn active_does(world: &mut World, event: ActiveEvent, action: ActiveAction) {
    match action {
        ActiveAction::None => {}
        ActiveAction::SetUpTcp => world.set_up(),
        ActiveAction::SendRequest => world.send_request(),
        ActiveAction::AnswerChallenge => {
            assert_eq!(event, ActiveEvent::Challenge);
            world.ask_again();
        }
        ActiveAction::CloseTcp => {
            assert!(!world.waiting, "a request is forgotten");
            world.close();
        }
        ActiveAction::Connected => {
            assert_eq!(event, ActiveEvent::Accept);
            world.tell_connected();
        }
        ActiveAction::Failed(why) => {
            let cause = match why {
                Failure::Tcp => [ActiveEvent::TcpFailed, ActiveEvent::TcpClosed],
                Failure::Rejected => [ActiveEvent::Reject; 2],
                Failure::NoMatch => [ActiveEvent::NoMatch; 2],
                Failure::Timeout => [ActiveEvent::Timeout; 2],
            };
            assert!(cause.contains(&event), "{event:?} is told as {why:?}");
            world.tell_failed();
        }
        ActiveAction::Unexpected => unreachable!("it makes sense"),
    }
}

/// What an incoming TCP connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Request,
    /// The next request, which answers a challenge.
    Proof,
    Match,
    Answer,
    Nothing,
}

fn passive(mut input: Input<'_>) {
    let mut state = PassiveState::default();
    let (mut is_open, mut wants) = (true, Wants::Request);
    while !input.is_empty() {
        let event = chosen(&mut input, &PassiveEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let makes_sense = match event {
            PassiveEvent::TcpClosed => true,
            _ if !is_open => false,
            PassiveEvent::Request | PassiveEvent::Disproved | PassiveEvent::Timeout => {
                matches!(wants, Wants::Request | Wants::Proof)
            }
            PassiveEvent::Unproven => wants == Wants::Request,
            PassiveEvent::NoMatch | PassiveEvent::Match => wants == Wants::Match,
            PassiveEvent::Accept | PassiveEvent::Reject => wants == Wants::Answer,
            PassiveEvent::Disconnect => wants == Wants::Nothing,
        };
        let done = match (event, is_open) {
            _ if !makes_sense => PassiveAction::Unexpected,
            (PassiveEvent::TcpClosed, false) => PassiveAction::None,
            (PassiveEvent::Request, _) => PassiveAction::Match,
            (PassiveEvent::Unproven, _) => PassiveAction::SendChallenge,
            (PassiveEvent::Match, _) => PassiveAction::Indicate,
            (PassiveEvent::NoMatch, _) => PassiveAction::SendNoMatchAndClose,
            (PassiveEvent::Accept, _) => PassiveAction::SendAccept,
            (PassiveEvent::Reject | PassiveEvent::Disproved, _) => {
                PassiveAction::SendRejectAndClose
            }
            (PassiveEvent::Timeout | PassiveEvent::TcpClosed | PassiveEvent::Disconnect, _) => {
                PassiveAction::CloseTcp
            }
        };
        assert_eq!(action, done, "{before:?} {event:?}");
        wants = match action {
            PassiveAction::SendChallenge => Wants::Proof,
            PassiveAction::Match => Wants::Match,
            PassiveAction::Indicate => Wants::Answer,
            PassiveAction::SendAccept => Wants::Nothing,
            _ => wants,
        };
        is_open &= matches!(
            action,
            PassiveAction::Unexpected
                | PassiveAction::SendChallenge
                | PassiveAction::Match
                | PassiveAction::Indicate
                | PassiveAction::SendAccept
        );
        let expected = match wants {
            _ if !is_open => PassiveState::Disconnected,
            Wants::Request => PassiveState::Incoming,
            Wants::Proof => PassiveState::Challenged,
            Wants::Match => PassiveState::Matching,
            Wants::Answer => PassiveState::PendingAccept,
            Wants::Nothing => PassiveState::Connected,
        };
        assert_eq!(state, expected, "{before:?} {event:?}");
    }
}

fn peer(mut input: Input<'_>) {
    let (mut state, mut world) = (PeerState::default(), World::default());
    while !input.is_empty() {
        let event = chosen(&mut input, &PeerEvent::ALL);
        let before = state;
        let (next, action) = state.on(event);
        state = next;
        let makes_sense = peer_makes_sense(&world, event);
        assert_eq!(
            action != PeerAction::Unexpected,
            makes_sense,
            "{before:?} {event:?}"
        );
        if makes_sense {
            peer_happens(&mut world, event);
            peer_does(&mut world, event, action);
        } else {
            assert_eq!(state, before);
        }
        let told = match state {
            PeerState::Disconnected => (None, false, false),
            PeerState::Connecting => (Some(Tcp::SettingUp), true, false),
            PeerState::PendingAccept => (Some(Tcp::Asked), true, false),
            PeerState::Waiting => (None, true, false),
            PeerState::Connected => (Some(Tcp::Asked), false, true),
        };
        let is = (world.tcp, world.waiting, world.connected);
        assert_eq!(is, told, "{before:?} {event:?}");
    }
}

fn peer_makes_sense(world: &World, event: PeerEvent) -> bool {
    match event {
        PeerEvent::Request => *world == World::default(),
        PeerEvent::TcpFailed | PeerEvent::TcpNotYet | PeerEvent::TcpEstablished => {
            world.tcp == Some(Tcp::SettingUp)
        }
        PeerEvent::TcpClosed => true,
        PeerEvent::Accept | PeerEvent::Reject | PeerEvent::Challenge | PeerEvent::NoMatch => {
            world.is_asked()
        }
        PeerEvent::Timeout | PeerEvent::Crossed(_) => world.waiting,
        PeerEvent::Disconnect => world.waiting || world.connected,
        PeerEvent::Retry => world.waiting && world.tcp.is_none(),
    }
}

fn peer_happens(world: &mut World, event: PeerEvent) {
    match event {
        PeerEvent::Request => world.waiting = true,
        PeerEvent::TcpEstablished => world.tcp = Some(Tcp::Established),
        PeerEvent::TcpFailed | PeerEvent::TcpNotYet | PeerEvent::TcpClosed => world.lose_tcp(),
        PeerEvent::Disconnect => world.give_up(),
        PeerEvent::Accept
        | PeerEvent::Reject
        | PeerEvent::Challenge
        | PeerEvent::NoMatch
        | PeerEvent::Timeout
        | PeerEvent::Retry
        | PeerEvent::Crossed(_) => {}
    }
}

fn peer_does(world: &mut World, event: PeerEvent, action: PeerAction) {
    match action {
        PeerAction::None => {}
        PeerAction::SetUpTcp => world.set_up(),
        PeerAction::SendRequest => world.send_request(),
        PeerAction::AnswerChallenge => {
            assert_eq!(event, PeerEvent::Challenge);
            world.ask_again();
        }
        PeerAction::CloseTcp => world.close(),
        PeerAction::Connected => {
            assert_eq!(event, PeerEvent::Accept);
            world.tell_connected();
        }
        PeerAction::Failed(why) => {
            let cause = match why {
                Failure::Tcp => [PeerEvent::TcpFailed, PeerEvent::TcpClosed],
                Failure::Rejected => [PeerEvent::Reject; 2],
                Failure::NoMatch => [PeerEvent::NoMatch; 2],
                Failure::Timeout => [PeerEvent::Timeout; 2],
            };
            assert!(cause.contains(&event), "{event:?} is told as {why:?}");
            world.tell_failed();
        }
        PeerAction::AcceptTheirs => {
            let stands = event == PeerEvent::Crossed(Standing::Stand) && world.tcp.is_some();
            assert!(matches!(event, PeerEvent::Crossed(_)) && !stands);
            // Ours gives way to theirs, on which the request was theirs.
            world.tcp = Some(Tcp::Asked);
            world.tell_connected();
        }
        PeerAction::RefuseTheirs => {
            assert_eq!(event, PeerEvent::Crossed(Standing::Stand));
            assert!(world.tcp.is_some(), "neither of the two is left");
        }
        PeerAction::Unexpected => unreachable!("it makes sense"),
    }
}
