//! FARP: resolution of host addresses to N_Ports, and replies to requests of peers.

use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};
use vi_types::HostAddress;

use super::frames::{
    LARGER_NAME, MS, OURS, S, Setup, THEIR_NAME, THEIRS, config, farp, farp_request, host,
    neighbour,
};
use crate::Neighbour;
use crate::login::{Carrier, LoginConfig, LoginCounter, LoginEvent, PortState, TooManyHosts};

fn resolved(host: HostAddress, id: Option<NPortId>) -> LoginEvent {
    LoginEvent::Resolved { host, id }
}

/// Injects the reply of neighbour `number` to a request for `wanted`.
fn inject_reply(setup: &mut Setup, number: u8, wanted: HostAddress) {
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
    send(setup, number, &farp(ElsCommand::FarpReply, &reply));
}

fn send(setup: &mut Setup, number: u8, payload: &[u8]) {
    let id = neighbour(number).id;
    let mut header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x55);
    header.s_id = id;
    let source = MacAddress::vn2vn(id);
    let now_ns = setup.now_ns;
    setup
        .machine
        .handle_els(now_ns, Carrier::Fcoe, source, &header, payload);
}

/// Returns a machine that has sent a request for a host.
fn resolving(wanted: HostAddress) -> Setup {
    let mut setup = Setup::new(true);
    setup.machine.resolve(0, wanted).expect("room");
    setup.drain();
    setup
}

#[test]
fn request_is_sent_to_all_vn_ports() {
    let setup = resolving(host(2));
    let [request] = setup.sent[..] else {
        panic!("one frame");
    };
    assert_eq!(
        (request.carrier, request.destination),
        (Carrier::Fcoe, MacAddress::ALL_VN2VN)
    );
    assert_eq!(
        (request.fc.s_id, request.fc.d_id),
        (OURS, NPortId::BROADCAST)
    );
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
        Farp::parse(ElsCommand::FarpRequest, request.payload()),
        Ok(expected)
    );
}

#[test]
fn every_reply_is_reported_and_then_the_end() {
    let mut setup = resolving(host(2));
    setup.machine.neighbour_found(0, &neighbour(3));
    for number in [2, 3, 2] {
        inject_reply(&mut setup, number, host(2));
    }
    setup.drain();
    let three = NPortId::from_bytes([0, 0, 3]);
    let both = [
        resolved(host(2), Some(THEIRS)),
        resolved(host(2), Some(three)),
    ];
    assert_eq!(setup.events, both);
    assert_eq!(setup.machine.resolved(host(2)), [THEIRS, three]);
    setup.advance(500 * MS);
    assert_eq!(setup.events[2..], [resolved(host(2), None)]);
    // Another resolution reports them again and sends a new request, as there may be more ports.
    setup.clear();
    setup.machine.resolve(setup.now_ns, host(2)).expect("room");
    setup.drain();
    assert_eq!(setup.events, both);
    assert_eq!(setup.names(), ["FARP-REQ"]);
    setup.advance(500 * MS);
    assert_eq!(setup.events[2..], [resolved(host(2), None)]);
    assert_eq!(setup.sent.len(), 1);
    // They expire after their lifetime.
    setup.advance(30 * S);
    assert_eq!(setup.machine.resolved(host(2)), []);
    assert_eq!(setup.machine.poll_timeout(), None);
}

#[test]
fn unanswered_request_is_sent_four_times() {
    let mut setup = resolving(host(9));
    setup.advance(2 * S - 1);
    assert_eq!(setup.names(), ["FARP-REQ"; 4]);
    assert_eq!(setup.events, []);
    setup.advance(1);
    assert_eq!(setup.events, [resolved(host(9), None)]);
    assert_eq!(setup.count(LoginCounter::Unresolved), 1);
    assert_eq!(setup.machine.poll_timeout(), None);
}

#[test]
fn lost_request_is_recovered_by_its_retry() {
    let mut setup = resolving(host(2));
    setup.advance(600 * MS);
    inject_reply(&mut setup, 2, host(2));
    setup.drain();
    setup.advance(400 * MS);
    let expected = [resolved(host(2), Some(THEIRS)), resolved(host(2), None)];
    assert_eq!(setup.events, expected);
    assert_eq!(setup.names(), ["FARP-REQ"; 2]);
}

#[test]
fn request_waits_for_the_local_id() {
    let mut setup = Setup::new(true);
    setup.machine.set_id(0, None);
    setup.machine.resolve(0, host(2)).expect("room");
    setup.machine.resolve(0, host(1)).expect("room");
    setup.drain();
    assert_eq!(setup.machine.poll_timeout(), None);
    setup.now_ns = 60 * S;
    setup.machine.set_id(60 * S, Some(OURS));
    setup.drain();
    assert_eq!(setup.names(), ["FARP-REQ"; 2]);
    // The local host includes the local port.
    assert_eq!(setup.events, [resolved(host(1), Some(OURS))]);
    setup.machine.resolve(setup.now_ns, host(1)).expect("room");
    setup.drain();
    assert_eq!(setup.events, [resolved(host(1), Some(OURS)); 2]);
}

