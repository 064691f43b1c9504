//! Host addresses to N_Ports: asked, answered, believed, forgotten.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    LARGER_NAME, MS, OURS, S, Stage, THEIR_NAME, THEIRS, config, farp, farp_request, host,
    neighbour,
};
use crate::login::{Carrier, LoginConfig, LoginCounter, LoginEvent, PortState, TooManyHosts};

fn resolved(host: HostAddress, id: Option<NPortId>) -> LoginEvent {
    LoginEvent::Resolved { host, id }
}

/// The reply of neighbour `number` to a question of ours for `wanted`.
fn answer(stage: &mut Stage, number: u8, wanted: HostAddress) {
    let peer = neighbour(number);
    let reply = Farp {
        match_code: FarpMatch::HOST,
        action: FarpAction::REPLY,
        requester: OURS,
        responder: peer.id,
        requester_port_name: LARGER_NAME,
        responder_port_name: peer.port_name,
        requester_host: host(1),
        responder_host: wanted,
        ..Farp::default()
    };
    send(stage, number, &farp(ElsCommand::FarpReply, &reply));
}

fn send(stage: &mut Stage, number: u8, payload: &[u8]) {
    let id = neighbour(number).id;
    let mut header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x55);
    header.s_id = id;
    let source = MacAddress::vn2vn(id);
    let now_ns = stage.now_ns;
    stage
        .machine
        .handle_els(now_ns, Carrier::Fcoe, source, &header, payload);
}

fn asking(wanted: HostAddress) -> Stage {
    let mut stage = Stage::new(true);
    stage.machine.resolve(0, wanted).expect("room");
    stage.drain();
    stage
}

#[test]
fn a_question_goes_to_all_vn_ports() {
    let stage = asking(host(2));
    let [ask] = stage.sent[..] else {
        panic!("one frame");
    };
    assert_eq!(
        (ask.carrier, ask.destination),
        (Carrier::Fcoe, MacAddress::ALL_VN2VN)
    );
    assert_eq!((ask.fc.s_id, ask.fc.d_id), (OURS, NPortId::BROADCAST));
    let expected = Farp {
        match_code: FarpMatch::HOST,
        action: FarpAction::REPLY,
        requester: OURS,
        requester_port_name: LARGER_NAME,
        requester_node_name: 0x1000_0000_0000_0001,
        requester_host: host(1),
        responder_host: host(2),
        ..Farp::default()
    };
    assert_eq!(
        Farp::parse(ElsCommand::FarpRequest, ask.payload()),
        Ok(expected)
    );
}

#[test]
fn every_port_that_answers_is_told_and_then_the_end() {
    let mut stage = asking(host(2));
    stage.machine.neighbour_found(0, &neighbour(3));
    for number in [2, 3, 2] {
        answer(&mut stage, number, host(2));
    }
    stage.drain();
    let three = NPortId::from_bytes([0, 0, 3]);
    let both = [
        resolved(host(2), Some(THEIRS)),
        resolved(host(2), Some(three)),
    ];
    assert_eq!(stage.events, both);
    assert_eq!(stage.machine.resolved(host(2)), [THEIRS, three]);
    stage.advance(500 * MS);
    assert_eq!(stage.events[2..], [resolved(host(2), None)]);
    // Asked for again, they are told again, and asked again: there may be more of them.
    stage.clear();
    stage.machine.resolve(stage.now_ns, host(2)).expect("room");
    stage.drain();
    assert_eq!(stage.events, both);
    assert_eq!(stage.names(), ["FARP-REQ"]);
    stage.advance(500 * MS);
    assert_eq!(stage.events[2..], [resolved(host(2), None)]);
    assert_eq!(stage.sent.len(), 1);
    // After their lifetime they are forgotten.
    stage.advance(30 * S);
    assert_eq!(stage.machine.resolved(host(2)), []);
    assert_eq!(stage.machine.poll_timeout(), None);
}

#[test]
fn an_unanswered_question_is_asked_four_times() {
    let mut stage = asking(host(9));
    stage.advance(2 * S - 1);
    assert_eq!(stage.names(), ["FARP-REQ"; 4]);
    assert_eq!(stage.events, []);
    stage.advance(1);
    assert_eq!(stage.events, [resolved(host(9), None)]);
    assert_eq!(stage.count(LoginCounter::Unresolved), 1);
    assert_eq!(stage.machine.poll_timeout(), None);
}

#[test]
fn a_lost_question_is_repaired_by_its_retry() {
    let mut stage = asking(host(2));
    stage.advance(600 * MS);
    answer(&mut stage, 2, host(2));
    stage.drain();
    stage.advance(400 * MS);
    let expected = [resolved(host(2), Some(THEIRS)), resolved(host(2), None)];
    assert_eq!(stage.events, expected);
    assert_eq!(stage.names(), ["FARP-REQ"; 2]);
}

