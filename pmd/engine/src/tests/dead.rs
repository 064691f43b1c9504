//! What is over is not taken for something new: handles and requests, for R_A_TOV.

use std::collections::HashSet;

use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, DisconnectRequest,
};

use crate::testkit::net::{CLIENT, Net, Node, S, SERVER, config, params};
use crate::{ConnectError, Counter, EndpointState, EngineConfig, Level};

const RD: Level = Level::ReliableDelivery;
const R_A_TOV: u64 = 10 * S;

/// This request arrives again: no consumer sees it, and nobody is answered.
fn is_late(net: &mut Net, request: &[u8]) {
    let listener = net.listen(SERVER, "x");
    let (late, answers) = (
        net.count(SERVER, Counter::DropLateRequest),
        net.frames(SERVER, Resp1).len(),
    );
    net.inject(SERVER, request);
    net.settle();
    assert_eq!(net.indication(SERVER, listener), None);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), late + 1);
    assert_eq!(net.frames(SERVER, Resp1).len(), answers);
    net.act(SERVER, |engine, host| engine.unlisten(listener, host));
}

#[test]
fn a_request_that_came_to_a_connection_is_shown_to_nobody_again() {
    for leaving in [CLIENT, SERVER] {
        let mut net = Net::pair();
        let (a, b) = net.join(RD);
        let request = net.frames(CLIENT, Rqst)[0].clone();
        net.disconnect(leaving, if leaving == CLIENT { a } else { b });
        net.settle();
        is_late(&mut net, &request);
        // No frame lives longer.
        net.advance(R_A_TOV);
        let listener = net.listen(SERVER, "x");
        net.inject(SERVER, &request);
        assert!(net.indication(SERVER, listener).is_some());
    }
}

#[test]
fn a_request_that_its_end_overtook_is_shown_to_nobody() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.wire.lose(CLIENT, Rqst, 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.count(SERVER, Counter::UnknownDisconnects), 1);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    is_late(&mut net, &request);
}

/// Both ends left half a connection, and the client's disconnect is lost: its RESP2 says that it
/// has seen RESP1.
#[test]
fn a_request_whose_acceptance_came_too_late_is_shown_to_nobody_again() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    net.wire.lose(CLIENT, DisconnectRequest, u32::MAX);
    net.disconnect(CLIENT, a);
    net.accept(SERVER, conn, b).expect("a match");
    net.disconnect(SERVER, b);
    net.settle();
    is_late(&mut net, &request);
}

/// A client that has not seen RESP1 goes on asking: for a new try at the other end.
#[test]
fn half_a_connection_that_took_too_long_is_asked_for_again() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    net.wire.lose(SERVER, Resp1, u32::MAX);
    net.accept(SERVER, conn, b).expect("a match");
    let listener = net.listen(SERVER, "x");
    net.advance(20 * S);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    net.wire.heal();
    net.advance(5 * S);
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    net.accept(SERVER, conn, b).expect("a match");
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
}

/// Tens of thousands of requests of one VI within R_A_TOV, each under a handle of its own.
#[test]
fn a_handle_is_not_drawn_again_for_r_a_tov() {
    let mut net = Net::pair();
    net.wire.tracing = false;
    let a = net.create(CLIENT, params(RD));
    let mut handles = HashSet::new();
    let begin_ns = net.now_ns;
    for _ in 0..40_000 {
        net.request(CLIENT, a, "x", &[SERVER], None);
        let ep = net.nodes[CLIENT].engine.endpoints[a.slot()].as_ref();
        let handle = ep.expect("a VI").handle;
        assert!(handles.insert(handle), "{handle:#x} again");
        net.advance(5_000);
        assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    }
    assert!(net.now_ns < begin_ns + R_A_TOV);
}

/// With as many VIs as there can be a handle has 16 bits besides its place. A VI that used them all
/// fails its calls until the first ones are over for long enough, and leaves what it was asked.
#[test]
fn a_vi_without_a_handle_has_no_connection() {
    let configs = [CLIENT, SERVER].map(|node| EngineConfig {
        max_vi: 0xFFFF,
        ..config(node)
    });
    let mut net = Net::new(configs.to_vec(), 3);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for node in [CLIENT, SERVER] {
        let now_ns = net.now_ns;
        let Node { engine, host, .. } = &mut net.nodes[node];
        while engine.new_handle(now_ns, a, host).is_some() {}
    }
    assert_eq!(net.count(CLIENT, Counter::NoHandle), 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Resources));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    net.peer_request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Resources));
    assert_eq!(net.ius(), []);
    // A VI of its own has all of them.
    let c = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, c, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    assert_eq!(net.accept(SERVER, conn, b), Err(ConnectError::Resources));
    assert_eq!(net.state(SERVER, b), EndpointState::Idle);
    net.advance(R_A_TOV);
    net.accept(SERVER, conn, b).expect("the request was left");
    net.settle();
    assert_eq!(net.state(CLIENT, c), EndpointState::Connected);
    net.request(CLIENT, a, "y", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
}

/// A peer that gives way needs another handle than that of its own request.
#[test]
fn a_peer_without_a_handle_cannot_give_way() {
    let configs = [CLIENT, SERVER].map(|node| EngineConfig {
        max_vi: 0xFFFF,
        ..config(node)
    });
    let mut net = Net::new(configs.to_vec(), 4);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    net.wire.lose(CLIENT, Rqst, u32::MAX);
    net.peer_request(CLIENT, a, "x", &[SERVER], None);
    let now_ns = net.now_ns;
    let Node { engine, host, .. } = &mut net.nodes[CLIENT];
    while engine.new_handle(now_ns, a, host).is_some() {}
    net.peer_request(SERVER, b, "x", &[CLIENT], None);
    net.settle();
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Resources));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    assert_eq!(net.frames(CLIENT, Resp1).len(), 0, "nothing is promised");
    assert_eq!(net.state(SERVER, b), EndpointState::ConnectPending);
}

/// What is kept to be refused again makes room, and is not asked for again by what is on its way.
#[test]
fn a_refused_request_that_made_room_is_shown_to_nobody_again() {
    let mut net = Net::pair();
    let places = net.nodes[SERVER].engine.config().max_incoming;
    for _ in 0..=places {
        let a = net.create(CLIENT, params(RD));
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let conn = net.indication(SERVER, listener).expect("a request").conn;
        net.reject(SERVER, conn).expect("a request");
        net.settle();
        assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    }
    let first = net.frames(CLIENT, Rqst)[0].clone();
    is_late(&mut net, &first);
    let second = net.frames(CLIENT, Rqst)[1].clone();
    net.inject(SERVER, &second);
    assert_eq!(net.count(SERVER, Counter::KnownRequests), 1);
}
