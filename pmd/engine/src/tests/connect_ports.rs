//! A host of several ports: all are asked, one connects.

use fcvi_frame::iu::Opcode::{ConnectRequest as Rqst, ConnectResponse1 as Resp1};

use crate::testkit::net::{CLIENT, MS, Net, S, config, params};
use crate::{ConnectError, Counter, EndpointState, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
const PORTS: [usize; 3] = [1, 2, 3];
/// The time that silent ports are waited for.
const SILENT: u64 = 100 * MS;

/// A client, and a host that is three ports.
fn host_of_three() -> (Net, ViIndex) {
    let mut configs: Vec<_> = (0..4).map(config).collect();
    configs[2].host = configs[1].host;
    configs[3].host = configs[1].host;
    let mut net = Net::new(configs, 3);
    let a = net.create(CLIENT, params(RD));
    (net, a)
}

fn no_exchange_is_open(net: &Net) {
    for node in &net.nodes {
        assert_eq!(node.engine.exchange_usage().0, 0);
    }
}

#[test]
fn no_match_needs_all_ports() {
    let (mut net, a) = host_of_three();
    net.request(CLIENT, a, "x", &PORTS, None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    assert_eq!(net.frames(CLIENT, Rqst).len(), 3);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn the_port_whose_program_waits_connects() {
    for waiting in PORTS {
        let (mut net, a) = host_of_three();
        let b = net.create(waiting, params(RD));
        let listener = net.listen(waiting, "x");
        net.request(CLIENT, a, "x", &PORTS, None);
        net.settle();
        assert_eq!(net.outcome(CLIENT, a), None);
        let conn = net.indication(waiting, listener).unwrap().conn;
        net.accept(waiting, conn, b).unwrap();
        net.settle();
        let remote = net.outcome(CLIENT, a).unwrap().unwrap();
        assert_eq!(remote.n_port_id, net.nodes[waiting].id);
        no_exchange_is_open(&net);
    }
}

/// A port that holds the request is silent at first, but it is not a dead one.
#[test]
fn a_consumer_may_think_longer_than_silent_ports_are_waited_for() {
    let (mut net, a) = host_of_three();
    let b = net.create(2, params(RD));
    let listener = net.listen(2, "x");
    net.request(CLIENT, a, "x", &PORTS, None);
    net.advance(30 * S);
    assert_eq!(net.outcome(CLIENT, a), None);
    // It is asked more often only until the port said that it holds the request.
    assert!(net.frames(CLIENT, Rqst).len() < 3 + 1 + 7);
    let conn = net.indication(2, listener).unwrap().conn;
    net.accept(2, conn, b).unwrap();
    net.settle();
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert_eq!(net.state(2, b), EndpointState::Connected);
}

#[test]
fn a_silent_port_is_waited_for_only_so_long() {
    let (mut net, a) = host_of_three();
    net.wire.lose(2, Resp1, u32::MAX);
    net.request(CLIENT, a, "x", &PORTS, None);
    net.advance(SILENT);
    assert_eq!(net.outcome(CLIENT, a), None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    // The silent one is asked at the start and four times while it is waited for.
    let asked = net.frames(CLIENT, Rqst).len();
    assert!((3 + 3..=3 + 4).contains(&asked), "{asked}");
    net.settle();
    no_exchange_is_open(&net);
}

#[test]
fn ports_that_are_all_silent_are_asked_until_the_time_out() {
    let (mut net, a) = host_of_three();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &PORTS, Some(7 * S));
    net.advance(7 * S);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.frames(CLIENT, Rqst).len(), 6);
}

#[test]
fn the_second_port_that_accepts_is_told_that_it_is_too_late() {
    let (mut net, a) = host_of_three();
    let mut servers = Vec::new();
    for port in [1, 2] {
        let vi = net.create(port, params(RD));
        servers.push((port, vi, net.listen(port, "x")));
    }
    net.request(CLIENT, a, "x", &[1, 2], None);
    net.settle();
    for (port, vi, listener) in &servers {
        let conn = net.indication(*port, *listener).unwrap().conn;
        net.accept(*port, conn, *vi).unwrap();
    }
    net.settle();
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert!(matches!(net.outcome(1, servers[0].1), Some(Ok(_))));
    assert_eq!(net.error(2, servers[1].1), Some(ConnectError::Timeout));
    assert_eq!(net.state(2, servers[1].1), EndpointState::Idle);
    net.settle();
    no_exchange_is_open(&net);
}

#[test]
fn one_rejection_ends_the_request_at_all_ports() {
    let (mut net, a) = host_of_three();
    let b = net.create(2, params(RD));
    let listeners = [net.listen(1, "x"), net.listen(2, "x")];
    net.request(CLIENT, a, "x", &[1, 2], None);
    net.settle();
    let first = net.indication(1, listeners[0]).unwrap().conn;
    let second = net.indication(2, listeners[1]).unwrap().conn;
    net.reject(1, first).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    let late = net.accept(2, second, b);
    assert_eq!(late, Err(ConnectError::Timeout));
}

#[test]
fn ports_that_went_are_not_waited_for() {
    let (mut net, a) = host_of_three();
    let listener = net.listen(3, "x");
    net.wire.lose(1, Resp1, u32::MAX);
    net.wire.lose(2, Resp1, u32::MAX);
    net.request(CLIENT, a, "x", &PORTS, None);
    net.settle();
    net.peer_lost(CLIENT, 1);
    net.peer_lost(CLIENT, 2);
    assert_eq!(net.outcome(CLIENT, a), None);
    net.act(3, |engine, host| engine.unlisten(listener, host));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    no_exchange_is_open(&net);
}

#[test]
fn a_host_all_of_whose_ports_went_is_not_reachable() {
    let (mut net, a) = host_of_three();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &[1, 2], None);
    net.peer_lost(CLIENT, 1);
    net.peer_lost(CLIENT, 2);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NotReachable));
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 2);
    no_exchange_is_open(&net);
}

#[test]
fn a_port_with_a_full_table_refuses_for_want_of_room() {
    let (mut net, a) = host_of_three();
    net.nodes[1].engine.config.max_incoming = 0;
    net.listen(1, "x");
    net.request(CLIENT, a, "x", &[1], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Resources));
    assert_eq!(net.count(1, Counter::DropIncomingFull), 1);
}