#[test]
fn a_question_waits_for_our_id() {
    let mut stage = Stage::new(true);
    stage.machine.set_id(0, None);
    stage.machine.resolve(0, host(2)).expect("room");
    stage.machine.resolve(0, host(1)).expect("room");
    stage.drain();
    assert_eq!(stage.machine.poll_timeout(), None);
    stage.now_ns = 60 * S;
    stage.machine.set_id(60 * S, Some(OURS));
    stage.drain();
    assert_eq!(stage.names(), ["FARP-REQ"; 2]);
    // Our own host has our own port, too.
    assert_eq!(stage.events, [resolved(host(1), Some(OURS))]);
    stage.machine.resolve(stage.now_ns, host(1)).expect("room");
    stage.drain();
    assert_eq!(stage.events, [resolved(host(1), Some(OURS)); 2]);
}

#[test]
fn a_port_that_goes_is_no_port_of_its_host() {
    let mut stage = asking(host(2));
    answer(&mut stage, 2, host(2));
    stage.machine.neighbour_gone(0, THEIR_NAME);
    stage.drain();
    assert_eq!(stage.machine.resolved(host(2)), []);
    assert_eq!(stage.events, []);
    stage.advance(2 * S);
    assert_eq!(stage.events, [resolved(host(2), None)]);
}

#[test]
fn who_answers_after_another_one_went_is_told() {
    let mut stage = asking(host(2));
    for number in 3..5 {
        stage.machine.neighbour_found(0, &neighbour(number));
    }
    for number in 2..4 {
        answer(&mut stage, number, host(2));
    }
    stage.drain();
    stage.clear();
    stage.machine.neighbour_gone(0, THEIR_NAME);
    answer(&mut stage, 4, host(2));
    stage.drain();
    assert_eq!(stage.events, [resolved(host(2), Some(neighbour(4).id))]);
    // Of an answer that was not told and has gone nothing is told.
    stage.machine.neighbour_found(0, &neighbour(5));
    answer(&mut stage, 5, host(2));
    stage.machine.neighbour_gone(0, neighbour(5).port_name);
    stage.clear();
    stage.drain();
    assert_eq!(stage.events, []);
}

#[test]
fn with_our_id_all_answers_are_forgotten() {
    let mut stage = asking(host(2));
    answer(&mut stage, 2, host(2));
    stage.advance(500 * MS);
    assert_eq!(stage.machine.resolved(host(2)), [THEIRS]);
    stage.clear();
    stage.machine.set_id(stage.now_ns, None);
    stage.drain();
    assert_eq!(stage.machine.resolved(host(2)), []);
    assert_eq!(stage.machine.poll_timeout(), None);
    assert_eq!(stage.events, []);
}

#[test]
fn only_neighbours_are_believed_and_only_what_was_asked_for() {
    let mut stage = asking(host(2));
    answer(&mut stage, 2, host(3));
    assert_eq!(stage.count(LoginCounter::DropFarpNotAsked), 1);
    answer(&mut stage, 3, host(2));
    assert_eq!(stage.count(LoginCounter::DropFarpStranger), 1);
    let genuine = Farp {
        requester: OURS,
        responder: THEIRS,
        responder_port_name: THEIR_NAME,
        responder_host: host(2),
        ..Farp::default()
    };
    let lies = [
        (
            LoginCounter::DropFarpMalformed,
            Farp {
                responder: OURS,
                ..genuine
            },
        ),
        (
            LoginCounter::DropFarpMalformed,
            Farp {
                requester: THEIRS,
                ..genuine
            },
        ),
        (
            LoginCounter::DropFarpStranger,
            Farp {
                responder_port_name: 7,
                ..genuine
            },
        ),
    ];
    for (counter, lie) in lies {
        let before = stage.count(counter);
        send(&mut stage, 2, &farp(ElsCommand::FarpReply, &lie));
        assert_eq!(stage.count(counter), before + 1, "{lie:?}");
    }
    let bytes = farp(ElsCommand::FarpReply, &genuine);
    send(&mut stage, 2, &bytes[..72]);
    assert_eq!(stage.count(LoginCounter::DropFarpMalformed), 3);
    assert_eq!(stage.machine.resolved(host(2)), []);
    send(&mut stage, 2, &bytes);
    assert_eq!(stage.machine.resolved(host(2)), [THEIRS]);
}