#[test]
fn lost_port_is_removed_from_its_host() {
    let mut setup = resolving(host(2));
    inject_reply(&mut setup, 2, host(2));
    setup.machine.neighbour_gone(0, THEIR_NAME);
    setup.drain();
    assert_eq!(setup.machine.resolved(host(2)), []);
    assert_eq!(setup.events, []);
    setup.advance(2 * S);
    assert_eq!(setup.events, [resolved(host(2), None)]);
}

#[test]
fn reply_after_the_loss_of_another_port_is_reported() {
    let mut setup = resolving(host(2));
    for number in 3..5 {
        setup.machine.neighbour_found(0, &neighbour(number));
    }
    for number in 2..4 {
        inject_reply(&mut setup, number, host(2));
    }
    setup.drain();
    setup.clear();
    setup.machine.neighbour_gone(0, THEIR_NAME);
    inject_reply(&mut setup, 4, host(2));
    setup.drain();
    assert_eq!(setup.events, [resolved(host(2), Some(neighbour(4).id))]);
    // A reply is not reported if its port is lost before the event is taken.
    setup.machine.neighbour_found(0, &neighbour(5));
    inject_reply(&mut setup, 5, host(2));
    setup.machine.neighbour_gone(0, neighbour(5).port_name);
    setup.clear();
    setup.drain();
    assert_eq!(setup.events, []);
}

#[test]
fn loss_of_the_local_id_discards_all_replies() {
    let mut setup = resolving(host(2));
    inject_reply(&mut setup, 2, host(2));
    setup.advance(500 * MS);
    assert_eq!(setup.machine.resolved(host(2)), [THEIRS]);
    setup.clear();
    setup.machine.set_id(setup.now_ns, None);
    setup.drain();
    assert_eq!(setup.machine.resolved(host(2)), []);
    assert_eq!(setup.machine.poll_timeout(), None);
    assert_eq!(setup.events, []);
}

#[test]
fn unrequested_and_inconsistent_replies_are_dropped() {
    let mut setup = resolving(host(2));
    inject_reply(&mut setup, 2, host(3));
    assert_eq!(setup.count(LoginCounter::DropFarpNotAsked), 1);
    inject_reply(&mut setup, 3, host(2));
    assert_eq!(setup.count(LoginCounter::DropFarpStranger), 1);
    let valid = Farp {
        requester: OURS,
        responder: THEIRS,
        responder_port_name: THEIR_NAME,
        responder_host: host(2),
        ..Farp::default()
    };
    let forged = [
        (
            LoginCounter::DropFarpMalformed,
            Farp {
                responder: OURS,
                ..valid
            },
        ),
        (
            LoginCounter::DropFarpMalformed,
            Farp {
                requester: THEIRS,
                ..valid
            },
        ),
        (
            LoginCounter::DropFarpStranger,
            Farp {
                responder_port_name: 7,
                ..valid
            },
        ),
    ];
    for (counter, reply) in forged {
        let before = setup.count(counter);
        send(&mut setup, 2, &farp(ElsCommand::FarpReply, &reply));
        assert_eq!(setup.count(counter), before + 1, "{reply:?}");
    }
    let bytes = farp(ElsCommand::FarpReply, &valid);
    send(&mut setup, 2, &bytes[..72]);
    assert_eq!(setup.count(LoginCounter::DropFarpMalformed), 3);
    assert_eq!(setup.machine.resolved(host(2)), []);
    send(&mut setup, 2, &bytes);
    assert_eq!(setup.machine.resolved(host(2)), [THEIRS]);
}

#[test]
fn the_tables_are_bounded() {
    let mut setup = Setup::empty(LoginConfig {
        max_hosts: 2,
        max_ports_per_host: 2,
        ..config(true)
    });
    for number in 2..5 {
        setup.machine.neighbour_found(0, &neighbour(number));
    }
    setup.machine.resolve(0, host(2)).expect("room");
    setup.machine.resolve(0, host(3)).expect("room");
    assert_eq!(setup.machine.resolve(0, host(4)), Err(TooManyHosts));
    for number in 2..5 {
        inject_reply(&mut setup, number, host(2));
    }
    assert_eq!(setup.count(LoginCounter::DropFarpFull), 1);
    assert_eq!(setup.machine.resolved(host(2)).len(), 2);
    // A finished resolution is evicted after its end was reported.
    setup.now_ns = 500 * MS;
    setup.machine.handle_timeout(500 * MS);
    assert_eq!(setup.machine.resolve(500 * MS, host(4)), Err(TooManyHosts));
    setup.drain();
    setup.machine.resolve(500 * MS, host(4)).expect("room");
    assert_eq!(setup.machine.resolved(host(2)), []);
}

