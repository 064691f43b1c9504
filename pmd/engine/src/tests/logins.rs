//! Engines that require logins, and changes of the local N_Port_ID.

use fcvi_frame::fc::NPortId;
use fcvi_frame::iu::Opcode::SendRequest;
use vi_types::{AsyncError, CallError, ReliabilityLevel, ViState};

use crate::testkit::io::Event;
use crate::testkit::net::{CLIENT, Net, S, SERVER, config, params};
use crate::{Counter, Engine};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const THIRD: usize = 2;
const LOST: Event = Event::Async(AsyncError::ConnectionLost);

/// Returns two ports that require logins.
fn pair_with_login() -> Net {
    let mut net = Net::pair();
    for node in &mut net.nodes {
        node.engine.require_login();
    }
    net
}

fn log_in(net: &mut Net, node: usize, other: usize) {
    let id = net.nodes[other].id;
    net.nodes[node].engine.logged_in(id, 2112);
}

fn log_out(net: &mut Net, node: usize, other: usize) {
    let (now_ns, id) = (net.now_ns, net.nodes[other].id);
    net.act(node, |engine, io| engine.logged_out(now_ns, id, io));
}

fn set_n_port_id(net: &mut Net, node: usize, id: u32) {
    let now_ns = net.now_ns;
    let id = NPortId::new(id).unwrap();
    net.act(node, |engine, io| {
        engine.change_n_port_id(now_ns, id, io);
    });
    net.nodes[node].id = id;
}

#[test]
fn port_without_login_cannot_connect_and_is_reported_once() {
    let mut net = pair_with_login();
    log_in(&mut net, CLIENT, SERVER);
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], Some(S));
    net.settle();
    assert!(net.indication(SERVER, listener).is_none());
    assert_eq!(net.count(SERVER, Counter::DropNotLoggedIn), 1);
    let client = net.nodes[CLIENT].id;
    let server = &mut net.nodes[SERVER].engine;
    assert_eq!(server.take_unlogged_port(), Some(client));
    assert_eq!(server.take_unlogged_port(), None);
    net.advance(2 * S);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
}

#[test]
fn ports_with_logins_in_both_directions_connect() {
    let mut net = pair_with_login();
    log_in(&mut net, CLIENT, SERVER);
    log_in(&mut net, SERVER, CLIENT);
    let (a, b) = net.join(RD);
    net.post_receive(SERVER, b, 10);
    net.post_send(CLIENT, a, b"hello");
    net.settle();
    assert_eq!(net.count(SERVER, Counter::RxMessages), 1);
    assert_eq!(net.count(SERVER, Counter::DropNotLoggedIn), 0);
}

#[test]
fn frame_size_is_limited_by_the_login() {
    let mut net = pair_with_login();
    for (node, other) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        let id = net.nodes[other].id;
        net.nodes[node].engine.logged_in(id, 256 + 4 * node as u16);
    }
    let (a, b) = net.join(RD);
    net.wire.trace.clear();
    for (node, vi, data_field_bytes) in [(CLIENT, a, 256), (SERVER, b, 260)] {
        let (other, other_vi) = ([SERVER, CLIENT][node], [b, a][node]);
        net.post_receive(other, other_vi, 1000);
        net.post_send(node, vi, &[1; 1000]);
        net.settle();
        let frames = net.frames(node, SendRequest);
        assert_eq!(frames.len(), 5);
        // Without the Ethernet, FCoE and FC headers and the trailer.
        assert_eq!(frames[0].len() - 60, data_field_bytes);
    }
}

#[test]
fn port_connects_to_itself_without_login() {
    let mut net = pair_with_login();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(CLIENT, "x");
    net.request(CLIENT, a, "x", &[CLIENT], None);
    net.settle();
    assert!(net.indication(CLIENT, listener).is_some());
}

#[test]
fn logout_ends_only_connections_with_that_port() {
    let mut net = Net::new((0..3).map(config).collect(), 1);
    net.nodes[CLIENT].engine.require_login();
    log_in(&mut net, CLIENT, SERVER);
    log_in(&mut net, CLIENT, THIRD);
    let (a, _) = net.join(RD);
    let c = net.create(CLIENT, params(RD));
    let d = net.create(THIRD, params(RD));
    let listener = net.listen(THIRD, "y");
    net.request(CLIENT, c, "y", &[THIRD], None);
    net.settle();
    let conn = net.indication(THIRD, listener).unwrap().conn;
    net.accept(THIRD, conn, d).unwrap();
    net.settle();
    net.clear_logs();
    log_out(&mut net, CLIENT, SERVER);
    log_out(&mut net, CLIENT, SERVER);
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 1);
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    assert!(net.log(CLIENT, a).contains(&LOST));
    assert_eq!(net.state(CLIENT, c), ViState::Connected);
}

#[test]
fn changed_n_port_id_ends_connections_and_logins() {
    let mut net = pair_with_login();
    log_in(&mut net, CLIENT, SERVER);
    log_in(&mut net, SERVER, CLIENT);
    let (a, b) = net.join(RD);
    let idle = net.create(CLIENT, params(RD));
    net.clear_logs();
    log_out(&mut net, SERVER, CLIENT);
    set_n_port_id(&mut net, CLIENT, 0x0777);
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    assert!(net.log(CLIENT, a).contains(&LOST));
    assert_eq!(net.state(CLIENT, idle), ViState::Idle);
    net.disconnect(CLIENT, a);
    net.disconnect(SERVER, b);
    net.settle();
    let without_login =
        |engine: &mut Engine| engine.port.may_connect(NPortId::new(0x0102).unwrap());
    assert!(!without_login(&mut net.nodes[CLIENT].engine));
    log_in(&mut net, CLIENT, SERVER);
    log_in(&mut net, SERVER, CLIENT);
    net.connect(a, b);
}

#[test]
fn unchanged_n_port_id_keeps_connections() {
    let (mut net, a, _) = Net::connected(RD);
    set_n_port_id(&mut net, CLIENT, 0x0101);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}
