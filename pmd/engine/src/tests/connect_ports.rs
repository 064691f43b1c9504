//! Requests to a host with several ports: sent to all, connected to one.

use fcvi_frame::fc::NPortId;
use fcvi_frame::iu::Opcode::{ConnectRequest as Rqst, ConnectResponse1 as Resp1};
use vi_types::{CallError, ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::endpoint::Phase;
use crate::testkit::net::{CLIENT, MS, Net, S, config, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const PORTS: [usize; 3] = [1, 2, 3];
/// How long silent ports delay the outcome of a request.
const SILENT: u64 = 100 * MS;

/// A client, and a host with three ports.
fn host_with_three_ports() -> (Net, ViIndex) {
    let mut configs: Vec<_> = (0..4).map(config).collect();
    configs[2].host = configs[1].host;
    configs[3].host = configs[1].host;
    let mut net = Net::new(configs, 3);
    let a = net.create(CLIENT, params(RD));
    (net, a)
}

fn assert_no_open_exchange(net: &Net) {
    for node in &net.nodes {
        assert_eq!(node.engine.exchange_usage().0, 0);
    }
}

/// A request without timeout keeps one entry for all ports that have left.
#[test]
fn port_that_joins_under_many_ids_does_not_grow_a_request() {
    let (mut net, a) = host_with_three_ports();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &PORTS, None);
    let host = net.nodes[1].engine.config().host;
    for n in 0..1000 {
        let (now_ns, id) = (net.now_ns, NPortId::new(0x2000 + n).expect("24 bits"));
        net.act(CLIENT, |engine, io| {
            engine.port_joined(now_ns, host, id, io);
            engine.peer_lost(now_ns, id, io);
        });
    }
    let ep = net.nodes[CLIENT].engine.endpoints[a.slot()].as_ref();
    let Some(Phase::Requesting(attempt)) = ep.map(|ep| &ep.phase) else {
        panic!("the request is pending");
    };
    assert_eq!(attempt.ports().count(), PORTS.len() + 1);
    net.wire.cut = false;
    net.advance(6 * S);
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_no_open_exchange(&net);
}

#[test]
fn no_match_requires_a_response_of_every_port() {
    let (mut net, a) = host_with_three_ports();
    net.request(CLIENT, a, "x", &PORTS, None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_eq!(net.frames(CLIENT, Rqst).len(), 3);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn the_port_with_a_listener_connects() {
    for listening in PORTS {
        let (mut net, a) = host_with_three_ports();
        let b = net.create(listening, params(RD));
        let listener = net.listen(listening, "x");
        net.request(CLIENT, a, "x", &PORTS, None);
        net.settle();
        assert_eq!(net.outcome(CLIENT, a), None);
        let conn = net.indication(listening, listener).unwrap().conn;
        net.accept(listening, conn, b).unwrap();
        net.settle();
        let remote = net.outcome(CLIENT, a).unwrap().unwrap();
        assert_eq!(remote.n_port_id, net.nodes[listening].id);
        assert_no_open_exchange(&net);
    }
}

/// A port whose consumer has the request sends no response at first, but does not count as silent.
#[test]
fn pending_request_outlasts_the_limit_for_silent_ports() {
    let (mut net, a) = host_with_three_ports();
    let b = net.create(2, params(RD));
    let listener = net.listen(2, "x");
    net.request(CLIENT, a, "x", &PORTS, None);
    net.advance(30 * S);
    assert_eq!(net.outcome(CLIENT, a), None);
    // The short retry interval ends when the port responds that the request is pending.
    assert!(net.frames(CLIENT, Rqst).len() < 3 + 1 + 7);
    let conn = net.indication(2, listener).unwrap().conn;
    net.accept(2, conn, b).unwrap();
    net.settle();
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    assert_eq!(net.state(2, b), ViState::Connected);
}

#[test]
fn silent_port_delays_no_match_for_a_limited_time() {
    let (mut net, a) = host_with_three_ports();
    net.wire.lose(2, Resp1, u32::MAX);
    net.request(CLIENT, a, "x", &PORTS, None);
    net.advance(SILENT);
    assert_eq!(net.outcome(CLIENT, a), None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    // The silent port gets the request and up to four retries within SILENT.
    let requests = net.frames(CLIENT, Rqst).len();
    assert!((3 + 3..=3 + 4).contains(&requests), "{requests}");
    net.settle();
    assert_no_open_exchange(&net);
}

#[test]
fn request_to_silent_ports_is_repeated_until_the_timeout() {
    let (mut net, a) = host_with_three_ports();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &PORTS, Some(7 * S));
    net.advance(7 * S);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.frames(CLIENT, Rqst).len(), 6);
}

#[test]
fn second_port_that_accepts_gets_a_timeout() {
    let (mut net, a) = host_with_three_ports();
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
    assert_eq!(net.error(2, servers[1].1), Some(CallError::Timeout));
    assert_eq!(net.state(2, servers[1].1), ViState::Idle);
    net.settle();
    assert_no_open_exchange(&net);
}

#[test]
fn one_rejection_ends_the_request_at_all_ports() {
    let (mut net, a) = host_with_three_ports();
    let b = net.create(2, params(RD));
    let listeners = [net.listen(1, "x"), net.listen(2, "x")];
    net.request(CLIENT, a, "x", &[1, 2], None);
    net.settle();
    let first = net.indication(1, listeners[0]).unwrap().conn;
    let second = net.indication(2, listeners[1]).unwrap().conn;
    net.reject(1, first).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    let late = net.accept(2, second, b);
    assert_eq!(late, Err(CallError::Timeout));
}

#[test]
fn lost_ports_do_not_delay_no_match() {
    let (mut net, a) = host_with_three_ports();
    let listener = net.listen(3, "x");
    net.wire.lose(1, Resp1, u32::MAX);
    net.wire.lose(2, Resp1, u32::MAX);
    net.request(CLIENT, a, "x", &PORTS, None);
    net.settle();
    net.peer_lost(CLIENT, 1);
    net.peer_lost(CLIENT, 2);
    assert_eq!(net.outcome(CLIENT, a), None);
    net.act(3, |engine, io| engine.unlisten(listener, io));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_no_open_exchange(&net);
}

#[test]
fn host_with_all_ports_lost_is_not_reachable() {
    let (mut net, a) = host_with_three_ports();
    net.wire.cut = true;
    net.request(CLIENT, a, "x", &[1, 2], None);
    net.peer_lost(CLIENT, 1);
    net.peer_lost(CLIENT, 2);
    assert_eq!(net.error(CLIENT, a), Some(CallError::NotReachable));
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 2);
    assert_no_open_exchange(&net);
}

#[test]
fn port_with_a_full_request_table_refuses_with_resources() {
    let (mut net, a) = host_with_three_ports();
    net.nodes[1].engine.port.config.max_incoming = 0;
    net.listen(1, "x");
    net.request(CLIENT, a, "x", &[1], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NO_RESOURCES));
    assert_eq!(net.count(1, Counter::DropIncomingFull), 1);
}