#[test]
fn request_for_the_local_host_is_answered() {
    let mut setup = Setup::new(true);
    let request = farp_request(host(1));
    let mut header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    header.d_id = NPortId::BROADCAST;
    setup.inject(
        Carrier::Fcoe,
        &header,
        &farp(ElsCommand::FarpRequest, &request),
    );
    setup.drain();
    let [reply] = setup.sent[..] else {
        panic!("one frame");
    };
    // The reply is a request, in an exchange of its own.
    assert_eq!(reply.fc.r_ctl, RCtl::ElsRequest);
    assert!(setup.machine.owns_ox_id(reply.fc.ox_id));
    assert_eq!((reply.fc.s_id, reply.fc.d_id), (OURS, THEIRS));
    assert_eq!(reply.destination, MacAddress::vn2vn(THEIRS));
    let expected = Farp {
        responder: OURS,
        responder_port_name: LARGER_NAME,
        responder_node_name: 0x1000_0000_0000_0001,
        ..request
    };
    assert_eq!(
        Farp::parse(ElsCommand::FarpReply, reply.payload()),
        Ok(expected)
    );
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
}

#[test]
fn every_matched_field_must_be_local() {
    let (name, node) = (LARGER_NAME, 0x1000_0000_0000_0001);
    for code in 0..=u8::MAX {
        for wrong in 0..8_u8 {
            let mut setup = Setup::new(true);
            let request = Farp {
                match_code: FarpMatch(code),
                responder_port_name: if wrong & 1 == 0 { name } else { 7 },
                responder_node_name: if wrong & 2 == 0 { node } else { 7 },
                responder_host: host(if wrong & 4 == 0 { 1 } else { 7 }),
                ..farp_request(host(1))
            };
            setup.request(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &request));
            setup.drain();
            let valid = (1..=7).contains(&code);
            let matches = valid && code & wrong == 0;
            assert_eq!(setup.sent.len(), usize::from(matches), "{code} {wrong}");
            let malformed = setup.count(LoginCounter::DropFarpMalformed);
            assert_eq!(malformed, u64::from(!valid));
            let other = setup.count(LoginCounter::DropFarpNoMatch);
            assert_eq!(other, u64::from(valid && !matches));
        }
    }
}

#[test]
fn request_action_selects_reply_and_login() {
    for (action, sent, state) in [
        (FarpAction(0), &[][..], PortState::Known),
        (FarpAction::LOGIN, &["FIP FLOGI"], PortState::FlogiSent),
        (
            FarpAction(3),
            &["FARP-REPLY", "FIP FLOGI"],
            PortState::FlogiSent,
        ),
    ] {
        let mut setup = Setup::new(true);
        let request = Farp {
            action,
            ..farp_request(host(1))
        };
        setup.request(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &request));
        setup.drain();
        assert_eq!(setup.names(), sent);
        assert_eq!(setup.state(), Some(state));
    }
}

/// It has no host address: none is queried or answered for, not even the address 0.
#[test]
fn port_without_a_host_address_answers_no_request_for_a_host() {
    let mut setup = Setup::empty(LoginConfig {
        host: None,
        ..config(true)
    });
    let peer = Neighbour {
        supports_fc4: true,
        ..neighbour(2)
    };
    setup.machine.neighbour_found(0, &peer);
    setup.plogi();
    let request = farp_request(HostAddress::default());
    setup.request(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &request));
    assert_eq!(setup.count(LoginCounter::DropFarpNoMatch), 1);
    setup.drain();
    assert_eq!(setup.names(), ["LS_ACC"]);
    setup.advance(60 * S);
    assert_eq!(setup.names(), ["LS_ACC"]);
    let view = setup.machine.ports().next().expect("a port");
    assert!(view.login.is_some() && !view.host_query_pending);
}

#[test]
fn unknown_ports_get_no_reply() {
    let mut setup = Setup::empty(config(true));
    let request = farp(ElsCommand::FarpRequest, &farp_request(host(1)));
    setup.request(Carrier::Fcoe, &request);
    assert_eq!(setup.count(LoginCounter::DropFarpStranger), 1);
    setup.machine.neighbour_found(0, &neighbour(2));
    let forged = Farp {
        requester: OURS,
        ..farp_request(host(1))
    };
    setup.request(Carrier::Fcoe, &farp(ElsCommand::FarpRequest, &forged));
    assert_eq!(setup.count(LoginCounter::DropFarpMalformed), 1);
    setup.drain();
    assert_eq!(setup.sent.len(), 0);
}