#[test]
fn the_tables_are_bounded() {
    let mut stage = Stage::empty(LoginConfig {
        max_hosts: 2,
        max_ports_per_host: 2,
        ..config(true)
    });
    for number in 2..5 {
        stage.machine.neighbour_found(0, &neighbour(number));
    }
    stage.machine.resolve(0, host(2)).expect("room");
    stage.machine.resolve(0, host(3)).expect("room");
    assert_eq!(stage.machine.resolve(0, host(4)), Err(TooManyHosts));
    for number in 2..5 {
        answer(&mut stage, number, host(2));
    }
    assert_eq!(stage.count(LoginCounter::DropFarpFull), 1);
    assert_eq!(stage.machine.resolved(host(2)).len(), 2);
    // What is merely known makes room, once its end was told.
    stage.now_ns = 500 * MS;
    stage.machine.handle_timeout(500 * MS);
    assert_eq!(stage.machine.resolve(500 * MS, host(4)), Err(TooManyHosts));
    stage.drain();
    stage.machine.resolve(500 * MS, host(4)).expect("room");
    assert_eq!(stage.machine.resolved(host(2)), []);
}

#[test]
fn a_question_for_our_host_is_answered() {
    let mut stage = Stage::new(true);
    let ask = farp_request(host(1));
    let mut header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    header.d_id = NPortId::BROADCAST;
    stage.inject(Carrier::Fcoe, &header, &farp(ElsCommand::FarpRequest, &ask));
    stage.drain();
    let [reply] = stage.sent[..] else {
        panic!("one frame");
    };
    // A request of its own, in an exchange of its own.
    assert_eq!(reply.fc.r_ctl, RCtl::ElsRequest);
    assert!(stage.machine.owns_ox_id(reply.fc.ox_id));
    assert_eq!((reply.fc.s_id, reply.fc.d_id), (OURS, THEIRS));
    assert_eq!(reply.destination, MacAddress::vn2vn(THEIRS));
    let expected = Farp {
        responder: OURS,
        responder_port_name: LARGER_NAME,
        responder_node_name: 0x1000_0000_0000_0001,
        ..ask
    };
    assert_eq!(
        Farp::parse(ElsCommand::FarpReply, reply.payload()),
        Ok(expected)
    );
    assert_eq!(stage.machine.exchanges.open_count(), 0);
}

#[test]
fn every_field_that_is_named_must_be_ours() {
    let (name, node) = (LARGER_NAME, 0x1000_0000_0000_0001);
    for code in 0..=u8::MAX {
        for wrong in 0..8_u8 {
            let mut stage = Stage::new(true);
            let ask = Farp {
                match_code: FarpMatch(code),
                responder_port_name: if wrong & 1 == 0 { name } else { 7 },
                responder_node_name: if wrong & 2 == 0 { node } else { 7 },
                responder_host: host(if wrong & 4 == 0 { 1 } else { 7 }),
                ..farp_request(host(1))
            };
            stage.ask(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &ask));
            stage.drain();
            let valid = (1..=7).contains(&code);
            let meant = valid && code & wrong == 0;
            assert_eq!(stage.sent.len(), usize::from(meant), "{code} {wrong}");
            let malformed = stage.count(LoginCounter::DropFarpMalformed);
            assert_eq!(malformed, u64::from(!valid));
            let other = stage.count(LoginCounter::DropFarpNoMatch);
            assert_eq!(other, u64::from(valid && !meant));
        }
    }
}

#[test]
fn a_question_may_ask_for_a_login_and_for_silence() {
    for (action, sent, state) in [
        (FarpAction(0), &[][..], PortState::Known),
        (FarpAction::LOGIN, &["FIP FLOGI"], PortState::FlogiSent),
        (
            FarpAction(3),
            &["FARP-REPLY", "FIP FLOGI"],
            PortState::FlogiSent,
        ),
    ] {
        let mut stage = Stage::new(true);
        let ask = Farp {
            action,
            ..farp_request(host(1))
        };
        stage.ask(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &ask));
        stage.drain();
        assert_eq!(stage.names(), sent);
        assert_eq!(stage.state(), Some(state));
    }
}

#[test]
fn strangers_are_not_answered() {
    let mut stage = Stage::empty(config(true));
    let ask = farp(ElsCommand::FarpRequest, &farp_request(host(1)));
    stage.ask(Carrier::Fcoe, &ask);
    assert_eq!(stage.count(LoginCounter::DropFarpStranger), 1);
    stage.machine.neighbour_found(0, &neighbour(2));
    let lie = Farp {
        requester: OURS,
        ..farp_request(host(1))
    };
    stage.ask(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &lie));
    assert_eq!(stage.count(LoginCounter::DropFarpMalformed), 1);
    stage.drain();
    assert_eq!(stage.sent.len(), 0);
}
