//! Host queries: every logged-in port that supports the FC-4 protocol is queried for its host address.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, Farp, FarpAction, FarpMatch};
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::frames::{S, host, neighbour};
use super::net::{Faults, Segment};
use crate::login::frames::request_header;
use crate::login::{Carrier, LoginConfig, LoginCounter};
use crate::testkit::FC_VI;

const NODES: u8 = 5;

fn segment(seed: u64) -> Segment {
    let mut segment = Segment::new(NODES, seed);
    segment.supports_fc4 = true;
    segment
}

fn start_all(segment: &mut Segment) {
    for at in 0..usize::from(NODES) {
        segment.start(at);
    }
}

/// Returns the ports that node `at` should know, with their hosts.
fn others(at: usize) -> Vec<(NPortId, u8)> {
    let numbers = (1..=NODES).filter(|number| usize::from(*number) != at + 1);
    numbers
        .map(|number| (neighbour(number).id, number.div_ceil(2)))
        .collect()
}

fn reported(segment: &Segment, at: usize) -> Vec<(NPortId, u8)> {
    let mut ports = segment.nodes[at].ports.clone();
    ports.sort_unstable();
    ports
}

#[test]
fn every_port_gets_the_host_of_every_other() {
    let mut segment = segment(1);
    start_all(&mut segment);
    segment.run(S);
    for at in 0..usize::from(NODES) {
        assert_eq!(reported(&segment, at), others(at), "node {at}");
        let mut views = segment.nodes[at].machine.ports();
        assert!(views.all(|view| view.host.is_some() && !view.host_query_pending));
    }
}

#[test]
fn port_without_fc_vi_is_not_queried() {
    let mut segment = Segment::new(2, 1);
    segment.start(0);
    segment.start(1);
    segment.run(60 * S);
    assert_eq!(segment.nodes[0].logins.len(), 1);
    assert!(reported(&segment, 0).is_empty());
}

#[test]
fn all_hosts_are_known_after_faults() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut segment = segment(seed);
        segment.faults = Faults {
            lost: 200_000,
            repeated: 200_000,
            delayed: 200_000,
            delay_ns: S,
        };
        start_all(&mut segment);
        segment.run(200 * S);
        segment.faults = Faults::default();
        segment.run(100 * S);
        for at in 0..usize::from(NODES) {
            assert_eq!(reported(&segment, at), others(at), "node {at}");
        }
    }
}

#[test]
fn restarted_port_is_queried_again() {
    let mut segment = segment(3);
    start_all(&mut segment);
    segment.run(S);
    segment.kill(0);
    segment.start(0);
    segment.run(10 * S);
    for at in 0..usize::from(NODES) {
        assert_eq!(reported(&segment, at), others(at), "node {at}");
    }
}

#[test]
fn unanswered_query_ends_and_is_repeated_later() {
    let config = LoginConfig::new(1, 1, FC_VI, Some(HostAddress::default()));
    let mut segment = segment(4);
    segment.drop_farp = true;
    segment.start(0);
    segment.start(1);
    segment.run(config.farp_timeout_ns / 2);
    let view = segment.nodes[0].machine.ports().next().expect("a port");
    assert!(view.login.is_some() && view.host.is_none() && view.host_query_pending);
    let timeout_ns = config.farp_timeout_ns * (u64::from(config.farp_retries) + 2);
    segment.run(timeout_ns);
    let view = segment.nodes[0].machine.ports().next().expect("a port");
    assert!(view.host.is_none() && !view.host_query_pending);
    segment.drop_farp = false;
    segment.run(config.farp_lifetime_ns);
    let view = segment.nodes[0].machine.ports().next().expect("a port");
    assert_eq!(view.host, Some(host(1)));
}

#[test]
fn unrequested_farp_reply_is_dropped() {
    let mut segment = segment(5);
    segment.start(0);
    segment.start(1);
    segment.run(S);
    let peer = neighbour(2);
    let reply = Farp {
        match_code: FarpMatch::PORT_NAME,
        action: FarpAction::REPLY,
        requester: neighbour(1).id,
        responder: peer.id,
        requester_port_name: neighbour(1).port_name,
        responder_port_name: peer.port_name,
        requester_host: host(1),
        responder_host: host(7),
        ..Farp::default()
    };
    let mut payload = [0; Farp::BYTES];
    reply.emit(ElsCommand::FarpReply, &mut payload);
    let header = request_header(peer.id, neighbour(1).id, 0x77);
    let source = MacAddress::vn2vn(peer.id);
    let now_ns = segment.now_ns;
    let machine = &mut segment.nodes[0].machine;
    machine.handle_els(now_ns, Carrier::Fcoe, source, &header, &payload);
    assert_eq!(machine.counters().get(LoginCounter::DropFarpNotAsked), 1);
    segment.run(S);
    assert_eq!(reported(&segment, 0), [(peer.id, 1)]);
}
