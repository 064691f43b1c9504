//! Every event in every state of a port, compared with docs/spec/vn2vn-states.txt.
//!
//! The port is number 5 and has, or requests, 00.00.07; from Claim on it knows neighbour 6 with 00.00.06. A cell has
//! the state after the event, the frames sent, the events reported, and the counters of dropped frames.

use std::fmt::Write;

use fcvi_frame::fip::Vn2vnMessage::{
    self, Beacon, ClaimNotification, ClaimResponse, ProbeReply, ProbeRequest,
};

use super::segment::{ALL, MS, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::vn2vn::{Vn2vnCounter, Vn2vnEvent, Vn2vnState};

const STATES: [Vn2vnState; 6] = [
    Vn2vnState::Stopped,
    Vn2vnState::Start,
    Vn2vnState::Probe1,
    Vn2vnState::Probe2,
    Vn2vnState::Claim,
    Vn2vnState::Up,
];

/// Brings a port into a state and discards the frames and events so far. In Up its neighbour is ready.
fn setup(state: Vn2vnState) -> Segment {
    let mut segment = Segment::new(vec![config(5, 7)], 14);
    if state != Vn2vnState::Stopped {
        segment.start(0);
    }
    while segment.state(0) != state {
        segment.advance(MS);
    }
    if matches!(state, Vn2vnState::Claim | Vn2vnState::Up) {
        let neighbour = port(6, id(6));
        let response = frame(neighbour, ClaimResponse(claim(2158)));
        segment.inject(0, &bytes(&response, enode(5), 2158));
        if state == Vn2vnState::Up {
            segment.advance(S);
            segment.inject(0, &bytes(&frame(neighbour, Beacon), ALL, 0));
        }
    }
    segment.take_sent();
    segment.events(0);
    segment
}

type Event = (&'static str, Box<dyn Fn(&mut Segment)>);

fn about(number: u8, low: u16, message: Vn2vnMessage) -> Box<dyn Fn(&mut Segment)> {
    let wire = bytes(&frame(port(number, id(low)), message), ALL, 0);
    Box::new(move |segment| segment.inject(0, &wire))
}

/// The same while the neighbour, if there is one, is logged in.
fn pinned(number: u8, low: u16, message: Vn2vnMessage) -> Box<dyn Fn(&mut Segment)> {
    let inject = about(number, low, message);
    Box::new(move |segment| {
        segment.stations[0].machine.set_pinned(id(6), true);
        inject(segment);
    })
}

fn recorded(number: u8, low: u16, message: Vn2vnMessage) -> Box<dyn Fn(&mut Segment)> {
    let mut frame = frame(port(number, id(low)), message);
    frame.recorded = true;
    let wire = bytes(&frame, ALL, 0);
    Box::new(move |segment| segment.inject(0, &wire))
}

fn padded(number: u8, low: u16) -> Box<dyn Fn(&mut Segment)> {
    let response = frame(port(number, id(low)), ClaimResponse(claim(2158)));
    let wire = bytes(&response, enode(5), 2158);
    Box::new(move |segment| segment.inject(0, &wire))
}

fn events() -> Vec<Event> {
    let claims = ClaimNotification(claim(2158));
    let response = ClaimResponse(claim(2158));
    let deadline = |segment: &mut Segment| {
        let due_ns = segment.stations[0].machine.poll_timeout();
        if let Some(due_ns) = due_ns {
            segment.advance(due_ns.saturating_sub(segment.now_ns));
        }
    };
    vec![
        ("start", Box::new(|segment| segment.start(0))),
        ("stop", Box::new(|segment| segment.stop(0))),
        ("deadline", Box::new(deadline)),
        ("20 s", Box::new(|segment| segment.advance(20 * S))),
        (
            "probe request, our ID, smaller name",
            about(4, 7, ProbeRequest),
        ),
        (
            "probe request, our ID, larger name",
            about(9, 7, ProbeRequest),
        ),
        (
            "probe request, our ID, smaller name, REC",
            recorded(4, 7, ProbeRequest),
        ),
        ("probe request, another ID", about(9, 9, ProbeRequest)),
        ("probe reply, our ID", about(4, 7, ProbeReply)),
        ("probe reply, another ID", about(4, 9, ProbeReply)),
        (
            "claim notification, our ID, smaller name",
            about(4, 7, claims),
        ),
        (
            "claim notification, our ID, larger name",
            about(9, 7, claims),
        ),
        (
            "claim notification, our ID, larger name, REC",
            recorded(9, 7, claims),
        ),
        ("claim notification, another ID", about(9, 9, claims)),
        (
            "claim notification, the neighbour's ID, smaller name",
            about(3, 6, claims),
        ),
        (
            "claim notification, the neighbour's ID, larger name",
            about(9, 6, claims),
        ),
        (
            "claim notification, the neighbour, same ID",
            about(6, 6, claims),
        ),
        (
            "claim notification, the neighbour, another ID",
            about(6, 9, claims),
        ),
        (
            "claim notification, our ID, larger name, neighbour logged in",
            pinned(9, 7, claims),
        ),
        (
            "claim notification, the neighbour's ID, larger name, neighbour logged in",
            pinned(9, 6, claims),
        ),
        (
            "claim notification, the neighbour, another ID, neighbour logged in",
            pinned(6, 9, claims),
        ),
        ("claim response, our ID, larger name", about(9, 7, response)),
        (
            "claim response, another ID, without padding",
            about(9, 9, response),
        ),
        ("claim response, another ID, padded", padded(9, 9)),
        ("beacon, our ID, smaller name", about(4, 7, Beacon)),
        ("beacon, our ID, larger name", about(9, 7, Beacon)),
        ("beacon, the neighbour", about(6, 6, Beacon)),
        ("beacon, an unknown port", about(9, 9, Beacon)),
        ("beacon, an unknown port, REC", recorded(9, 9, Beacon)),
    ]
}

/// Formats an event.
fn describe_event(event: Vn2vnEvent) -> String {
    let number = |port_name: u64| (port_name >> 32) as u8;
    match event {
        Vn2vnEvent::Claimed(_) => "CLAIMED".to_string(),
        Vn2vnEvent::Up(_) => "UP".to_string(),
        Vn2vnEvent::Lost => "LOST".to_string(),
        Vn2vnEvent::NeighbourFound(n) => format!("FOUND {}", number(n.port_name)),
        Vn2vnEvent::NeighbourReady(n) => format!("READY {}", number(n.port_name)),
        Vn2vnEvent::NeighbourDoubted { port_name } => format!("DOUBTED {}", number(port_name)),
        Vn2vnEvent::NeighbourGone {
            port_name, reason, ..
        } => format!("GONE {} {reason:?}", number(port_name)),
    }
}

fn cell(state: Vn2vnState, event: &dyn Fn(&mut Segment)) -> String {
    let mut segment = setup(state);
    let before = segment.stations[0].machine.counters().clone();
    event(&mut segment);
    let mut cell = format!("{:?}", segment.state(0));
    for sent in segment.take_sent() {
        let sent = sent.trim_start_matches("0 ");
        write!(cell, "; {sent}").expect("a string");
    }
    for event in segment.events(0) {
        write!(cell, "; {}", describe_event(event)).expect("a string");
    }
    let shown = Vn2vnCounter::ALL.iter().filter(|counter| {
        let is_shown = counter.name().contains("_drop_") || **counter == Vn2vnCounter::Restarts;
        is_shown && segment.count(0, **counter) > before.get(**counter)
    });
    for counter in shown {
        let name = counter.name().trim_start_matches("vn2vn_");
        write!(cell, "; ({name})").expect("a string");
    }
    cell
}

#[test]
fn every_event_in_every_state() {
    let expected = include_str!("../../../../../docs/spec/vn2vn-states.txt");
    let mut found = String::new();
    for (name, event) in events() {
        writeln!(found, "{name}").expect("a string");
        for state in STATES {
            let cell = cell(state, &event);
            writeln!(found, "    {:<9}{cell}", format!("{state:?}")).expect("a string");
        }
    }
    assert!(found == expected, "the whole table:\n{found}");
}
